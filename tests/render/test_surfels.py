"""Surfels: renders, normals, distortion and median depth against float64, behaviour that gsplat's scripts rely on, and fits."""

from typing import Any

import pytest
import torch
from torch import Tensor

import splat_py as splat
from splat_py.gsplat.strategy import DefaultStrategy
from tests.refusals import refused
from tests.render.comparison import close, compare
from tests.render.ray_rendering import Rendered, render
from tests.render.test_camera_models import scene_of

WIDTH, HEIGHT, N, CAMERAS = 24, 18, 20, 2
OUTPUTS = ("image", "alpha", "normals", "distortion", "median")


def surfels_of(seed: int) -> dict[str, Tensor]:
    """Leaves: surfels in all directions, some so small or so oblique that only the filter is visible."""
    inputs = {name: tensor.detach() for name, tensor in scene_of("pinhole", WIDTH, HEIGHT, seed=seed).items()}
    inputs["scales"][:4] *= 0.05
    return {name: tensor.requires_grad_() for name, tensor in inputs.items()}


def of_scene(inputs: dict[str, Tensor], **options: Any) -> Any:
    return splat.rasterization_2dgs(**inputs, **{"width": WIDTH, "height": HEIGHT, **options})


def expected_of(inputs: dict[str, Tensor], **options: Any) -> tuple[dict[str, Tensor], list[Rendered]]:
    """Float64 leaves and each camera's render; features are colours and depth."""
    twins = {name: tensor.detach().double().requires_grad_() for name, tensor in inputs.items()}
    renders = []
    for c in range(CAMERAS):
        viewmat = twins["viewmats"][c]
        depths = twins["means"] @ viewmat[2, :3] + viewmat[2, 3]
        features = torch.cat([twins["colors"], depths[:, None]], -1)
        background = torch.cat([twins["backgrounds"][c], torch.zeros(1)])
        gaussians = (twins[name] for name in ("means", "quats", "scales", "opacities"))
        renders.append(render(*gaussians, features, viewmat, twins["Ks"][c], WIDTH, HEIGHT, background=background, **options))
    return twins, renders


def check(seed: int, **options: Any) -> dict[str, Any]:
    """Check all outputs, and the gradients of all inputs."""
    inputs = surfels_of(seed)
    twins, renders = expected_of(inputs, **({"max_alpha": options["max_alpha"]} if "max_alpha" in options else {}))
    images, alphas, normals, _, distortion, median, meta = of_scene(inputs, render_mode="RGB+D", distloss=True, **options)
    meta["gradient_2dgs"].retain_grad()
    meta["ray_transforms"].retain_grad()
    outputs = dict(zip(OUTPUTS, (images, alphas, normals, distortion, median), strict=True))
    compare(outputs, renders, inputs, twins)
    assert not inputs["scales"].grad[:, 2].any()
    return meta


@pytest.mark.parametrize("packed", [False, True])
def test_against_float64(packed: bool) -> None:
    meta = check(91, packed=packed)
    assert meta["means2d"].shape == ((N * CAMERAS, 2) if packed else (CAMERAS, N, 2))


