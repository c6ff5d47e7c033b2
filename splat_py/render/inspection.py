"""Why a pixel has its colour: the splats that a pixel blends, front to back, with their shares and their gradients."""

from dataclasses import dataclass
from html import escape

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from splat_py.base.arguments import as_integer, finite_array, require_instance
from splat_py.base.errors import SplatError
from splat_py.render.views import BLACK, rasterized
from splat_py.scene.camera import Camera
from splat_py.scene.environment import Environment
from splat_py.scene.gaussians import Gaussians
from splat_py.shaders.declarations import types_of

Floats = NDArray[np.float64]

# Rows that a table shows; the rest is one line.
_ROWS = 40


@dataclass(frozen=True, eq=False)
class Pixel:
    """The S splats that a pixel blends, front to back, and the pixel's colour Σ weights · colors + T · background."""

    x: int
    y: int
    ids: NDArray[np.int64]  # [S] indices of Gaussians
    depths: Floats  # [S] world units
    alphas: Floats  # [S]
    transmittances: Floats  # [S] T before each splat
    weights: Floats  # [S] α T
    colors: Floats  # [S, 3]
    T: float  # behind all splats
    background: Floats  # [3]
    # With a gradient of the pixel's colour: those of each splat's α [S] and colour [S, 3].
    v_alphas: Floats | None = None
    v_colors: Floats | None = None

    @property
    def color(self) -> Floats:
        """The pixel's colour [3]."""
        return self.weights @ self.colors + self.T * self.background

    @property
    def running(self) -> Floats:
        """The colour [S, 3] after each splat, over black."""
        return np.cumsum(self.weights[:, None] * self.colors, 0)

    def __repr__(self) -> str:
        head = f"pixel ({self.x}, {self.y}): {len(self.ids)} splats, colour {np.round(self.color, 3)}, T {self.T:.3g}"
        table = ["  ".join(f"{name:>8}" for name in self._columns()), *("  ".join(row) for row in self._rows())]
        return "\n".join([head, *table, *self._rest()])

    def _repr_html_(self) -> str:
        heads = "".join(f"<th>{escape(name)}</th>" for name in ("", *self._columns(), "share", "after it"))
        bodies = []
        for i, row in enumerate(self._rows()):
            share = f'<div style="width:{100 * self.weights[i]:.1f}px;height:1em;background:#888"></div>'
            cells = "".join(f"<td>{cell}</td>" for cell in (_swatch(self.colors[i]), *row, share, _swatch(self.running[i])))
            bodies.append(f"<tr>{cells}</tr>")
        title = f"<p>pixel ({self.x}, {self.y}) {_swatch(self.color)} T = {self.T:.3g}</p>"
        rest = "".join(f"<p>{line}</p>" for line in self._rest())
        return f"{title}<table><tr>{heads}</tr>{''.join(bodies)}</table>{rest}"

    def _columns(self) -> list[str]:
        gradients = [] if self.v_alphas is None else ["dL/dα"]
        return ["id", "depth", "α", "T before", "weight", "r", "g", "b", *gradients]

    def _rows(self) -> list[list[str]]:
        numbers = [self.depths, self.alphas, self.transmittances, self.weights, *self.colors.T]
        numbers += [] if self.v_alphas is None else [self.v_alphas]
        return [[f"{self.ids[i]:>8}", *(f"{column[i]:>8.4g}" for column in numbers)] for i in range(min(len(self.ids), _ROWS))]

    def _rest(self) -> list[str]:
        return [f"and {len(self.ids) - _ROWS:,} behind these"] if len(self.ids) > _ROWS else []


def _swatch(color: Floats) -> str:
    r, g, b = np.clip(np.rint(255 * color), 0, 255).astype(int)
    return f'<span style="display:inline-block;width:2em;height:1em;background:rgb({r},{g},{b})"></span>'


def require_pixel(camera: Camera, x: int, y: int) -> None:
    """Raise SplatError unless column x and row y are in the camera's picture."""
    require_instance(Camera, camera=camera)
    as_integer("x", x, 0, camera.width - 1)
    as_integer("y", y, 0, camera.height - 1)


def inspect(
    gaussians: Gaussians,
    camera: Camera,
    x: int,
    y: int,
    background: ArrayLike | Environment = BLACK,
    *,
    v_pixel: ArrayLike | None = None,
    **how: object,
) -> Pixel:
    """List the splats that pixel (x, y) of a camera's picture blends, front to back. Its HTML in a notebook is a table.

    A splat's weight α T is the gradient of a pixel that blends ones by the splat's one, so it is right for every kind of splat;
    α and T follow from the weights before it. The sum is the pixel of `render`, before that is limited to 0 to 1.

    Args:
        x, y: column and row, from 0.
        background: rgb behind the scene, or the environment learnt with it.
        v_pixel: a gradient [3] of the pixel's colour; then the result has those of each splat's α and colour.
        how: `antialiased`, `near` and `device` of `render`.

    Raises:
        SplatError: the pixel is outside of the picture, or colours vary within the scene's splats (`ISplatColor`).
    """
    require_instance(Gaussians, gaussians=gaussians)
    require_pixel(camera, x, y)
    if types_of(getattr(gaussians.splat, "text", ""), "ISplatColor"):
        raise SplatError("the scene's splats have colours that vary within them; inspect lists splats of one colour")
    ones = torch.ones(len(gaussians), 1, device=gaussians.means.device, requires_grad=True)
    with torch.enable_grad():
        _, _, meta = rasterized(gaussians, camera, extra_signals=ones, **how)  # type: ignore[arg-type]
        of_all = torch.autograd.grad(meta["render_extra_signals"][0, y, x, 0], ones)[0][:, 0].cpu().numpy()
    size = meta["tile_size"]
    starts = torch.cat([meta["isect_offsets"].reshape(-1).cpu(), torch.tensor([len(meta["flatten_ids"])])]).tolist()
    tile = y // size * meta["tile_width"] + x // size
    listed = meta["flatten_ids"][starts[tile] : starts[tile + 1]].cpu().numpy().astype(np.int64)
    ids = listed[of_all[listed] > 0]

    weights = of_all[ids].astype(np.float64)
    transmittances = 1 - np.cumsum(weights) + weights
    alphas = weights / transmittances
    colors = meta["colors"][0, ids, :3].cpu().double().numpy()
    depths = meta["depths"][0, ids].cpu().double().numpy()
    T = 1 - float(weights.sum())
    rgb = background.colors(camera)[y, x] if isinstance(background, Environment) else background
    behind = finite_array("background", rgb, (3,))
    v_alphas = v_colors = None
    if v_pixel is not None:
        v = finite_array("v_pixel", v_pixel, (3,))
        # The part of v · colour that comes from behind each splat.
        later = np.cumsum((weights * (colors @ v))[::-1])[::-1] - weights * (colors @ v) + T * (behind @ v)
        v_alphas = transmittances * (colors @ v) - later / (1 - alphas)
        v_colors = weights[:, None] * v
    return Pixel(x, y, ids, depths, alphas, transmittances, weights, colors, T, behind, v_alphas, v_colors)
