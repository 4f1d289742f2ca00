"""`foretell evaluate MODEL FILE`: how good a model is on a text, or at multiple choice."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli.arguments import STANDARD_INPUT, Device, Dtype, Json, ModelArgument
from foretell.cli.progress_line import ProgressLine
from foretell.cli.terminal import note, open_model, print_json, results
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.evaluation.continuation import EndingResult
    from foretell.evaluation.multiple_choice import ChoiceResult
    from foretell.evaluation.text import TextEvaluation
    from foretell.language_model import LanguageModel

Task = Literal["text", "choice", "ending"]


def evaluate(
    model: ModelArgument,
    file: Annotated[str, Parameter(help="Texts (.txt, .jsonl, .csv, a folder, -) or questions (.jsonl).")],
    /,
    *,
    task: Annotated[
        Task | None, Parameter(help="text, choice or ending; default: by the file's fields.", show_choices=False)
    ] = None,
    stride: Annotated[int | None, Parameter(help="Tokens from window to window; default: half the context.")] = None,
    text_field: Annotated[str | None, Parameter(help="The field or column with the text.")] = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """How good a model is: loss, perplexity and bits per byte of a text, or its accuracy at questions.

    Questions are JSON lines with query, choices and gold (choice), or context and continuation (ending).
    """
    from foretell.data.questions import task_of

    chosen = task or task_of(Path(file))
    if chosen != "text" and not (stride is None and text_field is None):
        raise UsageError(f"--stride and --text-field are for texts, and {file} is read as questions (--task {chosen})")
    if chosen != "text" and file == STANDARD_INPUT:
        raise UsageError("questions are read from a file; give its name")
    loaded = open_model(model, device, dtype)
    if chosen == "text":
        report_text(loaded, file, stride, text_field, json)
    elif chosen == "choice":
        report_choice(loaded, Path(file), json)
    else:
        report_ending(loaded, Path(file), json)


def report_text(loaded: LanguageModel, file: str, stride: int | None, text_field: str | None, json: bool) -> None:
    """Loss, perplexity and bits per byte."""
    from foretell.data.sources import read_documents
    from foretell.evaluation.text import evaluate_texts
    from foretell.training.objective import Objective

    paths = ["-" if file == STANDARD_INPUT else file]
    texts = [document.text for document in read_documents(paths, text_field=text_field)]
    with ProgressLine("tokens") as progress:
        found = evaluate_texts(loaded, Objective(loaded.decoder), texts, stride, progress)
    print_json(found.to_json()) if json else show_text(found)


def show_text(found: TextEvaluation) -> None:
    """The three numbers, and what they were measured on."""
    per_token = found.text_bytes / found.tokens
    show(
        ("loss", f"{found.loss:.4f}", "nats a token"),
        ("perplexity", f"{found.perplexity:,.2f}", "of a token"),
        ("bits per byte", f"{found.bits_per_byte:.4f}", f"{per_token:.2f} bytes a token"),
    )
    texts = "text" if found.documents == 1 else "texts"
    results().print(f"{found.tokens:,} tokens predicted, {found.text_bytes:,} bytes of {found.documents:,} {texts}")
    before = found.context_length - found.stride
    results().print(f"context {found.context_length}, stride {found.stride}: each from {before} tokens or more")


def report_choice(loaded: LanguageModel, path: Path, json: bool) -> None:
    """The share of right answers, plain and normalised by length."""
    from foretell.data.questions import read_questions
    from foretell.evaluation.multiple_choice import evaluate_choices

    questions = read_questions(path)
    with ProgressLine("choices") as progress:
        found = evaluate_choices(loaded, questions, progress)
    say_cut(found, len(questions), loaded)
    if json:
        print_json(found.to_json())
        return
    guessed = sum(1 / len(one.choices) for one in questions) / len(questions)
    show(
        ("accuracy", f"{found.accuracy:.2%}", f"± {found.accuracy_stderr:.2%}, the likeliest choice"),
        ("accuracy_norm", f"{found.accuracy_norm:.2%}", f"± {found.accuracy_norm_stderr:.2%}, likeliest for each byte"),
    )
    results().print(f"{len(questions):,} questions; guessing would get {guessed:.2%}")


def report_ending(loaded: LanguageModel, path: Path, json: bool) -> None:
    """The share of endings that the model would write itself."""
    from foretell.data.questions import read_endings
    from foretell.evaluation.continuation import evaluate_endings

    endings = read_endings(path)
    with ProgressLine("endings") as progress:
        found = evaluate_endings(loaded, endings, progress)
    say_cut(found, len(endings), loaded)
    if json:
        print_json(found.to_json())
        return
    show(
        ("accuracy", f"{found.accuracy:.2%}", f"± {found.accuracy_stderr:.2%}, every token the likeliest"),
        ("perplexity", f"{found.perplexity:,.2f}", "of a token of an ending"),
    )
    results().print(f"{found.questions:,} {'ending' if found.questions == 1 else 'endings'}")


def say_cut(found: ChoiceResult | EndingResult, questions: int, loaded: LanguageModel) -> None:
    """What did not fit the context."""
    if found.cut:
        context = loaded.decoder.config.context_length
        note(f"{found.cut:,} of {questions:,} are longer than the context of {context}: their beginning is left out")


def show(*rows: tuple[str, Any, str]) -> None:
    """Name, number and what it is of."""
    for name, value, what in rows:
        results().print(f"{name:<14} {value:>12}  {what}")
