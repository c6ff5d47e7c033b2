"""gsplat's names are where gsplat has them; its launcher runs one process and refuses more by name; timers."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

import splat_py.gsplat as package
from splat_py import rasterization
from splat_py.gsplat import rendering, torch_impl, unsupported
from splat_py.gsplat import utils as launch
from splat_py.gsplat.rendering import RenderMode
from splat_py.gsplat.utils import load_test_data
from tests.refusals import refused

# Names that gsplat's tests and examples, and nerfstudio's splatfacto, import.
IMPORTED = {
    "": "rasterization rasterization_2dgs export_splats",
    "._helper": "load_test_data assert_close assert_grad_reference_close expect_close expect_group",
    ".compression": "PngCompression",
    ".compression.png_compression": "PngCompression",
    ".contrib.dynamic": "DynamicStrategy",
    ".cuda._lidar": "compute_tiling",
    ".cuda._torch_impl": "_eval_sh_bases_fast _fisheye_proj _fully_fused_projection _isect_offset_encode _isect_tiles "
    "_ortho_proj _persp_proj _quat_scale_to_covar_preci _rasterize_to_pixels _spherical_harmonics _world_to_cam accumulate",
    ".cuda._torch_impl_2dgs": "_fully_fused_projection_2dgs _rasterize_to_pixels_2dgs accumulate_2dgs",
    ".cuda._wrapper": "fully_fused_projection fully_fused_projection_2dgs isect_offset_encode isect_tiles proj "
    "quat_scale_to_covar_preci rasterize_to_indices_in_range rasterize_to_pixels rasterize_to_pixels_2dgs spherical_harmonics "
    "world_to_cam RollingShutterType FThetaCameraDistortionParameters has_3dgs",
    ".cuda._constants": "ALPHA_THRESHOLD MAX_ALPHA MIN_COMPENSATION TRANSMITTANCE_THRESHOLD",
    ".color_correct": "color_correct_affine color_correct_quadratic",
    ".distributed": "cli",
    ".experimental": "GaussianInferenceRenderer GaussianInferenceScene",
    ".experimental.render.types": "RenderReturn",
    ".geometry.functional": "quat_slerp",
    ".init_utils": "knn_scale_init multi_frame_depth_unprojection",
    ".optimizers": "SelectiveAdam",
    ".exporter": "export_splats load_ply_to_splats",
    ".losses": "ssim_loss lidar_raydrop_loss masked_ssim LinearLambdaScheduler ENFORCE_CONTRACTS reduce_sum",
    ".losses_fused": "FusedGaussianLosses",
    ".profile": "profiler timeit",
    ".relocation": "compute_relocation",
    ".rendering": "_rasterization rasterization rasterization_2dgs RollingShutterType",
    ".regularizers": "compute_tv_loss_targeted create_invisible_mask dilate_mask ENFORCE_CONTRACTS",
    ".scene": "GaussianInferenceScene GaussianScene Scene",
    ".scene.components": "GaussianInferenceScene GaussianScene Scene",
    ".scene.functional": "pack_gaussian_inference_scene",
    ".scene.sh_compression": "SHCompressionMode",
    ".sensors.models": "CameraModel",
    ".stage": "Stage components",
    ".strategy": "DefaultStrategy MCMCStrategy",
    ".strategy.default": "DefaultStrategy",
    ".strategy.ops": "duplicate remove",
    ".trace": "trace_function trace_pop trace_push trace_range",
    ".training": "TwoStageScheduler",
    ".training.schedulers": "TwoStageScheduleStep TwoStageScheduler",
    ".utils": "depth_to_normal",
    ".version": "__version__",
}


@pytest.mark.parametrize("module", IMPORTED)
def test_what_scripts_import_is_there(module: str) -> None:
    if module in (".cuda._torch_impl", ".cuda._torch_impl_2dgs", ".rendering"):
        pytest.importorskip("gsplat")
    home = import_module(f"splat_py.gsplat{module}")
    for name in IMPORTED[module].split():
        assert getattr(home, name) is not None, name


@pytest.mark.parametrize("path", ["cuda._torch_impl", "cuda._torch_impl_2dgs"])
def test_references_are_gsplats_own(path: str) -> None:
    """Otherwise gsplat's tests, run here, would compare the library with itself."""
    theirs = pytest.importorskip(f"gsplat.{path}")
    ours = import_module(f"splat_py.gsplat.{path}")
    functions = [name for name, value in inspect.getmembers(theirs, inspect.isfunction) if value.__module__ == theirs.__name__]
    assert len(functions) >= 2 and all(getattr(ours, name) is getattr(theirs, name) for name in functions)


