"""States of Gaussians under training, with all kinds of parameter groups, and their comparison."""

from pathlib import Path
from typing import Any

import numpy as np

from splat_py import Dataset
from splat_py.fit.steps import MOMENTS, Use, random_key
from splat_py.train.checkpoint import Checkpoint
from splat_py.train.config import TrainConfig
from splat_py.train.parameters import Parameters
from splat_py.train.trainer import Trainer

Arrays = dict[str, Any]
KINDS = ("harmonics", "everything")


def state_of(count: int, kind: str = "harmonics", seed: int = 0) -> Arrays:
    """A state of `count` Gaussians, a fifth of them faint; the kind "everything" has extras, features and weights."""
    rng = np.random.default_rng(seed)
    state: Arrays = {
        "means": rng.normal(size=(count, 3)),
        "quats": rng.normal(size=(count, 4)),
        "log_scales": rng.uniform(-4.5, -1.5, (count, 3)),
        "logit_opacities": np.where(rng.uniform(size=count) < 0.2, rng.uniform(-9, -5.5, count), rng.uniform(-5, 6, count)),
    }
    if kind == "everything":
        state |= {"features": rng.normal(size=(count, 5)), "extras": rng.normal(size=(count, 2)), "weights": rng.normal(size=7)}
    else:
        state["sh"] = rng.normal(size=(count, 4, 3))
    for name in list(state):
        state |= {f"{name}.{moment}": rng.uniform(0.1, 1, state[name].shape) for moment in MOMENTS}
    seen = rng.integers(0, 5, count)
    state |= {"gradient_norms": seen * rng.uniform(0, 4e-4, count), "times_seen": seen, "max_radii": rng.uniform(size=count)}
    assert set(Parameters.STATISTICS) <= set(state)
    return {name: np.asarray(values, np.float32) for name, values in state.items()}


def key_of(config: TrainConfig, step: int, use: Use) -> tuple[int, int]:
    words = random_key(config.seed, step, use)
    return words["key0"], words["key1"]


def in_double(state: Arrays) -> Arrays:
    return {name: values.astype(np.float64) for name, values in state.items()}


def assert_states(actual: Arrays, expected: Arrays, atol: float = 2e-5) -> None:
    """Check for the same groups and rows, and values up to float32's rounding."""
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(actual[name], values, rtol=2e-5, atol=atol, err_msg=name)


def assert_same_bits(actual: Arrays, expected: Arrays) -> None:
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(actual[name], values, err_msg=name)


def assert_resumes(dataset: Dataset, config: TrainConfig, folder: Path, *stops: int, **types: Any) -> tuple[Trainer, Trainer]:
    """Check that a run stopped after these steps and resumed from its file equals an unstopped run to the bit; return both."""
    whole, begun = Trainer(dataset, config, **types), Trainer(dataset, config, **types)
    whole.fit()
    for stop in stops:
        while begun.step < stop:
            begun.advance()
        begun.save_checkpoint(folder / "checkpoint.safetensors")
        begun = Trainer(dataset, resume=Checkpoint.load(folder / "checkpoint.safetensors"), **types)
    begun.fit()
    assert_same_bits(begun.checkpoint().state, whole.checkpoint().state)
    return whole, begun
