"""Gradients of weights that all Gaussians share (kernels/weight_gradients.slang)."""

from __future__ import annotations

from splat_py.gpu.arrays import Array
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.splats.data import Settings

_THREADS = constant("parallel/threads", "THREADS")


class WeightGradients:
    """A gradient [W] of one recording, or None where there are no weights, and where it adds up."""

    def __init__(self, recorder: Recorder, v_weights: Array | None, gaussians: int, scenes: int, settings: Settings) -> None:
        bits = None if v_weights is None else v_weights.bits
        self.buffers: dict[str, Array | None] = {"vWeights": v_weights, "vWeightBits": bits, "vWeightParts": None}
        self._v_weights = v_weights
        self._parts: Array | None = None
        if v_weights is not None and settings.per_isect:
            # A row for each workgroup.
            self._parts = recorder.scratch((scenes * -(-gaussians // _THREADS), v_weights.size))
            recorder.clear(self._parts)
            self.buffers["vWeightParts"] = self._parts

    def record_sum(self, recorder: Recorder) -> None:
        """Add what the workgroups have left in rows of their own."""
        if self._parts is not None and self._v_weights is not None:
            rows, weights = self._parts.shape
            recorder.dispatch(
                "row_sums",
                "sumGroups",
                linear_groups(weights),
                {"count": 1, "rows": rows, "rowsEach": rows},
                {"parts": self._parts, "sums": self._v_weights},
                ROW=weights,
            )
