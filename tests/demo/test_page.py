"""The page that `splat demo` ends with: complete, from disk, and with names that stay text."""

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import imageio.v3 as iio
import numpy as np
import pytest

from splat_py.commands import devices as demo
from splat_py.commands.devices import Demo
from splat_py.demo.page import Curve, Section, curves_svg, write_page
from splat_py.demo.scene import write_demo_scene
from tests.browser import open_page

HOSTILE = "a\"b'<img src=x onerror=document.title=1>&$title #?%41é.png"


class Addresses(HTMLParser):
    def __init__(self, page: Path) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.found: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        assert not any(name.startswith("on") for name, _ in attrs)
        self.found += [value or "" for name, value in attrs if name in ("src", "href", "poster", "srcset", "action")]


def section(folder: Path, name: str) -> Section:
    picture = folder / name
    iio.imwrite(picture, np.full((9, 9, 3), 90, np.uint8), extension=".png")
    named = [(picture, name)]
    return Section(name, name, [(name, name)], Curve(name, [(0, 1, 0), (1, 2, 0)]), named, named, named)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "<b> out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("splat_py.demo.scene.write_demo_scene", lambda data, size: write_demo_scene(data, views=13, size=16))
        field = replace(demo._FIELD, resolutions=(4, 8), steps_per_resolution=3)
        for name, value in (("_FRAMES", 3), ("_BLOBS", 50), ("_IMAGE_STEPS", 10), ("_FIELD", field)):
            patch.setattr(demo, name, value)
        Demo(folder, steps=10).run()
        (folder / "index.html").unlink()
        with pytest.warns(UserWarning, match="is finished"):
            Demo(folder, steps=10).run()
    return folder


@pytest.mark.parametrize(
    ("name", "systems", "pictures", "files"),
    [
        ("index", 3, 6, {"./run/scene.html", "./run/scene.ply", "./turntable.mp4", "./image/fit.png", "./developers.html"}),
        ("developers", 1, 2, {"./flat-color.png"}),
    ],
)
def test_all_systems_are_there_and_every_address_is_a_file(
    name: str, systems: int, pictures: int, files: set[str], out: Path
) -> None:
    page = Addresses(out / f"{name}.html")
    assert page.elements.count("section") == page.elements.count("svg") == page.elements.count("dl") == systems
    assert page.elements.count("video") == systems // 3 and page.elements.count("img") == pictures
    assert "script" not in page.elements and "link" not in page.elements and "b" not in page.elements
    for address in page.found:
        assert address.startswith("./") and (out / unquote(address)).is_file(), address
    assert files <= {unquote(address) for address in page.found}
    text = (out / f"{name}.html").read_text(encoding="utf-8")
    assert "url(" not in text and "@import" not in text
    assert text.count("<dt>time</dt>") == text.count("<dt>PSNR") == systems


def test_pictures_have_their_sizes(out: Path) -> None:
    assert iio.imread(out / "image" / "fit.png").shape == (64, 64, 3)
    assert len(np.unique(iio.imread(out / "flat-color.png").reshape(-1, 3), axis=0)) == 1


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    write_page(page, HOSTILE, HOSTILE, [section(tmp_path, HOSTILE)])
    found = Addresses(page)
    assert found.elements.count("img") == 2 and "script" not in found.elements
    assert {unquote(address) for address in found.found} == {f"./{HOSTILE}"}
    assert "<img src=x" not in page.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_in_a_browser(width: int, out: Path, tmp_path: Path) -> None:
    """The page requests only files, every picture loads, nothing is wider than the screen, and hostile names do nothing."""
    write_page(tmp_path / "index.html", HOSTILE, "", [section(tmp_path, HOSTILE)])
    with open_page(width, 844) as page:
        for file in (out / "index.html", tmp_path / "index.html"):
            page.goto(file.as_uri())
            assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
            assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.title() == HOSTILE
        page.emulate_media(color_scheme="dark")
        background = "getComputedStyle(document.body).backgroundColor"
        dark = page.evaluate(background)
        page.emulate_media(color_scheme="light")
        assert page.evaluate(background) != dark


@pytest.mark.parametrize(
    ("points", "labels"),
    [
        ([(0, 20, 0), (10, 30, 0)], {"0", "2", "20", "28", "30"}),
        ([(0, 5, 0), (0.05, 5, 0)], {"0.00", "0.01", "0.05"}),
        ([(0, 7, 0)], set()),
    ],
)
def test_lines_stand_at_round_numbers(points: list[tuple[float, float, float]], labels: set[str]) -> None:
    svg = curves_svg([Curve("<&", points)], "s", "dB")
    assert all(f">{label}</text>" in svg for label in labels)
    assert "&lt;&amp;</text>" in svg and "nan" not in svg
