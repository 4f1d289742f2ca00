"""Files and paths of every verb: outputs do not replace a user's file or an input, and ~ is the home directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest
from cyclopts import Argument

from foretell.cli.arguments import output, text_output
from foretell.cli.command_line import BY_MODEL, BY_TASK
from foretell.cli.main import VERBS, make_app
from foretell.cli.path_arguments import is_path
from foretell.finding import find_model, find_tokenizer
from foretell.runs.run import find_run

SERIES = "unique_id,ds,y\n" + "".join(f"a,{2000 + month // 12}-{month % 12 + 1:02}-01,{month}\n" for month in range(48))
INPUTS = {"series.csv": SERIES, "rows.csv": "text,label\nyes,a\n", "text.txt": "a text", "chats.jsonl": "{}"}
INPUTS |= {"schema.json": '{"type": "integer"}'}
# Commands up to the name of an output, and how this name ends
COMMANDS = [
    ("forecast almanac series.csv --out", ".csv"),
    ("forecast almanac series.csv --paths", ".csv"),
    ("forecast almanac series.csv --plot", ".png"),
    ("forecast almanac series.csv --html", ".html"),
    ("evaluate almanac series.csv --out", ".csv"),
    ("evaluate almanac series.csv --test series.csv --out", ".csv"),
    ("evaluate primer chats.jsonl --task chat --html", ".html"),
    ("predict primer rows.csv --out", ".csv"),
    ("predict primer rows.csv --out", ".tsv"),
    ("predict primer rows.csv --out", ".jsonl"),
    ("generate primer --prompt-file text.txt --out", ".jsonl"),
    ("generate primer --file text.txt --out", ".txt"),
    ("generate primer a --json-schema schema.json --out", ".jsonl"),
    ("trace primer --file text.txt --out", ".safetensors"),
    ("trace almanac series.csv --out", ".safetensors"),
    ("explain primer --file text.txt --html", ".html"),
    ("explain almanac series.csv --html", ".html"),
    ("lesson sort --html", ".html"),
    ("runs --png", ".png"),
]
by_command = pytest.mark.parametrize(("command", "suffix"), COMMANDS, ids=[" ".join(each) for each in COMMANDS])


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    for name, content in INPUTS.items():
        (tmp_path / name).write_text(content)


@by_command
def test_an_existing_file_is_refused_before_any_work(
    foretell: Any, tmp_path: Path, pictures: None, command: str, suffix: str
) -> None:
    mine = tmp_path / f"mine{suffix}"
    mine.write_text("mine")
    outcome = foretell(*command.split(), mine.name)
    outcome.refuses(1, f"could not write {mine.name}: it exists; give another name, or --overwrite to replace it")
    assert "loading" not in outcome.err
    assert mine.read_text() == "mine"


LINKS: dict[str, Callable[[Path, Path], object]] = {
    "a hard link": lambda path, new: os.link(path, new),
    "a link": lambda path, new: new.symlink_to(path),
}


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS)
@by_command
def test_an_output_that_is_an_input_is_refused_always(
    foretell: Any, tmp_path: Path, pictures: None, command: str, suffix: str, link: Callable[[Path, Path], object]
) -> None:
    for name in set(command.split()) & INPUTS.keys():
        link(tmp_path / name, tmp_path / f"mine{suffix}")
        foretell(*command.split(), f"mine{suffix}", "--overwrite").refuses(1, f"the command reads {name}")
        assert (tmp_path / name).read_text() == INPUTS[name]
        (tmp_path / f"mine{suffix}").unlink()


@pytest.mark.parametrize("form", ["{}", "./{}", "sub/../{}", "{here}/{}"])
def test_the_same_file_is_found_under_any_of_its_names(foretell: Any, tmp_path: Path, form: str) -> None:
    (tmp_path / "sub").mkdir()
    name = form.format("series.csv", here=tmp_path)
    foretell("forecast", "almanac", "series.csv", f"--out={name}", "--overwrite").refuses(1, "reads series.csv")


def test_a_file_of_the_model_or_of_a_folder_of_data_is_an_input(foretell: Any, trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "runs" / "mine")
    weights = Path("runs/mine/checkpoints/step-000012/model.safetensors")
    before = weights.read_bytes()
    for model in ("mine", "runs/mine", "runs/mine@last"):
        foretell("trace", model, "a", "--out", weights, "--overwrite").refuses(1, f"the command reads {model}")
    assert weights.read_bytes() == before
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text(SERIES)
    command = "forecast", "almanac", "data", "--horizon", "2"
    foretell(*command, "--out", "data/a.csv", "--overwrite").refuses(1, "the command reads data")
    foretell(*command, "--html", "data/page.html").succeeds()
    foretell(*command, "--html", "data/page.html").succeeds()


@pytest.mark.parametrize(
    ("command", "suffix"),
    [each for each in COMMANDS if each[0].startswith(("explain", "trace", "lesson")) or each[1] == ".png"][:-1],
)
def test_what_foretell_wrote_is_replaced_without_a_word(
    foretell: Any, tmp_path: Path, pictures: None, command: str, suffix: str
) -> None:
    for _ in range(2):
        foretell(*command.split(), f"mine{suffix}").succeeds()
    (tmp_path / f"mine{suffix}").write_text("mine")
    foretell(*command.split(), f"mine{suffix}", "--overwrite").succeeds()
    assert (tmp_path / f"mine{suffix}").read_bytes() != b"mine"


def test_the_curves_of_runs_replace_earlier_ones(foretell: Any, trained: Path, pictures: None) -> None:
    for _ in range(2):
        foretell("runs", trained, "--png", "curves.png").succeeds()


def test_overwrite_without_an_output_is_refused(foretell: Any) -> None:
    for command in ("forecast almanac series.csv", "trace primer --list", "explain primer a --lens", "generate primer"):
        foretell(*command.split(), "--overwrite").refuses(2, "--overwrite")


# --- every verb, by its parameters -----------------------------------------------------------------------------------

BY_CHOICE = [
    (verb, function) for choices in (BY_TASK, BY_MODEL) for verb in choices for function in choices[verb].values()
]
FUNCTIONS = sorted({(verb, function) for verb, (_, _, function) in VERBS.items()} | set(BY_CHOICE))
FUNCTIONS += [("tokenizer train", "foretell.cli.tokenize:train_tokenizer")]
by_function = pytest.mark.parametrize(("verb", "function"), FUNCTIONS, ids=[function for _, function in FUNCTIONS])
# Outputs that are folders
NEVER_REPLACED = {"train", "finetune", "demo", "tokenizer train", "convert"}


def arguments_of(function: str) -> tuple[Any, list[Argument]]:
    """An app with one function, and its parameters."""
    app = make_app()
    app.command(function, name="this")
    return app, list(app["this"].assemble_argument_collection(default_parameter=app.default_parameter))


@by_function
def test_every_verb_with_an_output_file_can_be_told_to_replace_it(verb: str, function: str) -> None:
    _, arguments = arguments_of(function)
    has_output = any(argument.parameter.converter in (output, text_output) for argument in arguments)
    can_replace = any(argument.name == "--overwrite" for argument in arguments)
    assert can_replace == (has_output and verb not in NEVER_REPLACED)


def paths_in(value: object) -> Iterator[Path]:
    """The paths in the arguments of a function."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            yield from paths_in(each)
    elif is_dataclass(value):
        for field in fields(value):
            yield from paths_in(getattr(value, field.name))


