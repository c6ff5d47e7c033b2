"""Gaussian splatting for torch: `rasterization` and the stages that it chains, a file each.

The package shares its name with the public function `splat_py.render`, so it can be called as that.
"""

import sys
from types import ModuleType
from typing import Any


class _Package(ModuleType):
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """See `splat_py.render.views.render`."""
        from splat_py.render.views import render

        return render(*arguments, **options)


sys.modules[__name__].__class__ = _Package
