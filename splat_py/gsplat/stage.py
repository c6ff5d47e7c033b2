"""gsplat's list of scenes, each with the function that renders it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from splat_py.gsplat.scene import GaussianScene, SceneError


class Stage:
    """Scenes by their id, and how to render each."""

    def __init__(self) -> None:
        self._scenes: dict[str, tuple[GaussianScene, Callable[..., Any]]] = {}

    def add_scene(self, scene: GaussianScene, render_fn: Callable[..., Any]) -> None:
        """Let `render(scene.id, ...)` call render_fn(splats=scene.splats, ...).

        Raises:
            SceneError: a scene of this id is already there.
        """
        if scene.id in self._scenes:
            raise SceneError(f"scene {scene.id!r} is already registered; give this one another id")
        self._scenes[scene.id] = (scene, render_fn)

    def scene_ids(self) -> list[str]:
        """All ids, in the order in which scenes were added."""
        return list(self._scenes)

    def get_scene(self, scene_id: str) -> GaussianScene:
        """The scene of an id.

        Raises:
            SceneError: there is none.
        """
        return self._find(scene_id)[0]

    def render(self, scene_id: str, **kwargs: Any) -> Any:
        """What the scene's function returns, called with its current splats and with kwargs.

        Raises:
            SceneError: no scene has this id.
        """
        scene, render_fn = self._find(scene_id)
        return render_fn(splats=scene.splats, **kwargs)

    def _find(self, scene_id: str) -> tuple[GaussianScene, Callable[..., Any]]:
        if scene_id not in self._scenes:
            raise SceneError(f"scene {scene_id!r} is not registered; there are {self.scene_ids()}")
        return self._scenes[scene_id]
