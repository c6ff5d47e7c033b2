"""What gsplat's builds may or may not have, and this package does."""

from __future__ import annotations


def has_3dgs() -> bool:
    """3D Gaussians."""
    return True


def has_2dgs() -> bool:
    """Surfels."""
    return True


def has_3dgut() -> bool:
    """Gaussians by the unscented transform."""
    return False


def has_adam() -> bool:
    """`SelectiveAdam`."""
    return True


def has_camera_wrappers() -> bool:
    """Cameras as objects."""
    return False


def has_losses() -> bool:
    """`losses`."""
    return True


def has_reloc() -> bool:
    """`relocation`, and with it `MCMCStrategy`."""
    return True
