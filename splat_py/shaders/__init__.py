"""Single functions of `slang/splat` and `slang/parallel` on NumPy arrays, for notebooks and unit tests.

Each Slang module is an attribute of this package, compiled at its first use, with its public functions as attributes:

    from splat_py import shaders

    R = shaders.gaussian.quatToRotation(quats)  # [N, 4] → [N, 3, 3]

    # A generic's arguments are in brackets.
    rgb = shaders.spherical_harmonics.shColor[16](directions, sh)

    # Structs are dicts.
    gaussians = {"mean": means, "quat": quats, "scale": scales, "opacity": opacities}
    splats = shaders.projection.projectGaussian["Pinhole"](gaussians, camera, image, settings)

    # The gradient of Σ depth for every argument.
    v_gaussians, v_camera, _, _ = shaders.gradients(
        shaders.projection.projectGaussian["Pinhole"], {"depth": 1.0}, gaussians, camera, image, settings)

Any argument may have leading batch dimensions, which broadcast; an argument that a batch shares gets the sum
of the batch's gradients. `dir(shaders.projection)` lists the functions. `load` loads your own Slang file, which
may import `splat.projection` and the others. SlangPy does the work: `shaders.gaussian.sigmoid.slangpy` is its
function object, with `.bwds`, `.map` and so on. Calls are slow, because they copy their arrays to the device
and back.
"""

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from splat_py.base.lazy import lazy

if TYPE_CHECKING:
    from splat_py.gpu.emission import emit
    from splat_py.shaders.checks import check
    from splat_py.shaders.functions import ShaderFunction, ShaderModule, gradients
    from splat_py.shaders.loading import load, source
    from splat_py.shaders.own_kernels import OwnKernel, kernel

__all__ = ["OwnKernel", "ShaderFunction", "ShaderModule", "check", "emit", "gradients", "kernel", "load", "source"]

_load, _ = lazy(__name__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return _load(name)
    if not name.startswith("_"):
        from splat_py.shaders.loading import built_in

        with suppress(KeyError):
            return built_in(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from splat_py.shaders.functions import library

    return [*globals(), *__all__, *(file.stem for file in library())]
