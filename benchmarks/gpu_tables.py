"""The tables of docs/gpus.md, from gpu_static.json, gpu_counts.json and the model.

python -m benchmarks.gpu_tables
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gpu_model import (
    A100,
    ACCUMULATIONS,
    GPUS,
    LIMITS,
    PIXELS,
    SORTS,
    Model,
    Tuning,
    Work,
    occupancy,
    rasteriser,
    total,
    waves,
)

_HERE = Path(__file__).resolve().parent
DOCUMENT = _HERE.parent / "docs" / "gpus.md"
_SECTION = re.compile(r"(<!-- table: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
# A million Gaussians at 1920×1080.
_GAUSSIANS, _PIXELS = 1_000_000, 1920 * 1080
_SCENES = {"random": "random", "fox": "`fox`"}
_LETTERS = dict(zip(ACCUMULATIONS, "ABCD", strict=True))
# Milliseconds that others have published: whose, on which GPU, Gaussians and pixels, what of ours compares.
_PUBLISHED = (
    ("Metal-GS 0.3.1, a training step", GPUS[2], 165_000, 516 * 344, "step", 1e3 / 25.2),
    ("gsplat, MCMC to 1 M, Mip-NeRF 360, a step of 30,000 in 15.4 min", A100, 1_000_000, 1_300_000, "step", 15.4 * 60e3 / 30e3),
    ("taichi-splatting, bicycle, forward", GPUS[1], 6_100_000, 2048 * 1361, "rasterize", 1.66),
    ("taichi-splatting, bicycle, backward", GPUS[1], 6_100_000, 2048 * 1361, "rasterize backward", 5.84),
)


def read(name: str) -> Any:
    """A JSON beside this file."""
    return json.loads((_HERE / name).read_text(encoding="utf-8"))


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def _shares(figures: dict[str, Any]) -> str:
    return ", ".join(
        f"{occupancy(limits, figures['threads'], figures[name]['registers'], figures[name]['shared bytes']):.0%}".rstrip("%")
        for name, limits in LIMITS.items()
    )


def _registers(figures: dict[str, Any]) -> str:
    return ", ".join(str(figures[name]["registers"]) for name in LIMITS)


def kernels(static: dict[str, Any]) -> str:
    """Of one step of each kind, but the rasteriser's."""
    rows = []
    for name, figures in static.items():
        steps = ("training step", "picture", "volume of degree 2")
        if not any(use in steps for use in figures["used"]) or name.startswith("rasterize.rasterize"):
            continue
        module, *constants = name.split(" ")
        own = {"K", "ROW", "QUADS", "FEATURES", "RAYS"}
        told = ", ".join(constant for constant in constants if constant.split("=")[0] in own)
        spills = max(figures[architecture]["spill bytes"] for architecture in LIMITS)
        shared = max(figures[architecture]["shared bytes"] for architecture in LIMITS)
        words = f"`{module}`" + (f" {told}" if told else "")
        row = [words, str(figures["threads"]), _registers(figures), str(spills), f"{shared:,}", _shares(figures)]
        rows.append([*row, f"{figures['instructions']:,}"])
    head = ["kernel", "threads", "registers", "spilled bytes", "shared bytes", "occupancy, %", "instructions"]
    return _table(head, rows)


