"""slang/splat/unscented.slang, against the textbook's weighted sums in torch's float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from splat_py.shaders import unscented as shader
from tests.shaders.camera_models import IMAGE, NO_LENS, cameras, pinhole
from tests.shaders.oracle import Array, assert_gradients, assert_value
from tests.splats.torch_cameras import project_unscented, still

N, BLUR = 12, 0.3
ALPHA, BETA, KAPPA = 0.8, 1.9, 0.2
POINTS = {"spread": ALPHA**2 * (3 + KAPPA), "curvature": BETA - ALPHA**2}
SETTINGS = {"blur": BLUR, "antialiased": True}
NO_MOTION: list[Any] = [{"rotation": np.zeros((3, 3)), "translation": np.zeros(3)}, {"rate": np.zeros(2), "offset": 0.0}]


def scene(rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    """Large Gaussians, for which the projection is curved, and a camera of each."""
    camera = cameras(rng, N)
    seen = np.stack([rng.uniform(-0.5, 0.5, N), rng.uniform(-0.7, 0.7, N), np.ones(N)], -1) * rng.uniform(2, 4, N)[:, None]
    gaussians = {
        "mean": np.einsum("nji,nj->ni", camera["rotation"], seen - camera["translation"]),
        "quat": rng.normal(size=(N, 4)),
        "scale": rng.uniform(0.1, 0.5, (N, 3)),
        "opacity": rng.uniform(0.3, 1, N),
    }
    return {name: field.astype(np.float32).astype(float) for name, field in gaussians.items()}, camera


def splat_of(g: dict[str, Tensor], c: dict[str, Tensor], i: int) -> dict[str, Tensor]:
    """As `ProjectedGaussian`."""
    no_lens = torch.zeros(12).double()
    camera = still(
        lambda t: pinhole(c["focal"][i], c["principal"][i], t, no_lens),
        torch.cat([c["rotation"][i], c["translation"][i][:, None]], 1),
    )
    of_one = [g[name][i : i + 1] for name in ("mean", "quat", "scale")]
    found = project_unscented(camera, *of_one, 1, 1, alpha=ALPHA, beta=BETA, kappa=KAPPA)
    blurred = found.sharp[0] + BLUR * torch.eye(2)
    conic = torch.linalg.inv(blurred)
    opacity = g["opacity"][i] * (torch.linalg.det(found.sharp[0]) / torch.linalg.det(blurred)).sqrt()
    entries = torch.stack([conic[0, 0], conic[0, 1], conic[1, 1]])
    return {"mean": found.means2d[0], "depth": found.depths[0], "conic": entries, "opacity": opacity}


def test_values_and_gradients() -> None:
    rng = np.random.default_rng(1)
    gaussians, camera = scene(rng)
    g, c = ({key: torch.tensor(field, requires_grad=True) for key, field in s.items()} for s in (gaussians, camera))
    splats = [splat_of(g, c, i) for i in range(N)]
    expected = {key: torch.stack([splat[key] for splat in splats]) for key in splats[0]}
    v = {key: rng.normal(size=field.shape) for key, field in expected.items()}
    torch.stack([(expected[key] * torch.tensor(v[key])).sum() for key in v]).sum().backward()

    function = shader.projectUnscented["Pinhole", "false"]
    arguments = [gaussians, camera | NO_LENS, *NO_MOTION, POINTS, SETTINGS]
    assert_value(function(*arguments), {key: field.detach().numpy() for key, field in expected.items()}, rtol=2e-5, atol=1e-5)
    v_gaussians, v_camera = ({key: leaf.grad.numpy() for key, leaf in leaves.items()} for leaves in (g, c))
    assert_gradients(function, v, arguments, [v_gaussians, v_camera, {}, None, None, None], rtol=2e-4, atol=2e-5)


def test_where_sigma_points_may_lie() -> None:
    """All of them in front of the camera, and inside the image with its margin all, or one."""
    camera = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": np.full(2, 20.0), "principal": np.array([18.5, 26.5])}
    # In the middle; across the left edge's margin; beyond it; so large that some are behind the camera.
    gaussians = {
        "mean": np.array([[0.0, 0.0, 2.0], [-2.15, 0.0, 2.0], [-4.0, 0.0, 2.0], [0.0, 0.0, 2.0]]),
        "quat": np.array([1.0, 0.0, 0.0, 0.0]),
        "scale": np.array([[0.1, 0.1, 0.1]] * 3 + [[0.1, 0.1, 1.5]]),
        "opacity": 1.0,
    }
    valid = shader.areSigmaPointsValid["Pinhole", "false"]
    for all_of_them, expected in ((True, [True, False, False, False]), (False, [True, True, False, False])):
        bounds = {"margin": 0.1, "all": all_of_them}
        found = valid(gaussians, camera | NO_LENS, *NO_MOTION, POINTS, bounds, IMAGE)
        assert np.asarray(found).tolist() == expected
