"""The unembedding with a vocabulary that a GPU's matrix units like.

They read rows whose length is a multiple of 16 bytes, and work on tiles of 64 or 128 columns. GPT-2's 50,257 tokens are
neither: each row of the logits begins at another alignment, and the kernels that can do that are slower.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from foretell.model.decoder import TiedHead

ALIGNMENT = 128  # tokens


class AlignedTiedHead(TiedHead):
    """`TiedHead` whose matmul has rows of zeros up to a multiple of ALIGNMENT; their logits are cut off again.

    The weight, its key and its size on disk stay as they are.
    """

    def forward(self, x: Tensor) -> Tensor:
        V = len(self.weight)
        weight = F.pad(self.weight, (0, 0, 0, -V % ALIGNMENT))
        bias = None if self.bias is None else F.pad(self.bias, (0, -V % ALIGNMENT))
        return F.linear(x, weight, bias)[..., :V]
