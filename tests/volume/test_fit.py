"""Fitting a volume to photographs, its checkpoints, its files and its command."""

import json
import os
import signal
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from splat_py import shaders
from splat_py.commands.fit import FitVolume
from splat_py.gpu.device import get_device
from splat_py.image.pictures import psnr
from splat_py.scene.camera import Camera
from splat_py.scene.data_options import DataOptions
from splat_py.scene.dataset import load_dataset
from splat_py.volume import FitReport, RadianceField, VolumeCheckpoint, VolumeConfig, VolumeTrainer, fit
from splat_py.volume.device_field import Box, March, RayImage, Rays, camera_rays
from splat_py.volume.fitting import Batches, Views
from splat_py.volume.grid import Volume, row_floats
from tests.refusals import refused
from tests.scene.captures import write_image, write_transforms
from tests.volume.own_fields import BLOBS, MIXED
from tests.volume.reference import variation_gradient
from tests.volume.test_march import Sums, add_up

SIDE = 32
BOX = np.array([[-1.0, -1, -1], [1, 1, 1]])
BACKGROUND = np.array([0.1, 0.3, 0.2], np.float32)
# Files that the command leaves.
LEFT = {"run.json", "checkpoint.safetensors", "field.safetensors", "metrics.json", "held-out", "turntable.mp4"}
Capture = tuple[np.ndarray, np.ndarray, np.ndarray]


def true_field() -> RadianceField:
    grid = (np.arange(16) + 0.5) / 8 - 1
    x, y, z = np.meshgrid(grid, grid, grid, indexing="ij")
    density, color = np.zeros((16,) * 3), np.zeros((16, 16, 16, 3))
    for center, rgb in (((0.3, 0.1, 0.2), (0.9, 0.2, 0.1)), ((-0.3, -0.2, -0.2), (0.2, 0.5, 0.9))):
        r2 = (x - center[0]) ** 2 + (y - center[1]) ** 2 + (z - center[2]) ** 2
        blob = 12 * np.exp(-r2 / 0.06)
        density += blob
        color += blob[..., None] * np.array(rgb)
    sh = (color / density[..., None] - 0.5) / 0.28209479177387814
    tensors = (torch.tensor(a, dtype=torch.float32) for a in (density, sh[..., None, :]))
    return RadianceField(*tensors, BOX, BACKGROUND)


def cameras(count: int, offset: float = 0.0) -> list[Camera]:
    angles = 2 * np.pi * (np.arange(count) + offset) / count
    eyes = np.stack([3 * np.sin(angles), np.sin(3 * angles), 3 * np.cos(angles)], axis=1)
    return [Camera.look_at(eye, (0, 0, 0), (0, 1, 0), 40, SIDE, SIDE, f"{i}.png") for i, eye in enumerate(eyes)]


def photographs(field: RadianceField, views: list[Camera]) -> np.ndarray:
    return np.stack([field.render(c.viewmat, c.K, c.width, c.height) for c in views])


@cache
def photographed() -> Capture:
    """Photographs of the true field, viewmats and Ks."""
    views = cameras(8)
    return photographs(true_field(), views), np.stack([c.viewmat for c in views]), np.stack([c.K for c in views])


def fitted(*how: Any, **options: Any) -> tuple[Any, list[FitReport]]:
    """A field that is fitted to the photographs, and the reports of all steps."""
    reports: list[FitReport] = []
    return fit(*photographed(), BOX, *how, background=BACKGROUND, on_step=reports.append, **options), reports


def psnr_between(field: Any) -> float:
    """PSNR of pictures from between the photographs' places."""
    between = cameras(8, 0.5)
    return psnr(photographs(field, between), photographs(true_field(), between))


@pytest.mark.parametrize("sh_degree", [0, 1])
def test_fit_reproduces_views_and_what_lies_between(sh_degree: int) -> None:
    field, reports = fitted((8, 16), 25, sh_degree, jitter=True)
    assert field.density.shape == (16, 16, 16) and field.sh_degree == sh_degree
    assert [r.step for r in reports] == list(range(50))
    assert [r.size[0] for r in reports] == [8] * 25 + [16] * 25
    assert reports[-1].psnr > reports[0].psnr + 8
    assert psnr(photographs(field, cameras(8)), photographed()[0]) > 33 and psnr_between(field) > 26


