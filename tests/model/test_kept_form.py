"""A decoder is prepared once: its form is kept until something in the decoder changes, or the decoder is dropped."""

from __future__ import annotations

import gc
from collections.abc import Callable
from copy import deepcopy
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

from foretell.config.sampling import SamplingConfig
from foretell.data.batch import make_batch
from foretell.generation.batch_generation import generate
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder
from foretell.model.dispatch import Use, choose_kernels
from foretell.model.init import make_decoder
from foretell.model.kernels import fast_decoder, kept_form, prepare_for_generation
from foretell.model.lora import LoRAConfig, add_lora, lora_layers, merge_lora
from foretell.model.norm import RMSNorm
from foretell.model.quantize_decoder import make_quantization, quantize_decoder
from foretell.model.surgery import replace
from foretell.training.objective import Objective
from tests.model.conftest import CONFIGURATIONS, TINY, ModelConfig, make_section
from tests.toy import KeepingSampler

IDS = torch.tensor([[1, 2, 3, 4, 5]])


def make(name: str, seed: int = 1) -> Decoder:
    return make_decoder(make_section(ModelConfig, {**TINY, "context_length": 64, **CONFIGURATIONS[name]}), seed).eval()


@pytest.fixture(params=["oneDNN", "numba"], autouse=True)
def _kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels that prepare a decoder, compiled before."""
    monkeypatch.setenv("FORETELL_KERNELS", "wait")
    if request.param == "oneDNN":
        monkeypatch.setattr(fast_decoder, "has_numba", lambda: False)


def generated(decoder: Decoder) -> Tensor:
    """The logits of each step of a generation."""
    sampler = KeepingSampler(SamplingConfig(temperature=0))
    list(generate(decoder, [Sequence([1, 2, 3])], sampler, fast_decoder.MIN_TOKENS))
    return torch.cat(sampler.logits)


def weight(decoder: Decoder) -> Tensor:
    return decoder.get_parameter("trunk.blocks.1.feedforward.up.weight")


def edit(decoder: Decoder) -> None:
    with torch.no_grad():
        weight(decoder).mul_(2)


def assign_data(decoder: Decoder) -> None:
    weight(decoder).data = weight(decoder).data * 2


def assign_parameter(decoder: Decoder) -> None:
    layer = decoder.get_submodule("trunk.blocks.1.feedforward.up")
    layer.weight = nn.Parameter(weight(decoder).detach() * 2)


def load_state(decoder: Decoder, assign: bool = False) -> None:
    decoder.load_state_dict(make("llama", seed=2).state_dict(), assign=assign)


def swap(decoder: Decoder) -> None:
    def other(layer: nn.Module) -> nn.Module:
        assert isinstance(layer, nn.Linear)
        return nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        replace(decoder, "trunk.blocks.0.attention.output", other)


def adapt(decoder: Decoder) -> None:
    add_lora(decoder, LoRAConfig(rank=2))
    with torch.no_grad():
        for layer in lora_layers(decoder).values():
            layer.lora_b.fill_(0.5)


def adapt_and_merge(decoder: Decoder) -> None:
    adapt(decoder)
    generated(decoder)
    merge_lora(decoder)


def train(decoder: Decoder) -> None:
    choose_kernels(decoder, Use(torch.device("cpu"), torch.float32, 64, is_training=True))
    objective = Objective(decoder).train()
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=0.1)
    objective(make_batch(IDS.numpy())).sum.backward()
    optimizer.step()
    decoder.eval()


def quantize(decoder: Decoder) -> None:
    quantize_decoder(decoder, make_quantization(decoder, "int8"))


def set_attribute(decoder: Decoder) -> None:
    norm = decoder.trunk.norm
    assert isinstance(norm, RMSNorm)
    norm.eps = 0.5


CHANGES: dict[str, Callable[[Decoder], object]] = {
    "a weight is edited in place": edit,
    "data is assigned": assign_data,
    "a parameter is assigned": assign_parameter,
    "a state is loaded": load_state,
    "a state is assigned": lambda decoder: load_state(decoder, assign=True),
    "a module is replaced": swap,
    "an adapter is added": adapt,
    "an adapter is merged": adapt_and_merge,
    "a step of training": train,
    "weights become int8": quantize,
    "another precision": lambda decoder: decoder.to(torch.bfloat16),
    "an attribute is set": set_attribute,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_changed_decoder_generates_like_a_new_one(change: Callable[[Decoder], object]) -> None:
    decoder = make("llama")
    before = generated(decoder)
    change(decoder)
    after = generated(decoder)
    assert not torch.equal(after, before)
    assert torch.equal(after, generated(deepcopy(decoder)))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_an_unchanged_decoder_is_prepared_once(name: str) -> None:
    decoder = make(name)
    form = prepare_for_generation(decoder)
    first, second = generated(decoder), generated(decoder)
    assert prepare_for_generation(decoder) is form
    assert torch.equal(first, second)


def test_the_form_of_a_decoder_with_hooks_is_not_kept() -> None:
    decoder, calls = make("llama"), list[str]()
    expected, form = generated(decoder), prepare_for_generation(decoder)
    up = decoder.get_submodule("trunk.blocks.0.feedforward.up")
    handle = up.register_forward_hook(lambda *_: calls.append("up"))
    assert prepare_for_generation(decoder) is not form
    generated(decoder)
    assert calls
    handle.remove()
    calls.clear()
    assert prepare_for_generation(decoder) is form
    assert torch.equal(generated(decoder), expected)
    assert not calls


def test_a_form_lives_as_long_as_its_decoder() -> None:
    decoder = make("llama")
    generated(decoder)
    form = ref(prepare_for_generation(decoder))
    assert form() is not None
    del decoder
    gc.collect()
    assert form() is None


def test_the_form_of_a_changed_decoder_is_released_before_the_next_one_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = make("llama")
    form = ref(prepare_for_generation(decoder))
    edit(decoder)
    made, forms = kept_form.kept_form, list[object]()

    def watched(decoder: Decoder, make: Callable[[Decoder], Decoder]) -> Decoder:
        def recorded(decoder: Decoder) -> Decoder:
            gc.collect()
            forms.append(form())
            return make(decoder)

        return made(decoder, recorded)

    monkeypatch.setattr(kept_form, "kept_form", watched)
    prepare_for_generation(decoder)
    assert forms == [None]
