"""Multiple choice and endings against a plain computation, one question and one choice at a time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foretell.data.questions import Ending, Question, read_endings, read_questions, task_of
from foretell.errors import DataError
from foretell.evaluation.continuation import continuation_rows, evaluate_endings, likelihoods, share
from foretell.evaluation.multiple_choice import evaluate_choices
from foretell.language_model import LanguageModel
from foretell.text import train_tokenizer

QUESTIONS = [
    Question("A cat", ("sat", "ran off"), 0, "here, line 1"),
    Question("Who?\n", ("the dog", "a", "größer"), 2, "here, line 2"),
    Question("x", (" spaced", "y"), 1, "here, line 3"),
]


def logprob_by_hand(model: LanguageModel, before: list[int], after: list[int]) -> tuple[float, bool]:
    """The sum of the log-probabilities of `after`, each from all tokens before it; and whether all are likeliest."""
    total, likeliest = 0.0, True
    for place, token in enumerate(after):
        with torch.no_grad():
            logits = model.decoder(torch.tensor([before + after[:place]]))[0, -1].double()
        total += float(logits.log_softmax(-1)[token])
        likeliest &= int(logits.argmax()) == token
    return total, likeliest


def by_hand(model: LanguageModel, question: Question) -> list[float]:
    before = [256, *question.query.encode()]
    spaced = [one if question.query[-1] == "\n" or one[0] == " " else " " + one for one in question.choices]
    return [logprob_by_hand(model, before, list(one.encode()))[0] for one in spaced]


def test_a_choice_has_the_log_probability_of_its_tokens_after_the_question(model):
    found = evaluate_choices(model, QUESTIONS)
    for answer, question in zip(found.answers, QUESTIONS, strict=True):
        assert answer.logprobs == pytest.approx(by_hand(model, question), rel=1e-5)


def test_accuracy_is_the_share_of_right_answers_plain_and_for_each_byte(model):
    found = evaluate_choices(model, QUESTIONS)
    plain = normalised = 0
    for question in QUESTIONS:
        logprobs = by_hand(model, question)
        each = [value / len(one.encode()) for value, one in zip(logprobs, question.choices, strict=True)]
        plain += max(range(len(each)), key=logprobs.__getitem__) == question.gold
        normalised += max(range(len(each)), key=each.__getitem__) == question.gold
    assert (found.accuracy, found.accuracy_norm) == (pytest.approx(plain / 3), pytest.approx(normalised / 3))
    assert found.accuracy != found.accuracy_norm  # or this test could not tell the two apart


def test_the_standard_error_is_the_samples_deviation_over_the_root_of_the_count():
    assert share([True, True, False, False, True]) == (0.6, pytest.approx(math.sqrt(0.3 / 5)))
    assert share([True]) == (1.0, 0.0)


def test_a_start_token_is_what_stands_before_a_question(model, starting):
    rows = [continuation_rows(one, "A", ["b"], "here")[0] for one in (model, starting)]
    assert rows[0].ids == rows[1].ids == [256, *b"A b"]


def test_choices_begin_where_their_tokens_first_differ_from_the_questions(model):
    """' b' is one token here: a space at the question's end belongs to what is asked, for every choice."""
    tokenizer = train_tokenizer("bpe", ["a b a b a b"], vocab_size=258)
    rows = continuation_rows(replace(model, tokenizer=tokenizer), "a ", ["b", "c"], "here")
    assert [tokenizer.pieces(row.ids) for row in rows] == [
        ["<|endoftext|>", "a", "Ġb"],
        ["<|endoftext|>", "a", "Ġ", "c"],
    ]
    assert [row.first for row in rows] == [2, 2]


