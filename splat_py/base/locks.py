"""Locks on open files and folders, which the system releases when their process ends."""

import sys


def lock(handle: int) -> None:
    """Lock an open file, or on other systems than Windows a folder, or raise OSError at once."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
