/** Fits blobs to a picture, with each step, the plan's list `step`, entirely on the GPU; and draws the loss curve. */

import { Plan, Screen } from "./plan.js";

// Initial capacity of the lists of intersections between blobs and tiles.
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
   * Start over.
   * @param picture width, height and values [height, width, 3] from 0 to 1
   * @param blobs their number, or their raw initial parameters [9, N]
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

  /** Do `count` steps, show the picture of the last one, and return its loss: the mean squared error. */
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
      // Nothing has changed since the first step whose lists did not fit (slang/kernels/status.slang): continue from there.
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
}

const EVEN_SHARE = 0.1;
const DEVIATION = 0.8;
const OPACITY = 0.9;
const MARGIN_OF_RANGE = 0.02;

/**
 * Initial raw parameters [9, count] of blobs, as in splat_py/image/fitting.py: small and close in detailed areas, large and far
 * apart elsewhere, in the picture's colours, smaller ones in front. Constants are from slang/splat/blob2d.slang.
 */
function blobsOnDetail({ width, height, values }, count, constants) {
  const { MARGIN, LARGEST_DEVIATION, PIXEL_VARIANCE } = constants;
  // Reproducible random numbers from 0 to 1: a linear congruential generator (Press et al. 2007).
  let state = 42;
  const draw = () => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32;
  const density = densityOf(width, height, values);
  // Each share of the density, in ascending order, lies in a pixel.
  let [pixel, below] = [0, density[0]];
  const chosen = Array.from(Float64Array.from({ length: count }, draw).sort(), (share) => {
    while (below <= share && pixel < density.length - 1) below += density[++pixel];
    return { pixel, spacing: 1 / Math.sqrt(count * density[pixel]) };
  });
  chosen.sort((a, b) => a.spacing - b.spacing);

  const raw = new Float32Array(9 * count);
  chosen.forEach(({ pixel, spacing }, i) => {
    const variance = Math.max((DEVIATION * spacing) ** 2 - PIXEL_VARIANCE, 0.2 ** 2);
    const place = [(pixel % width) + draw(), Math.floor(pixel / width) + draw()];
    [width, height].forEach((side, axis) => {
      raw[axis * count + i] = logit((place[axis] / side + MARGIN) / (1 + 2 * MARGIN));
      raw[(2 + axis) * count + i] = logit(Math.sqrt(variance) / side / LARGEST_DEVIATION, 1e-6);
    });
    for (let k = 0; k < 3; k++) raw[(5 + k) * count + i] = logit(values[pixel * 3 + k]);
    raw[8 * count + i] = logit(OPACITY);
  });
  return raw;
}

/** The slightly blurred magnitude of the gradient, mixed with a uniform density; its sum is 1. */
function densityOf(width, height, values) {
  const at = (x, y, k) => values[(Math.min(Math.max(y, 0), height - 1) * width + Math.min(Math.max(x, 0), width - 1)) * 3 + k];
  const detail = new Float64Array(width * height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      for (let k = 0; k < 3; k++) {
        detail[y * width + x] += Math.hypot(at(x + 1, y, k) - at(x - 1, y, k), at(x, y + 1, k) - at(x, y - 1, k)) / 2;
      }
    }
  }
  const blurred = blur(blur(detail, width, height, 1, 0), width, height, 0, 1);
  const sum = Math.max(blurred.reduce((a, b) => a + b, 0), 1e-12);
  return blurred.map((x) => ((1 - EVEN_SHARE) * x) / sum + EVEN_SHARE / blurred.length);
}

/** Blur along one axis with a Gaussian of one pixel. */
function blur(values, width, height, dx, dy) {
  const weights = [-3, -2, -1, 0, 1, 2, 3].map((d) => [d, Math.exp((-d * d) / 2) / Math.sqrt(2 * Math.PI)]);
  return values.map((_, i) => {
    const [x, y] = [i % width, Math.floor(i / width)];
    let sum = 0;
    for (const [d, weight] of weights) {
      const [column, row] = [Math.min(Math.max(x + d * dx, 0), width - 1), Math.min(Math.max(y + d * dy, 0), height - 1)];
      sum += values[row * width + column] * weight;
    }
    return sum;
  });
}

function logit(share, least = MARGIN_OF_RANGE) {
  const inside = Math.min(Math.max(share, least), 1 - MARGIN_OF_RANGE);
  return Math.log(inside / (1 - inside));
}

// End values of the curve's step axis.
const ENDS = [50, 100, 200, 500, 1000];

export class Curve {
  constructor(canvas) {
    this.canvas = canvas;
    this.points = [];
    this.steps = 0;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** @param steps total number of steps */
  clear(steps) {
    this.steps = steps;
    this.points = [];
    this.draw();
  }

  add(step, loss) {
    this.points.push([step, Math.log10(Math.max(loss, 1e-10))]);
    this.draw();
  }

  draw() {
    const { canvas, points } = this;
    const sharp = devicePixelRatio;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = width * sharp;
    canvas.height = height * sharp;
    const context = canvas.getContext("2d");
    context.scale(sharp, sharp);
    const style = getComputedStyle(canvas);
    const [left, bottom] = [44, 18];
    const logs = points.map(([, log]) => log);
    const top = Math.max(...logs, -1) + 0.1;
    const low = Math.min(...logs, top - 1) - 0.1;
    const last = Math.min(points.at(-1)?.[0] ?? 0, this.steps);
    const end = ENDS.find((steps) => steps >= last) ?? this.steps;
    const x = (step) => left + (step / end) * (width - left - 8);
    const y = (log) => 6 + ((top - log) / (top - low)) * (height - bottom - 6);
    context.font = `11px ${style.fontFamily}`;
    context.fillStyle = style.color;
    context.strokeStyle = style.borderColor;
    context.lineWidth = 1;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (const log of ticks(low, top)) {
      context.fillText(String(Number((10 ** log).toPrecision(1))), left - 6, y(log));
      line(context, [[left, y(log)], [width - 8, y(log)]]);
    }
    context.textBaseline = "bottom";
    context.textAlign = "left";
    context.fillText("0", left, height);
    context.textAlign = "right";
    context.fillText(`${end} steps`, width - 8, height);
    context.strokeStyle = style.getPropertyValue("--accent");
    context.lineWidth = 2;
    line(context, points.map(([step, log]) => [x(step), y(log)]));
  }
}

// 1, 3, 10, 30 … between two powers of ten.
function ticks(low, top) {
  const found = [];
  for (let power = Math.floor(low); power <= top; power++) found.push(power, power + Math.log10(3));
  return found.filter((log) => log >= low && log <= top);
}

function line(context, points) {
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.stroke();
}