@pytest.mark.parametrize("packed", [False, True])
def test_without_depth_and_without_gradients_of_cameras(packed: bool) -> None:
    """Without distortion, too, the picture and the surfels' gradients are the same."""
    results = []
    for render_mode, of_cameras in (("RGB+D", True), ("RGB", False)):
        inputs = surfels_of(92)
        for name in ("viewmats", "Ks"):
            inputs[name] = inputs[name].detach().requires_grad_(of_cameras)
        images, alphas, normals, of_depths, distortion, median, _ = of_scene(
            inputs, render_mode=render_mode, packed=packed, distloss=of_cameras
        )
        assert all(result.is_contiguous() for result in (images, alphas, normals, distortion, median))
        outputs = [images[..., :3], alphas, normals, median]
        assert (of_depths is None) == (render_mode == "RGB")
        assert distortion.any() == of_cameras
        loss = sum((output.square().sum() for output in outputs), torch.zeros(()))
        leaves = [inputs[name] for name in ("means", "quats", "scales", "opacities", "colors")]
        results.append([*outputs, *torch.autograd.grad(loss, leaves)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(float(other.detach().abs().max()), 1e-3))


def test_gradients_that_are_the_same_from_run_to_run() -> None:
    results = []
    for accumulate in ("pair", "pair", "wave"):
        inputs = surfels_of(93)
        images, *others, _ = of_scene(inputs, render_mode="RGB+D", distloss=True, accumulate=accumulate, tile_size=8)
        (images.square().sum() + others[3].sum()).backward()
        results.append([inputs[name].grad for name in ("means", "quats", "scales", "opacities", "viewmats", "Ks")])
    for one, same, other in zip(*results, strict=True):
        torch.testing.assert_close(one, same, rtol=0, atol=0)
        close(other, one, 1e-3, 1e-4)


@pytest.mark.parametrize("channels", [29, 40])
def test_more_channels_than_one_pass_takes(channels: int) -> None:
    """33 channels with normals and depth: depth and distortion stay in one pass."""
    inputs = surfels_of(94)
    features = torch.rand(N, channels, generator=torch.Generator().manual_seed(1)).requires_grad_()
    few = inputs | {"colors": features[:, :3], "backgrounds": inputs["backgrounds"]}
    many = inputs | {"colors": features, "backgrounds": torch.zeros(CAMERAS, channels)}
    results = []
    for given in (few, many):
        images, *others, _ = of_scene(given, render_mode="RGB+ED", distloss=True)
        outputs = [images[..., -1:], others[0], others[1], others[3], others[4]]
        loss = sum((output.square().sum() for output in outputs), torch.zeros(()))
        leaves = [inputs[name] for name in ("means", "quats", "scales", "opacities")]
        results.append([*outputs, *torch.autograd.grad(loss, leaves)])
        assert images.shape[-1] == given["colors"].shape[-1] + 1
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5 * max(float(other.detach().abs().max()), 1e-3))
    wide = many | {"colors": torch.rand(*many["colors"].shape[:-1], 124), "backgrounds": None}
    with pytest.raises(NotImplementedError, match="absgrad is not supported for 129 channels; give at most 128"):
        of_scene(wide, render_mode="RGB+D", distloss=True, absgrad=True)


def test_scenes_harmonics_and_sparse_gradients() -> None:
    """Two scenes render as each alone, and sparse gradients equal the dense ones."""
    scenes = [surfels_of(seed) for seed in (95, 96)]
    for scene in scenes:
        scene["colors"] = (torch.rand(N, 4, 3) - 0.5).requires_grad_()
    together = {name: torch.stack([scene[name].detach() for scene in scenes]).requires_grad_() for name in scenes[0]}
    options = {"render_mode": "RGB+ED", "sh_degree": 1, "depth_mode": "median"}
    outputs = of_scene(together, packed=True, sparse_grad=True, **options)
    alone = [of_scene(scene, **options) for scene in scenes]
    for i in range(6):
        expected = torch.stack([one[i] for one in alone])
        torch.testing.assert_close(outputs[i], expected, rtol=1e-5, atol=1e-5)
    outputs[0].square().sum().backward()
    sum((one[0].square().sum() for one in alone), torch.zeros(())).backward()
    for name in ("means", "quats", "scales", "colors"):
        # Colours depend on means, too.
        assert together[name].grad.is_sparse == (name in ("quats", "scales"))
        expected = torch.stack([scene[name].grad for scene in scenes])
        actual = together[name].grad
        close(actual.to_dense(), expected, 1e-3, 1e-4)


@pytest.mark.parametrize("packed", [False, True])
def test_what_strategies_read(packed: bool) -> None:
    """The gradient of `gradient_2dgs` is about that of the means on the image; `DefaultStrategy` grows by it."""
    inputs = {name: tensor.detach() for name, tensor in surfels_of(97).items()}
    names = ("means", "quats", "scales", "opacities")
    params = torch.nn.ParameterDict({name: torch.nn.Parameter(inputs[name]) for name in names})
    optimizers = {name: torch.optim.Adam([param], lr=1e-3) for name, param in params.items()}
    strategy = DefaultStrategy(key_for_gradient="gradient_2dgs", refine_start_iter=0, refine_every=1, grow_grad2d=1e-9)
    state = strategy.initialize_state(scene_scale=1.0)
    arguments = {name: inputs[name] for name in ("colors", "viewmats", "Ks")}
    activated = params["scales"].abs(), params["opacities"]
    _, alphas, *_, meta = splat.rasterization_2dgs(
        params["means"], params["quats"], *activated, **arguments, width=WIDTH, height=HEIGHT, packed=packed
    )
    strategy.step_pre_backward(params, optimizers, state, 1, meta)
    meta["ray_transforms"].retain_grad()
    assert meta["radii"].shape == (*meta["means2d"].shape[:-1], 2)
    alphas.square().sum().backward()
    rows, gradient = meta["ray_transforms"].grad, meta["gradient_2dgs"].grad
    assert gradient.any() and not meta["gradient_2dgs"].any()
    torch.testing.assert_close(gradient, rows[..., :2, 2] * meta["ray_transforms"][..., 2, 2:].detach(), rtol=1e-4, atol=1e-5)
    strategy.step_post_backward(params, optimizers, state, 1, meta, packed=packed)
    assert len(params["means"]) > N


