"""The choice of backend: the operators that devices declare, and their effect on `rasterization`."""

import math
from typing import Any

import pytest
import slangpy as spy
import torch

from splat_py import SplatError, load_dataset, portable, rasterization
from splat_py.base.errors import NoDeviceError
from splat_py.commands.devices import Devices
from splat_py.demo.scene import write_demo_scene
from splat_py.gpu.device import Operator, get_device, native_operators
from splat_py.train.trainer import Trainer
from tests.refusals import refused
from tests.render.test_errors import HEIGHT, WIDTH, C, N, good

ALL = set(Operator)


def scene(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in good().items() if name != "backgrounds"} | changes


@pytest.fixture
def without_waves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that cannot run the tile renderer."""
    monkeypatch.setattr(get_device(), "operators", native_operators("vulkan", [spy.Feature.atomic_float]))


@pytest.mark.parametrize(
    ("backend", "reported", "supported"),
    [
        ("vulkan", {spy.Feature.atomic_float, spy.Feature.wave_ops}, ALL),
        ("vulkan", {spy.Feature.wave_ops}, ALL - {Operator.FLOAT_ATOMICS}),
        ("vulkan", {spy.Feature.atomic_float}, {Operator.FLOAT_ATOMICS}),
        ("cuda", set(), set()),
        # Metal reports neither, but has both.
        ("metal", set(), ALL),
    ],
)
def test_what_a_backend_declares(backend: str, reported: set[spy.Feature], supported: set[Operator]) -> None:
    assert native_operators(backend, reported) == supported


def test_this_device_renders() -> None:
    assert {Operator.SPLAT_FORWARD, Operator.SPLAT_BACKWARD} <= get_device().operators
    get_device().require(*Operator)


@pytest.mark.filterwarnings("error")
def test_native_is_taken_where_it_is_declared() -> None:
    image, _, meta = rasterization(**scene())
    assert meta["backend"] == "native"
    rendered, _, native = rasterization(**scene(), backend="native")
    assert native["backend"] == "native" and torch.equal(image, rendered)


@pytest.mark.filterwarnings("error")
def test_portable_when_asked_for_by_name() -> None:
    arguments = scene()
    images, alphas, meta = rasterization(**arguments, backend="portable")
    assert meta == {"backend": "portable", "width": WIDTH, "height": HEIGHT, "n_batches": 1, "n_cameras": C}
    flat = portable.forward(arguments["colors"], arguments["opacities"][:, None], WIDTH, HEIGHT).view(HEIGHT, WIDTH, 4)
    assert images.shape == (C, HEIGHT, WIDTH, 3) and alphas.shape == (C, HEIGHT, WIDTH, 1)
    assert torch.equal(torch.cat([images, alphas], -1), flat.expand(C, -1, -1, -1))


def test_portable_has_gradients() -> None:
    arguments = scene()
    wanted = {name: arguments[name].requires_grad_() for name in ("means", "quats", "scales", "opacities", "colors")}
    images, alphas, _ = rasterization(**arguments, backend="portable")
    (images.sum() + alphas.sum()).backward()
    pixels = C * WIDTH * HEIGHT
    torch.testing.assert_close(wanted["colors"].grad, (arguments["opacities"] * pixels / N)[:, None].expand(N, 3).detach())
    torch.testing.assert_close(wanted["opacities"].grad, (arguments["colors"].sum(1) + 1).detach() * pixels / N)
    for name in ("means", "quats", "scales"):
        grad = wanted[name].grad
        assert grad is not None and grad.shape == wanted[name].shape and not grad.any()


def test_portable_takes_the_constant_term_of_spherical_harmonics() -> None:
    sh = torch.randn(N, 9, 3, generator=torch.Generator().manual_seed(4))
    images, _, _ = rasterization(**scene(colors=sh), sh_degree=2, backend="portable")
    rgb = (sh[:, 0] / math.sqrt(4 * math.pi) + 0.5).clamp(min=0)
    expected, _, _ = rasterization(**scene(colors=rgb), backend="portable")
    torch.testing.assert_close(images, expected)


def test_portable_with_colours_a_camera_over_backgrounds() -> None:
    colors, backgrounds = torch.rand(C, N, 3), torch.rand(C, 3)
    images, alphas, _ = rasterization(**scene(colors=colors), backgrounds=backgrounds, backend="portable")
    for camera in range(C):
        alone, alpha, _ = rasterization(**scene(colors=colors[camera]), backend="portable")
        torch.testing.assert_close(images[camera], alone[camera] + (1 - alpha[camera]) * backgrounds[camera])
        assert torch.equal(alphas, alpha)


def test_portable_with_scenes_and_with_nothing_in_them() -> None:
    batch = {name: value[None].repeat(3, *[1] * value.dim()) for name, value in scene().items() if torch.is_tensor(value)}
    images, _, meta = rasterization(**batch, width=WIDTH, height=HEIGHT, backend="portable")
    assert images.shape == (3, C, HEIGHT, WIDTH, 3) and meta["backend"] == "portable"
    nothing = {name: scene()[name][:0] for name in ("means", "quats", "scales", "opacities", "colors")}
    images, alphas, _ = rasterization(**scene(**nothing), backend="portable")
    assert not images.any() and not alphas.any()


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("render_mode", {"render_mode": "RGB+ED"}),
        ("render_mode", {"render_mode": "D"}),
        ("absgrad", {"absgrad": True}),
        ("5 channels", {"colors": torch.rand(N, 5)}),
    ],
)
def test_what_portable_cannot_do_gets_a_sentence(named: str, changes: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match=f"portable backend does not support {named}"):
        rasterization(**scene(**changes), backend="portable")


@pytest.mark.parametrize("name", ["means", "opacities", "colors", "viewmats", "backgrounds"])
def test_portable_refuses_wrong_shapes_too(name: str) -> None:
    refused(f"^{name} has shape", rasterization, **scene(**{name: torch.rand(N + 1, 2)}), backend="portable")


def test_an_unknown_backend_is_refused() -> None:
    refused("backend is 'cuda'; use auto, native or portable", rasterization, **scene(), backend="cuda")


@pytest.mark.usefixtures("without_waves")
@pytest.mark.parametrize("backend", ["auto", "native"])
def test_no_flat_colour_unless_asked_for(backend: Any) -> None:
    refused("does not support splat forward through", rasterization, **scene(), backend=backend)


@pytest.mark.usefixtures("without_waves")
def test_no_training_where_it_is_not_declared(tmp_path: Any) -> None:
    with pytest.raises(SplatError, match="does not support splat forward, splat backward through"):
        Trainer(load_dataset(write_demo_scene(tmp_path / "demo", views=2, size=8)))


def test_a_device_without_a_backward_pass_renders_until_gradients_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_device(), "operators", frozenset({Operator.SPLAT_FORWARD}))
    wanted = scene(colors=torch.rand(N, 3).requires_grad_())
    with torch.no_grad():
        assert rasterization(**wanted)[2]["backend"] == "native"
    refused("does not support splat backward through", rasterization, **wanted)


def test_a_device_asked_for_by_name_is_never_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLAT_DEVICE", "software:99")
    with pytest.raises(NoDeviceError, match="no device 'software:99' here"):
        rasterization(**scene())


def test_a_device_that_is_passed_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A passed device wins over the environment and the tensors."""
    device = get_device()
    expected, _, _ = rasterization(**scene())
    monkeypatch.setenv("SPLAT_DEVICE", "abacus")
    for backend in ("auto", "native"):
        images, _, meta = rasterization(**scene(), backend=backend, device=device)  # type: ignore[arg-type]
        assert meta["backend"] == "native" and torch.equal(images, expected)
    monkeypatch.setattr(device, "operators", frozenset())
    refused("does not support splat forward through", rasterization, **scene(), backend="native", device=device)


def test_devices_lists_every_operator(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    Devices().run()
    table = capsys.readouterr().out
    rows = {operator: next(line for line in table.splitlines() if operator.value in line) for operator in Operator}
    assert all("native" in rows[operator] for operator in get_device().operators)
    monkeypatch.setattr(get_device(), "operators", frozenset())
    Devices().run()
    table = capsys.readouterr().out
    assert table.count("portable baseline") == 2 and "compare and swap" in table
