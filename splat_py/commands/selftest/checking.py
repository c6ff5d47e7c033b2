"""Run the self-test: choose devices, run and judge the cases, measure timings, and write the report."""

import json
import os
import platform
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from numpy.typing import NDArray
from safetensors.numpy import load_file

from splat_py import __version__
from splat_py.base.errors import SplatError
from splat_py.base.files import write_json
from splat_py.commands.selftest import inputs, render_cases, train_cases
from splat_py.commands.selftest.inputs import Arrays, Case
from splat_py.gpu import device as devices
from splat_py.gpu.availability import why_no_metal_compiler, why_no_torch_metal
from splat_py.gpu.device import Device
from splat_py.gpu.sorting import Pairs, RadixSort
from splat_py.gpu.sources import shader_folder
from splat_py.train import benchmark
from splat_py.train.config import TrainConfig
from splat_py.train.trainer import Trainer

_REPEATS = 7
# The two backends for a Mac's GPU.
_METAL = ("metal", "mps")


@dataclass(frozen=True)
class Outcome:
    name: str
    # ok, FAILED or skipped
    verdict: str
    # The largest error of all results (see `error`) and the name of that result; None without results.
    error: float | None
    worst: str
    allowed: float
    milliseconds: float
    # The reason of a failure or skip in one sentence, and the whole text of the exception.
    reason: str = ""
    details: str = ""


def error(actual: NDArray[Any], expected: NDArray[Any]) -> float:
    """The error of results: the largest of |actual - expected| / (|expected| + max |expected| / 10).

    If terms of both signs cancel, the error is still that of the terms; the array's largest element measures their size.
    NaN elements of `expected` are not compared. For integers the error is the number of different elements.
    """
    if actual.shape != expected.shape:
        return float("inf")
    if expected.dtype.kind in "iu":
        return float((actual.astype(np.int64) != expected).sum())
    known = np.isfinite(expected)
    a, e = actual[known].astype(np.float64), expected[known].astype(np.float64)
    if not e.size:
        return 0.0
    if not np.isfinite(a).all():
        return float("inf")
    scale = np.abs(e) + 0.1 * np.abs(e).max()
    return float((np.abs(a - e) / np.maximum(scale, 1e-30)).max())


def references() -> dict[str, Arrays]:
    """The stored results by the cases' `reference` and the arrays' names."""
    found: dict[str, Arrays] = {}
    for key, array in load_file(Path(__file__).with_name("references.safetensors")).items():
        reference, _, name = key.partition(":")
        found.setdefault(reference, {})[name] = array
    return found


def cases() -> list[Case]:
    return [*render_cases.cases(), *train_cases.cases()]


def metal_devices(device: str | None) -> tuple[list[str | None], dict[str, str]]:
    """The names of the devices to test for --device `device`, by default both of a Mac's; and reasons for skipped ones."""
    if device is not None or os.environ.get("SPLAT_DEVICE") or devices.choose().backend not in _METAL:
        return [device], {}
    found = {adapter.backend for adapter in devices.adapters()}
    skipped = {"metal": why_no_metal_compiler(), "mps": why_no_torch_metal()}
    for name in _METAL:
        try:
            if name not in found:
                skipped[name] = skipped[name] or "this machine has no such device"
            elif not skipped[name]:
                devices.get_device(name)
        except SplatError as error:
            skipped[name] = str(error)
    # [None] opens the default device, whose error names what is missing.
    return [name for name in _METAL if not skipped[name]] or [None], {name: why for name, why in skipped.items() if why}