@by_function
def test_every_path_of_every_verb_may_begin_with_a_tilde(
    verb: str, function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "x.csv").write_text(SERIES)
    app, arguments = arguments_of(function)
    words, expected = [], []
    for argument in arguments:
        is_named, choices = argument.name.startswith("--"), get_args(argument.hint)
        if is_path(argument.hint):
            is_output = argument.parameter.converter in (output, text_output)
            expected.append("new.csv" if is_output else "x.csv")
            word = f"~/{expected[-1]}"
        elif argument.required or (not is_named and argument.hint in (str, str | None)):
            word = choices[0] if is_named and choices else "x"
        else:
            continue
        words.append(f"{argument.name}={word}" if is_named else word)
    _, bound, _ = app.parse_args(["this", *words], exit_on_error=False, print_error=False)
    found = [path for path in paths_in(dict(bound.arguments)) if path.name in ("x.csv", "new.csv")]
    assert sorted(found) == sorted(tmp_path / name for name in expected)


@pytest.mark.parametrize(
    "find", [find_model, lambda name: find_run(name).directory, lambda name: find_tokenizer(name) and name]
)
def test_a_model_may_be_named_with_a_tilde(find: Any, trained: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(trained.parent))
    monkeypatch.chdir(tmp_path)
    assert str(find(f"~/{trained.name}")).replace("~", str(trained.parent)) == str(find(str(trained)))


@pytest.mark.parametrize(
    "command",
    [
        ["train", "~/cats.txt", "--steps", "1", "--size", "toy", "--out", "~/new"],
        ["tokenizer", "train", "~/cats.txt", "--kind", "bytes", "--out=~/new"],
        ["evaluate", "primer", "~/cats.txt", "--limit", "1"],
        ["next", "primer", "--file", "~/short.txt"],
        ["info", "~/model"],
    ],
)
def test_data_and_models_may_be_named_with_a_tilde(
    foretell: Any, corpus: Path, trained: Path, tmp_path: Path, monkeypatch: Any, command: list[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    shutil.copy(corpus, tmp_path / "home" / "cats.txt")
    (tmp_path / "home" / "short.txt").write_text("The cat")
    shutil.copytree(trained, tmp_path / "home" / "model")
    foretell(*command).succeeds()
    assert not (tmp_path / "~").exists()
    assert (tmp_path / "home" / "new").exists() == any("~/new" in word for word in command)
