"""Every kernel as WGSL that naga accepts, in `make full` with each shipped value of its constants; except kernels of
slang/kernels/cpu, which WGSL cannot express and which have twins. All combinations of values would take minutes:
tests/metal checks them.

Unlike browsers, naga does not check that all threads reach barriers and subgroup operations together.
"""

from typing import Any

import pytest

from splat_py.gpu.emission import WgslKernel, emit
from splat_py.gpu.slang_compiler import CompilerError
from tests.emulation.kernels import Specialisation, by_kernel, declared, with_every_value
from tests.webgpu.device import EMITTED, FLOAT_ATOMICS, for_naga, negated_sums, open_wgpu, pointers_to_parts

# Entry points of slang/kernels/cpu that are other kernels elsewhere.
IN_PARTS = {
    ("volume", "volumeTrain"): {("volume", "volumeForward"), ("volume_fit", "squaredError"), ("volume", "volumeBackward")},
    ("volume", "adamVolume"): {("volume_fit", "adamVolume")},
    ("loss", "momentsAlongRows"): {("loss", "ssimInTiles")},
    ("loss", "ssimAlongColumns"): {("loss", "ssimInTiles")},
    ("loss", "adjointsAlongRows"): {("loss", "gradientInTiles")},
    ("loss", "lossGradient"): {("loss", "gradientInTiles")},
}


EVERY = by_kernel()
BY_KERNEL = {kernel: with_every_value(EVERY[kernel]) for kernel in EVERY if not kernel[0].startswith("cpu/")}


@pytest.fixture(scope="session")
def validator() -> Any:
    """A device that validates shader modules, also specialisations with float atomics."""
    return open_wgpu(FLOAT_ATOMICS)


def test_every_kernel_and_every_value_is_there() -> None:
    assert set(declared()) - set(BY_KERNEL) == {(module, entry) for module, entry in declared() if module.startswith("cpu/")}
    for kernel, kept in BY_KERNEL.items():
        values = {value for other in kept for value in other.constants}
        assert all(values.issuperset(specialisation.constants) for specialisation in EVERY[kernel])


def is_plain(specialisation: Specialisation, validator: Any) -> bool:
    """Check a specialisation. False if it needs float atomics, an extension of naga's."""
    source = EMITTED.get(specialisation.module, specialisation.entry, dict(specialisation.constants)).source
    validator.create_shader_module(code=for_naga(source), label=str(specialisation))
    assert not negated_sums(source) and not pointers_to_parts(source), specialisation
    WgslKernel.of(source)
    return "atomic<f32>" not in source


@pytest.mark.parametrize(("module", "entry"), BY_KERNEL)
def test_kernel(module: str, entry: str, validator: Any) -> None:
    """A specialisation is for plain WGSL, which adds by compare-and-swap or in a fixed order."""
    assert any(is_plain(specialisation, validator) for specialisation in BY_KERNEL[module, entry])


@pytest.mark.parametrize(("module", "entry"), BY_KERNEL)
def test_every_value(module: str, entry: str, validator: Any) -> None:
    for specialisation in BY_KERNEL[module, entry]:
        is_plain(specialisation, validator)


def test_what_cpu_drivers_run_has_a_twin() -> None:
    of_cpu = {(module.removeprefix("cpu/"), entry) for module, entry in declared() if module.startswith("cpu/")}
    twins = set.union(*(IN_PARTS.get(kernel, {kernel}) for kernel in of_cpu))
    assert of_cpu >= set(IN_PARTS) and set(BY_KERNEL) >= twins


def test_what_cannot_be_expressed(validator: Any) -> None:
    """If naga accepts them, they need tests like the rest."""

    def is_refused(specialisation: Specialisation) -> bool:
        """Pointers are refused: those to 64 bits by the compiler, others by the validator."""
        try:
            source = emit("wgsl", specialisation.module, specialisation.entry, dict(specialisation.constants)).source
        except CompilerError as error:
            return "disallowed vector element type" in error.messages
        return not accepts(validator, source)

    for kernel in EVERY.keys() - BY_KERNEL.keys():
        assert is_refused(EVERY[kernel][-1]), kernel


# --- the validator itself, and the workarounds for it ---

KERNEL = """
@group(0) @binding(0) var<storage, read_write> values : array<f32>;
@compute @workgroup_size(8)
fn test(@builtin(local_invocation_index) lane : u32, @builtin(workgroup_id) group : vec3<u32>) {{
    {statement}
}}
"""


def accepts(validator: Any, source: str) -> bool:
    import wgpu

    try:
        validator.create_shader_module(code=source)
    except wgpu.GPUValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("statement", "right"),
    [
        ("values[lane] = subgroupAdd(1.0);", True),
        ("values[lane] = 1u;", False),
        ("values[lane] = undeclared;", False),
        ("let p : ptr<function, f32> = &values[lane];", False),
    ],
)
def test_the_validator_sees_what_is_wrong(statement: str, right: bool, validator: Any) -> None:
    assert accepts(validator, KERNEL.format(statement=statement)) == right


def test_lost_brackets_are_found() -> None:
    assert negated_sums("(vec2<f32>(0) - vec2<f32>(a + b, c)) + (vec3<f32>(0) - f(a - b)[i + 1])") == []
    wrong = "x = clamp((vec2<f32>(0) - p / (q + r) + m), (vec2<f32>(0) - a - (b)));"
    assert negated_sums(wrong) == ["p / (q + r) + m", "a - (b)"]


def test_pointers_to_parts_are_found() -> None:
    assert pointers_to_parts("x = f(&(a)) + b.c; atomicAdd(&(sums[0]), u32(1));") == []
    assert pointers_to_parts("var x = f(&(a.b));") == ["f(&(a.b));"]
    assert pointers_to_parts("x = f(y, &(a[0]));") == ["f(y, &(a[0]));"]


@pytest.mark.parametrize(
    "statement",
    ["values[lane] = subgroupShuffle(values[lane], i32(lane ^ 1u));", "if subgroupElect() { values[lane] = 1.0; }"],
)
def test_what_naga_lacks(statement: str, validator: Any) -> None:
    """Words of the standard that naga does not know: if it learns them, remove `for_naga`."""
    source = KERNEL.format(statement=statement)
    assert not accepts(validator, source)
    assert accepts(validator, for_naga(source))
    assert not accepts(validator, "enable subgroups;\n" + source.replace(statement, "values[lane] = subgroupAdd(1.0);"))
