"""The photographs of one step added up before its Adam: gradients, and statistics of densification (kernels/batch.slang)."""

from __future__ import annotations

from splat_py.gpu.arrays import Array
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.splats.data import StridedView
from splat_py.splats.parameters import Parameters

# Floats a thread.
_RUN = constant("kernels/batch", "RUN")


class BatchSums:
    """Sums over the photographs of a step of the gradients of `parameters`, and of what says where Gaussians are missing.

    `begin`; `add` and `Parameters.record_statistics` into `statistics` after each photograph's backward pass; and `end`.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        empty = parameters.device.memory.empty
        v = parameters.v_gaussians
        gradients = [v.means, v.quats, v.scales, v.opacities, parameters.v_features, parameters.v_weights]
        self._gradients = [array for array in gradients if array is not None]
        self._sums = [empty(array.shape) for array in self._gradients]
        extras = parameters.gaussians.extras
        self._extras_sum, self._extras_mean = (None if extras is None else empty(extras.shape) for _ in range(2))
        # Of this step, by their names in `Parameters`.
        self.statistics = {name: empty(parameters.count) for name in Parameters.STATISTICS}

    @property
    def sums(self) -> list[Array]:
        """What adds up over processes, after the last `add`."""
        extras = [] if self._extras_sum is None else [self._extras_sum]
        return [*self._sums, *extras, self.statistics["gradient_norms"], self.statistics["times_seen"]]

    @property
    def largest(self) -> list[Array]:
        """Of what the largest one of all processes counts."""
        return [self.statistics["max_radii"]]

    def begin(self, recorder: Recorder) -> None:
        """Before the first photograph."""
        for array in (*self.sums, *self.largest):
            recorder.clear(array)

    def add(self, recorder: Recorder, v_splats: Array) -> None:
        """The gradients of `parameters`, and of extras in the splats' rows, as a photograph has left them."""
        recorder.stage("batch")
        for gradients, total in zip(self._gradients, self._sums, strict=True):
            self._add_scaled(recorder, StridedView(gradients, 0), total, 1.0)
        if self._extras_sum is not None:
            self._add_scaled(recorder, extras_of(v_splats, self._extras_sum.shape[1]), self._extras_sum, 1.0)

    def end(self, recorder: Recorder, photographs: int, status: Array) -> StridedView | None:
        """After the last one of so many photographs: the parameters' gradients become means, and all photographs count in their
        statistics, unless the step does not. Returns the gradients of extras."""
        recorder.stage("batch")
        means, sums = list(self._gradients), list(self._sums)
        if self._extras_sum is not None and self._extras_mean is not None:
            means.append(self._extras_mean)
            sums.append(self._extras_sum)
        for mean, total in zip(means, sums, strict=True):
            recorder.clear(mean)
            self._add_scaled(recorder, StridedView(total, 0), mean, 1 / photographs)
        own, count = self._parameters.arrays, self._parameters.count
        recorder.dispatch(
            "batch",
            "addStepStatistics",
            linear_groups(count),
            {"gaussians": count},
            {
                "status": status,
                "stepNorms": self.statistics["gradient_norms"],
                "stepTimes": self.statistics["times_seen"],
                "stepRadii": self.statistics["max_radii"],
                "gradientNorms": own["gradient_norms"],
                "timesSeen": own["times_seen"],
                "maxRadii": own["max_radii"],
            },
        )
        return None if self._extras_mean is None else StridedView(self._extras_mean, self._extras_mean.shape[1])

    def _add_scaled(self, recorder: Recorder, gradients: StridedView, total: Array, scale: float) -> None:
        strided = {"ROW": total.shape[1], "STRIDE": gradients.stride, "OFFSET": gradients.offset} if gradients.stride else {}
        recorder.dispatch(
            "batch",
            "addScaled",
            linear_groups(-(-total.size // _RUN)),
            {"count": total.size, "scale": scale},
            {"gradients": gradients.array, "gradientSums": total},
            **strided,
        )


def extras_of(v_splats: Array, extras: int) -> StridedView:
    """The gradients of extras at the ends of the splats' rows."""
    stride = v_splats.shape[-1]
    return StridedView(v_splats, stride, stride - extras)
