"""Receipts of honest answers are verified however they were computed, and changed ones are rejected."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.errors import DataError, UsageError
from foretell.inference import verification
from foretell.inference.answer_receipt import AnswerReceipt, json_digest
from foretell.inference.completion import Completion, generate, make_completer, make_proposer, make_sampling
from foretell.inference.verification import verify
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.text import train_tokenizer

PROMPTS = ["some words", "a", "some words that are longer"]
ASKED: dict[str, Any] = {"seed": 12, "receipts": True}


@pytest.fixture(scope="module")
def plain() -> LanguageModel:
    tokenizer = train_tokenizer("characters", ["abcdefghijklmnopqrstuvwxyz .,"])
    sizes = {"num_layers": 2, "num_heads": 2, "width": 32, "context_length": 64, "vocab_size": tokenizer.vocab_size + 3}
    decoder = make_decoder(make_section(ModelConfig, {**sizes, "init": "torch", "tie_embeddings": False}), seed=4)
    return LanguageModel(decoder.eval().requires_grad_(False), tokenizer, "small")


@pytest.fixture(scope="module")
def model(plain) -> LanguageModel:
    return plain.strict()


@pytest.fixture(scope="module")
def receipt(model) -> AnswerReceipt:
    return receipt_of(generate(model, "some words", 20, **ASKED))


def receipt_of(completion: Completion) -> AnswerReceipt:
    assert completion.receipt is not None
    return completion.receipt


def changed(receipt: AnswerReceipt, path: str, value: Any) -> dict[str, Any]:
    """The JSON of a receipt with another value at a path such as `request.sampling.seed` or `tokens.3`."""
    values = copy.deepcopy(receipt.to_json())
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    place: Any = values
    for part in parents:
        place = place[part]
    assert place[last] != value
    place[last] = value
    return values


def repaired(values: dict[str, Any]) -> AnswerReceipt:
    """A changed receipt with digests that match the change, as a forger would write it."""
    values["request_sha256"] = json_digest(values["request"])
    return AnswerReceipt.from_json(values).sealed()


# --- honest answers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "options"),
    [
        (20, {}),
        (0, {}),
        (20, {"temperature": 0}),
        (30, {"stop": "e"}),
        (100, {"slide": True}),
        (20, {"top_k": 5, "min_p": 0.02, "repetition_penalty": 1.2, "no_repeat_ngram": 2, "presence_penalty": 0.3}),
        (20, {"min_tokens": 4, "ban": ["a"], "logit_bias": {"b": 2}, "n": 2}),
    ],
)
def test_honest_answers_are_verified(model, length, options):
    for completion in generate(model, PROMPTS, length, **ASKED, **options):
        result = verify(model, AnswerReceipt.from_json(receipt_of(completion).to_json()))
        assert (result.verdict, result.findings) == ("verified", [])
        assert result.num_checked == result.num_equal == len(result.receipt.tokens)
        assert result.text.startswith(completion.text)


def test_alone_together_and_with_guesses_the_receipts_are_equal(model):
    together = [receipt_of(each) for each in generate(model, PROMPTS, 20, **ASKED)]
    alone = [receipt_of(generate(model, prompt, 20, **ASKED)) for prompt in PROMPTS]
    completer = make_completer(model, PROMPTS, make_sampling({"seed": 12}, model.tokenizer), receipts=True)
    list(completer.advance(20, proposer=make_proposer(model, 4, None)))
    assert together == alone == [receipt_of(each) for each in completer.completions()]


def test_some_positions_are_checked_and_always_the_last(model, receipt):
    assert verify(model, receipt, 3).num_checked == 3
    forged = repaired(changed(receipt, "tokens.4", (receipt.tokens[4] + 1) % 29))
    assert verify(model, forged, 1).verdict == "rejected"
    assert verify(model, receipt, 99).num_checked == 20
    with pytest.raises(UsageError, match="positions must be a whole number, 1 or more"):
        verify(model, receipt, 0)


def test_ids_as_texts(model):
    on_ids = model.on_ids()
    assert verify(model, receipt_of(generate(on_ids, "1 2 3", 9, **ASKED))).verdict == "verified"


# --- changed receipts ------------------------------------------------------------------------------------------------

CHANGES: dict[str, Any] = {
    "tokens.7": 1,
    "tokens.19": 1,
    "tokens.8": 10**30,
    "request.prompt.2": 9,
    "request.sample": 1,
    "request.sampling.seed": 4,
    "request.sampling.temperature": 0.05,
    "request.sampling.top_k": 1,
    "request.max_tokens": 21,
    "request.end_ids": list(range(29)),
    "request.stop": [" "],
    "request.vocab_size": 3,
    "finish_reason": "end",
    "draws.3": 0.25,
    "logits.3": "0" * 64,
    "root": "0" * 64,
    "model.weights_sha256": "0" * 64,
    "model.config_sha256": "0" * 64,
    "model.tokenizer": "other",
    "model.precision": "bfloat16",
}


@pytest.mark.parametrize("path", CHANGES)
def test_a_change_is_found_although_the_digests_are_repaired(model, receipt, path):
    value = list("abc") if path == "request.stop" else CHANGES[path]
    forged = changed(receipt, path, value)
    assert (
        "sha256: the receipt was changed after it was written"
        in verify(model, AnswerReceipt.from_json(forged)).findings
    )
    result = verify(model, repaired(forged))
    assert result.verdict == "rejected" and not any(finding.startswith("sha256") for finding in result.findings)
    assert all("\n" not in finding for finding in result.findings)


@pytest.mark.parametrize("name", ["tokens", "logits", "draws"])
def test_a_shorter_list_is_found(model, receipt, name):
    values = receipt.to_json()
    result = verify(model, repaired(values | {name: values[name][:-1]}))
    assert any("the receipt has" in finding for finding in result.findings)


def test_an_answer_that_was_cut_is_found(model, receipt):
    values = receipt.to_json()
    cut = values | {name: values[name][:5] for name in ("tokens", "logits", "draws")}
    assert any("does not end after 5" in finding for finding in verify(model, repaired(cut)).findings)
    none = values | {"tokens": [], "logits": [], "draws": []}
    assert "the receipt has no tokens" in verify(model, repaired(none)).findings


def test_a_bit_of_the_weights_is_found(plain, model, receipt):
    other = make_decoder(plain.config, seed=4).eval().requires_grad_(False)
    other.load_state_dict(plain.decoder.state_dict())
    weight = other.get_parameter("trunk.blocks.1.feedforward.up.weight").view(torch.int32)
    weight[3, 5] ^= 1 << 16  # one bit of one number
    damaged = LanguageModel(other, plain.tokenizer, "other").strict()
    result = verify(damaged, receipt)
    assert result.verdict == "rejected" and result.num_checked == 0
    assert "other has other weights" in result.findings[0]
    claimed = changed(receipt, "model.weights_sha256", damaged.weights_digest())
    assert any("other digests" in finding for finding in verify(damaged, repaired(claimed)).findings)


# --- other machines --------------------------------------------------------------------------------------------------


def test_other_bits_of_another_machine_are_consistent_and_here_they_are_not(model, receipt, monkeypatch):
    """Digests of logits that differ in their last bits, as another processor's would."""
    monkeypatch.setattr(verification, "logits_digest", lambda logits: b"other")
    assert verify(model, receipt).verdict == "rejected"
    elsewhere = repaired(changed(receipt, "machine.processor", "another one"))
    result = verify(model, elsewhere)
    assert (result.verdict, result.num_near, result.differences) == ("consistent", 20, ["processor"])
    assert "not comparable" in str(result)
    forged = repaired(changed(elsewhere, "tokens.7", (receipt.tokens[7] + 1) % 29))
    assert verify(model, forged).verdict == "rejected"