def test_absolute_gradients() -> None:
    """Only the filter has them, as in gsplat: they are large for surfels that only the filter makes visible."""
    inputs = surfels_of(98)
    images, *_, meta = of_scene(inputs, absgrad=True)
    meta["means2d"].retain_grad()
    images.square().sum().backward()
    absolute = meta["means2d"].absgrad
    assert (absolute >= meta["means2d"].grad.abs() * (1 - 1e-4)).all() and absolute[:, :4].any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distloss": True}, "distloss needs depth, which render_mode='RGB' does not have"),
        ({"depth_mode": "mean"}, "depth_mode is 'mean'; use expected or median"),
        ({"render_mode": "N"}, "render_mode is 'N'"),
        ({"sparse_grad": True}, "sparse_grad needs packed=True"),
        ({"tile_size": 5}, "tile_size is 5"),
        ({"scales": torch.ones(N, 2)}, r"scales has shape \[20, 2\]; expected \[20, 3\]"),
        ({"quats": None}, "quats is None"),
    ],
    ids=str,
)
def test_mistakes(options: dict[str, Any], message: str) -> None:
    inputs = surfels_of(99)
    refused(message, of_scene, inputs | {name: options.pop(name) for name in list(options) if name in inputs}, **options)


def test_as_splats_of_rasterization() -> None:
    inputs = surfels_of(93)
    given = {"width": WIDTH, "height": HEIGHT, "render_mode": "RGB+ED", "splat": "Surfel"}
    images, alphas, meta = splat.rasterization(**inputs, **given)
    expected, expected_alphas, *_ = of_scene(inputs, render_mode="RGB+ED")
    close(images, expected)
    close(alphas, expected_alphas)
    assert "conics" not in meta
    for option in ({"camera_model": "fisheye"}, {"rasterize_mode": "antialiased"}, {"with_ut": True}, {"with_eval3d": True}):
        with pytest.raises(NotImplementedError, match="; leave one of them out"):
            splat.rasterization(**inputs, **given | option)


def test_nothing_in_view() -> None:
    inputs = surfels_of(99)
    inputs["means"] = (inputs["means"].detach() * torch.tensor([1.0, 1.0, -1.0])).requires_grad_()
    outputs = of_scene(inputs, render_mode="D", distloss=True)
    assert not any(output.any() for output in outputs[:6] if output is not None)
    outputs[1].sum().backward()
    assert not inputs["means"].grad.any()


def test_a_plane_is_found_from_its_depth_and_normals() -> None:
    """Surfels scattered about a slanted plane and turned at random: a fit that only right gradients reach."""
    generator = torch.Generator().manual_seed(5)
    viewmats, Ks = torch.eye(4)[None], torch.tensor([[[30.0, 0, 12], [0, 30, 9], [0, 0, 1]]])
    slant = torch.nn.functional.normalize(torch.tensor([0.3, -0.2, -1.0]), dim=0)
    y, x = torch.meshgrid(torch.arange(HEIGHT) + 0.5, torch.arange(WIDTH) + 0.5, indexing="ij")
    rays = torch.stack([(x - 12) / 30, (y - 9) / 30, torch.ones_like(x)], -1)
    true_depth = (3 * slant[2] / (rays @ slant))[..., None]

    at = torch.cartesian_prod(torch.linspace(-1.1, 1.1, 9), torch.linspace(-0.9, 0.9, 7))
    depth = 3 + 0.3 * (torch.rand(len(at), generator=generator) - 0.5)
    means = torch.cat([at, depth[:, None]], -1).requires_grad_()
    quats = (torch.tensor([1.0, 0, 0, 0]) + 0.3 * torch.randn(len(at), 4, generator=generator)).requires_grad_()
    scales = torch.full((len(at), 3), 0.2).requires_grad_()
    opacities = torch.full((len(at),), 0.9)
    optimizer = torch.optim.Adam([means, quats, scales], lr=0.02)
    errors = []
    for _ in range(100):
        images, alphas, normals, *_ = splat.rasterization_2dgs(
            means, quats, scales, opacities, None, viewmats, Ks, WIDTH, HEIGHT, render_mode="ED"
        )
        of_depth = (images[0] - true_depth).abs().mean()
        of_normals = (alphas[0, ..., 0] - normals[0] @ slant).mean()
        optimizer.zero_grad()
        (of_depth + of_normals).backward()
        optimizer.step()
        errors.append((float(of_depth.detach()), float(of_normals.detach())))
    for before, after in zip(errors[0], errors[-1], strict=True):
        assert after < 0.1 * before, errors[:: len(errors) - 1]
