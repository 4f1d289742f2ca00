"""The objective of translation: the cross entropy of the next target token, given the source and those before it."""

from __future__ import annotations

from foretell.data.batch import Batch
from foretell.model.cache import ConditionedKVView, FreshKVView, KVView
from foretell.training.objective import Objective
from foretell.translation.batches import PairBatch
from foretell.translation.encoder_decoder import EncoderDecoder


class PairObjective(Objective):
    """`Objective` on the target side of a batch of pairs; the decoder reads the memory of the source side."""

    has_one_shape = False

    def make_view(self, batch: Batch) -> KVView:
        """What the target tokens of a batch may see."""
        assert isinstance(batch, PairBatch)
        assert isinstance(self.decoder, EncoderDecoder)
        return ConditionedKVView(FreshKVView(batch.ids), self.decoder.encode(batch.source))
