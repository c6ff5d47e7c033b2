"""`splat selftest` passes here, runs every kernel, and rejects wrong results."""

import getpass
import json
import platform
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from splat_py import SplatError
from splat_py.commands.selftest import checking
from splat_py.commands.selftest.checking import Outcome, SelfTest, error, references
from splat_py.commands.selftest.inputs import Arrays
from splat_py.gpu import device as devices
from splat_py.gpu.device import Operator, get_device
from splat_py.gpu.kernels import KernelCache
from tests.commands.program import done, refusal, splat
from tests.commands.selftest.make_references import make
from tests.emulation.kernels import declared

FEW = ("prefix sum", "radix sort", "shade, degree 1")


def run_part(part: int) -> tuple[list[Outcome], set[tuple[str, str]]]:
    """Outcomes of every second case on this machine's device, and the kernels that ran. Cases may only use the device they are
    given."""
    used: set[tuple[str, str]] = set()
    get = KernelCache.get

    def refuse(name: str | None = None) -> devices.Adapter:
        raise AssertionError("a case chooses a device")

    test = SelfTest(get_device())
    test.cases = test.cases[part::2]

    def noticed(self: KernelCache, module: str, entry: str, **constants: object) -> object:
        used.add((module, entry))
        return get(self, module, entry, **constants)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KernelCache, "get", noticed)
        patch.setattr(devices, "choose", refuse)
        return list(test.run()), used


