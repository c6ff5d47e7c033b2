"""The self-test's cases: which kernels run on which inputs, and what of their results is compared."""

from splat_py.selftest.cases import images, portable, rays, splats, strategies, sums, training, volumes
from splat_py.selftest.cases.case import Arrays, Case

__all__ = ["Arrays", "Case", "cases"]


def cases() -> list[Case]:
    """All of them, from the simplest kernels to whole training steps."""
    return [case for stage in (sums, splats, rays, training, strategies, images, volumes, portable) for case in stage.cases()]
