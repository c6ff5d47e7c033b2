"""Density control with gsplat's interface: strategies that change parameters and optimisers in place between steps."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from splat_py.gsplat.scene import REQUIRED
from splat_py.gsplat.strategy.ops import (
    DEFAULT_MCMC_OPACITY_K,
    DEFAULT_MCMC_OPACITY_T,
    Optimizers,
    Parameters,
    Scene,
    State,
    StrategyError,
    duplicate,
    inject_noise_to_position,
    relocate,
    remove,
    reset_opa,
    sample_add,
    split,
)
from splat_py.gsplat.version import by_position

# The most Gaussians that may replace one, which is the size of the table of binomials.
_MAX_RATIO = 51
# Growth factor of the number of Gaussians at each refinement, up to `cap_max`.
_GROWTH = 1.05


@dataclass
class Strategy:
    """A schedule for adding, moving and removing Gaussians. At each step, call `step_pre_backward` before `loss.backward()` and
    `step_post_backward` after it."""

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Check that each trainable parameter has its own optimiser. StrategyError if one is missing, belongs to no parameter,
        or has not exactly one parameter."""
        trainable = {name for name, param in params.items() if param.requires_grad}
        if without := sorted(trainable - optimizers.keys()):
            raise StrategyError(f"optimizers lacks the trainable parameters {without}; give each its own optimiser")
        if others := sorted(optimizers.keys() - trainable):
            raise StrategyError(f"optimizers has {others}, which are not trainable parameters; params has {sorted(trainable)}")
        for name, optimizer in optimizers.items():
            if [len(group["params"]) for group in optimizer.param_groups] != [1]:
                raise StrategyError(f"optimizers[{name!r}] must have one group with one parameter, params[{name!r}]")

    def step_pre_backward(self, *args: Any, **kwargs: Any) -> None:
        """Call this between rendering and `loss.backward()`."""

    def step_post_backward(self, *args: Any, **kwargs: Any) -> None:
        """Call this after `loss.backward()`."""


