"""From texts to tokens: the same ids in pieces as whole, a bounded sample for the vocabulary, a rate that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretell.config import DataConfig, TokenizerConfig, make_section
from foretell.data import documents, sources
from foretell.data.documents import Document
from foretell.data.sources import read_documents
from foretell.pretraining import prepare
from foretell.pretraining.prepare import spread_sample, tokenize_text
from foretell.pretraining.reporter import Reporter
from foretell.pretraining.samples import Samples
from foretell.text import Tokenizer, train_tokenizer
from foretell.text.tokenizer_json import special_token, with_ends, with_start

TEXT = "".join(f"Line {number} tells of cats, dogs and 🐈, don't you think?\n" for number in range(2000))


class Listener(Reporter):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.watched: list[tuple[int, int]] = []

    def note(self, text: str) -> None:
        self.lines.append(text)

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        self.watched.append((done, total))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "x.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path / "x.txt"


@pytest.mark.parametrize("kind", ["bpe", "words", "bytes", "characters"])
def test_a_large_file_gives_the_tokens_that_it_would_give_whole(
    kind: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, data = make_section(TokenizerConfig, {"kind": kind}), DataConfig(validation_fraction=0)

    def source() -> list[Document]:
        return list(read_documents([file]))

    whole = tokenize_text(source, config, data, tmp_path / "whole", Reporter())
    monkeypatch.setattr(sources, "LARGE", 64)
    monkeypatch.setattr(documents, "BLOCK", 1000)
    pieces = tokenize_text(source, config, data, tmp_path / "pieces", Reporter(), whole.tokenizer)
    first, second = (text.store.split("train") for text in (whole, pieces))
    assert first.read(0, len(first)).tolist() == second.read(0, len(second)).tolist()
    assert first.bytes == second.bytes == len(TEXT.encode())
    assert second.document_starts.tolist() == [0]


def test_every_document_stands_between_the_start_and_the_end_token(tmp_path: Path) -> None:
    texts = {"a.txt": "the cat", "b.txt": "a dog"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    plain = train_tokenizer("bytes", list(texts.values()))
    document, start = plain.to_json(), plain.vocab_size
    document["added_tokens"].append(special_token("<s>", start))
    tokenizer = Tokenizer(with_ends(with_start(document, "<s>"), ["<|endoftext|>"]))

    def source() -> list[Document]:
        return list(read_documents([tmp_path / name for name in texts]))

    data = DataConfig(validation_fraction=0)
    text = tokenize_text(source, TokenizerConfig(), data, tmp_path / "tokens", Reporter(), tokenizer)
    stream = text.store.split("train")
    first, second = ([start, *one.encode(), plain.end_id] for one in texts.values())
    assert stream.read(0, len(stream)).tolist() == first + second
    assert stream.document_starts.tolist() == [0, len(first)]
    sample = Samples(("the",), stream, tokenizer, context_length=8)
    assert sample.prompts == [tokenizer.encode_input("the")] == [[start, *b"the"]]


def test_progress_is_told_and_reaches_the_whole(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "LARGE", 64)
    monkeypatch.setattr(documents, "BLOCK", 1000)
    monkeypatch.setattr(prepare, "SMALLEST_RATED", 1000)
    listener = Listener()
    config = TokenizerConfig(kind="bytes")
    tokenize_text(lambda: read_documents([file]), config, DataConfig(), tmp_path / "tokens", listener)
    done = [one for one, _ in listener.watched]
    assert done == sorted(done)
    assert len(done) > 100
    assert listener.watched[-1] == (len(TEXT.encode()),) * 2
    assert listener.lines[-1].startswith("tokenized   0.1 MB in ")
    assert listener.lines[-1].endswith("MB/s")


def test_a_vocabulary_of_much_text_is_learned_from_a_spread_sample_and_that_is_said(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepare, "SAMPLE_BYTES", 20_000)
    listener = Listener()
    config = TokenizerConfig(kind="bpe", vocab_size=300)
    tokenize_text(lambda: read_documents([file]), config, DataConfig(), tmp_path / "tokens", listener)
    assert any("learned from 0 of 0 MB, evenly spread" in line for line in listener.lines)


@pytest.mark.parametrize("size", [10_000, 100_000, 1_000_000])
def test_a_sample_is_bounded_and_comes_from_all_over_the_text(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare, "SAMPLE_BYTES", 50_000)
    texts = [f"{number:09} " * 100 for number in range(size // 1000)]
    sample = list(spread_sample(iter(texts), size))
    taken = sum(map(len, sample))
    assert taken == size if size <= 50_000 else 49_000 <= taken <= 52_000
    assert sample[0] == texts[0]
    assert sample[-1] in texts[-max(1, size // 50_000) :]
