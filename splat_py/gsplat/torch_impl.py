"""gsplat's torch functions from its own package, which runs them without CUDA: `pip install gsplat==1.5.3`. Each raises
SplatError if an argument has the wrong shape, or that package is not installed."""

from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from splat_py.base.errors import SplatError
from splat_py.gpu.tensors import check_shape
from splat_py.gsplat.checks import check_camera_model, leading

_PROJECTIONS = {"pinhole": "_persp_proj", "ortho": "_ortho_proj", "fisheye": "_fisheye_proj"}


class MissingPackageError(SplatError, ImportError):
    """gsplat's own package is not installed, or it is too old."""


def own_package(module: str) -> Any:
    """gsplat's own module. MissingPackageError if the installed package lacks it."""
    try:
        found = import_module(f"gsplat.{module}")
    except ImportError as error:
        raise MissingPackageError(
            f"gsplat.{module} belongs to gsplat's own package, which cannot be imported ({error}); pip install gsplat==1.5.3, "
            "or install 1.6 from gsplat's repository for what is new in it"
        ) from error
    if not torch.cuda.is_available():
        _stand_in()
    return found


@cache
def _stand_in() -> None:
    """Put this library's functions in the places of those that gsplat's torch references call and that need CUDA: lists of
    tiles and of splats, and harmonics; and blending by such lists, which needs nerfacc, where that is not installed."""
    from splat_py.gsplat import intersection
    from splat_py.gsplat.projection import spherical_harmonics

    ours: dict[str, Any] = {"spherical_harmonics": spherical_harmonics}
    names = ["isect_tiles", "isect_offset_encode", "rasterize_to_indices_in_range", "rasterize_to_indices_in_range_2dgs"]
    names += ["accumulate", "accumulate_2dgs"] if find_spec("nerfacc") is None else []
    ours |= {name: getattr(intersection, name) for name in names}
    for path in ("rendering", "cuda._wrapper", "cuda._torch_impl", "cuda._torch_impl_2dgs"):
        with suppress(ImportError):
            module = import_module(f"gsplat.{path}")
            for name in ours.keys() & vars(module).keys():
                setattr(module, name, ours[name])


def quat_scale_to_covar_preci(
    quats: Tensor,
    scales: Tensor,
    compute_covar: bool = True,
    compute_preci: bool = True,
    triu: bool = False,
) -> tuple[Tensor | None, Tensor | None]:
    """Covariances R diag(s)² Rᵀ and their inverses R diag(s)⁻² Rᵀ. Differentiable.

    Args:
        quats: [..., 4] (w, x, y, z), normalised here.
        scales: [..., 3] standard deviations.
        compute_covar, compute_preci: whether to compute each of the two; None is returned otherwise.
        triu: return upper triangles (xx, xy, xz, yy, yz, zz), [..., 6], instead of matrices [..., 3, 3].
    """
    check_shape("scales", scales, (*leading("quats", quats, 4), 3))
    return own_package("cuda._torch_impl")._quat_scale_to_covar_preci(quats, scales, compute_covar, compute_preci, triu)


def world_to_cam(means: Tensor, covars: Tensor, viewmats: Tensor) -> tuple[Tensor, Tensor]:
    """Transform means to [..., C, N, 3] and covariances to [..., C, N, 3, 3] in the frames of C cameras. Differentiable.

    Args:
        means: [..., N, 3] in the world.
        covars: [..., N, 3, 3].
        viewmats: [..., C, 4, 4] world → camera.
    """
    *batch, count = leading("means", means, 3)
    check_shape("covars", covars, (*batch, count, 3, 3))
    check_shape("viewmats", viewmats, (*batch, "C", 4, 4))
    return own_package("cuda._torch_impl")._world_to_cam(means, covars, viewmats)


def proj(
    means: Tensor, covars: Tensor, Ks: Tensor, width: int, height: int, camera_model: str = "pinhole"
) -> tuple[Tensor, Tensor]:
    """Project Gaussians from camera frames to image planes: means2d [..., C, N, 2] in pixels, J Σ Jᵀ [..., C, N, 2, 2].

    Differentiable in means, covars and Ks.

    Args:
        means: [..., C, N, 3].
        covars: [..., C, N, 3, 3].
        Ks: [..., C, 3, 3] intrinsics in pixels.
        width, height: image size in pixels; for a pinhole, the point of J is clamped to the image plus 15 % of a side.
        camera_model: "pinhole", "ortho" (Ks in pixels a world unit) or "fisheye" (equidistant, without distortion).
    """
    check_camera_model(camera_model)
    *cameras, count = leading("means", means, 3)
    check_shape("covars", covars, (*cameras, count, 3, 3))
    check_shape("Ks", Ks, (*cameras, 3, 3))
    return getattr(own_package("cuda._torch_impl"), _PROJECTIONS[camera_model])(means, covars, Ks, width, height)
