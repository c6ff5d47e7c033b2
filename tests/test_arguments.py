"""Arguments of public functions and options of every configuration: valid, or refused in one sentence that names them."""

import math
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import splat_py as splat
from splat_py.base.errors import SplatError
from splat_py.image.options import Rates
from splat_py.train.config import TrainConfig
from splat_py.volume.config import VolumeConfig
from tests.refusals import refused
from tests.scene.captures import ring, write_transforms

FIELD = splat.volume.RadianceField(torch.ones(2, 2, 2), torch.ones(2, 2, 2, 1, 3), [[0] * 3, [1] * 3], [0, 0, 0])
CAMERA = {"viewmat": np.eye(4), "K": np.diag([9.0, 9, 1]), "width": 8, "height": 6}


@pytest.mark.parametrize("name", ["downscale", "test_every", "memory_limit_bytes"])
@pytest.mark.parametrize("value", [None, "8", float("nan"), float("inf"), [1, 2], 10**400], ids=repr)
def test_numbers_of_a_dataset(name: str, value: Any, tmp_path: Path) -> None:
    refused(f"^{name} is .*; it must be a finite number$", splat.load_dataset, tmp_path, **{name: value})


def test_numbers_of_other_libraries_are_numbers(tmp_path: Path) -> None:
    write_transforms(tmp_path, ring(4))
    dataset = splat.load_dataset(tmp_path, downscale=np.float32(2), test_every=torch.tensor(2))  # type: ignore[arg-type]
    assert (len(dataset.test), dataset.views[0].camera.width) == (2, 24)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"viewmat": "poses.txt"}, "camera: viewmat is .poses.txt.; give numbers"),
        ({"K": [[1, 2], [3]]}, "camera: K is .*; give numbers"),
        ({"width": None}, "width is None; it must be a finite number"),
        ({"height": (8, 6)}, r"height is \(8, 6\); it must be a finite number"),
    ],
    ids=str,
)
def test_cameras(argument: dict[str, Any], message: str) -> None:
    for function in (splat.Camera, FIELD.render):
        refused(message, function, **CAMERA | argument)


@pytest.mark.parametrize("value", ["far", math.nan, 10**400, [[1], 2], None], ids=repr)
def test_where_cameras_go_and_rays_march(value: Any) -> None:
    camera, origin, sides = splat.Camera(**CAMERA), np.zeros(3), {"width": 8, "height": 6}
    calls: list[tuple[Any, dict[str, Any]]] = [
        (splat.Camera.look_at, {"eye": origin, "target": [0, 0, 1], "up": [0, 1, 0], "fov_y_degrees": 40, **sides}),
        (splat.Camera.posed, {"position": origin, "turn": np.eye(3), "fov_y_degrees": 40, **sides}),
        (camera.resized, sides),
        (camera.moved, {"rotation": origin, "translation": origin}),
        (camera.scaled, {"factor": 2}),
        (partial(FIELD.march, torch.zeros(1, 3), torch.ones(1, 3)), {"seed": 0} | ({"steps_per_unit": 1} if value else {})),
    ]
    for function, given in calls:
        for name in given:
            refused(f"{name} ", function, **given | {name: value})


def test_a_camera_at_a_learnt_pose() -> None:
    pose = torch.eye(4, requires_grad=True)
    np.testing.assert_array_equal(splat.Camera(**CAMERA | {"viewmat": pose}).viewmat, np.eye(4))


@pytest.fixture(scope="module")
def of_scenes() -> dict[Any, dict[str, Any]]:
    """Functions of scenes with the arguments that each needs."""
    rng = np.random.default_rng(3)
    scene = splat.Gaussians.from_points(*rng.uniform(0.0, 1.0, (2, 12, 3)).astype(np.float32))
    camera = splat.Camera.look_at((0.5, 0.5, -2), (0.5, 0.5, 0.5), (0, -1, 0), 40, 8, 6)
    one, known = {"gaussians": scene, "camera": camera}, splat.information(scene, [camera], probes=1)
    return {
        splat.render: {**one, "background": (0, 0, 0)},
        splat.inspect: {**one, "x": np.int64(2), "y": torch.tensor(3), "background": [0, 0, 0.5], "v_pixel": (1, 1, 1)},
        splat.localize: {**one, "photograph": np.zeros((6, 8, 3)), "background": (0, 0, 0), "steps": 1},
        splat.information: {"gaussians": scene, "cameras": iter([camera]), "probes": 1, "seed": 2},
        splat.uncertainty: {**one, "known": known, "probes": 1, "seed": 2},
        splat.suggest: {"gaussians": scene, "candidates": [camera], "known": known, "wanted": known, "count": 1, "probes": 1},
        splat.mesh: {"gaussians": scene, "cameras": [camera], "resolution": 16, "bounds": [[0, 0, 0], [1, 1, 1]]},
        splat.orbit: {"cameras": (camera, camera), "n": 2, "points": np.ones((1, 3))},
    }


