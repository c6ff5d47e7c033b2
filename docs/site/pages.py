"""Hooks of mkdocs: where pages come from, and pages that are generated from sources.

The site has the repository's folders: README.md is its first page, docs/files.md is docs/files.html, and links and pictures
stay as they are. The hooks generate the pages of examples, of notebooks with their pictures and formulas, of the command line
and of Slang's functions.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
# Documents outside docs/, and the pictures and sources that documents show or link to.
_DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "benchmarks/README.md",
    "benchmarks/levers.md",
    "tests/metal/README.md",
    "tests/cuda/README.md",
)
_LINKED = ("benchmarks/*.svg", "examples/minimal.slang", "slang/splat/rasterization.slang")
_SLANG_FOLDERS = ("slang/splat", "slang/parallel")
_CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$\n]+?)\$", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Put each page at its path in the repository."""
    for file in list(files):
        if file.abs_src_path is not None and Path(file.abs_src_path).is_relative_to(config.docs_dir):
            files.remove(file)
            files.append(File.generated(config, f"docs/{file.src_uri}", abs_src_path=file.abs_src_path))
    for path in [*_DOCUMENTS, *(path.relative_to(ROOT).as_posix() for glob in _LINKED for path in ROOT.glob(glob))]:
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    for path, content in made():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links to examples lead to their generated pages, hide the navigation of the first page, and show gsplat's names as
    scripts write them."""
    if page.file.name == "gsplat":
        markdown = re.sub(
            r"^(::: [\w.]+)$(?!\n +options)", r"\1\n    options: {show_root_full_path: false}", markdown, flags=re.M
        )
    if page.file.src_uri.startswith("docs/reference/"):
        page.meta["search"] = {"boost": 0.5 if page.file.src_uri.endswith("/slang.md") else 2}
    if page.file.src_uri == "README.md":
        page.meta["hide"] = ["navigation"]
    return re.sub(r"\(((?:\.\./)?examples/\w+)\.py\)", r"(\1.md)", markdown)


def made() -> Iterator[tuple[str, str | bytes]]:
    """Generated pages and pictures."""
    for path in sorted((ROOT / "examples").glob("*.py")):
        yield f"examples/{path.stem}.md", example(path)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        yield f"notebooks/{path.name}", path.read_bytes()
        yield from notebook(path)
    yield "docs/reference/commands.md", commands()
    yield "docs/reference/slang.md", slang()


def example(path: Path) -> str:
    """A script, below the first line of its docstring."""
    source = path.read_text(encoding="utf-8")
    title = source.split('"""')[1].partition("\n")[0].rstrip(".")
    return f"# {title}\n\n`python examples/{path.name}`\n\n```python\n{source}```\n"


# --- Notebooks ------------------------------------------------------------------------------------------------


def notebook(path: Path) -> Iterator[tuple[str, str | bytes]]:
    """A notebook as a page: its text, code and printed output, with answers folded; its pictures as files."""
    page: list[str] = []
    pictures = 0
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            page.append(with_formulas(text))
            continue
        is_answer = "answer" in cell["metadata"].get("tags", ())
        if is_answer:
            page.append('<details markdown="1"><summary>Answer</summary>')
        page.append(fenced(text, "python"))
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                page.append(fenced("".join(output["text"]), "text"))
            elif "image/png" in output["data"]:
                pictures += 1
                name = f"{path.stem}-{pictures}.png"
                yield f"notebooks/{name}", base64.b64decode(output["data"]["image/png"])
                page.append(f"![What the cell above draws]({name})")
            elif "text/html" in output["data"]:
                page.append("".join(output["data"]["text/html"]))
            else:
                page.append(fenced("".join(output["data"]["text/plain"]), "text"))
        if is_answer:
            page.append("</details>")
    page.insert(1, f"This is [`notebooks/{path.name}`]({path.name}) as it was last run.")
    yield f"notebooks/{path.stem}.md", "\n\n".join(page) + "\n"


