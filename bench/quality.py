"""Perplexity of trained models in float32, bfloat16, int8 and int4, rounded to nearest and calibrated.

    python bench/quality.py                                  primer: about a minute on two cores
    python bench/quality.py --data FOLDER                    and checkpoints/babyllama105 in this folder
    python bench/quality.py --model runs/small --text FILE   and a model of yours on texts like those it was trained on
    python bench/quality.py --quick                          primer on an eighth of the tokens

The text is cut into rows of the context; a random half of them calibrates, the other half is measured. primer reads the
language reference inside Python, which it was trained on; the babyllama, whose tokenizer is not a file of ours, reads
what it has written itself at temperature 1. `change` is the perplexity relative to float32.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report, use_threads
from llama2c import read_llama2c
from measure import note
from rich.console import Console
from torch import Tensor

import foretell
from foretell.config.quantization import Scheme
from foretell.convert.gptq import quantize_for_inputs
from foretell.data.documents import embedded_corpus
from foretell.data.sources import read_documents
from foretell.model.decoder import Decoder
from foretell.model.quantize_decoder import make_quantization, quantize_decoder

BABYLLAMA = Path("checkpoints/babyllama105/model5000.bin")
TOKENS = 2**15  # to measure on, and as many to calibrate on
ROWS_AT_ONCE = 16
LIMITS = {"int8": 0.001, "int4 calibrated": 0.02}


def main() -> None:
    """Measure and print a table or one JSON object."""
    parser = make_parser("The quality of quantised models.", "primer on few tokens", with_threads=True)
    parser.add_argument("--data", type=Path, help="a folder with checkpoints/babyllama105/model5000.bin")
    parser.add_argument("--model", action="append", default=[], help="a model of yours; may be repeated")
    parser.add_argument("--text", action="append", default=[], help="a file with text for each --model")
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    tokens = TOKENS // 8 if arguments.quick else TOKENS
    reference = "\n".join(document.text for document in embedded_corpus())
    rows = measure("primer", *primer_like("primer", reference, tokens))
    if arguments.data:
        decoder = read_llama2c(arguments.data / BABYLLAMA)
        rows += measure("babyllama105", decoder, sample(decoder, 2 * tokens))
    for name, path in zip(arguments.model, arguments.text, strict=True):
        text = "\n".join(document.text for document in read_documents([path]))
        rows += measure(name, *primer_like(name, text, tokens))
    report = start_report("quality") | {"quick": arguments.quick, "tokens": tokens, "rows": rows}
    print_report(report, print_tables, as_json=arguments.json)


def primer_like(name: str, text: str, tokens: int) -> tuple[Decoder, Tensor]:
    """A model's decoder, and twice so many tokens of a text as rows (N, T) in random order."""
    model = foretell.load(name, "cpu", "float32")
    ids = model.tokenizer.encode_long(text)
    length = model.config.context_length
    rows = torch.from_numpy(ids[: len(ids) // length * length].copy()).long().view(-1, length)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return model.decoder, rows[order][: max(2, 2 * tokens // length)]


@torch.inference_mode()
def sample(decoder: Decoder, tokens: int) -> Tensor:
    """Rows (N, T) that a decoder has written at temperature 1."""
    rng, length = torch.Generator().manual_seed(0), decoder.config.context_length
    count = tokens // length
    cache, rows = decoder.make_cache(count, length), [torch.ones(count, 1, dtype=torch.long)]  # token 1 begins a text
    while len(rows) < length:
        logits = decoder.head(decoder.hidden(rows[-1], cache.make_room([1] * count))[:, -1])  # (N, V)
        rows.append(torch.multinomial(logits.softmax(-1), 1, generator=rng))
    return torch.cat(rows, dim=1)


@torch.no_grad()
def perplexity(decoder: Decoder, rows: Tensor) -> float:
    """Of all tokens of rows (N, T) but the first of each."""
    losses = []
    for part in rows.split(ROWS_AT_ONCE):
        logits = decoder(part)[:, :-1].float()  # (B, T - 1, V)
        losses.append(F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), reduction="none"))
    return math.exp(float(torch.cat(losses).double().mean()))


def measure(name: str, plain: Decoder, rows: Tensor) -> list[dict[str, Any]]:
    """A row for each precision of a model."""
    calibration, measured = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    note(f"{name}: {measured.numel():,} tokens, and {calibration.numel():,} for calibration")
    before = perplexity(plain, measured)
    results = [result(name, "float32", before, before, sum(weight.nbytes for weight in plain.parameters()))]
    halved = copy.deepcopy(plain).to(torch.bfloat16)
    size = sum(weight.nbytes for weight in halved.parameters())
    results.append(result(name, "bfloat16", perplexity(halved, measured), before, size))
    forms: list[tuple[Scheme, Scheme, bool]] = [  # of the layers, of the head, calibrated
        ("int8", "int8", False),
        ("int4", "int8", False),
        ("int4", "int8", True),
        ("int4", "int4", False),
        ("int4", "int4", True),
    ]
    for to, head, calibrated in forms:
        results.append(quantized_result(name, plain, measured, before, to, head, calibration if calibrated else None))
    return results


def quantized_result(
    name: str, plain: Decoder, measured: Tensor, before: float, to: Scheme, head: Scheme, calibration: Tensor | None
) -> dict[str, Any]:
    """The row of a quantised form; int4 is calibrated if there are rows for it."""
    decoder, started = copy.deepcopy(plain), time.perf_counter()
    settings = make_quantization(decoder, to, head=head)
    if calibration is None:
        quantize_decoder(decoder, settings)
    else:
        quantize_for_inputs(decoder, settings, calibration, lambda done, total: None)
    seconds = time.perf_counter() - started
    form = to if head == "int8" else f"{to}, head too"
    form = form if calibration is None else f"{form}, calibrated"
    tensors = chain(decoder.parameters(), decoder.buffers())
    size = sum(tensor.nbytes // (2 if tensor.is_floating_point() else 1) for tensor in tensors)  # the rest in bfloat16
    return result(name, form, perplexity(decoder, measured), before, size) | {
        "group": settings.group,
        "seconds": seconds,
    }


def result(name: str, form: str, value: float, before: float, size: int) -> dict[str, Any]:
    """A row of the report; the size in bytes of the weights."""
    return {"model": name, "form": form, "perplexity": value, "change": value / before - 1, "bytes": size}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """Print one table, and whether the limits are kept."""
    table = make_table(["model", "form", "group", "perplexity", "change", "MB"], words=("model", "form"))
    for row in report["rows"]:
        cells = (f"{row['perplexity']:.4f}", f"{row['change']:+.3%}", f"{row['bytes'] / 1e6:.2f}")
        table.add_row(row["model"], row["form"], str(row.get("group", "")), *cells)
    console.print(table)
    missed = [row for row in report["rows"] if row["change"] > LIMITS.get(row["form"], math.inf)]
    console.print(verdict(missed))


def verdict(missed: Sequence[dict[str, Any]]) -> str:
    """The rows that exceed their limit, as a sentence."""
    limits = ", ".join(f"{form} {limit:.1%}" for form, limit in LIMITS.items())
    names = ", ".join(f"{row['model']} {row['form']}" for row in missed)
    return f"limits ({limits}): {'missed by ' + names if missed else 'kept'}"


if __name__ == "__main__":
    main()
