"""Type checks of Metal source without Apple's compiler: clang reads it as C++ for OpenCL, which has the same address spaces."""

import re
import subprocess
from pathlib import Path

_HEADERS = Path(__file__).parent
_SCALAR_BYTES = 4
_THREADGROUP = re.compile(r"^\s*threadgroup (.+?)\s+\w+;", re.MULTILINE)
_FIELD = re.compile(r"^\s*(.+?)\s+\w+;", re.MULTILINE)


def type_check(clang: str, source: str) -> str:
    """clang's errors in a kernel's Metal source; empty if it is right."""
    text = re.sub(r"\[\[kernel\]\] void", "__kernel void", source)
    # Metal copies a structure from constant memory, but OpenCL's C++ has no constructor for it. Only this copy goes unchecked.
    copied = r"^(\s*(?:thread )?\w+_\d+ \w+) = (?:[^;=]*globalParams_\d+->[\w.]+|\*\w+);"
    text = re.sub(copied, r"\1;", text, flags=re.MULTILINE)
    options = "-x cl -cl-std=clc++2021 -cl-no-stdinc -cl-single-precision-constant -fsyntax-only -w -ferror-limit=5"
    target = ["-target", "spir64", "-I", str(_HEADERS), "-"]
    result = subprocess.run(
        [clang, *options.split(), *target], input=text, capture_output=True, text=True, check=False, timeout=60
    )
    return "" if result.returncode == 0 else result.stderr or "clang failed and does not say why"


def threadgroup_bytes(source: str) -> int:
    """Threadgroup memory of a kernel's Metal source: Apple GPUs have 32 KiB."""
    return sum(_size_of(kind, source) for kind in _THREADGROUP.findall(source))


def _size_of(kind: str, source: str) -> int:
    """Bytes of a type in threadgroup memory, without padding inside structures, which the library's do not have."""
    kind = kind.strip()
    if array := re.fullmatch(r"array<(.*),\s*int\((\d+)\)\s*>", kind):
        return int(array[2]) * _size_of(array[1], source)
    if atomic := re.fullmatch(r"atomic<(.*)>", kind):
        return _size_of(atomic[1], source)
    if vector := re.fullmatch(r"(?:uint|int|float)([234]?)", kind):
        return _SCALAR_BYTES * {"": 1, "2": 2, "3": 4, "4": 4}[vector[1]]
    structure = re.search(rf"^struct {re.escape(kind)}\s*\{{(.*?)^\}};", source, re.MULTILINE | re.DOTALL)
    assert structure, f"threadgroup memory of an unknown type: {kind}"
    return sum(_size_of(field, source) for field in _FIELD.findall(structure[1]))
