"""Loops and instructions in what `nvdisasm` makes of a kernel's binary."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_LABEL = re.compile(r"^(\.L_x_\d+):")
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")
# Of a loop over `distance`, 4 to half a wave, in `sumFourOverWave`; in other loops nobody knows.
_BUTTERFLY_STEPS = 3

# By the beginnings of their names; the first that fits counts.
_CLASSES = {
    "mufu": ("MUFU",),
    "shuffle": ("SHFL",),
    # Who takes part in a wave operation: Slang's CUDA source keeps a mask of lanes.
    "mask": ("VOTE", "REDUX", "WARPSYNC", "R2UR", "BRA.DIV", "MATCH", "CREDUX"),
    "atomic": ("ATOM", "RED"),
    "global load": ("LDG", "LD."),
    "global store": ("STG", "ST."),
    "shared": ("LDS", "STS"),
    "local": ("LDL", "STL"),
    "barrier": ("BAR",),
    "branch": ("BRA", "BSSY", "BSYNC", "BRX", "CALL", "RET", "EXIT", "BREAK", "YIELD", "NOP"),
    "fp32": ("FADD", "FMUL", "FFMA", "FMNMX", "FSEL", "FSET", "FCHK", "FSWZ", "FRND"),
}
CLASSES = (*_CLASSES, "other")


@dataclass(frozen=True)
class Instruction:
    """At an address: `BRA`'s target is that of a label."""

    address: int
    predicated: bool
    name: str
    target: int | None

    @property
    def kind(self) -> str:
        """One of `CLASSES`."""
        # ATOMS is group-shared, REDUX between lanes.
        return next((kind for kind, names in _CLASSES.items() if self.name.startswith(names)), "other")


def instructions(text: str) -> list[Instruction]:
    """Of the kernel: subroutines, as of division, which follow it under their own label, are left out where that is said."""
    found: list[tuple[int, bool, str, str | None]] = []
    labels: dict[str, int | None] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        if label := _LABEL.match(line):
            waiting.append(label[1])
        elif "$__internal" in line and line.rstrip().endswith(":"):
            break
        elif match := _LINE.match(line):
            address = int(match[1], 16)
            labels |= dict.fromkeys(waiting, address)
            waiting.clear()
            target = _TARGET.search(match[4])
            found.append((address, match[2] is not None, match[3], target[1] if target else None))
    return [Instruction(a, p, name, labels.get(target) if target else None) for a, p, name, target in found]


@dataclass(frozen=True)
class Loop:
    """From the first instruction to the branch back."""

    first: int
    last: int

    def __contains__(self, instruction: Instruction) -> bool:
        return self.first <= instruction.address <= self.last

    @property
    def length(self) -> int:
        """In bytes."""
        return self.last - self.first


def _loops(code: list[Instruction]) -> list[Loop]:
    # BRA.DIV is for lanes that have come apart; its blocks lie behind everything and branch back.
    end = next((i.address for i in code if i.name == "EXIT" and not i.predicated), 1 << 62)
    return [
        Loop(i.target, i.address)
        for i in code
        if i.name.startswith("BRA") and i.name != "BRA.DIV" and i.target is not None and i.target <= i.address <= end
    ]


@dataclass(frozen=True)
class HotLoop:
    """Instructions of one iteration of the innermost loop that evaluates a splat, by `CLASSES`, as a wave issues them.

    Both sides of a branch within it count, as lanes take both, but not calls of subroutines for denormal numbers. A loop
    within it counts thrice: the sums over a wave of 32 halve thrice.
    """

    counts: dict[str, int]
    # Of these, behind the widest branch forward: what is done only if any lane blends the splat.
    conditional: dict[str, int]

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.counts.values())


def hot_loop(text: str) -> HotLoop | None:
    """The innermost loop with an exponential, if there is one."""
    code = instructions(text)
    loops = _loops(code)
    around = [loop for loop in loops for i in code if i.name.startswith("MUFU.EX2") and i in loop]
    if not around:
        return None
    hot = min(around, key=lambda loop: (loop.length, loop.first))
    body = [i for i in code if i in hot]
    slow: set[int] = set()
    for branch in body:
        # Around a call, which is for what the fast path cannot do.
        if branch.name == "BRA" and branch.predicated and branch.target and branch.target > branch.address:
            skipped = [i for i in body if branch.address < i.address < branch.target]
            if len(skipped) <= 6 and any(i.name.startswith("CALL") for i in skipped):
                slow |= {i.address for i in skipped}
    inner = [loop for loop in loops if hot.first < loop.first and loop.last < hot.last]
    skips = [
        Loop(i.address + 1, i.target - 1)
        for i in body
        if i.name == "BRA" and i.predicated and i.target is not None and i.address < i.target <= hot.last
    ]
    widest = max(skips, key=lambda loop: loop.length, default=Loop(0, 0))

    def counted(chosen: list[Instruction]) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for i in chosen:
            if i.address not in slow:
                counts[i.kind] += _BUTTERFLY_STEPS ** sum(i in loop for loop in inner)
        return {kind: counts[kind] for kind in CLASSES if counts[kind]}

    conditional = [i for i in body if i in widest] if 4 * widest.length > hot.length else []
    return HotLoop(counted(body), counted(conditional))
