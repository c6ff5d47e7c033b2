"""Facts from the Slang sources: the values of constants, and the globals that a module declares and an entry point refers to.

Reflection lists the globals of every module that a kernel is linked from, used or not. Here, declarations are read as sets of
words: a declaration counts if the entry point mentions its name, directly or through other declarations. A method counts if
its type and its name are mentioned; a derivative that an attribute names counts if anything is differentiated, forward only if
its name ends in _fwd. Code that a specialisation switches off counts, too.
"""

import ast
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any

_IGNORED = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_IMPORT = re.compile(r"\bimport\s+([\w.]+)\s*;")
_CONSTANT = re.compile(r"\bstatic\s+const\s+\w+\s+(\w+)\s*=\s*([^;]+);")
_EXTERN_CONSTANT = re.compile(r"\bextern\s+static\s+const\s+(\w+)\s+(\w+)(?:\s*=\s*(\w+))?")
_EXTERN_TYPE = re.compile(r"\bextern\s+struct\s+(\w+)\s*:\s*(\w+)(?:\s*=\s*(\w+))?")
_SUFFIX = re.compile(r"\b(0[xX][\da-fA-F]+|\d[\d.]*(?:[eE][+-]?\d+)?)[uUlLfFhH]*\b")
# A field of the uniform block, any other member, a name, a number, or a character.
_TOKEN = re.compile(r"(?<![\w.])params\.\w+|\.[A-Za-z_]\w*|[A-Za-z_]\w*|\d[\w.]*|\S")
_DOT = re.compile(r"\s*\.\s*")
_TYPES = ("struct", "interface", "extension", "enum")
_OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    # Integer division rounds towards 0, as in Slang.
    ast.Div: lambda a, b: a / b if float in (type(a), type(b)) else int(a / b),
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
}


