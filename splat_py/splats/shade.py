"""Stage 2, spherical harmonics → colours (kernels/shade.slang): what it records, and its `autograd.Function`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import first_derivative, keep, kept, opaque
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.splats.camera_gradients import CAMERA_ROW, CameraGradients, camera_gradients
from splat_py.splats.data import Cameras, PackedIds, Settings, StridedView, id_buffers, id_constants
from splat_py.splats.tensors import as_tensor, check_tensors, strided_view


@dataclass(frozen=True)
class Shading:
    """Spherical harmonics of N Gaussians, C cameras that see them, and the colours they have there, zero where culled.

    Shapes are of dense splats; M takes the place of C, N where they are packed.
    """

    means: Array  # [N, 3]
    sh: Array  # [N, K, 3]
    cameras: Cameras
    radii: Array  # [C, N, 2] int32
    colors: Array  # [C, N, 3]
    degree: int
    settings: Settings
    packed: PackedIds | None = None
    # Or Σ Y_k sh_k as it is.
    as_color: bool = True

    def record(self, recorder: Recorder) -> None:
        """Write `colors`."""
        recorder.stage("shade")
        self._dispatch(recorder, "shadeForward", linear_groups(self._splats), {}, {"colors": self.colors})

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
        rows = CameraGradients(recorder, v_cameras, self._per_scene, settings)
        self._dispatch(
            recorder,
            "shadeBackward",
            (*linear_groups(self._per_scene)[:2], self.cameras.scenes),
            {"colorStride": v_colors.stride, "colorOffset": v_colors.offset},
            {"vColors": v_colors.array, "vMeans": v_means, "vSh": v_sh, **rows.buffers},
            CAMERA_GRADIENT=settings.camera_gradient,
            ADD_TO_MEANS=add_to_means,
            **(settings.accumulation_constants() if settings.camera_gradient else {}),
        )
        rows.record_sum(recorder)

    @property
    def _splats(self) -> int:
        return self.colors.size // 3

    @property
    def _per_scene(self) -> int:
        return self.means.size // 3 // self.cameras.scenes

    def _dispatch(
        self,
        recorder: Recorder,
        entry: str,
        groups: tuple[int, int, int],
        uniforms: dict[str, int],
        buffers: dict[str, Array | None],
        **constants: bool | str,
    ) -> None:
        cameras = self.cameras
        if not self.as_color:
            constants["AS_COLOR"] = False
        recorder.dispatch(
            "shade",
            entry,
            groups,
            {
                "splats": self._splats,
                "gaussians": self._per_scene,
                "cameras": cameras.count // cameras.scenes,
                "stored": self.sh.shape[-2],
                **uniforms,
            },
            {
                "means": self.means,
                "sh": self.sh,
                "viewmats": cameras.viewmats,
                "Ks": cameras.Ks,
                "radii": self.radii,
                **id_buffers(self.packed),
                **buffers,
            },
            COEFFICIENTS=(self.degree + 1) ** 2,
            **id_constants(self.packed),
            **constants,
        )


@opaque
def shade(
    means: Tensor,
    sh: Tensor,
    viewmats: Tensor,
    radii: Tensor,
    degree: int,
    settings: Settings | None = None,
    *,
    packed: PackedIds | None = None,
    as_color: bool = True,
    device: Device | None = None,
) -> Tensor:
    """Colours [..., C, N, 3] that C cameras see: max(0, Σ Y_k(d) sh_k + ½), d from the camera's centre to the mean.

    Args:
        means: [..., N, 3].
        sh: [..., N, K, 3] or, for each camera, [..., C, N, K, 3]; K ≥ (degree + 1)².
        viewmats: [..., C, 4, 4].
        radii: [..., C, N, 2] from `project`: culled splats stay black.
        degree: 0 to 4.
        settings: how gradients of cameras add up, as `project` is told.
        packed: from `project` too: `radii` and the result are [M, ·].
        as_color: or the sum as it is.

    Differentiable in means, sh and viewmats.

    Raises:
        SplatError: one of these is not float32, or on another device than the others.
    """
    check_tensors({"means": means, "sh": sh, "viewmats": viewmats})
    device = device or device_for(means)
    settings = settings or Settings(device.tuning.tile_size, native_atomics=device.native_float_atomics)
    frame = _Frame(degree, settings, device, packed, as_color)
    if sh.dim() == means.dim() + 1:
        return cast(Tensor, _Shade.apply(means, sh, viewmats, radii, frame))
    # Each camera has Gaussians of its own: it is a scene.
    gaussians, cameras = means.shape[-2], viewmats.shape[-3]
    if packed is not None:
        images, ids = (as_tensor(a, means).view(torch.int32) for a in (packed.images, packed.gaussians))
        own = device.memory.array((images * gaussians + ids % gaussians).view(torch.uint32))
        frame = replace(frame, packed=replace(packed, gaussians=own))
    means = means[..., None, :, :].expand(*sh.shape[:-2], 3)
    radii = radii if packed else radii[..., None, :, :]
    colors = cast(Tensor, _Shade.apply(means, sh, viewmats[..., None, :, :], radii, frame))
    return colors if packed else colors.reshape(*viewmats.shape[:-3], cameras, gaussians, 3)


@dataclass(frozen=True)
class _Frame:
    """What is not differentiated of a shading."""

    degree: int
    settings: Settings
    device: Device
    packed: PackedIds | None
    as_color: bool


class _Shade(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, means: Tensor, sh: Tensor, viewmats: Tensor, radii: Tensor, frame: _Frame) -> Tensor:
        work = _shading(means, sh, viewmats, radii, frame)
        recorder = frame.device.record()
        work.record(recorder)
        recorder.submit()
        keep(ctx, (work, frame.device), means, sh, viewmats, radii)
        return as_tensor(work.colors, means)

    @staticmethod
    @first_derivative
    def backward(ctx: Any, v_colors: Tensor) -> tuple[Tensor | None, ...]:
        work, device = kept(ctx)
        lead = ctx.saved_tensors[3].shape[:-2]
        return *_gradients(work, device, v_colors, lead, of_cameras=ctx.needs_input_grad[2]), None, None


class ShadingGradients(NamedTuple):
    """Of the tensors that `shade` was given."""

    means: Tensor
    sh: Tensor
    viewmats: Tensor | None


@opaque
def shade_backward(
    means: Tensor,
    sh: Tensor,
    viewmats: Tensor,
    radii: Tensor,
    degree: int,
    v_colors: Tensor,
    settings: Settings | None = None,
    *,
    packed: PackedIds | None = None,
    as_color: bool = True,
    device: Device | None = None,
) -> ShadingGradients:
    """The gradients of `shade` without autograd: what it was given, `sh` [..., N, K, 3], and the gradient of its colours."""
    device = device or device_for(means)
    settings = settings or Settings(device.tuning.tile_size, native_atomics=device.native_float_atomics)
    work = _shading(means, sh, viewmats, radii, _Frame(degree, settings, device, packed, as_color))
    return _gradients(work, device, v_colors, viewmats.shape[:-2], of_cameras=True)


def _shading(means: Tensor, sh: Tensor, viewmats: Tensor, radii: Tensor, frame: _Frame) -> Shading:
    array, empty = frame.device.memory.array, frame.device.memory.empty
    m, coefficients, poses, visible = (array(t.detach().contiguous()) for t in (means, sh, viewmats.flatten(0, -3), radii))
    # Only the cameras' centres matter: intrinsics and image size are never read.
    cameras = Cameras(poses, empty((poses.shape[0], 3, 3)), 0, 0, math.prod(means.shape[:-2]))
    colors = empty((*radii.shape[:-1], 3))
    return Shading(m, coefficients, cameras, visible, colors, frame.degree, frame.settings, frame.packed, frame.as_color)


def _gradients(work: Shading, device: Device, v_colors: Tensor, lead: torch.Size, of_cameras: bool) -> ShadingGradients:
    """Those of cameras [*lead, 4, 4] only if asked for."""
    work = replace(work, settings=replace(work.settings, camera_gradient=of_cameras))
    empty = device.memory.empty
    v_means, v_sh = empty(work.means.shape), empty(work.sh.shape)
    v_cameras = empty((work.cameras.count, CAMERA_ROW))
    recorder = device.record()
    recorder.clear(v_cameras)
    view = strided_view(device.memory, v_colors, v_colors.numel() // 3, 3)
    work.record_backward(recorder, view, v_means, v_sh, v_cameras)
    recorder.submit()
    v_viewmats = camera_gradients(as_tensor(v_cameras, v_colors))[0].unflatten(0, lead) if of_cameras else None
    return ShadingGradients(as_tensor(v_means, v_colors), as_tensor(v_sh, v_colors), v_viewmats)
