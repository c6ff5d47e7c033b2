"""Camera models in torch's float64 with Jacobians by torch: references for the shaders' cameras."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from splat_py.gsplat.cameras import BivariateWindshieldModelParameters
from splat_py.shaders import camera_model as shader
from tests.reference.arrays import leaf
from tests.shaders.oracle import Array, assert_like, assert_value, float32

# Fields of a `Camera` without distortion.
NO_LENS = {"radial": np.zeros(3), "radialMore": np.zeros(3), "tangential": np.zeros(2), "thinPrism": np.zeros(4)}
IMAGE = {"width": 37, "height": 53}
# Pixel coordinates [2] of a point [3] in camera space, from focal lengths [2], principal point [2] and a lens [12].
Project = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def pinhole(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    return focal * t[:2] / t[2] + principal


def orthographic(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    return focal * t[:2] + principal


def distorted(slope: Tensor, lens: Tensor) -> Tensor:
    """Apply OpenCV's formula, (x/z, y/z) [2] → [2]."""
    x, y = slope
    k, (p1, p2), s = lens[:6], lens[6:8], lens[8:]
    powers = torch.stack([(x * x + y * y) ** i for i in range(4)])
    one = torch.ones(1).to(k)
    radial = (powers @ torch.cat([one, k[:3]])) / (powers @ torch.cat([one, k[3:]]))
    tangential = torch.stack([2 * p1 * x * y + p2 * (3 * x * x + y * y), p1 * (x * x + 3 * y * y) + 2 * p2 * x * y])
    return slope * radial + tangential + torch.stack([powers[1:3] @ s[:2], powers[1:3] @ s[2:]])


