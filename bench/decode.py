"""Generation speed compared with llama.cpp, CTranslate2 and transformers, with random weights of a known shape.

    python bench/decode.py                    GPT-2 124M, all precisions: 45 minutes on two cores
    python bench/decode.py --shape llama      a Llama shape of 0.5B parameters
    python bench/decode.py --quick            batch 1 and 16, few tokens and rounds: a few minutes
    python bench/decode.py --features avx2    as on a processor with AVX2 alone (avx512: with VNNI, without bfloat16)
    python bench/decode.py --device cuda      on a GPU, with transformers: batch 1 and 64

`--features` starts the benchmark again with the variables that limit torch, oneDNN, MKL, numba and CTranslate2.
llama.cpp has no such variable: its features are chosen when it is built, and the report names them.

All contenders have the same weights and continue the same prompts greedily, in turns. Decoding is timed from the first
new token to the last, so that preparing weights and reading prompts do not count; reading is a separate task. Programs
that are not installed are left out: llama-cpp-python and ctranslate2 are in the extra `oracles`.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import foretell  # isort: skip  # noqa: F401 - before torch, so that its threads wait as in the command line
import torch
from arguments import BenchmarkReport, add_cpu_time, make_parser, make_table, print_report, start_report, use_threads
from gpt2_names import make_transformers
from measure import Clock, Spread, note
from rich.console import Console

from foretell.config.model import ModelConfig
from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.config.weight_shapes import count_parameters
from foretell.generation.batch_generation import run
from foretell.generation.sampling import Sampler
from foretell.generation.scheduler import Scheduler
from foretell.generation.sequence import Rules, Sequence
from foretell.model.decoder import Decoder
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.model.quantize_decoder import make_quantization, quantize_decoder
from foretell.system.device import DTYPES, choose_device
from foretell.system.installation import cpu_features

PROMPT, LONG_PROMPT, PREFILL = 32, 900, 512
SEED = 1
WEIGHT_SCALE = 5.0  # initial weights always generate the same token; scaled by this, they generate many different ones
LLAMA_SHAPE: dict[str, Any] = {
    "num_layers": 24, "num_heads": 20, "num_kv_heads": 4, "width": 1280, "feedforward_width": 3456,
    "context_length": 1024, "vocab_size": 32000, "position": "rotary", "norm": "rmsnorm", "feedforward": "gated",
    "activation": "silu", "bias": False,
}  # fmt: skip
SHAPES: dict[str, Callable[[], ModelConfig]] = {
    "gpt2": lambda: preset_config("gpt2"),
    "llama": lambda: make_section(ModelConfig, LLAMA_SHAPE),
}
INT4_HEAD = "int4-head"  # int4 with a head in int4
# our precision -> that of each peer at equal bits
PEERS: dict[str, dict[str, str]] = {
    "float32": {"llama.cpp": "f32", "CTranslate2": "float32"},
    "bfloat16": {"llama.cpp": "bf16", "transformers": "bfloat16"},
    "int8": {"llama.cpp": "q8_0", "CTranslate2": "int8"},
    "int4": {"llama.cpp": "q4_0"},
    INT4_HEAD: {"llama.cpp": "q4_0"},
}
# --features: the variables that limit the instructions that programs use, where the processor has them
FEATURES: dict[str, dict[str, str]] = {
    "native": {},
    "avx512": {
        "ATEN_CPU_CAPABILITY": "avx512",
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI",
        "MKL_ENABLE_INSTRUCTIONS": "AVX512_E1",
        "NUMBA_CPU_NAME": "cascadelake",
        "NUMBA_CPU_FEATURES": "+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512vnni,+fma,+avx2,+f16c",
        "CT2_FORCE_CPU_ISA": "AVX512",
    },
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx2,+fma,+f16c,+bmi2",
        "CT2_FORCE_CPU_ISA": "AVX2",
    },
}
NEEDED = {"native": set(), "avx512": {"avx512f", "avx512_vnni"}, "avx2": {"avx2"}}  # without them, SIGILL
USABLE = [name for name in FEATURES if NEEDED[name] <= set(cpu_features())]
MODULES = {
    "llama.cpp": ("llama_cpp", "llamacpp", "open_decoder"),
    "CTranslate2": ("ctranslate2", "ctranslate", "CTranslate2"),
}


class Program(Protocol):
    """A contender in one precision."""

    def decode(self, prompts: list[list[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        """Greedy continuations, and the seconds from the first token to the last."""
        ...

    def read(self, prompt: list[int]) -> float:
        """The seconds of reading a prompt, up to the next token's logits."""
        ...


@dataclass(frozen=True)
class BenchmarkSize:
    """Batch sizes, new tokens and timed rounds of a benchmark run."""

    batch_sizes: tuple[int, ...]
    new_tokens: int
    rounds: int


