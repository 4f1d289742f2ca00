"""Receipts replay the draw of a token, show every filter, and detect changes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.config.sampling import SamplingConfig
from foretell.errors import ConfigError, DataError
from foretell.generation.batch_generation import generate
from foretell.generation.filters import Prefix
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.insight.receipt import Receipt, RecordingSampler
from foretell.text import Tokenizer, train_tokenizer
from tests.insight.conftest import MakeDecoder

ALL_FILTERS: dict[str, Any] = {"repetition_penalty": 1.3, "temperature": 0.7, "top_k": 8, "top_p": 0.9, "min_p": 0.05}
SETTINGS = st.builds(
    SamplingConfig,
    repetition_penalty=st.just(1.0) | st.floats(0.5, 2),
    temperature=st.sampled_from([0.0, 1.0]) | st.floats(0.01, 5),
    top_k=st.none() | st.integers(1, 30),
    logit_bias=st.dictionaries(st.integers(0, 10), st.floats(-3, 3), max_size=2),
    min_tokens=st.integers(0, 2),
    ban=st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=2), max_size=2),
    no_repeat_ngram=st.none() | st.integers(2, 3),
    top_p=st.just(1.0) | st.floats(0.01, 1),
    min_p=st.just(0.0) | st.floats(0, 1),
    seed=st.integers(0, 2**63 - 1),
)
PRECISIONS = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


NEUTRAL: dict[str, Any] = {"temperature": 1, "top_p": 1}  # the model's own distribution


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_tokenizer("characters", ["abcdefghij"])  # ten ids, and one more for the end


@pytest.fixture
def record(tokenizer: Tokenizer) -> Callable[..., Receipt]:
    """The receipt of one draw from these logits after these ids."""

    def make(logits: torch.Tensor, ids: list[int], **settings: Any) -> Receipt:
        sampler, sequence = (
            RecordingSampler(SamplingConfig(**{**NEUTRAL, **settings}), tokenizer),
            Sequence(ids, sample=2),
        )
        sequence.generated += sampler(logits[None], [Prefix(ids, len(ids), frozenset([10]))], [2])
        return sampler.receipts_of(sequence)[0]

    return make


def some_logits(seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (3 * torch.randn(11, generator=torch.Generator().manual_seed(seed))).to(dtype)


# --- replay ---


@given(sampling=SETTINGS, seed=st.integers(0, 10**6), dtype=st.sampled_from(list(PRECISIONS.values())))
def test_a_recording_sampler_draws_the_same_and_every_receipt_replays(
    tokenizer: Tokenizer, sampling: SamplingConfig, seed: int, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(4, 15, generator=generator)).to(dtype)  # more than the tokenizer has
    history, samples = [[1], [2, 3], [4, 5, 4], [1]], [0, 1, 2, 0]
    prefixes = [Prefix(ids, len(ids)) for ids in history]
    recorder = RecordingSampler(sampling, tokenizer)
    tokens = recorder(logits, prefixes, samples)
    assert tokens == Sampler(sampling, tokenizer.vocab_size)(logits, prefixes, samples)
    for ids, sample, token in zip(history, samples, tokens, strict=True):
        receipt = recorder.receipts_of(Sequence(ids, sample, [token]))[0]
        low, high = receipt.interval
        assert receipt.replay() == receipt.token == token
        assert low - 1e-12 <= receipt.draw < high + 1e-12
        receipt.check()


def test_a_whole_generation_is_the_same_with_receipts(make_decoder: MakeDecoder, tokenizer: Tokenizer) -> None:
    decoder, sampling = make_decoder("gpt2"), SamplingConfig(**ALL_FILTERS)

    def written(sampler: Sampler) -> list[Sequence]:
        sequences = [Sequence([1, 2, 3], 0), Sequence([4], 1), Sequence([4], 1)]
        list(generate(decoder, sequences, sampler, 20, slide=True))
        return sequences

    recorder = RecordingSampler(sampling, tokenizer)
    sequences = written(recorder)
    plain = written(Sampler(sampling, tokenizer.vocab_size))
    assert [sequence.ids for sequence in sequences] == [sequence.ids for sequence in plain]
    for sequence in sequences:
        receipts = recorder.receipts_of(sequence)
        assert [receipt.replay() for receipt in receipts] == sequence.generated
        assert [receipt.position for receipt in receipts] == list(range(len(sequence.prompt), len(sequence.ids)))


# --- stages ---


def test_stages_are_the_filters_in_order_over_the_whole_vocabulary(record) -> None:
    receipt = record(some_logits(), [1, 2], **ALL_FILTERS)
    stages = list(receipt.stages())
    assert [(stage.name, stage.setting) for stage in stages] == [("logits", None), *ALL_FILTERS.items()]
    assert all(len(stage.logits) == receipt.vocab_size for stage in stages)
    assert all(math.isclose(float(stage.probabilities.sum()), 1) for stage in stages)
    assert [stage.left for stage in stages] == sorted((stage.left for stage in stages), reverse=True)
    assert stages[3].left == 8


def test_inactive_filters_are_not_stages(record) -> None:
    assert [stage.name for stage in record(some_logits(), [1]).stages()] == ["logits"]
    assert [stage.left for stage in record(some_logits(), [1], temperature=0).stages()] == [11, 1]


def test_a_stage_lists_the_top_tokens_left(record) -> None:
    *_, last = record(torch.arange(11.0), [1], top_k=2).stages()
    assert [token for token, _ in last.top_tokens(5)] == [10, 9]
    assert sum(probability for _, probability in last.top_tokens(5)) == pytest.approx(1)


def test_a_receipt_keeps_its_own_copy_of_the_logits(record) -> None:
    logits = some_logits()
    receipt = record(logits, [1])
    logits.zero_()
    assert torch.equal(receipt.logits, some_logits())


def test_a_filter_that_excludes_tokens_shows_which_and_how_much_probability_they_had(record) -> None:
    receipt = record(some_logits(), [1, 2], ban=[[2, 3], [4]], min_tokens=1, temperature=0.5)
    plain, least, banned, cold = receipt.stages()
    assert [stage.name for stage in (plain, least, banned, cold)] == ["logits", "min_tokens", "ban", "temperature"]
    assert (plain.num_removed, least.num_removed, banned.num_removed, cold.num_removed) == (0, 1, 2, 0)
    assert float(least.removed.sum()) == pytest.approx(float(plain.probabilities[10]))
    assert banned.removed.nonzero()[:, 0].tolist() == [3, 4]
    assert float(banned.removed.sum()) == pytest.approx(float(least.probabilities[[3, 4]].sum()))
    summary = receipt.to_json()["stages"][2]
    assert summary["removed"]["count"] == 2
    assert {token["text"] for token in summary["removed"]["tokens"]} == {"d", "e"}
    assert "removed" not in receipt.to_json()["stages"][3]


# --- JSON ---


@pytest.mark.parametrize("show", [Receipt.to_json, Receipt.document])
def test_a_receipt_is_shown_from_one_run_of_the_filters(record, show, monkeypatch: pytest.MonkeyPatch) -> None:
    receipt, runs, stages = record(some_logits(), [1]), [], Sampler.stages
    monkeypatch.setattr(Sampler, "stages", lambda *arguments: runs.append(1) or stages(*arguments))
    show(receipt)
    assert len(runs) == 1


def test_a_receipt_of_format_1_replays(record) -> None:
    """Written before receipts had a prompt length and end tokens, and before these filters."""
    values = record(some_logits(3), [1, 2], **ALL_FILTERS).to_json()
    new = ("prompt_length", "end_ids")
    old = {name: value for name, value in values.items() if name not in new} | {"format": "foretell.receipt/1"}
    old["sampling"] = {name: values["sampling"][name] for name in (*ALL_FILTERS, "seed")}
    receipt = Receipt.from_json(old)
    receipt.check()
    assert receipt.token == values["token"]["id"]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_receipt_in_json_keeps_every_bit_and_replays(record, tokenizer: Tokenizer, precision: str) -> None:
    receipt = record(some_logits(3, PRECISIONS[precision]), [1, 2], **ALL_FILTERS)
    again = Receipt.from_json(json.loads(json.dumps(receipt.to_json(), allow_nan=False)), tokenizer)
    assert torch.equal(again.logits, receipt.logits)
    assert again.logits.dtype == PRECISIONS[precision]
    assert again.to_json() == receipt.to_json()
    assert again.replay() == receipt.token
    again.check()


def test_json_names_tokens_by_their_text(record) -> None:
    values = record(torch.arange(11.0), [1], temperature=0).to_json()
    assert values["token"] == {"id": 10, "text": "<|endoftext|>"}
    assert values["stages"][1] == {
        "filter": "temperature",
        "setting": 0.0,
        "left": 1,
        "tokens": [{"id": 10, "text": "<|endoftext|>", "probability": 1.0}],
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token": {"id": 3}}, r"position 2 is not valid: it is for token 3 'd' but replays to token \d+"),
        ({"draw": 0.25}, r"its draw is 0.25, but the draw of seed 1, sample 2, position 2 is 0\.\d+"),
        ({"sample": 3}, "its draw is .*, but the draw of seed 1, sample 3, position 2"),
        ({"ids": [1, 2, 3]}, "position 3 is not valid"),
        ({"sampling": {"temperature": 1.0, "seed": 9}}, "seed 9"),
        (
            {"logits": {"dtype": "float32", "data": "AACAPwAAAAAAAAAAAAAAAA=="}, "token": {"id": 1}, "end_ids": []},
            "replays to token 0",
        ),
    ],
)
def test_a_changed_receipt_is_not_valid(record, tokenizer, change, words) -> None:
    values = record(some_logits(4), [1, 2], temperature=0.5).to_json() | {"vocab_size": None} | change
    changed = Receipt.from_json(values, tokenizer)
    with pytest.raises(DataError, match=words) as failure:
        changed.check()
    assert "\n" not in str(failure.value)


def test_changed_logits_do_not_replay_to_the_same_token(record) -> None:
    receipt = record(some_logits(4), [1, 2], temperature=0)
    changed = receipt.logits.clone()
    changed[receipt.token] -= 20
    assert replace(receipt, logits=changed).replay() != receipt.token


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"format": "foretell.receipt/9"}, ConfigError, "receipt.format"),
        ({"drwa": 0.5}, ConfigError, "did you mean 'draw'"),
        ({"sampling": {"temperature": -1}}, ConfigError, "receipt.sampling.temperature"),
        ({"draw": "often"}, ConfigError, "receipt.draw"),
        ({"ids": [99]}, DataError, "the receipt names token 99, but its logits are for tokens 0 to 10"),
        ({"logits": {"dtype": "int8", "data": ""}}, DataError, "dtype 'int8'; known dtypes are bfloat16"),
        ({"logits": {"dtype": "float32", "data": "AAA="}}, DataError, "2 bytes, which is not a whole number"),
        ({"logits": {"dtype": "float32", "data": "?"}}, DataError, "not base64"),
    ],
)
def test_malformed_receipts_are_one_line_errors(record, change, error, words) -> None:
    with pytest.raises(error, match=words) as failure:
        Receipt.from_json(record(some_logits(), [1]).to_json() | change)
    assert "\n" not in str(failure.value)
