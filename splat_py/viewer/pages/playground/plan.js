/**
 * Runs plans that Python recorded (splat_py/viewer/pages/playground_plan.py) on a WebGPU device. A plan has buffers, whose
 * sizes are expressions, and lists of commands: each dispatches a kernel with its buffers and uniforms, or clears a buffer.
 * The code is independent of what the kernels compute.
 */

// slang/parallel/wave.slang counts lanes in two words.
const MOST_LANES = 64;
// Limits that a page must request explicitly.
const WANTED_LIMITS = ["maxStorageBuffersPerShaderStage", "maxStorageBufferBindingSize", "maxBufferSize"];

/** @param needed minimum values of the adapter's limits, by name */
export async function openDevice(needed) {
  if (!navigator.gpu) {
    throw new Error(
      "This browser has no WebGPU. Use a recent Chrome, Edge or Safari; on Linux you may need to enable WebGPU " +
        "(chrome://flags/#enable-unsafe-webgpu).",
    );
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Error("This browser has WebGPU, but no graphics adapter for it. Update the graphics driver.");
  if (!adapter.features.has("subgroups")) {
    throw new Error("This browser's WebGPU lacks the feature “subgroups”, which the kernels need. Update the browser.");
  }
  if (adapter.info?.subgroupMaxSize > MOST_LANES) {
    const { subgroupMaxSize } = adapter.info;
    throw new Error(`This graphics adapter has subgroups of ${subgroupMaxSize} threads; the kernels support at most ${MOST_LANES}.`);
  }
  for (const [name, least] of Object.entries(needed)) {
    if (adapter.limits[name] < least) {
      throw new Error(`The graphics adapter is too small: its ${name} is ${adapter.limits[name]}, and the kernels need ${least}.`);
    }
  }
  const requiredLimits = Object.fromEntries(WANTED_LIMITS.map((name) => [name, adapter.limits[name]]));
  return adapter.requestDevice({ requiredFeatures: ["subgroups"], requiredLimits });
}

/** Compile all kernels in parallel. */
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

/** Operators of expressions; an expression is a number, a variable's name, or [operator, a, b]. */
const operators = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "/": (a, b) => a / b,
  "//": (a, b) => Math.floor(a / b),
  "**": (a, b) => a ** b,
  min: Math.min,
};

function evaluate(expression, variables) {
  if (typeof expression === "string") return variables[expression];
  if (!Array.isArray(expression)) return expression;
  const [operator, ...operands] = expression;
  return operators[operator](...operands.map((operand) => evaluate(operand, variables)));
}

const WRITERS = { u32: "setUint32", i32: "setInt32", f32: "setFloat32" };
const ARRAYS = { float32: Float32Array, int32: Int32Array, uint32: Uint32Array };

export class Plan {
  constructor(device, kernels, content) {
    this.device = device;
    this.kernels = kernels;
    this.content = content;
    this.sizes = {};
    this.buffers = [];
    // Each list's bind groups and uniforms.
    this.lists = {};
  }

  /** Create buffers for these sizes. With `keep`, buffers of unchanged size keep their contents. */
  allocate(sizes, keep = false) {
    this.sizes = sizes;
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    const before = this.buffers;
    this.buffers = this.content.buffers.map((buffer, i) => {
      const bytes = Math.max(evaluate(buffer.bytes, sizes), 16);
      if (keep && before[i]?.size === bytes) return before[i];
      const made = this.device.createBuffer({ size: bytes, usage });
      // A new buffer is zero, unless the plan gives a value or the range 0, 1, 2 ….
      const { value, type, range } = buffer;
      if (range) this.device.queue.writeBuffer(made, 0, Uint32Array.from({ length: bytes / 4 }, (_, i) => i));
      else if (value) this.device.queue.writeBuffer(made, 0, new ARRAYS[type](bytes / 4).fill(evaluate(value, sizes)));
      return made;
    });
    for (const buffer of before) if (!this.buffers.includes(buffer)) buffer.destroy();
    for (const [name, commands] of Object.entries(this.content.lists)) this.bind(name, commands);
  }

