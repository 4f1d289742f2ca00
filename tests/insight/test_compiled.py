"""A compiled model is traced eagerly, and the difference to its compiled output is measured and noted."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from foretell.errors import UsageError
from foretell.insight.trace import Trace, run_eagerly, trace_names
from foretell.model.decoder import Decoder

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, on the way through its compiler


def rounding(graph: Callable[..., Any], examples: list[Tensor]) -> Callable[..., Any]:
    """A backend of torch.compile whose outputs differ from the eager ones, as those of compiled kernels do."""
    return lambda *inputs: [out * (1 + 2**-18) if isinstance(out, Tensor) else out for out in graph(*inputs)]


@torch.no_grad()
def test_a_compiled_decoder_is_traced_and_stays_compiled(gpt2: Decoder, ids: Tensor) -> None:
    plain = gpt2(ids)
    gpt2.compile(backend=rounding)
    compiled = gpt2(ids)
    runs = torch._dynamo.utils.counters["frames"]["ok"]
    with Trace(gpt2, "**") as trace:
        eager = gpt2(ids)
    assert torch.equal(eager, plain)
    assert torch.equal(trace["head"], plain)
    assert torch.equal(gpt2(ids), compiled)
    assert torch._dynamo.utils.counters["frames"]["ok"] == runs, "it was compiled again"
    note = re.fullmatch(
        r"the decoder is compiled and ran eagerly here; its compiled output differs by at most (\S+)", trace.notes[0]
    )
    assert note is not None and float(note[1]) > 0
    assert float(note[1]) == pytest.approx(float((compiled - plain).abs().max()), rel=0.05)


@torch.no_grad()
def test_compiled_blocks_are_traced(gpt2: Decoder, ids: Tensor) -> None:
    gpt2.trunk.blocks[0].compile(backend="eager")
    with Trace(gpt2, "trunk.blocks.0.attention") as trace:
        pass
    assert trace.names() == []
    with Trace(gpt2, "trunk.blocks.0.attention") as trace:
        gpt2(ids)
    assert trace["trunk.blocks.0.attention"].shape == (3, 12, 8)
    assert trace.notes == ["trunk.blocks.0 is compiled and ran eagerly here; its compiled output differs by at most 0"]


@torch.no_grad()
def test_a_model_that_is_not_compiled_has_no_notes(gpt2: Decoder, ids: Tensor) -> None:
    with Trace(gpt2, "head") as trace:
        gpt2(ids)
    assert trace.notes == []


@torch.no_grad()
def test_a_block_in_a_wrapper_of_the_compiler_is_refused_and_stays_whole(gpt2: Decoder, ids: Tensor) -> None:
    """Its modules have other names, and a copy of the wrapper would change the block."""
    plain = gpt2(ids)
    gpt2.trunk.blocks[0] = cast("nn.Module", torch.compile(gpt2.trunk.blocks[0], backend="eager"))
    for read in (trace_names, lambda decoder: Trace(decoder, "head")):
        with pytest.raises(
            UsageError, match=r"^torch.compile\(trunk.blocks.0\) hides the values inside; use its method"
        ):
            read(gpt2)
    assert torch.equal(gpt2(ids), plain)


@torch.no_grad()
def test_a_call_of_a_compiled_copy_is_told_when_a_value_is_missing(gpt2: Decoder, ids: Tensor) -> None:
    compiled = torch.compile(gpt2, backend="eager")
    compiled(ids)
    with Trace(gpt2, "head") as trace:
        compiled(ids)
    with pytest.raises(UsageError, match="head was computed 0 times; call the model itself, not what torch.compile"):
        trace["head"]


def test_traces_that_overlap_leave_the_compiler_on(gpt2: Decoder) -> None:
    """As in several threads of a server."""
    graphs: list[Any] = []
    first, second = ExitStack(), ExitStack()
    for stack in (first, second):
        stack.enter_context(Trace(gpt2, "head"))
    first.close()
    second.close()
    torch.compile(lambda x: x + 1, backend=lambda graph, examples: graphs.append(graph) or graph)(torch.ones(2))
    assert len(graphs) == 1


def test_a_block_in_a_wrapper_of_the_compiler_runs_eagerly() -> None:
    graphs: list[Any] = []
    wrapper = torch.compile(nn.Linear(2, 2), backend=lambda graph, examples: graphs.append(graph) or graph)
    model = nn.Sequential()
    model.add_module("0", cast("nn.Module", wrapper))
    with run_eagerly(model, []):
        model(torch.ones(2))
    assert not graphs
    model(torch.ones(2))
    assert graphs
