"""Types of the user's in the place of built-in ones: named by a run's options, kept as text, and compiled only if trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from splat_py.errors import SplatError
from splat_py.scene.slang_source import SlangSource
from splat_py.splats.splat_types import BUILT_IN, SPLAT_INTERFACES

if TYPE_CHECKING:
    from splat_py.gpu.kernels import UserType
    from splat_py.shaders import ShaderModule
    from splat_py.splats.config import TrainConfig
    from splat_py.volume.config import VolumeConfig

Config = TypeVar("Config", "TrainConfig", "VolumeConfig")


@dataclass(frozen=True)
class Slot:
    """A place for a type: the field of `TrainConfig` or `VolumeConfig` with its name, where `<option>_source` has the text of
    one's own, the interfaces of which it implements one, and the names of the built-in ones."""

    option: str
    interfaces: tuple[str, ...]
    names: tuple[str, ...]

    def validate(self, name: str, source: str) -> None:
        """Raise SplatError unless these may be a type's."""
        if source:
            SlangSource(name, source)
        elif name not in self.names:
            self._require_file(name)

    def named(self, name: str) -> str | UserType:
        """A built-in type's name, or the type in a Slang file.

        Raises:
            SplatError: there is neither.
        """
        if name in self.names:
            return name
        self._require_file(name)
        from splat_py import shaders

        return self.own(shaders.load(name))

    def own(self, module: ShaderModule | UserType) -> UserType:
        """The type in a module."""
        from splat_py.user_types import user_type

        return user_type(module, *self.interfaces)

    def of(self, config: TrainConfig | VolumeConfig) -> str | SlangSource:
        """The type of a configuration, as text."""
        name, source = self.fields(config)
        return SlangSource(name, source) if source else name

    def fields(self, config: TrainConfig | VolumeConfig) -> tuple[str, str]:
        """Its name and its source, if it has one."""
        return getattr(config, self.option), getattr(config, f"{self.option}_source")

    def trusted(
        self, kind: str | UserType | SlangSource, named: str | UserType | None, trust_source: bool, what: str
    ) -> str | UserType:
        """A type that may be compiled: one of a file only if the user has named its source again, or says so.

        Args:
            named: what the user names, if anything.
            what: carries the type, for messages.

        Raises:
            SplatError: nobody says that the source is trusted, or `named` is something else.
        """
        own = kind if isinstance(kind, str) else kind.name
        if isinstance(named, str) or isinstance(kind, str):
            if named not in (None, kind):
                other = getattr(named, "name", named)
                raise SplatError(f"{what} has the {self.option} {own}, and not {other}; leave --{self.option} out")
            if isinstance(kind, str):
                return kind
        if named is not None and not isinstance(named, str):
            if named.text != kind.text:
                raise self._another_source(what, own)
            return named
        if not isinstance(kind, str | SlangSource):
            return kind
        if not trust_source:
            raise SplatError(
                f"{what} carries Slang source of its own, {own}, which could read and write any memory; "
                f"name its file again (--{self.option} FILE), or say that you trust it (--trust-source)"
            )
        from splat_py import shaders

        return self.own(shaders.source(kind.text))

    def begun_with(
        self, config: Config, asked: str | UserType | ShaderModule | None, *, resumed: bool, trust_source: bool
    ) -> tuple[Config, str | UserType]:
        """The configuration of a run with the type that is asked for in the place of its own, and that type.

        Args:
            resumed: `config` is of a run that goes on.

        Raises:
            SplatError: there is no such type, it contradicts the run's, or its source is not trusted.
        """
        was, source = self.fields(config)
        given = was if asked is None and not source else asked
        if given is None:
            return config, self.trusted(SlangSource(was, source), None, trust_source, "the checkpoint")
        kind = self.named(given) if isinstance(given, str) else self.own(given)
        name, text = (kind, "") if isinstance(kind, str) else (kind.name, kind.text)
        if resumed and source and text and text != source:
            raise self._another_source("the checkpoint", was)
        if resumed and (name, text) != (was, source):
            raise SplatError(
                f"{self.option} is {name}, but the checkpoint was begun with {was}; resume it without {self.option}"
            )
        return replace(config, **{self.option: name, f"{self.option}_source": text}), kind  # type: ignore[arg-type]

    def refuse_another(self, root: Path, recorded: Config, saved: Config, asked: Config) -> None:
        """Of a run that is resumed: types of one's own are compared as text, as the same file may be elsewhere now.

        Raises:
            SplatError: its record, its checkpoint and what is asked for name different types.
        """
        if self.fields(recorded) != self.fields(saved):
            raise SplatError(f"the checkpoint and the run.json in {root} are of two runs: their types differ")
        (name, source), (was, text) = self.fields(asked), self.fields(recorded)
        if source not in ("", text):
            raise SplatError(
                f"--{self.option} is a source of {name}, but the run in {root} was begun with {was} of another source, "
                "or without; name the same, or choose another --out"
            )

    def _require_file(self, name: str) -> None:
        from splat_py.files import is_file

        if not is_file(Path(name)):
            raise SplatError(f"{self.option} is {name[:60]!r}; use {', '.join(self.names)}, or the name of a Slang file")

    def _another_source(self, what: str, name: str) -> SplatError:
        return SplatError(f"this source is not the one of {what}, of type {name}; name the one that it was trained with")


@dataclass(frozen=True)
class OwnTypes:
    """Slang files that a scene was trained with, named again."""

    # The Slang file with the scene's splats, if it was trained with one.
    splat: str | None = None
    # That with its camera; of a .ply what projects, as `splat train` takes it.
    camera: str | None = None
    # That with its colours.
    color: str | None = None
    # Compile the Slang source that the scene carries, without its file. It could read and write any memory of yours.
    trust_source: bool = False


SPLAT = Slot("splat", SPLAT_INTERFACES, tuple(BUILT_IN))
CAMERA = Slot("camera", ("ICameraModel",), ("dataset", "pinhole", "fisheye", "ortho", "equirectangular"))
COLOR = Slot("color", ("IColor",), ("SphericalHarmonics", "SphericalGaussians", "ColorNetwork"))
SLOTS = (SPLAT, CAMERA, COLOR)
