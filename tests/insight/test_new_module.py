"""A new module class in a decoder: each tool uses what the class declares, or refuses the module by name.

The new modules are norms, a feed-forward layer and an activation that describe themselves, and some that do not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretell.convert.export import export_huggingface
from foretell.errors import ConfigError, UsageError
from foretell.insight.attribution.ablation import ablate
from foretell.insight.attribution.direct_logit_attribution import direct_logit_attribution
from foretell.insight.attribution.head_patterns import head_patterns
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.explain.explain_layers import read_vector
from foretell.insight.explain.explain_value import EXPLAINERS
from foretell.insight.explain.steps import Remark, Working
from foretell.insight.explain.walk import walk
from foretell.insight.page.write_page import page_html
from foretell.insight.recorded_pass import RecordedPass, TracedScalar
from foretell.insight.recorded_values import least_elements
from foretell.insight.trace import Trace, trace_names
from foretell.language_model import LanguageModel
from foretell.model.attention import SDPAttention
from foretell.model.description import Declared, Derivation, Description
from foretell.model.norm import FrozenNorm, RMSNorm
from foretell.model.structure import model_structure
from foretell.model.surgery import replace
from foretell.numerics.norms import MEAN_SQUARE
from foretell.text import train_tokenizer

TEXT = "abcadjb"
WIDTH = 8
WRITTEN = "x · |x|"


class CapNorm(nn.Module):
    """Divides by the largest absolute element of each vector."""

    description = Description(
        formula="cap_norm",
        derived={"cap": Derivation(lambda x: x.abs().amax(-1, keepdim=True), ("x",), "statistic", "cap")},
        saved_as_given=("x",),
    )

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x / x.abs().amax(-1, keepdim=True) * self.gain

    def frozen(self, statistics: dict[str, Tensor]) -> FrozenNorm:
        return FrozenNorm(self.gain.detach().double() / statistics["cap"].double())


class MeanSquareNorm(nn.Module):
    """Like RMSNorm, which is also what it declares."""

    description = RMSNorm.description

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps, self.bias = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH)), 1e-5, None

    def forward(self, x: Tensor) -> Tensor:
        return x / (MEAN_SQUARE.tensor(x) + self.eps).sqrt() * self.weight

    def frozen(self, statistics: dict[str, Tensor]) -> FrozenNorm:
        return FrozenNorm(self.weight.detach().double() / (statistics["mean_square"].double() + self.eps).sqrt())


class SignedSquare(nn.Module):
    """An activation function of its own."""

    description = Description(formula="activation", written=WRITTEN, saved=("x",))

    def forward(self, x: Tensor) -> Tensor:
        return x * x.abs()


class Bottleneck(nn.Module):
    """A feed-forward layer of another width."""

    description = Description(
        values={
            "narrow": Declared("B T 5"),
            "bend": Declared("B T 5", ("narrow",)),
            "wide": Declared("B T D", ("bend",)),
        },
        returns="wide",
    )

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.bend, self.wide = nn.Linear(WIDTH, 5), SignedSquare(), nn.Linear(5, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.wide(self.bend(self.narrow(x)))


class Undeclared(nn.Module):
    """A module without a description."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 6), nn.Linear(6, WIDTH)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x) * self.scale)


class PlainAttention(nn.Module):
    """An attention core without a description."""

    def __init__(self, core: nn.Module):
        super().__init__()
        self.core = core

    def forward(self, *inputs: Any) -> Tensor:
        return self.core(*inputs)


Make = Callable[[nn.Module], nn.Module]
NEW: dict[str, tuple[str, Make]] = {
    "a norm with a new formula": ("**.*_norm", lambda _: CapNorm()),
    "a last norm with a new formula": ("trunk.norm", lambda _: CapNorm()),
    "a norm with a known formula": ("**.*_norm", lambda _: MeanSquareNorm()),
    "a feed-forward layer": ("**.feedforward", lambda _: Bottleneck()),
    "an activation": ("**.activation", lambda _: SignedSquare()),
    "an undeclared feed-forward layer": ("**.feedforward", lambda _: Undeclared()),
    "an undeclared core": ("**.core", PlainAttention),
    "an undeclared norm": ("trunk.norm", lambda _: Undeclared()),
}
BLOCK = "trunk.blocks.0"


