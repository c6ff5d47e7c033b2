"""Gaussians → splats that are evaluated along rays (kernels/ray_splats.slang), in the place of stage 1: what is recorded, and
the `autograd.Function`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import first_derivative, keep, kept, opaque
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.gpu.sorting import PrefixSum
from splat_py.splats.camera_gradients import CAMERA_ROW, CameraGradients, camera_gradients
from splat_py.splats.data import Cameras, GaussianArrays, PackedIds, Settings, Splats, StridedView, id_buffers, id_constants
from splat_py.splats.project import ProjectedSplats, Projection
from splat_py.splats.tensors import as_tensor, check_tensors, sparse_rows, strided_view, zeros_or
from splat_py.splats.validation import Inputs, Options

# Of `Settings`: what is evaluated along rays. Each has nine numbers (slang/splat/ray_splat.slang).
SURFEL: dict[str, Any] = {"shape": "Surfel", "shape_floats": 9}
RAY_GAUSSIAN: dict[str, Any] = {"shape": "RayGaussian", "shape_floats": 9}


@dataclass(frozen=True)
class RayGradients:
    """∂L/∂splats, as the rasteriser's backward pass leaves them."""

    means2d: StridedView
    shapes: StridedView
    normals: StridedView
    depths: Array


@dataclass(frozen=True)
class RayProjection:
    """N Gaussians, C cameras that see them, and the splats they make, whose conics are shapes [..., 9]."""

    gaussians: GaussianArrays
    cameras: Cameras
    splats: Splats
    normals: Array  # [..., 3] in camera space
    settings: Settings

    @classmethod
    def of(
        cls,
        device: Device,
        gaussians: GaussianArrays,
        cameras: Cameras,
        settings: Settings,
        shape: tuple[int, ...],
        packed: PackedIds | None = None,
    ) -> RayProjection:
        """With arrays for splats of this shape, which `record` writes all of but their opacities."""
        empty = device.memory.empty
        splats = replace(Splats.empty(device, *shape, packed=packed), conics=empty((*shape, 9)))
        return cls(gaussians, cameras, splats, empty((*shape, 3)), settings)

    def record(self, recorder: Recorder) -> None:
        """Write `splats` and `normals`."""
        recorder.stage("project")
        outputs = {
            "means2d": self.splats.means2d,
            "depths": self.splats.depths,
            "shapes": self.splats.conics,
            "normals": self.normals,
        }
        self._dispatch(recorder, "projectForRaysForward", linear_groups(self.splats.count), {}, outputs)

    def record_backward(
        self, recorder: Recorder, v_splats: RayGradients, v_gaussians: GaussianArrays, v_cameras: Array
    ) -> None:
        """Gradients of splats → of Gaussians, opacities left out, overwritten, and of cameras [C, CAMERA_ROW], added to."""
        recorder.stage("project backward")
        settings = self.settings
        rows = CameraGradients(recorder, v_cameras, self._per_scene, settings)
        uniforms: dict[str, int | float] = {}
        views = {"mean": v_splats.means2d, "shape": v_splats.shapes, "normal": v_splats.normals}
        for name, view in views.items():
            uniforms |= {f"{name}Stride": view.stride, f"{name}Offset": view.offset}
        self._dispatch(
            recorder,
            "projectForRaysBackward",
            (*linear_groups(self._per_scene)[:2], self.cameras.scenes),
            uniforms,
            {
                "vMeans2d": v_splats.means2d.array,
                "vDepths": v_splats.depths,
                "vShapes": v_splats.shapes.array,
                "vNormals": v_splats.normals.array,
                "vMeans": v_gaussians.means,
                "vQuats": v_gaussians.quats,
                "vScales": v_gaussians.scales,
                **rows.buffers,
            },
            CAMERA_GRADIENT=settings.camera_gradient,
            **(settings.accumulation_constants() if settings.camera_gradient else {}),
        )
        rows.record_sum(recorder)

    def record_visible(self, recorder: Recorder, visible: PrefixSum) -> None:
        """Count the splats that are visible, of all cameras and Gaussians; `splats` may be empty."""
        recorder.stage("project")
        flags = recorder.scratch((visible.count,), np.uint32)
        groups = linear_groups(visible.count)
        self._dispatch(recorder, "findVisibleByRays", groups, {"splats": visible.count}, {"isVisible": flags})
        visible.record(recorder, flags)

    def pack(self, device: Device) -> RayProjection:
        """The same with splats that are packed. Reads back how many there are."""
        visible = PrefixSum(device, self.cameras.count * self._per_scene)
        recorder = device.record()
        self.record_visible(recorder, visible)
        recorder.submit()
        packed = PackedIds.empty(device, int(visible.total.numpy()[0]), self.cameras.count)
        recorder = device.record()
        recorder.clear(packed.offsets)
        Projection(self.gaussians, self.cameras, self.splats, self.settings).record_packing(recorder, visible, packed)
        recorder.submit()
        return RayProjection.of(device, self.gaussians, self.cameras, self.settings, (packed.images.size,), packed)

    @property
    def _per_scene(self) -> int:
        return self.gaussians.count // self.cameras.scenes

    def _dispatch(
        self,
        recorder: Recorder,
        entry: str,
        groups: tuple[int, int, int],
        uniforms: Mapping[str, int | float],
        buffers: Mapping[str, Array | None],
        **constants: bool | str | int | UserType,
    ) -> None:
        settings, gaussians, cameras = self.settings, self.gaussians, self.cameras
        recorder.dispatch(
            "ray_splats",
            entry,
            groups,
            {
                "splats": self.splats.count,
                "gaussians": self._per_scene,
                "cameras": cameras.count // cameras.scenes,
                "width": cameras.width,
                "height": cameras.height,
                "near": settings.near,
                "far": settings.far,
                "radiusClip": settings.radius_clip,
                **uniforms,
            },
            {
                "means": gaussians.means,
                "quats": gaussians.quats,
                "scales": gaussians.scales,
                "opacities": gaussians.opacities,
                "viewmats": cameras.viewmats,
                "Ks": cameras.Ks,
                "radii": self.splats.radii,
                **id_buffers(self.splats.packed),
                **buffers,
            },
            **id_constants(self.splats.packed),
            **({} if settings.shape == "Surfel" else {"Primitive": settings.shape, "Shape": settings.shape}),
            **constants,
        )


