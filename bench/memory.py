"""Memory that a training step keeps for the backward pass: bytes per token, by context length, measured.

    python bench/memory.py            nanoGPT's 10.7M Shakespeare shape: about a minute
    python bench/memory.py --quick    two context lengths

Each tensor saved by the forward pass is counted once, by its storage. The figure is what one more row adds, divided by
its tokens. The column with attention dropout shows the cost of keeping weights; without attention dropout they are
never kept beyond 512 positions. Not included: 16 bytes per parameter for weights, gradients and AdamW's moments,
and 2 for the weights in bfloat16.
"""

from __future__ import annotations

import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from rich.console import Console
from torch import Tensor

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.data.batch import make_batch
from foretell.model.init import make_decoder
from foretell.training.execution import make_objective
from foretell.training.objective import Objective

SHAPE = {"num_layers": 6, "num_heads": 6, "width": 384, "bias": False, "vocab_size": 65}
LENGTHS = (128, 256, 512, 1024, 2048)
CONTENDERS = {  # dtype, dropout rate of the embedding and the residuals, dropout rate of the attention weights
    "float32": (torch.float32, 0.2, 0.0),
    "bfloat16": (torch.bfloat16, 0.2, 0.0),
    "bfloat16, attention dropped out": (torch.bfloat16, 0.2, 0.2),
}


def main() -> None:
    """Measure every context length and print a table or one JSON object."""
    parser = make_parser("Bytes per token that training keeps for the backward pass.", "two context lengths only")
    arguments = parser.parse_args()
    lengths = LENGTHS[:2] if arguments.quick else LENGTHS
    rows = {length: {name: bytes_per_token(length, *setup) for name, setup in CONTENDERS.items()} for length in lengths}
    report = {**start_report("memory"), "bytes_per_token": rows}
    print_report(report, print_tables, as_json=arguments.json)


def bytes_per_token(length: int, dtype: torch.dtype, rate: float, attention_rate: float) -> float:
    """Saved bytes that one more row of `length` tokens adds, per token."""
    dropout = {"embedding": rate, "residual": rate, "attention": attention_rate}
    config = make_section(ModelConfig, {**SHAPE, "context_length": length, "dropout": dropout})
    objective = make_objective(make_decoder(config, seed=1), torch.device("cpu"), dtype)
    return (saved_bytes(objective, 2, length, dtype) - saved_bytes(objective, 1, length, dtype)) / length


def saved_bytes(objective: Objective, rows: int, length: int, dtype: torch.dtype) -> int:
    """Bytes of all tensors that a forward pass saves for the backward pass."""
    saved: dict[int, Tensor] = {}  # by address; holding the tensors prevents an address from being used twice

    def save(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    batch = make_batch(torch.randint(SHAPE["vocab_size"], (rows, length + 1)).numpy())
    enabled = dtype == torch.bfloat16
    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor), torch.autocast("cpu", enabled=enabled):
        objective(batch)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """A row per context length, in kB."""
    table = make_table(("context", *CONTENDERS), title="kept for the backward pass, kB per token")
    for length, row in report["bytes_per_token"].items():
        table.add_row(f"{length:,}", *(f"{value / 1000:.1f}" for value in row.values()))
    console.print(table)


if __name__ == "__main__":
    main()
