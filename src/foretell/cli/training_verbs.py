"""The command line of all trainings: options, running, and final lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.command_line import configuration_field
from foretell.cli.terminal import messages, note, results
from foretell.config.options import settings_of
from foretell.distributed.launch import is_follower, read_launch
from foretell.errors import ConfigError, UsageError, shell_words
from foretell.session.options import TrainingOptions

if TYPE_CHECKING:
    from foretell.runs.run import Run
    from foretell.session.declaration import Training
    from foretell.session.session import Session

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class RunOptions(TrainingOptions):
    """Options of every training on the command line."""

    command_began: ClassVar[float | None] = None  # set in a process that runs a single command

    out: Annotated[arguments.Output, Parameter(help="The run's folder (default: runs/ and the data's name).")] = None
    resume: Annotated[Literal["auto", "never"], Parameter(help="auto (or nothing) resumes a run that exists.")] = (
        "never"
    )
    config: Annotated[Path | None, Parameter(help="A TOML file with sections of the configuration.")] = None
    settings: Annotated[
        list[str] | None,
        Parameter(name="--set", help="Set a field, also as --model.width 256, --training.learning-rate 1e-3."),
    ] = None
    report: Annotated[list[Literal["tensorboard"]] | None, Parameter(help="Log to OUT/tensorboard.")] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "_began", time.monotonic())  # not a field, because fields become options

    @property
    def began(self) -> float:
        """The time when the command began, or when the options were read; minutes are counted from here."""
        return self.command_began or vars(self)["_began"]

    @property
    def is_resumed(self) -> bool:
        return self.resume == "auto"

    def directory(self, data: Sequence[str | Path]) -> Path:
        """The folder of the run, an existing one for resuming. Logs the data that will be read."""
        from foretell.config.training import check_minutes
        from foretell.runs.run import Run

        check_minutes(self.minutes)
        if not data and self.out is None and self.is_resumed:
            raise UsageError("--resume auto needs the run: give --out runs/NAME, or the data that the run has")
        if Path(arguments.STANDARD_INPUT) in data:  # only texts (given as strings) may come from standard input
            raise UsageError(
                "this training reads its data from files, also when it resumes; save standard input in one"
            )
        out = self.out or Path(decided(lambda: str(default_out(data, self.is_resumed))))
        if read_launch().world_size == 1:  # of several processes, the first one refuses it when it makes the run
            Run.check_free(out, self.is_resumed)
        if self.is_resumed and (out / "run.json").exists():
            note(f"opening     {out}")
        elif data or not self.is_resumed:
            note(f"reading     {', '.join(arguments.names_of_data([str(path) for path in data]))}")
        return out

    def request(self, out: Path, chosen: Any) -> dict[str, Any]:
        """The fields of a training's request that these options and the task's set."""
        own = {each.name: getattr(self, each.name) for each in fields(TrainingOptions)}
        return {**vars(chosen), **own, "out": out, "overrides": self.sections(chosen)}

    def sections(self, chosen: Any) -> dict[str, dict[str, Any]]:
        """The sections of a TOML file and of --set, without what --set or an option replaces in the file."""
        from foretell.config.section import own_names
        from foretell.config.toml import read_toml

        sections: dict[str, dict[str, Any]] = read_toml(self.config) if self.config else {}
        check_tables(sections, str(self.config))
        given = arguments.parse_settings(self.settings or [])
        check_tables(given, "--set")
        replaced = {section: {*own_names(values)} for section, values in given.items()}
        for _, section, key, _ in (*settings_of(self), *settings_of(chosen)):
            replaced.setdefault(section, set()).add(key)
        for name, keys in replaced.items():  # a field may have another project's name in the file
            kept = {
                key: value for key, value in sections.get(name, {}).items() if not own_names({key: 0}).keys() & keys
            }
            if name in sections or name in given:
                sections[name] = {**kept, **given.get(name, {})}
        return sections


Options = Annotated[RunOptions, Parameter(name="*")]
DEFAULTS = RunOptions()


def check_tables(sections: dict[str, Any], where: str) -> None:
    """Refuse a value where a section is expected."""
    for name, values in sections.items():
        if not isinstance(values, dict):
            field = configuration_field(name) or f"{name}.KEY"
            raise ConfigError(f"{where}: {name} = {values!r} is in no section; write {field} = {values!r}")


def default_out(data: Sequence[str | Path], resume: bool) -> Path:
    """runs/NAME, named after the data; with a number if a new run's name is taken."""
    from foretell.finding import default_run_directory

    if data and str(data[0]) == arguments.STANDARD_INPUT:
        data = ["stdin"]
    return default_run_directory(data, resume)


def train_and_report(
    training: Training[Any, Any],
    options: RunOptions,
    report: Callable[[Session[Any]], None],
    before: Callable[[Session[Any]], None] = lambda session: None,
) -> None:
    """Train, then call `report` in the first process."""
    from foretell.session.display import make_reporter
    from foretell.session.protocol import run_training
    from foretell.session.reporter import Reporters, TensorBoardReporter

    training.began = options.began
    displays = [make_reporter(messages())]
    if options.report:
        displays.append(TensorBoardReporter(training.request.out))
    with Reporters(displays) as reporter:
        session = run_training(training, reporter, resume=options.is_resumed, before=before)
    if not is_follower():
        report(session)


def show_end(session: Session[Any], best: str, verb: str, argument: str, options: str = "") -> None:
    """Show the loss curve, the best checkpoint's figures, the run's files, and commands to try and to test the run."""
    from foretell.runs.run import CURVE
    from foretell.session.plots import plot, points_of

    run, console = session.run, results()
    points = points_of(run.metrics.records(), "loss", "step")
    if len(points) > 1:
        console.print()
        console.print(plot([points], "step", console.width))
    if best:
        console.print(f"best        step {run.best().step:,}: {best}")
    show_run(session, "checkpoints/, metrics.jsonl, samples/", CURVE, verb, argument, options)


def show_run(session: Session[Any], files: str, picture: str, verb: str, argument: str, options: str = "") -> None:
    """Show the run's files, its picture or the package needed for it, and commands to try and to test the run.

    options: of both commands.
    """
    from foretell.session.commands import command_name
    from foretell.session.plots import has_matplotlib

    directory, console = session.run.directory, results()
    if picture and (directory / picture).exists():
        files += f", {picture}"
    missing = f" (for {picture}: pip install 'foretell[plot]')" if picture and not has_matplotlib() else ""
    console.print(f"run         {directory}: {files}{missing}")
    material = session.task.material
    chose = f"held-out {material.items} chose {material.chosen}; others: " if session.task.has_held_out else ""
    test = f"{command_name()} evaluate {shell_words(directory)} {material.test.format(data=argument)}"
    console.print(f"test        {chose}{test}{options}")
    command = f"{command_name()} {verb} {shell_words(directory)} {argument}".rstrip() + options
    console.print(f"try         {command}{earlier_run(session.run)}")


def earlier_run(run: Run) -> str:
    """A remark, as a comment of the shell, about the run that has the name of this run's data."""
    from foretell.finding import default_run_directory

    earlier, _, number = run.directory.name.rpartition("-")
    taken = default_run_directory(run.record().data, resume=True)
    is_numbered = number.isdecimal() and taken == run.directory.with_name(earlier) and taken.exists()
    return f"  # {shell_words(taken)} is an earlier run" if is_numbered else ""


def decided(make: Callable[[], Value]) -> Value:
    """The JSON value of `make` in the first process, because others might see a changed disk."""
    if read_launch().world_size == 1:
        return make()
    from foretell.distributed.world import current_world

    return current_world().decide(make)
