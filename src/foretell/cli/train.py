"""`foretell train DATA...`: train a decoder on text, show the fields of its configuration, or the batch of a step."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin

from cyclopts import Parameter
from rich.cells import cell_len
from rich.text import Text

from foretell.cli import arguments
from foretell.cli.command_line import sections
from foretell.cli.terminal import open_model, print_json, results
from foretell.cli.training_verbs import DEFAULTS, Options, show_end, train_and_report
from foretell.errors import UsageError, shell_words
from foretell.pretraining.options import TextOptions

if TYPE_CHECKING:
    from rich.console import Console

    from foretell.evaluation.replayed_row import ReplayedRow, ReplayedToken
    from foretell.pretraining.replay import Replay
    from foretell.pretraining.task import TextTask
    from foretell.session.session import Session
    from foretell.system import DeviceName, DtypeName


WORDS = re.compile(r"[^\W\d_]+(?: [^\W\d_]+){0,2}")
PROMPT_TOKENS = 48  # first tokens of the text, in which a prompt is searched
LONGEST_PROMPT = 80  # characters; a token of a text without spaces can have hundreds
STORE_FILES = ("index.json", "tokenizer.json")
INDENT, COLUMNS = 6, 80


def train(
    *data: arguments.Data,
    start_from: Annotated[
        str | None, Parameter(help="Continue from this MODEL: its weights, shape and tokenizer.")
    ] = None,
    tokenizer: Annotated[str | None, Parameter(help="Use this tokenizer (a model, file or folder).")] = None,
    chosen: Annotated[TextOptions, arguments.FLAT] = TextOptions(),
    strict: Annotated[
        bool, Parameter(help="Refuse a folder with a file that cannot be read (default: leave it out).")
    ] = False,
    exportable: Annotated[
        str | None, Parameter(help="Refuse a model that gpt2, llama, qwen3, ... cannot represent.")
    ] = None,
    options: Options = DEFAULTS,
    show_batch: Annotated[int | None, Parameter(help="Only print the batch of this step of run OUT.")] = None,
    json: arguments.Json = False,
    help_config: Annotated[bool, Parameter(help="Show all fields of the configuration.")] = False,
) -> None:
    """Train a decoder on text; on series of numbers with --task forecast, which has other options.

    Size, steps and vocabulary are chosen from the data and the machine if you leave them out; the log gives the
    reasons.

    Sections of the configuration: model, tokenizer, data, training. --help-config shows all fields. The most used:

        --training.batch-size (--batch-size)  --model.context-length
        --training.learning-rate (--lr)       --model.num-layers
        --training.patience                   --model.width
        --training.optimizer                  --model.dropout
        --tokenizer.vocab-size
    """
    if help_config:
        return show_config()
    if show_batch is not None:
        shown = replace(options, out=None, device="auto", dtype="auto")
        if any((*data, start_from, tokenizer, exportable, strict)) or (chosen, shown) != (TextOptions(), DEFAULTS):
            raise UsageError("--show-batch trains nothing: it goes with --out, --json, --device and --dtype alone")
        return show_step(show_batch, options.out, options.device, options.dtype, json)
    if json:
        raise UsageError("--json is for --show-batch; what training measures is in the run's metrics.jsonl")
    if strict and not any(Path(path).is_dir() for path in data):
        raise UsageError("--strict is for a folder; other files that cannot be read are always refused")
    out = options.directory(data)
    from foretell.convert.families import choose_family
    from foretell.finding import find_tokenizer
    from foretell.generation.batch_generation import continue_prompt
    from foretell.pretraining.pretrain import TextTraining
    from foretell.pretraining.sources import text_request
    from foretell.session.protocol import load_start

    request = text_request(
        arguments.paths_of(data),
        strict,
        names=arguments.names_of_data(data) if data or not options.is_resumed else [],
        tokenizer=find_tokenizer(tokenizer) if tokenizer else None,
        tokens=token_store(data),
        start=load_start(start_from) if start_from else None,
        exportable=None if exportable is None else partial(choose_family, name=exportable),
        **options.request(out, chosen),
    )
    return train_and_report(TextTraining(request, continue_prompt), options, finish)


def token_store(data: tuple[str, ...]) -> Path | None:
    """The folder of token shards, if the data is one."""
    path = Path(data[0]) if len(data) == 1 and data[0] != arguments.STANDARD_INPUT else None
    # the entry `tokenizer` distinguishes a token store from a folder of texts with an index.json
    return path if path is not None and all((path / name).exists() for name in STORE_FILES) else None


def finish(session: Session[TextTask]) -> None:
    """Show the best loss, and a prompt to try."""
    task = session.task
    loss = session.run.best().training()["validation_loss"]
    special = " --allow-special" if task.config.data.special else ""
    prompt = shell_words(run_prompt(task)) if task.config.data.rows else f'"{run_prompt(task)}"'
    best = "" if loss is None else f"validation loss {task.describe_loss(loss)}"
    show_end(session, best, "generate", prompt, special)


def run_prompt(task: TextTask) -> str:
    """Up to three words from the text's beginning that are separated only by single spaces.

    For rows, the prompt of the first row.
    """
    if task.config.data.rows:
        row = task.text.tokenizer.decode(task.data.beginning()[len(task.text.tokenizer.start_ids) :])
        return row[:LONGEST_PROMPT]
    stream = task.text.store.split("train")
    beginning = task.text.tokenizer.decode(stream.read(0, min(PROMPT_TOKENS, len(stream))))
    words = WORDS.findall(beginning.rpartition(" ")[0] or beginning)  # the last word may be cut
    return max(words, key=lambda phrase: len(phrase.split()), default="The")[:LONGEST_PROMPT]


CHOSEN = "chosen"
# Defaults that depend on the size, the text and the machine
CHOSEN_FIELDS = frozenset(
    f"{section}.{field}"
    for section, fields in {
        "model": "num_layers num_heads num_kv_heads width head_width feedforward_width context_length vocab_size "
        "position norm qk_norm feedforward activation bias tie_embeddings dropout",
        "tokenizer": "vocab_size",
        "training": "steps batch_size learning_rate warmup_steps optimizer schedule final_learning_rate_share "
        "evaluate_every evaluation_tokens log_every sample_every checkpoint_every",
    }.items()
    for field in fields.split()
)


def show_config() -> None:
    console = results()
    console.print("Fields for --config FILE (TOML, a table per section) and as options, such as\n--training.patience 5")
    console.print("chosen: by the size, the text and the machine; the log gives the reasons")
    for section, fields in sections().items():
        console.print(f"\n[{section}]", style="bold")
        for name, info in fields.model_fields.items():
            default = CHOSEN if f"{section}.{name}" in CHOSEN_FIELDS else written(info.get_default())
            console.print(f"  --{section}.{name.replace('_', '-')} {type_in_words(info.annotation)} = {default}")
            for line in wrap(info.description or "", COLUMNS - INDENT):
                console.print(" " * INDENT + line, style="dim")


def type_in_words(annotation: Any) -> str:
    """A short name of a type: its choices, or int, float, bool, text, list, table."""
    from foretell.config.section import Section

    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "|".join(map(str, parts))
    if origin in (Union, types.UnionType):
        return "|".join("none" if part is type(None) else type_in_words(part) for part in parts)
    if origin is tuple:
        return "list"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, Section)):
        return "table"
    return {int: "int", float: "float", bool: "bool", str: "text"}.get(annotation, "int")


def written(value: Any) -> str:
    """A default in TOML's notation."""
    from foretell.config.section import Section

    if isinstance(value, Section):
        return ", ".join(f"{name} {written(part)}" for name, part in value)
    if value is None or value in ((), {}):
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)


