"""One process: the launcher calls, collectives return what they are given, more is refused by name."""

from __future__ import annotations

import pytest
import torch

from splat_py.gsplat import distributed, features, profile, version


def test_cli_calls_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    calls: list[tuple[object, ...]] = []
    arguments = object()
    assert distributed.cli(lambda *given: calls.append(given), arguments, verbose=True) is True
    assert calls == [(0, 0, 1, arguments)]


def test_more_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    with pytest.raises(NotImplementedError, match=r"distributed.cli does not support 4 devices; .*CUDA_VISIBLE_DEVICES=0"):
        distributed.cli(pytest.fail, None)  # type: ignore[arg-type]
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    with pytest.raises(NotImplementedError, match=r"distributed.cli does not support 2 processes"):
        distributed.cli(pytest.fail, None)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["all_gather_int32", "all_to_all_int32", "all_gather_tensor_list", "all_to_all_tensor_list"])
def test_collectives(name: str) -> None:
    collective, further = getattr(distributed, name), [[1]] if name == "all_to_all_tensor_list" else []
    assert collective(1, [7], *further) in ([7], [[7]])
    with pytest.raises(NotImplementedError, match=f"{name} does not support world_size=2"):
        collective(2, [7], *further)


def test_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "profiler", {})

    @profile.timeit()
    def step() -> int:
        return 3

    assert step() == 3 and not profile.profiler
    monkeypatch.setenv("TIMEIT", "1")
    for _ in range(2):
        assert step() == 3
        with profile.timeit("backward"):
            pass
    assert set(profile.profiler) == {"step", "backward"} and all(seconds > 0 for seconds in profile.profiler.values())


def test_what_there_is() -> None:
    assert version.__version__.startswith("1.")
    for name in ("3dgs", "adam", "reloc", "losses", "2dgs", "3dgut", "camera_wrappers"):
        assert isinstance(getattr(features, f"has_{name}")(), bool)
    assert features.has_3dgs() and features.has_losses()
