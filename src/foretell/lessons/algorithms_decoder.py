"""The decoder of the formal algorithms: as listed in the source, in GPT-2's form, and in foretell's model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.generation.filters import Prefix
from foretell.generation.sampling import Sampler
from foretell.model.decoder import Decoder
from foretell.numerics.activations import gelu_erf
from foretell.textbook import transformer
from foretell.textbook.attention import Vector, layer_norm_per_column
from foretell.textbook.training import sgd_step

SIZES = transformer.Hyperparameters(N_V=5, l_max=8, L=2, H=2, d_e=4, d_mlp=8)
SEED = 3
x = [3, 0, 4, 1]
ETA, STEPS = 0.1, 40
TEMPERATURES = (0.5, 1.0, 2.0)


def draw_parameters() -> transformer.DTransformerParameters:
    """Random parameters without zero biases and identity norms, as in a trained model."""
    rng = np.random.default_rng(SEED)
    theta = transformer.random_parameters(SIZES, rng)
    return transformer.combine(lambda weight: weight + 0.3 * rng.normal(size=weight.shape), theta)


def norm_in_loop(x: Sequence[int], theta: transformer.DTransformerParameters) -> np.ndarray:
    """P (N_V, l) by the listing as the source prints it: it normalises a third time at the end of every layer."""
    X = transformer.embed(x, theta.W_e, theta.W_p)
    for layer in theta.layers:
        X = layer_norm_per_column(X, layer.gamma_1, layer.beta_1)
        X = X + transformer.masked_self_attention(X, layer)
        X = layer_norm_per_column(X, layer.gamma_2, layer.beta_2)
        X = X + transformer.mlp(X, layer)
        X = layer_norm_per_column(X, theta.gamma, theta.beta)
    return transformer.unembedding_per_column(X, theta.W_u)


def layer_means() -> dict[str, float]:
    """The largest mean of a token's vector after one layer of BERT (norm last) and of GPT (norm first)."""
    theta = transformer.random_parameters(SIZES, np.random.default_rng(SEED))  # with plain norms
    layer, X = theta.layers[0], transformer.embed(x, theta.W_e, theta.W_p)
    bert = transformer.encoder_layer_states(X, layer, gelu_erf)[-1]
    attended = X + transformer.masked_self_attention(layer_norm_per_column(X, layer.gamma_1, layer.beta_1), layer)
    gpt = attended + transformer.mlp(layer_norm_per_column(attended, layer.gamma_2, layer.beta_2), layer)
    return {name: float(np.abs(Y.mean(axis=0)).max()) for name, Y in (("BERT", bert), ("GPT", gpt))}


@torch.inference_mode()
def model_probabilities(theta: transformer.DTransformerParameters) -> np.ndarray:
    """The model's P (T, V), with the textbook's weights."""
    decoder = Decoder(algorithms_config()).double()
    decoder.load_state_dict({path: torch.from_numpy(weight.copy()) for path, weight in model_weights(theta).items()})
    return decoder(torch.tensor([x]))[0].softmax(-1).numpy()


def algorithms_config() -> ModelConfig:
    """The listing's shape: pre-norm, exact GELU, untied unembedding."""
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


def model_weights(theta: transformer.DTransformerParameters) -> dict[str, np.ndarray]:
    """The parameters theta by module path: embeddings with one row per token, the weights of all heads stacked."""
    weights = {
        "embed.token.weight": theta.W_e.T,
        "embed.position.weight": theta.W_p.T,
        "trunk.norm.weight": theta.gamma,
        "trunk.norm.bias": theta.beta,
        "head.weight": theta.W_u,
    }
    for index, layer in enumerate(theta.layers):
        heads, path = layer.attention.heads, f"trunk.blocks.{index}"
        for name, letter in {"query": "q", "key": "k", "value": "v"}.items():
            for kind, symbol in {"weight": "W", "bias": "b"}.items():
                parts = [getattr(head, f"{symbol}_{letter}") for head in heads]
                weights[f"{path}.attention.{name}.{kind}"] = np.concatenate(parts)
        for name, (weight, bias) in {
            "attention.output": (layer.attention.W_o, layer.attention.b_o),
            "attention_norm": (layer.gamma_1, layer.beta_1),
            "feedforward_norm": (layer.gamma_2, layer.beta_2),
            "feedforward.up": (layer.W_mlp1, layer.b_mlp1),
            "feedforward.down": (layer.W_mlp2, layer.b_mlp2),
        }.items():
            weights |= {f"{path}.{name}.weight": weight, f"{path}.{name}.bias": bias}
    return weights


def descend(theta: transformer.DTransformerParameters) -> list[float]:
    """The loss before each step of gradient descent on one sequence."""
    losses = []
    for _ in range(STEPS):
        loss, theta = sgd_step(x, theta, ETA)
        losses.append(loss)
    return losses


def sampler_probabilities(p: Vector, temperature: float) -> Vector:
    """The distribution that generation draws from at this temperature."""
    logits = torch.from_numpy(np.log(p))[None]
    for apply in Sampler(make_section(SamplingConfig, {"temperature": temperature, "top_p": 1.0})).filters.values():
        logits = apply(logits, [Prefix([])])
    return logits.softmax(-1)[0].numpy()
