"""Multiple choice and endings, compared with a plain computation of one choice at a time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from foretell.config.training import DataConfig
from foretell.data import questions
from foretell.data.questions import Ending, Question, choose_task, first_fields, read_endings, read_questions, task_of
from foretell.errors import ContextLengthError, DataError
from foretell.evaluation.multiple_choice import (
    ContinuationRow,
    continuation_rows,
    evaluate_choices,
    evaluate_endings,
    in_reading_order,
    score_rows,
    share,
)
from foretell.inference.query import score
from foretell.language_model import LanguageModel
from foretell.text import id_tokenizer, train_tokenizer

QUESTIONS = [
    Question("A cat", ("sat", "ran off"), 0, "here, line 1", separator=" "),
    Question("Who?\n", ("the dog", "a", "größer"), 0, "here, line 2"),
    Question("x", (" spaced", "y"), 1, "here, line 3"),
]


def logprob_by_hand(model: LanguageModel, before: list[int], after: list[int]) -> tuple[float, bool]:
    """The sum of the log-probabilities of `after`, each given all tokens before it; and whether all are most likely."""
    total, is_greedy = 0.0, True
    for index, token in enumerate(after):
        with torch.no_grad():
            logits = model.decoder(torch.tensor([before + after[:index]]))[0, -1].double()
        total += float(logits.log_softmax(-1)[token])
        is_greedy &= int(logits.argmax()) == token
    return total, is_greedy


def by_hand(model: LanguageModel, question: Question) -> list[float]:
    before, answers = list(question.query.encode()), [question.separator + choice for choice in question.choices]
    return [logprob_by_hand(model, before, list(answer.encode()))[0] for answer in answers]


def test_a_choice_has_the_log_probability_of_its_tokens_after_the_question(model):
    result = evaluate_choices(model, QUESTIONS)
    for answer, question in zip(result.answers, QUESTIONS, strict=True):
        assert answer.logprobs == pytest.approx(by_hand(model, question), rel=1e-5)


def test_accuracy_is_the_share_of_right_answers_plain_and_per_byte(model):
    result = evaluate_choices(model, QUESTIONS)
    plain = normalised = 0
    for question in QUESTIONS:
        logprobs = by_hand(model, question)
        per_byte = [value / len(choice.encode()) for value, choice in zip(logprobs, question.choices, strict=True)]
        plain += max(range(len(per_byte)), key=logprobs.__getitem__) == question.gold
        normalised += max(range(len(per_byte)), key=per_byte.__getitem__) == question.gold
    assert (result.accuracy, result.accuracy_norm) == (pytest.approx(plain / 3), pytest.approx(normalised / 3))
    assert result.accuracy != result.accuracy_norm  # otherwise this test could not tell them apart


def test_the_standard_error_is_the_standard_deviation_over_sqrt_count():
    assert share([True, True, False, False, True]) == (0.6, pytest.approx(math.sqrt(0.3 / 5)))
    assert share([True]) == (1.0, 0.0)


def test_a_question_comes_after_the_start_token_and_an_empty_one_after_the_end_token(model, starting):
    rows = [continuation_rows(each, "A", ["b"], "here")[0] for each in (model, starting)]
    assert [row.ids for row in rows] == [[*b"Ab"], [256, *b"Ab"]]
    rows = [continuation_rows(each, "", ["Ab"], "here")[0] for each in (model, starting)]
    assert [row.ids for row in rows] == [[256, *b"Ab"]] * 2


def with_words(model: LanguageModel) -> LanguageModel:
    """' b' is one token here."""
    return replace(model, tokenizer=train_tokenizer("bpe", ["a b a b a b"], vocab_size=258))


def test_choices_are_scored_from_the_same_token(model):
    """The space at the question's end belongs to every choice, because it is in one token with one of them."""
    model = with_words(model)
    rows = continuation_rows(model, "a ", ["b", "c"], "here")
    assert [model.tokenizer.pieces(row.ids) for row in rows] == [["a", "Ġb"], ["a", "Ġ", "c"]]
    assert [row.first for row in rows] == [1, 1]


