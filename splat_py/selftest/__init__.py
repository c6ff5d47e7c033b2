"""`splat selftest`: every kernel on a device, against float64 results that travel with the package."""

from splat_py.selftest.checking import Outcome, SelfTest

__all__ = ["Outcome", "SelfTest"]
