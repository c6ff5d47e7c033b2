"""Every kernel that ships, specialised: found by recording the stages, which keeps them complete.

Any two values of constants that ship together occur in one of the specialisations (`covering`), but not every combination of
more: there are twice as many, and a mistake shows at one value, or at two together.
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, product
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import slangpy as spy
from numpy.typing import DTypeLike

from splat_py.fit.steps import Adam, AdamRows
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import _GPU_TUNING, _SOFTWARE_TUNING, Device, Tuning
from splat_py.gpu.kernels import Recorder, UserType, constants_in, specialising
from splat_py.gpu.limits import Limits
from splat_py.gpu.sorting import Pairs, PrefixSum, RadixSort
from splat_py.gpu.sources import shader_folder
from splat_py.render.cameras import CAMERA_ROW, LENS, Cameras
from splat_py.render.colors import ColorModel, harmonics, network_weights
from splat_py.render.images import Image, Rasterization
from splat_py.render.options import Options, UnscentedTransform
from splat_py.render.project import Projection
from splat_py.render.shade import FeatureArrays, Shading
from splat_py.render.splats import DENSE, GaussianArrays, SplatIds, Splats, StridedRows
from splat_py.render.tiles import Binning, TileGrid
from splat_py.train.learnt_parts import PPISP
from splat_py.volume.device_field import Box, DeviceField, March, RayImage, Rays
from splat_py.volume.grid import COEFFICIENTS, Volume, row_floats
from splat_py.volume.hash_grid import LEVELS, HashShape, HashVolume
from splat_py.volume.slang_field import SlangVolume
from tests.volume import own_fields

Row = TypeVar("Row", bound=tuple[Any, ...])


def covering(rows: Iterable[Row]) -> list[Row]:
    """A few of these rows, in which every pair of values that occurs in some row still occurs."""
    pairs = {row: set(combinations(enumerate(row), 2)) for row in rows}
    missing = set().union(*pairs.values())
    kept: list[Row] = []
    while missing:
        best = max(pairs, key=lambda row: len(missing & pairs[row]))
        kept.append(best)
        missing -= pairs[best]
    return kept


TILE_SIZES = (4, 8, 16)
MODELS = ("Pinhole", "Orthographic", "Fisheye", "Equirectangular")
# Depth alone; colours; colours and depth; as many features as one pass takes.
CHANNELS = (1, 3, 4, 32)
ACCUMULATIONS = ("PerWave", "PerPixel", "PerGroup", "PerIntersection")
# Tuning, channels, tile size, accumulation, gradients of absolute values. The tile size hardly affects where gradients add up,
# and channels do not depend on the tuning, which differs in `PIXELS`.
RASTERIZATIONS = covering(
    (tuning, channels, tile_size, accumulation, absgrad)
    for tuning, channels in (*product(["GPU"], CHANNELS), ("software", 3))
    for tile_size in TILE_SIZES
    for accumulation in (ACCUMULATIONS if tile_size == 16 else ("PerWave",))
    for absgrad in (False, True)
)
# Stored parameters and mode → the degree of harmonics; each combination also occurs with every accumulation.
_DEGREES = {(False, "classic"): 0, (True, "classic"): 1, (False, "antialiased"): 2, (True, "antialiased"): 3}
GAUSSIANS = [
    (_DEGREES[stored, mode], stored, mode, accumulation)
    for stored, mode, accumulation in covering(product((False, True), ("classic", "antialiased"), ACCUMULATIONS))
]
# Jitter and skipped empty space, by the number of coefficients of a volume.
MARCHES: dict[int, list[tuple[bool, bool]]] = {coefficients: [] for coefficients in COEFFICIENTS}
for _coefficients, *_march in covering(product(COEFFICIENTS, (False, True), (False, True))):
    MARCHES[_coefficients].append((_march[0], _march[1]))


def before(models: Iterable[str]) -> list[tuple[str, bool, bool]]:
    """Kinds of cameras, with or without covariances, packed or not."""
    return covering(product(models, (False, True), (False, True)))


class Specialisation(NamedTuple):
    """An entry point and the values of its module's `extern` names."""

    module: str
    entry: str
    constants: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        return " ".join([f"{self.module}.{self.entry}", *(f"{name}={value}" for name, value in self.constants)])


