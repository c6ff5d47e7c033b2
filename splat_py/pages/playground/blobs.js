/**
 * Where blobs start, as splat_py/image/initial.py says it: small and close where the picture has detail, large and far apart
 * elsewhere, in its colours; the smaller in front. Constants are those of slang/splat/blob2d.slang.
 */

import { random } from "./random.js";

const EVEN_SHARE = 0.1;
const DEVIATION = 0.8;
const OPACITY = 0.9;
const MARGIN_OF_RANGE = 0.02;

/** Raw blobs, [9, count]. */
export function blobsOnDetail({ width, height, values }, count, constants, seed = 42) {
  const { MARGIN, LARGEST_DEVIATION, PIXEL_VARIANCE } = constants;
  const draw = random(seed);
  const density = densityOf(width, height, values);
  const totals = new Float64Array(density.length);
  let sum = 0;
  for (let i = 0; i < density.length; i++) totals[i] = sum += density[i];
  const chosen = Array.from({ length: count }, () => {
    const pixel = firstAbove(totals, draw() * sum);
    return { pixel, spacing: 1 / Math.sqrt((count * density[pixel]) / sum) };
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

/** The gradient's magnitude, a little blurred, and some everywhere. */
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

/** Along one axis, by a Gaussian of one pixel. */
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

function firstAbove(totals, value) {
  let [low, high] = [0, totals.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (totals[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
}

function logit(share, least = MARGIN_OF_RANGE) {
  const inside = Math.min(Math.max(share, least), 1 - MARGIN_OF_RANGE);
  return Math.log(inside / (1 - inside));
}
