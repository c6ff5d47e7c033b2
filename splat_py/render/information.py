"""Information in photographs about a scene: which of its numbers they fix, how uncertain its pictures remain, and which view to
photograph next (Jiang et al. 2024, FisherRF).

A picture's derivatives J by all numbers of a scene are too many to store. Random signs need no more than products with them:
signs s of pixels go backward, E[(Jᵀs)²] = diag(JᵀJ), and signs of numbers forward, E[(J D s)²] = diag(J D² Jᵀ) for any
diagonal D (Bekas et al. 2007)."""

import heapq
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.func import jvp, vmap

from splat_py.base.arguments import as_integer, instances, require_instance
from splat_py.base.errors import SplatError
from splat_py.render.views import BLACK, RenderSettings, heat, render_tensor
from splat_py.scene.camera import Camera
from splat_py.scene.environment import Environment
from splat_py.scene.gaussians import Gaussians

# Standard deviation of a photograph's colours, 0 to 1, about those of the scene.
_NOISE = 0.05
# Deviations of numbers by the prior. More for harmonics above degree 0 would hide the rest: there are many, and a diagonal does
# not see that together they are known in the directions of photographs.
_OFF, _OFF_HARMONICS = 0.1, 0.01
# Deviations that are white in pictures.
_HOTTEST = 0.05
# Directions that kernels take at a time, each as large as the scene.
_DIRECTIONS = 6


def information(
    gaussians: Gaussians,
    cameras: Iterable[Camera],
    background: ArrayLike | Environment = BLACK,
    *,
    probes: int = 4,
    seed: int = 0,
    **how: Any,
) -> dict[str, Tensor]:
    """Estimate the Fisher information of a scene's numbers in photographs by these cameras, up to the noise's variance: the
    diagonal of JᵀJ, where J are the derivatives of all pixels' colours, 0 to 1, by `means`, `quats`, `log_scales`,
    `logit_opacities` and `sh` (or `features`). Numbers that Gaussians share, and parameters of their types, count as known.

    Args:
        probes: random signs of each picture, each a backward pass. The standard error of one camera's estimate is at most
            √(2 / probes) of the value.
        how: `antialiased`, `near` and `device` of `render`.

    Returns:
        By the tensor's name in `Gaussians`, a tensor of its shape, the sum over cameras.

    Raises:
        SplatError: `probes` is below 1.
    """
    require_instance(Gaussians, gaussians=gaussians)
    probes, generator = _drawn(probes, seed)
    scene = {name: tensor.detach().requires_grad_() for name, tensor in _numbers(gaussians).items()}
    total = {name: torch.zeros_like(tensor, requires_grad=False) for name, tensor in scene.items()}
    for camera in instances(Camera, "cameras", cameras):
        with torch.enable_grad():
            image = render_tensor(replace(gaussians, **scene), camera, background, **how)  # type: ignore[arg-type]
        for probe in range(probes):
            signs = _signs(image, generator)
            gradients = torch.autograd.grad(image, list(scene.values()), signs, retain_graph=probe + 1 < probes)
            for summed, gradient in zip(total.values(), gradients, strict=True):
                summed.addcmul_(gradient, gradient, value=1 / probes)
    return total


@torch.no_grad()
def uncertainty(
    gaussians: Gaussians,
    camera: Camera,
    known: dict[str, Tensor],
    background: ArrayLike | Environment = BLACK,
    *,
    probes: int = 18,
    seed: int = 0,
    **how: Any,
) -> NDArray[np.float32]:
    """Estimate how uncertain a picture's colours [H, W] are, as a standard deviation of colours from 0 to 1.

    It is that of Laplace's approximation, √diag(J H⁻¹ Jᵀ), the root mean square of the channels, with H the diagonal of
    JᵀJ / σ² + Λ. Photographs have noise of σ = 0.05. By the prior Λ, numbers deviate by 0.1, means by a tenth of their
    Gaussian's largest scale, quaternions by a tenth of their length, and harmonics above degree 0 by 0.01. Only Gaussians are
    uncertain: where there are none, the deviation is 0.

    Args:
        known: `information` in the photographs that the scene was trained with; SplatError if it is another scene's.
        probes: random directions, each a forward derivative; the standard error is at most 1 / √(2 probes) of the value.

    Other arguments and errors are those of `information`.
    """
    require_instance(Camera, camera=camera)
    probes, generator = _drawn(probes, seed)
    deviations = [_NOISE / each.sqrt() for each in _with_prior(gaussians, known).values()]
    scene, total = _numbers(gaussians), torch.zeros(())

    def draw(*tensors: Tensor) -> Tensor:
        moved: dict[str, Any] = dict(zip(scene, tensors, strict=True))
        return render_tensor(replace(gaussians, **moved), camera, background, **how)

    for first in range(0, probes, _DIRECTIONS):
        count = min(_DIRECTIONS, probes - first)
        tangents = [each * _signs(each.expand(count, *each.shape), generator) for each in deviations]
        changes = vmap(lambda *along: jvp(draw, tuple(scene.values()), along)[1])(*tangents)
        total = total + changes.square().mean(-1).sum(0)
    return (total / probes).sqrt().cpu().numpy()


