/** The loss over the steps, on a logarithmic scale. */

// Where the axis of steps may end.
const ENDS = [50, 100, 200, 500, 1000];

export class Curve {
  constructor(canvas) {
    this.canvas = canvas;
    this.points = [];
    this.steps = 0;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  /** @param steps that there will be */
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
      context.fillText(label(log), left - 6, y(log));
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

function label(log) {
  return String(Number((10 ** log).toPrecision(1)));
}

function line(context, points) {
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.stroke();
}
