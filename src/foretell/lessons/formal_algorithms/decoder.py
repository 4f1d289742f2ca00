"""The decoder as the listing has it and as GPT-2 has it, its training and its use, on a few small weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from foretell.config import ModelConfig, SamplingConfig, make_section
from foretell.generation.sampling import Sampler
from foretell.lessons.formal_algorithms.printed import IDS, P_CAT
from foretell.model.decoder import Decoder
from foretell.textbook.arrays import Matrix, Vector
from foretell.textbook.chain_rule import conditional_log_probability
from foretell.textbook.inference import d_inference, tempered
from foretell.textbook.parameters import DTransformerParameters, Hyperparameters, LayerParameters, random_parameters
from foretell.textbook.training import sgd_step
from foretell.textbook.transformer import d_transformer_gpt2, d_transformer_overwriting

SIZES = Hyperparameters(N_V=5, l_max=8, L=1, H=2, d_e=4, d_mlp=8)
SEED = 3
x = [3, 0, 4, 1]
ETA, STEPS = 0.1, 40
TEMPERATURES = (0.5, 1.0, 2.0)
N_V = 12_000  # a vocabulary that holds the slides' ids


@dataclass(frozen=True)
class DecoderFacts:
    """What comes out of the algorithms."""

    overwriting: Matrix  # P, one row a position, by the listing that overwrites X
    residual: Matrix  # by GPT-2's residual
    model: Matrix  # by the model, with the same weights
    loss_of_cat: float
    cross_entropy_of_cat: float  # with a one-hot target
    losses: list[float]  # of gradient descent
    tempered: list[Vector]
    sampler: list[Vector]  # the same, by the filter that generation uses
    generated: list[int]


def decoder_facts() -> DecoderFacts:
    """All of it."""
    theta = random_parameters(SIZES, np.random.default_rng(SEED))
    last = d_transformer_gpt2(x, theta)[:, -1]
    return DecoderFacts(
        d_transformer_overwriting(x, theta).T,
        d_transformer_gpt2(x, theta).T,
        model_probabilities(theta),
        loss_of_cat(),
        one_hot_cross_entropy(),
        descend(theta),
        [tempered(last, tau) for tau in TEMPERATURES],
        [sampler_probabilities(last, tau) for tau in TEMPERATURES],
        d_inference(x, partial(d_transformer_gpt2, theta=theta), 4, 1.0, np.random.default_rng(0)),
    )


@torch.inference_mode()
def model_probabilities(theta: DTransformerParameters) -> Matrix:
    """The model's P (T, V), with the textbook's weights under its own names."""
    decoder = Decoder(config()).double()
    decoder.load_state_dict({path: torch.from_numpy(weight.copy()) for path, weight in model_weights(theta).items()})
    return decoder(torch.tensor([x]))[0].softmax(-1).numpy()


def config() -> ModelConfig:
    """The listing's shape: norm first, exact GELU, an unembedding of its own."""
    return make_section(
        ModelConfig,
        {
            "num_layers": SIZES.L,
            "num_heads": SIZES.H,
            "width": SIZES.d_e,
            "feedforward_width": SIZES.d_mlp,
            "context_length": SIZES.l_max,
            "vocab_size": SIZES.N_V,
            "activation": "gelu_erf",
            "tie_embeddings": False,
        },
    )


def model_weights(theta: DTransformerParameters) -> dict[str, Matrix]:
    """The parameters theta under the model's module paths."""
    weights = {
        "embed.token.weight": theta.W_e.T,
        "embed.position.weight": theta.W_p.T,
        "trunk.norm.weight": theta.gamma,
        "trunk.norm.bias": theta.beta,
        "head.weight": theta.W_u,
    }
    for number, layer in enumerate(theta.layers):
        weights |= {f"trunk.blocks.{number}.{name}": weight for name, weight in layer_weights(layer).items()}
    return weights


def layer_weights(layer: LayerParameters) -> dict[str, Matrix]:
    """One layer's weights; the heads' rows stand below each other."""
    heads = layer.attention.heads
    projections = {"query": ("W_q", "b_q"), "key": ("W_k", "b_k"), "value": ("W_v", "b_v")}
    stacked = {
        f"attention.{name}.{kind}": np.concatenate([getattr(head, symbol) for head in heads])
        for name, symbols in projections.items()
        for kind, symbol in zip(("weight", "bias"), symbols, strict=True)
    }
    return stacked | {
        "attention.output.weight": layer.attention.W_o,
        "attention.output.bias": layer.attention.b_o,
        "attention_norm.weight": layer.gamma_1,
        "attention_norm.bias": layer.beta_1,
        "feedforward_norm.weight": layer.gamma_2,
        "feedforward_norm.bias": layer.beta_2,
        "feedforward.up.weight": layer.W_mlp1,
        "feedforward.up.bias": layer.b_mlp1,
        "feedforward.down.weight": layer.W_mlp2,
        "feedforward.down.bias": layer.b_mlp2,
    }


def probabilities_of_cat() -> Matrix:
    """P (N_V, 1) after The: the printed probability for cat, the rest shared out evenly."""
    P = np.full((N_V, 1), (1 - P_CAT) / (N_V - 1))
    P[IDS[1]] = P_CAT
    return P


def loss_of_cat() -> float:
    """-log P[x[2], 1], the loss at t = 1."""
    return -conditional_log_probability(probabilities_of_cat(), IDS[:2])


def one_hot_cross_entropy() -> float:
    """-sum over k of y[k] log P[k, 1], with y 1 for cat and 0 for all others."""
    y = np.zeros(N_V)
    y[IDS[1]] = 1
    return -float(y @ np.log(probabilities_of_cat()[:, 0]))


def descend(theta: DTransformerParameters) -> list[float]:
    """The loss before each step of gradient descent on one sequence."""
    losses = []
    for _ in range(STEPS):
        loss, theta = sgd_step(x, theta, ETA)
        losses.append(loss)
    return losses


def sampler_probabilities(p: Vector, temperature: float) -> Vector:
    """What generation draws from at this temperature."""
    logits = torch.from_numpy(np.log(p))[None]
    for apply in Sampler(make_section(SamplingConfig, {"temperature": temperature, "top_p": 1.0})).filters.values():
        logits = apply(logits, [[]])
    return logits.softmax(-1)[0].numpy()
