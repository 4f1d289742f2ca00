"""`foretell train --task translate PAIRS...`: train an encoder-decoder on pairs of sentences."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import Flag, Whole
from foretell.cli.training import DEFAULTS, Options, show_end, train_and_report
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.session.session import Session
    from foretell.translation.task import TranslationTask


def train_translate(
    *pairs: Annotated[str, Parameter(help="A file with two columns, two aligned files, or a zip of either.")],
    size: Annotated[
        str | None,
        Parameter(help="toy, tiny, small, base, or vaswani-tiny, vaswani-small, vaswani-base; default: small."),
    ] = None,
    batch_tokens: Annotated[
        int | None, Whole, Parameter(help="Tokens per step, of both languages; default: 4096.")
    ] = None,
    separate_vocabularies: Annotated[
        bool, Flag, Parameter(help="A vocabulary per language, not one for both.")
    ] = False,
    options: Options = DEFAULTS,
) -> None:
    """Train an encoder-decoder to translate.

    The first column, or file, is translated into the second. Some sentences are held out, chosen by a hash of the
    source in lower case without punctuation, so that no near-duplicate is on both sides.

    Sections of the configuration: model, tokenizer, pairs, training. The most used:

    --pairs.validation-fraction, --pairs.longest, --tokenizer.vocab-size,

    --training.learning-rate, --training.label-smoothing, --model.dropout.
    """
    if not pairs and not options.is_resumed:
        raise UsageError("give a file of pairs: two columns separated by a tab, two aligned files, or a zip")
    out = options.directory(pairs)
    from foretell.translation.train import PairRequest, TranslationTraining

    request = PairRequest(
        paths=pairs,
        out=out,
        size=size,
        minutes=options.minutes,
        overrides=options.sections({"pairs.batch_tokens": batch_tokens}),
        is_shared=False if separate_vocabularies else None,
        device=options.device,
        dtype=options.dtype,
    )
    train_and_report(TranslationTraining(request), options, finish)


def finish(session: Session[TranslationTask]) -> None:
    """The best loss and BLEU, and a sentence to translate."""
    data, best = session.task.data, session.run.best().training()
    loss, bleu = best["validation_loss"], best["evaluation"].get("bleu")
    shown = "" if bleu is None else f", BLEU {bleu:.1f} on {min(200, len(data.validation))} pairs, greedy"
    figures = "" if loss is None else f"validation loss {loss:.3f}{shown}"
    show_end(session, figures, "translate", shlex.quote((data.validation or data.train)[0].source))
