"""`splat devices`: every way to run on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass

from splat_py.commands.terminal import console, print_error
from splat_py.errors import NoDeviceError, SplatError

# What stands in for an operator (`splat_py.gpu.device.Operator`) that a device does not have.
_INSTEAD = {
    "splat forward": "portable baseline",
    "splat backward": "portable baseline",
    "float atomics": "compare and swap",
}
# Why a backend may not be here; mps says that itself.
_ABSENT = {
    "metal": "only on macOS",
    "mps": "",
    "cuda": "torch sees no CUDA GPU",
    "vulkan": "no GPU with a Vulkan driver",
    "software": "no software Vulkan driver",
}


@dataclass
class Devices:
    """List every way to run here, what it does natively, and which one is taken by default, and why."""

    def run(self) -> None:
        """Print a table, a column a device."""
        from rich.table import Table

        from splat_py.gpu.device import Adapter, Operator, adapters, choose, get_device, preference
        from splat_py.gpu.torch_metal_support import why_no_metal_compiler, why_no_torch_metal

        try:
            taken = choose()
        except SplatError:
            taken = None
        table = Table("")
        columns: list[list[str]] = []
        problems: dict[Adapter, SplatError] = {}
        count: dict[str, int] = {}
        for adapter in adapters():
            index = count[adapter.backend] = count.get(adapter.backend, -1) + 1
            name = f"{adapter.backend}:{index}" if index else adapter.backend
            table.add_column(f"→ {name}" if adapter == taken else name)
            try:
                device = get_device(name)
            except NoDeviceError as error:
                problems[adapter] = error
                columns.append([adapter.name, "cannot be opened", *[""] * (len(Operator) + 1)])
                continue
            native = device.operators
            supported = ["native" if operator in native else _INSTEAD.get(operator.value, "no") for operator in Operator]
            columns.append([adapter.name, *supported, device.memory.bridge.value, str(device.tuning.tile_size)])
        for row in zip(["adapter", *(operator.value for operator in Operator), "tensors", "tile"], *columns, strict=True):
            table.add_row(*row)
        if columns:
            console.print(table)
        for adapter, problem in problems.items():
            if adapter != taken:
                print_error(problem)
        if taken is None or taken in problems:
            get_device()
        absent = [f"{backend} ({why or why_no_torch_metal()})" for backend, why in _ABSENT.items() if backend not in count]
        if absent:
            console.print(f"not here: {', '.join(absent)}")
        asked = os.environ.get("SPLAT_DEVICE")
        if "metal" in count:
            why_not = why_no_metal_compiler()
            say = f"cannot compile here: {why_not}" if why_not else "comes first, as Xcode's metal compiler answers"
            instead = "mps, through torch, takes no Xcode, and MPS tensors without a copy"
            console.print(f"metal, through SlangPy, {say}; {instead}", soft_wrap=True)
        reason = f"SPLAT_DEVICE={asked}" if asked else f"the first there is of {', '.join(preference())}"
        console.print(f"→ is taken by default: {reason}. --device and SPLAT_DEVICE overrule it.")
