"""What a run has learnt of its capture beside the scene, as its folder keeps it for other commands (capture.safetensors)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from splat_py.errors import SplatError
from splat_py.files import Layout, load_tensors, save_tensors
from splat_py.fit.checked import require_finite, require_layout
from splat_py.fit.checkpoint import reading
from splat_py.scene.dataset import Dataset
from splat_py.splats.camera_refinement import POSES, refined_dataset
from splat_py.splats.capture_model import capture_shapes
from splat_py.splats.config import TrainConfig
from splat_py.splats.environment import ENVIRONMENT, Environment
from splat_py.splats.parameters import State

_KIND = "splat_py.capture"


@dataclass(frozen=True)
class LearntCapture:
    """Exposures, poses, intrinsics and environment, those of them that a run was asked for, by their names in checkpoints."""

    arrays: State

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> LearntCapture:
        """From `CaptureModel.state`, without what only the optimiser needs."""
        return cls({name: values for name, values in state.items() if "." not in name})

    def save(self, path: Path) -> None:
        """Write to `path`, atomically; nothing if there is nothing."""
        if self.arrays:
            save_tensors(path, _KIND, {}, self.arrays)

    @classmethod
    def load(cls, path: Path, config: TrainConfig) -> LearntCapture:
        """Read what a run with this configuration has left.

        Raises:
            SplatError: the file is missing though the run learns something, or damaged.
        """
        if not (config.exposure or config.refine_cameras or config.environment):
            return cls({})

        def check(header: dict[str, Any], layout: Layout) -> None:
            shapes = capture_shapes(config, layout)
            require_layout(layout, {name: shape for name, shape in shapes.items() if "." not in name})

        with reading(path, "what a run has learnt of its capture", "train again", absent="finish the run with --resume"):
            _, arrays = load_tensors(path, _KIND, check)
            require_finite(arrays)
            return cls(arrays)

    @property
    def environment(self) -> Environment | None:
        """What is behind the scene, if that is known."""
        return Environment(self.arrays[ENVIRONMENT]) if ENVIRONMENT in self.arrays else None

    def refined(self, dataset: Dataset) -> Dataset:
        """The dataset with refined cameras, if they are.

        Raises:
            SplatError: the dataset has another number of training views.
        """
        if POSES not in self.arrays:
            return dataset
        if len(self.arrays[POSES]) != len(dataset.train):
            raise SplatError(
                f"the run has refined {len(self.arrays[POSES])} cameras, but {dataset.root} trains on {len(dataset.train)}; "
                "name the capture that it was trained on with --data"
            )
        return refined_dataset(dataset, self.arrays)
