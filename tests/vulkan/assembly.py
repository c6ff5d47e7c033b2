"""AMD's instructions in a loop, by kind, from the assembly that RADV prints."""

import re
from collections import Counter

_LABEL = re.compile(r"^(BB\d+):$")
_JUMP = re.compile(r"^s_(?:c?branch\w*) (BB\d+)")
# Hints and waits, which no unit executes.
_HINTS = ("s_delay_alu", "s_waitcnt", "s_wait", "s_nop", "s_clause")
_KINDS = {"v_": "vector", "s_load": "loads", "s_buffer_load": "loads", "s_": "scalar", "ds_": "shared"}
_KINDS |= {"buffer_atomic": "atomics", "global_atomic": "atomics"}
_KINDS |= {"buffer_": "memory", "global_": "memory", "scratch_": "memory"}


def hot_loop(assembly: str, needle: str = "v_exp_f32") -> dict[str, int] | None:
    """Instructions by kind in the innermost loop that has this instruction; None if there is no such loop.

    Both sides of branches count. `vector` counts instructions of whole waves, `scalar` and `loads` (of scalars) once a wave.
    """
    lines = [line.split(";")[0].strip() for line in assembly.splitlines()]
    labels = {match[1]: index for index, line in enumerate(lines) if (match := _LABEL.match(line))}
    jumps = [(index, labels.get(match[1], index)) for index, line in enumerate(lines) if (match := _JUMP.match(line))]
    loops = [lines[start : end + 1] for end, start in jumps if start < end]
    loops = [loop for loop in loops if any(line.startswith(needle) for line in loop)]
    if not loops:
        return None
    return dict(Counter(kind for line in min(loops, key=len) if (kind := _kind(line)) is not None))


def _kind(line: str) -> str | None:
    if line.startswith(_HINTS):
        return None
    return next((_KINDS[start] for start in sorted(_KINDS, key=len, reverse=True) if line.startswith(start)), None)