@pytest.fixture
def make_model(make_decoder) -> Callable[[str], LanguageModel]:
    """A small GPT-2 with one of NEW put into it."""

    def make(name: str) -> LanguageModel:
        tokenizer = train_tokenizer("characters", ["abcdefghij"])
        decoder = make_decoder("gpt2")
        torch.manual_seed(1)
        glob, new = NEW[name]
        blocks = [f"trunk.blocks.*.{kind}_norm" for kind in ("attention", "feedforward")]
        replace(decoder, blocks if glob == "**.*_norm" else glob, new)
        return LanguageModel(decoder, tokenizer)

    return make


@pytest.fixture(params=NEW)
def model(request: pytest.FixtureRequest, make_model) -> LanguageModel:
    return make_model(request.param)


def test_every_module_is_traced_with_the_value_it_returns(model: LanguageModel) -> None:
    seen: dict[str, Tensor] = {}
    for path, module in model.decoder.named_modules():
        module.register_forward_hook(lambda _, __, output, path=path: seen.__setitem__(path, output))
    ids = torch.tensor([model.encode(TEXT)])
    with torch.no_grad():
        plain = model.decoder(ids)
        with Trace(model, "**") as trace:
            assert torch.equal(model.decoder(ids), plain)
    assert trace.names() == trace_names(model)
    for path, output in seen.items():
        if isinstance(output, Tensor) and path:
            assert torch.equal(trace[path], output), path


def test_the_budget_of_every_value_is_exact(model: LanguageModel) -> None:
    ids = torch.tensor([model.encode(TEXT)] * 3)
    with Trace(model, "**") as trace:
        model.decoder(ids)
    structure = model_structure(model.decoder)
    for name, value in structure.values.items():
        if not value.is_derived and name != "head":
            assert least_elements(value, structure, ids) == trace[name].numel(), name


def test_a_pass_over_the_budget_does_not_start(make_model) -> None:
    model = make_model("an undeclared feed-forward layer")
    model.decoder.embed.register_forward_hook(lambda *_: pytest.fail("the model ran"))
    first = "trunk.blocks.*.feedforward.first"
    words = r"largest: trunk.blocks.\*.feedforward.first 336 bytes"
    with pytest.raises(UsageError, match=words), Trace(model, first, budget_bytes=335):
        model.decoder(torch.tensor([model.encode(TEXT)]))


def test_measuring_a_module_runs_no_hooks(make_model) -> None:
    model = make_model("an undeclared feed-forward layer")
    with Trace(model, "embed") as outer:
        model_structure(model.decoder)
    assert outer.names() == []
    assert outer.held_bytes == 0


def test_a_module_that_reads_its_data_is_traced_and_counted_as_it_is_recorded(make_model) -> None:
    class Reader(Undeclared):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * float(x.detach().abs().max())

    model = make_model("an undeclared feed-forward layer")
    replace(model.decoder, "**.feedforward", lambda _: Reader())
    with Trace(model, "**.first") as trace:
        model.decoder(torch.tensor([model.encode(TEXT)]))
    assert trace.held_bytes == 2 * 7 * 6 * 4
    with pytest.raises(UsageError, match="the trace needs"), Trace(model, "**.first", budget_bytes=300):
        model.decoder(torch.tensor([model.encode(TEXT)]))


