"""`foretell evaluate MODEL PAIRS` with a translation model: loss, BLEU and chrF."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Json, ModelArgument, Quantize, Verify, Whole
from foretell.cli.evaluate import show
from foretell.cli.terminal import note, print_json, results
from foretell.cli.translate import Beam, LengthPenalty, choose_decoding, open_translator
from foretell.errors import UsageError


def evaluate_translation(
    model: ModelArgument,
    *pairs: Annotated[str, Parameter(help="A file with two columns, two aligned files, or a zip of either.")],
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    limit: Annotated[int | None, Whole, Parameter(help="Only the first so many pairs.")] = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    verify: Verify = False,
) -> None:
    """Loss per token, BLEU and chrF of a translation model on pairs.

    BLEU and chrF are sacrebleu's, with its default settings. Where a sentence has several translations, BLEU is also
    given against all of them.
    """
    if limit is not None and limit < 1:
        raise UsageError(f"--limit must be at least 1, not {limit}")
    decoding = choose_decoding(beam, length_penalty, {})
    from foretell.translation.pairs import read_pairs
    from foretell.translation.quality import evaluate_pairs, load_sacrebleu

    load_sacrebleu()
    read = read_pairs([Path(path) for path in pairs])[:limit]
    translator = open_translator(model, device, dtype, verify, quantize)
    result = evaluate_pairs(translator, read, decoding)
    if result.left_out:
        note(f"left out of the loss: {result.left_out:,} pairs longer than the model's context")
    if json:
        print_json(result.to_json())
        return
    quality = result.quality
    show(
        ("BLEU", f"{quality.bleu:.2f}", "one reference per pair"),
        ("chrF", f"{quality.chrf:.2f}", "one reference per pair"),
        ("BLEU", f"{quality.bleu_all_references:.2f}", "all references of each sentence"),
        ("loss", f"{result.loss:.4f}", "nats per target token"),
    )
    results().print(f"{quality.pairs:,} pairs, {quality.sentences:,} sentences; {quality.signature}")