@pytest.mark.parametrize(("context", "continuation"), [("a", " b"), ("a ", "b"), ("a", " b a")])
def test_a_pair_has_the_score_of_its_tokens_in_the_whole_text(model, context: str, continuation: str):
    model = with_words(model)
    (scored,) = score_rows(model, continuation_rows(model, context, [continuation], "here"))
    tokens = score(model, context + continuation).tokens
    assert scored.logprob == pytest.approx(sum(token.logprob or 0 for token in tokens), rel=1e-5)


def test_an_answer_is_scored_as_written(model):
    for context, continuation in (("re", "turn"), ("我", "喜"), ("ACG", "T")):
        (row,) = continuation_rows(model, context, [continuation], "here")
        assert bytes(row.ids) == (context + continuation).encode() and row.first == len(context.encode())


def test_answers_without_white_space_before_them_are_counted(model, caplog):
    caplog.set_level("INFO")
    joined, split = Question("A cat", ("sat", "ran"), 0, "here"), Question("A cat ", ("sat", "ran"), 0, "here")
    evaluate_choices(model, [joined, split, Question("猫", ("狗", "鸟"), 0, "here"), replace(joined, separator=" ")])
    assert "1 of 4 answers follow their question without white space" in caplog.text


def test_a_question_that_is_too_long_loses_its_beginning_and_is_counted(model):
    long = Question("q" * 40 + " A cat", (" sat", " ran"), 0, "here")
    short = Question("cat", ("sat", "ran"), 0, "here")
    result = evaluate_choices(model, [long, short])
    assert result.cut == 1
    row = continuation_rows(model, long.query, long.choices, "here")[0]
    assert len(row.ids) == 17  # the last of them is only predicted
    assert bytes(row.ids[row.first :]) == b" sat"
    expected = logprob_by_hand(model, row.ids[: row.first], row.ids[row.first :])[0]
    assert result.answers[0].logprobs[0] == pytest.approx(expected, rel=1e-5)


def test_questions_with_a_choice_longer_than_the_context_are_left_out_and_counted(model, caplog):
    long, short = Question("A", ("b" * 20, "c"), 0, "x.jsonl, line 7"), Question("cat", ("sat", "ran"), 0, "here")
    result = evaluate_choices(model, [long, short])
    assert (result.left_out, len(result.answers), result.to_json()["left_out"]) == (1, 1, 1)
    assert result.answers == evaluate_choices(model, [short]).answers
    assert str(result).splitlines()[-1].split()[:5] == ["left", "out", "1", "a", "continuation"]
    reason = "x.jsonl, line 7: a continuation of 20 tokens does not fit the context of 16"
    assert f"1 of 2 are left out, the first: {reason}" in caplog.text
    endings = [Ending("A", "b" * 20, "x"), Ending("The cat", "sat", "here")]
    assert (evaluate_endings(model, endings).questions, evaluate_endings(model, endings).left_out) == (1, 1)
    with pytest.raises(ContextLengthError, match=reason):
        evaluate_choices(model, [long])


def test_rows_read_together_score_the_same_as_alone(model):
    rows = [continuation_rows(model, "A", ["b" * length], "here")[0] for length in (1, 9, 3, 14, 2) * 20]
    together = score_rows(model, rows)
    for row, scored in zip(rows, together, strict=True):
        assert scored.logprob == pytest.approx(score_rows(model, [row])[0].logprob, rel=1e-5)


def test_a_text_that_several_continuations_follow_is_read_once(long_model):
    query = "Who was it, of all those who had come to the house that evening? " * 3
    question = Question(query, ("one", "two", "x" * 9), 0, "here")
    read = list[int]()
    long_model.decoder.embed.register_forward_hook(lambda _, given, __: read.append(given[0].numel()))
    together = evaluate_choices(long_model, [question, replace(question, query="Another " + query)])
    rows = continuation_rows(long_model, query, question.choices, "here")
    assert sum(read) < 3 * len(rows[0].ids)  # six texts; passes are filled up to the longest row
    alone = [score_rows(long_model, [row])[0].logprob for row in rows]
    assert together.answers[0].logprobs == pytest.approx(alone, rel=1e-5)


