"""`foretell explain MODEL TEXT`: a pass layer by layer, any number in it, and the causes of the prediction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from foretell.cli import arguments
from foretell.cli.terminal import (
    ProgressLine,
    note,
    open_model,
    print_json,
    report,
    results,
    write_document,
    write_page,
)
from foretell.errors import ForetellError, UsageError, counted

if TYPE_CHECKING:
    from foretell.insight.readout import TaskReadout
    from foretell.language_model import LanguageModel
    from foretell.session.run_update import UpdateView

SHOWN_ROWS = 2  # of the batch of an update
ASK = Group("What to show instead of the layers", sort_key=1)
MORE = Group("Details", sort_key=2)


def asking(help: str) -> Parameter:
    return Parameter(help=help, group=ASK)


def detail(help: str, **options: Any) -> Parameter:
    return Parameter(help=help, group=MORE, **options)


@dataclass(frozen=True)
class Questions:
    """The questions that any model answers (at most one can be asked), and their details."""

    value: Annotated[
        str | None,
        asking("One number: a trace name and an index without the batch dimension, or loss[2]; grad: before it."),
    ] = None
    html: Annotated[
        arguments.Output, asking("Write an HTML page of the pass, or of any answer: one file, no network.")
    ] = None
    overwrite: Annotated[bool, detail("With --html: replace an existing file of any kind.")] = False
    lens: Annotated[bool, asking("The next token as read after each block.")] = False
    contributions: Annotated[bool, asking("What each head and feed-forward layer added to a token's logit.")] = False
    heads: Annotated[bool, asking("The heads that do something special: previous token, induction, ...")] = False
    ablate: Annotated[
        str | None, asking("The prediction without a part: a name or glob; [0] or [*] after it selects heads.")
    ] = None
    of: Annotated[
        str | None, detail("With --value 'grad:...': the number whose gradient it is (default: loss.mean).")
    ] = None
    token: Annotated[
        str | None, detail("The token to ask about (default: the most likely).", allow_leading_hyphen=True)
    ] = None
    at: Annotated[
        int | None, detail("Ask after this token, counted from 0 (default: the last).", allow_leading_hyphen=True)
    ] = None
    layer: Annotated[int | None, detail("With --heads: the pattern of each head of this layer.")] = None

    def given(self) -> dict[str, Any]:
        """The given options, by their names on the command line."""
        values = {field.name.rstrip("_").replace("_", "-"): getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value is not False}

    def chosen(self) -> tuple[Question, dict[str, Any]]:
        """The question that is asked (by default the walk), and its options as keywords of its function.

        Before a model is loaded, refuses two questions, an option that the question does not take, and writing the HTML
        page over another file.
        """
        given = self.given()
        asked = [name for name in QUESTIONS if name in given and name != "html"]
        if len(asked) > 1:
            raise UsageError(f"{' and '.join(f'--{name}' for name in asked)} exclude each other; give one of them")
        if self.html is not None:
            from foretell.storage.files import check_target

            check_target(self.html, overwrite=self.overwrite)
            if asked:  # write the answer as a page
                given = {name: value for name, value in given.items() if name not in ("html", "overwrite")}
        question = QUESTIONS[asked[0]] if asked else QUESTIONS["html"] if self.html else WALK
        details = {name: value for name, value in given.items() if not (name in asked and value is True)}
        for name in details:
            if name not in question.takes:
                goes_with = ", ".join(f"--{other}" for other in QUESTIONS if name in QUESTIONS[other].takes)
                raise UsageError(f"--{name} goes with {goes_with} and has no effect here; leave it out")
        page = self.html if asked else None
        return replace(question, page=page), {question.takes[name]: value for name, value in details.items()}


@dataclass(frozen=True)
class TextQuestions(Questions):
    """Further questions for language models."""

    prediction: Annotated[bool, asking("For fine-tuned models: which words and parts moved the label.")] = False
    check: Annotated[bool, asking("Compare the textbook's results with the model's.")] = False
    against: Annotated[
        str | None,
        detail("With --contributions or --prediction: compare with this token or label.", allow_leading_hyphen=True),
    ] = None
    with_: Annotated[
        Literal["zero", "mean"] | None,
        Parameter(name="--with"),
        detail("With --ablate: what replaces the part, zero (default) or its mean. With --lens: the later layers."),
    ] = None
    patch_from: Annotated[
        str | None, asking("The prediction with the stream of this second text, by layer and token.")
    ] = None
    step: Annotated[
        int | None, asking("An update of a RUN, without a text: its batch, losses and changes; --value 'update:...'.")
    ] = None
    label: Annotated[str | None, detail("With --prediction: the label to ask about (default: the predicted).")] = None
    pieces: Annotated[bool, detail("With --prediction: tokens instead of words.")] = False


@dataclass(frozen=True)
class Question:
    """A question that `explain` can answer.

    answer: a function that takes a model and a text. takes: the options, with the function's keyword for each. fault:
    returns the error message if the command must fail, else None. page: a file for the answer as an HTML page.
    """

    answer: Callable[..., Any]
    takes: Mapping[str, str] = field(default_factory=dict)
    fault: Callable[[Any], str | None] = lambda answer: None
    page: Path | None = None

    def show(self, loaded: LanguageModel, text: str, details: Mapping[str, Any], json: bool) -> None:
        """Print the answer; raises a `ForetellError` if the command must fail."""
        answer = self.answer(loaded, text, **details)
        if self.page is not None:
            write_page(self.page, f"{loaded.name}: {answer.subject}", answer)
        print_json(answer.to_json()) if json else write_document(str(answer))
        if fault := self.fault(answer):
            raise ForetellError(fault)


def value_fault(answer: Any) -> str | None:
    """The error message for a number that does not agree with its operands."""
    if answer.agrees:
        return None
    return f"{answer.address} does not follow from its operands: they give {answer.recomputed:.9g}"


def attribute_prediction(loaded: LanguageModel, text: str, **details: Any) -> Any:
    """The contributions to the label of a tuned model."""
    from foretell.finetuning.label_attribution import attribute_label
    from foretell.finetuning.predict import TaskInputModel

    assert isinstance(loaded, TaskInputModel)
    return attribute_label(loaded, [text, *loaded.others], **details)


def with_progress(path: str, what: str) -> Callable[..., Any]:
    """A function that is imported when it is called, and reports its progress in these units."""

    def call(*values: Any, **keywords: Any) -> Any:
        with ProgressLine(what) as progress:
            return imported(path)(*values, progress=progress, **keywords)

    return call


def write_html(loaded: LanguageModel, text: str, path: Path, overwrite: bool = False) -> Any:
    """Write the pass as an HTML page; stderr lists the omitted parts."""
    from foretell.insight.page.write_page import write_page

    report = write_page(loaded, text, path, readout=readout_in(loaded, text), overwrite=overwrite)
    for sentence in report.cut:
        note(sentence)
    return report


def explain_number(loaded: LanguageModel, text: str, address: str, of: str | None = None) -> Any:
    from foretell.insight.explain.explain_address import explain_value
    from foretell.insight.explain.explanation import UPDATE
    from foretell.insight.trace import GRADIENT

    if address.startswith(UPDATE):
        raise UsageError(f"{address} is of an update of a run: foretell explain RUN --step N --value '{address}'")
    if of is not None and not address.startswith(GRADIENT):
        raise UsageError(f"--of goes with the gradient of a number: --value '{GRADIENT}{address}'")
    return explain_value(loaded, text, address, readout_in(loaded, text), of=of)


def readout_in(loaded: LanguageModel, text: str) -> TaskReadout | None:
    """The labels or the number of a model with its task's input format."""
    from foretell.finetuning.label_attribution import readout_of
    from foretell.finetuning.predict import TaskInputModel

    return readout_of(loaded, text) if isinstance(loaded, TaskInputModel) else None


