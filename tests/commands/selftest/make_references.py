"""Make the references of `splat selftest` from the float64 renderer: `python -m tests.commands.selftest.make_references`.

Results are stored as NaN if float32 and float64 may decide differently at a threshold. NaN is not compared, and no gradient
starts there.
"""

from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import save_file
from torch import Tensor

import tests.reference as ref
import tests.reference.bilateral_grid as grid_ref
import tests.reference.camera_correction as camera_ref
import tests.reference.exposure as exposure_ref
import tests.reference.ppisp as ppisp_ref
import tests.volume.reference as volume_ref
from splat_py import Camera
from splat_py.base.files import atomic_path
from splat_py.commands.selftest import checking, inputs, render_cases, train_cases
from splat_py.commands.selftest.inputs import HEIGHT, WIDTH, Arrays
from splat_py.fit.steps import Adam, Use, random_key
from splat_py.image.fitting import _EPSILON as IMAGE_EPSILON
from splat_py.image.options import Rates
from splat_py.render.surfels import depth_to_normal
from splat_py.scene.gaussians import SH_C0
from splat_py.train.density import _NOISE_LR
from splat_py.train.parameters import GROUPS
from splat_py.volume.grid import GridOptimiser
from tests.image import reference as image_ref
from tests.reference import densification as ref_densify
from tests.reference import mcmc as ref_mcmc
from tests.reference.arrays import leaf
from tests.reference.morton import morton_codes
from tests.reference.projection import NEAR, splats
from tests.reference.spherical_harmonics import sh_colors
from tests.reference.ssim import ssim_map
from tests.render import ray_rendering
from tests.shaders.oracle import pullback

FILE = Path(checking.__file__).with_name("references.safetensors")
MIN_ALPHA = 1 / 255

Array = npt.NDArray[np.float64]


def make() -> dict[str, npt.NDArray[Any]]:
    once = (
        prefix_sum,
        radix_sort,
        crowd,
        loss,
        statistics,
        means,
        smoothing_filter,
        depth,
        surface,
        training,
        densify,
        mcmc,
        exposure,
        ppisp,
        grids,
    )
    once += (cameras, environment, background, image, image_step, volume_step, volume_hash, portable)
    found: dict[str, Arrays] = {function.__name__.replace("_", " "): function() for function in once}
    found["filter"] = found.pop("smoothing filter")
    found |= {f"project {mode}": project(mode == "antialiased") for mode in ("classic", "antialiased")}
    found |= {f"shade {degree}": shade(degree) for degree in range(4)}
    found |= {f"tiles {size}": tiles(size) for size in (4, 8, 16)}
    found |= {f"rasterize {c}": rasterize(inputs.splats(c), *render_cases.size_for(c)) for c in render_cases.CHANNELS}
    found |= {f"render {mode} {filtering}": render(mode, filtering) for mode, filtering in render_cases.RENDERS}
    found |= {f"rays {kind}": along_rays(kind) for kind in render_cases.RAY_KINDS}
    found |= {f"adam {row}": adam(row, head) for row, head in train_cases.ADAM_ROWS}
    found |= {f"volume {k} {jitter}": volume(k, jitter) for k, jitter in render_cases.VOLUME_RENDERS}
    return {f"{case}:{name}": stored(array) for case, arrays in found.items() for name, array in arrays.items()}


