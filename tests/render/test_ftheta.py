"""F-theta cameras: every projection and its gradients against float64, the largest angle, and coefficients that are refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py import rasterization
from splat_py.gsplat import RollingShutterType
from splat_py.gsplat.rendering import FThetaCameraDistortionParameters as Parameters
from splat_py.gsplat.rendering import FThetaPolynomialType
from tests.reference.gaussian import covariances
from tests.refusals import refused
from tests.render import ray_rendering, torch_rendering
from tests.render.comparison import compare
from tests.render.test_camera_models import scene_of
from tests.render.test_cameras import FAR, FAR_REFERENCE, camera_of, moving
from tests.render.test_eval3d import rays_of
from tests.render.torch_cameras import project_by_jacobian, project_unscented
from tests.shaders.camera_models import ftheta

WIDTH, HEIGHT, CAMERAS = 24, 18, 2
ANGLES = (0.0, 12.5, -0.6, 0.4, -0.2, 0.05)
DISTANCES = (0.0, 0.08, 4e-4, -2e-5, 1e-6, -1e-8)
CDE = (0.97, 0.02, -0.03)


def scene(*, behind: bool = False) -> dict[str, Tensor]:
    """A fisheye's scene; `behind` turns some Gaussians to more than 90 degrees from the axis."""
    inputs = scene_of("fisheye", WIDTH, HEIGHT, seed=121)
    with torch.no_grad():
        inputs["viewmats"][1] = inputs["viewmats"][0]
        inputs["viewmats"][1, :3, 3] += 0.1
        if behind:
            inputs["means"][:6, :2] *= 2.0 / inputs["means"][:6, :2].norm(dim=1, keepdim=True).clamp(min=0.1)
            inputs["means"][:6, 2] = -torch.linspace(0.1, 0.9, 6)
    return inputs


def angle_of(points: Tensor) -> Tensor:
    return torch.atan2(points[..., :2].norm(dim=-1), points[..., 2])


def parameters(gives_angles: bool, poly: Any = None, cde: Any = CDE, largest: float = 2.4) -> Parameters:
    poly = (DISTANCES if gives_angles else ANGLES) if poly is None else poly
    if gives_angles:
        return Parameters(FThetaPolynomialType.PIXELDIST_TO_ANGLE, poly, max_angle=largest, linear_cde=cde)
    kind = FThetaPolynomialType.ANGLE_TO_PIXELDIST
    return Parameters(kind, angle_to_pixeldist_poly=poly, max_angle=largest, linear_cde=cde)


def extended(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    """`ftheta`, which sees points beyond the largest angle at it."""
    largest, radius = lens[6].detach(), t[:2].dot(t[:2]).clamp(min=1e-20).sqrt()
    edge = torch.cat([t[:2] * (largest.sin() / radius), largest.cos()[None]])
    return ftheta(focal, principal, torch.where(angle_of(t) > largest, edge, t), lens)


def check(
    how: str,
    gives_angles: bool,
    shutter: str | None = None,
    *,
    behind: bool = False,
    packed: bool | None = None,
    largest: float = 2.4,
) -> None:
    """Compare colours, depths or hits, and gradients: `how` is jacobian, unscented or rays; `behind` orders by distance."""
    inputs, with_rays = scene(behind=behind), how == "rays"
    options: dict[str, Any] = {"with_ut": how == "unscented", "with_eval3d": with_rays, "return_normals": with_rays}
    if shutter is not None:
        inputs, options["rolling_shutter"] = moving(inputs, 94), RollingShutterType[shutter]
    poly = torch.tensor(DISTANCES if gives_angles else ANGLES, requires_grad=True)
    leaves = inputs | {"poly_coeffs": poly, "cde_coeffs": torch.tensor(CDE, requires_grad=True)}
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in leaves.items()}
    given = parameters(gives_angles, poly, leaves["cde_coeffs"], largest)
    images, alphas, meta = rasterization(
        **inputs,
        width=WIDTH,
        height=HEIGHT,
        camera_model="ftheta",
        ftheta_coeffs=given,
        ut_params=FAR,
        render_mode="RGB-d" if with_rays else "RGB+D",
        global_z_order=not behind,
        packed=gives_angles if packed is None else packed,
        **options,
    )
    ends = torch.tensor([largest, gives_angles]).double(), torch.zeros(1).double()
    lens = torch.cat([twins["poly_coeffs"], ends[0], twins["cde_coeffs"], ends[1]])
    twins["camera_params"] = lens.expand(CAMERAS, 12)
    gaussians = [twins[name] for name in ("means", "quats", "scales")]
    expected: list[Any] = []

    def seen(points: Tensor) -> Tensor:
        return angle_of(points) < largest

    for c in range(CAMERAS):
        held = how == "unscented" and shutter is None
        camera = camera_of(twins, c, "fisheye", shutter, extended if held else ftheta)
        matrices = twins["viewmats"][c], twins["Ks"][c], WIDTH, HEIGHT
        points = torch.func.vmap(camera)(twins["means"])[1]
        depths = points.norm(dim=-1) if behind else points[:, 2]
        angles = angle_of(points)
        assert angles.max() < 2.3 and (angles > 1.6).any() == behind
        if with_rays:
            origins, directions, _ = rays_of(twins, c, "fisheye", shutter, ftheta)
            one: Any = ray_rendering.render(
                *gaussians,
                twins["opacities"],
                twins["colors"],
                *matrices,
                sigmas=ray_rendering.along(origins, directions),
                hits=ray_rendering.hits(origins, directions),
                background=twins["backgrounds"][c],
                depths=depths,
            )
        else:
            if how == "jacobian":
                projected = project_by_jacobian(camera, twins["means"], covariances(twins["quats"], twins["scales"]))
            else:
                projected = project_unscented(camera, *gaussians, WIDTH, HEIGHT, **FAR_REFERENCE, seen=seen, extended=held)
            projected = replace(projected, depths=depths)
            one = torch_rendering.render(
                twins["means"],
                covariances(twins["quats"], twins["scales"]),
                twins["opacities"],
                twins["colors"],
                *matrices,
                camera_model="",
                background=torch.nn.functional.pad(twins["backgrounds"][c], (0, 1)),
                with_depth=True,
                projected=projected,
            )
        expected.append(one)
    normals = {"normals": meta["normals"]} if with_rays else {}
    compare({"image": images, "alpha": alphas} | normals, expected, leaves, twins, looser=10 if shutter else 5)


