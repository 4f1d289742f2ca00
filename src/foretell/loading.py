"""`load`: the model that an argument names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from foretell.adapters import merge_adapters
from foretell.convert.huggingface import load_huggingface
from foretell.convert.peft import add_peft_adapter, base_of, is_adapter
from foretell.device import DeviceName, DtypeName, choose_inference_dtype
from foretell.errors import CheckpointError, UsageError
from foretell.files import ADAPTER_CONFIG, CONFIG, MODEL_TYPE, printable_name, read_json
from foretell.finding import check_files, find_model
from foretell.language_model import LanguageModel, find_device, load_model
from foretell.model.quantized_linear import Scheme, make_quantization


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

    `argument` is, in this order: the directory of a run, of a saved model, of one in Hugging Face's layout or of a LoRA
    adapter in peft's; a run's name in ./runs; `primer`; `hub:owner/name[@revision]`. A run means its best checkpoint;
    `runs/x@last` and `runs/x@step-000123` name others. adapter: the directory of an adapter in peft's layout to apply.
    LoRA updates are merged into the weights, or stay modules of their own with `keep_adapters`. Raises CheckpointError
    where there is no such model or it is damaged, UsageError for a device that is missing. What was left out while
    reading is in the model's `notes`.

    The files are compared with the model's manifest or export report: weights by their size, with `verify` by their
    SHA-256. A model that has neither is not checked; `verify=True` refuses it, `verify=None` does not.

    quantize: round the weights to int8 or int4 (`LanguageModel.quantize`), read in float32; `dtype` is of all else.
    """
    if quantize is not None:
        plain = load(argument, device, "float32", adapter=adapter, verify=verify)
        plain.check_not_quantized("quantize")
        rounded = plain.quantized_in_place(make_quantization(plain.decoder, quantize))
        return rounded.to(dtype=choose_inference_dtype(dtype, plain.device))
    directory = find_model(str(argument))
    if is_adapter(directory):
        if adapter is not None:
            raise UsageError(f"{argument} is an adapter itself; name its base model")
        base = base_of(directory)
        return load(base, device, dtype, adapter=directory, keep_adapters=keep_adapters, verify=verify)
    chosen_device = find_device(device)
    for part in [directory] if adapter is None else [directory, Path(adapter)]:
        check_files(part, in_full=verify)
    name, chosen_dtype = printable_name(argument), choose_inference_dtype(dtype, chosen_device)
    if is_own(directory):
        model = load_model(directory, chosen_device, chosen_dtype, name=name, keep_adapters=keep_adapters)
    else:
        model = load_huggingface(directory, chosen_device, chosen_dtype, name=name)
    if adapter is None:
        return model
    return with_adapter(model, Path(adapter), keep_adapters)


def with_adapter(model: LanguageModel, directory: Path, keep_adapters: bool) -> LanguageModel:
    """The model with the LoRA updates of a directory in peft's layout, merged or kept apart."""
    if not is_adapter(directory):
        raise CheckpointError(f"{directory} is not an adapter in peft's layout: {ADAPTER_CONFIG} is missing")
    changed = add_peft_adapter(model, directory)
    return changed if keep_adapters else replace(changed, parts=merge_adapters(changed.parts))


def is_own(directory: Path) -> bool:
    """True for a directory in foretell's own layout, not in Hugging Face's."""
    return read_json(directory / CONFIG).get("model_type") in (MODEL_TYPE, None)
