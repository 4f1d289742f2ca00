"""Receipts of 1,000 answers, each verified under other conditions; 1,000 manipulations; time and size.

    python bench/receipts.py [--quick] [--json]

Processes with AVX2 or AVX-512, where the processor has it, and with 1 or 2 threads write the answers, in batches of 1
to 64 texts, with an empty cache and with one that holds the prompts, with guesses and without. Other processes verify
them, with the other instructions or threads. bench/receipts/ has receipts that other machines wrote with --record. The
manipulations are a
token, a setting, a bit of a weight and a bit of a logit; the digests in the receipt stay as they are, or are computed
again, as a forger would.
"""

from __future__ import annotations

import copy
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from decode import FEATURES, USABLE
from measure import time_interleaved
from rich.console import Console

import foretell
from foretell.errors import CheckpointError
from foretell.generation.logit_digests import logits_digest, merkle_root
from foretell.generation.scheduler import Scheduler
from foretell.inference.answer_receipt import AnswerReceipt, identity_of, json_digest, make_receipt
from foretell.inference.completion import Completer, make_completer, make_proposer, make_sampling
from foretell.inference.verification import verify
from foretell.language_model import LanguageModel
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config

Forged = tuple[dict[str, Any], dict[str, Any]]  # a manipulated receipt as it is, and one whose digests are repaired
TEXT = "The return value of the function is a list of the names in the module. If the name is not found, it "
BATCHES = (1, 2, 5, 17, 64)
TOKENS = 24
COST_TOKENS = 80
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 1.3, "top_k": 40},
    {"top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.2},
    {"temperature": 1.0, "top_p": 1.0},
    {"no_repeat_ngram": 3, "frequency_penalty": 0.4},
]
RECORDED = Path(__file__).parent / "receipts"
PLACES = [(features, threads) for features in USABLE[1:] or USABLE for threads in (1, 2)]


def gpt2_shape() -> LanguageModel:
    """Two layers of GPT-2's kind with random weights, on primer's tokens."""
    tokenizer = foretell.load("primer").tokenizer
    config = preset_config("gpt2", num_layers=2, width=192, num_heads=3, vocab_size=tokenizer.vocab_size)
    return LanguageModel(make_decoder(config, seed=1).eval(), tokenizer, "gpt2 shape")


MODELS: dict[str, Callable[[], LanguageModel]] = {
    "primer": lambda: foretell.load("primer", "cpu", "float32"),
    "primer int8": lambda: foretell.load("primer", "cpu", quantize="int8"),
    "gpt2 shape": gpt2_shape,
}


# --- writing and verifying, in processes with other instructions ------------------------------------------------------


def write_receipts(count: int, seed: str) -> list[Any]:
    """The model's name and the receipt of `count` answers of all models."""
    rng, rows = random.Random(seed), []
    models = {name: make().strict() for name, make in MODELS.items()}
    warm = {
        (name, guesses): Scheduler(model.decoder, memory=2**26, proposer=make_proposer(model, guesses, None))
        for name, model in models.items()
        for guesses in (None, 4)
    }
    while len(rows) < count:
        name, guesses = rng.choice(list(warm))
        scheduler = rng.choice([None, warm[name, guesses]])  # an empty cache, or one that has read other prompts
        prompts = [TEXT[: rng.randrange(4, len(TEXT))] for _ in range(rng.choice(BATCHES))]
        options = {**rng.choice(OPTIONS), "seed": rng.randrange(2**31)}
        rows += [[name, each.to_json()] for each in receipts_of(models[name], prompts, options, scheduler)]
    return rng.sample(rows, count)


def receipts_of(
    model: LanguageModel, prompts: Sequence[str], options: dict[str, Any], scheduler: Scheduler | None = None
) -> list[AnswerReceipt]:
    completer = make_completer(model, list(prompts), make_sampling(options, model.tokenizer), receipts=True)
    for _ in completer.advance(TOKENS, scheduler=scheduler):
        pass
    return [completion.receipt for completion in completer.completions() if completion.receipt is not None]


def verify_receipts(rows: list[Any]) -> dict[str, int]:
    """The number of receipts with each verdict."""
    models = {name: MODELS[name]().strict() for name in {name for name, _ in rows}}
    results = [verify(models[name], AnswerReceipt.from_json(values)) for name, values in rows]
    return Counter(result.verdict for result in results)