class _Dispatches:
    """Replaces a `Recorder` and remembers the dispatches."""

    def __init__(self) -> None:
        self.found: dict[Specialisation, None] = {}

    def dispatch(self, module: str, entry: str, *_: Any, **arguments: Any) -> None:
        constants = specialising(module, entry, constants_in(module, arguments))
        self.found[Specialisation(module, entry, tuple(sorted(constants.items())))] = None

    def scratch(self, shape: tuple[int, ...], dtype: DTypeLike = np.float32) -> Array:
        return _Memory().empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...]) -> Array:
        return self.scratch(shape)

    def clear(self, array: Array) -> None:
        pass

    def stage(self, name: str) -> None:
        pass


class _Memory:
    """Arrays with a shape but no contents, which need no device."""

    limits = Limits()

    def empty(self, shape: tuple[int, ...] | int, dtype: DTypeLike = np.float32, *, by_address: bool = False) -> Array:
        return self.array(np.zeros(shape, dtype))

    def full(self, shape: tuple[int, ...], value: float, dtype: DTypeLike = np.float32) -> Array:
        return self.array(np.full(shape, value, dtype))

    def arange(self, count: int) -> Array:
        return self.array(np.arange(count, dtype=np.uint32))

    def array(self, values: Any) -> Array:
        buffer = SimpleNamespace(device_address=0)
        array = SimpleNamespace(shape=values.shape, size=values.size, dtype=values.dtype, nbytes=values.nbytes, buffer=buffer)
        array.as_uint32 = SimpleNamespace(**{**vars(array), "dtype": np.dtype(np.uint32)})
        array.elements, array.address = array, spy.uint2(0, 0)
        return cast(Array, array)


def _device(tuning: Tuning) -> Device:
    return cast(Device, SimpleNamespace(memory=_Memory(), tuning=tuning))


# The recorded inputs: eight Gaussians before a camera, eight rays through a box.
empty = _Memory().empty
DEVICE = _device(_GPU_TUNING)
SCENE = GaussianArrays(empty((8, 3)), empty((8, 4)), empty((8, 3)), empty(8))
NO_GAUSSIANS = GaussianArrays(empty(0), empty(0), empty(0), empty(0))
CAMERAS = Cameras(empty((1, 4, 4)), empty((1, 3, 3)), 8, 8)
PACKED = SplatIds.empty(DEVICE, 8, 1)
RAYS, IMAGE = Rays(empty((8, 3)), empty((8, 3))), RayImage(empty((8, 3)), empty(8), empty(8))
V_SPLATS = StridedRows(empty((8, 15)), 15)
MARCH = March(Box.of([[0, 0, 0], [1, 1, 1]]), 4.0)


