"""The page of a scene inside a notebook's cell."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from numpy.typing import ArrayLike

from splat_py.scene.camera import Camera
from splat_py.scene.environment import Environment
from splat_py.scene.gaussians import Gaussians
from splat_py.viewer.pages.scene_pages import viewer_page


@dataclass(frozen=True)
class ScenePage:
    """A page that a notebook shows in a frame of `height` pixels."""

    html: str
    height: int

    def __repr__(self) -> str:
        return f"ScenePage of {len(self.html):,} bytes"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" style="width:100%;height:{int(self.height)}px;border:0"></iframe>'


def show(
    gaussians: Gaussians,
    cameras: Sequence[Camera] = (),
    background: ArrayLike | Environment = (0.0, 0.0, 0.0),
    height: int = 480,
) -> ScenePage:
    """Return the page of `splat export`, to walk through a scene in a notebook's cell. A cell that keeps its output keeps the
    page, some megabytes.

    Args:
        cameras: the capture's cameras: the page begins with one of them; without any, with the whole scene.
        background: rgb [3] from 0 to 1, or the environment learnt with the scene.
        height: of the cell's frame, pixels.

    Raises:
        SplatError: the scene is empty, or its splats are not Gaussians.
    """
    return ScenePage(viewer_page(gaussians, cameras, background, "scene")[0], height)
