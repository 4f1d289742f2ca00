"""Generation speed compared to transformers, for GPT-2 124M's shape with random weights.

    python bench/decode.py           batch 1 and 16, 128 new tokens: about five minutes on two cores
    python bench/decode.py --quick   batch 1, 32 new tokens, fewer rounds: under a minute
    python bench/decode.py --device cuda   on a GPU: batch 1 and 64

Both continue the same prompt with the same weights, greedily and with a KV cache, through their own generate functions,
in turns. A timing includes reading the prompt. Before the timings, their tokens are compared in float32. If
transformers is not installed, foretell is measured alone. If llama-cpp-python is installed, llama.cpp is measured too,
at batch size 1 only, from a file in float32 or float16.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report, use_threads
from gpt2_names import gpt2_weights
from measure import Run, Spread, note, rate, speed_ratio, time_interleaved
from rich.console import Console
from torch import Tensor

from foretell.config import ModelConfig, SamplingConfig
from foretell.device import DTYPES, choose_device
from foretell.generation.engine import generate, prefill
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.model.cost import count_parameters
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config

PROMPT_LENGTH = 32
PREFILL_LENGTH = 512
SEED = 1
# GPT-2's initial weights always generate the same token; scaled by this, they generate 30 different ones among 32
WEIGHT_SCALE = 5.0
NO_PEER = "transformers is missing: pip install 'foretell[dev]'"

Generate = Callable[[Tensor, int], list[list[int]]]  # (prompts (B, T), new tokens) -> new ids of each row
Read = Callable[[Tensor], object]  # reads prompts (B, T) into a cache and computes the next token's logits


@dataclass(frozen=True)
class Program:
    """One contender in one precision."""

    name: str
    generate: Generate
    read: Read


@dataclass(frozen=True)
class BenchmarkSize:
    """Batch sizes, new tokens and timed rounds of a benchmark run."""

    batch_sizes: tuple[int, ...]
    new_tokens: int
    rounds: int


FULL = BenchmarkSize(batch_sizes=(1, 16), new_tokens=128, rounds=5)
FULL_ON_GPU = BenchmarkSize(batch_sizes=(1, 64), new_tokens=256, rounds=5)
QUICK = BenchmarkSize(batch_sizes=(1,), new_tokens=32, rounds=3)


def main() -> None:
    """Measure both precisions and print a table or one JSON object."""
    parser = make_parser(
        "Generation speed compared to transformers.",
        "batch 1, fewer tokens and rounds: under a minute",
        with_threads=True,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    device = choose_device(arguments.device)
    size = QUICK if arguments.quick else FULL if device.type == "cpu" else FULL_ON_GPU
    has_peer = importlib.util.find_spec("transformers") is not None
    config = preset_config("gpt2")
    rows: list[dict[str, Any]] = []
    agreement: dict[str, int] | None = None
    for dtype in ("float32", "bfloat16"):
        programs = make_programs(config, device, DTYPES[dtype], has_peer)
        if has_peer and dtype == "float32":
            agreement = compare_tokens(programs, config, size.new_tokens)
        rows += measure(programs, dtype, config, size)
    report = {
        **start_report("decode", "transformers"),
        "quick": arguments.quick,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "missing": [] if has_peer else [NO_PEER],
        "parameters": count_parameters(config),
        "prompt_length": PROMPT_LENGTH,
        **asdict(size),
        "agreement_float32": agreement,
        "ratio_to_transformers": headline(rows),
        "rows": rows,
    }
    print_report(report, print_tables, as_json=arguments.json)


def make_programs(config: ModelConfig, device: torch.device, dtype: torch.dtype, has_peer: bool) -> list[Program]:
    """All contenders that are installed, with the same weights."""
    decoder = make_scaled_decoder(config)
    peers = [make_transformers(decoder, device, dtype)] if has_peer else []
    if device.type == "cpu" and importlib.util.find_spec("llama_cpp") and importlib.util.find_spec("gguf"):
        from llamacpp import make_llamacpp

        peers.append(Program("llama.cpp", *make_llamacpp(decoder, dtype)))
    return [make_foretell(decoder.to(device, dtype)), *peers]


@torch.no_grad()
def make_scaled_decoder(config: ModelConfig) -> Decoder:
    """A decoder with weights so large that its tokens depend on all of them, so that a comparison can fail."""
    decoder = make_decoder(config, SEED).eval()
    for parameter in decoder.trunk.parameters():
        if parameter.dim() == 2:
            parameter.mul_(WEIGHT_SCALE)
    return decoder


def make_foretell(decoder: Decoder) -> Program:
    """foretell's engine, greedy: temperature 0."""
    sampler = Sampler(SamplingConfig(temperature=0, top_p=1.0))

    def generate_all(prompts: Tensor, new_tokens: int) -> list[list[int]]:
        sequences = [Sequence(prompt) for prompt in prompts.tolist()]
        for _ in generate(decoder, sequences, sampler, new_tokens):
            pass
        return [sequence.generated for sequence in sequences]

    def read(prompts: Tensor) -> object:
        return prefill(decoder, [Sequence(prompt) for prompt in prompts.tolist()], max_tokens=0)[1].cpu()

    return Program("foretell", generate_all, read)


