"""Reading documents from Parquet: a column of a file, row group by row group, and one line for every bad file."""

from __future__ import annotations

import random
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from foretell.data.sources import read_documents
from foretell.errors import DataError


def write_table(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def texts(path: Path, text_field: str | None = None) -> list[str]:
    return [document.text for document in read_documents([path], text_field=text_field)]


def refusal(path: Path, text_field: str | None = None) -> str:
    with pytest.raises(DataError) as raised:
        texts(path, text_field)
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_every_row_is_a_document_with_its_place(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", {"id": [1, 2, 3], "text": ["one", "", "three"]}, row_group_size=2)
    documents = list(read_documents([path]))
    assert [(document.text, document.source) for document in documents] == [
        ("one", f"{path}, row 1"),
        ("three", f"{path}, row 3"),
    ]


def test_the_order_is_kept_across_row_groups_and_batches(tmp_path: Path) -> None:
    expected = [f"document {index}" for index in range(1000)]
    assert texts(write_table(tmp_path / "a.parquet", {"text": expected}, row_group_size=300)) == expected


def test_the_column_is_chosen_as_for_json_lines(tmp_path: Path) -> None:
    two = write_table(tmp_path / "two.parquet", {"body": ["b"], "title": ["t"]})
    assert texts(two, "body") == ["b"]
    assert texts(write_table(tmp_path / "one.parquet", {"body": ["b"]})) == ["b"]
    assert refusal(two) == (
        f"{two}: no column 'text' among the columns 'body', 'title'; name the right one with text_field"
    )


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_every_type_of_string_is_read(tmp_path: Path, kind: pa.DataType) -> None:
    cells = pa.array(["one", "two"]).cast(kind)
    assert texts(write_table(tmp_path / "a.parquet", {"text": cells})) == ["one", "two"]


@pytest.mark.parametrize("cells", [[1, 2], [b"one", b"two"], [["one"], ["two"]]])
def test_a_column_of_another_type_is_refused(tmp_path: Path, cells: list[Any]) -> None:
    path = write_table(tmp_path / "a.parquet", {"text": cells})
    assert refusal(path).startswith(f"{path}, row 1: field 'text' is ")
    assert refusal(path).endswith("it must be a string")


def test_a_null_is_refused_with_its_row(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", {"text": ["one", None]})
    assert refusal(path) == f"{path}, row 2: field 'text' is null; it must be a string"


def test_a_cell_that_is_not_utf8_is_refused_with_its_row(tmp_path: Path) -> None:
    cells = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.array([0, 2], pa.int32()).buffers()[1], pa.py_buffer(b"a\xff")]
    )
    path = write_table(tmp_path / "a.parquet", {"text": cells})
    assert refusal(path) == f"{path}, row 1: column 'text' is not UTF-8 (byte 1); repair or remove it"


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"]), path)
    assert "2 columns are called 'text'" in refusal(path)


def test_a_damaged_file_is_one_line(tmp_path: Path) -> None:
    words = random.Random(1)
    path = write_table(tmp_path / "a.parquet", {"text": [words.randbytes(50).hex() for _ in range(2000)]})
    content = path.read_bytes()
    for broken in (b"", b"PAR1", content[:-100], content[len(content) // 2 :], b"text" * 100):
        path.write_bytes(broken)
        assert "damaged, cut short or not parquet" in refusal(path)
    for seed in range(30):  # other bytes anywhere: a text, or one line
        changed = bytearray(content)
        for position in random.Random(seed).sample(range(len(content)), 20):
            changed[position] ^= 255
        path.write_bytes(changed)
        try:
            texts(path)
        except DataError as error:
            assert "\n" not in str(error)


def test_parquet_is_found_in_folders_and_left_out_if_it_cannot_be_read(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", {"text": ["one"]})
    write_table(tmp_path / "b.parquet", {"text": [1]})
    assert texts(tmp_path) == ["one"]
    with pytest.raises(DataError, match="b.parquet, row 1: field 'text' is a number"):
        list(read_documents([tmp_path], strict=True))


def test_without_its_package_parquet_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_table(tmp_path / "a.parquet", {"text": ["one"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert refusal(path) == f"{path}: parquet needs a package: pip install 'foretell[data]'"


def test_a_file_is_never_held_as_a_whole(tmp_path: Path) -> None:
    words = random.Random(1)
    rows = [words.randbytes(5000).hex() for _ in range(3000)]  # 30 MB in one row group
    path = write_table(tmp_path / "a.parquet", {"text": rows}, row_group_size=3000, use_dictionary=False)
    del rows
    allocated = pa.total_allocated_bytes()
    most = 0
    tracemalloc.start()
    for _ in read_documents([path]):
        most = max(most, pa.total_allocated_bytes() - allocated)
    _, python = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16e6 and python < 4e6
