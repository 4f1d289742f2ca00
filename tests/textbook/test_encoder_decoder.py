"""Algorithms 5, 8, 9, 11, 12 and 15 against torch's own modules: attention, encoder, decoder, gradients, decoding."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.errors import ContextLengthError
from foretell.numerics.norms import EPSILON
from foretell.textbook.attention import (
    AttentionParameters,
    MultiHeadParameters,
    bidirectional_mask,
    cross_attention,
    mh_attention,
    unidirectional_mask,
)
from foretell.textbook.transformer import Hyperparameters, combine
from tests.textbook.encoder_decoder import (
    e_training,
    e_transformer,
    ed_inference,
    ed_loss_and_gradient,
    ed_training,
    ed_transformer,
    mask_tokens,
    masked_loss_and_gradient,
    random_e_parameters,
    random_ed_parameters,
)

SIZES = Hyperparameters(N_V=7, l_max=6, L=2, H=2, d_e=8, d_mlp=5)
MASK_TOKEN, BOS, EOS = 4, 5, 6
z, x = [3, 0, 2], [BOS, 1, 1, 0, EOS]
BOUND = 1e-12


@pytest.fixture(autouse=True)
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def rng(seed: int = 3) -> np.random.Generator:
    return np.random.default_rng(seed)


def varied(theta: Any) -> Any:
    """The parameters with noise, so that no bias is 0 and no norm's scale is 1."""
    noise = rng(7)
    return combine(lambda weight: weight + 0.3 * noise.normal(size=weight.shape), theta)


def stack(heads: tuple[AttentionParameters, ...], symbol: str) -> Tensor:
    """The weights of all heads, one below the other."""
    return torch.from_numpy(np.concatenate([getattr(head, symbol) for head in heads]))


def attention_state(W: MultiHeadParameters, path: str = "", packed: bool = True) -> dict[str, Tensor]:
    """The parameters of `torch.nn.MultiheadAttention`, in which query, key and value may be packed."""
    q, k, v = (stack(W.heads, f"W_{name}") for name in "qkv")
    state = {"in_proj_bias": torch.cat([stack(W.heads, f"b_{name}") for name in "qkv"])}
    state |= {"in_proj_weight": torch.cat([q, k, v])} if packed else dict(zip(SEPARATE, (q, k, v), strict=True))
    state |= {"out_proj.weight": torch.from_numpy(W.W_o), "out_proj.bias": torch.from_numpy(W.b_o)}
    return {path + name: value for name, value in state.items()}


SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
ENCODER_NAMES = {
    "linear1.weight": "W_mlp1",
    "linear1.bias": "b_mlp1",
    "linear2.weight": "W_mlp2",
    "linear2.bias": "b_mlp2",
    **{f"norm{n}.{kind}": f"{symbol}_{n}" for n in (1, 2) for kind, symbol in (("weight", "gamma"), ("bias", "beta"))},
}
DECODER_NAMES = {
    "linear1.weight": "W_mlp3",
    "linear1.bias": "b_mlp3",
    "linear2.weight": "W_mlp4",
    "linear2.bias": "b_mlp4",
    **{
        f"norm{n}.{kind}": f"{symbol}_{n + 2}"
        for n in (1, 2, 3)
        for kind, symbol in (("weight", "gamma"), ("bias", "beta"))
    },
}


def layer_state(layer: Any, path: str, names: dict[str, str]) -> dict[str, Tensor]:
    state = {path + name: torch.from_numpy(getattr(layer, symbol)) for name, symbol in names.items()}
    state |= attention_state(layer.attention, path + "self_attn.")
    return state | (attention_state(layer.cross_attention, path + "multihead_attn.") if names is DECODER_NAMES else {})


def named(theta: Any, *names: str) -> dict[str, Tensor]:
    return {name: torch.from_numpy(getattr(theta, name)) for name in names}


def ed_state(theta: Any) -> dict[str, Tensor]:
    """The parameters (or a gradient) of Algorithm 8 under the names of `TorchEncoderDecoder`."""
    state = named(theta, "W_e", "W_p", "W_u")
    for index, (first, second) in enumerate(zip(theta.encoder, theta.decoder, strict=True)):
        state |= layer_state(first, f"transformer.encoder.layers.{index}.", ENCODER_NAMES)
        state |= layer_state(second, f"transformer.decoder.layers.{index}.", DECODER_NAMES)
    return state


def e_state(theta: Any) -> dict[str, Tensor]:
    state = named(theta, "W_e", "W_p", "W_f", "b_f", "gamma", "beta", "W_u")
    for index, layer in enumerate(theta.layers):
        state |= layer_state(layer, f"encoder.layers.{index}.", ENCODER_NAMES)
    return state