class SelfTest:
    def __init__(self, device: Device | None = None) -> None:
        self.device = devices.get_device(device)
        self.cases = cases()
        self.outcomes: list[Outcome] = []
        self.timings: dict[str, float] = {}

    @property
    def passed(self) -> bool:
        return all(outcome.verdict != "FAILED" for outcome in self.outcomes)

    def run(self) -> Iterator[Outcome]:
        stored = references()
        for case in self.cases:
            outcome = self._run(case, stored[case.reference])
            self.outcomes.append(outcome)
            yield outcome

    def _run(self, case: Case, expected: Arrays) -> Outcome:
        reason = self.device.shortcoming(*case.needs)
        if reason is not None:
            return Outcome(case.name, "skipped", None, "", case.allowed, 0.0, reason)
        begin = time.perf_counter()
        try:
            actual = case.run(self.device, expected)
            milliseconds = (time.perf_counter() - begin) * 1e3
        # An error in one kernel must not stop the others.
        except Exception as exception:
            milliseconds = (time.perf_counter() - begin) * 1e3
            return Outcome(case.name, "FAILED", None, "", case.allowed, milliseconds, *_described(exception))
        errors = {name: error(values, expected[name]) for name, values in actual.items()}
        worst = max(errors, key=lambda name: errors[name])
        verdict = "ok" if errors[worst] <= case.allowed else "FAILED"
        reason = "" if verdict == "ok" else "wrong: " + ", ".join(n for n, e in errors.items() if e > case.allowed)
        return Outcome(case.name, verdict, errors[worst], worst, case.allowed, milliseconds, reason)

    def measure(self) -> Iterator[str]:
        """Fill `timings`, milliseconds, and yield the name of each before it runs. A timing that fails is left out."""
        for name, take in (("render", self._time_render), ("sort", self._time_sort), ("training step", self._time_step)):
            yield name
            try:
                self.timings |= take()
            except Exception as exception:
                self.outcomes.append(Outcome(f"timing: {name}", "FAILED", None, "", 0.0, 0.0, *_described(exception)))

    def _time_render(self) -> dict[str, float]:
        """Time forward and backward through torch on the largest scene that the device renders in reasonable time."""
        for count, side in ((100_000, 512), (20_000, 256), (4_000, 128)):
            begin = time.perf_counter()
            benchmark.render_times(self.device, count, side, 1)
            # A warm-up and a repetition.
            if time.perf_counter() - begin < 4:
                break
        figures = benchmark.render_times(self.device, count, side, _REPEATS)
        names = ("forward", "backward", "forward_and_backward")
        return {f"{name.replace('_', ' ')}, {count:,} Gaussians, {side}×{side}": figures[name] for name in names}

    def _time_sort(self) -> dict[str, float]:
        count = 1 << 18
        array = self.device.memory.array
        keys, values = inputs.bits(63, count), np.arange(count, dtype=np.uint32)
        sort = RadixSort(self.device, count)
        number = array(np.array([count], np.uint32))

        def once() -> dict[str, float]:
            pairs = Pairs(array(keys), array(values))
            begin = time.perf_counter()
            with self.device.recording() as recorder:
                sort.record(recorder, pairs, number, bits=32)
            return {f"sort, {count:,} keys, 32 bits": time.perf_counter() - begin}

        return benchmark.medians(once, _REPEATS)

    def _time_step(self) -> dict[str, float]:
        config = TrainConfig(init="random", init_num_pts=10_000)
        trainer = Trainer(train_cases.dataset(enlarged=10), config, device=self.device)
        name = f"training step, {config.init_num_pts:,} Gaussians, {10 * inputs.WIDTH}×{10 * inputs.HEIGHT}"
        return {name: benchmark.next_step_times(trainer, _REPEATS)["step"]}

    def report(self) -> dict[str, Any]:
        """The report to attach to an issue, without names or paths."""
        device = self.device
        limits = device.handle.info.limits
        return {
            "passed": self.passed,
            "date": date.today().isoformat(),
            "versions": {
                "splat_py": __version__,
                **{name: version(name) for name in ("slangpy", "torch", "numpy")},
                "python": platform.python_version(),
                "system": f"{platform.system()} {platform.release()}",
                "macos": platform.mac_ver()[0],
            },
            "machine": {
                "architecture": platform.machine(),
                "cores": psutil.cpu_count(),
                "memory GiB": round(psutil.virtual_memory().total / 2**30, 1),
            },
            "device": {
                "backend": device.adapter.backend,
                "adapter": device.adapter.name,
                # SlangPy 0.42 does not report it.
                "wave sizes": [getattr(limits, f"{end}_wave_size", None) for end in ("min", "max")],
                "features": sorted(feature.name for feature in device.handle.features),
                "operators": sorted(operator.value for operator in device.operators),
                "tensors": device.memory.bridge.value,
                "tuning": asdict(device.tuning),
            },
            "cases": [asdict(outcome) for outcome in self.outcomes],
            "milliseconds": self.timings,
        }


def save(path: Path, tests: Sequence[SelfTest], skipped: Mapping[str, str]) -> None:
    """Write the reports as JSON: the whole report of the first device, the device-specific parts of the others, and the reasons
    for skipped devices."""
    report, *others = (test.report() for test in tests)
    if others:
        theirs = ("passed", "device", "cases", "milliseconds")
        report["other devices"] = [{name: other[name] for name in theirs} for other in others]
        report["passed"] = all(test.passed for test in tests)
    if skipped:
        report["not tested"] = {name: _anonymous(reason) for name, reason in skipped.items()}
    # JSON lacks infinity and NaN: words stand for them.
    write_json(path, json.loads(json.dumps(report), parse_constant=str))


def _described(exception: Exception) -> tuple[str, str]:
    """An exception's message, in one sentence and in full, without names of folders."""
    text = str(exception).strip() or type(exception).__name__
    full = text if isinstance(exception, SplatError) else "".join(traceback.format_exception(exception))
    return _anonymous(text.split("\n")[0]), _anonymous(full)[-4000:]


def _anonymous(text: str) -> str:
    folders = {shader_folder(): "slang", Path(__file__).parents[2]: "splat_py", Path.cwd(): ".", Path.home(): "~"}
    for folder, name in folders.items():
        text = text.replace(str(folder), name)
    return text
