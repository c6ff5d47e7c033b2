"""Small functions that gsplat's scripts import: scene files, rotations, depth maps, projections, a test scene, a launcher of
processes, and timers.

Scales are logarithms, opacities are logits, and quaternions are w x y z of any length.
"""

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ContextDecorator
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
import torch.distributed
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_path, regular, temporary_folder
from splat_py.gpu.tensors import check_shape
from splat_py.render.surfels import depth_to_normal, depth_to_points  # noqa: F401
from splat_py.scene.formats.packing import StoredGaussians
from splat_py.scene.gaussians import SH_C0, Gaussians, write_scene

Format = Literal["ply", "splat", "ply_compressed"]
_NAMES = {"ply": "scene.ply", "splat": "scene.splat", "ply_compressed": "scene.compressed.ply"}
# Compressed files leave out Gaussians with at most this opacity, which are invisible.
_FAINTEST = 1 / 255


def export_splats(
    means: Tensor,
    scales: Tensor,
    quats: Tensor,
    opacities: Tensor,
    sh0: Tensor,
    shN: Tensor,
    format: Format = "ply",
    save_to: str | os.PathLike[str] | None = None,
) -> bytes:
    """Return the bytes of a scene file, without Gaussians that hold NaN or infinity. SplatError if a shape or the format is
    wrong, or the file cannot be written.

    Args:
        means: [N, 3].
        scales: [N, 3], logarithms.
        quats: [N, 4].
        opacities: [N], logits.
        sh0: [N, 1, 3].
        shN: [N, K, 3].
        format: "ply"; "splat", which has no higher spherical harmonics; or "ply_compressed", without Gaussians of opacity up
            to 1/255.
        save_to: also write the bytes to this file, atomically.
    """
    if format not in get_args(Format):
        raise SplatError(f"format is {format!r}; use {', '.join(get_args(Format))}")
    given = {"means": means, "scales": scales, "quats": quats, "opacities": opacities, "sh0": sh0, "shN": shN}
    rows: dict[str, tuple[int | str, ...]] = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "sh0": (1, 3)}
    for name, tensor in given.items():
        check_shape(name, tensor, (len(means), *rows.get(name, ("K", 3))))
    keep = torch.stack([tensor.detach()[:, None].flatten(1).isfinite().all(1) for tensor in given.values()]).all(0)
    if format == "ply_compressed":
        keep &= opacities.detach().sigmoid() > _FAINTEST
    kept = {name: tensor.detach()[keep].float().cpu().numpy() for name, tensor in given.items()}
    sh = np.concatenate([kept["sh0"], kept["shN"]], 1)
    gaussians = StoredGaussians(kept["means"], kept["quats"], kept["scales"], kept["opacities"], sh)
    with temporary_folder() as folder:
        path = folder / _NAMES[format]
        write_scene(path, gaussians)
        data = path.read_bytes()
    if save_to:
        with atomic_path(save_to) as temporary:
            temporary.write_bytes(data)
    return data


