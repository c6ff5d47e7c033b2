"""3D Gaussian Splatting as Markov Chain Monte Carlo (Kheradmand et al. 2024): a fixed budget, relocation and noise."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import Tensor

from splat_py.gsplat.strategy.base import Optimizers, Parameters, Scene, Strategy, require_gaussians
from splat_py.gsplat.strategy.ops import (
    DEFAULT_MCMC_OPACITY_K,
    DEFAULT_MCMC_OPACITY_T,
    inject_noise_to_position,
    relocate,
    sample_add,
)

# More Gaussians than this are never put in the place of one.
_MAX_RATIO = 51
# By how much the number of Gaussians grows at each refinement, until `cap_max`.
_GROWTH = 1.05


@dataclass
class MCMCStrategy(Strategy):
    """Every `refine_every` steps, transparent Gaussians move to where opaque ones are, and 5 % are added there; after each
    step, noise moves the faint ones.

    Args:
        cap_max: most Gaussians.
        noise_lr: noise, relative to the learning rate of the means.
        refine_start_iter, refine_stop_iter: relocation and growth happen between these steps, exclusive.
        refine_every: steps between them.
        min_opacity: Gaussians of at most this opacity are relocated.
        verbose: print what was done.
        noise_injection_stop_iter: no noise from this step on; -1 for always.
        noise_opacity_t, noise_opacity_k: opacity above which a Gaussian feels no noise, and how abruptly that ends.
    """

    cap_max: int = 1_000_000
    noise_lr: float = 5e5
    refine_start_iter: int = 500
    refine_stop_iter: int = 25_000
    refine_every: int = 100
    min_opacity: float = 0.005
    verbose: bool = False
    # gsplat 1.6 has the first of these in the middle: by position, the fields are those of 1.5.
    _: KW_ONLY
    noise_injection_stop_iter: int = -1
    noise_opacity_t: float = DEFAULT_MCMC_OPACITY_T
    noise_opacity_k: float = DEFAULT_MCMC_OPACITY_K

    def initialize_state(self) -> dict[str, Any]:
        """The running state: `binoms`, the binomial coefficients that relocation needs."""
        table = [[math.comb(n, k) for k in range(_MAX_RATIO)] for n in range(_MAX_RATIO)]
        return {"binoms": torch.tensor(table, dtype=torch.float32)}

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Check that `params` has what is changed here, and each trainable parameter an optimiser of its own.

        Raises:
            StrategyError: something is missing or of no use.
        """
        super().check_sanity(params, optimizers)
        require_gaussians(params)

    def step_post_backward(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: dict[str, Any],
        step: int,
        info: dict[str, Any],
        lr: float,
        scene: Scene | None = None,
    ) -> None:
        """Refine if it is time to, and add noise to the means.

        Args:
            params: raw parameters by name, [N, ...]; changed in place, as `optimizers`.
            state: from `initialize_state`.
            info: `rasterization`'s meta; not used.
            lr: current learning rate of the means.
            scene: is told of every change of rows.
        """
        binoms = state["binoms"] = state["binoms"].to(params["means"].device)
        if self.refine_start_iter < step < self.refine_stop_iter and step % self.refine_every == 0:
            # Subclasses that were written for gsplat 1.5 know no scene.
            hook = {} if scene is None else {"scene": scene}
            relocated = self._relocate_gs(params, optimizers, binoms, **hook)
            added = self._add_new_gs(params, optimizers, binoms, **hook)
            if self.verbose:
                print(f"step {step}: {relocated} Gaussians relocated, {added} added: {len(params['means'])} now")
            torch.cuda.empty_cache()
        if self.noise_injection_stop_iter < 0 or step < self.noise_injection_stop_iter:
            inject_noise_to_position(params, optimizers, {}, lr * self.noise_lr, t=self.noise_opacity_t, k=self.noise_opacity_k)

    @torch.no_grad()
    def _relocate_gs(self, params: Parameters, optimizers: Optimizers, binoms: Tensor, scene: Scene | None = None) -> int:
        dead = params["opacities"].flatten().sigmoid() <= self.min_opacity
        if count := int(dead.sum()):
            relocate(params, optimizers, {}, dead, binoms, self.min_opacity, scene)
        return count

    @torch.no_grad()
    def _add_new_gs(self, params: Parameters, optimizers: Optimizers, binoms: Tensor, scene: Scene | None = None) -> int:
        present = len(params["means"])
        count = max(0, min(self.cap_max, int(_GROWTH * present)) - present)
        if count:
            sample_add(params, optimizers, {}, count, binoms, self.min_opacity, scene)
        return count
