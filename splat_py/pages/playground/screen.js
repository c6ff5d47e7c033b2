/** Shows a picture that lies in a buffer, [height, width, 3] floats, on a canvas. */

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
