"""The unscented transform, rolling shutters, and callers' own cameras, against float64."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from splat_py import rasterization, shaders
from splat_py.gsplat import RollingShutterType
from splat_py.gsplat.rendering import UnscentedTransformParameters
from splat_py.render.options import UnscentedTransform
from tests.reference.gaussian import covariances, cross_matrix
from tests.refusals import refused
from tests.render.test_camera_models import check, lens_of, of_covars, scene_of, with_covars, with_lenses
from tests.render.torch_cameras import SHUTTERS, Camera, in_whole_rows, project_by_jacobian, project_unscented, rolling, still
from tests.render.torch_rendering import LENS_MODELS, MODELS, Projected

WIDTH, HEIGHT = 24, 18

DOUBLE_SPHERE = """
import splat.prelude;

/// Usenko et al. 2018; ξ and α are the coefficients.
struct DoubleSphere : ICameraModel
{
    [Differentiable]
    static float2 project(Camera camera, float3 t)
    {
        float shifted = t.z + coefficient(camera, 0) * sqrt(dot(t, t));
        float distance = sqrt(dot(t.xy, t.xy) + shifted * shifted);
        float alpha = coefficient(camera, 1);
        return camera.focal * (t.xy / (distance * alpha + shifted * (1.0 - alpha))) + camera.principal;
    }

