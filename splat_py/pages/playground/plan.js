/**
 * Replays what Python has recorded (splat_py/pages/playground_plan.py): buffers whose sizes are expressions, and lists of commands,
 * each a dispatch of a kernel with its buffers and uniforms, or a buffer to clear. Nothing here knows what the kernels do.
 */

import { evaluate } from "./expressions.js";

const WRITERS = {
  u32: (view, offset, value) => view.setUint32(offset, value, true),
  i32: (view, offset, value) => view.setInt32(offset, value, true),
  f32: (view, offset, value) => view.setFloat32(offset, value, true),
};
const ARRAYS = { float32: Float32Array, int32: Int32Array, uint32: Uint32Array };

export class Plan {
  constructor(device, kernels, content) {
    this.device = device;
    this.kernels = kernels;
    this.content = content;
    this.sizes = {};
    this.buffers = [];
    this.uniforms = {};
    this.bindGroups = {};
  }

  /** Make buffers for these sizes. With `keep`, those that stay as large keep what they hold. */
  allocate(sizes, keep = false) {
    this.sizes = sizes;
    const before = this.buffers;
    this.buffers = this.content.buffers.map((buffer, i) => {
      const bytes = Math.max(evaluate(buffer.bytes, sizes), 16);
      if (keep && before[i]?.size === bytes) return before[i];
      const made = this.device.createBuffer({ size: bytes, usage: USAGE });
      this.fill(made, buffer);
      return made;
    });
    for (const buffer of before) if (!this.buffers.includes(buffer)) buffer.destroy();
    for (const [name, commands] of Object.entries(this.content.lists)) this.bind(name, commands);
  }

  /** What a buffer begins with: zeros, unless the plan says a number, or 0, 1, 2 … */
  fill(buffer, { value, type, range }) {
    if (range) this.device.queue.writeBuffer(buffer, 0, Uint32Array.from({ length: buffer.size / 4 }, (_, i) => i));
    else if (value) this.device.queue.writeBuffer(buffer, 0, new ARRAYS[type](buffer.size / 4).fill(evaluate(value, this.sizes)));
  }

  /** Bind groups of a list's dispatches, and one buffer for all their uniform blocks. */
  bind(name, commands) {
    const alignment = this.device.limits.minUniformBufferOffsetAlignment;
    const block = Math.ceil(Math.max(...this.kernels.map((kernel) => kernel.bytes), 16) / alignment) * alignment;
    this.uniforms[name]?.buffer.destroy();
    const size = block * commands.length;
    const buffer = this.device.createBuffer({ size, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    this.uniforms[name] = { buffer, block, data: new DataView(new ArrayBuffer(size)) };
    this.bindGroups[name] = commands.map((command, i) => {
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
  }

  buffer(name) {
    return this.buffers[this.content.names[name]];
  }

  write(name, values) {
    this.device.queue.writeBuffer(this.buffer(name), 0, values);
  }

  /** Send a list to the device, with values of the variables that sizes do not give. */
  run(name, variables = {}) {
    const values = { ...this.sizes, ...variables };
    this.writeUniforms(name, values);
    const encoder = this.device.createCommandEncoder({ label: name });
    let pass = null;
    this.content.lists[name].forEach((command, i) => {
      if ("clear" in command) {
        pass?.end();
        pass = null;
        encoder.clearBuffer(this.buffers[command.clear]);
        return;
      }
      pass ??= encoder.beginComputePass();
      pass.setPipeline(this.kernels[command.kernel].pipeline);
      pass.setBindGroup(0, this.bindGroups[name][i]);
      pass.dispatchWorkgroups(...command.groups.map((n) => evaluate(n, values)));
    });
    pass?.end();
    this.device.queue.submit([encoder.finish()]);
  }

  writeUniforms(name, values) {
    const { buffer, block, data } = this.uniforms[name];
    this.content.lists[name].forEach((command, i) => {
      if (!("kernel" in command)) return;
      for (const [field, offset, type] of this.kernels[command.kernel].fields) {
        if (field in command.uniforms) WRITERS[type](data, block * i + offset, evaluate(command.uniforms[field], values));
      }
    });
    this.device.queue.writeBuffer(buffer, 0, data.buffer);
  }

  /** What buffers hold once all that was sent is done: an ArrayBuffer each. */
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

// GPUBufferUsage is not there where WebGPU is not.
const USAGE = 0x80 | 0x04 | 0x08; // STORAGE, COPY_SRC, COPY_DST
