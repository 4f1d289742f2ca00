"""Conversations in the shapes in which they are published, and rows that are not conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from foretell.data.learned import NOT_LEARNED, ROW_FIELDS, TURN_FIELDS, VERDICTS
from foretell.errors import DataError
from foretell.finetuning.conversations import (
    CHOSEN,
    LEADING,
    ONLY_ANSWERS,
    ONLY_READ,
    TRAILING,
    Conversation,
    ConversationReader,
)

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
        ({"instruction": "i", "output": "o", "history": [["q", "b"], ["r", "c"]]}, ["q", "b", "r", "c", "i", "o"]),
        ({"system": "s", "instruction": "i", "input": "n", "output": "o", "history": []}, ["s", "i\n\nn", "o"]),
        ({"prompt": [SYSTEM, ASK], "completion": [SAY], "label": True}, ["s", "u", "a"]),
        ({"conversations": [ASK], "chosen": SAY, "rejected": SAY}, ["u", "a"]),
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
        ({"messages": [ASK, {**SAY, "weight": 1, "train": False}]}, "turn 2: 'weight', 'train' contradict each other"),
        ({"messages": [ASK, {**SAY, "weight": 0.5}]}, "turn 2: 'weight' must be 0 or 1"),
        ({"messages": [ASK, {**SAY, "loss_mask": [0, 1]}]}, "turn 2: 'loss_mask' must be 0 or 1"),
        (
            {"messages": [ASK, {**SAY, "train_detail": [{"begin_offset": 0}]}]},
            "'train_detail' marks parts of an answer",
        ),
        ({"prompt": "p", "completion": "c", "weight": 1, "label": False}, "'weight', 'label' contradict each other"),
        ({"instruction": "i", "output": "o", "history": ["q", "b"]}, "'history' is not a list of pairs"),
        ({"instruction": "i", "output": "o", "history": [["q", ""]]}, "'history' is empty"),
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


# --- answers that are not to be learned ------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [0, False, 0.0, "0", "false"])
@pytest.mark.parametrize("name", TURN_FIELDS)
def test_a_marked_answer_stays_as_context_and_is_not_learned(tmp_path, name, mark):
    turns = [ASK, {**SAY, name: mark}, ASK, SAY]
    [conversation], notes = read(tmp_path, {"messages": turns})
    assert [turn.learned for turn in conversation.messages] == [True, False, True, True]
    assert notes == [f"{ONLY_READ} (1 row)"]


@pytest.mark.parametrize("name", TURN_FIELDS)
def test_marks_that_agree_or_are_empty_change_nothing(tmp_path, name):
    plain, _ = read(tmp_path, {"messages": [ASK, SAY]})
    marked, notes = read(tmp_path, {"messages": [{**ASK, name: 0}, {**SAY, name: 1, "weight": 1, "train": None}]})
    assert ([each.messages for each in marked], notes) == ([each.messages for each in plain], [])


def test_a_question_is_never_learned(tmp_path):
    _, notes = read(tmp_path, {"messages": [{**ASK, "train": True}, SAY]})
    assert notes == [f"{ONLY_ANSWERS} (1 row)"]


@pytest.mark.parametrize(
    "row",
    [
        *({"prompt": "p", "completion": "bad", name: False} for name in ROW_FIELDS),
        {"prompt": [ASK], "completion": [SAY], "label": "False"},
        {"messages": [ASK, SAY], "kto_tag": False},
        {"messages": [ASK, {**SAY, "weight": 0}, ASK]},
    ],
)
def test_a_row_without_an_answer_to_learn_is_left_out_and_counted(tmp_path, row):
    conversations, notes = read(tmp_path, row, {"prompt": "p", "completion": "good"}, row)
    assert [each.messages[-1].content for each in conversations] == ["good"]
    assert notes == [f"{NOT_LEARNED} (2 rows)"]
    with pytest.raises(DataError, match="every answer is marked as not to be learned"):
        read(tmp_path, row)


@pytest.mark.parametrize("name", VERDICTS)
@pytest.mark.parametrize("value", [0, 1, "sports"])
def test_a_label_that_may_be_a_class_is_counted_and_not_obeyed(tmp_path, name, value):
    conversations, notes = read(tmp_path, {"instruction": "i", "output": "o", name: value})
    assert len(conversations) == 1
    assert notes == [f"fields that are not read: {name!r} (1)"]


def test_fields_without_a_meaning_are_counted_in_one_line(tmp_path):
    row = {"messages": [ASK, {**SAY, "name": "x"}], "id": 3, "tools": [], "output": "o"}
    assert read(tmp_path, row, row)[1] == ["fields that are not read: 'name of turns' (2), 'id' (2), 'output' (2)"]
