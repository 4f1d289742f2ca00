"""Shared by the tests of fine-tuning: a small model on words, files of examples, and one run that all look at."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from foretell.config.model import ModelConfig
from foretell.finetuning.finetune import FinetuneTraining
from foretell.finetuning.head import with_head
from foretell.finetuning.inputs import choose_tokens
from foretell.finetuning.kind import find_kind
from foretell.finetuning.request import FinetuneRequest
from foretell.finetuning.settings import Columns, HeadSettings, Pool
from foretell.finetuning.task import FinetuneTask
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.session.protocol import load_start, run_training
from foretell.session.reporter import Reporter
from foretell.session.session import Session
from foretell.session.start import Start
from foretell.text import train_tokenizer

GOOD, BAD = ("great", "lovely", "fine"), ("awful", "dull", "poor")
THINGS = ("film", "book", "meal", "play", "song")


def make_reviews() -> list[tuple[str, str]]:
    """Texts with the label that one of their words decides."""
    words = [(word, "good") for word in GOOD] + [(word, "bad") for word in BAD]
    return [(f"the {thing} was {word} and long", label) for thing in THINGS for word, label in words for _ in range(2)]


def write_table(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Path:
    """A CSV file."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


@pytest.fixture(scope="session")
def base(tmp_path_factory) -> Path:
    """An untrained model with a vocabulary of words, as a saved model."""
    text = " ".join(["the", "was", "and", "long", *GOOD, *BAD, *THINGS])
    tokenizer = train_tokenizer("words", [text])
    shape = {"num_layers": 1, "num_heads": 2, "width": 16, "context_length": 16}
    decoder = make_decoder(ModelConfig(**shape, vocab_size=tokenizer.vocab_size), seed=1)
    path = tmp_path_factory.mktemp("models") / "base"
    LanguageModel(decoder.eval(), tokenizer, "base").save(path)
    return path


@pytest.fixture(scope="session")
def start(base: Path) -> Start:
    return load_start(base)


@pytest.fixture(scope="session")
def review_file(tmp_path_factory) -> Path:
    return write_table(tmp_path_factory.mktemp("data") / "reviews.csv", ["text", "label"], make_reviews())


def make_tiny_request(data: Path, out: Path, task: str = "classify", **changes: Any) -> FinetuneRequest:
    """A few steps with all that resuming could get wrong: dropout, micro-batches, a second loss."""
    training = {
        "steps": 12,
        "batch_size": 6,
        "gradient_accumulation_steps": 2,
        "learning_rate": 0.02,
        "checkpoint_every": 6,
        "evaluate_every": 6,
    }
    pool = {"head": {"pool": "extract"}} if task == "classify" else {}  # the paper's, with special tokens
    overrides: dict[str, dict[str, Any]] = {
        **pool,
        "finetuning": {"task": task},
        "model": {"dropout": 0.1},
        "training": training,
    }
    for section, values in changes.pop("overrides", {}).items():
        overrides[section] = {**overrides.get(section, {}), **values}
    return FinetuneRequest(data=data, out=out, overrides=overrides, **changes)


def run_finetuning(
    request: FinetuneRequest, reporter: Reporter | None = None, resume: bool = False
) -> Session[FinetuneTask]:
    return run_training(FinetuneTraining(request), reporter or Reporter(), resume=resume)


@pytest.fixture
def finetune() -> Callable[..., Session[FinetuneTask]]:
    """Trains as a request asks for."""
    return run_finetuning


@pytest.fixture
def reviews() -> list[tuple[str, str]]:
    return make_reviews()


@pytest.fixture
def tiny_request() -> Callable[..., FinetuneRequest]:
    return make_tiny_request


@pytest.fixture(scope="session")
def tuned(start: Start, review_file: Path, made_once: Callable[..., Path]) -> Path:
    """A run whose model knows the labels of the reviews."""
    # With a rate of 0.02 it depends on the last bits whether the training succeeds
    training = {
        "steps": 150, "checkpoint_every": 75, "evaluate_every": 50, "patience": None, "learning_rate": 0.005,
    }  # fmt: skip

    def tune(out: Path) -> None:
        run_finetuning(make_tiny_request(review_file, out, overrides={"training": training}, start=start))

    return made_once("reviews", tune)


@pytest.fixture
def make_headed(start: Start) -> Callable[..., LanguageModel]:
    """Makes a model with an untrained head."""

    def make(task: str, labels: tuple[str, ...] = (), pool: Pool = "mean", **settings: Any) -> LanguageModel:
        tokens = choose_tokens(start.tokenizer, pool, find_kind(task).reader.form.fewest > 1)
        columns = settings.pop("columns", Columns(texts=("text",)))
        head = HeadSettings(task=task, labels=labels, pool=pool, tokens=tokens, columns=columns, **settings)
        return with_head(start.model, head, seed=3)

    return make