def test_a_question_that_is_too_long_loses_its_beginning_and_is_counted(model):
    long = Question("q" * 40 + " A cat", ("sat", "ran"), 0, "here")
    short = Question("cat", ("sat", "ran"), 0, "here")
    found = evaluate_choices(model, [long, short])
    assert found.cut == 1
    row = continuation_rows(model, long.query, long.choices, "here")[0]
    assert len(row.ids) == 17  # the last of them is only predicted
    assert bytes(row.ids[row.first :]) == b" sat"
    expected = logprob_by_hand(model, row.ids[: row.first], row.ids[row.first :])[0]
    assert found.answers[0].logprobs[0] == pytest.approx(expected, rel=1e-5)


def test_a_choice_longer_than_the_context_is_refused_by_its_line(model):
    with pytest.raises(DataError, match="line 7: a continuation of 21 tokens does not fit the context of 16"):
        evaluate_choices(model, [Question("A", ("b" * 20, "c"), 0, "x.jsonl, line 7")])


def test_rows_read_together_are_as_each_alone(model):
    rows = [continuation_rows(model, "A", ["b" * length], "here")[0] for length in (1, 9, 3, 14, 2) * 20]
    together = likelihoods(model, rows)
    for row, found in zip(rows, together, strict=True):
        assert found.logprob == pytest.approx(likelihoods(model, [row])[0].logprob, rel=1e-5)


def test_an_ending_is_right_where_each_of_its_tokens_is_the_likeliest(model):
    with torch.no_grad():
        ids = [256, *b"A "]
        for _ in range(2):
            ids.append(int(model.decoder(torch.tensor([ids]))[0, -1].argmax()))
    likely = model.tokenizer.decode(ids[3:])
    assert len(likely.encode()) == 2
    endings = [Ending("A ", likely, "here"), Ending("A ", "zz", "here")]
    found = evaluate_endings(model, endings)
    by_tokens = [logprob_by_hand(model, [256, *b"A "], list(one.ending.encode())) for one in endings]
    assert [right for _, right in by_tokens] == [True, False]
    assert found.accuracy == 0.5
    assert found.perplexity == pytest.approx(math.exp(-sum(total for total, _ in by_tokens) / 4), rel=1e-5)


def test_the_task_is_told_by_the_fields(tmp_path: Path):
    lines = {
        "choice": {"query": "a", "choices": ["b", "c"], "gold": 0},
        "ending": {"context": "a", "continuation": "b"},
        "text": {"text": "a", "query": "b", "choices": [], "gold": 0},
    }
    for task, line in lines.items():
        (tmp_path / f"{task}.jsonl").write_text("\n" + json.dumps(line) + "\n")
        assert task_of(tmp_path / f"{task}.jsonl") == task
    (tmp_path / "broken.jsonl").write_text("{")
    for name in ("broken.jsonl", "missing.jsonl", "x.txt"):
        assert task_of(tmp_path / name) == "text"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: not an object"),
        ('{"choices": ["a", "b"], "gold": 0}', "line 2: it needs the field 'query'"),
        ('{"query": "q", "choices": ["a"], "gold": 0}', "line 2: 'choices' must be a list of two or more"),
        ('{"query": "q", "choices": ["a", ""], "gold": 0}', "line 2: 'choices'"),
        ('{"query": "q", "choices": ["a", "b"], "gold": 2}', "line 2: 'gold' must be .* 0 to 1, not 2"),
        ('{"query": "q", "choices": ["a", "b"], "gold": "a"}', "line 2: 'gold'"),
    ],
)
def test_a_question_that_is_none_is_named_by_its_line(tmp_path: Path, line: str, message: str):
    good = '{"query": "q", "choices": ["a", "b"], "gold": 1}'
    (tmp_path / "q.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(DataError, match=message):
        read_questions(tmp_path / "q.jsonl")


def test_files_without_questions_are_refused(tmp_path: Path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no question"):
        read_questions(tmp_path / "empty.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        read_endings(tmp_path / "missing.jsonl")
    (tmp_path / "e.jsonl").write_text('{"context": "a", "continuation": " "}')
    with pytest.raises(DataError, match="line 1: 'continuation' is empty"):
        read_endings(tmp_path / "e.jsonl")