class TorchEncoderDecoder(nn.Module):
    """`torch.nn.Transformer` without the norms at the end of both trunks, which the paper does not have."""

    def __init__(self, theta: Any):
        super().__init__()
        self.transformer = nn.Transformer(
            SIZES.d_e, SIZES.H, SIZES.L, SIZES.L, SIZES.d_mlp, 0.0, layer_norm_eps=EPSILON, batch_first=True
        )
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        state = ed_state(theta)
        self.W_e, self.W_p, self.W_u = (nn.Parameter(state[name]) for name in ("W_e", "W_p", "W_u"))
        self.load_state_dict(state)

    def forward(self, z: list[int], x: list[int]) -> Tensor:
        source, target = (self.W_e.T[ids] + self.W_p.T[: len(ids)] for ids in (z, x))
        mask = nn.Transformer.generate_square_subsequent_mask(len(x))
        return F.linear(self.transformer(source[None], target[None], tgt_mask=mask)[0], self.W_u)


class TorchEncoder(nn.Module):
    """`torch.nn.TransformerEncoder` with the projection and norm of masked language modelling."""

    def __init__(self, theta: Any):
        super().__init__()
        layer = nn.TransformerEncoderLayer(
            SIZES.d_e, SIZES.H, SIZES.d_mlp, 0.0, F.gelu, layer_norm_eps=EPSILON, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, SIZES.L, enable_nested_tensor=False)
        state = e_state(theta)
        self.W_e, self.W_p, self.W_u = (nn.Parameter(state[name]) for name in ("W_e", "W_p", "W_u"))
        self.W_f, self.b_f = nn.Parameter(state["W_f"]), nn.Parameter(state["b_f"])
        self.gamma, self.beta = nn.Parameter(state["gamma"]), nn.Parameter(state["beta"])
        self.load_state_dict(state)

    def forward(self, x: list[int]) -> Tensor:
        hidden = self.encoder((self.W_e.T[x] + self.W_p.T[: len(x)])[None])[0]
        projected = F.gelu(F.linear(hidden, self.W_f, self.b_f))
        return F.linear(F.layer_norm(projected, projected.shape[-1:], self.gamma, self.beta, EPSILON), self.W_u)


def largest_error(expected: dict[str, Tensor], got: dict[str, Tensor]) -> float:
    assert expected.keys() == got.keys()
    return max(float((expected[name] - got[name]).abs().max()) for name in expected)


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.grad for name, parameter in module.named_parameters() if parameter.grad is not None}


@pytest.mark.parametrize("masked", [True, False])
def test_multi_head_attention_is_torchs(masked):
    theta = varied(random_ed_parameters(SIZES, rng())).decoder[0].attention
    module = nn.MultiheadAttention(SIZES.d_e, SIZES.H, batch_first=True)
    module.load_state_dict(attention_state(theta))
    X = rng().normal(size=(SIZES.d_e, 5))
    rows, mask = torch.from_numpy(X.T)[None], unidirectional_mask(5) if masked else bidirectional_mask(5, 5)
    hidden = ~torch.from_numpy(mask.T)  # torch's mask has one row per query, and True hides
    expected = module(rows, rows, rows, attn_mask=hidden)[0][0].detach().numpy()
    assert pytest.approx(expected, abs=BOUND) == mh_attention(X, X, theta, mask).T


def test_cross_attention_to_an_encoder_of_another_width_is_torchs():
    numbers, d_z = rng(), 6
    shapes = ((2, 4), (2,), (2, d_z), (2,), (2, d_z), (2,))
    heads = tuple(AttentionParameters(*(numbers.normal(size=shape) for shape in shapes)) for _ in range(2))
    W = MultiHeadParameters(heads, numbers.normal(size=(4, 4)), numbers.normal(size=4))
    module = nn.MultiheadAttention(4, 2, kdim=d_z, vdim=d_z, batch_first=True)
    module.load_state_dict(attention_state(W, packed=False))
    X, Z = numbers.normal(size=(4, 5)), numbers.normal(size=(d_z, 3))
    target, source = torch.from_numpy(X.T)[None], torch.from_numpy(Z.T)[None]
    expected = module(target, source, source)[0][0].detach().numpy()
    assert pytest.approx(expected, abs=BOUND) == cross_attention(X, Z, W).T


def test_the_encoder_decoder_is_torchs():
    theta = varied(random_ed_parameters(SIZES, rng()))
    expected = TorchEncoderDecoder(theta)(z, x).softmax(-1).detach().numpy()
    assert pytest.approx(expected, abs=BOUND) == ed_transformer(z, x, theta).T


def test_the_encoder_is_torchs():
    theta = varied(random_e_parameters(SIZES, rng()))
    expected = TorchEncoder(theta)(x).softmax(-1).detach().numpy()
    assert pytest.approx(expected, abs=BOUND) == e_transformer(x, theta).T


