"""The curves of `splat bench --quality` as an SVG."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from splat_py.files import atomic_path
from splat_py.pages.curves import Curve, curves_svg


def draw(path: Path, results: Mapping[str, Mapping[str, Any]]) -> None:
    """PSNR in dB against processor seconds, a curve of means for each result and bars of one standard deviation."""
    curves = [
        Curve(
            f"{name}, {found['steps']:,} steps",
            [(row["processor_seconds"], row["psnr"], row["psnr_spread"]) for row in found["mean"]],
        )
        for name, found in results.items()
    ]
    head, rest = curves_svg(curves, "processor seconds", "PSNR of held-out views, dB").split("\n", 1)
    with atomic_path(path) as temporary:
        temporary.write_text(f'{head}\n<rect width="100%" height="100%" fill="white"/>\n{rest}\n', encoding="utf-8")
