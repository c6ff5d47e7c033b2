"""The oracle of the tests: the splatting contract in float64, forward and backward, without a line of splat_py.

Torch differentiates projection, colour and loss. Blending has its own backward pass, derived by hand; central differences
check each of its numbers. Conventions: `v_x` is dL/dx; matrices are row-major; viewmats are world → camera in OpenCV
axes (+x right, +y down, +z forward); quaternions are (w, x, y, z); pixel centres lie at +0.5.

    gaussian            quaternion → rotation → 3D covariance
    projection          EWA: 3D Gaussian → pixel position, depth, conic, opacity
    spherical_harmonics direction → colour
    blending            front-to-back compositing, its reverse loop, and the pixels that a test must not compare
    rendering           the chain of all these
    ssim, adam          the training step's loss and update
"""

from tests.reference.adam import adam_step as adam_step
from tests.reference.blending import near_threshold as near_threshold
from tests.reference.blending import rasterize as rasterize
from tests.reference.blending import rasterize_backward as rasterize_backward
from tests.reference.gaussian import covariance as covariance
from tests.reference.projection import frustum_limits as frustum_limits
from tests.reference.projection import project as project
from tests.reference.rendering import Camera as Camera
from tests.reference.rendering import Rendered as Rendered
from tests.reference.rendering import Scene as Scene
from tests.reference.rendering import render as render
from tests.reference.rendering import render_backward as render_backward
from tests.reference.rendering import untrusted_pixels as untrusted_pixels
from tests.reference.spherical_harmonics import sh_basis as sh_basis
from tests.reference.ssim import l1_ssim_loss as l1_ssim_loss
from tests.reference.ssim import l1_ssim_loss_backward as l1_ssim_loss_backward
from tests.reference.ssim import ssim as ssim
from tests.reference.ssim import ssim_backward as ssim_backward
