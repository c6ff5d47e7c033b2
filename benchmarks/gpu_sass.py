"""Loops and instructions in the disassembly of a kernel's binary by `nvdisasm`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

_LABEL = re.compile(r"^(\.L_x_\d+):")
_LINE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
_TARGET = re.compile(r"`\((\.L_x_\d+)\)")

# Classes by the beginnings of instructions' names; the first match counts.
_CLASSES = {
    "mufu": ("MUFU",),
    "shuffle": ("SHFL",),
    # Lanes that take part in a wave operation: Slang's CUDA source keeps a mask of them.
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
    """An instruction at an address; `target` is the address of the label that `BRA` names."""

    address: int
    predicated: bool
    name: str
    target: int | None

    @property
    def kind(self) -> str:
        """The instruction's class, one of `CLASSES`."""
        # ATOMS is group-shared, REDUX between lanes.
        return next((kind for kind, names in _CLASSES.items() if self.name.startswith(names)), "other")


def instructions(text: str) -> list[Instruction]:
    """The instructions of the kernel, without subroutines such as division, which follow it under `$__internal` labels."""
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
    """The instructions from the first one to the branch back."""

    first: int
    last: int

    def __contains__(self, instruction: Instruction) -> bool:
        return self.first <= instruction.address <= self.last

    @property
    def length(self) -> int:
        """Length in bytes."""
        return self.last - self.first


def _loops(code: list[Instruction]) -> list[Loop]:
    # BRA.DIV is for lanes that have diverged; its blocks lie behind the rest and branch back.
    end = next((i.address for i in code if i.name == "EXIT" and not i.predicated), 1 << 62)
    return [
        Loop(i.target, i.address)
        for i in code
        if i.name.startswith("BRA") and i.name != "BRA.DIV" and i.target is not None and i.target <= i.address <= end
    ]


@dataclass(frozen=True)
class HotLoop:
    """Instructions of one iteration of the innermost loop that evaluates a splat, by `CLASSES`, as a wave issues them.

    Both sides of a branch within it count, as lanes run both. Calls of subroutines for denormal numbers do not. A loop within
    it counts three times: the sums over a wave of 32 halve three times.
    """

    counts: dict[str, int]
    # The part of `counts` behind the widest forward branch, which runs only if some lane blends the splat.
    conditional: dict[str, int]
    # The surrounding loop, in which each lane of a wave tests a splat; without the loops within.
    around: dict[str, int]

    @property
    def total(self) -> int:
        """The number of instructions."""
        return sum(self.counts.values())


def hot_loop(text: str) -> HotLoop | None:
    """The innermost loop with an exponential, or None."""
    code = instructions(text)
    loops = _loops(code)
    around = [loop for loop in loops for i in code if i.name.startswith("MUFU.EX2") and i in loop]
    if not around:
        return None
    hot = min(around, key=lambda loop: (loop.length, loop.first))
    body = [i for i in code if i in hot]
    slow: set[int] = set()
    for branch in body:
        # A branch around a call, which handles what the fast path cannot.
        if branch.name == "BRA" and branch.predicated and branch.target and branch.target > branch.address:
            skipped = [i for i in body if branch.address < i.address < branch.target]
            if len(skipped) <= 6 and any(i.name.startswith("CALL") for i in skipped):
                slow |= {i.address for i in skipped}
    skips = [
        Loop(i.address + 1, i.target - 1)
        for i in body
        if i.name == "BRA" and i.predicated and i.target is not None and i.address < i.target <= hot.last
    ]
    widest = max(skips, key=lambda loop: loop.length, default=Loop(0, 0))

    def counted(chosen: list[Instruction]) -> dict[str, int]:
        counts = Counter(i.kind for i in chosen if i.address not in slow)
        return {kind: counts[kind] for kind in CLASSES if counts[kind]}

    conditional = [i for i in body if i in widest] if 10 * widest.length > hot.length else []
    outer = min(
        (loop for loop in loops if loop.first < hot.first and hot.last < loop.last),
        key=lambda loop: loop.length,
        default=Loop(0, 0),
    )
    nested = [loop for loop in loops if outer.first < loop.first and loop.last < outer.last]
    tests = [i for i in code if i in outer and not any(i in loop for loop in nested)]
    return HotLoop(counted(body), counted(conditional), counted(tests))
