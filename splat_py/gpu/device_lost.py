"""What is said when a device stops working while it is in use."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from splat_py.errors import DeviceLostError


@contextmanager
def translate_device_lost() -> Iterator[None]:
    """Say in a sentence what SlangPy says in a page when a device does not take or finish its work.

    Raises:
        DeviceLostError: a call to the driver failed. Other errors, of compilation for one, are left as they are.
    """
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