# the upper bound of a token's surprise in bits, and its style
SURPRISE = ((1, "black on green"), (4, "black on cyan"), (8, "black on yellow"), (math.inf, "white on red"))


def show_step(step: int, out: Path | None, device: DeviceName, dtype: DtypeName, json: bool) -> None:
    """Show the batch of a step, with the losses of the run's best checkpoint or a given one."""
    from foretell.pretraining.replay import replay
    from foretell.runs.run import find_run, is_run

    if out is None:
        raise UsageError("--show-batch needs the run: --out runs/x, or --out runs/x@last for another than the best")
    name, at, _ = str(out).rpartition("@")
    run = find_run(str(out) if not at or is_run(out) else name)
    model = open_model(str(out), device=device, dtype=dtype)
    replayed = replay(run, step, model)
    print_json(replayed.to_json()) if json else show_batch(replayed)


def show_batch(replayed: Replay) -> None:
    """Show all rows, with losses in nats, coloured by surprise."""
    console = results()
    for index, row in enumerate(replayed.rows):
        shown = f"{len(row.tokens):,} tokens"
        if row.start is not None:
            shown = f"tokens {row.start:,} to {row.start + len(row.tokens) - 1:,} of the training text"
        mean = "no targets" if row.loss is None else f"loss {row.loss:.3f}"
        console.print(f"row {index}: {shown}, {mean}", style="bold")
        show_row(console, row)
        console.print()
    logged = "" if replayed.logged_loss is None else f"; {replayed.logged_loss:.3f} in training, with its weights"
    console.print(f"step {replayed.step:,}: loss {replayed.loss:.3f}{logged}")


def show_row(console: Console, row: ReplayedRow) -> None:
    """Show the tokens in pairs of lines with their texts and losses."""
    document = row.tokens[0].document
    for line in lines_of(row.tokens):
        if line[0].document != document:
            document = line[0].document
            console.print("-- another document, which does not see the text before it", style="dim")
        above, below = Text(), Text()
        for token in line:
            width = cell_width(token)
            shown = _visible(token.text)
            above.append(shown, style=surprise_style(token.loss)).append(" " * (width - cell_len(shown)))
            below.append(f"{format_loss(token):<{width}}", style="dim")
        above.rstrip()
        below.rstrip()
        console.print(above)
        console.print(below)


def lines_of(tokens: list[ReplayedToken]) -> Iterator[list[ReplayedToken]]:
    """Lines of tokens up to the available width; a document begins a new line."""
    line: list[ReplayedToken] = []
    for token in tokens:
        is_full = sum(map(cell_width, line)) + cell_width(token) > COLUMNS
        if line and (is_full or token.document != line[-1].document):
            yield line
            line = []
        line.append(token)
    yield line


def _visible(text: str) -> str:
    """A token on one line, with visible spaces and line ends."""
    shown = text.replace("\n", "⏎").replace(" ", "·")
    return "".join(letter if letter.isprintable() else "�" for letter in shown)[: COLUMNS - 1]


def format_loss(token: ReplayedToken) -> str:
    """The loss in nats, or a dash without one."""
    return "-" if token.loss is None else f"{token.loss:.2f}"


def surprise_style(nats: float | None) -> str:
    from foretell.inference.query import in_bits

    if nats is None:
        return "dim"
    return next(style for limit, style in SURPRISE if in_bits(nats) < limit or limit == math.inf)


def cell_width(token: ReplayedToken) -> int:
    """Columns for a token and its loss, with one column between neighbours."""
    return max(cell_len(_visible(token.text)), len(format_loss(token))) + 1
