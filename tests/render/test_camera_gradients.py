"""Scratch memory for gradients of cameras."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from splat_py.gpu.kernels import Recorder
from splat_py.render.cameras import CAMERA_ROW, SharedRows
from splat_py.render.options import Options
from tests.emulation.kernels import _Memory


@pytest.mark.parametrize("gaussians", [1, 64, 65, 3_000_000])
def test_a_row_for_each_workgroup_that_has_a_gaussian(gaussians: int) -> None:
    """The kernel counts workgroups with a Gaussian; a grid with several rows of workgroups has more."""
    shapes: list[Any] = []

    def zeros(shape: tuple[int, ...]) -> Any:
        shapes.append(shape)
        return SimpleNamespace(shape=shape)

    recorder = cast(Recorder, SimpleNamespace(zeros=zeros))
    v_cameras = _Memory().array(np.zeros((2, CAMERA_ROW), np.float32))
    SharedRows.over(recorder, v_cameras, gaussians, Options(16, accumulation="PerIntersection"))
    assert shapes == [(2, -(-gaussians // 64), CAMERA_ROW)]
