"""A sampler that keeps a receipt of every token it draws."""

from __future__ import annotations

from torch import Tensor

from foretell.config import SamplingConfig
from foretell.generation.sampling import History, Sampler
from foretell.generation.sequence import Sequence
from foretell.insight.receipt import Receipt
from foretell.text import Tokenizer


class RecordingSampler(Sampler):
    """Draws what `Sampler` draws; a token costs V logits of memory."""

    def __init__(self, config: SamplingConfig, tokenizer: Tokenizer):
        super().__init__(config, tokenizer.vocab_size)
        self.tokenizer = tokenizer
        # By sample and ids, the token among them: rows that agree in all of it were given it for the same reason
        self._receipts: dict[tuple[int, tuple[int, ...]], Receipt] = {}

    def __call__(self, logits: Tensor, history: History, samples: list[int]) -> list[int]:
        tokens = super().__call__(logits, history, samples)
        for row, ids, sample, token in zip(logits.to("cpu", copy=True), history, samples, tokens, strict=True):
            self._receipts[sample, (*ids, token)] = Receipt(
                *(row, tuple(ids), self.config, self.vocab_size, sample, self.draw(sample, len(ids)), token),
                self.tokenizer,
            )
        return tokens

    def receipts_of(self, sequence: Sequence) -> list[Receipt]:
        """One for each token drawn for a sequence, in order."""
        ids = tuple(sequence.ids)
        return [self._receipts[sequence.sample, ids[: place + 1]] for place in range(len(sequence.prompt), len(ids))]
