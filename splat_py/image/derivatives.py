"""What rasterisers have in common whose kernel renders a picture again before it goes backward."""

from __future__ import annotations

from splat_py.gpu.arrays import Array
from splat_py.gpu.kernels import Recorder


class RendersAgain:
    """Of a picture of `_width` × `_height` pixels: the gradient of its loss and of any other come from one kernel."""

    _width: int
    _height: int

    def record_gradients(self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array) -> None:
        """See `Rasterizer`."""
        self._record_derivatives(recorder, parameters, target, v_parameters, 1.0 / (self._width * self._height), False)

    def record_backward(self, recorder: Recorder, parameters: Array, v_image: Array, v_parameters: Array) -> None:
        """See `Rasterizer`."""
        self._record_derivatives(recorder, parameters, v_image, v_parameters, 1.0, True)

    def _record_derivatives(
        self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array, weight: float, linear: bool
    ) -> None:
        """`target` is a picture or, if `linear`, ∂L/∂image."""
        raise NotImplementedError


class WithoutLists(RendersAgain):
    """And no lists in device memory, so that nothing can lack capacity."""

    def reserve(self, parameters: Array) -> None:
        """Nothing."""

    def record_check(self, recorder: Recorder, status: Array, step: int) -> None:
        """Nothing."""

    def record_lists(self, recorder: Recorder, parameters: Array) -> None:
        """Nothing."""
