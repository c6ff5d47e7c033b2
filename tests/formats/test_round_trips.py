"""Formats keep a scene within their precision, and files of other programs have the same meaning."""

import json
import struct
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from splat_py import Camera, Gaussians
from splat_py.fit.steps import psnr_of
from splat_py.render.views import render
from splat_py.scene.formats import sog, splat
from splat_py.scene.formats.packing import SH_C0, StoredGaussians, morton_order, normalized
from splat_py.scene.formats.sog import codebook, palette
from splat_py.scene.gaussians import read_scene, write_scene
from splat_py.scene.sources import ENDINGS
from tests.formats.scenes import glb_of, glb_parts, random_gaussians, seven, zip_of, zip_parts
from tests.refusals import refused

DATA = Path(__file__).parent / "data"
# Largest differences of: means, rotation matrices, log scales, opacities, coefficients of degree 0, of the others.
TOLERANCES = {
    ".ply": (0, 1e-6, 0, 1e-6, 0, 0),
    ".glb": (0, 1e-6, 1e-5, 1e-5, 0, 0),
    ".compressed.ply": (4e-3, 6e-3, 2e-3, 3e-3, 0.02, 0.02),
    ".spz": (1e-4, 6e-3, 0.032, 3e-3, 0.014, 0.036),
    ".sog": (1e-3, 0.02, 0.02, 3e-3, 0.1, 0.03),
    ".splat": (0, 0.03, 1e-5, 3e-3, 0.01, 0),
    ".ksplat": (1e-4, 2e-3, 1e-3, 3e-3, 0.01, 1e-3),
}
DEGREES = {".splat": 0, ".ksplat": 2}
# Ranges of log scales, of coefficients of degree 0 and of the others, in formats that have limits.
ANY, COLORS = (-np.inf, np.inf), (-0.5 / SH_C0, 0.5 / SH_C0)
RANGES = {
    ".compressed.ply": ((-20, 20), ANY, (-4, 4)),
    ".spz": ((-10, 95 / 16), (-0.5 / 0.15, 0.5 / 0.15), (-1, 1)),
    ".splat": (ANY, COLORS, ANY),
    # Sizes are halves.
    ".ksplat": ((np.log(2.0**-24), np.log(65504)), COLORS, ANY),
}
# Formats that divide the range of a scene's numbers into steps: the largest step's share of the range.
STEPS = {".compressed.ply": 2e-3, ".sog": 2e-3, ".ksplat": 2e-3, ".spz": 1e-7}


def assert_same(
    expected: StoredGaussians,
    actual: StoredGaussians,
    tolerances: tuple[float, ...],
    degree: int = 3,
    by: str = "means",
    share: float = 0,
) -> None:
    """Compare scenes up to the order of Gaussians and the tolerances. Gaussians with the nearest `by` belong together. A
    `share` of each array's range is added to its tolerance."""
    coefficients = min(expected.sh.shape[1], (degree + 1) ** 2)
    assert actual.sh.shape == (len(expected.means), coefficients, 3)
    one, other = (np.asarray(getattr(scene, by)) for scene in (expected, actual))
    nearest = np.linalg.norm(one[:, None] - other[None], axis=2).argmin(1)
    assert len(set(nearest)) == len(nearest)
    parts = [
        (expected.means, actual.means),
        tuple(Rotation.from_quat(scene.quats, scalar_first=True).as_matrix() for scene in (expected, actual)),
        (expected.log_scales, actual.log_scales),
        (expected.opacities, actual.opacities),
        (expected.sh[:, :1], actual.sh[:, :1]),
        (expected.sh[:, 1:coefficients], actual.sh[:, 1:]),
    ]
    for (a, b), tolerance in zip(parts, tolerances, strict=True):
        np.testing.assert_allclose(b[nearest], a, rtol=1e-6, atol=tolerance + share * (np.ptp(a) if a.size else 0))


def visible(gaussians: StoredGaussians) -> StoredGaussians:
    sh = gaussians.sh.copy()
    sh[:, 0] = np.clip(sh[:, 0], -1.7, 1.7)
    return gaussians._replace(sh=sh)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_holds_what_it_says(ending: str, degree: int, tmp_path: Path) -> None:
    scene = visible(random_gaussians(300, degree))
    assert bool(write_scene(tmp_path / f"scene{ending}", scene)) == (degree > DEGREES.get(ending, 3))
    assert_same(scene, read_scene(tmp_path / f"scene{ending}"), TOLERANCES[ending], DEGREES.get(ending, 3))
    assert [path.name for path in tmp_path.iterdir()] == [f"scene{ending}"]


