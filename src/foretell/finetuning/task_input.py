"""A tuned model that reads a text as its head does, so that trace, explain and the page show that very pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from foretell.errors import UsageError
from foretell.finetuning.head import head_of, input_format
from foretell.finetuning.predict import check_counts
from foretell.language_model import LanguageModel


@dataclass(frozen=True, repr=False)
class TaskInputModel(LanguageModel):
    """The model, whose `encode` puts the special tokens of its task around a text and the `others` of the example.

    Of the two orders of a similarity it is the given one; of the answers of a choice, the first.
    """

    others: tuple[str, ...] = ()

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """The token sequence that the head reads; a UsageError for the wrong number of texts."""
        check_counts([[text, *self.others]], head_of(self).settings)
        encoded = input_format(self).encode_all([[text, *self.others]])[0]
        if encoded.cut:
            raise UsageError(f"the text does not fit the context by {encoded.cut} tokens; give a shorter one")
        return encoded.sequences[0]


def as_task_input(model: LanguageModel, others: Sequence[str] = ()) -> TaskInputModel:
    """The model for texts of its task; a UsageError for a model without a head."""
    head_of(model)
    own = {field.name: getattr(model, field.name) for field in fields(LanguageModel)}
    return TaskInputModel(**own, others=tuple(others))
