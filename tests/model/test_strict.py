"""With strict layers, a token's logits have the same bits however it is read."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.errors import UsageError
from foretell.generation.batch_generation import make_scheduler, run
from foretell.generation.filters import Prefixes
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Rules, Sequence
from foretell.generation.speculation import PromptLookup
from foretell.insight.trace import Trace
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.kernels import strict
from foretell.model.kernels.strict import strict_copy
from foretell.model.lora import LoRAConfig, add_lora
from foretell.model.paged_cache import PagedKVCache, PagedKVView, PagedRow
from foretell.model.quantize_decoder import make_quantization, quantize_decoder
from foretell.numerics.activations import ACTIVATIONS

LENGTH, ROWS = 70, 5
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "qwen3": {
        "position": "rotary", "norm": "rmsnorm", "qk_norm": True, "num_kv_heads": 2, "feedforward": "gated",
        "activation": "silu", "bias": False, "tie_embeddings": False,
    },
    "windows": {"position": "sinusoidal", "window": (None, 9), "norm_placement": "post"},
}  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16]
AVX2 = {  # limits the instructions of torch, oneDNN, MKL and numba
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "NUMBA_CPU_NAME": "haswell",
    "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c,+bmi2",
}


def new_decoder(name: str, dtype: torch.dtype, **changes: Any) -> Decoder:
    sizes = {"num_layers": 2, "num_heads": 4, "width": 192, "context_length": 96, "vocab_size": 501}
    with torch.inference_mode(False):  # changes of inference tensors cannot be seen, so no kernel packs them
        decoder = make_decoder(make_section(ModelConfig, {**sizes, **MODELS[name], **changes}), seed=1)
        return decoder.eval().requires_grad_(False).to(dtype)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(501, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3))


def in_parts(decoder: Decoder, ids: Tensor, counts: list[int]) -> Tensor:
    """Logits of rows that are read through a cache, counts[i] tokens at a time."""
    cache = PagedKVCache(decoder.config, 1 + 3 * len(ids), decoder.dtype, "cpu")
    tables, logits = [[1 + 3 * row, 2 + 3 * row, 3 + 3 * row] for row in range(len(ids))], []
    for part in ids.split(counts, dim=1):
        start = sum(each.shape[1] for each in logits)
        logits.append(decoder(part, PagedKVView(cache, [PagedRow(table, start, part.shape[1]) for table in tables])))
    return torch.cat(logits, dim=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_logits_have_the_same_bits_alone_in_a_batch_in_parts_and_cached(
    name: str, dtype: torch.dtype, ids: Tensor
) -> None:
    decoder = strict_copy(new_decoder(name, dtype))
    whole = decoder(ids)
    assert torch.equal(torch.cat([decoder(row[None]) for row in ids]), whole)
    assert torch.equal(in_parts(decoder, ids, [1, 1, 33, 2, 1, 32]), whole)
    assert torch.equal(in_parts(decoder, ids[:1], [1] * LENGTH), whole[:1])
    with Trace(decoder, "**"):
        assert torch.equal(decoder(ids[:, :9]), whole[:, :9])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_logits_have_the_same_bits_with_gradients(name: str, dtype: torch.dtype, ids: Tensor) -> None:
    decoder = strict_copy(new_decoder(name, dtype)).requires_grad_()
    with torch.no_grad():
        expected = decoder(ids)
    assert torch.equal(decoder(ids), expected)
    assert torch.equal(decoder(ids[:1]), expected[:1])
    assert torch.equal(decoder(ids[:1].repeat(2, 1)), expected[:1].repeat(2, 1, 1))
    assert decoder(ids).requires_grad


@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_the_plain_layers_within_rounding(name: str, ids: Tensor) -> None:
    decoder = new_decoder(name, torch.float32).requires_grad_()
    weights = list(decoder.parameters())
    expected, gradients = (
        torch.autograd.grad(model(ids).logsumexp(-1).sum(), weights) for model in (decoder, strict_copy(decoder))
    )
    largest = max(plain.abs().max().item() for plain in expected)
    for plain, form in zip(expected, gradients, strict=True):
        torch.testing.assert_close(form, plain, rtol=1e-4, atol=1e-6 * largest)


@pytest.mark.parametrize("form", ["float32", "int8"])
@pytest.mark.parametrize("change", ["in place", "dtype"])
def test_a_model_whose_weights_have_changed_is_refused(form: str, change: str, ids: Tensor) -> None:
    original = new_decoder("gpt2", torch.float32)
    if form == "int8":
        quantize_decoder(original, make_quantization(original, "int8"))
    decoder = strict_copy(original)
    layer: Any = decoder.get_submodule("trunk.blocks.1.feedforward.down")
    if change == "dtype":
        decoder.to(torch.bfloat16)
    else:
        (layer.weight if form == "float32" else layer.scales).mul_(2)
    with (
        torch.no_grad(),
        pytest.raises(UsageError, match=r"have changed since model.strict\(\) was called; call it again"),
    ):
        decoder(ids)
    assert strict_copy(original)(ids).isfinite().all()


@pytest.mark.parametrize(("feedforward_width", "num_threads"), [(33, 1), (172, 1), (160, 2), (1001, 2)])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@torch.inference_mode()
def test_odd_widths_keep_the_bits_with_every_activation_and_number_of_threads(
    activation: str, feedforward_width: int, num_threads: int, ids: Tensor
) -> None:
    torch.set_num_threads(num_threads)
    changes = {
        "width": 36, "num_heads": 2, "activation": activation, "feedforward_width": feedforward_width,
        "position": "rotary", "feedforward": "gated" if feedforward_width % 2 else "mlp", "norm": "rmsnorm",
    }  # fmt: skip
    decoder, ids = strict_copy(new_decoder("gpt2", torch.float32, **changes)), ids[:, :9]
    whole = decoder(ids)
    assert torch.equal(torch.cat([decoder(row[None]) for row in ids]), whole)
    assert torch.equal(in_parts(decoder, ids[:2], [1, 3, 5]), whole[:2])
    assert torch.equal(in_parts(decoder, ids[:1], [1] * 9), whole[:1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_logits_have_the_same_bits_with_any_number_of_threads(name: str, dtype: torch.dtype, ids: Tensor) -> None:
    decoder, logits = strict_copy(new_decoder(name, dtype)), []
    for num_threads in (1, 2, 3):
        torch.set_num_threads(num_threads)
        logits.append(decoder(ids[:1]))
    assert torch.equal(logits[0], logits[1]) and torch.equal(logits[0], logits[2])


def logits_digest() -> str:
    """A digest of the strict logits of models in float32 and in integers."""
    digest, ids = hashlib.sha256(), torch.randint(501, (1, LENGTH), generator=torch.Generator().manual_seed(3))
    for name in MODELS:
        for form in ("float32", "int8", "int4"):
            decoder = new_decoder(name, torch.float32)
            if form in ("int8", "int4"):
                quantize_decoder(decoder, make_quantization(decoder, form))
            with torch.inference_mode():
                digest.update(strict_copy(decoder)(ids).numpy().tobytes())
    return digest.hexdigest()


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="the processor has no AVX-512")
def test_logits_have_the_same_bits_with_avx2_and_avx512() -> None:
    code = f"""
