/** The page: its camera, its two canvases, and its handlers for mouse, touch, keys, buttons and sliders. */

import { Curve, Fit } from "./fit.js";
import { compileKernels, openDevice, Scene } from "./plan.js";
import { PixelPanel, readPixel } from "./steps.js";

// Vectors of three numbers.
const add = (a, b) => a.map((x, i) => x + b[i]);
const subtract = (a, b) => a.map((x, i) => x - b[i]);
const scale = (a, s) => a.map((x) => x * s);
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];
const unit = (a) => scale(a, 1 / Math.hypot(...a));

// The steepest elevation, radians, and the limits of the distance as shares of the initial one.
const STEEPEST = 1.5;
const NEAREST = 0.02;
const FARTHEST = 20;

class Orbit {
  /** @param view eye, target and up in the world, and the tangent of half the angle of the picture's shorter side */
  constructor(view) {
    this.view = view;
    this.reset();
  }

  reset() {
    const { eye, target, up } = this.view;
    this.up = unit(up);
    this.target = [...target];
    const offset = subtract(eye, target);
    this.distance = Math.hypot(...offset);
    this.elevation = clamp(Math.asin(clamp(dot(unit(offset), this.up), -1, 1)), -STEEPEST, STEEPEST);
    // Azimuth 0 is the initial direction.
    let north = subtract(offset, scale(this.up, dot(offset, this.up)));
    if (Math.hypot(...north) < 1e-6 * this.distance) north = cross(this.up, Math.abs(this.up[0]) < 0.9 ? [1, 0, 0] : [0, 1, 0]);
    this.north = unit(north);
    this.azimuth = 0;
  }

  /** Swap up and down, which may be wrong in a capture that was not levelled. */
  turnOver() {
    this.view = { ...this.view, up: scale(this.view.up, -1) };
    this.reset();
  }

  rotate(x, y) {
    this.azimuth -= x;
    this.elevation = clamp(this.elevation + y, -STEEPEST, STEEPEST);
  }

  zoom(factor) {
    const usual = Math.hypot(...subtract(this.view.eye, this.view.target));
    this.distance = clamp(this.distance * factor, usual * NEAREST, usual * FARTHEST);
  }

  /** Move the target by shares of the picture's shorter side. */
  pan(x, y) {
    const { right, down } = this.axes();
    const length = 2 * this.view.tangent * this.distance;
    this.target = add(this.target, add(scale(right, -x * length), scale(down, -y * length)));
  }

  axes() {
    const east = cross(this.up, this.north);
    const around = add(scale(this.north, Math.cos(this.azimuth)), scale(east, Math.sin(this.azimuth)));
    const away = add(scale(around, Math.cos(this.elevation)), scale(this.up, Math.sin(this.elevation)));
    const forward = scale(away, -1);
    const right = unit(cross(forward, this.up));
    return { away, forward, right, down: cross(forward, right) };
  }

  /** World → camera [4, 4] (OpenCV axes) and intrinsics [3, 3], row by row. */
  camera(width, height) {
    const { away, forward, right, down } = this.axes();
    const eye = add(this.target, scale(away, this.distance));
    const rows = [right, down, forward].flatMap((axis) => [...axis, -dot(axis, eye)]);
    const focal = Math.min(width, height) / 2 / this.view.tangent;
    return {
      viewmat: Float32Array.of(...rows, 0, 0, 0, 1),
      K: Float32Array.of(focal, 0, width / 2, 0, focal, height / 2, 0, 0, 1),
    };
  }
}

// A click moves the pointer less than this, CSS pixels.
const STILL = 4;

/** Let a canvas turn an orbit; `changed` is called after each change, `clicked` with the event of each click. */
function listen(canvas, orbit, changed, clicked) {
  const pointers = new Map();
  let travelled = 0;
  const side = () => Math.min(canvas.clientWidth, canvas.clientHeight);

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    if (!pointers.size) travelled = 0;
    pointers.set(event.pointerId, event);
  });
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, (event) => pointers.delete(event.pointerId));
  }
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return;
    const x = (event.clientX - before.clientX) / side();
    const y = (event.clientY - before.clientY) / side();
    travelled += Math.hypot(x, y) * side();
    const [other] = [...pointers.values()].filter((pointer) => pointer.pointerId !== event.pointerId);
    if (other) {
      const apart = (pointer) => Math.hypot(pointer.clientX - other.clientX, pointer.clientY - other.clientY) + 1;
      orbit.zoom(apart(before) / apart(event));
      orbit.pan(x / 2, y / 2);
    } else if (event.shiftKey || event.buttons & 6) {
      orbit.pan(x, y);
    } else {
      orbit.rotate(x * Math.PI, y * Math.PI);
    }
    pointers.set(event.pointerId, event);
    changed();
  });
  canvas.addEventListener("click", (event) => travelled < STILL && clicked(event));
  canvas.addEventListener("contextmenu", (event) => event.preventDefault());
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      orbit.zoom(Math.exp(clamp(event.deltaY * (event.deltaMode ? 0.05 : 0.0015), -0.5, 0.5)));
      changed();
    },
    { passive: false },
  );
  canvas.addEventListener("dblclick", () => (orbit.reset(), changed()));
  const keys = {
    ArrowLeft: () => orbit.rotate(0.1, 0),
    ArrowRight: () => orbit.rotate(-0.1, 0),
    ArrowUp: () => orbit.rotate(0, 0.1),
    ArrowDown: () => orbit.rotate(0, -0.1),
    "+": () => orbit.zoom(0.9),
    "-": () => orbit.zoom(1 / 0.9),
  };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
    changed();
  });
}

