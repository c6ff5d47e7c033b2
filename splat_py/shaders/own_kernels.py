"""Your own compute kernels: an entry point of your Slang, called with tensors and with the renderer's structs."""

import re
from collections.abc import Iterator, Mapping
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splat_py.base.errors import BindingError, SplatError
from splat_py.gpu.arrays import Array
from splat_py.gpu.autograd import first_derivative, graph_break
from splat_py.gpu.bindings import ELEMENTS, SCALARS, Bindings, in_python
from splat_py.gpu.kernels import Kernel, Pipeline
from splat_py.gpu.messages import first_error
from splat_py.gpu.sources import Globals, constant_of
from splat_py.shaders.declarations import require_name
from splat_py.shaders.functions import ShaderModule
from splat_py.shaders.loading import source as load_source

# A buffer's comment in brackets, above or behind its declaration: `/// [height, width]`.
_SHAPE = re.compile(
    r"(?:^[ \t]*//[^\n]*?\[([^\]\n]+)\][^\n]*\n)?^[ \t]*(?:RW)?StructuredBuffer<[^\n]*?>\s*(\w+)\s*;"
    r"(?:[ \t]*//[^\n]*?\[([^\]\n]+)\])?",
    re.MULTILINE,
)


def kernel(source: ShaderModule | str, entry: str) -> "OwnKernel":
    """Compile an entry point of your own Slang, to be called from torch and NumPy.

    Args:
        source: Slang text, or what `load` returns. It may import all of `slang/`, such as `kernels.splats`.
        entry: the name of a function marked [shader("compute")].

    Raises:
        SplatError: the source does not compile, has no such entry point, or declares a global that cannot be bound.
    """
    module = source if isinstance(source, ShaderModule) else load_source(source)
    require_name("the entry point", entry)
    backward = f"{entry}_bwd" if re.search(rf"\b{re.escape(entry)}_bwd\s*\(", module.text) else None
    return OwnKernel(module, entry, OwnKernel(module, backward) if backward else None)


