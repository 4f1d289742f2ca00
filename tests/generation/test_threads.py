"""Generations in several threads at once have the bits that each has alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.generation.batch_generation import generate
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from tests.toy import KeepingSampler


@pytest.fixture
def decoder() -> Decoder:
    sizes = {"num_layers": 3, "num_heads": 2, "width": 96, "context_length": 64, "vocab_size": 37}
    return make_decoder(make_section(ModelConfig, sizes), seed=1).eval()


def generated_logits(decoder: Decoder, start: int) -> Tensor:
    sampler = KeepingSampler(SamplingConfig(temperature=0))
    # From 32 tokens on weights are packed, so these lengths mix generations that pack with some that do not
    list(generate(decoder, [Sequence([start, 2, 3])], sampler, 20 + 4 * start))
    return torch.cat(sampler.logits)


def test_generations_in_threads_have_the_bits_of_each_alone(decoder: Decoder) -> None:
    starts = list(range(8))
    alone = [generated_logits(decoder, start) for start in starts]
    with ThreadPoolExecutor(max_workers=4) as pool:
        together = list(pool.map(lambda start: generated_logits(decoder, start), starts * 3))
    assert all(map(torch.equal, together, alone * 3))
