"""Stage 1, Gaussians → splats (kernels/project*.slang), and its `autograd.Function`."""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import (
    Stage,
    Tangents,
    first_derivative,
    forward_graph_break,
    graph_break,
    has_derivative,
    load_state,
    save_state,
)
from splat_py.gpu.device import Device, device_for
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sorting import PrefixSum
from splat_py.gpu.tensors import as_tensor, check_shape, check_tensors, side_by_side, sparse_rows
from splat_py.render.cameras import LENS, POSE_ROW, Cameras, SharedRows, camera_gradients, pose_gradients
from splat_py.render.options import Options
from splat_py.render.splats import GaussianArrays, ProjectedSplats, SplatIds, Splats, StridedRows, all_visible

# More packed splats are counted each time, which costs little then.
_MOST_EXPECTED = 1 << 16


@dataclass(frozen=True)
class Projection:
    """N Gaussians, C cameras that see them, and the splats that they become."""

    gaussians: GaussianArrays
    cameras: Cameras
    splats: Splats
    options: Options

    def record(self, recorder: Recorder) -> None:
        """Write `splats`."""
        recorder.stage("project")
        # Packed splats are no longer to be marked.
        flags = recorder.scratch((0,), np.uint32) if self.splats.ids.packed else None
        self._dispatch(recorder, "projectForward", linear_groups(self.splats.count), pairs=0, is_visible=flags)
        if self.splats.rays is not None:
            self._dispatch(recorder, "findRays", self._pixel_groups, rays=self.splats.rays)

    def record_tangents(self, recorder: Recorder, tangents: "Projection") -> None:
        """Write the tangents of `splats` to `tangents.splats`, from those of Gaussians and cameras; after `record`."""
        recorder.stage("project tangents")
        of_splats = "projectAlongRaysTangents" if self.options.along_rays else "projectTangents"
        stages = [(of_splats, linear_groups(self.splats.count))]
        if tangents.splats.rays is not None:
            stages.append(("findRayTangents", self._pixel_groups))
        for entry, groups in stages:
            recorder.dispatch(
                "project_tangents",
                entry,
                groups,
                gaussians=self.gaussians,
                cameras=self.cameras,
                ids=self.splats.ids,
                options=self.options,
                radii=self.splats.radii,
                count=self.splats.count,
                d_gaussians=tangents.gaussians,
                d_cameras=tangents.cameras,
                d_splats=tangents.splats,
                d_rays=tangents.splats.rays,
                D_GAUSSIANS=tangents.gaussians.count > 0,
                **self._way,
            )

    def record_backward(
        self,
        recorder: Recorder,
        v_splats: StridedRows,
        v_depths: StridedRows,
        v_gaussians: GaussianArrays,
        v_cameras: Array | None,
        v_rays: Array | None = None,
    ) -> None:
        """Turn gradients of splats and rays into those of Gaussians, overwritten, and with `Options.camera_gradient` those of
        cameras [C, `row_length`], added to. A row of `v_splats` holds mean2d 2, shape, opacity 1; along rays also normal 3."""
        recorder.stage("project backward")
        per_scene = self.gaussians.per_scene
        shared = None if v_cameras is None else SharedRows.over(recorder, v_cameras, per_scene, self.options)
        self._dispatch(
            recorder,
            "projectBackward",
            (*linear_groups(per_scene)[:2], self.cameras.scenes),
            v_splats=v_splats,
            v_depths=v_depths,
            v_gaussians=v_gaussians,
            v_cameras=shared,
        )
        if shared is None:
            return
        shared.record_sum(recorder)
        if v_rays is not None:
            shared = SharedRows.over(recorder, shared.sums, self.cameras.width * self.cameras.height, self.options)
            self._dispatch(recorder, "differentiateRays", self._pixel_groups, rays=v_rays, v_cameras=shared)
            shared.record_sum(recorder)

    def record_visible(self, recorder: Recorder, visible: PrefixSum) -> None:
        """Count the visible splats of all cameras and Gaussians; `splats` are packed, and may be none yet."""
        recorder.stage("project")
        flags = recorder.scratch((visible.count,), np.uint32)
        self._dispatch(recorder, "projectForward", linear_groups(visible.count), pairs=visible.count, is_visible=flags)
        visible.record(recorder, flags)

    def record_packing(self, recorder: Recorder, visible: PrefixSum) -> None:
        """Write the splats' ids, after `record_visible`."""
        recorder.dispatch(
            "pack",
            "packVisible",
            linear_groups(visible.count),
            pairs=visible.count,
            gaussians_per_scene=self.gaussians.per_scene,
            images_per_scene=self.cameras.per_scene,
            visible_before=visible.offsets,
            packed=self.splats.ids,
        )

    def pack(self, device: Device, expect: bool) -> Self:
        """Return the same projection with packed splats: those of all cameras and Gaussians if recent ones were all visible and
        `expect` allows it, else after reading their number back from the device."""
        cameras, gaussians = self.cameras.count, self.gaussians.per_scene
        sizes = cameras, cameras * gaussians
        if expect and all_visible.get(sizes):
            ids = SplatIds.of_all(device, cameras, gaussians, self.cameras.scenes)
            return replace(self, splats=Splats.empty(device, sizes[1], options=self.options, ids=ids))
        visible = PrefixSum(device, sizes[1])
        none = SplatIds(*[device.memory.empty(0, np.uint32)] * 3)
        with device.recording() as recorder:
            replace(self, splats=replace(self.splats, ids=none)).record_visible(recorder, visible)
        count = int(visible.total.numpy()[0])
        all_visible[sizes] = 0 < count == visible.count <= _MOST_EXPECTED
        ids = SplatIds.empty(device, count, cameras)
        work = replace(self, splats=Splats.empty(device, count, options=self.options, ids=ids))
        with device.recording() as recorder:
            work.record_packing(recorder, visible)
        return work

    @property
    def _way(self) -> dict[str, str]:
        """The `ProjectionWay` of slang/kernels/projection.slang, unless it is the default, `ByJacobian`."""
        if self.options.with_ut:
            way = "BySigmaPoints"
        else:
            way = f"{'Rolling' * self.cameras.rolling}By{'Covariance' if self.gaussians.has_covars else 'Jacobian'}"
        return {} if way == "ByJacobian" else {"ProjectionWay": way}

    @property
    def _pixel_groups(self) -> tuple[int, int, int]:
        return *linear_groups(self.cameras.width * self.cameras.height)[:2], self.cameras.count

    def _dispatch(self, recorder: Recorder, entry: str, groups: tuple[int, int, int], **arguments: Any) -> None:
        recorder.dispatch(
            "project_along_rays" if self.options.along_rays else "project",
            entry,
            groups,
            gaussians=self.gaussians,
            cameras=self.cameras,
            splats=self.splats,
            ids=self.splats.ids,
            options=self.options,
            **self._way,
            **arguments,
        )


