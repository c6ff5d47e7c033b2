"""What COLMAP's database holds, counted. Its layout is documented (https://colmap.github.io/database.html)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# A pair's number is that of its first photograph times this, and that of its second.
_PAIR = 2147483647
_DESCRIPTOR = 128


def features_of(database: Path) -> dict[str, int | None]:
    """How many features each photograph has, by its name; None of those that were not searched yet."""
    query = "SELECT name, keypoints.rows FROM images LEFT JOIN keypoints ON keypoints.image_id = images.image_id"
    return dict(_rows(database, query))


def matches_of(database: Path) -> dict[tuple[str, str], int]:
    """How many matches that one geometry explains each compared pair of photographs has."""
    names = dict(_rows(database, "SELECT image_id, name FROM images"))
    rows = _rows(database, "SELECT pair_id, rows FROM two_view_geometries")
    return {(names[pair // _PAIR], names[pair % _PAIR]): count for pair, count in rows}


def descriptors_of(database: Path, name: str) -> NDArray[np.float32]:
    """SIFT's descriptors [F, 128] of a photograph, from 0 to 255."""
    query = (
        "SELECT descriptors.rows, data FROM descriptors JOIN images ON descriptors.image_id = images.image_id WHERE name = ?"
    )
    rows = _rows(database, query, name)
    if not rows or not rows[0][0]:
        return np.zeros((0, _DESCRIPTOR), np.float32)
    return np.frombuffer(rows[0][1], np.uint8).reshape(-1, _DESCRIPTOR).astype(np.float32)


def _rows(database: Path, query: str, *values: object) -> list[tuple]:
    with closing(sqlite3.connect(database)) as connection:
        return connection.execute(query, values).fetchall()
