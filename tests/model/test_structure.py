"""The description of a model agrees with a real pass in shapes, inputs and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.data.batch import make_batch
from foretell.errors import UsageError
from foretell.model import init
from foretell.model.decoder import Decoder
from foretell.model.description import Declared, Description, describe
from foretell.model.init import empty_decoder
from foretell.model.norm import LayerNorm
from foretell.model.structure import Source, Structure, model_structure, size_of
from foretell.model.surgery import replace
from foretell.training.execution import make_objective

B, T = 3, 6


def recorded(decoder: Decoder, structure: Structure) -> dict[str, Any]:
    """The inputs and outputs of modules in one pass, by value name."""
    values: dict[str, Any] = {}

    def hook(path: str):
        def remember(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            for name, value in structure.values.items():
                if value.module == path and not value.is_derived:
                    values[name] = value.read(inputs, output)

        return remember

    for path, module in decoder.named_modules():
        module.register_forward_hook(hook(path))
    with torch.no_grad():
        decoder(torch.randint(decoder.config.vocab_size, (B, T)))
    return values


def test_every_value_has_the_declared_shape(decoder):
    structure = model_structure(decoder)
    sizes = {**structure.sizes, "B": B, "T": T, "S": T}
    values = recorded(decoder, structure)
    for name, value in values.items():
        expected = tuple(size_of(dim, sizes) for dim in structure[name].dims)
        assert value.shape[1:] == expected[1:], name
        assert value.shape[0] in (1, expected[0]), name
    assert set(values) == {name for name, value in structure.values.items() if not value.is_derived}


def test_every_module_except_containers_has_a_value(decoder):
    structure = model_structure(decoder)
    for path, module in decoder.named_modules():
        description = describe(module)
        assert not path or path in structure.values or description.is_container or description.parts


def test_reads_are_values_and_a_value_without_a_formula_is_its_source(decoder):
    structure = model_structure(decoder)
    values = recorded(decoder, structure)
    for name, value in structure.values.items():
        assert all(read in structure.values or read in ("ids", "positions") for read in value.reads), name
        if not value.formula:
            assert torch.equal(values[name], values[value.reads[0]]), name


def test_residuals_and_norms_recompute_from_their_declared_reads(decoder):
    structure = model_structure(decoder)
    values = recorded(decoder, structure)
    modules = dict(decoder.named_modules())
    for name, value in structure.values.items():
        if value.formula in ("residual", "replacement", "layer_norm", "rms_norm") and len(value.dims) == 3:
            with torch.no_grad():
                assert torch.equal(modules[name](*[values[read] for read in value.reads]), values[name]), name


def test_the_structure_needs_no_weights(decoder):
    on_meta = model_structure(empty_decoder(decoder.config))
    assert {name: value.dims for name, value in on_meta.values.items()} == {
        name: value.dims for name, value in model_structure(decoder).values.items()
    }


def saved_bytes(decoder: Decoder, rows: int, length: int, dtype: torch.dtype) -> int:
    """Bytes that a forward pass saves for the backward pass."""
    saved: dict[int, Tensor] = {}  # by address; holding the tensors prevents an address from being used twice

    def save(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    batch = make_batch(torch.randint(11, (rows, length + 1)).numpy())
    objective = make_objective(decoder, torch.device("cpu"), dtype)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16)
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor), autocast:
        objective(batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_declared_saved_bytes_are_close_to_a_real_pass_and_never_more(config, dtype):
    sizes = {"width": 64, "num_heads": 2, "num_kv_heads": min(2, config.num_kv_heads), "head_width": 32}
    decoder = init.make_decoder(config.replaced(**sizes, feedforward_width=256, context_length=64), seed=1)
    measured = (saved_bytes(decoder, 9, 64, dtype) - saved_bytes(decoder, 1, 64, dtype)) / 8 / 64
    declared = model_structure(decoder).saved_bytes_per_token(64, dtype.itemsize)
    assert 0.4 * measured < declared <= measured


class Undeclared(nn.Module):
    """A feed-forward layer without a description."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, 20), nn.Linear(20, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.narrow(self.wide(x))


def small_decoder() -> Decoder:
    sizes = {"num_layers": 2, "num_heads": 2, "width": 8, "context_length": 12, "vocab_size": 11}
    return init.make_decoder(ModelConfig.model_validate(sizes), seed=1).eval()


def test_an_undeclared_module_is_measured():
    decoder = small_decoder()
    replace(decoder, "**.feedforward", lambda module: Undeclared())
    structure = model_structure(decoder)
    assert structure["trunk.blocks.0.feedforward"].dims == ("B", "T", "D")
    assert structure["trunk.blocks.0.feedforward.wide"].dims == ("B", "T", "20")
    assert structure.elements_per_row("trunk.blocks.0.feedforward.wide", 5) == 100
    assert set(recorded(decoder, structure)) >= {"trunk.blocks.1.feedforward.narrow"}


def test_a_context_too_short_to_measure_is_refused():
    decoder = small_decoder()
    decoder.config = decoder.config.replaced(context_length=2)
    replace(decoder, "**.feedforward", lambda module: Undeclared())
    with pytest.raises(UsageError, match="too short"):
        model_structure(decoder)


def test_a_subclass_inherits_its_description():
    class Named(nn.LayerNorm):
        pass

    class Halved(LayerNorm):
        pass

    assert describe(Halved(8)).formula == "layer_norm"
    assert describe(Named(8)).formula == ""  # torch's own LayerNorm has no description


def test_the_declared_parts_of_a_module_are_described():
    class Scaled(nn.Module):
        description = Description(
            values={"inner": Declared("B T F"), "outer": Declared("B T D", ("inner",))}, returns="outer"
        )

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.outer = nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x: Tensor) -> Tensor:
            return self.outer(self.inner(x))

    decoder = small_decoder()
    replace(decoder, "**.feedforward", lambda module: Scaled())
    value = model_structure(decoder)["trunk.blocks.1.feedforward.outer"]
    assert value.reads == ("trunk.blocks.1.feedforward.inner",)
    assert (value.source, value.formula, value.dims) == (Source.OUTPUT, "linear", ("B", "T", "D"))
