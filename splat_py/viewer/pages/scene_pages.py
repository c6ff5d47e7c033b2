"""Writing of web pages that contain a scene and open from disk."""

import base64
import gzip
import html
import json
import lzma
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from string import Template

import cv2
import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.spatial.transform import Rotation

from splat_py.base.errors import SplatError
from splat_py.base.files import atomic_path
from splat_py.scene.camera import Camera, best_covered, find_focus, mean_up
from splat_py.scene.camera_paths import covered_arc
from splat_py.scene.dataset import NEAR
from splat_py.scene.editing import transform
from splat_py.scene.environment import Environment
from splat_py.scene.formats import sog
from splat_py.scene.gaussians import FLAT, Gaussians
from splat_py.scene.similarity import Similarity, rotation_matrices
from splat_py.viewer.opening import whole_view
from splat_py.viewer.pages.playground_kernels import fit_plan, scene_plan
from splat_py.viewer.pages.playground_plan import Json, WgslKernels

_FOLDER = Path(__file__).parent
_VIEWER = _FOLDER / "supersplat-viewer"
# Signs that turn a PLY's axes into the viewer's world.
_TURN = np.array([-1.0, -1.0, 1.0])
# Character sequences that would end a script element, or hide its end, in any language.
_ENDS = re.compile(r"<(?=/script|!--|script)", re.IGNORECASE)
# A file uses those before it.
SCRIPTS = ("plan.js", "fit.js", "steps.js", "main.js")
_MODULES = re.compile(r'^import .*? from "\./\w+\.js";\n|^export ', re.MULTILINE)
# The most buffers that a kernel binds, and the bytes of group-shared memory that the radix sort uses.
MOST_BUFFERS, _SHARED_BYTES = 10, 16384
# The largest finite float16.
_LARGEST_HALF = 65504.0
# Height and width of a page's sky, which changes little from one pixel to the next.
_PANORAMA = 256, 512
# Keyframes of a page's slow turn; seconds for a whole one and for one to and fro, and degrees to either side.
_KEYS, _ROUND, _SWING, _SWAY = 24, 60.0, 24.0, 15.0


