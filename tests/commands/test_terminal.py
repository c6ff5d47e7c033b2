"""`splat` itself: parsing, help, errors of one sentence, any text on any terminal, and messages to a person who waits."""

import io
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import splat_py
from splat_py.base.errors import SplatError
from splat_py.commands import terminal
from splat_py.commands.files import Export
from splat_py.commands.terminal import FitBar
from splat_py.gpu.kernels import KernelCache
from tests.commands.program import done, refusal, splat

_SOURCES = str(Path(splat_py.__file__).parents[1])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(terminal, "time", clock)
    return clock


def bar(
    monkeypatch: pytest.MonkeyPatch, software: bool = True, width: int = 100, piped: bool = False
) -> tuple[FitBar, Any, io.StringIO, io.StringIO]:
    """A bar in a terminal of so many columns, its device, and the two streams that it writes: output and errors."""
    out, err = io.StringIO(), io.StringIO()
    plain = {"color_system": None, "markup": False, "highlight": False}
    monkeypatch.setattr(terminal, "console", Console(file=out, width=width, force_terminal=not piped, **plain))
    monkeypatch.setattr(terminal, "_errors", Console(file=err, width=400, **plain))
    adapter = SimpleNamespace(name="llvmpipe")
    device: Any = SimpleNamespace(software=software, adapter=adapter, kernels=KernelCache(None))  # type: ignore[arg-type]
    return FitBar(device, "--downscale 8"), device, out, err


def line(fit: FitBar, out: io.StringIO) -> str:
    out.truncate(0)
    fit._progress.refresh()
    return out.getvalue()


