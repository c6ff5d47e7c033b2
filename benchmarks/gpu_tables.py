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
    ISSUE,
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
from splat_py.gpu.device import _GPU_TUNING, _METAL_TUNING

_HERE = Path(__file__).resolve().parent
DOCUMENT = _HERE.parent / "docs" / "gpus.md"
_SECTION = re.compile(r"(<!-- table: ([\w -]+) -->\n).*?(<!-- end -->)", re.DOTALL)
TODAY = Tuning(_GPU_TUNING.pixels_per_thread, _GPU_TUNING.accumulation, _GPU_TUNING.sort_digit_bits)
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
    for pixels in PIXELS:
        for accumulation in ACCUMULATIONS:
            add(f"backward, {pixels}, {_LETTERS[accumulation]}", Tuning(pixels, accumulation), True)
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
    of = {gpu.name: [Model(gpu, static).step(work, TODAY) for work in works(counted).values()] for gpu in GPUS}
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
    for tuning in tried:
        pixels = "1 pixel" if tuning.pixels == 1 else f"{tuning.pixels} pixels"
        words = f"{pixels} a thread, {_LETTERS[tuning.accumulation]}"
        cells = []
        for gpu in GPUS:
            model = Model(gpu, static)
            ours, today = _passes(model, work, tuning), _passes(model, work, TODAY)
            cells.append(f"{ours:.2f} ({ours / today:.2f})")
        rows.append([words, *cells])
    for bits in SORTS:
        cells = []
        for gpu in GPUS:
            model = Model(gpu, static)

            def sorts(digit_bits: int, model: Model = model) -> float:
                step = model.step(work, replace(TODAY, digit_bits=digit_bits))
                return step["sort depths"].total + step["sort tiles"].total

            cells.append(f"{sorts(bits):.2f} ({sorts(bits) / sorts(TODAY.digit_bits):.2f})")
        rows.append([f"both sorts, digits of {bits} bits", *cells])
    return _table(["", *(f"{gpu.name}, ms" for gpu in GPUS)], rows)


def decisions(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """What the tuning is, and by how much others are predicted to be slower."""
    models = [Model(gpu, static) for gpu in GPUS]

    def ratio(other: Tuning) -> str:
        of = [_passes(m, w, other) / _passes(m, w, TODAY) for m in models for w in works(counted).values()]
        return "–".join(dict.fromkeys(f"{value:.2f}" for value in (min(of), max(of))))

    def sorts(model: Model, bits: int) -> float:
        step = model.step(works(counted)["fox"], replace(TODAY, digit_bits=bits))
        return step["sort depths"].total + step["sort tiles"].total

    def sort_ratio(bits: int) -> str:
        of = [sorts(model, bits) / sorts(model, TODAY.digit_bits) for model in models]
        return f"{min(of):.2f}–{max(of):.2f}"

    work = works(counted)["fox"]
    backward = [model.rasterize(work, TODAY, True) for model in models]
    steps = [sum(time.total for time in model.step(work, TODAY).values()) for model in models]
    hidden = max(time.atomics / time.issue for time in backward)
    saved = max(time.atomics / step for time, step in zip(backward, steps, strict=True))
    hot = counted["fox"]["share of intersections by tiles of their splat"]
    loop = total(static[rasteriser(TODAY, True)]["loop"])
    mac = GPUS[-1]
    # Six of a core's 24 waves take turns at each of its four schedulers.
    segment = (_METAL_TUNING.segment or 0) * loop * 6 / (mac.gigahertz * 1e6 * ISSUE)
    rows = [
        [
            f"{TODAY.pixels} pixels a thread",
            "loads and the sums over a wave are shared, and few more pixels are evaluated for nothing",
            f"both passes take {ratio(replace(TODAY, pixels=1))} of the time with 1, {ratio(replace(TODAY, pixels=4))} with 4",
            "1 or 4 is faster",
        ],
        [
            "B, sums over a wave",
            f"atomics take {hidden:.0%} of the time that instructions take, at most, and are hidden behind them",
            f"C takes {ratio(replace(TODAY, accumulation='PerGroup'))}, D as long",
            "C is faster: then atomics to one splat wait longer for each other than is assumed",
        ],
        [
            "no C for hot Gaussians",
            f"{float(hot['16']):.1%} of intersections are of splats that touch 16 tiles or more, {float(hot['64']):.1%} of 64",
            f"without any atomics a step would be shorter by {saved:.1%} at most, if nothing hid them",
            "a backward pass with a few splats that fill the image takes half as long again",
        ],
        [
            f"digits of {TODAY.digit_bits} bits",
            "fewer passes than with 4, and more threads than with 6 or 8, whose counters fill the processor",
            f"both sorts take {sort_ratio(4)} with 4 bits, {sort_ratio(6)} with 6, {sort_ratio(8)} with 8",
            "4 bits are faster, or 6 are by a tenth of a step",
        ],
        [
            f"on Metal, segments of {_METAL_TUNING.segment:,}",
            f"the longest list of the trained scene has {counted['fox']['longest list']:,}: one segment, and no cost",
            f"a workgroup takes {segment:.0f} ms for a segment of a full core, of the two seconds that it has",
            "the watchdog ends one",
        ],
    ]
    return _table(["choice", "because", "prediction", "refuted if"], rows)


def published(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """Beside what others have measured."""
    rows = []
    for words, gpu, gaussians, pixels, what, measured in _PUBLISHED:
        step = Model(gpu, static).step(Work(gaussians, pixels, counted["fox"]), TODAY)
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
        "decisions": decisions(static, counted),
        "choices": choices(static, counted),
        "published": published(static, counted),
    }
    return _SECTION.sub(lambda match: match[1] + made[match[2]] + match[3], text)


def main() -> None:
    """Write them."""
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
