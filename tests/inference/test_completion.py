"""`foretell.generate` and `foretell.stream`: one prompt or several, defaults, options as text, and a short repr."""

from __future__ import annotations

import copy
import re

import pytest

import foretell
from foretell.config.sampling import SamplingConfig
from foretell.config.sampling_options import SamplingOptions
from foretell.errors import ConfigError, ContextLengthError, TokenizerError, UsageError
from foretell.generation import batch_generation
from foretell.inference.completion import Completion, generate, make_completer, make_sampling, stream
from foretell.inference.query import next_tokens
from foretell.insight.explain.explain_address import explain
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.text import train_tokenizer
from foretell.trainings import train
from tests.toy import make_toy


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return make_toy()


def test_one_prompt_gives_one_completion_and_a_list_gives_a_list(model):
    completion = generate(model, "some", 5)
    assert isinstance(completion, Completion)
    assert generate(model, ["some"], 5) == [completion]
    assert generate(model, []) == []


def test_pieces_of_a_stream_add_up_to_the_completion(model):
    pieces = list(stream(model, "some", 12, seed=4))
    assert len(pieces) > 1
    assert "".join(pieces) == generate(model, "some", 12, seed=4).text


def test_prompts_join_when_others_have_ended(model, monkeypatch):
    prompts = ["some", "more", "some", "e", "so", "me"]
    expected = generate(model, prompts, 6, seed=4)
    monkeypatch.setattr(batch_generation, "MOST_JOINED", 2)
    completer = make_completer(model, prompts, SamplingConfig(seed=4))
    written = {}
    for index, _, has_ended in completer.advance(6):
        assert len(completer.continuations) <= 2
        if has_ended:
            written[index] = completer.completion(index)
            completer.forget(index)
    assert [written[index] for index in range(len(prompts))] == expected
    assert not completer.continuations


def test_without_max_tokens_the_rest_of_the_context_is_written(model):
    assert len(generate(model, "some", stop="never written").token_ids) == model.config.context_length - 3
    assert generate(model, "some").finish_reason == "length"


def test_the_keywords_are_the_fields_of_the_sampling_configuration():
    assert set(SamplingOptions.__annotations__) == set(SamplingConfig.model_fields)


def test_a_stop_string_may_be_given_alone(model):
    whole = generate(model, "some", 20, seed=1).text
    assert generate(model, "some", 20, seed=1, stop=whole[5]) == generate(model, "some", 20, seed=1, stop=[whole[5]])


@pytest.mark.parametrize("ask", [generate, stream])
@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (("x" * 60, 10), {}, ContextLengthError, "at most max_tokens 5, or use slide=True"),
        (("x", 500), {}, foretell.NoRoomError, "a prompt of 1 token and 500 new ones do not fit"),
        (("x",), {"stop": ""}, UsageError, "a stop string is empty"),
        (("x",), {"stop": "\udcc3"}, TokenizerError, "a stop string holds a lone surrogate .* the locale's encoding"),
        (("x",), {"temprature": 1}, ConfigError, "unknown key 'temprature', did you mean 'temperature'?"),
        (("x",), {"top_p": 2}, ConfigError, "top_p = 2: input should be less than or equal to 1"),
    ],
)
def test_wrong_arguments_are_refused_at_once(model, ask, arguments, options, error, message):
    with pytest.raises(error, match=message):
        ask(model, *arguments, **options)


@pytest.mark.parametrize(
    ("ask", "arguments", "options", "message"),
    [
        (stream, (["x"],), {}, "stream continues one prompt, a string, not list"),
        (generate, ([["x"]],), {}, "a list of strings"),
        (generate, ("x",), {"stop": 3}, "stop strings must be a list of strings"),
        (generate, ("x", "9"), {}, "max_tokens must be a whole number"),
        (generate, ("x",), {"n": "9"}, "n must be a whole number"),
        (generate, ("x",), {"ban": [3]}, "ban takes a list of words"),
        (generate, ("x",), {"logit_bias": 5}, "logit_bias maps tokens to numbers"),
        (Trace, (), {"replace": 3.0}, "replace maps names"),
        (Trace, (), {"replace": {"embed": 3.0}}, "replace maps names"),
        (explain, ("x", 3), {}, "'3' is not an address"),
        (explain, (3,), {}, "a text must be a string"),
    ],
)
def test_values_of_another_type_are_refused_in_one_line(model, ask, arguments, options, message):
    with pytest.raises(UsageError, match=message):
        ask(model, *arguments, **options)


def test_a_completion_prints_as_text_and_shows_as_html():
    completion = Completion("a <b", " c\n& d", [1, 2], "length")
    assert str(completion) == "a <b c\n& d"
    assert repr(completion) == "Completion('a <b', ' c\\n& d', 2 tokens, finish_reason='length')"
    assert "a &lt;b" in completion._repr_html_()
    assert "c\n&amp; d" in completion._repr_html_()
    assert len(repr(Completion("p" * 500, "t" * 500, list(range(500)), "length"))) < 150


