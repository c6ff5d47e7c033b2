"""Small scenes for tests of formats."""

import numpy as np

from splat_py.scene.formats.packing import StoredGaussians


def random_gaussians(count: int, degree: int = 3, seed: int = 0) -> StoredGaussians:
    random = np.random.default_rng(seed)
    coefficients = (degree + 1) ** 2
    sh = random.normal(size=(count, coefficients, 3)) * np.where(np.arange(coefficients) == 0, 0.6, 0.05)[None, :, None]
    return StoredGaussians(
        means=random.normal(size=(count, 3)).astype(np.float32),
        quats=random.normal(size=(count, 4)).astype(np.float32),
        log_scales=random.uniform(-4, -2, (count, 3)).astype(np.float32),
        logit_opacities=random.normal(size=count).astype(np.float32) * 2,
        sh=sh.astype(np.float32),
    )


def seven() -> StoredGaussians:
    """The Gaussians of the files in data/, written by other programs: splat-transform 2.7.1, .splat by GaussForge 0.6.0."""
    return random_gaussians(7)
