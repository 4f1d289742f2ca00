"""`load`: the model that an argument names."""

from __future__ import annotations

from pathlib import Path

from foretell.convert.huggingface import load_huggingface
from foretell.device import DeviceName, DtypeName, choose_device, choose_inference_dtype
from foretell.files import CONFIG, MODEL_TYPE, TOKENIZER_FILE, WEIGHTS, printable_name, read_json
from foretell.finding import find_model
from foretell.language_model import LanguageModel, load_model
from foretell.runs.checkpoint import Checkpoint, is_checkpoint


def load(argument: str | Path, device: DeviceName = "auto", dtype: DtypeName = "auto") -> LanguageModel:
    """Load a model for inference.

    `argument` is, in this order: the directory of a run, of a saved model or of one in Hugging Face's layout; a run's
    name in ./runs; `primer`; `hub:owner/name[@revision]`. A run means its best checkpoint; `runs/x@last` and
    `runs/x@step-000123` name others. Raises CheckpointError where there is no such model or it is damaged, UsageError
    for a device that is missing. What was left out while reading is in the model's `notes`.
    """
    chosen_device = choose_device(device)
    directory = find_model(str(argument))
    if is_checkpoint(directory):
        Checkpoint(directory).verify(only=(WEIGHTS, CONFIG, TOKENIZER_FILE))
    read = load_model if is_own(directory) else load_huggingface
    return read(directory, chosen_device, choose_inference_dtype(dtype, chosen_device), name=printable_name(argument))


def is_own(directory: Path) -> bool:
    """True for a directory in foretell's own layout, not in Hugging Face's."""
    return read_json(directory / CONFIG).get("model_type") in (MODEL_TYPE, None)
