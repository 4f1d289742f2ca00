"""Small files for the commands of the README, which `foretell demo --files` writes.

Texts, rows and dialogues were written for this project. `passengers.csv` has published facts: airline passengers per
month from 1949 to 1960, in thousands (Box and Jenkins 1976, Time Series Analysis, series G).
"""

from __future__ import annotations

from pathlib import Path

from foretell.storage.files import read_text, write_text

HOME = Path(__file__).with_name("examples")
LATER = 24  # months of passengers.csv that past.csv leaves out

EXAMPLES = {  # file: a command that reads it
    "my.txt": "foretell train my.txt",
    "toy.txt": 'foretell train toy.txt --rows --special "<EOS>"',
    "reviews.csv": "foretell finetune primer reviews.csv",
    "names.jsonl": "foretell finetune primer names.jsonl --task tag",
    "instructions.json": "foretell finetune primer instructions.json --task chat",
    "passengers.csv": "foretell forecast almanac passengers.csv",
    "past.csv": "foretell train --task forecast past.csv",
    "later.csv": "foretell evaluate past past.csv --test later.csv",
    "pairs.tsv": "foretell train --task translate pairs.tsv",
}


def write_examples(folder: Path) -> list[str]:
    """Write the files that the folder does not have; returns a line about each."""
    lines = []
    for name, command in EXAMPLES.items():
        path = folder / name
        is_new = not (path.exists() or path.is_symlink())
        if is_new:
            write_text(path, example_text(name))
        lines.append(f"{'wrote' if is_new else 'exists':<6}  {name:<17}  {command}")
    return lines


def example_text(name: str) -> str:
    if name not in ("past.csv", "later.csv"):
        return read_text(HOME / name)
    header, *months = read_text(HOME / "passengers.csv").splitlines(keepends=True)
    return "".join([header, *(months[:-LATER] if name == "past.csv" else months[-LATER:])])