def stored(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The smallest exact form: float32, or the fewest bits that hold the whole numbers."""
    if array.dtype.kind == "f":
        return np.ascontiguousarray(array, np.float32)
    return np.ascontiguousarray(array, np.min_scalar_type(int(array.max())))


def f64(array: inputs.Floats) -> Array:
    return array.astype(np.float64)


def prefix_sum() -> Arrays:
    values = (inputs.bits(61, inputs.VALUES) >> np.uint32(16)).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(values)])
    return {"offsets": offsets[:: inputs.VALUES_EVERY], "total": offsets[-1:]}


def radix_sort() -> Arrays:
    order = np.argsort(inputs.bits(62, inputs.KEYS) >> np.uint32(12), kind="stable")
    return {"order": order[:: inputs.KEYS_EVERY]}


def by_kind(results: Arrays) -> Arrays:
    """The results with the gradients of cameras split by kind, as these differ by orders of magnitude."""
    v_viewmats, v_Ks = results.pop("v_viewmats"), results.pop("v_Ks", None)
    results |= {"v_rotations": v_viewmats[:, :3, :3], "v_translations": v_viewmats[:, :3, 3]}
    return results if v_Ks is None else results | {"v_focal": v_Ks[:, (0, 1), (0, 1)], "v_principal": v_Ks[:, :2, 2]}


def differentiated(outputs: dict[str, Tensor], leaves: dict[str, Tensor], seed: int, unsure: Any = ()) -> Arrays:
    """Outputs, NaN where they are unsure, and the gradients of leaves, for the adjoints `inputs.v(seed + i, …)`."""
    results: Arrays = {name: output.detach().numpy().copy() for name, output in outputs.items()}
    for array in results.values():
        array[unsure] = np.nan if len(unsure) else array[unsure]
    adjoints = [torch.from_numpy(f64(inputs.v(seed + i, array))) for i, array in enumerate(results.values())]
    v = torch.autograd.grad(list(outputs.values()), list(leaves.values()), adjoints, materialize_grads=True)
    return results | {f"v_{name}": gradient.numpy() for name, gradient in zip(leaves, v, strict=True)}


def leaves_of(s: Any, *names: str) -> dict[str, Tensor]:
    return {name: leaf(getattr(s, name)) for name in names}


def project(antialiased: bool) -> Arrays:
    leaves = leaves_of(inputs.scene(cameras=2), "means", "quats", "scales", "opacities", "viewmats", "Ks")
    *gaussians, viewmats, Ks = leaves.values()
    views = [splats(*gaussians, viewmats[i], Ks[i], WIDTH, HEIGHT, antialiased=antialiased) for i in range(2)]
    assert all((depths > NEAR).all() for _, depths, *_ in views)
    parts = zip(("means2d", "depths", "conics", "opacities"), zip(*views, strict=True), strict=True)
    return by_kind(differentiated({name: torch.stack(both) for name, both in parts}, leaves, 70))


def shade(degree: int) -> Arrays:
    leaves = leaves_of(inputs.scene(cameras=2), "sh", "means", "viewmats")
    sh, means, viewmats = leaves.values()
    leaves["sh"] = sh = sh[:, : (degree + 1) ** 2]
    # Colours are clamped at 0.
    lifted = sh + 9 * (torch.arange(sh.shape[1]) == 0)[:, None]
    raw = torch.stack([sh_colors(lifted, means, viewmat, degree) for viewmat in viewmats]) - 9 * SH_C0
    assert raw.abs().min() > 1e-4, "no colour so close to 0 that rounding decides"
    colors = torch.stack([sh_colors(sh, means, viewmat, degree) for viewmat in viewmats])
    results = by_kind(differentiated({"colors": colors}, leaves, 75))
    return results if degree > 0 else {name: results[name] for name in ("colors", "v_sh")}


def tiles(size: int) -> Arrays:
    """Lists of the splats whose α reaches 1/255 somewhere between a tile's outermost pixel centres."""
    s = inputs.splats(1)
    order = np.argsort(s.depths[0], kind="stable")
    splats = [f64(a[0])[order] for a in (s.means2d, s.conics, s.opacities)]
    lists = []
    for row, column in product(range(-(-HEIGHT // size)), range(-(-WIDTH // size))):
        low = np.array([column, row]) * size + 0.5
        alphas = largest_alphas(*splats, low, low + size - 1) / MIN_ALPHA
        # The kernels list one splat too many rather than one too few.
        assert not ((alphas > 0.998) & (alphas < 1.0001)).any(), "no splat so close to the threshold that rounding decides"
        lists.append(order[alphas >= 1])
    return {"offsets": np.concatenate([[0], np.cumsum([len(ids) for ids in lists])]), "ids": np.concatenate(lists)}


def largest_alphas(means: Array, conics: Array, opacities: Array, low: Array, high: Array) -> Array:
    """The largest α over a rectangle: at the mean if it lies inside, else on a side, where σ is a parabola."""
    (x, y), (a, b, c) = means.T, conics.T
    points: list[Any] = [np.clip(means, low, high).T]
    points += [(u, np.clip(y - b / c * (u - x), low[1], high[1])) for u in (low[0], high[0])]
    points += [(np.clip(x - b / a * (v - y), low[0], high[0]), v) for v in (low[1], high[1])]
    offsets = ((u - x, v - y) for u, v in points)
    return opacities * np.exp(-0.5 * np.min([a * dx * dx + 2 * b * dx * dy + c * dy * dy for dx, dy in offsets], axis=0))


def rasterize(s: SimpleNamespace, width: int, height: int, absgrad: bool = True, margin: float = 1e-4) -> Arrays:
    parts = [f64(a[0]) for a in (s.means2d, s.conics, s.opacities, s.colors, s.depths)]
    background = f64(s.backgrounds[0])
    out = ref.rasterize(*parts, width, height, background)
    # Depths are inputs, so their order is certain.
    unsure = ref.near_threshold(*parts[:3], parts[4], width, height, margin=margin, depth_margin=0)
    assert unsure.mean() < 0.1
    image, alphas = out.colors.copy()[None], out.alphas.copy()[None, ..., None]
    image[:, unsure], alphas[:, unsure] = np.nan, np.nan
    v_image, v_alphas = f64(inputs.v(81, image))[0], f64(inputs.v(82, alphas))[0, ..., 0]
    v = ref.rasterize_backward(*parts, width, height, background, out, v_image, v_alphas)
    gradients = {f"v_{name}": gradient[None] for name, gradient in vars(v).items()}
    gradients["v_backgrounds"], means2d_abs = gradients.pop("v_background"), gradients.pop("v_means2d_abs")
    return {"image": image, "alphas": alphas} | gradients | ({"absgrad": means2d_abs} if absgrad else {})


def crowd() -> Arrays:
    # Few pixels make positions more exact than many.
    results = rasterize(inputs.crowd(), inputs.CROWD_SIDE, inputs.CROWD_SIDE, absgrad=False, margin=1e-5)
    for name in ("v_means2d", "v_conics", "v_opacities", "v_colors"):
        results[name] = results[name][:, :: inputs.CROWD_EVERY]
    return results


def render(mode: str, filtering: str) -> Arrays:
    s = inputs.scene(cameras=2)
    scene = ref.Scene(*(f64(a) for a in (s.means, s.quats, s.scales, s.opacities, s.sh)), sh_degree=3)
    how: dict[str, Any] = {"render_mode": mode, "antialiased": filtering == "antialiased"}
    renders = []
    for viewmat, K, background in zip(f64(s.viewmats), f64(s.Ks), f64(s.backgrounds), strict=True):
        camera = ref.Camera(viewmat, K, WIDTH, HEIGHT)
        renders.append(ref.render(scene, camera, background=background if "RGB" in mode else None, **how))
    image, alphas = np.stack([r.colors for r in renders]), np.stack([r.alphas for r in renders])[..., None]
    unsure = np.stack([ref.untrusted_pixels(r) for r in renders])
    assert unsure.mean() < 0.1
    image[unsure], alphas[unsure] = np.nan, np.nan
    v_image, v_alphas = inputs.v(83, image), inputs.v(84, alphas)
    if "ED" in mode:
        v_image[..., -1] *= stored(alphas)[..., 0]
    v_image[unsure], v_alphas[unsure] = 0, 0
    v = [ref.render_backward(r, f64(v_image[i]), f64(v_alphas[i, ..., 0])) for i, r in enumerate(renders)]
    if "ED" in mode:
        image[..., -1:] *= alphas
    every = {name: np.stack([getattr(g, name) for g in v]) for name in vars(v[0])}
    results: Arrays = {"image": image, "alphas": alphas, "v_viewmats": every["viewmat"], "v_Ks": every["K"]}
    results |= {f"v_{name}": every[name].sum(0) for name in ("means", "quats", "scales", "opacities")}
    return by_kind(results | ({"v_sh": every["colors"].sum(0), "v_backgrounds": every["background"]} if "RGB" in mode else {}))


def along_rays(kind: str) -> Arrays:
    leaves = {name: leaf(a) for name, a in render_cases.ray_inputs().items()}
    means, quats, scales, opacities, viewmats, Ks, colors = leaves.values()
    del leaves["colors"]
    surfels = kind == "surfels"
    depths = means @ viewmats[0, 2, :3] + viewmats[0, 2, 3]
    features = torch.cat([colors, depths[:, None]], -1) if surfels else colors
    sigmas = ray_rendering.on_planes if surfels else ray_rendering.beside_rays
    gaussians = means, quats, scales, opacities, features
    r = ray_rendering.render(*gaussians, viewmats[0], Ks[0], *render_cases.RAY_SIDES, sigmas=sigmas)
    outputs = {"image": r.image[None]} | ({"distortion": r.distortion[None]} if surfels else {"alphas": r.alpha[None]})
    assert r.untrusted.float().mean() < 0.1
    return by_kind(differentiated(outputs, leaves, 85, r.untrusted.numpy()[None]))


def loss() -> Arrays:
    render, photograph = f64(inputs.uniform(32, -0.1, 1.2, HEIGHT, WIDTH, 3)), inputs.photograph()
    truth, mask = photograph[..., :3] / 255, photograph[..., 3] / 255
    x, y = render * mask[..., None], truth * mask[..., None]
    sums = np.array([np.abs(x - y).sum(), ssim_map(x, y).sum(), ((x - y) ** 2).sum(), 3 * mask.sum()])
    assert np.abs(x - y)[mask > 0].min() > 1e-6, "|x - y| has no derivative at 0"
    return {"v_render": ref.l1_ssim_loss_backward(render, truth, mask), "sums": sums}


def adam(row: int, head: int) -> Arrays:
    shape = (7, row)
    p, g, m = (f64(inputs.uniform(91 + i, -1, 1, *shape)) for i in range(3))
    second = f64(inputs.uniform(94, 0.1, 1, *shape))
    after = ref.adam_step(p, g, m, second, 3, lr=np.where(np.arange(row) < head, 0.1, 0.01))
    return dict(zip(("parameters", "firstMoments", "secondMoments"), after, strict=True))


def statistics() -> Arrays:
    n = inputs.GAUSSIANS
    radii = (inputs.bits(95, 1, n, 2) % np.uint32(9)).astype(np.int64)[0]
    v = f64(inputs.uniform(96, -1, 1, 1, n, 9))[0, :, :2] * [WIDTH / 2, HEIGHT / 2]
    seen = radii[:, 0] > 0
    return {
        "gradient_norms": np.where(seen, np.linalg.norm(v, axis=1), 0.0),
        "times_seen": np.where(seen, 1.0, 0.0),
        "max_radii": np.where(seen, radii.max(axis=1) / max(WIDTH, HEIGHT), 0.0),
    }


def means() -> Arrays:
    steps = [f64(inputs.uniform(120 + step, -1, 1, inputs.GAUSSIANS, 3)) for step in range(3)]
    return {"log_scales": np.mean(steps, axis=0)[::3]}


def key(use: Use) -> tuple[int, int]:
    words = random_key(train_cases.REFINED.seed, train_cases.STEP, use)
    return words["key0"], words["key1"]


def densify() -> Arrays:
    state, config = {name: f64(values) for name, values in train_cases.few_state().items()}, train_cases.REFINED
    split_scale, most = config.split_scale * train_cases.SCENE_SCALE, config.max_gaussians - train_cases.FEW
    scales, grows = np.exp(state["log_scales"]).max(axis=1), np.sort(state["gradient_norms"])[-most:]
    splits = (scales > split_scale) & (state["gradient_norms"] >= grows[0])
    assert 0 < splits.sum() < most and grows[0] > config.grow_grad2d and np.abs(scales / split_scale - 1).min() > 1e-3
    rules = {"grow_grad": config.grow_grad2d, "most": most, "split_scale": split_scale, "prune_scale": np.inf}
    after = ref_densify.densify(state, **rules, prune_opacity=config.prune_opacity, key=key(Use.SPLIT))
    found = train_cases.rows(ref_densify.reset_opacities(after, config.prune_opacity))
    codes = morton_codes(found["rows"][:, :3], train_cases.FEW_BOUNDS)
    assert len(set(codes)) > len(codes) / 2
    return {name: array[np.argsort(codes, kind="stable")] for name, array in found.items()}


def mcmc() -> Arrays:
    state, config = {name: f64(values) for name, values in train_cases.few_state().items()}, train_cases.MCMC
    prior = np.column_stack(
        [v.reshape(train_cases.FEW, -1)[:, 0] for v in ref_mcmc.prior_gradient(state, *train_cases.MCMC.regularizers)]
    )
    scale = _NOISE_LR * config.means_lr_at(train_cases.STEP, train_cases.SCENE_SCALE)
    state["means"] += ref_mcmc.noise(state, scale, key(Use.NOISE))
    state = ref_mcmc.relocate(state, config.prune_opacity, key(Use.RELOCATION))
    after = ref_mcmc.grow(state, config.prune_opacity, config.max_gaussians, key(Use.GROWTH))
    assert len(after["means"]) == train_cases.FEW + 1
    return {"prior": prior, **train_cases.rows(after)}


def smoothing_filter() -> Arrays:
    """The 3D filter of one camera: √0.2 / the smaller singular value of the projection's Jacobian."""
    state, camera = inputs.stored_gaussians(), inputs.camera()
    t = f64(state["means"]) @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    pixels = t / t[:, 2:] @ camera.K.T
    seen = (t[:, 2] > 4.0) & (np.abs(pixels[:, :2] / [WIDTH, HEIGHT] - 0.5) <= 0.65).all(1)
    jacobians = np.stack([[[1, 0, -x / z], [0, 1, -y / z]] / z for x, y, z in t]) * np.diag(camera.K)[:2, None]
    filters = np.where(seen, np.sqrt(0.2) / np.linalg.svd(jacobians, compute_uv=False)[:, 1], 0.0)
    assert 0 < seen.sum() < len(seen)
    scales, opacities, *v = smoothed(state["log_scales"], state["logit_opacities"], filters, *train_cases.filter_gradients())
    return train_cases.of_few(scales, opacities, filters, *v)


def smoothed(log_scales: Any, logits: Any, filters: Array, v_scales: Any, v_opacities: Any) -> list[Array]:
    """Scales and opacities with the 3D filter, and the gradients of log scales and logits."""
    leaves, adjoints = [leaf(log_scales), leaf(logits)], [torch.from_numpy(f64(v)) for v in (v_scales, v_opacities)]
    scales = (leaves[0].exp() ** 2 + torch.from_numpy(filters)[:, None] ** 2).sqrt()
    outputs = [scales, leaves[1].sigmoid() * (leaves[0].exp() / scales).prod(1)]
    return [tensor.detach().numpy() for tensor in (*outputs, *torch.autograd.grad(outputs, leaves, adjoints))]


def depth() -> Arrays:
    """λ s mean |1 / D - 1 / D*|, computed by torch."""
    render, alphas, known, _ = map(leaf, train_cases.depth_inputs())
    depths, weights = render[0, ..., 3], alphas[0, ..., 0]
    errors = (weights / depths - 1 / known.detach())[known > 0].abs()
    assert 50 < len(errors) < HEIGHT * WIDTH - 50
    v = torch.autograd.grad(0.3 * train_cases.SCENE_SCALE * errors.mean(), [depths, weights])
    return {"moved": np.ones(1), "gradients": torch.stack(v, -1).numpy()[::4, ::4]}


def surface() -> Arrays:
    """0.05 mean of Σ w (1 - n · N), where a pixel and its neighbours are opaque, and the weight of distortion."""
    render, alphas, _ = map(leaf, train_cases.surface_inputs())
    camera, weights = inputs.camera(), alphas[..., 0]
    pose = torch.from_numpy(np.eye(4))[None]
    found = depth_to_normal(render[..., 6:7] / alphas, pose, torch.from_numpy(camera.K).double()[None])
    solid = torch.nn.functional.pad(weights.detach() >= 0.5, (1, 1, 1, 1))
    neighbours = solid[:, :-2, 1:-1] & solid[:, 2:, 1:-1] & solid[:, 1:-1, :-2] & solid[:, 1:-1, 2:]
    shown = solid[:, 1:-1, 1:-1] & neighbours
    disagreement = (weights - (render[..., :3] * found).sum(-1))[shown].sum() / (HEIGHT * WIDTH)
    v, v_alphas = torch.autograd.grad(0.05 * disagreement, [render, alphas])
    v[..., 7] = 0.01 / train_cases.SCENE_SCALE / (HEIGHT * WIDTH)
    gradients = torch.cat([v[..., :3], v[..., 6:], v_alphas], -1)[0]
    return {"moved": np.ones(1), "gradients": gradients.numpy()[::3, ::3]}


def exposure() -> Arrays:
    state = {name: f64(values) for name, values in train_cases.exposure_state().items()}
    colors, v_shown = f64(train_cases.image(100, 0))[0], f64(train_cases.image(101, -1))[0]
    own = state["exposures"][train_cases.PHOTOGRAPH]
    v_own, v_colors = exposure_ref.expose_backward(own, colors, v_shown)
    # Half of the run is done, so the rate is the geometric mean of the first and the last one.
    lr = np.sqrt(0.05 * 0.001)
    after = exposure_ref.updated(state, train_cases.PHOTOGRAPH, v_own, train_cases.EPOCH, lr=lr, weight=1e-3)
    return {"shown": exposure_ref.expose(own, colors)[::3], "v_colors": v_colors[::3], **after}


def ppisp() -> Arrays:
    state = {name: f64(values) for name, values in train_cases.ppisp_state().items()}
    colors, v_shown = f64(train_cases.image(100, 0.2, 0.6))[0], f64(train_cases.image(101, -1))[0]
    counts = train_cases.PHOTOGRAPH, colors, v_shown, train_cases.EPOCH, train_cases.CAPTURE_STEP
    after, shown, v_colors = ppisp_ref.updated(state, *counts, rates=(np.sqrt(0.3 * 0.006), 5e-4))
    return {"shown": shown[::3], "v_colors": v_colors[::3], **after}


def grids() -> Arrays:
    state = {name: f64(values) for name, values in train_cases.grid_state().items()}
    colors, v_shown = f64(train_cases.image(100, 0))[0], f64(train_cases.image(101, -1))[0]
    one = train_cases.PHOTOGRAPH
    shown, v_grid, v_colors = grid_ref.differentiated(state["grids"][one], colors, v_shown)
    for photograph in (one, 0):
        learn(state, "grids", v_grid, train_cases.EPOCH + 1, at=photograph, lr=np.sqrt(5e-2 * 5e-4), beta1=0.5, beta2=0.9)
    state["grids"] += grid_ref.NEUTRAL.numpy() - state["grids"].mean((0, 1, 2, 3))
    return {"shown": shown[::3], "v_colors": v_colors[::3], **train_cases.some_of(state)}


def cameras() -> Arrays:
    lens, v_row = f64(inputs.uniform(108, -0.1, 0.1, 1, 12))[0], f64(inputs.uniform(109, -1, 1, 1, 28))
    v_row[:, :16] += f64(inputs.uniform(110, -1, 1, 1, 16))
    numbers = train_cases.PHOTOGRAPH, train_cases.EPOCH + 1, train_cases.CAPTURE_STEP + 1
    return camera_step(inputs.camera(), lens, train_cases.camera_state(), v_row, *numbers)


def camera_step(
    camera: Camera, lens: Array, before: Any, v_row: Array, one: int, turn: int, step: int, lens_lr: float = 1e-4
) -> Arrays:
    """A photograph's corrected camera, and the state after its `turn`-th step and the `step`-th of all, in the middle of a run.
    The scene's scale is 2."""
    state = {name: f64(values) for name, values in before.items()}
    pose, intrinsics = state["poses"][one : one + 1], state["intrinsics"][None]

    def corrected(pose: Array, intrinsics: Array) -> Array:
        return camera_ref.correct(camera.viewmat, camera.K, lens, (camera.width, camera.height), pose, intrinsics)

    v_pose, v_intrinsics = pullback(corrected, v_row, pose, intrinsics)
    row = corrected(pose, intrinsics)[0]
    K = np.array([[row[12], 0, row[14]], [0, row[13], row[15]], [0, 0, 1]])
    # Half of the run is done: a quarter of the first learning rates.
    rates = np.array([5e-3] * 3 + [1e-2] * 3) / 4
    learn(state, "poses", v_pose[0], turn, at=one, lr=rates, beta1=0.5, beta2=0.9)
    rates = np.array([5e-4, 2e-4, 2e-4, *[lens_lr] * (intrinsics.size - 3)]) / 4
    learn(state, "intrinsics", v_intrinsics[0], step, lr=rates)
    return {"viewmat": row[:12].reshape(3, 4), "K": K, "lens": row[16:], **state}


def learn(state: Arrays, name: str, v: Array, step: int, at: Any = ..., **how: Any) -> None:
    """Take a step of Adam for a part of an array and of its moments."""
    arrays = [state[name + suffix] for suffix in ("", ".m", ".v")]
    values, first, second = (array[at] for array in arrays)
    for array, after in zip(arrays, ref.adam_step(values, v, first, second, step, **how), strict=True):
        array[at] = after


def environment() -> Arrays:
    images = train_cases.transmittance()[0], train_cases.image(100, 0)[0], train_cases.image(101, -1)[0]
    before = train_cases.state_of("environment", 111, 16, 3)
    return environment_step(inputs.camera(), before, *images, train_cases.CAPTURE_STEP + 1)


def environment_step(camera: Camera, before: Any, T: Any, colors: Any, v_shown: Any, step: int) -> Arrays:
    """Colours before the environment, the gradient of alphas, and the state after a step in the middle of a run."""
    state = {name: f64(values) for name, values in before.items()}
    _, rays = rays_of(camera.viewmat, camera.K, camera.width, camera.height)
    basis = torch.from_numpy(ref.sh_basis(rays, 3)).reshape(*T.shape, 16)
    sh, through = leaf(state["environment"]), leaf(T)
    shown = torch.from_numpy(f64(colors)) + through[..., None] * (basis @ sh + 0.5).relu()
    v_sh, v_T = (g.numpy() for g in torch.autograd.grad(shown, [sh, through], torch.from_numpy(f64(v_shown))))
    learn(state, "environment", v_sh, step, lr=np.sqrt(1e-2 * 1e-3))
    return {"shown": shown.detach().numpy(), "v_alphas": -v_T[..., None], **state}


def background() -> Arrays:
    black, white = (train_cases.over(shade).astype(np.int64) for shade in (0, 1))
    mixed = black[..., :3] + (white - black)[..., :3] * np.array(train_cases.BACKGROUND)
    return {"photograph": np.concatenate([np.floor(mixed + 0.5).astype(np.int64), black[..., 3:]], -1)}


def training() -> Arrays:
    """One step: stored parameters → render → loss → gradients through exp and sigmoid → Adam."""
    config, camera, photograph = train_cases.CONFIG, inputs.camera(), inputs.photograph()
    state = {name: f64(values) for name, values in train_cases.state_before().items()}
    scales, opacities = np.exp(state["log_scales"]), 1 / (1 + np.exp(-state["logit_opacities"]))
    scene = ref.Scene(state["means"], state["quats"], scales, opacities, state["sh"], sh_degree=3)
    view = ref.Camera(np.asarray(camera.viewmat), np.asarray(camera.K), WIDTH, HEIGHT)
    rendered = ref.render(scene, view, background=f64(inputs.scene().backgrounds[0]))
    v_image = ref.l1_ssim_loss_backward(rendered.colors, photograph[..., :3] / 255, photograph[..., 3] / 255)
    # A training step cannot leave pixels out, so few may be unsure and their errors may not weigh.
    unsure = ref.untrusted_pixels(rendered)
    v = ref.render_backward(rendered, v_image)
    assert unsure.mean() < 0.02, unsure.mean()
    gradients = v.means, v.quats, v.scales * scales, v.opacities * opacities * (1 - opacities), v.colors
    scale = config.short_run_lr_scale
    rates: list[Any] = [config.means_lr_at(train_cases.STEP, train_cases.SCENE_SCALE)]
    rates += [rate * np.sqrt(scale) for rate in (config.quats_lr, config.scales_lr, config.opacities_lr)]
    rates.append(scale * np.where(np.arange(16)[:, None] == 0, config.sh0_lr, config.sh0_lr / 20))
    results: Arrays = {
        "gradient_norms": np.linalg.norm(v.means2d * [WIDTH / 2, HEIGHT / 2], axis=1),
        "times_seen": rendered.projected.visible.astype(np.float64),
    }
    for name, gradient, lr in zip(GROUPS, gradients, rates, strict=True):
        results[name], results[f"{name}.m"] = first_step(state[name], gradient, train_cases.STEP + 1, lr=lr)
    return results


def first_step(values: Array, v: Array, step: int, doubt: float = 1e-3, axis: Any = None, **how: Any) -> tuple[Array, Array]:
    """Adam's first step, and the first moments. The step follows the gradient's sign and is NaN if the sign is unsure."""
    zero = np.zeros(values.shape)
    after, m, _ = ref.adam_step(values, v, zero, zero, step, **how)
    return np.where(np.abs(v) > doubt * np.abs(v).max(axis=axis, keepdims=True), after, np.nan), m


def image() -> Arrays:
    raw = f64(inputs.blobs())
    picture, near = image_ref.render(raw, WIDTH, HEIGHT)
    assert near.mean() < 0.05
    picture[near] = np.nan
    return {"image": picture, "v_blobs": image_ref.gradient(raw, f64(inputs.v(43, picture)))}


def image_step() -> Arrays:
    raw, target = f64(inputs.blobs()), f64(inputs.uniform(44, 0, 1, HEIGHT, WIDTH, 3))
    picture, _ = image_ref.render(raw, WIDTH, HEIGHT)
    v_raw = image_ref.gradient(raw, 2 * (picture - target) / picture.size)
    rates = Rates()
    rate = np.array([rates.center] * 2 + [rates.shape] * 3 + [rates.color] * 3 + [rates.opacity])[:, None]
    return {"blobs": first_step(raw, v_raw, 1, 1e-2, 1, lr=rate, **betas_and_eps(Adam(IMAGE_EPSILON)))[0]}


def field_of(f: SimpleNamespace) -> volume_ref.Field:
    return volume_ref.Field(f64(f.density), f64(f.sh), np.array(inputs.VOLUME_BOX), f64(f.background))


def volume(coefficients: int, jitter: bool) -> Arrays:
    f = inputs.field(coefficients)
    how = f64(f.origins), f64(f.directions), inputs.STEPS_PER_UNIT
    seed = inputs.JITTER_SEED if jitter else None
    march = volume_ref.march(field_of(f), *how, seed)
    adjoints = [f64(inputs.v(56 + i, array)) for i, array in enumerate(march)]
    v = volume_ref.march_backward(field_of(f), *how, *adjoints, seed)
    names = ("colors", "transmittances", "depths", "v_density", "v_sh", "v_background")
    return dict(zip(names, (*march, *v[:3]), strict=True))


def volume_hash() -> Arrays:
    f, shape = inputs.field(1), render_cases.HASH_SHAPE
    f.table, f.weights = inputs.hash_grid(shape.entries, shape.weights)
    leaves = leaves_of(f, "table", "weights", "origins", "directions")
    table, weights, *rays = leaves.values()
    box, background = volume_ref.f64(inputs.VOLUME_BOX), volume_ref.f64(f.background)
    side = float((box[1] - box[0]).max())
    grid = volume_ref.HashGrid(table, weights, list(shape.cells), shape.size, 1 / side)
    found = volume_ref.march_through(
        lambda x, d: grid.query((x - box[0]) / side, d), box, background, (rays[0], rays[1]), inputs.STEPS_PER_UNIT
    )
    return differentiated({"colors": found[:, :3], "transmittances": found[:, 3], "depths": found[:, 4]}, leaves, 73)


def volume_step() -> Arrays:
    """All rays of one photograph: squared error, total variation, Adam."""
    config, camera = render_cases.VOLUME_CONFIG, inputs.volume_camera()
    photograph = f64(render_cases.volume_photograph()).reshape(-1, 4)
    f, grid = field_of(inputs.field(1)), f64(render_cases.volume_checkpoint().state["grid"])
    sides, rays = f.box[1] - f.box[0], rays_of(camera.viewmat, camera.K, camera.width, camera.height)
    steps_per_unit = config.steps_per_voxel * max(inputs.VOLUME_SIZE / sides)
    color, _, _ = volume_ref.march(f, *rays, steps_per_unit)
    v_color = 2 / (3 * photograph[:, 3].sum()) * photograph[:, 3:] * (color - photograph[:, :3])
    nothing = np.zeros(len(color))
    v_density, v_sh, *_ = volume_ref.march_backward(f, *rays, steps_per_unit, v_color, nothing, nothing)
    v_grid = volume_ref.variation_gradient(grid, float(sides.max())) * config.total_variation / v_density.size
    v_grid += np.concatenate([v_density[..., None], v_sh[..., 0, :]], -1)
    rate = np.full(grid.shape[-1], config.rate)
    rate[0] *= GridOptimiser.DENSITY_RATE / sides.max()
    after, m = first_step(grid, v_grid, 1, axis=(0, 1, 2), lr=rate, **betas_and_eps(GridOptimiser.ADAM))
    return {"grid": after, "m": m}


def betas_and_eps(adam: Adam) -> dict[str, float]:
    return {"beta1": adam.beta1, "beta2": adam.beta2, "eps": adam.epsilon}


def rays_of(viewmat: Array, K: Array, width: int, height: int) -> tuple[Array, Array]:
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    local = np.stack([(x - K[0, 2]) / K[0, 0], (y - K[1, 2]) / K[1, 1], np.ones_like(x)], -1).reshape(-1, 3)
    directions = local @ viewmat[:3, :3]
    origins = np.tile(-viewmat[:3, :3].T @ viewmat[:3, 3], (len(local), 1))
    return origins, directions / np.linalg.norm(directions, axis=1, keepdims=True)


def portable() -> Arrays:
    colors, opacities = (leaf(a) for a in render_cases.portable_inputs())
    rgba = torch.cat([(colors * opacities).mean(0), opacities.mean(0)])
    return differentiated({"image": rgba.repeat(15)}, {"colors": colors, "opacities": opacities}, 99)


if __name__ == "__main__":
    with atomic_path(FILE) as temporary:
        save_file(make(), temporary)
