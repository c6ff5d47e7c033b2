"""The documentation as a site: built strictly, complete, with working links, and loading nothing from a network."""

import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt

import splat_py
from splat_py.gsplat.unsupported import NAMES as UNSUPPORTED
from tests.browser import open_page

pytest.importorskip("material", reason="needs mkdocs-material: pip install 'slang-splat[docs]'")

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
# Elements that browsers load at once, and the attribute with the address.
_LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
_CSS_ADDRESS = re.compile(r"(?:@import\s+|url\(\s*)[\"']?(https?:|//)")


@dataclass
class Content(HTMLParser):
    """Ids, resources, links and headings of a page; structure is counted inside its <article>."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    tags: Counter[str] = field(default_factory=Counter)
    prose: list[str] = field(default_factory=list)
    in_code: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags[tag] += 1
        self.in_code |= tag == "pre"
        self.ids |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given and "headerlink" not in given.get("class", ""):
            self.links.append(given["href"])
        if given.get(_LOADED.get(tag, "")):
            self.loads.append(given[_LOADED[tag]])

    def handle_endtag(self, tag: str) -> None:
        self.in_code &= tag != "pre"

    def handle_data(self, data: str) -> None:
        if not self.in_code:
            self.prose.append(data)


def read(html: str) -> Content:
    content = Content()
    content.feed(html)
    return content


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Content]:
    return {path: read(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}


def test_links_and_pictures_lead_somewhere(pages: dict[Path, Content]) -> None:
    assert len(pages) > 40
    missing = []
    for path, content in pages.items():
        for link in content.links + content.loads:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_file() or (parts.fragment and target in pages and parts.fragment not in pages[target].ids):
                missing.append(f"{path.name}: {link}")
    assert not missing


def test_nothing_is_loaded_from_a_network(site: Path, pages: dict[Path, Content]) -> None:
    foreign = [f"{path.name}: {link}" for path, page in pages.items() for link in page.loads if urlsplit(link).netloc]
    foreign += [style.name for style in site.rglob("*.css") if _CSS_ADDRESS.search(style.read_text(encoding="utf-8"))]
    assert not foreign


def test_every_public_name_is_in_the_reference(pages: dict[Path, Content]) -> None:
    names = set().union(*(page.ids for page in pages.values()))
    without_page = {"capture", "evaluation", "image", "portable", "shaders", "testing", "volume", "__version__"}
    wanted = {f"splat_py.{name}" for name in set(splat_py.__all__) - without_page}
    for module in ("image", "volume"):
        wanted |= {f"splat_py.{module}.{name}" for name in import_module(f"splat_py.{module}").__all__}
    assert wanted - names == set()


def test_every_name_of_gsplats_that_is_supported_is_in_the_reference(pages: dict[Path, Content]) -> None:
    (page,) = [content for path, content in pages.items() if path.parts[-2:] == ("reference", "gsplat.html")]
    names = {name.rpartition(".")[2] for name in page.ids} | {"rasterization", "rasterization_2dgs", "__version__"}
    assert set(import_module("splat_py.gsplat").__all__) - set(UNSUPPORTED) - names == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_page_has_what_a_code_host_shows(document: Path, site: Path) -> None:
    """The site's Markdown is Python's, code hosts' is CommonMark: lists, tables and code are the same in both."""
    place = document.relative_to(ROOT).with_suffix(".html")
    html = (site / (place if place.name != "README.html" else place.with_name("index.html"))).read_text(encoding="utf-8")
    built = read(html[html.index("<article") : html.index("</article>")]).tags
    shown = read(MarkdownIt("commonmark").enable("table").render(document.read_text(encoding="utf-8"))).tags
    for tag in ("h1", "h2", "h3", "ul", "ol", "li", "table", "tr", "pre", "img", "em", "strong"):
        assert built[tag] == shown[tag], tag


def test_formulas_are_drawn_by_the_browser(pages: dict[Path, Content]) -> None:
    notebooks = {path.stem: page for path, page in pages.items() if path.parent.name == "notebooks"}
    assert len(notebooks) == len(list((ROOT / "notebooks").glob("*.ipynb")))
    for page in notebooks.values():
        assert page.tags["math"] and page.tags["img"]
        assert not any("$" in text or "\\frac" in text for text in page.prose)


def test_the_site_opens_from_disk_and_searches_without_a_network(site: Path) -> None:
    with open_page(390, 800) as page:
        for name in ("index.html", "docs/architecture.html", "docs/reference/rendering.html", "notebooks/03-path-replay.html"):
            page.goto((site / name).as_uri())
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{name} is wider than a phone"
        page.set_viewport_size({"width": 1280, "height": 800})
        page.click("input.md-search__input")
        page.keyboard.type("rasterization")
        page.wait_for_selector(".md-search-result__link[href*='reference/rendering.html']")