def load_ply_to_splats(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Read a PLY's Gaussians as a dictionary with the argument names of `export_splats`, float32. SplatError if the file is not
    a PLY of Gaussians, or holds NaN."""
    gaussians = Gaussians.load_ply(path)
    if gaussians.splat != "Gaussian" or gaussians.features is not None:
        warnings.warn(f"{path} holds types of splats or colours that gsplat lacks; their parameters are left out", stacklevel=2)
    return {
        "means": gaussians.means,
        "scales": gaussians.log_scales,
        "quats": gaussians.quats,
        "opacities": gaussians.logit_opacities,
        "sh0": gaussians.sh[:, :1].contiguous(),
        "shN": gaussians.sh[:, 1:].contiguous(),
    }


# The largest standard deviation in the test scene, world units.
_LARGEST_SCALE = 0.02
# gsplat's scripts run in the root or in a subfolder of its checkout.
_SCENES = (Path("assets/test_garden.npz"), Path("../assets/test_garden.npz"))


def save_ply(splats: Mapping[str, Tensor], dir: str | os.PathLike[str], colors: Tensor | None = None) -> None:
    """Write a PLY in the layout of Kerbl et al. 2023, without Gaussians that are not finite. Deprecated: use `export_splats`.

    Args:
        splats: means [N, 3], scales [N, 3] (log), quats [N, 4], opacities [N] (logit), sh0 [N, 1, 3], shN [N, K, 3].
        dir: the path of the file, in spite of its name.
        colors: [N, 3] rgb from 0 to 1 instead of the spherical harmonics.
    """
    warnings.warn("save_ply is deprecated; use export_splats", DeprecationWarning, stacklevel=2)
    names = ("means", "scales", "quats", "opacities", "sh0", "shN")
    means, scales, quats, opacities, sh0, shN = (splats[name] for name in names)
    if colors is not None:
        sh0, shN = (colors[:, None] - 0.5) / SH_C0, shN[:, :0]
    export_splats(means, scales, quats, opacities, sh0, shN, save_to=dir)


def normalized_quat_to_rotmat(quat: Tensor) -> Tensor:
    """Rotation matrices [..., 3, 3] of unit quaternions w x y z [..., 4]."""
    if quat.shape[-1] != 4:
        raise SplatError(f"quat has shape {list(quat.shape)}; expected [..., 4]")
    one = torch.eye(3, dtype=quat.dtype, device=quat.device).expand(*quat.shape[:-1], 3, 3)
    # Rodrigues' formula: 1 + 2 w [v]ₓ + 2 [v]ₓ², where the columns of [v]ₓ are v × e.
    cross = torch.linalg.cross(quat[..., None, 1:].expand_as(one), one).mT
    return one + 2 * quat[..., :1, None] * cross + 2 * cross @ cross


def log_transform(x: Tensor) -> Tensor:
    """Return sign(x) log(1 + |x|)."""
    return x.sign() * x.abs().log1p()


def inverse_log_transform(y: Tensor) -> Tensor:
    """Return sign(y) (exp |y| - 1), the inverse of `log_transform`."""
    return y.sign() * y.abs().expm1()


def get_projection_matrix(znear: float, zfar: float, fovX: float, fovY: float, device: torch.device | str = "cpu") -> Tensor:
    """The camera → clip matrix [4, 4], z ahead, with depth 0 to 1 from `znear` to `zfar`; angles in radians."""
    depth = zfar / (zfar - znear)
    matrix = torch.diag(torch.tensor([1 / math.tan(fovX / 2), 1 / math.tan(fovY / 2), depth, 0], device=device))
    matrix[2, 3], matrix[3, 2] = -znear * depth, 1
    return matrix


def load_test_data(
    data_path: str | None = None,
    device: str | torch.device = "cpu",
    scene_crop: Sequence[float] = (-2, -2, -2, 2, 2, 2),
    scene_grid: int = 1,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, int, int]:
    """Load Gaussians at the points of an .npz file, with random quaternions, scales and opacities, and its C cameras.

    Args:
        data_path: .npz with `means3d`, `colors` (bytes), `viewmats`, `Ks`, `width`, `height`. By default gsplat's
            assets/test_garden.npz, if the working directory is gsplat's checkout or a folder in it.
        device: device of the tensors.
        scene_crop: lowest and highest corner of the points to keep.
        scene_grid: number of repetitions along x and y, odd.

    Returns:
        means, quats, scales, opacities, colors, viewmats, Ks, width, height. SplatError if there is no file, or an even grid.
    """
    found = Path(data_path) if data_path is not None else next(filter(Path.is_file, _SCENES), None)
    if found is None:
        raise SplatError(
            "data_path is missing, and assets/test_garden.npz, a file of gsplat's repository, does not exist; "
            "run in a folder of gsplat's checkout, or give data_path"
        )
    if not found.is_file():
        raise SplatError(f"data_path is {found}, which is not a file; give an .npz file")
    if scene_grid % 2 != 1:
        raise SplatError(f"scene_grid is {scene_grid!r}; give an odd number")
    with np.load(regular(found)) as data:
        means, colors, viewmats, Ks = (
            torch.from_numpy(data[name]).float().to(device) for name in ("means3d", "colors", "viewmats", "Ks")
        )
        width, height = int(data["width"]), int(data["height"])
    low, high = torch.tensor(scene_crop, dtype=torch.float32, device=device).split(3)
    kept = ((means >= low) & (means <= high)).all(-1)
    half = scene_grid // 2
    side = torch.arange(-half, half + 1, device=device)
    shifts = torch.cartesian_prod(side, side, side.new_zeros(1)) * (high - low)
    means = (means[kept] + shifts[:, None]).reshape(-1, 3)
    colors = (colors[kept] / 255).repeat(len(shifts), 1)
    scales = torch.rand((len(means), 3), device=device) * _LARGEST_SCALE
    quats = torch.nn.functional.normalize(torch.randn((len(means), 4), device=device), dim=-1)
    return means, quats, scales, torch.rand(len(means), device=device), colors, viewmats, Ks, width, height


# Total seconds by name, if the environment variable TIMEIT is 1.
profiler: dict[str, float] = {}


_Main = Callable[[int, int, int, Any], None]


def cli(fn: _Main, args: Any, verbose: bool = False) -> bool:
    """Call fn(local_rank, world_rank, world_size, args) in a process for each CUDA device of torch, or in the processes that
    mpirun started, and return True. Several processes are a group of torch.distributed."""
    environment = os.environ
    if (size := int(environment.get("OMPI_COMM_WORLD_SIZE", 1))) > 1:
        local, rank = (int(environment[f"OMPI_COMM_WORLD_{of}RANK"]) for of in ("LOCAL_", ""))
        _call_in_group(local, size, "env://", fn, args, verbose, rank)
    elif (size := torch.cuda.device_count()) > 1:
        with temporary_folder() as folder:
            spawn(_call_in_group, (size, f"file://{folder}/group", fn, args, verbose), nprocs=size)
    else:
        if verbose:
            print("One process on one device")
        fn(0, 0, 1, args)
    return True


def _call_in_group(
    local_rank: int, size: int, address: str, fn: _Main, args: Any, verbose: bool, rank: int | None = None
) -> None:
    rank = local_rank if rank is None else rank
    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    torch.distributed.init_process_group(backend, init_method=address, rank=rank, world_size=size)
    if verbose:
        print(f"Process {rank + 1} of {size}")
    try:
        fn(local_rank, rank, size, args)
    finally:
        torch.distributed.destroy_process_group()


class timeit(ContextDecorator):
    """Add the seconds of a block, `with timeit("backward"):`, or of a function, `@timeit()`, to `profiler`."""

    def __init__(self, name: str = "unnamed") -> None:
        self.name = name
        self.start_time: float | None = None

    def __enter__(self) -> None:
        self.start_time = None
        if os.environ.get("TIMEIT", "0") == "1":
            _synchronize()
            self.start_time = perf_counter()

    def __exit__(self, *error: object) -> None:
        if self.start_time is not None:
            _synchronize()
            profiler[self.name] = profiler.get(self.name, 0.0) + perf_counter() - self.start_time

    def __call__(self, func: Any) -> Any:
        return super(timeit, type(self)(func.__name__)).__call__(func)

    def _recreate_cm(self) -> Self:
        return type(self)(self.name)


def _synchronize() -> None:
    """Wait for torch's work on its GPU; splat_py's functions wait by themselves."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    elif torch.backends.mps.is_available():
        torch.mps.synchronize()
