"""Gradients of cameras, to which every Gaussian contributes (kernels/camera_gradients.slang)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.splats.data import Cameras, Settings

# Floats of a camera's gradient row: [R|t] 12, fx, fy, cx, cy; its lens, where it has one; with a rolling shutter the last row's
# [R|t] (kernels/cameras.slang).
CAMERA_ROW: int = constant("kernels/cameras", "CAMERA_ROW")
LENS: int = constant("kernels/cameras", "LENS")
POSE_ROW: int = constant("kernels/cameras", "POSE_ROW")
_THREADS: int = constant("parallel/threads", "THREADS")


def row_length(cameras: Cameras) -> int:
    """Of a camera's gradient row."""
    has_last_pose = cameras.viewmats.shape[1] == 2
    return CAMERA_ROW + (0 if cameras.lenses is None else LENS) + (POSE_ROW if has_last_pose else 0)


class CameraGradients:
    """Rows [C, `row_length`] of one recording, and where they add up."""

    def __init__(self, recorder: Recorder, v_cameras: Array, gaussians: int, settings: Settings) -> None:
        self.buffers: dict[str, Array | None] = {"vCameras": v_cameras, "vCameraBits": v_cameras.bits, "vCameraParts": None}
        self._v_cameras = v_cameras
        self._parts: Array | None = None
        if settings.camera_gradient and settings.per_isect:
            # Those that have a Gaussian: a grid of more than a row of them is rounded up.
            workgroups = -(-gaussians // _THREADS)
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
    v_Ks = torch.zeros(rows.shape[0], 3, 3, device=rows.device)
    v_Ks[:, 0, 0], v_Ks[:, 1, 1] = rows[:, 12], rows[:, 13]
    v_Ks[:, :2, 2] = rows[:, 14:CAMERA_ROW]
    return pose_gradients(rows[:, :POSE_ROW]), v_Ks, rows[:, CAMERA_ROW : CAMERA_ROW + LENS]


def pose_gradients(rows: Tensor) -> Tensor:
    """[C, POSE_ROW] → [C, 4, 4]."""
    return torch.nn.functional.pad(rows.reshape(-1, 3, 4), (0, 0, 0, 1))
