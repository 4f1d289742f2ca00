"""Labels or numbers of two texts: `--task entailment` and `--task similarity`."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from foretell.data.table import list_names, without_index
from foretell.errors import DataError
from foretell.finetuning.examples import Example, ExampleForm, ExampleReader
from foretell.finetuning.kind import Kind, Token
from foretell.finetuning.label_kind import LabelKind
from foretell.finetuning.number_kind import NumberKind, parse_number
from foretell.finetuning.settings import HeadSettings
from foretell.insight.readout import OrdersReadout

PAIR_NAMES = (
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("text1", "text2"), ("question1", "question2")),
    *(("text_a", "text_b"), ("sentence_a", "sentence_b"), ("text", "text2"), ("first", "second")),
)
MANY = 20  # more different numbers are a scale, fewer are labels


class PairReader(ExampleReader):
    form = ExampleForm(fewest=2, most=2, columns=2, words="two texts", arguments='"a text" "another text"')

    def guess_texts(self, available: Sequence[str], where: str) -> tuple[str, ...]:
        """The two columns with known names, or the only two that are left."""
        lower = {name.lower(): name for name in available}
        pairs = [(lower[first], lower[second]) for first, second in PAIR_NAMES if first in lower and second in lower]
        if len(pairs) == 1:
            return pairs[0]
        if not pairs and len(named := without_index(available)) == 2:
            return tuple(named)
        raise DataError(
            f"{where}: which two columns hold the texts? Name them with --text-column A --text-column B; besides the "
            f"label there are {list_names(available, 12)}"
        )


class EntailmentKind(LabelKind):
    """A label for two texts in their order, in one sequence."""

    reader = PairReader("entailment")
    in_transformers = True


class SimilarityKind(Kind):
    """A label or a number for two texts. The vectors for both orders are added, so that the order does not matter."""

    reader = PairReader("similarity")
    readout = OrdersReadout
    linear_model = ""  # NumberKind's reads one text

    @classmethod
    def of(cls, settings: HeadSettings) -> Kind:
        return (SimilarityLabel if settings.labels else SimilarityNumber)(settings)

    @classmethod
    def fit(cls, settings: HeadSettings, examples: Sequence[Example]) -> HeadSettings:
        """Fits a number if the labels are fractions or more than MANY different numbers; else labels."""
        labels = {example.labels[0] for example in examples}
        # Numbers with decimal commas are not labels either; NumberKind refuses them with advice
        numbers = [number for label in labels if (number := parse_number(label.replace(",", "."))) is not None]
        is_number = len(numbers) == len(labels) and (len(labels) > MANY or any(number % 1 for number in numbers))
        return (NumberKind if is_number else LabelKind).fit(settings, examples)

    def groups(self, texts: list[Token]) -> list[list[Token]]:
        return [texts, texts[::-1]]

    def combined(self, layer: nn.Module, vectors: Tensor, lengths: Tensor) -> Tensor:
        return layer(vectors.sum(1))


class SimilarityLabel(SimilarityKind, LabelKind):
    """One of several labels."""


class SimilarityNumber(SimilarityKind, NumberKind):
    """A number."""