def in_process(features: str, threads: int, action: str, rows: list[Any] | int) -> Any:
    """The result of an action in a process with these instructions."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.json"
        path.write_text(json.dumps(rows), encoding="utf-8")
        environment = {
            **os.environ,
            **FEATURES[features],
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "passive",
        }
        command = [sys.executable, __file__, "--action", action, str(path), f"{features} {threads}"]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def check_honest(count: int) -> list[dict[str, Any]]:
    """One row for each kind of writer, verified elsewhere: with the other instructions and number of threads."""
    rows = []
    for index, (features, threads) in enumerate(PLACES):
        written = in_process(features, threads, "write", count // len(PLACES))
        others = PLACES[-1 - index], PLACES[index ^ 1]  # other instructions and threads; other threads alone
        for verifier in dict.fromkeys(others):
            verdicts = in_process(*verifier, "verify", written)
            names = [f"{kind}, {number} thread{'s' * (number > 1)}" for kind, number in ((features, threads), verifier)]
            rows.append({"written by": names[0], "checked by": names[1], "answers": len(written), **verdicts})
    return rows


def record_receipts() -> list[Any]:
    """The name of each model and the receipts of a few of its answers."""
    models, prompts = {name: make().strict() for name, make in MODELS.items()}, [TEXT[:20], TEXT[:61], TEXT]
    return [
        [name, receipt.to_json()]
        for name, model in models.items()
        for receipt in receipts_of(model, prompts, OPTIONS[0])
    ]


def check_recorded() -> list[dict[str, Any]]:
    """One row for each machine that has recorded receipts, verified here."""
    rows = []
    for path in sorted(RECORDED.glob("*.json")):
        written = json.loads(path.read_text(encoding="utf-8"))
        rows.append({"written on": path.stem, "answers": len(written), **verify_receipts(written)})
    return rows


# --- manipulations ---------------------------------------------------------------------------------------------------


def check_manipulations(count: int) -> list[dict[str, Any]]:
    """One row for each kind of manipulation: those that were found, as they are and with repaired digests."""
    rng = random.Random(1)
    model = foretell.load("primer", "cpu", "float32").strict()
    rows = []
    for name, manipulate in MANIPULATIONS.items():
        row: dict[str, Any] = {"manipulation": name, "receipts": count // len(MANIPULATIONS), "found": 0, "repaired": 0}
        for _ in range(row["receipts"]):
            prompt, options = TEXT[: rng.randrange(4, len(TEXT))], {**rng.choice(OPTIONS), "seed": rng.randrange(2**31)}
            values, forged = manipulate(model, prompt, options, rng)
            row["found"] += verify(model, AnswerReceipt.from_json(values)).verdict == "rejected"
            row["repaired"] += verify(model, repaired(forged)).verdict == "rejected"
        rows.append(row)
    return rows


def repaired(values: dict[str, Any]) -> AnswerReceipt:
    """A changed receipt with digests that match the change."""
    values["request_sha256"] = json_digest(values["request"])
    values["root"] = merkle_root([bytes.fromhex(digest) for digest in values["logits"]]).hex()
    return AnswerReceipt.from_json(values).sealed()


def changed_token(model: LanguageModel, prompt: str, options: dict[str, Any], rng: random.Random) -> Forged:
    """One token of the answer or of the prompt is another."""
    values = receipts_of(model, [prompt], options)[0].to_json()
    place = rng.choice([values["tokens"], values["tokens"], values["request"]["prompt"]])
    index = rng.randrange(len(place))
    place[index] = (place[index] + rng.randrange(1, model.tokenizer.vocab_size)) % model.tokenizer.vocab_size
    return values, values


def changed_setting(model: LanguageModel, prompt: str, options: dict[str, Any], rng: random.Random) -> Forged:
    values = receipts_of(model, [prompt], options)[0].to_json()
    name, value = rng.choice(
        [("seed", rng.randrange(2**31)), ("temperature", rng.uniform(0.1, 2)), ("top_k", rng.randrange(1, 100)),
         ("top_p", rng.uniform(0.1, 1)), ("repetition_penalty", rng.uniform(0.8, 1.5))]
    )  # fmt: skip
    values["request"]["sampling"][name] = value
    return values, values


def changed_logit(model: LanguageModel, prompt: str, options: dict[str, Any], rng: random.Random) -> Forged:
    """The digest of one token is of logits with one other bit."""
    values = receipts_of(model, [prompt], options)[0].to_json()
    index = rng.randrange(len(values["tokens"]))
    ids = [*values["request"]["prompt"], *values["tokens"][:index]]
    with torch.inference_mode():
        logits = model(ids)[0, -1]
    assert logits_digest(logits).hex() == values["logits"][index]
    logits.view(torch.int32)[rng.randrange(len(logits))] ^= 1 << rng.randrange(31)
    values["logits"][index] = logits_digest(logits).hex()
    return values, values


def changed_weight(model: LanguageModel, prompt: str, options: dict[str, Any], rng: random.Random) -> Forged:
    """The answer is of a model with one other bit; the forger names the digest of the right weights."""
    other = foretell.load("primer", "cpu", "float32")
    weight = rng.choice(list(other.decoder.state_dict().values())).flatten()
    weight.view(torch.int32)[rng.randrange(len(weight))] ^= 1 << rng.randrange(31)
    try:
        values = receipts_of(other.strict(), [prompt], options)[0].to_json()
    except CheckpointError:  # logits that are not finite: there is no answer
        return changed_weight(model, prompt, options, rng)
    forged = copy.deepcopy(values)
    forged["model"]["weights_sha256"] = model.weights_digest()
    return values, forged


MANIPULATIONS: dict[str, Callable[[LanguageModel, str, dict[str, Any], random.Random], Forged]] = {
    "a token": changed_token,
    "a setting": changed_setting,
    "a bit of a logit": changed_logit,
    "a bit of a weight": changed_weight,
}


# --- cost ------------------------------------------------------------------------------------------------------------


def measure_cost() -> list[dict[str, Any]]:
    """Seconds of an answer with and without a receipt, of its check, and the size of the receipt."""
    return [{"model": name, **cost_of(make().strict())} for name, make in MODELS.items()]


def cost_of(model: LanguageModel) -> dict[str, Any]:
    sampling = make_sampling({"seed": 1, "min_tokens": COST_TOKENS}, model.tokenizer)

    def written(digests: bool) -> Completer:
        completer = Completer(model, [TEXT[:40]], sampling, [])
        completer.keeps_digests = digests
        for _ in completer.advance(COST_TOKENS):
            pass
        return completer

    receipt = make_receipt(identity_of(model), written(True).continuations[0], model.device)
    runs = {"plain": lambda: written(False), "receipt": lambda: written(True), "verify": lambda: verify(model, receipt)}
    seconds = {name: statistics.median(each) for name, each in time_interleaved(runs, rounds=5).items()}
    return {"tokens": len(receipt.tokens), "bytes": len(json.dumps(receipt.to_json())), **seconds}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """One table for each part of the report."""
    for name in ("honest", "recorded", "manipulations", "cost"):
        columns = list(dict.fromkeys(key for row in report[name] for key in row))
        table = make_table(columns, words=columns[:2], title=name)
        for row in report[name]:
            values = (row.get(column, 0) for column in columns)
            table.add_row(*(f"{value:.3f}" if isinstance(value, float) else str(value) for value in values))
        console.print(table)


def main() -> None:
    parser = make_parser(__doc__ or "", quick="60 answers and 40 manipulations")
    parser.add_argument("--record", metavar="NAME", help=f"write receipts to {RECORDED.name}/NAME.json, and stop")
    parser.add_argument("--action", nargs=3, help="used for the processes that write and verify")
    arguments = parser.parse_args()
    if arguments.action:
        action, path, seed = arguments.action
        rows = json.loads(Path(path).read_text(encoding="utf-8"))
        print(json.dumps(write_receipts(rows, seed) if action == "write" else verify_receipts(rows)))
        return
    if arguments.record:
        RECORDED.mkdir(exist_ok=True)
        content = json.dumps(record_receipts(), separators=(",", ":"))
        (RECORDED / f"{arguments.record}.json").write_text(content + "\n", encoding="utf-8")
        return
    report = start_report("receipts", "numba")
    report["honest"] = check_honest(60 if arguments.quick else 1000)
    report["recorded"] = check_recorded()
    report["manipulations"] = check_manipulations(40 if arguments.quick else 1000)
    report["cost"] = measure_cost()
    print_report(report, print_tables, as_json=arguments.json)


if __name__ == "__main__":
    main()
