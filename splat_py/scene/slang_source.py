"""Slang that a file brings with it: text, of which nothing is compiled before somebody says that they trust it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from splat_py.errors import SplatError

# Characters of a source.
MOST_SOURCE = 1 << 16
MOST_PARAMS = 4
# Of types and parameters.
_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)


@dataclass(frozen=True)
class SlangSource:
    """The name and the source of a type of somebody's own, as a file has them."""

    name: str
    text: str

    def __post_init__(self) -> None:
        require_name("the type", self.name)
        check_source(self.text)


def require_name(what: str, name: object) -> None:
    """Raise SplatError unless this is a name that Slang and PLY know."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SplatError(f"{what} is called {str(name)[:40]!r}; use at most 64 letters, digits and _, and no digit first")


def check_source(text: str) -> None:
    """Raise SplatError unless this may be source text: nothing else is known of it then."""
    if len(text) > MOST_SOURCE:
        raise SplatError(f"the Slang source has {len(text):,} characters; {MOST_SOURCE:,} are the most")
    if not all(character.isprintable() or character in "\n\t" for character in text):
        raise SplatError("the Slang source holds characters that no text has")
