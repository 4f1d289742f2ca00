"""Models of random weights that are small enough for any test, and what several packages watch them with."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from foretell.config.sampling import SamplingConfig
from foretell.generation.filters import Prefixes
from foretell.generation.sampling import Sampler
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.session.reporter import Reporter
from foretell.text import Tokenizer, train_tokenizer

Model = TypeVar("Model", bound=nn.Module)

TINY: dict[str, Any] = {"num_layers": 2, "num_heads": 2, "width": 8, "context_length": 12, "vocab_size": 11}
LLAMA: dict[str, Any] = {
    "position": "rotary",
    "norm": "rmsnorm",
    "feedforward": "gated",
    "activation": "silu",
    "bias": False,
}
GEMMA3: dict[str, Any] = {
    **LLAMA,
    "norm": "rmsnorm_offset",
    "norm_placement": "sandwich",
    "qk_norm": True,
    "activation": "gelu_tanh",
    "window": (3, None),
    "local_rope_theta": 50.0,
    "query_pre_attn_scalar": 3,
    "scale_embeddings": True,
}


def make_toy(tokenizer: Tokenizer | None = None, seed: int = 3, name: str = "model", **changes: Any) -> LanguageModel:
    """The size toy with changes to its shape, on bytes if there is no tokenizer."""
    tokenizer = tokenizer or train_tokenizer("bytes", ["any text"])
    config = preset_config("toy", vocab_size=tokenizer.vocab_size, **{"init": "torch", **changes})
    return LanguageModel(make_decoder(config, seed=seed).eval(), tokenizer, name)


def with_large_weights(model: Model, deviation: float = 0.5, seed: int = 0) -> Model:
    """Replace the weights by ones so large that every part of the model changes the logits.

    With the initial standard deviation of 0.02, attention is nearly uniform and biases are nearly zero, so many
    mistakes would stay below the tolerances.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            parameter.copy_(deviation * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
            if path.endswith("norm.weight"):
                parameter.add_(1)
    return model.eval()


def with_noise(model: Model, deviation: float) -> Model:
    """Add random numbers to all weights."""
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in model.parameters():
            parameter.add_(deviation * torch.randn_like(parameter))
    return model.eval()


class KeepingSampler(Sampler):
    """Keeps the logits of every token."""

    def __init__(self, config: SamplingConfig):
        super().__init__(config)
        self.logits: list[Tensor] = []

    def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
        self.logits.append(logits.clone())
        return super().__call__(logits, prefixes, samples)


class StoppedAt(Reporter):
    """Stops a training as Ctrl-C would, at the metrics of a step or the first ones after it."""

    def __init__(self, step: int):
        self.step = step

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        if metrics["step"] >= self.step:
            raise KeyboardInterrupt
