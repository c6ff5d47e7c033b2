"""`splat export --playground` in a browser, offline: the kernels as WGSL against the same on Vulkan."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from splat_py import inspect
from splat_py.commands.files import Export
from splat_py.gpu.device import get_device
from splat_py.image.fitting import ImageFitter, blobs_on_detail
from splat_py.image.rasterizers import TileRasterizer, draw
from splat_py.render.views import render
from splat_py.scene.camera import Camera
from splat_py.scene.gaussians import Gaussians
from splat_py.viewer.pages.playground_kernels import FIT_SIZES, SCENE_SIZES, fit_plan, scene_plan
from splat_py.viewer.pages.playground_plan import OPERATORS, WgslKernels
from splat_py.viewer.pages.scene_pages import MOST_BUFFERS, scene_arrays, write_playground
from tests.browser import open_page
from tests.refusals import refused

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTH, HEIGHT = 100, 70
BACKGROUND = (0.2, 0.1, 0.3)
# A title that a page must show without running it.
TITLE = '</title></script><img src=x onerror="document.title=1"> {script} & fox'
STEPS, BLOBS = 20, 128
# WebGPU's guaranteed size of a workgroup's memory.
MOST_SHARED_BYTES = 16384


def scene() -> Gaussians:
    rng = np.random.default_rng(3)
    count = 300
    sh = rng.normal(0, 0.3, (count, 16, 3))
    sh[:, 0] = rng.normal(0, 1.5, (count, 3))
    tensors = {
        "means": rng.normal(0, [0.6, 0.6, 0.25], (count, 3)),
        "quats": rng.normal(size=(count, 4)),
        "log_scales": rng.uniform(-3.5, -1.5, (count, 3)),
        "logit_opacities": rng.normal(0, 2, count),
        "sh": sh,
    }
    return Gaussians(**{name: torch.tensor(values, dtype=torch.float32) for name, values in tensors.items()})


@pytest.fixture(scope="module")
def page_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("playground") / 'fox "&<b>.html'
    first = Camera.look_at((2.0, -1.0, 1.0), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0), 53.0, WIDTH, HEIGHT)
    write_playground(file, scene(), [first], title=TITLE, background=BACKGROUND)
    return file


@pytest.fixture(scope="module")
def page(page_file: Path) -> Iterator[Page]:
    """The page, drawn; it fits nothing unless a test starts it."""
    with open_page() as page:
        page.goto(page_file.as_uri() + "?still")
        page.wait_for_selector("body.ready, body.broken", timeout=60_000)
        assert page.locator("body.ready").count() == 1, page.locator("#trouble").inner_text()
        yield page


def camera() -> Camera:
    viewmat = np.array([[1.0, 0, 0, 0.1], [0, 0, -1, 0.05], [0, 1, 0, 2.2], [0, 0, 0, 1]])
    K = np.array([[80.0, 0, WIDTH / 2], [0, 85.0, HEIGHT / 2], [0, 0, 1]])
    return Camera(viewmat, K, WIDTH, HEIGHT, "a camera")


def drawn(page: Page, seen: Camera) -> Any:
    values = page.evaluate(
        """async ({viewmat, K, width, height}) => {
            const {scene} = playground;
            await scene.draw({viewmat: Float32Array.from(viewmat), K: Float32Array.from(K)}, width, height);
            return Array.from((await scene.picture()).values);
        }""",
        {"viewmat": seen.viewmat.ravel().tolist(), "K": seen.K.ravel().tolist(), "width": seen.width, "height": seen.height},
    )
    return np.array(values, np.float32).reshape(seen.height, seen.width, 3)


def expected(seen: Camera) -> Any:
    gaussians = scene()
    rounded = torch.from_numpy(scene_arrays(gaussians)["features"].astype(np.float32))
    return render(replace(gaussians, sh=rounded), seen, BACKGROUND)


def test_the_scene_is_vulkans(page: Page) -> None:
    seen = camera()
    np.testing.assert_allclose(drawn(page, seen), expected(seen), atol=1e-3)
    # 16-bit rounding of colour coefficients changes less than a screen shows.
    assert np.abs(expected(seen) - render(scene(), seen, BACKGROUND)).max() < 2 / 255


def test_lists_grow_and_sizes_change(page: Page) -> None:
    near = replace(camera(), viewmat=camera().viewmat - np.array([[0.0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1.4], [0, 0, 0, 0]]))
    near = replace(near, width=150, height=111, K=near.K * 1.0)
    page.evaluate("playground.scene.capacity = 64; playground.scene.plan.sizes = {}")
    np.testing.assert_allclose(drawn(page, near), expected(near), atol=1e-3)
    assert page.evaluate("playground.scene.capacity") > 64


def until(page: Page, condition: str, every: int = 50) -> None:
    """Wait until JavaScript is true, polling in ms. Playwright's own way evaluates text, which the page forbids."""
    deadline = time.monotonic() + 120  # a page in software, on a busy machine
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(every)


