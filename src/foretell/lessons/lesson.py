"""The base of all lessons: checks of figures, documents from Markdown with values, and training of small decoders."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from torch.optim import Optimizer

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.data.batch import Batch, make_batch
from foretell.errors import LessonError
from foretell.generation.batch_generation import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.insight.explain.steps import plain
from foretell.lessons.exercise import Exercise
from foretell.lessons.registry import find_lesson
from foretell.model.decoder import Decoder
from foretell.training.loop import Action, BatchSource, Progress, train
from foretell.training.objective import Objective
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Part, Table
from foretell.typesetting.expression import read_formula
from foretell.typesetting.html import Shown

# The sources computed in float32 before they rounded. A value this close to the midpoint between two printed figures
# can round the other way in float64; 1e-7 is one unit in float32's last place for numbers of size 1
FLOAT32_UNIT = 1e-7


@dataclass(frozen=True)
class FigureCheck:
    """One comparison. `tolerance` is None if the two must be equal or `expected` is a limit."""

    what: str
    expected: Any
    got: Any
    tolerance: float | None
    passed: bool

    def to_json(self) -> dict[str, Any]:
        """Plain values. Infinity and NaN become text, because JSON has neither."""
        return plain(asdict(self))

    def difference(self) -> str:
        """Expected and computed value in one line; for arrays, the entry with the largest difference."""
        expected, got = np.asarray(self.expected), np.asarray(self.got)
        if expected.ndim == 0 or expected.shape != got.shape:
            return f"{self.what}: expected {self.expected}, got {self.got}"
        errors = ~(expected == got) if self.tolerance is None else np.nan_to_num(distances(expected, got), nan=np.inf)
        index = np.unravel_index(int(np.argmax(errors)), expected.shape)
        position = ", ".join(map(str, index))
        return f"{self.what} [{position}]: expected {expected[index]}, got {got[index]}"


def printed(what: str, expected: ArrayLike, got: ArrayLike, digits: int = 4) -> FigureCheck:
    """`got` rounds to the printed figures, which have `digits` digits after the point."""
    return near(what, expected, got, 0.5 * 10.0**-digits + FLOAT32_UNIT)


def near(what: str, expected: ArrayLike, got: ArrayLike, tolerance: float) -> FigureCheck:
    """Shapes are equal, infinities are at the same indices, and all other numbers are within `tolerance`."""
    first, second = np.asarray(expected), np.asarray(got)
    passed = first.shape == second.shape and bool((distances(first, second) <= tolerance).all())
    return FigureCheck(what, expected, got, tolerance, passed)


def same(what: str, expected: Any, got: Any) -> FigureCheck:
    """The two are equal."""
    return FigureCheck(what, expected, got, None, bool(np.array_equal(np.asarray(expected), np.asarray(got))))


def below(what: str, limit: float, got: float) -> FigureCheck:
    return FigureCheck(what, f"below {limit}", got, None, got < limit)


def above(what: str, limit: float, got: float) -> FigureCheck:
    return FigureCheck(what, f"above {limit}", got, None, got > limit)


def distances(expected: np.ndarray, got: np.ndarray) -> np.ndarray:
    """Absolute differences of two arrays of one shape; equal infinities have difference 0."""
    with np.errstate(invalid="ignore"):
        return np.where(expected == got, 0.0, np.abs(expected.astype(float) - got.astype(float)))


@dataclass(frozen=True)
class LessonReport:
    """The checks of one lesson. `skipped` is the reason why some checks could not be made."""

    name: str
    checks: list[FigureCheck]
    skipped: str

    @property
    def failures(self) -> list[FigureCheck]:
        return [check for check in self.checks if not check.passed]

    @property
    def status(self) -> Literal["passed", "failed", "skipped"]:
        """failed if any check failed; otherwise skipped if some could not be made."""
        if self.failures:
            return "failed"
        return "skipped" if self.skipped else "passed"

    def to_json(self) -> dict[str, Any]:
        """One entry of `foretell lesson --check --json`."""
        checks = [check.to_json() for check in self.checks]
        return {"name": self.name, "status": self.status, "reason": self.skipped, "checks": checks}


class Lesson(Shown):
    """A document to read, and checks of its figures. Both use values that are computed when the lesson is made.

    `name` is in the registry; the document's text is in `NAME.md`.
    """

    name: ClassVar[str]

    @abstractmethod
    def shown(self) -> Mapping[str, Any]:
        """The values that the document names, ready to show."""

    @abstractmethod
    def checks(self) -> list[FigureCheck]:
        """Every figure of the source that can be computed, compared with the computed value."""

    @abstractmethod
    def solutions(self) -> list[Exercise]:
        """The answers to the questions of the text's section "Exercises", in order."""

    def exercises(self) -> list[Exercise]:
        [section] = [
            part for part in self.document().parts if isinstance(part, DocumentSection) and part.title == "Exercises"
        ]
        questions = [part.text[3:] for part in section.parts if isinstance(part, Paragraph) and part.text[0].isdigit()]
        return [replace(answer, question=text) for answer, text in zip(self.solutions(), questions, strict=True)]

    @property
    def skipped(self) -> str:
        """Why some of the figures could not be checked; empty if all were."""
        return ""

    def document(self) -> DocumentSection:
        return read_document(find_lesson(self.name).text, self.shown())

    def report(self) -> LessonReport:
        """All checks, made now, and that every exercise accepts its answer."""
        accepted = [
            same(f"exercise {number}: the answer {each.shown} is accepted", True, each.accepts(each.shown))
            for number, each in enumerate(self.exercises(), start=1)
        ]
        return LessonReport(self.name, [*self.checks(), *accepted], self.skipped)