def opencv_pinhole(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    return focal * distorted(t[:2] / t[2], lens) + principal


def angle_over_radius(t: Tensor) -> tuple[Tensor, Tensor]:
    """θ / r, as a series near the axis: (1 - q²/3 + q⁴/5 - …) / z with q = r/z; and r²."""
    squared = t[0] ** 2 + t[1] ** 2
    near_axis = squared < 1e-4 * t[2] ** 2
    q2 = torch.where(near_axis, squared, 0.0) / t[2] ** 2
    series = (1 - q2 / 3 + q2**2 / 5 - q2**3 / 7 + q2**4 / 9) / t[2]
    radius = torch.where(near_axis, 1.0, squared).sqrt()
    return torch.where(near_axis, series, torch.atan2(radius, t[2]) / radius), squared


def fisheye(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    """Kannala and Brandt's model."""
    ratio, squared = angle_over_radius(t)
    angle2 = ratio**2 * squared
    powers = torch.stack([angle2**i for i in range(5)])
    return focal * t[:2] * ratio * (powers @ torch.cat([torch.ones(1).to(lens), lens[:4]])) + principal


def ftheta(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    """NVIDIA's model: p(θ) pixels from the principal point, or a distance with p(distance) = θ by Newton's method."""
    poly, (_, inverse), (c, d, e, _) = lens[:6], lens[6:8], lens[8:]
    ratio, squared = angle_over_radius(t)
    angle = ratio * torch.maximum(squared, 1e-12 * t.dot(t)).sqrt()
    distance = angle / poly[1]
    for _ in range(20):
        slope = torch.stack([i * distance ** (i - 1) for i in range(1, 6)]) @ poly[1:]
        distance = distance - (torch.stack([distance**i for i in range(1, 6)]) @ poly[1:] - angle) / slope
    quotients = [torch.stack([x**i for i in range(5)]) @ poly[1:] for x in (angle, distance)]
    x, y = t[:2] * ratio * torch.where(inverse > 0, 1 / quotients[1], quotients[0])
    return torch.stack([c * x + d * y, e * x + y]) + principal + 0.5


def equirectangular(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    x, y, z = t
    return focal * torch.stack([torch.atan2(x, z), torch.atan2(y, (x * x + z * z).sqrt())]) + principal


def clamped(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor, width: int, height: int) -> Tensor:
    """The point at which a pinhole is linearised: its image is clamped to 1.3 times the field of view, and x/z, y/z with it."""
    size = torch.tensor([width, height]).to(t)
    slope = t[:2] / t[2]
    image = distorted(slope, lens)
    held = torch.minimum(torch.maximum(image, (-0.15 * size - principal) / focal), (1.15 * size - principal) / focal)
    shrunk = (image * held > 0) & (held.abs() < image.abs())
    safe = torch.where(shrunk, image, 1.0)
    slope = torch.where(shrunk, slope * held / safe, slope + held - image)
    return torch.cat([slope * t[2], t[2:]])


def lenses(rng: np.random.Generator, count: int, *, fisheye: bool = False) -> Array:
    """Lenses [N, 12], with a fisheye's coefficients or all; they bend half a unit of slope or angle by some per cent."""
    lens = rng.uniform(-1, 1, (count, 12)) * [0.2, 0.1, 0.05, 0.1, 0.05, 0.02, 0.03, 0.03, 0.02, 0.01, 0.02, 0.01]
    if fisheye:
        lens = np.pad(rng.uniform(-1, 1, (count, 4)) * [0.05, 0.01, 0.003, 0.001], ((0, 0), (0, 8)))
    return float32(lens)


def ftheta_lenses(rng: np.random.Generator, count: int, *, of_distances: bool) -> Array:
    """F-theta lenses [N, 12] of about 30 pixels a radian, which rise up to 160 degrees, `of_distances` or of angles."""
    poly = rng.uniform(-1, 1, (count, 6)) * [0, 3, 1, 0.2, 0.05, 0.01] + [0, 30, 0, 0, 0, 0]
    rest = np.array([2.8, 0.0]) + np.zeros((count, 2))
    if of_distances:
        poly *= [0, *(1 / 30.0 ** np.arange(2, 7))]
        rest[:, 1] = 1.0
    cde = rng.normal((1, 0, 0), 0.03, (count, 3))
    return float32(np.concatenate([poly, rest, cde, np.full((count, 1), 200.0)], -1))


def windshield(order: int) -> BivariateWindshieldModelParameters:
    """Polynomials near φ and θ; those of a ray from the camera are others, so that they cannot be mistaken."""
    rng, count = np.random.default_rng(order), (order + 1) * (order + 2) // 2
    polynomials = rng.uniform(-0.05, 0.05, (4, count))
    polynomials[::2, 1] += 1
    polynomials[1::2, order + 1] += 1
    return BivariateWindshieldModelParameters(*torch.from_numpy(polynomials).float())


def bent(polynomials: tuple[Tensor | None, Tensor | None], d: Tensor) -> Tensor:
    """The unit vector [3] after the glass, of a vector before it, monomial by monomial."""
    angles = torch.asin(d[:2] / d.norm())
    s = []
    for numbers in polynomials:
        assert numbers is not None
        order = round((8 * len(numbers) + 1) ** 0.5 - 3) // 2
        powers = [(i, j) for j in range(order + 1) for i in range(order + 1 - j)]
        terms = [c * angles[0] ** i * angles[1] ** j for c, (i, j) in zip(numbers.double(), powers, strict=True)]
        s.append(torch.sin(torch.stack(terms).sum()))
    x = torch.stack(s)
    return torch.cat([x, d[2:].sign() * (1 - x.dot(x)).sqrt()[None]])


def bent_plane(polynomials: tuple[Tensor | None, Tensor | None], p: Tensor) -> Tensor:
    """The point [2] of an orthographic camera's plane after the glass, from the ray to (x, y, 1)."""
    d = bent(polynomials, torch.cat([p, torch.ones(1)]))
    return d[:2] / d[2]


def fields_of(lens: Array) -> dict[str, Array]:
    return dict(zip(NO_LENS, np.split(lens, (3, 6, 8), -1), strict=True))


def lens_of(camera: dict[str, Tensor]) -> Tensor:
    return torch.cat([camera[name] for name in NO_LENS], -1)


def cameras(rng: np.random.Generator, count: int) -> dict[str, Array]:
    """Cameras of float32 numbers, one a row."""
    fields = {
        "rotation": np.linalg.qr(rng.normal(size=(count, 3, 3)))[0],
        "translation": rng.normal(size=(count, 3)),
        "focal": rng.uniform(25, 45, (count, 2)),
        "principal": rng.normal((18.5, 26.5), size=(count, 2)),
    }
    return {name: float32(field) for name, field in fields.items()}


def check_project(name: str, project: Project, t: Array, lens: Array | None = None, *, atol: float = 1e-6) -> None:
    t = float32(t)
    camera = cameras(np.random.default_rng(50), len(t)) | fields_of(np.zeros((len(t), 12)) if lens is None else lens)

    def f(camera: dict[str, Tensor], t: Tensor) -> Tensor:
        return torch.func.vmap(project)(camera["focal"], camera["principal"], t, lens_of(camera))

    assert_like(shader.projectThrough[name], f, [camera, t], value=(1e-5, atol))


def check_axes(
    name: str,
    project: Project,
    t: Array,
    lens: Array | None = None,
    *,
    linearised_at: Callable[..., Tensor] | None = None,
    by_row: bool = False,
    atol: float = 1e-6,
) -> None:
    """Check values and the gradient of every number of `Model.projectAxes`: the Jacobian of `project`, times a matrix.

    Args:
        linearised_at: (focal, principal, t, lens) → the point of the Jacobian; t by default.
        by_row: compare small components of a point's gradient only to the precision of its largest.
    """
    rng, t = np.random.default_rng(51), float32(t)
    camera = cameras(rng, len(t)) | fields_of(np.zeros((len(t), 12)) if lens is None else lens)
    axes = float32(rng.normal(size=(len(t), 3, 3)))

    def one(focal: Tensor, principal: Tensor, point: Tensor, lens: Tensor, matrix: Tensor) -> Tensor:
        at = point if linearised_at is None else linearised_at(focal, principal, point, lens)
        return torch.func.jacfwd(project, argnums=2)(focal, principal, at, lens) @ matrix

    def f(camera: dict[str, Tensor], t: Tensor, axes: Tensor) -> dict[str, Tensor]:
        rows = torch.func.vmap(one)(camera["focal"], camera["principal"], t, lens_of(camera), axes)
        return {"x": rows[:, 0], "y": rows[:, 1]}

    # Every row counts the same, however near the camera.
    leaves = [{key: leaf(field) for key, field in camera.items()}, leaf(t), leaf(axes)]
    expected = {key: rows.detach().numpy() for key, rows in f(*leaves).items()}
    size = np.abs(list(expected.values())).max((0, 2))[:, None]
    function, arguments = shader.projectAxesThrough[name], [camera, t, axes]
    actual = function(*arguments, IMAGE)
    assert_value({key: rows / size for key, rows in actual.items()}, {key: rows / size for key, rows in expected.items()})
    v = {key: rng.normal(size=(len(t), 3)) / size for key in "xy"}
    if by_row:
        found = f(*leaves)
        (v_t,) = torch.autograd.grad(sum((found[key] * torch.from_numpy(v[key])).sum() for key in v), leaves[1])
        v = {key: rows / v_t.abs().amax(1, keepdim=True).numpy() for key, rows in v.items()}
    assert_like(function, f, arguments, [IMAGE], v=v, value=(1e-5, 1e-6 * size.max()), atol=atol)


def along(angles: Array, azimuths: Array, distances: Array) -> Array:
    """Points [N, 3] at these angles in degrees from the optical axis."""
    angle, azimuth = np.radians(angles), np.radians(azimuths)
    directions = [np.sin(angle) * np.cos(azimuth), np.sin(angle) * np.sin(azimuth), np.cos(angle)]
    return np.stack(directions, -1) * distances[:, None]
