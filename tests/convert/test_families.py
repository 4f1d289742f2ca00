"""Every family computes inside what transformers computes, can be explained, and trains the same.

A family joins by its rows in `CASES` (conftest.py) and one in `WRONG`. test_parity.py and test_peft.py have the rest:
logits, caches, files and adapters.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import foretell
from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.convert.families import FAMILIES
from foretell.convert.gguf.metadata import choose_architecture
from foretell.convert.huggingface_files import read_config
from foretell.data.batch import make_batch
from foretell.errors import CheckpointError, ConfigError
from foretell.generation.batch_generation import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution
from foretell.insight.recorded_pass import record
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.model.kernels.fast_decoder import find_obstacle
from foretell.training.objective import Objective
from tests.convert.conftest import CASES
from tests.insight.explain.test_explanation import explain_at, random_addresses

BOUND = 1e-5  # of the largest logit, in float32
WEIGHT_BOUND = 2e-6  # 1.1e-6 was measured: GPT-2's scores are large enough to round so much
GREEDY = Sampler(SamplingConfig(temperature=0))
IDS = [5, 9, 2, 21, 0, 8]
PROMPTS = ([1, 2, 3], [4, 5], [6])

# case -> a setting of its config.json that is wrong for its weights
WRONG: dict[str, dict[str, Any]] = {
    "gpt2": {"layer_norm_epsilon": 0.5},
    "openai-gpt": {"afn": "relu"},
    "llama": {"rms_norm_eps": 0.5},
    "mistral": {"sliding_window": 2},
    "qwen2": {"hidden_act": "relu"},
    "qwen3": {"rms_norm_eps": 0.5},
    "phi3, partly rotated": {"sliding_window": 2},
    "gpt_neox": {"use_parallel_residual": False},
    "phi": {"partial_rotary_factor": 0.2, "rope_parameters": ...},
    "stablelm": {"layer_norm_eps": 0.5},
    "olmo2": {"rms_norm_eps": 0.5},
    "gemma3": {"query_pre_attn_scalar": 24},
    "gemma3 in three layers": {"layer_types": ["sliding_attention"] * 3},
    "gemma3 in three layers, again": {"rope_parameters": ..., "rope_theta": 300.0, "rope_local_base_freq": 21.0},
}


@pytest.fixture
def theirs(case, make_theirs):
    return make_theirs(case)


@pytest.fixture
def ours(case, directory_of) -> LanguageModel:
    return foretell.load(directory_of(case), "cpu", "float32")


def assert_close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=BOUND * float(expected.abs().max()))


@torch.no_grad()
def test_logits_are_within_the_bound(theirs, ours: LanguageModel) -> None:
    assert_close(ours.decoder(torch.tensor([IDS])), theirs(torch.tensor([IDS])).logits)


@torch.no_grad()
def test_rows_that_grow_together_have_the_tokens_of_transformers(theirs, ours: LanguageModel) -> None:
    count = min(9, ours.config.context_length - 3)
    rows = [Sequence(list(prompt)) for prompt in PROMPTS]
    list(generate(ours.decoder, rows, GREEDY, count))
    for prompt, row in zip(PROMPTS, rows, strict=True):
        expected = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count, pad_token_id=0)
        assert row.generated == expected[0, len(prompt) :].tolist()


@torch.no_grad()
def test_attention_weights_equal_those_of_transformers(theirs, ours: LanguageModel) -> None:
    theirs.set_attn_implementation("eager")
    expected = theirs(torch.tensor([IDS]), output_attentions=True).attentions
    with Trace(ours, "**.core.weights") as trace:
        ours.decoder(torch.tensor([IDS]))
    for layer, weights in enumerate(expected):
        ours_here = trace[f"trunk.blocks.{layer}.attention.core.weights"]
        torch.testing.assert_close(ours_here, weights, rtol=0, atol=WEIGHT_BOUND)


def test_a_number_of_every_kind_is_explained(ours: LanguageModel) -> None:
    recording = record(ours, IDS, "**")
    for address in random_addresses(recording, seed=0):
        explanation = explain_at(recording, address)
        assert explanation.agrees, explanation.to_json()


def test_contributions_add_up_to_the_logit(ours: LanguageModel) -> None:
    attribution = direct_logit_attribution(ours, IDS)
    largest = sum(abs(part.value) for part in attribution.parts)
    assert attribution.total == pytest.approx(attribution.logit, abs=BOUND * largest)


def test_three_steps_of_training_equal_those_of_transformers(theirs, ours: LanguageModel) -> None:
    ids = torch.tensor([IDS, IDS[::-1]])
    objective = Objective(ours.decoder)  # without dropout, which differs
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.02) for model in (theirs, ours.decoder)]
    for _ in range(3):
        loss = objective(make_batch(ids.numpy()))
        losses = [theirs(ids, labels=ids).loss, loss.sum / loss.count]
        for optimizer, each in zip(optimizers, losses, strict=True):
            optimizer.zero_grad()
            each.backward()
            optimizer.step()
    with torch.no_grad():
        assert_close(ours.decoder(ids), theirs(ids).logits)


@torch.no_grad()
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_setting_exceeds_the_bound(wrong, make_theirs, copy_of) -> None:
    case, ids = wrong.removesuffix(", again"), torch.tensor([IDS])
    expected = make_theirs(case)(ids).logits
    spoiled = foretell.load(copy_of(case, **WRONG[wrong]), "cpu", "float32").decoder(ids)
    assert (spoiled - expected).abs().max() > 100 * BOUND * expected.abs().max()


def test_every_family_has_a_case_and_a_wrong_setting(directory_of) -> None:
    names = [json.loads((directory_of(case) / "config.json").read_text())["model_type"] for case in CASES]
    assert set(names) == set(FAMILIES)
    assert {name for name, case in zip(names, CASES, strict=True) if case in WRONG} == set(FAMILIES)


@torch.no_grad()
def test_the_table_of_families_is_what_is_computed(make_theirs, directory_of) -> None:
    differences, files, passes = (defaultdict[str, set[Any]](set) for _ in range(3))
    for case in CASES:
        ours = foretell.load(directory_of(case), "cpu", "float32")
        name, expected = read_config(directory_of(case))[0].name, make_theirs(case)(torch.tensor([IDS])).logits
        differences[name].add(float((ours(IDS) - expected).abs().max() / expected.abs().max()))
        files[name] |= gguf_of(name, ours.config)
        passes[name].add("modules" if find_obstacle(ours.decoder) else "program")
    document = (Path(__file__).parents[2] / "docs/convert-reference.md").read_text()
    for name in FAMILIES:
        rest = f" | {', '.join(sorted(files[name])) or 'no'} | {', '.join(passes[name])} |"
        row = re.search(rf"\| `{name}` \| ([0-9.e-]+){re.escape(rest)}", document)
        assert row, f"docs/convert-reference.md needs | `{name}` | {max(differences[name]):.1e}{rest}"
        assert max(differences[name]) < 3 * float(row[1])


def gguf_of(family: str, config: ModelConfig) -> set[str]:
    """The architectures of GGUF that have a model of this family; `phi3` is read alone."""
    try:
        # the small models of Gemma 3 have an odd scalar
        return {choose_architecture(config.replaced(query_pre_attn_scalar=None)).name}
    except ConfigError:
        return {"phi3 (in)"} if family == "phi3" else set()


MISSING = {
    "qwen3_5_text": "a gated delta net",
    "lfm2": "convolutions",
    "qwen3_moe": "experts",
    "mixtral": "experts",
    "granite": "multipliers of embeddings",
    "smollm3": "layers without positions",
    "gemma3": "images",
}


@pytest.mark.parametrize("kind", MISSING)
def test_a_family_that_cannot_be_read_is_refused_with_the_part_that_is_missing(kind: str, copy_of) -> None:
    with pytest.raises(CheckpointError, match=f"model_type '{kind}', which foretell cannot read: it needs") as refused:
        foretell.load(copy_of("llama", model_type=kind))
    assert MISSING[kind] in str(refused.value) and "\n" not in str(refused.value)
