"""Predicted times of a training step on GPUs, from static figures, counts and published numbers.

A kernel takes the longest of four times, one for each limit:

- issue: instructions of all waves over processors · instructions a clock · clock, at a share `ISSUE` of that rate.
- memory: bytes over bandwidth, at a share `BANDWIDTH` of it. The bytes are those of the arrays that a stage reads and writes
  once; repeated reads, as of splats by waves, come from caches.
- atomics: 32-byte sectors that kernels add to, over the slices of the second-level cache · clock.
- latency: the longest list of a tile, blended by one wave alone, which waits `LATENCY` clocks for each instruction.

Each dispatch adds a `launch`, as the next one waits for it. `GPUS` has the published numbers. The shares, the clocks and the
launches are guesses of what such kernels reach; measure them first.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from splat_py.gpu.device import _GPU_TUNING
from splat_py.gpu.sorting import _DIGIT_BITS
from splat_py.render.tiles import in_one_word

ISSUE, BANDWIDTH, LATENCY = 0.6, 0.8, 4
_WAVE = 32
# Sectors of a wave of 32 that adds up nine numbers: two by four lanes with a float each, and one for the last number.
_WAVE_SECTORS = 3
_ROW = 9
# Sectors of a row of 36 bytes.
_ROW_SECTORS = 2
# Instructions for each access to group-shared memory when sums are flushed.
_FLUSH = 3
# Instructions a pair, in both kernels of a pass, and for each count of the histogram, not yet counted; and clocks that a thread
# waits for each of its pairs in each kernel, if one pair in eight comes from memory.
_SORT_INSTRUCTIONS, _HISTOGRAM_INSTRUCTIONS, _SORT_CLOCKS = 120, 6, 120
# Latency of memory.
_NANOSECONDS = 600
PIXELS = (1, 2, 4, 8)
# Blobs of a picture whose loop Slang differentiates by itself.
AUTODIFF_BLOBS = (1, 4, 16, 50, 100)
# Threads of a sort's workgroup.
SORTS = (128, 256)
ACCUMULATIONS = ("PerPixel", "PerWave", "PerGroup", "PerIntersection")


@dataclass(frozen=True)
class Limits:
    """Limits of a multiprocessor: NVIDIA, CUDA C++ Programming Guide 12.9, Technical Specifications per Compute Capability."""

    warps: int
    blocks: int
    shared_bytes: int
    # The part of each block that the system uses.
    reserved_bytes: int
    registers: int = 65536


LIMITS = {
    "sm_75": Limits(32, 16, 64 << 10, 0),
    "sm_89": Limits(48, 24, 100 << 10, 1 << 10),
    "sm_90": Limits(64, 32, 228 << 10, 1 << 10),
    "sm_120": Limits(48, 24, 100 << 10, 1 << 10),
}
# A core of Apple's, as third parties found out.
_APPLE = Limits(24, 24, 60 << 10, 0)


@dataclass(frozen=True)
class Gpu:
    """Published numbers of a GPU; the slices and the launch are guesses."""

    name: str
    architecture: str
    # SMs, or Apple's cores; each issues four instructions of 32 lanes a clock.
    processors: int
    gigahertz: float
    gigabytes_a_second: float
    # Slices of the second-level cache; each adds to a sector a clock.
    slices: int
    microseconds_a_launch: float
    source: str
    limits: Limits


GPUS = (
    Gpu(
        "H100 SXM",
        "sm_90",
        132,
        1.98,
        3350,
        96,
        3,
        "NVIDIA's H100 whitepaper: 132 SMs, 66.9 TFLOPS, 3.35 TB/s",
        LIMITS["sm_90"],
    ),
    Gpu(
        "RTX 4090",
        "sm_89",
        128,
        2.52,
        1008,
        64,
        3,
        "NVIDIA's Ada whitepaper: 128 SMs, boost 2.52 GHz, 1,008 GB/s",
        LIMITS["sm_89"],
    ),
    Gpu("M4, 10 cores", "sm_90", 10, 1.58, 120, 8, 6, "Apple's page: 10 cores, 120 GB/s; the clock is third parties'", _APPLE),
)
# Published times are of this GPU.
A100 = Gpu("A100", "sm_90", 108, 1.41, 1555, 80, 3, "NVIDIA's A100 whitepaper", LIMITS["sm_90"])


def occupancy(limits: Limits, threads: int, registers: int, shared_bytes: int) -> float:
    """Share of the warps that fit, by NVIDIA's occupancy calculator. Each of a processor's four schedulers has a quarter of the
    registers and gives them to warps in units of 256."""
    warps = math.ceil(threads / _WAVE)
    by_registers = limits.registers // 4 // (math.ceil(registers * _WAVE / 256) * 256) * 4
    blocks = min(limits.blocks, limits.warps // warps, by_registers // warps)
    if shared_bytes:
        blocks = min(blocks, limits.shared_bytes // (shared_bytes + limits.reserved_bytes))
    return blocks * warps / limits.warps


@dataclass(frozen=True)
class Tuning:
    """The settings that are compared."""

    pixels: int = 1
    accumulation: str = "PerWave"
    sort_threads: int = 256


@dataclass(frozen=True)
class Work:
    """A scene, and how much work it makes."""

    gaussians: int
    pixels: int
    # Statistics a Gaussian and a pixel of one of the scenes in gpu_counts.json.
    counted: dict[str, Any]

    @property
    def scale(self) -> float:
        """Pixels, by those of the scene that was counted."""
        return self.pixels / (self.counted["width"] * self.counted["height"])

    @property
    def intersections(self) -> float:
        """Pairs of a splat and a tile."""
        return self.counted["intersections"] * self.gaussians / self.counted["gaussians"]

    @property
    def visible(self) -> float:
        """Gaussians with a splat."""
        return self.counted["visible"] * self.gaussians / self.counted["gaussians"]


@dataclass(frozen=True)
class Time:
    """Times of a stage in milliseconds, by the limits that may bind it."""

    issue: float = 0.0
    memory: float = 0.0
    atomics: float = 0.0
    launch: float = 0.0
    latency: float = 0.0

    @property
    def total(self) -> float:
        """The time of the tightest limit, and the launches."""
        return max(self.issue, self.memory, self.atomics, self.latency) + self.launch

    @property
    def bound(self) -> str:
        """The name of the tightest limit."""
        parts = {"issue": self.issue, "memory": self.memory, "atomics": self.atomics, "launch": self.launch}
        parts["latency"] = self.latency
        return max(parts, key=lambda name: parts[name])


def sectors(counted: dict[str, Any], accumulation: str, pixels: int) -> float:
    """Sectors that a backward pass adds to atomically."""
    atomics = counted[f"backward {pixels} {accumulation}"]["atomics"]
    if accumulation == "PerPixel":
        return float(atomics)
    return atomics / _ROW * (_WAVE_SECTORS if accumulation == "PerWave" else _ROW_SECTORS)


def waves(counted: dict[str, Any], what: str, pixels: int) -> tuple[float, float]:
    """Return how often a wave blends a splat over its pixels, and how often it tests 32 splats."""
    found = counted[what]
    # The emulator's compiler evaluates a splat's exponential five times for its value and its derivative.
    evaluations = found["evaluations"] / (5 if what.startswith("backward") else 1)
    blends = evaluations / _WAVE / pixels
    # Blends, tests, and the threads that add to a splat's row (a wave's lanes, or one a number) read where the splat is.
    added = 0.0
    if what.endswith(("PerPixel", "PerWave")):
        added = counted[f"backward {pixels} PerWave"]["atomics"] / _ROW * _WAVE
    elif what.endswith("PerGroup"):
        added = found["atomics"]
    return blends, (found["list loads"] - added) / _WAVE - blends


class Model:
    """Predicted times on one GPU, from figures and counts."""

    def __init__(self, gpu: Gpu, kernels: dict[str, Any]) -> None:
        self.gpu = gpu
        self.kernels = kernels

    def _issue(self, instructions: float) -> float:
        return instructions / (self.gpu.processors * 4 * self.gpu.gigahertz * 1e6 * ISSUE)

    def _memory(self, nbytes: float) -> float:
        return nbytes / (self.gpu.gigabytes_a_second * 1e6 * BANDWIDTH)

    def _launch(self, dispatches: int = 1) -> float:
        return dispatches * self.gpu.microseconds_a_launch / 1e3

    def instructions(self, work: Work, tuning: Tuning, backward: bool) -> float:
        """Instructions that the waves of a pass over all tiles issue."""
        figures = self.kernels[rasteriser(tuning, backward)]
        p = tuning.pixels
        what = f"backward {p} {tuning.accumulation}" if backward else f"forward {p}"
        blends, tests = waves(work.counted, what, p)
        issued = blends * total(figures["loop"]) + tests * total(figures["test"])
        if backward:
            added = work.counted[f"backward {p} PerWave"]["atomics"] / _ROW
            issued -= (blends - min(added, blends)) * total(figures["if blended"])
            # Outside the loops, sums of all waves are read from group-shared memory, cleared and added up.
            issued += work.counted[what]["workgroup bytes"] / 4 / _WAVE * _FLUSH
        return issued * work.scale

    def rasterize(self, work: Work, tuning: Tuning, backward: bool) -> Time:
        """A pass over all tiles."""
        loop = total(self.kernels[rasteriser(tuning, backward)]["loop"])
        atomics = 0.0
        # Rows of the lists, packed splats and the state of the pixels; below, rows of gradients count twice.
        nbytes = work.intersections * 4 + work.visible * 48 + work.pixels * 24
        dispatches = 1
        if backward and tuning.accumulation == "PerIntersection":
            nbytes += work.intersections * (36 * 3 + 8) + work.gaussians * 36
            dispatches += 2
        elif backward:
            atomics = sectors(work.counted, tuning.accumulation, tuning.pixels) * work.scale
            nbytes += work.gaussians * 36 * 3
        return Time(
            self._issue(self.instructions(work, tuning, backward)),
            self._memory(nbytes),
            atomics / (self.gpu.slices * self.gpu.gigahertz * 1e6),
            self._launch(dispatches),
            work.counted["longest list"] * loop * LATENCY / (self.gpu.gigahertz * 1e6),
        )

    def sort(self, count: float, bits: int, threads: int, values: bool, given: bool = False) -> Time:
        """Radix passes over keys of 4 bytes, which are read twice, and values as large, which the first pass does not read if
        keys are given."""
        passes = math.ceil(bits / _DIGIT_BITS)
        blocks, items, rows = _GPU_TUNING.sort_blocks, _GPU_TUNING.sort_items, 1 << _GPU_TUNING.sort_tile_bits
        # Both kernels that sort values have the same registers and shared memory.
        how = f"{'GIVEN=True ' * values}ITEMS={items} THREADS={threads} TILE_BITS={_GPU_TUNING.sort_tile_bits} VALUES={values}"
        figures = self.kernels[f"radix_sort.scatter {how}"]
        # Each pair is counted once by digit, then twice by half a digit, where it takes five accesses. These are random ones to
        # 32 banks, the fullest of which has 3.4. Others in a row: two pairs, each counter four times, and six to write.
        turns = (11 * 3.4 + 2 * (2 + 4 * rows / items) + 6) / _WAVE
        banks = count * turns / (self.gpu.processors * self.gpu.gigahertz * 1e6)
        at_once = self.occupied(figures) * self.gpu.limits.warps * _WAVE / threads
        rounds = math.ceil(blocks / (at_once * self.gpu.processors))
        latency = 2 * rounds * count / (blocks * threads) * _SORT_CLOCKS / (self.gpu.gigahertz * 1e6)
        # Each lane waits for its own sector, so too few lanes do not use the whole bandwidth.
        wanted = self.gpu.gigabytes_a_second * _NANOSECONDS / self.gpu.processors
        share = min(min(at_once, blocks / self.gpu.processors) * threads * 32 / wanted, 1.0)
        # Each workgroup adds up the digits of all.
        instructions = count * _SORT_INSTRUCTIONS + (blocks**2 << _DIGIT_BITS) * _HISTOGRAM_INSTRUCTIONS
        return Time(
            passes * (self._issue(instructions / _WAVE) + banks),
            self._memory(count * (passes * (20 if values else 12) - 4 * given)) / share,
            0.0,
            # Count and scatter.
            self._launch(passes * 2),
            passes * latency,
        )

    def occupied(self, figures: dict[str, Any]) -> float:
        """Share of the warps that fit, for this kernel."""
        own = figures[self.gpu.architecture]
        return occupancy(self.gpu.limits, figures["threads"], own["registers"], own["shared bytes"])

    def elementwise(self, kernels: Iterable[str], count: float, nbytes: float) -> Time:
        """One thread an element; each instruction runs once."""
        names = list(kernels)
        instructions = sum(self.kernels[name]["instructions"] for name in names) * count / _WAVE
        return Time(self._issue(instructions), self._memory(nbytes), 0.0, self._launch(len(names)))

    def step(self, work: Work, tuning: Tuning) -> dict[str, Time]:
        """Predicted time of each stage."""
        n, pixels = work.gaussians, work.pixels
        tiles = math.ceil(pixels / 256)
        words = 1 if in_one_word(n, tiles) else 2
        find = self._find
        return {
            "project": self.elementwise([find("project.projectForward")], n, n * (44 + 36)),
            "shade": self.elementwise([find("shade.shadeForward")], work.visible, work.visible * (192 + 12 + 8) + n * 20),
            "sort depths": self.sort(n, 32, tuning.sort_threads, values=True, given=True),
            "bin": self.elementwise(
                map(find, ("tiles.countTiles", "tiles.emitIsects", "tiles.findTileOffsets", "prefix_sum.scanBlocks")),
                n,
                # Splats are written alone afterwards where both fit into one word.
                n * (2 * 40 + 12) + work.intersections * (12 if words == 1 else 16),
            ),
            "sort tiles": self.sort(work.intersections, tiles.bit_length(), tuning.sort_threads, values=words == 2),
            "rasterize": self.rasterize(work, tuning, backward=False),
            "loss": self.elementwise(
                map(find, ("loss.ssimInTiles", "loss.gradientInTiles")),
                # A thread computes a run of eight; a tile sweeps along 42 rows, with 36 % of the instructions, for 32.
                pixels * 3 / 8 * (1 + 0.36 * 10 / 32),
                # The render and three maps, twice, and the gradient; the photograph twice.
                pixels * 3 * 4 * (1 + 3 + 3 + 1 + 1) + pixels * 8,
            ),
            "rasterize backward": self.rasterize(work, tuning, backward=True),
            "project backward": self.elementwise([find("project.projectBackward")], n, n * (44 + 36 + 36 + 44)),
            # Harmonics learn in it: of 48 numbers, parameters and two moments are read and written.
            "shade backward": self.elementwise([find("shade.shadeBackward")], n, n * (48 * 24 + 12 + 24)),
            "statistics": self.elementwise([find("densify.addStatistics")], n, n * 40),
            # Each of the 11 other numbers: read gradient, parameter and two moments; write the last three.
            "adam": Time(0.0, self._memory(n * 11 * 28), 0.0, self._launch(4)),
        }

    def _find(self, beginning: str) -> str:
        return next(name for name in self.kernels if name.split(" ")[0] == beginning)


def total(counts: dict[str, int]) -> int:
    """The number of instructions."""
    return sum(counts.values())


def rasteriser(tuning: Tuning, backward: bool) -> str:
    """The kernel's name in gpu_static.json."""
    how = {"CHANNELS": 3, "PIXELS": tuning.pixels}
    # The name has only the constants that differ from their defaults.
    if backward and tuning.accumulation != "PerWave":
        how["Accumulation"] = tuning.accumulation
    entry = "rasterizeBackward" if backward else "rasterizeForward"
    return " ".join([f"rasterize.{entry}", *(f"{name}={value}" for name, value in sorted(how.items()))])