class OwnKernel:
    """An entry point of your own Slang (`kernel`). Its arguments are the globals of the source, in Python's spelling: a number,
    a NumPy array or torch tensor for a buffer, or for a struct of the renderer what a stage returns: of `project` for
    `uniform Splats splats`, of `bin_tiles` for `uniform TileLists lists`.

    Types and shapes are checked before anything runs. A buffer's shape is its comment in the source, `/// [height, width]`,
    made of numbers, constants, uniforms, and letters that have the same value in all comments.

    Gradients: an entry point ENTRY_bwd is the backward pass. It reads the gradient of an output `color` from `vColor`, and adds
    to `vWeights` that of an input `weights`; these are buffers of the same shapes, and begin with zeros. Structs are constants.
    """

    def __init__(self, module: ShaderModule, entry: str, backward: "OwnKernel | None" = None) -> None:
        self._device, self._text, self._backward = module.device, module.text, backward
        try:
            own = module.session.load_module(module.path.as_posix())
            program = module.session.link_program([own], [own.entry_point(entry)])
            pipeline = Pipeline(self._device.handle, program)
        except RuntimeError as error:
            if f'"{entry}" not found' in str(error):
                raise SplatError(
                    f'the source has no entry point {entry}; name a function marked [shader("compute")]'
                ) from error
            raise SplatError(f"{entry} cannot be compiled: {first_error(str(error), self._text)}") from error
        reflected = program.layout.entry_points[0]
        for parameter in reflected.parameters:
            if parameter.type_layout.size or "Buffer" in parameter.type_layout.type.full_name:
                raise SplatError(f"{parameter.name} is a parameter of {entry}; declare it as a global of the source")
        self._group = tuple(reflected.compute_thread_group_size[i] for i in range(3))
        found = {name: layout for name, layout in _flattened(program.layout.parameters, "") if self._names(name)}
        buffers = {name: _element(layout) for name, layout in found.items() if _is_buffer(layout)}
        numbers = {name: _spelt(layout.type.full_name) for name, layout in found.items() if name not in buffers}
        for name in found:
            if buffers.get(name, "float") not in ELEMENTS or numbers.get(name, "float") not in SCALARS:
                raise SplatError(
                    f"{name} is a {found[name].type.full_name}; declare a StructuredBuffer or RWStructuredBuffer of "
                    f"{', '.join(ELEMENTS)}, or a uniform {', '.join(SCALARS)}"
                )
        # Gradients belong to the backward pass alone.
        of_backward = set() if entry.endswith("_bwd") else {_v(name) for name in buffers}
        known = Globals({name: kind for name, kind in buffers.items() if name not in of_backward}, numbers)
        self._written = [
            name for name in known.buffers if "." not in name and found[name].type.full_name.startswith("RWStructuredBuffer")
        ]
        self._kernel = Kernel("", entry, pipeline, Bindings(entry, known, known))
        self._shapes = {name: above or behind for above, name, behind in _SHAPE.findall(self._text) if above or behind}

    def __call__(self, threads: int | tuple[int, ...], /, **arguments: Any) -> dict[str, Any]:
        """Run the kernel.

        Args:
            threads: numbers of threads along x, y and z. Workgroups are whole, so the kernel must return where a thread is
                outside.
            arguments: a buffer that the kernel writes is given by its first contents, which stay as they are, or by its shape
                in a tuple for zeros.

        Returns:
            The buffers that the kernel writes, by name: torch tensors if an argument has one, else NumPy arrays.

        Raises:
            SplatError: an argument is missing, unknown, or of the wrong type, shape or size.
        """
        tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor) and value.requires_grad}
        if not (tensors and torch.is_grad_enabled()):
            return self._run(threads, arguments)
        if self._backward is None:
            raise SplatError(f"{', '.join(tensors)} needs a gradient; write {self._kernel.entry}_bwd, or detach it")
        written = set(map(in_python, self._backward._written))
        names = {in_python(name): in_python(_v(name)) for name in self._backward._kernel.bindings.known.buffers}
        missing = [name for name in tensors if names.get(name, "") not in written]
        if missing:
            raise SplatError(f"{missing[0]} needs a gradient; declare RWStructuredBuffer<float> {_v(missing[0])}, or detach it")
        results = _Differentiable.apply(self, threads, arguments, names, list(tensors), *tensors.values())
        return dict(zip(map(in_python, self._written), results, strict=True))

    @graph_break
    def _run(self, threads: int | tuple[int, ...], arguments: Mapping[str, Any]) -> dict[str, Any]:
        sizes = threads if isinstance(threads, tuple) else (threads,)
        if not 1 <= len(sizes) <= 3 or not all(isinstance(size, Integral) and size >= 0 for size in sizes):
            raise SplatError(f"threads is {threads!r}; give one to three whole numbers")
        groups = [-(-int(size) // side) for size, side in zip((*sizes, 1, 1), self._group, strict=False)]
        most = [limit * side for limit, side in zip(self._device.memory.limits.groups, self._group, strict=True)]
        if any(size > limit for size, limit in zip(sizes, most, strict=False)):
            raise SplatError(f"threads is {threads!r}, but this device runs {most} at most; give each several elements")
        bound = {name: self._bound(name, value) for name, value in arguments.items()}
        try:
            numbers, buffers = self._kernel.bindings.values(bound)
        except BindingError as error:
            raise SplatError(f"{error}; see the source's globals") from error
        self._check_shapes(numbers, buffers)
        _check_structs(bound)
        with self._device.recording() as recorder:
            recorder.run(self._kernel, (groups[0], groups[1], groups[2]), bound)
        self._device.flush()
        self._kernel.pipeline.forget_buffers()
        like = next(_tensors(arguments), None)
        results = {in_python(name): buffers[name] for name in self._written}
        return {
            name: array.numpy() if like is None else array.tensor().to(like.device) for name, array in results.items()
        }

    def _bound(self, name: str, value: Any) -> Any:
        """Copy an argument to the device; buffers that are written get memory of their own."""
        memory, buffers = self._device.memory, self._kernel.bindings.known.buffers
        slang = next((known for known in buffers if in_python(known) == name), None)
        if slang is None:
            held = getattr(value, "arrays", value)
            return held(self._device) if callable(held) else held
        is_shape = isinstance(value, tuple) and all(isinstance(side, int) and side >= 0 for side in value)
        if is_shape and slang in self._written:
            memory.limits.check_array(value, kind := ELEMENTS[buffers[slang]][0][0])
            value = np.zeros(value, kind)
        if not isinstance(value, np.ndarray | Tensor):
            raise SplatError(f"{name} is a {type(value).__name__}; give a NumPy array or a torch tensor")
        if isinstance(value, Tensor) and value.dtype == torch.int32 and buffers[slang].startswith("uint"):
            # torch has few operations on uint32.
            value = value.view(torch.uint32)
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in [fits.name for fits in ELEMENTS[buffers[slang]][0]]:
            raise SplatError(f"{name} is {dtype} {list(value.shape)}; its elements are of type {buffers[slang]}")
        value = value.detach().contiguous() if isinstance(value, Tensor) else np.ascontiguousarray(value)
        if slang not in self._written:
            return memory.array(value)
        array = memory.empty(tuple(value.shape), dtype)
        array.write(value)
        return array

    def _check_shapes(self, numbers: Mapping[str, Any], buffers: Mapping[str, Array]) -> None:
        """Compare arrays with the shapes in the source's comments."""
        letters: dict[str, int] = {}
        for name, shape in self._shapes.items():
            array = buffers.get(name)
            if array is None:
                continue
            length = ELEMENTS[self._kernel.bindings.known.buffers[name]][1]
            sides = [side.strip() for side in shape.split(",")] + ([str(length)] if length > 1 else [])
            wanted = [self._side(side, numbers, letters) for side in sides]
            for side, found, have in zip(sides, wanted, array.shape, strict=False):
                if found is None and side.isidentifier():
                    letters[side] = have
            if len(wanted) != len(array.shape) or any(w not in (None, h) for w, h in zip(wanted, array.shape, strict=True)):
                said = ", ".join(s if w is None or s == str(w) else f"{s} = {w}" for s, w in zip(sides, wanted, strict=True))
                raise SplatError(f"{in_python(name)} has shape {list(array.shape)}; the source says [{said}]")

    def _names(self, name: str) -> bool:
        """True if the source itself names a global, or a struct with it: imported modules have more."""
        return re.search(rf"\b{name.split('.')[0]}\b", self._text) is not None

    def _side(self, side: str, numbers: Mapping[str, Any], letters: Mapping[str, int]) -> int | None:
        """The length that a comment gives a side; None if it is not known."""
        if side.isdigit():
            return int(side)
        return numbers.get(side.replace(".", "_"), letters.get(side, constant_of(self._text, side)))


def _v(name: str) -> str:
    """The name of a gradient: vColor of color."""
    return f"v{name[0].upper()}{name[1:]}"


def _flattened(variables: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the names and the layouts of globals, those of a struct's fields after a dot."""
    for variable in variables:
        name, layout = f"{path}{variable.name}", variable.type_layout
        if _is_buffer(layout) or not layout.fields:
            yield name, layout
        else:
            yield from _flattened(layout.fields, f"{name}.")


def _is_buffer(layout: Any) -> bool:
    return layout.type.full_name.startswith(("StructuredBuffer", "RWStructuredBuffer"))


def _element(buffer: Any) -> str:
    return _spelt(buffer.element_type_layout.type.full_name)


def _spelt(kind: str) -> str:
    """A type as sources spell it: float4 for vector<float,4>; numbers that are added to atomically have their own type."""
    return re.sub(r"Atomic<(\w+)>", r"\1", re.sub(r"vector<(\w+),(\d)>", r"\1\2", kind))


def _tensors(arguments: Mapping[str, Any]) -> Iterator[Tensor]:
    """Yield the tensors among arguments, and in the results of stages among them."""
    for value in arguments.values():
        yield from (part for part in (value, *getattr(value, "__dict__", {}).values()) if isinstance(part, Tensor))


def _check_structs(bound: Mapping[str, Any]) -> None:
    """Compare the arrays of the renderer's structs with each other: kernels index one with another's numbers."""
    splats = [(name, value) for name, value in bound.items() if hasattr(value, "means2d")]
    lists = [(name, value) for name, value in bound.items() if hasattr(value, "grid")]
    for name, value in splats:
        for field, floats in (("means2d", 2), ("conics", 3), ("opacities", 1), ("radii", 2)):
            if getattr(value, field).size < floats * value.count:
                raise SplatError(f"{field} of {name} has room for fewer than its {value.count} depths; project them again")
        for other, tiles in lists:
            if tiles.order is not None and tiles.order.size != value.count:
                raise SplatError(
                    f"{other} lists {tiles.order.size} splats and {name} has {value.count}; bin the tiles of these splats"
                )


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        own: OwnKernel,
        threads: Any,
        arguments: dict[str, Any],
        names: Any,
        differentiated: list[str],
        *tensors: Tensor,
    ) -> tuple[Tensor, ...]:
        results = own._run(threads, arguments)
        others = {name: value for name, value in arguments.items() if name not in differentiated}
        ctx.own, ctx.threads, ctx.others, ctx.names, ctx.differentiated = own, threads, others, names, differentiated
        ctx.outputs = list(results)
        ctx.save_for_backward(*tensors, *results.values())
        ctx.mark_non_differentiable(*(result for result in results.values() if not result.is_floating_point()))
        return tuple(results.values())

    @staticmethod
    @first_derivative
    def backward(ctx: Any, *v_results: Tensor) -> tuple[Any, ...]:
        backward = ctx.own._backward
        known, written = (set(map(in_python, names)) for names in (backward._kernel.bindings.known.buffers, backward._written))
        given = ctx.others | dict(zip((*ctx.differentiated, *ctx.outputs), ctx.saved_tensors, strict=True))
        gradients = {ctx.names[name]: tuple(value.shape) for name, value in given.items() if ctx.names.get(name) in written}
        gradients |= {
            ctx.names[name]: v for name, v in zip(ctx.outputs, v_results, strict=True) if ctx.names.get(name) in known
        }
        found = backward._run(ctx.threads, given | gradients)
        return (None,) * 5 + tuple(found[ctx.names[name]] for name in ctx.differentiated)
