"""Export of a tuned classifier as a Hugging Face directory: GPT2ForSequenceClassification and similar classes.

Their `score` is our head, applied to the last token before the padding. The exported tokenizer puts the special tokens
of the input format around a text or a pair of texts, so that a caller need not add them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.convert.export import SHARD_BYTES, config_json, rounded, stored_arrays, write_tokenizer, write_weights
from foretell.convert.families import choose_family
from foretell.convert.family import Family, iter_ours, iter_theirs
from foretell.convert.parity import ABSOLUTE, RELATIVE, probe_texts, report_head
from foretell.errors import OutputError, UsageError
from foretell.finetuning.head import TaskHead, head_of, head_outputs, input_format
from foretell.finetuning.inputs import EncodedExample
from foretell.finetuning.kind import find_kind
from foretell.finetuning.kinds import KINDS
from foretell.language_model import LanguageModel
from foretell.storage.files import CONFIG, TOKENIZER_FILE, check_new, new_directory, read_json, write_json
from foretell.storage.manifest import EXPORT_REPORT, describe_files
from foretell.system.device import dtype_name
from foretell.textbook.family import decoder_stream

SCORE = "score.weight"


def export_classifier(
    model: LanguageModel, target: Path, dtype: torch.dtype = torch.float32, family_name: str | None = None
) -> dict[str, Any]:
    """Write a tuned float32 model on the CPU as a new Hugging Face directory; returns the content of its report.

    Raises UsageError for a task without a class in transformers, ConfigError for a configuration without a family, and
    OutputError if outputs differ when read back. Nothing is written in these cases.
    """
    model = model.with_float_weights("convert")
    check_new(target)
    head = head_of(model)
    check_expressible(head)
    family = classifier_family(choose_family(model.config, family_name))
    written = replace(rounded(model, dtype), parts={**model.parts, head.kind: rounded_head(head, dtype)})
    with new_directory(target) as directory:
        write_weights(directory, iter_tensors(written, family, dtype), SHARD_BYTES)
        write_json(directory / CONFIG, {**config_json(family, model.config, model.tokenizer, dtype), **labels(model)})
        write_tokenizer(directory, model.tokenizer, model.config)
        write_template(directory / TOKENIZER_FILE, model)
        report = {
            **report_head(family, dtype_name(dtype)),
            "labels": list(head.settings.labels),
            **compare(directory, written, family),
            "files": describe_files(directory.iterdir()),
        }
        write_json(directory / EXPORT_REPORT, report)
    return report


def check_expressible(head: TaskHead) -> None:
    """Refuse a head that does not read the last token of a single sequence."""
    if not head.task.in_transformers:
        expressible = " and ".join(task for task in KINDS if find_kind(task).in_transformers)
        raise UsageError(
            f"a model for --task {head.settings.task} has no class in transformers; {expressible} have one"
        )
    if head.settings.pool == "mean":
        raise UsageError("transformers' classifiers read the last token; tune with --pool extract or last to export")


def classifier_family(family: Family) -> Family:
    """The family with its class for classifiers, which has no language-model head."""
    architecture = family.architecture.replace("LMHeadModel", "").replace("ForCausalLM", "")
    rows = tuple(row for row in family.rows if row.ours != ("head",))
    return replace(family, architecture=f"{architecture}ForSequenceClassification", rows=rows)


def rounded_head(head: TaskHead, dtype: torch.dtype) -> TaskHead:
    """The head, in float32, with its weight rounded as it will be on disk."""
    linear = torch.nn.Linear(head.linear.in_features, head.linear.out_features, bias=False, device="meta")
    linear.weight = torch.nn.Parameter(head.linear.weight.detach().to(dtype).float())
    return replace(head, linear=linear)


def iter_tensors(model: LanguageModel, family: Family, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of the decoder in the family's layout, then the head."""
    weights = {path: weight.detach().to("cpu", dtype) for path, weight in model.decoder.named_parameters()}
    yield from iter_theirs(family, model.config, weights)
    yield SCORE, head_of(model).linear.weight.detach().to("cpu", dtype).contiguous()


def labels(model: LanguageModel) -> dict[str, Any]:
    """The fields of config.json for the labels, and for padding, which transformers needs with several rows."""
    names = head_of(model).settings.labels
    return {
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
        "problem_type": "single_label_classification",
        "pad_token_id": model.tokenizer.end_id,
    }


def write_template(path: Path, model: LanguageModel) -> None:
    """Change a tokenizer.json so that it puts the special tokens around one or two texts."""
    inputs = input_format(model)
    names = {token: piece for piece, token in model.tokenizer.special_tokens.items()}
    start, delimiter, extract = (
        [{"SpecialToken": {"id": names[token], "type_id": 0}} for token in ids]
        for ids in (inputs.start, inputs.delimiter, inputs.extract)
    )
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in ("A", "B"))
    used = [*inputs.start, *inputs.delimiter, *inputs.extract]
    content = read_json(path)
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*start, first, *extract],
        "pair": [*start, first, *delimiter, second, *extract],
        "special_tokens": {
            names[token]: {"id": names[token], "ids": [token], "tokens": [names[token]]} for token in used
        },
    }
    write_json(path, content)


def compare(directory: Path, model: LanguageModel, family: Family) -> dict[str, Any]:
    """Read back from disk and compare: outputs by the NumPy textbook, and ids by the `tokenizers` library."""
    head, tokenizer = head_of(model), model.tokenizer
    texts = [shortened(text, model) for text in probe_texts(tokenizer)]
    rows = [(text, texts[0]) if head.task.reader.form.columns > 1 else (text,) for text in texts]
    encoded = head.task.encode(rows, input_format(model))
    theirs = tokenizers.Tokenizer.from_file(str(directory / TOKENIZER_FILE))
    for row, example in zip(rows, encoded, strict=True):
        if theirs.encode(row[0], row[1] if len(row) > 1 else None).ids != example.sequences[0]:
            raise OutputError(f"the exported tokenizer reads {row[0]!r} differently; nothing was kept")
    ours = np.stack(head_outputs(model.decoder, head, encoded, torch.float32))
    read = outputs_read_back(directory, model.config, family, encoded)
    difference, bound = float(np.abs(ours - read).max()), max(ABSOLUTE, RELATIVE * float(np.abs(ours).max()))
    if not difference <= bound:
        raise OutputError(f"outputs differ by {difference:.2g} when read back, allowed: {bound:.2g}; nothing was kept")
    return {"texts": len(texts), "logit_difference": difference, "logit_bound": bound}


def shortened(text: str, model: LanguageModel) -> str:
    """The beginning of a text, so short that it fits the context twice with the special tokens."""
    while len(model.tokenizer.encode(text)) > (model.config.context_length - 4) // 2:
        words = text.split()
        text = " ".join(words[: len(words) // 2]) if len(words) > 1 else text[: len(text) // 2]
    return text


def outputs_read_back(
    directory: Path, config: ModelConfig, family: Family, examples: Sequence[EncodedExample]
) -> np.ndarray:
    """The outputs (N, C) for examples of one sequence, by the textbook from the weights on disk."""
    arrays = stored_arrays(directory)
    headless = config.replaced(tie_embeddings=True, bias={**config.bias.model_dump(), "head": False})
    ours = iter_ours(family, headless, lambda name: torch.from_numpy(arrays[name]))
    weights = {path: tensor.numpy() for path, tensor in ours}
    vectors = [decoder_stream(headless, weights, example.sequences[0])[-1] for example in examples]
    return np.stack(vectors) @ arrays[SCORE].T  # (N, C)
