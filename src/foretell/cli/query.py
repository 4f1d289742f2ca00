"""`foretell next`, `score` and `embed MODEL TEXT`: questions about a text. `evaluate MODEL FILE`: about many."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.terminal import ProgressLine, open_model, print_json, report, show_tokens, write_document
from foretell.errors import ForetellError, UsageError, check_count


def next_verb(
    model: arguments.Model,
    text: arguments.Text = None,
    /,
    *,
    file: arguments.File = None,
    top: Annotated[int, Parameter(help="Number of tokens to show.")] = 5,
    at: Annotated[int | None, Parameter(help="Predict after this token, counted from 0.")] = None,
    every: Annotated[bool, Parameter(help="Predict after every token of the text.")] = False,
    allow_special: arguments.AllowSpecial = False,
    start_token: arguments.StartToken = None,
    ids: arguments.Ids = False,
    json: arguments.Json = False,
    options: arguments.Options = arguments.MODEL_DEFAULTS,
) -> None:
    """The most likely next tokens with their probabilities.

    The printed context is the text that the distribution really follows.
    """
    if at is not None and every:
        raise UsageError("--at and --every exclude each other; give one of them")
    check_count("top", top)
    text = arguments.read_text(text, file)
    if not json and not ids:
        show_tokens(model, text, allow_special, start_token)
    loaded = open_model(
        model, texts=[text], ids=ids, allow_special=allow_special, start_token=start_token, **vars(options)
    )
    from foretell.inference.query import next_tokens

    positions = list(range(len(loaded.encode_fitting(text)))) if every else [-1 if at is None else at]
    answers = next_tokens(loaded, text, top, positions)
    values = [answer.to_json() for answer in answers]
    print_json(values if every else values[0]) if json else write_document(str(answers))


def score(
    model: arguments.Model,
    text: arguments.Text = None,
    /,
    *,
    file: arguments.File = None,
    allow_special: arguments.AllowSpecial = False,
    start_token: arguments.StartToken = None,
    ids: arguments.Ids = False,
    json: arguments.Json = False,
    options: arguments.Options = arguments.MODEL_DEFAULTS,
) -> None:
    """The log-probability of a text, token by token.

    Shown is the surprise of each token in bits, -log2 of its probability, and as a bar; with --json `logprob`, in nats.
    """
    text = arguments.read_text(text, file)
    loaded = open_model(
        model, texts=[text], ids=ids, allow_special=allow_special, start_token=start_token, **vars(options)
    )
    from foretell.inference.query import score as score_text
    from foretell.typesetting.text import document_text

    result = score_text(loaded, text)
    print_json(result.to_json()) if json else write_document(document_text(result.document(len(result.tokens))))


def embed(
    model: arguments.Model,
    text: Annotated[str | None, Parameter(help="A text; - reads one per line of standard input.")] = None,
    /,
    *,
    file: Annotated[Path | None, Parameter(help="Read a text per line of this UTF-8 file.")] = None,
    pool: Annotated[Literal["last", "mean"], Parameter(help="Return the last token's vector, or the mean.")] = "last",
    allow_special: arguments.AllowSpecial = False,
    ids: arguments.Ids = False,
    json: arguments.Json = False,
    options: arguments.Options = arguments.MODEL_DEFAULTS,
) -> None:
    """The embedding vector of a text.

    It is the stream after the last norm. --file and standard input give one vector per line.
    """
    texts = read_texts(text, file)
    loaded = open_model(model, ids=ids, allow_special=allow_special, texts=[*texts.values()], **vars(options))
    from foretell.inference.query import embed_each, encode_own

    encoded = []
    for number, line in texts.items():
        try:
            encoded.append(encode_own(loaded, line))
        except ForetellError as error:
            raise error.at(f"line {number}") if len(texts) > 1 else error from None
    for line, vector in zip(texts.values(), embed_each(loaded, encoded, pool), strict=True):
        shown = " ".join(f"{value:.6g}" for value in vector)
        print_json({"text": line, "embedding": vector}) if json else print(shown)


def read_texts(argument: str | None, file: Path | None = None) -> dict[int, str]:
    """The text, or the nonblank lines of a file or of standard input, by number."""
    text = arguments.read_text(argument, file)
    if file is None and argument != arguments.STANDARD_INPUT:
        return {1: text}
    return arguments.lines_of(text, "there is no text to embed; give at least one line that is not empty")


Task = Literal["text", "choice", "ending"]


def evaluate(
    model: arguments.Model,
    file: Annotated[str, Parameter(help="Texts (.txt, .jsonl, .csv, a folder, -) or questions (.jsonl, .csv).")],
    /,
    *,
    task: Annotated[
        Task | None, Parameter(help="text, choice, ending or chat (default: by the file's fields).")
    ] = None,
    stride: Annotated[
        int | None, Parameter(help="Tokens from one window to the next (default: half the context).")
    ] = None,
    fields: arguments.Fields = arguments.ALL_TEXTS,
    separator: Annotated[
        str | None, Parameter(help="The text between prompt and answer, or after each question.")
    ] = None,
    allow_special: arguments.AllowSpecial = False,
    limit: arguments.Limit = None,
    json: arguments.Json = False,
    options: arguments.Options = arguments.MODEL_DEFAULTS,
) -> None:
    """Loss, perplexity and bits per byte of texts, or accuracy at questions.

    Questions are JSON lines with query, choices and gold (choice), or context and continuation (ending); HellaSwag,
    WinoGrande and MMLU (CSV) as they are published.
    """
    from foretell.data.questions import choose_task, text_config
    from foretell.inference.query import evaluate as evaluate_file

    path = "-" if file == arguments.STANDARD_INPUT else file
    named: dict[str, Any] = {**vars(fields), "separator": separator}
    chosen = choose_task(
        path, task, stride, text_config(**named), limit, separator
    )  # raises errors before the model is loaded
    loaded = open_model(model, allow_special=allow_special, **vars(options))
    with ProgressLine("tokens" if chosen == "text" else "texts") as progress:
        result = evaluate_file(loaded, path, task=chosen, stride=stride, limit=limit, progress=progress, **named)
    report(result, json)
