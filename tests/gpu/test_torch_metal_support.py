"""Requirements of each of the two ways to a Mac's GPU, checked without a Mac."""

import platform
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import slangpy as spy
import torch

from splat_py.base.errors import NoDeviceError
from splat_py.commands.selftest.checking import metal_devices
from splat_py.gpu import availability
from splat_py.gpu import device as devices
from splat_py.gpu.availability import why_no_metal_compiler, why_no_torch_metal
from splat_py.gpu.device import Adapter

COMPILER, TORCH = ("xcode-select", "xcrun"), "2.13.0"


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A Mac that has everything: `answering` programs, a version of torch, a version of macOS."""
    has = SimpleNamespace(answering=set(COMPILER), macos=(26, 0), called=[])

    def run(command: tuple[str, ...], **_: object) -> SimpleNamespace:
        has.called.append(command)
        if command[0] not in has.answering:
            raise FileNotFoundError(command[0])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "mac_ver", lambda: (".".join(map(str, has.macos)), ("", "", ""), "arm64"))
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(torch, "__version__", TORCH)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M4", raising=False)
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *version: has.macos >= version)
    adapters = {spy.DeviceType.metal: [SimpleNamespace(name="Apple M4", luid=[1])]}
    monkeypatch.setattr(spy.Device, "enumerate_adapters", lambda type: adapters.get(type, []))
    monkeypatch.delenv("SPLAT_DEVICE", raising=False)
    for cached in (why_no_metal_compiler, devices.adapters):
        cached.cache_clear()
    yield has
    for cached in (why_no_metal_compiler, devices.adapters):
        cached.cache_clear()


def backends() -> list[str]:
    return [adapter.backend for adapter in devices.adapters()]


def test_xcode_comes_first(mac: SimpleNamespace) -> None:
    assert backends() == ["metal", "mps"]
    assert devices.choose() == Adapter("metal", "Apple M4", (1,))
    assert devices.choose("mps").backend == "mps"


@pytest.mark.parametrize(("answering", "says"), [((), "no Xcode is selected"), (("xcode-select",), "does not answer")])
def test_without_xcode_torch_comes_first(answering: tuple[str, ...], says: str, mac: SimpleNamespace) -> None:
    mac.answering = set(answering)
    assert backends() == ["mps", "metal"] and devices.preference()[0] == "mps"
    assert says in why_no_metal_compiler()
    # Without developer tools, `xcrun` opens a window that asks to install them.
    assert [command[0] for command in mac.called] == ["xcode-select", "xcrun"][: 1 + len(answering)]


def test_a_compiler_that_hangs_does_not_answer(mac: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(command: tuple[str, ...], timeout: float, **_: object) -> None:
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert backends() == ["mps", "metal"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"is_built": lambda: False}, "built without Metal"),
        ({"is_available": lambda: False}, "no Metal device"),
        ({"__version__": "2.6.0"}, "torch 2.6.0 is too old; splat_py needs 2.7 or later"),
        ({"macos": (13, 6)}, "macOS 13.6 is too old; splat_py needs 14 or later"),
    ],
)
def test_torch_cannot(change: dict[str, object], says: str, mac: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    ((name, value),) = change.items()
    if name == "macos":
        mac.macos = value
    else:
        monkeypatch.setattr(torch if name == "__version__" else torch.backends.mps, name, value)
    assert says in why_no_torch_metal()
    assert backends() == ["metal"]
    with pytest.raises(NoDeviceError, match="no device 'mps' here; available: metal"):
        devices.choose("mps")


def test_newer_versions_of_torch_are_new_enough(mac: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("2.7.0", "2.10.1+cpu", "3.0.0a0+git1234"):
        monkeypatch.setattr(torch, "__version__", version)
        assert why_no_torch_metal() == ""


def test_mps_tensors_take_torchs_metal(mac: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if Xcode's compiler answers, as nothing needs to be copied."""
    opened: list[str | None] = []
    monkeypatch.setattr(devices, "get_device", lambda name=None: opened.append(name))
    tensor = torch.zeros(1)
    devices.device_for(tensor)
    monkeypatch.setattr(availability, "TORCH_DEVICE", "cpu")
    devices.device_for(tensor)
    monkeypatch.setenv("SPLAT_DEVICE", "metal")
    devices.device_for(tensor)
    assert opened == [None, "mps", None]


def test_the_selftest_takes_both_ways(mac: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "get_device", lambda name: name)
    assert metal_devices(None) == (["metal", "mps"], {})
    assert metal_devices("mps") == (["mps"], {})
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    devices.adapters.cache_clear()
    assert metal_devices(None) == (["metal"], {"mps": "torch finds no Metal device"})


def test_the_selftest_goes_on_without_one(mac: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        if name == "mps":
            raise NoDeviceError("it is broken")

    monkeypatch.setattr(devices, "get_device", refuse)
    assert metal_devices(None) == (["metal"], {"mps": "it is broken"})
    mac.answering = set()
    why_no_metal_compiler.cache_clear()
    names, skipped = metal_devices(None)
    assert names == [None] and skipped["metal"].startswith("no Xcode is selected")


def test_elsewhere_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPLAT_DEVICE", raising=False)
    if platform.system() != "Darwin":
        assert metal_devices(None) == ([None], {})
        assert why_no_metal_compiler() == "only on macOS"
        assert why_no_torch_metal()