class _GaussianStrategy(Strategy):
    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Check that `params` has the required parameters, and each trainable parameter its own optimiser."""
        super().check_sanity(params, optimizers)
        if missing := [name for name in REQUIRED if name not in params]:
            raise StrategyError(f"params lacks {missing}; a strategy needs {list(REQUIRED)}")


@dataclass
class DefaultStrategy(_GaussianStrategy):
    """Adaptive density control. Every `refine_every` steps, Gaussians with large screen-space gradients are duplicated if they
    are small and split if they are large, and transparent or huge ones are removed. Every `reset_every` steps opacities are
    lowered. Gradients are averaged over the cameras that saw a Gaussian since the last refinement, in units of half an image.

    Args:
        prune_opa: Gaussians below this opacity are removed; resets lower opacities to twice this.
        grow_grad2d: gradient above which a Gaussian is duplicated or split. With `absgrad`, 0.0008 is usual.
        grow_scale3d: largest standard deviation, relative to `scene_scale`, for duplication; larger Gaussians are split.
        grow_scale2d: radius, relative to the larger side of the image, above which a Gaussian is always split.
        prune_scale3d: largest standard deviation, relative to `scene_scale`, above which a Gaussian is removed, after the first
            reset of opacities.
        prune_scale2d: radius, relative to the larger side of the image, above which a Gaussian is removed, likewise.
        refine_scale2d_stop_iter: the two rules for radii apply before this step; 0 disables them.
        refine_start_iter, refine_stop_iter: refinement happens between these steps, exclusive.
        reset_every, refine_every: steps between resets and refinements.
        pause_refine_after_reset: number of steps without refinement after a reset.
        absgrad: use `info[key_for_gradient].absgrad` (Ye et al. 2024), which `rasterization(..., absgrad=True)` sets.
        revised_opacity: split into halves that together are as opaque as the whole (Rota Bulò et al. 2024).
        verbose: print each refinement.
        key_for_gradient: the entry of `info` with the gradient: "means2d", or "gradient_2dgs" for surfels.
    """

    prune_opa: float = 0.005
    grow_grad2d: float = 0.0002
    grow_scale3d: float = 0.01
    grow_scale2d: float = 0.05
    prune_scale3d: float = 0.1
    prune_scale2d: float = 0.15
    refine_scale2d_stop_iter: int = 0
    refine_start_iter: int = 500
    refine_stop_iter: int = 15_000
    reset_every: int = 3000
    refine_every: int = 100
    pause_refine_after_reset: int = 0
    absgrad: bool = False
    revised_opacity: bool = False
    verbose: bool = False
    key_for_gradient: Literal["means2d", "gradient_2dgs"] = "means2d"

    def initialize_state(self, scene_scale: float = 1.0) -> State:
        """The running state for all steps: `grad2d` [N], `count` [N] and, with the rules for radii, `radii` [N], all None until
        the first step; and `scene_scale`, the extent of the scene in world units."""
        state: State = {"grad2d": None, "count": None, "scene_scale": scene_scale}
        return state | {"radii": None} if self.refine_scale2d_stop_iter > 0 else state

    def step_pre_backward(
        self, params: Parameters, optimizers: Optimizers, state: State, step: int, info: dict[str, Any]
    ) -> None:
        """Retain the screen-space gradient. `info` is `rasterization`'s meta. StrategyError if it has no screen-space centres,
        or they have no gradient."""
        if self.key_for_gradient not in info:
            raise StrategyError(f"info has no {self.key_for_gradient!r}; pass the meta that rasterization returned")
        centres = info[self.key_for_gradient]
        if not centres.requires_grad:
            raise StrategyError(f"info[{self.key_for_gradient!r}] has no gradient; render without torch.no_grad()")
        centres.retain_grad()

    def step_post_backward(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        info: dict[str, Any],
        packed: bool = False,
        scene: Scene = None,
    ) -> None:
        """Accumulate the gradients of this step; refine and reset opacities when due. StrategyError if `info` is not a meta, or
        has no gradient.

        Args:
            params: raw parameters by name, [N, ...]; changed in place, like `optimizers`.
            state: from `initialize_state`.
            info: `rasterization`'s meta of this step, after the backward pass.
            packed: true if it comes from `rasterization(..., packed=True)`.
            scene: gets a call for every change of rows.
        """
        if step >= self.refine_stop_iter:
            return
        self._update_state(params, state, info, packed=packed)
        is_due = step > self.refine_start_iter and step % self.refine_every == 0
        if is_due and step % self.reset_every >= self.pause_refine_after_reset:
            # Subclasses written for gsplat 1.5 do not accept a scene.
            hook = {} if scene is None else {"scene": scene}
            duplicated, halved = self._grow_gs(params, optimizers, state, step, **hook)
            pruned = self._prune_gs(params, optimizers, state, step, **hook)
            if self.verbose:
                changes = f"{duplicated} Gaussians duplicated, {halved} split, {pruned} pruned"
                print(f"step {step}: {changes}: {len(params['means'])} now")
            for name in {"grad2d", "count", "radii"} & state.keys():
                state[name].zero_()
            torch.cuda.empty_cache()
        # gsplat 1.5.3 never resets, since its condition is always false (`0 & step > 0`; fixed in its #776).
        if step > 0 and step % self.reset_every == 0:
            reset_opa(params, optimizers, state, value=2 * self.prune_opa)

    def _update_state(self, params: Parameters, state: State, info: dict[str, Any], packed: bool = False) -> None:
        """Add this step's gradients and radii of visible Gaussians to the state."""
        key = self.key_for_gradient
        needed = ("width", "height", "n_cameras", "radii", *(("gaussian_ids",) if packed else ()), key)
        if missing := [name for name in needed if info.get(name) is None]:
            raise StrategyError(f"info lacks {missing}; pass the meta of rasterization(..., packed={packed})")
        gradients = self._gradients(info[key])
        half = gradients.new_tensor([info["width"] / 2, info["height"] / 2]) * info["n_cameras"]
        radii = info["radii"]
        if packed:
            ids = info["gaussian_ids"]
        else:
            visible = (radii > 0).all(-1)  # [..., C, N]
            ids, gradients, radii = visible.nonzero()[:, -1], gradients[visible], radii[visible]

        for name in {"grad2d", "count", "radii"} & state.keys():
            if state[name] is None:
                state[name] = torch.zeros(len(params["means"]), device=gradients.device)
        state["grad2d"].index_add_(0, ids, (gradients * half).norm(dim=-1))
        state["count"].index_add_(0, ids, torch.ones_like(ids, dtype=torch.float32))
        if "radii" in state:
            relative = radii.amax(-1) / float(max(info["width"], info["height"]))
            state["radii"].scatter_reduce_(0, ids, relative, "amax")

    def _gradients(self, centres: Tensor) -> Tensor:
        """∂L/∂centres, or Σ |∂L/∂centre| over pixels."""
        gradients = getattr(centres, "absgrad", None) if self.absgrad else centres.grad
        if gradients is not None:
            return gradients
        lacks = "gradient; call step_pre_backward, loss.backward(), then this"
        if self.absgrad:
            of_surfels = self.key_for_gradient == "gradient_2dgs"
            lacks = "absgrad; call rasterization(..., absgrad=True) and loss.backward()"
            lacks = "absgrad, which only means2d has; leave absgrad or key_for_gradient out" if of_surfels else lacks
        raise StrategyError(f"info[{self.key_for_gradient!r}] has no {lacks}")

    @torch.no_grad()
    def _grow_gs(
        self, params: Parameters, optimizers: Optimizers, state: State, step: int, scene: Scene = None
    ) -> tuple[int, int]:
        grows = state["grad2d"] / state["count"].clamp_min(1) > self.grow_grad2d
        small = self._sizes(params) <= self.grow_scale3d * state["scene_scale"]
        duplicates, splits = grows & small, grows & ~small
        if step < self.refine_scale2d_stop_iter:
            splits |= state["radii"] > self.grow_scale2d
        counts = int(duplicates.sum()), int(splits.sum())
        if counts[0]:
            duplicate(params, optimizers, state, duplicates, scene)
        if counts[1]:
            # Do not split the new copies, even if they are large on screen.
            splits = torch.cat([splits, splits.new_zeros(counts[0])])
            split(params, optimizers, state, splits, self.revised_opacity, scene)
        return counts

    @torch.no_grad()
    def _prune_gs(self, params: Parameters, optimizers: Optimizers, state: State, step: int, scene: Scene = None) -> int:
        pruned = params["opacities"].flatten().sigmoid() < self.prune_opa
        if step > self.reset_every:
            pruned |= self._sizes(params) > self.prune_scale3d * state["scene_scale"]
            if step < self.refine_scale2d_stop_iter:
                pruned |= state["radii"] > self.prune_scale2d
        if count := int(pruned.sum()):
            remove(params, optimizers, state, pruned, scene)
        return count

    @staticmethod
    def _sizes(params: Parameters) -> Tensor:
        """The largest standard deviation of each Gaussian [N], world units."""
        return params["scales"].exp().amax(-1)