function clamp(value, least, most) {
  return Math.min(Math.max(value, least), most);
}

// The most pixels of a fitted picture and of a frame.
const PICTURE_PIXELS = 96 * 1024;
const FRAME_PIXELS = 1 << 20;
// The longest batch of steps, milliseconds.
const PATIENCE = 40;

const at = (id) => document.getElementById(id);

let lost = false;

function complain(error) {
  console.warn(error);
  // Work in flight fails with the device.
  if (lost) return;
  at("trouble").textContent = error.message ?? String(error);
  at("trouble").hidden = false;
  document.body.classList.add("broken");
}

function drawScenes(scene, orbit, panel) {
  const canvas = at("scene-canvas");
  let wanted = false;
  const frame = async () => {
    wanted = false;
    const shown = [canvas.clientWidth, canvas.clientHeight].map((side) => Math.max(side * devicePixelRatio, 1));
    const shrink = Math.min(Math.sqrt(FRAME_PIXELS / (shown[0] * shown[1])), 1);
    const [width, height] = scene.fittingSize(shown[0] * shrink, shown[1] * shrink);
    await scene.draw(orbit.camera(width, height), width, height);
    if (wanted) await frame();
  };
  let drawing = null;
  const changed = () => {
    // Its list is that of the frame before.
    panel.close();
    wanted = true;
    drawing ??= new Promise(requestAnimationFrame)
      .then(frame)
      .catch(complain)
      .finally(() => (drawing = null));
    return drawing;
  };
  const clicked = async ({ offsetX, offsetY }) => {
    await drawing;
    const x = clamp(Math.floor((offsetX / canvas.clientWidth) * canvas.width), 0, canvas.width - 1);
    const y = clamp(Math.floor((offsetY / canvas.clientHeight) * canvas.height), 0, canvas.height - 1);
    panel.open(await readPixel(scene.plan, x, y));
  };
  listen(canvas, orbit, changed, (event) => clicked(event).catch(complain));
  at("turn-over").addEventListener("click", () => (orbit.turnOver(), changed()));
  at("home").addEventListener("click", () => (orbit.reset(), changed()));
  new ResizeObserver(changed).observe(canvas);
  return changed();
}

