"""SelectiveAdam against torch's Adam, and rows that it leaves unchanged."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from splat_py.gsplat.optimizers import SelectiveAdam
from torch import Tensor
from torch.nn import Parameter

from tests.refusals import refused

BETAS, EPS, LR = (0.9, 0.999), 1e-15, 1e-2
# By this step, torch's correction of the moments for their start at zero has faded.
LATE = 1e9


def parameter(seed: int, count: int = 40, *shape: int) -> Parameter:
    return Parameter(torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed)))


def selective(param: Parameter) -> SelectiveAdam:
    return SelectiveAdam([{"params": param, "lr": LR, "name": "means"}], eps=EPS, betas=BETAS)


@pytest.mark.parametrize("shape", [(), (3,), (1, 3), (15, 3)])
@pytest.mark.parametrize("all_visible", [True, False])
def test_visible_rows_move_as_in_adam(shape: tuple[int, ...], all_visible: bool) -> None:
    """Each visible row moves as in an Adam that sees only its steps."""
    ours, theirs = parameter(0, 40, *shape), parameter(0, 40, *shape)
    optimizer = selective(ours)
    torchs = torch.optim.Adam([theirs], lr=LR, eps=EPS, betas=BETAS)
    moments = ("exp_avg", "exp_avg_sq")
    torchs.state[theirs] = {"step": torch.tensor(LATE)} | {name: torch.zeros_like(theirs) for name in moments}
    for seed in range(1, 8):
        visible = torch.rand(40, generator=torch.Generator().manual_seed(seed)) < (2.0 if all_visible else 0.4)
        gradient = parameter(100 + seed, 40, *shape).detach()
        before = [t.detach().clone() for t in (theirs, *(torchs.state[theirs][name] for name in moments))]
        ours.grad, theirs.grad = gradient.clone(), gradient
        optimizer.step(visible)
        torchs.step()
        for tensor, old in zip((theirs.data, *(torchs.state[theirs][name] for name in moments)), before, strict=True):
            tensor[~visible] = old[~visible]
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
        for name in moments:
            torch.testing.assert_close(optimizer.state[ours][name], torchs.state[theirs][name], rtol=1e-6, atol=1e-12)
    assert optimizer.state[ours].keys() == {"step", *moments} and float(optimizer.state[ours]["step"]) == 7


def test_the_first_step_is_not_corrected() -> None:
    """The first step is (1 - β₁) / √(1 - β₂) learning rates, as in gsplat's kernel; torch corrects it."""
    param = Parameter(torch.zeros(2))
    optimizer = selective(param)
    param.grad = torch.tensor([1.0, -7.0])
    optimizer.step(torch.tensor([True, True]))
    torch.testing.assert_close(param.data, LR * 0.1 / 0.001**0.5 * torch.tensor([-1.0, 1.0]))


@pytest.mark.parametrize("as_given", [torch.Tensor.bool, torch.Tensor.float, lambda mask: mask[:, None]])
def test_hidden_rows_keep_their_bits(as_given: Callable[[Tensor], Tensor]) -> None:
    param = parameter(3, 10, 2)
    optimizer = selective(param)
    visible = torch.arange(10) % 3 == 0
    for _ in range(2):
        before = param.detach().clone()
        param.grad = torch.ones_like(param)
        param.grad[1] = torch.nan
        optimizer.step(as_given(visible))
        assert torch.equal(param[~visible], before[~visible]) and (param[visible] != before[visible]).all()
        assert (optimizer.state[param]["exp_avg"][~visible] == 0).all()


def test_parts_of_a_tensor_and_parameters_without_gradient() -> None:
    coefficients = torch.zeros(6, 16, 3)
    sh0, shn = Parameter(coefficients[:, :1]), Parameter(coefficients[:, 1:])
    optimizer = SelectiveAdam([{"params": [sh0], "lr": 1.0}, {"params": [shn], "lr": 2.0}], EPS, BETAS)
    shn.grad = torch.ones_like(shn)
    optimizer.step(visibility=torch.arange(6) < 2)
    assert (coefficients[:, 0] == 0).all() and (coefficients[2:] == 0).all() and (coefficients[:2, 1:] < 0).all()
    assert sh0 not in optimizer.state
    optimizer.step(torch.zeros(6, dtype=torch.bool))
    refused("2 parameters", SelectiveAdam([parameter(0), parameter(1)], EPS, BETAS).step, torch.ones(40))
    refused("39 values for a parameter with 40 rows", selective(parameter(0)).step, torch.ones(39))


def test_state_is_saved_and_loaded() -> None:
    first, second = parameter(1), parameter(1)
    optimizers = [selective(first), selective(second)]
    for step in range(4):
        for param, optimizer in zip((first, second), optimizers, strict=True):
            param.grad = parameter(50 + step).detach()
            optimizer.step(torch.ones(40))
        optimizers[1] = selective(second)
        optimizers[1].load_state_dict(deepcopy(optimizers[0].state_dict()))
    assert torch.equal(first, second)
