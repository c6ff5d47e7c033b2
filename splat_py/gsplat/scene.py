"""gsplat's container of Gaussians, whose extra tensors follow row changes by strategies, and its list of scenes."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Parameter, ParameterDict

from splat_py.base.errors import SplatError
from splat_py.gsplat.unsupported import GaussianInferenceScene, SHCompressionMode  # noqa: F401

# Parameters that every scene and every strategy needs.
REQUIRED = ("means", "scales", "quats", "opacities")


class SceneError(SplatError, ValueError, KeyError):
    """Splats, signals or a component do not fit a scene. Also a ValueError and KeyError, as scripts for gsplat expect."""

    __str__ = Exception.__str__


class Scene(ABC):
    """A scene with an `id`, the name on a `Stage`, for scripts to derive from. Strategies report every change of rows with
    the methods of `GaussianScene` that begin with `on_`; here they do nothing."""

    def __init__(self, id: str) -> None:
        if not isinstance(id, str) or not id:
            raise SceneError(f"id is {id!r}; give the scene a name that is not empty")
        self.id = id

    @abstractmethod
    def put(self, name: str, component: Any) -> None:
        """Add a component."""

    @abstractmethod
    def get(self, component: str) -> Any:
        """A component by its name."""

    def on_duplicate(self, *rows: Any, **named: Any) -> None:  # noqa: B027, optional to override
        """No tensor follows."""

    on_split = on_remove = on_relocate = on_sample_add = on_permute = on_duplicate


class GaussianScene(Scene):
    """Gaussians of one or several concatenated components for a `Stage` to render. Strategies report every change of rows with
    `on_duplicate` and similar methods, which get row indices or a mask.

    Attributes:
        id: the name on a `Stage`, not empty.
        splats: parameters [N, ...] by name, including `means`, `scales`, `quats` and `opacities`.
        signal: further tensors [N, ...] by name, which are not trained.
        component_names, component_index: names of the components, and each Gaussian's component, [N] int64.
    """

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self.splats = ParameterDict()
        self.signal: dict[str, Tensor] = {}
        self.component_names: list[str] = []
        self.component_index = torch.zeros(0, dtype=torch.int64)

    @classmethod
    def from_splats(cls, splats: ParameterDict, id: str, signal: dict[str, Tensor] | None = None) -> Self:
        """A scene with one component of the same name. The parameters are not copied."""
        scene = cls(id)
        if "means" in splats:
            scene.signal = {name: values.to(splats["means"].device) for name, values in (signal or {}).items()}
        scene.put(id, splats)
        return scene

    def put(self, name: str, component: ParameterDict) -> None:
        """Add a component. The first component's parameters are not copied. A further component makes new parameters, so add it
        before creating optimisers; its signals are 0. SceneError if the name is empty or taken, a parameter is missing, or
        their lengths differ."""
        if not name or name in self.component_names:
            raise SceneError(f"component name {name!r} is {'taken' if name else 'empty'}; give another")
        if "means" not in component:
            raise SceneError(f"component {name!r} has no means; it needs {list(REQUIRED)}")
        added = len(component["means"])
        if not self.component_names:
            self.splats = component
        else:
            if missing := [key for key in self.splats if key not in component]:
                raise SceneError(f"component {name!r} lacks {missing}, which the scene's splats have")
            joined = {key: torch.cat([old.detach(), component[key].detach()]) for key, old in self.splats.items()}
            self.splats = _parameters(joined, {key: old.requires_grad for key, old in self.splats.items()})
            zeros = {key: values.new_zeros(added, *values.shape[1:]) for key, values in self.signal.items()}
            self.signal = {key: torch.cat([values, zeros[key]]) for key, values in self.signal.items()}
        index = torch.full((added,), len(self.component_names), device=self.splats["means"].device)
        self.component_index = torch.cat([self.component_index.to(index.device), index])
        self.component_names.append(name)
        self.validate()

    def get(self, component: str | int) -> dict[str, Any]:
        """A component's `name`, `index`, `mask` [N], and rows of `splats` and `signal`."""
        names = self.component_names
        index = component if isinstance(component, int) else names.index(component) if component in names else -1
        if not 0 <= index < len(names):
            raise SceneError(f"component {component!r} is not in the scene; it has {names}")
        mask = self.component_index == index
        return {
            "name": names[index],
            "index": index,
            "mask": mask,
            "splats": {key: values[mask] for key, values in self.splats.items()},
            "signal": {key: values[mask] for key, values in self.signal.items()},
        }

    def num_gaussians(self) -> int:
        """Return N."""
        return len(self.splats["means"]) if "means" in self.splats else 0

    def validate(self) -> None:
        """Check that all tensors have N rows and belong to components."""
        count = self.num_gaussians()
        if len(self.splats) and (missing := [key for key in REQUIRED if key not in self.splats]):
            raise SceneError(f"missing required splat keys {missing}; a scene needs {list(REQUIRED)}")
        given = {**self.splats, **self.signal, "component_index": self.component_index}
        if wrong := {key: len(values) for key, values in given.items() if len(values) != count}:
            raise SceneError(f"a scene of {count} Gaussians has other lengths in {wrong}; leading dim must be num_gaussians")
        if count and not 0 <= int(self.component_index.min()) <= int(self.component_index.max()) < len(self.component_names):
            raise SceneError(f"component_index has values outside the {len(self.component_names)} components")

    def state_dict(self) -> dict[str, Any]:
        """Copies of the whole state, for `torch.save` and `from_state_dict`."""
        return {
            "id": self.id,
            "splats": {key: values.detach().clone() for key, values in self.splats.items()},
            "splats_requires_grad": {key: values.requires_grad for key, values in self.splats.items()},
            "signal": {key: values.detach().clone() for key, values in self.signal.items()},
            "component_names": list(self.component_names),
            "component_index": self.component_index.clone(),
        }

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> Self:
        """Restore a scene from `state_dict`, on the splats' device. An older state without components gets one, all trainable.
        SceneError if the state has no id or splats, or lengths differ."""
        if lacking := [key for key in ("id", "splats") if key not in state]:
            raise SceneError(f"the state lacks {lacking}; give one that state_dict returned")
        scene = cls(state["id"])
        copies = {key: values.clone() for key, values in state["splats"].items()}
        scene.splats = _parameters(copies, state.get("splats_requires_grad", {}))
        scene.signal = dict(state.get("signal", {}))
        count = scene.num_gaussians()
        scene.component_names = list(state.get("component_names", [])) or [scene.id] * (count > 0)
        index = state.get("component_index", torch.zeros(count, dtype=torch.int64))
        scene.component_index = index.to(scene.splats["means"].device) if count else index
        scene.validate()
        return scene

    def on_duplicate(self, sel: Tensor) -> None:
        """Copies of the rows `sel` were appended."""
        rows = self._rows()
        self._gather(torch.cat([rows, rows[sel]]))

    def on_split(self, sel: Tensor, rest: Tensor) -> None:
        """The rows are now `rest`, followed by `sel` twice."""
        rows = self._rows()
        self._gather(torch.cat([rows[rest], rows[sel], rows[sel]]))

    def on_remove(self, mask: Tensor) -> None:
        """Rows with `mask` [N] true were removed."""
        self._gather(self._rows()[~mask])

    def on_relocate(self, dead_indices: Tensor, sampled_indices: Tensor) -> None:
        """The rows `dead_indices` became copies of the rows `sampled_indices`."""
        rows = self._rows()
        rows[dead_indices] = rows[sampled_indices]
        self._gather(rows)

    def on_sample_add(self, sampled_indices: Tensor) -> None:
        """Copies of the rows `sampled_indices` were appended."""
        self.on_duplicate(sampled_indices)

    def on_permute(self, order: Tensor) -> None:
        """Row i is now the former row order[i]."""
        self._gather(order)

    def _rows(self) -> Tensor:
        return torch.arange(len(self.component_index), device=self.component_index.device)

    def _gather(self, rows: Tensor) -> None:
        self.component_index = self.component_index[rows]
        self.signal = {key: values[rows] for key, values in self.signal.items()}


