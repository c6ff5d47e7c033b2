"""Rendering in several processes of torch.distributed. Each has some of the Gaussians and some of the cameras: it projects its
Gaussians for all cameras, and sends each visible splat to the process that renders the camera (Zhao et al. 2024, *On Scaling Up
3D Gaussian Splatting Training*)."""

from dataclasses import dataclass
from typing import Any, Self, cast

import torch
import torch.distributed as dist
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.autograd import Stage
from splat_py.gpu.device import Device
from splat_py.render.splats import ProjectedSplats, SplatIds


@dataclass(frozen=True)
class Processes:
    """The processes that render together. All call the same methods, in the same order."""

    gaussians: list[int]  # of each process
    cameras: int  # of each process

    @classmethod
    def meet(cls, means: Tensor, viewmats: Tensor, width: int, height: int) -> Self:
        """Exchange sizes. SplatError if there is no process group, or cameras differ in number or size."""
        if not (dist.is_available() and dist.is_initialized()):
            raise SplatError("distributed=True needs a process group; call torch.distributed.init_process_group first")
        own = torch.tensor([len(means), len(viewmats), width, height], device=means.device)
        gaussians, *shared = _swap(own.repeat(dist.get_world_size(), 1)).T.tolist()
        for name, values in zip(("cameras", "width", "height"), shared, strict=True):
            _require_equal(name, values)
        return cls(gaussians, len(viewmats))

    def all_cameras(self, rows: Tensor) -> Tensor:
        """Concatenate the rows [C, ...] of all processes' cameras."""
        counts = (self.cameras,) * len(self.gaussians)
        return _exchange(rows.repeat(len(counts), *(1,) * (rows.dim() - 1)), counts, counts)

    def to_cameras(self, splats: ProjectedSplats, features: Tensor, device: Device) -> tuple[ProjectedSplats, Tensor]:
        """Return the splats of this process's cameras, packed, and their features [M, D], from splats of all cameras. Gaussians
        are counted through all processes."""
        radii, offset = splats.radii, sum(self.gaussians[: dist.get_rank()])
        at: Any = slice(None)
        cameras, gaussians = splats.image_ids, splats.gaussian_ids
        if cameras is None or gaussians is None:
            at = cameras, gaussians = (radii > 0).all(-1).nonzero(as_tuple=True)
        columns = [splats.means2d, splats.depths[..., None], splats.conics, splats.opacities[..., None], features]
        columns += [] if splats.extras is None else [splats.extras]
        numbers = torch.cat([column[at] for column in columns], -1)
        ids = torch.cat([radii[at].long(), (cameras % self.cameras)[:, None], (gaussians + offset)[:, None]], -1)

        sent = torch.bincount(cameras // self.cameras, minlength=len(self.gaussians))
        received, channels = _swap(torch.stack([sent, torch.full_like(sent, features.shape[-1])], 1)).T.tolist()
        _require_equal("channels", channels)
        numbers, ids = (_exchange(rows, sent.tolist(), received) for rows in (numbers, ids))
        # Camera by camera, Gaussians ascending, as all packed splats.
        order = ids[:, 2].argsort(stable=True)
        numbers, ids = numbers[order], ids[order].to(torch.int32)
        first = torch.searchsorted(ids[:, 2].contiguous(), torch.arange(self.cameras + 1, dtype=torch.int32, device=ids.device))
        numbered = ids[:, 2], ids[:, 3], first.to(torch.int32)
        packed = SplatIds(*(device.memory.array(column.contiguous()).as_uint32 for column in numbered))
        means2d, depths, conics, opacities, features, *extras = numbers.split([column.shape[-1] for column in columns], -1)
        rows = means2d, depths[:, 0], conics, opacities[:, 0], ids[:, :2].contiguous()
        return ProjectedSplats(*rows, packed, *extras), features


def _require_equal(name: str, values: list[int]) -> None:
    if len(set(values)) > 1:
        raise SplatError(f"processes differ in {name}: {', '.join(map(str, values))}; distributed=True needs the same in all")


def _swap(rows: Tensor) -> Tensor:
    """Send row i to process i, and receive one row of each."""
    found = torch.empty_like(rows)
    dist.all_to_all_single(found, rows)
    return found


def _exchange(rows: Tensor, sent: Any, received: Any) -> Tensor:
    """Send `sent[i]` of the rows to process i, in order, and receive `received[i]` of its rows. Differentiable."""
    return cast(Tensor, _Exchange.apply(rows, sent, received))


class _Exchange(Stage):
    @staticmethod
    def forward(rows: Tensor, sent: Any, received: Any) -> Tensor:
        found = rows.new_empty((sum(received), *rows.shape[1:]))
        dist.all_to_all_single(found, rows.contiguous(), list(received), list(sent))
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.sent, ctx.received = inputs

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: Any) -> Tensor:
        return _exchange(tangent, ctx.sent, ctx.received)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _exchange(gradient, ctx.received, ctx.sent), None, None
