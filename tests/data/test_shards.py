"""Token stores: reading back across shard borders, failing writes, and damage refused in one line."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretell.data.shard_writer import TokenWriter, write_index
from foretell.data.shards import TokenStore
from foretell.errors import DataError, OutputError, UsageError
from foretell.storage.files import TEMPORARY

DOCUMENTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 10, 11, 12], [13, 14]]
IDS = [token for document in DOCUMENTS for token in document]


def write_store(
    folder: Path, documents: list[list[int]] = DOCUMENTS, vocab_size: int = 100, shard_tokens: int = 5
) -> Path:
    with TokenWriter(folder, "train", vocab_size, shard_tokens) as writer:
        for document in documents:
            writer.add_document(np.array(document), text_bytes=3 * len(document))
    write_index(folder, "abc123", vocab_size, {"train": writer.record}, {"from": "a test"})
    return folder


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- writing and reading ---------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(
    documents=st.lists(st.lists(st.integers(0, 99), max_size=12), max_size=8),
    shard_tokens=st.integers(1, 9),
    data=st.data(),
)
def test_any_range_is_read_back_across_shard_borders(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], shard_tokens: int, data: st.DataObject
) -> None:
    folder = write_store(tmp_path_factory.mktemp("store"), documents, shard_tokens=shard_tokens)
    ids = [token for document in documents for token in document]
    store = TokenStore.open(folder)
    store.verify()
    stream = store.split("train")
    start = data.draw(st.integers(0, len(ids)))
    count = data.draw(st.integers(0, len(ids) - start))
    piece = stream.read(start, count)
    assert len(stream) == len(ids)
    assert piece.dtype == np.int64
    assert piece.tolist() == ids[start : start + count]
    lengths = [len(document) for document in documents if document]
    assert np.diff([*stream.document_starts.tolist(), len(ids)]).tolist() == lengths


def test_files_of_a_store(tmp_path: Path) -> None:
    assert files(write_store(tmp_path / "deep" / "store")) == [
        "index.json",
        "train-00000.npy",
        "train-00001.npy",
        "train-00002.npy",
        "train-documents.npy",
    ]


def test_shards_equal_the_files_of_numpy_save(tmp_path: Path) -> None:
    write_store(tmp_path / "store")
    shard = np.load(tmp_path / "store" / "train-00001.npy", mmap_mode="r", allow_pickle=False)
    assert shard.tolist() == IDS[5:10]
    np.save(tmp_path / "saved.npy", shard)
    assert (tmp_path / "saved.npy").read_bytes() == (tmp_path / "store" / "train-00001.npy").read_bytes()


def test_content_of_the_index(tmp_path: Path) -> None:
    index = json.loads((write_store(tmp_path / "store") / "index.json").read_text(encoding="utf-8"))
    assert {key: value for key, value in index.items() if key != "splits"} == {
        "format": 1,
        "tokenizer": "abc123",
        "vocab_size": 100,
        "dtype": "uint16",
        "extra": {"from": "a test"},
    }
    train = index["splits"]["train"]
    assert (train["tokens"], train["documents"], train["bytes"]) == (14, 4, 42)
    assert [(shard["file"], shard["tokens"]) for shard in train["shards"]] == [
        ("train-00000.npy", 5),
        ("train-00001.npy", 5),
        ("train-00002.npy", 4),
    ]


def test_attributes_of_an_opened_store(tmp_path: Path) -> None:
    store = TokenStore.open(write_store(tmp_path), fingerprint="abc123")
    assert (store.fingerprint, store.vocab_size, store.dtype, dict(store.extra)) == (
        "abc123",
        100,
        np.uint16,
        {"from": "a test"},
    )
    assert store.split("train").bytes == 42


@pytest.mark.parametrize(("vocab_size", "dtype"), [(65_536, "uint16"), (65_537, "uint32"), (2**32, "uint32")])
def test_largest_id_of_a_vocabulary(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    store = TokenStore.open(write_store(tmp_path, [[0, vocab_size - 1]], vocab_size))
    assert store.dtype == dtype
    assert store.split("train").read(0, 2).tolist() == [0, vocab_size - 1]


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64, ">i4"])
def test_ids_of_every_integer_type(tmp_path: Path, dtype: str) -> None:
    with TokenWriter(tmp_path, "train", 100) as writer:
        writer.add_document(np.array([1, 2, 99], dtype=dtype)[::-1], 3)
    write_index(tmp_path, "abc", 100, {"train": writer.record})
    assert TokenStore.open(tmp_path).split("train").read(0, 3).tolist() == [99, 2, 1]


def test_two_splits_of_which_one_is_empty(tmp_path: Path) -> None:
    with TokenWriter(tmp_path, "train", 100) as train, TokenWriter(tmp_path, "validation", 100) as validation:
        train.add_document(np.array([1, 2]), 2)
    write_index(tmp_path, "abc", 100, {"train": train.record, "validation": validation.record})
    store = TokenStore.open(tmp_path)
    store.verify()
    assert len(store.split("train")) == 2
    assert store.split("validation").read(0, 0).tolist() == []
    assert len(store.split("validation").document_starts) == 0


def test_document_without_ids_adds_only_its_bytes(tmp_path: Path) -> None:
    with TokenWriter(tmp_path, "train", 100) as writer:
        writer.add_document(np.array([1]), 5)
        writer.add_document(np.array([]), 7)
        writer.add_document(np.array([2]), 5)
    assert (writer.record.documents, writer.record.tokens, writer.record.bytes) == (2, 2, 17)


@pytest.mark.parametrize(("start", "count"), [(0, 15), (14, 1), (-1, 2), (3, -1), (2**62, 1)])
def test_reading_out_of_range_is_refused(tmp_path: Path, start: int, count: int) -> None:
    stream = TokenStore.open(write_store(tmp_path)).split("train")
    with pytest.raises(UsageError, match="'train' has 14 tokens"):
        stream.read(start, count)


def test_reading_does_not_change_the_shards(tmp_path: Path) -> None:
    stream = TokenStore.open(write_store(tmp_path)).split("train")
    stream.read(0, 5)[:] = 0
    assert stream.read(0, 5).tolist() == IDS[:5]


# --- writing that fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [100, 70_000, -1, 2**40])
def test_id_outside_the_vocabulary_is_refused_and_no_file_is_left(tmp_path: Path, token: int) -> None:
    with (
        pytest.raises(DataError, match=f"token id {token} in document 1 .* vocabulary of 100"),
        TokenWriter(tmp_path, "train", 100, shard_tokens=2) as writer,
    ):
        writer.add_document(np.array([1, 2, 3]), 3)
        writer.add_document(np.array([5, token]), 3)
    assert files(tmp_path) == []


@pytest.mark.parametrize("ids", [np.array([1.0]), np.array([[1]]), np.array(["1"])])
def test_ids_that_are_not_a_row_of_integers_are_refused(tmp_path: Path, ids: np.ndarray) -> None:
    with pytest.raises(UsageError, match="give a row of integers"), TokenWriter(tmp_path, "train", 100) as writer:
        writer.add_document(ids, 1)


@pytest.mark.parametrize("name", ["", "../train", "a/b", "Train", "train-1", "x" * 40])
def test_invalid_split_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="split name"):
        TokenWriter(tmp_path / "store", name, 100)
    assert files(tmp_path) == []


@pytest.mark.parametrize(("vocab_size", "shard_tokens"), [(0, 1), (2**32 + 1, 1), (10, 0)])
def test_invalid_sizes_are_refused(tmp_path: Path, vocab_size: int, shard_tokens: int) -> None:
    with pytest.raises(UsageError, match="vocab_size"):
        TokenWriter(tmp_path, "train", vocab_size, shard_tokens)


def test_interrupted_writer_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), TokenWriter(tmp_path, "train", 100, shard_tokens=2) as writer:
        writer.add_document(np.array([1, 2, 3]), 3)
        raise KeyboardInterrupt
    assert files(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
@pytest.mark.parametrize(
    "temporary", ["train-00000.npy.partial", "train-00001.npy.partial", "train-documents.npy.partial"]
)
def test_full_disk_is_one_line_and_temporary_files_are_removed(tmp_path: Path, temporary: str) -> None:
    (tmp_path / temporary).symlink_to("/dev/full")
    with (
        pytest.raises(OutputError, match=r"train-.*cannot be written \(No space left on device\)"),
        TokenWriter(tmp_path, "train", 100, shard_tokens=20_000) as writer,
    ):
        for _ in range(5):
            writer.add_document(np.ones(7_000, dtype=np.int64), 1)
    assert files(tmp_path) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a disk that is always full")
def test_full_disk_during_the_index_leaves_no_store(tmp_path: Path) -> None:
    with TokenWriter(tmp_path, "train", 100) as writer:
        writer.add_document(np.array([1]), 1)
    temporary = tmp_path / f"{TEMPORARY}index.json-{os.getpid()}"
    temporary.symlink_to("/dev/full")
    with pytest.raises(OutputError, match=r"could not write .*index\.json: No space left"):
        write_index(tmp_path, "abc", 100, {"train": writer.record})
    with pytest.raises(DataError, match=r"index\.json is missing"):
        TokenStore.open(tmp_path)
    assert temporary.name not in files(tmp_path)


def test_folder_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot be written"):
        TokenWriter(tmp_path / "file" / "store", "train", 100)


def test_denied_permission_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OutputError, match=r"train-00000.*\(Permission denied\)"):
        write_store(tmp_path)
    assert files(tmp_path) == []


@pytest.mark.parametrize("failing", range(10))
def test_io_failure_at_any_step_leaves_no_store_and_no_temporary_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    steps = 0

    def failing_at_last(operation: Callable) -> Callable:
        def step(*arguments: object) -> object:
            nonlocal steps
            steps += 1
            if steps == failing + 1:
                raise OSError(5, "Input/output error")
            return operation(*arguments)

        return step

    monkeypatch.setattr(os, "fsync", failing_at_last(os.fsync))
    monkeypatch.setattr(Path, "replace", failing_at_last(Path.replace))
    with pytest.raises(OutputError, match="Input/output error"):
        write_store(tmp_path)
    assert [name for name in files(tmp_path) if name.endswith(".partial")] == []
    with pytest.raises(DataError, match="no token store here"):
        TokenStore.open(tmp_path)


def test_finished_store_is_not_overwritten(tmp_path: Path) -> None:
    write_store(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(OutputError, match="already holds a token store"):
        TokenWriter(tmp_path, "train", 100)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_files_of_an_unfinished_store_are_overwritten(tmp_path: Path) -> None:
    for name in ("train-00000.npy", "train-00000.npy.partial", "train-documents.npy"):
        (tmp_path / name).write_bytes(b"remains of a writer that was killed")
    store = TokenStore.open(write_store(tmp_path))
    store.verify()
    assert store.split("train").read(0, 14).tolist() == IDS


def test_record_exists_only_after_the_split_is_written(tmp_path: Path) -> None:
    with TokenWriter(tmp_path, "train", 100) as writer, pytest.raises(UsageError, match="not written yet"):
        _ = writer.record


# --- stores that are damaged -----------------------------------------------------------------------------------------


def changed(change: Callable[[dict], object]) -> Callable[[Path], None]:
    """Damage to the index by a change of its content."""

    def damage(folder: Path) -> None:
        path = folder / "index.json"
        index = json.loads(path.read_bytes())
        change(index)
        path.write_text(json.dumps(index))

    return damage


def in_train(key: str, value: object) -> Callable[[Path], None]:
    return changed(lambda index: index["splits"]["train"].update({key: value}))


def in_shard(key: str, value: object) -> Callable[[Path], None]:
    return changed(lambda index: index["splits"]["train"]["shards"][1].update({key: value}))


def bytes_of(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(change(path.read_bytes()))

    return damage


def put_folder_in_place_of_shard(folder: Path) -> None:
    (folder / SHARD).unlink()
    (folder / SHARD).mkdir()


def rename_split(index: dict) -> None:
    index["splits"]["../train"] = index["splits"].pop("train")


SHARD = "train-00001.npy"
STARTS = "train-documents.npy"
DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("no index", lambda folder: (folder / "index.json").unlink(), "index.json is missing"),
    ("empty index", bytes_of("index.json", lambda _: b""), "not JSON"),
    ("cut index", bytes_of("index.json", lambda content: content[:-20]), "not JSON"),
    ("binary index", bytes_of("index.json", lambda _: b"\xff\x00"), "not JSON"),
    ("nested index", bytes_of("index.json", lambda _: b"[" * 10**6), "not JSON"),
    ("endless number", bytes_of("index.json", lambda _: b"1" * 10**6), "not JSON"),
    ("huge index", bytes_of("index.json", lambda _: b" " * (2**24 + 1)), "far more than"),
    ("a list", bytes_of("index.json", lambda _: b"[]"), "fields"),
    ("later format", changed(lambda index: index.update(format=2)), "format 2"),
    ("format of text", changed(lambda index: index.update(format="x" * 500)), "format 'x"),
    ("format of true", changed(lambda index: index.update(format=True)), "'format'"),
    ("no format", changed(lambda index: index.pop("format")), "fields"),
    ("unknown field", changed(lambda index: index.update(more=1)), "fields"),
    ("wrong type", changed(lambda index: index.update(dtype="uint32")), "do not agree"),
    ("object type", changed(lambda index: index.update(dtype="object")), "do not agree"),
    ("larger vocabulary", changed(lambda index: index.update(vocab_size=10**6)), "do not agree"),
    ("no vocabulary", changed(lambda index: index.update(vocab_size=0)), "do not agree"),
    ("tokenizer of a number", changed(lambda index: index.update(tokenizer=1)), "'tokenizer'"),
    ("splits of a list", changed(lambda index: index.update(splits=[])), "'splits'"),
    ("split leads out", changed(rename_split), "'../train'"),
    ("split of null", changed(lambda index: index["splits"].update(train=None)), "fields"),
    ("more tokens", in_train("tokens", 15), "disagree"),
    ("tokens of a float", in_train("tokens", 14.0), "'tokens'"),
    ("tokens of true", in_train("tokens", True), "'tokens'"),
    ("negative bytes", in_train("bytes", -1), "'bytes'"),
    ("absurd bytes", in_train("bytes", 2**60), "'bytes'"),
    ("more documents", in_train("documents", 5), STARTS),
    ("more documents than tokens", in_train("documents", 15), "disagree"),
    ("no shards", in_train("shards", []), "disagree"),
    ("shards of text", in_train("shards", [1, 2]), "shard 0"),
    ("shard leads up", in_shard("file", "../train-00001.npy"), "'../train-00001.npy'"),
    ("shard elsewhere", in_shard("file", "/etc/passwd"), "'/etc/passwd'"),
    ("shard of lines", in_shard("file", "a\nb"), "shard 1"),
    ("absurd shard", in_shard("tokens", 10**15), "disagree"),
    ("empty shard", in_shard("tokens", 0), "shard 1"),
    ("missing shard", lambda folder: (folder / SHARD).unlink(), f"{SHARD}: this file is missing"),
    ("missing starts", lambda folder: (folder / STARTS).unlink(), f"{STARTS}: this file is missing"),
    ("cut shard", bytes_of(SHARD, lambda content: content[:-1]), f"{SHARD}: 137 bytes, but 138 according to the index"),
    ("empty shard file", bytes_of(SHARD, lambda _: b""), f"{SHARD}: 0 bytes"),
    ("longer shard", bytes_of(SHARD, lambda content: content + b"\0"), f"{SHARD}: 139 bytes"),
    ("pickle in a shard", bytes_of(SHARD, lambda content: content.replace(b"<u2", b"|O ")), "header"),
    ("header bomb", bytes_of(SHARD, lambda content: content.replace(b"(5,)", b"(9**9**9,)"[:4])), "header"),
    ("shard is a folder", put_folder_in_place_of_shard, SHARD),
]


@pytest.mark.parametrize(("damage", "part"), [case[1:] for case in DAMAGE], ids=[case[0] for case in DAMAGE])
def test_damaged_store_is_refused_quickly_in_one_line(
    tmp_path: Path, damage: Callable[[Path], None], part: str
) -> None:
    damage(write_store(tmp_path))
    started = time.process_time()
    with pytest.raises(DataError) as caught:
        TokenStore.open(tmp_path)
    assert time.process_time() - started < 1
    message = str(caught.value)
    assert message.startswith(str(tmp_path))
    assert part in message
    assert "\n" not in message
    assert len(message) < 500


def test_absurd_but_consistent_size_is_refused_without_allocating(tmp_path: Path) -> None:
    write_store(tmp_path, [[1, 2, 3]])
    changed(lambda index: index["splits"]["train"].update(tokens=10**15))(tmp_path)
    changed(lambda index: index["splits"]["train"]["shards"][0].update(tokens=10**15))(tmp_path)
    with pytest.raises(DataError, match="2,000,000,000,000,128"):
        TokenStore.open(tmp_path)


def test_different_tokenizer_is_refused_with_both_fingerprints(tmp_path: Path) -> None:
    write_store(tmp_path)
    with pytest.raises(DataError, match="written with tokenizer 'abc123', but 'def456' is given; give the tokenizer"):
        TokenStore.open(tmp_path, fingerprint="def456")


def test_folder_without_a_store_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(DataError, match="no token store here"):
            TokenStore.open(path)


def test_unknown_split_names_the_nearest(tmp_path: Path) -> None:
    store = TokenStore.open(write_store(tmp_path))
    with pytest.raises(DataError, match="no split 'trian' among train, did you mean 'train'"):
        store.split("trian")


def test_shard_truncated_after_opening_is_not_mapped(tmp_path: Path) -> None:
    store = TokenStore.open(write_store(tmp_path))
    os.truncate(tmp_path / SHARD, 130)
    with pytest.raises(DataError, match=SHARD):
        store.split("train")


@pytest.mark.parametrize(
    "change",
    [
        lambda path: os.truncate(path, 130),
        lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"),
        lambda path: path.unlink(),
    ],
)
def test_shard_that_changes_while_it_is_in_use_is_an_error(tmp_path: Path, change: Callable[[Path], object]) -> None:
    write_store(tmp_path)
    os.utime(tmp_path / SHARD, ns=(0, 0))  # the clock of files is too coarse for a test
    stream = TokenStore.open(tmp_path).split("train")
    assert len(stream.read(0, len(stream))) == len(stream)
    change(tmp_path / SHARD)
    with pytest.raises(DataError, match=SHARD):
        stream.read(0, len(stream))


@pytest.mark.parametrize("name", ["train-00000.npy", SHARD, "train-00002.npy", STARTS])
def test_every_flipped_byte_is_detected(tmp_path: Path, name: str) -> None:
    path = write_store(tmp_path) / name
    content = path.read_bytes()
    for position in range(len(content)):
        path.write_bytes(content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :])
        with pytest.raises(DataError, match=name):
            TokenStore.open(tmp_path).verify()
    path.write_bytes(content)
    TokenStore.open(tmp_path).verify()


def test_verify_detects_ids_outside_the_vocabulary(tmp_path: Path) -> None:
    changed(lambda index: index.update(vocab_size=14))(write_store(tmp_path))
    with pytest.raises(DataError, match=r"train-00002\.npy: token id 14 outside the vocabulary of 14"):
        TokenStore.open(tmp_path).verify()


@pytest.mark.parametrize("starts", [[1, 3, 4, 12], [0, 3, 3, 12], [0, 4, 3, 12], [0, 3, 4, 14], [0, -3, 4, 12]])
def test_verify_detects_invalid_document_starts(tmp_path: Path, starts: list[int]) -> None:
    write_store(tmp_path)
    np.save(tmp_path / STARTS, np.array(starts, dtype="<i8"))
    in_train("documents_sha256", hashlib.sha256((tmp_path / STARTS).read_bytes()).hexdigest())(tmp_path)
    with pytest.raises(DataError, match="document starts"):
        TokenStore.open(tmp_path).verify()