def test_references_that_the_installed_package_lacks_say_what_to_install() -> None:
    with pytest.raises(ImportError, match=r"^gsplat\.cuda\._nothing .* or install 1\.6 from gsplat's repository"):
        torch_impl.own_package("cuda._nothing")
    pytest.importorskip("gsplat")
    with pytest.raises(ImportError, match="cannot import name '_nothing'"):
        from splat_py.gsplat.cuda._torch_impl import _nothing  # noqa: F401


def test_deformations_are_gsplats_own_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    deformations = import_module("splat_py.gsplat.contrib.dynamic")
    # None makes importing it fail, whatever is installed.
    monkeypatch.setitem(sys.modules, "gsplat.contrib.dynamic", None)
    with pytest.raises(NotImplementedError, match=r"^splat_py\.gsplat does not support HexPlaneField$"):
        deformations.HexPlaneField(3)
    monkeypatch.setitem(sys.modules, "gsplat.contrib.dynamic", SimpleNamespace(HexPlaneField=abs))
    assert deformations.HexPlaneField is abs and package.contrib.dynamic is deformations


def test_assertions_of_1_6_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    helper, ours = pytest.importorskip("gsplat._helper"), package._helper.assert_grad_reference_close
    with pytest.raises(ImportError, match=r"^assert_grad_reference_close needs gsplat 1\.6, which is not installed"):
        ours(1, 2)
    monkeypatch.setattr(helper, "assert_grad_reference_close", lambda *args, **named: (args, named), raising=False)
    assert ours(1, 2, rtol=3) == ((1, 2), {"rtol": 3})


def test_modules_without_a_file_can_be_imported_in_every_way() -> None:
    import splat_py.gsplat.scene.functional as inference
    import splat_py.gsplat.strategy.mcmc as mcmc

    from splat_py.gsplat.scene import components, functional

    assert inference is functional and components.GaussianScene is package.scene.GaussianScene
    assert mcmc.MCMCStrategy is package.MCMCStrategy


@pytest.mark.parametrize("path", unsupported.MODULES)
def test_modules_that_are_not_supported_refuse_their_names(path: str) -> None:
    module = import_module(f"splat_py.gsplat.{path}")
    assert not hasattr(module, "__path__")
    with pytest.raises(NotImplementedError, match=r"^splat_py\.gsplat does not support a_name$"):
        module.a_name(3)


def test_what_kinds_of_images_render_modes_have() -> None:
    """Functions in order of their names: colour, depth, either depth, expected, hit distance, only colour, only depth."""
    functions = [getattr(rendering, name) for name in sorted(dir(rendering)) if name.startswith("render_mode_has_")]
    has = {mode: "".join("-+"[function(mode)] for function in functions) for mode in get_args(RenderMode)}
    assert has == {
        "RGB": "+----+-",
        "d": "--+-+-+",
        "Ed": "--+++-+",
        "D": "-++---+",
        "ED": "-+++--+",
        "RGB-d": "+-+-+--",
        "RGB-Ed": "+-+++--",
        "RGB+D": "+++----",
        "RGB+ED": "++++---",
    }