VALUE = re.compile(r"\{\{ *(\w+) *\}\}")
CONDITION = re.compile(r"^\{(?P<word>if|unless) (?P<name>\w+)\}\n", re.MULTILINE)
CELL_END = re.compile(r"(?<!\\)\|")


def read_document(text: str, values: Mapping[str, Any]) -> DocumentSection:
    """The document that a lesson's Markdown describes, with its values.

    The text is prose for readers and editors, without code. It has `#` and `##` headings, paragraphs, tables, `console`
    blocks, and formulas between `$$` (see `read_formula`). `{{ name }}` is a value that the lesson computes:

    - within a sentence or a cell, text or a whole number
    - in a formula, a number, an array or an expression
    - as a block, a table or other parts of a document
    - as the only cell of a row, rows of the table

    After the line `{if name}` or `{unless name}`, a block, or a whole section if the block is its heading, is shown
    only if that value is true (if) or false (unless). Backticks mark commands, and words that Markdown would change,
    such as `<EOS>`. They are not shown. A table with backticks in every row has a monospace font.

    Raises LessonError if the text names an unknown value, or does not use all of them, or does not close a name.
    """
    if text.count("{{") != len(VALUE.findall(text)):
        raise LessonError("the lesson's text has '{{' without the name of one value and '}}' after it")
    check_names({*VALUE.findall(text), *(name for _, name in CONDITION.findall(text))}, set(values))
    title, *blocks = re.split(r"\n{2,}", text.strip())
    parts: list[Part] = []
    section: list[Part] | None = parts  # None for a section that is not shown
    for block in blocks:
        condition = CONDITION.match(block)
        is_shown = condition is None or bool(values[condition["name"]]) == (condition["word"] == "if")
        content = block[condition.end() :] if condition else block
        if content.startswith("## "):
            section = [] if is_shown else None
            if section is not None:
                parts.append(DocumentSection(fill(content.removeprefix("## "), values), section))
        elif is_shown and section is not None:
            section += read_block(content, values)
    return DocumentSection(title.removeprefix("# "), parts)


def check_names(named: set[str], given: set[str]) -> None:
    """Raise a `LessonError` unless the text names exactly the given values."""
    if named != given:
        unknown, unused = (", ".join(sorted(names)) or "none" for names in (named - given, given - named))
        raise LessonError(f"the lesson's text and its values differ: unknown {unknown}; unused {unused}")