def test_progress_counts_rows(model):
    rows = continuation_rows(model, "AB", ["b", "c" * 9, "d" * 4], "here")
    told = list[tuple[int, int]]()
    score_rows(model, rows, lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (3, 3)]  # once per step in which rows end
    assert score_rows(model, []) == []


def test_continuations_of_one_text_do_not_follow_each_other():
    rows = [ContinuationRow([text, text, choice], 2) for text in range(70) for choice in range(1 + text % 3)]
    order = list(in_reading_order(rows))
    assert [sum(rows[index].ids[2] == 0 for index in members) for members in order] == [32, 32, 6]
    assert sorted(index for members in order for index in members) == list(range(len(rows)))
    turns = [rows[index].ids[2] for index in order[0]]
    assert turns == sorted(turns)


def test_a_continuation_that_nothing_precedes_is_refused(model):
    of_ids = replace(model, tokenizer=id_tokenizer(model.config.vocab_size))  # without a start or end token
    with pytest.raises(DataError, match="line 3: nothing comes before"):
        continuation_rows(of_ids, "", ["7", "8"], "x.jsonl, line 3")


def test_an_ending_is_right_if_each_of_its_tokens_is_the_most_likely(model):
    with torch.no_grad():
        ids = [*b"A "]
        for _ in range(2):
            ids.append(int(model.decoder(torch.tensor([ids]))[0, -1].argmax()))
    likely = model.tokenizer.decode(ids[2:])
    assert len(likely.encode()) == 2
    endings = [Ending("A ", likely, "here"), Ending("A ", "zz", "here")]
    result = evaluate_endings(model, endings)
    by_tokens = [logprob_by_hand(model, [*b"A "], list(item.ending.encode())) for item in endings]
    assert [right for _, right in by_tokens] == [True, False]
    assert result.accuracy == 0.5
    assert result.perplexity == pytest.approx(math.exp(-sum(total for total, _ in by_tokens) / 4), rel=1e-5)


def task_in(path: Path) -> str:
    return task_of(path, first_fields(path))


def test_the_fields_of_a_file_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n')
    read = []
    monkeypatch.setattr(questions, "first_fields", lambda path: read.append(path) or first_fields(path))
    assert choose_task(tmp_path / "x.jsonl", None, None, DataConfig(), None) == "text"
    assert read == [tmp_path / "x.jsonl"]


def test_the_task_follows_from_the_fields(tmp_path: Path):
    lines = {
        "choice": {"query": "a", "choices": ["b", "c"], "gold": 0},
        "ending": {"context": "a", "continuation": "b"},
        "text": {"text": "a", "query": "b", "choices": [], "gold": 0},
    }
    for task, line in lines.items():
        (tmp_path / f"{task}.jsonl").write_text("\n" + json.dumps(line) + "\n")
        assert task_in(tmp_path / f"{task}.jsonl") == task
    (tmp_path / "broken.jsonl").write_text("{")
    for name in ("broken.jsonl", "missing.jsonl", "x.txt"):
        assert task_in(tmp_path / name) == "text"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[]", "line 2: a list, not an object"),
        ('{"choices": ["a", "b"], "gold": 0}', "line 2: it needs the field 'query'"),
        ('{"query": "q", "choices": ["a"], "gold": 0}', "line 2: 'choices' must be a list of two or more"),
        ('{"query": "q", "choices": ["a", ""], "gold": 0}', "line 2: 'choices'"),
        ('{"query": "q", "choices": ["a", "b"], "gold": 2}', "line 2: 'gold' must be .* 0 to 1, not 2"),
        ('{"query": "q", "choices": ["a", "b"], "gold": "a"}', "line 2: 'gold'"),
    ],
)
def test_an_invalid_question_is_named_by_its_line(tmp_path: Path, line: str, message: str):
    good = '{"query": "q", "choices": ["a", "b"], "gold": 1}'
    (tmp_path / "q.jsonl").write_text(f"{good}\n{line}\n")
    with pytest.raises(DataError, match=message):
        read_questions(tmp_path / "q.jsonl")


