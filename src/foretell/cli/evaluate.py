"""`foretell evaluate MODEL FILE`: the loss of a model on texts, or its accuracy at questions."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli.arguments import STANDARD_INPUT, Json, ModelArgument, Whole
from foretell.cli.options import MODEL_DEFAULTS, Options
from foretell.cli.terminal import ProgressLine, note, print_json, results

if TYPE_CHECKING:
    from foretell.evaluation.multiple_choice import ChoiceResult, EndingResult
    from foretell.evaluation.perplexity import TextEvaluation
    from foretell.language_model import LanguageModel

Task = Literal["text", "choice", "ending"]


def evaluate(
    model: ModelArgument,
    file: Annotated[str, Parameter(help="Texts (.txt, .jsonl, .csv, a folder, -) or questions (.jsonl, .csv).")],
    /,
    *,
    task: Annotated[
        Task | None, Parameter(help="text, choice or ending; default: by the file's fields.", show_choices=False)
    ] = None,
    stride: Annotated[
        int | None, Whole, Parameter(help="Tokens from one window to the next; default: half the context.")
    ] = None,
    text_field: Annotated[str | None, Parameter(help="The field or column with the text.")] = None,
    limit: Annotated[int | None, Parameter(help="Only the first so many texts or questions.")] = None,
    json: Json = False,
    options: Options = MODEL_DEFAULTS,
) -> None:
    """Loss, perplexity and bits per byte of texts, or accuracy at questions.

    Questions are JSON lines with query, choices and gold (choice), or context and continuation (ending); HellaSwag,
    WinoGrande and MMLU (CSV) as they are published.
    """
    from foretell.data.questions import choose_task

    chosen = choose_task("-" if file == STANDARD_INPUT else file, task, stride, text_field, limit)
    loaded = options.open(model)
    if chosen == "text":
        report_text(loaded, file, stride, text_field, limit, json)
    elif chosen == "choice":
        report_choice(loaded, Path(file), limit, json)
    else:
        report_ending(loaded, Path(file), limit, json)


def report_text(
    loaded: LanguageModel, file: str, stride: int | None, text_field: str | None, limit: int | None, json: bool
) -> None:
    """Print loss, perplexity and bits per byte."""
    from foretell.data.sources import read_documents
    from foretell.evaluation.perplexity import evaluate_texts
    from foretell.training.objective import Objective

    paths = ["-" if file == STANDARD_INPUT else file]
    documents = islice(read_documents(paths, text_field=text_field), limit)
    texts = [document.text for document in documents]
    with ProgressLine("tokens") as progress:
        evaluation = evaluate_texts(loaded, Objective(loaded.decoder), texts, stride, progress)
    print_json(evaluation.to_json()) if json else show_text(evaluation)


def show_text(evaluation: TextEvaluation) -> None:
    """Print the three figures and what they were measured on."""
    bytes_per_token = evaluation.text_bytes / evaluation.tokens
    show(
        ("loss", f"{evaluation.loss:.4f}", "nats per token"),
        ("perplexity", f"{evaluation.perplexity:,.2f}", "per token"),
        ("bits per byte", f"{evaluation.bits_per_byte:.4f}", f"{bytes_per_token:.2f} bytes per token"),
    )
    texts = "text" if evaluation.documents == 1 else "texts"
    console = results()
    console.print(
        f"{evaluation.tokens:,} tokens predicted, {evaluation.text_bytes:,} bytes of {evaluation.documents:,} {texts}"
    )
    before = evaluation.context_length - evaluation.stride
    console.print(
        f"context {evaluation.context_length}, stride {evaluation.stride}: each token predicted from {before} or more"
    )


def report_choice(loaded: LanguageModel, path: Path, limit: int | None, json: bool) -> None:
    """Print the share of right answers, plain and normalised by length."""
    from foretell.data.questions import read_questions
    from foretell.evaluation.multiple_choice import evaluate_choices

    questions = read_questions(path)[:limit]
    with ProgressLine("choices") as progress:
        result = evaluate_choices(loaded, questions, progress)
    report_truncation(result, len(questions), loaded)
    if json:
        print_json(result.to_json())
        return
    guessed = sum(1 / len(question.choices) for question in questions) / len(questions)
    show(
        ("accuracy", f"{result.accuracy:.2%}", f"± {result.accuracy_stderr:.2%}, by log-probability"),
        ("accuracy_norm", f"{result.accuracy_norm:.2%}", f"± {result.accuracy_norm_stderr:.2%}, per byte"),
    )
    results().print(f"{len(questions):,} questions; guessing would get {guessed:.2%}")


def report_ending(loaded: LanguageModel, path: Path, limit: int | None, json: bool) -> None:
    """Print the share of endings that greedy decoding would write."""
    from foretell.data.questions import read_endings
    from foretell.evaluation.multiple_choice import evaluate_endings

    endings = read_endings(path)[:limit]
    with ProgressLine("endings") as progress:
        result = evaluate_endings(loaded, endings, progress)
    report_truncation(result, len(endings), loaded)
    if json:
        print_json(result.to_json())
        return
    show(
        ("accuracy", f"{result.accuracy:.2%}", f"± {result.accuracy_stderr:.2%}, every token the most likely"),
        ("perplexity", f"{result.perplexity:,.2f}", "per token of an ending"),
    )
    results().print(f"{result.questions:,} {'ending' if result.questions == 1 else 'endings'}")


def report_truncation(result: ChoiceResult | EndingResult, questions: int, loaded: LanguageModel) -> None:
    """A note on how many questions did not fit the context."""
    if result.cut:
        context = loaded.config.context_length
        note(f"{result.cut:,} of {questions:,} are longer than the context of {context}: their beginning is left out")


def show(*rows: tuple[str, Any, str]) -> None:
    """Print a line per figure: name, value, unit."""
    for name, value, unit in rows:
        results().print(f"{name:<14} {value:>12}  {unit}")
