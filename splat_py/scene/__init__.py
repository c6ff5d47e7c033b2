"""Scenes: Gaussians, cameras, captured datasets, and the files they come in."""

from splat_py.scene.camera import Camera, orbit
from splat_py.scene.dataset import Dataset, load_dataset
from splat_py.scene.gaussians import Gaussians

__all__ = ["Camera", "Dataset", "Gaussians", "load_dataset", "orbit"]
