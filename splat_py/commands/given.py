"""Which options the user has given, for commands that resume a run."""

from __future__ import annotations

import sys


def given_options() -> frozenset[str]:
    """Names of the fields that the command line sets: in what it was parsed to, an option that was given with its default's
    value looks like one that was not."""
    flags = (word.partition("=")[0] for word in sys.argv[1:] if word.startswith("--"))
    names = (flag.removeprefix("--").replace("-", "_") for flag in flags)
    return frozenset(name.removeprefix("no_") for name in names)
