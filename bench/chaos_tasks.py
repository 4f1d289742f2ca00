"""The trainings that `chaos.py` kills: a tiny one of every task, made from the folder of `prepare` and a directory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from foretell.data.documents import TextDocument
from foretell.finetuning.chat_tuning import ChatRequest, ChatTraining
from foretell.finetuning.finetune import FinetuneTraining
from foretell.finetuning.request import FinetuneRequest
from foretell.forecasting.train import ForecastRequest, ForecastTraining
from foretell.generation.batch_generation import continue_prompt
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.request import TextRequest
from foretell.session.declaration import Training
from foretell.session.protocol import load_start
from foretell.text import train_tokenizer
from foretell.translation.train import PairRequest, TranslationTraining

TEXT = "The cat sat on the mat, and the dog sat on the log.\n" * 12
WORDS = ("cat", "dog", "mat", "log")
SHAPE = {"num_layers": 1, "num_heads": 1, "width": 8, "context_length": 8, "dropout": 0.2}
TRAINING = {"steps": 8, "batch_size": 4, "gradient_accumulation_steps": 2, "checkpoint_every": 2, "evaluate_every": 2}
TEXT_TRAINING = {**TRAINING, "evaluate_every": 1, "evaluation_tokens": 16}


def prepare(folder: Path) -> None:
    """Write the data of all tasks, and an untrained model that the tunings start from."""
    rows = [f"the {word} sat there {number},{word}\n" for word in WORDS for number in range(4)]
    (folder / "rows.csv").write_text("text,label\n" + "".join(rows))
    chats = [{"prompt": f"the {word}?", "completion": f"sat {number}"} for word in WORDS for number in range(4)]
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    pairs = [f"the {word} sees a {other}\tle {other} voit un {word}\n" for word in WORDS for other in WORDS]
    (folder / "pairs.tsv").write_text("".join(pairs))
    values = [f"2024-01-{1 + index // 24:02}T{index % 24:02}:00:00,{100 + index % 6}\n" for index in range(60)]
    (folder / "series.csv").write_text("ds,y\n" + "".join(values))
    tokenizer = train_tokenizer("bytes", [TEXT])
    config = preset_config("toy", vocab_size=tokenizer.vocab_size, **{**SHAPE, "context_length": 48})
    LanguageModel(make_decoder(config, seed=1).eval(), tokenizer).save(folder / "start")


def train_text(folder: Path, out: Path) -> TextTraining:
    """With gradient accumulation, dropout, bfloat16, a validation text and samples."""
    sections: Mapping[str, Any] = {"model": SHAPE, "tokenizer": {"kind": "bytes"}, "training": TEXT_TRAINING}
    return TextTraining(
        TextRequest(
            source=lambda: [TextDocument("cats.txt", TEXT)],
            names=["cats.txt"],
            out=out,
            size="toy",
            overrides=sections,
            device="cpu",
            dtype="bfloat16",
        ),
        continue_prompt,
    )


def tune_head(folder: Path, out: Path) -> FinetuneTraining:
    """With a second copy of the best checkpoint by accuracy, and the report at the end."""
    start = load_start(folder / "start")
    return FinetuneTraining(
        FinetuneRequest(
            data=folder / "rows.csv",
            task="classify",
            out=out,
            start=start,
            device="cpu",
            dropout=0.2,
            overrides={"training": TRAINING},
        )
    )


def tune_chat(folder: Path, out: Path) -> ChatTraining:
    """With new tokens of the template."""
    overrides = {"model": {"dropout": 0.2}, "training": TRAINING}
    start = load_start(folder / "start")
    return ChatTraining(
        ChatRequest(
            data=[folder / "chats.jsonl"], truncate="tail", out=out, start=start, device="cpu", overrides=overrides
        )
    )


def train_translation(folder: Path, out: Path) -> TranslationTraining:
    training = {key: value for key, value in TRAINING.items() if key != "batch_size"}
    shape = {"num_layers": 1, "num_heads": 1, "width": 8, "dropout": 0.2}
    sections = {
        "model": shape,
        "tokenizer": {"kind": "bytes"},
        "training": training,
        "pairs": {"batch_tokens": 128, "validation_fraction": 0.2},
    }
    return TranslationTraining(
        PairRequest(paths=[folder / "pairs.tsv"], out=out, size="toy", device="cpu", overrides=sections)
    )


def train_forecaster(folder: Path, out: Path) -> ForecastTraining:
    sections = {"model": {**SHAPE, "context_length": 16}, "codec": {"bins": 31}, "training": TRAINING}
    return ForecastTraining(
        ForecastRequest(data=folder / "series.csv", horizon=4, out=out, size="toy", device="cpu", overrides=sections)
    )


TASKS: dict[str, Callable[[Path, Path], Training[Any, Any]]] = {
    "text": train_text,
    "labels": tune_head,
    "chat": tune_chat,
    "translation": train_translation,
    "forecasting": train_forecaster,
}
