// A Vulkan driver that is another one (FAKE_DRIVER_REAL) except for what a test wants broken:
//
//   FAKE_DRIVER_VERSION="22.3.6"  it says that it is this version, and lacks what Mesa did not have before 23
//   FAKE_DRIVER_LOST_AFTER="100"  after so many submissions the device is lost and does not come back: the next one hangs
//   FAKE_DRIVER_MEMORY="64"       it allocates no more than so many MiB
//
// The loader reaches every function of a driver through the three entry points at the end.

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_DEVICE_MEMORY = -2, DEVICE_LOST = -4, DRIVER_PROPERTIES = 1000196000 };
static const char MISSING[] = "VK_KHR_shader_non_semantic_info";

typedef void (*Function)(void);
typedef Function (*Lookup)(void *, const char *);
typedef struct { char name[256]; uint32_t version; } Extension;
typedef struct { int type; void *next; } Header;
// VkPhysicalDeviceDriverProperties
typedef struct { Header header; int id; char name[256]; char info[256]; uint8_t conformance[4]; } DriverProperties;

// VkMemoryAllocateInfo
typedef struct { Header header; uint64_t size; uint32_t kind; } Allocation;

static Lookup real_instance_lookup, real_device_lookup;
static int32_t (*real_extensions)(void *, const char *, uint32_t *, Extension *);
static void (*real_properties)(void *, Header *);
static int32_t (*real_submit)(void *, uint32_t, const void *, uint64_t);
static int32_t (*real_submit2)(void *, uint32_t, const void *, uint64_t);
static int32_t (*real_wait)(void *, const void *, uint64_t);
static int32_t (*real_wait_idle)(void *);
static int32_t (*real_counter)(void *, uint64_t, uint64_t *);
static int32_t (*real_allocate)(void *, const Allocation *, const void *, uint64_t *);

static int32_t extensions(void *device, const char *layer, uint32_t *count, Extension *found)
{
    int32_t result = real_extensions(device, layer, count, found);
    for (uint32_t i = 0; found && i < *count; i++)
        if (strcmp(found[i].name, MISSING) == 0)
            strcpy(found[i].name, "VK_FAKE_extension");
    return result;
}

static void properties(void *device, Header *head)
{
    real_properties(device, head);
    for (Header *header = head; header; header = header->next)
        if (header->type == DRIVER_PROPERTIES)
            snprintf(((DriverProperties *)header)->info, 256, "Mesa %s", getenv("FAKE_DRIVER_VERSION"));
}

static int submissions;

static int lost(void)
{
    return submissions > atoi(getenv("FAKE_DRIVER_LOST_AFTER"));
}

// As on a GPU, the submission that hangs is accepted; those after it are not.
static int32_t submit(void *queue, uint32_t count, const void *work, uint64_t fence)
{
    if (lost())
        return DEVICE_LOST;
    submissions++;
    return lost() ? 0 : real_submit(queue, count, work, fence);
}

static int32_t submit2(void *queue, uint32_t count, const void *work, uint64_t fence)
{
    if (lost())
        return DEVICE_LOST;
    submissions++;
    return lost() ? 0 : real_submit2(queue, count, work, fence);
}

static int32_t wait(void *device, const void *semaphores, uint64_t timeout)
{
    return lost() ? DEVICE_LOST : real_wait(device, semaphores, timeout);
}

static int32_t wait_idle(void *device_or_queue)
{
    return lost() ? DEVICE_LOST : real_wait_idle(device_or_queue);
}

static int32_t counter(void *device, uint64_t semaphore, uint64_t *value)
{
    return lost() ? DEVICE_LOST : real_counter(device, semaphore, value);
}

// Nothing is ever freed: what a test allocates before is little.
static int32_t allocate(void *device, const Allocation *allocation, const void *callbacks, uint64_t *memory)
{
    static uint64_t allocated;
    if (allocated + allocation->size > strtoull(getenv("FAKE_DRIVER_MEMORY"), NULL, 10) << 20)
        return OUT_OF_DEVICE_MEMORY;
    allocated += allocation->size;
    return real_allocate(device, allocation, callbacks, memory);
}

static Function replace(const char *name, Function found);

static Function device_lookup(void *device, const char *name)
{
    return replace(name, real_device_lookup(device, name));
}

static Function replace(const char *name, Function found)
{
#define REPLACE(vulkan_name, real, fake) \
    if (found && strcmp(name, vulkan_name) == 0) { real = (void *)found; return (Function)fake; }
    REPLACE("vkGetDeviceProcAddr", real_device_lookup, device_lookup)
    if (getenv("FAKE_DRIVER_VERSION")) {
        REPLACE("vkEnumerateDeviceExtensionProperties", real_extensions, extensions)
        REPLACE("vkGetPhysicalDeviceProperties2", real_properties, properties)
        REPLACE("vkGetPhysicalDeviceProperties2KHR", real_properties, properties)
    }
    if (getenv("FAKE_DRIVER_MEMORY"))
        REPLACE("vkAllocateMemory", real_allocate, allocate)
    if (getenv("FAKE_DRIVER_LOST_AFTER")) {
        REPLACE("vkQueueSubmit", real_submit, submit)
        REPLACE("vkQueueSubmit2", real_submit2, submit2)
        REPLACE("vkQueueSubmit2KHR", real_submit2, submit2)
        REPLACE("vkWaitSemaphores", real_wait, wait)
        REPLACE("vkWaitSemaphoresKHR", real_wait, wait)
        REPLACE("vkDeviceWaitIdle", real_wait_idle, wait_idle)
        REPLACE("vkGetSemaphoreCounterValue", real_counter, counter)
        REPLACE("vkGetSemaphoreCounterValueKHR", real_counter, counter)
    }
    return found;
}

static void *real(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen(getenv("FAKE_DRIVER_REAL"), RTLD_NOW | RTLD_LOCAL);
    return library ? dlsym(library, name) : NULL;
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name)
{
    if (!real_instance_lookup)
        real_instance_lookup = (Lookup)real("vk_icdGetInstanceProcAddr");
    return real_instance_lookup ? replace(name, real_instance_lookup(instance, name)) : NULL;
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name)
{
    Lookup lookup = (Lookup)real("vk_icdGetPhysicalDeviceProcAddr");
    return lookup ? replace(name, lookup(instance, name)) : NULL;
}

int32_t vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version)
{
    int32_t (*negotiate)(uint32_t *) = real("vk_icdNegotiateLoaderICDInterfaceVersion");
    return negotiate ? negotiate(version) : DEVICE_LOST;
}