def tunings(static: dict[str, Any]) -> str:
    """The rasteriser's kernels."""
    rows = []

    def add(words: str, tuning: Tuning, backward: bool) -> None:
        figures = static[rasteriser(tuning, backward)]
        loop, blended = figures["loop"], total(figures["if blended"])
        each = total(loop) / tuning.pixels
        spills = max(figures[architecture]["spill bytes"] for architecture in LIMITS)
        kinds = [str(loop.get(kind, 0)) for kind in ("fp32", "mufu", "shuffle", "mask", "atomic")]
        loads = f"{loop.get('global load', 0)} + {loop.get('shared', 0)}"
        row = [words, _registers(figures), str(spills), f"{figures['sm_90']['shared bytes']:,}", _shares(figures)]
        rows.append([*row, f"{total(loop)} ({blended})" if blended else str(total(loop)), f"{each:.0f}", *kinds, loads])

    for pixels in PIXELS:
        add(f"forward, {pixels}", Tuning(pixels), False)
    for pixels in PIXELS[:2]:
        add(f"forward, {pixels}, batches", Tuning(pixels, batched=True), False)
    for pixels in PIXELS:
        for accumulation in ACCUMULATIONS:
            add(f"backward, {pixels}, {_LETTERS[accumulation]}", Tuning(pixels, accumulation), True)
    for pixels in PIXELS[:2]:
        for accumulation in ACCUMULATIONS[1:3]:
            add(f"backward, {pixels}, {_LETTERS[accumulation]}, batches", Tuning(pixels, accumulation, True), True)
    head = ["pixels a thread, strategy", "registers", "spilled bytes", "shared bytes", "occupancy, %", "loop", "a pixel"]
    return _table([*head, "FP32", "MUFU", "shuffles", "masks", "atomics", "loads"], rows)


def counts(counted: dict[str, Any]) -> str:
    """What the rasteriser does, per pixel of the image and per contribution."""
    rows = []
    for scene, words in _SCENES.items():
        found = counted[scene]
        image, contributions = found["width"] * found["height"], found["contributions"]
        for pixels in PIXELS:
            forward = found[f"forward {pixels}"]
            blends, tests = waves(found, f"forward {pixels}", pixels)
            backward = {name: found[f"backward {pixels} {name}"] for name in ACCUMULATIONS}
            wave = backward["PerWave"]
            rows.append(
                [words, str(pixels), f"{contributions / image:.1f}", f"{forward['evaluations'] / image:.1f}"]
                + [f"{32 * blends / image:.1f}", f"{32 * tests / image:.1f}"]
                + [f"{backward[name]['atomics'] / contributions:.3f}" for name in ACCUMULATIONS[:3]]
                + [f"{backward['PerIntersection']['stored bytes'] / contributions:.2f}"]
                + [f"{forward['loaded bytes'] / contributions:.0f}", f"{wave['loaded bytes'] / contributions:.0f}"]
                + [f"{backward['PerGroup']['workgroup bytes'] / contributions:.0f}"]
            )
    head = ["scene", "pixels a thread", "contributions", "evaluations", "blends", "tests", "atomics, A", "B", "C"]
    return _table([*head, "bytes stored, D", "bytes loaded, forward", "backward", "group-shared bytes, C"], rows)


def scenes(counted: dict[str, Any]) -> str:
    """What was counted on."""
    rows = []
    for scene, words in _SCENES.items():
        found = counted[scene]
        shares = found["share of intersections by tiles of their splat"]
        rows.append(
            [words, f"{found['gaussians']:,}", f"{found['width']}×{found['height']}"]
            + [f"{found['intersections'] / found['gaussians']:.2f}", f"{found['mean list']:.0f}, {found['longest list']:,}"]
            + [f"{100 * shares[least]:.1f}" for least in ("8", "16", "32", "64", "128")]
        )
    head = ["scene", "Gaussians", "pixels", "intersections a Gaussian", "list: mean, longest"]
    return _table([*head, *(f"% ≥ {least} tiles" for least in (8, 16, 32, 64, 128))], rows)


def works(counted: dict[str, Any]) -> dict[str, Work]:
    """A million Gaussians, like each of the scenes."""
    return {scene: Work(_GAUSSIANS, _PIXELS, counted[scene]) for scene in _SCENES}


