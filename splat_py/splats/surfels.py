"""Surfels → splats (kernels/surfels.slang), in the place of stage 1: what it records, and its `autograd.Function`."""

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

# The rows of a surfel's ray transform (slang/splat/surfel.slang).
SHAPE: dict[str, Any] = {"shape": "Surfel", "shape_floats": 9}


@dataclass(frozen=True)
class SurfelGradients:
    """∂L/∂splats, as the rasteriser's backward pass leaves them."""

    means2d: StridedView
    ray_transforms: StridedView
    normals: StridedView
    depths: Array


@dataclass(frozen=True)
class SurfelProjection:
    """N surfels, C cameras that see them, and the splats they make, whose conics are ray transforms [..., 9]."""

    surfels: GaussianArrays
    cameras: Cameras
    splats: Splats
    normals: Array  # [..., 3] in camera space
    settings: Settings

    @classmethod
    def of(
        cls,
        device: Device,
        surfels: GaussianArrays,
        cameras: Cameras,
        settings: Settings,
        shape: tuple[int, ...],
        packed: PackedIds | None = None,
    ) -> SurfelProjection:
        """With arrays for splats of this shape, which `record` writes all of but their opacities."""
        empty = device.memory.empty
        splats = replace(Splats.empty(device, *shape, packed=packed), conics=empty((*shape, 9)))
        return cls(surfels, cameras, splats, empty((*shape, 3)), settings)

    def record(self, recorder: Recorder) -> None:
        """Write `splats` and `normals`."""
        recorder.stage("project")
        outputs = {
            "means2d": self.splats.means2d,
            "depths": self.splats.depths,
            "rayTransforms": self.splats.conics,
            "normals": self.normals,
        }
        self._dispatch(recorder, "projectSurfels", linear_groups(self.splats.count), {}, outputs)

    def record_backward(
        self, recorder: Recorder, v_splats: SurfelGradients, v_surfels: GaussianArrays, v_cameras: Array
    ) -> None:
        """Gradients of splats → those of surfels, opacities left out, overwritten, and of cameras [C, CAMERA_ROW], added to."""
        recorder.stage("project backward")
        settings = self.settings
        rows = CameraGradients(recorder, v_cameras, self._per_scene, settings)
        uniforms: dict[str, int | float] = {}
        views = {"mean": v_splats.means2d, "rayTransform": v_splats.ray_transforms, "normal": v_splats.normals}
        for name, view in views.items():
            uniforms |= {f"{name}Stride": view.stride, f"{name}Offset": view.offset}
        self._dispatch(
            recorder,
            "projectSurfelsBackward",
            (*linear_groups(self._per_scene)[:2], self.cameras.scenes),
            uniforms,
            {
                "vMeans2d": v_splats.means2d.array,
                "vDepths": v_splats.depths,
                "vRayTransforms": v_splats.ray_transforms.array,
                "vNormals": v_splats.normals.array,
                "vMeans": v_surfels.means,
                "vQuats": v_surfels.quats,
                "vScales": v_surfels.scales,
                **rows.buffers,
            },
            CAMERA_GRADIENT=settings.camera_gradient,
            **(settings.accumulation_constants() if settings.camera_gradient else {}),
        )
        rows.record_sum(recorder)

    def record_visible(self, recorder: Recorder, visible: PrefixSum) -> None:
        """Count the splats that are visible, of all cameras and surfels; `splats` may be empty."""
        recorder.stage("project")
        flags = recorder.scratch((visible.count,), np.uint32)
        groups = linear_groups(visible.count)
        self._dispatch(recorder, "findVisibleSurfels", groups, {"splats": visible.count}, {"isVisible": flags})
        visible.record(recorder, flags)

    def pack(self, device: Device) -> SurfelProjection:
        """The same with splats that are packed. Reads back how many there are."""
        visible = PrefixSum(device, self.cameras.count * self._per_scene)
        recorder = device.record()
        self.record_visible(recorder, visible)
        recorder.submit()
        packed = PackedIds.empty(device, int(visible.total.numpy()[0]), self.cameras.count)
        recorder = device.record()
        recorder.clear(packed.offsets)
        Projection(self.surfels, self.cameras, self.splats, self.settings).record_packing(recorder, visible, packed)
        recorder.submit()
        return SurfelProjection.of(device, self.surfels, self.cameras, self.settings, (packed.images.size,), packed)

    @property
    def _per_scene(self) -> int:
        return self.surfels.count // self.cameras.scenes

    def _dispatch(
        self,
        recorder: Recorder,
        entry: str,
        groups: tuple[int, int, int],
        uniforms: Mapping[str, int | float],
        buffers: Mapping[str, Array | None],
        **constants: bool | str | int | UserType,
    ) -> None:
        settings, surfels, cameras = self.settings, self.surfels, self.cameras
        recorder.dispatch(
            "surfels",
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
                "means": surfels.means,
                "quats": surfels.quats,
                "scales": surfels.scales,
                "opacities": surfels.opacities,
                "viewmats": cameras.viewmats,
                "Ks": cameras.Ks,
                "radii": self.splats.radii,
                **id_buffers(self.splats.packed),
                **buffers,
            },
            **id_constants(self.splats.packed),
            **constants,
        )