def test_a_drag_turns_the_scene(page: Page) -> None:
    page.evaluate(
        """() => {
            const {scene} = playground, draw = scene.draw;
            globalThis.frames = 0;
            scene.draw = async (...how) => (await draw.apply(scene, how), globalThis.frames++);
        }"""
    )
    box = page.locator("#scene-canvas").bounding_box()
    assert box is not None
    before, target = page.screenshot(), np.array(page.evaluate("playground.orbit.target"))
    view = np.reshape(page.evaluate("Array.from(playground.orbit.camera(8, 8).viewmat)"), (4, 4))
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x + 80, y + 20)
    page.mouse.up()
    until(page, "frames > 0")
    turned = np.reshape(page.evaluate("Array.from(playground.orbit.camera(8, 8).viewmat)"), (4, 4))
    assert page.screenshot() != before
    np.testing.assert_allclose(turned[:3, :3] @ turned[:3, :3].T, np.eye(3), atol=1e-5)
    # The target of the turn stays in the middle, at the same distance.
    np.testing.assert_allclose(turned[:3, :3] @ target + turned[:3, 3], view[:3, :3] @ target + view[:3, 3], atol=1e-5)
    assert abs(turned[0, 0] - view[0, 0]) > 0.1
    page.wait_for_timeout(400)
    frames = page.evaluate("frames")
    page.wait_for_timeout(400)
    assert page.evaluate("frames") == frames


