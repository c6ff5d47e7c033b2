"""Stage 2, spherical harmonics → colours (kernels/shade.slang): what it records, and its `autograd.Function`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.splats.camera_gradients import CAMERA_ROW, CameraGradients, camera_gradients
from splat_py.splats.data import Cameras, Settings, StridedView
from splat_py.splats.tensors import as_tensor, strided_view


@dataclass(frozen=True)
class Shading:
    """Spherical harmonics of N Gaussians, C cameras that see them, and the colours they have there, zero where culled."""

    means: Array  # [N, 3]
    sh: Array  # [N, K, 3]
    cameras: Cameras
    radii: Array  # [C, N, 2] int32
    colors: Array  # [C, N, 3]
    degree: int
    settings: Settings

    def record(self, recorder: Recorder) -> None:
        """Write `colors`."""
        recorder.stage("shade")
        recorder.dispatch(
            "shade",
            "shadeForward",
            linear_groups(self.cameras.count * self.means.shape[0]),
            self._uniforms(),
            self._buffers() | {"colors": self.colors},
            COEFFICIENTS=(self.degree + 1) ** 2,
        )

    def record_backward(
        self,
        recorder: Recorder,
        v_colors: StridedView,
        v_means: Array,
        v_sh: Array,
        v_cameras: Array,
        add_to_means: bool = False,
    ) -> None:
        """Gradients of colours → those of coefficients and means, overwritten (or means added to), and of cameras, added to."""
        recorder.stage("shade backward")
        settings = self.settings
        rows = CameraGradients(recorder, v_cameras, self.means.shape[0], settings)
        recorder.dispatch(
            "shade",
            "shadeBackward",
            linear_groups(self.means.shape[0]),
            self._uniforms() | {"colorStride": v_colors.stride, "colorOffset": v_colors.offset},
            self._buffers() | {"vColors": v_colors.array, "vMeans": v_means, "vSh": v_sh, **rows.buffers},
            COEFFICIENTS=(self.degree + 1) ** 2,
            CAMERA_GRADIENT=settings.camera_gradient,
            ADD_TO_MEANS=add_to_means,
            **(settings.accumulation_constants() if settings.camera_gradient else {}),
        )
        rows.record_sum(recorder)

    def _uniforms(self) -> dict[str, int | float]:
        return {"gaussians": self.sh.shape[0], "cameras": self.cameras.count, "stored": self.sh.shape[1]}

    def _buffers(self) -> dict[str, Array]:
        cameras = self.cameras
        return {"means": self.means, "sh": self.sh, "viewmats": cameras.viewmats, "Ks": cameras.Ks, "radii": self.radii}


def shade(
    means: Tensor,
    sh: Tensor,
    viewmats: Tensor,
    radii: Tensor,
    degree: int,
    settings: Settings | None = None,
    *,
    device: Device | None = None,
) -> Tensor:
    """Colours [C, N, 3] that C cameras see: max(0, Σ Y_k(d) sh_k + ½), d from the camera's centre to the mean.

    Args:
        means: [N, 3].
        sh: [N, K, 3], K ≥ (degree + 1)².
        viewmats: [C, 4, 4].
        radii: [C, N, 2] from `project`: culled splats stay black.
        degree: 0 to 3.
        settings: how gradients of cameras add up, as `project` is told.

    Differentiable in means, sh and viewmats.
    """
    device = device or device_for(means)
    settings = settings or Settings(device.tuning.tile_size, native_atomics=device.native_float_atomics)
    return cast(Tensor, _Shade.apply(means, sh, viewmats, radii, degree, settings, device))


class _Shade(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        sh: Tensor,
        viewmats: Tensor,
        radii: Tensor,
        degree: int,
        settings: Settings,
        device: Device,
    ) -> Tensor:
        array, empty = device.memory.array, device.memory.empty
        # Only the cameras' centres matter: intrinsics and image size are never read.
        cameras = Cameras(array(viewmats), empty((viewmats.shape[0], 3, 3)), 0, 0)
        colors = empty((cameras.count, means.shape[0], 3))
        work = Shading(array(means), array(sh), cameras, array(radii), colors, degree, settings)
        recorder = device.record()
        work.record(recorder)
        recorder.submit()
        ctx.state = (work, device)
        return as_tensor(colors, means)

    @staticmethod
    def backward(ctx: Any, v_colors: Tensor) -> tuple[Tensor | None, ...]:
        work, device = ctx.state
        camera_gradient = ctx.needs_input_grad[2]
        work = replace(work, settings=replace(work.settings, camera_gradient=camera_gradient))
        empty = device.memory.empty
        v_means, v_sh = empty(work.means.shape), empty(work.sh.shape)
        v_cameras = empty((work.cameras.count, CAMERA_ROW))
        recorder = device.record()
        recorder.clear(v_cameras)
        view = strided_view(device.memory, v_colors, tuple(v_colors.shape))
        work.record_backward(recorder, view, v_means, v_sh, v_cameras)
        recorder.submit()
        v_viewmats = camera_gradients(as_tensor(v_cameras, v_colors))[0] if camera_gradient else None
        return as_tensor(v_means, v_colors), as_tensor(v_sh, v_colors), v_viewmats, *(None,) * 4