@pytest.mark.parametrize("value", ["scene.ply", math.nan, 1.5, 10**400, {"a": 1}, np.zeros((3, 2)), [[1], 2]], ids=repr)
def test_functions_of_scenes(of_scenes: dict[Any, dict[str, Any]], value: Any) -> None:
    for function, given in of_scenes.items():
        for name in given:
            refused(f"^{name} ", function, **given | {name: value})


def test_what_functions_of_scenes_take(of_scenes: dict[Any, dict[str, Any]]) -> None:
    """Integers of other libraries, and any iterable of cameras; an empty scene shows no surface."""
    for function, given in of_scenes.items():
        if function is not splat.mesh:
            assert function(**given) is not None


@pytest.mark.parametrize("side", ["6", None, 6.5, float("nan")])
def test_sides_of_a_picture(side: Any) -> None:
    refused(r"width is .*; it must be a finite number|the size is 6.5×4", splat.image.render, torch.zeros(9, 4), side, 4)


@pytest.mark.parametrize("device", ["cpu", 3, torch.device("cpu")], ids=str)
def test_what_is_no_device(device: Any) -> None:
    refused(r"^device ", splat.image.fit, np.zeros((4, 4, 3)), blobs=2, steps=1, device=device)


def test_a_device_may_be_named() -> None:
    device = splat.get_device()
    name = device.adapter.backend
    tensors = torch.zeros(1, 3), torch.ones(1, 4), torch.ones(1, 3), torch.ones(1), torch.ones(1, 3), torch.eye(4)[None]
    image, _, _ = splat.rasterization(*tensors, torch.eye(3)[None], 4, 4, device=name)
    assert image.shape == (1, 4, 4, 3)
    assert splat.get_device(device) is device


NONSENSE = [math.nan, math.inf, -math.inf, 1e38, -1, -1e-9, 10**400, -(10**5000), None, "x" * 1000, [], True, 1j]
CASES = [(kind, field.name) for kind in (TrainConfig, VolumeConfig, Rates) for field in fields(kind)]


def build(kind: Any, name: str, value: object) -> Any:
    config = replace(kind(), **{name: value})
    if isinstance(config, TrainConfig):
        config.validate()
    return config


@pytest.mark.parametrize(("kind", "name"), CASES, ids=lambda x: getattr(x, "__name__", x))
def test_nonsense_is_refused_by_name(kind: type, name: str) -> None:
    for value in NONSENSE:
        if value is True and isinstance(getattr(kind(), name), bool):
            continue
        # No parameters; and any text as a source, which is not used here.
        if (value == [] and name in ("splat_params", "splat_param_lrs", "camera_params")) or (
            isinstance(value, str) and name.endswith("_source")
        ):
            continue
        with pytest.raises(SplatError, match=rf"^{name} ") as error:
            build(kind, name, value)
        assert len(str(error.value)) < 200


@pytest.mark.parametrize("kind", [TrainConfig, VolumeConfig, Rates])
def test_defaults_are_valid(kind: type) -> None:
    for field in fields(kind):
        build(kind, field.name, getattr(kind(), field.name))


def test_fields_of_files_are_checked() -> None:
    for field in ({"antialiased": "true; } int x = 1"}, {"accumulate": "hash"}, {"steps": 0}):
        with pytest.raises((SplatError, TypeError), match=f"{next(iter(field))} is "):
            TrainConfig.from_dict(field)
    refused("jitter is 1", VolumeConfig, jitter=1)


@pytest.mark.parametrize("resolutions", [1022.0, "64", (64, "x"), (64, 2.5), (64, math.nan), (), (10**400,), 7, None])
def test_resolutions(resolutions: object) -> None:
    refused(r"^resolutions ", VolumeConfig, resolutions)