def test_dashes_stand_where_there_is_no_number_yet(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    fit, _, out, _ = bar(monkeypatch)
    with fit:
        fit.begin(1000)
        text = line(fit, out)
        assert "PSNR -- dB" in text and "-:--:--" in text and "0.00" not in text
        fit.update(1, 12.345, "9 [bold]")
        text = line(fit, out)
        assert "PSNR 12.35 dB" in text or "PSNR 12.34 dB" in text
        assert "-:--:--" in text and "9 [bold]" in text


def test_the_time_that_remains_is_told_from_the_second_step(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    fit, _, out, err = bar(monkeypatch)
    with fit:
        fit.begin(100, 10)
        # Compiling does not count.
        clock.now = 60.0
        fit.update(11, 10.0)
        clock.now = 62.0
        fit.update(12, 10.0)
        text = line(fit, out)
        assert "0.5 steps/s" in text and "0:02:56 left" in text
    assert not err.getvalue()


@pytest.mark.parametrize("software", [True, False])
def test_hours_on_a_software_device_are_a_warning_with_the_option_that_helps(
    software: bool, monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace
) -> None:
    fit, _, _, err = bar(monkeypatch, software)
    with fit:
        fit.begin(30_000)
        for step in range(1, 9):
            clock.now += 1
            fit.update(step, 10.0)
    assert err.getvalue().count("about 8 hours remain") == software
    assert err.getvalue().count("--downscale 8") == software


@pytest.mark.parametrize(("width", "details"), [(60, False), (80, True)])
def test_a_narrow_terminal_keeps_the_bar_and_the_steps(
    width: int, details: bool, monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace
) -> None:
    fit, _, out, _ = bar(monkeypatch, width=width)
    with fit:
        fit.begin(30_000, 19_990)
        for step in (19_995, 20_000):
            clock.now += 5
            fit.update(step, 31.5, "999,999 Gaussians ÷4 1358 MiB")
        text = line(fit, out)
    assert "━" in text and "20000/30000" in text and "31.50 dB" in text and "2:46:40 left" in text and "…" not in text
    assert ("Gaussians" in text) is details


def test_without_a_terminal_a_line_comes_every_thirty_seconds(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    fit, _, out, _ = bar(monkeypatch, piped=True)
    with fit:
        fit.begin(2000)
        for step in range(1, 76):
            clock.now += 1
            fit.update(step, 20.0)
        assert out.getvalue().splitlines() == [
            "30 of 2,000 steps, PSNR 20.00 dB, 0:32:50 left",
            "60 of 2,000 steps, PSNR 20.00 dB, 0:32:20 left",
        ]


@pytest.mark.parametrize(
    ("environment", "opens"), [({"DISPLAY": ":0"}, True), ({}, False), ({"DISPLAY": ":0", "SSH_CONNECTION": "1"}, False)]
)
def test_a_browser_opens_only_where_there_is_a_display(
    environment: dict[str, str], opens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    bar(monkeypatch)
    opened: list[str] = []
    monkeypatch.setattr(terminal.webbrowser, "open", opened.append)
    monkeypatch.setattr(terminal.sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal.open_browser("http://localhost:1")
    assert opened == ["http://localhost:1"] * opens


def test_a_misspelt_command_names_the_one_that_was_meant(tmp_path: Path) -> None:
    assert "trian is not a command; did you mean train?" in refusal("trian", "photos", cwd=tmp_path)
    assert splat("abacus", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize(("is_terminal", "expected"), [(True, "compiling shaders (once)...\n"), (False, "")])
def test_what_the_library_logs_is_told_on_a_terminal(is_terminal: bool, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(terminal, "console", terminal._PlainConsole(file=out, force_terminal=is_terminal))
    terminal.Messages().handle(logging.makeLogRecord({"msg": "compiling shaders (once)..."}))
    assert out.getvalue() == expected


def test_compiling_is_told_with_a_count(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> None:
    fit, device, out, _ = bar(monkeypatch)
    with fit:
        fit.begin(100)
        for observer in device.kernels.observers:
            for _ in range(5):
                clock.now += 0.4
                observer("project")
        assert "compiling kernels (once)... 5" in line(fit, out)
        fit.update(1, 10.0)
        assert "compiling" not in line(fit, out)
    assert not device.kernels.observers


def test_a_kernel_cache_tells_its_observers_once(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, told = KernelCache(splat_py.get_device().handle), []
    cache.observers.append(told.append)
    for _ in range(2):
        cache.get("portable", "addPartialSums")
    assert told == ["addPartialSums"]


def test_brackets_in_a_name_are_no_markup(run: Path, tmp_path: Path) -> None:
    assert "[bold]x.ply" in done("export", run, "[bold]x.ply", cwd=tmp_path)
    assert "[/bold]x" in done("render", run, "--out", "[/bold]x", cwd=tmp_path)


def program(*arguments: object, cwd: Path, shell: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in its own process; `shell` is a command line with "$@" for the program."""
    command = [sys.executable, "-m", "splat_py", *map(str, arguments)]
    command = ["sh", "-c", shell, "sh", *command] if shell else command
    own = {"PYTHONPATH": _SOURCES, **environment}
    inherited = {name: value for name, value in os.environ.items() if name not in ("LC_ALL", "LANG", "PYTHONUTF8", "TERM")}
    return subprocess.run(
        command, cwd=cwd, env=inherited | own, stdin=subprocess.DEVNULL, capture_output=True, timeout=120, check=False,
        encoding="utf-8", errors="replace",
    )  # fmt: skip


def test_a_terminal_that_knows_ascii_only(tmp_path: Path) -> None:
    ascii_only = {"LANG": "C", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    result = program("devices", cwd=tmp_path, TERM="dumb", **ascii_only)
    assert result.returncode == 0, result.stderr
    assert "? is the default" in result.stdout
    result = program("eval", "Füchse", cwd=tmp_path, **ascii_only)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert result.stderr.startswith("splat: F") and "is not the folder of a training run" in result.stderr


@pytest.mark.skipif(os.name != "posix", reason="a POSIX shell closes the streams")
@pytest.mark.parametrize(
    ("shell", "code"),
    [
        ('"$@" >&-', 0),
        ('"$@" >&- 2>&- <&-', 0),
        ('{ "$@"; echo "code $?" >&2; } | true', 1),
    ],
)
def test_a_closed_output(shell: str, code: int, run: Path, tmp_path: Path) -> None:
    result = program("export", run, "scene.ply", cwd=tmp_path, shell=shell)
    assert "Traceback" not in result.stderr and "Exception" not in result.stderr
    assert result.stderr.strip() == ("code 1" if code else "")
    assert result.returncode == 0
    assert (tmp_path / "scene.ply").stat().st_size == (run / "scene.ply").stat().st_size


@pytest.mark.parametrize(
    ("command", "positionals"),
    [
        ("train", "DATA"),
        ("fit-volume", "DATA"),
        ("render", "SCENE"),
        ("eval", "SCENE"),
        ("localize", "SCENE PHOTO"),
        ("suggest", "SCENE"),
        ("export", "SCENE OUT"),
        ("mesh", "SCENE OUT"),
        ("edit", "IN [IN ...] OUT"),
        ("fit-image", "PICTURE"),
        *((command, "") for command in ("devices", "bench", "selftest", "demo")),
    ],
)
def test_help_teaches_and_its_usage_names_the_positionals(command: str, positionals: str, tmp_path: Path) -> None:
    text = done(command, "--help", cwd=tmp_path)
    usage, _, rest = text.partition("\n\n")
    assert f" {positionals}" in usage and len(text.splitlines()) > 5
    # Parsers of docstrings drop a section that is titled Examples.
    assert command in ("devices", "demo") or f" splat {command} " in rest
    assert not positionals or " PATH" not in usage


def test_names_do_not_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "\x1b[2J\x1b]0;title\x07\u202egnp.ply"
    shown = r"\x1b[2J\x1b]0;title\x07\u202egnp.ply"
    assert shown in refusal("export", name, "scene.spz", cwd=tmp_path)
    assert str(SplatError(f"{name}\nsplat: all is well")) == rf"{shown}\nsplat: all is well"
    terminal.console.print(f"one {name}\ntwo")
    terminal.print_error(OSError(name))
    captured = capsys.readouterr()
    assert captured.out == f"one {shown}\ntwo\n" and captured.err == f"splat: {shown}\n"


def test_interruptions_and_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(command: Export) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Export, "run", interrupt)
    result = splat("export", "run", "scene.ply", cwd=tmp_path)
    assert result.returncode == 130
    assert result.stderr == "splat: interrupted\n"
    monkeypatch.setattr(Export, "run", lambda command: warnings.warn("mind the [gap]", stacklevel=2))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = splat("export", "run", "scene.ply", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "splat: mind the [gap]\n")


@pytest.mark.parametrize("message", ["", "Unable to allocate 7.28 TiB for an array"])
def test_memory_that_does_not_suffice(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(command: Export) -> None:
        raise MemoryError(*[message] if message else [])

    monkeypatch.setattr(Export, "run", exhaust)
    line = refusal("export", "run", "scene.ply", cwd=tmp_path)
    assert line.startswith("splat: not enough memory; use smaller") and message in line and "()" not in line