class Placed(NamedTuple):
    """The tensors of `project`, or their gradients; None for a tensor that is not given or needs no gradient."""

    means: Tensor  # [..., N, 3]
    quats: Tensor | None  # [..., N, 4]
    scales: Tensor | None  # [..., N, 3]
    opacities: Tensor  # [..., N]
    viewmats: Any  # [..., C, 4, 4]
    Ks: Any  # [..., C, 3, 3]
    covars: Tensor | None = None  # [..., N, 6] without quats and scales: xx, xy, xz, yy, yz, zz
    # [..., C, 12] radial 6, tangential 2, thin prism 4; or the coefficients of the caller's own camera model
    lenses: Tensor | None = None
    viewmats_rs: Tensor | None = None  # [..., C, 4, 4] at the last row, with a rolling shutter (`Options.shutter`)


@forward_graph_break
def project(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    opacities: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    options: Options,
    *,
    extras: Tensor | None = None,
    expect: bool = False,
    device: Device | str | None = None,
    **others: Tensor | None,
) -> ProjectedSplats:
    """First stage: project Gaussians by EWA splatting (Zwicker et al. 2001) or the unscented transform, or for the pixels' rays
    prepare surfels (Huang et al. 2024) or Gaussians (Wu et al. 2025). All values of a culled splat are zero.

    Differentiable in all tensors but `extras`. The tensors are those of `rasterization`.

    Args:
        options: with `packed`, only visible splats are returned; with `sparse_grad`, gradients of means, quats and scales are
            sparse (COO).
        extras: [..., N, E] parameters of the falloff, which also decide visibility.
        expect: with `packed`, return all splats if recent ones of as many cameras and Gaussians were all visible, instead of
            waiting for their number. Some may be culled then (`ProjectedSplats.complete`).
        others: covars, lenses and viewmats_rs, as in `Placed`.

    Raises:
        SplatError: a tensor has the wrong shape, is not float32, or is on another device than the others.
    """
    placed = Placed(means, quats, scales, opacities, viewmats, Ks, **others)
    check_tensors(placed._asdict())
    of_gaussian = tuple(means.shape[:-1]) or ("N",)
    of_camera = *of_gaussian[:-1], viewmats.shape[-3] if viewmats.dim() > 2 else "C"
    for (name, tensor), sides in zip(placed._asdict().items(), _SIDES, strict=True):
        if tensor is not None:
            check_shape(name, tensor, (*(of_camera if name in _OF_CAMERAS else of_gaussian), *sides))
    options = replace(options, camera_gradient=any(has_derivative(getattr(placed, name)) for name in _OF_CAMERAS))
    # Rays leave a camera that does not move during its exposure in the same directions, wherever it is.
    moves = _OF_LENSES if placed.viewmats_rs is None else _OF_CAMERAS
    of_rays = any(has_derivative(getattr(placed, name)) for name in moves)
    *splats, _ = _Project.apply(*placed, extras, (width, height), options, device_for(means, device), expect, of_rays)
    return ProjectedSplats(*splats)