@opaque
def project_for_rays(
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
    packed: bool = False,
    sparse_grad: bool = False,
    device: Device | None = None,
) -> tuple[ProjectedSplats, Tensor]:
    """Surfels (Huang et al. 2024), or Gaussians (Wu et al. 2025), before pinholes. Tensors as in `rasterization`.

    Differentiable in means, quats, scales, viewmats and Ks; in opacities, as the splats' are the Gaussians' own. Everything of
    a culled splat but its opacity is zero.

    Args:
        settings: with `SURFEL` or `RAY_GAUSSIAN`.
        packed: splats of those alone that are visible.
        sparse_grad: with `packed`: gradients of means, quats and scales are sparse (COO).

    Returns:
        Splats whose conics are shapes [..., C, N, 9], of surfels the rows of ray transforms, and unit normals of surfels
        [..., C, N, 3] in camera space, of Gaussians zero.

    Raises:
        SplatError: a tensor is not float32, or on another device than the others.
    """
    check_tensors({"means": means, "quats": quats, "scales": scales, "opacities": opacities, "viewmats": viewmats, "Ks": Ks})
    frame = _Frame(width, height, settings, device_for(means, device), packed, sparse_grad)
    outputs = _ProjectForRays.apply(means, quats, scales, opacities.detach(), viewmats, Ks, frame)
    means2d, depths, shapes, normals, radii, ids = outputs
    splats = ProjectedSplats(means2d, depths, shapes, depths, radii, ids)
    of_splats = opacities[..., None, :].expand(depths.shape) if ids is None else opacities.flatten()[splats.gaussian_ids]
    return replace(splats, opacities=of_splats), normals