FULL = BenchmarkSize(batch_sizes=(1, 4, 16, 64), new_tokens=64, rounds=5)
QUICK = BenchmarkSize(batch_sizes=(1, 16), new_tokens=32, rounds=3)


class Foretell:
    """foretell's scheduler, greedy; made once, as a chat or a server does."""

    def __init__(self, decoder: Decoder):
        self.rules = Sampler(SamplingConfig(temperature=0, top_p=1.0))
        self.scheduler = Scheduler(decoder)

    def decode(self, prompts: list[list[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        sequences = [Sequence(prompt, rules=Rules(self.rules, new_tokens)) for prompt in prompts]
        first = 0.0
        for _ in run(self.scheduler, sequences):
            if not first and all(sequence.generated for sequence in sequences):
                first = Clock.now()
        return Clock.now() - first, [sequence.generated for sequence in sequences]

    def read(self, prompt: list[int]) -> float:
        started = Clock.now()
        for _ in run(self.scheduler, [Sequence(prompt, rules=Rules(self.rules, 1))]):
            pass
        return Clock.now() - started


class Transformers:
    """transformers' model with its own cache."""

    def __init__(self, decoder: Decoder, device: torch.device, dtype: torch.dtype):
        self.model, self.device = make_transformers(decoder).to(device, dtype), device

    @torch.inference_mode()
    def decode(self, prompts: list[list[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        output = self.model(torch.tensor(prompts, device=self.device), use_cache=True, logits_to_keep=1)
        newest = output.logits[:, -1].argmax(-1, keepdim=True)
        texts = newest.tolist()
        started = Clock.now()
        for _ in range(new_tokens - 1):
            output = self.model(newest, past_key_values=output.past_key_values, use_cache=True)
            newest = output.logits[:, -1].argmax(-1, keepdim=True)
            for text, token in zip(texts, newest[:, 0].tolist(), strict=True):
                text.append(token)
        return Clock.now() - started, texts

    @torch.inference_mode()
    def read(self, prompt: list[int]) -> float:
        started = Clock.now()
        self.model(torch.tensor([prompt], device=self.device), use_cache=True, logits_to_keep=1).logits.cpu()
        return Clock.now() - started


def main() -> None:
    """Measure all precisions and print a table or one JSON object."""
    parser = make_parser(
        "Generation speed compared with llama.cpp, CTranslate2 and transformers.",
        "batch 1 and 16, few tokens and rounds: a few minutes",
        with_threads=True,
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--shape", choices=SHAPES, default="gpt2")
    parser.add_argument("--precisions", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--features", choices=USABLE, default="native", help="instructions to use; default: all")
    add_cpu_time(parser)
    arguments = parser.parse_args()
    limit_features(FEATURES[arguments.features])
    use_threads(arguments.threads)
    device, size = choose_device(arguments.device), QUICK if arguments.quick else FULL
    config = SHAPES[arguments.shape]()
    rows = [row for precision in arguments.precisions for row in measure_precision(precision, config, device, size)]
    report = {
        **start_report("decode", "transformers", "llama_cpp_python", "ctranslate2", "numba"),
        "quick": arguments.quick,
        "shape": arguments.shape,
        "features": arguments.features,
        "cpu_time": arguments.cpu_time,
        "llamacpp_build": llamacpp_build(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "parameters": count_parameters(config),
        **asdict(size),
        "ratio_to_llamacpp": ratios(rows, "llama.cpp"),
        "ratio_to_CTranslate2": ratios(rows, "CTranslate2"),
        "ratio_to_transformers": ratios(rows, "transformers"),
        "rows": rows,
    }
    print_report(report, print_tables, as_json=arguments.json)


def limit_features(variables: dict[str, str]) -> None:
    """Start this program again with these variables, unless they are set: libraries read them when they are loaded."""
    if any(os.environ.get(name) != value for name, value in variables.items()):
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **variables})


def llamacpp_build() -> str | None:
    """The features that llama.cpp was built with, such as `AVX2 = 1`; None where it is missing."""
    if not importlib.util.find_spec("llama_cpp"):
        return None
    text: bytes = importlib.import_module("llama_cpp").llama_print_system_info()
    return text.decode()


def measure_precision(
    precision: str, config: ModelConfig, device: torch.device, size: BenchmarkSize
) -> list[dict[str, Any]]:
    """A row per program and task in one precision."""
    programs = make_programs(precision, config, device, max(size.batch_sizes))
    rows: list[dict[str, Any]] = []
    for batch, length in [*((batch, PROMPT) for batch in size.batch_sizes), (1, LONG_PROMPT)]:
        note(f"{precision}: generating, batch {batch} after {length} tokens, {size.rounds} rounds")
        prompts = make_prompts(batch, length, config)
        work = batch * (size.new_tokens - 1)
        task = f"batch_{batch}" if length == PROMPT else f"after_{length}"
        rows += in_turns(
            precision,
            task,
            work,
            size.rounds,
            programs,
            lambda program, prompts=prompts: program.decode(prompts, size.new_tokens)[0],
        )
    note(f"{precision}: reading a prompt of {PREFILL} tokens")
    fresh = iter(make_prompts(1000, PREFILL, config))
    return rows + in_turns(
        precision, "read_512", PREFILL, size.rounds, programs, lambda program: program.read(next(fresh))
    )


def in_turns(
    precision: str, task: str, work: int, rounds: int, programs: dict[str, Any], seconds: Callable[[Any], float]
) -> list[dict[str, Any]]:
    """A row per program: tokens per second in rounds that take turns, after one that does not count."""
    times: dict[str, list[float]] = {name: [] for name in programs}
    for round_index in range(rounds + 1):
        for name, program in programs.items():
            taken = seconds(program)
            if round_index > 0:
                times[name].append(taken)
    ours = times["foretell"]
    return [
        {
            "precision": precision,
            "task": task,
            "program": name,
            "tokens_per_second": asdict(Spread.of(work / each for each in taken)),
            "foretell_to_it": asdict(Spread.of(theirs / mine for theirs, mine in zip(taken, ours, strict=True))),
        }
        for name, taken in times.items()
    ]


def make_programs(precision: str, config: ModelConfig, device: torch.device, rows: int) -> dict[str, Any]:
    """All contenders that are installed and know the shape, with the same weights."""
    decoder = make_scaled_decoder(config)
    programs: dict[str, Any] = {}
    for name, theirs in PEERS[precision].items():
        if name == "transformers":
            if importlib.util.find_spec("transformers"):
                programs[name] = Transformers(decoder, device, DTYPES[theirs])
        elif device.type == "cpu" and (name != "CTranslate2" or config.position == "learned"):
            package, module, kind = MODULES[name]
            if importlib.util.find_spec(package):
                programs[name] = getattr(importlib.import_module(module), kind)(decoder, theirs, rows)
    return {"foretell": make_foretell(decoder, precision, device), **programs}


def make_foretell(decoder: Decoder, precision: str, device: torch.device) -> Foretell:
    """foretell with a decoder in float32, which is changed to the precision."""
    if precision in DTYPES:
        return Foretell(decoder.to(device, DTYPES[precision]))
    to, head = ("int8", "int8") if precision == "int8" else ("int4", "int4" if precision == INT4_HEAD else "int8")
    quantize_decoder(decoder, make_quantization(decoder, to, head=head))
    return Foretell(decoder.to(device, torch.bfloat16))


@torch.no_grad()
def make_scaled_decoder(config: ModelConfig) -> Decoder:
    """A decoder with weights so large that its tokens depend on all of them."""
    decoder = make_decoder(config, SEED).eval().requires_grad_(False)
    for parameter in decoder.trunk.parameters():
        if parameter.dim() == 2:
            parameter.mul_(WEIGHT_SCALE)
    return decoder


def make_prompts(rows: int, length: int, config: ModelConfig) -> list[list[int]]:
    """Random ids (rows, length) with a fixed seed."""
    generator = torch.Generator().manual_seed(SEED)
    return torch.randint(config.vocab_size, (rows, length), generator=generator).tolist()


def ratios(rows: list[dict[str, Any]], peer: str) -> dict[str, dict[str, float]]:
    """foretell's speed as a multiple of a peer's, by precision and task: medians of the rounds."""
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        if row["program"] == peer:
            found.setdefault(row["precision"], {})[row["task"]] = round(row["foretell_to_it"]["median"], 3)
    return found


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """The table: median (low-high) of the rounds."""
    console.print(f"\n{report['shape']} shape, random weights, {report['parameters']:,} parameters", style="bold")
    console.print(f"batch_N: {report['new_tokens']} new tokens after {PROMPT}; after_900: one row; read_512: a prompt")
    if report["llamacpp_build"]:
        console.print(f"features: {report['features']}; llama.cpp: {report['llamacpp_build']}")
    table = make_table(
        ("precision", "task", "program", "tokens/s", "foretell to it"), words={"precision", "task", "program"}
    )
    for row in report["rows"]:
        speed, ratio = Spread(**row["tokens_per_second"]), Spread(**row["foretell_to_it"])
        table.add_row(
            row["precision"],
            row["task"],
            row["program"],
            str(speed),
            "" if row["program"] == "foretell" else str(ratio),
        )
    console.print(table)
    if report["cpu_time"]:
        console.print("tokens per second of CPU time")
    if report["quick"]:
        console.print("--quick: few tokens and rounds; small differences mean nothing")


if __name__ == "__main__":
    main()
