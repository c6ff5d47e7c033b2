"""A page that draws a scene, and fits pictures, with the kernels of this library as WGSL: one HTML file, opened from disk.

The kernels are emitted by the Slang compiler, specialised as for every other device. What the host would dispatch is recorded
once (playground_kernels.py) and replayed by the page's JavaScript (splat_py/pages/playground/), which has no rendering code of
its own but the few lines that copy a picture to a canvas.
"""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from splat_py.errors import SplatError
from splat_py.files import atomic_path
from splat_py.pages.playground_kernels import fit_plan, scene_plan
from splat_py.pages.playground_plan import Json, WgslKernels
from splat_py.scene.camera import Camera, find_focus, mean_up
from splat_py.scene.dataset import NEAR
from splat_py.scene.gaussians import Gaussians
from splat_py.scene.rotations import rotation_matrices

# In this order; a file uses those before it.
SCRIPTS = (
    "expressions.js",
    "device.js",
    "plan.js",
    "screen.js",
    "vectors.js",
    "orbit.js",
    "scene.js",
    "random.js",
    "blobs.js",
    "fit.js",
    "curve.js",
    "content.js",
    "main.js",
)
_IMPORT = re.compile(r'^import .*? from "\./\w+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)
_SLOT = re.compile(r"\{(\w+)\}")
# What a kernel binds at most, and what the radix sort shares in a workgroup.
MOST_BUFFERS, _SHARED_BYTES = 10, 16384
# What 16 bits hold.
_LARGEST_HALF = 65504.0
# Half the angle that a picture's shorter side covers, as a tangent, where no camera says one.
_TANGENT = 0.45


@dataclass(frozen=True)
class View:
    """Where a page's camera begins. Points are in the world."""

    eye: tuple[float, ...]
    target: tuple[float, ...]
    up: tuple[float, ...]
    # Of half the angle that the picture's shorter side covers.
    tangent: float = _TANGENT

    @classmethod
    def of_cameras(cls, cameras: list[Camera]) -> View:
        """As the first of a capture's cameras looks, around the point in its middle that is nearest to what all look at."""
        first, (focus, _) = cameras[0], find_focus(cameras)
        forward = first.viewmat[2, :3]
        depth = (focus - first.position) @ forward
        target = first.position + depth * forward if depth > 0 else focus
        tangent = min(first.width / first.K[0, 0], first.height / first.K[1, 1]) / 2
        return cls(_tuple(first.position), _tuple(target), _tuple(mean_up(cameras)), float(tangent))

    @classmethod
    def of_points(cls, points: NDArray[np.float32]) -> View:
        """Where nothing is known of cameras: from above and aside. Up is where the scene is flattest, as grounds and tables
        are, towards the side on which things stand out."""
        middle = np.median(points.astype(np.float64), axis=0)
        offsets = points - middle
        distances = np.linalg.norm(offsets, axis=1)
        near = offsets[distances <= np.quantile(distances, 0.8)]
        radius = float(np.quantile(distances, 0.8)) or 1.0
        _, axes = np.linalg.eigh(near.T @ near / len(near) + 1e-12 * np.eye(3))
        up, along = axes[:, 0], axes[:, 2]
        heights = near @ up
        up = up if (heights**3).mean() >= 0 else -up
        eye = middle + 2.2 * radius * (0.45 * up + 0.89 * along)
        return cls(_tuple(eye), _tuple(middle), _tuple(up))


def _tuple(vector: NDArray) -> tuple[float, ...]:
    return tuple(map(float, vector))


def write_playground(
    path: Path,
    gaussians: Gaussians,
    *,
    title: str = "Scene",
    view: View | None = None,
    background: tuple[float, ...] = (0.0, 0.0, 0.0),
    near: float = NEAR,
    antialiased: bool = False,
) -> None:
    """Write the page.

    Args:
        path: of the HTML file.
        title: what the page calls the scene; any text.
        view: where the camera begins; guessed if None.
        background: rgb from 0 to 1.
        near, antialiased: as in `render`.

    Raises:
        SplatError: the scene has splats or colours of another kind, or nothing in it; or the file cannot be written.
    """
    text = page(gaussians, title, view, background, near, antialiased)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def page(
    gaussians: Gaussians, title: str, view: View | None, background: tuple[float, ...], near: float, antialiased: bool
) -> str:
    """The page's text. Arguments and errors as of `write_playground`."""
    if gaussians.splat != "Gaussian" or gaussians.color != "SphericalHarmonics":
        raise SplatError("the scene has splats or colours of another type, and a playground draws Gaussians with harmonics")
    if not len(gaussians):
        raise SplatError("the scene has no Gaussians, and a playground would show nothing")
    arrays = scene_arrays(gaussians)
    kernels = WgslKernels()
    plans: Json = {
        "scene": scene_plan(kernels, len(gaussians), gaussians.sh_degree, near, antialiased),
        "fit": fit_plan(kernels),
        "layout": [[name, "f16" if a.dtype == np.float16 else "f32", a.size] for name, a in arrays.items()],
        "view": (view or View.of_points(arrays["means"])).__dict__,
        "background": list(background),
        "limits": {"maxStorageBuffersPerShaderStage": MOST_BUFFERS, "maxComputeWorkgroupStorageSize": _SHARED_BYTES},
    }
    plans["kernels"] = [{name: kernel[name] for name in kernel if name != "source"} for kernel in kernels.content]
    packed = gzip.compress(b"".join(array.tobytes() for array in arrays.values()), mtime=0)
    slots = {
        "title": html.escape(title),
        "count": f"{len(gaussians):,}",
        "style": _read("style.css"),
        # No text in it may end the script that it lies in.
        "plans": json.dumps(plans, separators=(",", ":")).replace("<", "\\u003c"),
        "kernels": "\n".join(_kernel_element(i, kernel) for i, kernel in enumerate(kernels.content)),
        "scene": base64.b64encode(packed).decode(),
        "script": "\n".join(f"// {name}\n\n{_EXPORT.sub('', _IMPORT.sub('', _read(name))).strip()}\n" for name in SCRIPTS),
    }
    return _SLOT.sub(lambda slot: slots[slot[1]], _read("page.html"))


def scene_arrays(gaussians: Gaussians) -> dict[str, NDArray]:
    """What the kernels read of a scene, in the order of the page: coefficients of colours rounded to 16 bits."""
    with torch.no_grad():
        quats = torch.nn.functional.normalize(gaussians.quats.double(), dim=1)
        rotations = torch.from_numpy(rotation_matrices(quats.cpu().numpy())).to(quats.device)
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


def _kernel_element(i: int, kernel: Json) -> str:
    """A kernel's source, to be read where one looks at the page's."""
    source = kernel["source"]
    assert "</" not in source
    return f'<script type="text/wgsl" id="kernel-{i}" title="{html.escape(kernel["name"])}">\n{source}</script>'


def _read(name: str) -> str:
    return resources.files("splat_py.pages").joinpath("playground", name).read_text(encoding="utf-8")
