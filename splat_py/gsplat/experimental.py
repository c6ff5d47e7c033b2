"""The names of `gsplat.experimental`, none of which is supported, so that scripts that import it load."""

from splat_py.gsplat.unsupported import EXPERIMENTAL as _NAMES
from splat_py.lazy import lazy

__getattr__, __dir__ = lazy(__name__, dict.fromkeys(_NAMES, "splat_py.gsplat.unsupported"))
__all__ = list(_NAMES)