def imported(path: str) -> Callable[..., Any]:
    """A function that is imported when it is called, because importing torch takes seconds."""

    def call(*values: Any, **keywords: Any) -> Any:
        module, _, name = path.partition(":")
        return getattr(import_module(f"foretell.insight.{module}"), name)(*values, **keywords)

    return call


QUESTIONS: dict[str, Question] = {
    "value": Question(explain_number, {"value": "address", "of": "of"}, value_fault),
    "check": Question(
        imported("explain.textbook_check:check"), fault=lambda answer: None if answer.holds else answer.verdict
    ),
    "prediction": Question(
        attribute_prediction,
        {name: name for name in ("label", "against", "pieces")},
    ),
    "html": Question(write_html, {"html": "path", "overwrite": "overwrite"}),
    "lens": Question(imported("attribution.logit_lens:logit_lens"), {"at": "at", "with": "fill"}),
    "contributions": Question(
        imported("attribution.direct_logit_attribution:direct_logit_attribution"),
        {"token": "token", "against": "against", "at": "at"},
    ),
    "heads": Question(imported("attribution.head_patterns:attention_patterns"), {"layer": "layer"}),
    "ablate": Question(
        with_progress("attribution.ablation:ablate", "parts"),
        {"ablate": "address", "with": "fill", "token": "token", "at": "at"},
    ),
    "patch-from": Question(
        with_progress("attribution.patch_map:patch_map", "layers"),
        {"patch-from": "second", "token": "token", "at": "at"},
    ),
}
WALK = Question(imported("explain.walk:walk"))