@pytest.fixture(scope="module")
def everything() -> tuple[list[Outcome], set[tuple[str, str]]]:
    """All outcomes, and the kernels that ran; in two processes, because the compiler takes minutes in one."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        (outcomes, used), (more, others) = pool.map(run_part, (0, 1))
    return outcomes + more, used | others


def test_passes_here(everything: tuple[list[Outcome], set[tuple[str, str]]]) -> None:
    outcomes, _ = everything
    assert [outcome for outcome in outcomes if outcome.verdict == "FAILED"] == []
    skipped = [outcome for outcome in outcomes if outcome.verdict == "skipped"]
    assert not skipped or not all(operator in get_device().operators for operator in Operator)


def test_leaves_no_kernel_out(everything: tuple[list[Outcome], set[tuple[str, str]]]) -> None:
    if not all(operator in get_device().operators for operator in Operator):
        pytest.skip("this device cannot run every kernel")
    # CPU drivers run the grid of kernels/cpu instead of the portable one.
    on_cpu = {(module, entry) for module, entry in declared() if module.startswith("cpu/")}
    twins = {("volume_fit" if entry == "adamVolume" else module.removeprefix("cpu/"), entry) for module, entry in on_cpu}
    twins |= {("loss", "ssimInTiles"), ("loss", "gradientInTiles")}
    others = twins if get_device().software else on_cpu
    assert set(declared()) - others == everything[1]


def test_the_stored_results_are_those_of_the_references() -> None:
    stored, made = references(), make()
    assert {f"{case}:{name}" for case, arrays in stored.items() for name in arrays} == set(made)
    for key, expected in made.items():
        case, _, name = key.partition(":")
        # Inputs are powers and exponentials in float32, whose last bit depends on the processor; hence this atol.
        atol = 1e-8 * max(10.0, float(np.nanmax(np.abs(expected), initial=0)))
        np.testing.assert_allclose(stored[case][name], expected, rtol=1e-5, atol=atol, err_msg=key)
    assert Path(checking.__file__).with_name("references.safetensors").stat().st_size < 340_000


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    cases = [case for case in checking.cases() if case.name in FEW]
    assert len(cases) == len(FEW)
    monkeypatch.setattr(checking, "cases", lambda: cases)
    monkeypatch.setattr(SelfTest, "measure", lambda self: iter(()))
    return tmp_path


def test_tells_and_writes(few: Path) -> None:
    printed = done("selftest", cwd=few)
    assert all(name in printed for name in FEW) and "all is well" in printed
    report = json.loads((few / "splat-selftest.json").read_text())
    assert report["passed"] and [case["name"] for case in report["cases"]] == list(FEW)
    assert report["device"]["adapter"] == get_device().adapter.name
    assert report["versions"]["slangpy"] and report["versions"]["python"] == platform.python_version()
    known = hasattr(get_device().handle.info.limits, "min_wave_size")
    assert (report["device"]["wave sizes"][0] is not None) == known
    assert "is a folder" in refusal("selftest", "--out", few, cwd=few)


def test_a_wrong_number_fails(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = references()

    def wrong() -> dict[str, Arrays]:
        shade = right["shade 1"]
        v_sh = shade["v_sh"].copy()
        v_sh[3, 2, 1] += 3e-4 * np.abs(v_sh).max()
        return {**right, "shade 1": {**shade, "v_sh": v_sh}}

    monkeypatch.setattr(checking, "references", wrong)
    result = splat("selftest", "--out", "wrong.json", cwd=few)
    assert result.returncode == 1 and "1 of 3 cases FAILED" in result.stdout
    report = json.loads((few / "wrong.json").read_text())
    assert not report["passed"]
    assert [case["verdict"] for case in report["cases"]] == ["ok", "ok", "FAILED"]
    assert report["cases"][2]["worst"] == "v_sh" and "v_sh" in report["cases"][2]["reason"]


def test_an_exception_is_one_failed_case(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(device: devices.Device, stored: Arrays) -> Arrays:
        raise RuntimeError(f"cannot compile {Path.home()}/secret/rasterize.slang\nerror: no such thing\nin {few}")

    cases = checking.cases()
    monkeypatch.setattr(checking, "cases", lambda: [replace(cases[0], run=explode), *cases[1:]])
    assert splat("selftest", cwd=few).returncode == 1
    text = (few / "splat-selftest.json").read_text()
    failed, *others = json.loads(text)["cases"]
    assert failed["reason"] == "cannot compile ~/secret/rasterize.slang"
    assert "no such thing" in failed["details"]
    assert [case["verdict"] for case in others] == ["ok", "ok"]
    assert str(few) not in text and str(Path.home()) not in text


def test_nothing_personal_is_written(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "host-of-somebody")
    monkeypatch.setattr(getpass, "getuser", lambda: "name-of-somebody")
    done("selftest", cwd=few)
    text = (few / "splat-selftest.json").read_text()
    for secret in (str(Path.home()), str(few), str(Path(checking.__file__).parents[2]), "somebody"):
        assert secret not in text


def test_what_a_device_cannot_do_is_skipped(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_device(), "operators", frozenset({Operator.WAVES}))
    outcomes = list(SelfTest().run())
    assert [outcome.verdict for outcome in outcomes] == ["ok", "skipped", "skipped"]
    assert "splat forward" in outcomes[1].reason


def test_a_timing_that_fails_is_told(few: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()

    def explode(self: SelfTest) -> dict[str, float]:
        raise SplatError("too little memory")

    for name in ("_time_render", "_time_sort", "_time_step"):
        monkeypatch.setattr(SelfTest, name, explode if name == "_time_sort" else lambda self: {"one": 1.0})
    test = SelfTest()
    assert len(list(test.measure())) == 3
    assert test.timings == {"one": 1.0} and not test.passed
    assert test.outcomes[0].reason == "too little memory"


def test_error() -> None:
    expected = np.array([1.0, -0.5, 0.0, np.nan])
    assert error(expected.copy(), expected) == 0
    assert error(np.array([1.0, -0.5, 0.0, 7.0]), expected) == 0, "NaN in the reference accepts any value"
    assert error(np.array([1.1, -0.5, 0.0, 0.0]), expected) == pytest.approx(0.1 / 1.1)
    assert error(np.array([1.0, -0.5, 0.01, 0.0]), expected) == pytest.approx(0.1), "at 0 the largest element counts"
    assert error(np.array([1.0, np.nan, 0.0, 0.0]), expected) == np.inf
    assert error(np.zeros(3), expected) == np.inf, "another shape"
    assert error(np.array([1, 2, 4], np.uint32), np.array([1, 2, 3], np.uint16)) == 1
    assert error(np.zeros(0), np.zeros(0)) == 0
