"""Stage 1, Gaussians → splats (kernels/project.slang): what it records, and its `autograd.Function`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import first_derivative, keep, kept, opaque
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.gpu.sorting import PrefixSum
from splat_py.splats.camera_gradients import LENS, POSE_ROW, CameraGradients, camera_gradients, pose_gradients, row_length
from splat_py.splats.cameras import UnscentedTransform, readout
from splat_py.splats.data import (
    Cameras,
    GaussianArrays,
    PackedIds,
    Settings,
    SplatGradients,
    Splats,
    id_buffers,
    id_constants,
)
from splat_py.splats.tensors import as_tensor, check_tensors, sparse_rows, strided_view, zeros_or


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
        falloff = self.settings.falloff_constants()
        self._dispatch(recorder, "projectForward", linear_groups(self.splats.count), {}, {}, **falloff)

    def record_backward(
        self, recorder: Recorder, v_splats: SplatGradients, v_gaussians: GaussianArrays, v_cameras: Array
    ) -> None:
        """Gradients of splats → gradients of Gaussians, overwritten, and of cameras, [C, `row_length`], added to."""
        recorder.stage("project backward")
        settings = self.settings
        per_scene = self._per_scene
        rows = CameraGradients(recorder, v_cameras, per_scene, settings)
        uniforms: dict[str, int | float] = {}
        views = {"mean": v_splats.means2d, "conic": v_splats.conics, "opacity": v_splats.opacities}
        for name, view in views.items():
            uniforms |= {f"{name}Stride": view.stride, f"{name}Offset": view.offset}
        self._dispatch(
            recorder,
            "projectBackward",
            (*linear_groups(per_scene)[:2], self.cameras.scenes),
            uniforms,
            {
                "vMeans2d": v_splats.means2d.array,
                "vDepths": v_splats.depths,
                "vConics": v_splats.conics.array,
                "vSplatOpacities": v_splats.opacities.array,
                "vMeans": v_gaussians.means,
                "vQuats": v_gaussians.quats,
                "vScales": v_gaussians.scales,
                "vOpacities": v_gaussians.opacities,
                "vCovars": v_gaussians.covars,
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
        falloff = self.settings.falloff_constants()
        self._dispatch(recorder, "findVisible", groups, {"splats": visible.count}, {"isVisible": flags}, **falloff)
        visible.record(recorder, flags)

    def record_packing(self, recorder: Recorder, visible: PrefixSum, packed: PackedIds) -> None:
        """Write `packed`. `record_visible` has run before."""
        recorder.dispatch(
            "pack",
            "packVisible",
            linear_groups(visible.count),
            {
                "pairs": visible.count,
                "gaussians": self._per_scene,
                "cameras": self.cameras.count // self.cameras.scenes,
            },
            {
                "visibleBefore": visible.offsets,
                "packedImages": packed.images,
                "packedGaussians": packed.gaussians,
                "packedOffsets": packed.offsets,
                **id_buffers(None),
            },
        )

    def pack(self, device: Device) -> Projection:
        """The same with splats that are packed. Reads back how many there are."""
        visible = PrefixSum(device, self.cameras.count * self._per_scene)
        recorder = device.record()
        self.record_visible(recorder, visible)
        recorder.submit()
        packed = PackedIds.empty(device, int(visible.total.numpy()[0]), self.cameras.count)
        recorder = device.record()
        recorder.clear(packed.offsets)
        self.record_packing(recorder, visible, packed)
        recorder.submit()
        return replace(self, splats=Splats.empty(device, packed.images.size, packed=packed))

    @property
    def _per_scene(self) -> int:
        return self.gaussians.count // self.cameras.scenes

    def _dispatch(
        self,
        recorder: Recorder,
        entry: str,
        groups: tuple[int, int, int],
        uniforms: dict[str, int | float] | None = None,
        buffers: Mapping[str, Array | None] | None = None,
        **constants: bool | str | int | UserType,
    ) -> None:
        settings, gaussians, splats = self.settings, self.gaussians, self.splats
        constants |= {"RAW_PARAMS": settings.raw_params, "ANTIALIASED": settings.antialiased}
        if settings.camera_model != "Pinhole":
            constants["CameraModel"] = settings.camera_model
        if gaussians.covars is not None:
            constants["COVARS"] = True
        if self.cameras.lenses is not None:
            constants["WITH_LENS"] = True
        if settings.unscented is not None:
            constants["UNSCENTED"] = True
        if settings.shutter is not None:
            constants["ROLLING"] = True
        recorder.dispatch(
            "project",
            entry,
            groups,
            {
                "splats": splats.count,
                "gaussians": self._per_scene,
                "cameras": self.cameras.count // self.cameras.scenes,
                "width": self.cameras.width,
                "height": self.cameras.height,
                "blur": settings.blur,
                "near": settings.near,
                "far": settings.far,
                "radiusClip": settings.radius_clip,
            }
            | readout(settings.shutter, self.cameras.width, self.cameras.height)
            | (settings.unscented or UnscentedTransform()).uniforms()
            | (uniforms or {}),
            {
                "means": gaussians.means,
                "quats": gaussians.quats,
                "scales": gaussians.scales,
                "opacities": gaussians.opacities,
                "covars": gaussians.covars,
                "extras": gaussians.extras,
                "viewmats": self.cameras.viewmats,
                "Ks": self.cameras.Ks,
                "lenses": self.cameras.lenses,
                "means2d": splats.means2d,
                "depths": splats.depths,
                "conics": splats.conics,
                "splatOpacities": splats.opacities,
                "radii": splats.radii,
                **id_buffers(splats.packed),
            }
            | dict(buffers or {}),
            **id_constants(splats.packed),
            **constants,
        )


@dataclass(frozen=True)
class ProjectedSplats:
    """Gaussians on the cameras' image planes, as torch tensors. `...` are scenes; packed, M takes the place of ..., C, N."""

    means2d: Tensor  # [..., C, N, 2] pixels
    depths: Tensor  # [..., C, N] camera z, or the distance
    conics: Tensor  # [..., C, N, 3] (a, b, c) of the inverse covariance, 1/pixel²
    opacities: Tensor  # [..., C, N] after antialiasing
    radii: Tensor  # [..., C, N, 2] int32, pixels; 0 where culled
    packed: PackedIds | None = None
    extras: Tensor | None = None  # [..., C, N, E] of what they fade by

    def arrays(self, device: Device) -> Splats:
        """The same on a device."""
        tensors = (self.means2d, self.depths, self.conics, self.opacities, self.radii)
        means2d, depths, conics, opacities, radii = (device.memory.array(t.detach().contiguous()) for t in tensors)
        extras = None if self.extras is None else device.memory.array(self.extras.detach().contiguous())
        return Splats(means2d, depths, conics, opacities, radii, self.packed, extras)

    @property
    def cameras(self) -> int:
        """C of all scenes."""
        return self.packed.offsets.size - 1 if self.packed else self.depths.shape[:-1].numel()

    @property
    def image_ids(self) -> Tensor | None:
        """Packed: [M] int64, the camera that sees each, counted through all scenes."""
        return self._ids(self.packed.images) if self.packed else None

    @property
    def gaussian_ids(self) -> Tensor | None:
        """Packed: [M] int64, the Gaussian that each is of, counted through all scenes."""
        return self._ids(self.packed.gaussians) if self.packed else None

    def _ids(self, array: Array) -> Tensor:
        return as_tensor(array, self.depths).view(torch.int32).long()


