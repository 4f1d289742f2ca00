"""LoRA updates in peft's layout, with peft itself as the judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from foretell.cli.main import run
from foretell.convert.peft import ADAPTER_WEIGHTS, export_peft
from foretell.errors import CheckpointError, ConfigError, UsageError
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.model.lora import LoRAConfig, lora_weights
from foretell.saved_model.layer_parts import LORA, add_adapters

# peft calls what transformers 5 has renamed
pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")
IDS = torch.randint(29, (2, 7), generator=torch.Generator().manual_seed(3))
THEIR_TARGETS = {
    "gpt2": ["c_attn", "c_fc", "mlp.c_proj"],
    "llama": ["q_proj", "v_proj", "down_proj"],
    "openai-gpt": ["c_attn"],
    "gpt_neox, half rotated": ["query_key_value", "dense_4h_to_h"],
    "phi3, partly rotated": ["qkv_proj", "gate_up_proj"],
    "stablelm": ["q_proj", "k_proj"],
    "olmo2": ["q_proj", "o_proj"],
    "gemma3": ["q_proj", "gate_proj"],
}
OUR_TARGETS = {
    "gpt2": ("**.attention.*y", "**.feedforward.up"),  # query and key, so that the update of c_attn has a gap
    "llama": ("**.attention.query", "**.feedforward.gate"),
    "gpt_neox, half rotated": ("**.attention.*y",),
    "phi": ("**.attention.query", "**.feedforward.down"),
    "olmo2": ("**.attention.*y", "**.feedforward.up"),
    "gemma3": ("**.attention.output", "**.feedforward.gate"),
}


def their_adapter(base: Any, directory: Path, **changes: Any) -> Any:
    """An adapter with random weights, saved by peft; returns peft's model."""
    is_gpt = "transformer" in dict(base.named_modules())
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 6, "fan_in_fan_out": is_gpt, **changes}
    model = peft.get_peft_model(base, peft.LoraConfig(**settings))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(str(directory))
    return model.eval()


@pytest.mark.parametrize("case", THEIR_TARGETS)
@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}], ids=["plain", "rslora"])
def test_an_adapter_of_peft_has_the_same_logits_here(case, settings, make_theirs, directory_of, tmp_path):
    theirs = their_adapter(make_theirs(case), tmp_path, target_modules=THEIR_TARGETS[case], **settings)
    expected = theirs(IDS).logits
    for keep in (False, True):
        model = load(str(directory_of(case)), "cpu", "float32", adapter=tmp_path, keep_adapters=keep)
        assert (LORA in model.parts) == keep
        torch.testing.assert_close(model.decoder(IDS), expected, rtol=1e-4, atol=1e-4)


def test_layers_may_have_ranks_and_factors_of_their_own(make_theirs, directory_of, tmp_path):
    patterns = {"rank_pattern": {"c_fc": 2}, "alpha_pattern": {"c_fc": 9}}
    theirs = their_adapter(make_theirs("gpt2"), tmp_path, target_modules=["c_attn", "c_fc"], **patterns)
    model = load(str(directory_of("gpt2")), "cpu", "float32", adapter=tmp_path)
    torch.testing.assert_close(model.decoder(IDS), theirs(IDS).logits, rtol=1e-4, atol=1e-4)


def tuned(directory, targets) -> LanguageModel:
    """A model with random updates of ours."""
    model = load(str(directory), "cpu", "float32")
    part = add_adapters(model.decoder, LoRAConfig(rank=3, alpha=4, targets=targets))
    for weight in lora_weights(model.decoder).values():
        torch.nn.init.normal_(weight, std=0.2)
    return LanguageModel(model.decoder.eval(), model.tokenizer, parts={LORA: part})


