"""Users' own types in run options and in scenes: named by a file, kept as text, and compiled only if trusted."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from splat_py.base.errors import SplatError
from splat_py.shaders.declarations import BUILT_IN, SPLAT_INTERFACES, SlangSource

if TYPE_CHECKING:
    from splat_py.gpu.kernels import UserType
    from splat_py.shaders.functions import ShaderModule

# A frozen dataclass with the fields that slots name.
Config = TypeVar("Config", bound=Any)


@dataclass(frozen=True)
class Slot:
    """A place for a type in a configuration: the field `option` has its name, `<option>_source` the text of a user's type."""

    option: str
    interfaces: tuple[str, ...]  # the type implements one of them
    names: tuple[str, ...]  # the built-in types

    def validate(self, name: str, source: str) -> None:
        """Raise SplatError unless a type may have this name and source."""
        if source:
            SlangSource(name, source)
        elif name not in self.names:
            from splat_py.base.files import is_file

            if not is_file(Path(name)):
                raise SplatError(f"{self.option} is {name[:60]!r}; use {', '.join(self.names)}, or the name of a Slang file")

    def resolve(self, given: "str | UserType | ShaderModule") -> "str | UserType":
        """Return a built-in type's name, or the type in a module or in the Slang file that `given` names."""
        if not isinstance(given, str):
            return self.own(given)
        self.validate(given, "")
        if given in self.names:
            return given
        from splat_py.shaders.loading import load

        return self.own(load(given))

    def own(self, module: "ShaderModule | UserType") -> "UserType":
        from splat_py.shaders.loading import user_type

        return user_type(module, *self.interfaces)

    def of(self, config: Any) -> str | SlangSource:
        """The type in a configuration, as text."""
        name, source = self.fields(config)
        return SlangSource(name, source) if source else name

    def fields(self, config: Any) -> tuple[str, str]:
        """The type's name, and its source or ""."""
        return getattr(config, self.option), getattr(config, f"{self.option}_source")

    def trusted(
        self,
        kind: "str | UserType | SlangSource",
        given: "str | UserType | ShaderModule | None",
        trust_source: bool,
        what: str,
    ) -> "str | UserType":
        """Return a type that may be compiled. Source from a file must be trusted: the user names it again as `given`, or sets
        `trust_source`. Else SplatError, also if `given` is another type. Messages say that `what` carries the type."""
        named = None if given is None else self.resolve(given)
        own = kind if isinstance(kind, str) else kind.name
        if isinstance(named, str) or isinstance(kind, str):
            if named not in (None, kind):
                other = getattr(named, "name", named)
                raise SplatError(f"{what} has the {self.option} {own}, not {other}; leave --{self.option} out")
            assert isinstance(kind, str)
            return kind
        if named is not None:
            if named.text != kind.text:
                raise self._another_source(what, own)
            return named
        if not isinstance(kind, SlangSource):
            return kind
        if not trust_source:
            raise SplatError(
                f"{what} carries Slang source of its own, {own}, which could read and write any memory; "
                f"name its file again (--{self.option} FILE), or say that you trust it (--trust-source)"
            )
        from splat_py.shaders.loading import source

        return self.own(source(kind.text))

    def begun_with(
        self, config: Config, asked: "str | UserType | ShaderModule | None", *, resumed: bool, trust_source: bool
    ) -> "tuple[Config, str | UserType]":
        """Return the configuration of a run with the type `asked` instead of its own, and that type. SplatError if the run is
        `resumed` and its type would change."""
        was, source = self.fields(config)
        given = was if asked is None and not source else asked
        if given is None:
            return config, self.trusted(SlangSource(was, source), None, trust_source, "the checkpoint")
        kind = self.resolve(given)
        name, text = (kind, "") if isinstance(kind, str) else (kind.name, kind.text)
        if resumed and source and text and text != source:
            raise self._another_source("the checkpoint", was)
        if resumed and (name, text) != (was, source):
            raise SplatError(
                f"{self.option} is {name}, but the checkpoint was begun with {was}; resume it without {self.option}"
            )
        return replace(config, **{self.option: name, f"{self.option}_source": text}), kind

    def refuse_another(self, root: Path, recorded: Config, saved: Config, asked: Config) -> None:
        """Raise SplatError if a resumed run's type differs, compared as text: its file may have moved."""
        if self.fields(recorded) != self.fields(saved):
            raise SplatError(f"the checkpoint and the run.json in {root} belong to different runs: their types differ")
        (name, source), (was, text) = self.fields(asked), self.fields(recorded)
        if source not in ("", text):
            raise SplatError(
                f"--{self.option} is a source of {name}, but the run in {root} was begun with {was} of another source, "
                "or without; name the same, or choose another --out"
            )

    def _another_source(self, what: str, name: str) -> SplatError:
        return SplatError(f"this source is not the one of {what}, of type {name}; name the one that it was trained with")


@dataclass(frozen=True)
class OwnTypes:
    """The Slang files that a scene was trained with, named again."""

    # The Slang file with the scene's splats, if it was trained with one.
    splat: str | None = None
    # The file with its camera; for a .ply any camera that `splat train` accepts.
    camera: str | None = None
    # The file with its colours.
    color: str | None = None
    # Compile the Slang source that the scene carries, without its file. It could read and write any of your memory.
    trust_source: bool = False


SPLAT = Slot("splat", SPLAT_INTERFACES, tuple(BUILT_IN))
CAMERA = Slot("camera", ("ICameraModel",), ("dataset", "pinhole", "fisheye", "ortho", "equirectangular"))
COLOR = Slot("color", ("IColor",), ("SphericalHarmonics", "SphericalGaussians", "ColorNetwork"))
PIXEL_LOSS = Slot("pixel_loss", ("IPixelLoss",), ("L1", "L2", "Charbonnier"))
SLOTS = (SPLAT, CAMERA, COLOR, PIXEL_LOSS)
