"""What the tests of training share: a tiny objective, a configuration and a stream of tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.training import TrainingConfig
from foretell.data.batch import Batch, make_document_batch
from foretell.data.loader import Loader
from foretell.data.shard_writer import TokenWriter, write_index
from foretell.data.shards import TokenStore
from foretell.model.init import make_decoder
from foretell.training.objective import Objective

VOCABULARY, CONTEXT = 14, 6

MakeObjective = Callable[..., Objective]
Settings = Callable[..., TrainingConfig]


@pytest.fixture(scope="session")
def make_objective() -> MakeObjective:
    """`make_objective(dropout=0.1)`: the objective of a new tiny decoder, in training mode."""

    def make(logits_at_once: int = 10**6, **changes: Any) -> Objective:
        sizes = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": CONTEXT, "vocab_size": VOCABULARY}
        config = make_section(ModelConfig, {**sizes, **changes})
        return Objective(make_decoder(config, seed=1), logits_at_once).train()

    return make


@pytest.fixture(scope="session")
def settings() -> Settings:
    def make(**changes: Any) -> TrainingConfig:
        defaults = {"steps": 6, "batch_size": 8, "warmup_steps": 2, "learning_rate": 0.01}
        return make_section(TrainingConfig, {**defaults, **changes})

    return make


@pytest.fixture
def batch() -> Batch:
    """Eight rows of documents of unlike lengths, so that each part of the batch has another number of targets."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, VOCABULARY, (8, CONTEXT + 1))
    borders = generator.random(tokens.shape) < np.linspace(0, 0.9, 8)[:, None]
    return make_document_batch(tokens, borders.cumsum(1))


@pytest.fixture
def loader(tmp_path: Path) -> Loader:
    """Batches of a text that counts up and down again, which a model can learn."""
    ids = np.array([*range(VOCABULARY), *reversed(range(VOCABULARY))] * 20)
    with TokenWriter(tmp_path / "tokens", "train", VOCABULARY) as writer:
        writer.add_document(ids, text_bytes=len(ids))
    write_index(tmp_path / "tokens", "a tokenizer", VOCABULARY, {"train": writer.record})
    return Loader(TokenStore.open(tmp_path / "tokens").split("train"), CONTEXT, batch_size=8, seed=3)
