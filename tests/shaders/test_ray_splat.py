"""slang/splat/ray_splat.slang, ray_gaussian.slang and surfel.slang: splats that a pixel's ray meets.

Projection, σ along a ray from nine numbers, and bounds that miss nothing.
"""

import numpy as np
import pytest
import torch

from splat_py import shaders
from splat_py.shaders import ray_gaussian, shape
from splat_py.shaders import ray_splat as shader
from tests.render.ray_rendering import box_centres, rotations
from tests.shaders.camera_models import NO_LENS
from tests.shaders.oracle import Array, assert_like, assert_value, float32, pullback
from tests.shaders.test_footprint import CENTRES, SIDE, assert_nothing_is_missed, visited

COUNT = 40
RNG = np.random.default_rng(65)
FOCAL, PRINCIPAL = np.array([60.0, 70.0]), np.array([20.0, 26.0])
K = np.array([[FOCAL[0], 0, PRINCIPAL[0]], [0, FOCAL[1], PRINCIPAL[1]], [0, 0, 1]])
PIXELS = np.stack(np.meshgrid(CENTRES, CENTRES), -1)


def inputs() -> tuple[dict[str, Array], dict[str, Array]]:
    """Gaussians before a rotated and shifted camera."""
    quat = RNG.normal(size=4)
    gaussians = {
        "mean": RNG.uniform(-1, 1, (COUNT, 3)),
        "quat": RNG.normal(size=(COUNT, 4)),
        "scale": RNG.uniform(0.05, 0.4, (COUNT, 3)),
        "opacity": np.ones(COUNT),
    }
    camera = {
        "rotation": rotations(torch.tensor(quat)[None])[0].numpy(),
        "translation": np.array([0.1, -0.2, 4.0]),
        "focal": FOCAL,
        "principal": PRINCIPAL,
        **NO_LENS,
    }
    return gaussians, camera


