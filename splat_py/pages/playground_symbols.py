"""Numbers that remember how they were computed, so that what Python plans for one size JavaScript can plan for another.

A symbol is a number, with which host code goes its usual way, and beside it an expression as JSON: a number, the name of a
variable, or [operator, operand, operand]. `evaluate` here and its twin in splat_py/pages/playground/expressions.js give an
expression's value for other variables. Comparisons are those of the recorded numbers: a plan holds where they come out alike.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, Union

Expression: TypeAlias = Union[int, float, str, "list[Expression]"]

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "**": operator.pow,
    "min": min,
}


def evaluate(expression: Expression, variables: Mapping[str, float]) -> float:
    """An expression's value."""
    if isinstance(expression, str):
        return variables[expression]
    if isinstance(expression, list):
        name, *operands = expression
        return float_or_int(_OPERATORS[str(name)](*(evaluate(operand, variables) for operand in operands)))
    return expression


def float_or_int(value: Any) -> float:
    """The number alone."""
    return int(value) if isinstance(value, int) else float(value)


def expression_of(value: Any) -> Expression:
    """How a number was computed; itself, if it is no symbol."""
    return value.expression if isinstance(value, _Symbol) else float_or_int(value)


def symbol(value: float, expression: Expression) -> Any:
    """A number, and how it was computed."""
    kind: type[_Symbol] = WholeSymbol if isinstance(value, int) else FloatSymbol
    return kind(value, expression)


def smaller(value: Any, most: int) -> Any:
    """`min` of what may be a symbol and a number, in which neither is forgotten."""
    least = min(value, most)
    return symbol(least, ["min", expression_of(value), most]) if isinstance(value, _Symbol) else least


class _Symbol:
    """What whole and other symbols share. Python asks a float on the left first, which knows nothing of symbols that are whole:
    such a product or power is a plain number, and tests of plans find it."""

    expression: Expression

    def __new__(cls, value: float, expression: Expression) -> Any:
        number = super().__new__(cls, value)  # type: ignore[call-arg]
        number.expression = expression
        return number

    def __neg__(self) -> Any:
        return _combined("-", 0, self)


def _forward(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return _combined(name, self, other)

    return method


def _reflected(name: str) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        return _combined(name, other, self)

    return method


def _combined(name: str, a: Any, b: Any) -> Any:
    if not isinstance(a, int | float) or not isinstance(b, int | float):
        return NotImplemented
    return symbol(_OPERATORS[name](float_or_int(a), float_or_int(b)), [name, expression_of(a), expression_of(b)])


for _method, _operator in {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "pow": "**"}.items():
    setattr(_Symbol, f"__{_method}__", _forward(_operator))
    setattr(_Symbol, f"__r{_method}__", _reflected(_operator))


class WholeSymbol(_Symbol, int):
    """One that is an int."""


class FloatSymbol(_Symbol, float):
    """One that is a float."""
