"""Training views on the device: cameras, photographs over a background, and known depths with their loss. Small photographs
come first: their steps are faster and fit the large structures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.base.errors import SplatError
from splat_py.fit.steps import Photographs
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.render.cameras import CAMERA_MODELS, LENS, LENS_MODELS, Cameras
from splat_py.render.images import Image
from splat_py.render.splats import Splats
from splat_py.scene.camera import Camera
from splat_py.scene.dataset import DEFAULT_MEMORY_LIMIT, Dataset, KnownDepths, surface_pixels
from splat_py.scene.images import ImageStore, averaged
from splat_py.train.config import TrainConfig
from splat_py.train.photometric_loss import pack

# The fewest pixels that the shorter side keeps.
_FEWEST_PIXELS = 64
# Number of random backgrounds; all are uploaded before training, so that no step waits for one.
_BACKGROUNDS = 64


class TrainingViews:
    """Cameras and photographs with sides divided by `divisor`; up to `limit_bytes` of photographs stay on the device.
    `surfaces` has a view's `surface_pixels` as bits, 32 in a uint32, the first one lowest."""

    def __init__(self, device: Device, dataset: Dataset, divisor: int, limit_bytes: int) -> None:
        self.divisor = divisor
        self._device, self._dataset = device, dataset
        self._cameras: dict[int, Cameras] = {}

        def load(view: int) -> NDArray:
            photograph, camera = dataset.image(view), dataset.views[view].camera.scaled(1 / divisor)
            return pack(photograph if divisor == 1 else averaged(photograph[..., :3], photograph[..., 3] < 255, camera))

        def load_surfaces(view: int) -> NDArray:
            mask = surface_pixels(dataset.views[view].camera.scaled(1 / divisor), dataset.points)
            bits = np.packbits(mask, bitorder="little")
            return np.pad(bits, (0, -len(bits) % 4)).view("<u4")

        self.photographs = Photographs(device.memory, load, limit_bytes)
        self.surfaces = Photographs(device.memory, load_surfaces)

    def cameras_of(self, view: int) -> Cameras:
        if view not in self._cameras:
            camera = self._dataset.views[view].camera.scaled(1 / self.divisor)
            self._cameras[view] = device_camera(self._device, camera)
        return self._cameras[view]


def largest_divisor(dataset: Dataset) -> int:
    """Return the largest divisor of the training photographs' sides: 1, 2 or 4."""
    side = min(min(dataset.views[i].camera.width, dataset.views[i].camera.height) for i in dataset.train)
    return max((divisor for divisor in (2, 4) if side >= divisor * _FEWEST_PIXELS), default=1)


def device_camera(device: Device, camera: Camera) -> Cameras:
    def row(values: ArrayLike) -> Array:
        return device.memory.array(np.asarray(values, np.float32)[None])

    given = camera.coefficients
    lenses = row([*given, *[0.0] * (LENS - len(given))]) if given else None
    return Cameras(row(camera.viewmat), row(camera.K), camera.width, camera.height, lenses=lenses)


def camera_model(camera: Camera) -> str | UserType:
    """Return the type in slang/splat that projects as a camera does, or the user's type."""
    lens, model = camera.distortion, camera.model
    if model is not None and not isinstance(model, str):
        return model
    name = model or ("fisheye" if lens and lens.fisheye else "pinhole")
    return (CAMERA_MODELS if lens is None else LENS_MODELS)[name]


class RandomBackgrounds:
    """Background colours, drawn for each step from (seed, step), and photographs over them."""

    def __init__(self, device: Device, dataset: Dataset, seed: int) -> None:
        self._seed, self._colors = seed, np.random.default_rng(seed).uniform(size=(_BACKGROUNDS, 3)).astype(np.float32)
        self._arrays = [device.memory.array(color[None]) for color in self._colors]
        self._has_alpha = [view.has_alpha for view in dataset.views]

        def photographs_over(shade: float) -> Photographs:
            store = ImageStore(dataset.views, np.full(3, shade, np.float32), DEFAULT_MEMORY_LIMIT)
            return Photographs(device.memory, lambda view: pack(store[view]))

        # The difference between a photograph over black and over white is its transparency.
        self._over = [photographs_over(shade) for shade in (0, 1)] if any(self._has_alpha) else []

    def at(self, step: int) -> Array:
        """Return the background of a step, [1, 3]."""
        return self._arrays[self._number(step)]

    def record(self, recorder: Recorder, step: int, view: int, photograph: Array) -> Array:
        """Return a view's photograph over the step's background, as from `pack`; unchanged if it has no alpha channel."""
        if not self._has_alpha[view]:
            return photograph
        black, white = (photographs[view] for photographs in self._over)
        composed = recorder.scratch(photograph.shape, np.uint32)
        record_composition(recorder, [*map(float, self._colors[self._number(step)])], black, white, composed)
        return composed

    def _number(self, step: int) -> int:
        return int(np.random.default_rng((self._seed, step)).integers(_BACKGROUNDS))


