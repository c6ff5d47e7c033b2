/** Steps through a pixel's list as slang/splat/rasterization.slang does: forward, and backward without any stored state. */

/** The splats that a pixel of the last frame blends, front to back. */
export async function readPixel(plan, x, y) {
  const { tile, constants } = plan.content;
  const { width } = plan.sizes;
  const names = ["means2d", "conics", "opacities2d", "colors", "background", "offsets", "ids", "n_contrib"];
  const read = await plan.read(...names);
  const [means, conics, opacities, colors, background] = read.slice(0, 5).map((content) => new Float32Array(content));
  const [offsets, ids, counts] = read.slice(5).map((content) => new Uint32Array(content));
  const first = offsets[Math.floor(y / tile) * Math.ceil(width / tile) + Math.floor(x / tile)];
  const splats = [];
  for (const id of ids.subarray(first, first + counts[y * width + x])) {
    const [dx, dy] = [x + 0.5 - means[2 * id], y + 0.5 - means[2 * id + 1]];
    const [a, b, c] = conics.subarray(3 * id);
    const sigma = dx * (a * dx + 2 * b * dy) + c * dy * dy;
    const alpha = Math.min(opacities[id] * Math.exp(-sigma / 2), constants.ALPHA_MAX);
    if (alpha >= constants.ALPHA_MIN) splats.push({ id, alpha, color: [...colors.subarray(3 * id, 3 * id + 3)] });
  }
  return { x, y, splats, background: [...background.subarray(0, 3)] };
}

// The pixel's brightness, the mean of its colour, is what the adjoints differentiate.
const brightness = (color) => (color[0] + color[1] + color[2]) / 3;

/** A pixel's state after `at` splats: its colour over black and T; and after an undone step, the adjoints `v` of its T and α. */
export class Replay {
  constructor({ splats, background }) {
    Object.assign(this, { splats, background, at: 0, color: [0, 0, 0], T: 1, v: null });
  }

  /** Blend the next splat: C += α T c, T ← T (1 - α). */
  forward() {
    const { alpha, color } = this.splats[this.at++];
    this.color = this.color.map((sum, k) => sum + alpha * this.T * color[k]);
    this.T *= 1 - alpha;
    this.v = null;
  }

  /** Undo the last splat, T ← T / (1 - α), C -= α T c, and differentiate the step at the state before it. */
  backward() {
    const { alpha, color } = this.splats[--this.at];
    this.T /= 1 - alpha;
    this.color = this.color.map((sum, k) => sum - alpha * this.T * color[k]);
    const vT = this.v ? this.v.T : brightness(this.background);
    this.v = { alpha: this.T * (brightness(color) - vT), T: alpha * brightness(color) + (1 - alpha) * vT };
  }
}

// Rows of the table before and after the present one.
const AROUND = 4;

/** Shows a pixel's replay, in the elements that `at` finds; buttons and keys step it. */
export class PixelPanel {
  constructor(at) {
    this.at = at;
    this.panel = at("pixel");
    const acts = {
      undo: () => this.step(-1),
      blend: () => this.step(1),
      "undo-all": () => this.step(-Infinity),
      "blend-all": () => this.step(Infinity),
      "close-pixel": () => this.close(),
    };
    for (const [id, act] of Object.entries(acts)) at(id).addEventListener("click", act);
    const keys = { ArrowLeft: "undo", ArrowRight: "blend", Home: "undo-all", End: "blend-all", Escape: "close-pixel" };
    this.panel.addEventListener("keydown", (event) => {
      if (!keys[event.key]) return;
      event.preventDefault();
      acts[keys[event.key]]();
    });
  }

  open(pixel) {
    this.pixel = pixel;
    this.replay = new Replay(pixel);
    // The table's values for each splat.
    this.rows = pixel.splats.map(({ id, alpha, color }) => ({ id, alpha, color }));
    let T = 1;
    this.at("shares").replaceChildren(
      ...pixel.splats.map(({ alpha, color }) => {
        const share = swatch(color);
        share.style.width = `${100 * alpha * T}%`;
        T *= 1 - alpha;
        return share;
      }),
    );
    this.panel.hidden = false;
    this.panel.focus({ preventScroll: true });
    this.show();
  }

  close() {
    this.panel.hidden = true;
  }

  step(count) {
    const { replay, rows } = this;
    const end = Math.min(Math.max(replay.at + count, 0), rows.length);
    while (replay.at < end) {
      const row = rows[replay.at];
      row.T = replay.T;
      replay.forward();
      Object.assign(row, { after: replay.color, vAlpha: null, vT: null });
    }
    while (replay.at > end) {
      replay.backward();
      Object.assign(rows[replay.at], { T: replay.T, after: null, vAlpha: replay.v.alpha, vT: replay.v.T });
    }
    this.show();
  }

  show() {
    const { replay, rows, pixel } = this;
    this.at("pixel-name").textContent = `Pixel (${pixel.x}, ${pixel.y})`;
    const done = replay.v ? `undone ${rows.length - replay.at}` : `blended ${replay.at}`;
    const color = replay.color.map((x, k) => x + replay.T * pixel.background[k]);
    this.at("pixel-state").replaceChildren(`${done} of ${rows.length} · T ${number(replay.T)} · colour `, swatch(color));
    [...this.at("shares").children].forEach((share, i) => share.classList.toggle("ahead", i >= replay.at));
    // The splat of the last step.
    const present = replay.v ? replay.at : replay.at - 1;
    const first = Math.max(Math.min(present - AROUND, rows.length - 2 * AROUND - 1), 0);
    const shown = rows.slice(first, first + 2 * AROUND + 1).map((row, i) => {
      const line = document.createElement("tr");
      line.classList.toggle("present", first + i === present);
      for (const name of ["id", "color", "alpha", "T", "after", "vAlpha", "vT"]) {
        const value = row[name] ?? "";
        line.insertCell().append(Array.isArray(value) ? swatch(value) : typeof value === "number" ? number(value) : value);
      }
      return line;
    });
    this.at("pixel-rows").replaceChildren(...shown);
  }
}

function number(value) {
  return Number.isInteger(value) ? String(value) : value.toPrecision(3);
}

function swatch(color) {
  const made = document.createElement("span");
  made.className = "swatch";
  made.style.background = `rgb(${color.map((x) => Math.round(255 * x)).join()})`;
  return made;
}
