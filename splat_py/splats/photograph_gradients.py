"""A photograph's part of a training step: its camera rendered, compared, and the gradients of the Gaussians."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from splat_py.fit.in_flight import Overflow
from splat_py.gpu.accumulation import accumulation
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, UserType
from splat_py.scene.dataset import Dataset
from splat_py.splats.camera_arrays import camera_model
from splat_py.splats.capture_model import CaptureStep
from splat_py.splats.colors import harmonics
from splat_py.splats.config import TrainConfig
from splat_py.splats.data import COLOR_OFFSET, Cameras, GaussianArrays, Settings, SplatGradients, Splats, StridedView
from splat_py.splats.depth_supervision import CHANNELS, DepthSupervision, DepthTarget
from splat_py.splats.loss import PhotometricLoss
from splat_py.splats.parameters import Parameters
from splat_py.splats.project import Projection
from splat_py.splats.rasterize import Image, Rasterization
from splat_py.splats.shade import Shading
from splat_py.splats.tiles import ANY_LENGTH, Binning, TileGrid, segments_for
from splat_py.splats.training_colors import model_of
from splat_py.splats.validation import SPLATS

# Capacity of tile lists to begin with.
ISECTS_PER_GAUSSIAN = 4
# What they get beyond what was needed, so that growing scenes rarely exceed it.
_HEADROOM = 1.5


@dataclass(frozen=True)
class _Target:
    """Arrays for renders of one size."""

    image: Image
    grid: TileGrid
    loss: PhotometricLoss
    v_alphas: Array
    depth: DepthTarget | None


class PhotographGradients:
    """What renders and differentiates, and the arrays that it takes, for one photograph after another.

    Args:
        splat, color: types in slang/splat, or one's own, as `Trainer` takes them.
        capacity: of tile lists, in intersections; in proportion to the Gaussians by default.
    """

    def __init__(
        self,
        device: Device,
        dataset: Dataset,
        config: TrainConfig,
        splat: str | UserType,
        color: str | UserType,
        parameters: Parameters,
        capacity: int | None = None,
    ) -> None:
        self._device, self._dataset, self._config = device, dataset, config
        self._color = model_of(config, color)
        self.settings = Settings(
            device.tuning.tile_size,
            raw_params=not config.filter_3d,
            antialiased=config.antialiased,
            accumulation=accumulation(device, config.accumulate),
            native_atomics=device.native_float_atomics,
            falloff=SPLATS[splat][0] if isinstance(splat, str) else splat,
            extras=len(config.parameters()),
            near=dataset.near,
            camera_gradient=config.refine_cameras,
        )
        self._depth = DepthSupervision.of(device, dataset, config)
        self._row = self.settings.row(CHANNELS if self._depth else 3)
        self._targets: dict[tuple[int, int], _Target] = {}
        self._binning: Binning | None = None
        self.capacity = capacity or ISECTS_PER_GAUSSIAN * parameters.count
        self.segments = 1
        self.reserve(parameters)

    @property
    def one_size(self) -> bool:
        """Whether known depths are of the photographs' own size, and renders have to be."""
        return self._depth is not None

    def reserve(self, parameters: Parameters) -> None:
        """Arrays whose size follows the number of Gaussians."""
        count, memory = parameters.count, self._device.memory
        self.splats = replace(Splats.empty(self._device, 1, count), extras=parameters.gaussians.extras)
        self._colors = memory.empty((1, count, 3))
        self.v_splats = memory.empty((1, count, self._row))
        self._v_depths = memory.array(np.zeros((1, count), np.float32))
        self._binning = None

    def reserve_lists(self, overflow: Overflow) -> None:
        """Tile lists that hold what did not fit."""
        self.capacity = max(self.capacity, int(overflow.isect_count * _HEADROOM))
        self.segments = max(self.segments, segments_for(self._device, int(overflow.max_tile_count * _HEADROOM)))
        self._binning = None

    def forget_sizes(self) -> None:
        """Let go of the arrays for renders of the sizes there were."""
        self._targets.clear()

    def loss_of(self, cameras: Cameras) -> PhotometricLoss:
        """What compares renders of a camera's size."""
        return self._target_of(cameras).loss

    def record(
        self,
        recorder: Recorder,
        parameters: Parameters,
        gaussians: GaussianArrays,
        capture: CaptureStep,
        photograph: Array,
        sums: Array,
        status: Array,
    ) -> None:
        """Leave the gradients in `Parameters.v_…`, `v_splats` and `capture`, and the loss's sums in `sums`.

        Args:
            parameters: of as many Gaussians as `reserve` knows of.
            gaussians: of the parameters, filtered or as they are.
            capture: what there is to do for this photograph beside the scene.
            status: kernels/status.slang.
        """
        cameras, step, view = capture.cameras, capture.step, capture.view
        target = self._target_of(cameras)
        splats, settings = self.splats, self.settings
        model = camera_model(self._dataset.views[view].camera)
        if model != settings.camera_model:
            settings = replace(settings, camera_model=model)
        binning = self._binning_for(target)
        projection = Projection(gaussians, cameras, splats, settings)
        means, degree = parameters.gaussians.means, self._config.degree_at(step)
        color = self._color or harmonics(degree)
        shading = Shading(
            means, parameters.features, cameras, splats.radii, self._colors, color, settings, weights=parameters.weights
        )
        projection.record(recorder)
        shading.record(recorder)
        binning.record_count(recorder)
        binning.record_lists(recorder)
        # No list is longer than there are Gaussians.
        if segments_for(self._device, parameters.count) > self.segments:
            binning.record_max_tile_count(recorder)
        max_list_length = self.segments * (self._device.tuning.segment or ANY_LENGTH)
        binning.record_capacity_check(recorder, status, step, max_list_length)
        features, background, depth = self._colors, capture.background, self._depth
        if depth is not None:
            features, background = depth.record_features(recorder, features, splats.depths), depth.background
        rasterization = Rasterization.of(
            self._device,
            splats,
            features,
            background,
            binning.lists(self.segments),
            target.grid,
            target.image,
            **settings.splat_constants(),
        )
        rasterization.record(recorder)
        shown = target.image
        if depth is not None and target.depth is not None:
            shown = replace(shown, colors=depth.record_colors(recorder, shown, target.depth))
        target.loss.record(recorder, capture.shown(shown), capture.photograph(photograph), sums)
        v_render = target.loss.v_render
        capture.backward(v_render, target.v_alphas)
        if depth is not None and target.depth is not None:
            v_render = depth.record_gradient(recorder, view, target.image, target.depth, v_render, target.v_alphas)
        rasterization.record_backward(recorder, v_render, target.v_alphas, self.v_splats, settings)
        if depth is not None:
            depth.record_splat_gradients(recorder, self.v_splats, self._v_depths)
        v_splats = SplatGradients.of_rows(self.v_splats, self._v_depths)
        v_gaussians = parameters.v_gaussians
        projection.record_backward(recorder, v_splats, v_gaussians, capture.v_projection)
        v_colors = StridedView(self.v_splats, self._row, COLOR_OFFSET)
        v_features, v_weights = parameters.v_features, parameters.v_weights
        if v_weights is not None:
            recorder.clear(v_weights)
        shading.record_backward(
            recorder, v_colors, v_gaussians.means, v_features, capture.v_shading, add_to_means=True, v_weights=v_weights
        )

    def _binning_for(self, target: _Target) -> Binning:
        if self._binning is None or self._binning.grid != target.grid:
            bounds = self.settings.bounds_constants()
            self._binning = Binning(self._device, self.splats, target.grid, self.settings.per_isect, bounds=bounds)
            self._binning.reserve(self.capacity)
        return self._binning

    def _target_of(self, cameras: Cameras) -> _Target:
        size = cameras.width, cameras.height
        if size not in self._targets:
            device, (width, height) = self._device, size
            self._targets[size] = _Target(
                Image.empty(device, 1, height, width, CHANNELS if self._depth else 3),
                TileGrid.over(cameras, self.settings.tile_size),
                PhotometricLoss(device, width, height, self._config.ssim_lambda),
                device.memory.array(np.zeros((1, height, width, 1), np.float32)),
                self._depth.target(width, height) if self._depth else None,
            )
        return self._targets[size]
