"""Chat tuning: what a batch holds, what is learned, what a run keeps, and resuming."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.data.learned import NOT_LEARNED
from foretell.data.rows import PackedRows, PaddedRows
from foretell.errors import CheckpointError, ConfigError, DataError
from foretell.finetuning.chat_data import ChatData, EncodedConversation
from foretell.finetuning.chat_evaluation import ANSWER_TOKENS, evaluate_chats
from foretell.finetuning.chat_task import ChatTask, replay_batch
from foretell.finetuning.chat_tuning import DEFAULT_EPOCHS, ChatRequest, ChatTraining
from foretell.finetuning.conversations import Conversation
from foretell.finetuning.request import FEWEST_STEPS
from foretell.inference.chat import Chat
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.model.init import make_decoder
from foretell.session.protocol import load_start, run_training
from foretell.session.reporter import Reporter
from foretell.session.session import Session
from foretell.session.start import Start
from foretell.text import train_tokenizer
from foretell.text.chat_template import ChatTokens, Message
from foretell.training.objective import Objective

WORDS = {"cat": "mat", "dog": "log", "hen": "den", "fox": "box", "owl": "bowl"}
STEPS = 8


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Start:
    """A model without a chat template."""
    tokenizer = train_tokenizer("bpe", ["where is the cat? on the mat. where is the dog?"] * 9, vocab_size=290)
    shape: dict[str, Any] = {
        "num_layers": 2,
        "num_heads": 2,
        "width": 32,
        "context_length": 96,
        "position": "rotary",
        "init": "torch",
    }
    decoder = make_decoder(ModelConfig(**shape, vocab_size=tokenizer.vocab_size), seed=1)
    path = tmp_path_factory.mktemp("models") / "small"
    LanguageModel(decoder.eval(), tokenizer, "small").save(path)
    return load_start(path)


@pytest.fixture(scope="module")
def chats(tmp_path_factory) -> Path:
    """Questions with one-word answers; one conversation has two."""
    path = tmp_path_factory.mktemp("data") / "where.json"
    rows = [{"instruction": f"where is the {a}?", "output": f"on the {b}."} for a, b in WORDS.items()] * 4
    turns = [{"role": "user", "content": "the cat?"}, {"role": "assistant", "content": "mat."}] * 2
    path.write_text(json.dumps([*rows, {"messages": turns}]), encoding="utf-8")
    return path


def request(start: Start | None, chats: Path, out: Path, **fields: Any) -> ChatRequest:
    training = {"steps": STEPS, "batch_size": 4, "learning_rate": 1e-2, "checkpoint_every": 3, "keep_checkpoints": 9}
    fields = {"overrides": {"training": training, "model": {"dropout": 0.1}}, "dtype": "float32", **fields}
    return ChatRequest(start=start, data=[chats], out=out, **fields)


def tune(request: ChatRequest, resume: bool = False) -> Session[ChatTask]:
    return run_training(ChatTraining(request), Reporter(), resume=resume)


@pytest.fixture(scope="module")
def tuned(small, chats, tmp_path_factory) -> Session[ChatTask]:
    return tune(request(small, chats, tmp_path_factory.mktemp("runs") / "where"))


def test_a_training_of_a_given_time_ends_after_its_epochs(small, chats, tmp_path):
    training = {"training": {"batch_size": 4}}
    session = tune(request(small, chats, tmp_path / "run", minutes=2.0, overrides=training))
    assert math.ceil(DEFAULT_EPOCHS * len(session.task.train) / 4) < FEWEST_STEPS
    assert session.progress.step == session.task.record.most_steps == FEWEST_STEPS
    assert "more would mostly memorise the data" in session.task.record.reasons[0]


def test_an_answer_that_does_not_end_is_marked_as_cut(small, tmp_path):
    path = tmp_path / "held.json"
    rows = [{"prompt": asked, "completion": "on the mat."} for asked in ("where is the cat?", "where is " * 99)]
    path.write_text(json.dumps(rows), encoding="utf-8")
    result = evaluate_chats([small.model], [path])
    short, long = result.questions
    assert short.cut == long.cut == (small.model.name,)
    assert len(small.model.encode(short.answers[small.model.name])) <= ANSWER_TOKENS
    assert long.answers == {small.model.name: ""}
    document = str(result)
    assert "Answers to" in document.splitlines()[0]
    assert document.count("(cut)") == 2


def test_an_evaluation_counts_the_rows_that_are_left_out(small, tmp_path, caplog):
    caplog.set_level("INFO", logger="foretell")
    path = tmp_path / "held.json"
    rows = [{"prompt": "the cat?", "completion": "mat.", "label": label} for label in (True, False)]
    path.write_text(json.dumps(rows), encoding="utf-8")
    assert evaluate_chats([small.model], [path], questions=0).figures[0].conversations == 1
    assert f"note        {NOT_LEARNED} (1 row)" in caplog.text


def test_conversations_that_are_cut_are_counted_for_each_model(small, tmp_path):
    path = tmp_path / "held.json"
    rows = [{"prompt": "the cat?", "completion": "mat. " * count} for count in (1, 2, 80)]
    path.write_text(json.dumps(rows), encoding="utf-8")
    longer = replace(
        small.model, decoder=make_decoder(small.config.replaced(context_length=900), seed=1), name="longer"
    )
    result = evaluate_chats([small.model, longer], [path], questions=0)
    note = "1 of 3 conversations are longer than the context: cut off at their ends"
    assert [each["notes"] for each in result.to_json()["models"]] == [(note,), ()]
    shown = " ".join(str(result).split())
    assert f"{small.model.name}: {note}" in shown
    assert "the models do not have the same template, tokenizer and context" in shown


# --- batches ---------------------------------------------------------------------------------------------------------


def test_rows_are_as_long_as_the_longest_conversation(tuned, small, chats, tmp_path) -> None:
    longest = tuned.task.data.train.longest
    assert tuned.task.batch(0).ids.shape[1] == longest - 1 < small.config.context_length


def test_the_loss_of_packed_conversations_is_that_of_each_alone(tuned):
    chats = tuned.task.data.train
    objective = Objective(tuned.task.decoder).eval()
    packed = PackedRows(chats, 96)
    with torch.no_grad():
        together = sum(float(objective(batch).sum) for batch in packed.iter_batches(2))
        alone = sum(float(objective(batch).sum) for batch in PaddedRows(chats).iter_batches(1))
    assert len(packed) < len(chats)
    assert together == pytest.approx(alone, rel=1e-5)


def test_the_shown_batch_has_a_loss_for_learned_tokens_alone(tuned):
    task = tuned.task
    row = replay_batch(task.decoder, task.batch(0), task.tokenizer)[0]
    text = "".join(token.text for token in row.tokens if token.loss is not None)
    assert text.replace("<|im_end|>", "").replace("on the ", "").replace(".", "").strip()
    assert "where" not in text and "user" not in text
    assert all(token.document is not None for token in row.tokens)


# --- a run -----------------------------------------------------------------------------------------------------------


def test_a_tuned_model_answers_with_its_template(tuned):
    before, after = tuned.task.loss_before, tuned.run.best().training()["validation_loss"]
    assert before is not None and after < before / 2
    model = load(tuned.run.directory)
    assert model.tokenizer.chat_template is not None and "im_start" in model.tokenizer.chat_template
    assert Chat(model, max_tokens=9, temperature=0).say("where is the cat?").text.startswith("on the")


def test_the_record_names_model_template_and_data(tuned, small, chats):
    record = tuned.run.record()
    assert record.start.weights_sha256 == small.digest
    assert (record.task["template"], record.data, record.verb) == ("chatml", [str(chats)], "finetune --task chat")
    assert record.config["model"]["vocab_size"] == small.config.vocab_size + 2


def test_samples_are_questions_held_out_with_answers(tuned):
    text = (tuned.run.samples / f"step-{STEPS:06d}.txt").read_text(encoding="utf-8")
    assert "<|im_start|>assistant\n" in text


def test_conversations_are_the_same_after_writing(small, tmp_path):
    messages = (Message("user", "the cat?"), Message("assistant", "mat."))
    chats = [ChatTokens([1, 2, 3], [False, True, True]), ChatTokens([4, 5], [False, True])]
    conversations = [EncodedConversation(Conversation(messages, "line 1"), [chat]) for chat in chats]
    data = ChatData.write(tmp_path, small.tokenizer, conversations, conversations[:1])
    for opened in (data, ChatData.open(tmp_path, small.tokenizer, data.digest)):
        for rows, expected in ((opened.train, chats), (opened.held_out, chats[:1])):
            assert [rows.ids(row) for row in range(len(rows))] == [chat.ids for chat in expected]
            assert [rows.loss_mask(row).tolist() for row in range(len(rows))] == [chat.is_answer for chat in expected]


def test_damaged_data_are_refused(tuned, tmp_path):
    shutil.copytree(tuned.run.directory, tmp_path / "run")
    shard = tmp_path / "run" / "tokens" / "train_loss-00000.npy"
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(DataError, match="not the content that was written"):
        tune(ChatRequest(out=tmp_path / "run"), resume=True)


def test_other_data_are_refused(tuned, tmp_path):
    shutil.copytree(tuned.run.directory, tmp_path / "run")
    index = tmp_path / "run" / "tokens" / "index.json"
    index.write_text(index.read_text() + "\n")
    with pytest.raises(CheckpointError, match="is not as it was written; restore it"):
        tune(ChatRequest(out=tmp_path / "run"), resume=True)


def test_conversations_can_be_rows_of_their_own(small, chats, tmp_path):
    overrides = {"training": {"steps": 2, "batch_size": 4}, "data": {"packing": False}}
    session = tune(request(small, chats, tmp_path / "run", overrides=overrides))
    batch = session.task.batch(0)
    assert batch.document_ids is None and batch.lengths is not None
    assert len(session.task.train) == len(session.task.data.train)


@pytest.mark.parametrize(("truncate", "kept"), [("drop", 2), ("tail", 3), (None, 3)])
def test_conversations_that_do_not_fit_are_refused_or_counted(small, tmp_path, caplog, truncate, kept):
    path = tmp_path / "long.jsonl"
    rows = [{"prompt": "the cat?", "completion": "mat. " * n} for n in (1, 2, 80)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    open_data = {"overrides": {"training": {"steps": 1}, "data": {"validation_fraction": 0}}}
    with pytest.raises(
        DataError, match="1 of 3 conversations do not fit the context of 96 tokens.*line 3.*truncate dr"
    ):
        tune(request(small, path, tmp_path / "a", truncate="never", **open_data))
    assert not (tmp_path / "a").exists()
    caplog.set_level("INFO", logger="foretell")
    session = tune(request(small, path, tmp_path / "b", truncate=truncate, **open_data))
    assert len(session.task.data.train) == kept
    assert "1 of 3 conversations are longer than the context" in caplog.text


def test_conversations_that_do_not_fit_are_left_out_before_the_split(small, tmp_path, caplog):
    path = tmp_path / "long.jsonl"
    rows = [{"prompt": f"the cat {n}?", "completion": "mat. " * (1 if n in (3, 11) else 80)} for n in range(25)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    caplog.set_level("INFO", logger="foretell")
    one_step = {"overrides": {"training": {"steps": 1}}, "truncate": "drop"}
    session = tune(request(small, path, tmp_path / "a", **one_step))
    assert (len(session.task.data.train), len(session.task.data.held_out)) == (1, 1)
    assert "23 of 25 conversations are longer than the context: left out" in caplog.text
    dev = tmp_path / "dev.jsonl"
    dev.write_text(json.dumps(rows[0]) + "\n", encoding="utf-8")
    with pytest.raises(
        DataError, match=r"none of 1 conversation \(the first: .*dev.jsonl, line 1\) has an answer within"
    ):
        tune(request(small, path, tmp_path / "b", dev=dev, **one_step))


def test_an_answer_that_is_only_read_has_no_loss_and_the_same_ids(small, tmp_path):
    def tokens(mark: int) -> tuple[list[int], list[int]]:
        path = tmp_path / f"{mark}.json"
        turns = [*asked("the cat?", "mat.", weight=mark), *asked("the dog?", "log.")]
        path.write_text(json.dumps([{"messages": turns}]), encoding="utf-8")
        one_step = {"overrides": {"training": {"steps": 1}, "data": {"validation_fraction": 0}}}
        rows = tune(request(small, path, tmp_path / f"run-{mark}", **one_step)).task.data.train
        return rows.ids(0), rows.loss_mask(0).tolist()

    (ids, mask), (learned_ids, learned_mask) = tokens(0), tokens(1)
    assert ids == learned_ids
    last = len(ids) - learned_mask[::-1].index(0, learned_mask[::-1].index(1))
    assert mask == [flag if index >= last else 0 for index, flag in enumerate(learned_mask)]
    assert 0 < sum(mask) < sum(learned_mask)


def asked(question: str, answer: str, **marks: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer, **marks}]


def test_repeated_held_out_conversations_are_counted(small, chats, tmp_path, caplog):
    caplog.set_level("INFO", logger="foretell")
    tune(request(small, chats, tmp_path / "x", dev=chats, overrides={"training": {"steps": 1}}))
    assert "21 of the held-out conversations are also learned from" in caplog.text
    assert "new in the vocabulary: <|im_start|>, <|im_end|>" in caplog.text


def test_lora_trains_its_updates_and_the_rows_of_new_tokens(small, chats, tmp_path):
    settings = {"training": {"steps": 4, "batch_size": 4, "checkpoint_every": 2}, "lora": {"rank": 2}}
    session = tune(ChatRequest(start=small, data=[chats], out=tmp_path / "run", overrides=settings))
    trained = {path for path, weight in session.task.model.named_parameters() if weight.requires_grad}
    assert {path for path in trained if ".lora_" not in path} == {"embed.token.weight"}
    before, after = small.model.decoder.state_dict(), session.task.decoder.state_dict()
    assert all(torch.equal(after[path], before[path]) for path in before if path != "embed.token.weight")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "step-000004")
    tune(ChatRequest(out=tmp_path / "run"), resume=True)
    resumed = load(tmp_path / "run@last", keep_adapters=True).decoder.state_dict()
    assert all(torch.equal(resumed[path], weight) for path, weight in after.items())
    with pytest.raises(ConfigError, match="was started with lora"):
        tune(ChatRequest(out=tmp_path / "run", overrides={"lora": {"rank": 3}}), resume=True)