def make_transformers(decoder: Decoder, device: torch.device, dtype: torch.dtype) -> Program:
    """transformers' GPT-2, without an end token, so that it never stops early."""
    import transformers

    transformers.logging.set_verbosity_error()
    config = decoder.config
    shape = transformers.GPT2Config(
        n_layer=config.num_layers,
        n_head=config.num_heads,
        n_embd=config.width,
        n_positions=config.context_length,
        vocab_size=config.vocab_size,
        layer_norm_epsilon=config.norm_epsilon,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: Any = transformers.GPT2LMHeadModel(shape)  # the annotations of transformers contradict each other
    model.load_state_dict(gpt2_weights(decoder, inputs_first=True))
    model.to(device, dtype).eval()

    def generate_all(prompts: Tensor, new_tokens: int) -> list[list[int]]:
        prompts = prompts.to(device)
        ids = model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=new_tokens,
            do_sample=False,
            use_cache=True,
            pad_token_id=0,
        )
        return ids[:, prompts.shape[1] :].tolist()

    @torch.inference_mode()
    def read(prompts: Tensor) -> object:
        return model(prompts.to(device), use_cache=True, logits_to_keep=1).logits.cpu()  # waits for a GPU

    return Program("transformers", generate_all, read)


def compare_tokens(programs: list[Program], config: ModelConfig, new_tokens: int) -> dict[str, int]:
    """The number of new tokens before the first that differs between foretell and transformers."""
    prompts = make_prompts(1, PROMPT_LENGTH, config)
    ours, theirs = (program.generate(prompts, new_tokens)[0] for program in programs[:2])
    same = next((index for index, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1]), new_tokens)
    return {"same": same, "of": new_tokens}


def measure(programs: list[Program], dtype: str, config: ModelConfig, size: BenchmarkSize) -> list[dict[str, Any]]:
    """Measure all tasks in one precision; returns a row per program and task."""
    rows = []
    for batch_size in size.batch_sizes:
        note(f"{dtype}: generating, batch {batch_size}, {size.rounds} rounds after one warm-up round")
        prompts = make_prompts(batch_size, PROMPT_LENGTH, config)
        capable = [program for program in programs if batch_size == 1 or program.name != "llama.cpp"]
        runs = {program.name: bind_generate(program, prompts, size.new_tokens) for program in capable}
        seconds = time_interleaved(runs, size.rounds)
        rows += make_rows("generate", dtype, batch_size, batch_size * size.new_tokens, seconds)
    note(f"{dtype}: reading a prompt of {PREFILL_LENGTH} tokens")
    prompts = make_prompts(1, PREFILL_LENGTH, config)
    seconds = time_interleaved({program.name: bind_read(program, prompts) for program in programs}, size.rounds)
    return rows + make_rows("read", dtype, 1, PREFILL_LENGTH, seconds)


def bind_generate(program: Program, prompts: Tensor, new_tokens: int) -> Run:
    """The timed call: a whole generation."""
    return lambda: program.generate(prompts, new_tokens)


def bind_read(program: Program, prompts: Tensor) -> Run:
    """The timed call: one pass over the prompt."""
    return lambda: program.read(prompts)


def make_prompts(rows: int, length: int, config: ModelConfig) -> Tensor:
    """Random ids (rows, length) with a fixed seed."""
    return torch.randint(config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(SEED))


def make_rows(
    task: str, dtype: str, batch_size: int, tokens: int, seconds: dict[str, list[float]]
) -> list[dict[str, Any]]:
    """A row per program on one task; `tokens` were generated or read in each timing."""
    peer = seconds.get("transformers")
    return [
        {
            "task": task,
            "dtype": dtype,
            "batch_size": batch_size,
            "program": name,
            "tokens_per_second": asdict(rate(tokens, times)),
            "ratio_to_transformers": asdict(speed_ratio(times, peer)) if peer else None,
        }
        for name, times in seconds.items()
    ]


def headline(rows: list[dict[str, Any]]) -> float | None:
    """The ratio to quote: the median for generating one row in bfloat16."""
    key = {"task": "generate", "dtype": "bfloat16", "batch_size": 1, "program": "foretell"}
    ratio = next(row["ratio_to_transformers"] for row in rows if key.items() <= row.items())
    return ratio["median"] if ratio else None


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """The table: median (low-high) of the rounds."""
    console.print(f"\nGPT-2's shape with random weights, {report['parameters']:,} parameters", style="bold")
    console.print(f"generate: {report['prompt_length']} prompt tokens, {report['new_tokens']} new tokens", style="bold")
    console.print(f"read: {PREFILL_LENGTH} tokens, up to the next token's logits", style="bold")
    columns = ("task", "dtype", "batch", "program", "tokens/s", "to transformers")
    table = make_table(columns, words={"task", "dtype", "program"})
    for row in report["rows"]:
        speed, ratio = Spread(**row["tokens_per_second"]), row["ratio_to_transformers"]
        task = row["task"], row["dtype"], str(row["batch_size"]), row["program"]
        table.add_row(*task, str(speed), str(Spread(**ratio)) if ratio else "-")
    console.print(table)
    agreement = report["agreement_float32"]
    if agreement:
        console.print(f"greedy tokens in float32: the first {agreement['same']} of {agreement['of']} are equal")
    if report["quick"]:
        console.print("--quick: few tokens and rounds; small differences mean nothing")
    for line in report["missing"]:
        console.print(line)


if __name__ == "__main__":
    main()