@pytest.mark.parametrize("gives_angles", [False, True])
@pytest.mark.parametrize("how", ["jacobian", "unscented", "rays"])
def test_against_float64(how: str, gives_angles: bool) -> None:
    check(how, gives_angles)


@pytest.mark.parametrize(("how", "gives_angles"), [("jacobian", True), ("unscented", False), ("rays", True)])
def test_rolling_shutters(how: str, gives_angles: bool) -> None:
    check(how, gives_angles, "ROLLING_TOP_TO_BOTTOM")


@pytest.mark.parametrize(("how", "gives_angles"), [("jacobian", False), ("unscented", True), ("rays", False)])
def test_behind_the_camera(how: str, gives_angles: bool) -> None:
    """By distance, it sees more than 180 degrees."""
    check(how, gives_angles, behind=True)


@pytest.mark.parametrize("gives_angles", [False, True])
def test_sigma_points_beyond_the_largest_angle(gives_angles: bool) -> None:
    """They are seen at it, unless all must be on the image."""
    check("unscented", gives_angles, behind=not gives_angles, largest=0.9)
    inputs = scene()
    options = {"with_ut": True, "packed": False, "ut_params": replace(FAR, require_all_sigma_points_valid=True)}
    _, _, meta = render(parameters(gives_angles, largest=0.9), **options)
    _, _, found = render(parameters(gives_angles, largest=0.9), **options | {"ut_params": FAR})
    all_seen, one_seen = ((of["radii"] > 0).all(-1) for of in (meta, found))
    points = inputs["means"] @ inputs["viewmats"][:, :3, :3].mT + inputs["viewmats"][:, None, :3, 3]
    assert (one_seen & ~all_seen).any() and not (all_seen & ~one_seen).any()
    assert (one_seen & (angle_of(points) > 0.9)).any() and not (all_seen & (angle_of(points) > 0.9)).any()


def render(given: Any, **changes: Any) -> Any:
    inputs: dict[str, Any] = {name: tensor.detach() for name, tensor in scene().items()} | changes
    return rasterization(**inputs, width=WIDTH, height=HEIGHT, camera_model="ftheta", ftheta_coeffs=given)


