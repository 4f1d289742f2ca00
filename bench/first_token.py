"""Seconds from the start of a program to its first new token, and of verbs that run no model; each in a new process.

    python bench/first_token.py           9 rounds in turns: about eight minutes, most of them compilation
    python bench/first_token.py --quick   3 rounds
    python bench/first_token.py --llm PROGRAM --llama-cli PROGRAM

The model is `primer`, for transformers and llama-cli its exports, so that reading weights takes no time and all
programs continue the same text. With a cold cache no kernel is compiled: the plain modules generate while another
process compiles, and the next program starts when that has ended. Files are in the page cache in all rounds. `llm` runs
no model in its process; its list of models is compared with `runs`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import Spread, note
from processes import cpu_seconds
from rich.console import Console

from foretell.convert.export import export_huggingface
from foretell.convert.gguf.export import export_gguf
from foretell.loading import load
from foretell.system.installation import version_of

PROMPT = "The return value of the function"
FORETELL = [sys.executable, "-m", "foretell"]
TRANSFORMERS = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
model, tokenizer = (kind.from_pretrained(sys.argv[1]) for kind in (AutoModelForCausalLM, AutoTokenizer))
print(end=sys.argv[2], flush=True)
ids = tokenizer(sys.argv[2], return_tensors="pt")
print(tokenizer.decode(model.generate(**ids, max_new_tokens=1, do_sample=False)[0])[-1:], flush=True)
"""


@dataclass(frozen=True)
class Program:
    """A command; `shown` is what it prints before its first new token, None if its end is measured."""

    command: list[str]
    shown: str | None = None
    is_cold: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def measure(self) -> tuple[float, float]:
        """Seconds and CPU seconds until the first new token, or until the program ends."""
        cache = tempfile.mkdtemp() if self.is_cold else ""
        environment = {**os.environ, "FORETELL_KERNELS": "background", **self.environment}
        environment |= {"XDG_CACHE_HOME": cache} if cache else {}
        started = time.perf_counter()
        process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        assert process.stdout is not None
        is_shown = read_past(process.stdout.fileno(), self.shown)
        elapsed, working = time.perf_counter() - started, cpu_seconds(process.pid)
        process.kill()
        process.communicate()
        if not is_shown:
            raise SystemExit(f"{' '.join(self.command)[:200]} ended before its first token")
        if cache:
            finish_compiling(Path(cache), environment)
        return elapsed, working


def read_past(descriptor: int, shown: str | None) -> bool:
    """Read until a byte comes after `shown`, or for None to the end; False if the end comes too early."""
    text = b""
    while shown is None or len(text.lstrip()) <= len(shown.encode()):
        piece = os.read(descriptor, 4096)
        if not piece:
            return shown is None
        text += piece
    return True


def finish_compiling(cache: Path, environment: Mapping[str, str]) -> None:
    """Wait until no process compiles kernels into a cache, then remove it."""
    subprocess.run([*FORETELL, "warm", "primer"], env=environment, capture_output=True, check=True)
    for folder in (cache / "foretell" / "kernels").iterdir():
        locked = os.open(folder, os.O_RDONLY)
        fcntl.flock(locked, fcntl.LOCK_EX)
        os.close(locked)
    shutil.rmtree(cache)


def choose_programs(folder: Path, llm: str | None, llama_cli: str | None) -> tuple[dict[str, Program], dict[str, str]]:
    """The programs by name, and the reasons of those that are left out."""
    generate = [*FORETELL, "generate", "primer", PROMPT, "--max-tokens", "8"]
    next_tokens = [*FORETELL, "next", "primer", PROMPT]
    programs = {
        "import torch": Program([sys.executable, "-c", "import torch; print(1, flush=True)"], ""),
        "foretell generate, warm": Program(generate, PROMPT),
        "foretell generate, cold": Program(generate, PROMPT, is_cold=True),
        "foretell next, warm": Program(next_tokens, ""),
        "foretell next, cold": Program(next_tokens, "", is_cold=True),
        "foretell info": Program([*FORETELL, "info", "primer"]),
        "foretell runs": Program([*FORETELL, "runs", str(folder / "runs")]),
    }
    absent = {}
    model = load("primer", "cpu", "float32")
    if version_of("transformers"):
        export_huggingface(model, folder / "huggingface")
        command = [sys.executable, "-c", TRANSFORMERS, str(folder / "huggingface"), PROMPT]
        programs["transformers generate"] = Program(command, PROMPT)
    else:
        absent["transformers generate"] = "transformers is not installed"
    if llama_cli:
        export_gguf(model, folder / "primer.gguf", "f32")
        command = [llama_cli, "-m", str(folder / "primer.gguf"), "-p", PROMPT, "-n", "8", "-no-cnv", "--no-warmup"]
        programs["llama-cli"] = Program(command, PROMPT)
    else:
        absent["llama-cli"] = "no llama-cli on PATH, and --llama-cli names none"
    if llm:
        programs["llm models"] = Program([llm, "models"], environment={"LLM_USER_PATH": str(folder / "llm")})
    else:
        absent["llm models"] = "no llm on PATH, and --llm names none"
    return programs, absent


def print_table(console: Console, report: BenchmarkReport) -> None:
    """Print the seconds of each program, and the reasons of those that are left out."""
    table = make_table(("program", "seconds", "CPU seconds"), words=("program",))
    for name, figures in report["programs"].items():
        table.add_row(name, *(str(Spread(**figures[kind])) for kind in ("seconds", "cpu_seconds")))
    console.print(table)
    for name, reason in report["absent"].items():
        console.print(f"{name}: left out, {reason}")


def main() -> None:
    """Measure all programs in turns, and print a table or one JSON object."""
    parser = make_parser("Seconds to the first token.", "3 rounds instead of 9")
    parser.add_argument("--llm", default=shutil.which("llm"), help="the program llm")
    parser.add_argument("--llama-cli", default=shutil.which("llama-cli"), help="llama.cpp's program llama-cli")
    arguments = parser.parse_args()
    rounds = 3 if arguments.quick else 9
    with tempfile.TemporaryDirectory() as folder:
        programs, absent = choose_programs(Path(folder), arguments.llm, arguments.llama_cli)
        (Path(folder) / "runs").mkdir()
        subprocess.run([*FORETELL, "warm", "primer"], capture_output=True, check=True)
        measured: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
        for program in programs.values():  # fills the page cache
            if not program.is_cold:
                program.measure()
        for round_index in range(rounds):
            note(f"round {round_index + 1} of {rounds}")
            for name, program in programs.items():
                measured[name].append(program.measure())
    figures = {name: map(Spread.of, zip(*each, strict=True)) for name, each in measured.items()}
    report = start_report("first_token", "transformers", "numba")
    report |= {
        "programs": {
            name: dict(zip(("seconds", "cpu_seconds"), map(asdict, spreads), strict=True))
            for name, spreads in figures.items()
        },
        "absent": absent,
    }
    print_report(report, print_table, as_json=arguments.json)


if __name__ == "__main__":
    main()
