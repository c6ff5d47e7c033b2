"""The names of `gsplat.cuda._constants`: thresholds, as our shaders have them."""

from splat_py.gpu.sources import constant

ALPHA_THRESHOLD: float = constant("splat/blending", "ALPHA_MIN")
MIN_COMPENSATION: float = constant("splat/projection", "MIN_COMPENSATION")

__all__ = ["ALPHA_THRESHOLD", "MIN_COMPENSATION"]
