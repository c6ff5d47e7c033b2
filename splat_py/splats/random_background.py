"""Backgrounds that change from step to step: what is transparent in photographs stays so (kernels/random_background.slang)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from splat_py.fit.photographs import Photographs
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, linear_groups
from splat_py.scene.dataset import DEFAULT_MEMORY_LIMIT, Dataset
from splat_py.scene.images import ImageStore
from splat_py.splats.loss import pack

# Backgrounds lie on the device before training, so that no step waits for one.
_BACKGROUNDS = 64


class RandomBackgrounds:
    """Colours behind the scene, drawn anew for each step from (seed, step), and photographs over them."""

    def __init__(self, device: Device, dataset: Dataset, seed: int) -> None:
        self._seed = seed
        self._colors = np.random.default_rng(seed).uniform(size=(_BACKGROUNDS, 3)).astype(np.float32)
        self._arrays = [device.memory.array(color[None]) for color in self._colors]
        self._has_alpha = [view.has_alpha for view in dataset.views]
        # What is transparent is known by the difference.
        self._over = []
        if any(self._has_alpha):
            for shade in (0, 1):
                store = ImageStore(dataset.views, np.full(3, shade, np.float32), DEFAULT_MEMORY_LIMIT)
                self._over.append(Photographs(device.memory, _Packed(store)))

    def at(self, step: int) -> Array:
        """The background of a step, [1, 3]."""
        return self._arrays[self._number(step)]

    def record(self, recorder: Recorder, step: int, view: int, photograph: Array) -> Array:
        """The photograph of a view as from `pack` over it; `photograph` itself if it has no alpha channel."""
        if not self._has_alpha[view]:
            return photograph
        black, white = (photographs[view] for photographs in self._over)
        composed = recorder.scratch(photograph.shape, np.uint32)
        red, green, blue = map(float, self._colors[self._number(step)])
        record_composition(recorder, (red, green, blue), black, white, composed)
        return composed

    def _number(self, step: int) -> int:
        return int(np.random.default_rng((self._seed, step)).integers(_BACKGROUNDS))


def record_composition(
    recorder: Recorder, background: tuple[float, float, float], black: Array, white: Array, composed: Array
) -> None:
    """Of a photograph over black and over white, [H, W] uint32 as from `pack`, make it over a background."""
    red, green, blue = background
    recorder.dispatch(
        "random_background",
        "composePhotograph",
        linear_groups(composed.size),
        {"pixels": composed.size, "red": red, "green": green, "blue": blue},
        {"overBlack": black, "overWhite": white, "photograph": composed},
    )


class _Packed:
    """`Photographs`' way to load a view."""

    def __init__(self, store: ImageStore) -> None:
        self._store = store

    def __call__(self, view: int) -> NDArray[np.uint32]:
        return pack(self._store[view])
