/** Fits blobs to a picture: every step is the list `step` of the plan, wholly on the GPU. */

import { blobsOnDetail } from "./blobs.js";
import { Plan } from "./plan.js";
import { Screen } from "./screen.js";

// Intersections of blobs with tiles that lists begin with space for.
const FIT_LISTS = 1 << 14;

export class Fit {
  constructor(device, kernels, content, canvas) {
    this.plan = new Plan(device, kernels, content);
    this.screen = new Screen(device, canvas);
    this.rate = 1;
    this.steps = 1000;
    this.capacity = FIT_LISTS;
  }

  /**
   * Begin anew.
   * @param picture width, height and values [height, width, 3] from 0 to 1
   * @param blobs how many, or where they begin: raw, [9, N]
   */
  start(picture, blobs) {
    const raw = typeof blobs === "number" ? blobsOnDetail(picture, blobs, this.plan.content.constants) : blobs;
    this.picture = picture;
    this.step = 0;
    this.blobs = raw.length / 9;
    this.reserve(false);
    this.plan.write("target", picture.values);
    this.plan.write("parameters", raw);
  }

  reserve(keep) {
    const { width, height } = this.picture;
    this.plan.allocate({ width, height, blobs: this.blobs, capacity: this.capacity }, keep);
  }

  get done() {
    return this.step >= this.steps;
  }

  /** Do some steps, show what the last of them saw, and return its loss: the mean squared error. */
  async advance(count) {
    const { width, height, values } = this.picture;
    for (let i = 0; i < count && !this.done; i++) {
      this.plan.run("step", { step: this.step, steps: this.steps, rate: this.rate });
      this.step++;
    }
    this.screen.show(this.plan.buffer("picture"), width, height);
    const [status, content] = await this.plan.read("status", "picture");
    const [needed, step] = new Uint32Array(status);
    if (needed) {
      // From the first step whose lists did not fit nothing has changed (slang/kernels/status.slang): go on from there.
      this.capacity = Math.ceil(needed * 1.5);
      this.reserve(true);
      this.plan.write("status", new Uint32Array(3));
      const again = this.step - step;
      this.step = step;
      return this.advance(again);
    }
    const drawn = new Float32Array(content);
    let sum = 0;
    for (let i = 0; i < values.length; i++) sum += (drawn[i] - values[i]) ** 2;
    return sum / values.length;
  }

  /** What the blobs look like now: [height, width, 3]. */
  async draw() {
    const { width, height } = this.picture;
    this.plan.run("draw");
    const [count, content] = await this.plan.read("count", "image");
    if (new Uint32Array(count)[0] > this.capacity) {
      this.capacity = Math.ceil(new Uint32Array(count)[0] * 1.5);
      this.reserve(true);
      return this.draw();
    }
    this.screen.show(this.plan.buffer("image"), width, height);
    return new Float32Array(content, 0, width * height * 3);
  }
}
