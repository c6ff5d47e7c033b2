"""Adam's constants and bias corrections (Kingma & Ba 2015)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Adam:
    """What all parameters share; learning rates differ from one to the next."""

    epsilon: float
    beta1: float = 0.9
    beta2: float = 0.999

    def of_batch(self, size: int) -> Adam:
        """Those for steps whose gradients are means over so many samples, if those above are for one, beside learning rates
        that are √size times as large (Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", as
        gsplat's simple_trainer.py has it). Averages over less than a step are none."""
        if size == 1:
            return self
        betas = (max(1 - size * (1 - beta), 0.0) for beta in (self.beta1, self.beta2))
        return replace(self, epsilon=self.epsilon / math.sqrt(size), **dict(zip(("beta1", "beta2"), betas, strict=True)))

    def uniforms(self, step: int) -> dict[str, int | float]:
        """What kernels need for splat/adam.slang in `step`, counted from 0."""
        return {
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
            "correction1": 1 - self.beta1 ** (step + 1),
            "correction2": 1 - self.beta2 ** (step + 1),
        }