    /// True right of the axis, which shows that it is called.
    static override bool isInDomain(Camera camera, float3 t)
    {
        return t.x > 0.0;
    }
}
"""


def double_sphere(focal: Tensor, principal: Tensor, t: Tensor, lens: Tensor) -> Tensor:
    shifted = t[2] + lens[0] * t.norm()
    distance = (t[:2].square().sum() + shifted.square()).sqrt()
    return focal * t[:2] / (lens[1] * distance + (1 - lens[1]) * shifted) + principal


def moving(inputs: dict[str, Tensor], seed: int, amount: float = 0.4) -> dict[str, Tensor]:
    """Add poses at the last row, some degrees and some per cent of the distances away."""
    rng = np.random.default_rng(seed)
    last = []
    for viewmat in inputs["viewmats"].detach().double():
        shifted = torch.eye(4).double()
        shifted[:3, :3] = torch.linalg.matrix_exp(cross_matrix(torch.tensor(rng.normal(size=3) * 0.03 * amount)))
        shifted[:3, 3] = torch.tensor(rng.normal(size=3) * 0.06 * amount)
        last.append(shifted @ viewmat)
    return inputs | {"viewmats_rs": torch.stack(last).float().requires_grad_()}


def camera_of(
    twins: dict[str, Tensor],
    c: int,
    camera_model: str,
    shutter: str | None = None,
    own: Any = None,
    margin_of_rows: float | None = None,
) -> Camera:
    """The camera of the float64 reference."""
    lens = lens_of(twins, c)
    K = twins["Ks"][c]
    focal, principal = torch.stack([K[0, 0], K[1, 1]]), K[:2, 2]
    if own is not None:
        model, lens = own, twins["camera_params"][c]
    else:
        model = (MODELS if lens is None else LENS_MODELS)[camera_model]
    full = torch.zeros(12).double() if lens is None else lens

    def static(t: Tensor) -> Tensor:
        return model(focal, principal, t, full)

    if shutter is None:
        return still(static, twins["viewmats"][c])
    poses = twins["viewmats"][c], twins["viewmats_rs"][c], shutter
    if margin_of_rows is not None:
        return in_whole_rows(static, *poses, (WIDTH, HEIGHT), margin_of_rows)
    return rolling(static, *poses, WIDTH, HEIGHT)


def unscented_of(camera_model: str, shutter: str | None = None, whole_rows: bool = False, **options: Any) -> Any:
    def project(twins: dict[str, Tensor], c: int) -> Projected:
        margin = options["margin"] if whole_rows else None
        camera = camera_of(twins, c, camera_model, shutter, margin_of_rows=margin)
        sphere = camera_model == "equirectangular"
        if sphere:
            options["around"] = 2 * torch.pi * twins["Ks"][c, 0, 0]
        gaussians = (twins[name] for name in ("means", "quats", "scales"))
        return project_unscented(camera, *gaussians, WIDTH, HEIGHT, distances=sphere, **options)

    return project


def linearised_of(camera_model: str, shutter: str | None = None, own: Any = None) -> Any:
    def project(twins: dict[str, Tensor], c: int) -> Projected:
        sigma = of_covars(twins) if "covars" in twins else covariances(twins["quats"], twins["scales"])
        return project_by_jacobian(camera_of(twins, c, camera_model, shutter, own), twins["means"], sigma)

    return project


def smaller(inputs: dict[str, Tensor], factor: float = 0.5) -> dict[str, Tensor]:
    with torch.no_grad():
        inputs["scales"] *= factor
    return inputs


# Far enough from the mean for float32's second differences, and for the projection's curvature to count.
# Set field by field, as gsplat's scripts may do.
FAR = UnscentedTransformParameters(beta=1.5, kappa=0.3, in_image_margin_factor=0.3, require_all_sigma_points_valid=False)
FAR.alpha = 0.9
FAR_REFERENCE = {"alpha": 0.9, "beta": 1.5, "kappa": 0.3, "margin": 0.3, "require_all": False}


@pytest.mark.parametrize(("camera_model", "lens"), [("pinhole", True), ("fisheye", False), ("equirectangular", False)])
def test_unscented(camera_model: str, lens: bool) -> None:
    inputs = scene_of(camera_model, WIDTH, HEIGHT, seed=91)
    if lens:
        inputs = with_lenses(inputs, camera_model)
    reference = unscented_of(camera_model, **FAR_REFERENCE)
    options: dict[str, Any] = {"with_ut": True, "ut_params": FAR, "packed": lens, "antialiased": lens, "with_depth": lens}
    check(inputs, camera_model, WIDTH, HEIGHT, projected_of=reference, **options)


@pytest.mark.parametrize("camera_model", ["pinhole", "fisheye", "ortho"])
def test_sigma_points_behind_the_camera(camera_model: str) -> None:
    """Their pixel is (0, 0), where one point on the image is enough."""
    inputs = scene_of(camera_model, WIDTH, HEIGHT, seed=105)
    with torch.no_grad():
        inputs["means"][::3] *= 0.3
        inputs["scales"][::3] *= 3
    behind: list[Tensor] = []

    def in_front(points: Tensor) -> Tensor:
        behind.append(points[..., 2] <= 0)
        return points[..., 2] > 0

    def project(twins: dict[str, Tensor], c: int) -> Projected:
        static = camera_of(twins, c, camera_model)

        def camera(p: Tensor) -> tuple[Tensor, Tensor]:
            pixel, point = static(p)
            return torch.where(point[2] > 0, pixel, 0.0), point

        gaussians = (twins[name] for name in ("means", "quats", "scales"))
        return project_unscented(camera, *gaussians, WIDTH, HEIGHT, **FAR_REFERENCE, seen=in_front, extended=True)

    check(inputs, camera_model, WIDTH, HEIGHT, projected_of=project, with_ut=True, ut_params=FAR, looser=20)
    assert any(((~b[:, 0]) & b[:, 1:].any(1)).any() for b in behind)


def test_gsplats_sigma_points() -> None:
    """Points a sixth of a standard deviation from the mean; images of points may lie outside by a tenth of the image."""
    inputs = scene_of("pinhole", WIDTH, HEIGHT, seed=92)
    check(inputs, "pinhole", WIDTH, HEIGHT, projected_of=unscented_of("pinhole"), with_ut=True, looser=20)


@pytest.mark.parametrize("shutter", SHUTTERS)
def test_rolling_shutter(shutter: str) -> None:
    inputs = moving(scene_of("pinhole", WIDTH, HEIGHT, seed=93), 94)
    options: dict[str, Any] = {"rolling_shutter": RollingShutterType[shutter], "antialiased": True}
    check(inputs, "pinhole", WIDTH, HEIGHT, projected_of=linearised_of("pinhole", shutter), **options)


def test_rolling_shutter_of_a_lens_and_covariances() -> None:
    inputs = with_covars(moving(with_lenses(scene_of("pinhole", WIDTH, HEIGHT, seed=95), "pinhole"), 96))
    shutter = "ROLLING_BOTTOM_TO_TOP"
    reference = linearised_of("pinhole", shutter)
    options: dict[str, Any] = {"rolling_shutter": RollingShutterType[shutter], "with_depth": True, "packed": False}
    check(inputs, "pinhole", WIDTH, HEIGHT, of_covars, projected_of=reference, **options)


@pytest.mark.parametrize(
    ("shutter", "whole_rows"),
    [("ROLLING_TOP_TO_BOTTOM", False), ("ROLLING_TOP_TO_BOTTOM", True), ("ROLLING_RIGHT_TO_LEFT", True)],
)
def test_rolling_shutter_unscented(shutter: str, whole_rows: bool) -> None:
    """Each of the seven points has the time of its own row, or of the row of pixels that it lies in."""
    inputs = moving(scene_of("pinhole", WIDTH, HEIGHT, seed=97), 98)
    reference = unscented_of("pinhole", shutter, whole_rows, **FAR_REFERENCE)
    points = replace(UnscentedTransform.of(FAR), whole_rows=whole_rows)
    options: dict[str, Any] = {"rolling_shutter": RollingShutterType[shutter], "with_ut": True, "ut_params": points}
    check(inputs, "pinhole", WIDTH, HEIGHT, projected_of=reference, with_depth=True, **options)


def test_poses_that_are_equal_are_one() -> None:
    inputs = {name: tensor.detach() for name, tensor in scene_of("pinhole", WIDTH, HEIGHT, seed=99).items()}
    inputs["colors"] = torch.randn(len(inputs["means"]), 4, 3, generator=torch.Generator().manual_seed(1))
    options: dict[str, Any] = {"rolling_shutter": RollingShutterType.ROLLING_LEFT_TO_RIGHT, "viewmats_rs": inputs["viewmats"]}
    size: dict[str, Any] = {"width": WIDTH, "height": HEIGHT, "rasterize_mode": "antialiased", "sh_degree": 1}
    one, other = (rasterization(**inputs, **size, **o)[0] for o in ({}, options))
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_a_camera_of_ones_own(packed: bool) -> None:
    """An own camera with its own coefficients and culling by its own domain; packed also with a rolling shutter."""
    inputs = smaller(scene_of("pinhole", WIDTH, HEIGHT, seed=100))
    lens = torch.tensor([[0.1, 0.55], [-0.05, 0.6]], requires_grad=True)
    shutter = "ROLLING_TOP_TO_BOTTOM" if packed else None
    options: dict[str, Any] = {"rolling_shutter": RollingShutterType[shutter]} if shutter else {}
    if packed:
        inputs = moving(inputs, 105)
    linearised = linearised_of("pinhole", shutter, double_sphere)

    def reference(twins: dict[str, Tensor], c: int) -> Projected:
        camera = camera_of(twins, c, "pinhole", shutter, double_sphere)
        visible = torch.stack([camera(p)[1][0] > 0 for p in twins["means"]])
        assert not visible.all()
        return replace(linearised(twins, c), visible=visible)

    camera = shaders.source(DOUBLE_SPHERE)
    inputs["camera_params"] = lens
    check(inputs, "pinhole", WIDTH, HEIGHT, projected_of=reference, packed=packed, own=camera, **options)


def test_the_pinhole_as_a_camera_of_ones_own() -> None:
    """Equal to the built-in camera except for the clamp; two scenes, with sigma points and with a rolling shutter."""
    own = shaders.source("""
        import splat.prelude;
        struct Mine : ICameraModel
        {
            [Differentiable]
            static float2 project(Camera camera, float3 t) { return camera.focal * (t.xy / t.z) + camera.principal; }
        }""")
    scene = moving(scene_of("pinhole", WIDTH, HEIGHT, seed=101), 102)
    inputs = {name: torch.stack([tensor.detach()] * 2) for name, tensor in scene.items()}
    inputs["means"][1] += 0.1
    last = inputs.pop("viewmats_rs")
    rolls: dict[str, Any] = {"rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM, "viewmats_rs": last}
    images = [
        rasterization(**inputs, width=WIDTH, height=HEIGHT, camera_model=model, with_ut=True, **rolls)[0]
        for model in ("pinhole", own)
    ]
    torch.testing.assert_close(*images, rtol=1e-4, atol=1e-4)
    assert (images[0][0] - images[0][1]).abs().max() > 0.01


SPHERE = """
import splat.camera_models;
import splat.prelude;

