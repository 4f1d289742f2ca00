"""How text becomes tokens, and tokens become rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from foretell.config.field_names import with_own_names
from foretell.config.section import FOLLOWS, Section, raise_first


class TokenizerConfig(Section):
    """Which tokenizer to make from the training text."""

    kind: Literal["characters", "words", "bytes", "bpe"] = "bpe"
    vocab_size: int | None = Field(None, gt=0)  # bpe and words; None: chosen from the amount of text
    split: Literal["gpt2", "qwen2"] | None = None  # how bpe cuts text into words before merging; None: qwen2
    start_token: str | None = None  # a special token to put before every text


class DataConfig(Section):
    """How text becomes rows of tokens."""

    text_field: str | None = None  # the field or column that holds the text, where a file has several
    validation_fraction: float = Field(0.1, ge=0, lt=1)
    document_mask: bool = False  # hide other documents that were packed into the same row
    shuffle_documents: bool = False  # join the documents in another random order in every epoch
    window_length: int | None = Field(None, gt=0)  # tokens per row, at most the context; None: the context
    special: tuple[str, ...] = ()  # names that are read as special tokens; a tokenizer that is made has them
    rows: bool = False  # each line or record is a row of its own, padded and never joined with its neighbour
    prompt_field: str | None = None  # rows of two parts: the field or column with the first part
    answer_field: str | None = None  # the field or column with the second part
    separator: str = ""  # between prompt and answer, part of the prompt
    loss_on: Literal["all", "answer"] = FOLLOWS  # from the others: "answer" where there is one, else "all"

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Prompts and answers are rows; their loss is that of the answers."""
        values = with_own_names(cls, values)  # here too, since pydantic runs this before the base's validator
        if not isinstance(values, Mapping):
            return values
        has_answers = values.get("answer_field") is not None
        return {**({"rows": True} if has_answers else {}), "loss_on": "answer" if has_answers else "all", **values}

    @model_validator(mode="after")
    def _check(self) -> Self:
        named = [self.prompt_field is not None, self.answer_field is not None]
        problems = {
            "prompt_field and answer_field go together; give both": any(named) and not all(named),
            "prompt_field and answer_field are rows; leave out rows = false": any(named) and not self.rows,
            "text_field is for rows of one part; leave it out next to prompt_field": (
                any(named) and self.text_field is not None
            ),
            "separator goes between prompt and answer; give prompt_field and answer_field": (
                self.separator != "" and not any(named)
            ),
            "loss_on = 'answer' needs answer_field": self.loss_on == "answer" and self.answer_field is None,
            "rows are not joined, so document_mask has nothing to hide; leave it out": self.rows and self.document_mask,
            "rows are in random order by themselves; leave out shuffle_documents": self.rows and self.shuffle_documents,
            "rows are as long as their data; leave out window_length": self.rows and self.window_length is not None,
        }
        raise_first(problems)
        return self
