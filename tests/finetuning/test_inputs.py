"""The inputs of figure 1 of Radford et al. 2018, on hand-made cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from foretell.errors import DataError
from foretell.finetuning.inputs import (
    EncodedExample,
    InputFormat,
    choose_tokens,
    fit,
    make_task_batch,
    with_input_tokens,
)
from foretell.finetuning.kind import find_kind, kind_of
from foretell.finetuning.settings import Columns, HeadSettings
from foretell.text import train_tokenizer

WORDS = train_tokenizer("words", ["a b c d"])
A, B, C, D, END = range(5)
START, DELIMITER, EXTRACT = 5, 6, 7  # the ids after the highest of the tokenizer


def format_of(task: str, pool: Any = "extract", context: int = 16, truncate: Any = None) -> InputFormat:
    tokens = choose_tokens(WORDS, pool, find_kind(task).reader.form.fewest > 1)
    return InputFormat(with_input_tokens(WORDS, tokens), tokens, context, truncate)


def encoded(inputs: InputFormat, *examples: list[str], task: str = "classify") -> list[EncodedExample]:
    return kind_of(HeadSettings(task=task, columns=Columns(texts=()))).encode(examples, inputs)


@pytest.mark.parametrize(
    ("task", "texts", "sequences"),
    [
        ("classify", ["a b"], [[START, A, B, EXTRACT - 1]]),
        ("regress", ["a b"], [[START, A, B, EXTRACT - 1]]),
        ("entailment", ["a b", "c"], [[START, A, B, DELIMITER, C, EXTRACT]]),
        ("similarity", ["a", "c d"], [[START, A, DELIMITER, C, D, EXTRACT], [START, C, D, DELIMITER, A, EXTRACT]]),
        ("choice", ["a", "b", "c"], [[START, A, DELIMITER, B, EXTRACT], [START, A, DELIMITER, C, EXTRACT]]),
    ],
)
def test_the_inputs_of_the_paper(task, texts, sequences):
    assert [list(row) for row in encoded(format_of(task), texts, task=task)[0].sequences] == sequences


@pytest.mark.parametrize("pool", ["last", "mean"])
def test_without_an_extract_token_the_text_is_read_as_it_is(pool):
    assert encoded(format_of("classify", pool), ["a b"])[0].sequences == ([A, B],)


@pytest.mark.parametrize(("truncate", "kept"), [("tail", [[A, B, C]]), ("head", [[B, C, D]]), ("middle", [[A, B, D]])])
def test_what_does_not_fit_loses_the_named_part(truncate, kept):
    assert fit([[A, B, C, D]], 3, truncate) == kept


def test_a_batch_counts_the_tokens_of_all_sequences_without_padding():
    batch = make_task_batch(encoded(format_of("choice"), ["a", "b"], ["a b", "c", "d"], task="choice"))
    assert batch.ids.shape == (2, 2, 6)
    assert (batch.tokens, batch.rows(0, 1).tokens, batch.count) == (5 + 2 * 6, 5, 2)


def test_of_two_texts_the_longer_one_is_cut():
    assert fit([[A] * 9, [B] * 2], 6, "tail") == [[A] * 4, [B] * 2]
    assert fit([[A] * 9, [B] * 9], 6, "tail") == [[A] * 3, [B] * 3]


def test_texts_that_do_not_fit_are_refused_or_counted():
    inputs = format_of("classify", context=4)
    lines = [replace(each, where=f"line {n}") for n, each in enumerate(encoded(inputs, ["a b c d"], ["a b"]), start=1)]
    with pytest.raises(
        DataError,
        match=r"1 of 2 .* context of 4, by up to 2 tokens \(line 1\); .*model.context_length 6 .*give trunc",
    ):
        inputs.check_cuts(lines)
    few = [lines[0], *[lines[1]] * 99]
    assert inputs.check_cuts(few).startswith("1 of 100 examples lose their tail")
    with pytest.raises(DataError, match="1 of 99"):
        inputs.check_cuts(few[:-1])
    with pytest.raises(DataError, match="1 of 100"):
        format_of("classify", context=4, truncate="never").check_cuts(few)
    inputs = format_of("classify", context=4, truncate="head")
    assert list(encoded(inputs, ["a b c d"])[0].sequences) == [[START, C, D, EXTRACT - 1]]
    assert "lose their head" in (line := inputs.check_cuts(lines)) and "--model.context-length 6 has room" in line


def test_an_input_that_begins_with_the_start_token_gets_no_second_one():
    tokenizer = train_tokenizer("words", ["a b"], start="<BOS>").reading(["<BOS>"])
    inputs = InputFormat(tokenizer, choose_tokens(tokenizer, "last", has_delimiter=False), 16, None)
    plain, started = encoded(inputs, ["a b"], ["<BOS> a b"])
    assert plain.sequences == started.sequences == ([*tokenizer.start_ids, A, B],)


def test_names_of_special_tokens_in_inputs_are_noted(caplog):
    tokenizer = train_tokenizer("bytes", ["a"])
    inputs = InputFormat(tokenizer, choose_tokens(tokenizer, "last", has_delimiter=False), 32, None)
    encoded(inputs, ["a <|endoftext|>"], ["b <|endoftext|>"])
    assert caplog.messages == ["'<|endoftext|>' in the text is read as ordinary text"]
