"""splat_py.shaders itself, prelude.slang, and a bug of the compiler that the shaders avoid."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import slangpy as spy
import torch

from splat_py import Gaussians, shader_folder, shaders
from splat_py.base.errors import SplatError
from splat_py.gpu.device import get_device
from splat_py.shaders.loading import user_type
from tests.refusals import refused

HERE = Path(__file__).parent
MODULES = sorted(file.stem for room in ("splat", "parallel") for file in (shader_folder() / room).glob("*.slang"))
QUATS = np.array([[1.0, 0, 0, 0], [0.5, 0.5, -0.5, 0.5], [1, 2, 3, 4]])
GAUSSIAN = {"mean": [0, 0, 1], "quat": QUATS, "scale": [1, 1, 1], "opacity": 0.0}


@pytest.mark.parametrize("name", MODULES)
def test_every_module_is_listed_and_has_a_test(name: str) -> None:
    assert name in dir(shaders)
    assert getattr(shaders, name).name == name
    titles = [file.read_text(encoding="utf-8").split('"""')[1] for file in HERE.glob("test_*.py")]
    assert any(f"{name}.slang" in re.findall(r"\w+\.slang", title) for title in titles), f"{name}.slang needs a test in {HERE}"


def test_functions_are_listed() -> None:
    assert {"sigmoid", "activate", "quatToRotation", "covariance"} <= set(dir(shaders.gaussian))
    assert "shBasis<let K : int>" in repr(shaders.spherical_harmonics)
    assert "normalised" not in repr(shaders.gaussian)


def test_without_a_batch_results_are_numbers_and_single_arrays() -> None:
    assert shaders.gaussian.sigmoid(0) == 0.5
    np.testing.assert_array_equal(shaders.gaussian.quatToRotation([1, 0, 0, 0]), np.eye(3))
    activated = shaders.gaussian.activate(GAUSSIAN | {"quat": QUATS[0]})
    assert activated["opacity"] == 0.5
    np.testing.assert_allclose(activated["scale"], np.full(3, np.e), rtol=1e-6)
    (v,) = shaders.gradients(shaders.gaussian.sigmoid, 1.0, 0.0)
    assert v.shape == () and v == 0.25


def test_batches_broadcast_and_what_they_share_gets_the_sum() -> None:
    scales = np.array([0.1, 0.2, 0.3])
    v = np.random.default_rng(18).normal(size=(3, 3, 3))
    np.testing.assert_array_equal(
        shaders.gaussian.covariance(QUATS, scales),
        shaders.gaussian.covariance(QUATS, np.tile(scales, (3, 1))),
    )
    v_quats, v_shared = shaders.gradients(shaders.gaussian.covariance, v, QUATS, scales)
    v_quats_alone, v_each = shaders.gradients(shaders.gaussian.covariance, v, QUATS, np.tile(scales, (3, 1)))
    np.testing.assert_array_equal(v_quats, v_quats_alone)
    assert v_shared.shape == (3,)
    np.testing.assert_allclose(v_shared, v_each.sum(axis=0), rtol=1e-5)
    # Two batch dimensions, too.
    quats = np.random.default_rng(19).normal(size=(4, 5, 4))
    rotations = shaders.gaussian.quatToRotation(quats)
    assert rotations.shape == (4, 5, 3, 3)
    np.testing.assert_array_equal(rotations[2], shaders.gaussian.quatToRotation(quats[2]))


def test_what_v_output_leaves_out_is_zero() -> None:
    (v,) = shaders.gradients(shaders.gaussian.activate, {"opacity": [1.0, 2, 3]}, GAUSSIAN)
    np.testing.assert_allclose(v["opacity"], 6 * 0.25, rtol=1e-6)
    assert not any(np.any(v[name]) for name in ("mean", "quat", "scale"))
    # SlangPy's own objects pass through.
    assert isinstance(shaders.gaussian.sigmoid.slangpy, spy.Function)
    assert shaders.gaussian.sigmoid.slangpy(0.0) == 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shaders.gaussian.activate(), r"takes 1 arguments \(raw\), not 0"),
        (lambda: shaders.gaussian.activate(QUATS), "argument raw of gaussian.activate is a ndarray"),
        (lambda: shaders.gaussian.activate({"mean": 0}), "give a dict of mean, opacity, quat, scale"),
        (lambda: shaders.gaussian.activate(GAUSSIAN | {"means": 0}), "quat, scale, opacity, means; give"),
        (lambda: shaders.spherical_harmonics.shBasis([0, 0, 1]), r"generic; .* brackets: shBasis\[…\]"),
        (lambda: shaders.gradients(shaders.ssim.ssimWeight, 1, 0), "has no gradients"),
    ],
)
def test_mistakes_are_told(call, message: str) -> None:
    refused(message, call)


def test_unknown_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lighting'"):
        shaders.lighting  # noqa: B018
    with pytest.raises(AttributeError, match="no public function normalize in gaussian: isDrawable, sigmoid"):
        shaders.gaussian.normalize  # noqa: B018


LOSES_GRADIENTS = spy.__version__ == "0.43.1" and get_device().adapter.backend in ("vulkan", "software")