@pytest.mark.parametrize("version", splat.SPZ_VERSIONS)
def test_versions_of_spz(version: int) -> None:
    scene = random_gaussians(50)
    for antialiased in (False, True):
        read = splat.decode_spz(splat.encode_spz(scene._replace(antialiased=antialiased), version))
        # Version 2 recovers a component near 1 poorly from the others.
        assert_same(scene, read, (1e-4, 0.2 if version == 2 else 6e-3, 0.032, 3e-3, 0.014, 0.036))
        assert read.antialiased == antialiased
    refused("SPZ version is 5", splat.encode_spz, scene, 5)


@pytest.mark.parametrize(
    "name", ["seven-3.spz", "seven-4.spz", "seven.sog", "seven.compressed.ply", "seven.glb", "seven.splat"]
)
def test_files_of_other_programs(name: str) -> None:
    ending = next(ending for ending in ENDINGS[1:] if name.endswith(ending))
    # GaussForge and splat-transform round down; this library rounds to the nearest.
    tolerances = (*(2.1 * np.array(TOLERANCES[ending])[:4]), 0.6 if ending == ".splat" else 0.11, 0.12)
    assert_same(seven(), read_scene(DATA / name), tolerances, DEGREES.get(ending, 3))


def test_a_compressed_ply_may_have_another_name_and_a_sog_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "seven.ply").write_bytes((DATA / "seven.compressed.ply").read_bytes())
    assert len(read_scene(tmp_path / "seven.ply").means) == 7
    with zipfile.ZipFile(DATA / "seven.sog") as bundle:
        bundle.extractall(tmp_path / "folder")
    assert_same(read_scene(DATA / "seven.sog"), read_scene(tmp_path / "folder" / "meta.json"), (0,) * 6)


@pytest.fixture(scope="module")
def pictured() -> tuple[StoredGaussians, Camera]:
    scene = random_gaussians(4000, seed=1)
    sh = scene.sh * np.where(np.arange(16) == 0, 1.0, 0.4)[None, :, None].astype(np.float32)
    return scene._replace(sh=sh, means=scene.means * np.float32(0.6)), Camera.look_at(
        (0, 0, -4), (0, 0, 0), (0, -1, 0), 40, 96, 96
    )


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_picture_stays(ending: str, pictured: tuple[StoredGaussians, Camera], tmp_path: Path) -> None:
    scene, camera = pictured
    write_scene(tmp_path / f"scene{ending}", scene)
    there, back = (render(part, camera) for part in (Gaussians.of_arrays(scene), Gaussians.load(tmp_path / f"scene{ending}")))
    assert there.std() > 0.1
    # .splat only has bytes of colours from one direction.
    assert psnr_of(np.mean((there - back) ** 2)) >= (25 if ending == ".splat" else 35)


def test_the_same_scene_gives_the_same_file(tmp_path: Path) -> None:
    scene = random_gaussians(40)
    for ending in ENDINGS:
        for name in "ab":
            write_scene(tmp_path / f"{name}{ending}", scene)
        assert (tmp_path / f"a{ending}").read_bytes() == (tmp_path / f"b{ending}").read_bytes()


def test_none_one_and_coincident_gaussians(tmp_path: Path) -> None:
    for ending in ENDINGS:
        path = tmp_path / f"scene{ending}"
        for count in (0, 1, 5):
            scene = random_gaussians(count)
            scene = scene._replace(means=np.ones_like(scene.means), log_scales=np.full_like(scene.log_scales, -3))
            if ending == ".sog" and not count:
                refused("without Gaussians", write_scene, path, scene)
                continue
            write_scene(path, scene)
            read = read_scene(path)
            assert len(read.means) == count
            np.testing.assert_allclose(read.means, 1, atol=1e-4)
            np.testing.assert_allclose(read.log_scales, -3, atol=1e-3)


