"""Execute notebooks, and compare their output with the stored one.

    python -m tests.notebooks notebooks/01-gaussian-splatting.ipynb …

executes notebooks and stores their output and figures, and with each figure a hash of its code. Figures are compared as small
thumbnails. Tags of cells:

    machine   output that differs between machines, such as times and names of devices: only the figures' code is compared
    trained   results of an optimisation, which adds up in another order each time: PSNR may differ by 0.5 dB, and only the
              figures' code is compared
    capture   uses the capture that SPLAT_CAPTURE names, if it is set; else the embedded scene
    answer    the answer to an exercise, which the site folds; compared like the rest
"""

import base64
import hashlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import cv2
import nbformat
import numpy as np
from nbclient import NotebookClient
from numpy.typing import NDArray

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
CAPTURE = FOLDER.parents[1] / "shared" / "data" / "fox"
# Relative tolerances of numbers; a unit of the last printed digit is always allowed.
_TOLERANCE, _TRAINED_TOLERANCE = 1e-3, 0.05
# Absolute tolerance of a trained PSNR in dB. Runs differ by up to 0.2 dB; a fault in one gradient costs 0.7 dB or more.
_DECIBELS = 0.5
# Pixels of a side of figures' thumbnails, and the largest difference. Other fonts and resolutions make 18, a curve that is 5%
# higher 46.
_SIDE, _SHADES = 64, 30
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
_MARKUP = re.compile(r"<svg.*?</svg>|<[^>]*>")
_CODE = "made_by"


def execute(path: Path, folder: Path) -> Any:
    """Run the notebook from top to bottom in `folder`."""
    if CAPTURE.is_dir():
        os.environ.setdefault("SPLAT_CAPTURE", str(CAPTURE))
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.outputs = []
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    for cell in code_cells(notebook):
        cell.outputs = _tidy(cell.outputs)
    return notebook


def _tidy(outputs: list[Any]) -> list[Any]:
    """The outputs with printed text joined, and without progress bars, which only slow machines show and are no results."""
    tidy: list[Any] = []
    for output in outputs:
        if tidy and output.output_type == "stream" and tidy[-1].get("name") == output.name:
            tidy[-1].text += output.text
        elif output.output_type == "execute_result" or "text/html" not in output.get("data", {}):
            if "text/html" in output.get("data", {}):
                # The page says the same, without the addresses and folders that differ in each run.
                output.data.pop("text/plain", None)
            tidy.append(output)
    return tidy


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags(cell: Any) -> set[str]:
    return set(cell.metadata.get("tags", ()))


def text_of(cell: Any) -> str:
    """The printed text of a cell, without the text of its figures."""
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append(output.text)
        elif "image/png" not in output.data:
            parts.append(output.data.get("text/plain", "") + _MARKUP.sub(" ", output.data.get("text/html", "")))
    return "".join(parts)


def figures(cell: Any) -> list[bytes]:
    """The PNG files of a cell."""
    data = [output.get("data", {}) for output in cell.outputs]
    return [base64.b64decode(found["image/png"]) for found in data if "image/png" in found]


def has_figure(cell: Any) -> bool:
    return bool(figures(cell))


def figure_difference(stored: bytes, drawn: bytes) -> int:
    """The largest difference of the thumbnails of two PNG files, from 0 to 255, where a pixel may move by one."""
    one, other = _thumbnail(stored), _thumbnail(drawn)
    return max(_outside(one, other), _outside(other, one))


def _thumbnail(png: bytes) -> NDArray[np.uint8]:
    picture = cv2.imdecode(np.frombuffer(png, np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    return np.asarray(cv2.resize(picture, (_SIDE, _SIDE), interpolation=cv2.INTER_AREA), np.uint8)


def _outside(picture: NDArray[np.uint8], other: NDArray[np.uint8]) -> int:
    """The most by which a pixel is lighter or darker than all nine of the other picture around it."""
    around = np.ones((3, 3), np.uint8)
    lighter, darker = cv2.subtract(picture, cv2.dilate(other, around)), cv2.subtract(cv2.erode(other, around), picture)
    return int(max(lighter.max(), darker.max()))


def code_hashes(notebook: Any) -> list[str]:
    """A hash for each code cell, of its code and all before it: everything that a figure may depend on."""
    whole, hashes = hashlib.sha256(), []
    for cell in code_cells(notebook):
        whole.update(cell.source.encode() + b"\0")
        hashes.append(whole.hexdigest()[:16])
    return hashes


def stale_figures(notebook: Any) -> list[int]:
    """The numbers of code cells whose figures come from other code."""
    stamps = [cell.metadata.get(_CODE) if has_figure(cell) else None for cell in code_cells(notebook)]
    found = enumerate(zip(stamps, code_hashes(notebook), code_cells(notebook), strict=True))
    return [i for i, (stamp, now, cell) in found if has_figure(cell) and stamp != now]


def difference(stored: str, printed: str, tolerance: float) -> str:
    """The difference of two texts, whose numbers may differ by the tolerance, PSNR by 0.5 dB at most; empty if none."""
    if _NUMBER.sub("#", stored) != _NUMBER.sub("#", printed):
        return f"stored:\n{stored}\nprinted:\n{printed}"
    for before, after in zip(_NUMBER.finditer(stored), _NUMBER.finditer(printed), strict=True):
        one, other = before[0], after[0]
        a, b = _value(one), _value(other)
        allowed = tolerance * max(abs(a), abs(b))
        if stored.startswith(" dB", before.end()):
            allowed = min(allowed, _DECIBELS)
        if abs(a - b) > max(allowed, 1.01 * max(_last_digit(one), _last_digit(other))):
            return f"{one} is stored and {other} printed:\n{printed}"
    return ""


def cell_difference(stored: Any, executed: Any) -> str:
    """The difference of a cell's text and figures; empty if none."""
    before, after = figures(stored), figures(executed)
    if len(before) != len(after):
        return f"{len(before)} figures are stored and {len(after)} drawn"
    if "trained" in tags(stored):
        return difference(text_of(stored), text_of(executed), _TRAINED_TOLERANCE)
    off = max(map(figure_difference, before, after), default=0)
    if off > _SHADES:
        return f"a figure differs from the stored one by {off} of 255"
    return difference(text_of(stored), text_of(executed), _TOLERANCE)


def _value(number: str) -> float:
    return float(number.replace(",", "").replace("−", "-"))


def _last_digit(number: str) -> float:
    """The value of a unit of its last digit; 0 for a whole number, which is a count."""
    mantissa, _, exponent = number.partition("e")
    digits = len(mantissa.partition(".")[2])
    return 10.0 ** (int(exponent or 0) - digits) if digits or exponent else 0.0


def is_compared(cell: Any) -> bool:
    return "machine" not in tags(cell) and ("capture" not in tags(cell) or CAPTURE.is_dir())


def store(path: Path) -> None:
    """Execute a notebook, and store its output and figures."""
    notebook = execute(path, path.parent)
    for cell, code in zip(code_cells(notebook), code_hashes(notebook), strict=True):
        cell.metadata.pop("execution", None)
        cell.metadata.pop(_CODE, None)
        if has_figure(cell):
            cell.metadata[_CODE] = code
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                output.data.pop("text/plain", None)
    notebook.metadata.get("language_info", {}).pop("version", None)
    nbformat.write(notebook, path)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        store(Path(name).resolve())
