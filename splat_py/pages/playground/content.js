/** What the page carries besides its code: plans and kernels as text, the scene as compressed numbers. */

export function readPlans() {
  const plans = JSON.parse(document.getElementById("plans").textContent);
  const kernels = plans.kernels.map((kernel, i) => ({ ...kernel, source: document.getElementById(`kernel-${i}`).textContent }));
  return { ...plans, kernels };
}

/** The arrays that `layout` names, one after another: [name, "f32" or "f16", numbers]. */
export async function readScene(layout) {
  const packed = await fetch(`data:;base64,${document.getElementById("scene").textContent.trim()}`);
  const bytes = await new Response(packed.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const parts = {};
  let offset = 0;
  for (const [name, type, count] of layout) {
    parts[name] = type === "f32" ? new Float32Array(bytes, offset, count) : halves(new Uint16Array(bytes, offset, count));
    offset += count * (type === "f32" ? 4 : 2);
  }
  return parts;
}

/** Floats of 16 bits (IEEE 754) as such of 32: their exponents' difference is a factor of 2¹¹². */
function halves(bits) {
  const floats = new Float32Array(bits.length);
  const integers = new Int32Array(floats.buffer);
  for (let i = 0; i < bits.length; i++) integers[i] = ((bits[i] & 0x8000) << 16) | ((bits[i] & 0x7fff) << 13);
  return floats.map((x) => x * 2 ** 112);
}

/** A picture of about so many pixels from a file or a blob. */
export async function readPicture(file, pixels) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(Math.sqrt(pixels / (bitmap.width * bitmap.height)), 512 / Math.max(bitmap.width, bitmap.height));
  const [width, height] = [bitmap.width, bitmap.height].map((side) => Math.max(Math.round(side * scale), 16));
  const context = new OffscreenCanvas(width, height).getContext("2d");
  context.fillStyle = "white";
  context.fillRect(0, 0, width, height);
  context.imageSmoothingQuality = "high";
  context.drawImage(bitmap, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const values = new Float32Array(width * height * 3);
  for (let i = 0; i < width * height; i++) for (let k = 0; k < 3; k++) values[i * 3 + k] = data[i * 4 + k] / 255;
  return { width, height, values };
}