def fenced(text: str, language: str) -> str:
    """A fenced block of code."""
    return f"```{language}\n{text.rstrip()}\n```"


def with_formulas(markdown: str) -> str:
    """Turn TeX between dollars into MathML, which browsers draw without a library."""
    parts = _CODE.split(markdown)
    return "".join(part if number % 2 else _FORMULA.sub(_formula, part) for number, part in enumerate(parts))


def _formula(match: re.Match[str]) -> str:
    displayed, inline = match.groups()
    if displayed:
        return latex2mathml.converter.convert(displayed, display="block")
    # The span keeps a formula at the start of a line from becoming a paragraph.
    return f"<span>{latex2mathml.converter.convert(inline)}</span>"


# --- The command line -----------------------------------------------------------------------------------------


def commands() -> str:
    """The page of every command's --help."""
    from splat_py.commands.main import Command

    names = [get_args(command)[1].name for command in get_args(Command)]
    page = ["# Command line", f"`splat COMMAND`, one of {len(names)}. Each prints with `--help` what stands here."]
    for name in names:
        page += [f"## splat {name}", fenced(help_of(name), "text")]
    return "\n\n".join(page) + "\n"


def help_of(command: str) -> str:
    """The --help of a command, in lines of 90 characters without colours."""
    from splat_py.commands.main import main

    printed = io.StringIO()
    arguments, columns = sys.argv, os.environ.get("COLUMNS")
    sys.argv, os.environ["COLUMNS"] = ["splat", command, "--help"], "90"
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.argv = arguments
        os.environ.pop("COLUMNS")
        if columns is not None:
            os.environ["COLUMNS"] = columns
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


# --- Slang ----------------------------------------------------------------------------------------------------


@dataclass
class Declaration:
    """A public declaration of a Slang module."""

    comment: str
    text: str


_PUBLIC = re.compile(r"((?:^///.*\n)*)((?:^\[.*\]\n)*^(?:\[.*\] )?public (?:[^{;]|\n)*?)(?=\n?\s*[{;])", re.MULTILINE)


def slang() -> str:
    """Public functions, types and interfaces of the shaders, by module."""
    page = ["# Shaders in Slang", (ROOT / "docs" / "reference" / "slang.txt").read_text(encoding="utf-8").strip()]
    for folder in _SLANG_FOLDERS:
        for path in sorted((ROOT / folder).glob("*.slang")):
            source = path.read_text(encoding="utf-8")
            found = list(declarations(source))
            if not found:
                continue
            page += [f"## {path.stem}", f"`{path.relative_to(ROOT).as_posix()}`. {head(source)}"]
            for declaration in found:
                page += [fenced(declaration.text, "slang"), declaration.comment]
    return "\n\n".join(part for part in page if part) + "\n"


def head(source: str) -> str:
    """The comment at the beginning of a file, if it describes the file."""
    lines = re.match(r"(?:///.*\n)+\n", source)
    return "" if lines is None else uncommented(lines[0])


def declarations(source: str) -> Iterator[Declaration]:
    """Public declarations at the left margin, with their comments; types without the bodies of their functions."""
    for match in _PUBLIC.finditer(source):
        text = match[2]
        if re.search(r"^public (struct|interface)", text, re.MULTILINE):
            text += without_bodies(source[match.end() : source.index("\n}", match.end()) + 2])
        yield Declaration(uncommented(match[1]), text.strip())


def without_bodies(braced: str) -> str:
    """The text within a pair of braces, without that of braces inside it."""
    kept, depth = "", 0
    for character in braced:
        if character == "{" and depth == 1:
            kept = kept.rstrip() + ";"
        depth += (character == "{") - (character == "}")
        if depth < 2 and not (character == "}" and depth == 1):
            kept += character
    return kept


def uncommented(comment: str) -> str:
    """The text of a comment, as Markdown."""
    return "\n".join(line.removeprefix("///").strip() for line in comment.strip().splitlines())