def test_files_without_questions_are_refused(tmp_path: Path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no question"):
        read_questions(tmp_path / "empty.jsonl")
    with pytest.raises(DataError, match="no such file"):
        read_endings(tmp_path / "missing.jsonl")
    (tmp_path / "e.jsonl").write_text('{"context": "a", "continuation": ""}')
    with pytest.raises(DataError, match="line 1: 'continuation' is empty"):
        read_endings(tmp_path / "e.jsonl")


# --- benchmarks as they are published --------------------------------------------------------------------------------

HELLASWAG = {
    "ind": 24,
    "activity_label": "Roof shingle removal",
    "ctx_a": "A man is sitting on a roof.",
    "ctx_b": "he",
    "ctx": "A man is sitting on a roof. he",
    "split": "val",
    "label": "3",
    "endings": [
        "is using wrap to wrap a pair of skis.",
        "is ripping tiles.",
        "holds a cube.",
        "[step] starts pulling.",
    ],
}
WINOGRANDE = {
    "qID": "x",
    "sentence": "Sarah was a better surgeon than Maria so _ always got the easier cases.",
    "option1": "Sarah",
    "option2": "Maria",
    "answer": "2",
}
MMLU = """What is 1+1?,1,2,3,4,B
"Which is it, really?",a,b,"c, d",e,C
"""


def test_hellaswag_is_read_as_published(tmp_path: Path):
    path = tmp_path / "hellaswag.jsonl"
    path.write_text(json.dumps(HELLASWAG) + "\n" + json.dumps(HELLASWAG | {"label": 0}) + "\n")
    assert task_in(path) == "choice"
    question, other = read_questions(path)
    assert question.separator == " " and read_questions(path, "")[0].separator == ""
    assert question.query == "Roof shingle removal: A man is sitting on a roof. He"
    assert question.choices[3].strip() == "starts pulling."
    assert (question.gold, other.gold) == (3, 0)
    path.write_text(json.dumps(HELLASWAG | {"label": ""}))
    with pytest.raises(DataError, match="line 1: 'label' is '', .* the test set has none"):
        read_questions(path)


def test_winogrande_compares_the_rest_of_the_sentence(model, tmp_path: Path):
    path = tmp_path / "winogrande.jsonl"
    path.write_text(json.dumps(WINOGRANDE))
    assert task_in(path) == "choice"
    question = read_questions(path)[0]
    assert (question.choices, question.gold) == (("Sarah", "Maria"), 1)
    assert question.ending == "always got the easier cases."
    short = replace(question, query="So ", choices=("A", "Bo"), ending="z")
    expected = [logprob_by_hand(model, list(f"So {name}".encode()), list(b" z"))[0] for name in ("A", "Bo")]
    assert evaluate_choices(model, [short]).answers[0].logprobs == pytest.approx(expected, rel=1e-5)
    path.write_text(json.dumps(WINOGRANDE | {"sentence": "no blank"}))
    with pytest.raises(DataError, match="line 1: a WinoGrande question needs a sentence with _"):
        read_questions(path)


def test_winogrande_is_read_as_llm_foundry_has_it(tmp_path: Path):
    path = tmp_path / "winogrande.jsonl"
    options = ["Sarah was better than Maria so Sarah", "Sarah was better than Maria so Maria"]
    path.write_text(json.dumps({"context_options": options, "continuation": "got it.", "gold": 1}))
    assert task_in(path) == "choice"
    (question,) = read_questions(path)
    assert (question.query, question.choices, question.gold) == ("", tuple(options), 1)
    assert question.separator + str(question.ending) == " got it."
    path.write_text(json.dumps({"context_options": options, "continuation": "", "gold": 1}))
    with pytest.raises(DataError, match="'continuation' is empty"):
        read_questions(path)


def test_mmlu_is_read_without_a_header(tmp_path: Path):
    path = tmp_path / "mmlu.csv"
    path.write_text(MMLU)
    assert task_in(path) == "choice"
    first, second = read_questions(path)
    assert first.query == "What is 1+1?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer:"
    assert (first.choices, first.gold, second.gold) == (("A", "B", "C", "D"), 1, 2)
    assert first.separator == " "
    path.write_text(MMLU + "too,short,B\n")
    with pytest.raises(DataError, match="line 3: a row of MMLU"):
        read_questions(path)
    path.write_text("text,label\na,b\n")
    assert task_in(path) == "text"
