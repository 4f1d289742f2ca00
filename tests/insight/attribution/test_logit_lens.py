"""The logit lens applies the last norm and the head to the stream after every block."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from foretell.errors import UsageError
from foretell.insight.attribution.lens_arrays import (
    COMPILED_FROM,
    SoftmaxSums,
    fastest_softmax_sums,
    plain_softmax_sums,
    read_lens,
    reduce_logits,
)
from foretell.insight.attribution.logit_lens import lens_logits, logit_lens
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.model.kernels import warming
from foretell.model.kernels.softmax_sums import softmax_sums
from tests.insight.attribution.conftest import MakeModel


@torch.no_grad()
def test_the_reading_after_the_last_block_is_the_models_prediction(model: LanguageModel, text: str) -> None:
    probabilities = model.decoder(torch.tensor([model.tokenizer.encode(text)]))[0].double().softmax(-1)
    lens = logit_lens(model, text, top=4)
    assert [reading.position for reading in lens.positions] == list(range(7))
    for ours, expected in zip(lens.positions, probabilities, strict=True):
        best = expected.topk(4)
        assert ours.winner.id == int(best.indices[0])
        assert [token.id for token in ours.readings[-1].tokens] == best.indices.tolist()
        assert [token.probability for token in ours.readings[-1].tokens] == pytest.approx(
            best.values.tolist(), rel=1e-4
        )
        assert (ours.readings[-1].rank, ours.readings[-1].probability) == (1, pytest.approx(ours.winner.probability))


@torch.no_grad()
def test_an_earlier_reading_is_the_last_norm_and_the_head_on_the_stream(model: LanguageModel, text: str) -> None:
    reading = logit_lens(model, text, at=3).positions[0].readings[1]
    with Trace(model, "trunk.blocks.0") as trace:
        model.decoder(torch.tensor([model.tokenizer.encode(text)]))
    stream = model.decoder.trunk.norm(trace["trunk.blocks.0"][0, 3])
    expected = model.decoder.head(stream).double().softmax(-1)
    winner = logit_lens(model, text, at=3).positions[0].winner.id
    assert reading.name == "trunk.blocks.0"
    assert reading.tokens[0].id == int(expected.argmax())
    assert reading.probability == pytest.approx(float(expected[winner]), rel=1e-4)
    assert reading.rank == sorted(expected.tolist(), reverse=True).index(float(expected[winner])) + 1


@torch.no_grad()
def test_the_mean_centred_lens_adds_what_later_layers_add_at_earlier_tokens(model: LanguageModel, text: str) -> None:
    lens = logit_lens(model, text, fill="mean")
    with Trace(model, ["trunk.blocks.0", "trunk.blocks.1"]) as trace:
        model.decoder(torch.tensor([model.tokenizer.encode(text)]))
    early, late = trace["trunk.blocks.0"][0], trace["trunk.blocks.1"][0]
    assert model.decoder.config.num_layers == 2
    for position in range(7):
        stream = early[position]
        if position >= 2:
            stream = stream + (late - early)[1:position].mean(0)
        expected = lens_logits(model.decoder, stream).double().softmax(-1)
        reading = lens.positions[position].readings[1]
        assert reading.probability == pytest.approx(float(expected[lens.positions[position].winner.id]), rel=1e-4)
    plain = logit_lens(model, text)
    assert [at.readings[-1] for at in lens.positions] == [at.readings[-1] for at in plain.positions]


def test_a_lens_that_predicts_worse_than_chance_says_so(make_model: MakeModel, text: str) -> None:
    """Later layers that turn the stream around make each earlier reading the opposite of the prediction."""
    model = make_model("gpt2", torch.float64, num_layers=4)
    assert "of little use" not in str(logit_lens(model, text))

    def turn(stream: torch.Tensor) -> torch.Tensor:
        return -stream

    with Trace(model, replace={"trunk.blocks.3": turn}):
        lens = logit_lens(model, text)
        assert lens.poor_readings() == ["embed", "trunk.blocks.0", "trunk.blocks.1", "trunk.blocks.2"]
        assert "of little use here: in 4 of 5 readings, the last one after trunk.blocks.2" in " ".join(
            str(lens).split()
        )
        assert "of little use" not in str(logit_lens(model, text, fill="mean"))


def test_one_position_alone_is_the_same_as_among_all(make_model: MakeModel, text: str) -> None:
    model = make_model("gpt2", torch.float64)
    alone, among = logit_lens(model, text, at=-3).positions[0], logit_lens(model, text).positions[4]
    assert alone.context == among.context == "abcad"
    for ours, theirs in zip(alone.readings, among.readings, strict=True):
        assert ours.probability == pytest.approx(theirs.probability)
        assert (ours.name, ours.rank) == (theirs.name, theirs.rank)


def test_a_winner_has_settled_from_where_it_ranks_first_to_the_end(make_model: MakeModel, text: str) -> None:
    for position in logit_lens(make_model("gpt2", num_layers=5), text).positions:
        names = [reading.name for reading in position.readings]
        since = names.index(position.settled)
        assert all(reading.rank == 1 for reading in position.readings[since:])
        assert since == 0 or position.readings[since - 1].rank > 1


def test_printed_output_fits_80_columns(make_model: MakeModel, text: str) -> None:
    lines = str(logit_lens(make_model("gpt2", num_layers=12), text, top=8)).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(("embed ", "trunk.blocks.")) and "%" in line for line in lines) == 13
    assert len([line for line in lines if line.lstrip()[:1].isdigit()]) == 7


def test_json_has_every_reading(make_model: MakeModel, text: str) -> None:
    values = logit_lens(make_model("gpt2"), text, at=1, top=2).to_json()
    position = values["positions"][0]
    assert list(position) == ["position", "context", "winner", "readings"]
    assert [reading["name"] for reading in position["readings"]] == ["embed", "trunk.blocks.0", "trunk.blocks.1"]
    assert all(len(reading["tokens"]) == 2 for reading in position["readings"])


def test_a_position_outside_the_text_is_refused(make_model: MakeModel, text: str) -> None:
    with pytest.raises(UsageError, match="position -8 is outside"):
        logit_lens(make_model("gpt2"), text, at=-8)


@pytest.mark.parametrize("vocab_size", [3, 700, 9_001])
def test_a_lens_is_the_softmax_of_all_logits(make_model: MakeModel, vocab_size: int) -> None:
    """9,001 logits: the top ones are looked for among the maxima of columns, whose last one is not whole."""
    decoder = make_model("gpt2", vocab_size=vocab_size).decoder
    generator = torch.Generator().manual_seed(0)
    stream = 9 * torch.randn(300, decoder.config.width, generator=generator)
    targets = torch.randint(vocab_size, (300,), generator=generator)
    targets[7] = -1
    with torch.no_grad():
        logits = lens_logits(decoder, stream).double()
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(1, targets.clamp(min=0)[:, None])
    lens = read_lens(decoder, stream, vocab_size, 5, targets.tolist())
    top = logprobs.topk(min(5, vocab_size))
    assert lens.ids.tolist() == top.indices.tolist()
    np.testing.assert_allclose(lens.logprobs, top.values, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(lens.entropies, -(logprobs.exp() * logprobs).sum(-1), rtol=1e-4, atol=1e-5)
    ranks = (logprobs > own).sum(-1)
    own[7], ranks[7] = -torch.inf, -1
    np.testing.assert_allclose(lens.target_logprobs, own[:, 0], rtol=1e-5, atol=1e-5)
    assert lens.ranks.tolist() == ranks.tolist()


@pytest.mark.parametrize("sums_of", [plain_softmax_sums, softmax_sums])
def test_a_token_that_is_ruled_out_has_no_share_of_the_entropy(sums_of: SoftmaxSums) -> None:
    logits = torch.tensor([[1.0, -torch.inf, 1.0]])
    *_, entropies = reduce_logits(logits, torch.tensor([0]), 2, sums_of)
    assert float(entropies) == pytest.approx(math.log(2))


@pytest.mark.parametrize("V", [1, 16, 50, 1_000])
def test_the_compiled_sums_are_those_of_softmax(V: int) -> None:
    logits = (5 * torch.randn(70, V + 3, generator=torch.Generator().manual_seed(0)))[:, :V]
    logits[:, V // 2] = -torch.inf
    largest, target = logits.amax(1, keepdim=True).clamp(min=-9), logits[:, :1]
    below = (logits - largest).double()
    expected = below.exp().sum(1), (below.exp() * below).nan_to_num().sum(1), (logits > target).sum(1)
    for sums, exact in zip(softmax_sums(logits, largest, target), expected, strict=True):
        np.testing.assert_allclose(sums, exact, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize(
    ("is_ready", "num_logits", "dtype", "chosen"),
    [
        (True, COMPILED_FROM, torch.bfloat16, softmax_sums),
        (False, COMPILED_FROM, torch.float32, plain_softmax_sums),
        (True, COMPILED_FROM - 1, torch.float32, plain_softmax_sums),
        (True, COMPILED_FROM, torch.float64, plain_softmax_sums),
    ],
)
def test_a_lens_of_many_logits_waits_for_no_kernel(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, is_ready, num_logits, dtype, chosen
) -> None:
    monkeypatch.setattr(warming, "are_compiled", lambda names: is_ready and names == (warming.SOFTMAX,))
    assert fastest_softmax_sums(num_logits, make_model("gpt2", dtype).decoder) is chosen
