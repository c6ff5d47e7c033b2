"""Types declared in files and options: names, parameters and source text. Nothing here compiles or imports a compiler."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from splat_py.base.errors import SplatError
from splat_py.gpu.sources import constant_of

if TYPE_CHECKING:
    from splat_py.gpu.kernels import UserType

# The most characters of a source, and numbers of each Gaussian's own.
MOST_SOURCE, MOST_NUMBERS = 1 << 16, 16
_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)


@dataclass(frozen=True)
class SlangSource:
    """The name and the source of a type that a file carries, compiled only if the user trusts it."""

    name: str
    text: str

    def __post_init__(self) -> None:
        require_name("the type", self.name)
        if len(self.text) > MOST_SOURCE:
            raise SplatError(f"the Slang source has {len(self.text):,} characters; give at most {MOST_SOURCE:,}")
        if not all(character.isprintable() or character in "\n\t" for character in self.text):
            raise SplatError("the Slang source holds unprintable characters; remove them")


def require_name(what: str, name: object) -> None:
    """Raise SplatError unless `name` is valid in Slang and PLY."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SplatError(f"{what} is called {str(name)[:40]!r}; use at most 64 letters, digits and _, and no digit first")


# Interfaces of splats; if a module has falloffs of several, the first counts. A colour of its own may join any but IFalloff2D.
SPLAT_INTERFACES = ("IFalloff3D", "IFalloff2D", "IFalloff", "ISplatColor")


@dataclass(frozen=True)
class Parameter:
    """A parameter that each Gaussian has for its splat: its initial value in training, its limits, and its learning rate if it
    has one of its own."""

    initial: float
    least: float = -math.inf
    largest: float = math.inf
    rate: float | None = None


# Built-in splats and their parameters. With an exponent of zero a splat would reach everywhere.
BUILT_IN: dict[str, dict[str, Parameter]] = {
    "Gaussian": {},
    "GeneralizedExponential": {"beta": Parameter(1.0, 0.2, 8.0)},
    "BetaKernel": {"b": Parameter(0.0, -4.0, 4.0)},
    "Surfel": {},
}


def read_parameters(splat: str, built_in: bool, given: Sequence[str], rates: Sequence[str] = ()) -> dict[str, Parameter]:
    """Return a splat's parameters, in order. `given` has initial values, "NAME=VALUE" each: all for a user's type, only those
    that differ from the defaults for a built-in type. `rates` has learning rates, in the same way."""
    known = dict(BUILT_IN[splat]) if built_in else {}
    for name, initial in _numbers("splat_params", given).items():
        require_name("a parameter in splat_params", name)
        if built_in and name not in known:
            raise SplatError(f"splat_params is '{name}={initial:g}'; {splat} takes {', '.join(known) or 'none'}")
        limits = known.get(name, Parameter(initial))
        if not limits.least <= initial <= limits.largest:
            raise SplatError(
                f"splat_params is '{name}={initial:g}'; {name} must lie between {limits.least:g} and {limits.largest:g}"
            )
        known[name] = replace(limits, initial=initial)
    if len(known) > MOST_NUMBERS:
        raise SplatError(f"splat_params has {len(known)} parameters; a splat has {MOST_NUMBERS} at most")
    for name, rate in _numbers("splat_param_lrs", rates).items():
        if name not in known:
            takes = f"{splat} takes {', '.join(known) or 'none'}"
            raise SplatError(
                f"splat_param_lrs has {name[:60]!r}; {takes if known or built_in else 'give its first value in splat_params'}"
            )
        if not 0 <= rate <= 100:
            raise SplatError(f"splat_param_lrs is '{name}={rate:g}'; a learning rate lies between 0 and 100")
        known[name] = replace(known[name], rate=rate)
    return known


def _numbers(option: str, given: Sequence[str]) -> dict[str, float]:
    """Read "NAME=VALUE" texts; SplatError if one is something else, not finite or there twice."""
    numbers: dict[str, float] = {}
    for text in given:
        name, equals, value = text.partition("=")
        try:
            number = float(value) if equals else math.nan
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise SplatError(f"{option} is {text[:60]!r}; write NAME=VALUE, such as beta=1")
        if name in numbers:
            raise SplatError(f"{option} names {name[:60]!r} twice; leave out one")
        numbers[name] = number
    return numbers


