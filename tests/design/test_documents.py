"""The documents are correct: their commands run, their file trees match the repository, and their links resolve."""

from __future__ import annotations

import io
import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from foretell.cli.example_files import EXAMPLES
from foretell.cli.main import VERBS, run
from foretell.convert import quantize
from foretell.lessons.sort import SortLesson

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
LESSONS = sorted((ROOT / "src" / "foretell" / "lessons").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Trainings in the documents are shortened here; the test is that the command is correct
SHORT = ["--steps", "2", "--training.batch-size", "2"]
SMALL = ["--size", "toy"]
INCLUDED = {"primer", "atlas", "almanac"}
TABLES = ["reviews.csv", "stars.csv", "entailment.csv", "pairs.csv", "choices.jsonl"]
ROWS_TUNED = 121  # of 600 rows and more in each table: twenty commands evaluate all
ROWS = ROOT / "docs" / "rows.md"
GENERATION = ROOT / "docs" / "generation.md"
TUNING = ROOT / "bench" / "tables.py"
ROWS_FILES = {"toy.txt": "text", "toy.toml": "toml", "questions.csv": "csv"}  # shown on that page, in these languages
TEXT = "Once upon a time there was a cat. It sat on a mat, and the dog sat on a log.\n" * 80

REPLY = "0.24"  # to every exercise of a lesson


def blocks(document: Path, language: str) -> list[str]:
    """The contents of a document's fenced blocks in one language."""
    return [body for name, body in BLOCK.findall(document.read_text(encoding="utf-8")) if name == language]


def commands(document: Path) -> list[list[str]]:
    """The commands after `$ ` in console blocks, in order."""
    lines = [line for body in blocks(document, "console") for line in body.splitlines()]
    return [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]


def shortened(command: list[str]) -> list[str]:
    """A training command with few steps and a small model, or the check of one lesson; other commands unchanged."""
    if command[1:] == ["lesson", "--check"]:  # tests/lessons checks all, some of which train for half a minute
        return [*command[:2], "smallest", "--check"]
    is_tuned = command[1] == "finetune"
    trains = command[1] == "train" and "--show-batch" not in command
    if "auto" in command or not (is_tuned or trains):
        return command
    kept = list(command)
    for option in ("--minutes", "--size", "--steps", "--epochs"):
        if option in kept:
            index = kept.index(option)
            del kept[index : index + 2]
    short = SHORT[:2] if "translate" in command else SHORT  # its batches are counted in tokens
    return kept + short + ([] if is_tuned or "--start-from" in command else SMALL)


@pytest.fixture
def working_directory(tmp_path, monkeypatch, gpt2_directory) -> Path:
    """The working directory that the documents assume: my.txt, tables, conversations, and a GPT-2 directory, gpt2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quantize, "MEASURED_TOKENS", 1000)
    monkeypatch.setattr(SortLesson, "steps", 2)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{REPLY}\n" * 20))
    (tmp_path / "my.txt").write_text(TEXT, encoding="utf-8")
    shutil.copytree(gpt2_directory, tmp_path / "gpt2")
    months = [f"{1949 + month // 12}-{month % 12 + 1:02},{100 + month + 9 * (month % 12)}" for month in range(144)]
    for name, part in {"passengers": months, "past": months[:120], "later": months[120:]}.items():
        (tmp_path / f"{name}.csv").write_text("\n".join(["Month,Passengers", *part]), encoding="utf-8")
    rows = [{"instruction": f"Count to {n}.", "input": "", "output": "One, two."} for n in range(24)]
    (tmp_path / "instruction-data.json").write_text(json.dumps(rows), encoding="utf-8")
    pairs = [f"the cat {number}\tle chat {number}" for number in range(60)]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs), encoding="utf-8")
    (tmp_path / "test.tsv").write_text("the cow 1\tle chat 1\n", encoding="utf-8")
    (tmp_path / "dev.tsv").write_text("the dog 1\tle chien 1\n", encoding="utf-8")
    runpy.run_path(str(TUNING))  # writes tables of labelled rows
    for table in (tmp_path / name for name in TABLES):
        lines = table.read_text(encoding="utf-8").splitlines(keepends=True)
        table.write_text("".join(lines[:ROWS_TUNED]), encoding="utf-8")
    (tmp_path / "schema.json").write_text(blocks(GENERATION, "json")[0], encoding="utf-8")
    for name, language in ROWS_FILES.items():
        (tmp_path / name).write_text(blocks(ROWS, language)[0], encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    "document", [page for page in [*DOCUMENTS, *LESSONS] if page not in (README, ROWS)], ids=lambda path: path.name
)
def test_every_command_runs(document, working_directory, capfd):
    run_commands(document, capfd)


def test_every_command_of_the_readme_runs_in_a_fresh_folder(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(quantize, "MEASURED_TOKENS", 1000)
    run_commands(README, capfd)


def test_every_file_that_the_readme_reads_is_written_by_the_demo():
    named = set(re.findall(r"(?<= )[\w-]+\.(?:csv|tsv|jsonl|json|txt)\b", code_of(README)))
    others = {"forecast.csv", "predicted.csv", "constraints.txt"}  # two outputs, and a file of the project
    assert named - others <= set(EXAMPLES)
    elsewhere = "".join(map(code_of, DOCUMENTS)) + "".join(map(code_of, LESSONS))
    assert [name for name in EXAMPLES if name not in elsewhere] == []


def run_commands(document, capfd):
    for command in commands(document):
        assert command[0] == "foretell", command
        assert command[1] != "serve", "a server does not end; show it in a block of sh, which is not run"
        assert run(shortened(command)[1:]) == 0, (command, capfd.readouterr().err)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_python_example_runs(document, working_directory, capsys):
    names = {"__name__": "example"}  # shared by the examples of a page, as for its reader
    for body in blocks(document, "python"):
        exec(compile(body, str(document), "exec"), names)


def shown_outputs(document: Path) -> list[tuple[list[str], list[str]]]:
    """Each command of the console blocks with the lines shown below it."""
    outputs: list[tuple[list[str], list[str]]] = []
    for body in blocks(document, "console"):
        for line in body.splitlines():
            if line.startswith("$ "):
                outputs.append((shlex.split(line[2:], comments=True), []))
            else:
                outputs[-1][1].append(line)
    return outputs


@pytest.mark.parametrize(("page", "least"), [("README.md", 3), ("docs/inference.md", 2)])
def test_a_page_shows_the_real_output_of_the_included_models(page, least, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    run(["demo", "--files"])
    shown = [(command, lines) for command, lines in shown_outputs(ROOT / page) if lines and {*command} & INCLUDED]
    assert len(shown) >= least
    for command, lines in shown:
        capfd.readouterr()
        run(command[1:])
        real = [without_rounding_digits(line.rstrip()) for line in capfd.readouterr().out.splitlines()]
        real = [*real[: len(lines) - 1], "..."] if lines[-1] == "..." else real
        assert [without_rounding_digits(line) for line in lines] == real, command


def test_the_readme_is_short_and_so_are_its_outputs():
    text = README.read_text(encoding="utf-8")
    recorded = [body for body in blocks(README, "text") if body.startswith("$ ")]
    outputs = [lines for _, lines in shown_outputs(README)]
    outputs += [part.splitlines()[1:] for body in recorded for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]]
    assert len(text.splitlines()) <= 180
    assert len(recorded) >= 2 and all(len(lines) <= 8 for lines in outputs)


@pytest.mark.parametrize(("page", "least"), [("lessons.md", 3), ("class.md", 2)])
def test_the_pages_on_lessons_show_real_exercises_and_checks(page, least, working_directory, capfd):
    outputs = shown_outputs(ROOT / "docs" / page)
    shown = [(command, lines) for command, lines in outputs if "smallest" in command and lines]
    assert len(shown) >= least
    for command, lines in shown:
        capfd.readouterr()
        assert run(command[1:]) == 0
        assert [line for line in lines if line != REPLY] == capfd.readouterr().out.splitlines(), command


def test_the_page_about_rows_shows_the_real_output(working_directory, capfd):
    for command, lines in shown_outputs(ROWS):
        capfd.readouterr()
        assert run(command[1:]) == 0, command
        captured = capfd.readouterr()
        real = [line.rstrip() for line in (captured.err + captured.out).splitlines()]
        assert [line for line in lines if line != "..." and rounded(line) not in map(rounded, real)] == [], command


def rounded(text: str) -> str:
    """The text without digits that differ between kernels."""
    return re.sub(r"(?<=\d\.\d)\d+", "", text)


def without_rounding_digits(text: str) -> str:
    """The text without late digits and rounding errors, which depend on the number of threads."""
    return re.sub(r"(?<=\.\d{3})\d+|\d\.\de-\d\d", "", text)


def test_make_targets_named_in_the_documents_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        assert set(re.findall(r"\bmake ([a-z-]+)\b(?=[`\s])", code_of(document))) <= targets


def code_of(document: Path) -> str:
    """The fenced blocks and inline code of a document."""
    text = document.read_text(encoding="utf-8")
    return "\n".join([*(body for _, body in BLOCK.findall(text)), *re.findall(r"`[^`\n]+`", text)])


def test_the_tree_names_every_package_and_top_level_file():
    page = ROOT / "docs" / "architecture.md"
    tree = next(body for body in blocks(page, "text") if "src/foretell" in body)
    listed = set(re.findall(r"^  ([\w]+(?:\.py|/))", tree, re.MULTILINE))
    source = ROOT / "src" / "foretell"
    packages = {f"{path.parent.name}/" for path in source.glob("*/__init__.py")}
    files = {path.name for path in source.glob("*.py") if not path.name.startswith("__")}
    assert listed == packages | files


def test_relative_links_resolve_to_files():
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (document.parent / target).exists(), (document.name, target)


@pytest.mark.parametrize("package", sorted(path.parent for path in (ROOT / "src" / "foretell").glob("*/__init__.py")))
def test_the_page_of_source_files_names_every_file(package):
    text = (ROOT / "docs" / "source-files.md").read_text(encoding="utf-8")
    verbs = {f"cli/{verb}.py" for verb in (*VERBS, "tokenizer")}  # a file per verb
    paths = (path for path in package.rglob("*.py") if path.name != "__init__.py")
    files = {path.relative_to(package.parent).as_posix() for path in paths} - verbs
    assert [name for name in sorted(files) if f"`{name}`" not in text] == []


def test_the_files_on_the_page_of_source_files_exist():
    text = (ROOT / "docs" / "source-files.md").read_text(encoding="utf-8")
    named = re.findall(r"`(\w+/[\w/.-]+)`", "\n".join(re.findall(r"^\| ([^|]+) \|", text, re.MULTILINE)))
    assert len(named) > 250
    assert [name for name in named if not (ROOT / "src" / "foretell" / name).exists()] == []


def test_the_page_of_operators_names_every_refused_field():
    requests = pytest.importorskip("foretell.serving.requests")
    page = (ROOT / "docs" / "operators.md").read_text(encoding="utf-8").split("## Refused fields")[1]
    assert [name for name in requests.REFUSED if f"`{name}`" not in page] == []


def test_the_places_in_the_architecture_page_exist():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.split("## Where to add")[1].split("## On disk")[0]
    places = re.findall(r"`([\w/]+\.py)`(?::| and)? ?((?:`\w+`(?: and )?)*)", table)
    assert len(places) > 15
    for name, symbols in places:
        if name != "cli/VERB.py":
            path = ROOT / name if name.startswith("tests/") else ROOT / "src" / "foretell" / name
            text = path.read_text(encoding="utf-8")
            assert all(symbol in text for symbol in re.findall(r"\w+", symbols.replace("and", ""))), (name, symbols)
