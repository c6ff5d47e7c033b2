"""The splats' kernels, run as Metal source by the host code of `rasterization`, against the float64 reference.

The checks use the references and tolerances of the tests of other devices, in every order of threads.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import tests.reference as ref
from splat_py.fit.steps import Adam, AdamRows
from splat_py.gpu.device import Tuning
from splat_py.render.cameras import CAMERA_ROW, Cameras
from splat_py.render.colors import harmonics
from splat_py.render.options import Options
from splat_py.render.project import project
from splat_py.render.rasterization import rasterization
from splat_py.render.shade import FeatureArrays, Shading, shade
from splat_py.render.splats import ProjectedSplats, SplatIds, StridedRows
from splat_py.render.tiles import bin_tiles
from tests.emulation.kernels import ACCUMULATIONS, GAUSSIANS, RASTERIZATIONS, TILE_SIZES, before
from tests.emulation.program import Schedule
from tests.emulation.schedules import OTHER_WIDTHS, SCHEDULES, TUNINGS, accumulate, every_order, named
from tests.gsplat import test_intersection as gsplat_intersection
from tests.gsplat import test_surfels as gsplat_surfels
from tests.metal.device import MetalOnCpu
from tests.reference import Scene
from tests.render import comparison, test_binning
from tests.render import test_accumulation as accumulations
from tests.render import test_broken_gaussians as broken
from tests.render import test_camera_models as camera_models
from tests.render import test_cameras as moving_cameras
from tests.render import test_colors as colors
from tests.render import test_eval3d as eval3d
from tests.render import test_falloffs as falloffs
from tests.render import test_falloffs2d as falloffs2d
from tests.render import test_forward_mode as forward_mode
from tests.render import test_ftheta as ftheta
from tests.render import test_half_colors as half_colors
from tests.render import test_rasterization as renders
from tests.render import test_surfels as surfels

WIDTH, HEIGHT = 37, 29
# Adam's third step, and its learning rates.
STEP, RATE, HEAD_RATE = 2, 1e-2, 0.1


def scene_over_tiles(rng: np.random.Generator, channels: int, tile_size: int, **options: Any) -> comparison.Case:
    """40 Gaussians on an image whose sides are no multiples of the tile size."""
    return comparison.Case(
        comparison.scene_of(rng, 40, channels=channels),
        [comparison.camera_of(rng, WIDTH, HEIGHT)],
        comparison.rounded(rng.uniform(size=(1, channels))),
        options={"tile_size": tile_size} | options,
    )


def check_case(
    metal: MetalOnCpu, seed: int, case_of: Callable[..., comparison.Case], *how: Any, schedules: Any = SCHEDULES, **options: Any
) -> None:
    """Check a case of random numbers, the same in every order."""

    def check() -> None:
        rng = np.random.default_rng(seed)
        comparison.check(case_of(rng, *how, **options), rng)

    every_order(metal, check, schedules)


@pytest.mark.parametrize(
    ("tuning", "channels", "tile_size", "accumulation", "absgrad", "native", "widths"),
    [
        *((*how, "native", "32") for how in RASTERIZATIONS),
        *((tuning, 3, 16, accumulation, False, "CAS", "32") for tuning, accumulation in product(TUNINGS, ACCUMULATIONS)),
        # A tile of 4×4 is smaller than one SIMD group, one of 16×16 has several.
        ("GPU", 3, 4, "PerWave", True, "native", "others"),
        *((tuning, 3, 16, accumulation, True, "native", "others") for tuning, accumulation in product(TUNINGS, ACCUMULATIONS)),
    ],
)
def test_rasterization(
    tuning: str, channels: int, tile_size: int, accumulation: str, absgrad: bool, native: str, widths: str, metal: MetalOnCpu
) -> None:
    metal.tuning = TUNINGS[tuning]
    accumulate(metal, accumulation, native == "native")
    schedules = SCHEDULES if widths == "32" else OTHER_WIDTHS
    check_case(metal, channels, scene_over_tiles, channels, tile_size, absgrad=absgrad, schedules=schedules)


def in_few_tiles(rng: np.random.Generator, count: int, channels: int = 3) -> Scene:
    """Large Gaussians side by side and close to the camera."""
    scene = comparison.scene_of(rng, count, channels=channels)
    means = rng.uniform([-0.6, -0.6, 3.4], [0.6, 0.6, 4.6], (count, 3))
    scales = rng.uniform(0.2, 0.6, (count, 3))
    return replace(scene, means=comparison.rounded(means), scales=comparison.rounded(scales))


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
@pytest.mark.parametrize("tuning", TUNINGS.values(), ids=TUNINGS)
def test_lists_in_segments(tuning: Tuning, accumulation: str, metal: MetalOnCpu) -> None:
    """Tiles with more than two segments of 64, in which some pixels are opaque before the last one."""
    metal.tuning = replace(tuning, segment=64)
    accumulate(metal, accumulation)

    def check() -> None:
        rng = np.random.default_rng(7)
        meta = comparison.check(comparison.Case(in_few_tiles(rng, 150), [comparison.camera_of(rng, 24, 20)]), rng)
        assert np.diff(meta["isect_offsets"].numpy().ravel()).max() > 128

    every_order(metal, check)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("tile_size", TILE_SIZES)
def test_the_longest_list(tile_size: int, packed: bool, metal: MetalOnCpu) -> None:
    """The longest list determines the number of segments."""
    metal.tuning = replace(metal.tuning, segment=64)
    splats = test_binning.splats_of(np.random.default_rng(tile_size), 1, 200)
    if packed:
        images, gaussians, offsets = np.zeros(200, np.uint32), np.arange(200, dtype=np.uint32), np.array([0, 200], np.uint32)
        rows = (getattr(splats, name)[0] for name in ("means2d", "depths", "conics", "opacities", "radii"))
        splats = ProjectedSplats(*rows, SplatIds(*map(metal.memory.array, (images, gaussians, offsets))))

    def check() -> None:
        lists = bin_tiles(splats, WIDTH, HEIGHT, Options(tile_size))
        longest = int(lists.offsets.diff().max())
        assert lists.arrays.segments == max(-(-longest // 64), 1)

    every_order(metal, check)


def with_harmonics(rng: np.random.Generator, degree: int, **options: Any) -> comparison.Case:
    """Gaussians whose opacities have a finite logit, before two cameras."""
    scene = comparison.scene_of(rng, 40, sh_degree=degree)
    scene = replace(scene, opacities=comparison.rounded(np.minimum(scene.opacities, 0.99)))
    return comparison.Case(scene, [comparison.camera_of(rng, WIDTH, HEIGHT) for _ in range(2)], options=options)


def rasterization_of_stored(**inputs: Any) -> Any:
    """Call `rasterization` with `Options.raw_params` on activated Gaussians; torch differentiates the step between."""
    module = sys.modules[rasterization.__module__]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module.Options, "on", partial(Options.on, raw_params=True))
        return rasterization(**inputs | {"scales": inputs["scales"].log(), "opacities": inputs["opacities"].logit()})


def accumulate_gaussians(metal: MetalOnCpu, accumulation: str, degree: int) -> None:
    """Set the accumulation; degree 3 of `GAUSSIANS` does without float atomics."""
    accumulate(metal, accumulation, native=degree < 3)


@pytest.mark.parametrize(("degree", "stored", "mode", "accumulation"), GAUSSIANS)
def test_projection_and_harmonics(
    degree: int, stored: bool, mode: str, accumulation: str, metal: MetalOnCpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    accumulate_gaussians(metal, accumulation, degree)
    monkeypatch.setattr(comparison, "rasterization", rasterization_of_stored if stored else rasterization)

    check_case(metal, degree, with_harmonics, degree, rasterize_mode=mode)


def gradients_of_gaussians(inputs: dict[str, torch.Tensor], of_cameras: bool, **options: Any) -> list[torch.Tensor]:
    """Gradients of a sum of squares, with or without those of cameras."""
    inputs = {name: tensor.detach().requires_grad_() for name, tensor in inputs.items()}
    cameras = {name: inputs.pop(name).requires_grad_(of_cameras) for name in ("viewmats", "Ks")}
    options = {"width": 21, "height": 18, "render": rasterization, "quats": None, "scales": None} | options
    images, _, _ = options.pop("render")(**options | inputs | cameras)
    return list(torch.autograd.grad((images**2).sum(), list(inputs.values())))


def assert_same_gradients(inputs: dict[str, torch.Tensor], **options: Any) -> None:
    """Check that the Gaussians' gradients do not depend on gradients of cameras."""
    without, expected = (gradients_of_gaussians(inputs, of_cameras, **options) for of_cameras in (False, True))
    for one, other in zip(without, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6 * float(other.abs().max()))


