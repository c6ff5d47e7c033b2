/** A camera that looks at a point, and what mouse, fingers and keys do to it. */

import { add, cross, dot, scale, subtract, unit } from "./vectors.js";

// Steepest view, and how far one may go, as parts of where one began.
const STEEPEST = 1.5;
const NEAREST = 0.02;
const FARTHEST = 20;

export class Orbit {
  /** @param view eye, target and up in the world, and half the angle that the shorter side of the picture covers, as a tangent */
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
    // Azimuth 0 is where one began.
    let north = subtract(offset, scale(this.up, dot(offset, this.up)));
    if (Math.hypot(...north) < 1e-6 * this.distance) north = cross(this.up, Math.abs(this.up[0]) < 0.9 ? [1, 0, 0] : [0, 1, 0]);
    this.north = unit(north);
    this.azimuth = 0;
  }

  /** Which way is up may be wrong in a capture that nobody has levelled. */
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

  /** Move the target, by parts of the picture's shorter side. */
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

/** Let a canvas turn an orbit; `changed` is called after each change. */
export function listen(canvas, orbit, changed) {
  const pointers = new Map();
  const side = () => Math.min(canvas.clientWidth, canvas.clientHeight);

  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
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
  canvas.addEventListener("dblclick", () => {
    orbit.reset();
    changed();
  });
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