@pytest.mark.parametrize("size", [3, 4])
def test_gradient_of_the_total_variation(size: int) -> None:
    """One step on the device against the formula: Adam's first step follows the gradient's sign."""
    rng = np.random.default_rng(0)
    images = np.zeros((1, 4, 4, 3), np.float32)
    # A camera that faces away: the photographs have no gradient.
    camera = Camera.look_at((5, 0, 0), (9, 0, 0), (0, 1, 0), 40, 4, 4)
    config = VolumeConfig((size,), 1, sh_degree=0, total_variation=0.5)
    trainer = VolumeTrainer(Views.of_arrays(images, camera.viewmat[None], camera.K[None]), BOX, config)
    state = trainer.checkpoint().state
    state["grid"] = rng.normal(size=state["grid"].shape).astype(np.float32)
    trainer = VolumeTrainer(trainer.views, BOX, resume=VolumeCheckpoint(0, config, state))
    trainer.advance()
    moved = trainer.checkpoint().state["grid"] - state["grid"]
    gradient = variation_gradient(state["grid"].astype(float), 2.0)
    clear = np.abs(gradient) > 0.1
    assert clear.mean() > 0.7
    np.testing.assert_array_equal(np.sign(moved)[clear], -np.sign(gradient)[clear])
    np.testing.assert_allclose(trainer.checkpoint().state["m"], 0.1 * 0.5 * gradient / size**3, rtol=1e-3, atol=1e-5)


def test_pixels_without_weight_count_for_nothing() -> None:
    whole = Views.of_arrays(*photographed())
    mask = np.random.default_rng(0).uniform(size=photographed()[0].shape[:3]) < 0.5

    def masked(garbage: float) -> Views:
        def photograph(index: int) -> np.ndarray:
            image = whole.photograph(index).copy()
            image[mask[index]] = (garbage, garbage, garbage, 0)
            return image

        return Views(whole.cameras, photograph)

    config = VolumeConfig((8,), 4, sh_degree=0)
    fields = [VolumeTrainer(masked(garbage), BOX, config).fit() for garbage in (0, 1)]
    assert torch.equal(fields[0].density, fields[1].density)
    assert not torch.equal(fields[0].density, VolumeTrainer(whole, BOX, config).fit().density)


def test_views_of_several_sizes_come_in_a_batch_each() -> None:
    device, rng = get_device(), np.random.default_rng(0)
    sizes = [(5, 4), (7, 3), (5, 4)]
    eyes = rng.normal(size=(3, 3))
    views = [Camera.look_at(eye, (0, 0, 0), (0, 1, 0), 40, *size) for eye, size in zip(eyes, sizes, strict=True)]
    images = [rng.uniform(size=(height, width, 4)).astype(np.float32) for width, height in sizes]
    batches = Batches(device, Views(views, images.__getitem__))
    for wanted, groups in (([2, 1, 0], [[2, 0], [1]]), ([0], [[0]]), ([0], [[0]])):
        for batch, group in zip(batches.of(wanted), groups, strict=True):
            with device.recording() as recorder:
                rays = [camera_rays(device, recorder, [views[view]]) for view in group]
            for name in ("origins", "directions"):
                alone = np.concatenate([getattr(r, name).numpy() for r in rays])
                np.testing.assert_array_equal(getattr(batch.rays, name).numpy(), alone)
            assert (batch.rays.width, batch.rays.height) == sizes[group[0]]
            pictures = np.concatenate([images[view].reshape(-1, 4) for view in group])
            np.testing.assert_array_equal(batch.photographs.numpy(), pictures)
            assert batch.weight == pytest.approx(pictures[:, 3].sum())


def test_rays_go_through_the_middle_of_pixels() -> None:
    """A point on a pixel's ray projects to the pixel's middle; focal lengths and both principal coordinates differ."""
    K = np.array([[6, 0, 3.1], [0, 9, 1.7], [0, 0, 1]])
    camera = replace(Camera.look_at((1.0, -0.5, 2.0), (0, 0, 0), (0, 1, 0), 50, 7, 5), K=K)
    device = get_device()
    with device.recording() as recorder:
        rays = camera_rays(device, recorder, [camera])
    points = rays.origins.numpy() + 2 * rays.directions.numpy()
    seen = (points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]) @ camera.K.T
    x, y = np.meshgrid(np.arange(7) + 0.5, np.arange(5) + 0.5)
    np.testing.assert_allclose(seen[:, :2] / seen[:, 2:], np.stack([x.ravel(), y.ravel()], -1), atol=1e-4)
    np.testing.assert_allclose(np.linalg.norm(rays.directions.numpy(), axis=-1), 1, atol=1e-6)


