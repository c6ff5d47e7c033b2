"""Comments above the fields of dataclasses document them: on the command line (tyro), and by this extension on the site."""

from __future__ import annotations

from typing import Any

import griffe


class FieldComments(griffe.Extension):
    """Give an attribute without a docstring the comment above it."""

    def on_attribute(self, *, attr: griffe.Attribute, **kwargs: Any) -> None:
        """Add the comment; griffe calls this for each attribute."""
        if attr.docstring is not None or attr.lineno is None or not isinstance(attr.parent, griffe.Class):
            return
        source = attr.lines_collection[attr.filepath]
        comment: list[str] = []
        for line in reversed(source[: attr.lineno - 1]):
            text = line.strip()
            if not text.startswith("#"):
                break
            comment.insert(0, text.removeprefix("#").strip())
        if comment:
            attr.docstring = griffe.Docstring(" ".join(comment), lineno=attr.lineno - len(comment), parent=attr)
