"""The words for kinds of data in advice about evaluation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Material:
    """The words for a kind of data.

    items: the items that are counted. train: how to train without the items of a test. test: the arguments after RUN of
    the evaluation of these items. chosen: what is chosen on held-out items.
    """

    items: str
    train: str
    test: str
    chosen: str = "its checkpoint"


TEXT = Material("passages", "train without the texts of a file TEST.txt", "TEST.txt")
TEXT_ROWS = Material("rows", "train without the rows of a file TEST.jsonl", "TEST.jsonl --rows")
CHATS = Material("conversations", "train without the conversations of a file TEST.jsonl", "TEST.jsonl --task chat")
PAIRS = Material(
    "sources", "train without the pairs of a file TEST.tsv", "TEST.tsv", "its checkpoint and length penalty"
)
VALUES = Material(
    "values",
    "train on a file PAST.csv that ends before these values",
    "{data} --test LATER.csv",
    "its checkpoint, its blend with a naive forecast and its intervals",
)


def table_rows(suffix: str) -> Material:
    """Rows of files with this suffix; .csv for a table in memory."""
    name = f"TEST{suffix or '.csv'}"
    return Material("rows", f"train without the rows of a file {name}", name)
