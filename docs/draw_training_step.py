"""Draw docs/training-step.svg: the kernels of one training step, and the data between its stages."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

WIDTH, HEIGHT = 1180, 640
LEFT, COLUMN, GAP = 38, 200, 26
# Upper edges of the rows, and heights of their boxes.
FORWARD, SAVED, BACKWARD, UPDATE = 112, 262, 372, 526
STAGE_HEIGHT, SAVED_HEIGHT, UPDATE_HEIGHT = 120, 80, 72

FILL = {"forward": "#dbe9f6", "backward": "#fbe3d6", "memory": "#ffffff", "update": "#e2f0d9", "host": "#f2f2f2"}
EDGE = {"forward": "#3b78b0", "backward": "#c0622d", "memory": "#8a8a8a", "update": "#5a9137", "host": "#8a8a8a"}
STYLE = """
text { font: 12px Helvetica, Arial, 'DejaVu Sans', sans-serif; fill: #222 }
.title { font-size: 14px; font-weight: bold }
.code { font: 11px Menlo, Consolas, 'DejaVu Sans Mono', monospace }
"""


@dataclass(frozen=True)
class Box:
    """A stage, or data in memory between stages.

    | parts its lines of text. A line that begins with # is a title; with a backquote, code.
    """

    x: int
    y: int
    width: int
    height: int
    kind: str
    text: str

    def svg(self) -> str:
        """The rectangle and its text."""
        dash = ' stroke-dasharray="4 3"' if self.kind == "memory" else ""
        size = f'x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}"'
        parts = [f'<rect {size} rx="6" fill="{FILL[self.kind]}" stroke="{EDGE[self.kind]}"{dash}/>']
        y = self.y + 5
        for line in self.text.split("|"):
            style = {"#": ' class="title"', "`": ' class="code"'}.get(line[0], "")
            y += 15
            parts.append(f'<text x="{self.x + 10}" y="{y}"{style}>{escape(line.lstrip("#`"))}</text>')
            y += 3 if line[0] == "#" else 0
        return "\n".join(parts)


def column(i: int) -> int:
    """The left edge of a column."""
    return LEFT + i * (COLUMN + GAP)


def arrow(kind: str, *points: tuple[int, int]) -> str:
    """A line through the points, with a head at its end."""
    path = " ".join(f"{x},{y}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{EDGE[kind]}" stroke-width="1.6" marker-end="url(#{kind})"/>'


FORWARD_STAGES = (
    "#1 project|`project.slang|`projectForward|3D Gaussians → 2D splats,|none where out of view",
    "#2 shade|`shade.slang|`shadeForward|spherical harmonics seen|from the camera → rgb",
    "#3 tiles|`tiles radix_sort prefix_sum|sort splats by depth, count|their tiles, emit intersections,"
    "|sort them by tile (stable)",
    "#4 rasterize|`rasterize.slang|`rasterizeForward|`→ fineRasterize|a workgroup a tile, each pixel|blends front to back",
    "#5 loss|`loss.slang|(1 - λ) L1 + λ (1 - SSIM)|against a photograph, in four|sweeps of a separable window",
)
SAVED_ARRAYS = (
    "splats, [N] each:|`means2d depths conics|`opacities radii",
    "`colors [N, 3]",
    "a list for each tile, front to|back: tileOffsets, tileIds|status: did the lists fit?",
    "eight bytes a pixel, whatever|its depth: finalT, nContrib",
    "`image photograph|`sums: L1, SSIM, error",
)
BACKWARD_STAGES = (
    "#8 project backward|`projectBackward|splats → Gaussians,|by bwd_diff(project)",
    "#9 shade backward|`shadeBackward|rgb → sh, and a part of|means, by bwd_diff(shade)",
    "#no derivative|The order of splats is taken|as given. The same lists are|read again, back to front.",
    "#7 rasterize backward|`rasterizeBackward|`→ fineRasterize_bwd|undo a step, bwd_diff of it,|add up a row a splat:"
    "|mean, conic, opacity, rgb",
    "#6 its gradient|`v_render [H, W, 3]|comes from the same sweeps:|the window is its own adjoint",
)
HOST = (
    "#Host|records one command buffer a step (Trainer._submit), sends it and records the next one while it runs; nothing is "
    "read in between.|Later it reads status: if a list did not fit, that step and those after it have changed nothing; it "
    "reserves more and sends them again."
)
CAPTION = (
    "Kernels lie in slang/kernels, the mathematics that they call in slang/splat. Numbers: the order in the command buffer. "
    "Dashed: memory on the device. One camera a step."
)


def boxes() -> list[Box]:
    """The boxes of the picture."""
    found = [Box(LEFT, 18, WIDTH - 2 * LEFT, 70, "host", HOST)]
    for i in range(5):
        found.append(Box(column(i), FORWARD, COLUMN, STAGE_HEIGHT, "forward", FORWARD_STAGES[i]))
        found.append(Box(column(i), SAVED, COLUMN, SAVED_HEIGHT, "memory", SAVED_ARRAYS[i]))
        kind = "memory" if "derivative" in BACKWARD_STAGES[i] else "backward"
        found.append(Box(column(i), BACKWARD, COLUMN, STAGE_HEIGHT, kind, BACKWARD_STAGES[i]))
    arrays = "#parameters, resident on the device|`means quats log_scales logit_opacities sh|Adam's m and v of each; statistics"
    adam = "#11 Adam|`optimize.slang adam|a dispatch a parameter group"
    statistics = "#10 statistics|`densify.slang addStatistics|norms of v_means2d, radii"
    refine = "#every 100 steps|the host clones, splits and|prunes: density.py"
    found.append(Box(column(0), UPDATE, 2 * COLUMN + GAP, UPDATE_HEIGHT, "memory", arrays))
    for i, (kind, text) in enumerate((("update", adam), ("update", statistics), ("host", refine))):
        found.append(Box(column(2 + i), UPDATE, COLUMN, UPDATE_HEIGHT, kind, text))
    return found


def arrows() -> list[str]:
    """The arrows between the boxes."""
    middle = [column(i) + COLUMN // 2 for i in range(5)]
    across, bottom, update = FORWARD + STAGE_HEIGHT // 2, BACKWARD + STAGE_HEIGHT, UPDATE + UPDATE_HEIGHT // 2
    lines = [arrow("forward", (column(i) - GAP, across), (column(i) - 2, across)) for i in range(1, 5)]
    lines += [arrow("forward", (x, FORWARD + STAGE_HEIGHT), (x, SAVED - 2)) for x in middle]
    saved = SAVED + SAVED_HEIGHT
    lines += [arrow("backward", (middle[i], saved), (middle[i], BACKWARD - 2)) for i in (0, 1, 3, 4)]
    lists = column(3) + 30
    lines.append(arrow("backward", (middle[2], saved), (middle[2], saved + 15), (lists, saved + 15), (lists, BACKWARD - 2)))
    lines.append(arrow("backward", (column(4), BACKWARD + 60), (column(4) - GAP + 2, BACKWARD + 60)))
    # A splat's row of gradients, past the tiles, to the two kernels that split it; and their results to Adam.
    row, adam = column(3) + 40, column(2) + 60
    for i in range(2):
        lines.append(arrow("backward", (row, bottom), (row, bottom + 11), (middle[i], bottom + 11), (middle[i], bottom + 2)))
        out = column(i) + COLUMN - 30
        lines.append(arrow("update", (out, bottom), (out, bottom + 24), (adam, bottom + 24), (adam, UPDATE - 2)))
    lines.append(arrow("update", (column(4) - GAP - 40, bottom), (column(4) - GAP - 40, UPDATE - 2)))
    lines.append(arrow("update", (column(2), update), (column(2) - GAP + 2, update)))
    lines.append(arrow("host", (column(4) - GAP, update), (column(4) - 2, update)))
    lines.append(arrow("forward", (LEFT, update), (LEFT - 18, update), (LEFT - 18, across), (LEFT - 2, across)))
    return lines


def draw() -> str:
    """The picture as SVG text."""
    head = '<marker id="{}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" markerHeight="7" orient="auto">'
    heads = [f'{head.format(kind)}<path d="M0 1 L9 5 L0 9 z" fill="{color}"/></marker>' for kind, color in EDGE.items()]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">',
        f"<style>{STYLE}</style>",
        f"<defs>{''.join(heads)}</defs>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        *(box.svg() for box in boxes()),
        *arrows(),
        f'<text x="{LEFT}" y="{UPDATE + 98}">{CAPTION}</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("training-step.svg").write_text(draw(), encoding="utf-8")
