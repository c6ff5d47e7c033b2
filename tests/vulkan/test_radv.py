"""SPIR-V is valid, and AMD's compiler in Mesa accepts it, without a card. Figures: benchmarks/vulkan_static.py."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from splat_py.gpu.emission import emit_spirv
from tests.vulkan.assembly import hot_loop
from tests.vulkan.pipelines import PipelineCompiler, VulkanError, open_radv
from tests.vulkan.spirv import adds_floats_atomically, bindings, group_size, without_language

TILE = {"TILE_SIZE": 16, "CHANNELS": 3, "PIXELS": 2}


@pytest.fixture(scope="module")
def compiler() -> Iterator[PipelineCompiler]:
    try:
        with open_radv("navi31") as opened:
            yield opened
    except VulkanError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def forward() -> bytes:
    return emit_spirv("rasterize", "rasterizeForward", TILE)


@pytest.fixture(scope="module")
def backward() -> bytes:
    return emit_spirv("rasterize", "rasterizeBackward", TILE)


def test_modules_say_what_they_bind(forward: bytes, backward: bytes) -> None:
    """Uniforms, splats, lists and the image, each at its own binding."""
    assert group_size(forward) == group_size(backward) == 16 * 16 // 2
    assert len({(at.set, at.binding) for at in bindings(forward)}) == len(bindings(forward)) >= 7
    assert [at.uniform for at in bindings(forward)].count(True) == 1
    assert adds_floats_atomically(backward) and not adds_floats_atomically(forward)


@pytest.mark.parametrize("wave", [32, 64])
def test_the_rasteriser_spills_nothing(compiler: PipelineCompiler, forward: bytes, backward: bytes, wave: int) -> None:
    for code in (forward, backward):
        compiled = compiler.compile(code, wave)
        assert compiled.wave == wave
        spilled = ("Spilled VGPRs", "Spilled SGPRs", "Scratch size")
        assert [compiled.statistics[name] for name in spilled] == [0, 0, 0]
        assert 16 < compiled.statistics["VGPRs"] < 256
        assert 200 < compiled.statistics["Instructions"] < 5000


def test_a_splat_is_loaded_once_a_wave(compiler: PipelineCompiler, forward: bytes) -> None:
    """Scalar loads read it: the loop over a tile's list is uniform in a wave, and the compiler knows it."""
    loop = hot_loop(compiler.compile(forward, 64).texts["Assembly"])
    if loop is None:
        pytest.skip("this Mesa prints no assembly")
    assert loop["loads"] > 0 and "memory" not in loop
    assert 20 < loop["vector"] < 120


def test_a_gpu_without_float_atomics_refuses_them(backward: bytes) -> None:
    """It accepts compare-and-swap instead, as RDNA 2 must."""
    try:
        with open_radv("navi21") as rdna2:
            assert not rdna2.float_atomics
            with pytest.raises(VulkanError, match="cannot add to floats"):
                rdna2.compile(backward)
            code = emit_spirv("rasterize", "rasterizeBackward", {**TILE, "NATIVE_ATOMICS": False})
            assert rdna2.compile(code).statistics["Spilled VGPRs"] == 0
    except VulkanError as error:
        pytest.skip(str(error))


ASSEMBLY = """
BB0:
	s_mov_b32 s0, 0
BB1:
	v_exp_f32_e32 v0, v1
BB2:
	s_load_b128 s[4:7], s[2:3], 0x10   ; 1234
	s_delay_alu instid0(VALU_DEP_1)
	v_exp_f32_e32 v0, v1
	s_cbranch_vccz BB3
	v_dual_mul_f32 v0, v1, v2 :: v_dual_mov_b32 v3, 0
	global_atomic_add_f32 v0, v1, s[0:1]
BB3:
	buffer_store_b32 v0, v1, s[0:3], 0
	s_branch BB2
	s_branch BB1
	s_endpgm
"""


def test_a_loop_is_told_from_what_surrounds_it() -> None:
    assert hot_loop(ASSEMBLY) == {"loads": 1, "vector": 2, "scalar": 2, "atomics": 1, "memory": 1}
    assert hot_loop(ASSEMBLY, "v_log_f32") is None


def test_modules_are_valid(forward: bytes, backward: bytes) -> None:
    """The validator of Vulkan's tools accepts them, without the source language, which older ones do not know."""
    validator = shutil.which("spirv-val")
    if validator is None:
        pytest.skip("needs spirv-val: apt-get install spirv-tools")
    for code in (forward, backward):
        command = [validator, "--target-env", "vulkan1.3", "-"]
        result = subprocess.run(command, input=without_language(code), capture_output=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
