"""Tags of words: CoNLL and JSON Lines, where the head reads, spans by seqeval's rules, and words that do not fit."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from foretell.cli.main import run
from foretell.data.table import Row, open_table
from foretell.errors import DataError, UsageError
from foretell.finetuning.examples import Example
from foretell.finetuning.figures import scores
from foretell.finetuning.inputs import EncodedExample, InputFormat, make_task_batch
from foretell.finetuning.settings import Columns, HeadSettings, InputTokens, TuningSettings
from foretell.finetuning.tag_kind import Conll, TagFormat, TagKind, is_spans, span_counts, spans
from foretell.text import train_tokenizer

COLUMNS = Columns(texts=("tokens",), label="tags")
WORDS = train_tokenizer("words", ["a b c d"])


def kind_for(*labels: str) -> TagKind:
    return TagKind(HeadSettings(task="tag", labels=labels, pool="last", columns=COLUMNS))


# --- files -----------------------------------------------------------------------------------------------------------


def read(path: Path, content: str) -> list[Example]:
    path.write_text(content, encoding="utf-8")
    return TagKind.reader.read_all(open_table(path, otherwise=Conll()), COLUMNS)


SENTENCES = [(("EU", "rejects"), ("B-ORG", "O")), (("Bo",), ("B-PER",))]


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        (
            "x.conll",
            "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nBo NNP B-NP B-PER\n",
            ["line 3", "line 7"],
        ),
        ("train.txt", "EU\tB-ORG\r\nrejects\tO\r\n\r\nBo\tB-PER", ["line 1", "line 4"]),
        (
            "x.jsonl",
            '{"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}\n{"tokens": ["Bo"], "tags": ["B-PER"]}\n',
            ["line 1", "line 2"],
        ),
        ("x.csv", "tokens,tags\nEU rejects,B-ORG O\nBo,B-PER\n", ["line 2", "line 3"]),
    ],
)
def test_words_and_tags_from_every_format(tmp_path: Path, name: str, content: str, lines: list[str]) -> None:
    examples = read(tmp_path / name, content)
    assert [(example.texts, example.labels) for example in examples] == SENTENCES
    assert [example.where.rsplit(", ")[1] for example in examples] == lines


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.conll", "EU B-ORG\nrejects\n", "x.conll, line 2: 1 columns, but its sentence begins with 2"),
        ("x.conll", "EU\nrejects\n", "line 1: 2 words, but no list of tags in column 'tags'"),
        ("x.jsonl", '{"tokens": ["EU", "x"], "tags": ["O"]}', "line 1: 2 words, but 1 tags in column 'tags'"),
        ("x.jsonl", '{"tokens": [], "tags": []}', "line 1: there is no word in column 'tokens'"),
        ("x.jsonl", '{"tokens": ["EU", " "], "tags": ["O", "O"]}', "the text in column 'tokens, item 2' is empty"),
        ("x.jsonl", '{"tokens": ["EU"], "tags": [null]}', "the label in column 'tags' is empty"),
        ("x.jsonl", '{"tokens": 7, "tags": ["O"]}', "column 'tokens' is '7', not a text"),
        ("x.conll", "\n\n", "it has no rows"),
    ],
)
def test_rows_without_a_tag_per_word_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, content)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["O"] * 3, "every word has the tag 'O'"),
        ([f"t{index}" for index in range(1001)], "1,001 different tags, such as 't0': at most 1,000"),
    ],
)
def test_tags_that_cannot_be_learned_are_refused(tags: list[str], message: str) -> None:
    settings = HeadSettings(task="tag", columns=COLUMNS)
    with pytest.raises(DataError, match=message):
        TagKind.fit(settings, [Example(tuple("x" * len(tags)), tuple(tags), "row")])
    with pytest.raises(DataError, match="row: the label 'B-X' is not one of O"):
        kind_for("O").target(Example(("x",), ("B-X",), "row"))


@pytest.mark.parametrize(
    ("labels", "tuning", "message"),
    [
        (("B-X", "O"), {"class_weights": "balanced"}, "not for task tag"),
        (("B-X", "O"), {"word_dropout": 0.1}, "not for task tag"),
        (("NN", "VB"), {"best_by": "span_f1"}, "best_by span_f1 needs tags such as B-PER"),
        (("NN", "VB"), {"best_by": "macro_f1"}, "has no best_by macro_f1; give loss or accuracy or span_f1"),
    ],
)
def test_settings_without_a_meaning_are_refused(labels: tuple[str, ...], tuning: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kind_for(*labels).check(TuningSettings(task="tag", **tuning))
    with pytest.raises(UsageError, match="task tag has no pool mean; give last"):
        TagKind(HeadSettings(task="tag", pool="mean", columns=COLUMNS)).check(TuningSettings(task="tag"))


# --- inputs, outputs and loss ----------------------------------------------------------------------------------------


def encode(words: list[str], context: int = 16, truncate: Any = None, tokenizer: Any = WORDS) -> EncodedExample:
    return kind_for("O").encode([words], InputFormat(tokenizer, InputTokens(), context, truncate))[0]


def test_the_head_reads_the_last_token_of_each_word() -> None:
    letters = train_tokenizer("bytes", ["a"])
    example = encode(["ab", "c", "def"], tokenizer=letters)
    start = len(letters.start_ids)
    assert letters.decode(example.sequences[0][start:]) == "ab c def"
    assert [position - start for position in example.positions] == [1, 3, 7]


@pytest.mark.parametrize(("truncate", "positions"), [("tail", (0, 1, -1, -1)), ("head", (-1, -1, 0, 1))])
def test_a_word_that_does_not_fit_has_no_position(truncate: str, positions: tuple[int, ...]) -> None:
    example = encode(["a", "b", "c", "d"], context=2, truncate=truncate)
    assert (example.positions, example.cut) == (positions, 2)


def test_the_loss_is_the_mean_over_words_and_ignores_those_without_a_position() -> None:
    kind, layer = kind_for("B-X", "I-X", "O"), torch.nn.Linear(4, 3, bias=False).double()
    short = EncodedExample(([1, 2],), (2.0, 1.0), positions=(0, 1))
    cut = EncodedExample(([1, 2, 3],), (2.0, 1.0, 0.0, 0.0), positions=(0, 1, 2, -1))
    hidden = torch.randn(2, 3, 4, dtype=torch.double, requires_grad=True)
    batch = make_task_batch([short, cut])
    losses = kind.losses(kind.outputs(layer, hidden, batch), batch, 0.0)
    expected = [-layer(hidden)[1].log_softmax(-1)[at, index] for at, index in enumerate((2, 1, 0))]
    assert torch.allclose(losses[1], torch.stack(expected).mean())
    losses.sum().backward()
    assert hidden.grad is not None and hidden.grad.isfinite().all() and not hidden.grad[0, 2].any()
    assert kind.weights([short, cut], "none").tolist() == [0.8, 1.2]  # in proportion to the words that are read


# --- spans -----------------------------------------------------------------------------------------------------------


def seqeval_spans(tags: list[str]) -> list[tuple[str, int, int]]:
    """The rules of seqeval 1.2.2 (`get_entities`, `start_of_chunk`, `end_of_chunk`), as they are written there."""
    chunks, before, type_before, begin = [], "O", "", 0
    for index, tag in enumerate([*tags, "O"]):
        prefix, kind = tag[0], tag.split("-", maxsplit=1)[-1]
        pair, differs = before + prefix, type_before != kind
        if pair in ("BB", "BS", "BO", "IB", "IS", "IO") or before in "ES" or (before != "O" and differs):
            chunks.append((type_before, begin, index))
        if prefix in "BS" or pair in ("EE", "EI", "SE", "SI", "OE", "OI") or (prefix != "O" and differs):
            begin = index
        before, type_before = prefix, kind
    return chunks


def test_spans_are_those_of_seqeval() -> None:
    draw = random.Random(1)
    tags = ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC"))]
    for _ in range(2000):
        sentence = draw.choices(tags, k=draw.randrange(9))
        assert spans(sentence) == seqeval_spans(sentence), sentence
    assert is_spans([*tags, None]) and not is_spans(["O", "NN"])


def test_the_f1_of_spans_is_that_of_the_example_of_seqeval() -> None:
    right = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    predicted = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    counts = span_counts(predicted, right)
    assert counts == {"MISC": (0, 1, 1), "PER": (1, 1, 1)}
    assert scores(1, 2, 2)["f1"] == 0.5


def test_figures_count_a_word_that_did_not_fit_as_outside() -> None:
    kind, nan = kind_for("B-X", "O"), [float("nan")] * 2
    outputs = [torch.tensor([[2.0, 0.0], [0.0, 2.0], nan, nan]).numpy()]  # the last row is padding
    report = kind.report(outputs, [(0.0, 1.0, 0.0)])
    assert report["accuracy"] == pytest.approx(2 / 3)
    assert report["span_f1"] == pytest.approx(2 / 3)  # one of two spans is found
    assert report["by_span"]["X"] == {"precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "examples": 2}
    assert report["confusion"] == [[1, 0], [0, 1]]
    assert kind.baseline([(1.0, 1.0, 0.0)], [(0.0, 1.0, 0.0)])["span_f1"] == 0.0
    assert TagFormat(kind.settings).make(outputs[0], ("a", "b", "c")).tags == ("B-X", "O", None)
    assert "span_f1" not in kind_for("NN", "VB").figures(outputs, [(0.0, 1.0, 0.0)])


# --- from a file to a prediction -------------------------------------------------------------------------------------


@pytest.fixture
def foretell(tmp_path: Path, monkeypatch, capsys):
    """Run a command in an empty directory: its exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: Any) -> tuple[int, str, str]:
        code = run([str(argument) for argument in arguments])
        return (code, *capsys.readouterr())

    return call