def shipped() -> list[Specialisation]:
    """Specialisations: project, shade, bin, sort and rasterise as recorded, the rest as their files declare them."""
    dispatches = _Dispatches()
    recorder = cast(Recorder, dispatches)
    _record_tiles(recorder)
    _record_gaussians(recorder)
    _record_packed(recorder)
    _record_cameras(recorder)
    _record_along_rays(recorder)
    _record_tangents(recorder)
    # Adam: one number a row, or rows of spherical harmonics (splat_py/train/parameters.py).
    for row, head in ((1, 0), (3, 3), (12, 3), (27, 3), (48, 3)):
        dispatches.dispatch("optimize", "adam", ROW=row, HEAD=head)
    dispatches.dispatch("optimize", "adam", ROW=1, HEAD=0, STRIDE=10, OFFSET=9, BOUNDED=True)
    dispatches.dispatch("optimize", "adam", ROW=3, HEAD=0, STRIDE=12, OFFSET=9)
    # Gradients of batches: laid out as parameters, or in the rows of splats (splat_py/train/step.py).
    dispatches.dispatch("optimize", "addScaled")
    dispatches.dispatch("optimize", "addScaled", ROW=1, STRIDE=10, OFFSET=9)
    # The 3D smoothing filter, without and with a lens (splat_py/train/parameters.py).
    for constants in ({}, {"CameraModel": "OpenCVPinhole", "WITH_LENS": True}):
        dispatches.dispatch("filter_3d", "findFilters", **constants)
    # Pictures (splat_py/image/rasterizers.py).
    for native, linear in product((False, True), repeat=2):
        how = {"NATIVE_ATOMICS": native, "LINEAR": linear}
        dispatches.dispatch("image_group", "differentiateByGroup", **how)
        dispatches.dispatch("blobs", "renderByAutodiff", BLOBS=8)
        dispatches.dispatch("blobs", "differentiateByAutodiff", BLOBS=8, **how)
    for coefficients in COEFFICIENTS:
        _record_volume(recorder, coefficients)
    _record_contracted(recorder)
    _record_hash_grid(recorder)
    for entry, lens in product(("refineCamera", "updateCamera"), ({}, {"WITH_LENS": True})):
        dispatches.dispatch("refined_cameras", entry, **lens)
    for entry in ("developPixels", "developPixelsBackward", "updateLook"):
        dispatches.dispatch("capture_model", entry, Look=PPISP.look, LOOK_FLOATS=PPISP.look_floats, OWN_FLOATS=PPISP.own_floats)
    tiles = {"LOSS_THREADS": _GPU_TUNING.loss_threads}
    dispatches.dispatch("loss", "ssimInTiles", NATIVE_ATOMICS=False, **tiles)
    # torch's images: floats, any number of channels.
    dispatches.dispatch("loss", "ssimInTiles", CHANNELS=4, PACKED=False, WHOLE_WINDOWS=True, **tiles)
    dispatches.dispatch("loss", "gradientInTiles", CHANNELS=4, PACKED=False, **tiles)
    for entry in ("ssimInTiles", "gradientInTiles"):
        dispatches.dispatch("loss", entry, **tiles)
        for pixel_loss in ("L2", "Charbonnier"):
            dispatches.dispatch("loss", entry, PACKED=False, PixelLoss=pixel_loss, **tiles)
    for listed in ({}, {"LISTED": True}):
        dispatches.dispatch("contributors", "findContributors", TILE_SIZE=8, **listed)
    PrefixSum(DEVICE, 9000).record(recorder, empty(9000, np.uint32))
    recorded = {(s.module, s.entry) for s in dispatches.found}
    for module, entry in declared():
        if (module, entry) not in recorded:
            dispatches.dispatch(module, entry)
    return list(dispatches.found)


def by_kernel() -> dict[tuple[str, str], list[Specialisation]]:
    """Group the specialisations that ship by module and entry point."""
    found = defaultdict(list)
    for specialisation in shipped():
        found[specialisation.module, specialisation.entry].append(specialisation)
    return dict(found)


def with_every_value(specialisations: list[Specialisation]) -> list[Specialisation]:
    """Few specialisations of a kernel, which have every value of every constant."""
    missing = {value for specialisation in specialisations for value in specialisation.constants}
    few = [] if missing else specialisations[:1]
    while missing:
        few.append(max(specialisations, key=lambda s: len(missing.intersection(s.constants))))
        missing -= set(few[-1].constants)
    return few


# Sigma points as gsplat's users have them.
WHOLE_ROWS = UnscentedTransform(whole_rows=True)
# Gradients of volumes: number of persistent workgroups on a CPU driver, 0 elsewhere; True with float atomics.
WAYS_TO_ADD_UP = ((0, True), (2, True), (0, False))


def _device_of_volumes(groups: int, native: bool) -> Device:
    nothing = {"require": lambda *_: None}
    return cast(Device, SimpleNamespace(memory=_Memory(), software=groups > 0, native_float_atomics=native, **nothing))


def _record_volume(recorder: Recorder, coefficients: int) -> None:
    """March, replay and optimiser. Gradients add up atomically, in the replicas of a processor of two cores, and by
    compare-and-swap; this is independent of where samples are."""
    quads = row_floats(coefficients) // 4
    for groups, native in WAYS_TO_ADD_UP:
        device = _device_of_volumes(groups, native)
        volume = Volume(device, empty((4, 4, 4, quads * 4)))
        volume.groups = groups
        for jitter, skip_empty in MARCHES[coefficients] if native else ((False, True),):
            march = replace(MARCH, jitter=jitter, skip_empty=skip_empty)
            volume.record_occupancy(recorder, march)
            _record_march(recorder, volume, march, *((None, RAYS) if native else ()))
            _record_training(recorder, volume, march)
        volume.record_total_variation(recorder, volume.empty_gradients(), 1.0, 1.0)
        volume.record_adam(recorder, {}, volume.empty_gradients(), volume.parameters, volume.parameters)
        if native:
            _record_halves(recorder, Volume(device, empty((4, 4, 4, quads * 2), np.uint32)), groups)


