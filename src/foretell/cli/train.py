"""`foretell train DATA...`: train a decoder on text."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli.arguments import (
    STANDARD_INPUT,
    DataArgument,
    Device,
    Dtype,
    Flag,
    Json,
    Special,
    Whole,
    describe_data,
    parse_settings,
    text_source,
)
from foretell.cli.processes import decided
from foretell.cli.terminal import messages, note, results
from foretell.distributed.launch import is_follower
from foretell.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from foretell.pretraining.task import TextTask
    from foretell.session.session import Session


WORDS = re.compile(r"[^\W\d_]+(?: [^\W\d_]+){0,2}")
PROMPT_TOKENS = 48  # of the text, in which a prompt is looked for
STORE_FILES = ("index.json", "tokenizer.json")


def train(
    *data: DataArgument,
    size: Annotated[str | None, Parameter(help="toy, tiny, small, medium, base, gpt2, ...; default: chosen.")] = None,
    minutes: Annotated[float | None, Parameter(help="How long to train; default: at most 10.")] = None,
    steps: Annotated[int | None, Whole, Parameter(help="How many optimizer steps instead.")] = None,
    out: Annotated[Path | None, Parameter(help="The run's folder; default: runs/ and the data's name.")] = None,
    resume: Annotated[
        Literal["auto", "never"], Parameter(help="auto (or nothing) resumes a run that exists.")
    ] = "never",
    config: Annotated[Path | None, Parameter(help="A TOML file with the sections below.")] = None,
    start: Annotated[
        str | None, Parameter(name="--from", help="Continue from this MODEL: its weights, shape and tokenizer.")
    ] = None,
    tokenizer: Annotated[str | None, Parameter(help="Use this tokenizer (a model, file or folder).")] = None,
    kind: Annotated[str | None, Parameter(help="Or make one: bpe, bytes, characters or words.")] = None,
    start_token: Annotated[
        str | None, Parameter(help="Put this special token before every text; it may be the end token.")
    ] = None,
    special: Special = None,
    rows: Annotated[bool, Parameter(negative="", help="Each line or record is a row by itself, never joined.")] = False,
    prompt_field: Annotated[str | None, Parameter(help="Rows of two parts: the field with the prompt.")] = None,
    answer_field: Annotated[str | None, Parameter(help="And the field with the answer.")] = None,
    loss_on: Annotated[
        Literal["all", "answer"] | None, Parameter(help="What is learned; default: the answer where there is one.")
    ] = None,
    seed: Annotated[int | None, Whole, Parameter(help="The seed of everything random.")] = None,
    checkpoint_every: Annotated[int | None, Whole, Parameter(help="Steps between checkpoints.")] = None,
    text_field: Annotated[str | None, Parameter(help="The field or column with the text.")] = None,
    workers: Annotated[
        int | None, Whole, Parameter(help="Processes that turn text into tokens; the tokens are the same for any.")
    ] = None,
    strict: Annotated[
        bool, Parameter(negative="", help="Refuse a folder with a file that cannot be read; default: leave it out.")
    ] = False,
    sample_prompt: Annotated[
        list[str] | None, Parameter(negative="", help="A text to continue as it learns; can be given again.")
    ] = None,
    report: Annotated[
        list[Literal["tensorboard"]] | None,
        Parameter(negative="", help="Write OUT/tensorboard too."),
    ] = None,
    show_batch: Annotated[
        int | None, Whole, Parameter(help="Train nothing: the batch of this step of run OUT.")
    ] = None,
    json: Json = False,
    settings: Annotated[
        list[str] | None,
        Parameter(
            name="--set", negative="", help="Any field, also as --model.width 256, --training.learning-rate 1e-3."
        ),
    ] = None,
    exportable: Annotated[
        str | None, Parameter(help="Refuse a shape that gpt2, llama, qwen3, ... cannot express.", show_default=False)
    ] = None,
    help_config: Annotated[bool, Flag, Parameter(help="Show all fields of the configuration.")] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Train a decoder on text; on series of numbers with --task forecast, which has options of its own.

    Size, steps and vocabulary are chosen from the data and the machine if you leave them out; the log says why.

    Sections of the configuration: model, tokenizer, data, training. --help-config shows all fields. The most used:

    --batch-size (also --training.batch-size), --lr (--training.learning-rate),

    --training.patience, --training.optimizer, --tokenizer.vocab-size,

    --model.context-length, --model.num-layers, --model.width, --model.dropout.
    """
    if help_config:
        from foretell.cli.config_help import show_config

        return show_config()
    if show_batch is not None:
        others = (data, size, minutes, steps, config, start, tokenizer, kind, seed, checkpoint_every, text_field)
        others += (start_token, special, rows or None, prompt_field, answer_field, loss_on)
        check_alone(*others, workers, strict or None, sample_prompt, report, settings, resume == "auto" or None)
        from foretell.cli.batch_display import show_step

        return show_step(show_batch, out, device, dtype, json)
    if json:
        raise UsageError("--json is for --show-batch; what training measures is in the run's metrics.jsonl")
    if resume == "auto" and not data:
        check_there_is_a_run(out)
    out = out or Path(decided(lambda: str(default_out(data, resume == "auto"))))
    is_resumed = resume == "auto" and (out / "run.json").exists()
    note(f"opening     {out}" if is_resumed else f"reading     {describe_data(data)}")
    from foretell.config import DataConfig, make_section
    from foretell.finding import find_tokenizer
    from foretell.pretraining.pretrain import pretrain
    from foretell.pretraining.request import Request
    from foretell.session.display import make_reporter
    from foretell.session.reporter import Reporters
    from foretell.session.tensorboard import TensorBoardReporter
    from foretell.start import load_start

    options = {"training.steps": steps, "training.seed": seed, "training.checkpoint_every": checkpoint_every}
    options |= {"tokenizer.kind": kind, "tokenizer.start_token": start_token, "data.text_field": text_field}
    options |= {"data.special": tuple(special) if special else None, "data.rows": rows or None}
    options |= {"data.prompt_field": prompt_field, "data.answer_field": answer_field, "data.loss_on": loss_on}
    options |= {"training.sample_prompts": tuple(sample_prompt) if sample_prompt else None}
    overrides = merge(config, settings or [], options)
    store = token_store(data)
    request = Request(
        text_source(data, make_section(DataConfig, overrides.get("data", {}), "data"), strict),
        described=[describe_data(data)] if data or not is_resumed else [],
        out=out,
        size=size,
        minutes=minutes,
        overrides=overrides,
        tokenizer=find_tokenizer(tokenizer) if tokenizer else None,
        tokens=store,
        start=load_start(start) if start else None,
        exportable=exportable,
        workers=1 if workers is None else workers,
        device=device,
        dtype=dtype,
    )
    with Reporters([make_reporter(messages()), *([TensorBoardReporter(out)] if report else [])]) as reporter:
        session = pretrain(request, reporter, resume=resume == "auto")
    return None if is_follower() else finish(session)


