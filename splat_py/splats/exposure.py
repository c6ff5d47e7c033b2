"""Exposure and white balance of each photograph, learnt beside the scene (kernels/exposure.slang)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from splat_py.fit.adam import Adam
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.gpu.sources import constant
from splat_py.splats.learnt import Learnt

EXPOSURES = "exposures"
EXPOSURE: int = constant("splat/exposure", "EXPOSURE")
_THREADS: int = constant("parallel/threads", "THREADS")
_PIXELS_PER_GROUP: int = _THREADS * constant("kernels/exposure", "RUN")
# A photograph has its turn once an epoch, and a run may have twenty of them: means are of few gradients.
_ADAM = Adam(epsilon=1e-15, beta1=0.5, beta2=0.9)
# The learning rate falls exponentially from the first to the second.
_RATES = (0.05, 0.001)
# Of the regulariser, for what the pixels of a photograph leave open.
_WEIGHT = 1e-3


def exposure_parts(pixels: int) -> tuple[int, int]:
    """Rows of an exposure's gradient that a picture's workgroups leave."""
    return -(-pixels // _PIXELS_PER_GROUP), EXPOSURE


class Exposures:
    """An affine map of colours for each photograph: what the scene shows there is what the photograph shows.

    Only the photograph of a step learns. Their mean is held at the map that changes nothing: the scene has the brightness and
    the tint that photographs have on average, which is what is exported and what views without a photograph show.

    Args:
        photographs: that are trained on.
        state: of a checkpoint, with "exposures", [photographs, 12], and its moments.
    """

    def __init__(self, device: Device, photographs: int, state: Mapping[str, NDArray] | None = None) -> None:
        neutral = np.eye(3, 4, dtype=np.float32).reshape(1, EXPOSURE)
        self._learnt = Learnt(device, EXPOSURES, np.repeat(neutral, photographs, 0), state)
        self._count = photographs
        self.state = self._learnt.state

    def record(self, recorder: Recorder, photograph: int, colors: Array) -> Array:
        """What the photograph shows of a render [1, H, W, 3]."""
        recorder.stage("exposure")
        shown = recorder.scratch(colors.shape)
        pixels = colors.size // 3
        recorder.dispatch(
            "exposure",
            "exposePixels",
            linear_groups(pixels),
            {"pixels": pixels, "photograph": photograph},
            {"exposures": self._learnt.values, "colors": colors, "shown": shown},
        )
        return shown

    def record_backward(self, recorder: Recorder, photograph: int, colors: Array, v_shown: Array) -> Array:
        """The gradient of what `record` returned becomes that of `colors`, in place. Returns parts of that of the exposure."""
        recorder.stage("exposure")
        pixels = colors.size // 3
        groups, _ = shape = exposure_parts(pixels)
        parts = recorder.scratch(shape)
        recorder.dispatch(
            "exposure",
            "exposePixelsBackward",
            linear_groups(groups * _THREADS),
            {"pixels": pixels, "photograph": photograph, "groups": groups},
            {"exposures": self._learnt.values, "colors": colors, "vColors": v_shown, "parts": parts},
        )
        return parts

    def record_update(
        self, recorder: Recorder, photograph: int, parts: Array, status: Array, epoch: int, progress: float
    ) -> None:
        """One step of Adam on the exposure of a photograph.

        Args:
            parts: from `record_backward`.
            epoch: how often it has had its turn before.
            progress: how much of the run is done, 0 to 1.
        """
        first, last = _RATES
        recorder.dispatch(
            "exposure",
            "updateExposure",
            (1, 1, 1),
            {
                "photograph": photograph,
                "photographs": self._count,
                "groups": parts.shape[0],
                "weight": _WEIGHT,
                "rate": first * (last / first) ** progress,
                **_ADAM.uniforms(epoch),
            },
            {"exposures": self._learnt.values, "parts": parts, "status": status, **self._learnt.moments()},
        )