EXPLAINED = {
    "a norm with a known formula": ("attention_norm[3,2]", "attention_norm.mean_square[3]"),
    "a feed-forward layer": ("feedforward[3,2]", "feedforward.narrow[3,4]", "feedforward.bend[3,4]"),
    "an activation": ("feedforward[3,2]", "feedforward.activation[3,4]"),
    "an undeclared feed-forward layer": ("feedforward_residual[3,2]", "attention.core[0,3,2]"),
    "a norm with a new formula": ("attention.query[3,2]", "attention_residual[3,2]"),
    "an undeclared core": ("attention[3,2]", "attention.core.query[0,3,2]"),
}
REFUSED = {
    "a norm with a new formula": {
        f"{BLOCK}.attention_norm[3,2]": "attention_norm is a CapNorm, whose formula 'cap_norm' has no explanation",
        f"{BLOCK}.attention_norm.cap[3]": "attention_norm.cap is a CapNorm, whose formula 'cap' has no explanation",
    },
    "an undeclared feed-forward layer": {
        f"{BLOCK}.feedforward[3,2]": "feedforward is a Undeclared, which has no explanation: its class declares no",
        f"{BLOCK}.feedforward.second[3,2]": "feedforward.second is a value that no class declares",
    },
    "an undeclared core": {
        f"{BLOCK}.attention.core[0,3,2]": "attention.core is a PlainAttention, which has no explanation"
    },
    "an undeclared norm": {"trunk[3,2]": "trunk.norm is a Undeclared, which has no explanation"},
}


@pytest.mark.parametrize("name", EXPLAINED)
def test_a_number_is_explained_by_what_the_module_declares(name: str, make_model) -> None:
    model = make_model(name)
    for address in EXPLAINED[name]:
        explanation = explain_value(model, TEXT, f"{BLOCK}.{address}")
        assert explanation.agrees, explanation.to_json()
        assert explanation.steps


def test_an_activation_is_shown_as_it_is_written(make_model) -> None:
    model = make_model("an activation")
    printed = str(explain_value(model, TEXT, f"{BLOCK}.feedforward.activation[3,4]"))
    assert f"SignedSquare(x) = {WRITTEN}" in printed


@pytest.mark.parametrize("name", REFUSED)
def test_a_number_without_a_known_formula_is_refused_by_path_and_class(name: str, make_model) -> None:
    model = make_model(name)
    for address, words in REFUSED[name].items():
        with pytest.raises(UsageError, match=words) as raised:
            explain_value(model, TEXT, address)
        assert "\n" not in str(raised.value)


def test_a_formula_can_be_given_an_explanation(make_model, monkeypatch: pytest.MonkeyPatch) -> None:
    def explain_cap(recording: RecordedPass, scalar: TracedScalar) -> Working:
        x, source = read_vector(recording, scalar, scalar.index)
        value = float(abs(x).max())
        return Working([Remark(f"The largest absolute element of {source} is {value}.")], value, value)

    monkeypatch.setitem(EXPLAINERS, "cap", explain_cap)
    explanation = explain_value(make_model("a norm with a new formula"), TEXT, f"{BLOCK}.attention_norm.cap[3]")
    assert explanation.agrees
    assert explanation.derived
    assert "The largest absolute element of embed[3,:] is" in str(explanation)


def test_a_formula_without_what_it_needs_is_refused(make_model) -> None:
    class Weightless(nn.Module):
        description = RMSNorm.description

        def forward(self, x: Tensor) -> Tensor:
            return x

    model = make_model("a norm with a known formula")
    replace(model.decoder, "trunk.norm", lambda _: Weightless())
    words = "trunk.norm is a Weightless, which declares the formula 'rms_norm' but has no 'eps'"
    with pytest.raises(UsageError, match=words):
        explain_value(model, TEXT, "trunk.norm[3,2]")


def test_the_logit_is_the_sum_of_contributions_or_the_module_is_named(model: LanguageModel) -> None:
    norm = model.decoder.trunk.norm
    if isinstance(norm, Undeclared):
        with pytest.raises(UsageError, match="trunk.norm is a Undeclared, which does not declare the terms"):
            direct_logit_attribution(model, TEXT, 3)
        return
    attribution = direct_logit_attribution(model, TEXT, 3)
    assert attribution.total == pytest.approx(attribution.logit, rel=1e-4, abs=1e-4)
    assert {f"{BLOCK}.feedforward", "embed.token"} <= {part.name for part in attribution.parts}