def test_a_target_sees_its_past_and_the_whole_source_and_an_encoder_sees_everything():
    theta, encoder = random_ed_parameters(SIZES, rng()), random_e_parameters(SIZES, rng())
    before = ed_transformer(z, x, theta)
    assert (ed_transformer(z, [*x[:3], 2, 2], theta) != before).any(0).tolist() == [False] * 3 + [True] * 2
    assert (ed_transformer([3, 0, 1], x, theta) != before).any(0).all()
    assert (e_transformer([*x[:4], 0], encoder) != e_transformer(x, encoder)).any(0).all()


def test_the_gradient_of_encoder_decoder_training_is_autograds():
    theta = varied(random_ed_parameters(SIZES, rng()))
    module = TorchEncoderDecoder(theta)
    expected = F.cross_entropy(module(z, x)[:-1], torch.tensor(x[1:]), reduction="sum")
    expected.backward()
    loss, gradient = ed_loss_and_gradient(z, x, theta)
    assert loss == pytest.approx(expected.item(), rel=BOUND)
    assert largest_error(gradients(module), ed_state(gradient)) < BOUND


def test_the_gradient_of_masked_token_training_is_autograds():
    theta, masked, positions = varied(random_e_parameters(SIZES, rng())), [3, MASK_TOKEN, 1, MASK_TOKEN], [1, 3]
    whole, module = [3, 0, 1, 2], TorchEncoder(theta)
    expected = F.cross_entropy(module(masked)[positions], torch.tensor([0, 2]), reduction="sum")
    expected.backward()
    loss, gradient = masked_loss_and_gradient(whole, masked, positions, theta)
    assert loss == pytest.approx(expected.item(), rel=BOUND)
    assert largest_error(gradients(module), e_state(gradient)) < BOUND


def test_a_sequence_without_a_masked_token_has_no_loss_and_no_gradient():
    loss, gradient = masked_loss_and_gradient([0, 1], [0, 1], [], random_e_parameters(SIZES, rng()))
    assert loss == 0
    assert largest_error(e_state(gradient), e_state(combine(np.zeros_like, gradient))) == 0


def test_masking_replaces_the_share_of_tokens_that_is_asked_for():
    masked, positions = mask_tokens([0] * 10_000, MASK_TOKEN, 0.15, rng())
    assert len(positions) == pytest.approx(1500, abs=150)
    assert [t for t, v in enumerate(masked) if v == MASK_TOKEN] == positions


def test_masked_token_training_learns_to_fill_in_blanks():
    sequences, theta = [[0, 1, 2, 3], [3, 2, 1, 0]], random_e_parameters(dataclasses.replace(SIZES, L=1), rng())
    masking = partial(mask_tokens, mask_token=MASK_TOKEN, p_mask=0.3, rng=rng())
    trained = e_training(sequences, theta, N_epochs=150, eta=0.03, masking=masking)
    assert loss_of_blanks(sequences, trained) < 0.5 * loss_of_blanks(sequences, theta)


def loss_of_blanks(sequences: list[list[int]], theta: Any) -> float:
    """The sum of the losses of each token when it alone is masked."""
    blanks = [(x, [*x[:t], MASK_TOKEN, *x[t + 1 :]], [t]) for x in sequences for t in range(len(x))]
    return sum(masked_loss_and_gradient(*blank, theta)[0] for blank in blanks)


@pytest.fixture(scope="module")
def translator():
    """Algorithm 8 trained on two pairs: the target is the source in reverse."""
    pairs = [([0, 1, 2], [BOS, 2, 1, 0, EOS]), ([2, 1, 3], [BOS, 3, 1, 2, EOS])]
    return ed_training(pairs, random_ed_parameters(SIZES, rng()), N_epochs=60, eta=0.06)


def test_inference_translates_from_bos_to_eos_and_is_torchs_greedy_decoding(translator):
    model = partial(ed_transformer, theta=translator)
    assert ed_inference([0, 1, 2], model, (BOS, EOS), 0.01, rng()) == [BOS, 2, 1, 0, EOS]
    module, decoded = TorchEncoderDecoder(translator), [BOS]
    while decoded[-1] != EOS:
        decoded.append(int(module([2, 1, 3], decoded)[-1].argmax()))
    assert ed_inference([2, 1, 3], model, (BOS, EOS), 0.01, rng()) == decoded == [BOS, 3, 1, 2, EOS]


def test_inference_without_an_end_stops_where_the_context_is_full():
    def never_ends(z, x):
        if len(x) > 5:
            raise ContextLengthError("position 5 does not fit a context of 5")
        return np.eye(SIZES.N_V)[:, [0] * len(x)]

    with pytest.raises(ContextLengthError):
        ed_inference(z, never_ends, (BOS, EOS), 1.0, rng())
