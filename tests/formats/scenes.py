"""Small scenes for tests of formats, and files of which a part is replaced."""

import io
import struct
import zipfile

import numpy as np

from splat_py import Gaussians
from splat_py.scene.formats.packing import StoredGaussians


def random_gaussians(count: int, degree: int = 3, seed: int = 0) -> StoredGaussians:
    random = np.random.default_rng(seed)
    coefficients = (degree + 1) ** 2
    sh = random.normal(size=(count, coefficients, 3)) * np.where(np.arange(coefficients) == 0, 0.6, 0.05)[None, :, None]
    return StoredGaussians(
        means=random.normal(size=(count, 3)).astype(np.float32),
        quats=random.normal(size=(count, 4)).astype(np.float32),
        log_scales=random.uniform(-4, -2, (count, 3)).astype(np.float32),
        logit_opacities=random.normal(size=count).astype(np.float32) * 2,
        sh=sh.astype(np.float32),
    )


def scene(count: int = 60, degree: int = 3, seed: int = 0) -> Gaussians:
    return Gaussians.of_arrays(random_gaussians(count, degree, seed))


def ball_on_floor() -> tuple[Gaussians, np.ndarray]:
    """A grey ball on a floor at z = 0, in the middle of what the demo's cameras see, and True [N] for the ball."""
    floor = np.stack([*np.meshgrid(*[np.linspace(-1, 1, 50)] * 2), np.zeros((50, 50))], -1).reshape(-1, 3)
    # Vogel's spiral.
    z, turn = np.linspace(-1, 1, 600), np.pi * (3 - np.sqrt(5)) * np.arange(600)
    ball = np.stack([np.sqrt(1 - z**2) * np.cos(turn), np.sqrt(1 - z**2) * np.sin(turn), z], -1)
    points = np.concatenate([floor, 0.3 * ball + [0, 0, 0.3]])
    gaussians = Gaussians.from_points(points, np.full(points.shape, 0.5), sh_degree=0, opacity=0.9)
    return gaussians, np.arange(len(points)) >= len(floor)


def seven() -> StoredGaussians:
    """The Gaussians of the files in data/, written by other programs: splat-transform 2.7.1, .splat by GaussForge 0.6.0."""
    return random_gaussians(7)


def glb_parts(data: bytes) -> tuple[bytes, bytes]:
    """The JSON of a GLB, and the chunks after it."""
    (length,) = struct.unpack_from("<I", data, 12)
    return data[20 : 20 + length], data[20 + length :]


def glb_of(text: bytes, rest: bytes) -> bytes:
    text += b" " * (-len(text) % 4)
    return struct.pack("<5I", 0x46546C67, 2, 20 + len(text) + len(rest), len(text), 0x4E4F534A) + text + rest


def zip_parts(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as bundle:
        return {name: bundle.read(name) for name in bundle.namelist()}


def zip_of(parts: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, content in parts.items():
            bundle.writestr(name, content)
    return packed.getvalue()
