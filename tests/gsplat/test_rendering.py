"""`rasterization` against gsplat's own renderer in torch, and arguments of gsplat that are ignored or refused."""

from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from splat_py.gsplat import rendering
from splat_py.gsplat.rendering import RollingShutterType, rasterization
from tests.gsplat.scenes import BATCHES, assert_same_gradients, scene
from tests.refusals import refused


def arguments(
    batch: tuple[int, ...] = (), per_view: bool = False, sh_degree: int | None = None, count: int = 50
) -> dict[str, Any]:
    s = scene(batch, count)
    cameras = (2,) if per_view else ()
    last = (3,) if sh_degree is None else ((sh_degree + 1) ** 2, 3)
    torch.manual_seed(0)
    colors = torch.rand(*batch, *cameras, count, *last, requires_grad=True)
    return vars(s) | {"colors": colors, "sh_degree": sh_degree}


@pytest.mark.usefixtures("own_package")
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("per_view", "sh_degree", "options"),
    [
        (True, None, {"render_mode": "RGB+ED", "rasterize_mode": "antialiased"}),
        (False, 3, {"render_mode": "RGB"}),
        (True, 3, {"render_mode": "D"}),
    ],
)
@pytest.mark.parametrize("batch", BATCHES)
def test_kernels_render_as_gsplats_own(
    batch: tuple[int, ...], per_view: bool, sh_degree: int | None, options: dict[str, Any], packed: bool
) -> None:
    given = arguments(batch, per_view, sh_degree)
    if "RGB" in options["render_mode"]:
        given["backgrounds"] = torch.rand(*batch, 2, 3)
    ours = rasterization(**given, **options, packed=packed)
    theirs = rendering._rasterization(**given, **options)
    assert ours[0].shape == (*batch, 2, 28, 40, {"RGB": 3, "D": 1, "RGB+ED": 4}[options["render_mode"]])
    torch.testing.assert_close(ours[:2], theirs[:2], rtol=1e-4, atol=1e-4)
    differentiated: list[Tensor] = [given[name] for name in ("means", "quats", "scales", "opacities", "colors", "viewmats")]
    # gsplat's differentiates a camera's centre as part of a matrix's inverse.
    inputs = differentiated if sh_degree is None or options["render_mode"] == "D" else differentiated[:-1]
    assert_same_gradients(ours[:2], theirs[:2], inputs, 1e-3)
    assert set(theirs[2]) - {"batch_ids", "camera_ids", "gaussian_ids"} <= set(ours[2])