def test_what_is_not_supported_says_so_however_it_is_used() -> None:
    """simple_viewer.py of gsplat 1.6 imports these, and calls a method of the first one on request."""
    scene = package.experimental.GaussianInferenceScene
    assert not isinstance(3, scene)
    with pytest.raises(NotImplementedError, match="does not support GaussianInferenceScene; use rasterization under torch"):
        scene.from_gaussian_scene(None, id="scene")
    with pytest.raises(NotImplementedError, match="does not support GaussianInferenceRenderer"):
        package.experimental.GaussianInferenceRenderer(scene)
    with pytest.raises(AttributeError, match="rasterisation"):
        package.rasterisation  # noqa: B018
    with pytest.raises(AttributeError, match="nothing"):
        unsupported.nothing  # noqa: B018


@pytest.mark.parametrize("name", package.__all__)
def test_every_name_can_be_had(name: str) -> None:
    assert getattr(package, name) is not None


def test_the_wheels_names_are_all_there() -> None:
    wheel = pytest.importorskip("gsplat")
    # Its list of names is called `all`.
    assert not set(wheel.all) - set(package.__all__)
    assert set(package.__all__) <= set(dir(package))


# Names whose arguments tell the versions apart.
TOLD_APART = {"spherical_harmonics": "1.5.3"}


def names_of(function: Callable[..., Any], version: str = "") -> list[str]:
    """Arguments in the order of a version."""
    found = [name for name in inspect.signature(function).parameters if name != "self"]
    by_position = getattr(function, "by_position", getattr(getattr(function, "__init__", None), "by_position", {}))
    if version in by_position:
        first, later = by_position[version]
        first -= inspect.isclass(function)
        found = found[:first] + later + [name for name in found[first:] if name not in later]
    return found


def standing(name: str, theirs: list[str], version: str) -> str:
    """A public name here beside gsplat's."""
    if name in unsupported.NAMES:
        return "refused"
    if TOLD_APART.get(name) == version:
        return "told apart"
    return "same" if not theirs or names_of(getattr(package, name), version)[: len(theirs)] == theirs else "differs"


def test_the_reference_page_says_how_each_name_stands() -> None:
    """Names and arguments of 1.5.3 are the wheel's; those of 1.6, in names-1.6.txt, were read from its source."""
    wheel = pytest.importorskip("gsplat")
    older = {name: getattr(wheel, name) for name in wheel.all if name != "__version__"}
    lines = [line.split() for line in Path(__file__).with_name("names-1.6.txt").read_text().splitlines()]
    newer = {name: arguments for name, *arguments in lines}
    table = ["| name | 1.5.3 | 1.6 |", "|---|---|---|"]
    for name in sorted(older.keys() | newer.keys(), key=str.lower):
        theirs = names_of(older[name]) if inspect.isfunction(older.get(name)) or inspect.isclass(older.get(name)) else []
        cells = (
            standing(name, theirs, "1.5.3") if name in older else "–",
            standing(name, newer[name], "1.6.0") if name in newer else "–",
        )
        table.append(f"| `{name}` | {cells[0]} | {cells[1]} |")
    page = Path(__file__).parents[2].joinpath("docs/reference/gsplat.md").read_text(encoding="utf-8")
    assert "\n".join(table) in page, "\n".join(table)


@pytest.mark.parametrize("module", ["", ".rendering", ".cuda._wrapper", ".cuda._torch_impl"])
def test_arguments_are_the_wheels_in_the_wheels_order(module: str) -> None:
    """The library's own arguments come last."""
    pytest.importorskip("gsplat")
    ours, theirs = import_module(f"splat_py.gsplat{module}"), import_module(f"gsplat{module}")
    compared = 0
    refuses = {*unsupported.NAMES, *unsupported.BY_MODULE["cuda._wrapper"], *TOLD_APART}
    for name, function in inspect.getmembers(theirs, inspect.isfunction):
        if function.__module__.startswith("gsplat") and hasattr(ours, name) and name not in refuses:
            expected = names_of(function)
            assert names_of(getattr(ours, name), "1.5.3")[: len(expected)] == expected, name
            compared += 1
    assert compared > 1


