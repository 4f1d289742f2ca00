"""LoRA updates inside a decoder: what they change, what is trained, and that merging changes nothing."""

from __future__ import annotations

import json

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.config.training import TrainingConfig
from foretell.data.batch import make_batch, pad
from foretell.errors import CheckpointError, ConfigError, UsageError
from foretell.language_model import load_model
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.lora import LoRAConfig, add_lora, lora_weights, merge_lora
from foretell.saved_model.layer_parts import LORA, LoRAPart, add_adapters
from foretell.saved_model.part import DecoderPart, TokenizerPart
from foretell.saved_model.parts_on_disk import save_parts
from foretell.text import train_tokenizer
from foretell.training.objective import Objective
from foretell.training.optimizer import make_optimizer

CONFIG = ModelConfig.model_validate(
    {"num_layers": 2, "num_heads": 2, "width": 16, "context_length": 8, "vocab_size": 257}
)
IDS = torch.randint(257, (2, 8), generator=torch.Generator().manual_seed(3))


@pytest.fixture
def decoder() -> Decoder:
    return make_decoder(CONFIG, seed=1)


def with_random_updates(decoder: Decoder) -> Decoder:
    for weight in lora_weights(decoder).values():
        torch.nn.init.normal_(weight, std=0.3)
    return decoder


def test_a_new_update_changes_no_logit(decoder):
    before = decoder(IDS)
    paths = add_lora(decoder, LoRAConfig())
    layers = [path for path, module in decoder.named_modules() if path.startswith("trunk.blocks.")]
    assert paths == [path for path in layers if path.endswith((".query", ".key", ".value", ".output", ".up", ".down"))]
    assert len(paths) == 2 * 6
    assert torch.equal(decoder(IDS), before)


def test_one_glob_may_be_a_text():
    assert LoRAConfig.model_validate({"targets": "**.query"}).targets == ("**.query",)


def test_updates_depend_on_seed_and_path_alone(decoder):
    add_lora(decoder, LoRAConfig(), seed=5)
    other = make_decoder(CONFIG, seed=2)
    add_lora(other, LoRAConfig(targets=("trunk.blocks.1.attention.*",)), seed=5)
    name = "trunk.blocks.1.attention.value.lora_a"
    assert torch.equal(lora_weights(decoder)[name], lora_weights(other)[name])
    assert not torch.equal(lora_weights(decoder)[name], lora_weights(decoder)["trunk.blocks.0.attention.value.lora_a"])


@pytest.mark.parametrize("targets", [("**.attention.*",), ("**.feedforward.*", "trunk.blocks.0.attention.key")])
def test_merged_equals_kept_apart(decoder, targets):
    keys = decoder.state_dict().keys()
    add_lora(decoder, LoRAConfig(rank=3, alpha=5, targets=targets))
    before, apart = decoder.state_dict().keys() - keys, with_random_updates(decoder)(IDS)
    assert before == lora_weights(decoder).keys()
    merge_lora(decoder)
    torch.testing.assert_close(decoder(IDS), apart, rtol=1e-5, atol=1e-5)
    assert decoder.state_dict().keys() == keys


def test_gradients_reach_only_the_updates(decoder):
    frozen = {path: weight.clone() for path, weight in decoder.named_parameters()}
    add_lora(decoder, LoRAConfig(dropout=0.1))
    with_random_updates(decoder).train()
    optimizer = make_optimizer(decoder, TrainingConfig(steps=1, optimizer="adamw"))
    tokens, lengths = pad(IDS.tolist())
    Objective(decoder)(make_batch(tokens, lengths)).sum.backward()
    before = {path: weight.detach().clone() for path, weight in lora_weights(decoder).items()}
    optimizer.step()
    after = dict(decoder.named_parameters())
    assert all(torch.equal(after[path], weight) for path, weight in frozen.items())
    assert all(not torch.equal(after[path], weight) for path, weight in before.items())


@pytest.mark.parametrize(
    ("targets", "error", "message"),
    [
        (("**.attention",), ConfigError, "is not a linear layer, so LoRA cannot be added; try"),
        (("**.querry",), UsageError, "nothing here is named '\\*\\*.querry'; near it: \\*\\*.query"),
        (("head",), ConfigError, "'head' is not a linear layer"),
    ],
)
def test_a_target_that_cannot_have_an_update_is_refused(decoder, targets, error, message):
    with pytest.raises(error, match=message):
        add_lora(decoder, LoRAConfig(targets=targets))


def test_a_second_update_of_the_same_layer_is_refused(decoder):
    add_lora(decoder, LoRAConfig())
    with pytest.raises(ConfigError, match="has a LoRA update already"):
        add_lora(decoder, LoRAConfig())


# --- as a part of a saved model ---------------------------------------------------------------------------------------


@pytest.fixture
def saved(decoder, tmp_path):
    tokenizer = train_tokenizer("bytes", ["a text"])
    part = add_adapters(decoder, LoRAConfig(rank=2, dropout=0.1))
    with_random_updates(decoder)
    save_parts(tmp_path, {"decoder": DecoderPart(decoder), "tokenizer": TokenizerPart(tokenizer), LORA: part})
    return tmp_path


def test_a_saved_model_is_merged_for_inference_and_kept_apart_for_training(decoder, saved):
    expected = decoder.eval()(IDS)
    merged, apart = load_model(saved), load_model(saved, for_training=True)
    assert not merged.parts and not lora_weights(merged.decoder)
    torch.testing.assert_close(merged.decoder(IDS), expected, rtol=1e-5, atol=1e-5)
    assert isinstance(part := apart.parts[LORA], LoRAPart)
    assert part.settings.dropout == 0.1
    assert torch.equal(apart.decoder.eval()(IDS), expected)
    assert {path for path, weight in apart.decoder.named_parameters() if weight.requires_grad} == set(part.weights())


def test_updates_can_be_kept_apart_for_inference_too(decoder, saved):
    model = load_model(saved, keep_adapters=True)
    assert torch.equal(model.decoder(IDS), decoder.eval()(IDS))


@pytest.mark.parametrize(
    ("values", "message"),
    [({"targets": ["trunk.blocks.7.attention.query"]}, "nothing here is named"), ({"rank": 0}, "lora.rank")],
)
def test_a_damaged_part_is_one_line(saved, values, message):
    config = json.loads((saved / "config.json").read_text())
    config["parts"]["lora"] |= values
    (saved / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=message) as error:
        load_model(saved)
    assert "\n" not in str(error.value)
