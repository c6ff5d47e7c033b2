"""Kernels that torch compiles from Metal source and dispatches on its own stream (`torch.mps.compile_shader`)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import cached_property
from typing import Any, cast

import slangpy as spy
import torch

from splat_py.errors import SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.bindings import Bindings, Uniform
from splat_py.gpu.emission import MetalKernel
from splat_py.gpu.emission_cache import EmissionCache
from splat_py.gpu.kernels import Kernel, KernelCache
from splat_py.gpu.metal_parameters import MetalParameters
from splat_py.gpu.torch_metal_memory import tensor_buffer

# Metal's buffers of a kernel.
_MOST_BUFFERS = 31


class TorchKernels(KernelCache):
    """As `KernelCache`, of `TorchProgram`s.

    Args:
        device: of the tensors.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(cast(spy.Device, None))
        self._emitted = EmissionCache()
        # What stands where a kernel has a buffer that nobody sets, as torch numbers arguments without gaps.
        self._nothing = torch.zeros(16, dtype=torch.uint8, device=device)

    def _compile(self, module: str, entry: str, constants: dict[str, Any]) -> Kernel:
        program = TorchProgram(f"{module}.{entry}", entry, self._emitted.get(module, entry, constants), self._nothing)
        return Kernel(module, entry, cast(spy.ComputePipeline, program), Bindings.of(module, entry, constants))


class TorchProgram:
    """One entry point, compiled.

    Raises:
        SplatError: torch rejects the source, or the kernel takes more than can be bound.
    """

    def __init__(self, name: str, entry: str, kernel: MetalKernel, nothing: torch.Tensor) -> None:
        self._name = name
        self._threads = kernel.threads
        self._parameters = MetalParameters.of(kernel.source, entry)
        self._nothing = nothing
        count = 1 + max(self._parameters.buffers.values(), default=-1)
        if self._parameters.pointers or count > _MOST_BUFFERS:
            raise SplatError(f"{name} reads buffers by address, or more than {_MOST_BUFFERS}, which torch cannot bind")
        try:
            # A string of ASCII is what torch makes Apple's of.
            self._kernel = getattr(torch.mps.compile_shader(kernel.source.encode("ascii").decode()), entry)
        except (RuntimeError, SyntaxError, UnicodeError) as error:
            lines = str(error).split("\n")
            reason = next((line for line in lines if "error:" in line), lines[0]).strip()
            raise SplatError(f"torch cannot compile the Metal source of {name}: {reason}") from error

    @cached_property
    def _names(self) -> list[str]:
        """Of buffers, by Metal's number; "" where the kernel has none."""
        numbered = {index: name for name, index in self._parameters.buffers.items()}
        return [numbered.get(i, "") for i in range(1 + max(numbered, default=-1))]

    def arguments(self, uniforms: Mapping[str, Uniform], buffers: Mapping[str, Array]) -> list[Any]:
        """What torch takes for Metal's buffers, by position."""
        return [self._argument(name, uniforms, buffers) for name in self._names]

    def _argument(self, name: str, uniforms: Mapping[str, Uniform], buffers: Mapping[str, Array]) -> Any:
        if name == "params":
            known = {field for field, _ in self._parameters.uniforms}
            block = self._parameters.pack({field: value for field, value in uniforms.items() if field in known})
            # A list of integers is copied into the command, eight bytes each.
            block += bytes(-len(block) % 8)
            return list(struct.unpack(f"<{len(block) // 8}q", block))
        if name not in buffers:
            return self._nothing
        return tensor_buffer(buffers[name]).bytes

    def dispatch(self, groups: tuple[int, int, int], arguments: list[Any]) -> None:
        """Send it to torch's stream. Whole workgroups: torch counts threads, and would cut the last group of an axis short."""
        threads = [n * size for n, size in zip(groups, self._threads, strict=True)]
        try:
            self._kernel(*arguments, threads=threads, group_size=list(self._threads))
        except (RuntimeError, ValueError) as error:
            raise SplatError(f"torch cannot dispatch {self._name}: {str(error).split(chr(10))[0]}") from error
