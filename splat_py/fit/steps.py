"""Steps that all fits share: photographs on the device and their order, Adam's constants, random keys, steps in flight, and
checks for NaN and infinity."""

import math
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.gpu.arrays import Array, Bridge, Memory
from splat_py.gpu.device import Device

# Steps between the host's reads of the status, if a read costs a copy.
_STATUS_EVERY = 32
# Default limit in bytes of the photographs that stay on the device.
_BUDGET = 1 << 30
# Number of other photographs that are loaded before their step.
AHEAD = 4
# Suffixes of the names of Adam's moments in checkpoints.
MOMENTS = ("m", "v")


@dataclass(frozen=True)
class AdamSettings:
    """One step of splat/adam.slang: `rate`, the constants and the corrections of both moments' biases."""

    rate: float
    beta1: float
    beta2: float
    epsilon: float
    correction1: float
    correction2: float


@dataclass(frozen=True)
class Adam:
    """Constants that all parameters share; learning rates differ from one to the next."""

    epsilon: float
    beta1: float = 0.9
    beta2: float = 0.999

    def of_batch(self, size: int) -> Self:
        """Return the constants for means over `size` samples, if these constants are for one sample, beside learning rates that
        are √size times as large (Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", as in
        gsplat's simple_trainer.py). Moments that would average over less than one step are none."""
        if size == 1:
            return self
        betas = (max(1 - size * (1 - beta), 0.0) for beta in (self.beta1, self.beta2))
        return replace(self, epsilon=self.epsilon / math.sqrt(size), **dict(zip(("beta1", "beta2"), betas, strict=True)))

    def settings(self, step: int, rate: float = 0.0) -> AdamSettings:
        """Return the settings of `step`, counted from 0."""
        corrections = (1 - beta ** (step + 1) for beta in (self.beta1, self.beta2))
        return AdamSettings(rate, self.beta1, self.beta2, self.epsilon, *corrections)


@dataclass(frozen=True)
class AdamArrays:
    """Parameters on the device and their Adam moments (kernels/adam.slang)."""

    parameters: Array
    first_moments: Array
    second_moments: Array

    @classmethod
    def of(cls, arrays: Mapping[str, Array], name: str, **others: Any) -> Self:
        """Pick the arrays of a parameter by its name in checkpoints: the parameter itself and its two moments."""
        return cls(*(arrays[other] for other in with_moments(name)), **others)


@dataclass(frozen=True)
class AdamRows(AdamArrays):
    """Rows of whole float4s that learn where their gradients are computed, with all that their step needs."""

    settings: AdamSettings
    head_rate: float
    status: Array


def with_moments(name: str) -> list[str]:
    """Return a parameter's name in a state, and the names of its Adam moments."""
    return [name, *(f"{name}.{moment}" for moment in MOMENTS)]


class Use(IntEnum):
    """Purposes of random numbers; no two purposes share any."""

    SPLIT = 0
    RELOCATION = 1
    GROWTH = 2
    NOISE = 3


def random_key(seed: int, step: int, use: Use) -> dict[str, Any]:
    """Return two words for the kernels' uniforms `key0` and `key1`."""
    low, high = np.random.SeedSequence((seed, step, use)).generate_state(2)
    return {"key0": int(low), "key1": int(high)}


class Overflow(NamedTuple):
    """The list sizes that the first step that did not fit needed, as kernels/status.slang writes them; all 0 if every step
    fitted."""

    isect_count: int
    step: int
    max_tile_count: int


