"""Poses of held-out photographs, aligned to a scene before they are compared with it."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from splat_py.gpu.device import Device
from splat_py.scene.camera import Camera
from splat_py.scene.gaussians import Gaussians
from splat_py.splats.camera_refinement import LENS_CORRECTION, POSE_CORRECTION, corrected
from splat_py.splats.photometric_loss import photometric_loss
from splat_py.splats.rendering import renders

# Steps of Adam, and the learning rate of the first and the last, in radians and in shares of the scene's scale.
_STEPS, _RATES = 400, (2e-3, 1e-4)


def align_pose(
    gaussians: Gaussians,
    camera: Camera,
    photograph: NDArray[np.uint8],
    scene_scale: float,
    *,
    device: Device | None = None,
    **how: object,
) -> Camera:
    """A camera moved to where its photograph was taken in the scene, by gradient descent on the loss of training.

    A photograph that was held out has the pose of the capture; where poses of training views are refined, the scene moves with
    them, and its score would be of the pose and not of the scene (Lin et al. 2021, BARF, section 4.2).

    Args:
        photograph: [H, W, 4] uint8, rgb and weight.
        scene_scale: world units.
        how: further arguments of `renders`.
    """
    counts = torch.from_numpy(photograph[..., 3:].astype(np.float32) / 255)
    target = torch.from_numpy(photograph[..., :3].astype(np.float32) / 255) * counts
    pose = torch.zeros(POSE_CORRECTION, requires_grad=True)
    units = torch.tensor([1.0] * 3 + [scene_scale] * 3)
    optimiser = torch.optim.Adam([pose], lr=_RATES[0], betas=(0.9, 0.99), eps=1e-15)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimiser, (_RATES[1] / _RATES[0]) ** (1 / _STEPS))
    captured = torch.from_numpy(camera.viewmat.astype(np.float32))
    with torch.enable_grad():
        for _ in range(_STEPS):
            optimiser.zero_grad()
            image = renders(gaussians, camera, viewmat=moved(captured, pose * units), device=device, **how)  # type: ignore[arg-type]
            photometric_loss(image.cpu() * counts, target).backward()
            optimiser.step()
            schedule.step()
    return corrected(camera, (pose.detach() * units).numpy(), np.zeros(LENS_CORRECTION))


def moved(viewmat: Tensor, pose: Tensor) -> Tensor:
    """[4, 4] corrected by a rotation and a translation [6] in the camera's frame (slang/splat/camera_correction.slang)."""
    x, y, z = pose[:3]
    zero = torch.zeros_like(x)
    generator = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero]).reshape(3, 3)
    step = torch.nn.functional.pad(torch.linalg.matrix_exp(generator), (0, 1, 0, 1))
    correction = step + torch.nn.functional.pad(pose[3:, None], (3, 0, 0, 1))
    return (correction + torch.diag(pose.new_tensor([0.0, 0, 0, 1]))) @ viewmat
