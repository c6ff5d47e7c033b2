"""In-place changes to the rows of Gaussians in parameters, optimiser states and a strategy's state; and Adam for visible rows.

Parameters are raw: `scales` [N, 3] logarithms, `opacities` [N] or [N, 1] logits, `quats` [N, 4] of any length, `means` [N, 3];
others have N rows of any shape and are copied with their Gaussians. A changed parameter is a new one in `params` and in its
optimiser, without `.grad`. In `state`, tensors are [N, ...]; scalars and other values stay unchanged.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter, ParameterDict
from torch.nn.functional import normalize
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from splat_py.base.errors import SplatError
from splat_py.gsplat.scene import GaussianScene
from splat_py.gsplat.utils import normalized_quat_to_rotmat

Parameters: TypeAlias = dict[str, Parameter] | ParameterDict
Optimizers: TypeAlias = Mapping[str, Optimizer]
State: TypeAlias = dict[str, Any]
# An object with the methods `on_…` of a `GaussianScene`, called after every change of rows.
Scene: TypeAlias = GaussianScene | None

DEFAULT_MCMC_OPACITY_T = 0.005
DEFAULT_MCMC_OPACITY_K = 100.0

# Divisor of the scales of a split Gaussian's halves (Kerbl et al. 2023, section 5.2).
_SPLIT_SHRINK = 1.6
# The most weights that torch.multinomial accepts.
_MAX_MULTINOMIAL = 2**24


class StrategyError(SplatError, AssertionError):
    """Parameters, optimisers or `info` do not suit a strategy. Also an AssertionError, as scripts for gsplat expect."""


@torch.no_grad()
def duplicate(params: Parameters, optimizers: Optimizers, state: State, mask: Tensor, scene: Scene = None) -> None:
    """Append a copy of each Gaussian in `mask` [N]. Copies start without momentum and inherit the state."""
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
    scene: Scene = None,
) -> None:
    """Replace each Gaussian in `mask` [N] by two smaller ones, drawn from it. They follow all others: first one half of each,
    then the other halves. `revised_opacity` chooses the opacity ô of both halves to make them together as opaque as the
    original, 1 - (1 - ô)² = o (Rota Bulò et al. 2024)."""
    selected, rest = mask.nonzero().squeeze(1), (~mask).nonzero().squeeze(1)
    means, quats, scales = params["means"][selected], params["quats"][selected], params["scales"][selected].exp()
    # [2, n, 3]
    local = scales * torch.randn(2, *scales.shape, device=mask.device)
    offsets = (normalized_quat_to_rotmat(normalize(quats, dim=-1)) @ local[..., None])[..., 0]
    changed = {"means": (means + offsets).flatten(0, 1), "scales": (scales / _SPLIT_SHRINK).log().repeat(2, 1)}
    if revised_opacity:
        halves = 1 - (1 - params["opacities"][selected].sigmoid()).sqrt()
        changed["opacities"] = torch.cat([halves, halves]).logit()
    _append_rows(params, optimizers, state, rest, torch.cat([selected, selected]), changed)
    if scene is not None:
        scene.on_split(selected, rest)


@torch.no_grad()
def remove(params: Parameters, optimizers: Optimizers, state: State, mask: Tensor, scene: Scene = None) -> None:
    """Remove the Gaussians in `mask` [N]."""
    rest = (~mask).nonzero().squeeze(1)
    _append_rows(params, optimizers, state, rest, rest[:0], {})
    if scene is not None:
        scene.on_remove(mask)


@torch.no_grad()
def reset_opa(params: Parameters, optimizers: Optimizers, state: State, value: float) -> None:
    """Lower all opacities above `value` to it, and clear the momentum that would raise them again."""
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
    scene: Scene = None,
) -> None:
    """Move the Gaussians in `mask` [N] to others, drawn by opacity, and divide the opacity and extent of a drawn Gaussian
    among all that are then in its place (Kheradmand et al. 2024, equation 9). Drawn Gaussians lose their momentum.

    Args:
        binoms: [n_max, n_max], as in `compute_relocation`.
        min_opacity: lower limit of the new opacities.
    """
    dead, alive = mask.nonzero().squeeze(1), (~mask).nonzero().squeeze(1)
    if len(alive) == 0:
        raise StrategyError(f"none of the {len(mask)} Gaussians is opaque enough as a target to move to; lower min_opacity")
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
    scene: Scene = None,
) -> None:
    """Append `n` Gaussians at the positions of others, drawn by opacity, which share opacity and extent with them. New ones
    start without momentum and with a state of 0. `binoms` and `min_opacity` are as in `relocate`."""
    drawn = _multinomial_sample(params["opacities"].sigmoid().flatten(), n)
    for name, values in _shared(params, drawn, binoms, min_opacity).items():
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
    """Add Σ η σ(-k (o - t)) noise_scale to the means, η ~ N(0, 1): noise in the shape of each Gaussian, which moves only faint
    ones (Kheradmand et al. 2024).

    Args:
        noise_scale, scaler: the name in gsplat 1.6 and in 1.5; give one.
        t, k: the opacity at which the noise ends, and the steepness of that end.
    """
    if noise_scale is None:
        noise_scale = scaler
    if noise_scale is None or scaler not in (None, noise_scale):
        raise StrategyError("inject_noise_to_position needs noise_scale, or scaler with the same meaning; give one")
    means, rotations = params["means"], normalized_quat_to_rotmat(normalize(params["quats"], dim=-1))
    faint = torch.sigmoid(-k * (params["opacities"].flatten().sigmoid() - t))
    noise = torch.randn_like(means) * faint[:, None] * noise_scale
    # Σ = R diag(s²) Rᵀ.
    means.add_((rotations @ ((2 * params["scales"]).exp()[..., None] * (rotations.mT @ noise[..., None])))[..., 0])


@torch.no_grad()
def _multinomial_sample(weights: Tensor, n: int, replacement: bool = True) -> Tensor:
    """`n` indices [n], drawn in proportion to `weights` [N]: torch.multinomial, without its limit of 2²⁴ weights."""
    if len(weights) <= _MAX_MULTINOMIAL:
        return torch.multinomial(weights, n, replacement=replacement)
    if not replacement:
        # The indices of the smallest exponential variables with these rates (Efraimidis and Spirakis 2006).
        return (weights / torch.empty_like(weights).exponential_()).topk(n).indices
    total = _float64(weights).cumsum(0)
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
    """Replace the parameters `names`, by default all, and their optimiser states. `param_fn` returns the new parameter for a
    name and the old one [N, ...]; `optimizer_fn` the new value of a state with N rows for its key and old value."""
    names = list(params.keys()) if names is None else names
    if missing := [name for name in names if params[name].requires_grad and name not in optimizers]:
        raise StrategyError(f"optimizers lacks the trainable parameters {missing}; give each its own optimiser")
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
    """Keep the rows `kept` (all if None) and append rows: parameters from `changed`, otherwise copies of the rows `source`;
    zeros for moments."""

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
    """Raw scales and opacities of the Gaussians `drawn` [n], divided among each of them and its new ones."""
    opacities, scales = compute_relocation(
        opacities=params["opacities"][drawn].sigmoid(),
        scales=params["scales"][drawn].exp(),
        ratios=torch.bincount(drawn)[drawn] + 1,
        binoms=binoms,
    )
    largest = 1 - torch.finfo(torch.float32).eps
    return {"opacities": opacities.clamp(min_opacity, largest).logit(), "scales": scales.log()}


def _rows(values: dict[str, Any], count: int | None = None) -> dict[str, Tensor]:
    """The values that are tensors with rows; only those with `count` rows, if given."""
    tensors = {name: value for name, value in values.items() if isinstance(value, Tensor) and value.dim() > 0}
    return {name: value for name, value in tensors.items() if count in (None, len(value))}


def _parameter(values: Tensor, like: Tensor) -> Parameter:
    return Parameter(values, requires_grad=like.requires_grad)


def compute_relocation(
    opacities: Tensor, scales: Tensor, ratios: Tensor, binoms: Tensor, min_opacity: float | None = None
) -> tuple[Tensor, Tensor]:
    """Opacities and scales for n Gaussians in one place that together look as much as possible like the original one.

    With o' = 1 - (1 - o)^(1/n), scales are multiplied by o / Σᵢ Σₖ C(i-1, k) (-1)ᵏ o'ᵏ⁺¹ / √(k+1), i from 1 to n and k from 0
    to i - 1.

    Args:
        opacities: [N] or [N, 1] o, between 0 and 1.
        scales: [N, 3] standard deviations.
        ratios: [N] n, clamped to 1 to n_max.
        binoms: [n_max, n_max] coefficients C(row, column), 0 above the diagonal.
        min_opacity: if given, clamp o' to at least this and below 1 before computing scales, as gsplat 1.6 does.

    Returns:
        New opacities in the shape of `opacities`, and scales [N, 3], without gradients. SplatError if shapes do not match.
    """
    count = len(opacities)
    if opacities.numel() != count or scales.shape != (count, 3) or ratios.shape != (count,):
        raise SplatError(
            "compute_relocation needs opacities [N], scales [N, 3] and ratios [N], not "
            f"{list(opacities.shape)}, {list(scales.shape)} and {list(ratios.shape)}"
        )
    if binoms.dim() != 2 or binoms.shape[0] != binoms.shape[1]:
        raise SplatError(f"binoms must be square, [n_max, n_max], not {list(binoms.shape)}")
    if count == 0:
        return opacities.detach().clone(), scales.detach().clone()
    # The terms alternate in sign and are much larger than their sum, which float32 would lose at large n.
    # At an opacity of 1, which sigmoid returns for logits above 17, even float64 would: hence the limit below 1.
    old = _float64(opacities.detach().flatten()).clamp(max=1 - 2**-24)
    copies = ratios.to(old.device, torch.int64).clamp(1, len(binoms))
    new = -torch.expm1(torch.log1p(-old) / copies)
    if min_opacity is not None:
        new = new.clamp(min_opacity, 1 - torch.finfo(torch.float32).eps)
    # Summing the binomials over i first leaves a polynomial of degree n in o'.
    k = torch.arange(len(binoms), dtype=torch.float64, device=old.device)
    coefficients = _float64(binoms).to(old.device).cumsum(0) * (-1) ** k / (k + 1).sqrt()
    total = torch.zeros_like(new)
    for power in reversed(range(int(copies.max()))):
        total = new * (coefficients[copies - 1, power] + total)
    factors = torch.where(old > 0, old / total, 1)
    new_opacities = new.to(opacities.dtype).to(opacities.device).reshape(opacities.shape)
    return new_opacities, scales.detach() * factors.to(scales.dtype).to(scales.device)[:, None]


def _float64(values: Tensor) -> Tensor:
    """Convert to double precision; MPS lacks it, so its tensors move to the CPU."""
    return (values.cpu() if values.device.type == "mps" else values).double()


class SelectiveAdam(torch.optim.Adam):
    """Adam that updates only visible rows; other rows and their moments stay unchanged.

    As in gsplat, there is no bias correction of the moments: the first steps are larger than those of `torch.optim.Adam`
    (the first three times as large with the usual betas); after some thousands of steps they are equal.

    Args:
        params: parameters [N, ...], or groups with one parameter each.
        eps: added to the root of the second moment.
        betas: decay rates of the two moments.
    """

    def __init__(self, params: ParamsT, eps: float, betas: tuple[float, float]) -> None:
        super().__init__(params=params, eps=eps, betas=betas)

    @torch.no_grad()
    def step(self, visibility: Tensor) -> None:  # type: ignore[override]
        """Update the visible rows, where `visibility` [N] is true, of each parameter that has a gradient."""
        rows = visibility.flatten().nonzero().squeeze(1)
        for group in self.param_groups:
            if len(group["params"]) != 1:
                raise SplatError(f"SelectiveAdam: a group has {len(group['params'])} parameters; give each its own group")
            param = group["params"][0]
            if len(param) != visibility.numel():
                raise SplatError(f"visibility has {visibility.numel()} values for a parameter with {len(param)} rows")
            if param.grad is not None:
                self._update(param, param.grad[rows], rows, group)

    def _update(self, param: Tensor, gradient: Tensor, rows: Tensor, group: dict[str, Any]) -> None:
        state = self.state[param]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(param, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        state["step"] += 1
        beta1, beta2 = group["betas"]
        first = state["exp_avg"][rows].lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"][rows].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state["exp_avg"][rows] = first
        state["exp_avg_sq"][rows] = second
        param[rows] = param[rows].addcdiv_(first, second.sqrt().add_(group["eps"]), value=-group["lr"])
