"""A message names settings as options of the command line, and to Python as its keywords."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import foretell
from foretell.config.section import Section
from foretell.errors import OPTION, UsageError, as_keyword

SOURCE = Path(foretell.__file__).parent
# Options of commands and of the server, which have no keyword in Python
OF_COMMANDS = {"host", "look_budget", "png", "port", "report", "spans", "strict", "update", "weights", "workers"}
OF_COMMANDS |= {"allow_special", "hold_out", "test", "value", "yes"}  # of a method; in commands that a message advises


@pytest.mark.parametrize(
    ("message", "in_python"),
    [
        ("--dev-fraction is 0; give --dev.", "dev_fraction is 0; give dev."),
        ("raise --training.batch-size (or --steps)", "raise training.batch_size (or steps)"),
        ("resume it with --resume auto, or give another --out", "resume it with resume=True, or give another out"),
        ("--from-scratch and --slide", "is_from_scratch=True and slide=True"),
        ("no label '--dev' in a--b and --- of x --", "no label '--dev' in a--b and --- of x --"),
        ("it is lost; resume: bin/foretell train --out x; or lower --size", None),
        ("`foretell trace MODEL --list` shows all; '/a b/foretell' train --out 'x y' --resume auto", None),
    ],
)
def test_an_option_is_a_keyword_in_python_and_a_command_stays(message: str, in_python: str | None) -> None:
    error = UsageError(message)
    assert str(error) == (in_python or message.replace("lower --size", "lower size"))
    assert error.for_server() == str(error)
    assert error.for_command_line() == message
    assert error.at("line 3").for_command_line() == f"line 3: {message}"


def keywords() -> set[str]:
    """The parameters of all public functions, and the fields of the configuration."""
    names: set[str] = set()
    for value in (getattr(foretell, name) for name in foretell.__all__):
        if callable(value) and not (isinstance(value, type) and issubclass(value, Exception)):
            names.update(inspect.signature(value).parameters)
    names.update(re.findall(r"^    (\w+):", (SOURCE / "config" / "typed_dicts.pyi").read_text(), re.MULTILINE))
    sections = [Section]
    while sections:
        section = sections.pop()
        names.update(section.model_fields)
        sections += section.__subclasses__()
    return names


def options_in_texts() -> Iterator[tuple[str, str]]:
    """File and keyword of each option in a text of the library, docstrings left out."""
    for path in sorted(SOURCE.rglob("*.py")):
        if path.relative_to(SOURCE).parts[0] == "cli":
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                yield from ((path.name, as_keyword(match)) for match in OPTION.finditer(node.value) if match[1])


def test_every_option_in_a_message_is_a_keyword_in_python() -> None:
    known = keywords() | OF_COMMANDS
    found = [(name, *keyword.partition("=")[0].split(".")[-1:]) for name, keyword in options_in_texts()]
    assert len(found) > 100
    assert [pair for pair in found if pair[1] not in known] == []