@torch.no_grad()
def suggest(
    gaussians: Gaussians,
    candidates: Iterable[Camera],
    known: dict[str, Tensor],
    wanted: dict[str, Tensor],
    background: ArrayLike | Environment = BLACK,
    *,
    count: int = 4,
    probes: int = 4,
    seed: int = 1,
    **how: Any,
) -> list[tuple[int, float]]:
    """Choose the views to photograph next: each time the one that makes the wanted pictures most certain, as if all chosen
    before had been photographed.

    The wanted pictures' information G makes their summed variance tr(G H⁻¹), with H as in `uncertainty`, and a photograph's
    information F lowers it by tr(G (H⁻¹ - (H + F)⁻¹)). Such gains only fall with more photographs, so that few candidates are
    estimated again (Minoux 1978).

    Args:
        candidates: cameras to choose from.
        known: as for `uncertainty`.
        wanted: `information` in the pictures that should become certain, for example those of all candidates.

    Returns:
        At most `count` pairs of an index into the candidates and the share of the wanted pictures' variance that is left.

    Other arguments and errors are those of `information`.
    """
    total = _with_prior(gaussians, known)
    _require_information(gaussians, wanted=wanted)
    cameras, count = instances(Camera, "candidates", candidates), as_integer("count", count, 1)

    def look(camera: Camera) -> tuple[dict[str, Tensor], float]:
        added = information(gaussians, [camera], background, probes=probes, seed=seed, **how)
        gains = (wanted[name] * added[name] / (each * (each + added[name])) for name, each in total.items())
        return added, sum(float(gain.sum()) for gain in gains)

    heap = [(-look(camera)[1], index) for index, camera in enumerate(cameras)]
    heapq.heapify(heap)
    chosen: list[tuple[int, float]] = []
    first = left = sum(float((wanted[name] / each).sum()) for name, each in total.items())
    while heap and len(chosen) < count:
        _, index = heapq.heappop(heap)
        added, gain = look(cameras[index])
        if heap and gain < -heap[0][0]:
            heapq.heappush(heap, (-gain, index))
        else:
            left -= gain
            chosen.append((index, left / first if first else 0.0))
            total = {name: each + added[name] for name, each in total.items()}
    return chosen


def draw_uncertainty(
    gaussians: Gaussians, camera: Camera, known: dict[str, Tensor], look: RenderSettings
) -> NDArray[np.float32]:
    """Draw `uncertainty` as a picture [H, W, 3] from black through red and yellow to white, for 0.05 and more."""
    deviations = uncertainty(gaussians, camera, known, look.background, **look.how)
    return heat(deviations / _HOTTEST)


def _drawn(probes: int, seed: int) -> tuple[int, torch.Generator]:
    """Return how many random signs to draw, and what draws them; SplatError unless both are whole numbers."""
    return as_integer("probes", probes, 1), torch.Generator().manual_seed(as_integer("seed", seed, 0, (1 << 63) - 1))


def _numbers(gaussians: Gaussians) -> dict[str, Tensor]:
    """The tensors that pictures depend on and that have a row per Gaussian."""
    shading = "sh" if gaussians.color == "SphericalHarmonics" else "features"
    return {name: getattr(gaussians, name) for name in ("means", "quats", "log_scales", "logit_opacities", shading)}


def _with_prior(gaussians: Gaussians, known: dict[str, Tensor]) -> dict[str, Tensor]:
    """Add what the prior is worth, in units of photographs' information; SplatError if it is that of other Gaussians."""
    _require_information(gaussians, known=known)
    off = {name: torch.full_like(tensor, _OFF) for name, tensor in _numbers(gaussians).items()}
    off["means"] *= gaussians.scales.amax(1, keepdim=True)
    off["quats"] *= gaussians.quats.norm(dim=1, keepdim=True)
    if "sh" in off:
        off["sh"][:, 1:] = _OFF_HARMONICS
    return {name: known[name] + (_NOISE / off[name]) ** 2 for name in off}


def _require_information(gaussians: Gaussians, **given: dict[str, Tensor]) -> None:
    require_instance(Gaussians, gaussians=gaussians)
    shapes = {name: tensor.shape for name, tensor in _numbers(gaussians).items()}
    for argument, of in given.items():
        if not isinstance(of, dict) or {name: getattr(each, "shape", None) for name, each in of.items()} != shapes:
            raise SplatError(f"{argument} is of another scene; pass the information of these Gaussians")


def _signs(like: Tensor, generator: torch.Generator) -> Tensor:
    """Draw ±1 of a tensor's shape, on its device; the same on all devices."""
    return (2.0 * torch.randint(0, 2, like.shape, generator=generator) - 1).to(like)
