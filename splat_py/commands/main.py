"""`splat`: parses the command line, runs the command, and reports an error in one sentence."""

import logging
import os
import signal
import sys
import warnings
from contextlib import nullcontext, suppress
from difflib import get_close_matches
from typing import Annotated, get_args

import tyro
from tyro.conf import subcommand

from splat_py import __version__
from splat_py.base.errors import SplatError
from splat_py.commands import terminal
from splat_py.commands.devices import Bench, Demo, Devices, SelfTestCommand
from splat_py.commands.files import Edit, Export, Merge, Partition
from splat_py.commands.fit import FitImage, FitVolume
from splat_py.commands.localize import Localize
from splat_py.commands.mesh import MeshCommand
from splat_py.commands.render import Evaluate, Render, Suggest, View
from splat_py.commands.train import CaptureCommand, Train
from splat_py.fit.process import Launch, launch_of, signals_as_interrupts
from splat_py.gpu.availability import parse_device

Command = (
    Annotated[CaptureCommand, subcommand("capture")]
    | Annotated[Train, subcommand("train")]
    | Annotated[View, subcommand("view")]
    | Annotated[Render, subcommand("render")]
    | Annotated[Evaluate, subcommand("eval")]
    | Annotated[Localize, subcommand("localize")]
    | Annotated[Suggest, subcommand("suggest")]
    | Annotated[Export, subcommand("export")]
    | Annotated[MeshCommand, subcommand("mesh")]
    | Annotated[Edit, subcommand("edit")]
    | Annotated[Partition, subcommand("partition")]
    | Annotated[Merge, subcommand("merge")]
    | Annotated[FitImage, subcommand("fit-image")]
    | Annotated[FitVolume, subcommand("fit-volume")]
    | Annotated[Devices, subcommand("devices")]
    | Annotated[Bench, subcommand("bench")]
    | Annotated[SelfTestCommand, subcommand("selftest")]
    | Annotated[Demo, subcommand("demo")]
)
_DESCRIPTION = "Differentiable Gaussian splatting on Metal, Vulkan and CUDA. `splat --version` prints the version."
_MEMORY = "not enough memory; use smaller pictures (--downscale), fewer Gaussians or a smaller grid"


def main() -> None:
    """Entry point. User errors print one sentence on stderr and exit with code 1."""
    terminal.prepare_streams()
    warnings.showwarning = terminal.show_warning
    logger = logging.getLogger("splat_py")
    logger.setLevel(logging.INFO)
    logger.handlers = [terminal.Messages()]
    launch, interrupted = Launch(), "interrupted"
    try:
        with suppress(SplatError):
            launch = launch_of()
        # Only the first process prints.
        terminal.console.quiet = launch.rank > 0
        if sys.argv[1:] == ["--version"]:
            print(f"splat_py {__version__}", flush=True)
            return
        _require_command(sys.argv[1:2])
        with terminal.silence() if launch.rank > 0 else nullcontext():
            command = tyro.cli(Command, prog="splat", description=_DESCRIPTION)
        if isinstance(command, Train | FitImage | FitVolume):
            interrupted += "; `--resume` continues from the last checkpoint, and without one the same command begins again"
        elif isinstance(command, CaptureCommand) or (isinstance(command, Bench) and command.quality):
            interrupted += "; run the command again to continue"
        if not (launch.alone or isinstance(command, Train)):
            raise SplatError(f"WORLD_SIZE is {launch.size}, but only train runs in several processes; start one")
        if isinstance(command, terminal.OnDevice):
            # Refuse an unknown name before SlangPy is imported.
            parse_device(command.device)
        # The signal that ends the other processes must not interrupt this one's last message.
        with signals_as_interrupts(signal.SIG_DFL if launch.alone else signal.SIG_IGN):
            command.run()
        sys.stdout.flush()
    except (SplatError, NotImplementedError) as error:
        _fail(str(error), 1, launch)
    except KeyboardInterrupt as interrupt:
        _fail(interrupted, 128 + getattr(interrupt, "number", signal.SIGINT), launch)
    except BrokenPipeError:
        # The reader of the output has gone, as after `head`. Python would fail to flush at exit.
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "splat_py":
            raise
        _fail(f"the package {error.name} is missing; `pip install slang-splat` installs all required packages", 1, launch)
    except MemoryError as error:
        _fail(f"{_MEMORY}{f' ({error})' if str(error) else ''}", 1, launch)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}", 1, launch)


def _require_command(words: list[str]) -> None:
    """Raise SplatError if the first word of the command line is no command but looks like one."""
    names = [kind.__metadata__[0].name for kind in get_args(Command)]
    for word in words:
        near = get_close_matches(word, names, 1)
        if near and word not in names:
            raise SplatError(f"{word} is not a command; did you mean {near[0]}? `splat --help` lists all")


def _fail(message: str, code: int, launch: Launch) -> None:
    if launch.speaks():
        terminal.print_error(message)
    sys.exit(code)