def test_an_undeclared_core_is_one_part_and_has_no_heads(make_model) -> None:
    model = make_model("an undeclared core")
    assert f"{BLOCK}.attention" in [part.name for part in direct_logit_attribution(model, TEXT, 3).parts]
    with pytest.raises(UsageError, match="attention.core has no heads"):
        ablate(model, TEXT, f"{BLOCK}.attention.core[0]")


def test_a_head_that_is_not_linear_is_refused(make_model) -> None:
    class Squared(nn.Linear):
        description = Description(formula="squared linear")

        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).square()

    model = make_model("an activation")
    replace(model.decoder, "head", lambda _: Squared(WIDTH, 11))
    with pytest.raises(UsageError, match="head is a Squared, which is not a linear layer"):
        direct_logit_attribution(model, TEXT, 3)


def test_walk_page_and_patterns_work_unless_attention_weights_are_missing(model: LanguageModel) -> None:
    tools = (lambda: str(walk(model, TEXT)), lambda: page_html(model, TEXT), lambda: str(head_patterns(model, TEXT)))
    for tool in tools:
        if isinstance(model.decoder.get_submodule(f"{BLOCK}.attention.core"), PlainAttention):
            words = "trunk.blocks.0.attention.core is a PlainAttention, which declares no attention weights"
            with pytest.raises(UsageError, match=words):
                tool()
        else:
            assert "attention" in tool().lower()


def test_an_undeclared_block_is_refused_by_the_walk(make_model) -> None:
    model = make_model("an activation")

    class Passed(Undeclared):
        def forward(self, x: Tensor, *_: Any) -> Tensor:
            return super().forward(x)

    replace(model.decoder, BLOCK, lambda _: Passed())
    for tool in (walk, page_html):
        with pytest.raises(UsageError, match="trunk.blocks.0 is a Passed, which"):
            tool(model, TEXT)
    with pytest.raises(UsageError, match="trunk.blocks.0 is a Passed, which does not declare the terms"):
        direct_logit_attribution(model, TEXT, 3)


def test_a_subclass_is_treated_as_its_base_class(make_model) -> None:
    class OwnCore(SDPAttention):
        pass

    class OwnLinear(nn.Linear):
        pass

    model = make_model("an activation")
    plain = direct_logit_attribution(model, TEXT, 3).to_json()
    replace(model.decoder, "**.core", lambda _: OwnCore(model.config))
    for path in replace(model.decoder, "**.output", lambda _: OwnLinear(WIDTH, WIDTH)).paths:
        assert explain_value(model, TEXT, f"{path}[3,2]").agrees
    names = [part["name"] for part in direct_logit_attribution(model, TEXT, 3).to_json()["parts"]]
    assert names == [part["name"] for part in plain["parts"]]
    assert explain_value(model, TEXT, f"{BLOCK}.attention.core.weights[1,3,2]").agrees


def test_memory_counts_what_modules_declare(model: LanguageModel) -> None:
    assert model_structure(model.decoder).saved_bytes_per_token(len(TEXT), 4) > 0


def test_memory_of_a_declared_layer_follows_its_sizes(make_model) -> None:
    structure = model_structure(make_model("a feed-forward layer").decoder)
    assert structure.elements_per_row(f"{BLOCK}.feedforward.bend", 7) == 35
    kept = structure.saved_bytes_per_token(7, 4)
    assert kept < model_structure(make_model("an activation").decoder).saved_bytes_per_token(7, 4)


EXPORTED = {
    "a norm with a new formula": "trunk.blocks.0.attention_norm.gain",
    "a feed-forward layer": "trunk.blocks.0.feedforward.narrow.weight",
    "an undeclared feed-forward layer": "trunk.blocks.0.feedforward.scale",
}


@pytest.mark.parametrize("name", EXPORTED)
def test_export_refuses_by_path(name: str, make_model, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"'{EXPORTED[name]}' that gpt2 cannot express"):
        export_huggingface(make_model(name), tmp_path / "out")
    assert not list(tmp_path.iterdir())
