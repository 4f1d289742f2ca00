"""Conversations in the shapes in which they are published, and rows that are not conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.errors import DataError
from foretell.finetuning.conversations import CHOSEN, LEADING, TRAILING, Conversation, ConversationReader

SYSTEM, ASK, SAY = ({"role": role, "content": role[0]} for role in ("system", "user", "assistant"))


def read(folder: Path, *rows: Any) -> tuple[list[Conversation], list[str]]:
    path = folder / "chats.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    reader = ConversationReader()
    return reader.read([path]), reader.notes


@pytest.mark.parametrize(
    ("row", "turns"),
    [
        ({"messages": [SYSTEM, ASK, SAY]}, ["s", "u", "a"]),
        ({"messages": [{"role": "developer", "content": "d"}, ASK, SAY]}, ["d", "u", "a"]),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}, SAY]}, ["x", "a"]),
        ({"conversations": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}]}, ["h", "g"]),
        (
            {"system": "s", "conversation": [{"from": "human", "value": "h"}, {"from": "gpt", "value": "g"}]},
            ["s", "h", "g"],
        ),
        ({"instruction": "i", "input": "", "output": "o"}, ["i", "o"]),
        ({"instruction": "i", "input": "n", "output": "o"}, ["i\n\nn", "o"]),
        ({"prompt": "p", "completion": "c"}, ["p", "c"]),
        ({"prompt": "p", "response": "r", "id": 3}, ["p", "r"]),
        ({"instruction": "i", "output": "o", "chosen": "c", "rejected": "r"}, ["i", "c"]),
        ({"prompt": "p", "chosen": "c", "rejected": "r"}, ["p", "c"]),
        ({"prompt": [ASK], "chosen": [SAY], "rejected": [SAY]}, ["u", "a"]),
        ({"chosen": [ASK, SAY], "rejected": [ASK, SAY]}, ["u", "a"]),
        ({"messages": [SAY, ASK, SAY, ASK]}, ["u", "a"]),
    ],
)
def test_a_row_of_each_shape_is_read(tmp_path, row, turns):
    [conversation], notes = read(tmp_path, row)
    assert [message.content for message in conversation.messages] == turns
    assert [message.role for message in conversation.messages][-2:] == ["user", "assistant"]
    assert conversation.where == f"{tmp_path / 'chats.json'}, item 1"
    assert any(note.startswith(CHOSEN) for note in notes) == ("chosen" in row)


def test_what_is_left_out_is_counted(tmp_path):
    _, notes = read(tmp_path, {"messages": [SAY, ASK, SAY, ASK]}, {"messages": [ASK, SAY, ASK]})
    assert notes == [f"{LEADING} (1 row)", f"{TRAILING} (2 rows)"]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"messages": [ASK, {"role": "tool", "content": "x"}]}, "turn 2: the role 'tool' is not known"),
        ({"messages": [ASK, {"role": "asistant", "content": "x"}]}, "did you mean 'assistant'"),
        ({"messages": [ASK, {"role": "assistant", "content": " "}]}, "turn 2: 'content' is empty"),
        ({"messages": [ASK, {"role": "assistant"}]}, "turn 2: no field 'content' among 'role'"),
        ({"messages": [ASK, {"role": "assistant", "content": 3}]}, "turn 2, content: a number; it must be a text"),
        ({"messages": [ASK, "yes"]}, "turn 2: a string; give an object"),
        ({"messages": []}, "the turns are a list"),
        ({"messages": "hello"}, "the turns are a string"),
        ({"messages": [ASK]}, "no question with an answer"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}, SAY]}, "a part of the type 'image_url'"),
        ({"messages": [{"role": "user", "content": [{"text": None}]}, SAY]}, "content: a part without a text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}, SAY]}, "a part of the type 'text'"),
        ({"messages": [{"role": ["user"], "content": "x"}, SAY]}, "turn 1: the role is a list"),
        ({"messages": [{"role": {}, "content": "x"}, SAY]}, "turn 1: the role is an object"),
        ({"messages": [{"role": "u" * 999, "content": "x"}, SAY]}, f"the role '{'u' * 39}…' is not known"),
        ({"instruction": "i", "output": ""}, "'output' is empty"),
        ({"instruction": "", "output": "o"}, "'instruction' is empty"),
        ({"instruction": "i"}, "no field with an answer among 'instruction'"),
        ({"text": "t"}, "no field with a question among 'text'"),
        ({}, "among none"),
        (7, "not an object"),
    ],
)
def test_a_row_that_is_not_a_conversation_is_one_line_with_its_place(tmp_path, row, words):
    with pytest.raises(DataError) as error:
        read(tmp_path, {"messages": [ASK, SAY]}, row)
    assert "item 2" in str(error.value)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_without_rows_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds no conversation"):
        read(tmp_path)


def test_json_lines_are_read(tmp_path):
    path = tmp_path / "chats.jsonl"
    path.write_text('{"prompt": "p", "completion": "c"}\n\n{"prompt": "q", "completion": "d"}\n', encoding="utf-8")
    assert [item.where for item in ConversationReader().read([path])] == [f"{path}, line 1", f"{path}, line 3"]