class FitPanel {
  constructor(fit, scene) {
    this.fit = fit;
    this.curve = new Curve(at("curve"));
    this.running = false;
    this.atOnce = 1;
    at("blobs").addEventListener("input", () => this.showValues());
    at("blobs").addEventListener("change", () => this.restart());
    at("rate").addEventListener("input", () => this.showValues());
    // Act on the button's text at the time of the click, after any running restart.
    at("pause").addEventListener("click", () => this.inTurn(this.wanted ? () => this.pause() : () => this.go()));
    at("reset").addEventListener("click", () => this.restart());
    at("take-view").addEventListener("click", () => this.takeView(scene).catch(complain));
    at("choose").addEventListener("change", ({ target }) => target.files[0] && this.take(target.files[0]));
    const drop = at("fit");
    drop.addEventListener("dragover", (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
    for (const end of ["dragleave", "drop"]) drop.addEventListener(end, () => drop.classList.remove("over"));
    drop.addEventListener("drop", (event) => {
      event.preventDefault();
      const [file] = event.dataTransfer.files;
      if (file) this.take(file);
    });
    this.showValues();
  }

  get blobs() {
    return Math.round(2 ** Number(at("blobs").value));
  }

  showValues() {
    this.fit.rate = 10 ** Number(at("rate").value);
    at("blobs-value").textContent = this.blobs.toLocaleString("en");
    at("rate-value").textContent = `× ${this.fit.rate.toPrecision(2)}`;
  }

  /** Fit a picture from a file or an ImageData. */
  async take(file) {
    try {
      this.picture = await readPicture(file);
    } catch {
      at("refused").textContent = `The browser cannot read ${file.name} as a picture.`;
      return;
    }
    at("refused").textContent = "";
    await this.restart();
  }

  /** Fit the scene's current view. */
  async takeView(scene) {
    const { width, height, values } = await scene.picture();
    const pixels = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      for (let k = 0; k < 3; k++) pixels.data[i * 4 + k] = Math.round(values[i * 3 + k] * 255);
      pixels.data[i * 4 + 3] = 255;
    }
    await this.take(pixels);
  }

  /** Queue an action: actions run one after another, however fast a slider moves. */
  inTurn(act) {
    this.turn = (this.turn ?? Promise.resolve()).then(act).catch(complain);
    return this.turn;
  }

  restart() {
    return this.inTurn(async () => {
      if (!this.picture) return;
      await this.halt();
      this.fit.start(this.picture, this.blobs);
      this.curve.clear(this.fit.steps);
      this.go();
    });
  }

  /** End the loop; the button stays unchanged. */
  async halt() {
    this.running = false;
    await this.loop;
  }

  async pause() {
    this.show(false, "Resume");
    await this.halt();
  }

  /** Set the button's text and `wanted`, true if steps should run. */
  show(wanted, text) {
    this.wanted = wanted;
    at("pause").textContent = text;
  }

  go() {
    if (!this.picture) return;
    if (this.fit.done) {
      this.restart();
      return;
    }
    this.running = true;
    this.show(true, "Pause");
    // Start after a previous loop has finished its last steps.
    this.loop = (this.loop ?? Promise.resolve()).then(() => this.run()).catch(complain);
  }

  async run() {
    while (this.running && !this.fit.done) {
      const start = performance.now();
      const loss = await this.fit.advance(this.atOnce);
      const took = performance.now() - start;
      if (took < PATIENCE / 2) this.atOnce = Math.min(this.atOnce * 2, 16);
      else if (took > PATIENCE) this.atOnce = Math.max(this.atOnce >> 1, 1);
      this.report(loss);
      await new Promise(requestAnimationFrame);
    }
    if (this.fit.done) {
      this.running = false;
      this.show(false, "Again");
    }
  }

  report(loss) {
    this.curve.add(this.fit.step, loss);
    const decibels = (-10 * Math.log10(Math.max(loss, 1e-10))).toFixed(1);
    at("progress").textContent = `step ${this.fit.step} of ${this.fit.steps} · loss ${loss.toExponential(1)} · ${decibels} dB`;
  }
}

/** The plans and kernels, stored in the page as text. */
function readPlans() {
  const plans = JSON.parse(document.getElementById("plans").textContent);
  const kernels = plans.kernels.map((kernel, i) => ({ ...kernel, source: document.getElementById(`kernel-${i}`).textContent }));
  return { ...plans, kernels };
}

/** The arrays of the scene, stored one after another; `layout` has [name, "f32" or "f16", count] for each. */
async function readScene(layout) {
  const packed = await fetch(`data:;base64,${document.getElementById("scene").textContent.trim()}`);
  const bytes = await new Response(packed.body.pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
  const parts = {};
  let offset = 0;
  for (const [name, type, count] of layout) {
    const Numbers = type === "f32" ? Float32Array : Float16Array;
    parts[name] = Float32Array.from(new Numbers(bytes, offset, count));
    offset += count * Numbers.BYTES_PER_ELEMENT;
  }
  return parts;
}

/** A picture of at most about `PICTURE_PIXELS` pixels from a file or an ImageData. */
async function readPicture(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(Math.sqrt(PICTURE_PIXELS / (bitmap.width * bitmap.height)), 512 / Math.max(bitmap.width, bitmap.height));
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

async function main() {
  const { kernels, scene: scenePlan, fit: fitPlan, layout, view, background, limits } = readPlans();
  const device = await openDevice(limits);
  device.lost.then(({ message }) => {
    console.warn(message);
    complain(new Error("The graphics device was lost; reload the page."));
    lost = true;
  });
  device.addEventListener("uncapturederror", ({ error }) => complain(error));
  const [compiled, parts] = await Promise.all([compileKernels(device, kernels), readScene(layout)]);
  const scene = new Scene(device, compiled, scenePlan, { ...parts, background: Float32Array.from(background) }, at("scene-canvas"));
  const fit = new Fit(device, compiled, fitPlan, at("fit-canvas"));
  const orbit = new Orbit(view);
  const steps = new PixelPanel(at);
  // For the console and for tests.
  globalThis.playground = { device, scene, orbit, fit, steps };
  const panel = new FitPanel(fit, scene);
  await drawScenes(scene, orbit, steps);
  document.body.classList.add("ready");
  if (!new URLSearchParams(location.search).has("still")) await panel.takeView(scene);
}

main().catch(complain);
