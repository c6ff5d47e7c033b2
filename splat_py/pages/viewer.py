"""A scene as one page that opens from disk: PlayCanvas' SuperSplat Viewer, and the scene inside as SOG.

The viewer lies in supersplat-viewer/, as its package has it and packed, with its licence, which goes into each page. Its world
has +y up, and turns what it loads by half a turn about z, from a PLY's axes; so scenes are turned until their up is a PLY's -y.
It draws by WebGL 2, which browsers have everywhere; the address with ?webgpu asks for WebGPU.
"""

from __future__ import annotations

import base64
import html
import json
import lzma
import os
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from splat_py.errors import SplatError
from splat_py.files import atomic_path
from splat_py.scene.camera import Camera, find_focus, mean_up
from splat_py.scene.editing import transform
from splat_py.scene.formats import sog
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.similarity import Similarity

_FOLDER = Path(__file__).parent
_VIEWER = _FOLDER / "supersplat-viewer"
# Of a view of a scene that nothing is known of.
_FOV_DEGREES = 60.0
# The viewer's world from a PLY's axes.
_TURN = np.array([-1.0, -1.0, 1.0])
# In the text of a script these would end it, or hide its end, whatever the language.
_ENDS = re.compile(r"<(?=/script|!--|script)", re.IGNORECASE)


