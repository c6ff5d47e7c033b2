"""Scenes as folders of PNGs."""

from splat_py.gsplat.compression.png_compression import PngCompression
from splat_py.gsplat.compression.sort import sort_splats

__all__ = ["PngCompression", "sort_splats"]
