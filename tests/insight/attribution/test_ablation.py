"""Ablation equals replacing the output of a part, and addresses select the right targets."""

from __future__ import annotations

import pytest
import torch

from foretell.errors import UsageError
from foretell.insight.attribution import ablation
from foretell.insight.attribution.ablation import AblationTarget, ablate, find_targets
from foretell.insight.replacement import Replacement, without_heads
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from tests.insight.attribution.conftest import MakeModel

CORE = "trunk.blocks.1.attention.core"


@torch.no_grad()
def distribution(model: LanguageModel, text: str, replace: dict[str, Replacement], at: int = -1) -> torch.Tensor:
    with Trace(model, replace=replace):
        return model.decoder(torch.tensor([model.tokenizer.encode(text)]))[0, at].double().softmax(-1)


def test_an_effect_compares_the_distributions_with_and_without_a_part(model: LanguageModel, text: str) -> None:
    before = distribution(model, text, {}, at=4)
    after = distribution(model, text, {CORE: without_heads(0)}, at=4)
    ablation = ablate(model, text, f"{CORE}[0]", token="c", at=4)
    (effect,) = ablation.effects
    assert effect.name == f"{CORE}[0]"
    assert ablation.token.probability == pytest.approx(float(before[2]), rel=1e-4)
    assert effect.probability == pytest.approx(float(after[2]), rel=1e-4)
    assert effect.divergence == pytest.approx(float((before * (before / after).log()).sum()), rel=1e-3, abs=1e-7)
    assert ablation.winner.id == int(before.argmax())
    assert effect.winner.probability == pytest.approx(float(after.max()), rel=1e-4)


def test_the_mean_is_taken_over_the_positions(make_model: MakeModel, text: str) -> None:
    model = make_model("gpt2", torch.float64)
    name = "trunk.blocks.0.feedforward"
    after = distribution(model, text, {name: lambda value: value.mean(1, keepdim=True)})
    assert ablate(model, text, name, "d", fill="mean").effects[0].probability == pytest.approx(float(after[3]))
    assert ablate(model, text, name, "d").effects[0].probability != pytest.approx(float(after[3]))


def test_the_mean_of_one_head_leaves_the_other_heads_unchanged(make_model: MakeModel, text: str) -> None:
    model = make_model("gpt2", torch.float64)

    def only_head_1(mixed: torch.Tensor) -> torch.Tensor:
        return torch.stack([mixed[:, 0], mixed[:, 1].mean(1, keepdim=True).expand_as(mixed[:, 1])], dim=1)

    after = distribution(model, text, {CORE: only_head_1})
    assert ablate(model, text, f"{CORE}[1]", "d", fill="mean").effects[0].probability == pytest.approx(float(after[3]))


@pytest.mark.parametrize(
    "address", ["**.core[*]", "trunk.blocks.*.feedforward", "embed*", "**.core.key[*]", "trunk.**"]
)
def test_parts_in_the_rows_of_one_pass_have_the_effects_of_passes_alone(
    make_model: MakeModel, text: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, passes = make_model("llama", torch.float64), []
    together = ablate(model, text, address, token="d", progress=lambda done, total: passes.append(done))
    monkeypatch.setattr(ablation, "TOKENS_AT_ONCE", 1)
    alone = {effect.name: effect for effect in ablate(model, text, address, token="d").effects}
    assert len(passes) < len(alone) or len(alone) == 1
    assert {effect.name for effect in together.effects} == set(alone)
    for effect in together.effects:
        assert effect.probability == pytest.approx(alone[effect.name].probability, rel=1e-9)
        assert effect.divergence == pytest.approx(alone[effect.name].divergence, rel=1e-6, abs=1e-12)


def test_a_row_joins_the_pass_in_the_layer_of_its_part(make_model: MakeModel, text: str) -> None:
    model, rows = make_model("llama"), []
    for block in model.decoder.trunk.blocks:
        block.register_forward_hook(lambda _, inputs, output: rows.append(len(output)))
    ablate(model, text, "**.core[*]")
    assert rows[-2:] == [1 + 4, 1 + 8]


def test_ablation_leaves_the_model_unchanged(make_model: MakeModel, text: str) -> None:
    model = make_model("gpt2")
    before = distribution(model, text, {})
    ablate(model, text, "trunk.blocks.*.attention.core[*]")
    assert torch.equal(distribution(model, text, {}), before)


def test_effects_are_sorted_by_divergence(make_model: MakeModel, text: str) -> None:
    effects = ablate(make_model("llama"), text, "**.core[*]").effects
    assert len(effects) == 8
    divergences = [effect.divergence for effect in effects]
    assert divergences == sorted(divergences, reverse=True)
    assert divergences[0] > 0


def test_ablating_the_head_makes_all_tokens_equally_likely(make_model: MakeModel, text: str) -> None:
    assert ablate(make_model("gpt2"), text, "head").effects[0].probability == pytest.approx(1 / 11)


@pytest.mark.parametrize(
    ("address", "targets"),
    [
        (
            "trunk.blocks.*.feedforward",
            [AblationTarget("trunk.blocks.0.feedforward"), AblationTarget("trunk.blocks.1.feedforward")],
        ),
        (f"{CORE}[2]", [AblationTarget(CORE, 2)]),
        (f"{CORE}[*]", [AblationTarget(CORE, head) for head in range(4)]),
        (f"{CORE}.key[*]", [AblationTarget(f"{CORE}.key", head) for head in range(2)]),
        ("embed", [AblationTarget("embed")]),
    ],
)
def test_addresses_are_names_or_globs_followed_by_heads(make_model: MakeModel, address, targets) -> None:
    assert find_targets(make_model("llama").decoder, address) == targets


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("trunk.blocks.9.feedforward", "nothing here is named 'trunk.blocks.9.feedforward'; near it"),
        (f"{CORE}[2]", r"has no head 2; its heads are 0 to 1"),
        (
            "trunk.blocks.*.feedforward[0]",
            "trunk.blocks.0.feedforward has no heads; only attention.core and its query, key and value have heads",
        ),
        ("trunk.blocks.0.attention.query[0]", "trunk.blocks.0.attention.query has no heads"),
        (f"{CORE}[0", "is not an address"),
        (f"{CORE}[x]", "is not an address"),
        ("", "is not an address"),
        ("trunk.norm.variance", "trunk.norm.variance is only derived, .* ablate trunk.norm instead"),
        ("**.core.weights", "ablate trunk.blocks.0.attention.core instead"),
    ],
)
def test_an_invalid_address_is_refused(make_model: MakeModel, text: str, address, words) -> None:
    with pytest.raises(UsageError, match=words):
        ablate(make_model("gpt2"), text, address)


def test_an_unknown_replacement_is_refused(make_model: MakeModel, text: str) -> None:
    with pytest.raises(UsageError, match="unknown replacement 'maen', did you mean 'mean'"):
        ablate(make_model("gpt2"), text, "embed", fill="maen")


def test_printed_output_is_cut_to_24_parts_and_fits_80_columns(make_model: MakeModel, text: str) -> None:
    lines = str(ablate(make_model("gpt2", num_layers=12, num_heads=4), text, "**.core[*]")).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("trunk.blocks.") for line in lines) == 24
    assert lines[-1].startswith("24 more are at 0.")
