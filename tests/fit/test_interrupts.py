"""Signals during a fit: noted, and acted on between steps."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from splat_py.fit.process import Interrupted, Interrupts, kept_checkpoint, signals_as_interrupts

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    """Restore the handlers: the program that runs the tests may ignore some of the signals, as nohup does."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_for_the_step(number: int) -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    done: list[int] = []

    def loop() -> None:
        with Interrupts() as interrupts:
            for step in range(3):
                interrupts.act()
                if step == 1:
                    send(number)
                done.append(step)

    with pytest.raises(Interrupted) as error:
        loop()
    assert done == [0, 1]
    assert error.value.number == number and isinstance(error.value, KeyboardInterrupt)
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("signals", [1, 2])
def test_a_checkpoint_is_of_a_whole_step(tmp_path: Path, number: int, signals: int) -> None:
    """The second signal does not wait for the end of the step; a command's own handler raises what `act` raises."""
    saved: list[Path] = []
    signal.signal(number, signal.SIG_DFL)

    def loop() -> None:
        with kept_checkpoint(tmp_path / "checkpoint", saved.append) as (interrupts, _):
            for _ in range(signals):
                send(number)
            interrupts.act()

    with pytest.raises(Interrupted), signals_as_interrupts():
        loop()
    assert saved == [tmp_path / "checkpoint"] * (2 - signals)


def test_an_interrupt_of_others_saves_nothing(tmp_path: Path) -> None:
    def fit(interrupt: BaseException) -> None:
        with kept_checkpoint(tmp_path / "checkpoint", lambda path: pytest.fail("saved half a step")):
            raise interrupt

    for interrupt in (KeyboardInterrupt(), Interrupted(signal.SIGALRM)):
        with pytest.raises(KeyboardInterrupt):
            fit(interrupt)


def test_handlers_of_others_stay() -> None:
    came = []
    signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Interrupts() as interrupts:
        send(signal.SIGTERM)
        send(signal.SIGHUP)
        interrupts.act()
    assert came == [signal.SIGTERM]


def test_other_threads_handle_no_signals() -> None:
    def enter() -> None:
        with Interrupts() as interrupts:
            interrupts.act()

    with ThreadPoolExecutor() as threads:
        threads.submit(enter).result()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_ends_as_by_ctrl_c(number: int) -> None:
    signal.signal(number, signal.SIG_DFL)

    def loop() -> None:
        with Interrupts() as interrupts:
            send(number)
            steps.append(1)
            interrupts.act()

    steps: list[int] = []
    with pytest.raises(Interrupted) as error, signals_as_interrupts():
        send(number)
    assert error.value.number == number
    with pytest.raises(Interrupted), signals_as_interrupts():
        loop()
    assert steps == [1] and signal.getsignal(number) is signal.SIG_DFL