@pytest.mark.parametrize(
    ("config", "own", "stop", "names"),
    [
        (VolumeConfig((6, 12), 6, sh_degree=1, rays_per_step=4 * SIDE * SIDE), None, 8, ("density", "sh")),
        (VolumeConfig((4, 6), 12, field="hash", table_mib=0.02, rate=2.0, rays_per_step=1), None, 19, ("table", "weights")),
        (VolumeConfig((4, 6), 12, rays_per_step=1), BLOBS, 19, ("params",)),
    ],
    ids=["grid", "hash", "own"],
)
def test_resumed_fit_is_the_same(
    config: VolumeConfig, own: str | None, stop: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    """Stopped within a stage, saved and loaded, with Adam's moments and the known empty space: equal to the last bit if sums
    have a fixed order."""
    views, config, kind = Views.of_arrays(*photographed()), replace(config, jitter=True), shaders.source(own) if own else None
    straight, first = (VolumeTrainer(views, BOX, config, background=BACKGROUND, field=kind) for _ in range(2))
    expected = straight.fit()
    for _ in range(stop):
        first.advance()
    first.save_checkpoint(tmp_path / "checkpoint.safetensors")
    loaded = VolumeCheckpoint.load(tmp_path / "checkpoint.safetensors")
    if own:
        source = shaders.source(MIXED)
        refused("Slang source of its own, Blobs, which could read", VolumeTrainer, views, BOX, resume=loaded)
        refused("this source is not the one of the checkpoint", VolumeTrainer, views, BOX, resume=loaded, field=source)
    for how in ({"field": kind}, {"trust_source": True}) if own else ({},):
        resumed = VolumeTrainer(views, BOX, resume=loaded, **how)
        assert resumed.step == stop and resumed.config == first.config
        field = resumed.fit()
        tolerance = 0 if straight.device.software else 1e-2
        for name in names:
            found, wanted = getattr(field, name), getattr(expected, name)
            np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance, err_msg=name)
        np.testing.assert_array_equal(field.background, BACKGROUND)


