"""The decoding benchmark: its processes are limited to the features that it names."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")

BENCH = Path(__file__).parents[2] / "bench"
ANSWER = """
import json, sys
import decode
decode.limit_features(decode.FEATURES[sys.argv[1]])
from foretell.system.device import multiplies_bfloat16
from foretell.model.kernels import vectors
print(json.dumps([vectors.HAS_AVX512, vectors.HAS_VNNI, multiplies_bfloat16(decode.torch.device("cpu"))]))
"""


@pytest.mark.parametrize(
    ("features", "expected"),
    [("avx2", [False, False, False]), pytest.param("avx512", [True, True, False], marks=pytest.mark.long)],
)
def test_features_limit_the_kernels_and_the_dtype_of_products(features, expected, tmp_path):
    """A file, since the benchmark starts its own command again."""
    program = tmp_path / "answer.py"
    program.write_text(ANSWER, encoding="utf-8")
    search = os.pathsep.join((str(BENCH), os.environ.get("PYTHONPATH", "")))
    done = subprocess.run(
        [sys.executable, str(program), features],
        env={**os.environ, "PYTHONPATH": search},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == expected