@opaque
def project(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    opacities: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    settings: Settings,
    *,
    covars: Tensor | None = None,
    extras: Tensor | None = None,
    lenses: Tensor | None = None,
    viewmats_rs: Tensor | None = None,
    packed: bool = False,
    sparse_grad: bool = False,
    device: Device | str | None = None,
) -> ProjectedSplats:
    """First stage: EWA projection (Zwicker et al. 2001), or by the unscented transform. Tensors as in `rasterization`.

    Differentiable in all tensors. Everything of a culled splat is zero.

    Args:
        covars: [..., N, 6] in the place of quats and scales: xx, xy, xz, yy, yz, zz.
        extras: [..., N, E] extra numbers of the falloff (`Settings.falloff`), on which it depends what is visible.
        lenses: [..., C, 12] distortion of cameras that have lenses: radial 6, tangential 2, thin prism 4; or the coefficients
            of a camera model of one's own.
        viewmats_rs: [..., C, 4, 4] with a rolling shutter (`Settings.shutter`), poses at the last row.
        packed: splats of those alone that are visible.
        sparse_grad: with `packed`: gradients of means, quats and scales are sparse (COO).

    Raises:
        SplatError: a tensor is not float32, or on another device than the others.
    """
    inputs = {"means": means, "quats": quats, "scales": scales, "opacities": opacities, "covars": covars}
    check_tensors(inputs | {"viewmats": viewmats, "Ks": Ks, "viewmats_rs": viewmats_rs})
    device = device_for(means, device)
    frame = _Frame(width, height, settings, device, packed, sparse_grad, extras)
    outputs = _Project.apply(means, quats, scales, opacities, viewmats, Ks, covars, lenses, viewmats_rs, frame)
    return ProjectedSplats(*outputs)