import importlib.util, torch
spec = importlib.util.spec_from_file_location("cases", {__file__!r})
cases = importlib.util.module_from_spec(spec); spec.loader.exec_module(cases)
assert torch.backends.cpu.get_cpu_capability() == "AVX2"
print(cases.logits_digest())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **AVX2}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == logits_digest()


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_plain_activations_round_by_the_place_in_a_tensor(activation: str) -> None:
    x = torch.randn(5, 172, generator=torch.Generator().manual_seed(1))
    plain = ACTIVATIONS[activation].make()
    form = strict.strict_form(plain)
    assert torch.equal(form(x), torch.cat([form(row[None]) for row in x]))
    assert not torch.equal(plain(x), form(x))
    torch.testing.assert_close(plain(x), form(x))


@torch.inference_mode()
def test_without_strict_layers_the_bits_differ(ids: Tensor) -> None:
    decoder = new_decoder("qwen3", torch.float32)
    assert not torch.equal(in_parts(decoder, ids, [1] * LENGTH), decoder(ids))


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_strict_logits_equal_the_plain_layers_within_rounding(name: str, ids: Tensor) -> None:
    decoder = new_decoder(name, torch.float32)
    torch.testing.assert_close(strict_copy(decoder)(ids), decoder(ids), rtol=1e-4, atol=1e-4)


