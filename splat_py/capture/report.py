"""What a capture has found, and of each photograph that is not part of it the reason and what helps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from splat_py.capture.photographs import Photograph

# Features and matches below which there is little to go by; COLMAP needs 30 matches with points of the scene.
_FEW_FEATURES, _FEW_MATCHES = 100, 45
# Share of the median sharpness, and contrast.
_BLURRED, _FLAT = 0.35, 0.02


@dataclass(frozen=True)
class Unregistered:
    """A photograph that is not part of the scene: its name where it was found, why, and what helps."""

    name: str
    reason: str
    advice: str


@dataclass(frozen=True)
class CaptureReport:
    """What `capture` has found.

    Attributes:
        root: the folder, which `splat train` and `load_dataset` read.
        registered: names of the photographs whose pose is known, in `root`/images.
        unregistered: the others.
        points: of the sparse scene.
        error: mean distance of points from where they were seen, in pixels.
        seconds: what each phase has taken.
    """

    root: Path
    registered: list[str]
    unregistered: list[Unregistered]
    points: int
    error: float
    seconds: dict[str, float]


@dataclass(frozen=True)
class Found:
    """What capture.json has of a model: names of its photographs, its points, and their mean error in pixels."""

    registered: tuple[str, ...]
    points: int
    error: float


def unregistered_photographs(
    photographs: Sequence[Photograph],
    parts: Mapping[str, int],
    features: Mapping[str, int | None],
    matches: Mapping[tuple[str, str], int],
) -> list[Unregistered]:
    """Those that are not of the model that is kept.

    Args:
        parts: of which model each registered photograph is; 0 is kept.
        features: of each photograph.
        matches: of each pair that was compared.
    """
    sources = {photograph.name: photograph.source for photograph in photographs}
    typical = median(photograph.sharpness for photograph in photographs)
    sizes = {part: sum(1 for other in parts.values() if other == part) for part in set(parts.values())}
    partners: dict[str, list[tuple[int, str]]] = {}
    for (a, b), count in matches.items():
        partners.setdefault(a, []).append((count, b))
        partners.setdefault(b, []).append((count, a))
    result = []
    for photograph in photographs:
        part = parts.get(photograph.name)
        if part == 0:
            continue
        count, other = max(partners.get(photograph.name, ()), default=(0, ""))
        found = features.get(photograph.name) or 0
        best = f"{count} matches at best, with {sources[other]}" if count else "no match with any other"
        blurred = photograph.sharpness < _BLURRED * typical
        if photograph.contrast < _FLAT:
            reason = f"nearly one colour, too dark or too bright: {found} features"
            advice = "take it again in other light, or leave it out"
        elif blurred and (found < _FEW_FEATURES or count < _FEW_MATCHES):
            reason = f"blurred: its sharpness is {photograph.sharpness:.2g}, and {typical:.2g} is the median; {best}"
            advice = "take it again with a steady hand or more light, or leave it out"
        elif found < _FEW_FEATURES:
            reason = f"only {found} features: little in it has texture"
            advice = "take it again so that more of the scene's texture is in the picture"
        elif part is not None:
            reason = f"one of {sizes[part]} photographs that fit together, but not to the others"
            advice = "take photographs on the way from these to the others, so that both are in the picture"
        elif count < _FEW_MATCHES:
            reason = f"too little overlap: {best}"
            advice = "take photographs between it and the others, a step apart" if count else "is it of the same scene?"
        else:
            reason = f"its place is not certain, with {best}"
            advice = "take more photographs near it, from places to its left and right"
        result.append(Unregistered(photograph.source, reason, advice))
    return result
