"""The notebooks run from top to bottom, and what they print and draw is what is stored."""

import base64
import io
from pathlib import Path
from typing import Any

import matplotlib
import nbformat
import numpy as np
import pytest
from matplotlib.figure import Figure

from tests import notebooks
from tests.render import comparison

PATHS = sorted(notebooks.FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_runs_and_shows_what_is_stored(path: Path, tmp_path: Path) -> None:
    stored, executed = nbformat.read(path, as_version=4), notebooks.execute(path, tmp_path)
    differences = []
    pairs = zip(notebooks.code_cells(stored), notebooks.code_cells(executed), strict=True)
    for number, (before, after) in enumerate(pairs):
        found = notebooks.cell_difference(before, after) if notebooks.is_compared(before) else ""
        differences += [f"code cell {number}: {found}"] if found else []
    assert not differences, "\n\n".join(differences) + f"\n\nif that is right: python -m tests.notebooks {path.name}"


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_stored(path: Path) -> None:
    """It was run to the end in order, without warnings; its figures are current, with text to compare; it uses nothing internal
    of the device's; it is not too large."""
    notebook = nbformat.read(path, as_version=4)
    code = notebooks.code_cells(notebook)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.get("name") == "stderr"]
    assert not notebooks.stale_figures(notebook), "run python -m tests.notebooks for these code cells' figures"
    assert all(notebooks.text_of(cell) for cell in code if notebooks.has_figure(cell)), "print what characterises each figure"
    assert not [cell.source for cell in code if "splat_py.gpu" in cell.source]
    assert path.stat().st_size < 1_000_000
    assert str(notebooks.FOLDER.parents[1]) not in path.read_text(encoding="utf-8")


def test_tolerances_are_those_of_the_tests() -> None:
    cells = notebooks.code_cells(nbformat.read(notebooks.FOLDER / "01-gaussian-splatting.ipynb", as_version=4))
    (line,) = (line for cell in cells for line in cell.source.splitlines() if line.startswith("RTOL, "))
    names: dict[str, float] = {}
    exec(line, names)
    assert all(names[name] == getattr(comparison, name) for name in ("RTOL", "FLOOR", "SHARE_OF_LARGEST"))


def test_a_changed_cell_makes_figures_stale() -> None:
    """The figures of this and later cells, but of no earlier one."""
    notebook = nbformat.read(PATHS[1], as_version=4)
    code = notebooks.code_cells(notebook)
    figures = [i for i, cell in enumerate(code) if notebooks.has_figure(cell)]
    code[figures[2]].source += "\n"
    assert notebooks.stale_figures(notebook) == figures[2:]


@pytest.mark.parametrize(
    ("height", "dpi", "font", "same"),
    [(1.0, 80, "DejaVu Sans", True), (1.0, 72, "DejaVu Serif", True), (1.05, 80, "DejaVu Sans", False)],
)
def test_a_changed_figure_is_noticed(height: float, dpi: int, font: str, same: bool) -> None:
    """As in another release of matplotlib, resolution and fonts may change, but no curve."""
    assert (notebooks.cell_difference(drawn(1.0, 80, "DejaVu Sans"), drawn(height, dpi, font)) == "") == same


def drawn(height: float, dpi: int, font: str) -> Any:
    """A cell with a figure of two plots, one with a curve of this height."""
    file, x = io.BytesIO(), np.linspace(0, 6, 100)
    with matplotlib.rc_context({"font.family": font}):
        figure = Figure(figsize=(13, 3.4), layout="constrained")
        left, right = figure.subplots(1, 2)
        left.plot(x, np.sin(x))
        left.plot(x, height * np.cos(x))
        left.set(title="two curves", xlabel="x")
        right.imshow(np.outer(np.sin(x), np.cos(x)))
        figure.savefig(file, dpi=dpi)
    output = nbformat.v4.new_output("display_data", {"image/png": base64.b64encode(file.getvalue()).decode()})
    return nbformat.v4.new_code_cell(outputs=[output])


@pytest.mark.parametrize(
    ("stored", "printed", "tolerance", "same"),
    [
        ("24.97 dB", "24.98 dB", 1e-3, True),
        ("24.97 dB", "24.47 dB", 1e-3, False),
        ("24.97 dB", "24.48 dB", 0.05, True),
        ("20.2 dB, 0.903", "20.2 dB, 0.863", 0.05, True),
        ("20.2 dB", "19.5 dB", 0.05, False),
        ("20.2 Gaussians", "19.5 Gaussians", 0.05, True),
        ("24.97 dB", "24.97 DB", 0.05, False),
        ("8,607 Gaussians", "8,608 Gaussians", 1e-3, True),
        ("8 bytes", "9 bytes", 1e-3, False),
        ("1e-5", "3e-5", 1e-3, False),
        ("[0.1, 2.5]", "[0.1, -2.5]", 0.05, False),
        ("-0.00", "0.00", 1e-3, True),
        ("1 2", "1 2 3", 1e-3, False),
    ],
)
def test_comparison(stored: str, printed: str, tolerance: float, same: bool) -> None:
    assert (notebooks.difference(stored, printed, tolerance) == "") == same
