"""Constrained texts match their regular expression or JSON schema; masks equal a plain definition."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from foretell.config.sampling import SamplingConfig
from foretell.errors import ConfigError, TokenizerError, UsageError
from foretell.generation import constraint
from foretell.generation.filters import Prefix
from foretell.generation.sampling import Sampler
from foretell.inference.completion import generate
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.text import Tokenizer, train_tokenizer
from tests.toy import make_toy

pytest.importorskip("llguidance", reason="the extra `constrain` is not installed")

TEXT = 'The (year) {"was": 1984, "x": true}, [a-z] 0123456789 - é ü and so on.\n'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"was": {"type": "integer", "minimum": 0, "maximum": 999}, "x": {"type": "boolean"}},
    "required": ["was", "x"],
    "additionalProperties": False,
}
PATTERNS = [r"(19|20)[0-9]{2}", r"[a-z]{2,4} (and|so)", r"é{2,3}x?", r"(0|1){8}"]
KINDS = ["characters", "bytes", "bpe"]


def make_tokenizer(kind: str) -> Tokenizer:
    return train_tokenizer(kind, [TEXT * 20], vocab_size=300 if kind == "bpe" else None)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return make_tokenizer(request.param)


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> LanguageModel:
    return make_toy(tokenizer, context_length=64)


def test_bytes_of_tokens_add_up_to_the_text(tokenizer: Tokenizer) -> None:
    token_bytes = tokenizer.token_bytes()
    assert len(token_bytes) == tokenizer.vocab_size
    assert b"".join(token_bytes[token] for token in tokenizer.encode(TEXT)).decode() == TEXT
    assert all(token_bytes[token] == b"" for token in tokenizer.special_tokens.values())


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_continuation_matches_its_pattern(model: LanguageModel, pattern: str) -> None:
    ended = 0
    for completion in generate(model, "The", 40, n=4, regex=pattern, temperature=1.5, receipts=True):
        if completion.finish_reason in ("end", "stop"):
            ended += 1
            assert re.fullmatch(pattern, completion.text), completion.text
        for receipt in completion.receipts or []:
            receipt.check()
    assert ended > 0


def test_a_continuation_is_json_of_its_schema(model: LanguageModel) -> None:
    for completion in generate(model, "The", 50, n=3, json_schema=SCHEMA):
        assert completion.finish_reason == "stop"  # nothing can follow the last brace
        value = json.loads(completion.text)
        assert 0 <= value["was"] <= 999
        assert type(value["x"]) is bool


def test_a_text_that_may_end_ends_with_the_end_token_alone(model: LanguageModel) -> None:
    (end,) = model.tokenizer.end_ids
    completion = generate(model, "The", 9, regex="1+", logit_bias={end: 90})
    assert (completion.text, completion.finish_reason) == ("1", "end")


def test_a_text_that_is_complete_before_min_tokens_is_an_error(model: LanguageModel) -> None:
    assert generate(model, "The", 9, regex="1{3}", min_tokens=3).text == "111"
    with pytest.raises(UsageError, match=r"regex '1\{3\}' is complete at token 3, but min_tokens is 4"):
        generate(model, "The", 9, regex="1{3}", min_tokens=4)


@given(text=st.text("01", max_size=6))
def test_the_allowed_tokens_are_those_with_which_a_match_remains_possible(text: str) -> None:
    sampler = Sampler(SamplingConfig(regex="0?1{2}0*", temperature=1), None, lambda: (b"0", b"1", b"11", b"10", b""))
    assert sampler.constraint is not None
    state = sampler.constraint.state([int(character) for character in text])
    can_begin = re.compile("0?(1(1(0*)?)?)?")
    if can_begin.fullmatch(text):
        follows = [bool(can_begin.fullmatch(text + token)) for token in ("0", "1")]
        assert state.allowed.tolist()[:2] == follows
        assert state.may_end == bool(re.fullmatch("0?1{2}0*", text))
        assert not state.allowed[4]
    else:
        assert state.allowed.all()  # a guess that is not written


def test_a_receipt_shows_what_a_constraint_removed(model: LanguageModel) -> None:
    completion = generate(model, "The", 4, regex="[0-9]+", receipts=True)
    assert completion.receipts is not None
    stage = next(stage for stage in completion.receipts[0].stages() if stage.name == "regex")
    digits = [token for token, content in enumerate(model.tokenizer.token_bytes()) if content.isdigit()]
    assert stage.num_removed == model.tokenizer.vocab_size - len(digits)
    assert stage.before is not None
    assert float(stage.removed.sum()) == pytest.approx(1 - float(stage.before.softmax(-1)[digits].sum()))


def test_what_a_vocabulary_lacks_inside_a_match_ends_the_generation_with_an_error() -> None:
    sampler = Sampler(SamplingConfig(regex="1(9|8)"), None, lambda: (b"1", b"2"))
    with pytest.raises(UsageError, match="regex leaves no token to sample"):
        sampler(torch.zeros(1, 2), [Prefix([0])], [0])


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "("}, r"regex '\(' cannot be used: unclosed group"),
        ({"regex": "()"}, "matches only the empty text"),
        ({"regex": "ж"}, "regex 'ж' has no match that this vocabulary can write"),
        ({"json_schema": {"type": "strange"}}, "the JSON schema cannot be used: Invalid type: strange"),
        ({"json_schema": {"type": "integer", "minimum": 3, "maximum": 1}}, "Unsatisfiable schema: minimum"),
        ({"json_schema": {"not": {}}}, "Unimplemented keys"),
        ({"regex": "(a?){500}a{500}"}, "too many expressions constructed"),
        ({"regex": "a{100000}"}, "has 100,000 characters with its repetitions expanded; at most 20,000"),
        ({"regex": "(a{5000}){5000}"}, "has 25,000,000 characters"),
        ({"regex": "a" * 30_000}, "regex 'a{57}...' has 30,000 characters"),
        ({"json_schema": {"items": [{"pattern": "^a{100000}$"}]}}, "has 100,002 characters"),
        ({"json_schema": nested(100_000)}, "the JSON schema is nested too deeply"),
        ({"json_schema": {"const": "a" * 100_000}}, "the JSON schema has 100,013 characters; at most 65,536"),
    ],
)
def test_constraints_that_cannot_match_are_one_line(options: dict[str, Any], message: str) -> None:
    tokenizer = make_tokenizer("characters")
    with pytest.raises(UsageError, match=message) as failure:
        Sampler(SamplingConfig(**options), None, tokenizer.token_bytes)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize(
    ("pattern", "size"),
    [
        ("abc", 3),
        ("a{3}", 3),
        ("(ab){2,5}c", 11),
        ("((a{10}){10}|b){2}", 204),
        (r"\({3}", 3),
        ("a{,3}", 5),
        ("a{2,}", 2),
    ],
)
def test_the_size_of_a_pattern_counts_its_repetitions(pattern: str, size: int) -> None:
    assert constraint.written_out(pattern) == size


def test_a_limit_reached_during_a_text_is_an_error_and_not_a_dropped_constraint() -> None:
    token_bytes = tuple(bytes([byte]) for byte in range(256))
    sampler = Sampler(SamplingConfig(regex="[ab]{5}"), None, lambda: token_bytes)
    assert sampler.constraint is not None
    sampler.constraint.grammar = constraint.make_grammar(SamplingConfig(regex="(a?){500}a{500}"))
    sampler.constraint._states.clear()
    sampler.constraint.state(b"")
    with pytest.raises(UsageError, match="too many expressions constructed"):
        sampler.constraint.state(b"a")


def test_an_allowed_token_that_the_library_refuses_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = Sampler(SamplingConfig(regex="ab"), None, lambda: (b"a", b"b"))
    assert sampler.constraint is not None
    sampler.constraint.state(()).bits[:] = 255  # as if the mask were wrong
    with pytest.raises(UsageError, match="refused the token 1, which its mask had allowed"):
        sampler.constraint.state((1,))


def test_a_regex_and_a_schema_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        SamplingConfig(regex="a", json_schema={})


def test_tokens_that_are_not_their_bytes_are_refused() -> None:
    with pytest.raises(TokenizerError, match="needs a byte-level or character tokenizer"):
        generate(load("primer").on_ids(), "4 5", regex="1")
    with pytest.raises(UsageError, match="needs a tokenizer"):
        Sampler(SamplingConfig(regex="1"))


def test_without_the_extra_one_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(UsageError, match=r"pip install 'foretell\[constrain\]'"):
        Sampler(SamplingConfig(regex="1"), None, lambda: (b"1", b"without the extra"))


def test_a_module_that_the_library_lacks_is_not_a_missing_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "llguidance.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llguidance")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        Sampler(SamplingConfig(regex="1"), None, lambda: (b"1", b"with a broken library"))


def test_the_kept_states_take_a_bit_per_token_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constraint, "STATES_KEPT", 5)
    pattern = constraint.Constraint(SamplingConfig(regex="a*b"), tuple(bytes([byte]) for byte in range(256)))
    for count in range(20):
        state = pattern.state([97] * count)
        assert state.allowed.nonzero()[:, 0].tolist() == [97, 98]
        assert state.bits.nbytes == 256 // 8
    assert len(pattern._states) == 5
    assert pattern.is_complete([97] * 9 + [98])
