"""A tuned classifier in Hugging Face's layout: transformers gives the same labels and outputs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from foretell.cli.main import run
from foretell.config.model import ModelConfig
from foretell.errors import OutputError, UsageError
from foretell.finetuning import export_classifier as module
from foretell.finetuning.export_classifier import export_classifier
from foretell.finetuning.head import head_of, with_head
from foretell.finetuning.inputs import choose_tokens
from foretell.finetuning.kind import kind_of
from foretell.finetuning.predict import predict
from foretell.finetuning.settings import Columns, HeadSettings
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.model.init import make_decoder
from foretell.model.presets import MODERN
from foretell.text import train_tokenizer

TEXTS = ["the film was great", "a dull, dull book", "fine"]
SHAPES = {
    "GPT2ForSequenceClassification": {},
    "Qwen3ForSequenceClassification": {**MODERN, "head_width": 8},
    "LlamaForSequenceClassification": {**MODERN, "qk_norm": False, "tie_embeddings": False},
    "GPTNeoXForSequenceClassification": {"position": "rotary", "rotary_share": 0.5, "residual": "parallel"},
    "PhiForSequenceClassification": {"position": "rotary", "residual": "parallel_shared_norm", "bias": {"head": True}},
}


def tuned_model(shape: dict, task: str = "classify", pool: str = "extract") -> LanguageModel:
    """A model with a head and strong random weights."""
    tokenizer = train_tokenizer("bytes", ["a text"])
    sizes = {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 48, "vocab_size": tokenizer.vocab_size}
    decoder = make_decoder(ModelConfig.model_validate({**sizes, **shape}), seed=1).eval()
    labels = ("bad", "good", "mixed") if task in ("classify", "entailment") else ()
    settings = HeadSettings.model_validate({"task": task, "pool": pool, "labels": labels, "columns": Columns(texts=())})
    tokens = choose_tokens(tokenizer, settings.pool, kind_of(settings).reader.form.fewest > 1)
    settings = settings.model_copy(update={"tokens": tokens})
    model = with_head(LanguageModel(decoder, tokenizer), settings, seed=2)
    with torch.no_grad():
        for weight in (*model.decoder.parameters(), head_of(model).linear.weight):
            weight.add_(0.2 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(weight.numel())))
    return model


@pytest.mark.parametrize("pool", ["extract", "last"])
@pytest.mark.parametrize("architecture", SHAPES)
def test_transformers_gives_the_same_outputs(architecture: str, pool: str, tmp_path: Path):
    model = tuned_model(SHAPES[architecture], pool=pool)
    report = export_classifier(model, tmp_path / "out")
    assert report["architecture"] == architecture
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    for text, own in zip(TEXTS, predict(model, [(text,) for text in TEXTS]), strict=True):
        logits = theirs(torch.tensor([tokenizer(text)["input_ids"]])).logits[0]
        expected = dict(zip(theirs.config.id2label.values(), logits.softmax(-1).tolist(), strict=True))
        assert own.probabilities == pytest.approx(expected, abs=1e-5)


def test_a_pair_of_texts_is_joined_by_the_exported_tokenizer(tmp_path: Path):
    model = tuned_model({}, task="entailment")
    export_classifier(model, tmp_path / "out")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out").eval()
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "out")
    logits = theirs(torch.tensor([tokenizer("it rains", "it is wet")["input_ids"]])).logits[0]
    own = predict(model, [("it rains", "it is wet")])[0].probabilities
    assert list((own or {}).values()) == pytest.approx(logits.softmax(-1).tolist(), abs=1e-5)


@pytest.mark.parametrize(
    ("task", "pool", "message"),
    [
        ("classify", "mean", "transformers' classifiers read the last token"),
        ("regress", "extract", "task regress has no class in transformers; classify and entailment"),
        ("choice", "extract", "task choice has no class"),
    ],
)
def test_what_transformers_cannot_express_is_refused(task: str, pool: str, message: str, tmp_path: Path):
    with pytest.raises(UsageError, match=message):
        export_classifier(tuned_model({}, task, pool), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_outputs_that_differ_when_read_back_keep_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "iter_tensors", lambda *args: damaged(*args))
    original = module.iter_theirs

    def damaged(model, family, dtype):
        weights = dict(model.decoder.named_parameters())
        yield from original(family, model.config, {path: weight.detach() for path, weight in weights.items()})
        yield module.SCORE, head_of(model).linear.weight.detach() * 1.1

    with pytest.raises(OutputError, match="outputs differ by .* nothing was kept"):
        export_classifier(tuned_model({}), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_convert_writes_a_tuned_run_as_a_classifier(tuned: Path, tmp_path: Path, capsys):
    assert run(["convert", str(tuned), str(tmp_path / "out"), "--to", "huggingface", "--family", "gpt2"]) == 0
    assert "(GPT2ForSequenceClassification)" in capsys.readouterr().out
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert theirs.config.id2label == dict(enumerate(head_of(load(tuned)).settings.labels))
