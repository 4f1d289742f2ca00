"""Settings for all tests."""

from __future__ import annotations

import torch
from hypothesis import settings

# The models here are so small that handing work to a second thread takes longer than doing it
torch.set_num_threads(1)

# No deadline: a shared machine can stop any test for a second. The same examples in every run: red means changed code.
settings.register_profile("foretell", deadline=None, derandomize=True)
settings.load_profile("foretell")
