"""`load`: any MODEL argument to a LanguageModel."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import chain
from pathlib import Path

import torch

from foretell.config.quantization import Scheme
from foretell.convert.gguf.load import load_gguf
from foretell.convert.huggingface import load_huggingface
from foretell.convert.peft import add_peft_adapter, base_of, is_adapter
from foretell.errors import CheckpointError, UsageError, as_path
from foretell.finding import check_files, find_model
from foretell.language_model import LanguageModel, load_model
from foretell.model.quantize_decoder import make_quantization
from foretell.saved_model.config_file import is_own
from foretell.saved_model.part import merge_adapters
from foretell.storage.files import ADAPTER_CONFIG, printable_name
from foretell.system import DeviceName, DtypeName
from foretell.system.device import choose_device, choose_inference_dtype

ABSURD, ROWS_READ = 1e6, 8


def load(
    argument: str | Path,
    device: DeviceName | str | torch.device = "auto",
    dtype: DtypeName | torch.dtype = "auto",
    *,
    adapter: str | Path | None = None,
    keep_adapters: bool = False,
    verify: bool | None = False,
    quantize: Scheme | None = None,
) -> LanguageModel:
    """Load a model for inference.

    argument: in this order, the directory of a run, a saved model, a model in Hugging Face's layout or a LoRA adapter
    in peft's; a GGUF file, whose matrices stay packed with the same values; a run's name in ./runs; `primer`;
    `hub:owner/name[@revision]`; `ollama:NAME[:TAG]`. A run means its best checkpoint; `runs/x@last` and
    `runs/x@step-000123` name others. adapter: the directory of an adapter in peft's layout to apply. LoRA updates are
    merged into the weights, or stay separate modules with `keep_adapters`. Raises CheckpointError if there is no such
    model or it is damaged, UsageError for a device that is missing. The model's `notes` list ignored content.

    The files are compared with the model's manifest or export report: weights by their size, with `verify` by their
    SHA-256. A model that has neither is not checked; `verify=True` refuses it, `verify=None` does not.

    quantize: read the weights in float32 and round them to int8 or int4 (`LanguageModel.quantize`); `dtype` applies to
    everything else.
    """
    if quantize is not None:
        plain = load(argument, device, "float32", adapter=adapter, verify=verify)
        plain = plain.with_float_weights("quantize")
        rounded = plain.quantized_in_place(make_quantization(plain.decoder, quantize))
        return rounded.to(dtype=choose_inference_dtype(dtype, plain.device))
    directory = find_model(str(argument))
    if is_adapter(directory):
        if adapter is not None:
            raise UsageError(f"{argument} is an adapter itself; name its base model")
        base = base_of(directory)
        return load(base, device, dtype, adapter=directory, keep_adapters=keep_adapters, verify=verify)
    chosen_device = choose_device(device)
    for part in [directory] if adapter is None else [directory, as_path("adapter", adapter)]:
        check_files(part, in_full=verify)
    name, chosen_dtype = printable_name(argument), choose_inference_dtype(dtype, chosen_device)
    if directory.is_file():
        model = load_gguf(directory, chosen_device, chosen_dtype, name=name)
    elif is_own(directory):
        model = load_model(directory, chosen_device, chosen_dtype, name=name, keep_adapters=keep_adapters)
    else:
        model = load_huggingface(directory, chosen_device, chosen_dtype, name=name)
    if adapter is not None:
        model = with_adapter(model, Path(adapter), keep_adapters)
    warnings = absurd_weights(model)
    return replace(model, notes=(*model.notes, *warnings)) if warnings else model


def absurd_weights(model: LanguageModel) -> list[str]:
    """A note if weights or scales are so large that the model must be damaged, even if its logits are finite.

    Only the first rows of each matrix are read, so that loading takes no longer.
    """
    absurd = []
    for path, values in chain(model.decoder.named_parameters(), model.decoder.named_buffers()):
        if values.is_floating_point() and values.numel():
            first = values.detach()[:ROWS_READ] if values.dim() > 1 else values.detach()
            largest = float(first.abs().amax())
            if ABSURD < largest < math.inf:
                absurd.append(f"'{path}' holds {largest:.0e}")
    if not absurd:
        return []
    more = f" and {len(absurd) - 1:,} more" if len(absurd) > 1 else ""
    return [f"the weights are absurd, so what the model computes is meaningless: {absurd[0]}{more}; get it again"]


def with_adapter(model: LanguageModel, directory: Path, keep_adapters: bool) -> LanguageModel:
    """The model with the LoRA updates of a directory in peft's layout, merged or as separate modules."""
    if not is_adapter(directory):
        raise CheckpointError(f"{directory} is not an adapter in peft's layout: {ADAPTER_CONFIG} is missing")
    changed = add_peft_adapter(model, directory)
    return changed if keep_adapters else replace(changed, parts=merge_adapters(changed.parts))