def write_viewer(
    path: str | os.PathLike[str], gaussians: Gaussians, cameras: Sequence[Camera] = (), background: ArrayLike = (0.0, 0.0, 0.0)
) -> list[str]:
    """Write a page, complete or not at all, that begins with the view of the first camera, upright.

    Args:
        cameras: of the capture; without any, the page begins with the whole scene, and a PLY's -y up.
        background: rgb [3] from 0 to 1.

    Returns:
        What the page does not hold of the scene, a clause each.

    Raises:
        SplatError: splats that are no Gaussians, none at all, or what `Gaussians.validate` says.
    """
    path = Path(path)
    gaussians.validate()
    losses = []
    if gaussians.splat != "Gaussian":
        name = gaussians.splat if isinstance(gaussians.splat, str) else gaussians.splat.name
        raise SplatError(f"the page's viewer draws Gaussians only, and these splats are of type {name}; export a .ply")
    if gaussians.color != "SphericalHarmonics":
        name = gaussians.color if isinstance(gaussians.color, str) else gaussians.color.name
        losses.append(f"colours of type {name}, which look the same from all directions in it")
        gaussians = Gaussians(*(getattr(gaussians, n) for n in ("means", "quats", "log_scales", "logit_opacities", "sh")))
    if not len(gaussians):
        raise SplatError("there are no Gaussians to look at")
    first = first_camera(gaussians, cameras)
    upright = _upright(first, cameras, gaussians)
    position, target = upright.points(np.stack([first.position, _target(first, cameras, gaussians)])) * _TURN
    settings = {
        "viewer": _settings(position, target, background),
        "tangents": [first.width / first.K[0, 0] / 2, first.height / first.K[1, 1] / 2],
        "antialiased": gaussians.antialiased,
        "mode": "fly" if _is_inside(first.position, gaussians) else "orbit",
    }
    scene = sog.encode(transform(gaussians, upright).arrays())
    page = Template((_FOLDER / "viewer.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(path.stem),
        version=(_VIEWER / "VERSION").read_text(encoding="utf-8").strip(),
        license=(_VIEWER / "LICENSE").read_text(encoding="utf-8").replace("--", "- -"),
        style=(_VIEWER / "index.css").read_text(encoding="utf-8"),
        settings=_in_script(json.dumps(settings)),
        scene=base64.b64encode(scene).decode(),
        script=_in_script(lzma.decompress((_VIEWER / "index.js.xz").read_bytes()).decode()),
    )
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return losses


def first_camera(gaussians: Gaussians, cameras: Sequence[Camera] = ()) -> Camera:
    """The camera that a page begins with: the first one, made upright, or one that has the whole scene in view.

    The page shows all of its picture, and more where the window has another shape.
    """
    if not cameras:
        means = gaussians.means.detach().cpu().double().numpy()
        middle = np.median(means, axis=0)
        extent = max(float(np.quantile(np.linalg.norm(means - middle, axis=1), 0.9)), 1e-6)
        distance = extent / np.sin(np.deg2rad(_FOV_DEGREES) / 2)
        eye = middle + distance * np.array([0.0, -0.35, -1.0]) / np.hypot(0.35, 1)
        return Camera.look_at(eye, middle, (0, -1, 0), _FOV_DEGREES, 1280, 1280)
    first = cameras[0]
    look = Camera.look_at(first.position, first.position + first.forward, mean_up(cameras), 60, first.width, first.height)
    matrix = first.K.copy()
    matrix[:2, 2] = first.width / 2, first.height / 2
    return Camera(look.viewmat, matrix, first.width, first.height, first.name)


def _target(first: Camera, cameras: Sequence[Camera], gaussians: Gaussians) -> NDArray[np.float64]:
    """The point on the first camera's axis that it orbits: nearest to what all cameras look at."""
    focus = find_focus(cameras)[0] if len(cameras) > 1 else np.median(gaussians.means.detach().cpu().double().numpy(), axis=0)
    ahead = float((focus - first.position) @ first.forward)
    distance = ahead if ahead > 0 else max(float(np.linalg.norm(focus - first.position)), 1e-3)
    return first.position + distance * first.forward


def _is_inside(position: NDArray[np.float64], gaussians: Gaussians) -> bool:
    """Whether a place is among the Gaussians, as in a room, and not before them, as before a table."""
    low, high = np.quantile(gaussians.means.detach().cpu().double().numpy(), (0.02, 0.98), axis=0)
    return bool(((position > low) & (position < high)).all())


def _upright(first: Camera, cameras: Sequence[Camera], gaussians: Gaussians) -> Similarity:
    """The scene with its up as -y, the first camera's direction along +z, and what it looks at near the origin."""
    up = mean_up(cameras) if cameras else np.array([0.0, -1.0, 0.0])
    ahead = first.forward - (first.forward @ up) * up
    if np.linalg.norm(ahead) < 1e-6:
        ahead = -first.viewmat[1, :3] + (first.viewmat[1, :3] @ up) * up
    ahead /= np.linalg.norm(ahead)
    rotation = np.stack([np.cross(-up, ahead), -up, ahead])
    return Similarity(rotation, translation=-rotation @ _target(first, cameras, gaussians))


def _settings(position: NDArray[np.float64], target: NDArray[np.float64], background: ArrayLike) -> dict[str, Any]:
    """The viewer's, of its version 2. The page computes the field of view from its window's shape."""
    view = {"position": position.tolist(), "target": target.tolist(), "fov": _FOV_DEGREES}
    return {
        "version": 2,
        "tonemapping": "none",
        "highPrecisionRendering": False,
        "background": {"color": [float(x) for x in np.asarray(background, np.float64).reshape(3)]},
        "postEffectSettings": {
            "sharpness": {"enabled": False, "amount": 0},
            "bloom": {"enabled": False, "intensity": 1, "blurLevel": 2},
            "grading": {"enabled": False, "brightness": 0, "contrast": 1, "saturation": 1, "tint": [1, 1, 1]},
            "vignette": {"enabled": False, "intensity": 0.5, "inner": 0.3, "outer": 0.75, "curvature": 1},
            "fringing": {"enabled": False, "intensity": 0.5},
        },
        "animTracks": [],
        "cameras": [{"initial": view}],
        "annotations": [],
        "startMode": "default",
    }


def _in_script(text: str) -> str:
    """Text of JSON or JavaScript, in whose strings `<` can be written otherwise, as a page's script may have it."""
    return _ENDS.sub(r"\\u003c", text)