def read_block(block: str, values: Mapping[str, Any]) -> list[Part]:
    """A formula, console block, table or paragraph, or the parts of a value that is a whole block."""
    if block.startswith("$$"):
        return [Formula(read_formula(block.strip("$ \n"), values))]
    if block.startswith("```"):
        return [Table(("",), [(line,) for line in block.splitlines()[1:-1]], monospace=True)]
    if block.startswith("|"):
        return [read_table(block, values)]
    value = VALUE.fullmatch(block)
    parts = values[value[1]] if value else block
    if not isinstance(parts, str):
        return [parts] if isinstance(parts, Part) else parts
    return [Paragraph(fill(" ".join(block.split()), values))]


def read_table(block: str, values: Mapping[str, Any]) -> Table:
    """A table with a header; a row that is one value is replaced by its rows."""
    header, _, *lines = ([cell.strip() for cell in CELL_END.split(line)[1:-1]] for line in block.splitlines())
    rows: list[list[str]] = []
    for cells in lines:
        value = VALUE.fullmatch(cells[0]) if len(cells) == 1 else None
        if value:
            rows += [[str(cell) for cell in line] for line in values[value[1]]]
        else:
            rows.append([fill(cell, values) for cell in cells])
    monospace = all("`" in "".join(cells) for cells in lines)
    return Table([fill(cell, values) for cell in header], rows, monospace)


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Running text with its values, without backticks and escapes."""

    def shown(match: re.Match[str]) -> str:
        value = values[match[1]]
        if not isinstance(value, str | int):
            raise LessonError(f"'{match[1]}' is within a sentence; give text or a whole number, not {value!r}")
        return str(value)

    return VALUE.sub(shown, text.replace("`", "").replace(r"\|", "|"))


# Plain Adam with torch's defaults, without weight decay, clipping and a schedule
ADAM: dict[str, Any] = {
    "warmup_steps": 0,
    "schedule": "constant",
    "weight_decay": 0.0,
    "beta1": 0.9,
    "beta2": 0.999,
    "clip_norm": None,
    "batch_size": 1,
}
GREEDY = SamplingConfig(temperature=0, top_p=1.0)


class RepeatedRows:
    """A few rows of ids as training data: one row per step, repeated in order."""

    def __init__(self, rows: list[list[int]]):
        self.rows = rows

    def batch(self, step: int) -> Batch:
        return make_batch(np.array([self.rows[step % len(self.rows)]]))


def bare_config(**settings: Any) -> ModelConfig:
    """One layer and one head without norm, feed-forward layer and output projection; only the head has a bias."""
    return make_section(
        ModelConfig,
        {
            "num_layers": 1,
            "num_heads": 1,
            "norm": "none",
            "feedforward": "none",
            "attention_output": False,
            "bias": {"attention": False, "head": True},
            "tie_embeddings": False,
            **settings,
        },
    )


def adam(steps: int, learning_rate: float) -> TrainingConfig:
    return make_section(TrainingConfig, {**ADAM, "steps": steps, "learning_rate": learning_rate})


def train_on(decoder: Decoder, optimizer: Optimizer, source: BatchSource, config: TrainingConfig) -> list[float]:
    """Train on the batches of a source; returns the loss of each step before its update, in nats per token."""
    losses: list[float] = []

    def record(progress: Progress) -> None:
        assert progress.loss is not None
        losses.append(progress.loss)

    objective, every_step = Objective(decoder), Action(1, record)
    train(objective, optimizer, source, config, Progress(), [every_step])
    decoder.eval()
    return losses


def generate_greedily(
    decoder: Decoder, prompts: list[list[int]], max_tokens: int | None = None, end_id: int | None = None
) -> list[Sequence]:
    """Continue the prompts with the most likely token at each step, up to `end_id` or `max_tokens`."""
    sequences = [Sequence(prompt) for prompt in prompts]
    for _ in generate(decoder, sequences, Sampler(GREEDY), max_tokens, end_ids=() if end_id is None else [end_id]):
        pass
    return sequences
