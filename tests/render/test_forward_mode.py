"""Forward derivatives: against the backward pass, the float64 renderer and each other, and what cannot be differentiated so."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd.forward_ad import dual_level, make_dual, unpack_dual

import splat_py as splat
from splat_py.gpu.device import get_device
from splat_py.gsplat import RollingShutterType
from splat_py.render.colors import initial_network
from splat_py.render.images import MAX_DIRECTIONS
from splat_py.render.options import UnscentedTransform
from splat_py.shaders import source
from tests.reference.gaussian import covariances
from tests.refusals import refused
from tests.render import comparison, test_camera_models, test_ftheta, test_packed
from tests.render.test_cameras import DOUBLE_SPHERE, moving
from tests.render.test_falloffs import own
from tests.render.test_falloffs3d import COLOR, FALLOFF
from tests.render.test_surfels import surfels_of
from tests.render.torch_rendering import render

WIDTH, HEIGHT = 27, 18
Inputs = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """A render and its inputs. `params` are among the inputs, and parameters of the falloff."""

    inputs: Inputs
    options: dict[str, Any] = field(default_factory=dict)
    params: tuple[str, ...] = ()
    function: Callable[..., Any] = splat.rasterization
    # Sigma points are differences of nearby pixels.
    rtol: float = 1e-5

    def outputs(self, inputs: Inputs) -> list[Tensor]:
        """The differentiable results."""
        given: dict[str, Any] = {name: tensor for name, tensor in inputs.items() if name not in self.params}
        if self.params:
            given["splat_params"] = {name: inputs[name] for name in self.params}
        *results, meta = self.function(**given, **{"width": WIDTH, "height": HEIGHT, **self.options})
        return [*(r for r in results if r is not None), *(v for key, v in meta.items() if key == "render_extra_signals")]


def detached(inputs: Inputs) -> Inputs:
    return {name: tensor.detach() for name, tensor in inputs.items()}


def several(**options: Any) -> Case:
    """Three cameras, of which each sees a different part; no side is a multiple of a tile's."""
    colors = {"colors": options.pop("colors", (3,)), "per_camera": options.pop("per_camera", False)}
    inputs = detached(test_packed.inputs_of(options.pop("batch", ()), **colors))
    return Case(inputs, options)


