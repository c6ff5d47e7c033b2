/** A WebGPU device that can run the kernels, or an error whose message a reader understands. */

// What the kernels bind, and what browsers have to be asked for beyond the default.
const NEEDED_FEATURES = ["subgroups"];
// slang/parallel/wave.slang counts lanes in two words.
const MOST_LANES = 64;
const WANTED_LIMITS = ["maxStorageBuffersPerShaderStage", "maxStorageBufferBindingSize", "maxBufferSize"];

/** @param needed least values of the adapter's limits, by name */
export async function openDevice(needed) {
  if (!navigator.gpu) {
    throw new Error(
      "This browser has no WebGPU. Use a recent Chrome, Edge or Safari; on Linux WebGPU may have to be switched on " +
        "(chrome://flags/#enable-unsafe-webgpu).",
    );
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Error("This browser has WebGPU, but no graphics adapter for it. Update the graphics driver.");
  for (const feature of NEEDED_FEATURES) {
    if (!adapter.features.has(feature)) {
      throw new Error(`WebGPU of this browser lacks the feature “${feature}”, which the kernels use. A newer one has it.`);
    }
  }
  if (adapter.info?.subgroupMaxSize > MOST_LANES) {
    const { subgroupMaxSize } = adapter.info;
    throw new Error(`This graphics adapter works in groups of ${subgroupMaxSize} threads; the kernels know ${MOST_LANES} at most.`);
  }
  for (const [name, least] of Object.entries(needed)) {
    if (adapter.limits[name] < least) {
      throw new Error(`The graphics adapter is too small: its ${name} is ${adapter.limits[name]}, and the kernels need ${least}.`);
    }
  }
  const requiredLimits = Object.fromEntries(WANTED_LIMITS.map((name) => [name, adapter.limits[name]]));
  return adapter.requestDevice({ requiredFeatures: NEEDED_FEATURES, requiredLimits });
}

/** Compile every kernel, side by side. */
export async function compileKernels(device, kernels) {
  return Promise.all(
    kernels.map(async (kernel) => {
      const module = device.createShaderModule({ label: kernel.name, code: kernel.source });
      const compute = { module, entryPoint: kernel.entry };
      const pipeline = await device.createComputePipelineAsync({ label: kernel.name, layout: "auto", compute });
      return { ...kernel, pipeline };
    }),
  );
}
