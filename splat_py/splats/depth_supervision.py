"""Depths that are known in training: a fourth channel that is rendered beside colours, and its loss (kernels/depth.slang)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.fit.photographs import Photographs
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.scene.dataset import Dataset
from splat_py.scene.known_depths import KnownDepths
from splat_py.splats.config import TrainConfig
from splat_py.splats.data import COLOR_OFFSET
from splat_py.splats.rasterize import Image

CHANNELS = 4


@dataclass(frozen=True)
class DepthTarget:
    """Arrays for renders of one size."""

    colors: Array  # [1, H, W, 3]
    v_render: Array  # [1, H, W, 4]


class DepthSupervision:
    """A loss λ · scene scale · mean |1 / D - 1 / D*| over the pixels whose depth D* is known, beside the photometric one; D is
    the expected depth.

    Args:
        depth_lambda: λ.
        known: D* [H, W] of a view, 0 where not known.
    """

    def __init__(
        self, device: Device, dataset: Dataset, depth_lambda: float, known: KnownDepths | Mapping[int, NDArray[np.float32]]
    ) -> None:
        self._device, self._weight, self._known = device, depth_lambda * dataset.scene_scale, known
        # Pixels that are known, by view.
        self._counts: dict[int, int] = {}
        self._arrays = Photographs(device.memory, self._load)
        self.background = device.memory.array(np.append(dataset.background, np.float32(0))[None])

    @classmethod
    def of(cls, device: Device, dataset: Dataset, config: TrainConfig) -> DepthSupervision | None:
        """As a configuration says; None if it asks for none.

        Raises:
            SplatError: the dataset knows no depths, or cameras are others than its own.
        """
        if config.depth_lambda == 0:
            return None
        if config.camera != "dataset":
            raise SplatError("depth_lambda needs the capture's own cameras, of which the known depths are; leave out camera")
        for other in ("environment", "random_background"):
            if getattr(config, other):
                raise SplatError(f"depth_lambda cannot be combined with {other}: both set one gradient; leave out one")
        return cls(device, dataset, config.depth_lambda, KnownDepths(dataset))

    def target(self, width: int, height: int) -> DepthTarget:
        """Arrays for renders of this size."""
        empty = self._device.memory.empty
        return DepthTarget(empty((1, height, width, 3)), empty((1, height, width, CHANNELS)))

    def record_features(self, recorder: Recorder, colors: Array, depths: Array) -> Array:
        """What is blended [1, N, 4]: colours and depths of splats."""
        recorder.stage("depth")
        features = recorder.scratch((*depths.shape, CHANNELS))
        self._dispatch(recorder, "appendDepth", depths.size, {"colors": colors, "depths": depths, "features": features})
        return features

    def record_colors(self, recorder: Recorder, image: Image, target: DepthTarget) -> Array:
        """The colours [1, H, W, 3] of what was rendered."""
        recorder.stage("depth")
        buffers = {"rendered": image.colors, "renderedColors": target.colors}
        self._dispatch(recorder, "takeColors", image.alphas.size, buffers)
        return target.colors

    def record_gradient(
        self, recorder: Recorder, view: int, image: Image, target: DepthTarget, v_colors: Array, v_alphas: Array
    ) -> Array:
        """Gradient [1, H, W, 4] of both losses, of which `v_colors` is one's; and `v_alphas`, overwritten."""
        recorder.stage("depth")
        known = self._arrays[view]
        buffers = {
            "rendered": image.colors,
            "alphas": image.alphas,
            "known": known,
            "vColors": v_colors,
            "vRendered": target.v_render,
            "vAlphas": v_alphas,
        }
        weight = self._weight / max(self._counts[view], 1)
        self._dispatch(recorder, "depthGradient", image.alphas.size, buffers, {"weight": weight})
        return target.v_render

    def record_splat_gradients(self, recorder: Recorder, v_splats: Array, v_depths: Array) -> None:
        """The splats' rows of gradients → ∂L/∂depths [1, N]."""
        recorder.stage("depth")
        uniforms = {"stride": v_splats.shape[-1], "offset": COLOR_OFFSET + 3}
        self._dispatch(recorder, "takeDepthGradients", v_depths.size, {"vSplats": v_splats, "vDepths": v_depths}, uniforms)

    def _load(self, view: int) -> NDArray[np.float32]:
        known = self._known[view]
        self._counts[view] = int((known > 0).sum())
        return known

    def _dispatch(
        self,
        recorder: Recorder,
        entry: str,
        count: int,
        buffers: Mapping[str, Array],
        uniforms: Mapping[str, int | float] | None = None,
    ) -> None:
        recorder.dispatch("depth", entry, linear_groups(count), {"count": count, **(uniforms or {})}, buffers)
