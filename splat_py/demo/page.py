"""The page that `splat demo` ends with: what was made, with its pictures, curves and times, in one file beside them.

It has no scripts and asks nothing of a network, so that it opens from disk.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from string import Template
from urllib.parse import quote

from splat_py.files import atomic_path
from splat_py.pages.curves import Curve, curves_svg

_VIDEOS = (".mp4", ".webm")


@dataclass(frozen=True)
class Figure:
    """A picture or a video that is a file, and what it shows."""

    path: Path
    caption: str


@dataclass(frozen=True)
class Section:
    """One of the systems.

    Attributes:
        title, text: as plain text.
        facts: names and values, the first of which are its time and its PSNR.
        curve: PSNR in dB over seconds.
        large: figures beside the curve.
        figures: small ones below.
        links: files, and what the reader is told of them.
    """

    title: str
    text: str
    facts: Sequence[tuple[str, str]]
    curve: Curve
    large: Sequence[Figure] = ()
    figures: Sequence[Figure] = ()
    links: Sequence[tuple[Path, str]] = ()


def write_page(path: Path, title: str, summary: str, sections: Sequence[Section]) -> None:
    """Write a page, complete or not at all. Files are named relative to it."""
    template = Template((Path(__file__).parent / "page.html").read_text(encoding="utf-8"))
    body = "\n".join(_section(path.parent, section) for section in sections)
    text = template.substitute(title=escape(title), summary=escape(summary), sections=body)
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _section(folder: Path, section: Section) -> str:
    facts = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in section.facts)
    links = "".join(f'<p><a href="{_address(folder, file)}">{escape(text)}</a></p>' for file, text in section.links)
    curve = curves_svg([section.curve], "seconds", "PSNR, dB")
    large, figures = ("".join(_figure(folder, figure) for figure in part) for part in (section.large, section.figures))
    return (
        f"<section>\n<h2>{escape(section.title)}</h2>\n<p>{escape(section.text)}</p>\n<dl>{facts}</dl>\n{links}\n"
        f'<div class="wide">{large}<figure>{curve}</figure></div>\n<div class="many">{figures}</div>\n</section>'
    )


def _figure(folder: Path, figure: Figure) -> str:
    address, caption = _address(folder, figure.path), escape(figure.caption)
    if figure.path.suffix in _VIDEOS:
        shown = f'<video src="{address}" aria-label="{caption}" controls autoplay muted loop playsinline></video>'
    else:
        shown = f'<img src="{address}" alt="{caption}">'
    return f"<figure>{shown}<figcaption>{caption}</figcaption></figure>"


def _address(folder: Path, file: Path) -> str:
    """A relative one, whatever the file is called."""
    return "./" + quote(Path(os.path.relpath(file, folder)).as_posix())
