"""Experiments of `splat bench --quality`: training runs of several kinds, with several seeds, on several captures. A TOML file
names them; their scores become a table, results.json, and a page with held-out photographs beside renders."""

import re
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import partial
from html import escape
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from splat_py.base.errors import SplatError, printable
from splat_py.base.fields import dataclass_of, shown
from splat_py.base.files import refusing, regular, write_json
from splat_py.commands.terminal import console, require_folder
from splat_py.commands.train import Train
from splat_py.demo.page import write_html
from splat_py.demo.scene import write_demo_scene
from splat_py.fit.run_folder import refuse_contradictions
from splat_py.gpu.device import get_device
from splat_py.scene.data_options import OMITTED_DATA, DataOptions
from splat_py.scene.pictures import UInt8Array, read_picture, thumbnail
from splat_py.scene.sources import require_capture
from splat_py.shaders.custom_types import SLOTS
from splat_py.train.benchmark import header
from splat_py.train.config import TrainConfig
from splat_py.train.run import RunFolder, begun, with_types

# Options of `splat train` that a kind may have.
_DATA = {field.name for field in fields(DataOptions)} - {"data"}
_CONFIG = {field.name for field in fields(TrainConfig)} - {"seed", *(f"{slot.option}_source" for slot in SLOTS)}
# Names of kinds, which name folders; the largest file and experiment.
_NAME, _MOST_BYTES, _MOST_RUNS = re.compile(r"[\w-][\w.-]{0,59}"), 1 << 20, 10_000
# Held-out photographs of a capture on the page, and their longest side in pixels.
_SHOWN, _SIDE = 8, 480
# Columns of a table: names of figures, titles, formats, and if the deviation is shown.
_COLUMNS = (
    ("psnr", "PSNR, dB", ".2f", True),
    ("ssim", "SSIM", ".4f", True),
    ("lpips", "LPIPS", ".4f", True),
    ("gaussians", "Gaussians", ",.0f", True),
    ("processor_seconds", "processor s", ",.1f", False),
    ("megabytes", "MB", ",.1f", False),
)


@dataclass(frozen=True)
class Experiment:
    """Captures by name, none for the embedded demo; seeds; and kinds of runs by name, whose data is omitted."""

    captures: dict[str, Path]
    seeds: list[int]
    kinds: dict[str, tuple[DataOptions, TrainConfig]]

    @classmethod
    def read(cls, path: Path) -> "Experiment":
        """Read a TOML file; SplatError if it is none, or an entry or option is unknown, of a wrong type or out of range."""
        advice = "name a TOML file with captures, seeds and [kinds.NAME]"
        with refusing(f"{path} is not an experiment", advice, OSError, ValueError, RecursionError):
            if regular(path).stat().st_size > _MOST_BYTES:
                raise ValueError(f"it has more than {_MOST_BYTES:,} bytes")
            content = tomllib.loads(path.read_text(encoding="utf-8"))
        _refuse_unknown(content, ("captures", "seeds", "common", "kinds"), f"{path}", "entry of an experiment")
        paths, seeds = _list(path, content, "captures", str, []), _list(path, content, "seeds", int, [0, 1, 2])
        common, named = _table(path, content, "common"), _table(path, content, "kinds")
        if not named or not seeds:
            raise SplatError(f"{path} names no run; add a table [kinds.NAME] for each kind of run, and at least one seed")
        captures = {folder.name: folder for folder in (Path(name).resolve() for name in paths)}
        if len(captures) < len(paths):
            raise SplatError(f"{path} has two captures of one name, which names the folder of their runs; rename one")
        if max(len(captures), 1) * len(seeds) * len(named) > _MOST_RUNS:
            raise SplatError(f"{path} names more than {_MOST_RUNS:,} runs; name fewer captures, seeds or kinds")
        for folder in captures.values():
            require_capture(folder)
        return cls(captures, seeds, {kind: _kind(path, kind, seeds, common, _table(path, named, kind)) for kind in named})


def _list(path: Path, content: Mapping[str, Any], name: str, kind: type, default: list[Any]) -> list[Any]:
    values = content.get(name, default)
    right = isinstance(values, list) and all(type(each) is kind and (kind is int or "\0" not in str(each)) for each in values)
    if not right or len(set(values)) < len(values):
        what = "paths in quotes" if kind is str else "whole numbers"
        raise SplatError(f"{path}: {name} is {shown(values)}; it must be a list of different {what}")
    return list(values)


