"""`load`: any MODEL argument to a LanguageModel; `Start`: a model that a training starts from."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from foretell.config import ModelConfig
from foretell.convert.huggingface import load_huggingface
from foretell.convert.peft import add_peft_adapter, base_of, is_adapter
from foretell.device import DeviceName, DtypeName, choose_device, choose_inference_dtype
from foretell.errors import CheckpointError, UsageError, as_path
from foretell.files import ADAPTER_CONFIG, printable_name
from foretell.finding import check_files, find_model
from foretell.language_model import LanguageModel, load_model
from foretell.model.decoder import Decoder
from foretell.model.init import empty_decoder
from foretell.model.quantized_linear import Scheme, make_quantization
from foretell.saved_model.config_file import is_own
from foretell.saved_model.part import merge_adapters
from foretell.text import Tokenizer

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
    in peft's; a run's name in ./runs; `primer`; `hub:owner/name[@revision]`. A run means its best checkpoint;
    `runs/x@last` and `runs/x@step-000123` name others. adapter: the directory of an adapter in peft's layout to apply.
    LoRA updates are merged into the weights, or stay separate modules with `keep_adapters`. Raises CheckpointError if
    there is no such model or it is damaged, UsageError for a device that is missing. The model's `notes` list ignored
    content.

    The files are compared with the model's manifest or export report: weights by their size, with `verify` by their
    SHA-256. A model that has neither is not checked; `verify=True` refuses it, `verify=None` does not.

    quantize: read the weights in float32 and round them to int8 or int4 (`LanguageModel.quantize`); `dtype` applies to
    everything else.
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
    chosen_device = choose_device(device)
    for part in [directory] if adapter is None else [directory, as_path("adapter", adapter)]:
        check_files(part, in_full=verify)
    name, chosen_dtype = printable_name(argument), choose_inference_dtype(dtype, chosen_device)
    if is_own(directory):
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


@dataclass(frozen=True)
class Start:
    """A trained model that a training starts from, and the argument that named it."""

    argument: str
    model: LanguageModel

    @property
    def name(self) -> str:
        return Path(self.argument).name

    @property
    def config(self) -> ModelConfig:
        """The model's configuration, without dropout."""
        return self.model.decoder.config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.tokenizer

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of its weights in float32, in hex."""
        return self.model.weights_digest()

    def decoder(self, config: ModelConfig) -> Decoder:
        """A decoder for training with the model's weights; `config` may have another dropout, or another length of the
        context if positions have no weights."""
        decoder = empty_decoder(config)
        weights = {path: weight.detach().clone() for path, weight in self.model.decoder.named_parameters()}
        decoder.load_state_dict(weights, assign=True)
        return decoder.train()

    def notes(self) -> list[str]:
        """A line about the model, and the notes from loading it."""
        return [f"from        {self.name}: its weights, shape and tokenizer", *self.model.notes]

    def record(self) -> dict[str, Any]:
        return {"model": self.argument, "weights_sha256": self.digest}


def load_start(argument: str | Path) -> Start:
    """Load any MODEL in float32; its weights are verified if it has a manifest. Raises the errors of `load`."""
    model = load(argument, "cpu", "float32", verify=None)
    model.check_not_quantized("train")
    return Start(str(argument), model)


def find_start(record: dict[str, Any] | None, run: Path) -> Start | None:
    """The model in a run.json's record; None without a record. Raises `CheckpointError` if its weights have changed."""
    if record is None:
        return None
    start = load_start(record["model"])
    if start.digest != record["weights_sha256"]:
        raise CheckpointError(
            f"{run} was started from {start.argument}, which has other weights now; start again with another --out"
        )
    return start
