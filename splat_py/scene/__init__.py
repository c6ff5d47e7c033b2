"""Scenes: Gaussians, cameras, captured datasets, and the files they come in."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splat_py.scene.camera import Camera
    from splat_py.scene.camera_paths import orbit
    from splat_py.scene.dataset import Dataset, load_dataset
    from splat_py.scene.gaussians import Gaussians
else:
    from splat_py.base.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "Camera": "splat_py.scene.camera",
            "Dataset": "splat_py.scene.dataset",
            "Gaussians": "splat_py.scene.gaussians",
            "load_dataset": "splat_py.scene.dataset",
            "orbit": "splat_py.scene.camera_paths",
        },
    )

__all__ = ["Camera", "Dataset", "Gaussians", "load_dataset", "orbit"]