@pytest.mark.parametrize("case", OUR_TARGETS)
def test_peft_reads_ours_with_the_same_logits(case, make_theirs, directory_of, tmp_path):
    model = tuned(directory_of(case), OUR_TARGETS[case])
    report = export_peft(model, tmp_path / "adapter")
    assert report["difference"] < 1e-6
    theirs = peft.PeftModel.from_pretrained(make_theirs(case), tmp_path / "adapter").eval()
    torch.testing.assert_close(theirs(IDS).logits, model.decoder(IDS), rtol=1e-4, atol=1e-4)


def test_ours_read_again_is_the_same_model(directory_of, tmp_path):
    model = tuned(directory_of("gpt2"), OUR_TARGETS["gpt2"])
    export_peft(model, tmp_path / "adapter")
    again = load(str(directory_of("gpt2")), "cpu", "float32", adapter=tmp_path / "adapter")
    torch.testing.assert_close(again.decoder(IDS), model.decoder(IDS), rtol=1e-4, atol=1e-4)


def test_an_adapter_is_a_model_argument_where_it_names_its_base(make_theirs, directory_of, tmp_path, capsys):
    their_adapter(make_theirs("llama"), tmp_path / "a", target_modules=["q_proj"])
    settings = tmp_path / "a" / "adapter_config.json"
    changed = json.loads(settings.read_text()) | {"base_model_name_or_path": str(directory_of("llama"))}
    settings.write_text(json.dumps(changed))
    assert run(["next", str(tmp_path / "a"), "abc"]) == 0
    assert run(["convert", str(tmp_path / "a"), str(tmp_path / "b"), "--to", "peft", "--family", "llama"]) == 0
    assert "LoRA of rank 4 for 2 layers of a llama" in capsys.readouterr().out


def damage_weights(directory, change):
    weights = load_file(directory / ADAPTER_WEIGHTS)
    save_file(change(weights), directory / ADAPTER_WEIGHTS)


FIRST = "base_model.model.transformer.h.0.attn.c_attn"


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({"use_dora": True}, None, "has use_dora = True, which foretell cannot express"),
        ({"peft_type": "IA3"}, None, "has peft_type = 'IA3'"),
        ({"modules_to_save": ["score"]}, None, "modules_to_save = \\['score'\\]"),
        ({"lora_alpha": "two"}, None, "lora_alpha must be a number, not 'two'"),
        ({}, lambda weights: {}, "holds no updates"),
        ({}, lambda weights: {key: value for key, value in weights.items() if "_A" in key}, "is not a pair of"),
        ({}, lambda weights: {key.replace("c_attn", "c_x"): weights[key] for key in weights}, "such as 'transformer.h"),
        ({}, lambda weights: {key: value[:, :4].clone() for key, value in weights.items()}, "another model"),
        ({}, lambda weights: {key: value * torch.nan for key, value in weights.items()}, "not finite"),
    ],
)
def test_an_adapter_that_cannot_be_read_is_one_line(settings, change, message, make_theirs, directory_of, tmp_path):
    their_adapter(make_theirs("gpt2"), tmp_path, target_modules=["c_attn"])
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    if change:
        damage_weights(tmp_path, change)
    with pytest.raises(CheckpointError, match=message) as error:
        load(str(directory_of("gpt2")), "cpu", "float32", adapter=tmp_path)
    assert "\n" not in str(error.value)


def test_what_has_no_updates_or_no_family_is_refused(directory_of, tmp_path):
    model = load(str(directory_of("gpt2")), "cpu", "float32")
    with pytest.raises(UsageError, match="has no LoRA updates; convert the whole model to huggingface"):
        export_peft(model, tmp_path / "a")
    with pytest.raises(ConfigError, match="llama cannot express"):
        export_peft(tuned(directory_of("gpt2"), ("**.query",)), tmp_path / "a", family_name="llama")
    with pytest.raises(CheckpointError, match="is not an adapter in peft's layout"):
        load(str(directory_of("gpt2")), adapter=tmp_path)
    assert not (tmp_path / "a").exists()
