"""Losses of surfels in training (Huang et al. 2024, equations 13 to 15): distortion keeps the splats of a pixel together, and
normals agree with those of the rendered depths."""

import numpy as np

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.render.cameras import Cameras
from splat_py.render.images import Image
from splat_py.render.splats import Splats
from splat_py.scene.dataset import Dataset
from splat_py.train.views import DepthTarget, MoreChannels

# Weights of a pixel's mean losses; distortion is in units of the scene's scale.
_NORMAL, _DISTORTION = 0.05, 0.01


class SurfaceLosses(MoreChannels):
    """Normals before the colours, depth and distortion after them (kernels/surface.slang), and two losses, means over pixels:
    λ_n Σ w (1 - n · N) and λ_d / scene scale · Σ 2 w_i w_j (z_i - z_j). n is a surfel's normal, N that of the expected depths
    around, and z the depth of a surfel's mean."""

    channels, first = 8, 3

    def __init__(self, device: Device, dataset: Dataset) -> None:
        super().__init__(device, np.pad(dataset.background, (3, 2)))
        self._distortion = _DISTORTION / dataset.scene_scale

    def record_features(self, recorder: Recorder, splats: Splats, colors: Array) -> Array:
        """Return the features to blend, [1, N, 8]."""
        features = recorder.scratch((*splats.depths.shape, self.channels))
        arrays = {"normals": splats.normals, "colors": colors, "depths": splats.depths, "features": features}
        recorder.stage("surface")
        recorder.dispatch("surface", "packSurface", linear_groups(splats.count), count=splats.count, **arrays)
        return features

    def record_gradient(
        self,
        recorder: Recorder,
        view: int,
        cameras: Cameras,
        image: Image,
        target: DepthTarget,
        v_colors: Array,
        v_alphas: Array,
    ) -> Array:
        """Return the gradient [1, H, W, 8] of all losses; `v_colors` is the photometric loss's. Overwrites `v_alphas`."""
        count = image.alphas.size
        recorder.stage("surface")
        recorder.dispatch(
            "surface",
            "surfaceGradient",
            linear_groups(count),
            count=count,
            cameras=cameras,
            normal_weight=_NORMAL / count,
            distortion_weight=self._distortion / count,
            rendered=image.colors,
            alphas=image.alphas,
            v_colors=v_colors,
            v_rendered=target.v_render,
            v_alphas=v_alphas,
        )
        return target.v_render