class StepsInFlight(ABC):
    """A fit that sends steps to its device in order, up to `Tuning.steps_ahead` of them before it waits for one.

    If the lists of a step do not fit, neither it nor any later step changes anything. Once the host notices, it reserves more
    and goes back to that step, so that the result is the same as with lists that always fitted.
    """

    def __init__(self, device: Device, step: int) -> None:
        self.device = device
        # The next step to send, and the number of steps ever sent.
        self._step = self._sent = step
        # An `Overflow`, [3] uint32, on the device.
        self._status = device.memory.array(np.zeros(3, np.uint32))
        self._every = 1 if device.memory.bridge is Bridge.ALIAS else _STATUS_EVERY
        self._submissions: deque[tuple[int, int]] = deque()

    @property
    def step(self) -> int:
        """Steps that have been sent to the device; after `finish`, steps that are done."""
        return self._step

    def advance(self) -> None:
        """Send the next step to the device, without waiting for it."""
        self._send()

    def finish(self) -> None:
        """Wait until every step that was sent is done, and repeat those whose lists did not fit."""
        self._retire(0)
        while self._step < self._sent:
            self._send()
            if self._step == self._sent:
                self._retire(0)

    @abstractmethod
    def _submit(self, step: int) -> int:
        """Send a step; return the number of its submission."""

    @abstractmethod
    def _reserve_lists(self, overflow: Overflow) -> None:
        """Enlarge the lists to hold what did not fit."""

    def _on_done(self, step: int) -> None:  # noqa: B027, an optional hook
        """Called for every step that is done and counts; only for every 32nd if reading from the device costs a copy."""

    def _send(self) -> None:
        try:
            self._submissions.append((self._step, self._submit(self._step)))
            self._step += 1
            self._sent = max(self._sent, self._step)
            self._retire(self.device.tuning.steps_ahead)
        except BaseException:
            # Commands that still run would write to arrays that are free once an interrupt has ended the fit.
            self.device.handle.wait_for_idle()
            raise

    def _retire(self, allowed: int) -> None:
        """Wait until no more than `allowed` steps are in flight."""
        done = []
        while len(self._submissions) > allowed:
            self.device.wait(self._submissions[0][1])
            done.append(self._submissions.popleft()[0])
        if allowed and not any(step % self._every == 0 for step in done):
            return
        overflow = Overflow(*map(int, self._status.numpy()))
        if overflow.isect_count:
            self.device.handle.wait_for_idle()
            done += [step for step, _ in self._submissions]
            self._submissions.clear()
            self._status.write(np.zeros(3, np.uint32))
            self._reserve_lists(overflow)
            self._step = overflow.step
        for step in done:
            if step < self._step and step % self._every == 0:
                self._on_done(step)


def check_finite(arrays: Mapping[str, NDArray], step: int) -> None:
    """Raise a SplatError that names the first array which holds NaN or infinity after `step` steps."""
    for name, values in arrays.items():
        # A finite sum means finite values, and a sum needs no array; it may overflow, so check the values too.
        with np.errstate(over="ignore", invalid="ignore"):
            total = values.sum(dtype=np.float64)
        if not np.isfinite(total) and not np.isfinite(values).all():
            raise diverged(name, step)


def diverged(name: str, step: int) -> SplatError:
    return SplatError(
        f"stopped after step {step:,}: NaN or infinity in {name}; lower the learning rates and check the input; "
        "a checkpoint from before stays as it is"
    )


class Photographs:
    """Photographs on the device, by view. The first ones stay, up to a limit; the others are streamed.

    Each epoch uses all photographs in a new order. If a share f of them stays, a share f of the steps find theirs; a cache of
    the most recently used ones would serve far fewer. `load` is called in any thread.
    """

    def __init__(self, memory: Memory, load: Callable[[int], NDArray], limit_bytes: int | None = None) -> None:
        self._memory, self._load = memory, load
        self._limit = _BUDGET if limit_bytes is None else limit_bytes
        self._resident: dict[int, Array] = {}
        self._bytes = 0
        self._ahead: dict[int, Future[NDArray]] = {}
        self._wanted: list[int] = []
        # Its threads end with this object.
        self._pool = ThreadPoolExecutor(AHEAD, "photographs")

    def __getitem__(self, view: int) -> Array:
        if view in self._resident:
            return self._resident[view]
        ahead = self._ahead.pop(view, None)
        if ahead is None and view in self._wanted:
            self._wanted.remove(view)
        self._load_ahead()
        array = self._memory.array(self._load(view) if ahead is None else ahead.result())
        if self._bytes + array.nbytes <= self._limit:
            self._resident[view] = array
            self._bytes += array.nbytes
        return array

    def prefetch(self, views: Iterable[int]) -> None:
        """Load those of `views` that are not there, in other threads and in this order, at most `AHEAD` of them ahead."""
        self._wanted = list(views)
        self._load_ahead()

    def _load_ahead(self) -> None:
        while self._wanted and len(self._ahead) < AHEAD:
            view = self._wanted.pop(0)
            if view not in self._resident and view not in self._ahead:
                self._ahead[view] = self._pool.submit(self._load, view)


def views_at(step: int, count: int, each: int, seed: int) -> list[int]:
    """Return the `each` of `count` views that a step uses: a new random order every epoch, from step and seed alone."""
    epoch, position = divmod(step, count // each)
    order = np.random.default_rng((seed, epoch)).permutation(count)
    return [int(view) for view in order[position * each : (position + 1) * each]]


def psnr_of(squared_error: float) -> float:
    """Return the peak signal-to-noise ratio in dB, from the mean squared error of values from 0 to 1."""
    return -10 * float(np.log10(max(squared_error, 1e-10)))
