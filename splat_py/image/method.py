"""How a pixel finds its blobs."""

from typing import Literal

# What `method` and `--method` take; splat_py/image/rasterizers.py says what they are.
Method = Literal["auto", "tiles", "group", "simple"]