@dataclass
class MCMCStrategy(_GaussianStrategy):
    """Markov chain Monte Carlo. Every `refine_every` steps, transparent Gaussians move to opaque ones, and 5 % more are added
    there; after each step, noise moves the faint ones.

    Args:
        cap_max: maximum number of Gaussians.
        noise_lr: noise, relative to the learning rate of the means.
        refine_start_iter, refine_stop_iter: relocation and growth happen between these steps, exclusive.
        refine_every: steps between them.
        min_opacity: Gaussians with at most this opacity are relocated.
        verbose: print each refinement.
        noise_injection_stop_iter: first step without noise; -1 never stops it.
        noise_opacity_t, noise_opacity_k: opacity at which the noise ends, and the steepness of that end.
    """

    cap_max: int = 1_000_000
    noise_lr: float = 5e5
    refine_start_iter: int = 500
    refine_stop_iter: int = 25_000
    refine_every: int = 100
    min_opacity: float = 0.005
    verbose: bool = False
    # Keyword only in gsplat 1.5.3, which lacks them.
    _: KW_ONLY
    noise_injection_stop_iter: int = -1
    noise_opacity_t: float = DEFAULT_MCMC_OPACITY_T
    noise_opacity_k: float = DEFAULT_MCMC_OPACITY_K

    def initialize_state(self) -> State:
        """The running state: `binoms`, the binomial coefficients for relocation."""
        table = [[math.comb(n, k) for k in range(_MAX_RATIO)] for n in range(_MAX_RATIO)]
        return {"binoms": torch.tensor(table, dtype=torch.float32)}

    def step_post_backward(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: dict[str, Any],
        step: int,
        info: dict[str, Any],
        lr: float,
        scene: Scene = None,
    ) -> None:
        """Refine when due, and add noise to the means.

        Args:
            params, optimizers, state, scene: as in `DefaultStrategy.step_post_backward`.
            info: `rasterization`'s meta; not used.
            lr: current learning rate of the means.
        """
        binoms = state["binoms"] = state["binoms"].to(params["means"].device)
        if self.refine_start_iter < step < self.refine_stop_iter and step % self.refine_every == 0:
            # Subclasses written for gsplat 1.5 do not accept a scene.
            hook = {} if scene is None else {"scene": scene}
            relocated = self._relocate_gs(params, optimizers, binoms, **hook)
            added = self._add_new_gs(params, optimizers, binoms, **hook)
            if self.verbose:
                print(f"step {step}: {relocated} Gaussians relocated, {added} added: {len(params['means'])} now")
            torch.cuda.empty_cache()
        if self.noise_injection_stop_iter < 0 or step < self.noise_injection_stop_iter:
            inject_noise_to_position(params, optimizers, {}, lr * self.noise_lr, t=self.noise_opacity_t, k=self.noise_opacity_k)

    @torch.no_grad()
    def _relocate_gs(self, params: Parameters, optimizers: Optimizers, binoms: Tensor, scene: Scene = None) -> int:
        dead = params["opacities"].flatten().sigmoid() <= self.min_opacity
        if count := int(dead.sum()):
            relocate(params, optimizers, {}, dead, binoms, self.min_opacity, scene)
        return count

    @torch.no_grad()
    def _add_new_gs(self, params: Parameters, optimizers: Optimizers, binoms: Tensor, scene: Scene = None) -> int:
        present = len(params["means"])
        count = max(0, min(self.cap_max, int(_GROWTH * present)) - present)
        if count:
            sample_add(params, optimizers, {}, count, binoms, self.min_opacity, scene)
        return count


MCMCStrategy.__init__ = by_position(  # type: ignore[method-assign]
    "1.6.0", 5, "noise_injection_stop_iter refine_every min_opacity verbose noise_opacity_t noise_opacity_k"
)(MCMCStrategy.__init__)
