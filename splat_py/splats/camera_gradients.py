"""Gradients of cameras, to which every Gaussian contributes (kernels/camera_gradients.slang)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.splats.data import Settings

# Floats of a camera's gradient row: [R|t] 12, fx, fy, cx, cy; and its lens, where it has one (kernels/cameras.slang).
CAMERA_ROW: int = constant("kernels/cameras", "CAMERA_ROW")
LENS: int = constant("kernels/cameras", "LENS")


class CameraGradients:
    """Rows [C, CAMERA_ROW], with a lens LENS longer, of one recording, and where they add up."""

    def __init__(self, recorder: Recorder, v_cameras: Array, gaussians: int, settings: Settings) -> None:
        self.buffers: dict[str, Array | None] = {"vCameras": v_cameras, "vCameraBits": v_cameras.bits, "vCameraParts": None}
        self._v_cameras = v_cameras
        self._parts: Array | None = None
        if settings.camera_gradient and settings.per_isect:
            workgroups = math.prod(linear_groups(gaussians))
            self._parts = recorder.scratch((v_cameras.shape[0], workgroups, v_cameras.shape[1]))
            recorder.clear(self._parts)
            self.buffers["vCameraParts"] = self._parts

    def record_sum(self, recorder: Recorder) -> None:
        """Add what the workgroups have left in rows of their own."""
        if self._parts is not None:
            recorder.dispatch(
                "row_sums",
                "sumGroups",
                linear_groups(self._v_cameras.size),
                {"count": self._parts.shape[0], "rows": math.prod(self._parts.shape[:2]), "rowsEach": self._parts.shape[1]},
                {"parts": self._parts, "sums": self._v_cameras},
                ROW=self._v_cameras.shape[1],
            )


def camera_gradients(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows [C, CAMERA_ROW or more] → gradients of viewmats [C, 4, 4], Ks [C, 3, 3] and lenses [C, LENS or 0]."""
    v_viewmats = torch.zeros(rows.shape[0], 4, 4, device=rows.device)
    v_viewmats[:, :3] = rows[:, :12].reshape(-1, 3, 4)
    v_Ks = torch.zeros(rows.shape[0], 3, 3, device=rows.device)
    v_Ks[:, 0, 0], v_Ks[:, 1, 1] = rows[:, 12], rows[:, 13]
    v_Ks[:, :2, 2] = rows[:, 14:CAMERA_ROW]
    return v_viewmats, v_Ks, rows[:, CAMERA_ROW:]
