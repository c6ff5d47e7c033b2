/** The page: its two canvases, and what buttons and sliders do. */

import { readPicture, readPlans, readScene } from "./content.js";
import { Curve } from "./curve.js";
import { compileKernels, openDevice } from "./device.js";
import { Fit } from "./fit.js";
import { listen, Orbit } from "./orbit.js";
import { Scene } from "./scene.js";

// Of a picture that is fitted, and of a frame.
const PICTURE_PIXELS = 96 * 1024;
const FRAME_PIXELS = 1 << 20;
// As long as the page may be busy with steps, milliseconds.
const PATIENCE = 40;

const at = (id) => document.getElementById(id);

function complain(error) {
  console.warn(error);
  at("trouble").textContent = error.message ?? String(error);
  at("trouble").hidden = false;
  document.body.classList.add("broken");
}

function drawScenes(scene, orbit) {
  const canvas = at("scene-canvas");
  let wanted = false;
  const frame = async () => {
    wanted = false;
    const shown = [canvas.clientWidth, canvas.clientHeight].map((side) => Math.max(side * devicePixelRatio, 1));
    const shrink = Math.min(Math.sqrt(FRAME_PIXELS / (shown[0] * shown[1])), 1);
    const [width, height] = scene.fittingSize(shown[0] * shrink, shown[1] * shrink);
    await scene.draw(orbit.camera(width, height), width, height);
    if (wanted) return frame();
    return null;
  };
  let drawing = null;
  const changed = () => {
    wanted = true;
    drawing ??= new Promise(requestAnimationFrame)
      .then(frame)
      .catch(complain)
      .finally(() => (drawing = null));
    return drawing;
  };
  listen(canvas, orbit, changed);
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
    // What the button said when it was pressed is done, after a restart that may be under way.
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

  async take(file) {
    let picture;
    try {
      picture = await readPicture(file, PICTURE_PIXELS);
    } catch {
      at("refused").textContent = `${file.name} is no picture that the browser can read.`;
      return;
    }
    await this.begin(picture);
  }

  /** Fit what the scene's canvas shows. */
  async takeView(scene) {
    const { width, height, values } = await scene.picture();
    const pixels = new ImageData(width, height);
    for (let i = 0; i < width * height; i++) {
      for (let k = 0; k < 3; k++) pixels.data[i * 4 + k] = Math.round(values[i * 3 + k] * 255);
      pixels.data[i * 4 + 3] = 255;
    }
    const canvas = new OffscreenCanvas(width, height);
    canvas.getContext("2d").putImageData(pixels, 0, 0);
    await this.begin(await readPicture(await canvas.convertToBlob(), PICTURE_PIXELS));
  }

  async begin(picture) {
    this.picture = picture;
    at("refused").textContent = "";
    await this.restart();
  }

  /** One after another, however fast a slider moves. */
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

  /** End the loop, whatever the button says. */
  async halt() {
    this.running = false;
    await this.loop;
  }

  async pause() {
    this.show(false, "Go on");
    await this.halt();
  }

  /** What the button says, and whether steps are wanted while it does. */
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
    // Behind a loop that may still be in its last steps.
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

async function main() {
  const { kernels, scene: scenePlan, fit: fitPlan, layout, view, background, limits } = readPlans();
  const device = await openDevice(limits);
  device.lost.then(({ message }) => complain(new Error(`The graphics device is gone; load the page again. ${message}`)));
  device.addEventListener("uncapturederror", ({ error }) => complain(error));
  const [compiled, parts] = await Promise.all([compileKernels(device, kernels), readScene(layout)]);
  const scene = new Scene(device, compiled, scenePlan, { ...parts, background: Float32Array.from(background) }, at("scene-canvas"));
  const fit = new Fit(device, compiled, fitPlan, at("fit-canvas"));
  const orbit = new Orbit(view);
  // For the console, and for tests.
  globalThis.playground = { device, scene, orbit, fit };
  const panel = new FitPanel(fit, scene);
  await drawScenes(scene, orbit);
  document.body.classList.add("ready");
  if (!new URLSearchParams(location.search).has("still")) await panel.takeView(scene);
}

main().catch(complain);