class Shutter(Enum):
    """The enumeration of gsplat's own package."""

    GLOBAL = 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lidar_coeffs", object()),
        ("camera_model", "lidar"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(NotImplementedError, match=name) as error:
        rasterization(**arguments(), **{name: value})
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


def test_distances_normals_and_f_theta_cameras() -> None:
    coeffs = rendering.FThetaCameraDistortionParameters(
        reference_poly=rendering.FThetaPolynomialType.ANGLE_TO_PIXELDIST,
        angle_to_pixeldist_poly=(0.0, 30.0, 0, 0, 0, 0),
        max_angle=1.5,
        linear_cde=(1.0, 0, 0),
    )
    how: dict[str, Any] = {"with_ut": True, "with_eval3d": True, "global_z_order": False, "return_normals": True}
    images, _, meta = rasterization(**arguments(), **how, render_mode="RGB-Ed", camera_model="ftheta", ftheta_coeffs=coeffs)
    assert images.shape == (2, 28, 40, 4) and meta["normals"].shape == (2, 28, 40, 3)
    assert images[..., 3].any() and meta["normals"].any()
    refused(
        "render_mode='RGB-d', distances along rays, needs with_eval3d=True", rasterization, **arguments(), render_mode="RGB-d"
    )
    refused("return_normals needs with_eval3d=True", rasterization, **arguments(), return_normals=True)
    refused("rays need with_eval3d=True", rasterization, **arguments(), rays=torch.rand(2, 28, 40, 6))
    refused("rays .*shape", rasterization, **arguments(), rays=torch.rand(2, 28, 6), with_eval3d=True)


def test_whole_numbers_of_any_kind_are_sizes_and_settings_have_their_type() -> None:
    given = arguments()
    images, _, _ = rasterization(**given | {"width": torch.tensor(given["width"])})
    assert torch.equal(images, rasterization(**given)[0])
    refused(r"width is tensor\(40\.\)", rasterization, **given | {"width": torch.tensor(40.0)})
    refused("means is on the meta device", rasterization, **given | {"means": given["means"].to("meta")})
    with pytest.raises(NotImplementedError, match=r"render_mode='Ed'.*use 'ED'"):
        rendering.rasterization_2dgs(**given, render_mode="Ed")


def test_configurations_of_gsplats_kernels() -> None:
    class Later(rendering.RendererConfig):
        """A kind that gsplat does not have yet."""

    given, batches = arguments(), rendering.RendererConfig_ParallelBatch()
    assert rasterization(**given, renderer_config=batches, with_eval3d=True)[0].isfinite().all()
    refused("renderer_config is a RendererConfig_ParallelBatch.*with_eval3d", rasterization, **given, renderer_config=batches)
    with pytest.raises(NotImplementedError, match="renderer_config is a Later"):
        rasterization(**given, renderer_config=Later())
    with pytest.raises(TypeError, match="renderer_config is a str"):
        rasterization(**given, renderer_config="mixed")
    with pytest.raises(TypeError, match="use RendererConfig_MixedBatch"):
        rendering.RendererConfig()


def test_gsplats_own_renderer_takes_what_1_6_gives_it_and_runs_without_cuda_and_nerfacc() -> None:
    pytest.importorskip("gsplat.rendering", reason="gsplat 1.5.3 is not installed (the dev extra has it)")
    given = arguments((2,), sh_degree=1)
    whole = rendering._rasterization(**given)[0]
    shared = given | {"colors": given["colors"][0], "tile_size": None, "with_ut": False, "camera_model": "pinhole"}
    torch.testing.assert_close(rendering._rasterization(**shared)[0][0], whole[0])
    for name, value in (("with_eval3d", True), ("extra_signals", torch.rand(2, 50, 3))):
        with pytest.raises(NotImplementedError, match=f"_rasterization of the installed gsplat does not support {name}"):
            rendering._rasterization(**given, **{name: value})
    with pytest.raises(NotImplementedError, match="render_mode='Ed'"):
        rendering._rasterization(**given, render_mode="Ed")


def test_1_6s_own_renderer_takes_modes_with_distances(monkeypatch: pytest.MonkeyPatch) -> None:
    def newer(*, render_mode: str, with_eval3d: bool = False, **_: Any) -> str:
        return render_mode

    monkeypatch.setattr(rendering, "own_package", lambda _: SimpleNamespace(_rasterization=newer))
    assert rendering._rasterization(**arguments(), render_mode="RGB-d") == "RGB-d"


@pytest.mark.parametrize("shutter", [None, Shutter.GLOBAL, RollingShutterType.GLOBAL])
def test_neutral_values_are_ignored(shutter: Any) -> None:
    """A script that writes out gsplat's defaults runs."""
    given = arguments()
    neutral: dict[str, Any] = dict.fromkeys(
        ("covars", "rays", "radial_coeffs", "tangential_coeffs", "thin_prism_coeffs", "ftheta_coeffs", "lidar_coeffs")
    )
    neutral |= dict.fromkeys(("external_distortion_coeffs", "viewmats_rs", "ut_params", "extra_signals"))
    neutral |= dict.fromkeys(("sparse_grad", "distributed", "with_ut", "with_eval3d", "return_normals"), False)
    neutral |= {"channel_chunk": 8, "segmented": True, "global_z_order": True, "rolling_shutter": shutter}
    images, _, _ = rasterization(**given, **neutral, renderer_config=rendering.RendererConfig_MixedBatch())
    assert torch.equal(images, rasterization(**given)[0])


def test_camera_models_are_passed_on() -> None:
    pinhole, ortho, fisheye = (rasterization(**arguments(), camera_model=model)[1] for model in ("pinhole", "ortho", "fisheye"))
    assert ortho.any() and fisheye.any()
    assert not torch.equal(pinhole, ortho) and not torch.equal(pinhole, fisheye)


def test_further_arguments_are_splat_pys() -> None:
    assert rasterization(**arguments(), accumulate="pair", max_alpha=0.99)[0].shape == (2, 28, 40, 3)
    refused("opacities has shape", rasterization, **(arguments() | {"opacities": torch.rand(4)}))
