"""The oracle of the tests: the splatting contract in float64 NumPy, forward and hand-derived backward.

It shares no code with splat_py: it exists so that the shaders and their automatic derivatives can be wrong on
their own. Every backward in here is itself checked, scalar by scalar, by central differences in the
test_*.py beside it. Conventions: `v_x` is dL/dx; matrices are row-major; viewmats are world → camera in
OpenCV axes (+x right, +y down, +z forward); quaternions are (w, x, y, z); pixel centres lie at +0.5.

    gaussian            quaternion → rotation → 3D covariance
    projection          EWA: 3D Gaussian → pixel position, depth, conic, opacity
    spherical_harmonics direction → colour
    blending            front-to-back compositing, its reverse loop, and which pixels not to trust
    rendering           the chain of all of them
    ssim, adam          the training step's loss and update
"""

from tests.reference.adam import adam_step
from tests.reference.blending import (
    Rasterized,
    RasterizedGradients,
    near_threshold,
    rasterize,
    rasterize_backward,
)
from tests.reference.gaussian import (
    covariance,
    covariance_backward,
    quat_to_rotmat,
    quat_to_rotmat_backward,
)
from tests.reference.projection import (
    Projected,
    ProjectionGradients,
    conic,
    conic_backward,
    frustum_limits,
    perspective_jacobian,
    perspective_jacobian_backward,
    project,
    project_backward,
)
from tests.reference.rendering import (
    Camera,
    Rendered,
    RenderGradients,
    Scene,
    render,
    render_backward,
    untrusted_pixels,
)
from tests.reference.spherical_harmonics import (
    sh_basis,
    sh_basis_jacobian,
    sh_colors,
    sh_colors_backward,
)
from tests.reference.ssim import l1_ssim_loss, l1_ssim_loss_backward, ssim, ssim_backward

__all__ = [
    "Camera",
    "Projected",
    "ProjectionGradients",
    "Rasterized",
    "RasterizedGradients",
    "RenderGradients",
    "Rendered",
    "Scene",
    "adam_step",
    "conic",
    "conic_backward",
    "covariance",
    "covariance_backward",
    "frustum_limits",
    "l1_ssim_loss",
    "l1_ssim_loss_backward",
    "near_threshold",
    "perspective_jacobian",
    "perspective_jacobian_backward",
    "project",
    "project_backward",
    "quat_to_rotmat",
    "quat_to_rotmat_backward",
    "rasterize",
    "rasterize_backward",
    "render",
    "render_backward",
    "sh_basis",
    "sh_basis_jacobian",
    "sh_colors",
    "sh_colors_backward",
    "ssim",
    "ssim_backward",
    "untrusted_pixels",
]