def test_a_full_context_predicts_one_token(model):
    prompt = "x" * model.config.context_length
    completion = generate(model, prompt, 1, temperature=0)
    assert completion.token_ids == [next_tokens(model, prompt, top=1)[0].tokens[0].id]
    assert generate(model, prompt[:-1], 2, temperature=0).finish_reason == "length"
    with pytest.raises(ContextLengthError, match="at most max_tokens 1"):
        generate(model, prompt, 2)
    assert generate(model, prompt, temperature=0) == completion  # by default, what fits


def test_a_model_is_copied_while_it_generates(model):
    pieces = stream(model, "some", 40, temperature=0)
    next(pieces)
    copied = copy.deepcopy(model)
    assert "".join(pieces) in generate(model, "some", 40, temperature=0).text
    assert generate(copied, "some", 40, temperature=0) == generate(model, "some", 40, temperature=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "x"}, "unknown device 'x'; known: auto, cpu, cuda, mps"),
        ({"device": "cpuu"}, "unknown device 'cpuu', did you mean 'cpu'"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
    ],
)
def test_an_unknown_device_or_dtype_is_named(options, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        load("primer", **options)
    with pytest.raises(UsageError, match=re.escape(message)):
        train(None, steps=1, **options)


# --- tokens and words as text, and several continuations -------------------------------------------------------------


@pytest.fixture(scope="module")
def primer() -> LanguageModel:
    return load("primer", device="cpu", dtype="float32")


def test_a_biased_token_is_given_as_text_id_or_special_name(primer):
    tokenizer = primer.tokenizer
    the, end = tokenizer.encode(" the")[0], tokenizer.end_id
    for token in (" the", the, f"#{the}"):
        assert make_sampling({"logit_bias": {token: -5}}, tokenizer).logit_bias == {the: -5.0}
    assert make_sampling({"logit_bias": {tokenizer.piece(end): 2}}, tokenizer).logit_bias == {end: 2.0}


def test_a_banned_word_is_banned_alone_and_after_a_space(primer):
    tokenizer = primer.tokenizer
    banned = make_sampling({"ban": ["sequence", " of"]}, tokenizer).ban
    assert banned == tuple(tuple(tokenizer.encode(text)) for text in ("sequence", " sequence", " of"))
    characters = train_tokenizer("characters", ["the sequence"])
    assert make_sampling({"ban": ["seq"]}, characters).ban == (tuple(characters.encode("seq")),)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"logit_bias": {"two words": 1}}, UsageError, r"'two words' is \d tokens of this model: "),
        ({"logit_bias": {"": 1}}, UsageError, "'' is 0"),
        ({"logit_bias": {5000: 1}}, TokenizerError, "5000 is not a token id"),
        ({"logit_bias": {"#5000": 1}}, TokenizerError, "5000 is not a token id"),
        ({"logit_bias": {" the": 1e9}}, ConfigError, "logit_bias"),
        ({"ban": "word"}, UsageError, "ban takes a list of words"),
        ({"ban": [""]}, UsageError, "a banned word is empty"),
        ({"ban": [[]]}, ConfigError, "ban"),
        ({"min_tokens": -1}, ConfigError, "min_tokens"),
    ],
)
def test_wrong_options_are_one_line(primer, options, error, message):
    with pytest.raises(error, match=message) as failure:
        make_sampling(options, primer.tokenizer)
    assert "\n" not in str(failure.value)


def test_the_options_change_the_text(primer):
    plain = generate(primer, "The value of", 20, temperature=0).text
    assert "method" in plain
    assert "method" not in generate(primer, "The value of", 20, temperature=0, ban=["method"]).text
    assert generate(primer, "The value of", 1, temperature=0, logit_bias={" it": 90}).text == " it"


def test_a_text_cannot_end_before_min_tokens(primer):
    likely = {primer.tokenizer.end_id: 90.0}
    assert generate(primer, "The", 9, logit_bias=likely).token_ids == []
    completion = generate(primer, "The", 9, logit_bias=likely, min_tokens=4, receipts=True)
    assert (len(completion.token_ids), completion.finish_reason) == (4, "end")
    for receipt in completion.receipts or []:
        receipt.check()


def test_n_continuations_are_the_samples_of_one_prompt(primer):
    several = generate(primer, "The value of", 8, n=3, seed=2)
    assert len({completion.text for completion in several}) == 3
    assert several == generate(primer, ["The value of"] * 3, 8, seed=2)
    assert several[0] == generate(primer, "The value of", 8, seed=2)
    both = generate(primer, ["The value of", "A class"], 8, n=3, seed=2)
    assert both[:3] == several
    assert [completion.prompt for completion in both[3:]] == ["A class"] * 3
    assert generate(primer, "The", 2, n=1) == [generate(primer, "The", 2)]


def test_fewer_than_one_continuation_is_refused(primer):
    with pytest.raises(UsageError, match="n must be a whole number, 1 or more, not 0"):
        generate(primer, "The", n=0)


def test_options_left_out_are_the_defaults(primer):
    assert make_sampling({}, primer.tokenizer) == SamplingConfig()