def explain(
    model: arguments.Model,
    text: arguments.Text = None,
    /,
    *,
    file: arguments.File = None,
    questions: Annotated[TextQuestions, Parameter(name="*")] = TextQuestions(),
    as_task: arguments.AsTask = False,
    pair: arguments.Pair = None,
    allow_special: arguments.AllowSpecial = False,
    ids: arguments.Ids = False,
    json: arguments.Json = False,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """A pass over a text, layer by layer; any number in it; and the causes of the prediction.

    Numbers are named as in `foretell trace MODEL --list`. There are also
    logits[t,v], probabilities[t,v] and loss[t], where v may be a token's text:
    --value "probabilities[-1,' the']"; and contributions[t,v,n] of part n to a
    logit. Fine-tuned models also have task_head[c], the logit of a label or the
    number, and task_head.probabilities['a label'].
    """
    if questions.step is not None:
        others = (text, file, as_task, pair, allow_special, ids, questions.given().keys() - {"step", "value"})
        if any(others) or options != arguments.LOADING_DEFAULTS:
            raise UsageError("--step shows one update of a run: it goes with --value and --json alone")
        show_update(model, questions.value, questions.step, json)
        return
    if (questions.value or "").startswith("update:"):
        raise UsageError("an update belongs to a step of a run: add --step N")
    question, details = questions.chosen()
    text = arguments.read_text(text, file)
    loaded = open_model(model, ids=ids, allow_special=allow_special, texts=[text], **vars(options))
    if as_task or questions.prediction or pair or (questions.value or "").startswith("task_head"):
        from foretell.finetuning.predict import as_task_input

        loaded = as_task_input(loaded, pair or ())
    question.show(loaded, text, details, json)


def show_update(model: str, address: str | None, step: int, json: bool) -> None:
    """Show an update of a run, or the new value of one weight in it."""
    from foretell.insight.explain.explanation import UPDATE
    from foretell.runs.run import find_run
    from foretell.session.run_update import explain_update
    from foretell.session.update import explain_weight
    from foretell.trainings import replay_update

    if address is not None and not address.startswith(UPDATE):
        raise UsageError(f"--step shows an update, or the update of a weight: --value '{UPDATE}PATH[i,j]'")
    before = replay_update(find_run(model), step)
    if address is None:
        show_whole_update(explain_update(before), json)
        return
    answer = explain_weight(before, address)
    report(answer, json)
    if fault := value_fault(answer):
        raise ForetellError(fault)


def show_whole_update(view: UpdateView, json: bool) -> None:
    """Show an update and the first rows of its batch."""
    from foretell.cli.train import show_row

    report(view, json)
    for index, row in enumerate([] if json else view.rows[:SHOWN_ROWS]):
        if row.tokens:
            mean = "no targets" if row.loss is None else f"loss {row.loss:.3f}"
            results().print(f"\nrow {index}: {counted(len(row.tokens), 'token')}, {mean}", style="bold")
            show_row(results(), row)
    if (more := len(view.rows) - SHOWN_ROWS) > 0 and not json:
        results().print(f"\n{counted(more, 'more row')}: --json has all", style="dim")
