"""The options of a training on sentence pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foretell.config.options import option


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """The columns of sentence pairs in a table."""

    reverse: bool = option("Translate the second column, or file, into the first.", default=False)
    columns: Sequence[str] = option(
        "Read this column of a table; give the source's first, then the target's.", default=()
    )


@dataclass(frozen=True, kw_only=True)
class TranslationOptions(PairOptions):
    """Options of `foretell train --task translate`."""

    size: str | None = option(
        "toy, tiny, mini, small, base, vaswani-tiny, vaswani-small or vaswani-base (default: by time)."
    )
    batch_tokens: int | None = option(
        "Tokens per step, of both languages (default: 2048, from mini on 4096).", sets="pairs.batch_tokens"
    )
    separate_vocabularies: bool = option("A vocabulary per language, not one for both.", default=False)
    dev: Path | None = option("Held-out pairs (default: a share of the pairs).")
