"""Density control as gsplat's scripts call it: strategies that change parameters and optimisers in place between steps."""

from splat_py.gsplat.strategy.base import Strategy
from splat_py.gsplat.strategy.default import DefaultStrategy
from splat_py.gsplat.strategy.mcmc import MCMCStrategy

__all__ = ["DefaultStrategy", "MCMCStrategy", "Strategy"]
