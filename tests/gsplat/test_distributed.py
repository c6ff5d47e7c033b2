"""Processes that each have some of the Gaussians and cameras render what one process renders (`distributed=True`)."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad

from splat_py.gsplat import RollingShutterType, distributed, rasterization
from tests.refusals import refused

PROCESSES, SIZE = 3, (33, 20)
# The processes' first Gaussians, and the last one's end.
FIRST = 0, 150, 150, 240
# Gradients are summed in a fixed order.
OPTIONS: dict[str, Any] = {"sh_degree": 1, "splat": "GeneralizedExponential", "accumulate": "pair"}
WEIGHTS = torch.rand(2 * PROCESSES, *SIZE[::-1], 6, generator=torch.Generator().manual_seed(1))
NAMES = ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks")


def scene() -> dict[str, Tensor]:
    """Gaussians before two cameras a process; those of the last process look away from them."""
    random = torch.Generator().manual_seed(3)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random)

    count, cameras = FIRST[-1], 2 * PROCESSES
    viewmats = torch.eye(4).repeat(cameras, 1, 1)
    viewmats[:, :3, 3] = rand(cameras, 3) / 2
    viewmats[-2:, 2, 3] = -20.0
    return {
        "means": 2 * rand(count, 3) + torch.tensor([-1.3, -1.3, 3.0]),
        "quats": torch.randn(count, 4, generator=random),
        "scales": rand(count, 3) / 5 + 0.02,
        "opacities": rand(count),
        "colors": rand(count, 4, 3) - 0.5,
        "viewmats": viewmats,
        "Ks": torch.tensor([[30.0, 0, 16], [0, 30, 10], [0, 0, 1]]).repeat(cameras, 1, 1),
        "backgrounds": rand(cameras, 3),
        "extra_signals": rand(count, 2),
        "beta": 1 + rand(count),
    }


def drawn(tensors: dict[str, Tensor], **options: Any) -> tuple[Tensor, Any]:
    """Images with extra signals, and `meta`."""
    given = tensors | {"splat_params": {"beta": tensors["beta"]}}
    del given["beta"]
    images, _, meta = rasterization(*(given.pop(name) for name in NAMES), *SIZE, **given, **options)
    return torch.cat([images, meta["render_extra_signals"]], -1), meta


def results(tensors: dict[str, Tensor], weights: Tensor, **options: Any) -> dict[str, Tensor]:
    """Images, medians, the images' tangents, and the gradients of a weighted sum of the images by name; `means2d` by camera."""
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors.items()}
    images, meta = drawn(leaves, **options, return_medians=True)
    sources, loss = leaves | {"means2d": meta["means2d"]}, (images * weights[..., : images.shape[-1]]).sum()
    found = dict(zip(sources, torch.autograd.grad(loss, list(sources.values())), strict=True))
    if meta["camera_ids"] is not None:
        dense = torch.zeros(2 * PROCESSES, len(leaves["means"]), 2)
        dense[meta["camera_ids"], meta["gaussian_ids"]] = found["means2d"]
        found["means2d"] = dense
    found |= {"images": images.detach(), "median_ids": meta["median_ids"]}
    if options["packed"]:
        with forward_ad.dual_level():
            images, _ = drawn({name: forward_ad.make_dual(t, torch.ones_like(t)) for name, t in tensors.items()}, **options)
            found["tangents"] = forward_ad.unpack_dual(images).tangent
    return found


def compare(local_rank: int, rank: int, size: int, expected: list[tuple[dict[str, Any], dict[str, Tensor]]]) -> None:
    """Compare this process's part of the scene with what one process found."""
    assert (local_rank, size) == (rank, PROCESSES)
    cameras, gaussians = slice(2 * rank, 2 * rank + 2), slice(FIRST[rank], FIRST[rank + 1])
    own = {name: tensor[cameras if len(tensor) == 2 * PROCESSES else gaussians] for name, tensor in scene().items()}
    for options, of_all in expected:
        for name, found in results(own, WEIGHTS[cameras], **options, distributed=True).items():
            wanted = of_all[name]
            scale = float(wanted.abs().max())
            if name == "means2d":
                wanted = wanted[:, gaussians]
            else:
                wanted = wanted[cameras if len(wanted) == 2 * PROCESSES else gaussians]
            if name in ("viewmats", "Ks"):
                # Sums over processes.
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6 * scale)
            else:
                assert torch.equal(found, wanted), name
            assert name != "median_ids" or bool((found < 0).all()) == (rank == 2)

    options = OPTIONS | {"distributed": True}
    few = own | {name: own[name][:1] for name in ("viewmats", "Ks", "backgrounds") if rank == 0}
    refused("processes differ in cameras: 1, 2, 2; distributed=True needs the same in all", drawn, few, **options)
    more = own | {"extra_signals": own["extra_signals"].repeat(1, 2)} if rank == 2 else own
    refused("processes differ in channels: 5, 5, 7;", drawn, more, **options)


def test_processes_render_what_one_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, but for gradients of cameras. One process has no Gaussians, and the cameras of one see none."""
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: PROCESSES)
    modes = [OPTIONS | {"packed": True, "render_mode": "RGB"}, OPTIONS | {"packed": False, "render_mode": "RGB+ED"}]
    expected = [(options, results(scene(), WEIGHTS, **options)) for options in modes]
    assert distributed.cli(compare, expected) is True


def test_mpirun_starts_a_process_of_its_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(dist, "init_process_group", lambda *args, **named: calls.append((args, named)))
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroyed"))
    for name, value in {"SIZE": 4, "RANK": 3, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    distributed.cli(lambda *given: calls.append(given), "given")
    group = (("gloo",), {"init_method": "env://", "rank": 3, "world_size": 4})
    assert calls == [group, (1, 3, 4, "given"), "destroyed"]


def test_one_process_needs_a_group() -> None:
    refused("distributed=True needs a process group", drawn, scene(), **OPTIONS, distributed=True)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"with_ut": True}, "with_ut=True"),
        ({"rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM}, "a rolling shutter"),
        ({"with_eval3d": True}, "with_eval3d=True"),
        ({"splat": "Surfel"}, "a splat along rays"),
        ({"camera_model": "ortho"}, "camera_model"),
        ({"absgrad": True}, "absgrad=True"),
        ({"global_z_order": False}, "global_z_order=False"),
        ({"radial_coeffs": torch.zeros(6, 4)}, "camera distortion"),
        ({"colors": torch.zeros(6, 240, 4, 3)}, "only per-Gaussian colors"),
    ],
)
def test_arguments_that_several_processes_do_not_support(given: dict[str, Any], reason: str) -> None:
    tensors = scene()
    del tensors["beta"], tensors["extra_signals"]
    with pytest.raises(NotImplementedError, match=f"{reason}.* leave one of them out"):
        rasterization(**tensors | given, width=SIZE[0], height=SIZE[1], sh_degree=1, distributed=True)  # type: ignore[arg-type]
