"""`splat capture`: from photographs or a video to a captured scene that can be trained on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tyro.conf import OmitArgPrefixes, Positional, arg

from splat_py.capture.options import CaptureOptions
from splat_py.commands.terminal import console
from splat_py.scene.missing_poses import require_photographs

if TYPE_CHECKING:
    from splat_py.capture.report import CaptureReport

# Photographs without a pose that are listed; all are in capture.json.
_LISTED = 20


@dataclass
class CaptureCommand:
    """Find where photographs were taken, or the frames of a video, so that `splat train` can make a scene of them.

    SOURCE is a folder of photographs (JPEG, PNG, WebP, TIFF, HEIC), or a video. What is black in a picture with a photograph's
    name in its folder masks is ignored. Twenty photographs or more from all around, each with much of what the last one showed,
    are a good capture; thirty take less than a minute on two cores. A capture that was interrupted goes on when it is called
    again. Needs pycolmap: pip install 'slang-splat[capture]'.

    Example: splat capture photos/ --out scene/ && splat train scene/ --out run/
    """

    source: Annotated[Positional[Path], arg(metavar="SOURCE")]
    # Folder of the captured scene: the photographs upright, and a COLMAP model whose +z is up.
    out: Path
    options: OmitArgPrefixes[CaptureOptions] = field(default_factory=CaptureOptions)

    def run(self) -> None:
        """Capture with a progress bar a phase."""
        capture_with_progress(self.source, self.out, self.options)
        console.print(f"the scene is in {self.out}; train on it with `splat train {self.out} --out RUN`", soft_wrap=True)


def capture_with_progress(source: Path, out: Path, options: CaptureOptions) -> CaptureReport:
    """Capture with a progress bar a phase, and say what was found and what was not.

    Raises:
        SplatError: as `splat_py.capture.capture` does.
    """
    options.validate()
    require_photographs(source)
    from splat_py.capture.phases import capture

    columns = (
        TextColumn("{task.description:11}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    tasks: dict[str, TaskID] = {}
    progress = Progress(*columns, console=console)

    def show(phase: str, done: int, total: int) -> None:
        progress.start()
        if phase not in tasks:
            tasks[phase] = progress.add_task(phase)
        progress.update(tasks[phase], completed=done, total=total)

    try:
        report = capture(source, out, options, on_progress=show)
    finally:
        if tasks:
            progress.stop()
    total = len(report.registered) + len(report.unregistered)
    console.print(
        f"{len(report.registered)} of {total} photographs have a pose; {report.points:,} points, {report.error:.2f} pixels "
        f"from where they were seen; {sum(report.seconds.values()):.0f} s",
        soft_wrap=True,
    )
    for item in report.unregistered[:_LISTED]:
        console.print(f"  {item.name}: {item.reason}; {item.advice}", soft_wrap=True)
    if len(report.unregistered) > _LISTED:
        console.print(f"  and {len(report.unregistered) - _LISTED} more, in {out / 'capture.json'}", soft_wrap=True)
    return report