def write_viewer(
    path: str | os.PathLike[str],
    gaussians: Gaussians,
    cameras: Sequence[Camera] = (),
    background: ArrayLike | Environment = (0.0, 0.0, 0.0),
    title: str | None = None,
) -> list[str]:
    """Write a scene's page (`viewer_page`), atomically; its title is by default the file's name. Returns a clause for each
    property of the scene that the page does not hold."""
    path = Path(path)
    page, losses = viewer_page(gaussians, cameras, background, path.stem if title is None else title)
    with atomic_path(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return losses


def viewer_page(
    gaussians: Gaussians, cameras: Sequence[Camera], background: ArrayLike | Environment, title: str
) -> tuple[str, list[str]]:
    """Return a page that begins with the view of the best covered camera, made upright, and a slow turn that the first touch
    ends; and a clause for each property of the scene that the page does not hold.

    Args:
        cameras: the capture's cameras; without any, the page begins with the whole scene and -y up, as in a PLY.
        background: rgb [3] from 0 to 1, or the environment learnt with the scene.
        title: any text.
    """
    gaussians.validate()
    losses = []
    if gaussians.splat == "Surfel":
        losses.append(FLAT)
        gaussians = replace(gaussians, splat="Gaussian")
    if gaussians.splat != "Gaussian":
        name = gaussians.types["splat"][0]
        raise SplatError(f"the page's viewer draws Gaussians only, but these splats are of type {name}; export a .ply")
    if gaussians.color != "SphericalHarmonics":
        losses.append(f"colours of type {gaussians.types['color'][0]}: they look the same from all directions")
        gaussians = Gaussians(*(getattr(gaussians, n) for n in ("means", "quats", "log_scales", "logit_opacities", "sh")))
    if not len(gaussians):
        raise SplatError("the scene has no Gaussians; export another")
    first, target, up = _beginning(gaussians, cameras)
    upright = _upright(first, up, target)
    position, target = upright.points(np.stack([first.position, target])) * _TURN
    # Without cameras the page is in front of the scene.
    focus, orbits = find_focus(cameras) if cameras else (target, True)
    around = orbits and (not cameras or covered_arc(cameras, focus, up)[1] is None)
    sky = background if isinstance(background, Environment) else None
    settings = {
        "position": position.tolist(),
        "target": target.tolist(),
        "background": [0.0] * 3 if sky else [float(x) for x in np.asarray(background, np.float64).reshape(3)],
        "sky": sky and _panorama(sky, upright),
        "tangents": [first.width / first.K[0, 0] / 2, first.height / first.K[1, 1] / 2],
        "antialiased": gaussians.antialiased,
        "mode": "orbit" if orbits else "fly",
        "turn": _turn(position, target, orbits, around),
    }
    scene = sog.encode(transform(gaussians, upright).arrays())
    photographs = f" from {len(cameras)} photographs" if cameras else ""
    page = Template((_FOLDER / "viewer.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        description=f"A scene of {len(gaussians):,} Gaussians{photographs}. Drag to look around.",
        version=(_VIEWER / "VERSION").read_text(encoding="utf-8").strip(),
        license=(_VIEWER / "LICENSE").read_text(encoding="utf-8").replace("--", "- -"),
        style=(_VIEWER / "index.css").read_text(encoding="utf-8"),
        settings=_in_script(json.dumps(settings)),
        scene=base64.b64encode(scene).decode(),
        script=_in_script(lzma.decompress((_VIEWER / "index.js.xz").read_bytes()).decode()),
    )
    return page, losses


def first_camera(gaussians: Gaussians, cameras: Sequence[Camera] = ()) -> Camera:
    """A page's initial camera: the best covered one, made upright, or one with the whole scene in view."""
    if not cameras:
        return whole_view(gaussians)
    first = best_covered(cameras, gaussians.positions)
    look = Camera.look_at(first.position, first.position + first.forward, mean_up(cameras), 60, first.width, first.height)
    matrix = first.K.copy()
    matrix[:2, 2] = first.width / 2, first.height / 2
    return Camera(look.viewmat, matrix, first.width, first.height, first.name)


def _beginning(gaussians: Gaussians, cameras: Sequence[Camera]) -> tuple[Camera, NDArray[np.float64], NDArray[np.float64]]:
    """A page's initial camera, the point [3] that it orbits, on its axis nearest to the cameras' focus, and up [3]."""
    first = first_camera(gaussians, cameras)
    focus = find_focus(cameras)[0] if len(cameras) > 1 else np.median(gaussians.positions, axis=0)
    up = mean_up(cameras) if cameras else np.array([0.0, -1.0, 0.0])
    ahead = float((focus - first.position) @ first.forward)
    distance = ahead if ahead > 0 else max(float(np.linalg.norm(focus - first.position)), 1e-3)
    return first, first.position + distance * first.forward, up


def _upright(first: Camera, up: NDArray[np.float64], target: NDArray[np.float64]) -> Similarity:
    """The transform that turns up to -y and the first camera's level direction to +z, and moves `target` to the origin."""
    ahead = first.forward - (first.forward @ up) * up
    if np.linalg.norm(ahead) < 1e-6:
        ahead = -first.viewmat[1, :3] + (first.viewmat[1, :3] @ up) * up
    ahead /= np.linalg.norm(ahead)
    rotation = np.stack([np.cross(-up, ahead), -up, ahead])
    return Similarity(rotation, translation=-rotation @ target)


def _turn(position: NDArray[np.float64], target: NDArray[np.float64], orbits: bool, around: bool) -> dict[str, object]:
    """A page's slow turn about +y from its first view, as the viewer's keyframes: once around the target, or to and fro; about
    the camera itself if it does not orbit."""
    seconds, phase = (_ROUND if around else _SWING), 2 * np.pi * np.arange(_KEYS) / _KEYS
    angles = phase if around else np.deg2rad(_SWAY) * np.sin(phase)
    turns = Rotation.from_rotvec(angles[:, None] * [0, 1, 0]).as_matrix()
    still, moving = (target, position) if orbits else (position, target)
    path = still + turns @ (moving - still)
    fixed = np.broadcast_to(still, path.shape)
    positions, targets = (path, fixed) if orbits else (fixed, path)
    times = (seconds * np.arange(_KEYS) / _KEYS).tolist()
    return {"seconds": seconds, "times": times, "position": positions.ravel().tolist(), "target": targets.ravel().tolist()}


def _panorama(sky: Environment, upright: Similarity) -> str:
    """The sky as the viewer's equirectangular picture: a PNG's address. Azimuths are from +z towards -x."""
    height, width = _PANORAMA
    azimuth = (np.arange(width) + 0.5) / width * 2 * np.pi - np.pi
    elevation = np.pi / 2 - (np.arange(height)[:, None] + 0.5) / height * np.pi
    directions = np.stack(
        np.broadcast_arrays(-np.cos(elevation) * np.sin(azimuth), np.sin(elevation), np.cos(elevation) * np.cos(azimuth)),
        -1,
    )
    colors = np.clip(sky.toward(directions * _TURN @ upright.rotation), 0, 1)
    # The viewer squares what it reads and raises it to 1 / 2.2.
    pixels = np.rint(255 * colors**1.1).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(cv2.imencode(".png", pixels[..., ::-1])[1].tobytes()).decode()


def _in_script(text: str) -> str:
    """Escape JSON or JavaScript for a page's script, where `<` in strings may be written as an escape."""
    return _ENDS.sub(r"\\u003c", text)


def write_playground(
    path: Path,
    gaussians: Gaussians,
    cameras: Sequence[Camera] = (),
    *,
    title: str = "Scene",
    background: tuple[float, ...] = (0.0, 0.0, 0.0),
    near: float = NEAR,
    antialiased: bool = False,
) -> None:
    """Write a page whose kernels draw a scene of Gaussians with harmonics, and fit pictures.

    Args:
        cameras: as in `write_viewer`.
        title: the scene's title on the page; any text.
        background: rgb from 0 to 1.
        near, antialiased: as in `render`.
    """
    if gaussians.splat != "Gaussian" or gaussians.color != "SphericalHarmonics":
        raise SplatError("the scene has splats or colours of another type; a playground draws Gaussians with harmonics")
    if not len(gaussians):
        raise SplatError("the scene has no Gaussians; a playground would show nothing")
    arrays = scene_arrays(gaussians)
    first, target, up = _beginning(gaussians, cameras)
    # The tangent of half the angle of the picture's shorter side.
    tangent = min(first.width / first.K[0, 0], first.height / first.K[1, 1]) / 2
    kernels = WgslKernels()
    plans: Json = {
        "scene": scene_plan(kernels, len(gaussians), gaussians.sh_degree, near, antialiased),
        "fit": fit_plan(kernels),
        "layout": [[name, "f16" if a.dtype == np.float16 else "f32", a.size] for name, a in arrays.items()],
        "view": {"eye": first.position.tolist(), "target": target.tolist(), "up": up.tolist(), "tangent": tangent},
        "background": list(background),
        "limits": {"maxStorageBuffersPerShaderStage": MOST_BUFFERS, "maxComputeWorkgroupStorageSize": _SHARED_BYTES},
    }
    plans["kernels"] = [{name: kernel[name] for name in kernel if name != "source"} for kernel in kernels.content]
    assert all("</" not in kernel["source"] for kernel in kernels.content)
    packed = gzip.compress(b"".join(array.tobytes() for array in arrays.values()), mtime=0)
    slots = {
        "title": html.escape(title),
        "count": f"{len(gaussians):,}",
        "style": _read("style.css"),
        # Escaped so that no text ends the script element.
        "plans": json.dumps(plans, separators=(",", ":")).replace("<", "\\u003c"),
        # Readable in the page's source.
        "kernels": "\n".join(
            f'<script type="text/wgsl" id="kernel-{i}" title="{html.escape(kernel["name"])}">\n{kernel["source"]}</script>'
            for i, kernel in enumerate(kernels.content)
        ),
        "scene": base64.b64encode(packed).decode(),
        "script": "\n".join(f"// {name}\n\n{_MODULES.sub('', _read(name)).strip()}\n" for name in SCRIPTS),
    }
    text = re.sub(r"\{(\w+)\}", lambda slot: slots[slot[1]], _read("page.html"))
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def scene_arrays(gaussians: Gaussians) -> dict[str, NDArray]:
    """The scene's arrays for the kernels, in the order of the page; colour coefficients are rounded to float16."""
    with torch.no_grad():
        rotations = torch.from_numpy(rotation_matrices(gaussians.quats.detach().cpu())).to(gaussians.quats.device)
        axes = rotations * gaussians.log_scales.double().exp()[:, None, :]
        covariances = axes @ axes.transpose(1, 2)
        rows, columns = (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)
        tensors = {
            "means": gaussians.means,
            "covars": covariances[:, rows, columns].float(),
            "opacities": gaussians.opacities,
            "features": gaussians.sh.clamp(-_LARGEST_HALF, _LARGEST_HALF).half(),
        }
    return {name: tensor.cpu().numpy() for name, tensor in tensors.items()}


def _read(name: str) -> str:
    return (_FOLDER / "playground" / name).read_text(encoding="utf-8")
