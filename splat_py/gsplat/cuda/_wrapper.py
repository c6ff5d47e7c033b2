"""The names of `gsplat.cuda._wrapper`: the stages over kernels."""

import splat_py.gsplat as package
from splat_py.gsplat.unsupported import NAMES as _UNSUPPORTED
from splat_py.lazy import lazy

_HERE = "splat_py.gsplat"
_HOMES = {
    **dict.fromkeys(_UNSUPPORTED, f"{_HERE}.unsupported"),
    **{name: home for name, home in package._HOMES.items() if name.startswith(("has_", "isect_", "rasterize_"))},
    **dict.fromkeys(
        (
            "CameraModel",
            "ExternalDistortionModelMeta",
            "ExternalDistortionModelParameters",
            "FThetaCameraDistortionParameters",
            "FThetaPolynomialType",
            "RollingShutterType",
            "UnscentedTransformParameters",
        ),
        f"{_HERE}.options",
    ),
    "fully_fused_projection": f"{_HERE}.projection",
    "fully_fused_projection_2dgs": f"{_HERE}.surfels",
    "persp_proj": f"{_HERE}.cameras",
    "proj": f"{_HERE}.cameras",
    "quat_scale_to_covar_preci": f"{_HERE}.covariances",
    "spherical_harmonics": f"{_HERE}.harmonics",
    "world_to_cam": f"{_HERE}.cameras",
}

__getattr__, __dir__ = lazy(__name__, _HOMES)
__all__ = list(_HOMES)
