"""slang/parallel/gradient_accumulation.slang: every strategy gives the same sums."""

from pathlib import Path

import numpy as np
import pytest

from tests.shaders.kernels import dispatch

SOURCE = Path(__file__).with_name("accumulation.slang").read_text(encoding="utf-8")
GROUPS, ROUNDS, SLOTS = 5, 2, 3


def add_up(strategy: str, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The workgroups' sums, in rows that all share and in each workgroup's own rows."""
    threads, length = values.shape[3:]
    constants = f"static const uint THREADS = {threads};\nstatic const int N = {length};\ntypedef {strategy} STRATEGY;\n"
    source = SOURCE.replace("static const uint SLOTS", constants + "static const uint SLOTS")
    row = (ROUNDS, SLOTS, length + 1)
    arrays = {"sums": np.zeros(row, np.float32), "parts": np.zeros((GROUPS, *row), np.float32)}
    used = "parts" if strategy == "PerIntersection" else "sums"
    arrays |= dispatch(source, "addUp", GROUPS, values=values, **{used: arrays[used]})
    return arrays["sums"], arrays["parts"]


@pytest.mark.parametrize("threads", [8, 64])
@pytest.mark.parametrize("length", [1, 3, 4, 9, 11])
@pytest.mark.parametrize("strategy", ["PerPixel", "PerWave", "PerGroup", "PerIntersection"])
def test_sums_of_rows(strategy: str, length: int, threads: int) -> None:
    """Rows of any length; some lanes and whole waves give nothing; neighbouring memory stays unchanged; several rounds."""
    rng = np.random.default_rng(length)
    values = rng.normal(size=(GROUPS, ROUNDS, SLOTS, threads, length)).astype(np.float32)
    values[..., ::3, :] = 0
    values[2, 1] = 0
    values[..., 1, 32:, :] = 0
    sums, parts = add_up(strategy, values)
    expected = values.astype(float).sum(axis=3)
    if strategy == "PerIntersection":
        np.testing.assert_allclose(parts[..., :-1], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(parts, add_up(strategy, values)[1])
        assert not parts[..., -1].any() and not sums.any()
    else:
        np.testing.assert_allclose(sums[..., :-1], expected.sum(axis=0), rtol=1e-5, atol=1e-5)
        assert not sums[..., -1].any() and not parts.any()
