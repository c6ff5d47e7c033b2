"""slang/splat/surface.slang."""

import numpy as np
import torch
from torch import Tensor

from splat_py.render.surfels import depth_to_normal
from splat_py.shaders import surface as shader
from tests.shaders.camera_models import NO_LENS
from tests.shaders.oracle import assert_like, unit

COUNT, RNG = 30, np.random.default_rng(3)
DEPTHS = 3 + RNG.uniform(-0.2, 0.2, (COUNT, 4))
NORMALS = unit(RNG.normal(size=(COUNT, 3))) * RNG.uniform(0.5, 1, (COUNT, 1))
PIXELS = RNG.integers(0, 30, (COUNT, 2)) + 0.5
CAMERA = {
    "rotation": np.eye(3)[None].repeat(COUNT, 0),
    "translation": np.zeros((COUNT, 3)),
    "focal": RNG.uniform(5, 20, (COUNT, 2)),
    "principal": RNG.uniform(0, 20, (COUNT, 2)),
    **{name: np.tile(field, (COUNT, 1)) for name, field in NO_LENS.items()},
}


def normals(depths: Tensor) -> Tensor:
    """`depth_to_normal` in the middle of three by three pixels, whose principal point is moved there."""
    maps = torch.zeros(COUNT, 3, 3, dtype=torch.float64)
    for column, (y, x) in enumerate(((1, 0), (1, 2), (0, 1), (2, 1))):
        maps = maps.index_put((torch.arange(COUNT), torch.tensor(y), torch.tensor(x)), depths[:, column])
    Ks = torch.eye(3, dtype=torch.float64).repeat(COUNT, 1, 1)
    Ks[:, [0, 1], [0, 1]] = torch.from_numpy(CAMERA["focal"])
    Ks[:, :2, 2] = torch.from_numpy(CAMERA["principal"] - PIXELS + 1.5)
    return depth_to_normal(maps[..., None], torch.eye(4, dtype=torch.float64).repeat(COUNT, 1, 1), Ks)[:, 1, 1]


def test_normals_of_depths() -> None:
    assert_like(shader.normalFromDepths, normals, [DEPTHS], [PIXELS, CAMERA])


def test_agreement_of_normals() -> None:
    assert_like(shader.agreement, lambda z, n: (normals(z) * n).sum(-1), [DEPTHS, NORMALS], [PIXELS, CAMERA])


def test_no_normal_without_depths() -> None:
    assert not shader.normalFromDepths(np.zeros((1, 4)), PIXELS[:1], {k: v[:1] for k, v in CAMERA.items()}).any()
