"""Generation with a cache and in batches gives the same tokens as alone and without a cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.errors import ContextLengthError, ForetellError, UsageError
from foretell.generation.batch_generation import generate
from foretell.generation.engine import Engine
from foretell.generation.filters import Prefix
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder
from tests.toy import with_large_weights

CONTEXT, VOCABULARY = 16, 23
GREEDY = SamplingConfig(temperature=0)
RANDOM = SamplingConfig(temperature=1.5, top_k=15, repetition_penalty=1.1, seed=4)
PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11], [3, 2, 1]]

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "qwen3": {"position": "rotary", "norm": "rmsnorm", "qk_norm": True, "num_kv_heads": 1},
    "windows": {"position": "none", "window": (None, 3)},
    "explicit core": {"dropout": {"attention": 0.1}, "window": 4},
}


@pytest.fixture(params=MODELS)
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """Strong random weights, so that the next token depends on everything before it."""
    sizes = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": CONTEXT, "vocab_size": VOCABULARY}
    decoder = Decoder(make_section(ModelConfig, {**sizes, **MODELS[request.param]})).double()
    return with_large_weights(decoder, seed=2).requires_grad_(False)


def continued(
    decoder: Decoder, prompts: list[list[int]], sampling: SamplingConfig, max_tokens: int | None = 6, **options: Any
) -> list[Sequence]:
    """Each prompt after its continuation, prompt i as sample i."""
    sequences = [Sequence(prompt, sample) for sample, prompt in enumerate(prompts)]
    list(generate(decoder, sequences, Sampler(sampling), max_tokens, **options))
    return sequences


def continuations(*arguments: Any, **options: Any) -> list[list[int]]:
    return [sequence.generated for sequence in continued(*arguments, **options)]


def without_cache(
    decoder: Decoder, prompt: list[int], sampling: SamplingConfig, count: int, sample: int = 0
) -> list[int]:
    """The definition of generation: read the whole text again for every token, or its tail if it does not fit."""
    ids, start, sampler = list(prompt), 0, Sampler(sampling)
    if len(ids) > CONTEXT:
        start = len(ids) - CONTEXT // 2
    for _ in range(count):
        ids += sampler(decoder(torch.tensor([ids[start:]]))[:, -1], [Prefix(ids)], [sample])
        if len(ids) - start > CONTEXT:
            start = len(ids) - CONTEXT // 2
    return ids[len(prompt) :]


# --- which tokens ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, RANDOM], ids=["greedy", "random"])
def test_tokens_are_the_same_as_without_a_cache(decoder: Decoder, sampling: SamplingConfig) -> None:
    expected = [without_cache(decoder, prompt, sampling, 6, sample) for sample, prompt in enumerate(PROMPTS)]
    assert continuations(decoder, PROMPTS, sampling) == expected


def test_a_greedy_token_is_the_most_likely_one(decoder: Decoder) -> None:
    (sequence,) = continued(decoder, [[1, 2, 3]], GREEDY)
    logits = decoder(torch.tensor([sequence.ids]))[0]
    assert logits[2:-1].argmax(-1).tolist() == sequence.generated


def test_a_prompt_is_continued_the_same_alone_or_with_others(decoder: Decoder) -> None:
    together = continuations(decoder, PROMPTS, RANDOM)
    for sample, prompt in enumerate(PROMPTS):
        alone = Sequence(prompt, sample)
        assert [event.token for event in generate(decoder, [alone], Sampler(RANDOM), 6)] == together[sample]


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(decoder: Decoder) -> None:
    first = continuations(decoder, PROMPTS, RANDOM)
    assert continuations(decoder, PROMPTS, RANDOM) == first
    assert continuations(decoder, PROMPTS, SamplingConfig(temperature=1.5, seed=5)) != first


def test_samples_of_one_prompt_differ(decoder: Decoder) -> None:
    assert len({tuple(tokens) for tokens in continuations(decoder, [[1, 2]] * 5, RANDOM)}) == 5


def test_equal_sequences_are_both_continued(decoder: Decoder) -> None:
    twins = [Sequence([1, 2]), Sequence([1, 2])]
    assert len(list(generate(decoder, twins, Sampler(RANDOM), 4))) == 8
    assert twins[0].generated == twins[1].generated


def test_this_suite_notices_logits_that_reach_the_wrong_row(decoder: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = continuations(decoder, [[1], [2]], RANDOM)

    def read_the_wrong_row(*arguments: Any) -> Iterator[Tensor]:
        return iter([logits.flip(0) for logits in read(*arguments)])

    read = Engine.read
    monkeypatch.setattr(Engine, "read", read_the_wrong_row)
    assert continuations(decoder, [[1], [2]], RANDOM) != expected


# --- when it ends ----------------------------------------------------------------------------------------------------


def reasons(sequences: list[Sequence]) -> list[str | None]:
    return [sequence.finish_reason for sequence in sequences]


@pytest.mark.parametrize("count", [0, 5])
def test_max_tokens_is_how_many_tokens_each_sequence_gets(decoder: Decoder, count: int) -> None:
    sequences = continued(decoder, PROMPTS, RANDOM, count)
    assert [len(sequence.generated) for sequence in sequences] == [count] * 4
    assert reasons(sequences) == ["length"] * 4


def test_the_end_token_ends_its_sequence_and_leaves_the_others_as_they_were(decoder: Decoder) -> None:
    undisturbed = continuations(decoder, PROMPTS, RANDOM)
    end = undisturbed[2][2]
    sequences = [Sequence(prompt, sample) for sample, prompt in enumerate(PROMPTS)]
    yielded: list[list[int]] = [[] for _ in PROMPTS]
    for sequence, token, _ in generate(decoder, sequences, Sampler(RANDOM), 6, end_ids=[end]):
        yielded[sequence.sample].append(token)
    for sequence, shown, tokens in zip(sequences, yielded, undisturbed, strict=True):
        length = tokens.index(end) if end in tokens else 6
        assert (shown, sequence.generated) == (tokens[:length], tokens[: length + 1])
        assert sequence.finish_reason == ("end" if end in tokens else "length")


def test_the_caller_can_end_a_sequence(decoder: Decoder) -> None:
    undisturbed = continuations(decoder, PROMPTS, RANDOM)
    sequences = [Sequence(prompt, sample) for sample, prompt in enumerate(PROMPTS)]
    for sequence, *_ in generate(decoder, sequences, Sampler(RANDOM), 6):
        if sequence.sample == 1 and len(sequence.generated) == 3:
            sequence.finish_reason = "stop"
    assert reasons(sequences) == ["length", "stop", "length", "length"]
    assert [sequence.generated for sequence in sequences] == [
        tokens[:3] if sample == 1 else tokens for sample, tokens in enumerate(undisturbed)
    ]


def test_without_max_tokens_each_sequence_continues_until_the_context_is_full(decoder: Decoder) -> None:
    sequences = continued(decoder, PROMPTS, RANDOM, None)
    assert [len(sequence.ids) for sequence in sequences] == [CONTEXT + 1] * 4  # the last one is drawn but not read
    assert reasons(sequences) == ["context"] * 4
    assert sequences[2].generated == without_cache(decoder, PROMPTS[2], RANDOM, CONTEXT - 6, sample=2)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "options", "error", "message"),
    [
        ([1] * 17, None, {}, ContextLengthError, "the prompt has 17 tokens and the model's context is 16"),
        ([1] * 10, 8, {}, ContextLengthError, "10 tokens and 8 new ones do not fit .* at most max_tokens 7"),
        ([], 5, {}, UsageError, "the prompt is empty"),
        ([], 5, {"slide": True}, UsageError, "the prompt is empty"),
        ([1], 2.5, {}, UsageError, "max_tokens must be a whole number, 0 or more, not 2.5"),
        ([1], -1, {}, UsageError, "max_tokens must be a whole number, 0 or more, not -1"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_generated(
    prompt: list[int],
    max_tokens: Any,
    options: dict[str, Any],
    error: type[ForetellError],
    message: str,
    decoder: Decoder,
) -> None:
    sequences = [Sequence([1, 2]), Sequence(prompt)]
    with pytest.raises(error, match=message):
        list(generate(decoder, sequences, Sampler(GREEDY), max_tokens, **options))
    assert [sequence.generated for sequence in sequences] == [[], []]


def test_a_prompt_and_tokens_that_just_fit_are_not_refused(decoder: Decoder) -> None:
    assert len(continuations(decoder, [[1] * 10], RANDOM, CONTEXT - 10)[0]) == 6


# --- context shift --------------------------------------------------------------------------------------------------

LONG_PROMPTS = [[1, 2, 3], [3, 4, 5], list(range(16)), list(range(20)), [4]]  # two shift at the same time


def test_a_context_shift_continues_from_the_last_half_of_the_context(decoder: Decoder) -> None:
    expected = [without_cache(decoder, prompt, RANDOM, 30, sample) for sample, prompt in enumerate(LONG_PROMPTS)]
    sequences = continued(decoder, LONG_PROMPTS, RANDOM, 30, slide=True)
    assert [sequence.generated for sequence in sequences] == expected
    assert reasons(sequences) == ["length"] * 5


def test_a_prompt_that_just_fits_is_read_whole_with_or_without_context_shift(decoder: Decoder) -> None:
    prompt = [list(range(CONTEXT))]
    assert continuations(decoder, prompt, GREEDY, 1, slide=True) == continuations(decoder, prompt, GREEDY, None)


def test_a_context_of_one_token_shifts_token_by_token() -> None:
    sizes = {"num_layers": 1, "num_heads": 1, "width": 8, "context_length": 1, "vocab_size": 5}
    decoder = Decoder(make_section(ModelConfig, sizes)).eval()
    assert len(continuations(decoder, [[1, 2, 3]], GREEDY, 4, slide=True)[0]) == 4
