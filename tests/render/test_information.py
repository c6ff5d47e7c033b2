"""Information, uncertainty and suggested views against Jacobians that are stored whole."""

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import Camera, Gaussians, information, suggest, uncertainty
from splat_py.render.views import render_tensor
from tests.refusals import refused

NAMES = ("means", "quats", "log_scales", "logit_opacities", "sh")
WHITE = (1.0, 1.0, 1.0)


@pytest.fixture(scope="module")
def scene() -> Gaussians:
    """Seven Gaussians about the origin, with colours of degree 1."""
    generator = torch.Generator().manual_seed(5)
    n = 7
    return Gaussians(
        torch.rand(n, 3, generator=generator) - 0.5,
        torch.randn(n, 4, generator=generator),
        torch.rand(n, 3, generator=generator) - 2,
        torch.randn(n, generator=generator),
        0.5 * torch.randn(n, 4, 3, generator=generator),
    )


def camera(angle: float, height: float = -0.5, width: int = 12) -> Camera:
    return Camera.look_at((3 * np.sin(angle), height, -3 * np.cos(angle)), (0, 0, 0), (0, 1, 0), 30, width, 10)


def jacobian(scene: Gaussians, camera: Camera) -> Tensor:
    """Derivatives [pixels × 3, numbers] of a picture, one row after the other."""
    tensors = [getattr(scene, name).clone().requires_grad_() for name in NAMES]
    image = render_tensor(Gaussians(*tensors), camera, WHITE).flatten()
    rows = [torch.autograd.grad(value, tensors, retain_graph=True) for value in image]
    return torch.stack([torch.cat([part.flatten() for part in row]) for row in rows]).double()


def flat(tensors: dict[str, Tensor]) -> Tensor:
    assert tuple(tensors) == NAMES
    return torch.cat([tensor.flatten() for tensor in tensors.values()]).double()


def prior(scene: Gaussians) -> Tensor:
    largest, lengths = scene.scales.max(1).values, scene.quats.norm(dim=1)
    bands = torch.tensor([1.0, 0.1, 0.1, 0.1]).repeat_interleave(3).repeat(len(scene))
    off = [largest.repeat_interleave(3), lengths.repeat_interleave(4), torch.ones(len(scene) * 4), bands]
    return (0.1 * torch.cat(off).double()) ** -2


def test_information_converges_to_the_diagonal(scene: Gaussians) -> None:
    cameras = [camera(0), camera(1)]
    exact = sum((jacobian(scene, each) ** 2).sum(0) for each in cameras)
    assert (exact > 0).double().mean() > 0.9
    errors = []
    for probes in (16, 128, 1024):
        found = information(scene, cameras, WHITE, probes=probes)
        assert all(found[name].shape == getattr(scene, name).shape for name in NAMES)
        relative = (flat(found) - exact)[exact > 0] / exact[exact > 0]
        errors.append(float(relative.square().mean().sqrt()))
        # Hutchinson's estimate has at most this standard error.
        assert errors[-1] < 1.2 * (2 / probes) ** 0.5
    assert errors[0] > 2 * errors[1] > 4 * errors[2]


def test_uncertainty_converges_to_the_variance_of_laplace(scene: Gaussians) -> None:
    known = information(scene, [camera(0), camera(1)], WHITE, probes=8)
    H = flat(known) / 0.05**2 + prior(scene)
    J = jacobian(scene, camera(2.5))
    exact = (J**2 / H).sum(1).reshape(10, 12, 3).mean(2).sqrt().numpy()
    for probes, error in (64, 0.3), (512, 0.12):
        found = uncertainty(scene, camera(2.5), known, WHITE, probes=probes)
        np.testing.assert_allclose(found, exact, rtol=error, atol=1e-6)


def test_views_are_suggested_that_tell_what_is_wanted(scene: Gaussians) -> None:
    # One far Gaussian, which the photographs do not see.
    means = scene.means.clone()
    means[0] = torch.tensor([0.0, 0.0, -5.0])
    scene = Gaussians(means, *(getattr(scene, name) for name in NAMES[1:]))
    behind = Camera.look_at((0, 0, -3), (0, 0, -5), (0, 1, 0), 30, 12, 10)
    known = information(scene, [camera(0), camera(0.1)], WHITE)
    assert not any(known[name][0].any() for name in NAMES)
    candidates = [camera(0.05), camera(0.1), behind, behind, camera(2.5)]
    wanted = information(scene, candidates, WHITE)
    chosen = suggest(scene, iter(candidates), known, wanted, WHITE, count=9)
    order = [index for index, _ in chosen]
    assert order[0] in (2, 3) and sorted(order) == list(range(5))
    # The order is that of trying all at each step.
    G, H, left = flat(wanted), flat(known) / 0.05**2 + prior(scene), list(range(5))
    F = [flat(information(scene, [each], WHITE, seed=1)) / 0.05**2 for each in candidates]
    before = (G / H).sum()
    for index, share in chosen:
        assert (G / (H + F[index])).sum() <= (1 + 1e-5) * min((G / (H + F[i])).sum() for i in left)
        H = H + F[index]
        assert share == pytest.approx(float((G / H).sum() / before), rel=1e-4)
        left.remove(index)
    # Another view is best if only the far side is wanted.
    assert suggest(scene, candidates, known, information(scene, [camera(2.5)], WHITE), WHITE, count=1)[0][0] == 4


def test_refusals(scene: Gaussians) -> None:
    refused("probes is 0; it must be a whole number from 1", information, scene, [camera(0)], probes=0)
    refused("probes is 0; it must be a whole number from 1", uncertainty, scene, camera(0), {}, probes=0)
    known = information(scene, [camera(0)], probes=1)
    other, sentence = scene.mapped(lambda t: t[1:]), "known is of another scene; pass the information"
    refused(sentence, uncertainty, other, camera(0), known)
    refused(sentence, suggest, other, [camera(0)], known, known)


def test_an_empty_scene_is_certain(scene: Gaussians) -> None:
    empty = scene.mapped(lambda t: t[:0])
    known = information(empty, [camera(0)])
    assert known["sh"].shape == (0, 4, 3) and not uncertainty(empty, camera(0), known).any()
    assert suggest(empty, [camera(0)], known, known) == [(0, 0.0)]