def check_alone(*others: Any) -> None:
    """Refuse options that --show-batch would ignore."""
    if any(other not in (None, ()) for other in others):
        raise UsageError("--show-batch trains nothing: it goes with --out, --json, --device and --dtype alone")


def check_there_is_a_run(out: Path | None) -> None:
    """Refuse to resume without data where that would start a run of the embedded text."""
    from foretell.runs.run import is_run, is_unfinished

    if out is None:
        raise UsageError("--resume auto needs the run: give --out runs/NAME, or the data that the run was started with")
    if not is_run(out) and not is_unfinished(out):
        raise UsageError(f"{out} is not a run that can be resumed; name the text too, to start one")


def merge(config: Path | None, settings: list[str], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A TOML file's sections, changed by `--section.key value` settings, changed by options of their own."""
    from foretell.config import read_toml

    sections: dict[str, dict[str, Any]] = read_toml(config) if config else {}
    check_tables(sections, str(config))
    chosen = parse_settings(settings)
    check_tables(chosen, "--set")
    for section, values in chosen.items():
        sections[section] = {**sections.get(section, {}), **values}
    for path, value in options.items():
        section, key = path.split(".")
        if value is not None:
            sections[section] = {**sections.get(section, {}), key: value}
    return sections


def check_tables(sections: dict[str, Any], where: str) -> None:
    """Refuse a value in the place of a section."""
    for name, values in sections.items():
        if not isinstance(values, dict):
            raise ConfigError(
                f"{where}: {name} = {values!r} is not a section; write {name}.KEY=VALUE, as in model.width=64"
            )


def token_store(data: tuple[str, ...]) -> Path | None:
    """The folder of token shards, if the data is one."""
    path = Path(data[0]) if len(data) == 1 and data[0] != STANDARD_INPUT else None
    # the tokenizer tells a token store from a folder of texts with an index.json
    return path if path is not None and all((path / name).exists() for name in STORE_FILES) else None


def default_out(data: tuple[str, ...], resume: bool) -> Path:
    """runs/NAME, named after the data; with a number if a new run's name is taken."""
    first = "stdin" if data and data[0] == STANDARD_INPUT else Path(data[0]).resolve().stem if data else "reference"
    path = Path("runs") / (first or "run")
    number = 2
    while not resume and path.exists():
        path = path.with_name(f"{first}-{number}")
        number += 1
    return path


def finish(session: Session[TextTask]) -> None:
    """The loss curve, the best loss, and what to do with the run."""
    from foretell.session.failures import command_name
    from foretell.session.plots import has_matplotlib, plot, points_of

    run, task = session.run, session.task
    console = results()
    console.print()
    points = points_of(run.metrics(), "loss", "step")
    if len(points) > 1:
        console.print(plot([points], "step", console.width))
    best = run.best()
    loss = best.training()["validation_loss"]
    if loss is not None:
        console.print(f"best        step {best.step:,}: validation loss {task.data.describe_loss(loss)}")
    files = "metrics.jsonl, samples/, loss.png" if (run.directory / "loss.png").exists() else "metrics.jsonl, samples/"
    missing = "" if "png" in files or has_matplotlib() else " (for loss.png: pip install 'foretell[plot]')"
    console.print(f"run         {run.directory}: checkpoints/, {files}{missing}")
    special = " --allow-special" if task.config.data.special else ""
    prompt = shlex.quote(run_prompt(task)) if task.config.data.rows else f'"{run_prompt(task)}"'
    console.print(f"try         {command_name()} generate {shlex.quote(str(run.directory))} {prompt}{special}")


def run_prompt(task: TextTask) -> str:
    """Up to three words of the text's beginning, as they are in the text: without anything between them but a space.

    Of rows, the prompt of the first.
    """
    if task.config.data.rows:
        return task.text.tokenizer.decode(task.data.beginning()[len(task.text.tokenizer.start_ids) :])
    stream = task.text.store.split("train")
    beginning = task.text.tokenizer.decode(stream.read(0, min(PROMPT_TOKENS, len(stream))))
    words = WORDS.findall(beginning.rpartition(" ")[0] or beginning)  # the last word may be cut
    return max(words, key=lambda found: len(found.split()), default="The")
