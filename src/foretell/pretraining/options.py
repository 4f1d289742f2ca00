"""The options of trainings on text."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from foretell.config.options import help_of, option


@dataclass(frozen=True, kw_only=True)
class TextFields:
    """The texts of records."""

    text_field: str | None = option("The field or column with the text.", sets="data.text_field")
    rows: bool = option(
        "Each line or record is a separate row, never joined with others.", default=False, sets="data.rows"
    )
    prompt_field: str | None = option("Column with the prompts, of rows in two parts.", sets="data.prompt_field")
    answer_field: str | None = option("Column with the answers.", sets="data.answer_field")


@dataclass(frozen=True, kw_only=True)
class TextOptions(TextFields):
    """Options of `foretell train`."""

    sections: ClassVar[tuple[str, ...]] = ("model", "data", "training")  # and tokenizer, which may also be one

    loss_on: Literal["all", "answer"] | None = option(
        "The tokens to learn (default: the answer if there is one).", sets="data.loss_on"
    )
    special: Sequence[str] = option(
        "A name in the data that is a special token; may be repeated.", default=(), sets="data.special"
    )
    size: str | None = option("toy, tiny, small, medium, base, gpt2, ... (default: chosen).")
    kind: str | None = option("Make a tokenizer: bpe, bytes, characters or words.", sets="tokenizer.kind")
    start_token: str | None = option(
        "Put this special token before every text; it may be the end token.", sets="tokenizer.start_token"
    )
    workers: int = option("Processes that turn text into tokens; the tokens are the same for any.", default=1)
    sample_prompt: Sequence[str] = option(
        "A text to continue during training; may be repeated.", default=(), sets="training.sample_prompts"
    )


@dataclass(frozen=True, kw_only=True)
class DomainOptions:
    """Options of `foretell finetune --task text`."""

    sections: ClassVar[tuple[str, ...]] = ("model", "data", "training")

    old_domain: Sequence[Path] = option(
        "A text of the model's old domain (default: the held-out text of the run MODEL).", default=()
    )
    text_field: str | None = option(help_of(TextFields, "text_field"), sets="data.text_field")
