"""`foretell train --start-from MODEL`: a trained model continues with another text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from foretell.model.init import make_decoder
from foretell.runs.checkpoint import list_checkpoints
from foretell.saved_model.parts_on_disk import save_model
from foretell.session.protocol import load_start
from foretell.session.start import Start

QUICK = ["--steps", "6", "--checkpoint-every", "2", "--training.batch-size", "4", "--dtype", "float32"]
DROPOUT = ["--model.dropout.residual", "0.1", "--training.keep-checkpoints", "9"]


@pytest.fixture
def start(trained: Path) -> Start:
    return load_start(trained)


def weights_of(run: str, step: int) -> dict[str, torch.Tensor]:
    return load_file(f"{run}/checkpoints/step-{step:06}/model.safetensors")


def losses_of(run: str) -> list[tuple[int, float]]:
    lines = map(json.loads, Path(run, "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"]) for line in lines]


def test_it_starts_with_the_weights_of_the_model_and_the_requested_dropout(start: Start) -> None:
    decoder = start.decoder(start.config.replaced(dropout={"residual": 0.25}))
    assert decoder.training
    assert decoder.config.dropout.residual == 0.25
    for (path, weight), other in zip(decoder.named_parameters(), start.model.decoder.parameters(), strict=True):
        assert torch.equal(weight, other), path
        assert weight.requires_grad
        assert weight.data_ptr() != other.data_ptr()


def test_the_run_has_the_shape_and_tokenizer_of_the_model_and_records_it(foretell, corpus, trained, start):
    outcome = foretell("train", corpus, "--start-from", trained, *QUICK, "--out", "x").succeeds()
    assert f"from        {start.name}: its weights, shape and tokenizer" in outcome.err
    assert "fresh model" not in outcome.err
    record = json.loads(Path("x/run.json").read_text())
    assert record["from"] == {"model": str(trained), "weights_sha256": start.digest}
    shape = start.config.model_dump(mode="json")
    assert {**record["config"]["model"], "dropout": None} == {**shape, "dropout": None}
    tokenizer = "checkpoints/step-000006/tokenizer.json"
    assert Path("x", tokenizer).read_bytes() == (trained / "checkpoints/step-000012/tokenizer.json").read_bytes()
    assert losses_of("x")[0][1] < 5  # a new one would begin at ln(257) = 5.55


def test_a_run_cut_short_and_resumed_is_the_uninterrupted_run(foretell, corpus, trained) -> None:
    for name in ("whole", "cut", "early"):
        assert foretell("train", corpus, "--start-from", trained, *QUICK, *DROPOUT, "--out", name).code == 0
    for run, steps in (("cut", (4, 6)), ("early", (2, 4, 6))):  # as if the process had died before
        for step in steps:
            shutil.rmtree(f"{run}/checkpoints/step-{step:06}")
    for run, words in (("cut", "after step 2 of 6"), ("early", "from the start")):
        assert words in foretell("train", "--out", run, "--resume", "auto").err
        whole, again = weights_of("whole", 6), weights_of(run, 6)
        assert all(torch.equal(whole[path], again[path]) for path in whole)
        assert losses_of("whole") == losses_of(run)


@pytest.fixture
def other(tmp_path: Path, start: Start) -> Path:
    """A model of the same shape with other weights."""
    (tmp_path / "other").mkdir()
    save_model(tmp_path / "other", make_decoder(start.config, seed=9), start.tokenizer)
    return tmp_path / "other"


def test_another_model_is_another_run(foretell, corpus, trained, other: Path) -> None:
    foretell("train", corpus, "--start-from", trained, *QUICK, "--out", "x")
    assert foretell("train", "--start-from", trained, "--out", "x", "--resume", "auto").code == 0
    outcome = foretell("train", "--start-from", other, "--out", "x", "--resume", "auto")
    assert (outcome.code, "was started with start_from = " in outcome.last_line) == (2, True)


def test_a_model_that_was_changed_is_refused(foretell, corpus, other: Path, start: Start) -> None:
    foretell("train", corpus, "--start-from", other, *QUICK, "--out", "x")
    for checkpoint in list_checkpoints(Path("x/checkpoints")):
        shutil.rmtree(checkpoint.directory)
    shutil.rmtree(other)
    other.mkdir()
    save_model(other, make_decoder(start.config, seed=10), start.tokenizer)
    outcome = foretell("train", "--out", "x", "--resume", "auto")
    assert outcome.code == 1
    assert "which has other weights now; start again with another --out" in outcome.last_line


REFUSED = (
    (["--size", "tiny"], "leave out --size"),
    (["--kind", "bpe"], "leave out --tokenizer, --kind"),
    (["--tokenizer", "primer"], "leave out --tokenizer, --kind"),
    (["--tokenizer.vocab-size", "300"], "leave out --tokenizer, --kind"),
    (["--model.width", "64"], "leave out model.width, only dropout can change"),
    (["--model.dropout", "2"], "dropout"),
)


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_settings_that_the_model_fixes_are_refused_in_one_line(options, words, foretell, corpus, trained) -> None:
    foretell("train", corpus, "--start-from", trained, *QUICK, *options, "--out", "x").fails(2, words)
    assert not Path("x").exists()


def test_an_unknown_model_is_refused_with_a_suggestion(foretell, corpus) -> None:
    foretell("train", corpus, "--start-from", "primr", "--out", "x").fails(1, "did you mean 'primer'")


def test_tokens_of_another_tokenizer_are_refused(foretell, corpus, trained, tmp_path: Path) -> None:
    foretell("train", corpus, *QUICK, "--size", "toy", "--kind", "characters", "--out", "x")
    foretell("train", "x/tokens", "--start-from", trained, *QUICK, "--out", "y").fails(1, "tokenizer")
