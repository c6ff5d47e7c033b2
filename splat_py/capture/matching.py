"""Features matched between photographs, through pycolmap, and which pairs of photographs are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from splat_py.capture.database import features_of, matches_of
from splat_py.capture.library import require_pycolmap
from splat_py.capture.photographs import Photograph
from splat_py.capture.retrieval import look_alikes
from splat_py.capture.workspace import Workspace

# Up to so many photographs all pairs are compared, unless they are ordered.
_EXHAUSTIVE = 200
# Ordered photographs are compared with so many that follow, and with those that follow after 2, 4, 8 … up to 2**_POWERS.
_NEIGHBOURS, _POWERS = 8, 7
# Of those that look alike; of a set without an order they are all there is.
_ALIKE_ORDERED, _ALIKE = 5, 30
# Pairs of which a photograph's features are read once.
_BLOCK, _BATCH = 16, 128


def match_features(
    workspace: Workspace, photographs: Sequence[Photograph], ordered: bool, on_progress: Callable[[int, int], None]
) -> None:
    """Write the matches of photographs to the database. Goes on where it was interrupted."""
    pycolmap = require_pycolmap()
    database = workspace.database
    pairs = pairs_to_match(database, photographs, ordered)
    known = matches_of(database)
    missing = [(a, b) for a, b in pairs if (a, b) not in known and (b, a) not in known]
    done = len(pairs) - len(missing)
    on_progress(done, len(pairs))
    pairing = pycolmap.ImportedPairingOptions()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.txt"
        pairing.match_list_path = str(file)
        for start in range(0, len(missing), _BATCH):
            batch = missing[start : start + _BATCH]
            file.write_text("".join(f"{a} {b}\n" for a, b in batch), encoding="utf-8")
            pycolmap.match_image_pairs(
                database,
                pycolmap.FeatureMatchingOptions(),
                pairing,
                pycolmap.TwoViewGeometryOptions(),
                pycolmap.Device.cpu,
            )
            on_progress(done + start + len(batch), len(pairs))


def pairs_to_match(database: Path, photographs: Sequence[Photograph], ordered: bool) -> list[tuple[str, str]]:
    """Names of photographs that are compared, those with features: all pairs; or neighbours and those that look alike."""
    counts = features_of(database)
    names = [photograph.name for photograph in photographs if counts.get(photograph.name)]
    if not ordered and len(names) <= _EXHAUSTIVE:
        pairs = set(combinations(range(len(names)), 2))
    else:
        steps = {*range(1, _NEIGHBOURS + 1), *(2**power for power in range(_POWERS + 1))}
        pairs = {(i, i + step) for i in range(len(names)) for step in steps if i + step < len(names)}
        pairs |= set(look_alikes(database, names, _ALIKE_ORDERED if ordered else _ALIKE))
    # Block by block, since features of photographs that were just matched are still in memory.
    in_blocks = sorted(pairs, key=lambda pair: (pair[0] // _BLOCK, pair[1] // _BLOCK, pair))
    return [(names[i], names[j]) for i, j in in_blocks]