@pytest.mark.parametrize("ending", ENDINGS)
def test_extreme_numbers_stay_numbers(ending: str, tmp_path: Path) -> None:
    """Numbers beyond a format's range become its ends; all others come back."""
    scene, path = random_gaussians(20), tmp_path / f"scene{ending}"
    extreme = np.array([0, 1e-30, -1e-30, 50, -50, 80, -80, 3e4, -3e4, 1] * 2, np.float32)
    sizes, constants, others = RANGES.get(ending, (ANY, ANY, ANY))
    for changed in (
        scene._replace(means=scene.means + extreme[:, None]),
        scene._replace(log_scales=np.clip(np.repeat(extreme[:, None], 3, 1), -80, 80)),
        scene._replace(logit_opacities=extreme),
        scene._replace(sh=scene.sh + extreme[:, None, None]),
        scene._replace(quats=scene.quats * np.float32(1e-15)),
    ):
        Gaussians.of_arrays(changed).save(path)
        Gaussians.load(path).validate()
        sh = np.concatenate([changed.sh[:, :1].clip(*constants), changed.sh[:, 1:].clip(*others)], 1)
        expected, actual = changed._replace(log_scales=changed.log_scales.clip(*sizes), sh=sh), read_scene(path)
        assert all(np.isfinite(array).all() for array in actual[:5])
        assert ((actual.opacities >= 0) & (actual.opacities <= 1)).all()
        # Distant means are too coarse in some files to tell Gaussians apart.
        by = "log_scales" if changed.means is not scene.means else "means"
        assert_same(expected, actual, TOLERANCES[ending], DEGREES.get(ending, 3), by, STEPS.get(ending, 0))


def test_what_formats_cannot_hold_is_refused_or_said(tmp_path: Path) -> None:
    scene = random_gaussians(4)
    own = scene._replace(
        types={"splat": ("BetaKernel", ""), "color": ("SphericalHarmonics", "")}, params={"b": np.zeros(4, np.float32)}
    )
    colored = scene._replace(
        types={"splat": ("Gaussian", ""), "color": ("SphericalGaussians", "")}, features=np.zeros((4, 3), np.float32)
    )
    for ending in ENDINGS[1:]:
        refused(r"BetaKernel; write a \.ply", write_scene, tmp_path / f"scene{ending}", own)
        assert "SphericalGaussians" in write_scene(tmp_path / f"scene{ending}", colored)[0]
        said = write_scene(tmp_path / f"scene{ending}", scene._replace(antialiased=True))
        assert read_scene(tmp_path / f"scene{ending}").antialiased != any("antialiased" in loss for loss in said)
    write_scene(tmp_path / "scene.ply", scene._replace(antialiased=True))
    assert read_scene(tmp_path / "scene.ply").antialiased
    refused(r"scale or crop", splat.encode_spz, scene._replace(means=scene.means + np.float32(1e8)))
    for name in ("scene.obj", "scene", "meta.json"):
        refused("does not end in", write_scene, tmp_path / name, scene)
    refused("does not end like", read_scene, tmp_path / "scene.obj")


def test_infinite_logarithms_of_opacities_are_read(tmp_path: Path) -> None:
    scene = random_gaussians(3)
    write_scene(tmp_path / "scene.ply", scene._replace(logit_opacities=np.array([np.inf, -np.inf, 0], np.float32)))
    np.testing.assert_allclose(Gaussians.load(tmp_path / "scene.ply").opacities, [1, 0, 0.5], atol=1e-6)


def test_levels_of_ksplat() -> None:
    """Levels 0 and 2, which the library reads but does not write, in two sections of different degrees."""
    scene = visible(random_gaussians(9, 1))
    for level, number, harmonics in ((0, "<f4", "<f4"), (2, "<f2", "u1")):
        header = bytearray(splat.encode_ksplat(scene)[:4096])
        struct.pack_into("<I", header, 4, 2)
        struct.pack_into("<I", header, 16, 18)
        struct.pack_into("<H", header, 20, level)
        struct.pack_into("<2f", header, 36, -0.5, 0.5)
        sections, bodies = [], []
        for degree in (0, 1):
            rows = np.zeros(9, splat._row(level, 9 * degree))
            bucketed = level > 0
            rows["mean"] = np.rint(scene.means / 8 * 32767) + 32767 if bucketed else scene.means
            rows["scale"], rows["quat"] = np.exp(scene.log_scales).astype(number), normalized(scene.quats).astype(number)
            rows["color"][:, :3] = np.rint((scene.sh[:, 0] * 0.28209479 + 0.5) * 255)
            rows["color"][:, 3] = np.rint(scene.opacities * 255)
            if degree:
                flat = scene.sh[:, 1:].transpose(0, 2, 1).reshape(9, 9)
                rows["sh"] = np.rint(np.clip(flat + 0.5, 0, 1) * 255) if level == 2 else flat.astype(harmonics)
            # A full bucket of four, and one of five.
            shape = (4, 2, 16.0, 12, 32767, 0, 1, 1, degree)
            sections.append(splat._SECTION.pack(9, 9, *shape).ljust(1024, b"\0"))
            bodies.append(struct.pack("<I", 5) + np.zeros(6, "<f4").tobytes() + rows.tobytes())
        read = splat.decode_ksplat(bytes(header) + b"".join(sections) + b"".join(bodies))
        tolerances = (1e-3 if level else 0, 2e-3, 1e-3, 3e-3, 0.01, 3e-3 if level == 2 else 1e-6)
        assert_same(scene, StoredGaussians(*(part[9:] for part in read[:5])), tolerances)
        assert not read.sh[:9, 1:].any()