def test_a_quantised_model_is_strict_too(ids: Tensor) -> None:
    decoder = new_decoder("gpt2", torch.float32)
    quantize_decoder(decoder, make_quantization(decoder, "int8"))
    decoder = strict_copy(decoder)
    with torch.inference_mode():
        assert torch.equal(in_parts(decoder, ids, [1, 40, 29]), decoder(ids))


class KeepingSampler(Sampler):
    """Keeps the logits of every token by its sample and the ids before it."""

    def __init__(self, config: SamplingConfig):
        super().__init__(config)
        self.kept: dict[tuple[int, tuple[int, ...]], Tensor] = {}

    def __call__(self, logits: Tensor, prefixes: Prefixes, samples: list[int]) -> list[int]:
        for row, prefix, sample in zip(logits, prefixes, samples, strict=True):
            self.kept[sample, tuple(prefix.ids)] = row.clone()
        return super().__call__(logits, prefixes, samples)


def generated(
    decoder: Decoder, samples: range, proposer: PromptLookup | None = None
) -> dict[tuple[int, tuple[int, ...]], Tensor]:
    sampler = KeepingSampler(SamplingConfig(temperature=0.7, seed=2))
    rules = Rules(sampler, 40)
    sequences = [Sequence([7, 8, 9] * (1 + 4 * sample), sample, rules=rules) for sample in samples]
    list(run(make_scheduler(decoder, sequences, proposer), sequences))
    return sampler.kept


def test_generated_logits_have_the_same_bits_alone_together_and_with_guesses() -> None:
    decoder = strict_copy(new_decoder("qwen3", torch.float32))
    together, guessed = generated(decoder, range(4)), generated(decoder, range(4), PromptLookup())
    alone: dict[tuple[int, tuple[int, ...]], Tensor] = {}
    for sample in range(4):
        alone |= generated(decoder, range(sample, sample + 1))
    assert all(torch.equal(logits, together[key]) for key, logits in alone.items())
    assert all(torch.equal(logits, guessed[key]) for key, logits in alone.items())


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_layer_without_a_strict_form_is_refused() -> None:
    decoder = new_decoder("gpt2", torch.float32)
    add_lora(decoder, LoRAConfig())
    with pytest.raises(UsageError, match=r"'trunk.blocks.0.attention.query' is a LoRALinear, which has no strict form"):
        strict_copy(decoder)
    decoder = new_decoder("gpt2", torch.float32)
    decoder.set_submodule("trunk.blocks.1.feedforward", nn.Conv1d(192, 192, 1))
    with pytest.raises(UsageError, match=r"'trunk.blocks.1.feedforward' is a Conv1d"):
        strict_copy(decoder)


def test_groups_that_no_kernel_reads_are_refused() -> None:
    decoder = new_decoder("gpt2", torch.float32)
    quantize_decoder(decoder, make_quantization(decoder, "int8", group=2))
    with pytest.raises(UsageError, match=r"has no strict form: its group size must be a multiple of 8"):
        strict_copy(decoder)


def test_without_numba_nothing_is_strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strict, "has_numba", lambda: False)
    with pytest.raises(UsageError, match=r"needs numba: pip install numba"):
        strict_copy(new_decoder("gpt2", torch.float32))


def test_dtypes_without_kernels_are_refused() -> None:
    with pytest.raises(UsageError, match=r"needs a CPU and float32 or bfloat16, not float64 on cpu"):
        strict_copy(new_decoder("gpt2", torch.float64))
