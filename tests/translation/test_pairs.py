"""Pairs from columns, aligned files and zips; and the split that keeps near-duplicates together."""

from __future__ import annotations

import gzip
import json
import zipfile

import pytest

from foretell.errors import DataError, UsageError
from foretell.translation.pairs import Pair, is_held_out, normalized, read_pairs, split_pairs, without_known

COLUMNS = "Go.\tVa !\nRun!\tCours\u202f!\tCC-BY\n\nRun!\t\n"
EXPECTED = [Pair("Go.", "Va !"), Pair("Run!", "Cours\u202f!")]


@pytest.fixture
def files(tmp_path):
    """The same pairs in every form."""
    (tmp_path / "pairs.tsv").write_bytes(b"\xef\xbb\xbf" + COLUMNS.encode())
    (tmp_path / "en.txt").write_text("Go.\nRun!\n")
    (tmp_path / "fr.txt").write_text("Va !\r\nCours\u202f!\r\n", newline="")
    (tmp_path / "pairs.tsv.gz").write_bytes(gzip.compress(COLUMNS.encode()))
    for name, members in {"one.zip": ["pairs.tsv"], "two.zip": ["en.txt", "fr.txt"]}.items():
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            archive.writestr("_about.txt", "This is not a pair.")
            for member in members:
                archive.write(tmp_path / member, f"data/{member}")
    return tmp_path


@pytest.mark.parametrize("names", [["pairs.tsv"], ["en.txt", "fr.txt"], ["pairs.tsv.gz"], ["one.zip"], ["two.zip"]])
def test_every_form_gives_the_same_pairs(files, names):
    assert read_pairs([files / name for name in names]) == EXPECTED


def test_what_is_left_out_is_logged(files, caplog):
    read_pairs([files / "pairs.tsv"])
    assert caplog.messages == [
        f"byte order mark dropped: {files / 'pairs.tsv'}",
        "lines with more than two columns, of which the first two are read: 1",
        "pairs with an empty side left out: 1",
    ]


TABLES = {
    "pairs.csv": "source,target\nGo.,Va !\nRun!,Cours\u202f!\n",
    "languages.csv": "en,fr\nGo.,Va !\nRun!,Cours\u202f!\n",
    "pairs.jsonl": '{"source": "Go.", "target": "Va !"}\n{"source": "Run!", "target": "Cours\u202f!"}\n',
    "nested.jsonl": '{"translation": {"en": "Go.", "fr": "Va !"}}\n'
    '{"id": 2, "translation": {"en": "Run!", "fr": "Cours\u202f!"}}\n',
}


def test_an_empty_side_and_the_index_of_pandas_are_left_out_of_any_table(tmp_path, caplog):
    rows = [{"__index_level_0__": 7, "en": "Go.", "fr": "Va !"}, {"__index_level_0__": 3, "en": None, "fr": "Cours !"}]
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert read_pairs([tmp_path / "x.jsonl"]) == [Pair("Go.", "Va !")]
    assert "pairs with an empty side left out: 1" in caplog.text


@pytest.mark.parametrize("name", TABLES)
def test_tables_with_named_columns_give_the_same_pairs(tmp_path, name):
    (tmp_path / name).write_text(TABLES[name], encoding="utf-8")
    assert read_pairs([tmp_path / name]) == EXPECTED
    assert read_pairs([tmp_path / name], reverse=True) == [pair.reversed() for pair in EXPECTED]


@pytest.mark.parametrize("nested", [True, False])
def test_two_of_three_languages_are_chosen_by_their_columns(tmp_path, nested):
    row = '{"en": "Go.", "fr": "Va !", "de": "Geh!"}'
    path = tmp_path / "three.jsonl"
    path.write_text(f'{{"translation": {row}}}\n' if nested else f"{row}\n", encoding="utf-8")
    assert read_pairs([path], columns=["de", "en"]) == [Pair("Geh!", "Go.")]
    assert read_pairs([path], columns=["de", "en"], reverse=True) == [Pair("Go.", "Geh!")]
    with pytest.raises(DataError, match="or columns names two; its columns are 'en', 'fr', 'de'"):
        read_pairs([path], columns=["es", "en"])
    (tmp_path / "en.txt").write_text("Go.\n", encoding="utf-8")
    for names, paths in ((["en"], [path]), (["en", "fr"], [tmp_path / "en.txt"] * 2)):
        with pytest.raises(UsageError, match="columns is given twice"):
            read_pairs(paths, columns=names)


def test_two_tables_are_joined_and_not_aligned(tmp_path, files):
    first, second = tmp_path / "a.csv", tmp_path / "b.jsonl"
    first.write_text(TABLES["pairs.csv"], encoding="utf-8")
    second.write_text(TABLES["pairs.jsonl"], encoding="utf-8")
    assert read_pairs([first, second]) == read_pairs([files / "pairs.tsv", first]) == EXPECTED * 2


