"""Finding a model or a tokenizer by its argument needs no torch, so verbs that read text alone start fast."""

from __future__ import annotations

import subprocess
import sys


def test_a_tokenizer_is_found_without_torch():
    code = "import sys\nfrom foretell.cli.main import run\nassert run(['tokenize', 'primer', 'a']) == 0\n"
    check = "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code + check], stdout=subprocess.DEVNULL, check=False).returncode == 0