@dataclass(frozen=True)
class _Frame:
    """What is not differentiated of a projection."""

    width: int
    height: int
    settings: Settings
    device: Device
    packed: bool
    sparse_grad: bool
    extras: Tensor | None


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        means: Tensor,
        quats: Tensor | None,
        scales: Tensor | None,
        opacities: Tensor,
        viewmats: Tensor,
        Ks: Tensor,
        covars: Tensor | None,
        lenses: Tensor | None,
        viewmats_rs: Tensor | None,
        frame: _Frame,
    ) -> tuple[Any, ...]:
        device = frame.device
        gaussians = _gaussians(device, means, quats, scales, opacities, covars)
        if frame.extras is not None:
            gaussians = replace(gaussians, extras=device.memory.array(frame.extras.detach().contiguous()))
        cameras = _cameras(device, means, viewmats, Ks, lenses, viewmats_rs, frame.width, frame.height)
        if frame.packed:
            work = Projection(gaussians, cameras, Splats.empty(device, 0), frame.settings).pack(device)
        else:
            work = Projection(gaussians, cameras, Splats.empty(device, *viewmats.shape[:-2], means.shape[-2]), frame.settings)
        recorder = device.record()
        work.record(recorder)
        recorder.submit()
        splats = work.splats
        outputs = tuple(
            as_tensor(a, means) for a in (splats.means2d, splats.depths, splats.conics, splats.opacities, splats.radii)
        )
        keep(ctx, (work, frame), means, quats, scales, opacities, covars, viewmats, Ks, lenses, viewmats_rs, outputs[-1])
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(outputs[-1])
        return *outputs, splats.packed

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        work, frame = kept(ctx)
        viewmats = ctx.saved_tensors[6]
        v_means2d, v_depths, v_conics, v_opacities, *_ = gradients
        of_cameras = any(ctx.needs_input_grad[i] for i in (4, 5, 7, 8))
        v = _gradients(work, frame.device, v_means2d, v_depths, v_conics, v_opacities, viewmats.shape[:-2], of_cameras)
        v_gaussians: list[Tensor | None] = [v.means, v.quats, v.scales]
        if frame.sparse_grad:
            ids = as_tensor(work.splats.packed.gaussians, v.means).view(torch.int32).long().unique()
            v_gaussians = [None if dense is None else sparse_rows(dense, ids) for dense in v_gaussians]
        return *v_gaussians, v.opacities, v.viewmats, v.Ks, v.covars, v.lenses, v.viewmats_rs, None


class ProjectionGradients(NamedTuple):
    """Of the tensors that `project` was given; None of those that it was not."""

    means: Tensor
    quats: Tensor | None
    scales: Tensor | None
    opacities: Tensor
    covars: Tensor | None
    viewmats: Tensor | None
    Ks: Tensor | None
    lenses: Tensor | None
    viewmats_rs: Tensor | None