def test_a_pixel_is_blended_and_undone_by_steps(page: Page) -> None:
    """The steps are those of `inspect`, which renders the frame again; undone, T is 1 and the colour black once more."""
    page.locator("#home").click()
    canvas = page.locator("#scene-canvas")
    canvas.click(position={"x": 200, "y": 140})
    until(page, "!document.getElementById('pixel').hidden && document.activeElement.id === 'pixel'")
    x, y, width, height = page.evaluate(
        "[...['x', 'y'].map((k) => playground.steps.pixel[k]), ...Object.values(playground.scene.plan.sizes)]"
    )[:4]
    viewmat, K = (
        np.array(page.evaluate(f"Array.from(playground.orbit.camera({width}, {height}).{name})")) for name in ("viewmat", "K")
    )
    gaussians = scene()
    gaussians = replace(gaussians, sh=torch.from_numpy(scene_arrays(gaussians)["features"].astype(np.float32)))
    seen = Camera(viewmat.reshape(4, 4), K.reshape(3, 3), width, height)
    wanted = inspect(gaussians, seen, x, y, BACKGROUND, v_pixel=(1 / 3, 1 / 3, 1 / 3))
    assert len(wanted.ids) > 3 and wanted.v_alphas is not None

    def state() -> Any:
        return page.evaluate("(({at, color, T}) => [at, ...color, T])(playground.steps.replay)")

    def rows(name: str) -> Any:
        return np.array(page.evaluate(f"playground.steps.rows.map((row) => row.{name})"), np.float64)

    for i in range(3):
        page.keyboard.press("ArrowRight")
        np.testing.assert_allclose(state(), [i + 1, *wanted.running[i], wanted.transmittances[i + 1]], rtol=0, atol=1e-4)
    page.keyboard.press("End")
    np.testing.assert_array_equal(rows("id"), wanted.ids)
    np.testing.assert_allclose(rows("T"), wanted.transmittances, rtol=0, atol=1e-4)
    np.testing.assert_allclose(state(), [len(wanted.ids), *wanted.running[-1], wanted.T], rtol=0, atol=1e-4)
    shown = np.array(page.evaluate("playground.scene.picture().then(({values}) => Array.from(values))")).reshape(
        height, width, 3
    )
    np.testing.assert_allclose(np.clip(wanted.color, 0, 1), shown[y, x], rtol=0, atol=1e-3)

    page.locator("#undo").click()
    last = wanted.running[-1] - wanted.weights[-1] * wanted.colors[-1]
    np.testing.assert_allclose(state(), [len(wanted.ids) - 1, *last, wanted.transmittances[-1]], rtol=0, atol=1e-4)
    page.locator("#undo-all").click()
    np.testing.assert_allclose(state(), [0, 0, 0, 0, 1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(rows("T"), wanted.transmittances, rtol=0, atol=1e-4)
    np.testing.assert_allclose(rows("vAlpha"), wanted.v_alphas, rtol=1e-3, atol=1e-3)
    # The first T's adjoint is the whole pixel: light 1 from the front.
    assert rows("vT")[0] == pytest.approx(wanted.color.mean(), abs=1e-4)
    assert f"undone {len(wanted.ids)} of {len(wanted.ids)} · T 1" in page.locator("#pixel-state").inner_text()

    canvas.click(position={"x": 2, "y": 2})
    until(page, "playground.steps.pixel.x < 5")
    assert not rows("id").size and "blended 0 of 0" in page.locator("#pixel-state").inner_text()
    page.locator("#pixel").press("Escape")
    assert page.locator("#pixel").is_hidden()
    canvas.click(position={"x": 200, "y": 140})
    page.wait_for_selector("#pixel")
    canvas.press("ArrowLeft")
    page.wait_for_selector("#pixel", state="hidden")


def picture() -> Any:
    """A picture whose sides are no multiples of the tile."""
    y, x = np.mgrid[0:120, 0:141] / 100
    return np.stack([0.5 + 0.5 * np.sin(9 * x * y), x / 1.5, np.hypot(x - 0.7, y - 0.6) < 0.4], -1).astype(np.float32)


def as_json(image: Any) -> dict[str, Any]:
    return {"width": image.shape[1], "height": image.shape[0], "values": image.ravel().tolist()}


@pytest.mark.parametrize("capacity", [1 << 12, 16])
def test_a_fit_is_vulkans(page: Page, capacity: int) -> None:
    device, goal = get_device(), picture()
    height, width, _ = goal.shape
    raw = blobs_on_detail(goal, BLOBS, np.random.default_rng(0))
    rasterizer = TileRasterizer(device, BLOBS, width, height)
    fitter = ImageFitter(goal, raw, STEPS, device=device, rasterizer=rasterizer)
    for _ in range(STEPS):
        fitter.advance()
    wanted = fitter.report().image
    losses, learnt = page.evaluate(
        """async ({width, height, values, raw, steps, capacity}) => {
            const {fit} = playground;
            Object.assign(fit, {steps, capacity, rate: 1});
            fit.start({width, height, values: Float32Array.from(values)}, Float32Array.from(raw));
            const losses = [];
            while (!fit.done) losses.push(await fit.advance(4));
            return [losses, Array.from(new Float32Array((await fit.plan.read("parameters"))[0]))];
        }""",
        {**as_json(goal), "raw": raw.ravel().tolist(), "steps": STEPS, "capacity": capacity},
    )
    final = np.array(learnt, np.float32).reshape(raw.shape)
    start, found = (draw(device, device.memory.array(params), width, height).numpy() for params in (raw, final))
    assert losses[-1] < losses[0] < ((start - goal) ** 2).mean()
    assert losses[-1] == pytest.approx(((wanted - goal) ** 2).mean(), rel=0.1)
    np.testing.assert_allclose(found, wanted, atol=1e-3)


def test_blobs_begin_as_pythons_do(page: Page) -> None:
    goal = picture()
    height, width, _ = goal.shape
    device = get_device()
    mine = blobs_on_detail(goal, 2048, np.random.default_rng(0))
    raw = page.evaluate(
        """async ({width, height, values}) => {
            const {fit} = playground;
            fit.start({width, height, values: Float32Array.from(values)}, 2048);
            return Array.from(new Float32Array((await fit.plan.read("parameters"))[0]));
        }""",
        as_json(goal),
    )
    theirs = np.array(raw, np.float32).reshape(9, -1)
    # Drawn from the same distribution: medians of every row agree, and the pictures are equally good.
    np.testing.assert_allclose(np.median(theirs, 1), np.median(mine, 1), atol=0.25)
    pictures = [draw(device, device.memory.array(params), width, height).numpy() for params in (mine, theirs)]
    a, b = (float(((image - goal) ** 2).mean()) for image in pictures)
    assert b == pytest.approx(a, rel=0.25)


def test_a_name_is_text(page: Page) -> None:
    assert page.locator("h1").inner_text() == TITLE
    assert page.title().startswith(TITLE)
    assert page.locator("img").count() == 0


def test_fitting_by_hand(page: Page, page_file: Path, tmp_path: Path) -> None:
    """A visitor's steps: the page fits the scene's view at once, then the visitor's picture, and stops on request."""
    import imageio.v3 as iio

    own, text = tmp_path / "own.png", tmp_path / "text.png"
    iio.imwrite(own, (picture()[:, :100] * 255).astype(np.uint8))
    text.write_text("no picture")
    visit, errors = page.context.new_page(), []
    visit.on("pageerror", lambda error: errors.append(str(error)))
    visit.set_viewport_size({"width": 390, "height": 800})
    visit.goto(page_file.as_uri())
    progress = "document.getElementById('progress').textContent"
    until(visit, f"/^step [1-9]/.test({progress})")
    assert visit.evaluate("document.documentElement.scrollWidth") <= 390
    visit.locator("#blobs").evaluate("slider => { slider.value = 6; slider.dispatchEvent(new Event('change')); }")
    visit.set_input_files("#choose", own)
    tall = "playground.fit.picture.width < playground.fit.picture.height"
    until(visit, f"{tall} && playground.fit.step > 0")
    assert visit.evaluate("playground.fit.blobs") == 64
    visit.locator("#pause").click()
    until(visit, "document.getElementById('pause').textContent === 'Resume'")
    visit.set_input_files("#choose", text)
    until(visit, "document.getElementById('refused').textContent === 'The browser cannot read text.png as a picture.'")
    # Steps under way may still end; then the fit stands still.
    until(visit, "playground.fit.step === window.lastStep || (window.lastStep = playground.fit.step, false)", every=500)
    step = visit.evaluate("playground.fit.step")
    visit.wait_for_timeout(1000)
    assert visit.evaluate("playground.fit.step") == step
    assert visit.evaluate(tall)
    visit.close()
    assert not errors


@pytest.mark.parametrize(
    ("lacking", "says"),
    [
        ("Object.defineProperty(Navigator.prototype, 'gpu', {value: undefined})", "no WebGPU"),
        ("navigator.gpu.requestAdapter = async () => null", "no graphics adapter"),
        ("navigator.gpu.requestAdapter = async () => ({features: new Set(), limits: {}, info: {}})", "subgroups"),
        (
            "navigator.gpu.requestAdapter = async () => "
            "({features: new Set(['subgroups']), limits: {maxStorageBuffersPerShaderStage: 8}, info: {}})",
            "maxStorageBuffersPerShaderStage is 8",
        ),
        (
            "navigator.gpu.requestAdapter = async () => "
            "({features: new Set(['subgroups']), limits: {}, info: {subgroupMaxSize: 128}})",
            "128 threads",
        ),
    ],
)
def test_what_a_browser_lacks(page: Page, page_file: Path, lacking: str, says: str) -> None:
    visit = page.context.new_page()
    visit.add_init_script(lacking)
    visit.goto(page_file.as_uri())
    visit.wait_for_selector("body.broken")
    assert says in visit.locator("#trouble").inner_text()
    visit.close()


def test_a_lost_device_is_said_in_a_sentence(page: Page, page_file: Path) -> None:
    visit = page.context.new_page()
    visit.goto(page_file.as_uri() + "?still")
    visit.wait_for_selector("body.ready", timeout=60_000)
    visit.evaluate("playground.device.destroy()")
    visit.wait_for_selector("body.broken")
    # Work that fails with the device says nothing more.
    visit.locator("#home").click(force=True)
    visit.locator("#take-view").click(force=True)
    visit.wait_for_timeout(1000)
    assert visit.locator("#trouble").inner_text() == "The graphics device was lost; reload the page."
    visit.close()


def values_of(plan: Any, sizes: Any) -> Any:
    """A plan with numbers instead of expressions, evaluated as in plan.js."""
    if isinstance(plan, dict):
        return {key: values_of(value, sizes) for key, value in plan.items() if key != "most"}
    if isinstance(plan, str):
        return sizes.get(plan, plan)
    if isinstance(plan, list) and plan and isinstance(plan[0], str) and plan[0] in OPERATORS:
        return OPERATORS[plan[0]](*(values_of(operand, sizes) for operand in plan[1:]))
    return [values_of(value, sizes) for value in plan] if isinstance(plan, list) else plan


@pytest.mark.parametrize("name", ["scene", "fit"])
def test_plans_hold_for_every_size(name: str) -> None:
    """A plan recorded for other sizes is the same plan, so no number has lost its expression."""
    kernels = WgslKernels()
    if name == "scene":
        usual, small = SCENE_SIZES, {"width": 1153, "height": 801, "capacity": 7777}
        plans = [scene_plan(kernels, 1000, 3, 0.1, True, sizes) for sizes in (usual, small)]
        others = [small, usual, small | {"capacity": 1 << 26}]
    else:
        usual = FIT_SIZES
        small = {"width": 383, "height": 259 * 2, "blobs": 9077, "capacity": 9999, "step": 3, "steps": 40, "rate": 0.25}
        plans = [fit_plan(kernels, sizes) for sizes in (usual, small)]
        others = [small, usual]
    for sizes in others:
        assert values_of(plans[0], sizes) == values_of(plans[1], sizes)
    commands = [command for part in values_of(plans[0], usual)["lists"].values() for command in part]
    assert np.max([command["groups"] for command in commands if "kernel" in command]) <= 65535


def test_kernels_bind_what_browsers_offer() -> None:
    kernels = WgslKernels()
    scene_plan(kernels, 1000, 3, 0.1, False)
    fit_plan(kernels)
    for kernel in kernels.content:
        assert len(kernel["buffers"]) <= MOST_BUFFERS, kernel["name"]
        shared = re.findall(r"var<workgroup> \w+ : array<[ui]32, u32\((\d+)\)>", kernel["source"])
        assert "f32>;" not in "".join(re.findall(r"var<workgroup>.*", kernel["source"]))
        assert sum(map(int, shared)) * 4 <= MOST_SHARED_BYTES
        assert "atomic<f32>" not in kernel["source"]


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scene().save_ply(tmp_path / "fox.ply")
    Export(scene=Path("fox.ply"), playground=Path("fox.html")).run()
    assert "<h1>fox</h1>" in Path("fox.html").read_text()
    for wrong, says in (
        (Export(playground=Path("fox.html")), "splat demo"),
        (Export(scene=Path("fox.ply"), playground=Path("fox.txt")), r"\.html"),
        (Export(scene=Path("none"), playground=Path("fox.html")), "none"),
        (Export(scene=Path("fox.ply"), out=Path("a.ply"), playground=Path("fox.html")), "two files"),
        (Export(), "SCENE OUT"),
    ):
        refused(says, wrong.run)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fox.html", "fox.ply"]
