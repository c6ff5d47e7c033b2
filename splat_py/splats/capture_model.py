"""What training learns of a capture beside its scene, each part only where it is asked for: how photographs were exposed."""

from __future__ import annotations

from dataclasses import dataclass

from splat_py.errors import SplatError
from splat_py.files import Layout
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.scene.dataset import Dataset
from splat_py.splats.config import TrainConfig
from splat_py.splats.exposure import EXPOSURE, EXPOSURES, Exposures
from splat_py.splats.parameters import MOMENTS, State
from splat_py.splats.rasterize import Image


class CaptureModel:
    """The parts that a run's options ask for, and their state in checkpoints.

    Raises:
        SplatError: a checkpoint is of another number of photographs.
    """

    def __init__(self, device: Device, config: TrainConfig, dataset: Dataset, state: State | None) -> None:
        count = len(dataset.train)
        if state and EXPOSURES in state and len(state[EXPOSURES]) != count:
            raise SplatError(
                f"the checkpoint knows the exposures of {len(state[EXPOSURES])} photographs, but {dataset.root} trains on "
                f"{count}; name the capture that the run was begun with"
            )
        self._config = config
        self._places = {view: place for place, view in enumerate(dataset.train)}
        self._exposures = Exposures(device, count, state) if config.exposure else None

    def state(self) -> State:
        """A copy of everything, on the host. Nothing that writes it may still be running."""
        return self._exposures.state() if self._exposures else {}

    def step(self, recorder: Recorder, step: int, view: int) -> CaptureStep:
        """What there is to do in a step that compares with a view's photograph."""
        epoch = step // len(self._places)
        return CaptureStep(recorder, self._places[view], epoch, step / self._config.steps, self._exposures)


@dataclass
class CaptureStep:
    """One step: `shown`, `backward` and `update` record what comes where the trainer calls them, in this order."""

    recorder: Recorder
    photograph: int
    epoch: int
    progress: float
    exposures: Exposures | None
    _colors: Array | None = None
    _v_exposure: Array | None = None

    def shown(self, image: Image) -> Array:
        """What is compared with the photograph, [1, H, W, 3]: the render, or what the photograph shows of it."""
        self._colors = image.colors
        return self.exposures.record(self.recorder, self.photograph, image.colors) if self.exposures else image.colors

    def backward(self, v_shown: Array) -> None:
        """The gradient of what `shown` returned becomes that of the render, in place."""
        if self.exposures:
            assert self._colors is not None
            self._v_exposure = self.exposures.record_backward(self.recorder, self.photograph, self._colors, v_shown)

    def update(self, status: Array) -> None:
        """Learn, unless `status` says that the step does not count."""
        if self.exposures:
            assert self._v_exposure is not None
            self.exposures.record_update(self.recorder, self.photograph, self._v_exposure, status, self.epoch, self.progress)


def is_of_capture(name: str) -> bool:
    """Whether an array of a checkpoint is the capture's and not the scene's."""
    return name.partition(".")[0] == EXPOSURES


def capture_shapes(config: TrainConfig, layout: Layout) -> dict[str, tuple[int, ...]]:
    """The shapes of those arrays.

    Raises:
        KeyError, ValueError: one that says how many photographs there are is missing, or has none.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    if config.exposure:
        _, (count, *_) = layout[EXPOSURES]
        if count == 0:
            raise ValueError(f"{EXPOSURES} are of no photograph")
        shapes[EXPOSURES] = (count, EXPOSURE)
    return {f"{name}{suffix}": shape for name, shape in shapes.items() for suffix in ("", *(f".{m}" for m in MOMENTS))}
