"""The kernels that CUDA devices run: all but those for a CPU's drivers."""

from __future__ import annotations

from collections import defaultdict

from tests.emulation.kernels import Specialisation, shipped


def for_gpus() -> dict[tuple[str, str], list[Specialisation]]:
    """What ships, by module and entry point."""
    found: dict[tuple[str, str], list[Specialisation]] = defaultdict(list)
    for specialisation in shipped():
        if not specialisation.module.startswith("cpu/"):
            found[specialisation.module, specialisation.entry].append(specialisation)
    return found
