"""Gaussian splatting for torch: `rasterization` and the stages that it chains, one file each.

The package has the name of the public function `splat_py.render`, so calling it calls that function.
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