def record_composition(recorder: Recorder, background: Sequence[float], black: Array, white: Array, composed: Array) -> None:
    """Compose a photograph over a background, rgb, from those over black and over white, [H, W] uint32 as from `pack`."""
    color: dict[str, Any] = dict(zip(("red", "green", "blue"), background, strict=True))
    arrays: dict[str, Any] = {"over_black": black, "over_white": white, "composed": composed}
    groups, pixels = linear_groups(composed.size), composed.size
    recorder.dispatch("background", "composePhotograph", groups, pixels=pixels, **color, **arrays)


@dataclass(frozen=True)
class DepthTarget:
    colors: Array  # [1, H, W, 3]
    v_render: Array  # [1, H, W, channels]


class MoreChannels:
    """Channels that a step blends beside the colours, for losses of depths: `channels` with the colours, which are three from
    `first` on. Depth is the one after them."""

    channels, first = 4, 0

    def __init__(self, device: Device, background: NDArray[np.float32]) -> None:
        self._device, self.background = device, device.memory.array(background[None])

    def target(self, width: int, height: int) -> DepthTarget:
        empty = self._device.memory.empty
        return DepthTarget(empty((1, height, width, 3)), empty((1, height, width, self.channels)))

    def record_colors(self, recorder: Recorder, image: Image, target: DepthTarget) -> Array:
        """Return the colours [1, H, W, 3] of the render."""
        arrays, count = {"rendered": image.colors, "rendered_colors": target.colors}, image.alphas.size
        groups, how = linear_groups(count), {"STRIDE": self.channels, "FIRST": self.first}
        recorder.stage("depth")
        recorder.dispatch("loss", "takeColors", groups, count=count, **arrays, **how)
        return target.colors


class DepthSupervision(MoreChannels):
    """Depths as a fourth channel after the colours (kernels/loss.slang), and the depth loss,
    λ · scene scale · mean |1 / D - 1 / D*| over the pixels with a known depth D*; D is the expected depth. `known` maps a view
    to its D*, [H, W], 0 where unknown."""

    def __init__(
        self, device: Device, dataset: Dataset, depth_lambda: float, known: KnownDepths | Mapping[int, NDArray[np.float32]]
    ) -> None:
        super().__init__(device, np.append(dataset.background, np.float32(0)))
        self._weight, self._known = depth_lambda * dataset.scene_scale, known
        # Number of pixels with known depths, by view.
        self._counts: dict[int, int] = {}
        self._arrays = Photographs(device.memory, self._load)

    @classmethod
    def of(cls, device: Device, dataset: Dataset, config: TrainConfig) -> Self | None:
        """Make what `config` asks for, None without a depth loss. SplatError if the dataset has no known depths, or `config`
        replaces its cameras."""
        if config.depth_lambda == 0:
            return None
        if config.camera != "dataset":
            raise SplatError("depth_lambda needs the capture's own cameras, to which known depths belong; leave out camera")
        for other in ("environment", "random_background"):
            if getattr(config, other):
                raise SplatError(f"depth_lambda cannot be combined with {other}: both set one gradient; leave out one")
        return cls(device, dataset, config.depth_lambda, KnownDepths(dataset))

    def record_features(self, recorder: Recorder, splats: Splats, colors: Array) -> Array:
        """Return the features to blend, [1, N, 4]: colours and depths of splats."""
        features = recorder.scratch((*splats.depths.shape, self.channels))
        self._dispatch(recorder, "appendDepth", splats.count, colors=colors, depths=splats.depths, features=features)
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
        """Return the gradient [1, H, W, 4] of both losses; `v_colors` is the photometric loss's. Overwrites `v_alphas`."""
        # Loading a view's depths sets their count.
        arrays = {"rendered": image.colors, "alphas": image.alphas, "known": self._arrays[view]}
        v = {"v_colors": v_colors, "v_rendered": target.v_render, "v_alphas": v_alphas}
        weight = self._weight / max(self._counts[view], 1)
        self._dispatch(recorder, "depthGradient", image.alphas.size, weight=weight, **arrays, **v)
        return target.v_render

    def _load(self, view: int) -> NDArray[np.float32]:
        known = self._known[view]
        self._counts[view] = int((known > 0).sum())
        return known

    def _dispatch(self, recorder: Recorder, entry: str, count: int, **arguments: Any) -> None:
        recorder.stage("depth")
        recorder.dispatch("loss", entry, linear_groups(count), count=count, **arguments)