def test_orders_hold_neighbours() -> None:
    means = np.random.default_rng(0).normal(size=(3000, 3))
    means[:1000] *= 0.001
    order, sizes, centers = splat._buckets(means, means.min(0), 0.3)
    assert sorted(order) == list(range(3000)) and sizes.sum() == 3000
    full = int((sizes == 256).sum())
    assert full >= 3 and (sizes[:full] == 256).all() and (sizes[full:] < 256).all()
    assert np.abs(means[order] - np.repeat(centers, sizes, 0)).max() <= 0.15 + 1e-9
    means = np.random.default_rng(0).normal(size=(500, 3)).astype(np.float32)
    order = morton_order(means)
    assert sorted(order) == list(range(500))
    steps = np.linalg.norm(np.diff(means[order], axis=0), axis=1).mean()
    assert steps < 0.5 * np.linalg.norm(np.diff(means, axis=0), axis=1).mean()
    means[::5] *= 1000
    assert (morton_order(means)[400:] % 5 == 0).all()


def test_codebooks_are_near() -> None:
    values = np.concatenate([np.random.default_rng(0).normal(size=4000), [50.0, -70.0]]).reshape(-1, 2)
    book, labels = codebook(values)
    assert len(book) == 256 and (np.diff(book) >= 0).all()
    assert np.abs(book[labels] - values).mean() < 0.01 and np.abs(book[labels] - values).max() < 0.5
    vectors = np.random.default_rng(1).normal(size=(20, 1, 6)).repeat(30, 1).reshape(-1, 6).astype(np.float32)
    centers, label = palette(vectors + np.random.default_rng(2).normal(size=vectors.shape).astype(np.float32) * 1e-3, 200)
    assert len(centers) <= 200
    assert np.abs(centers[label] - vectors).max() < 0.1
    few, label = palette(vectors[:7], 200)
    np.testing.assert_array_equal(few[label], vectors[:7])


def test_spz_of_version_4_needs_a_package() -> None:
    code = (
        "import sys; sys.modules['zstandard'] = None\n"
        "from splat_py.scene.formats import splat; from tests.formats.scenes import seven\n"
        "splat.decode_spz(splat.encode_spz(seven(), 3)); splat.encode_spz(seven(), 4)"
    )
    root = Path(__file__).resolve().parents[2]
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert "SplatError" in result.stderr and "slang-splat[files]" in result.stderr


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    import zlib

    packer = zlib.compressobj(9, wbits=31)
    head = struct.pack("<IIIBBBx", 0x5053474E, 3, 1_000_000, 3, 12, 0)
    bomb = packer.compress(head + bytes(65_000_000)) + packer.flush()
    parts = zip_parts(sog.encode(random_gaussians(5)))
    for name, data in {"gzip.spz": bomb, "zip.sog": zip_of(parts | {"means_l.webp": bytes(50_000_000)})}.items():
        assert len(data) < 200_000
        (tmp_path / name).write_bytes(data)
        refused("export it again", read_scene, tmp_path / name)


def test_names_in_a_meta_json_stay_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    with zipfile.ZipFile(DATA / "seven.sog") as bundle:
        bundle.extractall(tmp_path)
        meta = json.loads(bundle.read("meta.json"))
    for name in ("../means_l.webp", str(tmp_path / "means_l.webp"), "..", ""):
        meta["means"]["files"][0] = name
        (tmp_path / "inner" / "meta.json").write_text(json.dumps(meta))
        refused("in another folder", read_scene, tmp_path / "inner" / "meta.json")


