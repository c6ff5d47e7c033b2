"""One photograph's part of a training step, top to bottom in `PhotographGradients.record`: render its camera, compare, and
compute the Gaussians' gradients; and `BatchSums`, which adds up a step's photographs. `Trainer` calls both, then Adam."""

from dataclasses import dataclass, replace
from typing import Any

from splat_py.fit.steps import Overflow
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.render.cameras import Cameras
from splat_py.render.colors import color_model, harmonics
from splat_py.render.images import Image, Rasterization
from splat_py.render.options import Options
from splat_py.render.project import Projection
from splat_py.render.shade import FeatureArrays, Shading
from splat_py.render.splats import GaussianArrays, Splats, StridedRows
from splat_py.render.tiles import ANY_LENGTH, Binning, TileGrid, segments_for
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import Dataset
from splat_py.train.capture_model import CaptureStep
from splat_py.train.config import TrainConfig
from splat_py.train.parameters import MoreOfMeans, Parameters, record_floats
from splat_py.train.photometric_loss import PhotometricLoss
from splat_py.train.surface import SurfaceLosses
from splat_py.train.views import DepthSupervision, DepthTarget, camera_model

# Initial capacity of tile lists.
ISECTS_PER_GAUSSIAN = 4
# Factor on the capacity that was needed, so that growing scenes rarely exceed it.
_HEADROOM = 1.5


@dataclass(frozen=True)
class _Target:
    """Arrays for renders of one size."""

    image: Image
    grid: TileGrid
    loss: PhotometricLoss
    v_alphas: Array
    beside: DepthTarget | None
    # [1, H, W, 6] the pixels' rays, if splats are evaluated along them, and their gradients, if cameras are refined.
    rays: Array | None
    v_rays: Array | None