@opaque
def project_backward(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    opacities: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    settings: Settings,
    splats: ProjectedSplats,
    v_means2d: Tensor | None = None,
    v_depths: Tensor | None = None,
    v_conics: Tensor | None = None,
    v_opacities: Tensor | None = None,
    *,
    covars: Tensor | None = None,
    lenses: Tensor | None = None,
    viewmats_rs: Tensor | None = None,
    device: Device | str | None = None,
) -> ProjectionGradients:
    """The gradients of `project` without autograd: what it was given and returned, and the gradients of that."""
    device = device_for(means, device)
    cameras = _cameras(device, means, viewmats, Ks, lenses, viewmats_rs, width, height)
    work = Projection(_gaussians(device, means, quats, scales, opacities, covars), cameras, splats.arrays(device), settings)
    return _gradients(work, device, v_means2d, v_depths, v_conics, v_opacities, viewmats.shape[:-2], True)


def _gaussians(
    device: Device, means: Tensor, quats: Tensor | None, scales: Tensor | None, opacities: Tensor, covars: Tensor | None
) -> GaussianArrays:
    array, empty = device.memory.array, device.memory.empty
    m, q, s, o = (empty(0) if t is None else array(t.detach().contiguous()) for t in (means, quats, scales, opacities))
    return GaussianArrays(m, q, s, o, None if covars is None else array(covars.detach().contiguous()))


def _cameras(
    device: Device,
    means: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    lenses: Tensor | None,
    viewmats_rs: Tensor | None,
    width: int,
    height: int,
) -> Cameras:
    array = device.memory.array
    poses, intrinsics = (t.detach().flatten(0, -3) for t in (viewmats, Ks))
    if viewmats_rs is not None:
        poses = torch.stack([poses, viewmats_rs.detach().flatten(0, -3)], 1)
    coefficients = None if lenses is None else array(lenses.detach().reshape(-1, LENS).contiguous())
    scenes = math.prod(means.shape[:-2])
    return Cameras(array(poses.contiguous()), array(intrinsics.contiguous()), width, height, scenes, coefficients)


def _gradients(
    work: Projection,
    device: Device,
    v_means2d: Tensor | None,
    v_depths: Tensor | None,
    v_conics: Tensor | None,
    v_opacities: Tensor | None,
    lead: torch.Size,
    of_cameras: bool,
) -> ProjectionGradients:
    """Those of cameras [*lead, ...] only if asked for."""
    memory, count, covars = device.memory, work.splats.count, work.gaussians.covars is not None
    v_splats = SplatGradients(
        means2d=strided_view(memory, v_means2d, count, 2),
        conics=strided_view(memory, v_conics, count, 3),
        opacities=strided_view(memory, v_opacities, count, 1),
        depths=zeros_or(memory, v_depths, (count,)),
    )
    v = replace(work.gaussians, extras=None).map(lambda array: memory.empty(array.shape))
    v_cameras = memory.empty((work.cameras.count, row_length(work.cameras)))
    recorder = device.record()
    recorder.clear(v_cameras)
    work = replace(work, settings=replace(work.settings, camera_gradient=of_cameras))
    work.record_backward(recorder, v_splats, v, v_cameras)
    recorder.submit()
    like = next((g for g in (v_means2d, v_depths, v_conics, v_opacities) if g is not None), torch.empty(0))
    v_viewmats, v_Ks, v_lenses, v_last = None, None, None, None
    if of_cameras:
        rows = as_tensor(v_cameras, like)
        v_viewmats, v_Ks, v_lenses = (part.unflatten(0, lead) for part in camera_gradients(rows))
        if work.settings.shutter is not None:
            v_last = pose_gradients(rows[:, -POSE_ROW:]).unflatten(0, lead)
    return ProjectionGradients(
        as_tensor(v.means, like),
        None if covars else as_tensor(v.quats, like),
        None if covars else as_tensor(v.scales, like),
        as_tensor(v.opacities, like),
        None if v.covars is None else as_tensor(v.covars, like),
        v_viewmats,
        v_Ks,
        None if work.cameras.lenses is None else v_lenses,
        v_last,
    )
