"""Peak memory of loading is close to the size of the weights in the requested precision."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from foretell.convert.export import write_huggingface
from foretell.convert.families import choose_family
from foretell.language_model import LanguageModel
from foretell.model.init import empty_decoder
from foretell.model.presets import preset_config

MOST = 1.3  # of the weights' size in memory
# Ours first, then a plain load: the peak only grows, so the second shows that the measurement works
SCRIPT = """
import gc, json, sys
from pathlib import Path
import torch
from safetensors.torch import load_file
from foretell.convert.huggingface import load_huggingface

def peak():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024

directory, dtype = Path(sys.argv[1]), getattr(torch, sys.argv[2])
before = peak()
model = load_huggingface(directory, dtype=dtype)
for weight in model.decoder.parameters():
    weight.detach().flatten()[::1024].sum()
size = sum(weight.nbytes for weight in model.decoder.parameters())
ours = (peak() - before) / size
del model
gc.collect()
plain = {name: weight.T.to(dtype).contiguous() for name, weight in load_file(directory / "model.safetensors").items()}
print(json.dumps({"ours": ours, "plain": (peak() - before) / size}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak memory that Linux reports")
def test_peak_memory_is_close_to_the_size_of_the_weights(tokenizer, tmp_path: Path) -> None:
    sizes = {"num_layers": 9, "num_heads": 8, "width": 640, "vocab_size": 9_000, "context_length": 64}
    decoder = empty_decoder(preset_config("gpt2", **sizes))
    zeros = {name: torch.zeros(weight.shape) for name, weight in decoder.named_parameters()}
    decoder.load_state_dict(zeros, assign=True)
    model = LanguageModel(decoder, tokenizer)
    write_huggingface(tmp_path, model, choose_family(model.decoder.config), torch.float32)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), "bfloat16"]
    peaks = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert peaks["ours"] < MOST
    assert peaks["plain"] > 2 * MOST
