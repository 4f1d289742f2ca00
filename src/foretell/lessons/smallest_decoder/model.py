"""The smallest decoder as a member of the family: one layer, one head, and little else."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foretell.config import ModelConfig, make_section
from foretell.language_model import LanguageModel
from foretell.lessons.smallest_decoder import printed
from foretell.model.decoder import Decoder
from foretell.text import vocabulary_tokenizer

WIDTH, CONTEXT = 3, 5
LAYER = "trunk.blocks.0.attention"
Weights = dict[str, Tensor]


def draw_weights() -> Weights:
    """The weights as the text draws them: the seed is set again before each of three groups of layers.

    In float64: one printed probability is 0.22630851 before rounding, too near to a tie for float32.
    """
    groups = [
        {"embed.token": lambda: nn.Embedding(6, WIDTH), "embed.position": lambda: nn.Embedding(CONTEXT, WIDTH)},
        {f"{LAYER}.{name}": lambda: nn.Linear(WIDTH, WIDTH, bias=False) for name in ("query", "key", "value")},
        {"head": lambda: nn.Linear(WIDTH, 6)},
    ]
    weights: Weights = {}
    with torch.random.fork_rng(devices=[]):
        for group in groups:
            torch.manual_seed(printed.SEED)
            for path, make in group.items():
                for name, weight in make().named_parameters():
                    weights[f"{path}.{name}"] = weight.detach().double()
    return weights


def config(context_length: int = CONTEXT) -> ModelConfig:
    """No norm, no feed-forward layer, no output projection, no residual."""
    return make_section(
        ModelConfig,
        {
            "num_layers": 1,
            "num_heads": 1,
            "width": WIDTH,
            "context_length": context_length,
            "vocab_size": len(printed.VOCABULARY),
            "norm": "none",
            "feedforward": "none",
            "attention_output": False,
            "attention_residual": False,
            "bias": {"attention": False, "head": True},
            "tie_embeddings": False,
        },
    )


def make_model(weights: Weights, context_length: int = CONTEXT) -> LanguageModel:
    """The decoder with these weights. More context than 5 makes room for rows in which other texts, or padding, stand.

    The positions that are added are vectors of zeros; no token of the sentence stands there.
    """
    decoder = Decoder(config(context_length)).double().eval()
    position = weights["embed.position.weight"]
    longer = nn.functional.pad(position, (0, 0, 0, context_length - len(position)))
    decoder.load_state_dict(weights | {"embed.position.weight": longer})
    return LanguageModel(decoder, vocabulary_tokenizer(printed.VOCABULARY), "the smallest decoder")
