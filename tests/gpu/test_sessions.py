"""The compiler's memory levels off, however many kernels a process compiles."""

import subprocess
import sys
from pathlib import Path

import pytest

from splat_py.gpu.device import get_device
from splat_py.gpu.kernels import KernelCache

_TRY = """
import gc
import psutil
from splat_py.gpu import kernels
from splat_py.gpu.device import get_device

kernels._SESSIONS, kernels._KERNELS_PER_SESSION = 2, 5
cache = kernels.KernelCache(get_device().handle)
for channels in range(1, 41):
    cache.get("splat_rows", "packSplats", CHANNELS=channels)
    if channels in (20, 40):
        gc.collect()
        print(psutil.Process().memory_info().rss >> 20)
"""


def test_memory_levels_off(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", _TRY], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    half, whole = map(int, run.stdout.split())
    # Sessions that stayed would take 280 MB.
    assert whole - half < 100


def test_a_kernel_is_compiled_again_after_its_session_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splat_py.gpu.kernels._KERNELS_PER_SESSION", 2)
    monkeypatch.setattr("splat_py.gpu.kernels._SESSIONS", 2)
    compiled: list[str] = []
    kernels = KernelCache(get_device().handle)
    kernels.observers.append(compiled.append)
    first = kernels.get("loss", "appendDepth")
    for entry in ("takeColors", "depthGradient", "gradientInTiles"):
        kernels.get("loss", entry)
    assert kernels.get("loss", "appendDepth") is first and len(compiled) == 4
    # The fifth opens a third session, and frees the first.
    kernels.get("loss", "ssimInTiles")
    assert kernels.get("loss", "takeColors") is not None and kernels.get("loss", "appendDepth") is not first
    assert compiled[4:] == ["ssimInTiles", "takeColors", "appendDepth"]


def test_another_session_finds_a_kernel_in_the_compile_cache() -> None:
    device = get_device().handle
    for _ in range(3):
        hits = device.shader_cache_stats.hit_count
        KernelCache(device).get("loss", "appendDepth")
    assert device.shader_cache_stats.hit_count > hits