def _record_march(recorder: Recorder, volume: DeviceField, march: March, *gradients: Rays | None) -> None:
    """Record a march, and with gradients of rays its tangents and a replay for each of them."""
    volume.record_forward(recorder, march, RAYS, empty(3), IMAGE)
    if gradients:
        for directions, d_field in ((1, empty((1, 8))), (1, None), (2, None)):
            d_background = empty((directions, 3))
            volume.record_tangents(recorder, march, RAYS, empty(3), IMAGE, RAYS, d_background, d_field, IMAGE, marched=True)
    for v_rays in gradients:
        volume.record_backward(recorder, march, RAYS, empty(3), IMAGE, IMAGE, volume.empty_gradients(), v_rays=v_rays)


def _record_halves(recorder: Recorder, volume: DeviceField, groups: int) -> None:
    volume.groups = groups
    volume.record_occupancy(recorder, MARCH)
    _record_march(recorder, volume, MARCH, None)


def _record_contracted(recorder: Recorder) -> None:
    """Unbounded space, with jitter: rays with gradients, and a fit."""
    march = replace(MARCH, jitter=True, contracted=True)
    for groups, native in WAYS_TO_ADD_UP:
        volume = Volume(_device_of_volumes(groups, native), empty((4, 4, 4, 4)))
        volume.groups = groups
        _record_march(recorder, volume, march, RAYS)
        _record_training(recorder, volume, march)


def _record_hash_grid(recorder: Recorder) -> None:
    """Hash grids and a user's own fields: rays with gradients and jitter, and a fit without jitter, which does not depend on
    the field."""
    shape = HashShape((2,) * LEVELS, 64)
    own = UserType("Mixed", own_fields.MIXED)
    for groups, native in WAYS_TO_ADD_UP:
        device = _device_of_volumes(groups, native)
        for volume in (HashVolume(device, shape, empty(shape.floats)), SlangVolume(device, own, empty(32))):
            volume.groups = groups
            volume.record_occupancy(recorder, MARCH)
            _record_march(recorder, volume, replace(MARCH, jitter=True), RAYS)
            _record_training(recorder, volume, MARCH)
        # Compiling a replay for CPU drivers takes half a minute; they run this one themselves.
        if native and not groups:
            _record_halves(recorder, HashVolume(device, shape, empty(shape.floats, np.uint32), empty(shape.floats)), groups)


def _record_training(recorder: Recorder, volume: DeviceField, march: March) -> None:
    step = {"photographs": empty((8, 4)), "scale": 1.0, "errors": empty(1), "slot": 0}
    volume.record_training(recorder, march, RAYS, empty(3), IMAGE, IMAGE, volume.empty_gradients(), **step)


