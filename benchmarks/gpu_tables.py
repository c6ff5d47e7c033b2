"""The tables of docs/gpus.md, from gpu_static.json, gpu_counts.json, vulkan_static.json and the model.

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
    AUTODIFF_BLOBS,
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
TODAY = Tuning(_GPU_TUNING.pixels_per_thread, _GPU_TUNING.accumulation, _GPU_TUNING.sort_threads)
# A million Gaussians at 1920×1080.
_GAUSSIANS, _PIXELS = 1_000_000, 1920 * 1080
_SCENES = {"random": "random", "fox": "`fox`"}
_LETTERS = dict(zip(ACCUMULATIONS, "ABCD", strict=True))
# Published milliseconds: by whom, on which GPU, Gaussians and pixels, and which of our times to compare.
_PUBLISHED = (
    ("Metal-GS 0.3.1, a training step", GPUS[2], 165_000, 516 * 344, "step", 1e3 / 25.2),
    ("gsplat, MCMC to 1 M, Mip-NeRF 360, a step of 30,000 in 15.4 min", A100, 1_000_000, 1_300_000, "step", 15.4 * 60e3 / 30e3),
    ("taichi-splatting, bicycle, forward", GPUS[1], 6_100_000, 2048 * 1361, "rasterize", 1.66),
    ("taichi-splatting, bicycle, backward", GPUS[1], 6_100_000, 2048 * 1361, "rasterize backward", 5.84),
)

# Instructions that warps issue for a pixel of `fox`, forward and backward, in others' published kernels. They were compiled by
# nvcc 13.0 as their build files say, and counted like ours, in November 2026.
_OTHERS = {
    "gsplat 1.5.3": (372, 1045),
    "gsplat, main branch before 1.6": (356, 963),
    "Inria, diff-gaussian-rasterization": (597, 816),
    "FastGS": (605, 1350),
    "Faster-GS": (155, 852),
}

# Stages of a forward and of a backward pass; the loss, the statistics and Adam belong to neither. Colours' backward pass has
# Adam in it.
_FORWARD = ("project", "sort depths", "bin", "sort tiles", "rasterize")
_BACKWARD = ("rasterize backward", "project backward")
# Mesa's kernels that are not shown: at more than one pixel a thread only the default way to add up gradients is.
_HIDDEN = re.compile(r"backward, [ACD] \w+, [248] px")


def read(name: str) -> Any:
    """Read a JSON beside this file."""
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
    """Kernels of one step of each kind, except the rasteriser's."""
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
    """Kernels of the rasteriser."""
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


def others(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """The rasteriser's instructions beside those of others."""
    work = works(counted)["fox"]
    ours = tuple(Model(GPUS[0], static).instructions(work, TODAY, backward) / work.pixels for backward in (False, True))
    base = sum(_OTHERS["gsplat 1.5.3"])
    rows = [
        [name, f"{a:,.0f}", f"{b:,.0f}", f"{(a + b) / base:.2f}"] for name, (a, b) in (_OTHERS | {"splat_py": ours}).items()
    ]
    return _table(["rasteriser", "forward", "backward", "sum, gsplat 1.5.3 = 1"], rows)


def undo(static: dict[str, Any]) -> str:
    """State undo beside Slang's own derivative of the loop."""
    group = "image_group.differentiateByGroup LINEAR=False NATIVE_ATOMICS=True"
    found = {"undo, `group`": static[group], "undo, `tiles`": static[rasteriser(TODAY, True) + " Stop=ImageStop"]}
    for blobs in AUTODIFF_BLOBS:
        found[f"`autodiff`, {blobs}"] = static[f"blobs.differentiateByAutodiff BLOBS={blobs} LINEAR=False NATIVE_ATOMICS=True"]
    rows = []
    for words, figures in found.items():
        stack, spills = (max(figures[architecture][what] for architecture in LIMITS) for what in ("stack bytes", "spill bytes"))
        rows.append([words, _registers(figures), f"{stack:,}", f"{spills:,}", _shares(figures), f"{figures['instructions']:,}"])
    return _table(["derivative, blobs", "registers", "stack bytes", "spilled bytes", "occupancy, %", "instructions"], rows)


def counts(counted: dict[str, Any]) -> str:
    """The rasteriser's work per pixel of the image and per contribution."""
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
                + [f"{backward['PerPixel']['atomics'] / wave['atomics']:.1f}"]
                + [f"{backward['PerIntersection']['stored bytes'] / contributions:.2f}"]
                + [f"{forward['loaded bytes'] / contributions:.0f}", f"{wave['loaded bytes'] / contributions:.0f}"]
                + [f"{backward['PerGroup']['workgroup bytes'] / contributions:.0f}"]
            )
    head = ["scene", "pixels a thread", "contributions", "evaluations", "blends", "tests", "atomics, A", "B", "C"]
    return _table([*head, "A ÷ B", "bytes stored, D", "bytes loaded, forward", "backward", "group-shared bytes, C"], rows)


