"""Everything that a user may try first; test_faults.py runs it in its own process, with a broken Vulkan. Prints JSON."""

import contextlib
import io
import json
import sys
import traceback
import warnings
from typing import Any

import torch

import splat_py
from splat_py.commands import main as cli


def command(*arguments: str) -> dict[str, Any]:
    sys.argv = ["splat", *arguments]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            # Print the error as Python would.
            traceback.print_exc()
            code = 1
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


def rasterize(backend: str) -> dict[str, Any]:
    gaussians = torch.rand(4, 3), torch.rand(4, 4), torch.rand(4, 3), torch.rand(4), torch.rand(4, 3)
    camera = torch.eye(4)[None], torch.eye(3)[None], 6, 4
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            for _ in range(2):
                image, _, meta = splat_py.rasterization(*gaussians, *camera, backend=backend)
        except splat_py.SplatError as error:
            return {"error": str(error)}
    return {
        "backend": meta["backend"],
        "flat": bool((image == image[0, 0, 0]).all()),
        "warnings": [str(warning.message) for warning in caught],
    }


results = {
    "devices": command("devices"),
    "train": command("train", ".", "--out", "nothing"),
    "auto": rasterize("auto"),
    "native": rasterize("native"),
    "portable": rasterize("portable"),
}
print(json.dumps(results))