def test_near_the_edge_of_an_interval_either_token_is_consistent(model, receipt, monkeypatch):
    """Differences of 1e-4 in all logits, which change some tokens."""
    monkeypatch.setattr(verification, "logits_digest", lambda logits: b"other")
    elsewhere = repaired(changed(receipt, "machine.processor", "another one"))
    sampler = verification.Sampler
    noise = torch.Generator().manual_seed(1)

    def shifted(self, logits, prefixes, samples):
        drift = 1e-4 * torch.rand(logits.shape, generator=noise, dtype=torch.float64)
        return sampler.__call__(self, logits.double() + drift, prefixes, samples)

    monkeypatch.setattr(verification, "Sampler", type("Shifted", (sampler,), {"__call__": shifted}))
    assert verify(model, elsewhere).verdict == "consistent"


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_model_without_strict_layers_has_no_such_receipt(plain, receipt):
    assert generate(plain, "a", 3, **ASKED).receipt is None
    with pytest.raises(UsageError, match="strict"):
        verify(plain, receipt)


def test_malformed_receipts_are_errors_of_one_line(receipt):
    values = receipt.to_json()
    for change, words in [
        ({"format": "foretell.receipt/2"}, "for one token"),
        ({"format": "foretell.receipt/9"}, "receipt.format"),
        ({"tokens": ["x"]}, "receipt.tokens.0"),
        ({"root": "xyz"}, "receipt.root"),
        ({"request": {**values["request"], "vocab_size": 0}}, "receipt.request.vocab_size"),
        ({"cheese": 1}, "unknown key 'receipt.cheese'"),
    ]:
        with pytest.raises((DataError, UsageError), match=words) as failure:
            AnswerReceipt.from_json({**values, **change})
        assert "\n" not in str(failure.value)