@pytest.mark.parametrize("gives_angles", [False, True])
def test_nothing_is_seen_beyond_the_largest_angle(gives_angles: bool) -> None:
    _, _, meta = render(parameters(gives_angles, largest=1000.0), packed=False)
    _, _, found = render(parameters(gives_angles, largest=0.7), packed=False)
    _, black, _ = render(parameters(gives_angles, largest=0.7), with_eval3d=True)
    inputs = scene()
    points = inputs["means"] @ inputs["viewmats"][:, :3, :3].mT + inputs["viewmats"][:, None, :3, 3]
    inside = angle_of(points) < 0.7
    assert (found["radii"][~inside] == 0).all() and (meta["radii"][~inside] > 0).any()
    torch.testing.assert_close(found["means2d"][inside], meta["means2d"][inside])
    assert not black[:, 0, 0].any() and black[:, HEIGHT // 2, WIDTH // 2].any()


def test_the_principal_point_counts_from_the_centre_of_a_pixel() -> None:
    """Coefficients are numbers, tensors or arrays."""
    K = torch.eye(3)
    K[:2, 2] = torch.tensor([7.0, 5.0])
    poly = torch.tensor(ANGLES, dtype=torch.float64).numpy()
    _, _, meta = render(
        parameters(False, poly),
        means=torch.tensor([[0.0, 0, 2]] * 20),
        viewmats=torch.eye(4).expand(2, 4, 4),
        Ks=K.expand(2, 3, 3),
    )
    torch.testing.assert_close(meta["means2d"], torch.tensor([[7.5, 5.5]]).expand(meta["means2d"].shape))


@pytest.mark.parametrize("gives_angles", [False, True])
def test_finite_differences(gives_angles: bool) -> None:
    """Lens, principal points and poses, through colours and distances of Gaussians so large that none has an edge, and before
    which no ray leads away."""
    base = torch.tensor(DISTANCES if gives_angles else ANGLES), torch.tensor(CDE), torch.tensor([11.0, 8.0]), torch.zeros(3)
    generator = torch.Generator().manual_seed(5)
    inputs: dict[str, Any] = {name: tensor.detach() for name, tensor in scene().items()}
    large = {"scales": torch.full_like(inputs["scales"], 6.0), "opacities": inputs["opacities"] * 0.2, "backgrounds": None}
    large["means"] = inputs["means"] * torch.tensor([0.2, 0.2, 2.0])
    weights = torch.randn(2, HEIGHT, WIDTH, 4, generator=generator)

    def loss(poly: Tensor, cde: Tensor, principal: Tensor, shift: Tensor) -> Tensor:
        K = torch.eye(3).index_put((torch.tensor([0, 1]), torch.tensor([2, 2])), principal)
        pose = inputs["viewmats"][:1] + torch.nn.functional.pad(shift[:, None], (3, 0, 0, 1))
        changes = large | {"Ks": K.expand(2, 3, 3), "viewmats": pose.expand(2, 4, 4)}
        image, _, _ = render(parameters(gives_angles, poly, cde), **changes, with_eval3d=True, render_mode="RGB-d")
        return (image * weights).sum()

    leaves = [part.clone().requires_grad_() for part in base]
    gradients = torch.autograd.grad(loss(*leaves), leaves)
    scales = (DISTANCES[1] * torch.tensor([1, 1, 0.1, 1e-2, 1e-3, 1e-4]) if gives_angles else torch.ones(6)), 1.0, 10.0, 1.0
    for i, scale in enumerate(scales):
        direction = torch.randn(base[i].shape, generator=generator) * scale * 2e-4
        if i == 0:
            direction[0] = 0
        moved = ([part + sign * direction if j == i else part for j, part in enumerate(base)] for sign in (1, -1))
        ahead, back = (loss(*parts).double() for parts in moved)
        expected = (gradients[i].double() * direction.double()).sum()
        torch.testing.assert_close((ahead - back) / 2, expected, rtol=0.01, atol=5e-5)


WRONG = {
    "angle_to_pixeldist_poly": {"poly": (0.0, 1.0)},
    "angle_to_pixeldist_poly is missing": {"poly": None},
    "finite": {"poly": (0.0, math.nan, 0, 0, 0, 0)},
    "must be 0 at 0": {"poly": (0.1, 12.0, 0, 0, 0, 0)},
    "rise up to max_angle": {"poly": (0.0, 12.0, 0, -3, 0, 0)},
    "max_angle > 0": {"largest": 0.0},
    "ftheta_coeffs.max_angle": {"largest": "wide"},
    "linear_cde": {"cde": (1.0, 1.0, 1.0)},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_coefficients(message: str) -> None:
    given = parameters(False, **WRONG[message])
    if message.endswith("missing"):
        given = replace(given, angle_to_pixeldist_poly=None)
    refused(message, render, given)


def test_what_belongs_together() -> None:
    refused("ftheta_coeffs and camera_model='ftheta' belong together", render, None)
    inputs: dict[str, Any] = scene()
    size = {"width": WIDTH, "height": HEIGHT}
    refused("ftheta_coeffs.reference_poly is None", render, torch.zeros(2, 4))
    refused("belong together", rasterization, **inputs, **size, ftheta_coeffs=parameters(False))
    refused("ftheta camera model does not support radial_coeffs", render, parameters(False), radial_coeffs=torch.zeros(2, 4))
    refused("pixeldist_to_angle_poly must be 0 at 0 and rise", render, Parameters(linear_cde=CDE, max_angle=1.0))
