"""gsplat's names are where gsplat has them."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import splat_py.gsplat as package
from splat_py import SplatError
from splat_py.gsplat import rendering, unsupported
from splat_py.gsplat._helper import load_test_data
from splat_py.gsplat.options import RenderMode

# What gsplat's tests and examples, and nerfstudio's splatfacto, import.
IMPORTED = {
    "": "rasterization rasterization_2dgs export_splats",
    "._helper": "load_test_data",
    ".compression": "PngCompression",
    ".cuda._torch_impl": "_eval_sh_bases_fast _fisheye_proj _fully_fused_projection _isect_offset_encode _isect_tiles "
    "_ortho_proj _persp_proj _quat_scale_to_covar_preci _rasterize_to_pixels _spherical_harmonics _world_to_cam accumulate",
    ".cuda._wrapper": "fully_fused_projection fully_fused_projection_2dgs isect_offset_encode isect_tiles proj "
    "quat_scale_to_covar_preci rasterize_to_indices_in_range rasterize_to_pixels rasterize_to_pixels_2dgs spherical_harmonics "
    "world_to_cam RollingShutterType FThetaCameraDistortionParameters has_3dgs",
    ".cuda._constants": "ALPHA_THRESHOLD MIN_COMPENSATION",
    ".distributed": "cli",
    ".experimental": "GaussianInferenceRenderer GaussianInferenceScene",
    ".optimizers": "SelectiveAdam",
    ".rendering": "_rasterization rasterization rasterization_2dgs RollingShutterType",
    ".strategy": "DefaultStrategy MCMCStrategy",
    ".utils": "depth_to_normal",
    ".version": "__version__",
}


@pytest.mark.parametrize("module", IMPORTED)
def test_what_scripts_import_is_there(module: str) -> None:
    home = import_module(f"splat_py.gsplat{module}")
    for name in IMPORTED[module].split():
        assert getattr(home, name) is not None, name


def test_what_kinds_of_images_render_modes_have() -> None:
    """In the order of the functions' names: colour, depth, either depth, expected, hit distance, only colour, only depth."""
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
    """simple_viewer.py of gsplat 1.6 imports these, and calls a method of the first when it is asked to."""
    scene = package.experimental.GaussianInferenceScene
    assert not isinstance(3, scene)
    with pytest.raises(NotImplementedError, match="does not support GaussianInferenceScene; use rasterization under torch"):
        scene.from_gaussian_scene(None, id="scene")
    with pytest.raises(NotImplementedError, match="does not support GaussianInferenceRenderer"):
        package.experimental.GaussianInferenceRenderer(scene)


@pytest.mark.parametrize("name", package.__all__)
def test_every_name_can_be_had(name: str) -> None:
    assert getattr(package, name) is not None


def test_the_wheels_names_are_all_there() -> None:
    wheel = pytest.importorskip("gsplat")
    # It calls its list of names `all`.
    missing = set(wheel.all) - set(package.__all__)
    assert not missing
    assert set(package.__all__) <= set(dir(package))


@pytest.mark.parametrize("module", ["", ".rendering", ".cuda._wrapper", ".cuda._torch_impl"])
def test_arguments_are_the_wheels_in_the_wheels_order(module: str) -> None:
    pytest.importorskip("gsplat")
    ours, theirs = import_module(f"splat_py.gsplat{module}"), import_module(f"gsplat{module}")
    compared = 0
    for name, function in inspect.getmembers(theirs, inspect.isfunction):
        if not function.__module__.startswith("gsplat") or not hasattr(ours, name) or name in unsupported.NAMES:
            continue
        expected = list(inspect.signature(function).parameters)
        found = list(inspect.signature(getattr(ours, name)).parameters)
        if name == "rasterization":
            # 1.6 has more in between.
            expected, found = expected[: expected.index("with_eval3d")], found[: found.index("with_eval3d")]
        if name == "_isect_offset_encode":
            # Its number of images has one letter.
            expected[1] = found[1]
        assert found[: len(expected)] == expected, name
        compared += 1
    assert compared > 1


@pytest.mark.parametrize("name", unsupported.NAMES)
def test_what_is_not_supported_says_so_by_name(name: str) -> None:
    with pytest.raises(NotImplementedError, match=name):
        getattr(package, name)(1, 2, three=3)


@pytest.mark.parametrize("name", ["rasterization_inria_wrapper", "rasterization_2dgs_inria_wrapper"])
def test_what_another_function_does_says_which(name: str) -> None:
    """simple_trainer_2dgs.py --model_type 2dgs-inria, and profiling/main.py --backends inria."""
    with pytest.raises(NotImplementedError, match=f"{name}; use {name.removesuffix('_inria_wrapper')}$"):
        getattr(rendering, name)()


def test_what_does_not_exist_is_not_there() -> None:
    with pytest.raises(AttributeError, match="rasterisation"):
        package.rasterisation  # noqa: B018
    with pytest.raises(AttributeError, match="nothing"):
        unsupported.nothing  # noqa: B018


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, splat_py.gsplat; print({'torch', 'numpy', 'slangpy'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_the_test_scene_can_be_cropped_and_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.array([[0, 0, 0], [1, 1, 1], [9, 0, 0]], np.float32)
    np.savez(
        tmp_path / "scene.npz",
        means3d=points,
        colors=np.full((3, 3), 51, np.uint8),
        viewmats=np.eye(4)[None],
        Ks=np.eye(3)[None],
        width=8,
        height=6,
    )
    path = str(tmp_path / "scene.npz")
    means, quats, scales, opacities, colors, viewmats, Ks, width, height = load_test_data(path, scene_grid=3)
    assert means.shape == scales.shape == colors.shape == (18, 3)
    assert (quats.shape, opacities.shape, viewmats.shape, Ks.shape) == ((18, 4), (18,), (1, 4, 4), (1, 3, 3))
    assert (width, height) == (8, 6)
    assert {tuple(mean) for mean in (means[::2] / 4).tolist()} == {(x, y, 0) for x in (-1, 0, 1) for y in (-1, 0, 1)}
    assert float(colors.max()) == pytest.approx(0.2)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SplatError, match="data_path is missing"):
        load_test_data()
    with pytest.raises(SplatError, match=r"data_path: there is no file none\.npz"):
        load_test_data("none.npz")
    with pytest.raises(SplatError, match="scene_grid is 2"):
        load_test_data(path, scene_grid=2)


@pytest.mark.parametrize("folder", [".", "examples"])
def test_scripts_in_a_checkout_of_gsplat_find_its_test_scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """profiling/main.py and simple_viewer.py give no path."""
    (tmp_path / "assets").mkdir()
    (tmp_path / folder).mkdir(exist_ok=True)
    scene = {
        "means3d": np.zeros((2, 3)),
        "colors": np.zeros((2, 3), np.uint8),
        "viewmats": np.eye(4)[None],
        "Ks": np.eye(3)[None],
    }
    np.savez(tmp_path / "assets/test_garden.npz", width=8, height=6, **scene)
    monkeypatch.chdir(tmp_path / folder)
    assert len(load_test_data(device="cpu")[0]) == 2