def random(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def of_reference(scene: Any, count: int = 1, **options: Any) -> Case:
    rng = np.random.default_rng(8)
    return Case(
        detached(comparison.leaves_of(scene, [comparison.camera_of(rng, WIDTH, HEIGHT) for _ in range(count)])), options
    )


def seen_by(camera_model: str, *, lens: bool = False, **options: Any) -> Case:
    inputs = test_camera_models.scene_of(camera_model, WIDTH, HEIGHT, seed=70)
    inputs = test_camera_models.with_lenses(inputs, camera_model) if lens else inputs
    return Case(detached(inputs), {"camera_model": camera_model, **options})


def falling_off(kind: Any, **params: float) -> Case:
    case = seen_by("pinhole", splat=kind)
    more = {name: torch.full((test_camera_models.N,), value) for name, value in params.items()}
    return replace(case, inputs=case.inputs | more, params=tuple(params))


def colored(color: Any, features: int, weights: Tensor | None = None) -> Case:
    case = seen_by("pinhole", color=color)
    more = {"colors": random(test_camera_models.N, features)} | ({} if weights is None else {"weights": weights})
    return replace(case, inputs=case.inputs | more)


def halved(case: Case) -> Case:
    # The gradient is rounded.
    return replace(case, inputs=case.inputs | {"colors": case.inputs["colors"].half()}, rtol=1e-3)


def with_signals() -> Case:
    case = several(colors=(40,), extra_signals_sh_degree=1, packed=True)
    return replace(case, inputs=case.inputs | {"extra_signals": random(test_packed.N, 4, 2)})


def with_covars() -> Case:
    case = several(packed=True, batch=(2,), colors=(4, 3), sh_degree=1)
    sigma = covariances(case.inputs.pop("quats").double(), case.inputs.pop("scales").double()).float()
    return replace(case, inputs=case.inputs | {"quats": None, "scales": None, "covars": sigma})  # type: ignore[dict-item]


def rolling(**options: Any) -> Case:
    case = seen_by("pinhole", lens=True, rolling_shutter=RollingShutterType.ROLLING_TOP_TO_BOTTOM, **options)
    return replace(case, inputs=detached(moving(case.inputs, 5)))


def with_own_camera() -> Case:
    kind = source(DOUBLE_SPHERE.replace("return t.x > 0.0", "return t.z > 0.0"))
    case = replace(seen_by("pinhole"), options={"camera_model": kind, "with_eval3d": True})
    return replace(case, inputs=case.inputs | {"camera_params": torch.tensor([[0.1, 0.55], [-0.05, 0.6]])})


def surfels(**options: Any) -> Case:
    def function(**given: Any) -> list[Any]:
        results = list(splat.rasterization_2dgs(**given))
        # Normals of depth maps: torch computes them, and divides by lengths that may be zero.
        del results[3]
        return results

    return Case(detached(surfels_of(91)), {"render_mode": "RGB+D", "distloss": True, **options}, function=function)


RNG = np.random.default_rng(4)
WHOLE_ROWS = UnscentedTransform(whole_rows=True)
HEAVY_TAIL = own(
    "return exp(log(1.0 + sigma) * -power);", "return exp(log(opacity / ALPHA_MIN) / power) - 1.0;", fields="float power;"
)
ANISOTROPIC = own(
    "return gaussian(dot(standardised(d, conic), standardised(d, conic)) * rate);",
    "return GaussianFalloff().sigmaMax(opacity) / rate;",
    kind="IFalloff2D",
    fields="float rate;",
)


def through_ftheta(poly: Tensor, cde: Tensor, **given: Any) -> Any:
    return splat.rasterization(**given, camera_model="ftheta", ftheta_coeffs=test_ftheta.parameters(False, poly, cde))


def of_ftheta(**options: Any) -> Case:
    numbers = {"poly": torch.tensor(test_ftheta.ANGLES), "cde": torch.tensor(test_ftheta.CDE)}
    return Case(detached(test_ftheta.scene()) | numbers, options, function=through_ftheta, rtol=5e-5)


CASES: dict[str, Callable[[], Case]] = {
    "dense": lambda: several(packed=False),
    "packed, with expected depth": lambda: several(render_mode="RGB+ED"),
    "a crowded tile": lambda: of_reference(comparison.crowded(RNG)),
    "one Gaussian": lambda: of_reference(comparison.scene_of(RNG, 1)),
    "batches, antialiased": lambda: several(batch=(1, 2), rasterize_mode="antialiased", render_mode="RGB+D"),
    "harmonics": lambda: several(colors=(25, 3), sh_degree=3),
    "harmonics in float16": lambda: halved(several(colors=(25, 3), sh_degree=3)),
    "features in float16": lambda: halved(colored("SphericalGaussians", 15)),
    "colours of each camera": lambda: several(per_camera=True),
    "harmonics of each camera": lambda: several(colors=(4, 3), per_camera=True, sh_degree=1),
    "harmonics of each camera, dense": lambda: several(colors=(4, 3), per_camera=True, sh_degree=1, packed=False),
    "signals, and more channels than one pass takes": with_signals,
    "covariances": with_covars,
    "depth alone": lambda: several(render_mode="D"),
    "backgrounds": lambda: seen_by("pinhole"),
    "an orthographic camera": lambda: seen_by("ortho"),
    "a fisheye": lambda: seen_by("fisheye", lens=True),
    "an equirectangular camera": lambda: seen_by("equirectangular"),
    "a lens": lambda: seen_by("pinhole", lens=True),
    "the unscented transform": lambda: replace(seen_by("pinhole", lens=True, with_ut=True), rtol=5e-5),
    "a rolling shutter": rolling,
    "a rolling shutter and the unscented transform": lambda: replace(rolling(with_ut=True), rtol=5e-5),
    "whole rows": lambda: replace(rolling(with_ut=True, ut_params=WHOLE_ROWS), rtol=5e-5),
    "along rays": lambda: seen_by("pinhole", with_eval3d=True),
    "along a lens's rays": lambda: seen_by("pinhole", lens=True, with_eval3d=True, with_ut=True),
    "along a fisheye's rays": lambda: seen_by("fisheye", lens=True, with_eval3d=True, packed=False),
    "along an orthographic camera's rays": lambda: seen_by("ortho", with_eval3d=True),
    "along an equirectangular camera's rays": lambda: seen_by("equirectangular", with_eval3d=True),
    "along an own camera's rays": with_own_camera,
    "along a rolling shutter's rays": lambda: rolling(with_eval3d=True),
    "along rays in whole rows": lambda: rolling(with_eval3d=True, with_ut=True, render_mode="RGB+D", ut_params=WHOLE_ROWS),
    "an f-theta camera": of_ftheta,
    "along an f-theta camera's rays": lambda: of_ftheta(with_ut=True, with_eval3d=True, global_z_order=False),
    "distances along a fisheye's rays": lambda: seen_by("fisheye", lens=True, with_eval3d=True, render_mode="RGB-d"),
    "expected distances along moving rays": lambda: rolling(with_eval3d=True, render_mode="RGB-Ed"),
    "GeneralizedExponential": lambda: falling_off("GeneralizedExponential", beta=1.3),
    "BetaKernel": lambda: falling_off("BetaKernel", b=0.2),
    "an own falloff": lambda: falling_off(source(HEAVY_TAIL), power=3.0),
    "an own falloff of both offsets": lambda: falling_off(source(ANISOTROPIC), rate=0.8),
    "an own falloff in space, and its colour": lambda: falling_off(source(FALLOFF + COLOR), a=0.4, b=-0.3, c=1.2, e=0.6),
    "SphericalGaussians": lambda: colored("SphericalGaussians", 15),
    "ColorNetwork": lambda: colored("ColorNetwork", 5, torch.from_numpy(initial_network(5, 3))),
    "surfels": surfels,
    "surfels, packed": lambda: surfels(packed=True, render_mode="RGB+ED"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]()


def duals(case: Case, inputs: Inputs, tangents: Inputs) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs, and their tangents."""
    with dual_level():
        given = {name: make_dual(tensor, tangents[name]) if name in tangents else tensor for name, tensor in inputs.items()}
        outputs = [unpack_dual(output) for output in case.outputs(given)]
    return [o.primal for o in outputs], [torch.zeros_like(o.primal) if o.tangent is None else o.tangent for o in outputs]


def pushed(case: Case, tangents: Inputs) -> list[Tensor]:
    """The outputs' tangents."""
    return duals(case, case.inputs, tangents)[1]


def tensors_of(case: Case) -> Inputs:
    return {name: tensor for name, tensor in case.inputs.items() if tensor is not None}


def test_the_adjoint_of_the_backward_pass(case: Case) -> None:
    check_adjoint(case)


def check_adjoint(case: Case, together: bool = False) -> None:
    """⟨J v, u⟩ = ⟨v, Jᵀ u⟩ for each input, or for all `together` and then in two directions for the cameras alone.

    v has the gradient's signs, so that ⟨v, Jᵀ u⟩ is no difference of large numbers.
    """
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in tensors_of(case).items()}
    outputs = case.outputs(case.inputs | leaves)
    u = [random(*output.shape, seed=k) for k, output in enumerate(outputs)]
    gradients = torch.autograd.grad(outputs, list(leaves.values()), u, allow_unused=True, retain_graph=True)
    found = {name: gradient for name, gradient in zip(leaves, gradients, strict=True) if gradient is not None}
    assert case.options.get("render_mode") == "D" or found.keys() == leaves.keys()
    v = {name: random(*gradient.shape, seed=7).abs().to(gradient.dtype) * gradient.sign() for name, gradient in found.items()}
    for names in [[*found]] if together else [[name] for name in found]:
        assert all(found[name].any() for name in names), names
        tangents = pushed(case, {name: v[name] for name in names})
        actual = sum((d.double() * w.double()).sum() for d, w in zip(tangents, u, strict=True))
        expected = sum((v[name].double() * found[name].double()).sum() for name in names)
        torch.testing.assert_close(actual, expected, rtol=case.rtol, atol=0, msg=lambda m, names=names: f"{names}: {m}")
    if together:
        image, viewmats = in_one_input(case, "viewmats")
        both = torch.stack([v["viewmats"], -v["viewmats"]])
        one, other = torch.func.vmap(lambda t: torch.func.jvp(image, (viewmats,), (t,))[1])(both)
        expected = (v["viewmats"].double() * torch.autograd.grad(outputs[0], leaves["viewmats"], u[0])[0].double()).sum()
        for along, sign in ((one, 1), (other, -1)):
            torch.testing.assert_close((along.double() * u[0].double()).sum() * sign, expected, rtol=case.rtol * 10, atol=0)


def test_against_float64() -> None:
    """Images' and alphas' tangents, in a direction of all inputs at once."""
    inputs = detached(test_camera_models.with_lenses(test_camera_models.scene_of("pinhole", WIDTH, HEIGHT, seed=73), "pinhole"))
    tangents = {name: random(*tensor.shape, seed=k) * 0.1 for k, (name, tensor) in enumerate(inputs.items())}
    tangents["Ks"] *= torch.tensor([[1.0, 0, 1], [0, 1, 1], [0, 0, 0]]) * 10
    tangents["viewmats"][:, 3] = 0

    def outputs(twins: Inputs, c: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        sigma, lens = covariances(twins["quats"], twins["scales"]), test_camera_models.lens_of(twins, c)
        rendered = render(
            *(twins["means"], sigma, twins["opacities"], twins["colors"], twins["viewmats"][c], twins["Ks"][c]),
            *(WIDTH, HEIGHT),
            camera_model="pinhole",
            lens=lens,
            background=twins["backgrounds"][c],
        )
        return (rendered.image, rendered.alpha), rendered.untrusted

    found = pushed(Case(inputs), tangents)
    for c in range(test_camera_models.CAMERAS):
        twins, along = ({name: tensor.double() for name, tensor in of.items()} for of in (inputs, tangents))
        _, expected, untrusted = torch.func.jvp(lambda t, c=c: outputs(t, c), (twins,), (along,), has_aux=True)
        assert (~untrusted).float().mean() > 0.9
        for one, other in zip(found, expected, strict=True):
            scale = float(other[~untrusted].abs().max())
            assert scale > 0.1
            torch.testing.assert_close(one[c].double()[~untrusted], other[~untrusted], rtol=1e-4, atol=1e-5 * scale)


# torch.func


def in_one_input(case: Case, name: str) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The images as a function of one input."""
    return lambda tensor: case.outputs(case.inputs | {name: tensor})[0], case.inputs[name]


@pytest.mark.parametrize("name", ["viewmats", "means", "colors", "opacities"])
def test_torch_func_jvp(case: Case, name: str) -> None:
    """It gives the tangents of dual tensors, to the last bit."""
    if case.options.get("render_mode") == "D" and name == "colors":
        return
    function, x = in_one_input(case, name)
    v = random(*x.shape).to(x.dtype)
    _, found = torch.func.jvp(function, (x,), (v,))
    expected = pushed(case, {name: v})[0]
    assert expected.any()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


TOGETHER = (
    *("dense", "packed, with expected depth", "harmonics", "along rays", "along a rolling shutter's rays"),
    *("surfels", "ColorNetwork", "an own falloff of both offsets"),
)


@pytest.mark.parametrize(
    ("name", "directions"),
    [
        *product(TOGETHER, (1, MAX_DIRECTIONS, MAX_DIRECTIONS + 2)),
        *(("along a rolling shutter's rays", 2), ("an own falloff of both offsets", 2)),
        ("covariances", 2),
    ],
)
def test_several_directions_at_once(name: str, directions: int) -> None:
    """One pass gives each direction's tangents, to the order of sums: of all inputs, and of the cameras alone."""
    case = CASES[name]()
    inputs = tensors_of(case)
    for kept in (inputs, {"viewmats": inputs["viewmats"]}):
        v = {name: random(directions, *tensor.shape, seed=k) for k, (name, tensor) in enumerate(kept.items())}

        def image(given: Inputs, case: Case = case) -> Tensor:
            return case.outputs(case.inputs | given)[0]

        def along(tangents: Inputs, kept: Inputs = kept, image: Callable[..., Tensor] = image) -> Tensor:
            return torch.func.jvp(image, (kept,), (tangents,))[1]

        found = torch.func.vmap(along)(v)
        for k in range(directions):
            expected = pushed(case, {name: tensor[k] for name, tensor in v.items()})[0]
            comparison.close(found[k], expected, 1e-5, 1e-6)


def test_the_jacobian_of_a_pose() -> None:
    """jacfwd and jacrev of a sum over pixels agree, for a rotation and a shift of the camera."""
    case = several(colors=(4, 3), sh_degree=1)
    u = random(*case.outputs(case.inputs)[0].shape)

    def turned(pose: Tensor) -> Tensor:
        zero = torch.zeros(())
        x, y, z, *shift = pose
        rows = [[zero, -z, y, shift[0]], [z, zero, -x, shift[1]], [-y, x, zero, shift[2]], [zero] * 4]
        return torch.linalg.matrix_exp(torch.stack([torch.stack(row) for row in rows])) @ case.inputs["viewmats"]

    def image(pose: Tensor) -> Tensor:
        return case.outputs(case.inputs | {"viewmats": turned(pose)})[0]

    jacobian = torch.func.jacfwd(image)(torch.zeros(6))
    pose = torch.zeros(6, requires_grad=True)
    (expected,) = torch.autograd.grad((image(pose) * u).sum(), pose)
    assert expected.abs().min() > 0.01
    torch.testing.assert_close((jacobian * u[..., None]).flatten(0, -2).sum(0), expected, rtol=1e-4, atol=1e-4)


# Devices, and refusals


@pytest.mark.parametrize(
    "name",
    [
        *("a crowded tile", "surfels", "along a lens's rays", "distances along a fisheye's rays"),
        "signals, and more channels than one pass takes",
    ],
)
def test_one_pass_gives_images_and_tangents(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A render with tangents gives the images of one without, and what its gradients need; so do lists in segments."""
    case, device = CASES[name](), get_device()
    tangents = {name: random(*tensor.shape) for name, tensor in case.inputs.items()}
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in case.inputs.items()}

    def gradients(outputs: list[Tensor]) -> tuple[Tensor, ...]:
        u = [random(*output.shape, seed=k) for k, output in enumerate(outputs)]
        return torch.autograd.grad(outputs, list(leaves.values()), u)

    images, along = case.outputs(leaves), pushed(case, tangents)
    expected = gradients(images)
    for segment in (None, 4):
        monkeypatch.setattr(device, "tuning", replace(device.tuning, segment=segment))
        found, found_along = duals(case, leaves, tangents)
        for one, other in zip((*found, *found_along, *gradients(found)), (*images, *along, *expected), strict=True):
            comparison.close(one, other, 1e-5, 1e-6)


def sum_of(case: Case) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    image, x = in_one_input(case, "means")
    return lambda y: image(y).square().sum(), x


def gradient_of_dual(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with dual_level():
        x = make_dual(x.requires_grad_(), torch.ones_like(x))
        torch.autograd.grad(function(x), x)


def gradient_of_tangent(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    with dual_level():
        x = x.requires_grad_()
        tangent = unpack_dual(function(make_dual(x, torch.ones_like(x)))).tangent
    torch.autograd.grad(tangent, x)


def tangent_of_tangent(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    v = torch.ones_like(x)
    torch.func.jvp(lambda y: torch.func.jvp(function, (y,), (v,))[1], (x,), (v,))


def jacobian_of_jacobian(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    torch.func.jacfwd(torch.func.jacfwd(function))(x)


@pytest.mark.parametrize("differentiated", [gradient_of_dual, gradient_of_tangent, tangent_of_tangent, jacobian_of_jacobian])
def test_second_derivatives_are_refused(differentiated: Callable[..., None]) -> None:
    refused("cannot be differentiated again", differentiated, *sum_of(several()))


@pytest.mark.parametrize("function", [torch.func.hessian, torch.func.jacrev, torch.func.grad, torch.func.vmap])
def test_other_transformations_are_refused(function: Any) -> None:
    image, x = sum_of(several())
    refused(
        "cannot be transformed by torch.func except by jvp and jacfwd",
        function(image),
        x[None] if function is torch.func.vmap else x,
    )


def test_tangents_that_kernels_cannot_take() -> None:
    image, x = sum_of(several())
    refused("a tangent is torch.float64, and its tensor torch.float32", torch.func.jvp, image, (x,), (x.double(),))
    batched = torch.autograd.functional.jacobian
    refused("use torch.func.jacfwd", batched, image, x, strategy="forward-mode", vectorize=True)


def test_functions_without_a_forward_derivative() -> None:
    image = torch.rand(8, 8, 3)
    with dual_level():
        refused("photometric_loss .* has no forward derivative", splat.photometric_loss, make_dual(image, image), image)
