"""The names of `gsplat.cuda._torch_impl`: the stages in torch's own operations."""

from splat_py.gsplat.cameras import fisheye_proj as _fisheye_proj
from splat_py.gsplat.cameras import ortho_proj as _ortho_proj
from splat_py.gsplat.cameras import pinhole_proj as _persp_proj
from splat_py.gsplat.cameras import world_to_cam as _world_to_cam
from splat_py.gsplat.covariances import quat_scale_to_covar_preci as _quat_scale_to_covar_preci
from splat_py.gsplat.covariances import quat_scale_to_matrix as _quat_scale_to_matrix
from splat_py.gsplat.covariances import quat_to_rotmat as _quat_to_rotmat
from splat_py.gsplat.harmonics import evaluate_harmonics as _spherical_harmonics
from splat_py.gsplat.harmonics import sh_bases as _eval_sh_bases_fast
from splat_py.gsplat.indices import accumulate
from splat_py.gsplat.intersection import isect_offset_encode as _isect_offset_encode
from splat_py.gsplat.intersection import isect_tiles as _isect_tiles
from splat_py.gsplat.reference import fully_fused_projection as _fully_fused_projection
from splat_py.gsplat.reference import rasterize_to_pixels as _rasterize_to_pixels

__all__ = [
    "_eval_sh_bases_fast",
    "_fisheye_proj",
    "_fully_fused_projection",
    "_isect_offset_encode",
    "_isect_tiles",
    "_ortho_proj",
    "_persp_proj",
    "_quat_scale_to_covar_preci",
    "_quat_scale_to_matrix",
    "_quat_to_rotmat",
    "_rasterize_to_pixels",
    "_spherical_harmonics",
    "_world_to_cam",
    "accumulate",
]
