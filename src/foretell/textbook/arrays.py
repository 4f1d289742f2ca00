"""Names for arrays by what they hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.floating[Any]]  # (d,)
Matrix = NDArray[np.floating[Any]]  # (d, l): one column a token
Mask = NDArray[np.bool_]  # (l_z, l_x): may query t_x see context token t_z?
