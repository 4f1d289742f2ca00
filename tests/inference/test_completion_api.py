"""`foretell.generate` and `foretell.stream`: one prompt or several, defaults, and how a completion shows itself."""

from __future__ import annotations

import copy
import re

import pytest

import foretell
from foretell.config import SamplingConfig
from foretell.errors import ConfigError, ContextLengthError, UsageError
from foretell.inference.completion import Completion, generate, stream
from foretell.inference.query import next_tokens
from foretell.insight.explain.explain_value import explain
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.sampling_options import SamplingOptions
from foretell.text import train_tokenizer
from foretell.trainings import train


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    tokenizer = train_tokenizer("bytes", ["any text"])
    config = preset_config("toy", vocab_size=tokenizer.vocab_size, init="torch")
    return LanguageModel(make_decoder(config, seed=3).eval(), tokenizer)


def test_one_prompt_gives_one_completion_and_a_list_gives_a_list(model):
    completion = generate(model, "some", 5)
    assert isinstance(completion, Completion)
    assert generate(model, ["some"], 5) == [completion]
    assert generate(model, []) == []


def test_pieces_of_a_stream_add_up_to_the_completion(model):
    pieces = list(stream(model, "some", 12, seed=4))
    assert len(pieces) > 1
    assert "".join(pieces) == generate(model, "some", 12, seed=4).text


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
        (("x",), {"temprature": 1}, ConfigError, "unknown key 'temprature', did you mean 'temperature'?"),
        (("x",), {"top_p": 2}, ConfigError, "top_p = 2: input should be less than or equal to 1"),
    ],
)
def test_wrong_arguments_are_refused_at_once(model, ask, arguments, options, error, message):
    with pytest.raises(error, match=message):
        ask(model, *arguments, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda model: stream(model, ["x"]), "stream continues one prompt, a string, not list"),  # type: ignore
        (lambda model: generate(model, [["x"]]), "a list of strings"),  # type: ignore
        (lambda model: generate(model, "x", stop=3), "stop strings must be a list of strings"),  # type: ignore
        (lambda model: generate(model, "x", "9"), "max_tokens must be a whole number"),  # type: ignore
        (lambda model: generate(model, "x", n="9"), "n must be a whole number"),  # type: ignore
        (lambda model: generate(model, "x", ban=[3]), "ban takes a list of words"),  # type: ignore
        (lambda model: generate(model, "x", logit_bias=5), "logit_bias maps tokens to numbers"),  # type: ignore
        (lambda model: Trace(model, replace=3.0), "replace maps names"),  # type: ignore
        (lambda model: Trace(model, replace={"embed": 3.0}), "replace maps names"),  # type: ignore
        (lambda model: explain(model, "x", 3), "'3' is not an address"),  # type: ignore
        (lambda model: explain(model, 3), "a text must be a string"),  # type: ignore
    ],
)
def test_values_of_another_type_are_refused_in_one_line(model, call, message):
    with pytest.raises(UsageError, match=message):
        call(model)


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
