"""The two plans of a playground page: a frame of a scene, and a step of fitting a picture."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from splat_py.gpu.sources import constant
from splat_py.image.fitting import FitStep, adam_for
from splat_py.image.options import Rates
from splat_py.image.rasterizers import FLOATS, TileRasterizer
from splat_py.render.cameras import Cameras
from splat_py.render.colors import harmonics
from splat_py.render.images import Image, Rasterization
from splat_py.render.options import Options
from splat_py.render.project import Projection
from splat_py.render.shade import FeatureArrays, Shading
from splat_py.render.splats import GaussianArrays, Splats
from splat_py.render.tiles import Binning, TileGrid
from splat_py.viewer.pages.playground_plan import Json, Plan, PlanDevice, WgslKernels, symbol

# The largest sizes; plans are recorded for them, and comparisons with symbols use them. The sort has enough bits for the tiles
# of these sizes, so a page may not have more tiles.
SCENE_SIZES = {"width": 1280, "height": 800, "capacity": 1 << 20}
FIT_SIZES = {"width": 512, "height": 512, "blobs": 16384, "capacity": 1 << 20, "step": 10, "steps": 1000, "rate": 1.0}


def scene_plan(
    kernels: WgslKernels, gaussians: int, degree: int, near: float, antialiased: bool, sizes: Mapping[str, int] = SCENE_SIZES
) -> Json:
    """Return the plan of a frame of a scene with `gaussians` Gaussians: the list `frame`.

    Gaussians have covariances: with rotations and scales the projection would bind more buffers than WebGPU guarantees.
    """
    width, height, capacity = (symbol(sizes[name], name) for name in ("width", "height", "capacity"))
    plan = Plan(kernels)
    device = PlanDevice(plan)
    empty, tile = device.memory.empty, device.tuning.tile_size
    options = Options(tile, antialiased=antialiased, near_plane=near, native_atomics=False)
    nothing = empty(0)
    scene = GaussianArrays(empty((gaussians, 3)), nothing, nothing, empty(gaussians), empty((gaussians, 6)))
    cameras = Cameras(empty((1, 4, 4)), empty((1, 3, 3)), width, height)
    splats = Splats.empty(device, 1, gaussians)
    grid = TileGrid.over(cameras, tile)
    image = Image.empty(device, 1, height, width, 3)
    color, colors, backgrounds = harmonics(degree), empty((1, gaussians, 3)), empty((1, 3))
    features = empty((gaussians, (degree + 1) ** 2, 3))
    stored = FeatureArrays.of(features, 3 * (degree + 1) ** 2)
    binning = Binning(device, splats, grid, capacity=capacity)

    recorder = device.record()
    Projection(scene, cameras, splats, options).record(recorder)
    Shading(scene.means, stored, cameras, splats.radii, colors, color, options).record(recorder)
    binning.record_count(recorder)
    binning.record_lists(recorder)
    lists = binning.lists()
    Rasterization(device, splats, colors, backgrounds, lists, image, options).record(recorder)
    recorder.submit_as("frame")
    assert scene.covars is not None
    plan.name(means=scene.means, opacities=scene.opacities, covars=scene.covars, features=features)
    plan.name(viewmats=cameras.viewmats, Ks=cameras.Ks, background=backgrounds, image=image.colors, count=binning.isect_count)
    # A page steps through a pixel's list with these.
    plan.name(means2d=splats.means2d, conics=splats.conics, opacities2d=splats.opacities, colors=colors)
    plan.name(offsets=lists.offsets, ids=lists.ids, n_contrib=image.n_contrib)
    constants = {name: constant("splat/blending", name) for name in ("ALPHA_MIN", "ALPHA_MAX")}
    return plan.content() | {"tile": tile, "most": _most(sizes, tile), "constants": constants}


def fit_plan(kernels: WgslKernels, sizes: Mapping[str, float] = FIT_SIZES) -> Json:
    """Return the plan of fitting a picture with blobs: the list `step`."""
    width, height, blobs, capacity, step, steps, rate = (symbol(sizes[name], name) for name in FIT_SIZES)
    plan = Plan(kernels)
    device = PlanDevice(plan)
    memory = device.memory
    rasterizer = TileRasterizer(device, blobs, width, height)
    rasterizer.reserve_isects(capacity)
    parameters, gradients = (memory.empty((FLOATS, blobs)) for _ in range(2))
    moments = tuple(memory.full((FLOATS, blobs), 0) for _ in range(2))
    target = memory.empty((height, width, 3))
    status = memory.full((3,), 0, np.uint32)
    adam = adam_for(width, height)
    # Make the bases symbols too: a float to the power of a symbol would lose the symbol.
    adam = replace(adam, beta1=symbol(adam.beta1, adam.beta1), beta2=symbol(adam.beta2, adam.beta2))

    recorder = device.record()
    FitStep(rasterizer, target, parameters, gradients, moments, status, Rates().times(rate), adam).record(recorder, step, steps)
    recorder.submit_as("step")
    plan.name(target=target, parameters=parameters, status=status, picture=rasterizer.picture)
    tile = device.tuning.tile_size
    constants = {name: constant("splat/blob2d", name) for name in ("MARGIN", "LARGEST_DEVIATION", "PIXEL_VARIANCE")}
    return plan.content() | {"tile": tile, "most": _most(sizes, tile), "constants": constants}


def _most(sizes: Mapping[str, float], tile: int) -> Json:
    """The largest sizes that a page may use."""
    tiles = -(-int(sizes["width"]) // tile) * -(-int(sizes["height"]) // tile)
    return {"tiles": (1 << tiles.bit_length()) - 1, **sizes}