def shader_folder() -> Path:
    """The folder of the Slang sources, an include path for SlangPy: in the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "slang"
    return installed if installed.is_dir() else package.parent / "slang"


def constant(module: str, name: str) -> Any:
    """Return the value of a `static const` of slang/<module>.slang or its imports: a number, or a tuple for a vector.

    An `extern` constant has its default value. KeyError if the name is unknown; ValueError if the value needs more than
    numbers, names, + - * / << and >>."""
    for source in scope(module):
        if name in source.constants:
            return _evaluated(f"slang/{source.name}.slang", name, source.constants[name], partial(constant, source.name))
    raise KeyError(f"slang/{module}.slang knows no constant {name}")


def constant_of(text: str, name: str, default: Any = None) -> Any:
    """Return the value of a `static const` in Slang source, made of numbers and the source's own constants; `default` if the
    source has none, ValueError if the value needs more."""
    constants = dict(_CONSTANT.findall(_IGNORED.sub(" ", text)))

    def value_of(name: str) -> Any:
        return _evaluated("the source", name, constants.pop(name, "nothing known"), value_of)

    return value_of(name) if name in constants else default


def _evaluated(where: str, name: str, expression: str, value_of: Callable[[str], Any]) -> Any:
    expression = _SUFFIX.sub(r"\1", expression).strip()
    try:
        return _value(ast.parse(expression, mode="eval").body, value_of)
    except (SyntaxError, TypeError, ArithmeticError) as error:
        raise ValueError(f"{where}: the value of {name} cannot be read: {expression}") from error


def _value(node: ast.expr, value_of: Callable[[str], Any]) -> Any:
    match node:
        case ast.Constant(int() | float() as value):
            return value
        case ast.Name(name):
            return value_of(name)
        case ast.UnaryOp(ast.USub(), operand):
            return -_value(operand, value_of)
        case ast.BinOp(left, op, right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, value_of), _value(right, value_of))
        case ast.Call(ast.Name(), arguments, []):
            return tuple(_value(argument, value_of) for argument in arguments)
    raise TypeError(ast.unparse(node))


@dataclass(frozen=True, eq=False)
class Declaration:
    """A function, a type or a variable, and the words that it is made of."""

    name: str
    # Names; names after a dot, with the dot if it follows a type's name; names in attributes.
    words: frozenset[str]
    parts: frozenset[str]
    derivatives: frozenset[str]
    # Members of a type.
    members: "tuple[Declaration, ...]" = ()
    # The type of a variable, or of a buffer's elements.
    type: str = ""
    is_buffer: bool = False
    # True for a global that is a number, or a struct of buffers and numbers.
    is_uniform: bool = False
    is_static: bool = False


class Source:
    """A Slang module."""

    def __init__(self, name: str) -> None:
        self.name = name
        text = (shader_folder() / f"{name}.slang").read_text(encoding="utf-8")
        self._text = _IGNORED.sub(" ", text)
        self.imports = [imported.replace(".", "/") for imported in _IMPORT.findall(self._text)]
        self.constants = dict(_CONSTANT.findall(self._text))
        # Names that a specialisation sets: ("constant", its type) or ("struct", its interface).
        constants, types = _EXTERN_CONSTANT.findall(self._text), _EXTERN_TYPE.findall(self._text)
        self.externs = {name: ("constant", kind) for kind, name, _ in constants}
        self.externs |= {name: ("struct", interface) for name, interface, _ in types}
        # Their default values, as written.
        self.defaults = {name: value for _, name, value in constants} | {name: value for name, _, value in types}

    @cached_property
    def declarations(self) -> tuple[Declaration, ...]:
        """All declarations except members of types."""
        return _declarations(_TOKEN.findall(_DOT.sub(".", self._text)))


@cache
def scope(module: str) -> tuple[Source, ...]:
    """slang/<module>.slang and all its imports, direct and indirect."""
    found = {module: Source(module)}
    for name in found[module].imports:
        if (shader_folder() / f"{name}.slang").is_file():
            found |= {source.name: source for source in scope(name)}
    return tuple(found.values())


def _declarations(tokens: list[str]) -> tuple[Declaration, ...]:
    found, first, depth = [], 0, 0
    for i, token in enumerate(tokens):
        depth += (token == "{") - (token == "}")
        if depth == 0 and token in ";}":
            if i > first:
                found.append(_declaration(tokens[first:i]))
            first = i + 1
    return tuple(found)


def _declaration(tokens: list[str]) -> Declaration:
    """Parse a declaration from its tokens, without the last one, a semicolon or a brace."""
    start = 0
    while tokens[start] == "[":
        start = tokens.index("]", start) + 1
    derivatives, tokens = _words(tokens[:start]), tokens[start:]
    opening = tokens.index("{") if "{" in tokens else len(tokens)
    head = tokens[:opening]
    kind = next((word for word in _TYPES if word in head), None)
    if kind:
        members = () if kind == "enum" else _declarations(tokens[opening + 1 :])
        words = _words(head).union(*(member.words for member in members if member.type))
        return Declaration(head[head.index(kind) + 1], words, frozenset(), derivatives, members)
    head = head[: head.index("=")] if "=" in head else head
    parts = frozenset(
        token if len(owner) > 1 and owner[0].isupper() else token[1:] for owner, token in pairwise(tokens) if token[0] == "."
    )
    if "(" in head:
        name = _function_name(head)
        # Its own name is no reference to another declaration, such as an imported module's entry point.
        words = _words(tokens) - ({name} if tokens.count(name) == 1 else set())
        return Declaration(name, words, parts, derivatives, is_static="static" in head)
    while head[-1] == "]":
        head = head[: len(head) - head[::-1].index("[") - 1]
    words = _words(tokens) - {head[-1]}
    # Pointers are bound like buffers.
    is_buffer = not words.isdisjoint(("StructuredBuffer", "RWStructuredBuffer")) or head[-2:-1] == ["*"]
    kinds = [token for token in head[:-1] if _is_name(token)]
    return Declaration(head[-1], words, parts, derivatives, (), kinds[-1] if kinds else "", is_buffer, "uniform" in words)


def _function_name(head: list[str]) -> str:
    """The name before the parameters, and before generic parameters in angle brackets."""
    end, depth = head.index("("), 0
    while depth or not _is_name(head[end]):
        end -= 1
        depth += (head[end] == ">") - (head[end] == "<")
    return head[end]


def _is_name(token: str) -> bool:
    return token[0].isalpha() or token[0] == "_"


def _words(tokens: list[str]) -> frozenset[str]:
    return frozenset(filter(_is_name, tokens))


@dataclass(frozen=True)
class Globals:
    """Buffers and numbers by name, with the types of the buffers' elements and of the numbers. A struct's fields are named
    `struct.field`; fields of the block `params` have no prefix."""

    buffers: dict[str, str]
    uniforms: dict[str, str]
    # Names that a specialisation sets.
    externs: frozenset[str] = field(default=frozenset(), compare=False)
    # Numbers of the block `params`.
    block: frozenset[str] = field(default=frozenset(), compare=False)


@cache
def declared(module: str) -> Globals:
    """The globals that slang/<module>.slang and all its imports declare."""
    everything = [declaration for source in scope(module) for declaration in source.declarations]
    types = {declaration.name: declaration for declaration in everything if declaration.members}
    buffers: dict[str, str] = {}
    uniforms: dict[str, str] = {}

    def add(name: str, variable: Declaration) -> None:
        if variable.is_buffer:
            buffers[name] = variable.type
        elif variable.type in types:
            for member in types[variable.type].members:
                if member.type:
                    add(f"{name}.{member.name}", member)
        else:
            uniforms[name] = variable.type

    for declaration in everything:
        if declaration.is_buffer or declaration.is_uniform:
            add(declaration.name, declaration)
    block = {member.name: member.type for d in everything if d.name == "Params" for member in d.members if member.type}
    externs = frozenset(name for source in scope(module) for name in source.externs)
    return Globals(buffers, uniforms | block, externs, frozenset(block))


@cache
def extern_defaults(module: str) -> dict[str, str]:
    """The default values of the `extern` names of slang/<module>.slang and its imports."""
    return {name: value for source in scope(module) for name, value in source.defaults.items()}


@cache
def mentioned(module: str, entry: str, types: tuple[str, ...] = ()) -> Globals:
    """The globals of `declared` that an entry point of the module or a specialisation's `types` mention, directly or through
    other declarations."""
    visible = {source.name: {inner.name for inner in scope(source.name)} for source in scope(module)}
    named: dict[str, list[tuple[Declaration, str]]] = {}
    for source in scope(module):
        for declaration in source.declarations:
            named.setdefault(declaration.name, []).append((declaration, source.name))
    # Declarations that count, with their modules; names that may belong to methods.
    reached: dict[Declaration, str] = {}
    called: set[str] = set()
    new = {declaration: home for declaration, home in named[entry] if home == module}
    new |= {declaration: home for name in types for declaration, home in named.get(name, ())}
    while new:
        reached |= new
        called = called.union(*(declaration.words | declaration.parts for declaration in new))
        found: dict[Declaration, str] = {}
        for declaration, home in reached.items():
            words = declaration.words if declaration in new else frozenset()
            # The size of the entry point's workgroup is an attribute, too.
            if "bwd_diff" in called or (declaration.name == entry and home == module):
                words |= declaration.derivatives
            elif "fwd_diff" in called:
                words |= {name for name in declaration.derivatives if name.endswith("_fwd")}
            for word in words:
                found |= {other: place for other, place in named.get(word, ()) if place in visible[home]}
            for member in declaration.members:
                # Static methods are also called by `Type.name`.
                if not member.type and (member.name in called or (member.is_static and f".{member.name}" in called)):
                    found[member] = home
        new = {declaration: home for declaration, home in found.items() if declaration not in reached}
    everything = declared(module)
    variables = {declaration.name for declaration in reached if declaration.is_buffer or declaration.is_uniform}
    block = {name for name in everything.block if called & {f"params.{name}", "params"}}

    def of(names: dict[str, str]) -> dict[str, str]:
        return {name: kind for name, kind in names.items() if name.split(".")[0] in variables or name in block}

    externs = everything.externs.intersection(declaration.name for declaration in reached)
    return Globals(of(everything.buffers), of(everything.uniforms), externs)
