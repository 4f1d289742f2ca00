"""Small files for the commands of the README, which `foretell demo --files` writes.

Texts, rows and dialogues were written for this project. `passengers.csv` has published facts: airline passengers per
month from 1949 to 1960, in thousands (Box and Jenkins 1976, Time Series Analysis, series G).
"""

from __future__ import annotations

from pathlib import Path

from foretell.files import read_text, write_text

HOME = Path(__file__).with_name("examples")
LATER = 24  # months of passengers.csv that past.csv leaves out

EXAMPLES = {
    "my.txt": "stories: foretell train my.txt",
    "toy.txt": 'two rows: foretell train toy.txt --rows --special "<EOS>"',
    "reviews.csv": "labelled texts: foretell finetune primer reviews.csv",
    "names.jsonl": "tagged words: foretell finetune primer names.jsonl --task tag",
    "instructions.json": "questions and answers: foretell finetune primer instructions.json --task chat",
    "passengers.csv": "airline passengers per month (Box and Jenkins 1976): foretell forecast almanac passengers.csv",
    "past.csv": "the months before the last 24: foretell train --task forecast past.csv",
    "later.csv": "the last 24 months, for a test: foretell evaluate past past.csv --test later.csv",
    "pairs.tsv": "English and French sentences: foretell train --task translate pairs.tsv",
}


def write_examples(folder: Path) -> list[str]:
    """Write the files that the folder does not have; returns a line about each."""
    lines = []
    for name, use in EXAMPLES.items():
        path = folder / name
        is_new = not (path.exists() or path.is_symlink())
        if is_new:
            write_text(path, example_text(name))
        lines.append(f"{'wrote' if is_new else 'kept, it exists':<15}  {name:<17}  {use}")
    return lines


def example_text(name: str) -> str:
    if name not in ("past.csv", "later.csv"):
        return read_text(HOME / name)
    header, *months = read_text(HOME / "passengers.csv").splitlines(keepends=True)
    return "".join([header, *(months[:-LATER] if name == "past.csv" else months[-LATER:])])