class PhotographGradients:
    """The arrays and kernels that render and differentiate one photograph after another. `capacity` is that of tile lists, in
    intersections; by default it is proportional to the number of Gaussians."""

    def __init__(
        self,
        device: Device,
        dataset: Dataset,
        config: TrainConfig,
        splat: str | UserType,
        color: str | UserType,
        pixel_loss: str | UserType,
        parameters: Parameters,
        capacity: int | None = None,
    ) -> None:
        self._device, self._dataset, self._config, self._pixel_loss = device, dataset, config, pixel_loss
        self.learns_in_shading = config.learns_in_shading
        # None for harmonics, whose type follows the degree.
        features, weights = config.color_features, config.color_weights
        self._color = None if color == "SphericalHarmonics" else color_model(color, features, weights)
        self.options = Options.on(
            device,
            accumulate=config.accumulate,
            raw_params=not config.filter_3d,
            antialiased=config.antialiased,
            **Options.of_splat(splat, tuple(config.parameters())),
            normal_gradient=config.has_surfels,
            near_plane=dataset.near,
            camera_gradient=config.refine_cameras,
        )
        # Channels beside the colours.
        self._beside: SurfaceLosses | DepthSupervision | None = (
            SurfaceLosses(device, dataset) if config.has_surfels else DepthSupervision.of(device, dataset, config)
        )
        self._channels, first = (self._beside.channels, self._beside.first) if self._beside else (3, 0)
        self._row = self.options.gradient_row_length(self._channels)
        self._color_offset = self.options.color_offset + first
        # By the size of the render.
        self.targets: dict[tuple[int, int], _Target] = {}
        self._binning: Binning | None = None
        self.capacity = capacity or ISECTS_PER_GAUSSIAN * parameters.count
        self.segments = 1
        self.reserve(parameters)

    def reserve(self, parameters: Parameters) -> None:
        """Allocate the arrays whose size follows the number of Gaussians."""
        count, memory = parameters.count, self._device.memory
        splats = Splats.empty(self._device, 1, count, options=self.options)
        self.splats = replace(splats, extras=parameters.gaussians.extras)
        self._colors = memory.empty((1, count, 3))
        self.v_splats = memory.empty((1, count, self._row))
        # With depths, their gradient is that of the channel after the colours.
        after = StridedRows(self.v_splats, self._row, self._color_offset + 3)
        self._v_depths = after if self._beside else StridedRows(memory.zeros((1, count)), 1)
        self._binning = None

    def reserve_lists(self, overflow: Overflow) -> None:
        """Enlarge the tile lists to hold what did not fit."""
        self.capacity = max(self.capacity, int(overflow.isect_count * _HEADROOM))
        self.segments = max(self.segments, segments_for(self._device, int(overflow.max_tile_count * _HEADROOM)))
        self._binning = None

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
        """Write the gradients to `Parameters.v_…`, `v_splats` and `capture`, and the loss's sums to `sums`. `gaussians` are the
        parameters' own or filtered ones, as many as in the last call of `reserve`."""
        cameras, step, view = capture.cameras, capture.step, capture.view
        target = self.target_of(cameras)
        splats, options = replace(self.splats, rays=target.rays), self.options
        model = camera_model(self._dataset.views[view].camera)
        if model != options.camera_model:
            options = replace(options, camera_model=model)
        if self._binning is None or self._binning.grid != target.grid:
            self._binning = Binning(self._device, splats, target.grid, self.options, capacity=self.capacity)
        binning = self._binning
        projection = Projection(gaussians, cameras, splats, options)
        means, degree = parameters.gaussians.means, self._config.degree_at(step)
        color = self._color or harmonics(degree)
        features = FeatureArrays.of(parameters.features, parameters.features.size // parameters.count)
        shading = Shading(means, features, cameras, splats.radii, self._colors, color, options, weights=parameters.weights)

        # Forward: splats, their colours, the tiles' lists, pixels.
        projection.record(recorder)
        shading.record(recorder)
        binning.record_count(recorder)
        binning.record_lists(recorder)
        # A list is at most as long as there are Gaussians.
        if segments_for(self._device, parameters.count) > self.segments:
            binning.record_max_tile_count(recorder)
        max_list_length = self.segments * (self._device.tuning.segment or ANY_LENGTH)
        binning.record_capacity_check(recorder, status, step, max_list_length)
        colors, background, beside = self._colors, capture.background, self._beside
        if beside is not None:
            colors, background = beside.record_features(recorder, splats, colors), beside.background
        lists = binning.lists(self.segments)
        rasterization = Rasterization(self._device, splats, colors, background, lists, target.image, options)
        rasterization.record(recorder)

        # The loss and its gradient, after environment and exposure.
        shown = target.image
        if beside is not None and target.beside is not None:
            shown = replace(shown, colors=beside.record_colors(recorder, shown, target.beside))
        target.loss.record(recorder, capture.shown(shown), capture.photograph(photograph), sums)
        v_render = target.loss.v_render
        capture.backward(v_render, target.v_alphas)
        if beside is not None and target.beside is not None:
            of_pixels = target.image, target.beside, v_render, target.v_alphas
            v_render = beside.record_gradient(recorder, view, cameras, *of_pixels)

        # Backward: splats' gradients, then Gaussians' and the camera's.
        rasterization.record_backward(recorder, v_render, target.v_alphas, self.v_splats, target.v_rays)
        v_splats, v_gaussians, v_weights = StridedRows(self.v_splats, self._row), parameters.v_gaussians, parameters.v_weights
        v_cameras = capture.v_projection
        projection.record_backward(recorder, v_splats, self._v_depths, v_gaussians, v_cameras, target.v_rays)
        v_colors, v_means = replace(v_splats, offset=self._color_offset), v_gaussians.means
        learnt = parameters.harmonics_step(self._config, step, status) if self.learns_in_shading else None
        v_features = None if learnt else FeatureArrays.of(parameters.v_features, features.stored)
        shading.record_backward(
            recorder, v_colors, v_means, v_features, capture.v_shading, add_to_means=True, v_weights=v_weights, learnt=learnt
        )

    def more_of_means(self, camera: Camera, divisor: int) -> MoreOfMeans | None:
        """Return the gradients that move a splat beside that of its mean, in the camera's image with its sides divided."""
        if self.options.with_rays:
            # The mean has no gradient, but the position has: a pixel is depth / focal length.
            fx, fy = float(camera.K[0, 0]), float(camera.K[1, 1])
            return MoreOfMeans((11, 12), self.splats.depths, (fx / divisor, fy / divisor))
        # A surfel's mean is where u.z / w.z and v.z / w.z are (slang/splat/surfel.slang).
        return MoreOfMeans((4, 7), self.splats.depths) if self.options.along_rays else None

    def target_of(self, cameras: Cameras) -> _Target:
        size = cameras.width, cameras.height
        if size not in self.targets:
            device, (width, height) = self._device, size
            rays = self.options.with_rays, self.options.with_rays and self.options.camera_gradient
            self.targets[size] = _Target(
                Image.empty(
                    device,
                    1,
                    height,
                    width,
                    self._channels,
                    distortion=self._config.has_surfels,
                    hits=self.options.splat_color,
                ),
                TileGrid.over(cameras, self.options.tile_size),
                PhotometricLoss(device, width, height, self._config.ssim_lambda, self._pixel_loss),
                device.memory.zeros((1, height, width, 1)),
                self._beside.target(width, height) if self._beside else None,
                *(device.memory.empty((1, height, width, 6)) if each else None for each in rays),
            )
        return self.targets[size]


class BatchSums:
    """Sums over the photographs of a step: the gradients of `parameters`, and the statistics of densification.

    Call `begin`; after each photograph's backward pass `add`, and `Parameters.record_statistics` into `statistics`; then `end`.
    """

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters
        empty = parameters.device.memory.empty
        v = parameters.v_gaussians
        gradients = [v.means, v.quats, v.scales, v.opacities, parameters.v_features, parameters.v_weights]
        self._gradients = [array for array in gradients if array is not None]
        extras = parameters.gaussians.extras
        self._extras_mean = None if extras is None else empty(extras.shape)
        if self._extras_mean is not None:
            self._gradients.append(self._extras_mean)
        self._sums = [empty(array.shape) for array in self._gradients]
        # Statistics of this step, by their names in `Parameters`.
        self.statistics = {name: empty(parameters.count) for name in Parameters.STATISTICS}

    @property
    def sums(self) -> list[Array]:
        """The arrays to add up over processes, after the last `add`."""
        return [*self._sums, self.statistics["gradient_norms"], self.statistics["times_seen"]]

    @property
    def largest(self) -> list[Array]:
        """The arrays to combine over processes by their largest values."""
        return [self.statistics["max_radii"]]

    def begin(self, recorder: Recorder) -> None:
        """Clear the sums, before the first photograph."""
        for array in (*self.sums, *self.largest):
            recorder.clear(array)

    def add(self, recorder: Recorder, v_splats: Array) -> None:
        """Add a photograph's gradients of `parameters`, and of extras in the splats' rows."""
        recorder.stage("batch")
        for gradients, total in zip(self._gradients, self._sums, strict=True):
            in_rows = gradients is self._extras_mean
            rows = extras_of(v_splats, total.shape[1]) if in_rows else StridedRows(gradients, 0)
            self._add_scaled(recorder, rows, total, 1.0)

    def end(self, recorder: Recorder, photographs: int, status: Array) -> StridedRows | None:
        """Finish a step of so many photographs: turn the parameters' gradients into means, and add the step's statistics to the
        parameters' unless the step does not count. Returns the gradients of extras."""
        recorder.stage("batch")
        for mean, total in zip(self._gradients, self._sums, strict=True):
            recorder.clear(mean)
            self._add_scaled(recorder, StridedRows(total, 0), mean, 1 / photographs)
        arrays, count = self._parameters.arrays, self._parameters.count
        own: dict[str, Any] = {name: arrays[name] for name in Parameters.STATISTICS}
        recorder.dispatch(
            "densify",
            "addStepStatistics",
            linear_groups(count),
            gaussians=count,
            status=status,
            step_norms=self.statistics["gradient_norms"],
            step_times=self.statistics["times_seen"],
            step_radii=self.statistics["max_radii"],
            **own,
        )
        return None if self._extras_mean is None else StridedRows(self._extras_mean, self._extras_mean.shape[1])

    def _add_scaled(self, recorder: Recorder, gradients: StridedRows, total: Array, scale: float) -> None:
        arguments: dict[str, Any] = {"scale": scale, "gradients": gradients.rows, "gradient_sums": total}
        if gradients.stride:
            arguments |= {"ROW": total.shape[1], "STRIDE": gradients.stride, "OFFSET": gradients.offset}
        record_floats(recorder, "addScaled", total, **arguments)


def extras_of(v_splats: Array, extras: int) -> StridedRows:
    """Return the gradients of extras, which are at the ends of the splats' rows."""
    stride = v_splats.shape[-1]
    return StridedRows(v_splats, stride, stride - extras)
