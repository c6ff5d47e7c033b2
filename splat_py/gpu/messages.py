"""Messages of SlangPy and its compiler, a page each, as a clause or a sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from splat_py.base.errors import DeviceLostError
from splat_py.base.files import reason

# The usual mistake where the compiler says something else.
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
    # Errors that are only found where kernels are linked have no line.
    return f"line {line[1] or line[2]}: {said}{hint}" if line else f"{said}{hint}"


@contextmanager
def translate_device_lost() -> Iterator[None]:
    """Say in a sentence what SlangPy says in a page when a call to the driver failed, as a DeviceLostError. Other errors, of
    compilation for one, are left as they are."""
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
