"""Adam's constants and bias corrections (Kingma & Ba 2015)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Adam:
    """What all parameters share; learning rates differ from one to the next."""

    epsilon: float
    beta1: float = 0.9
    beta2: float = 0.999

    def uniforms(self, step: int) -> dict[str, int | float]:
        """What kernels need for splat/adam.slang in `step`, counted from 0."""
        return {
            "beta1": self.beta1,
            "beta2": self.beta2,
            "epsilon": self.epsilon,
            "correction1": 1 - self.beta1 ** (step + 1),
            "correction2": 1 - self.beta2 ** (step + 1),
        }