def stages(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """Predicted times of today's tuning."""
    of = {gpu.name: [Model(gpu, static).step(work, Tuning()) for work in works(counted).values()] for gpu in GPUS}
    rows = []
    for stage in next(iter(of.values()))[0]:
        row = [stage]
        for gpu in GPUS:
            times = [step[stage] for step in of[gpu.name]]
            row += ["–".join(dict.fromkeys(f"{time.total:.2f}" for time in sorted(times, key=lambda time: time.total)))]
            row += [", ".join(dict.fromkeys(time.bound for time in times))]
        rows.append(row)
    sums = ["**step**"]
    for gpu in GPUS:
        totals = sorted(sum(time.total for time in step.values()) for step in of[gpu.name])
        sums += [f"**{totals[0]:.1f}–{totals[-1]:.1f}**", ""]
    head = ["stage", *(cell for gpu in GPUS for cell in (f"{gpu.name}, ms", "bound by"))]
    return _table(head, [*rows, sums])


def _passes(model: Model, work: Work, tuning: Tuning) -> float:
    return model.rasterize(work, tuning, False).total + model.rasterize(work, tuning, True).total


def choices(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """Predicted time of the rasteriser's two passes, in every tuning, of the trained scene; and of both sorts."""
    work = works(counted)["fox"]
    rows = []
    tried = [Tuning(p, a) for a in ACCUMULATIONS for p in PIXELS]
    tried += [Tuning(p, a, True) for a in ACCUMULATIONS[1:3] for p in PIXELS[:2]]
    for tuning in tried:
        words = f"{tuning.pixels} pixels a thread, {_LETTERS[tuning.accumulation]}{', batches' if tuning.batched else ''}"
        cells = []
        for gpu in GPUS:
            model = Model(gpu, static)
            ours, today = _passes(model, work, tuning), _passes(model, work, Tuning())
            cells.append(f"{ours:.2f} ({ours / today:.2f})")
        rows.append([words, *cells])
    for bits in SORTS:
        cells = []
        for gpu in GPUS:
            model = Model(gpu, static)

            def sorts(digit_bits: int, model: Model = model) -> float:
                step = model.step(work, replace(Tuning(), digit_bits=digit_bits))
                return step["sort depths"].total + step["sort tiles"].total

            cells.append(f"{sorts(bits):.2f} ({sorts(bits) / sorts(4):.2f})")
        rows.append([f"both sorts, digits of {bits} bits", *cells])
    return _table(["", *(f"{gpu.name}, ms" for gpu in GPUS)], rows)


def published(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """Beside what others have measured."""
    rows = []
    for words, gpu, gaussians, pixels, what, measured in _PUBLISHED:
        step = Model(gpu, static).step(Work(gaussians, pixels, counted["fox"]), Tuning())
        ours = sum(time.total for time in step.values()) if what == "step" else step[what].total
        rows.append([words, gpu.name, f"{measured:.2f}", f"{ours:.2f}", f"{measured / ours:.1f}"])
    return _table(["", "on", "published, ms", "predicted for ours, ms", "ratio"], rows)


def gpus() -> str:
    """What is published of them, and what is assumed."""
    rows = []
    for gpu in (*GPUS, A100):
        row = [gpu.name, str(gpu.processors), f"{gpu.gigahertz:g}", f"{gpu.gigabytes_a_second:,}", gpu.source]
        rows.append([*row, str(gpu.slices), f"{gpu.microseconds_a_launch:g}"])
    return _table(["", "processors", "GHz", "GB/s", "from", "assumed: cache slices", "assumed: µs a dispatch"], rows)


def written(text: str) -> str:
    """The document with its tables as they are now."""
    static, counted = read("gpu_static.json")["kernels"], read("gpu_counts.json")
    made = {
        "kernels": kernels(static),
        "tunings": tunings(static),
        "scenes": scenes(counted),
        "counts": counts(counted),
        "gpus": gpus(),
        "stages": stages(static, counted),
        "choices": choices(static, counted),
        "published": published(static, counted),
    }
    return _SECTION.sub(lambda match: match[1] + made[match[2]] + match[3], text)


def main() -> None:
    """Write them."""
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