  /** Make the bind groups of a list's dispatches, and one buffer for all their uniform blocks. */
  bind(name, commands) {
    const alignment = this.device.limits.minUniformBufferOffsetAlignment;
    const block = Math.ceil(Math.max(...this.kernels.map((kernel) => kernel.bytes), 16) / alignment) * alignment;
    this.lists[name]?.buffer.destroy();
    const size = block * commands.length;
    const buffer = this.device.createBuffer({ size, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    const groups = commands.map((command, i) => {
      if (!("kernel" in command)) return null;
      const kernel = this.kernels[command.kernel];
      const entries = Object.entries(command.buffers).map(([name, number]) => ({
        binding: kernel.buffers[name],
        resource: { buffer: this.buffers[number] },
      }));
      if (kernel.bytes) {
        entries.push({ binding: kernel.uniforms, resource: { buffer, offset: block * i, size: kernel.bytes } });
      }
      return this.device.createBindGroup({ layout: kernel.pipeline.getBindGroupLayout(0), entries });
    });
    this.lists[name] = { buffer, block, groups, data: new DataView(new ArrayBuffer(size)) };
  }

  buffer(name) {
    return this.buffers[this.content.names[name]];
  }

  write(name, values) {
    this.device.queue.writeBuffer(this.buffer(name), 0, values);
  }

  /** Submit a list to the device; `variables` adds to the variables in the sizes. */
  run(name, variables = {}) {
    const values = { ...this.sizes, ...variables };
    const { buffer, block, groups, data } = this.lists[name];
    const encoder = this.device.createCommandEncoder({ label: name });
    let pass = null;
    this.content.lists[name].forEach((command, i) => {
      if ("clear" in command) {
        pass?.end();
        pass = null;
        encoder.clearBuffer(this.buffers[command.clear]);
        return;
      }
      const { fields, pipeline } = this.kernels[command.kernel];
      for (const [field, offset, type] of fields) {
        if (field in command.uniforms) data[WRITERS[type]](block * i + offset, evaluate(command.uniforms[field], values), true);
      }
      pass ??= encoder.beginComputePass();
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, groups[i]);
      pass.dispatchWorkgroups(...command.groups.map((n) => evaluate(n, values)));
    });
    pass?.end();
    this.device.queue.writeBuffer(buffer, 0, data.buffer);
    this.device.queue.submit([encoder.finish()]);
  }

  /** Read buffers after all submitted work, as one ArrayBuffer each. */
  async read(...names) {
    const encoder = this.device.createCommandEncoder();
    const copies = names.map((name) => {
      const source = this.buffer(name);
      const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
      const copy = this.device.createBuffer({ size: source.size, usage });
      encoder.copyBufferToBuffer(source, 0, copy, 0, source.size);
      return copy;
    });
    this.device.queue.submit([encoder.finish()]);
    return Promise.all(
      copies.map(async (copy) => {
        await copy.mapAsync(GPUMapMode.READ);
        const content = copy.getMappedRange().slice(0);
        copy.destroy();
        return content;
      }),
    );
  }
}

const SOURCE = `
@group(0) @binding(0) var<storage, read> picture : array<f32>;
@group(0) @binding(1) var<uniform> size : vec2<u32>;

@vertex fn corner(@builtin(vertex_index) i : u32) -> @builtin(position) vec4<f32> {
  return vec4<f32>(f32(i & 1u) * 4.0 - 1.0, f32(i >> 1u) * 4.0 - 1.0, 0.0, 1.0);
}

@fragment fn color(@builtin(position) at : vec4<f32>) -> @location(0) vec4<f32> {
  let pixel = min(vec2<u32>(at.xy), size - 1u);
  let i = (pixel.y * size.x + pixel.x) * 3u;
  return vec4<f32>(picture[i], picture[i + 1u], picture[i + 2u], 1.0);
}`;

/** Shows a picture from a buffer of floats [height, width, 3] on a canvas. */
export class Screen {
  constructor(device, canvas) {
    this.device = device;
    this.canvas = canvas;
    this.context = canvas.getContext("webgpu");
    const format = navigator.gpu.getPreferredCanvasFormat();
    this.context.configure({ device, format, alphaMode: "opaque" });
    const module = device.createShaderModule({ label: "screen", code: SOURCE });
    this.pipeline = device.createRenderPipeline({
      layout: "auto",
      vertex: { module, entryPoint: "corner" },
      fragment: { module, entryPoint: "color", targets: [{ format }] },
      primitive: { topology: "triangle-list" },
    });
    this.size = device.createBuffer({ size: 8, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
  }

  show(picture, width, height) {
    if (this.canvas.width !== width) this.canvas.width = width;
    if (this.canvas.height !== height) this.canvas.height = height;
    this.device.queue.writeBuffer(this.size, 0, Uint32Array.of(width, height));
    const entries = [
      { binding: 0, resource: { buffer: picture } },
      { binding: 1, resource: { buffer: this.size } },
    ];
    const group = this.device.createBindGroup({ layout: this.pipeline.getBindGroupLayout(0), entries });
    const encoder = this.device.createCommandEncoder();
    const view = this.context.getCurrentTexture().createView();
    const pass = encoder.beginRenderPass({ colorAttachments: [{ view, loadOp: "clear", storeOp: "store" }] });
    pass.setPipeline(this.pipeline);
    pass.setBindGroup(0, group);
    pass.draw(3);
    pass.end();
    this.device.queue.submit([encoder.finish()]);
  }
}

// Initial capacity of the lists of intersections between splats and tiles.
const FRAME_LISTS = 1 << 16;

export class Scene {
  /** @param parts means, covars, opacities, features and background, in the kernels' layout */
  constructor(device, kernels, content, parts, canvas) {
    this.plan = new Plan(device, kernels, content);
    this.screen = new Screen(device, canvas);
    this.parts = parts;
    this.capacity = FRAME_LISTS;
    this.busy = null;
  }

  /** The size in pixels, shrunk until the plan has enough tiles for it. */
  fittingSize(width, height) {
    const { tile, most } = this.plan.content;
    const tiles = (a, b) => Math.ceil(a / tile) * Math.ceil(b / tile);
    while (tiles(width, height) > most.tiles) [width, height] = [width * 0.95, height * 0.95];
    return [Math.max(Math.floor(width), 1), Math.max(Math.floor(height), 1)];
  }

  reserve(width, height) {
    this.plan.allocate({ width, height, capacity: this.capacity }, true);
    if (this.plan.buffer("means") !== this.means) {
      this.means = this.plan.buffer("means");
      for (const [name, values] of Object.entries(this.parts)) this.plan.write(name, values);
    }
  }

  /** Draw a frame after the previous ones are done. */
  async draw(camera, width, height) {
    while (this.busy) await this.busy;
    this.busy = this.drawNow(camera, width, height).finally(() => (this.busy = null));
    return this.busy;
  }

  async drawNow({ viewmat, K }, width, height) {
    const { sizes } = this.plan;
    if (sizes.width !== width || sizes.height !== height) this.reserve(width, height);
    this.plan.write("viewmats", viewmat);
    this.plan.write("Ks", K);
    const most = this.plan.device.limits.maxStorageBufferBindingSize / 4;
    for (;;) {
      this.plan.run("frame");
      const [count] = new Uint32Array((await this.plan.read("count"))[0]);
      if (count <= this.capacity) break;
      if (count > most) throw new Error(`The scene touches ${count} tiles here, more than the adapter can hold; move away.`);
      this.capacity = Math.min(Math.ceil(count * 1.5), most);
      this.reserve(width, height);
    }
    this.screen.show(this.plan.buffer("image"), width, height);
  }

  /** The last frame: [height, width, 3], 0 to 1. */
  async picture() {
    while (this.busy) await this.busy;
    const { width, height } = this.plan.sizes;
    const [content] = await this.plan.read("image");
    const values = new Float32Array(content, 0, width * height * 3).map((x) => Math.min(Math.max(x, 0), 1));
    return { width, height, values };
  }
}
