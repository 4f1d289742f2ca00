"""Every number of every decoder follows from its operands, and one that does not is told apart."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from foretell.errors import ContextLengthError, UsageError
from foretell.insight.address import Address, parse_address
from foretell.insight.explain.explanation import explain_at, explain_value
from foretell.insight.explain.output import IMPLIED
from foretell.insight.explain.recording import record
from foretell.insight.points import trace_names
from foretell.insight.trace import Trace

TEXT = "abcafig!"
WEIGHT = "trunk.blocks.0.attention.core.weights[1,3,2]"


def every_explanation(model, seed=0):
    """One explanation at a random index for every name of a model, and for what the pass implies."""
    recording = record(model, TEXT, "**")
    draw = random.Random(seed)
    for name in [*trace_names(model), *IMPLIED]:
        length = len(recording.ids)
        shape = {"loss": (length - 1,), "probabilities": (length, recording.vocabulary)}.get(name)
        shape = recording.stored(name).shape if shape is None else shape
        yield explain_at(recording, Address(name, tuple(draw.randrange(size) for size in shape)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_every_named_number_of_every_decoder_follows_from_its_operands(config, make_model, dtype):
    for seed in range(3):
        for explanation in every_explanation(make_model(config, dtype), seed):
            assert explanation.agrees, explanation.to_json()
