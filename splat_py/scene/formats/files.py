"""Which format a file of Gaussians has, by its name's ending, and what of a scene the format cannot hold."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splat_py.errors import SplatError
from splat_py.files import atomic_path, reason
from splat_py.scene.formats import compressed_ply, dot_splat, glb, ksplat, sog, spz
from splat_py.scene.formats.dot_splat import FLOAT32_LOGS
from splat_py.scene.formats.endings import COMPRESSED_PLY, ENDINGS, META, PLY, ending_of, require_scene_file
from splat_py.scene.ply import GaussianArrays, read_gaussians, write_gaussians


@dataclass(frozen=True)
class _Format:
    """A format of bytes; `degree` is the highest of harmonics that it holds, `antialiased` whether it says so, `log_scales` are
    the least and the largest logarithm of a deviation."""

    encode: Callable[[GaussianArrays], bytes]
    decode: Callable[[bytes], GaussianArrays]
    degree: int = 3
    antialiased: bool = False
    log_scales: tuple[float, float] = FLOAT32_LOGS


_FORMATS = {
    ".spz": _Format(spz.encode, spz.decode, antialiased=True, log_scales=spz.LOG_SCALES),
    ".sog": _Format(sog.encode, sog.decode, antialiased=True, log_scales=(-np.inf, np.inf)),
    ".splat": _Format(dot_splat.encode, dot_splat.decode, degree=0),
    ".ksplat": _Format(ksplat.encode, ksplat.decode, degree=2, log_scales=ksplat.LOG_SCALES),
    ".glb": _Format(glb.encode, glb.decode),
}


def read_scene(path: str | os.PathLike[str]) -> GaussianArrays:
    """Read Gaussians from a file of any format.

    Raises:
        SplatError: the name has another ending; there is no such file, or it is damaged.
    """
    path = Path(path)
    ending = require_scene_file(path)
    if ending in (PLY, COMPRESSED_PLY):
        return read_gaussians(path)
    try:
        # Whoever uses them looks for numbers that are not finite.
        with np.errstate(all="ignore"):
            return sog.decode_folder(path) if ending == META else _FORMATS[ending].decode(path.read_bytes())
    except SplatError as error:
        raise SplatError(f"{path}: {error}") from error
    except MemoryError:
        raise
    # Decoders let all that NumPy, zipfile and the like raise of damaged numbers through.
    except Exception as error:
        name = "SOG" if ending == META else ending
        raise SplatError(f"{path} is no {name} file or is damaged ({reason(error)}); export it again") from error


def write_scene(path: str | os.PathLike[str], gaussians: GaussianArrays, spz_version: int = spz.DEFAULT_VERSION) -> list[str]:
    """Write Gaussians to a file of the format that its name ends in, which appears complete or not at all.

    Args:
        spz_version: 2, 3 or 4, of a .spz.

    Returns:
        What the format does not hold of these, a clause each, for the user; quantisation (docs/files.md) is not among them.

    Raises:
        SplatError: the name has another ending, or the Gaussians are of a kind that the format cannot hold, or most of a size.
    """
    path = Path(path)
    ending = ending_of(path)
    if ending is None or ending == META:
        raise SplatError(f"{path} does not end in {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}, which are written")
    spz.require_version(spz_version)
    if ending == PLY:
        write_gaussians(path, gaussians)
        return []
    splat, color = (gaussians.types[slot][0] for slot in ("splat", "color"))
    if splat != "Gaussian":
        raise SplatError(f"{ending} holds Gaussians only, and these splats are of type {splat}; write a .ply")
    if ending == COMPRESSED_PLY:
        sizes = _sizes_lost(ending, gaussians, compressed_ply.LOG_SCALES)
        ply = compressed_ply.encode(gaussians)
        with atomic_path(path) as temporary:
            ply.write(str(temporary))
        return _losses(gaussians, color, 3, False) + sizes
    kind = _FORMATS[ending]
    sizes = _sizes_lost(ending, gaussians, kind.log_scales)
    data = spz.encode(gaussians, spz_version) if ending == ".spz" else kind.encode(gaussians)
    with atomic_path(path) as temporary:
        temporary.write_bytes(data)
    return _losses(gaussians, color, kind.degree, kind.antialiased) + sizes


# What logarithms of a format's ends may be beyond them.
_ROUNDED = 0.01


def _sizes_lost(ending: str, gaussians: GaussianArrays, held: tuple[float, float]) -> list[str]:
    """What becomes of Gaussians that are larger than the format's largest; thin ones become its thinnest, which nobody sees.

    Args:
        held: the least and the largest logarithm of a deviation.

    Raises:
        SplatError: most Gaussians are smaller or larger than any that the format holds, so that the scene would be another.
    """
    least, most = held[0] - _ROUNDED, held[1] + _ROUNDED
    # Of flat and of long Gaussians too, how far they reach.
    largest = gaussians.log_scales.max(axis=1, initial=-np.inf)
    larger, smaller = int((largest > most).sum()), int((largest < least).sum())
    count = len(largest)
    for outside, comparison, bound, end in ((larger, "larger", held[1], "up to"), (smaller, "smaller", held[0], "from")):
        if 2 * outside > count:
            raise SplatError(
                f"{outside:,} of {count:,} Gaussians are {comparison} than {ending} holds, which has deviations {end} "
                f"{np.exp(bound):.3g} units; choose another --scale, or write a .ply"
            )
    return [f"how large {larger:,} of {count:,} Gaussians are, only deviations up to {np.exp(held[1]):.3g}"] if larger else []


def _losses(gaussians: GaussianArrays, color: str, degree: int, antialiased: bool) -> list[str]:
    losses = []
    if color != "SphericalHarmonics":
        losses.append(f"colours of type {color}, which look the same from all directions in it")
    if gaussians.sh.shape[1] > (degree + 1) ** 2:
        losses.append(
            f"harmonics above degree {degree}: reflections are simpler" if degree else "how colours change with the view"
        )
    if gaussians.antialiased and not antialiased:
        losses.append("that the scene was trained antialiased, which viewers have to be told")
    return losses