def test_defaults_are_the_wheels() -> None:
    """Also those of the library's own function, apart from how tiles and shutters are told."""
    wheel = inspect.signature(pytest.importorskip("gsplat").rasterization).parameters
    for function in (rasterization, package.rasterization):
        ours = inspect.signature(function).parameters
        same = wheel.keys() & ours.keys() - {"tile_size", "rolling_shutter"}
        assert len(same) > 25
        assert {name: ours[name].default for name in same} == {name: wheel[name].default for name in same}


@pytest.mark.parametrize("name", unsupported.NAMES)
def test_what_is_not_supported_says_so_by_name(name: str) -> None:
    with pytest.raises(NotImplementedError, match=name):
        getattr(package, name)(1, 2, three=3)


@pytest.mark.parametrize("name", ["rasterization_inria_wrapper", "rasterization_2dgs_inria_wrapper"])
def test_what_another_function_does_says_which(name: str) -> None:
    """Names of simple_trainer_2dgs.py --model_type 2dgs-inria, and profiling/main.py --backends inria."""
    with pytest.raises(NotImplementedError, match=f"{name}; use {name.removesuffix('_inria_wrapper')}$"):
        getattr(rendering, name)()


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, splat_py.gsplat; print({'torch', 'numpy', 'slangpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def save_scene(path: Path, points: list[list[float]]) -> None:
    cameras = {"viewmats": np.eye(4)[None], "Ks": np.eye(3)[None], "width": 8, "height": 6}
    np.savez(path, means3d=np.float32(points), colors=np.full((len(points), 3), 51, np.uint8), **cameras)


def test_the_test_scene_can_be_cropped_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_scene(tmp_path / "scene.npz", [[0, 0, 0], [1, 1, 1], [9, 0, 0]])
    path = str(tmp_path / "scene.npz")
    means, quats, scales, opacities, colors, viewmats, Ks, width, height = load_test_data(path, scene_grid=3)
    assert means.shape == scales.shape == colors.shape == (18, 3)
    assert (quats.shape, opacities.shape, viewmats.shape, Ks.shape) == ((18, 4), (18,), (1, 4, 4), (1, 3, 3))
    assert (width, height) == (8, 6)
    assert {tuple(mean) for mean in (means[::2] / 4).tolist()} == {(x, y, 0) for x in (-1, 0, 1) for y in (-1, 0, 1)}
    assert float(colors.max()) == pytest.approx(0.2)
    monkeypatch.chdir(tmp_path)
    refused("data_path is missing", load_test_data)
    refused(r"data_path is none\.npz, which", load_test_data, "none.npz")
    refused("scene_grid is 2", load_test_data, path, scene_grid=2)


@pytest.mark.parametrize("folder", [".", "examples"])
def test_scripts_in_a_checkout_of_gsplat_find_its_test_scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """profiling/main.py and simple_viewer.py pass no path."""
    (tmp_path / "assets").mkdir()
    (tmp_path / folder).mkdir(exist_ok=True)
    save_scene(tmp_path / "assets/test_garden.npz", [[0, 0, 0], [1, 1, 1]])
    monkeypatch.chdir(tmp_path / folder)
    assert len(load_test_data(device="cpu")[0]) == 2


def test_cli_calls_once_on_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMPI_COMM_WORLD_SIZE", raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    calls: list[tuple[object, ...]] = []
    arguments = object()
    assert launch.cli(lambda *given: calls.append(given), arguments, verbose=True) is True
    assert calls == [(0, 0, 1, arguments)]


def test_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "profiler", {})

    @launch.timeit()
    def step() -> int:
        return 3

    assert step() == 3 and not launch.profiler
    monkeypatch.setenv("TIMEIT", "1")
    for _ in range(2):
        assert step() == 3
        with launch.timeit("backward"):
            pass
    assert set(launch.profiler) == {"step", "backward"} and all(seconds > 0 for seconds in launch.profiler.values())


def test_what_this_build_has() -> None:
    assert package.__version__.startswith("1.")
    for name in ("3dgs", "adam", "reloc", "losses", "2dgs", "3dgut", "camera_wrappers"):
        assert isinstance(getattr(package, f"has_{name}")(), bool)
    assert package.has_3dgs() and package.has_losses()