def glb_with(change: dict[str, object]) -> bytes:
    text, rest = glb_parts((DATA / "seven.glb").read_bytes())
    return glb_of(json.dumps(json.loads(text) | change).encode(), rest)


def test_nodes_of_a_glb_move_what_they_hold(tmp_path: Path) -> None:
    turn = {"rotation": [0, 0, 1, 0], "scale": [2, 2, 2], "translation": [1, 0, 0], "children": [1]}
    (tmp_path / "scene.glb").write_bytes(glb_with({"nodes": [turn, {"mesh": 0, "translation": [0, 0, 3]}]}))
    read, scene = read_scene(tmp_path / "scene.glb"), seven()
    # The file's axes are ours turned about z, as the node turns, so both keep the axes.
    np.testing.assert_allclose(read.means, 2 * (scene.means * [-1, -1, 1] + [0, 0, 3]) + [-1, 0, 0], atol=1e-5)
    np.testing.assert_allclose(read.log_scales, scene.log_scales + np.log(2), atol=1e-5)


@pytest.mark.parametrize(
    ("message", "nodes"),
    [
        ("form a cycle", [{"mesh": 0, "children": [0]}]),
        ("more than 10,000 nodes", [{"children": [1] * 20_000}, {"mesh": 0}]),
        ("mirrors", [{"mesh": 0, "scale": [1, -1, 1]}]),
        ("instead of an index", [{"mesh": -1}]),
        (r"scene\.glb", [{"mesh": 0, "scale": [np.nan] * 3}]),
        (r"scene\.glb", [{"mesh": 0, "translation": [1e300] * 3}]),
        (r"scene\.glb", [{"mesh": 0, "matrix": [1e200] * 16}]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_nodes_of_a_glb_that_make_no_sense_are_one_sentence(message: str, nodes: list, tmp_path: Path) -> None:
    (tmp_path / "scene.glb").write_bytes(glb_with({"nodes": nodes}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(message, Gaussians.load, tmp_path / "scene.glb")


@pytest.mark.parametrize(("ending", "factor"), [(".spz", 1e5), (".ksplat", 1e8), (".compressed.ply", 1e12), (".splat", 1e37)])
def test_too_large_for_a_format(tmp_path, ending, factor):
    """A few are clamped to the largest size, with a message; if most are too large, nothing is written."""
    scene, path = random_gaussians(50), tmp_path / f"scene{ending}"
    far = np.float32(np.log(factor) + 8)
    few = scene._replace(log_scales=np.where(np.arange(50)[:, None] < 3, far, scene.log_scales))
    (loss,) = [text for text in write_scene(path, few) if "sizes of" in text]
    assert "3 of 50" in loss
    assert len(read_scene(path).means) == 50
    path.unlink()
    large = scene._replace(log_scales=scene.log_scales + far)
    refused(rf"50 of 50 Gaussians are larger than \{ending} holds.*--scale", write_scene, path, large)
    assert not path.exists()


@pytest.mark.parametrize(("ending", "factor"), [(".spz", 1e-5), (".ksplat", 1e-8)])
def test_too_small_for_a_format(tmp_path, ending, factor):
    """Thin ones do not matter; if most are too small in all directions, nothing is written."""
    scene, path = random_gaussians(50), tmp_path / f"scene{ending}"
    smaller = scene.log_scales + np.float32(np.log(factor))
    thin = scene.log_scales.copy()
    thin[:, 1] = smaller[:, 1]
    assert not any("sizes of" in text for text in write_scene(path, scene._replace(log_scales=thin)))
    path.unlink()
    small = scene._replace(log_scales=smaller)
    refused(rf"50 of 50 Gaussians are smaller than \{ending} holds.*--scale", write_scene, path, small)
    assert not path.exists()


@pytest.mark.parametrize("ending", [ending for ending in ENDINGS if ending != ".spz"])
def test_as_wide_as_float32(tmp_path, ending):
    """Positions are kept even if their differences overflow float32."""
    scene, path = random_gaussians(50, 0), tmp_path / f"scene{ending}"
    wide = scene._replace(means=np.where(np.arange(50)[:, None] % 2, np.float32(3e38), np.float32(-3e38)).repeat(3, 1))
    write_scene(path, wide)
    np.testing.assert_allclose(np.sort(read_scene(path).means[:, 0]), np.repeat([-3e38, 3e38], 25), rtol=0.02)
