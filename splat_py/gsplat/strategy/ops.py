"""Changes of the rows of Gaussians, in parameters, their optimisers' state and a strategy's own, all in place.

Parameters are raw: `scales` [N, 3] logarithms, `opacities` [N] or [N, 1] logits, `quats` [N, 4] of any length, `means` [N, 3];
others have N rows of any shape and are copied with their Gaussians. A changed parameter is a new one in `params` and in its
optimiser, without `.grad`. In `state`, tensors are [N, ...]; anything else, and what has no dimension, stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import normalize

from splat_py.gsplat.relocation import compute_relocation, float64
from splat_py.gsplat.strategy.base import Optimizers, Parameters, Scene, StrategyError

DEFAULT_MCMC_OPACITY_T = 0.005
DEFAULT_MCMC_OPACITY_K = 100.0

# Each half of a split Gaussian is this much smaller (Kerbl et al. 2023, section 5.2).
_SPLIT_SHRINK = 1.6
# As many weights as torch.multinomial takes.
_MAX_MULTINOMIAL = 2**24

State = dict[str, Any]


@torch.no_grad()
def duplicate(params: Parameters, optimizers: Optimizers, state: State, mask: Tensor, scene: Scene | None = None) -> None:
    """Append a copy of each Gaussian of `mask` [N]. Copies start without momentum and inherit the state."""
    selected = mask.nonzero().squeeze(1)
    _append_rows(params, optimizers, state, None, selected, {})
    if scene is not None:
        scene.on_duplicate(selected)


@torch.no_grad()
def split(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    mask: Tensor,
    revised_opacity: bool = False,
    scene: Scene | None = None,
) -> None:
    """Replace each Gaussian of `mask` [N] by two smaller ones, drawn from it. They come after all others: the first ones of all
    of them, then the second ones.

    Args:
        revised_opacity: the opacity ô of both is such that together they are as opaque as the one that was there,
            1 - (1 - ô)² = o (Rota Bulò et al. 2024).
    """
    selected, rest = mask.nonzero().squeeze(1), (~mask).nonzero().squeeze(1)
    means, quats, scales = params["means"][selected], params["quats"][selected], params["scales"][selected].exp()
    # [2, n, 3]
    offsets = _rotate(quats, scales * torch.randn(2, *scales.shape, device=mask.device))
    changed = {"means": (means + offsets).flatten(0, 1), "scales": (scales / _SPLIT_SHRINK).log().repeat(2, 1)}
    if revised_opacity:
        halves = 1 - (1 - params["opacities"][selected].sigmoid()).sqrt()
        changed["opacities"] = torch.cat([halves, halves]).logit()
    _append_rows(params, optimizers, state, rest, torch.cat([selected, selected]), changed)
    if scene is not None:
        scene.on_split(selected, rest)


@torch.no_grad()
def remove(params: Parameters, optimizers: Optimizers, state: State, mask: Tensor, scene: Scene | None = None) -> None:
    """Remove the Gaussians of `mask` [N]."""
    rest = (~mask).nonzero().squeeze(1)
    _append_rows(params, optimizers, state, rest, rest[:0], {})
    if scene is not None:
        scene.on_remove(mask)


@torch.no_grad()
def reset_opa(params: Parameters, optimizers: Optimizers, state: State, value: float) -> None:
    """Lower all opacities above `value` to it, and forget the momentum that would raise them again."""
    ceiling = torch.logit(torch.tensor(value)).item()
    _update_param_with_optimizer(
        lambda name, param: _parameter(param.clamp(max=ceiling), param),
        lambda key, moment: torch.zeros_like(moment),
        params,
        optimizers,
        names=["opacities"],
    )


@torch.no_grad()
def relocate(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    mask: Tensor,
    binoms: Tensor,
    min_opacity: float = 0.005,
    scene: Scene | None = None,
) -> None:
    """Move the Gaussians of `mask` [N] to where others are, drawn by opacity, and share these ones' opacity and extent among
    all that are then there (Kheradmand et al. 2024, equation 9). Those that were drawn lose their momentum.

    Args:
        binoms: [n_max, n_max] of `compute_relocation`.
        min_opacity: no opacity becomes less.

    Raises:
        StrategyError: all Gaussians are to be moved.
    """
    dead, alive = mask.nonzero().squeeze(1), (~mask).nonzero().squeeze(1)
    if len(alive) == 0:
        raise StrategyError(f"none of the {len(mask)} Gaussians is opaque enough for others to move there; lower min_opacity")
    drawn = alive[_multinomial_sample(params["opacities"][alive].sigmoid().flatten(), len(dead))]
    shared = _shared(params, drawn, binoms, min_opacity)

    def changed(name: str, param: Tensor) -> Parameter:
        if name in shared:
            param[drawn] = shared[name]
        param[dead] = param[drawn]
        return _parameter(param, param)

    def without_momentum(key: str, values: Tensor) -> Tensor:
        values[drawn] = 0
        return values

    _update_param_with_optimizer(changed, without_momentum, params, optimizers)
    for values in _rows(state).values():
        values[drawn] = 0
    if scene is not None:
        scene.on_relocate(dead, drawn)


@torch.no_grad()
def sample_add(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    n: int,
    binoms: Tensor,
    min_opacity: float = 0.005,
    scene: Scene | None = None,
) -> None:
    """Append `n` Gaussians in the places of others, drawn by opacity, which share their opacity and extent with them. New ones
    start without momentum and with a state of 0. `binoms` and `min_opacity` are as in `relocate`."""
    drawn = _multinomial_sample(params["opacities"].sigmoid().flatten(), n)
    shared = _shared(params, drawn, binoms, min_opacity)
    for name, values in shared.items():
        params[name][drawn] = values
    _append_rows(params, optimizers, {}, None, drawn, {})
    for name, values in _rows(state).items():
        state[name] = torch.cat([values, values.new_zeros(n, *values.shape[1:])])
    if scene is not None:
        scene.on_sample_add(drawn)


@torch.no_grad()
def inject_noise_to_position(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    noise_scale: float | None = None,
    *,
    scaler: float | None = None,
    t: float = DEFAULT_MCMC_OPACITY_T,
    k: float = DEFAULT_MCMC_OPACITY_K,
) -> None:
    """Add Σ η σ(-k (o - t)) noise_scale to the means, η ~ N(0, 1): noise in the shape of each Gaussian, which only faint ones
    feel (Kheradmand et al. 2024).

    Args:
        noise_scale, scaler: one of the two; gsplat 1.6 and 1.5 call it so.
        t, k: the opacity where noise ends, and how abruptly.
    """
    if noise_scale is None:
        noise_scale = scaler
    if noise_scale is None or scaler not in (None, noise_scale):
        raise StrategyError("inject_noise_to_position takes noise_scale or, with the same meaning, scaler")
    means, quats = params["means"], params["quats"]
    faint = torch.sigmoid(-k * (params["opacities"].flatten().sigmoid() - t))
    noise = torch.randn_like(means) * faint[:, None] * noise_scale
    # Σ = R diag(s²) Rᵀ.
    means.add_(_rotate(quats, (2 * params["scales"]).exp() * _rotate(quats, noise, inverse=True)))


@torch.no_grad()
def _multinomial_sample(weights: Tensor, n: int, replacement: bool = True) -> Tensor:
    """`n` indices [n], drawn in proportion to `weights` [N]: torch.multinomial, without its limit of 2²⁴ weights."""
    if len(weights) <= _MAX_MULTINOMIAL:
        return torch.multinomial(weights, n, replacement=replacement)
    if not replacement:
        # The smallest of exponential variables of these rates (Efraimidis and Spirakis 2006).
        return (weights / torch.empty_like(weights).exponential_()).topk(n).indices
    total = float64(weights).cumsum(0)
    positions = torch.rand(n, dtype=total.dtype, device=total.device) * total[-1]
    return torch.searchsorted(total, positions, right=True).clamp(max=len(weights) - 1).to(weights.device)


@torch.no_grad()
def _update_param_with_optimizer(
    param_fn: Callable[[str, Tensor], Parameter],
    optimizer_fn: Callable[[str, Tensor], Tensor],
    params: Parameters,
    optimizers: Optimizers,
    names: Sequence[str] | None = None,
) -> None:
    """Replace parameters, and what their optimisers keep of them.

    Args:
        param_fn: the new parameter, from a name and the old one [N, ...].
        optimizer_fn: the new value of an optimiser's state, from its key and the old one. Called for tensors with N rows.
        names: which parameters; all by default.

    Raises:
        StrategyError: a trainable parameter has no optimiser; nothing is changed then.
    """
    names = list(params.keys()) if names is None else names
    if missing := [name for name in names if params[name].requires_grad and name not in optimizers]:
        raise StrategyError(f"optimizers: none for the trainable parameters {missing}; give each one of its own")
    for name in names:
        old = params[name]
        new = params[name] = param_fn(name, old)
        if name not in optimizers:
            continue
        optimizer = optimizers[name]
        for group in optimizer.param_groups:
            group["params"] = [new]
        if (kept := optimizer.state.pop(old, None)) is not None:
            rows = _rows(kept, len(old))
            kept.update({key: optimizer_fn(key, value) for key, value in rows.items() if key != "step"})
            optimizer.state[new] = kept


def _append_rows(
    params: Parameters,
    optimizers: Optimizers,
    state: State,
    kept: Tensor | None,
    source: Tensor,
    changed: dict[str, Tensor],
) -> None:
    """Keep the rows `kept` (all, if None) and append copies of the rows `source`: of parameters those in `changed`, if there;
    of moments zeros."""

    def rows(values: Tensor) -> Tensor:
        return values if kept is None else values[kept]

    def longer(name: str, param: Tensor) -> Parameter:
        return _parameter(torch.cat([rows(param), changed[name] if name in changed else param[source]]), param)

    def with_zeros(key: str, values: Tensor) -> Tensor:
        return torch.cat([rows(values), values.new_zeros(len(source), *values.shape[1:])])

    _update_param_with_optimizer(longer, with_zeros, params, optimizers)
    for name, values in _rows(state).items():
        state[name] = torch.cat([rows(values), values[source]])


def _shared(params: Parameters, drawn: Tensor, binoms: Tensor, min_opacity: float) -> dict[str, Tensor]:
    """Raw scales and opacities of the Gaussians `drawn` [n], shared by the new ones there and the one that was."""
    opacities, scales = compute_relocation(
        opacities=params["opacities"][drawn].sigmoid(),
        scales=params["scales"][drawn].exp(),
        ratios=torch.bincount(drawn)[drawn] + 1,
        binoms=binoms,
    )
    largest = 1 - torch.finfo(torch.float32).eps
    return {"opacities": opacities.clamp(min_opacity, largest).logit(), "scales": scales.log()}


def _rows(values: dict[str, Any], count: int | None = None) -> dict[str, Tensor]:
    """Those that are tensors with rows; with `count` of them, if given."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor) and value.dim() > 0}
    return {name: value for name, value in tensors.items() if count in (None, len(value))}


def _parameter(values: Tensor, like: Tensor) -> Parameter:
    return Parameter(values, requires_grad=like.requires_grad)


def _rotate(quats: Tensor, vectors: Tensor, inverse: bool = False) -> Tensor:
    """`vectors` [..., N, 3] turned by `quats` [N, 4] (w, x, y, z) of any length, or back."""
    w, axis = normalize(quats, dim=-1).split([1, 3], dim=-1)
    axis = (-axis if inverse else axis).expand_as(vectors)
    twice = 2 * torch.linalg.cross(axis, vectors)
    return vectors + w * twice + torch.linalg.cross(axis, twice)
