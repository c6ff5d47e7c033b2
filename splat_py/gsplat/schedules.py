"""gsplat's schedules of a training run: weights of losses, and frames of a video."""

from dataclasses import dataclass

from splat_py.gsplat.checks import ArgumentError


@dataclass
class LinearLambdaScheduler:
    """A loss's weight by step or epoch (`update_interval`): `lambda_init` up to `start`, `lambda_end` from `end` on, linear
    in between, changing every `update_frequency` steps or epochs. SplatError if `end` comes before the first change."""

    start: int
    end: int
    lambda_init: float
    lambda_end: float = 0.0
    update_interval: str = "step"
    update_frequency: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.update_frequency <= self.end - self.start:
            needs = "update_frequency must be > 0, end must be > start, and total_stages must be > 0"
            raise ArgumentError(f"{needs} (the whole updates in between), but {self}; change one of them")
        self.total_stages = (self.end - self.start) // self.update_frequency

    def __call__(self, epoch: int, global_step: int) -> float:
        now = global_step if self.update_interval == "step" else epoch
        ratio = min(max((now - self.start) // self.update_frequency / self.total_stages, 0), 1)
        return (1 - ratio) * self.lambda_init + ratio * self.lambda_end


@dataclass
class TwoStageScheduleStep:
    """A step's stage, "coarse" or "fine"; its frame; and whether a loader may shuffle frames, which it may in the fine one."""

    stage: str
    frame_index: int
    shuffle: bool


@dataclass
class TwoStageScheduler:
    """Frames of a video: `coarse_frame_index` alone for `coarse_steps`, then all in turn. `fine_steps` ends nothing."""

    coarse_steps: int
    fine_steps: int
    coarse_frame_index: int = 0

    def __post_init__(self) -> None:
        if min(self.coarse_steps, self.fine_steps) < 0:
            raise ArgumentError(f"step counts must be non-negative, but {self}; use 0 or more")

    def step(self, global_step: int, num_frames: int) -> TwoStageScheduleStep:
        """The stage and the frame, below `num_frames`, of step `global_step`, from 0. SplatError if one is out of range."""
        if global_step < 0 or not 0 <= self.coarse_frame_index < num_frames:
            raise ArgumentError(f"global_step={global_step} or num_frames={num_frames} is out of range of {self}; change one")
        fine = global_step - self.coarse_steps
        stage, frame = ("coarse", self.coarse_frame_index) if fine < 0 else ("fine", fine % num_frames)
        return TwoStageScheduleStep(stage, frame, shuffle=fine >= 0)
