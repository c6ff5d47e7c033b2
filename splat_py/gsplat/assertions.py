"""The simple comparisons that gsplat's tests import. Those named `expect_` raise at once; gsplat's collect failures first."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close

from splat_py.gsplat.checks import ArgumentError
from splat_py.gsplat.torch_impl import MissingPackageError, own_package


def expand_named_params(named_params: Sequence[tuple[str, Any]]) -> list[Any]:
    """pytest's parameters of (name, value) pairs."""
    import pytest

    return [pytest.param(value, id=name) for name, value in named_params]


def assert_shape(name: str, t: Tensor, shape: Sequence[int]) -> bool:
    """True if the tensor broadcasts with `shape`; otherwise SplatError."""
    return _broadcast(name, t, shape, lambda: torch.broadcast_shapes(t.shape, tuple(shape))) is not None


def ensure_shape(name: str, t: Tensor, shape: Sequence[int]) -> Tensor:
    """The tensor, expanded to `shape`. SplatError if it does not broadcast to it."""
    return t if t.shape == tuple(shape) else _broadcast(name, t, shape, lambda: t.expand(*shape))


def _broadcast(name: str, t: Tensor, shape: Sequence[int], broadcast: Callable[[], Any]) -> Any:
    try:
        return broadcast()
    except RuntimeError as error:
        raise ArgumentError(f"{name} must have shape {tuple(shape)}, got {tuple(t.shape)}.") from error


def assert_mismatch_ratio(actual: Tensor, expected: Tensor, *, max: float | None = 1e-5) -> None:
    """Assert that at most this part of the elements differs."""
    assert actual.shape == expected.shape, f"{actual.shape=} {expected.shape=}"
    ratio = float((actual != expected).double().mean()) if expected.numel() else 1
    assert ratio <= (1e-5 if max is None else max), f"{ratio:.4%} of {expected.numel()} elements differ"


def assert_grad_sparsity(
    actual: Tensor, expected: Tensor, *, min_ratio: float, reduce_dim: int | tuple[int, ...] = -1, msg: str = ""
) -> None:
    """Assert that Σ|x| along `reduce_dim` differs by a factor of up to 1/min_ratio, unless it is 0 in both."""
    assert actual.shape == expected.shape, f"{actual.shape=} {expected.shape=}"
    assert actual.dtype == expected.dtype, f"{msg}: {actual.dtype=} {expected.dtype=}"
    assert min_ratio > 0, f"{msg}: min_ratio must be > 0, not {min_ratio}"
    for name, gradient in (("actual", actual), ("expected", expected)):
        assert gradient.isfinite().all(), f"{msg}: {name} contains NaN / Inf"
    sums = torch.stack([tensor.abs().sum(dim=reduce_dim) for tensor in (actual, expected)])
    wrong = sums.amin(0) < min_ratio * sums.amax(0)
    actual_smaller, expected_smaller = (int((wrong & sign).sum()) for sign in (sums[0] < sums[1], sums[0] > sums[1]))
    assert not wrong.any(), f"{msg}: {int(wrong.sum())} per-row sparsity mismatches, {actual_smaller=}, {expected_smaller=}"


def expect_call(assert_func: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    """Call an assertion, and return True if it holds."""
    assert_func(*args, **kwargs)
    return True


def expect_true(condition: object, msg: str = "") -> bool:
    """True if the condition is; otherwise AssertionError."""
    assert condition, msg or "the condition is false"
    return True


# A block of expectations. The first that fails ends it.
expect_group = nullcontext
expect_close, expect_mismatch_ratio = partial(expect_call, assert_close), partial(expect_call, assert_mismatch_ratio)
expect_grad_sparsity = partial(expect_call, assert_grad_sparsity)


def _own(name: str, *args: Any, **named: Any) -> Any:
    """Call one of gsplat 1.6's own assertions. MissingPackageError if the installed package lacks it."""
    found = getattr(own_package("_helper"), name, None)
    if found is None:
        raise MissingPackageError(f"{name} needs gsplat 1.6, which is not installed; install it from gsplat's repository")
    return found(*args, **named)


assert_close_with_boundary_band = partial(_own, "assert_close_with_boundary_band")
assert_grad_reference_close = partial(_own, "assert_grad_reference_close")
expect_close_with_boundary_band = partial(_own, "expect_close_with_boundary_band")
expect_grad_reference_close = partial(_own, "expect_grad_reference_close")
get_inlier_abserror_mask = partial(_own, "get_inlier_abserror_mask")