def declared() -> list[tuple[str, str]]:
    """Module and name of every entry point in slang/kernels and its folders."""
    entry = re.compile(r'\[shader\("compute"\)\]\s*\[numthreads\([^\]]*\)\]\s*void (\w+)\(')
    folder = shader_folder() / "kernels"
    files = {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.slang"))}
    return [(module, name) for module, file in files.items() for name in entry.findall(file.read_text(encoding="utf-8"))]


def _record_tiles(recorder: Recorder) -> None:
    tunings = {"GPU": _GPU_TUNING, "software": _SOFTWARE_TUNING}
    for name, channels, tile_size, accumulation, absgrad in RASTERIZATIONS:
        options = Options(tile_size, absgrad=absgrad, accumulation=accumulation)
        _record_rasterization(recorder, tunings[name], options, channels)
    for tuning, accumulation in product(tunings.values(), ACCUMULATIONS):
        options = Options(16, accumulation=accumulation, native_atomics=accumulation == "PerIntersection")
        _record_rasterization(recorder, tuning, options, 3)
        options = Options(16, accumulation=accumulation)
        _record_rasterization(recorder, replace(tuning, segment=64), options, 3, segments=2)
    for tuning in tunings.values():
        # More pairs than one workgroup sorts alone.
        keys = empty(9000, np.uint32)
        for values, given in ((keys, None), (None, None), (keys, keys)):
            sort = RadixSort(_device(tuning), 9000, values=values is not None)
            sort.record(recorder, Pairs(keys, values), empty(1, np.uint32), bits=32, given=given)


def _record_rasterization(
    recorder: Recorder,
    tuning: Tuning,
    options: Options,
    channels: int,
    segments: int = 1,
    ids: SplatIds = DENSE,
    bins: bool = True,
    **written: Any,
) -> None:
    device, options = _device(tuning), replace(options, cpu_driver=tuning.cpu_driver)
    splats = Splats.empty(device, 1, 8, options=options, ids=ids)
    rays = empty((1, 8, 8, 6)) if options.with_rays else None
    splats = replace(splats, rays=rays)
    if options.extras:
        splats = replace(splats, extras=empty((1, 8, options.extras)))
    binning = Binning(device, splats, TileGrid(options.tile_size, 2, 2, 1), options)
    if bins:
        binning.record_count(recorder)
        binning.record_lists(recorder)
        binning.record_max_tile_count(recorder)
    image = Image.empty(device, 1, 8, 8, channels, **written)
    colors, backgrounds = empty((1, 8, channels)), empty((1, channels))
    work = Rasterization(device, splats, colors, backgrounds, binning.lists(segments), image, options)
    work.record(recorder)
    v_splats, v_rays = empty((1, 8, options.gradient_row_length(channels))), rays if options.camera_gradient else None
    work.record_backward(recorder, image.colors, image.alphas, v_splats, v_rays)


def _record_projection(
    recorder: Recorder, gaussians: GaussianArrays, cameras: Cameras, options: Options, ids: SplatIds = DENSE
) -> None:
    """Record both passes of a projection, and the packing of its splats."""
    splats = Splats.empty(DEVICE, 8, options=options, ids=ids)
    rays = empty((1, 8, 8, 6)) if options.with_rays else None
    splats = replace(splats, rays=rays)
    projection = Projection(gaussians, cameras, splats, options)
    if ids.packed:
        visible = PrefixSum(DEVICE, 8)
        projection.record_visible(recorder, visible)
        projection.record_packing(recorder, visible)
    projection.record(recorder)
    v_depths, v_cameras = StridedRows(splats.depths, 1), empty((1, cameras.row_length))
    projection.record_backward(recorder, V_SPLATS, v_depths, gaussians, v_cameras, rays)


def _record_shading(
    recorder: Recorder,
    color: ColorModel,
    options: Options,
    ids: SplatIds = DENSE,
    *,
    features: FeatureArrays | None = None,
    v_features: FeatureArrays | None = None,
    weights: Array | None = None,
    adds_to_means: Iterable[bool] = (False,),
    learnt: AdamRows | None = None,
) -> None:
    """Record both passes of a shading, by default with as many features as the model needs, and gradients like them; and the
    backward pass in which they learn."""
    features = features or FeatureArrays.of(empty((8, color.features)), color.features)
    radii, colors = empty((8, 2), np.int32), empty((8, 3))
    shading = Shading(SCENE.means, features, CAMERAS, radii, colors, color, options, ids, weights)
    shading.record(recorder)
    for add in adds_to_means:
        v_arrays = SCENE.means, v_features or features, empty((1, CAMERA_ROW))
        shading.record_backward(recorder, V_SPLATS, *v_arrays, add, v_weights=weights)
    if learnt is not None:
        shading.record_backward(recorder, V_SPLATS, SCENE.means, None, empty((1, CAMERA_ROW)), True, learnt=learnt)


def _record_packed(recorder: Recorder) -> None:
    """Packed splats, and the other kinds of cameras, covariances and limits of α."""
    for (model, with_covars, is_packed), camera_gradient in product(
        # The most common render is one of them.
        (("Pinhole", False, True), *before(MODELS), *before(("OpenCVPinhole", "bent Fisheye"))),
        (False, True),
    ):
        covars, ids = empty((8, 6)) if with_covars else None, PACKED if is_packed else DENSE
        cameras = replace(CAMERAS, lenses=None if model in MODELS else empty((1, LENS)))
        options = Options(16, camera_model=model.removeprefix("bent "), camera_gradient=camera_gradient)
        _record_projection(recorder, replace(SCENE, covars=covars), cameras, options, ids)
    for degree, as_color, ids, camera_gradient in product((1, 4), (False, True), (DENSE, PACKED), (False, True)):
        options = Options(16, camera_gradient=camera_gradient)
        _record_shading(recorder, harmonics(degree, as_color), options, ids)
    # Halves: an even number of them, and an odd one, some of them unused.
    for degree, stored, ids in ((1, 4, DENSE), (2, 25, PACKED)):
        shapes = (8 * stored * 3 // 2, (8, -(-stored * 3 // 2)))
        halves, v_halves = (FeatureArrays.of(empty(shape), stored * 3, halves=True) for shape in shapes)
        _record_shading(recorder, harmonics(degree), Options(16), ids, features=halves, v_features=v_halves)
    weights = empty(network_weights(5, 3))
    for color, accumulation, ids, camera_gradient in product(
        (ColorModel("SphericalGaussians", 15), ColorModel("ColorNetwork", 5, weights.size)),
        ACCUMULATIONS,
        (DENSE, PACKED),
        (False, True),
    ):
        # The accumulation of weights hardly affects the rest.
        if accumulation != "PerWave" and (color.weights == 0 or ids.packed or camera_gradient):
            continue
        options = Options(16, camera_gradient=camera_gradient, accumulation=accumulation)
        _record_shading(recorder, color, options, ids, weights=weights if color.weights else None)
    for tile_size in TILE_SIZES:
        options = Options(tile_size, stop="SceneStop99")
        _record_rasterization(recorder, _GPU_TUNING, options, 3, ids=PACKED)
    _record_rasterization(recorder, _GPU_TUNING, Options(16), 3, median=True)
    for falloff, ids in product(("GeneralizedExponential", "BetaKernel"), (DENSE, PACKED)):
        options = Options(16, falloff=falloff, extras=1)
        _record_projection(recorder, replace(SCENE, extras=empty((8, 1))), CAMERAS, options, ids)
        _record_rasterization(recorder, _GPU_TUNING, options, 3, ids=ids)


def _record_along_rays(recorder: Recorder) -> None:
    """Surfels, and Gaussians evaluated in space."""
    of_cameras = ((False, True), (True, True), (True, False))
    for primitive, ids, (camera_gradient, native) in product(("Surfel", "RayGaussian"), (DENSE, PACKED), of_cameras):
        options = Options(16, camera_gradient=camera_gradient, native_atomics=native, primitive=primitive)
        _record_projection(recorder, SCENE, CAMERAS, options, ids)
    # Three channels are normals; with distortion, two more are depth and distortion.
    for channels, distortion, segments, ids in ((6, False, 1, DENSE), (8, True, 1, PACKED), (8, True, 2, DENSE)):
        tuning = replace(_GPU_TUNING, segment=8) if segments > 1 else _GPU_TUNING
        options = Options(16, primitive="Surfel")
        _record_rasterization(recorder, tuning, options, channels, segments, ids, distortion=distortion, median=True)
    # A step of training (splat_py/train/step.py).
    _record_projection(recorder, SCENE, CAMERAS, Options(16, "PerIntersection", primitive="Surfel", raw_params=True))
    for constants in ({}, {"PER_DEPTH_X": 4, "PER_DEPTH_Y": 7}):
        recorder.dispatch("densify", "addStatistics", (1, 1, 1), **constants)
    for stride, first in ((4, 0), (8, 3)):
        recorder.dispatch("loss", "takeColors", (1, 1, 1), STRIDE=stride, FIRST=first)
    # gsplat's stages make lists in torch.
    gsplats = Options(16, primitive="GsplatSurfel", camera_gradient=True)
    _record_projection(recorder, SCENE, CAMERAS, gsplats, PACKED)
    _record_rasterization(recorder, _GPU_TUNING, gsplats, 8, bins=False, distortion=True, median=True)
    for ids in (DENSE, PACKED):
        _record_rasterization(recorder, _GPU_TUNING, Options(16, primitive="RayGaussian"), 3, ids=ids)
    # Through any camera: one without gradients, and one with a lens that moves, by compare-and-swap.
    still = Options(16, primitive="RayGaussian", camera_model="Fisheye")
    moving = replace(still, shutter="ROLLING_TOP_TO_BOTTOM", camera_gradient=True, native_atomics=False)
    poses = replace(CAMERAS, viewmats=empty((1, 2, 4, 4)), lenses=empty((1, LENS)), shutter=moving.shutter)
    for options, cameras, ids in (
        (still, CAMERAS, DENSE),
        (moving, poses, PACKED),
        (replace(still, camera_model="Pinhole", camera_gradient=True, with_ut=True), CAMERAS, DENSE),
        (replace(still, camera_model="Pinhole", own_rays=True), CAMERAS, PACKED),
        (replace(moving, native_atomics=True, camera_model="OpenCVPinhole", with_ut=True, ut_params=WHOLE_ROWS), poses, PACKED),
    ):
        _record_projection(recorder, SCENE, cameras, options, ids)
        _record_rasterization(recorder, _GPU_TUNING, options, 3, ids=ids)
    # Hits, four more channels than colours.
    seen = replace(still, camera_model="FThetaByDistance", camera_gradient=True, with_hits=True)
    _record_projection(recorder, SCENE, replace(CAMERAS, lenses=empty((1, LENS))), seen)
    _record_rasterization(recorder, _GPU_TUNING, seen, 7, hits="RayHits")


def _record_tangents(recorder: Recorder) -> None:
    """Forward derivatives of all cameras, shapes and colours, in one direction or in two, and of cameras alone."""
    lens, shutter = {"lenses": empty((1, LENS))}, "ROLLING_TOP_TO_BOTTOM"
    opencv, rays = Options(16, camera_model="OpenCVPinhole"), Options(16, primitive="RayGaussian")
    for options, of_cameras, covars, ids in (
        (Options(16), {}, None, DENSE),
        (Options(16), {}, None, PACKED),
        (Options(16, antialiased=True, undimmed_reach=True), {}, None, PACKED),
        (Options(16), {}, empty((8, 6)), PACKED),
        (Options(16, camera_model="Orthographic"), {}, None, PACKED),
        (Options(16, camera_model="Equirectangular"), {}, None, PACKED),
        (Options(16, camera_model="Fisheye"), lens, None, PACKED),
        (opencv, lens, None, PACKED),
        (replace(opencv, with_ut=True), lens, None, PACKED),
        (replace(opencv, shutter=shutter), lens, None, PACKED),
        (replace(opencv, shutter=shutter, with_ut=True), lens, None, PACKED),
        (replace(opencv, shutter=shutter, with_ut=True, ut_params=WHOLE_ROWS), lens, None, PACKED),
        (rays, {}, None, PACKED),
        (replace(rays, camera_model="Orthographic"), {}, None, PACKED),
        (replace(rays, camera_model="Equirectangular"), {}, None, PACKED),
        (replace(rays, camera_model="Fisheye"), lens, None, DENSE),
        (replace(rays, camera_model="OpenCVPinhole", with_ut=True), lens, None, PACKED),
        (replace(rays, camera_model="OpenCVPinhole", shutter=shutter), lens, None, PACKED),
        (replace(rays, camera_model="OpenCVPinhole", shutter=shutter, with_ut=True, ut_params=WHOLE_ROWS), lens, None, PACKED),
        (Options(16, primitive="Surfel"), {}, None, PACKED),
    ):
        cameras = replace(CAMERAS, shutter=options.shutter, **of_cameras)
        splats = Splats.empty(DEVICE, 8, options=options, ids=ids)
        splats = replace(splats, rays=empty((1, 8, 8, 6)) if options.with_rays else None)
        projection = Projection(replace(SCENE, covars=covars), cameras, splats, options)
        for gaussians in (projection.gaussians, NO_GAUSSIANS):
            projection.record_tangents(recorder, replace(projection, gaussians=gaussians))
    radii, colors, weights = empty((8, 2), np.int32), empty((8, 3)), empty(network_weights(5, 3))
    for color, used, ids in (
        (harmonics(1), None, DENSE),
        (ColorModel("SphericalGaussians", 15), None, PACKED),
        (ColorModel("ColorNetwork", 5, weights.size), weights, PACKED),
    ):
        of_color = FeatureArrays.of(empty((8, color.features)), color.features)
        shading = Shading(SCENE.means, of_color, CAMERAS, radii, colors, color, Options(16), ids, used)
        for features in (of_color.floats or of_color.fours, None):
            shading.record_tangents(recorder, colors, SCENE.means, features, CAMERAS.viewmats, used)
    for options, channels, distortion in (
        (Options(16), 3, False),
        (Options(16), 4, False),
        (Options(16, falloff="GeneralizedExponential", extras=1), 3, False),
        (Options(16, falloff="BetaKernel", extras=1), 3, False),
        (rays, 3, False),
        (replace(rays, camera_model="Fisheye"), 3, False),
        (replace(rays, camera_model="Fisheye", with_hits=True), 7, False),
        (Options(16, primitive="Surfel"), 8, True),
    ):
        splats = replace(Splats.empty(DEVICE, 8, options=options), extras=empty((8, 1)) if options.extras else None)
        lists = Binning(DEVICE, splats, TileGrid(16, 2, 2, 1), options).lists(1)
        image = Image.empty(DEVICE, 1, 8, 8, channels, distortion=distortion, hits="RayHits" if options.with_hits else "NoHits")
        work = Rasterization(DEVICE, splats, empty((8, channels)), empty((1, channels)), lists, image, options)
        of_rays = empty((1, 8, 8, 6)) if options.with_rays else None
        for directions in (1, 2):
            colors, alphas = (empty((directions, *array.shape)) for array in (image.colors, image.alphas))
            along = replace(image, colors=colors, alphas=alphas)
            work.record_tangents(recorder, replace(work, splats=replace(splats, rays=of_rays), image=along))


def _record_cameras(recorder: Recorder) -> None:
    """Sigma points and rolling shutters."""
    shutter = "ROLLING_TOP_TO_BOTTOM"
    options = Options(16, camera_gradient=True)
    for projection, covars, lenses, ids in (
        (replace(options, camera_model="Equirectangular", with_ut=True), None, None, DENSE),
        (replace(options, shutter=shutter, antialiased=True), None, None, PACKED),
        (replace(options, camera_model="OpenCVPinhole", shutter=shutter), empty((8, 6)), empty((1, LENS)), DENSE),
        (replace(options, shutter=shutter, with_ut=True), None, None, PACKED),
        (replace(options, shutter=shutter, with_ut=True, ut_params=WHOLE_ROWS), None, None, PACKED),
        (replace(options, camera_model="FTheta"), None, empty((1, LENS)), DENSE),
        (replace(options, camera_model="FTheta", shutter=shutter, with_ut=True), None, empty((1, LENS)), PACKED),
    ):
        poses = empty((1, 4, 4) if projection.shutter is None else (1, 2, 4, 4))
        cameras = Cameras(poses, empty((1, 3, 3)), 8, 8, lenses=lenses, shutter=projection.shutter)
        _record_projection(recorder, replace(SCENE, covars=covars), cameras, projection, ids)


def _record_gaussians(recorder: Recorder) -> None:
    floats = empty((8, 16, 3))
    sh = FeatureArrays.of(floats, 48)
    learnt = AdamRows(floats, floats, floats, Adam(1e-15).settings(0), 0.0, empty(3, np.uint32))
    for (degree, stored, mode, accumulation), camera_gradient in product(GAUSSIANS, (False, True)):
        options = Options(
            16,
            raw_params=stored,
            antialiased=mode == "antialiased",
            camera_gradient=camera_gradient,
            accumulation=accumulation,
            native_atomics=degree < 3 or accumulation == "PerIntersection",
        )
        _record_projection(recorder, SCENE, CAMERAS, options)
        _record_shading(recorder, harmonics(degree), options, features=sh, adds_to_means=(False, True), learnt=learnt)
