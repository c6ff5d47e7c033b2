"""What `splat render` and `splat view` can show of a scene: colours, depth, opacity, normals, how much was blended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from splat_py.gpu.device import Device
    from splat_py.render.environment import Environment
    from splat_py.scene.camera import Camera
    from splat_py.scene.gaussians import Gaussians

MODES = ("color", "depth", "normals", "alpha", "contributions")


@dataclass(frozen=True, eq=False)
class RenderSettings:
    """How a scene is drawn, whatever is shown of it.

    Attributes:
        background: rgb from 0 to 1, or what was learnt with the scene.
        scene_scale: the depth, world units, that is shown as the middle grey.
        antialiased: as the Gaussians were trained.
        near: depth of the near plane, world units.
    """

    background: ArrayLike | Environment
    scene_scale: float
    antialiased: bool
    near: float
    device: Device | None = None

    def draw(self, gaussians: Gaussians, camera: Camera, mode: str = "color") -> NDArray[np.float32]:
        """A picture [H, W, 3] from 0 to 1 in one of `MODES`."""
        # Not above: it imports torch, which a mistyped mode need not wait for.
        from splat_py.render.views import render

        return render(gaussians, camera, self.background, mode=mode, scene_scale=self.scene_scale, **self._how)

    def depths(self, gaussians: Gaussians, camera: Camera) -> NDArray[np.float32]:
        """Expected depths [H, W], world units, 0 where there is nothing."""
        from splat_py.render.views import render_depth

        return render_depth(gaussians, camera, **self._how)

    @property
    def _how(self) -> dict[str, Any]:
        return {"antialiased": self.antialiased, "near": self.near, "device": self.device}