def _table(path: Path, content: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = content.get(name, {})
    if not isinstance(table, dict):
        raise SplatError(f"{path}: {name} is {shown(table)}; it must be a table of options")
    return table


def _kind(path: Path, kind: str, seeds: Sequence[int], *tables: Mapping[str, Any]) -> tuple[DataOptions, TrainConfig]:
    """Return the options in a kind's tables, of which later ones count more."""
    if not _NAME.fullmatch(kind):
        raise SplatError(f"{path}: the kind {shown(kind)} cannot name a folder; use up to 60 letters, digits, - and _")
    given: dict[str, Any] = {}
    for table in tables:
        _refuse_unknown(table, _DATA | _CONFIG, f"{path}, kind {kind}", "option of kinds")
        given |= table
    try:
        data = dataclass_of(DataOptions, vars(OMITTED_DATA) | {name: given[name] for name in given if name in _DATA})
        data.validate()
        config = dataclass_of(TrainConfig, {name: given[name] for name in given if name in _CONFIG})
        for seed in seeds:
            replace(config, seed=seed).validate()
    except SplatError as error:
        raise SplatError(f"{path}, kind {kind}: {error}") from error
    return data, config


def _refuse_unknown(given: Mapping[str, Any], known: Collection[str], where: str, what: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name[:60].replace("-", "_"), known, 1)
            advice = f"did you mean {near[0]}?" if near else "leave it out"
            raise SplatError(f"{where}: {shown(name)} is no {what}; {advice}")


@dataclass(frozen=True)
class Outcome:
    """Scores of a finished run, means over the held-out views; the size of scene.ply; and the CPU time (user and system) of its
    training, None if it was interrupted."""

    psnr: float
    ssim: float
    lpips: float | None
    gaussians: int
    megabytes: float
    processor_seconds: float | None


@dataclass(frozen=True)
class Run:
    """A training run of an experiment."""

    name: str
    data: DataOptions
    config: TrainConfig
    folder: RunFolder

    def refuse_changed(self) -> None:
        """Raise SplatError if the folder holds a run with other options."""
        if self.folder.record_file.exists():
            recorded, root = self.folder.record(), self.folder.root
            for slot in SLOTS:
                slot.refuse_another(root, recorded.config, recorded.config, self.config)
            refuse_contradictions(root, recorded.data, self.data, self.data, vars(self.data), free=("max_memory",))
            refuse_contradictions(root, recorded.config, self.config, self.config, vars(self.config))

    @property
    def finished(self) -> bool:
        metrics = self.folder.metrics()
        return metrics.get("steps") == self.config.steps and "held_out" in metrics

    def train(self, device: str | None) -> None:
        """Begin the run, or continue it from its checkpoint."""
        resume = self.folder.checkpoint.exists()
        # The source in `config` is that of the user's files.
        how: dict[str, Any] = {"quality": "off", "resume": resume, "trust_source": True, "device": device}
        Train(self.data, self.config, self.folder.root, **how).run()

    def outcome(self) -> Outcome:
        file, metrics = self.folder.metrics_file, self.folder.metrics()
        with refusing(f"{file} is damaged", f"delete {self.folder.root}", KeyError, TypeError, AttributeError, ValueError):
            held_out = metrics["held_out"]
            found = {"psnr": held_out["psnr"], "ssim": held_out["ssim"], "lpips": held_out.get("lpips")}
            found |= {"gaussians": metrics["gaussians"], "megabytes": self.folder.scene.stat().st_size / 1e6}
            return dataclass_of(Outcome, found | {"processor_seconds": metrics.get("processor_seconds")})


# By capture and kind, the runs of all seeds.
Plan = dict[str, dict[str, list[Run]]]


def conduct(path: Path, out: Path, device: str | None = None) -> None:
    """Train the runs of the experiment in `path`, each in the folder `out`/capture/kind/seed, and print and write what they
    reached. Finished runs are kept, and interrupted ones continued.

    Raises:
        SplatError: the file is not an experiment, a run in `out` was begun with other options, a capture holds out no view, or
            a run fails. No run begins before all of them are checked.
    """
    require_folder(out)
    experiment, opened = Experiment.read(path), get_device(device)
    captures = experiment.captures or {"demo": write_demo_scene(out.resolve() / "photographs")}
    kinds = {name: (data, begun(*with_types(config))) for name, (data, config) in experiment.kinds.items()}
    plan: Plan = {capture: {kind: [] for kind in kinds} for capture in captures}
    for capture, root in captures.items():
        for kind, (data, config) in kinds.items():
            here = replace(data, data=root)
            if not here.load(0).test:
                raise SplatError(f"{root} holds out no view to measure with {kind}; use test_every of 2 or more")
            for seed in experiment.seeds:
                folder = RunFolder(out / capture / kind / str(seed))
                plan[capture][kind].append(Run(f"{capture}, {kind}, seed {seed}", here, replace(config, seed=seed), folder))
    # All kinds with one seed, then with the next, so that an interrupted experiment has as many runs of each kind.
    runs = [run for kinds_of in plan.values() for of_seed in zip(*kinds_of.values(), strict=True) for run in of_seed]
    for run in runs:
        run.refuse_changed()
    for number, run in enumerate(runs, 1):
        if not run.finished:
            console.print(f"run {number} of {len(runs)}: {run.name}")
            run.train(device)
    _report(path.stem, out, plan, header(opened))


def _report(title: str, out: Path, plan: Plan, head: dict[str, Any]) -> None:
    """Print a table for each capture; write results.json and index.html."""
    results, sections = {}, []
    for capture, kinds in plan.items():
        found = {kind: {run.config.seed: run.outcome() for run in runs} for kind, runs in kinds.items()}
        means = {kind: summary(list(of.values())) for kind, of in found.items()}
        results[capture] = {
            kind: {"mean": means[kind], "runs": {seed: asdict(one) for seed, one in of.items()}} for kind, of in found.items()
        }
        titles, *rows = _rows(means)
        table = Table(*titles, title=printable(capture))
        for row in rows:
            table.add_row(*row)
        console.print(table)
        figures = _html([[escape(cell) for cell in row] for row in (titles, *rows)])
        sections.append(f"<section>\n<h2>{escape(capture)}</h2>\n{figures}\n{_pictures(kinds)}\n</section>")
    write_json(out / "results.json", head | {"captures": results})
    said = f"Means over held-out views, ± standard deviations over seeds, on {head['device']}. Pictures are of the first seed."
    write_html(out / "index.html", title, said, "\n".join(sections))
    console.print(f"the page is {out / 'index.html'}; the figures are in {out / 'results.json'}")


def summary(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    """Return the mean and the standard deviation of each figure over runs that differ only in their seed; None of no run, and
    the deviation of one. The time is the shortest, because the first run also compiles kernels."""
    row: dict[str, float | None] = {}
    for name in (field.name for field in fields(Outcome)):
        values = [value for one in outcomes if (value := getattr(one, name)) is not None]
        row[name] = (min if name == "processor_seconds" else fmean)(values) if values else None
        row[f"{name}_deviation"] = stdev(values) if len(values) > 1 else None
    return row


def _rows(means: Mapping[str, Mapping[str, float | None]]) -> list[list[str]]:
    """Return the titles and the rows of a table of kinds; LPIPS only if it is known."""
    columns = [column for column in _COLUMNS if column[0] != "lpips" or any(row["lpips"] is not None for row in means.values())]

    def cell(row: Mapping[str, float | None], name: str, digits: str, spread: bool) -> str:
        value, deviation = row[name], row[f"{name}_deviation"] if spread else None
        return "–" if value is None else f"{value:{digits}}" + ("" if deviation is None else f" ± {deviation:{digits}}")

    rows = [[kind, *(cell(row, name, digits, spread) for name, _, digits, spread in columns)] for kind, row in means.items()]
    return [["", *(title for _, title, _, _ in columns)], *rows]


def _pictures(kinds: Mapping[str, Sequence[Run]]) -> str:
    """Return a table of held-out photographs and the renders of each kind's first seed."""
    folders = [of[0].folder.pictures for of in kinds.values()]
    names = sorted({path.name for folder in folders for path in folder.glob("*.png")})
    rows = [["", "photograph", *kinds]]
    for name in names[:: len(names) // _SHOWN + 1]:
        shown = [(folders[0], False), *((folder, True) for folder in folders)]
        rows.append([escape(name), *(thumbnail(partial(_half, folder / name, right), name, _SIDE) for folder, right in shown)])
    return _html(rows, "pictures")


def _half(path: Path, right: bool) -> UInt8Array:
    """Read one of two pictures that are `beside` each other."""
    pixels = read_picture(path, 1)[..., ::-1]
    width = pixels.shape[1] * 128 // 257
    return pixels[:, -width:] if right else pixels[:, :width]


def _html(rows: Sequence[Sequence[str]], name: str = "figures") -> str:
    """Return a table of HTML, whose first row and column are titles."""
    lines = (
        "".join(f"<td>{cell}</td>" if i and j else f"<th>{cell}</th>" for j, cell in enumerate(row))
        for i, row in enumerate(rows)
    )
    return f'<table class="{name}">\n' + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table>"
