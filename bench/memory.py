"""What a training step holds for its gradient: bytes a token, by context length, measured and not derived.

    python bench/memory.py            nanoGPT's 10.7M Shakespeare shape: about a minute
    python bench/memory.py --quick    two context lengths

Every tensor that the forward pass keeps for the backward one is counted once, by its memory; what a row more adds is a
token's share. The column of dropped-out attention shows what holding T x T weights costs, which the other two never do
beyond 512 positions. On top come 16 bytes a parameter for weights, gradients and the moments of AdamW, and 2 for the
weights in bfloat16.
"""

from __future__ import annotations

import argparse
import json

import torch
from measure import describe_machine, describe_versions, heading
from rich.console import Console
from rich.table import Table
from torch import Tensor

from foretell.config import ModelConfig, make_section
from foretell.data.batch import make_batch
from foretell.model.init import make_decoder
from foretell.training.objective import Objective, make_objective

SHAPE = {"num_layers": 6, "num_heads": 6, "width": 384, "bias": False, "vocab_size": 65}
LENGTHS = (128, 256, 512, 1024, 2048)
CONTENDERS = {  # dtype, rate of dropout after the embedding and in the residuals, and of attention weights
    "float32": (torch.float32, 0.2, 0.0),
    "bfloat16": (torch.bfloat16, 0.2, 0.0),
    "bfloat16, attention dropped out": (torch.bfloat16, 0.2, 0.2),
}


def bytes_per_token(length: int, dtype: torch.dtype, rate: float, attention_rate: float) -> float:
    """What a row of `length` tokens more keeps for its gradient, over its tokens."""
    dropout = {"embedding": rate, "residual": rate, "attention": attention_rate}
    config = make_section(ModelConfig, {**SHAPE, "context_length": length, "dropout": dropout})
    objective = make_objective(make_decoder(config, seed=1), torch.device("cpu"), dtype)
    return (bytes_kept(objective, 2, length, dtype) - bytes_kept(objective, 1, length, dtype)) / length


def bytes_kept(objective: Objective, rows: int, length: int, dtype: torch.dtype) -> int:
    """What a forward pass keeps for the backward one."""
    kept: dict[int, Tensor] = {}  # by address; the tensors stay alive, so that no address is used twice

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    batch = make_batch(torch.randint(SHAPE["vocab_size"], (rows, length + 1)).numpy())
    enabled = dtype == torch.bfloat16
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), torch.autocast("cpu", enabled=enabled):
        objective(batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


def main() -> None:
    """Measure every context length and print a table."""
    parser = argparse.ArgumentParser(description="Bytes a token that training holds for the gradient.")
    parser.add_argument("--quick", action="store_true", help="two context lengths only")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    lengths = LENGTHS[:2] if arguments.quick else LENGTHS
    rows = {length: {name: bytes_per_token(length, *how) for name, how in CONTENDERS.items()} for length in lengths}
    machine, versions = describe_machine(), describe_versions()
    if arguments.json:
        print(json.dumps({"benchmark": "memory", "machine": machine, "versions": versions, "bytes_per_token": rows}))
        return
    table = Table("context", *CONTENDERS, title="kept for the gradient, kB a token")
    for length, row in rows.items():
        table.add_row(f"{length:,}", *(f"{value / 1000:.1f}" for value in row.values()))
    print(heading(machine, versions))
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
