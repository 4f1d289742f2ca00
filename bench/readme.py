"""Run the README's recorded commands again, and renew their numbers.

    python bench/readme.py           report the lines that differ; exit code 1 if one is no longer printed
    python bench/readme.py --write   put the printed lines in their place

Recorded blocks are those of plain text whose first line is a command. They train, or read the published file of
SmolLM2, which is left out unless FORETELL_MODELS names a folder with it. All commands run in one new folder with the
files of `foretell demo --files`. A shown line is renewed by the printed line with the same words.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BLOCK = re.compile(r"^```text\n(\$ foretell .*?)^```", re.DOTALL | re.MULTILINE)
SMOLLM = "SmolLM2-135M-Instruct.Q4_1.gguf"
NUMBERS = re.compile(r"[\d.,:%+−█░▒▓─═-]+")


def words_of(line: str) -> str:
    """The line without its numbers, bars and rules, which change from run to run."""
    return " ".join(NUMBERS.sub(" ", line).split())


def commands_of(block: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block, on one line, and the lines shown below it."""
    for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, shown


def closest(line: str, others: list[str]) -> str:
    return max(others, key=lambda other: SequenceMatcher(None, line, other).ratio())


def renew(text: str, environment: dict[str, str]) -> tuple[str, list[str]]:
    """The text with renewed blocks, and the shown lines that are no longer printed."""
    missing: list[str] = []
    for block in BLOCK.findall(text):
        renewed = block
        for command, shown in commands_of(block):
            if "ollama:" in command and "OLLAMA_MODELS" not in environment:
                print(f"left out, without FORETELL_MODELS: {command}", file=sys.stderr)
                continue
            printed = subprocess.run(
                [sys.executable, "-m", *shlex.split(command)], env=environment, stdout=subprocess.PIPE, check=True
            ).stdout.decode()
            for line in filter(words_of, shown):
                alike = [other for other in printed.splitlines() if words_of(other) == words_of(line)]
                if alike:
                    renewed = renewed.replace(f"{line}\n", f"{closest(line, alike)}\n")
                else:
                    missing.append(f"{command}\n  {line}")
        text = text.replace(block, renewed)
    return text, missing


def ollama_folder(folder: Path, model: Path) -> Path:
    """A folder as Ollama makes it, in which the file is `smollm2:135m`."""
    manifest = folder / "manifests/registry.ollama.ai/library/smollm2/135m"
    manifest.parent.mkdir(parents=True)
    (folder / "blobs").mkdir()
    digest = "0" * 64
    (folder / "blobs" / f"sha256-{digest}").symlink_to(model)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{digest}"}
    manifest.write_text(json.dumps({"layers": [layer]}))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="renew README.md")
    options = parser.parse_args()
    environment, models = dict(os.environ), os.environ.get("FORETELL_MODELS")
    with tempfile.TemporaryDirectory() as folder:
        if models:
            model = Path(models, SMOLLM).resolve()
            environment["OLLAMA_MODELS"] = str(ollama_folder(Path(folder, "ollama"), model))
        os.chdir(folder)
        subprocess.run([sys.executable, "-m", "foretell", "demo", "--files"], check=True, stdout=subprocess.DEVNULL)
        text = README.read_text(encoding="utf-8")
        renewed, missing = renew(text, environment)
        os.chdir("/")
    for before, after in zip(text.splitlines(), renewed.splitlines(), strict=True):
        if before != after:
            print(f"- {before}\n+ {after}")
    if options.write:
        README.write_text(renewed, encoding="utf-8")
    if missing:
        sys.exit("no longer printed:\n" + "\n".join(missing))


if __name__ == "__main__":
    main()
