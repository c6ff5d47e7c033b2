"""`rasterization` submits its stages together, with results as if it submitted each alone."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partialmethod
from threading import Thread
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from splat_py import SplatError, get_device, rasterization
from splat_py.gpu.arrays import Array, Memory
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.render import tiles
from splat_py.render.splats import all_visible
from tests.render.test_packed import HEIGHT, OPTIONS, WIDTH, C, N, inputs_of, run


@contextmanager
def apart(device: Device, recording: Any = Device.recording) -> Iterator[Recorder]:
    """Record as `Device.recording`, but submit each stage alone."""
    outer, device._open.recorder = device._open.recorder, None
    try:
        with recording(device) as recorder:
            yield recorder
    finally:
        device._open.recorder = outer


def undefined(memory: Memory, *args: Any, byte: int = 0xFF, empty: Any = Memory.empty, **others: Any) -> Array:
    """An empty array whose contents stand out if they are read before they are written: NaN or 2³² - 1 by default."""
    array: Array = empty(memory, *args, **others)
    array.tensor().view(torch.uint8).fill_(byte)
    return array


def render(inputs: dict[str, Tensor], **options: Any) -> Tensor:
    return rasterization(**inputs, width=WIDTH, height=HEIGHT, **options)[0]


def inputs_all_visible(batch: tuple[int, ...] = (), **options: Any) -> dict[str, Tensor]:
    """The scenes of `inputs_of` before the cameras that see all Gaussians."""
    inputs = {name: tensor.detach() for name, tensor in inputs_of(batch, **options).items()}
    inputs["viewmats"][..., :2, 3] = 0
    inputs["means"][..., :2] *= 0.1
    inputs["scales"] *= 3
    inputs["means"][..., 2] = inputs["means"][..., 2].abs() + 0.5
    return {name: tensor.requires_grad_() for name, tensor in inputs.items()}


@pytest.mark.parametrize(
    ("make_inputs", "packed", "submissions", "dispatches"),
    [(inputs_of, False, 1, 9), (inputs_of, True, 3, 12), (inputs_all_visible, True, 1, 9)],
)
def test_few_submissions_and_dispatches(make_inputs: Any, packed: bool, submissions: int, dispatches: int) -> None:
    inputs = make_inputs()
    render(inputs, packed=packed)
    spies = (patch.object(Recorder, n, autospec=True, side_effect=getattr(Recorder, n)) for n in ("submit", "dispatch"))
    with next(spies) as submit, next(spies) as dispatch:
        images = render(inputs, packed=packed)
        assert (submit.call_count, dispatch.call_count) == (submissions, dispatches)
        images.sum().backward()
        assert submit.call_count == submissions + 1


def doubled_in_place(gradient: Tensor) -> None:
    gradient.mul_(2)


@pytest.mark.parametrize("hook", [lambda gradient: 2 * gradient, doubled_in_place])
def test_hooks_between_stages_change_what_earlier_stages_get(hook: Any) -> None:
    inputs = inputs_of()
    colors, others = inputs["colors"], [value for name, value in inputs.items() if name not in ("colors", "backgrounds")]

    def gradients(on_splats: bool) -> list[Tensor]:
        images, _, meta = rasterization(**inputs, width=WIDTH, height=HEIGHT, packed=False)
        if on_splats:
            for name in ("means2d", "conics", "opacities"):
                meta[name].register_hook(hook)
        return list(torch.autograd.grad(images.sum(), [colors, *others], allow_unused=True))

    plain, doubled = gradients(False), gradients(True)
    torch.testing.assert_close(doubled, [plain[0], *(None if v is None else 2 * v for v in plain[1:])], rtol=1e-6, atol=0)


@pytest.mark.parametrize("of_cameras", [False, True])
def test_a_backward_pass_with_harmonics_is_one_submission_or_two_for_cameras(of_cameras: bool) -> None:
    inputs = inputs_of(colors=(4, 3))
    inputs |= {name: inputs[name].detach().requires_grad_(of_cameras) for name in ("viewmats", "Ks")}
    images = render(inputs, packed=False, sh_degree=1)
    with patch.object(Recorder, "submit", autospec=True, side_effect=Recorder.submit) as submit:
        images.sum().backward()
        assert submit.call_count == 1 + of_cameras


def assert_same(found: Any, expected: Any) -> None:
    """Two results of `run` are the same to the last bit."""
    torch.testing.assert_close((*found[:2], found[3]), (*expected[:2], expected[3]), rtol=0, atol=0)
    assert found[2].keys() == expected[2].keys()
    tensors = [key for key, value in expected[2].items() if isinstance(value, Tensor)]
    torch.testing.assert_close([found[2][key] for key in tensors], [expected[2][key] for key in tensors], rtol=0, atol=0)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", OPTIONS)
def test_results_are_those_of_single_submissions(name: str, packed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    options = dict(OPTIONS[name])
    inputs = inputs_of((2,), colors=options.pop("colors", (3,)), per_camera=options.pop("per_camera", False))
    with patch.object(Device, "recording", apart):
        single = run(inputs, packed=packed, **options)
    monkeypatch.setattr(Memory, "empty", undefined)
    for _ in range(2):
        assert_same(run(inputs, packed=packed, **options), single)


@pytest.mark.parametrize("name", OPTIONS)
def test_splats_are_packed_again_if_some_are_no_longer_visible(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Radii that are read too early are positive.
    monkeypatch.setattr(Memory, "empty", partialmethod(undefined, byte=0x7F))
    options = dict(OPTIONS[name])
    of_colors: Any = {"colors": options.pop("colors", (3,)), "per_camera": options.pop("per_camera", False)}
    all_visible.clear()
    for make_inputs in (inputs_all_visible, inputs_all_visible, inputs_of, inputs_of):
        inputs = make_inputs((2,), **of_colors)
        found = run(inputs, packed=True, **options)
        assert len(found[2]["depths"]) < found[0].shape[0] * C * N or make_inputs is inputs_all_visible
        expects = list(all_visible.values())
        all_visible.clear()
        expected = run(inputs, packed=True, **options)
        assert expects == list(all_visible.values()) == [make_inputs is inputs_all_visible]
        assert_same(found, expected)


def test_lists_with_too_little_room_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = inputs_of()
    images, alphas, meta, gradients = run(inputs, packed=False)
    needed = len(meta["flatten_ids"])
    for expected in (0, 1, needed // 2, needed - needed // 4, 2 * needed):
        monkeypatch.setattr(tiles, "_expected", {(meta["depths"].numel(), meta["isect_offsets"].numel()): expected})
        again = run(inputs, packed=False)
        torch.testing.assert_close((images, alphas, gradients), (again[0], again[1], again[3]), rtol=0, atol=0)
        torch.testing.assert_close(meta["flatten_ids"], again[2]["flatten_ids"], rtol=0, atol=0)


def test_an_error_submits_what_was_recorded() -> None:
    device = get_device()
    array = device.memory.full((4,), 1)
    with suppress(SplatError), device.recording() as recorder:
        recorder.clear(array)
        raise SplatError("for the test")
    assert not array.numpy().any()
    with device.recording() as recorder:
        assert recorder.is_empty


@pytest.mark.parametrize("render_mode", ["RGB", "RGB+D"])
def test_a_failed_submission_closes_the_recording(render_mode: str) -> None:
    device, inputs = get_device(), inputs_of()
    expected = render(inputs)
    with (
        patch.object(Recorder, "submit", side_effect=SplatError("for the test")),
        pytest.raises(SplatError, match="for the test"),
    ):
        render(inputs, render_mode=render_mode)
    assert device._open.recorder is None
    torch.testing.assert_close(render(inputs), expected, rtol=0, atol=0)


def test_threads_do_not_share_a_recording() -> None:
    device, inputs, found = get_device(), inputs_of(), []
    expected = render(inputs)
    with device.recording():
        thread = Thread(target=lambda: found.append(render(inputs)))
        thread.start()
        thread.join()
        torch.testing.assert_close(found[0], expected, rtol=0, atol=0)