def test_from_a_file_to_tags(foretell, base: Path, tmp_path: Path, reviews) -> None:
    rows = [text.split() for text, _ in reviews]
    tags = [["B-THING" if word in ("film", "book") else "O" for word in words] for words in rows]
    lines = (json.dumps({"tokens": words, "tags": each}) + "\n" for words, each in zip(rows, tags, strict=True))
    (tmp_path / "x.jsonl").write_text("".join(lines), encoding="utf-8")
    sentences = (
        f"{word} {tag}\n" for words, each in zip(rows, tags, strict=True) for word, tag in zip(words, each, strict=True)
    )
    (tmp_path / "all.txt").write_text("".join(sentences), encoding="utf-8")
    (tmp_path / "two.conll").write_text("the O\nfilm B-THING\n\nthe O\nplay O\n", encoding="utf-8")
    (tmp_path / "lines.txt").write_text("the film was long\n\nthe play\n", encoding="utf-8")
    short = "--training.steps 60 --training.batch-size 8 --training.learning-rate 0.02 --dev x.jsonl"
    code, out, err = foretell("finetune", base, "x.jsonl", "--task", "tag", *short.split(), "--out", "run")
    assert code == 0, err
    assert "span F1" in out and "1.000" in out and "the most frequent tag" in out
    header, _, first = out[out.index("span   precision") :].splitlines()[:3]
    assert (header.split(), first.split()[0]) == (["span", "precision", "recall", "F1", "examples"], "THING")
    assert "film  B-THING" in foretell("predict", "run", "the film was long")[1]
    assert json.loads(foretell("predict", "run", "the", "film", "--json")[1])["tags"] == ["O", "B-THING"]
    assert foretell("predict", "run", "two.conll")[1].startswith("THING film ")
    texts = foretell("predict", "run", "lines.txt")[1].splitlines()
    assert [line.split("  ")[0] for line in texts] == ["THING film", "no text", "no span"]
    evaluated = json.loads(foretell("evaluate", "run", "two.conll", "--json")[1])
    assert (evaluated["examples"], evaluated["figures"]["span_f1"]) == (2, 1.0)
    assert foretell("predict", "run", "x.jsonl", "--out", "out.jsonl")[0] == 0
    first = json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert first["predicted_tags"] == first["tags"] and len(first["probabilities"]) == len(first["tokens"])
    assert foretell("predict", "run", "x.jsonl", "--out", "out.csv")[0] == 0
    assert foretell("explain", "run", "the film", "--as-task", "--html", "pass.html")[0] == 0
    for refused in (["explain", "run", "the film", "--prediction"], ["convert", "run", "hf", "--to", "huggingface"]):
        code, _, err = foretell(*refused)
        assert code == 2 and "--task tag" in err.splitlines()[-1]
    assert foretell("predict", "run", " ")[2].endswith("foretell: the text is empty; give at least one character\n")


def test_rows_are_examples() -> None:
    assert TagKind.reader.read(Row("row 1", {"tokens": ["a"], "tags": [3]}), COLUMNS) == Example(
        ("a",), ("3",), "row 1"
    )
    assert TagKind.reader.find_columns(["id", "tokens", "ner_tags"], Columns(texts=()), "x").label == "ner_tags"
