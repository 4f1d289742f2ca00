"""foretell: a decoder (GPT) that you can see through.

    import foretell

    model = foretell.train("my.txt", steps=500)
    model = foretell.load("runs/my")                     # or "primer", which is part of the package
    print(foretell.generate(model, "Once upon a time"))
    logits = model(model.encode("Once upon a time"))     # (1, T, V)

The public names are those in `__all__`; docs/python.md shows each of them. They are imported when they are first used,
so that `import foretell` takes no time. The import prepares that of torch (`openmp.py`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from foretell import openmp

if TYPE_CHECKING:
    from foretell.config import Config, DataConfig, ModelConfig, SamplingConfig, TokenizerConfig, TrainingConfig
    from foretell.data.batch import Batch, make_batch
    from foretell.errors import (
        CheckpointError,
        ConfigError,
        ContextLengthError,
        DataError,
        DivergedError,
        ForetellError,
        Interrupted,
        LessonError,
        OutputError,
        PeerError,
        TokenizerError,
        TrainingError,
        UsageError,
    )
    from foretell.finetuning.label_attribution import attribute_label
    from foretell.finetuning.predict import predict
    from foretell.finetuning.tune import finetune
    from foretell.inference.chat import Chat
    from foretell.inference.completion import Completion, generate, stream
    from foretell.inference.query import embed, next_tokens, score
    from foretell.insight.attribution.ablation import ablate
    from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution
    from foretell.insight.attribution.head_patterns import head_patterns
    from foretell.insight.attribution.logit_lens import logit_lens
    from foretell.insight.explain.explanation import explain
    from foretell.insight.page.write_page import write_page
    from foretell.insight.trace import Trace, trace_names
    from foretell.language_model import LanguageModel
    from foretell.loading import load
    from foretell.model.cache import KVCache
    from foretell.model.decoder import Decoder
    from foretell.model.init import make_decoder
    from foretell.model.lora import LoRAConfig, add_lora
    from foretell.model.presets import PRESETS
    from foretell.model.presets import preset_config as preset
    from foretell.pretraining.train import train
    from foretell.session.display import LiveReporter, PlainReporter
    from foretell.session.notebook import NotebookReporter
    from foretell.session.reporter import Reporter, TensorBoardReporter
    from foretell.text import Tokenizer
    from foretell.training.objective import Objective
    from foretell.training.optimizer import make_optimizer
    from foretell.training.step import training_step

    __version__: str

# module -> its public names; a name that is another one there is written as public=name
_PUBLIC = {
    "config": "Config DataConfig ModelConfig SamplingConfig TokenizerConfig TrainingConfig",
    "data.batch": "Batch make_batch",
    "errors": (
        "CheckpointError ConfigError ContextLengthError DataError DivergedError ForetellError Interrupted LessonError "
        "OutputError PeerError TokenizerError TrainingError UsageError"
    ),
    "finetuning.label_attribution": "attribute_label",
    "finetuning.predict": "predict",
    "finetuning.tune": "finetune",
    "inference.chat": "Chat",
    "inference.completion": "Completion generate stream",
    "inference.query": "embed next_tokens score",
    "insight.attribution.ablation": "ablate",
    "insight.attribution.direct_logit_attribution": "direct_logit_attribution",
    "insight.attribution.head_patterns": "head_patterns",
    "insight.attribution.logit_lens": "logit_lens",
    "insight.explain.explanation": "explain",
    "insight.page.write_page": "write_page",
    "insight.trace": "Trace trace_names",
    "language_model": "LanguageModel",
    "loading": "load",
    "model.cache": "KVCache",
    "model.decoder": "Decoder",
    "model.init": "make_decoder",
    "model.lora": "LoRAConfig add_lora",
    "model.presets": "PRESETS preset=preset_config",
    "pretraining.train": "train",
    "session.display": "LiveReporter PlainReporter",
    "session.notebook": "NotebookReporter",
    "session.reporter": "Reporter TensorBoardReporter",
    "text": "Tokenizer",
    "training.objective": "Objective",
    "training.optimizer": "make_optimizer",
    "training.step": "training_step",
}
_HOMES = {
    entry.partition("=")[0]: (module, entry.rpartition("=")[2])
    for module, entries in _PUBLIC.items()
    for entry in entries.split()
}
__all__ = [  # noqa: RUF022 - sorted as Python sorts
    "Batch",
    "Chat",
    "CheckpointError",
    "Completion",
    "Config",
    "ConfigError",
    "ContextLengthError",
    "DataConfig",
    "DataError",
    "Decoder",
    "DivergedError",
    "ForetellError",
    "Interrupted",
    "KVCache",
    "LanguageModel",
    "LessonError",
    "LiveReporter",
    "LoRAConfig",
    "ModelConfig",
    "NotebookReporter",
    "Objective",
    "OutputError",
    "PRESETS",
    "PeerError",
    "PlainReporter",
    "Reporter",
    "SamplingConfig",
    "TensorBoardReporter",
    "Tokenizer",
    "TokenizerConfig",
    "TokenizerError",
    "Trace",
    "TrainingConfig",
    "TrainingError",
    "UsageError",
    "ablate",
    "add_lora",
    "attribute_label",
    "direct_logit_attribution",
    "embed",
    "explain",
    "finetune",
    "generate",
    "head_patterns",
    "load",
    "logit_lens",
    "make_batch",
    "make_decoder",
    "make_optimizer",
    "next_tokens",
    "predict",
    "preset",
    "score",
    "stream",
    "trace_names",
    "train",
    "training_step",
    "write_page",
]
_waits_passively = openmp.install()


def __getattr__(name: str) -> Any:
    global _waits_passively
    if name == "__version__":
        from importlib.metadata import version

        return version("foretell")
    if name not in _HOMES:
        raise AttributeError(f"module 'foretell' has no attribute '{name}'")
    module, attribute = _HOMES[name]
    if name in ("load", "train", "finetune") and not _waits_passively:
        openmp.logger.warning(openmp.TOO_LATE)
        _waits_passively = True
    return getattr(importlib.import_module(f"foretell.{module}"), attribute)


def __dir__() -> list[str]:
    return [*__all__, "__version__", "__doc__", "__file__", "__name__", "__path__"]
