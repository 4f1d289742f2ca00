"""`foretell train DATA...`: train a decoder on text."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli.arguments import STANDARD_INPUT, DataArgument, Flag, Json, Special, Whole, describe_data, text_source
from foretell.cli.training import DEFAULTS, Options, show_end, train_and_report
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.pretraining.task import TextTask
    from foretell.session.session import Session


WORDS = re.compile(r"[^\W\d_]+(?: [^\W\d_]+){0,2}")
PROMPT_TOKENS = 48  # of the text, in which a prompt is looked for
STORE_FILES = ("index.json", "tokenizer.json")


def train(
    *data: DataArgument,
    size: Annotated[str | None, Parameter(help="toy, tiny, small, medium, base, gpt2, ...; default: chosen.")] = None,
    start_from: Annotated[
        str | None, Parameter(help="Continue from this MODEL: its weights, shape and tokenizer.")
    ] = None,
    tokenizer: Annotated[str | None, Parameter(help="Use this tokenizer (a model, file or folder).")] = None,
    kind: Annotated[str | None, Parameter(help="Or make one: bpe, bytes, characters or words.")] = None,
    start_token: Annotated[
        str | None, Parameter(help="Put this special token before every text; it may be the end token.")
    ] = None,
    special: Special = None,
    rows: Annotated[
        bool, Parameter(negative="", help="Each line or record is a separate row, never joined with others.")
    ] = False,
    prompt_field: Annotated[str | None, Parameter(help="Rows of two parts: the field with the prompt.")] = None,
    answer_field: Annotated[str | None, Parameter(help="And the field with the answer.")] = None,
    loss_on: Annotated[
        Literal["all", "answer"] | None, Parameter(help="What is learned; default: the answer where there is one.")
    ] = None,
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
    exportable: Annotated[
        str | None, Parameter(help="Refuse a shape that gpt2, llama, qwen3, ... cannot express.", show_default=False)
    ] = None,
    options: Options = DEFAULTS,
    show_batch: Annotated[
        int | None, Whole, Parameter(help="Train nothing: the batch of this step of run OUT.")
    ] = None,
    json: Json = False,
    help_config: Annotated[bool, Flag, Parameter(help="Show all fields of the configuration.")] = False,
) -> None:
    """Train a decoder on text; on series of numbers with --task forecast, which has other options.

    Size, steps and vocabulary are chosen from the data and the machine if you leave them out; the log gives the
    reasons.

    Sections of the configuration: model, tokenizer, data, training. --help-config shows all fields. The most used:

    --batch-size (also --training.batch-size), --lr (--training.learning-rate),

    --training.patience, --training.optimizer, --tokenizer.vocab-size,

    --model.context-length, --model.num-layers, --model.width, --model.dropout.
    """
    if help_config:
        from foretell.cli.config_help import show_config

        return show_config()
    if show_batch is not None:
        others = (data, size, start_from, tokenizer, kind, text_field, start_token, special, rows or None, prompt_field)
        others += (answer_field, loss_on, workers, strict or None, sample_prompt, options.minutes, options.steps)
        others += (options.config, options.seed, options.checkpoint_every, options.report, options.settings)
        check_alone(*others, options.is_resumed or None)
        from foretell.cli.batch_display import show_step

        return show_step(show_batch, options.out, options.device, options.dtype, json)
    if json:
        raise UsageError("--json is for --show-batch; what training measures is in the run's metrics.jsonl")
    out = options.directory(data)
    from foretell.config import DataConfig, make_section
    from foretell.finding import find_tokenizer
    from foretell.loading import load_start
    from foretell.pretraining.pretrain import TextTraining
    from foretell.pretraining.request import TextRequest

    overrides = options.sections(
        {
            "tokenizer.kind": kind,
            "tokenizer.start_token": start_token,
            "data.text_field": text_field,
            "data.special": tuple(special) if special else None,
            "data.rows": rows or None,
            "data.prompt_field": prompt_field,
            "data.answer_field": answer_field,
            "data.loss_on": loss_on,
            "training.sample_prompts": tuple(sample_prompt) if sample_prompt else None,
        }
    )
    request = TextRequest(
        source=text_source(data, make_section(DataConfig, overrides.get("data", {}), "data"), strict),
        names=[describe_data(data)] if data or not options.is_resumed else [],
        out=out,
        size=size,
        minutes=options.minutes,
        overrides=overrides,
        tokenizer=find_tokenizer(tokenizer) if tokenizer else None,
        tokens=token_store(data),
        start=load_start(start_from) if start_from else None,
        exportable=exportable,
        workers=1 if workers is None else workers,
        device=options.device,
        dtype=options.dtype,
    )
    return train_and_report(TextTraining(request), options, finish)


def check_alone(*others: Any) -> None:
    """Refuse options that --show-batch would ignore."""
    if any(other not in (None, ()) for other in others):
        raise UsageError("--show-batch trains nothing: it goes with --out, --json, --device and --dtype alone")


def token_store(data: tuple[str, ...]) -> Path | None:
    """The folder of token shards, if the data is one."""
    path = Path(data[0]) if len(data) == 1 and data[0] != STANDARD_INPUT else None
    # the tokenizer tells a token store from a folder of texts with an index.json
    return path if path is not None and all((path / name).exists() for name in STORE_FILES) else None


def finish(session: Session[TextTask]) -> None:
    """The best loss, and a prompt to try."""
    task = session.task
    loss = session.run.best().training()["validation_loss"]
    special = " --allow-special" if task.config.data.special else ""
    prompt = shlex.quote(run_prompt(task)) if task.config.data.rows else f'"{run_prompt(task)}"'
    best = "" if loss is None else f"validation loss {task.data.describe_loss(loss)}"
    show_end(session, best, "generate", f"{prompt}{special}")


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