struct Sphere : ICameraModel
{
    [Differentiable]
    static float2 project(Camera camera, float3 t)
    {
        return Equirectangular.project(camera, t);
    }

    [Differentiable]
    static override float depth(float3 t)
    {
        return length(t);
    }
}
"""


@pytest.mark.parametrize("with_eval3d", [False, True])
def test_a_camera_of_ones_own_sees_behind_itself(with_eval3d: bool) -> None:
    """If its depths are positive there: it needs no `isInDomain` of its own."""
    inputs = scene_of("equirectangular", WIDTH, HEIGHT, seed=109)
    with torch.no_grad():
        # Not at the poles, away from which the built-in camera moves a linearisation.
        inputs["means"][:, 1] *= 0.3
        inputs["scales"].clamp_(max=0.2)
        inputs["viewmats"].copy_(torch.eye(4))
    images, _, meta = zip(
        *(
            rasterization(**inputs, width=WIDTH, height=HEIGHT, camera_model=model, with_eval3d=with_eval3d)
            for model in ("equirectangular", shaders.source(SPHERE))
        ),
        strict=True,
    )
    torch.testing.assert_close(*images, rtol=1e-4, atol=1e-4)
    assert (inputs["means"][meta[1]["gaussian_ids"].long(), 2] < -1).any()


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("camera_params", {"camera_params": torch.zeros(2, 3)}),
    ("camera_params", {"camera_model": "own", "camera_params": torch.zeros(2, 13)}),
    ("camera_params", {"camera_model": "own", "camera_params": torch.full((2, 3), float("nan"))}),
    ("radial_coeffs", {"camera_model": "own", "radial_coeffs": torch.zeros(2, 4)}),
    ("ICameraModel", {"camera_model": "no camera"}),
    ("viewmats_rs", {"rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM}),
    ("viewmats_rs", {"viewmats_rs": torch.eye(4).repeat(2, 1, 1)}),
    ("viewmats_rs", {"rolling_shutter": RollingShutterType.ROLLING_TOP_TO_BOTTOM, "viewmats_rs": torch.eye(4)}),
    ("rolling_shutter", {"rolling_shutter": "ROLLING_UPWARDS", "viewmats_rs": torch.eye(4).repeat(2, 1, 1)}),
    ("with_ut", {"with_ut": True, "covars": torch.eye(3).repeat(20, 1, 1)}),
    ("ut_params", {"with_ut": True, "ut_params": SimpleNamespace(alpha=0.0, beta=2.0, kappa=0.0, in_image_margin_factor=0.1)}),
    ("ut_params", {"with_ut": True, "ut_params": {"alpha": 0.1}}),
]


@pytest.mark.parametrize(("name", "changes"), WRONG, ids=str)
def test_errors(name: str, changes: dict[str, Any]) -> None:
    modules = {"own": DOUBLE_SPHERE, "no camera": "import splat.prelude;\n"}
    if changes.get("camera_model") in modules:
        changes = changes | {"camera_model": shaders.source(modules[changes["camera_model"]])}
    inputs: dict[str, Any] = scene_of("pinhole", WIDTH, HEIGHT, seed=104)
    refused(rf"\A.*{name}.*\Z", rasterization, **inputs, width=WIDTH, height=HEIGHT, **changes)