def reference(kind: str, g: dict[str, torch.Tensor], camera: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    turn, focal, principal = camera["rotation"], camera["focal"], camera["principal"]
    mean = g["mean"] @ turn.T + camera["translation"]
    frames = turn @ rotations(g["quat"])
    z = mean[:, 2:]
    if kind == "RayGaussian":
        white = frames.mT / g["scale"][:, :, None]
        u, v, w = (white @ mean[:, :, None])[..., 0], white[..., 0] * z / focal[0], white[..., 1] * z / focal[1]
        others = {"normal": 0 * mean, "position": 0 * mean}
        return {"mean": focal * mean[:, :2] / z + principal, "depth": z[:, 0], "u": u, "v": v, "w": w, **others}
    axes = frames[:, :, :2] * g["scale"][:, None, :2]
    matrix = torch.diag(torch.cat([focal, torch.ones(1).double()]))
    matrix[:2, 2] = principal
    u, v, w = (matrix @ torch.cat([axes, mean[:, :, None]], 2)).unbind(1)
    normal = frames[:, :, 2] * torch.where((frames[:, :, 2] * mean).sum(-1, keepdim=True) < 0, 1.0, -1.0)
    others = {"normal": normal, "position": 0 * mean}
    return {"mean": box_centres(mean, axes, matrix), "depth": z[:, 0], "u": u, "v": v, "w": w, **others}


@pytest.mark.parametrize("kind", ["Surfel", "RayGaussian"])
def test_projection(kind: str) -> None:
    gaussians, camera = inputs()
    cameras = {name: np.tile(array, (COUNT, *[1] * array.ndim)) for name, array in camera.items()}

    def one(g: dict[str, torch.Tensor], camera: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        found = reference(kind, {name: tensor[None] for name, tensor in g.items()}, camera)
        return {name: tensor[0] for name, tensor in found.items()}

    assert_like(shader.projectForRays[kind], torch.func.vmap(one), [gaussians, cameras], value=(1e-4, 1e-6), atol=2e-4)


def test_shape() -> None:
    sizes = {"mean": 2, "u": 3, "v": 3, "w": 3, "normal": 3, "position": 3}
    splat = {name: RNG.normal(size=(5, size)) for name, size in sizes.items()}
    conic = RNG.normal(size=(5, 3))
    expected = np.concatenate([*(splat[name] for name in "uvw"), splat["position"], conic], 1)
    for floats in (9, 15):
        assert_value(shader.shapeOf[floats](splat | {"depth": np.ones(5)}, conic), expected[:, :floats])


def test_hits() -> None:
    """The distance along the ray to the least σ, also behind its origin; and normals turned towards the ray."""
    shapes, colors = RNG.normal(size=(COUNT, 15)), RNG.normal(size=(COUNT, 6))
    shapes[:, 9:12] += [0, 0, 2]
    direction = RNG.normal(size=(COUNT, 3)) * 0.3 + [0, 0, 1]
    ray = {
        "origin": RNG.normal(size=(COUNT, 3)) * 0.2,
        "direction": direction / np.linalg.norm(direction, axis=1, keepdims=True),
    }

    def f(color: torch.Tensor, shape: torch.Tensor, extras: torch.Tensor, ray: dict[str, torch.Tensor]) -> torch.Tensor:
        white = shape[:, :9].unflatten(1, (3, 3))
        along = (white @ ray["direction"][..., None])[..., 0]
        centre = (white @ (shape[:, 9:12] - ray["origin"])[..., None])[..., 0]
        distance = ((along * centre).sum(-1) / along.square().sum(-1)).clamp(min=0)
        side = (color[:, 2:5] * ray["direction"]).sum(-1).sign()[:, None]
        return torch.cat([color[:, :2], color[:, 2:5] * -side, distance[:, None]], 1)

    extras = np.zeros((COUNT, 4, 4))
    arguments = [float32(colors), float32(shapes), extras, {name: float32(part) for name, part in ray.items()}]
    twins = [torch.tensor(a) for a in (colors, shapes, extras)]
    assert (f(*twins, {n: torch.tensor(p) for n, p in ray.items()})[:, 5] == 0).any()
    assert_like(ray_gaussian.channelsOf[6, 15, "RayHits"], f, arguments, atol=1e-4)


def test_footprints() -> None:
    mean = np.full((1, 2), 20.0)
    assert visited(shader.anywhere(mean), 8).all() and not visited(shader.nowhere(mean), 8).any()
    # The covariance's diagonal is the squared extent; the margin is 0.01 pixel² and 1e-4 of the sum of squares.
    f = shader.ellipseAround(mean, np.array([[1.0, 2.0]]), np.array([[25.0, 3.0, 9.0]]))
    assert_value(f["mean"], [[21.0, 22.0]])
    assert_value(f["reach"], np.sqrt([[25.0139, 9.0139]]), rtol=1e-4)


def points(rng: np.random.Generator, count: int) -> tuple[Array, Array]:
    """Points [N, 3] in camera space, on the image and a little beyond; and their depths."""
    depth = rng.uniform(1, 4, count)
    at = rng.uniform(-0.2 * SIDE, 1.2 * SIDE, (count, 2))
    return np.concatenate([(at - PRINCIPAL) / FOCAL, np.ones((count, 1))], 1) * depth[:, None], depth


def gaussians(count: int, nearest: float) -> dict[str, Array]:
    """Gaussians in camera space, at least `nearest` largest standard deviations away; any shape down to needles."""
    rng = np.random.default_rng(62)
    mean, depth = points(rng, count)
    scale = np.minimum(np.exp(rng.uniform(np.log(1e-3), np.log(1.5), (count, 3))), depth[:, None] / nearest)
    arrays = {"mean": mean, "quat": rng.normal(size=(count, 4)), "scale": scale, "opacity": np.ones(count)}
    return {name: float32(array) for name, array in arrays.items()}


def projected(g: dict[str, Array]) -> tuple[Array, Array]:
    camera = {"rotation": np.eye(3), "translation": np.zeros(3), "focal": FOCAL, "principal": PRINCIPAL}
    splat = shader.projectForRays["RayGaussian"](g, camera | NO_LENS)
    return splat["mean"].astype(float), np.concatenate([splat[name] for name in "uvw"], 1).astype(float)


def sigmas_of_gaussians(g: dict[str, Array], pixels: Array) -> Array:
    """σ [N, ...] by definition: the least distance from the ray of pixels [..., 2]."""
    white = rotations(torch.tensor(g["quat"])).numpy().swapaxes(1, 2) / g["scale"][:, :, None]
    centre = np.einsum("nij,nj->ni", white, g["mean"])
    rays = np.concatenate([(pixels - PRINCIPAL) / FOCAL, np.ones_like(pixels[..., :1])], -1)
    direction = np.einsum("nij,...j->n...i", white, rays)
    centre = centre.reshape(len(centre), *[1] * (pixels.ndim - 1), 3)
    nearest = np.maximum(np.sum(centre * direction, -1) / np.sum(direction**2, -1), 0)
    return np.sum((nearest[..., None] * direction - centre) ** 2, -1)


def test_sigma_of_gaussians() -> None:
    g = gaussians(150, nearest=1.5)
    mean, numbers = projected(g)
    rng = np.random.default_rng(63)
    pixels = np.floor(mean + rng.normal(size=mean.shape) * 5) + 0.5
    expected = np.array([sigmas_of_gaussians({k: a[i : i + 1] for k, a in g.items()}, pixels[i])[0] for i in range(len(mean))])
    keep = expected < 100
    mean, numbers, pixels, expected = mean[keep], numbers[keep], pixels[keep], expected[keep]
    assert keep.sum() > 40
    sigma = shape.sigmaOf[9, "RayGaussian"]
    assert_value(sigma(mean, numbers, pixels), expected, rtol=1e-4, atol=1e-5)

    def sigma_of(mean: Array, numbers: Array) -> Array:
        a, x, y = numbers[:, :3], numbers[:, 3:6], numbers[:, 6:]
        ray = a + x * (pixels - mean)[:, :1] + y * (pixels - mean)[:, 1:]
        moment = np.cross(a, ray)
        return np.sum(moment * moment, 1) / np.sum(ray * ray, 1)

    v = rng.normal(size=len(mean))
    assert_gradients_of_sigma(sigma, v, mean, numbers, pixels, pullback(sigma_of, v, mean, numbers), tolerance=1e-4)


def assert_gradients_of_sigma(
    sigma: shaders.ShaderFunction, v: Array, mean: Array, numbers: Array, pixels: Array, expected: list[Array], tolerance: float
) -> None:
    """Compare the gradients of means [N, 2] and numbers [N, 9]. The tolerance is relative to the largest entry of each mean and
    of each of a splat's three vectors: gradients of different splats differ by orders of magnitude."""
    v_mean, v_numbers, v_pixels = shaders.gradients(sigma, v, mean, numbers, pixels)
    assert v_pixels is None
    for name, actual, wanted in (("mean", v_mean, expected[0]), ("numbers", v_numbers, expected[1])):
        vectors = wanted.reshape(len(wanted), -1, 2 if name == "mean" else 3)
        largest = np.abs(vectors).max(-1, keepdims=True)
        assert largest.any(), name
        difference = np.abs(actual.reshape(vectors.shape) - vectors)
        assert (difference <= tolerance * largest).all(), f"{name}: {np.max(difference / np.maximum(largest, 1e-12)):.1e}"


@pytest.mark.parametrize("nearest", [0.3, 3.0, 20.0])
def test_no_pixel_of_a_gaussian_is_missed(nearest: float) -> None:
    """Gaussians around the camera are included."""
    g = gaussians(300, nearest)
    mean, numbers = projected(g)
    sigma_max = np.random.default_rng(64).uniform(0.1, 11.1, len(mean))
    f = shape.boundsOf[9, "RayGaussian"](mean, numbers, sigma_max)
    visible = sigmas_of_gaussians(g, PIXELS) <= sigma_max[:, None, None]
    assert visible.any((1, 2)).mean() > 0.3
    assert_nothing_is_missed(f, visible, 0.2 if nearest == 20.0 else 1.0)


def ray_transforms(count: int, *, nearest: float, oblique: bool = False) -> tuple[Array, Array]:
    """T [N, 9] and box centres [N, 2] of surfels that are at least `nearest` times as far away as they reach to the camera."""
    rng = np.random.default_rng(52)
    mean, depth = points(rng, count)
    axes = rotations(torch.tensor(rng.normal(size=(count, 4)))).numpy()
    if oblique:
        # The line of sight lies in the plane, or nearly.
        sight = mean / np.linalg.norm(mean, axis=1, keepdims=True)
        axes[:, :, 0] = sight + rng.normal(size=(count, 3)) * 10.0 ** rng.uniform(-9, -2, (count, 1))
        axes[:, :, 1] = np.cross(sight, rng.normal(size=(count, 3)))
        axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    half = axes[:, :, :2] * np.exp(rng.uniform(np.log(0.01), np.log(1.5), (count, 1, 2)))
    half *= np.minimum(1, depth / nearest / np.linalg.norm(half[:, 2], axis=1))[:, None, None]
    transforms = K @ np.concatenate([half, mean[:, :, None]], 2)
    centres = box_centres(torch.tensor(mean), torch.tensor(half), torch.tensor(K)).numpy()
    return float32(transforms.reshape(count, 9)), float32(centres)


def sigma_of(mean: Array, numbers: Array, pixel: Array) -> Array:
    """σ, by solving T (s, t, 1) = depth (x, y, 1)."""
    T = numbers.reshape(*numbers.shape[:-1], 3, 3)
    homogeneous = np.concatenate([pixel, np.ones_like(pixel[..., :1])], -1)
    s, t, inverse = np.moveaxis(np.linalg.solve(T, homogeneous[..., None])[..., 0], -1, 0)
    filtered = 2 * np.sum((pixel - mean) ** 2, -1)
    with np.errstate(divide="ignore", invalid="ignore"):
        met = (s**2 + t**2) / inverse**2
    return np.where((inverse > 0) & (met < filtered), met, filtered)


def sigmas_of_surfels(mean: Array, numbers: Array) -> Array:
    size = (len(mean), SIDE, SIDE)
    each = (np.broadcast_to(a[:, None, None], (*size, a.shape[-1])) for a in (mean, numbers))
    return sigma_of(*each, np.broadcast_to(PIXELS, (*size, 2)))


def test_sigma_of_surfels() -> None:
    """On the plane and through the filter: the value, and the gradient of each number."""
    numbers, mean = ray_transforms(200, nearest=1.5)
    rng = np.random.default_rng(54)
    pixels = np.floor(mean + rng.normal(size=mean.shape) * 4) + 0.5
    expected = sigma_of(mean, numbers, pixels)
    filtered = 2 * np.sum((pixels - mean) ** 2, 1)
    # float32 may choose the other where both are nearly equal.
    clear = (np.abs(expected / filtered - 1) > 1e-3) | (expected == filtered)
    keep = clear & (expected < 50)
    assert 20 < np.sum(keep & (expected == filtered)) < np.sum(keep) - 50
    numbers, mean, pixels, expected = numbers[keep], mean[keep], pixels[keep], expected[keep]
    sigma = shape.sigmaOf[9, "Surfel"]
    assert_value(sigma(mean, numbers, pixels), expected, rtol=1e-4, atol=1e-5)
    # The filter has no cross product, whose differences round.
    plain = expected == 2 * np.sum((pixels - mean) ** 2, 1)
    assert_value(sigma(mean[plain], numbers[plain], pixels[plain]), expected[plain], rtol=2e-5, atol=1e-5)
    v = rng.normal(size=len(mean))
    gradients = pullback(lambda m, s: sigma_of(m, s, pixels), v, mean, numbers)
    assert_gradients_of_sigma(sigma, v, mean, numbers, pixels, gradients, tolerance=3e-4)


@pytest.mark.parametrize("oblique", [False, True], ids=["any", "oblique"])
@pytest.mark.parametrize("nearest", [1.05, 3.0, 20.0])
def test_no_pixel_of_a_surfel_is_missed(nearest: float, oblique: bool) -> None:
    """Surfels that reach behind the camera, or are seen edge-on, are included."""
    numbers, mean = ray_transforms(300, nearest=nearest, oblique=oblique)
    sigma_max = np.random.default_rng(53).uniform(0.1, 11.1, len(mean))
    f = shape.boundsOf[9, "Surfel"](mean, numbers, sigma_max)
    visible = sigmas_of_surfels(mean, numbers) <= sigma_max[:, None, None]
    assert visible.any((1, 2)).mean() > 0.5
    # Surfels seen edge-on pass between pixel centres, so most of their tiles see nothing.
    assert_nothing_is_missed(f, visible, 0.05 if nearest == 20.0 and not oblique else 1.0)


def test_a_plane_that_is_met_behind_the_camera() -> None:
    """Seen nearly edge-on: a ray meets the plane in front of the camera on one side of the mean, behind it on the other."""
    tilt, half = 0.002, 0.9
    columns = np.array([[half * np.sin(tilt), 0, 0], [0, 0.1, 0], [half * np.cos(tilt), 0, 1]])
    numbers, mean = np.tile((K @ columns).reshape(1, 9), (2, 1)), np.tile(PRINCIPAL, (2, 1))
    pixels = mean + np.array([[1.2, 0], [-1.2, 0]])
    expected = sigma_of(mean, numbers, pixels)
    assert expected[0] == pytest.approx(2 * 1.2**2) and expected[1] < 1.1
    assert_value(shape.sigmaOf[9, "Surfel"](mean, numbers, pixels), expected, rtol=2e-3)


def test_nothing_is_touched_by_what_is_nowhere() -> None:
    numbers, mean = ray_transforms(50, nearest=3.0)
    f = shape.boundsOf[9, "Surfel"](mean, numbers, -1.0)
    assert not visited(f, 4).any()
    assert not shaders.footprint.touches(f, mean - 1, mean + 1).any()