@pytest.mark.parametrize(
    "name",
    [
        "vectorFirst",
        pytest.param(
            "scalarFirst",
            marks=pytest.mark.xfail(
                LOSES_GRADIENTS,
                reason="Slang 2026.12 drops the gradient of a scalar left of a vector (SPIR-V): write v * t",
            ),
        ),
    ],
)
def test_a_scalar_times_a_vector(name: str) -> None:
    module = shaders.load(HERE / "scalar_times_vector.slang")
    v_t, v_v = shaders.gradients(getattr(module, name), [1, 2, 4], np.array([2.0, 3]), [1, 10, 100])
    np.testing.assert_allclose(v_v, [5, 10, 20])
    np.testing.assert_allclose(v_t, [421, 421])


HALVED = """
import splat.prelude;
// struct Other : IFalloff
struct Halved : IFalloff
{
    float rate;
    [Differentiable]
    float value(float sigma) { return exp(sigma * rate * -0.5); }
    float sigmaMax(float opacity) { return log(opacity / ALPHA_MIN) / rate; }
}
"""


def test_types_of_ones_own_in_brackets() -> None:
    function = shaders.falloff.falloffOf[shaders.source(HALVED)]
    sigma, own = np.float32([0.5, 1, 2]), {"rate": 2.0}
    np.testing.assert_allclose(function(sigma, own), np.exp(-sigma), rtol=1e-6)
    v_sigma, v_own = shaders.gradients(function, 1.0, sigma, {"rate": np.full(3, 2.0)})
    np.testing.assert_allclose(v_sigma, -np.exp(-sigma), rtol=1e-6)
    np.testing.assert_allclose(v_own["rate"], -0.5 * sigma * np.exp(-sigma), rtol=1e-6)
    with pytest.raises(SplatError, match="takes a number where"):
        shaders.spherical_harmonics.shColor[shaders.source(HALVED)]
    with pytest.raises(SplatError, match="no type that implements ICameraModel"):
        shaders.camera_model.projectThrough[shaders.source(HALVED)]
    refused("the arguments in brackets do not fit", shaders.falloff.falloffOf[3], sigma, own)


def test_a_scenes_own_type_in_brackets(tmp_path: Path) -> None:
    across = HALVED.replace(": IFalloff", ": IFalloff2D").replace("float sigma)", "float2 d, float3 conic)")
    own = shaders.source(across.replace("sigma * rate", "dot(d, d) * rate"))
    one = torch.ones(1)
    scene = Gaussians(torch.zeros(1, 3), torch.ones(1, 4), torch.zeros(1, 3), one, torch.zeros(1, 1, 3), {"rate": one})
    replace(scene, splat=user_type(own, "IFalloff2D")).save(tmp_path / "scene.ply")
    loaded = Gaussians.load(tmp_path / "scene.ply")
    with pytest.raises(SplatError, match="Halved is source from a file, not trusted yet; call trust_source"):
        shaders.falloff2d.falloff2DOf[loaded.splat]
    trusted = loaded.trust_source().splat
    at = [1.0, 2.0], [1.0, 0.0, 1.0], {"rate": 0.5}
    assert shaders.falloff2d.falloff2DOf[trusted](*at) == shaders.falloff2d.falloff2DOf[own](*at)
    assert shaders.falloff2d.falloff2DOf[trusted](*at) == pytest.approx(np.exp(-1.25))
    with pytest.raises(SplatError, match="no type that implements IFalloff; declare one"):
        shaders.falloff.falloffOf[trusted]


def test_a_file_that_has_changed_is_compiled_again(tmp_path: Path) -> None:
    file, inner = tmp_path / "own.slang", tmp_path / "my-inner.slang"
    inner.write_text("public float inner(float x) { return x + 1; }\n")
    source = "import my_inner;\nimport splat.gaussian;\n[Differentiable] public float f(float x) { return %s; }\n"
    file.write_text(source % "2 * x")
    module = shaders.load(file)
    assert module.f(3.0) == 6.0
    file.touch()
    assert shaders.load(file) is module

    file.write_text(source % "x * x * x")
    changed = shaders.load(file)
    assert changed is shaders.load(str(file))
    assert changed.f(3.0) == 27.0
    assert shaders.gradients(changed.f, 1.0, 3.0) == (27.0,)
    # The older module is unchanged.
    assert module.f(3.0) == 6.0

    file.write_text(source % "no_diff inner(x)")
    assert shaders.load(file).f(3.0) == 4.0
    inner.write_text("public float inner(float x) { return x - 1; }\n")
    assert shaders.load(file).f(3.0) == 2.0
    assert shaders.load(file) is shaders.load(file)


def test_a_file_that_does_not_exist(tmp_path: Path) -> None:
    refused(r"nowhere\.slang does not exist", shaders.load, tmp_path / "nowhere.slang")
    (tmp_path / "mine.txt").write_text("public float f(float x) { return x; }")
    refused(r"mine\.txt does not end in \.slang", shaders.load, tmp_path / "mine.txt")


def test_slangpy_alone_finds_the_shaders() -> None:
    options = {"include_paths": [spy.SHADER_PATH, shader_folder()]}
    device = spy.Device(type=get_device().handle.info.type, compiler_options=options)
    module = spy.Module(
        device.load_module_from_source("mine", "import splat.prelude; float twice(float x) { return sigmoid(x) * 2; }")
    )
    assert module.require_function("twice")(0.0) == 1.0
