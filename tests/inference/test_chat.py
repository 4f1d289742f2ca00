"""A conversation with a model: history, what it reads, when an answer ends, and what is dropped."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.errors import ConfigError, ContextLengthError, UsageError
from foretell.inference.chat import Chat
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.text import train_tokenizer
from foretell.text.chat_template import Message, find_template, prepare_tokenizer
from tests.generation.test_scheduler import count_tokens_read


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    """A model of random weights, with a chat template."""
    tokenizer = prepare_tokenizer(train_tokenizer("bytes", ["any text"]), find_template("chatml"))
    shape: dict[str, Any] = {"num_layers": 1, "num_heads": 1, "width": 16, "context_length": 160, "init": "torch"}
    return LanguageModel(make_decoder(ModelConfig(**shape, vocab_size=tokenizer.vocab_size), seed=5).eval(), tokenizer)


def scripted(model: LanguageModel, text: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Chat:
    """A chat whose every answer is the ids of a text, special tokens included, and then x without end."""
    from foretell.inference.chat import NewestReceipts

    answer = model.tokenizer.encode(text, allow_special=True)

    def say(self: NewestReceipts, logits: Any, history: list[list[int]], samples: list[int]) -> list[int]:
        done[0] += 1
        return [answer[done[0] - 1] if done[0] <= len(answer) else model.tokenizer.encode("x")[0]]

    done = [0]
    monkeypatch.setattr(NewestReceipts, "__call__", say)
    return Chat(model, **options)


def test_an_answer_ends_with_the_turn_and_is_kept(model, monkeypatch):
    chat = scripted(model, " yes<|im_end|> more", monkeypatch, system="Be kind.")
    answer = chat.say("well?")
    assert (str(answer), answer.finish_reason, answer.dropped) == ("yes", "end", 0)
    assert chat.messages == [Message("system", "Be kind."), Message("user", "well?"), Message("assistant", "yes")]
    assert chat.to_json()["messages"][1] == {"role": "user", "content": "well?"}


def test_an_answer_ends_where_the_next_speaker_begins(model, monkeypatch):
    answer = scripted(model, "yes\n<|im_start|>user\nand", monkeypatch).say("well?")
    assert (answer.text, answer.finish_reason) == ("yes", "stop")


def test_pieces_add_up_to_the_answer_and_an_unread_rest_is_left_out(model, monkeypatch):
    assert "".join(scripted(model, " yes, no<|im_end|>", monkeypatch).stream("well?")) == "yes, no"
    chat = scripted(model, "yes, no<|im_end|>", monkeypatch)
    pieces = chat.stream("well?")
    assert [next(pieces), next(pieces)] == ["y", "e"]
    pieces.close()
    assert chat.answer is not None
    assert (chat.answer.finish_reason, chat.messages[-1].content) == ("interrupted", "ye")


def test_the_history_is_read_and_the_same_seed_repeats_it(model):
    first, second = (Chat(model, max_tokens=4, seed=3) for _ in range(2))
    assert [first.say(text).text for text in "ab"] == [second.say(text).text for text in "ab"]
    prompt = first.format.encode_prompt(first.messages)
    assert "<|im_start|>user\na<|im_end|>" in model.decode(prompt)
    first.reset()
    assert first.messages == []


def test_old_turns_are_dropped_when_the_context_is_full(model, monkeypatch, caplog):
    chat = scripted(model, "", monkeypatch, system="S", max_tokens=10)
    answers = [chat.say(f"question {number}") for number in range(5)]
    assert [answer.dropped for answer in answers][:2] == [0, 0]
    assert answers[-1].dropped in (4, 6)
    assert len(chat.messages) == 11  # nothing is lost
    assert f"does not see the oldest {answers[-1].dropped} messages" in caplog.text
    assert "<|im_start|>system\nS<|im_end|>" in model.decode(chat.format.encode_prompt(chat.messages))


def test_a_full_context_ends_an_answer(model, monkeypatch):
    answer = scripted(model, "", monkeypatch).say("go")
    assert answer.finish_reason == "context"


@pytest.mark.parametrize(
    ("text", "error", "words"), [(" ", UsageError, "empty"), ("x" * 160, ContextLengthError, "context is 160")]
)
def test_a_message_that_cannot_be_answered_changes_nothing(model, text, error, words):
    chat = Chat(model, "S")
    with pytest.raises(error, match=words):
        chat.say(text)
    assert chat.messages == [Message("system", "S")]


def test_without_a_template_the_plain_one_is_used_and_said(model, caplog):
    plain = LanguageModel(model.decoder, model.tokenizer.with_chat_template(None), "old")
    chat = Chat(plain)
    assert "old has no chat template" in caplog.text
    assert model.decode(chat.format.encode_prompt([Message("user", "hi")])) == "User: hi\nAssistant:"


@pytest.mark.parametrize(("options", "error"), [({"max_tokens": 0}, UsageError), ({"temperature": -1}, ConfigError)])
def test_wrong_options_are_refused(model, options, error):
    with pytest.raises(error):
        Chat(model, **options)


def test_what_decided_a_token_can_be_looked_at(model):
    chat = Chat(model, max_tokens=5)
    with pytest.raises(UsageError, match="no answer yet"):
        chat.receipt()
    answer = chat.say("go")
    receipt = chat.receipt(2)
    receipt.check()
    assert receipt.token == answer.token_ids[-2]
    attribution = chat.attribution(2)
    assert (attribution.token, attribution.text) == (receipt.token, model.tokenizer.text_of(receipt.token))
    with pytest.raises(UsageError, match="the last answer has 5"):
        chat.receipt(6)


def test_a_turn_reads_only_what_the_model_has_not_read_before(model, monkeypatch):
    counts = count_tokens_read(monkeypatch)
    chat = scripted(model, "yes<|im_end|>", monkeypatch)
    chat.say("a first question, of some length")
    passes = len(counts)
    chat.say("and")
    prompt = chat.format.encode_prompt(chat.messages[:-1])
    assert counts[passes] < len(prompt) // 2


def test_a_changed_model_does_not_answer_from_what_it_read_before(model, monkeypatch):
    own = LanguageModel(make_decoder(model.config, seed=6).eval(), model.tokenizer)
    chat = Chat(own, max_tokens=4, temperature=0, template="chatml")
    chat.say("a first question, of some length")
    with torch.no_grad():
        own.decoder.get_parameter("trunk.blocks.0.attention.value.weight").mul_(-3)
    fresh = Chat(own, max_tokens=4, temperature=0, template="chatml")
    fresh.messages = list(chat.messages)
    counts = count_tokens_read(monkeypatch)
    assert chat.say("and").token_ids == fresh.say("and").token_ids
    assert counts[0] == len(chat.format.encode_prompt(chat.messages[:-1]))