def scenes(counted: dict[str, Any]) -> str:
    """The scenes that were counted."""
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
    """A million Gaussians, distributed as in each of the scenes."""
    return {scene: Work(_GAUSSIANS, _PIXELS, counted[scene]) for scene in _SCENES}


def stages(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """Predicted times with the present tuning."""
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


def ratios(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """Predicted times of backward passes over those of forward passes."""
    steps = [[Model(gpu, static).step(work, TODAY) for work in works(counted).values()] for gpu in GPUS]

    def row(words: str, backward: tuple[str, ...], forward: tuple[str, ...]) -> list[str]:
        cells = [words]
        for scenes in steps:
            found = sorted(sum(step[s].total for s in backward) / sum(step[s].total for s in forward) for step in scenes)
            cells.append("–".join(dict.fromkeys(f"{value:.1f}" for value in found)))
        return [*cells, "2"]

    rows = [row("rasteriser", ("rasterize backward",), ("rasterize",)), row("all stages but colours'", _BACKWARD, _FORWARD)]
    return _table(["backward ÷ forward", *(gpu.name for gpu in GPUS), "target"], rows)


def mesa_kernels(found: dict[str, Any]) -> str:
    """Registers and waves by Mesa's compilers."""
    amd, intel = ("navi31", "navi21"), found["intel"]["kernels"]
    rows = []
    for name in found[amd[0]]["kernels"]:
        if _HIDDEN.search(name):
            continue
        figures = [figures for family in amd for figures in found[family]["kernels"][name]]
        cells = [f"{each['registers']}, {each['waves']}" for each in figures]
        # Kernels that were changed after Intel's compiler was asked are not there.
        for own in intel.get(name, ({},)):
            spilled = f", **{own['spilled']} spilled**" if own.get("spilled") else ""
            rows.append([name, *cells, f"{own['wave']}, {own['registers']}{spilled}" if own else "not asked"])
    waves = [f"RDNA {number}, waves of {wave}" for number in (3, 2) for wave in (64, 32)]
    return _table(["kernel", *waves, "Intel Xe2"], rows)


def mesa_loop(found: dict[str, Any], evaluations: dict[str, float]) -> str:
    """Instructions of the rasteriser's loop on RDNA 3."""
    kernels = found["navi31"]["kernels"]
    rows = []
    for number, wave in enumerate((64, 32)):
        for pixels in PIXELS:
            forward, backward = (
                kernels[name][number]
                for name in (f"rasterise, {pixels} px a thread", f"rasterise backward, B wave, {pixels} px a thread")
            )
            block = min(wave, forward["threads"]) * pixels
            row = [str(pixels), str(wave), f"{evaluations[str(block)]}"]
            for figures in (forward, backward):
                loop = figures["loop"]
                vector = loop["vector"] * wave / block
                once = [str(loop[kind]) for kind in ("scalar", "loads", "atomics") if kind in loop]
                row += [f"{vector:.0f}", ", ".join(once), f"{evaluations[str(block)] * vector:,.0f}"]
            rows.append(row)
    head = ["pixels a thread", "wave", "evaluations a pixel", "forward: vector", "scalar, loads", "in all"]
    return _table([*head, "backward: vector", "scalar, loads, atomics", "in all"], rows)


def _passes(model: Model, work: Work, tuning: Tuning) -> float:
    return model.rasterize(work, tuning, False).total + model.rasterize(work, tuning, True).total


def choices(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """Predicted times of the rasteriser's two passes on the trained scene, in every tuning; and of both sorts."""
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
    for threads in SORTS:
        cells = []
        for gpu in GPUS:
            model = Model(gpu, static)

            def sorts(threads: int, model: Model = model) -> float:
                step = model.step(work, replace(TODAY, sort_threads=threads))
                return step["sort depths"].total + step["sort tiles"].total

            cells.append(f"{sorts(threads):.2f} ({sorts(threads) / sorts(TODAY.sort_threads):.2f})")
        rows.append([f"both sorts, {threads} threads", *cells])
    return _table(["", *(f"{gpu.name}, ms" for gpu in GPUS)], rows)


def decisions(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """The present tuning, and how much slower the others are predicted to be."""
    models = [Model(gpu, static) for gpu in GPUS]

    def ratio(other: Tuning) -> str:
        of = [_passes(m, w, other) / _passes(m, w, TODAY) for m in models for w in works(counted).values()]
        return "–".join(dict.fromkeys(f"{value:.2f}" for value in (min(of), max(of))))

    def sorts(model: Model, threads: int) -> float:
        step = model.step(works(counted)["fox"], replace(TODAY, sort_threads=threads))
        return step["sort depths"].total + step["sort tiles"].total

    def sort_ratio(threads: int) -> str:
        of = [sorts(model, threads) / sorts(model, TODAY.sort_threads) for model in models]
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
            "a thread's pixels share loads and sums over the wave, and few more pixels are evaluated in vain",
            f"both passes take {ratio(replace(TODAY, pixels=1))} of the time with 1, {ratio(replace(TODAY, pixels=4))} with 4",
            "1 or 4 is faster",
        ],
        [
            "B, sums over a wave",
            f"atomics take {hidden:.0%} of the time of the instructions at most, and hide behind them",
            f"both passes take {ratio(replace(TODAY, accumulation='PerGroup'))} of the time with C, and as long with D",
            "C is faster: then atomics to one splat wait longer for each other than assumed",
        ],
        [
            "no C for splats of many tiles",
            f"{float(hot['16']):.1%} of intersections are of splats on 16 tiles or more, {float(hot['64']):.1%} on 64 or more",
            f"a step without any atomics would be {saved:.1%} shorter at most, even if nothing hid them",
            "a few splats that fill the image make the backward pass half as long again",
        ],
        [
            f"sorts in workgroups of {TODAY.sort_threads} threads",
            "few workgroups fill processors only with many threads; these still fit 32 KiB of group-shared memory",
            f"both sorts take {sort_ratio(128)} of the time with 128",
            "128 threads, as through Vulkan, are faster",
        ],
        [
            f"on Metal, segments of {_METAL_TUNING.segment:,}",
            f"the longest list of the trained scene, {counted['fox']['longest list']:,} splats, fits one segment: no cost",
            f"a workgroup takes {segment:.0f} ms for a full segment on a full core; the watchdog allows two seconds",
            "the watchdog ends a workgroup",
        ],
    ]
    return _table(["choice", "because", "prediction", "refuted if"], rows)


def published(static: dict[str, Any], counted: dict[str, Any]) -> str:
    """Predictions beside times that others have measured."""
    rows = []
    for words, gpu, gaussians, pixels, what, measured in _PUBLISHED:
        step = Model(gpu, static).step(Work(gaussians, pixels, counted["fox"]), TODAY)
        ours = sum(time.total for time in step.values()) if what == "step" else step[what].total
        rows.append([words, gpu.name, f"{measured:.2f}", f"{ours:.2f}", f"{measured / ours:.1f}"])
    return _table(["", "on", "published, ms", "predicted for splat_py, ms", "ratio"], rows)


def gpus() -> str:
    """Published numbers and guesses of each GPU."""
    rows = []
    for gpu in (*GPUS, A100):
        row = [gpu.name, str(gpu.processors), f"{gpu.gigahertz:g}", f"{gpu.gigabytes_a_second:,}", gpu.source]
        rows.append([*row, str(gpu.slices), f"{gpu.microseconds_a_launch:g}"])
    return _table(["", "processors", "GHz", "GB/s", "from", "assumed: cache slices", "assumed: µs a dispatch"], rows)


def written(text: str) -> str:
    """The document with its tables rewritten."""
    static, counted, mesa = read("gpu_static.json")["kernels"], read("gpu_counts.json"), read("vulkan_static.json")
    made = {
        "kernels": kernels(static),
        "tunings": tunings(static),
        "others": others(static, counted),
        "undo": undo(static),
        "scenes": scenes(counted),
        "counts": counts(counted),
        "gpus": gpus(),
        "stages": stages(static, counted),
        "ratios": ratios(static, counted),
        "decisions": decisions(static, counted),
        "choices": choices(static, counted),
        "published": published(static, counted),
        "mesa kernels": mesa_kernels(mesa["families"]),
        "mesa loop": mesa_loop(mesa["families"], mesa["evaluations a pixel"]),
    }
    return _SECTION.sub(lambda match: match[1] + made[match[2]] + match[3], text)


def main() -> None:
    """Rewrite the tables of the document."""
    DOCUMENT.write_text(written(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