@opaque
def project_surfels(
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
    """Surfels on the cameras' image planes (Huang et al. 2024). Tensors as in `rasterization_2dgs`.

    Differentiable in means, quats, scales, viewmats and Ks; in opacities, as the splats' are the surfels' own. Everything of a
    culled splat but its opacity is zero.

    Args:
        settings: with `SHAPE`.
        packed: splats of those alone that are visible.
        sparse_grad: with `packed`: gradients of means, quats and scales are sparse (COO).

    Returns:
        Splats whose conics are the rows of ray transforms [..., C, N, 9], and unit normals in camera space [..., C, N, 3].

    Raises:
        SplatError: a tensor is not float32, or on another device than the others.
    """
    check_tensors({"means": means, "quats": quats, "scales": scales, "opacities": opacities, "viewmats": viewmats, "Ks": Ks})
    frame = _Frame(width, height, settings, device or device_for(means), packed, sparse_grad)
    outputs = _ProjectSurfels.apply(means, quats, scales, opacities.detach(), viewmats, Ks, frame)
    means2d, depths, ray_transforms, normals, radii, ids = outputs
    splats = ProjectedSplats(means2d, depths, ray_transforms, depths, radii, ids)
    of_splats = opacities[..., None, :].expand(depths.shape) if ids is None else opacities.flatten()[splats.gaussian_ids]
    return replace(splats, opacities=of_splats), normals


@dataclass(frozen=True)
class _Frame:
    """What is not differentiated of a projection."""

    width: int
    height: int
    settings: Settings
    device: Device
    packed: bool
    sparse_grad: bool


class _ProjectSurfels(torch.autograd.Function):
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
        surfels = GaussianArrays(*(device.memory.array(t.detach().contiguous()) for t in (means, quats, scales, opacities)))
        poses, intrinsics = (device.memory.array(t.detach().flatten(0, -3).contiguous()) for t in (viewmats, Ks))
        cameras = Cameras(poses, intrinsics, frame.width, frame.height, math.prod(means.shape[:-2]))
        if frame.packed:
            work = SurfelProjection.of(device, surfels, cameras, frame.settings, (0,)).pack(device)
        else:
            shape = (*viewmats.shape[:-2], means.shape[-2])
            work = SurfelProjection.of(device, surfels, cameras, frame.settings, shape)
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
        v_means2d, v_depths, v_ray_transforms, v_normals, *_ = gradients
        v_splats = SurfelGradients(
            means2d=strided_view(memory, v_means2d, count, 2),
            ray_transforms=strided_view(memory, v_ray_transforms, count, 9),
            normals=strided_view(memory, v_normals, count, 3),
            depths=zeros_or(memory, v_depths, (count,)),
        )
        of_cameras = any(ctx.needs_input_grad[i] for i in (4, 5))
        v = work.surfels.map(lambda array: memory.empty(array.shape))
        v_cameras = memory.empty((work.cameras.count, CAMERA_ROW))
        recorder = frame.device.record()
        recorder.clear(v_cameras)
        work = replace(work, settings=replace(work.settings, camera_gradient=of_cameras))
        work.record_backward(recorder, v_splats, v, v_cameras)
        recorder.submit()
        like = ctx.saved_tensors[1]
        v_surfels: list[Tensor | None] = [as_tensor(array, like) for array in (v.means, v.quats, v.scales)]
        if frame.sparse_grad:
            ids = as_tensor(work.splats.packed.gaussians, like).view(torch.int32).long().unique()
            v_surfels = [None if dense is None else sparse_rows(dense, ids) for dense in v_surfels]
        v_viewmats, v_Ks = None, None
        if of_cameras:
            lead = ctx.saved_tensors[5].shape[:-2]
            v_viewmats, v_Ks, _ = (part.unflatten(0, lead) for part in camera_gradients(as_tensor(v_cameras, like)))
        return *v_surfels, None, v_viewmats, v_Ks, None