def test_an_interrupted_fit_leaves_a_checkpoint(tmp_path: Path) -> None:
    def interrupt(report: FitReport) -> None:
        if report.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    path = tmp_path / "checkpoint.safetensors"
    config = VolumeConfig(resolutions=(8, 16), steps_per_resolution=5, sh_degree=0)
    trainer = VolumeTrainer(Views.of_arrays(*photographed()), BOX, config)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(interrupt, path)
    checkpoint = VolumeCheckpoint.load(path)
    assert checkpoint.step == trainer.step == 5
    checkpoint.state["grid"] = np.pad(checkpoint.state["grid"], [(0, 0)] * 3 + [(0, 4)])
    checkpoint.save(path)
    refused("another version", VolumeCheckpoint.load, path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_field_round_trip(tmp_path: Path, suffix: str) -> None:
    field = true_field()
    path = tmp_path / f"field{suffix}"
    field.save(path)
    loaded = RadianceField.load(path)
    assert torch.equal(field.density, loaded.density) and torch.equal(field.sh, loaded.sh)
    np.testing.assert_array_equal(field.box, loaded.box)
    np.testing.assert_array_equal(field.background, loaded.background)
    size = path.stat().st_size
    halves = replace(field, density=field.density.half(), sh=field.sh.half())
    halves.save(path)
    assert path.stat().st_size < 0.6 * size
    loaded = RadianceField.load(path)
    assert torch.equal(halves.density, loaded.density) and torch.equal(halves.sh, loaded.sh)
    path.write_bytes(path.read_bytes()[:100])
    refused("damaged", RadianceField.load, path)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_files_that_are_no_fields(tmp_path: Path) -> None:
    for name, message in (("field.ply", "does not end in"), ("field.npz", "does not exist")):
        refused(message, RadianceField.load, tmp_path / name)
    refused("does not end in", true_field().save, tmp_path / "field.txt")
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    refused("not a radiance field", RadianceField.load, tmp_path / "other.npz")
    refused("no checkpoint", VolumeCheckpoint.load, tmp_path / "none.safetensors")
    true_field().save(tmp_path / "field.safetensors")
    refused("not the checkpoint", VolumeCheckpoint.load, tmp_path / "field.safetensors")


def test_camera_in_a_wall() -> None:
    field = true_field()
    walled = RadianceField(torch.full((8, 8, 8), 100.0), torch.zeros(8, 8, 8, 1, 3), BOX, BACKGROUND)
    camera = Camera.look_at((0.9, 0.9, 0.9), (0, 0, 0), (0, 1, 0), 60, 8, 8)
    with pytest.warns(UserWarning, match="stands inside a wall"):
        walled.render(camera.viewmat, camera.K, 8, 8)
    image = field.render(camera.viewmat, camera.K, 8, 8)
    assert image.shape == (8, 8, 3) and np.ptp(image) > 0.1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"images": np.zeros((2, 4, 4))}, "images has shape"),
        ({"images": np.full((8, 4, 4, 3), np.nan)}, "images holds a number"),
        ({"viewmats": np.eye(4)}, "viewmats has shape"),
        ({"viewmats": "eight"}, "viewmats is 'eight'; give numbers"),
        ({"viewmats": 2 * np.tile(np.eye(4), (8, 1, 1))}, "last row of viewmat"),
        ({"Ks": np.eye(3)}, "Ks has shape"),
        ({"box": None}, "needs viewmats, Ks and box"),
        ({"box": np.zeros((2, 3))}, "box is degenerate"),
        ({"resolutions": ()}, "resolutions is"),
        ({"resolutions": (1,)}, "resolutions is"),
        ({"steps_per_resolution": 0}, "steps_per_resolution is 0"),
        ({"sh_degree": 3}, "sh_degree is 3"),
        ({"background": (0, 0)}, "background has shape"),
        ({"background": "red"}, "background is 'red'; give numbers"),
        ({"rate": 0.0}, "rate is 0"),
        ({"total_variation": -1.0}, "total_variation is -1"),
        ({"speed": 2}, "unexpected keyword argument 'speed'"),
    ],
)
def test_unusable_input(changes: dict[str, object], message: str) -> None:
    arguments = dict(zip(("images", "viewmats", "Ks"), photographed(), strict=True))
    refused(message, fit, **{**arguments, "box": BOX, **changes})


def write_capture(folder: Path, images: np.ndarray, views: list[Camera]) -> None:
    write_transforms(folder, views)
    for image, camera in zip(images, views, strict=True):
        write_image(folder / "images" / camera.name, (image * 255 + 0.5).astype(np.uint8))


def test_command_and_dataset(tmp_path: Path) -> None:
    data, out = tmp_path / "capture", tmp_path / "run"
    write_capture(data, photographs(true_field(), cameras(9)), cameras(9))
    options = DataOptions(data, test_every=4)
    config = VolumeConfig((6, 12), 4, sh_degree=0)
    box = tuple(BOX.ravel().tolist())
    command = FitVolume(out, options, config, box=box, export=tmp_path / "grid.npz", frames=3)
    command.run()
    assert {path.name for path in out.iterdir()} == LEFT
    metrics = json.loads((out / "metrics.json").read_text())
    assert len(metrics["held_out"]["views"]) == 2 and len(metrics["curve"]) == 8
    field = RadianceField.load(out / "field.safetensors")
    assert torch.equal(field.density, RadianceField.load(tmp_path / "grid.npz").density)

    refused("already holds a run", command.run)
    FitVolume(out, options, box=box, resume=True, frames=0).run()
    assert json.loads((out / "run.json").read_text())["config"]["steps_per_resolution"] == 4

    dataset = load_dataset(data, test_every=4)
    again = fit(dataset, box=BOX, resolutions=(6, 12), steps_per_resolution=4, sh_degree=0)
    if VolumeTrainer(Views.of_dataset(dataset), BOX, config).device.software:
        assert torch.equal(again.density, field.density)
    free = fit(dataset, resolutions=(6,), steps_per_resolution=1, sh_degree=0)
    np.testing.assert_array_equal(free.box, dataset.bounds)


