"""A language model as an object: called, encoding and decoding, moved, saved."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import foretell
from foretell.errors import CheckpointError, ContextLengthError, ForetellError, OutputError, UsageError
from foretell.language_model import LanguageModel, load_model


@pytest.fixture
def model() -> LanguageModel:
    return foretell.load("primer", device="cpu")


IDS = [5, 6, 7]


@pytest.mark.parametrize(
    "ids",
    [IDS, [IDS], np.array(IDS), torch.tensor(IDS), torch.tensor([IDS], dtype=torch.int32)],
    ids=["list", "list of lists", "array", "tensor (T,)", "tensor (B, T)"],
)
def test_a_call_gives_the_decoders_logits(model: LanguageModel, ids: Any) -> None:
    logits = model(ids)
    assert logits.shape == (1, 3, model.config.vocab_size)
    assert torch.equal(logits, model.decoder(torch.tensor([IDS])))


def test_a_model_can_be_pickled(model: LanguageModel) -> None:
    copied = pickle.loads(pickle.dumps(model))
    assert (str(copied), copied.encode("the value")) == (str(model), model.encode("the value"))
    assert torch.equal(copied(IDS), model(IDS))


def test_a_call_takes_several_texts_of_equal_length(model: LanguageModel) -> None:
    assert model([IDS, [1, 2, 3]]).shape == (2, 3, model.config.vocab_size)


def test_logits_have_gradients_unless_torch_is_told_otherwise(model: LanguageModel) -> None:
    assert model(IDS).requires_grad
    with torch.no_grad():
        assert not model(IDS).requires_grad


@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ("text", UsageError, "ids must be a list of token ids, .*; model.encode"),
        ([[1, 2], [3]], UsageError, "lists of equal length"),
        ([], UsageError, "no token ids were given"),
        ([0.5], UsageError, r"not float32 of shape \(1,\)"),
        (torch.zeros(2, 2, 2, dtype=torch.long), UsageError, r"not int64 of shape \(2, 2, 2\)"),
        ([1, 1024], UsageError, r"token id 1024 is outside the model's vocabulary \(0 to 1023\)"),
        ([-1], UsageError, "token id -1 is outside"),
        ([1] * 129, ContextLengthError, "129 tokens do not fit"),
    ],
    ids=str,
)
def test_wrong_ids_are_refused_in_one_line(
    model: LanguageModel, ids: Any, error: type[ForetellError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        model(ids)
    assert "\n" not in str(caught.value)


def test_encode_and_decode_are_inverse(model: LanguageModel) -> None:
    ids = model.encode("The return value")
    assert model.decode(ids) == model.decode(torch.tensor(ids)) == "The return value"
    assert model([ids]).shape[1] == len(ids)


def test_log_probabilities_leave_out_rows_that_no_token_has(model: LanguageModel) -> None:
    logits = torch.randn(2, model.tokenizer.vocab_size + 9)
    logprobs = model.log_probabilities(logits)
    assert (logprobs.dtype, logprobs.shape) == (torch.float64, (2, model.tokenizer.vocab_size))
    assert torch.allclose(logprobs.exp().sum(-1), torch.ones(2, dtype=torch.float64))


def test_the_repr_is_short(model: LanguageModel) -> None:
    lines = repr(model).splitlines()
    assert len(lines) <= 2
    assert "'primer': 4 layers" in lines[0]
    assert "1,968,320 parameters, float32 on cpu" in lines[1]


# --- to


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_a_moved_model_is_the_model_loaded_in_that_precision(model: LanguageModel, dtype: str | torch.dtype) -> None:
    assert model.to("cpu", dtype) is model
    assert model.dtype == torch.bfloat16
    assert torch.equal(model(IDS), foretell.load("primer", device="cpu", dtype="bfloat16")(IDS))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "float31"}, "unknown dtype 'float31', did you mean 'float32'"),
        ({"dtype": torch.int64}, "unknown dtype 'int64'"),
        ({"device": "gpu"}, "unknown device 'gpu', did you mean 'cpu'"),
        ({"device": "cpu:x"}, "no device 'cpu:x' here"),
        ({"device": "float32", "dtype": "float32"}, "unknown device 'float32'; known: auto, cpu"),
        ({"device": "nonsense", "dtype": "bfloat16"}, "unknown device"),
    ],
)
def test_unknown_devices_and_precisions_are_refused(model: LanguageModel, options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        model.to(**options)
    assert "\n" not in str(caught.value)
    assert model.dtype == torch.float32


# --- save


def test_a_saved_model_is_loaded_the_same(model: LanguageModel, tmp_path: Path) -> None:
    model.save(tmp_path / "models" / "mine")
    loaded = foretell.load(tmp_path / "models" / "mine", device="cpu")
    assert torch.equal(loaded(IDS), model(IDS))
    assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["mine"]


def test_a_model_can_be_saved_in_another_precision(model: LanguageModel, tmp_path: Path) -> None:
    model.save(tmp_path / "half", dtype="bfloat16")
    assert model.dtype == torch.float32
    rounded = load_model(tmp_path / "half", dtype=torch.bfloat16)
    assert torch.equal(rounded(IDS), model.to(dtype="bfloat16")(IDS))


def test_a_saved_model_can_be_replaced_also_by_itself(model: LanguageModel, tmp_path: Path) -> None:
    model.save(tmp_path / "mine", dtype="float32")
    loaded = foretell.load(tmp_path / "mine", device="cpu")
    loaded.save(tmp_path / "mine")
    assert torch.equal(foretell.load(tmp_path / "mine", device="cpu")(IDS), model(IDS))


def test_an_empty_directory_can_be_used(model: LanguageModel, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    model.save(tmp_path / "empty")
    assert (tmp_path / "empty" / "config.json").exists()


def a_file(path: Path) -> None:
    path.write_text("mine")


def other_files(path: Path) -> None:
    path.mkdir()
    (path / "thesis.txt").write_text("mine")


def another_programs_model(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "gpt2"}')


def a_broken_configuration(path: Path) -> None:
    path.mkdir()
    (path / "config.json").write_text("{")


def a_checkpoint(path: Path) -> None:
    foretell.load("primer", device="cpu").save(path)
    (path / "optimizer.safetensors").write_text("moments")


@pytest.mark.parametrize(
    ("occupy", "message"),
    [
        (a_file, "is a file; give the name of a directory"),
        (other_files, r"holds more than a saved model \('thesis.txt'\)"),
        (another_programs_model, "is not a saved model"),
        (a_broken_configuration, "is not a saved model"),
        (a_checkpoint, "'optimizer.safetensors'"),
    ],
)
def test_anything_else_is_not_overwritten(
    model: LanguageModel, tmp_path: Path, occupy: Callable[[Path], None], message: str
) -> None:
    occupy(tmp_path / "taken")
    before = sorted(path.name for path in tmp_path.rglob("*"))
    with pytest.raises(OutputError, match=message):
        model.save(tmp_path / "taken")
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_a_save_that_fails_leaves_the_old_model(
    model: LanguageModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.save(tmp_path / "mine")

    def full_disk(*arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("foretell.storage.safetensors_files.save_file", full_disk)
    with pytest.raises(OutputError, match="No space left"):
        model.save(tmp_path / "mine")
    monkeypatch.undo()
    assert torch.equal(foretell.load(tmp_path / "mine", device="cpu")(IDS), model(IDS))
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "uint32", "int64"])
def test_ids_of_any_integer_type_are_read(dtype: str) -> None:
    model = foretell.load("primer", device="cpu")
    ids = np.array([1, 2], dtype=dtype)
    assert torch.equal(model(ids), model([1, 2]))


TAKES_A_MODEL: list[Callable[..., Any]] = [
    *(foretell.generate, foretell.stream, foretell.next_tokens, foretell.score, foretell.embed, foretell.explain),
    *(foretell.logit_lens, foretell.head_patterns, foretell.direct_logit_attribution, foretell.Trace),
    partial(foretell.ablate, address="trunk.blocks.0.attention"),
    partial(foretell.write_page, path="page.html"),
    lambda model, text: foretell.Chat(model),
]


@pytest.mark.parametrize("function", TAKES_A_MODEL)
def test_the_name_of_a_model_is_not_a_model(function: Callable[..., Any]) -> None:
    with pytest.raises(UsageError, match="must be a LanguageModel, not str; foretell.load makes one"):
        function("primer", "a")


@pytest.mark.parametrize(
    ("function", "text", "message"),
    [
        (foretell.score, ["a", "b"], "a text must be a string, not list; give one text at a time"),
        (foretell.embed, b"a", "a text must be a string, not bytes"),
        (foretell.generate, 5, "prompts must be a string or a list of strings"),
        (foretell.generate, ["a", 5], "prompts must be a string or a list of strings"),
    ],
)
def test_a_text_of_another_kind_is_one_line(
    model: LanguageModel, function: Callable[..., Any], text: Any, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        function(model, text)


WRONG_ARGUMENTS: list[tuple[Callable[[LanguageModel], Any], str]] = [
    (lambda model: foretell.Chat(model, system=cast("Any", 5)), "system must be a string, not int"),
    (
        lambda model: foretell.add_lora(cast("Any", model), foretell.LoRAConfig()),
        "the decoder must be a Decoder, not LanguageModel; model.decoder is one",
    ),
    (lambda model: foretell.Scheduler(cast("Any", model)), "the decoder must be a Decoder, not LanguageModel"),
    (
        lambda model: foretell.Scheduler(model.decoder).add(foretell.Sequence([1, 2])),
        "the sequence has no rules: make it with rules=foretell.Rules(sampler)",
    ),
    (
        lambda model: foretell.make_decoder(cast("Any", "toy"), seed=1),
        "the configuration must be a ModelConfig, not str; foretell.preset makes one",
    ),
    (
        lambda model: foretell.translate(cast("Any", None), "a"),
        "the translator must be a Translator, not NoneType; foretell.load_translator makes one",
    ),
    (lambda model: foretell.preset(cast("Any", 5)), "unknown size '5'; known: toy, tiny"),
    (lambda model: model.decode(cast("Any", "12")), "ids must be token ids, not str; model.encode"),
    (lambda model: model.decode(cast("Any", 5)), "ids must be token ids, not int"),
    (lambda model: foretell.write_page(model, "x", cast("Any", None)), "the path must be a string or a Path, not None"),
    (lambda model: foretell.find_run(cast("Any", None)), "a run must be a path or a name, not NoneType"),
    (lambda model: foretell.preset(cast("Any", [])), "unknown size '[]'; known: toy, tiny"),
    *(
        (lambda model, call=call: call(cast("Any", 5)), "the model must be a LanguageModel, not int; foretell.load")
        for call in (
            lambda wrong: foretell.predict(wrong, "a text"),
            lambda wrong: foretell.evaluate_task(wrong, []),
            lambda wrong: foretell.attribute_label(wrong, ["a text"]),
            lambda wrong: foretell.quantize(wrong, "int8"),
            lambda wrong: foretell.export(wrong, "new"),
        )
    ),
    (lambda model: foretell.predict(model, cast("Any", 5)), "texts must be a text or a list of them, not int"),
    (
        lambda model: foretell.predict(model, cast("Any", {"text": "a"})),
        "texts must be a text or a list of them, not dict",
    ),
    (lambda model: foretell.evaluate(model, cast("Any", [])), "data must be a string or a Path, not list"),
    (lambda model: foretell.evaluate(model, "x", stride=cast("Any", "1")), "stride must be a whole number, 1 or more"),
    (lambda model: foretell.next_tokens(model, "x", cast("Any", None)), "top must be a whole number, 1 or more"),
    (
        lambda model: foretell.next_tokens(model, "x", at=cast("Any", 1.5)),
        "a position must be a whole number, not float",
    ),
    (lambda model: foretell.ablate(model, "x", cast("Any", [])), "the address must be a string, not list"),
    (lambda model: foretell.ablate(model, "x", "head", fill=cast("Any", [])), "unknown replacement '[]'"),
    (
        lambda model: foretell.direct_logit_attribution(model, "x", cast("Any", [])),
        "a token must be a text or an id, not list",
    ),
    (lambda model: foretell.explain(model, cast("Any", []), "loss[0]"), "the text is empty; give at least one id"),
    (lambda model: foretell.Trace(model, cast("Any", None)), "names must be a glob or a list of globs, not NoneType"),
    (lambda model: foretell.Trace(model, cast("Any", [5])), "a glob must be a string, not int"),
    (lambda model: foretell.Chat(model, template=cast("Any", [])), "the template must be a string or a Path, not list"),
    (lambda model: foretell.Sampler(cast("Any", 5)), "the settings must be a SamplingConfig, not int"),
    (lambda model: foretell.Decoder(cast("Any", 5)), "the configuration must be a ModelConfig, not int"),
    (lambda model: foretell.KVCache(cast("Any", 5), 1, 8, torch.float32, "cpu"), "the configuration must be a Model"),
    (
        lambda model: foretell.make_decoder(model.decoder.config, cast("Any", "1")),
        "the seed must be a whole number, not str",
    ),
    (lambda model: foretell.add_lora(model.decoder, cast("Any", 5)), "the configuration must be a LoRAConfig, not int"),
    (
        lambda model: foretell.make_optimizer(model.decoder, cast("Any", 5)),
        "the configuration must be a TrainingConfig, not int",
    ),
    (lambda model: foretell.learning_rate_at(1, cast("Any", None)), "the configuration must be a TrainingConfig"),
    (lambda model: foretell.make_batch(np.array([[1, 2]]), cast("Any", 5)), "lengths must be numbers of shape (1,)"),
    (lambda model: model.save(cast("Any", 5)), "the directory must be a string or a Path, not int"),
    (lambda model: foretell.export(model, cast("Any", 5)), "the target must be a string or a Path, not int"),
    (lambda model: foretell.export(model, "new", cast("Any", [])), "unknown format '[]'"),
    (lambda model: foretell.Run(cast("Any", 5)), "a run must be a string or a Path, not int"),
    (lambda model: foretell.load("primer", adapter=cast("Any", 5)), "adapter must be a string or a Path, not int"),
    (lambda model: foretell.forecast(cast("Any", 5), "x"), "the forecaster must be a Forecaster, not int"),
    (lambda model: foretell.read_series("x", given=cast("Any", 5)), "the format must be a SeriesFormat, not int"),
    (lambda model: foretell.train("x", cast("Any", 5)), "out must be a string or a Path, not int"),
    (lambda model: foretell.train("x", minutes=cast("Any", "1")), "minutes must be a positive number"),
    (lambda model: foretell.plan("toy", gpus=cast("Any", "1")), "gpus 1 is not a number of devices"),
    *(
        (
            lambda model, call=call, top=top: call(model, "x", top=top),
            f"top must be a whole number, 1 or more, not {top}",
        )
        for call in (foretell.logit_lens, foretell.next_tokens)
        for top in (0, -1)
    ),
]


@pytest.mark.parametrize(("call", "message"), WRONG_ARGUMENTS)
def test_a_wrong_argument_is_one_line(model: LanguageModel, call: Callable[[LanguageModel], Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        call(model)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_run_is_found_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no run '.*/none'"):
        foretell.find_run(tmp_path / "none")


def test_a_position_is_one_or_a_list(model: LanguageModel) -> None:
    text = "The return value"
    assert foretell.next_tokens(model, text, at=1) == foretell.next_tokens(model, text, at=[1])
    assert foretell.next_tokens(model, text, at=0) == foretell.next_tokens(model, text, at=[0])


def test_results_and_conversations_have_a_short_repr(model: LanguageModel) -> None:
    text = "The return"
    chat = foretell.Chat(model, system="Be brief.")
    assert repr(foretell.explain(model, text)) == "Walk of 'The return' (print shows it)"
    assert repr(foretell.explain(model, text, "loss[0]")) == "Explanation of loss[0] (print shows it)"
    assert repr(foretell.logit_lens(model, text)) == "LogitLens of 'The return' (print shows it)"
    assert repr(foretell.head_patterns(model, text)) == "HeadPatterns of 'The return' (print shows it)"
    assert repr(foretell.head_patterns(model, text).head(1, 2)).startswith("HeadPattern of trunk.blocks.1.attention")
    direct = repr(foretell.direct_logit_attribution(model, text, " value"))
    assert direct == "DirectLogitAttribution of direct contributions to the logit of ' value' (print shows it)"
    ablation = repr(foretell.ablate(model, text, "trunk.blocks.*.feedforward", " value"))
    assert ablation == "Ablation of ' value' without a part of the model (print shows it)"
    assert repr(chat) == "Chat('primer', 1 message)"


@pytest.mark.parametrize("device", ["cpu", "cpu:0", torch.device("cpu")])
@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_a_model_is_loaded_on_torchs_own_devices_and_types(device: Any, dtype: Any) -> None:
    assert foretell.load("primer", device, dtype).dtype == torch.bfloat16


def test_names_of_special_tokens_in_a_text_are_noted_once_per_model(model: LanguageModel, caplog) -> None:
    foretell.score(model, "a <|endoftext|>")
    foretell.next_tokens(model, "b <|endoftext|>")
    (noted,) = caplog.messages
    assert noted.startswith(
        "'<|endoftext|>' in the text is read as ordinary text; --allow-special, or allow_special=True"
    )
    model.encode("c <|endoftext|>", allow_special=True)
    model.reading_special().encode("d <|endoftext|>")
    assert len(caplog.messages) == 1