@pytest.mark.parametrize(("degree", "stored", "mode", "accumulation"), GAUSSIANS)
def test_without_gradients_of_cameras(degree: int, stored: bool, mode: str, accumulation: str, metal: MetalOnCpu) -> None:
    accumulate_gaussians(metal, accumulation, degree)
    case = with_harmonics(np.random.default_rng(degree), degree)
    inputs = {name: comparison.torch_input(getattr(case.scene, name)) for name in comparison.GAUSSIAN_INPUTS}
    for name, field in (("viewmats", "viewmat"), ("Ks", "K")):
        inputs[name] = comparison.torch_input(np.stack([getattr(camera, field) for camera in case.cameras]))
    options = {"width": WIDTH, "height": HEIGHT, "sh_degree": degree, "rasterize_mode": mode, "packed": False}
    render = rasterization_of_stored if stored else rasterization
    every_order(metal, partial(assert_same_gradients, inputs, render=render, **options))


@pytest.mark.parametrize("camera_gradient", [False, True])
@pytest.mark.parametrize(("degree", "accumulation"), [(degree, accumulation) for degree, *_, accumulation in GAUSSIANS])
def test_colours_in_a_training_step(degree: int, camera_gradient: bool, accumulation: str, metal: MetalOnCpu) -> None:
    """The kernel adds to the existing gradient of means; from one camera, harmonics may learn in it."""
    rng = np.random.default_rng(degree)
    case = with_harmonics(rng, degree)
    count, array = 40, metal.memory.array
    # As in a training run, whose degree rises: some coefficients are not in use.
    used = case.scene.colors.shape[1]
    all_colors = np.pad(case.scene.colors, ((0, 0), (0, 16 - used), (0, 0))).astype(np.float32)
    means = array(case.scene.means.astype(np.float32))
    radii = rng.integers(0, 2, (2, count, 2), dtype=np.int32)
    v_colors = rng.normal(size=(2, count, 3)).astype(np.float32)
    before = rng.normal(size=(count, 3)).astype(np.float32)
    first, second = rng.normal(size=all_colors.shape), rng.uniform(size=all_colors.shape)
    native = degree < 3 or accumulation == "PerIntersection"
    options = Options(16, camera_gradient=camera_gradient, accumulation=accumulation, native_atomics=native)

    def gradients(images: int, add: bool, learns: bool = False) -> tuple[Any, ...]:
        of = case.cameras[:images]
        viewmats, Ks = (array(np.stack([getattr(c, n) for c in of]).astype(np.float32)) for n in ("viewmat", "K"))
        cameras = Cameras(viewmats, Ks, WIDTH, HEIGHT)
        sh, v_means, v_sh = array(all_colors), array(before), metal.memory.empty(all_colors.shape)
        v_cameras, status = array(np.zeros((images, CAMERA_ROW), np.float32)), array(np.zeros(3, np.uint32))
        moments = (array(values.astype(np.float32)) for values in (first, second))
        learnt = AdamRows(sh, *moments, Adam(1e-15).settings(STEP, RATE), HEAD_RATE, status) if learns else None
        with metal.recording() as recorder:
            colors, features = metal.memory.empty((images, count, 3)), FeatureArrays.of(sh, sh.size // count)
            shading = Shading(means, features, cameras, array(radii[:images]), colors, harmonics(degree), options)
            shading.record(recorder)
            v_features = None if learns else FeatureArrays.of(v_sh, sh.size // count)
            v = StridedRows(array(v_colors[:images]), 3)
            shading.record_backward(recorder, v, v_means, v_features, v_cameras, add, learnt=learnt)
        return v_means.numpy(), (sh if learns else v_sh).numpy(), v_cameras.numpy()

    def check() -> None:
        (added, v_sh, v_cameras), (alone, *others) = gradients(2, True), gradients(2, False)
        np.testing.assert_allclose(added, before + alone, rtol=1e-6, atol=1e-6)
        assert alone.any() == (degree > 0)
        np.testing.assert_array_equal(v_sh, others[0])
        np.testing.assert_allclose(v_cameras, others[1], rtol=1e-4, atol=1e-4)
        assert v_cameras.any() == (camera_gradient and degree > 0)

    def check_learnt() -> None:
        (_, v_sh, _), (_, learnt, _) = gradients(1, True), gradients(1, True, learns=True)
        rates = np.full((16, 3), RATE)
        rates[0] = HEAD_RATE
        expected, *_ = ref.adam_step(all_colors, v_sh.astype(np.float64), first, second, STEP + 1, lr=rates)
        np.testing.assert_allclose(learnt[:, :used], expected[:, :used], rtol=1e-5, atol=1e-6)

    every_order(metal, check)
    every_order(metal, check_learnt)


@pytest.mark.parametrize(
    "check",
    [
        *(
            named(test, tile_size)
            for test, tile_size in product(
                [
                    renders.test_crowded_tile_that_is_soon_opaque,
                    renders.test_long_lists_of_faint_splats,
                    renders.test_splats_that_cover_everything,
                ],
                TILE_SIZES,
            )
        ),
        *(named(renders.test_one_gaussian, {"tile_size": size}) for size in TILE_SIZES),
        *(named(renders.test_sides_that_tiles_do_not_divide, size, 8) for size in ((1, 1), (2, 17), (64, 3))),
        *(named(broken.test_broken_gaussians_leave_no_trace, "plain", field, False) for field in broken.FIELDS),
        named(broken.test_broken_gaussians_leave_no_trace, "along rays", "scales", True),
        named(accumulations.test_gradients, "auto", 16),
        named(moving_cameras.test_unscented, "equirectangular", False),
        named(moving_cameras.test_rolling_shutter, "ROLLING_TOP_TO_BOTTOM"),
        named(moving_cameras.test_rolling_shutter_of_a_lens_and_covariances),
        named(moving_cameras.test_rolling_shutter_unscented, "ROLLING_TOP_TO_BOTTOM", False),
        named(moving_cameras.test_rolling_shutter_unscented, "ROLLING_RIGHT_TO_LEFT", True),
        named(ftheta.check, "jacobian", False),
        named(ftheta.check, "unscented", True, "ROLLING_TOP_TO_BOTTOM"),
        *(named(falloffs.test_against_float64, *how) for how in product(falloffs.BUILT_IN, (False, True))),
        named(falloffs2d.test_against_float64, False),
        *(named(colors.check, *how) for how in product(("SphericalGaussians", "ColorNetwork"), (91,), (False, True))),
        named(colors.check, "own", 91, False),
        named(renders.test_no_gaussians_leave_the_background, "RGB+ED", 16),
        named(renders.test_render_modes, "RGB+ED", "antialiased", True),
        named(renders.test_plain_colors, 40, True),
        *(named(test_binning.test_a_list_that_is_too_small_is_not_overrun, one_word) for one_word in (False, True)),
        named(test_binning.test_nothing_to_bin, 2),
        *(
            named(test_binning.test_two_kernels_that_disagree, bias, kept, 53, 37)
            for bias, kept in ((-2, "one word"), (2, "two words"), (None, "all"))
        ),
        *(named(test_binning.test_lists_hold_what_a_pixel_can_see_and_little_else, True, size) for size in TILE_SIZES),
        named(gsplat_intersection.test_indices_are_what_a_loop_over_pixels_blends),
    ],
)
def test_as_on_vulkan(check: Callable[[], None], metal: MetalOnCpu) -> None:
    every_order(metal, check)


@pytest.mark.parametrize("accumulation", ACCUMULATIONS)
def test_cameras_in_other_widths(accumulation: str, metal: MetalOnCpu) -> None:
    """Gradients of cameras add up over threads of many Gaussians."""
    accumulate(metal, accumulation)

    check_case(metal, 4, with_harmonics, 0, schedules=OTHER_WIDTHS)


# --- packed splats, other cameras, covariances ---


def scene_before(camera_model: str, covars: bool, with_lens: bool = False) -> dict[str, torch.Tensor]:
    inputs = camera_models.scene_of(camera_model, 21, 18, seed=73)
    if with_lens:
        inputs = camera_models.with_lenses(inputs, camera_model)
    return camera_models.with_covars(inputs) if covars else inputs


@pytest.mark.parametrize(
    ("with_lens", "camera_model", "covars", "packed"),
    [*((False, *how) for how in before(camera_models.MODELS)), *((True, *how) for how in before(camera_models.LENSES))],
)
def test_cameras_and_covariances(with_lens: bool, camera_model: str, covars: bool, packed: bool, metal: MetalOnCpu) -> None:
    """Cameras with and without gradients."""
    sigma = {"sigma_of": camera_models.of_covars} if covars else {}

    def check() -> None:
        inputs = scene_before(camera_model, covars, with_lens)
        camera_models.check(dict(inputs), camera_model, 21, 18, packed=packed, **sigma)
        lenses = {name: inputs.pop(name).detach() for name in list(inputs) if name.endswith("_coeffs")}
        assert_same_gradients(inputs, camera_model=camera_model, packed=packed, **lenses)

    every_order(metal, check)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("degree", [1, 4])
def test_harmonics_of_all_kinds(degree: int, packed: bool, metal: MetalOnCpu) -> None:
    def check() -> None:
        rng = np.random.default_rng(degree)
        comparison.check(with_harmonics(rng, degree, packed=packed), rng)
        inputs = scene_before("pinhole", False)
        inputs["colors"] = torch.tensor(rng.normal(size=(camera_models.N, (degree + 1) ** 2, 3)) * 0.3, dtype=torch.float32)
        assert_same_gradients(inputs, sh_degree=degree, packed=packed)

    every_order(metal, check)


@pytest.mark.parametrize("camera_gradient", [False, True])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("degree", [1, 4])
def test_sums_of_harmonics(degree: int, packed: bool, camera_gradient: bool, metal: MetalOnCpu) -> None:
    """Sums have no offset and no limit: they equal colours minus the offset, if coefficients are too small for the limit."""
    inputs = scene_before("pinhole", False)
    rng = np.random.default_rng(degree)
    sh = torch.tensor(rng.normal(size=(camera_models.N, (degree + 1) ** 2, 3)) * 0.01, dtype=torch.float32)
    weights = torch.tensor(rng.normal(size=(camera_models.CAMERAS, camera_models.N, 3)), dtype=torch.float32)

    def results(as_color: bool) -> list[torch.Tensor]:
        leaves = [inputs["means"].detach().requires_grad_(), sh.clone().requires_grad_()]
        viewmats = inputs["viewmats"].detach().requires_grad_(camera_gradient)
        arguments = (leaves[0], inputs["quats"], inputs["scales"], inputs["opacities"], viewmats, inputs["Ks"])
        splats = project(*(tensor.detach() for tensor in arguments), 21, 18, Options(16, packed=packed))
        colors = shade(leaves[0], leaves[1], viewmats, splats.radii, degree, ids=splats.ids, as_color=as_color)
        rows = (splats.image_ids, splats.gaussian_ids) if packed else ...
        wanted = [*leaves, viewmats] if camera_gradient else leaves
        gradients = torch.autograd.grad((colors * weights[rows]).sum(), wanted)
        offset = 0.5 * (splats.radii[..., :1] > 0) if as_color else 0.0
        return [colors.detach() - offset, *gradients]

    def check() -> None:
        for one, other in zip(results(False), results(True), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
            assert other.any()

    every_order(metal, check)


@pytest.mark.parametrize(("degree", "more", "packed"), [(1, 0, False), (2, 16, True)])
def test_harmonics_as_halves(degree: int, more: int, packed: bool, metal: MetalOnCpu) -> None:
    inputs = half_colors.inputs_of(7, degree, more=more)
    for name in ("viewmats", "Ks"):
        inputs[name] = inputs[name].detach()
    every_order(metal, partial(half_colors.check, inputs, sh_degree=degree, packed=packed))


@pytest.mark.parametrize(
    ("name", "packed", "accumulate"),
    [
        ("SphericalGaussians", False, "wave"),
        ("SphericalGaussians", True, "wave"),
        ("ColorNetwork", True, "wave"),
        *(("ColorNetwork", False, accumulate) for accumulate in ("wave", "pixel", "group", "pair")),
    ],
)
def test_colors_without_gradients_of_cameras(name: str, packed: bool, accumulate: str, metal: MetalOnCpu) -> None:
    inputs: dict[str, Any] = colors.inputs_of(name, 94)
    every_order(metal, partial(assert_same_gradients, inputs, color=name, packed=packed, accumulate=accumulate))


# Ways to splat along rays: the test, the tuning's segment, and float atomics. The last order of threads is enough for most.
ALONG_RAYS: dict[str, tuple[Callable[[bool], None], int | None, bool, list[Schedule]]] = {
    "surfels": (surfels.test_against_float64, None, True, SCHEDULES),
    "gsplat's surfels": (gsplat_surfels.test_stage_by_stage, None, True, SCHEDULES[2:]),
    "surfels in segments": (surfels.test_against_float64, 8, True, SCHEDULES),
    "surfels by compare-and-swap": (surfels.test_against_float64, None, False, SCHEDULES[2:]),
    "surfels alone": (surfels.test_without_depth_and_without_gradients_of_cameras, None, True, SCHEDULES[2:]),
    "Gaussians": (eval3d.test_against_float64, None, True, SCHEDULES),
    "Gaussians by compare-and-swap": (eval3d.test_against_float64, None, False, SCHEDULES[2:]),
    "Gaussians of any camera by compare-and-swap": (
        lambda packed: eval3d.test_any_camera_against_float64(
            "fisheye" if packed else "ortho", packed, "ROLLING_RIGHT_TO_LEFT" if packed else None, tile_size=16
        ),
        None,
        False,
        SCHEDULES[2:],
    ),
    "Gaussians that sigma points bound": (partial(eval3d.test_sigma_points_bound_them, side=16), None, True, SCHEDULES[2:]),
    "rays of one's own": (lambda packed: eval3d.test_rays_of_ones_own(), None, True, SCHEDULES[2:]),
    "hits of an f-theta camera": (
        lambda packed: ftheta.check("rays", packed, behind=True, packed=False),
        None,
        True,
        SCHEDULES[2:],
    ),
    "Gaussians alone": (
        partial(eval3d.test_without_gradients_of_cameras, camera_model="pinhole"),
        None,
        True,
        SCHEDULES[2:],
    ),
    "Gaussians of a fisheye alone": (
        partial(eval3d.test_without_gradients_of_cameras, camera_model="fisheye"),
        None,
        True,
        SCHEDULES[2:],
    ),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("way", ALONG_RAYS)
def test_along_rays(way: str, packed: bool, metal: MetalOnCpu) -> None:
    test, segment, native, schedules = ALONG_RAYS[way]
    metal.tuning = replace(metal.tuning, segment=segment or metal.tuning.segment)
    accumulate(metal, "PerWave", native)
    every_order(metal, partial(test, packed), schedules)


@pytest.mark.parametrize("tile_size", TILE_SIZES)
def test_another_limit_of_alpha(tile_size: int, metal: MetalOnCpu) -> None:
    inputs = scene_before("pinhole", False)
    with torch.no_grad():
        inputs["opacities"][:] = 1.0

    how = {"max_alpha": 0.99, "tile_size": tile_size}
    every_order(metal, lambda: camera_models.check(dict(inputs), "pinhole", 21, 18, **how))


def test_medians(metal: MetalOnCpu) -> None:
    every_order(metal, lambda: camera_models.check(scene_before("pinhole", False), "pinhole", 21, 18, return_medians=True))


FORWARD = (
    *("dense", "packed, with expected depth", "batches, antialiased", "covariances", "harmonics of each camera, dense"),
    *("an orthographic camera", "a fisheye", "an equirectangular camera", "a lens", "the unscented transform"),
    *("a rolling shutter", "a rolling shutter and the unscented transform", "whole rows", "along rays", "surfels, packed"),
    *("along a lens's rays", "along a fisheye's rays", "along an orthographic camera's rays"),
    *("along an equirectangular camera's rays", "along a rolling shutter's rays", "along rays in whole rows"),
    "distances along a fisheye's rays",
    *("GeneralizedExponential", "BetaKernel", "SphericalGaussians", "ColorNetwork"),
)


def check_tangents(case: str) -> None:
    forward_mode.check_adjoint(forward_mode.CASES[case](), together=True)


@pytest.mark.parametrize("case", FORWARD)
def test_forward_derivatives(case: str, metal: MetalOnCpu) -> None:
    every_order(metal, partial(check_tangents, case), SCHEDULES[2:])
