"""Stage 1, Gaussians → splats (kernels/project.slang): what it records, and its `autograd.Function`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.splats.camera_gradients import CAMERA_ROW, CameraGradients, camera_gradients
from splat_py.splats.data import Cameras, GaussianArrays, Settings, SplatGradients, Splats
from splat_py.splats.tensors import as_tensor, strided_view, zeros_or


@dataclass(frozen=True)
class Projection:
    """N Gaussians, C cameras that see them, and the splats they make."""

    gaussians: GaussianArrays
    cameras: Cameras
    splats: Splats
    settings: Settings

    def record(self, recorder: Recorder) -> None:
        """Write `splats`."""
        recorder.stage("project")
        recorder.dispatch(
            "project",
            "projectForward",
            linear_groups(self.splats.count),
            self._uniforms(),
            self._buffers(),
            **self._constants(),
        )

    def record_backward(
        self, recorder: Recorder, v_splats: SplatGradients, v_gaussians: GaussianArrays, v_cameras: Array
    ) -> None:
        """Gradients of splats → gradients of Gaussians, overwritten, and of cameras, [C, CAMERA_ROW], added to."""
        recorder.stage("project backward")
        settings = self.settings
        rows = CameraGradients(recorder, v_cameras, self.gaussians.count, settings)
        uniforms = self._uniforms()
        views = {"mean": v_splats.means2d, "conic": v_splats.conics, "opacity": v_splats.opacities}
        for name, view in views.items():
            uniforms |= {f"{name}Stride": view.stride, f"{name}Offset": view.offset}
        recorder.dispatch(
            "project",
            "projectBackward",
            linear_groups(self.gaussians.count),
            uniforms,
            self._buffers()
            | {
                "vMeans2d": v_splats.means2d.array,
                "vDepths": v_splats.depths,
                "vConics": v_splats.conics.array,
                "vSplatOpacities": v_splats.opacities.array,
                "vMeans": v_gaussians.means,
                "vQuats": v_gaussians.quats,
                "vScales": v_gaussians.scales,
                "vOpacities": v_gaussians.opacities,
                **rows.buffers,
            },
            CAMERA_GRADIENT=settings.camera_gradient,
            **(settings.accumulation_constants() if settings.camera_gradient else {}),
            **self._constants(),
        )
        rows.record_sum(recorder)

    def _uniforms(self) -> dict[str, int | float]:
        settings = self.settings
        return {
            "gaussians": self.gaussians.count,
            "cameras": self.cameras.count,
            "width": self.cameras.width,
            "height": self.cameras.height,
            "blur": settings.blur,
            "near": settings.near,
            "far": settings.far,
            "radiusClip": settings.radius_clip,
        }

    def _buffers(self) -> dict[str, Array]:
        return {
            "means": self.gaussians.means,
            "quats": self.gaussians.quats,
            "scales": self.gaussians.scales,
            "opacities": self.gaussians.opacities,
            "viewmats": self.cameras.viewmats,
            "Ks": self.cameras.Ks,
            "means2d": self.splats.means2d,
            "depths": self.splats.depths,
            "conics": self.splats.conics,
            "splatOpacities": self.splats.opacities,
            "radii": self.splats.radii,
        }

    def _constants(self) -> dict[str, bool]:
        return {"RAW_PARAMS": self.settings.raw_params, "ANTIALIASED": self.settings.antialiased}


@dataclass(frozen=True)
class ProjectedSplats:
    """Gaussians on the cameras' image planes, as torch tensors."""

    means2d: Tensor  # [C, N, 2] pixels
    depths: Tensor  # [C, N] camera z
    conics: Tensor  # [C, N, 3] (a, b, c) of the inverse covariance, 1/pixel²
    opacities: Tensor  # [C, N] after antialiasing
    radii: Tensor  # [C, N, 2] int32, pixels; 0 where culled

    def arrays(self, device: Device) -> Splats:
        """The same on a device."""
        tensors = (self.means2d, self.depths, self.conics, self.opacities, self.radii)
        return Splats(*(device.memory.array(tensor.detach()) for tensor in tensors))


def project(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    settings: Settings,
    *,
    device: Device | None = None,
) -> ProjectedSplats:
    """First stage: EWA projection (Zwicker et al. 2001). Arguments as in `rasterization`, without batch dimensions.

    Differentiable in the six tensors. Everything of a culled splat is zero.
    """
    device = device or device_for(means)
    outputs = _Project.apply(means, quats, scales, opacities, viewmats, Ks, (width, height), settings, device)
    return ProjectedSplats(*outputs)


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        quats: Tensor,
        scales: Tensor,
        opacities: Tensor,
        viewmats: Tensor,
        Ks: Tensor,
        size: tuple[int, int],
        settings: Settings,
        device: Device,
    ) -> tuple[Tensor, ...]:
        array = device.memory.array
        gaussians = GaussianArrays(array(means), array(quats), array(scales), array(opacities))
        cameras = Cameras(array(viewmats), array(Ks), *size)
        splats = Splats.empty(device, cameras.count, gaussians.count)
        work = Projection(gaussians, cameras, splats, settings)
        recorder = device.record()
        work.record(recorder)
        recorder.submit()
        ctx.state = (work, device)
        ctx.set_materialize_grads(False)
        outputs = tuple(
            as_tensor(a, means) for a in (splats.means2d, splats.depths, splats.conics, splats.opacities, splats.radii)
        )
        ctx.mark_non_differentiable(outputs[-1])
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        work, device = ctx.state
        memory, gaussians = device.memory, work.gaussians
        v_means2d, v_depths, v_conics, v_opacities, _ = gradients
        shape = (work.cameras.count, gaussians.count)
        camera_gradient = ctx.needs_input_grad[4] or ctx.needs_input_grad[5]
        work = replace(work, settings=replace(work.settings, camera_gradient=camera_gradient))
        v_splats = SplatGradients(
            means2d=strided_view(memory, v_means2d, (*shape, 2)),
            conics=strided_view(memory, v_conics, (*shape, 3)),
            opacities=strided_view(memory, v_opacities, (*shape, 1)),
            depths=zeros_or(memory, v_depths, shape),
        )
        v = GaussianArrays(*(memory.empty(array.shape) for array in vars(gaussians).values()))
        v_cameras = memory.empty((work.cameras.count, CAMERA_ROW))
        recorder = device.record()
        recorder.clear(v_cameras)
        work.record_backward(recorder, v_splats, v, v_cameras)
        recorder.submit()
        like = next(g for g in gradients if g is not None)
        v_viewmats, v_Ks = camera_gradients(as_tensor(v_cameras, like)) if camera_gradient else (None, None)
        return *(as_tensor(array, like) for array in vars(v).values()), v_viewmats, v_Ks, None, None, None
