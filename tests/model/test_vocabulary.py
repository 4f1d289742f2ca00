"""More rows for new tokens: the old logits stay as they are."""

from __future__ import annotations

import pytest
import torch

from foretell.config import ModelConfig
from foretell.model.init import make_decoder
from foretell.model.vocabulary import with_vocabulary

SIZES = {"num_layers": 1, "num_heads": 2, "width": 8, "context_length": 8, "vocab_size": 5}


@pytest.mark.parametrize("tied", [True, False])
def test_old_tokens_keep_their_logits(tied: bool) -> None:
    decoder = make_decoder(ModelConfig(**SIZES, tie_embeddings=tied, bias={"head": True}), seed=1).eval()
    larger = with_vocabulary(decoder, 7, seed=2)
    ids = torch.tensor([[0, 3, 4]])
    assert larger.config.vocab_size == 7
    assert torch.equal(larger(ids)[..., :5], decoder(ids))
    assert larger.embed.token.weight[5:].std() > 0


def test_a_decoder_with_enough_rows_is_returned_as_it_is() -> None:
    decoder = make_decoder(ModelConfig(**SIZES), seed=1)
    assert with_vocabulary(decoder, 5, seed=2) is decoder
