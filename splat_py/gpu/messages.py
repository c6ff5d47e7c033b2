"""The messages of SlangPy and its compiler, often a page long, shortened to a clause or a sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from splat_py.base.errors import DeviceLostError
from splat_py.base.files import reason

# Hints at the usual mistake behind a compiler's message.
_HINTS = {
    "does not match interface requirement$": "; it must be static, with the interface's arguments and, if that has it, "
    "[Differentiable]",
    "is not accessible": "; leave out the declaration of a module, or make it public",
    "^array index out of bounds": "; a colour has (FEATURES + 2) / 3 vectors of features, and WEIGHTS weights",
    "^undefined identifier 'I[A-Z]": "; begin with import splat.prelude;",
}


def first_error(messages: str) -> str:
    """Return Slang's first error message, of one line or with a drawing, as a clause."""
    line = re.search(r":(\d+):\d+\n|\((\d+)\): error", messages)
    what = re.search(r"\^+ (.+)", messages) or re.search(r"error(?: \d+|\[\w+\]): (.+)", messages)
    if what is None:
        return reason(ValueError(messages))
    said = what[1][:200].rstrip(".")
    hint = next((hint for pattern, hint in _HINTS.items() if re.search(pattern, said)), "")
    # Errors from linking have no line.
    return f"line {line[1] or line[2]}: {said}{hint}" if line else f"{said}{hint}"


@contextmanager
def translate_device_lost() -> Iterator[None]:
    """Turn SlangPy's page about a failed driver call into a DeviceLostError of one sentence. Other errors, such as those of
    compilation, pass unchanged."""
    try:
        yield
    except RuntimeError as error:
        if "failed with error" not in str(error):
            raise
        code = re.search(r"VK_ERROR_\w+", str(error))
        reason = code.group() if code else str(error).strip().split("\n")[0]
        raise DeviceLostError(
            f"the device stopped working ({reason}): its driver failed or gave up on work that took too long; "
            "close other programs that use it and try again"
        ) from error