@pytest.mark.parametrize(
    ("how", "coefficients", "samples", "jitter", "skip_empty"),
    [("compare-and-swap", 4, 7, False, True)]
    # Rays with more samples than are stored.
    + [(2, *size, True, skip_empty) for size in ((1, 7), (4, 300), (9, 7)) for skip_empty in (False, True)],
)
def test_training_is_march_loss_and_replay(
    how: Sums, coefficients: int, samples: int, jitter: bool, skip_empty: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fit takes one pass with persistent workgroups, three passes, or these by compare-and-swap; rays may miss, and pixels
    may have no weight."""
    rng = np.random.default_rng(9)
    device, count = get_device(), 13 * 7
    memory = device.memory
    origins = rng.normal(size=(count, 3))
    origins = 3 * origins / np.linalg.norm(origins, axis=1, keepdims=True)
    directions = rng.uniform(-1.2, 1.2, (count, 3)) - origins
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    target = rng.uniform(size=(count, 4))
    target[::5, 3] = 0
    rows = rng.normal(0, 1, (9, 10, 12, row_floats(coefficients)))
    rows[:, :, 4:, 0] = -1
    rays_o, rays_d, photograph, rows = (a.astype(np.float32) for a in (origins, directions, target, rows))
    march = March(Box.of([[-1, -1, -1], [1, 1, 1]]), samples / 2, jitter, 3, skip_empty)

    def step(how: Sums) -> list[NDArray]:
        add_up(how, monkeypatch)
        volume = Volume(device, memory.array(rows))
        rays = Rays(memory.array(rays_o), memory.array(rays_d), 13)
        image, v_image = (RayImage.empty(device, count) for _ in range(2))
        for array in vars(v_image).values():
            array.write(np.zeros(array.shape, np.float32))
        background, errors = memory.array(np.float32([0.2, 0.5, 0.7])), memory.array(np.zeros(2, np.float32))
        v_grid = volume.empty_gradients()
        v_grid.write(np.zeros(v_grid.shape, np.float32))
        with device.recording() as recorder:
            volume.record_occupancy(recorder, march)
            how_far = {"photographs": memory.array(photograph), "scale": 1 / count, "errors": errors, "slot": 1, "first_ray": 5}
            volume.record_training(recorder, march, rays, background, image, v_image, v_grid, **how_far)
        return [image.colors.numpy().copy(), v_grid.numpy().sum(0), errors.numpy().copy()]

    found, expected = step(how), step("float atomics")
    assert expected[2][0] == 0 and np.count_nonzero(expected[1]) > expected[1].size / 8
    for actual, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=2e-5 * np.abs(wanted).max())


def test_contracted_space(tmp_path: Path) -> None:
    grid = (np.arange(16) + 0.5) / 4 - 2
    x, y, z = np.meshgrid(grid, grid, grid, indexing="ij")
    color = np.stack([x > 0, y > 0, y > 0], -1) - 0.5
    far = np.where(np.maximum(np.abs(x), np.maximum(np.abs(y), np.abs(z))) > 1.5, 20.0, -1.0)
    tensors = (torch.tensor(a, dtype=torch.float32) for a in (far, color[..., None, :] / 0.28209479177387814))
    true = RadianceField(*tensors, BOX, BACKGROUND, contracted=True)
    eyes = np.array([[0.3, 0.1, 0], [0, 0.1, 0.3], [-0.2, 0.1, 0.1]])
    views = [Camera.look_at(tuple(eye), tuple(9 * eye), (0, 1, 0), 20, 16, 16) for eye in eyes]
    images = photographs(true, views)
    assert images.std() > 0.1
    true.save(tmp_path / "field.npz")
    loaded = RadianceField.load(tmp_path / "field.npz")
    assert loaded.contracted
    np.testing.assert_array_equal(photographs(loaded, views), images)

    poses = (np.stack([getattr(c, name) for c in views]) for name in ("viewmat", "K"))
    found = fit(images, *poses, BOX, (8,), 40, 0, background=BACKGROUND, contract=True)
    assert isinstance(found, RadianceField) and found.contracted
    # Their mean colour alone has 11 dB.
    assert psnr(photographs(found, views), images) > 18
    refused("contract is for voxels", VolumeConfig, field="hash", contract=True)