# Names that a field would share with a function of its type, or with an argument.
_TAKEN = {"value", "sigmaMax", "color", "of", "sigma", "d", "conic", "ray", "opacity"}


def fields_of(text: str, name: str) -> list[str]:
    """Return the fields of a splat's type in a source: numbers of each Gaussian's own. SplatError if one is no plain float."""
    code = _without_comments(text)
    is_public = re.search(r"\bpublic\b", code)
    head = re.compile(rf"\bstruct\s+{re.escape(name)}\b[^{{;]*{{([^{{}}]*)}}")
    # Functions' bodies go, from the inside out, until the type's own braces are the innermost.
    while (body := head.search(code)) is None and "{" in code:
        code = re.sub(r"{[^{}]*}", ";", code)
    fields: list[str] = []
    for statement in re.split(r";\s*", body[1].strip() if body else ""):
        # Functions, constants and types are no fields.
        if not statement or re.match(r"[^=]*\(|(\w+\s+)?(static|typealias|struct)\b", statement):
            continue
        declared = re.fullmatch(r"(public\s+)?float\s+(\w+(\s*,\s*\w+)*)\s*", statement, re.ASCII)
        names = re.findall(r"\w+", declared[2]) if declared else []
        if not declared or not _TAKEN.isdisjoint(names):
            raise SplatError(
                f"{name} has the field {statement[:60]!r}; a field is a number of each Gaussian's own: write float, no value, "
                f"and a name other than {', '.join(sorted(_TAKEN))}"
            )
        if is_public and not declared[1]:
            raise SplatError(f"{name} is in a source with public parts, but its field {names[0]} is not; write public float")
        fields += names
    return fields


def along_rays(text: str) -> bool:
    """True if a splat's source has a type that needs the pixels' rays."""
    return any(types_of(text, interface) for interface in ("IFalloff3D", "ISplatColor"))


def types_of(source: str, interface: str) -> list[str]:
    """The names of the types that implement an interface in a source."""
    return re.findall(rf"\bstruct\s+(\w+)\s*:[^{{;]*\b{interface}\b", _without_comments(source))


def _without_comments(text: str) -> str:
    """A source with spaces for its comments, in the same lines."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", lambda comment: re.sub(r"[^\n]", " ", comment[0]), text, flags=re.DOTALL)


# A declaration of a number or a vector, with its name and the bracket of an array, or an operation on two names.
_DECLARED = r"\b(?:(float|half)|(?:float|half)[234]|vector\s*<[^<>]*>)\s+(\w+)\s*(\[)?"
_OPERATION = r"(?<![\w.*/])(?<![*/] )(\w+)\s*([*/+-])(?!=)(?=\s*(\w+)\b\s*([\[.(])?)"


def scalar_left_of_vector(text: str) -> str:
    """The first operation in a source with a bare scalar to the left of a vector, and its line; "" if there is none. Slang
    2026.12 loses the scalar's gradient in some functions."""
    code = _without_comments(text)
    # Kinds by name, as the last declaration before a place says.
    kinds: dict[str, str] = {}
    for found in re.finditer(f"{_DECLARED}|{_OPERATION}", code):
        scalar, name, array, left, sign, right, after = found.groups()
        if name:
            kinds[name] = ("scalar" if scalar else "vector") + ("s" if array else "")
        elif kinds.get(left) == "scalar" and kinds.get(right, "") == {None: "vector", "[": "vectors"}.get(after):
            return f"{left} {sign} {right} in line {code.count(chr(10), 0, found.start()) + 1}"
    return ""


def takes_of(color: "UserType") -> tuple[int | None, int]:
    """Return the FEATURES (None for any number) and the WEIGHTS that a colour's source declares."""
    features, weights = constant_in(color, "FEATURES"), constant_in(color, "WEIGHTS", 0)
    for name, value in (("FEATURES", 1 if features is None else features), ("WEIGHTS", weights)):
        if not isinstance(value, int) or value < (name == "FEATURES"):
            raise SplatError(f"{color.name} has {name} = {value}; it must be a whole number of {name.lower()}")
    return features, weights


def constant_in(kind: "UserType", name: str, default: Any = None) -> Any:
    """Return the value of a `static const` in a type's source; `default` if the source has none."""
    try:
        return constant_of(kind.text, name, default)
    except ValueError as error:
        raise SplatError(f"{error}; write it with numbers and other constants of the source") from error
