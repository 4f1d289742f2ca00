"""Quantise a model and report the error of each layer, and the perplexity of a text before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from foretell.config.quantization import QuantizationConfig, Scheme
from foretell.convert.gptq import quantize_for_inputs
from foretell.data.documents import EMBEDDED_CORPUS, embedded_corpus
from foretell.data.sources import read_documents
from foretell.errors import DataError, UsageError, as_path
from foretell.evaluation.loss import json_number, silent
from foretell.evaluation.perplexity import TextEvaluation, evaluate_texts
from foretell.language_model import LanguageModel, check_model
from foretell.model.decoder import Decoder, logit_chunks
from foretell.model.quantize_decoder import check_groups, make_quantization, quantize_decoder
from foretell.model.surgery import copy_with
from foretell.paths import starred
from foretell.saved_model.layer_parts import QUANTIZATION, QuantizationPart
from foretell.training.objective import Objective
from foretell.typesetting.document import DocumentSection, Paragraph, Table
from foretell.typesetting.html import Shown

CALIBRATION_TOKENS = 2**15
MEASURED_TOKENS = 2**15
TOKENS_AT_ONCE = 2048  # tokens per pass when layers are compared
LONGEST_ROW = 1024  # tokens

Step = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]  # shows the progress of a named step


def without_progress(step: str) -> AbstractContextManager[Callable[[int, int], None]]:
    """A step that shows nothing."""
    return nullcontext(silent)


@dataclass(frozen=True)
class LayerError:
    """|q - y| / |y| for the outputs y of a layer on a text, and q of its quantised form for the same inputs."""

    path: str
    error: float


@dataclass(frozen=True)
class KindError:
    """Errors of the layers whose paths differ only in the number of the block."""

    kind: str
    count: int
    mean: float
    largest: float


@dataclass(frozen=True)
class WeightFiles:
    """The path of a saved quantised model, and the size of its weight files in bytes before and after."""

    path: Path
    before: int
    after: int


@dataclass(frozen=True)
class QuantizationReport(Shown):
    """Errors of the layers, and the evaluation of a text before and after. measured_on: a description of the text."""

    settings: QuantizationConfig
    layers: tuple[LayerError, ...]
    before: TextEvaluation
    after: TextEvaluation
    calibration_tokens: int
    measured_on: str = EMBEDDED_CORPUS
    files: WeightFiles | None = None  # set when the model is saved

    @property
    def perplexity_change(self) -> float:
        """The relative change of the perplexity: 0.01 is 1% worse."""
        return self.after.perplexity / self.before.perplexity - 1

    def to_json(self) -> dict[str, Any]:
        files = self.files
        saved: dict[str, Any] = {}
        if files is not None:
            saved = {"path": str(files.path), "bytes": {"before": files.before, "after": files.after}}
        return {
            **saved,
            "measured_on": self.measured_on,
            "quantization": self.settings.model_dump(mode="json"),
            "layers": [asdict(layer) for layer in self.layers],
            "kinds": [asdict(kind) for kind in by_kind(self.layers)],
            "tokens": self.before.tokens,
            "calibration_tokens": self.calibration_tokens,
            "perplexity": {
                "before": json_number(self.before.perplexity),
                "after": json_number(self.after.perplexity),
                "change": json_number(self.perplexity_change),
            },
        }

    def document(self) -> DocumentSection:
        settings, files = self.settings, self.files
        kinds = [
            (each.kind, f"{each.count}", f"{each.mean:.3%}", f"{each.largest:.3%}") for each in by_kind(self.layers)
        ]
        before, after = f"{self.before.perplexity:,.3f}", f"{self.after.perplexity:,.3f}"
        costs = [("perplexity", before, after, f"{self.perplexity_change:+.2%}")]
        if files is not None:
            before, after = f"{files.before / 1e6:,.1f}", f"{files.after / 1e6:,.1f}"
            costs.insert(0, ("megabytes", before, after, f"{files.after / files.before - 1:+.1%}"))
        return DocumentSection(
            f"{settings}" if files is None else f"{files.path}: {settings}",
            [
                Table(("error of the output", "layers", "mean", "largest"), kinds),
                Table(("", "before", "after", "change"), costs),
                Paragraph(f"measured on {self.before.tokens:,} tokens of {self.measured_on}"),
            ],
        )


@dataclass(frozen=True)
class QuantizationTexts:
    """The texts to measure on, and the ids (N, T) to calibrate int4 with; None for no calibration."""

    measured: list[str]
    calibration: Tensor | None = None


def choose_texts(
    model: LanguageModel, texts: Iterable[str] | None, calibration: Iterable[str] | None
) -> QuantizationTexts:
    """Choose the first tokens of the texts, up to a limit, to measure on and to calibrate with.

    Without texts to measure on, the first half of the calibration text is for calibration and the second half for
    measurement. Raises DataError if there is too little text.
    """
    if calibration is None:
        assert texts is not None, "give a text to measure on"
        return QuantizationTexts([model.tokenizer.decode(first_ids(model, texts, MEASURED_TOKENS))])
    if texts is not None:
        ids = first_ids(model, calibration, CALIBRATION_TOKENS)
        measured = first_ids(model, texts, MEASURED_TOKENS)
        return QuantizationTexts([model.tokenizer.decode(measured)], token_rows(model, ids))
    ids = first_ids(model, calibration, CALIBRATION_TOKENS + MEASURED_TOKENS)
    half = len(ids) // 2
    return QuantizationTexts([model.tokenizer.decode(ids[half:])], token_rows(model, ids[:half]))


def first_ids(model: LanguageModel, texts: Iterable[str], limit: int) -> list[int]:
    """The first `limit` ids of the texts; at least 4, so that each half has a token to predict."""
    ids: list[int] = []
    for text in texts:
        ids += model.tokenizer.encode_long(text).tolist()
        if len(ids) >= limit:
            break
    if len(ids) < 4:
        raise DataError(f"the text has {len(ids)} tokens, too few to measure on; give more text")
    return ids[:limit]


def token_rows(model: LanguageModel, ids: Sequence[int]) -> Tensor:
    """Ids as rows (N, T) of the context's length, at most LONGEST_ROW; the remainder is dropped."""
    length = min(model.config.context_length, LONGEST_ROW, len(ids))
    return torch.tensor(ids[: len(ids) // length * length]).view(-1, length)


def quantize(
    model: LanguageModel,
    to: Scheme,
    *,
    group: int | None = None,
    head: Scheme = "int8",
    keep: Sequence[str] = (),
    calibrate: str | Path | None = None,
    text: str | Path | None = None,
    step: Step = without_progress,
) -> tuple[LanguageModel, QuantizationReport]:
    """A new model with weights in int8 or int4, and a report: the error of each layer and the change in perplexity.

    group, head, keep: as for `LanguageModel.quantize`. calibrate: a file or folder of texts to calibrate int4 with.
    text: texts to measure on; default: half of the calibration text, or Python's language reference. step: shows the
    progress. The model should be in float32. Raises UsageError, ConfigError or DataError.
    """
    check_model(model)
    if calibrate is not None and to != "int4":
        raise UsageError(f"only int4 is calibrated, because {to} loses little; leave calibrate out")
    model = model.with_float_weights("quantize")
    settings = make_quantization(model.decoder, to, group, keep, head)
    measured = read_texts(text) if text or not calibrate else None
    texts = choose_texts(model, measured, None if calibrate is None else read_texts(calibrate))
    quantized, report = quantize_with_report(model, settings, texts, step)
    return quantized, replace(report, measured_on=str(text or calibrate or EMBEDDED_CORPUS))


def read_texts(path: str | Path | None) -> Iterator[str]:
    """The documents of a file or folder, or of the embedded corpus."""
    documents = embedded_corpus() if path is None else read_documents([as_path("the text", path)])
    return (document.text for document in documents)


def quantize_with_report(
    model: LanguageModel, settings: QuantizationConfig, texts: QuantizationTexts, step: Step
) -> tuple[LanguageModel, QuantizationReport]:
    """A quantised model and its report on a text; the given model does not change.

    Raises UsageError for a model that is already quantised, ConfigError for a group that does not divide a width.
    """
    model = model.with_float_weights("quantize")
    plain, rows = model.decoder, texts.calibration
    paths = check_groups(plain, settings)
    with step("tokens before") as progress:
        before = evaluate_texts(model, Objective(plain), texts.measured, progress=progress)
    decoder = copy_with(plain, {path: plain.get_submodule(path) for path in paths})
    settings = settings.model_copy(update={"calibrated": rows is not None})
    if rows is None:
        quantize_decoder(decoder, settings)
    else:
        with step("blocks") as progress:
            quantize_for_inputs(decoder, settings, rows, progress)
    quantized = replace(model, decoder=decoder, parts={**model.parts, QUANTIZATION: QuantizationPart(settings)})
    with step("tokens after") as progress:
        after = evaluate_texts(quantized, Objective(decoder), texts.measured, progress=progress)
    measured_rows = token_rows(model, first_ids(model, texts.measured, MEASURED_TOKENS))
    with step("tokens by layer") as progress:
        errors = layer_errors(plain, decoder, paths, measured_rows, progress)
    return quantized, QuantizationReport(settings, tuple(errors), before, after, 0 if rows is None else rows.numel())


class SquaredErrors:
    """Sums of squares of a layer's outputs, and of their differences from the quantised form's."""

    def __init__(self, quantized: nn.Module):
        self.quantized = quantized
        self.outputs = self.differences = 0.0

    def add(self, module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        """A forward hook of the plain layer."""
        self.outputs += float(output.double().square().sum())
        self.differences += float((self.quantized(*given) - output).double().square().sum())

    @property
    def relative(self) -> float:
        return (self.differences / self.outputs) ** 0.5 if self.outputs else 0.0


@torch.no_grad()
def layer_errors(
    plain: Decoder, quantized: Decoder, paths: Sequence[str], rows: Tensor, progress: Callable[[int, int], None]
) -> list[LayerError]:
    """The errors of the layers at these paths on ids (N, T), in the order of the paths."""
    errors = {path: SquaredErrors(quantized.get_submodule(path)) for path in paths}
    done = 0
    with ExitStack() as hooks:
        for path, each in errors.items():
            hooks.enter_context(plain.get_submodule(path).register_forward_hook(each.add))
        for part in rows.to(plain.device).split(max(1, TOKENS_AT_ONCE // rows.shape[1])):
            for _ in logit_chunks(plain, plain.hidden(part).flatten(0, 1)):
                pass
            done += part.numel()
            progress(done, rows.numel())
    return [LayerError(path, each.relative) for path, each in errors.items()]


def by_kind(errors: Sequence[LayerError]) -> list[KindError]:
    """Mean and largest error of each kind of layer, in the order of the model."""
    kinds: dict[str, list[float]] = {}
    for each in errors:
        kinds.setdefault(starred(each.path), []).append(each.error)
    return [KindError(kind, len(values), sum(values) / len(values), max(values)) for kind, values in kinds.items()]
