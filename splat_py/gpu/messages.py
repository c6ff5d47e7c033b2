"""The messages of SlangPy and its compiler, often a page long, shortened to a clause or a sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from splat_py.base.errors import DeviceLostError
from splat_py.base.files import reason
from splat_py.gpu.sources import shader_folder

# Hints at the usual mistake behind a compiler's message.
_HINTS = {
    "does not match interface requirement$": "; it must be static if the interface's is, with its arguments and, if that has "
    "it, [Differentiable]",
    "is not accessible": "; write public before it: a source with module, public, internal or private hides everything else",
    "'double' type emitted": "; write float",
    "^array index out of bounds": "; a colour has (FEATURES + 2) / 3 vectors of features, and WEIGHTS weights",
    "^undefined identifier 'I[A-Z]": "; begin with import splat.prelude;",
}


_PUBLIC = re.compile(r"^(?:\[[^\]]*\] )*public (?:[\w<>\[\],.]+ )+(\w+)", re.MULTILINE)


def first_error(messages: str, text: str | None = None) -> str:
    """Return Slang's first error message, of one line or with a drawing, as a clause. With the `text` of the user's source, it
    has no line if that is one of another source, such as code that SlangPy has written."""
    # Errors in what Slang derives for a differentiable type, which name no line of its source.
    if re.match(r"(?:.*\n)?error\[\w+\]: (function '\$__syn_|left of '=' is not an l-value\n(?! *-->))", messages):
        return (
            "a struct with derivatives has a static const float, or implements two interfaces; move the constant out of the "
            "struct, and declare one for each interface"
        )
    line = re.search(r":(\d+):\d+\n|\((\d+)\): error", messages)
    what = re.search(r"\^+ (.+)", messages) or re.search(r"error(?: \d+|\[\w+\]): (.+)", messages)
    if what is None:
        return reason(ValueError(messages))
    said = re.sub(r"^Slang compilation aborted .* unexpected: ", "", what[1][:200].rstrip("."))
    hint = next((hint for pattern, hint in _HINTS.items() if re.search(pattern, said)), "")
    unknown = re.match(r"undefined identifier '(\w+)'", said)
    if unknown and not hint:
        hint = _like(unknown[1])
    # Errors from linking have no line.
    number = int(line[1] or line[2]) if line else 0
    drawn = re.search(rf"^ *{number} \| (.*)", messages, re.MULTILINE)
    if drawn and text is not None:
        # SlangPy puts a line before a source that is no file.
        lines = dict(enumerate(text.splitlines(), 1))
        number = next((n for n in (number, number - 1) if drawn[1].strip() in lines.get(n, "")), 0)
    return f"line {number}: {said}{hint}" if number else f"{said}{hint}"


def _like(name: str) -> str:
    """Name the public declarations of splat_py with a name, or one like it."""
    files = (shader_folder() / "splat").glob("*.slang")
    modules = {found: file.stem for file in files for found in _PUBLIC.findall(file.read_text("utf-8"))}
    if name in modules:
        return f"; it is in splat.{modules[name]}: import that or splat.prelude"
    found = dict.fromkeys([*(n for n in sorted(modules) if n.startswith(name)), *get_close_matches(name, modules, 3, 0.65)])
    return f"; there is {', '.join(list(found)[:3])}" if found else ""


@contextmanager
def translate_device_lost() -> Iterator[None]:
    """Turn SlangPy's page about a failed driver call into a DeviceLostError of one sentence. Other errors, such as those of
    compilation, pass unchanged."""
    try:
        yield
    except RuntimeError as error:
        if "failed with error" not in str(error):
            raise
        code = re.search(r"VK_ERROR_\w+", str(error))
        reason = code.group() if code else str(error).strip().split("\n")[0]
        raise DeviceLostError(
            f"the device stopped working ({reason}): its driver failed or gave up on work that took too long; "
            "close other programs that use it and try again"
        ) from error