def _parameters(values: dict[str, Tensor], trained: dict[str, bool]) -> ParameterDict:
    return ParameterDict({key: Parameter(value, requires_grad=trained.get(key, True)) for key, value in values.items()})


class Stage:
    """Scenes by id, each with its render function."""

    def __init__(self) -> None:
        self._scenes: dict[str, tuple[GaussianScene, Callable[..., Any]]] = {}

    def add_scene(self, scene: GaussianScene, render_fn: Callable[..., Any]) -> None:
        """Let `render(scene.id, ...)` call render_fn(splats=scene.splats, ...)."""
        if scene.id in self._scenes:
            raise SceneError(f"scene {scene.id!r} is already registered; choose another id")
        self._scenes[scene.id] = (scene, render_fn)

    def scene_ids(self) -> list[str]:
        """All ids in the order of addition."""
        return list(self._scenes)

    def get_scene(self, scene_id: str) -> GaussianScene:
        """The scene with this id."""
        return self._find(scene_id)[0]

    def render(self, scene_id: str, **kwargs: Any) -> Any:
        """Call the scene's function with its current splats and with kwargs, and return its result."""
        scene, render_fn = self._find(scene_id)
        return render_fn(splats=scene.splats, **kwargs)

    def _find(self, scene_id: str) -> tuple[GaussianScene, Callable[..., Any]]:
        if scene_id not in self._scenes:
            raise SceneError(f"scene {scene_id!r} is not registered; the ids are {self.scene_ids()}")
        return self._scenes[scene_id]