def project_inputs(inputs: Inputs, options: Options, settings: Settings, device: Device) -> ProjectedSplats:
    """What `rasterization` is given, as Gaussians that are evaluated along rays.

    Raises:
        NotImplementedError: it asks for what they are not.
    """
    unsupported = {
        f"camera_model={options.camera_model!r}": options.camera_model != "pinhole",
        "a rolling shutter": options.shutter is not None,
        "distortion coefficients": inputs.lenses() is not None,
        "covars": inputs.covars is not None,
        f"rasterize_mode={options.rasterize_mode!r}": options.rasterize_mode != "classic",
        "splat and params": settings.falloff != "GaussianFalloff",
    }
    for asked, is_asked in unsupported.items():
        if is_asked:
            raise NotImplementedError(f"with_eval3d=True does not support {asked}; leave one of them out")
    assert inputs.quats is not None and inputs.scales is not None
    splats, _ = project_for_rays(
        inputs.means,
        inputs.quats,
        inputs.scales,
        inputs.opacities,
        inputs.viewmats,
        inputs.Ks,
        options.width,
        options.height,
        settings,
        packed=options.packed,
        sparse_grad=options.sparse_grad,
        device=device,
    )
    return splats


@dataclass(frozen=True)
class _Frame:
    """What is not differentiated of a projection."""

    width: int
    height: int
    settings: Settings
    device: Device
    packed: bool
    sparse_grad: bool


class _ProjectForRays(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        quats: Tensor,
        scales: Tensor,
        opacities: Tensor,
        viewmats: Tensor,
        Ks: Tensor,
        frame: _Frame,
    ) -> tuple[Any, ...]:
        device = frame.device
        gaussians = GaussianArrays(*(device.memory.array(t.detach().contiguous()) for t in (means, quats, scales, opacities)))
        poses, intrinsics = (device.memory.array(t.detach().flatten(0, -3).contiguous()) for t in (viewmats, Ks))
        cameras = Cameras(poses, intrinsics, frame.width, frame.height, math.prod(means.shape[:-2]))
        if frame.packed:
            work = RayProjection.of(device, gaussians, cameras, frame.settings, (0,)).pack(device)
        else:
            shape = (*viewmats.shape[:-2], means.shape[-2])
            work = RayProjection.of(device, gaussians, cameras, frame.settings, shape)
        recorder = device.record()
        work.record(recorder)
        recorder.submit()
        splats = work.splats
        outputs = tuple(
            as_tensor(a, means) for a in (splats.means2d, splats.depths, splats.conics, work.normals, splats.radii)
        )
        keep(ctx, (work, frame), means, quats, scales, opacities, viewmats, Ks, outputs[-1])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(outputs[-1])
        return *outputs, splats.packed

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        work, frame = kept(ctx)
        memory, count = frame.device.memory, work.splats.count
        v_means2d, v_depths, v_shapes, v_normals, *_ = gradients
        v_splats = RayGradients(
            means2d=strided_view(memory, v_means2d, count, 2),
            shapes=strided_view(memory, v_shapes, count, 9),
            normals=strided_view(memory, v_normals, count, 3),
            depths=zeros_or(memory, v_depths, (count,)),
        )
        of_cameras = any(ctx.needs_input_grad[i] for i in (4, 5))
        v = work.gaussians.map(lambda array: memory.empty(array.shape))
        v_cameras = memory.empty((work.cameras.count, CAMERA_ROW))
        recorder = frame.device.record()
        recorder.clear(v_cameras)
        work = replace(work, settings=replace(work.settings, camera_gradient=of_cameras))
        work.record_backward(recorder, v_splats, v, v_cameras)
        recorder.submit()
        like = ctx.saved_tensors[1]
        v_gaussians: list[Tensor | None] = [as_tensor(array, like) for array in (v.means, v.quats, v.scales)]
        if frame.sparse_grad:
            ids = as_tensor(work.splats.packed.gaussians, like).view(torch.int32).long().unique()
            v_gaussians = [None if dense is None else sparse_rows(dense, ids) for dense in v_gaussians]
        v_viewmats, v_Ks = None, None
        if of_cameras:
            lead = ctx.saved_tensors[5].shape[:-2]
            v_viewmats, v_Ks, _ = (part.unflatten(0, lead) for part in camera_gradients(as_tensor(v_cameras, like)))
        return *v_gaussians, None, v_viewmats, v_Ks, None
