/** Draws the scene of the page: a frame whenever the camera has moved, and none while it rests. */

import { Plan } from "./plan.js";
import { Screen } from "./screen.js";

// Intersections of splats with tiles that lists begin with space for.
const FRAME_LISTS = 1 << 16;

export class Scene {
  /** @param parts means, covars, opacities, features and background, as the kernels take them */
  constructor(device, kernels, content, parts, canvas) {
    this.plan = new Plan(device, kernels, content);
    this.screen = new Screen(device, canvas);
    this.parts = parts;
    this.capacity = FRAME_LISTS;
    this.busy = null;
  }

  /** The size nearest to what is asked for that the plan has tiles for, pixels. */
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

  /** One frame, once those before are done. */
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
      if (count > most) throw new Error(`From here the scene touches ${count} tiles, more than this adapter has memory for.`);
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
