"""From texts to tokens: the same ids in pieces as at once, a bounded sample for the vocabulary, progress."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from foretell.config.section import make_section
from foretell.config.training import Config, DataConfig, TokenizerConfig, TrainingConfig
from foretell.data import documents, sources
from foretell.data.documents import Document
from foretell.data.sources import read_documents
from foretell.errors import TokenizerError
from foretell.generation.batch_generation import continue_prompt
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.pretraining import encoding, tokens
from foretell.pretraining.sources import make_source
from foretell.pretraining.task import Prompts, TextTask
from foretell.pretraining.tokens import spread_sample, tokenize_text
from foretell.runs.run import Run
from foretell.runs.summary import bits_per_byte, read_held_out
from foretell.session.reporter import Reporter
from foretell.text import Tokenizer, train_tokenizer
from foretell.text.encoding_pool import open_encoding
from foretell.text.tokenizer_json import special_token, with_ends, with_start

TEXT = "".join(f"Line {number} tells of cats, dogs and 🐈, don't you think?\n" for number in range(2000))


class Recorder(Reporter):
    def __init__(self) -> None:
        self.progress: list[tuple[int, int]] = []

    def tokenizing(self, done: int, total: int, seconds: float) -> None:
        self.progress.append((done, total))


@pytest.fixture(autouse=True)
def _log_from_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="foretell")


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


@pytest.mark.parametrize(("kind", "words"), [("bytes", "bits per byte"), ("words", "bits per byte are not of words")])
def test_a_loss_has_bits_per_byte_unless_tokens_leave_out_bytes(
    kind: str, words: str, file: Path, tmp_path: Path
) -> None:
    config = make_section(TokenizerConfig, {"kind": kind})
    run = Run(tmp_path)
    text = tokenize_text(lambda: read_documents([file]), config, DataConfig(), run.tokens, Reporter())
    training = TrainingConfig(steps=1, batch_size=1)
    shape = preset_config("toy", vocab_size=text.tokenizer.vocab_size)
    task = TextTask(Config(model=shape, training=training), text, make_decoder(shape, seed=1), continue_prompt)
    assert words in task.describe_loss(1.0)
    assert (bits_per_byte(1.0, read_held_out(run)) is None) == (kind == "words")


def test_every_document_is_between_the_start_and_the_end_token(tmp_path: Path) -> None:
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
    made = tokenize_text(source, TokenizerConfig(), data, tmp_path / "tokens", Reporter(), tokenizer)
    stream = made.store.split("train")
    first, second = ([start, *text.encode(), plain.end_id] for text in texts.values())
    assert stream.read(0, len(stream)).tolist() == first + second
    assert stream.document_starts.tolist() == [0, len(first)]
    prompts = Prompts(("the",), [], tokenizer, 8, continue_prompt)
    assert prompts.prompts == [tokenizer.encode_input("the")] == [[start, *b"the"]]


def test_progress_is_reported_up_to_the_end_and_the_speed_is_logged(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sources, "LARGE", 64)
    monkeypatch.setattr(documents, "BLOCK", 1000)
    monkeypatch.setattr(encoding, "SMALLEST_RATED", 1000)
    recorder = Recorder()
    config = TokenizerConfig(kind="bytes")
    tokenize_text(lambda: read_documents([file]), config, DataConfig(), tmp_path / "tokens", recorder)
    done = [count for count, _ in recorder.progress]
    assert done == sorted(done)
    assert len(done) > 100
    assert recorder.progress[-1] == (len(TEXT.encode()),) * 2
    assert caplog.messages[-1].startswith("tokenized   0.1 MB in ")
    assert caplog.messages[-1].endswith("MB/s")


def test_a_vocabulary_of_much_text_is_learned_from_a_spread_sample_and_that_is_logged(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tokens, "SAMPLE_BYTES", 20_000)
    config = TokenizerConfig(kind="bpe", vocab_size=300)
    tokenize_text(lambda: read_documents([file]), config, DataConfig(), tmp_path / "tokens", Reporter())
    assert any("learned from 0 of 0 MB, evenly spread" in line for line in caplog.messages)


@pytest.mark.parametrize("size", [10_000, 100_000, 1_000_000])
def test_a_sample_is_bounded_and_spread_over_the_whole_text(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "SAMPLE_BYTES", 50_000)
    texts = [f"{number:09} " * 100 for number in range(size // 1000)]
    sample = list(spread_sample(iter(texts), size))
    taken = sum(map(len, sample))
    assert taken == size if size <= 50_000 else 49_000 <= taken <= 52_000
    assert sample[0] == texts[0]
    assert sample[-1] in texts[-max(1, size // 50_000) :]


def test_a_pipe_is_read_once_and_used_several_times(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pipe = tmp_path / "pipe.txt"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text("from a pipe"))
    writer.start()
    with caplog.at_level(logging.INFO):
        source = make_source([pipe], DataConfig())
        assert [document.text for document in source()] == [document.text for document in source()] == ["from a pipe"]
    writer.join()
    assert "pipe.txt is read until what writes to it ends" in caplog.text


# --- several processes -----------------------------------------------------------------------------------------------


def files_of(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="documents"),
        pytest.param({"rows": True}, id="rows", marks=pytest.mark.long),
        pytest.param({"prompt_field": "text", "answer_field": "id"}, id="answers", marks=pytest.mark.long),
        pytest.param({"special": ("<|end|>",)}, id="special"),
    ],
)
def test_shards_are_the_same_bytes_for_any_number_of_processes(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "GROUP_SIZE", 2000)  # groups of several documents, and documents of several groups
    texts = [TEXT[index * 7 : index * (9 + index % 50)] + "cat<|end|>" for index in range(200)] + [TEXT * 2]
    lines = [json.dumps({"text": text, "id": f"{index}"}) for index, text in enumerate(texts)]
    (tmp_path / "x.jsonl").write_text("\n".join(lines), encoding="utf-8")
    data = make_section(DataConfig, settings)
    source = make_source([tmp_path / "x.jsonl"], data)
    tokenizer = train_tokenizer("bpe", [TEXT], vocab_size=400, special=("<|end|>",))
    for workers in (1, 2, 3):
        tokenize_text(source, TokenizerConfig(), data, tmp_path / str(workers), Reporter(), tokenizer, workers=workers)
    assert files_of(tmp_path / "1") == files_of(tmp_path / "2") == files_of(tmp_path / "3")


def test_what_is_wrong_with_a_text_is_the_same_error_in_another_process(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a cat §", encoding="utf-8")
    data = DataConfig(validation_fraction=0)
    tokenizer = train_tokenizer("characters", ["a cat"])
    errors = []
    for workers in (1, 2):
        with pytest.raises(TokenizerError) as raised:
            source = make_source([tmp_path / "x.txt"], data)
            tokenize_text(
                source, TokenizerConfig(), data, tmp_path / str(workers), Reporter(), tokenizer, workers=workers
            )
        errors.append(str(raised.value))
    assert errors[0] == errors[1]


def test_a_process_that_is_killed_is_one_line() -> None:
    def groups() -> Iterator[tuple[int, list[str]]]:
        for index in range(100):
            children = multiprocessing.active_children()
            # In Python 3.11, a pool fails if it starts a process while it learns that another was killed
            if len(children) == 2:
                for child in children:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child.pid or 0, signal.SIGKILL)
            yield index, ["a cat" * 100_000]

    with (
        pytest.raises(TokenizerError, match="a process that encodes texts has ended .*fewer workers"),
        open_encoding(train_tokenizer("bytes", ["a"]), workers=2) as pool,
    ):
        list(pool.encode(groups()))


def test_a_pool_that_has_closed_its_pipes_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(*arguments: object) -> None:
        raise OSError("handle is closed")

    monkeypatch.setattr(ProcessPoolExecutor, "submit", closed)
    with (
        pytest.raises(TokenizerError, match="a process that encodes texts has ended"),
        open_encoding(train_tokenizer("bytes", ["a"]), workers=2) as pool,
    ):
        list(pool.encode([(0, ["a cat"])]))


SEPARATED = "\n<|endoftext|>\n".join(f"text {number} of a cat" for number in range(200))


@pytest.mark.parametrize("rows", [False, True])
def test_names_of_special_tokens_that_are_learned_as_letters_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rows: bool
) -> None:
    (tmp_path / "x.txt").write_text(f"{SEPARATED} <|im_start|><BOS>", encoding="utf-8")
    config, data = make_section(TokenizerConfig, {"kind": "bytes"}), DataConfig(rows=rows)
    tokenize_text(make_source([tmp_path / "x.txt"], data), config, data, tmp_path / "t", Reporter())
    assert (
        "'<|endoftext|>' (199 times), '<|im_start|>' (1 time), '<BOS>' (1 time) in the data is read as ordinary text; "
        "--special '<|endoftext|>' reads it as the special token"
    ) in caplog.messages


def test_only_names_that_a_given_tokenizer_has_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "x.txt").write_text(f"{SEPARATED} <|im_start|>", encoding="utf-8")
    given, data = train_tokenizer("bytes", ["a"]), DataConfig()
    source = make_source([tmp_path / "x.txt"], data)
    tokenize_text(source, TokenizerConfig(), data, tmp_path / "t", Reporter(), tokenizer=given)
    assert "<|im_start|>" not in caplog.text and "'<|endoftext|>' (199 times)" in caplog.text


@pytest.mark.parametrize("start", [None, "<BOS>", "<|endoftext|>"])
def test_separated_texts_are_documents_with_one_start_and_one_end_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, start: str | None
) -> None:
    (tmp_path / "x.txt").write_text(SEPARATED + (f"\n<|endoftext|>\n{start} last" if start else ""), encoding="utf-8")
    names = dict.fromkeys(["<|endoftext|>", *([start] if start else [])])
    data = DataConfig(special=tuple(names), validation_fraction=0.1)
    config = make_section(TokenizerConfig, {"kind": "bytes", "start_token": start})
    text = tokenize_text(make_source([tmp_path / "x.txt"], data), config, data, tmp_path / "t", Reporter())
    splits = text.store.splits
    expected = 200 if start in (None, "<|endoftext|>") else 201
    assert splits["train"].documents + splits["validation"].documents == expected + (start == "<|endoftext|>")
    assert "read as ordinary text" not in caplog.text
    first = text.store.split("train").read(0, 40).tolist()
    marks = [token for token in first if token >= 256]
    starts, ends = list(text.tokenizer.start_ids), list(text.tokenizer.end_ids)
    assert marks[:4] == [*starts, *ends, *starts, *ends][:4]
