"""`foretell speedrun TEXT`: record the time to reach a loss, or repeat a record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.terminal import note, print_json, write
from foretell.errors import DataError, ForetellError, OutputError, UsageError, shell_words
from foretell.files import check_target, read_json, write_json

if TYPE_CHECKING:
    from foretell.pretraining.speedrun import Characters
    from foretell.pretraining.speedrun_record import SeedRun, SpeedrunRecord

RECORD, SIZE = Path("speedrun.json"), "small"


def speedrun(
    text: Annotated[Path | None, Parameter(help="A text file; default: the language reference inside Python.")] = None,
    /,
    *,
    target: Annotated[
        float | None, Parameter(help="The loss to reach, in nats per character; 1.4697 for nanoGPT's Shakespeare.")
    ] = None,
    minutes: Annotated[float | None, Parameter(help="Train for this long, evaluations included.")] = None,
    steps: Annotated[int | None, arguments.whole("Or for this many steps; default: 1300.")] = None,
    seed: Annotated[
        list[int] | None, Parameter(consume_multiple=False, help="A seed, default 1; may be repeated.")
    ] = None,
    size: Annotated[str, Parameter(help="toy, tiny, small, medium, ...")] = SIZE,
    settings: Annotated[
        list[str] | None, Parameter(name="--set", help="Any field, also as --model.width 192, --training.batch-size 4.")
    ] = None,
    out: Annotated[Path, arguments.OUTPUT, Parameter(help="The record to write.")] = RECORD,
    verify: Annotated[Path | None, Parameter(help="Repeat this record instead, and compare every bit.")] = None,
    dtype: arguments.Dtype = "auto",
    json: arguments.Json = False,
) -> None:
    """Train on the characters of a text against the clock.

    The last tenth of the text is held out. The clock counts training alone; with --minutes it counts everything.
    The record has rules, machine, settings, curves and digests. --verify trains again with the record's settings; on
    the same kind of processor the curve is bit-identical. The exit code is 1 if it is not.
    """
    from foretell.config.training import check_minutes

    check_minutes(minutes)
    from foretell.pretraining.speedrun import Characters, embedded_text, iter_runs, make_settings
    from foretell.pretraining.speedrun_record import SpeedrunRecord
    from foretell.session.commands import command_name
    from foretell.session.declaration import describe_model

    characters = Characters.of(embedded_text() if text is None else arguments.read_named(text, "TEXT"))
    if verify is not None:
        if any((target, minutes, steps, seed, settings, size != SIZE, out != RECORD, dtype != "auto")):
            raise UsageError("--verify repeats the settings of the record; it goes with TEXT and --json alone")
        return repeat_record(characters, verify, json)
    if steps is not None and minutes is not None:
        raise UsageError("minutes and steps both set the length of the training; give one of them")
    if out.exists():
        raise OutputError(f"{out} exists; name another file with --out")
    check_target(out)
    overrides = arguments.parse_settings(settings or [])
    if steps is not None:
        overrides.setdefault("training", {})["steps"] = steps
    chosen = make_settings(characters, size, overrides, target=target, minutes=minutes, dtype=dtype)
    note(
        f"text        {len(characters.train):,} characters to train on, {len(characters.held_out):,} held out; "
        f"{characters.vocab_size} different"
    )
    note(describe_model(size, chosen.model))
    note(f"machine     {chosen.threads} threads, {chosen.dtype} products")
    runs: list[SeedRun] = []
    try:
        runs.extend(iter_runs(characters, chosen, seed or [1], show_point))
    finally:  # Ctrl-C does not cost the seeds that ended
        if runs:
            again = f"{command_name()} speedrun {'' if text is None else shell_words(text) + ' '}"
            write_record(SpeedrunRecord.of(chosen, runs), characters, out, again, json)


def write_record(record: SpeedrunRecord, text: Characters, out: Path, again: str, json: bool) -> None:
    """Print a record and write its file, under another name if another speedrun has written one since the start."""
    from foretell.typesetting.text import document_text

    values = record.model_dump(mode="json")
    try:
        print_json(values) if json else write(document_text(record.document(text.bits_per_byte)))
    finally:  # neither a full disk nor a closed pipe may cost the measurement
        while out.exists():
            out = out.with_stem(f"{out.stem}-2")
        write_json(out, values)
    note(f"record      {out}; repeat it with {again}--verify {shell_words(out)}")


def show_point(run: SeedRun) -> None:
    """Print a line for the last point of a curve."""
    point = run.curve[-1]
    rate = f"  {point.tokens / point.seconds:,.0f} tokens/s" if point.step else ""
    note(f"seed {run.seed}  step {point.step:>5,}  {point.seconds / 60:5.1f} min  loss {point.loss:.4f}{rate}")


def repeat_record(text: Characters, path: Path, json: bool) -> None:
    """Repeat a record's training and compare; a `ForetellError` if a bit differs."""
    from foretell.evaluation.loss import json_number
    from foretell.pretraining.speedrun import repeat
    from foretell.pretraining.speedrun_record import SpeedrunRecord, other_machine

    record = SpeedrunRecord.from_json(read_json(path, error=DataError))
    repetitions = repeat(text, record, show_point)
    for each in repetitions:
        values = {
            "seed": each.recorded.seed,
            "identical": each.is_identical,
            "largest_difference": json_number(each.largest_difference),
            "recorded_best": each.recorded.best,
            "best": each.repeated.best,
        }
        print_json(values) if json else write(f"{each}\n")
    if not all(each.is_identical for each in repetitions):
        others = other_machine(record)
        reason = f"this machine differs in {', '.join(others)}" if others else "the machine is of the same kind"
        raise ForetellError(f"{path} is not repeated bit-identically; {reason}")