def test_a_file_with_two_columns_is_no_side(tmp_path):
    for name, text in {"en.txt": "Go.\nRun!\n", "both.txt": "Go.\tVa !\nRun!\tCours !\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match="both.txt has two columns; give it alone"):
        read_pairs([tmp_path / "en.txt", tmp_path / "both.txt"])


NAMED = 'id\ten\tfr\n1\t"Go."\tVa !\n2\tRun!\tCours\u202f!\n'


def test_columns_of_tsv_are_chosen_by_the_names_in_its_first_line(tmp_path, caplog):
    path = tmp_path / "named.tsv"
    path.write_text(NAMED, encoding="utf-8")
    assert read_pairs([path], columns=["en", "fr"]) == [Pair('"Go."', "Va !"), EXPECTED[1]]
    with pytest.raises(DataError, match="columns names two of its columns, which are 'id', 'en', 'fr'"):
        read_pairs([path], columns=["de", "en"])
    with pytest.raises(DataError, match="its first column has only numbers; name two"):
        read_pairs([path])
    path.write_text(NAMED.replace("en\tfr", "target\tsource"), encoding="utf-8")
    assert read_pairs([path])[1] == EXPECTED[1].reversed()
    assert caplog.messages == []


@pytest.mark.parametrize(("second", "count"), [("Go.\tVa !", 1), ("dog\tchien", 0)])
def test_a_first_line_that_may_name_the_columns_is_reported(tmp_path, caplog, second, count):
    (tmp_path / "pairs.tsv").write_text(f"english\tfrench\n{second}\n", encoding="utf-8")
    assert read_pairs([tmp_path / "pairs.tsv"])[0] == Pair("english", "french")
    reported = "the first line, 'english' and 'french', is read as a pair; if it names the columns, give both"
    assert [message.startswith(reported) for message in caplog.messages] == [True] * count


@pytest.mark.parametrize(("first", "count"), [("Go.,Va !", 1), ("english,pt-BR", 0), ("source,target", 0)])
def test_a_first_line_of_csv_that_may_be_a_pair_is_reported(tmp_path, caplog, first, count):
    (tmp_path / "pairs.csv").write_text(f"{first}\nRun!,Cours !\n", encoding="utf-8")
    assert read_pairs([tmp_path / "pairs.csv"]) == [Pair("Run!", "Cours !")]
    reported = "the first line, 'Go.', 'Va !', is read as the names of the columns"
    assert [message.startswith(reported) for message in caplog.messages] == [True] * count


def test_numbers_are_sources_where_there_are_only_two_columns(tmp_path):
    (tmp_path / "numbers.tsv").write_text("1\tone\n2\ttwo\n", encoding="utf-8")
    assert read_pairs([tmp_path / "numbers.tsv"]) == [Pair("1", "one"), Pair("2", "two")]


def test_a_nested_translation_of_three_languages_is_refused(tmp_path):
    (tmp_path / "three.jsonl").write_text('{"translation": {"en": "Go.", "fr": "Va !", "de": "Geh!"}}\n')
    with pytest.raises(DataError, match=r"a 'translation' of two texts; its columns are 'en', 'fr', 'de'|en.*fr.*de"):
        read_pairs([tmp_path / "three.jsonl"])


def test_held_out_sources_are_not_learned_from(caplog):
    pairs = [Pair("Go!", "Va !"), Pair("Run.", "Cours."), Pair("go", "Pars.")]
    assert without_known(pairs, [Pair("GO?", "Vas-y ?")]) == [Pair("Run.", "Cours.")]
    assert caplog.messages == ["pairs left out of the training because their source is held out: 2"]
    with pytest.raises(DataError, match="also held out; give other pairs as dev"):
        without_known(pairs[:1], [Pair("go", "Va.")])


WRONG = {
    "one.tsv": (b"Go.\n", "one.tsv, line 1: one column; write source, a tab and the target, or give two files"),
    "latin.tsv": (b"Go.\tAllez l\xe0\n", "latin.tsv, line 1: not UTF-8"),
    "empty.tsv": (b"\n", "holds no pair of sentences"),
    "bad.zip": (b"PK nothing", "damaged, cut short or not compressed this way"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused(tmp_path, name):
    content, message = WRONG[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        read_pairs([tmp_path / name])


def test_wrong_paths_are_refused(files):
    with pytest.raises(DataError, match="has 2 lines and .*pairs.tsv 4; they are not aligned"):
        read_pairs([files / "en.txt", files / "pairs.tsv"])
    with pytest.raises(DataError, match="no such file"):
        read_pairs([files / "missing.tsv"])
    with pytest.raises(DataError, match="is a folder"):
        read_pairs([files])
    with pytest.raises(DataError, match=r"holds 3 texts \(en.txt, fr.txt, en.txt\)"):
        read_pairs([files / "two.zip", files / "en.txt"])
    with pytest.raises(UsageError, match="give one file with two columns"):
        read_pairs([])


def test_near_duplicates_are_on_the_same_side_of_the_split():
    assert normalized("  I'm here, Tom! ") == normalized("i m HERE tom") == "i m here tom"
    pairs = [Pair(f"Sentence {number}{end}", "x") for number in range(2000) for end in (".", "!", "")]
    parts = split_pairs(pairs, 0.1)
    sides = [{normalized(pair.source) for pair in part} for part in parts.values()]
    assert sides[0] & sides[1] == set()
    assert 400 < len(parts["validation"]) < 800
    assert split_pairs(pairs, 0.1) == parts


@pytest.mark.parametrize(("fraction", "expected"), [(0, False), (1, True)])
def test_a_fraction_of_0_holds_nothing_out(fraction, expected):
    assert is_held_out("Go.", fraction) is expected
