"""What the Slang compiler says of a source that it refuses, in a clause."""

from __future__ import annotations

import re

from splat_py.files import reason

# What is most often wrong where the compiler says something else.
_HINTS = {
    "does not match interface requirement$": "; it has to be static, to have the interface's arguments and, if that has it, "
    "[Differentiable]",
    "is not accessible": "; leave out the declaration of a module, or make it public",
    "^array index out of bounds": "; a colour has (FEATURES + 2) / 3 vectors of features, and WEIGHTS weights",
    "^undefined identifier 'I[A-Z]": "; begin with import splat.prelude;",
}


def first_error(messages: str) -> str:
    """The first of Slang's messages, of one line or with a drawing, as a clause."""
    line = re.search(r":(\d+):\d+\n|\((\d+)\): error", messages)
    what = re.search(r"\^+ (.+)", messages) or re.search(r"error(?: \d+|\[\w+\]): (.+)", messages)
    if what is None:
        return reason(ValueError(messages))
    said = what[1][:200].rstrip(".")
    hint = next((hint for pattern, hint in _HINTS.items() if re.search(pattern, said)), "")
    # What is only found where kernels are made has no line.
    return f"line {line[1] or line[2]}: {said}{hint}" if line else f"{said}{hint}"
