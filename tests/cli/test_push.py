"""`foretell push`: the files and the model card that reach the Hub, and one line for each failure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
import torch
import transformers

from foretell.convert.hub import fetch_model
from foretell.convert.push import model_card
from foretell.loading import load
from foretell.runs.checkpoint import list_checkpoints, validation_loss
from tests.convert.hub_server import Hub, constants, point_at, running

pytestmark = pytest.mark.filterwarnings("ignore:Use .content:DeprecationWarning")  # from huggingface_hub's upload
TARGET = "hub:cats/new"


@pytest.fixture
def server(monkeypatch, tmp_path) -> Iterator[Hub]:
    """An empty Hub, and a user with a token."""
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with running(Hub()) as state:
        point_at(monkeypatch, state.endpoint, tmp_path / "cache")
        yield state


def test_a_run_on_the_hub_loads_here_and_in_transformers(server, foretell, trained):
    outcome = foretell("push", trained, TARGET, "--json").json
    assert "Bearer hf_secret" in server.tokens
    assert outcome["commit"] == f"{server.endpoint}/cats/new/commit/main"
    assert set(server.repositories["cats/new"]) == {*outcome["files"], "export-report.json", "README.md"}
    ids = torch.tensor([[84, 104, 101]])
    ours, fetched = load(trained, "cpu", "float32"), load(TARGET, "cpu", "float32")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(fetch_model(TARGET.removeprefix("hub:")))
    torch.testing.assert_close(fetched(ids), ours(ids), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(theirs(ids).logits, ours(ids), rtol=1e-4, atol=1e-4)


def test_the_card_has_the_figures_of_the_run(server, foretell, trained, corpus):
    foretell("push", trained, TARGET)
    card = server.repositories["cats/new"]["README.md"].decode()
    (listed,) = foretell("runs", trained, "--json").json["runs"]
    cells = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", card, re.MULTILINE))
    assert cells["data"] == corpus.name
    assert cells["digest of the held-out data"] == listed["held_out"] != cells["digest of the training tokens"]
    assert cells["validation loss"] == f"{listed['best_validation_loss']:.4f}"
    assert cells["bits per byte"] == f"{listed['bits_per_byte']:.4f}"
    assert cells["steps"] == f"{listed['best_step']} of {listed['steps']}"
    assert str(corpus.parent) not in card
    assert 'from_pretrained("cats/new")' in card
    assert "foretell generate hub:cats/new" in card
    metadata = card.split("---\n")[1]
    assert "pipeline_tag: text-generation" in metadata


def test_a_checkpoint_that_is_not_the_best_has_its_own_figures(server, foretell, trained):
    first, *_, best = list_checkpoints(trained / "checkpoints")
    foretell("push", f"{trained}@{first.directory.name}", TARGET)
    card = server.repositories["cats/new"]["README.md"].decode()
    assert validation_loss(first) > validation_loss(best)
    assert f"| steps | {first.step} of 12 |" in card
    assert f"| validation loss | {validation_loss(first):.4f} |" in card


def test_a_model_without_a_run_has_a_card_without_a_training(server, foretell):
    assert foretell("push", "primer", TARGET, "--private").code == 0
    assert "## Training" not in server.repositories["cats/new"]["README.md"].decode()
    assert server.created["cats/new"]["visibility"] == "private"


def test_the_card_of_a_classifier_names_its_class_and_verb():
    exported = {"labels": ["bad", "good"], "family": "gpt2", "architecture": "GPT2ForSequenceClassification"}
    card = model_card(
        "cats/mood", {**exported, "dtype": "float32", "logit_difference": 1e-7, "logit_bound": 1e-4}, None
    )
    assert "pipeline_tag: text-classification" in card
    assert 'foretell predict hub:cats/mood "Your text"' in card
    assert "AutoModelForSequenceClassification" in card


def test_an_existing_repository_is_changed_only_with_update(server, foretell):
    server.repositories["cats/new"] = {"README.md": b"mine"}
    foretell("push", "primer", TARGET).fails(1, "hub:cats/new exists; give another name, or --update")
    assert server.repositories["cats/new"] == {"README.md": b"mine"}
    assert foretell("push", "primer", TARGET, "--update").code == 0
    assert server.created == {}
    assert b"primer" not in server.repositories["cats/new"]["README.md"] != b"mine"


@pytest.mark.parametrize(
    ("target", "change", "code", "words"),
    [
        ("cats/new", None, 2, ["'cats/new' is not a place on the Hub", "hub:owner/name"]),
        ("hub:cats/new@v1", None, 2, ["hub:owner/name"]),
        ("hub:cats", None, 2, ["is not a model on the Hub"]),
        (TARGET, "no token", 1, ["hub:cats/new needs a token", "HF_TOKEN"]),
        (TARGET, "offline", 1, ["HF_HUB_OFFLINE"]),
        (TARGET, "unreachable", 1, ["http://127.0.0.1:9 cannot be reached"]),
        (TARGET, "denied", 1, ["status 403", "HF_TOKEN"]),
        (TARGET, "no owner", 1, ["hub:cats/new does not exist", "HF_TOKEN"]),
    ],
)
def test_failures_are_one_line_and_write_nothing(server, foretell, monkeypatch, tmp_path, target, change, code, words):
    if change == "no token":
        monkeypatch.delenv("HF_TOKEN")
    elif change in ("offline", "unreachable"):
        endpoint = "http://127.0.0.1:9" if change == "unreachable" else server.endpoint
        point_at(monkeypatch, endpoint, tmp_path / "cache", offline=change == "offline")
    elif change is not None:
        server.refuse_writing = (403, "") if change == "denied" else (404, "RepoNotFound")
    outcome = foretell("push", "primer", target)
    assert outcome.code == code
    assert [word for word in words if word not in outcome.last_line] == []
    assert "Traceback" not in outcome.err
    assert server.repositories == {}


def test_the_export_is_checked_before_the_hub_is_asked(server, foretell):
    assert foretell("push", "primer", TARGET, "--family", "lama").code == 2
    assert json.dumps(server.asked) == "[]"
