"""Log-probabilities of generated tokens and of prompts, compared with a pass over the whole text."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from foretell.errors import CheckpointError, ContextLengthError, UsageError
from foretell.generation import logprobs as logprobs_module
from foretell.generation import scheduler as scheduler_module
from foretell.generation.batch_generation import run
from foretell.generation.logprobs import TokenLogprob, token_logprobs, top_of
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Sequence
from foretell.generation.speculation import PromptLookup
from foretell.model import decoder as decoder_module
from foretell.model.decoder import Decoder
from tests.generation.test_scheduler import CONTEXT, VOCABULARY, count_tokens_read, decoder, finish, make_sequence

__all__ = ["decoder"]  # the fixture


def expected(decoder: Decoder, ids: list[int], top: int) -> list[TokenLogprob | None]:
    """The log-probability of each id after the ones before it."""
    logprobs = decoder(torch.tensor([ids]))[0].double().log_softmax(-1)
    rows = [sorted(enumerate(row), key=lambda pair: (-pair[1], pair[0])) for row in logprobs.tolist()]
    values = logprobs[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0].tolist()
    pairs = zip(ids[1:], values, rows, strict=False)
    ranks = [[known for known, _ in row].index(token) + 1 for token, row in zip(ids[1:], rows, strict=False)]
    found = (
        TokenLogprob(token, value, tuple(row[:top]), rank)
        for (token, value, row), rank in zip(pairs, ranks, strict=True)
    )
    return [None, *found]


def assert_close(found: list[TokenLogprob | None], wanted: list[TokenLogprob | None]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert (one.token, [token for token, _ in one.top]) == (other.token, [token for token, _ in other.top])
        assert one.logprob == pytest.approx(other.logprob, abs=1e-9) and one.rank == other.rank
        assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-9)
        assert dict(one.top).get(one.token, one.logprob) == one.logprob  # the same float


def logprobs_of(scheduler: Scheduler, sequences: list[Sequence]) -> dict[Sequence, list[TokenLogprob | None]]:
    found: dict[Sequence, list[TokenLogprob | None]] = {sequence: [] for sequence in sequences}
    for sequence, token, logprob in run(scheduler, sequences):
        assert logprob is None or logprob.token == token
        found[sequence].append(logprob)
    return found


def random_ids(count: int, seed: int = 1) -> list[int]:
    return torch.randint(VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_ranks_of_equal_logits_go_to_the_lower_id() -> None:
    found = token_logprobs(torch.tensor([[1.0, 2.0, 2.0, 0.0]]).repeat(4, 1), [0, 1, 2, 3], [4] * 4)
    assert [each.rank for each in found] == [3, 1, 2, 4]
    assert [id for id, _ in found[0].top] == [1, 2, 0, 3]


@pytest.mark.parametrize("proposer", [None, PromptLookup(4)], ids=["plain", "guesses"])
def test_events_have_the_log_probabilities_of_the_unfiltered_logits(decoder: Decoder, proposer: Any) -> None:
    sequences = [make_sequence([1, 2, 3] * 3, sample, top_logprobs=top) for sample, top in enumerate([3, 0, None])]
    found = logprobs_of(Scheduler(decoder, proposer=proposer), sequences)
    for sequence, top in zip(sequences[:2], [3, 0], strict=True):
        assert_close(found[sequence], expected(decoder, sequence.ids, top)[len(sequence.prompt) :])
    assert found[sequences[2]] == [None] * 12


@pytest.mark.parametrize("room", [7, 512])
@pytest.mark.parametrize("rows", [3, 512])
def test_prompt_log_probabilities_are_those_of_one_pass(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch, room: int, rows: int
) -> None:
    """In parts of any size, and with any number of rows of logits at once."""
    monkeypatch.setattr(scheduler_module, "TOKENS_AT_ONCE", room)
    monkeypatch.setattr(decoder_module, "LOGITS_AT_ONCE", rows * VOCABULARY)
    prompt, scheduler = random_ids(70), Scheduler(decoder)
    plain, asked = make_sequence(prompt), make_sequence(prompt, prompt_logprobs=4)
    for _ in range(2):  # in the second round a cache has the prompt
        sequences = [make_sequence(prompt), make_sequence(prompt, prompt_logprobs=4)]
        list(run(scheduler, sequences))
        plain, asked = sequences
        assert_close(asked.prompt_logprobs, expected(decoder, prompt, 4))
        assert asked.generated == plain.generated
        assert plain.prompt_logprobs == []


def test_a_prompt_is_scored_without_generating(decoder: Decoder) -> None:
    prompt = random_ids(CONTEXT + 1)  # the last token is predicted, and not read
    scheduler, sequence = Scheduler(decoder), make_sequence(prompt, max_tokens=0, prompt_logprobs=0)
    short = make_sequence([3], max_tokens=0, prompt_logprobs=2)
    for each in (sequence, short):
        scheduler.add(each)
    assert scheduler.step() == []
    assert set(scheduler.ended) == {sequence, short}
    assert (sequence.finish_reason, sequence.generated, short.prompt_logprobs) == ("length", [], [None])
    logprobs = decoder(torch.tensor([prompt[:-1]]))[0].log_softmax(-1).gather(1, torch.tensor(prompt)[1:, None])
    values = [each.logprob for each in sequence.prompt_logprobs if each]
    assert values == pytest.approx(logprobs[:, 0].tolist(), abs=1e-9)
    assert not scheduler.is_busy


def test_log_probabilities_from_a_token_on_share_what_is_before_it(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, scheduler = random_ids(40), Scheduler(decoder)
    counts = count_tokens_read(monkeypatch)
    sequences = [make_sequence([*text, *end], max_tokens=0, prompt_logprobs=1) for end in ([1, 2], [3, 4], [5])]
    for sequence in sequences:
        sequence.first_logprob = len(text)
    list(run(scheduler, sequences))
    for sequence in sequences:
        assert_close(sequence.prompt_logprobs[40:], expected(decoder, sequence.prompt, 1)[40:])
        assert sequence.prompt_logprobs[:40] == [None] * 40
    assert sum(counts) == 41 + 2 + 1  # the text once, and of each of the others its last token and what follows


def test_a_negative_number_of_alternatives_is_refused(decoder: Decoder) -> None:
    for rules in ({"top_logprobs": -1}, {"prompt_logprobs": -1}):
        with pytest.raises(UsageError, match="must be 0 or more"):
            Scheduler(decoder).add(make_sequence([1], **rules))


def test_a_prompt_that_slides_out_of_the_context_has_no_log_probabilities(decoder: Decoder) -> None:
    with pytest.raises(ContextLengthError, match="need all 97 tokens in the context of 96"):
        Scheduler(decoder).add(make_sequence([1] * 97, slide=True, prompt_logprobs=0))


# --- numbers ---------------------------------------------------------------------------------------------------------


def test_the_likeliest_are_in_order_and_ties_go_to_the_lower_id() -> None:
    values = np.array([1.0, 3.0, 2.0, 3.0, -math.inf, 2.0])
    assert top_of(values, 4) == [(1, 3.0), (3, 3.0), (2, 2.0), (5, 2.0)]
    assert top_of(values, 3) == [(1, 3.0), (3, 3.0), (2, 2.0)]
    assert len(top_of(values, 99)) == 6
    assert (top_of(values, 1), top_of(values, 0)) == ([(1, 3.0)], [])


def test_rows_are_computed_a_few_at_a_time_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(9, 101, generator=torch.Generator().manual_seed(1))
    whole = token_logprobs(logits, list(range(9)), [2] * 9)
    monkeypatch.setattr(logprobs_module, "NUMBERS_AT_ONCE", 2 * 101)
    assert token_logprobs(logits, list(range(9)), [2] * 9) == whole


def test_logits_that_are_not_finite_have_no_log_probabilities() -> None:
    with pytest.raises(CheckpointError, match="not finite"):
        token_logprobs(torch.full((1, 3), math.nan), [0], [0])


def test_the_scheduler_forgets_nothing_of_a_scored_prompt(decoder: Decoder) -> None:
    scheduler = Scheduler(decoder, num_blocks=4)
    finish(scheduler, make_sequence(random_ids(50), max_tokens=0, prompt_logprobs=0))
    assert not any(scheduler.pool.owners)


@pytest.mark.skipif(sys.platform != "linux", reason="kilobytes on Linux")
def test_log_probabilities_of_a_full_context_take_little_memory() -> None:
    """All at once they would take 1,023 times 50,257 numbers of 8 bytes, 392 MiB, and as much again for the softmax."""
    code = """
import resource
from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.generation.batch_generation import make_scheduler, run
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Rules, Sequence
from foretell.model.init import make_decoder

config = ModelConfig(num_layers=1, num_heads=1, width=8, context_length=1024, vocab_size=50_257)
decoder = make_decoder(config, seed=1).eval()
before = 0
for length in (100, 1023):
    sequence = Sequence([7] * length, rules=Rules(Sampler(SamplingConfig()), 1, prompt_logprobs=20, top_logprobs=20))
    list(run(make_scheduler(decoder, [sequence]), [sequence]))
    assert len(sequence.prompt_logprobs) == length
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(after - before)
    before = after
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) < 200 * 1024