_OF_CAMERAS = "viewmats", "Ks", "lenses", "viewmats_rs"
_OF_LENSES = "Ks", "lenses"
# A Gaussian's or a camera's sides of each tensor of `Placed`.
_SIDES: tuple[tuple[int, ...], ...] = (3,), (4,), (3,), (), (4, 4), (3, 3), (6,), (LENS,), (4, 4)


class _Project(Stage):
    @staticmethod
    def forward(*arguments: Any) -> tuple[Any, ...]:
        *tensors, extras, size, options, device, expect, _ = arguments
        placed = Placed(*tensors)
        shape = (0,) if options.packed else (*placed.viewmats.shape[:-2], placed.means.shape[-2])
        work = _projection(placed, extras, size, Splats.empty(device, *shape, options=options), options, device)
        if options.packed:
            work = work.pack(device, expect)
        if options.with_rays and not options.own_rays:
            pixels = work.cameras.count, work.cameras.height, work.cameras.width, 6
            device.memory.limits.check_images(*pixels)
            work = replace(work, splats=replace(work.splats, rays=device.memory.empty(pixels)))
        with device.recording() as recorder:
            work.record(recorder)
        *outputs, normals, rays = _differentiable(work.splats, placed.means)
        return *outputs, as_tensor(work.splats.radii, placed.means), work.splats.ids, None, normals, rays, (work, device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        radii, rays, state = output[4], *output[-2:]
        save_state(ctx, state, *inputs[:9], radii)
        ctx.set_materialize_grads(False)
        ctx.of_rays = inputs[-1]
        ctx.mark_non_differentiable(radii, *(() if rays is None or ctx.of_rays else (rays,)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:
        work, device = load_state(ctx)
        _, *placed, radii = ctx.saved_tensors

        def push(directions: tuple[int, ...], given: list[Any]) -> tuple[Tensor, ...]:
            splats = Splats.empty(device, *directions, *radii.shape[:-1], options=work.options)
            if work.splats.rays is not None and ctx.of_rays:
                splats = replace(splats, rays=device.memory.empty((*directions, *work.splats.rays.shape)))
            size = work.cameras.width, work.cameras.height
            along = _projection(Placed(*given), None, size, splats, work.options, device)
            with device.recording() as recorder:
                work.record_tangents(recorder, along)
            return _differentiable(splats, given[4])

        *of_splats, normals, rays = Tangents.of(push, placed, tangents, optional=(0, 1, 2, 3, 6))
        return *of_splats, None, None, None, normals, rays, None

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        work, device = load_state(ctx)
        # means2d, depths, conics, opacities, normals and rays
        of_splats = *gradients[:4], *gradients[-3:-1]
        v = _gradients(work, device, of_splats, ctx.saved_tensors[5].shape[:-2])
        if work.options.sparse_grad:
            device.flush()
            ids = as_tensor(work.splats.ids.gaussians, v.means).view(torch.int32).long().unique()
            sparse: list[Any] = [None if dense is None else sparse_rows(dense, ids) for dense in v[:3]]
            v = v._replace(means=sparse[0], quats=sparse[1], scales=sparse[2])
        return *v, None, None, None, None, None, None


@graph_break
def project_backward(
    means: Tensor,
    quats: Tensor | None,
    scales: Tensor | None,
    opacities: Tensor,
    viewmats: Tensor,
    Ks: Tensor,
    width: int,
    height: int,
    options: Options,
    splats: ProjectedSplats,
    v_means2d: Tensor | None = None,
    v_depths: Tensor | None = None,
    v_conics: Tensor | None = None,
    v_opacities: Tensor | None = None,
    v_rays: Tensor | None = None,
    *,
    device: Device | str | None = None,
    **others: Tensor | None,
) -> Placed:
    """Return the gradients of `project` without autograd, from its arguments, its result and the result's gradients."""
    device = device_for(means, device)
    placed = Placed(means, quats, scales, opacities, viewmats, Ks, **others)
    of_cameras = replace(options, camera_gradient=True)
    work = _projection(placed, None, (width, height), splats.arrays(device), of_cameras, device)
    of_splats = v_means2d, v_depths, v_conics, v_opacities, None, v_rays
    return _gradients(work, device, of_splats, viewmats.shape[:-2])


def _differentiable(splats: Splats, like: Tensor) -> tuple[Any, ...]:
    """The arrays of splats that have derivatives, as tensors."""
    arrays = splats.means2d, splats.depths, splats.conics, splats.opacities, splats.normals, splats.rays
    return tuple(None if array is None else as_tensor(array, like) for array in arrays)


def _projection(
    placed: Placed, extras: Tensor | None, size: tuple[int, int], splats: Splats, options: Options, device: Device
) -> Projection:
    memory = device.memory

    def array(tensor: Tensor | None) -> Array | None:
        return None if tensor is None else memory.array(tensor)

    cameras = Cameras.of(memory, placed.viewmats, placed.Ks, *size, placed.lenses, placed.viewmats_rs, options.shutter)
    means, quats, scales, opacities = (array(tensor) or memory.empty(0) for tensor in placed[:4])
    gaussians = GaussianArrays(means, quats, scales, opacities, array(placed.covars), array(extras), cameras.scenes)
    return Projection(gaussians, cameras, splats, options)


def _gradients(work: Projection, device: Device, of_splats: tuple[Tensor | None, ...], lead: torch.Size) -> Placed:
    """Return gradients of Gaussians, and with `Options.camera_gradient` those of cameras [*lead, ...], from those of means2d,
    depths, conics, opacities, normals and rays."""
    v_means2d, v_depths, v_conics, v_opacities, v_normals, v_rays = of_splats
    memory, count, cameras, options = device.memory, work.splats.count, work.cameras, work.options
    columns = [(v_means2d, 2), (v_conics, options.shape_floats), (v_opacities, 1)]
    if options.along_rays:
        columns.append((v_normals, 3))
    v_splats = StridedRows(*side_by_side(memory, count, *columns))
    of_depths = None if v_depths is None else StridedRows(*side_by_side(memory, count, (v_depths, 1)))
    of_pixels = None if v_rays is None else memory.array(v_rays)
    v_gaussians = work.gaussians.map(lambda array: memory.empty(array.shape))
    with device.recording() as recorder:
        of_depths = of_depths or StridedRows(recorder.zeros((count,)), 1)
        v_cameras = recorder.zeros((cameras.count, cameras.row_length)) if options.camera_gradient else None
        work.record_backward(recorder, v_splats, of_depths, v_gaussians, v_cameras, of_pixels)

    like = next((gradient for gradient in of_splats if gradient is not None), torch.empty(0))
    v = v_gaussians
    found = Placed(as_tensor(v.means, like), None, None, as_tensor(v.opacities, like), None, None)
    if v.covars is None:
        found = found._replace(quats=as_tensor(v.quats, like), scales=as_tensor(v.scales, like))
    else:
        found = found._replace(covars=as_tensor(v.covars, like))
    if v_cameras is None:
        return found
    device.flush()
    rows = as_tensor(v_cameras, like)
    v_viewmats, v_Ks, v_lenses = (part.unflatten(0, lead) for part in camera_gradients(rows))
    v_last = pose_gradients(rows[:, -POSE_ROW:]).unflatten(0, lead) if cameras.rolling else None
    return found._replace(viewmats=v_viewmats, Ks=v_Ks, lenses=v_lenses if cameras.with_lens else None, viewmats_rs=v_last)
