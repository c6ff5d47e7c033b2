"""Optimisers for parameters with a row for each Gaussian."""

from splat_py.gsplat.optimizers.selective_adam import SelectiveAdam

__all__ = ["SelectiveAdam"]
