"""The scoreboard of the defaults: each kind of training by its shortest command, next to an honest baseline.

    python bench/defaults.py --data FOLDER --results defaults.json      12 sets, 3 seeds: an hour on two cores
    python bench/defaults.py --data FOLDER --sets sst2 airline --seeds 1
    python bench/defaults.py --data FOLDER --quick                      a few steps of every set, to see that it runs

FOLDER has the folders char_lm, lm_corpora, classification, timeseries, translation and instruction. The command of a
set has its data, `--minutes` and a seed; everything else is the default. Each set keeps a part of its data for the
test, which training never sees:

    set           test                          error               baseline
    3 texts       the last tenth                bits per byte       interpolated Kneser-Ney on bytes, order 6
    3 of labels   the published test file       1 - accuracy        TF-IDF and logistic regression, tuned
    1 of numbers  the published test file       mean absolute       TF-IDF and ridge regression, tuned
    3 of series   the last values               MASE                the better one of seasonal naive and AutoETS
    1 of pairs    sentences by hash             1 - BLEU            the translation of the most similar sentence
    1 of chats    the last tenth                loss of answers     Kneser-Ney on the bytes of the answers

skill = 1 - error / error of the baseline; 0 is as good as the baseline, 1 is perfect. Results are added to --results
one by one, so that a stopped benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from finetune import baselines, prepare
from forecast import ETS_HISTORY, MOST_WINDOWS, write_series
from forecast import SETS as SERIES
from measure import note
from rich.console import Console
from translate import split_data

from foretell.forecasting.metrics import auto_ets, has_peer, seasonal_naive
from foretell.forecasting.rolling import rolling_origins, score
from foretell.forecasting.series import choose_seasons
from foretell.translation.translate import compare

ORDER = 6  # bytes: five of context and the next one
TENTH = 10
MOST_SERIES, MOST_ORIGINS = 40, 40
QUICK = ("--training.steps", "3")


@dataclass(frozen=True)
class Trial:
    """A data set that is ready: the command that trains, the one that measures, and the baseline's error.

    error: from the JSON that `measure` prints.
    """

    train: Sequence[str]
    measure: Sequence[str]
    error: Callable[[Any], float]
    baseline: float


def main() -> None:
    """Fill in the missing cells, then print a table or one JSON object."""
    parser = make_parser("Each kind of training with the defaults, next to an honest baseline.", "three steps of each")
    parser.add_argument("--data", type=Path, required=True, help="the folder with the data, described above")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=1.25, help="of each training (default: 1.25)")
    parser.add_argument("--results", type=Path, help="a JSON file: cells in it are kept, new ones are added")
    arguments = parser.parse_args()
    cells = json.loads(arguments.results.read_text("utf-8")) if arguments.results and arguments.results.exists() else {}
    with tempfile.TemporaryDirectory() as temporary:
        for name in arguments.sets:
            seeds = [seed for seed in arguments.seeds if f"{name} {seed}" not in cells]
            folder = Path(temporary) / name
            folder.mkdir()
            trial = SETS[name](arguments.data, folder) if seeds else None
            for seed in seeds:
                assert trial is not None
                cells[f"{name} {seed}"] = run(trial, folder / f"run-{seed}", seed, arguments)
                note(f"{name} {seed}: {json.dumps(cells[f'{name} {seed}'])}")
                if arguments.results:
                    arguments.results.write_text(json.dumps(cells, indent=1), encoding="utf-8")
    report = {**start_report("defaults", "scikit-learn", "statsforecast"), "minutes": arguments.minutes, "cells": cells}
    print_report(report, print_tables, as_json=arguments.json)


def run(trial: Trial, out: Path, seed: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Train and measure once."""
    started = time.perf_counter()
    length = QUICK if arguments.quick else ("--minutes", f"{arguments.minutes:g}")
    foretell(*trial.train, "--out", str(out), *length, "--training.seed", str(seed))
    error = trial.error(json.loads(foretell(trial.measure[0], str(out), *trial.measure[1:], "--json")))
    minutes = round((time.perf_counter() - started) / 60, 2)
    skill = 1 - error / trial.baseline
    return {"error": error, "baseline": trial.baseline, "skill": skill, "minutes": minutes, "load": os.getloadavg()[0]}


def foretell(*words: str) -> str:
    """The output of a command; its messages are shown if it fails."""
    done = subprocess.run([sys.executable, "-m", "foretell", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"foretell {' '.join(words)}\n{done.stderr}")
    return done.stdout


# --- texts ------------------------------------------------------------------------------------------------------------


class KneserNey:
    """Interpolated Kneser-Ney on bytes (Chen and Goodman 1999, section 2.8), one discount for each order."""

    def __init__(self, text: bytes, order: int = ORDER):
        self.order, self.counts = order, [Counter[bytes]() for _ in range(order)]
        self.counts[-1].update(text[at : at + order] for at in range(len(text) - order + 1))
        for shorter, longer in zip(self.counts[-2::-1], self.counts[:0:-1], strict=True):
            shorter.update(ngram[1:] for ngram in longer)  # in how many contexts it occurs
        self.totals = [Counter[bytes]() for _ in range(order)]
        self.kinds = [Counter[bytes]() for _ in range(order)]
        self.discounts = []
        for counts, totals, kinds in zip(self.counts, self.totals, self.kinds, strict=True):
            for ngram, count in counts.items():
                totals[ngram[:-1]] += count
                kinds[ngram[:-1]] += 1
            once, twice = (sum(count == number for count in counts.values()) for number in (1, 2))
            self.discounts.append(once / (once + 2 * twice) if once else 0.5)

    def probability(self, context: bytes, byte: bytes) -> float:
        """The probability of a byte after at most order - 1 bytes."""
        chance = 1 / 256
        for length in range(min(len(context), self.order - 1) + 1):
            given = context[len(context) - length :]
            if total := self.totals[length][given]:
                discount = self.discounts[length]
                kept = max(0.0, self.counts[length][given + byte] - discount)
                chance = (kept + discount * self.kinds[length][given] * chance) / total
        return chance

    def bits(self, context: bytes, text: bytes) -> float:
        """The bits of a text after a context."""
        whole, first = context + text, len(context)
        return -sum(
            math.log2(self.probability(whole[max(0, at - self.order + 1) : at], whole[at : at + 1]))
            for at in range(first, len(whole))
        )


def read_text(file: str, data: Path, folder: Path) -> Trial:
    """A text whose last tenth, from the start of a line, is the test."""
    text = (data / file).read_text("utf-8-sig").replace("\r\n", "\n")
    cut = text.index("\n", len(text) - len(text) // TENTH) + 1
    (folder / "text.txt").write_text(text[:cut], encoding="utf-8")
    (folder / "test.txt").write_text(text[cut:], encoding="utf-8")
    known, test = text[:cut].encode(), text[cut:].encode()
    baseline = KneserNey(known).bits(known[-ORDER:], test) / len(test)
    measure = ("evaluate", str(folder / "test.txt"))
    return Trial(("train", str(folder / "text.txt")), measure, lambda found: found["bits_per_byte"], baseline)


def read_chats(data: Path, folder: Path) -> Trial:
    """Instructions with answers; the error is that of the answers alone, in bits per byte."""
    rows = json.loads((data / "instruction" / "instruction-data.json").read_text("utf-8"))
    cut = len(rows) - len(rows) // TENTH
    (folder / "chats.json").write_text(json.dumps(rows[:cut]), encoding="utf-8")
    (folder / "test.json").write_text(json.dumps(rows[cut:]), encoding="utf-8")
    questions = [f"{row['instruction']}\n{row['input']}\n" for row in rows]
    answers = [row["output"] for row in rows]
    known = "".join(f"{question}{answer}\n" for question, answer in zip(questions[:cut], answers[:cut], strict=True))
    model, size = KneserNey(known.encode()), sum(len(answer.encode()) for answer in answers[cut:])
    asked = zip(questions[cut:], answers[cut:], strict=True)
    baseline = sum(model.bits(question.encode(), answer.encode()) for question, answer in asked) / size

    def error(found: Any) -> float:
        figures = found["models"][0]
        return figures["loss"] * figures["answer_tokens"] / math.log(2) / size

    train = ("finetune", "primer", str(folder / "chats.json"), "--task", "chat")
    return Trial(train, ("evaluate", str(folder / "test.json"), "--task", "chat"), error, baseline)


# --- labels and numbers -----------------------------------------------------------------------------------------------


def read_labels(name: str, data: Path, folder: Path) -> Trial:
    """Labelled texts with the published test file."""
    labelled = prepare(name, data, folder)
    baseline = 1 - baselines(labelled, quick=False)["grid"]
    train = ("finetune", str(labelled.file("train")))
    return Trial(
        train, ("evaluate", str(labelled.file("test"))), lambda found: 1 - found["figures"]["accuracy"], baseline
    )


MOODS = {"0": -1.0, "1": 1.0, "2": 0.0}  # bearish, bullish, neutral


def read_numbers(data: Path, folder: Path) -> Trial:
    """The mood of financial news as a number."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    labelled = prepare("twitter", data, folder)
    parts = {"train": labelled.train, "test": labelled.test}
    for part, rows in parts.items():
        with (folder / f"{part}-moods.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "mood"), *((text, MOODS[label]) for text, label in rows)])
    texts, moods = [text for text, _ in labelled.train], [MOODS[label] for _, label in labelled.train]
    pipeline = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True), Ridge())
    search = GridSearchCV(pipeline, {"ridge__alpha": [0.1, 0.3, 1.0, 3.0]}, scoring="neg_mean_absolute_error")
    search.fit(texts, moods)
    guesses = search.predict([text for text, _ in labelled.test])
    baseline = statistics.fmean(
        abs(guess - MOODS[label]) for guess, (_, label) in zip(guesses, labelled.test, strict=True)
    )
    train = ("finetune", str(folder / "train-moods.csv"), "--task", "regress")
    measure = ("evaluate", str(folder / "test-moods.csv"))
    return Trial(train, measure, lambda found: found["figures"]["mae"], baseline)


# --- series and pairs -------------------------------------------------------------------------------------------------


def read_series_set(name: str, data: Path, folder: Path) -> Trial:
    """Series whose last values are the test; both baselines forecast from the same origins.

    AutoETS ignores seasons above 24 values, and on hourly series a seasonal naive forecast is better.
    """
    source = SERIES[name](data / "timeseries")
    series, test = source.series[:MOST_SERIES], source.test
    known = write_series(folder / "known.csv", [each.until(len(each) - test) for each in series])
    whole = write_series(folder / "whole.csv", series)
    seasons, _ = choose_seasons([each.until(len(each) - test) for each in series], None)
    horizon = min(test, 48)
    windows = max(1, min(MOST_WINDOWS, test // horizon, MOST_ORIGINS // len(series)))
    origins = rolling_origins(series, horizon, horizon, windows, seasons)
    peers = [[seasonal_naive(each.history, each.season or 1, horizon)[None] for each in origins]]
    if has_peer():
        peers.append([auto_ets(each.history[-ETS_HISTORY:], each.season, horizon)[None] for each in origins])
    baseline = min(score(origins, points).to_json()["mase"] for points in peers)
    measure = ("evaluate", str(whole), "--horizon", str(horizon), "--windows", str(windows))
    train = ("train", "--task", "forecast", str(known), "--horizon", str(horizon))
    return Trial(train, measure, lambda found: found["model"]["mase"], baseline)


def read_pairs_set(data: Path, folder: Path) -> Trial:
    """English and French; the baseline is the French of the English sentence with the most similar words."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.neighbors import NearestNeighbors

    split = split_data(data / "translation" / "fra-eng_tatoeba_2017.zip")
    learned, test = [*split.learned.train, *split.learned.validation], split.test[:: max(1, len(split.test) // 500)]
    for name, pairs in (("pairs", learned), ("test", test)):
        lines = (f"{pair.source}\t{pair.target}\n" for pair in pairs)
        (folder / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    vectors = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4))
    neighbors = NearestNeighbors(n_neighbors=1).fit(vectors.fit_transform([pair.source for pair in learned]))
    _, nearest = neighbors.kneighbors(vectors.transform([pair.source for pair in test]))
    memory = {pair.source: learned[int(index)].target for pair, (index,) in zip(test, nearest, strict=True)}
    baseline = 1 - compare(test, memory).bleu / 100
    train = ("train", "--task", "translate", str(folder / "pairs.tsv"))
    return Trial(train, ("evaluate", str(folder / "test.tsv")), lambda found: 1 - found["bleu"] / 100, baseline)


SETS: dict[str, Callable[[Path, Path], Trial]] = {
    "shakespeare": partial(read_text, "char_lm/tinyshakespeare_input.txt"),
    "republic": partial(read_text, "lm_corpora/plato_republic.txt"),
    "wikitext": partial(read_text, "lm_corpora/wikitext2_valid.txt"),
    "chats": read_chats,
    "sst2": partial(read_labels, "sst2"),
    "trec": partial(read_labels, "trec"),
    "twitter": partial(read_labels, "twitter"),
    "moods": read_numbers,
    "airline": partial(read_series_set, "airline"),
    "temperatures": partial(read_series_set, "temperatures"),
    "m4": partial(read_series_set, "m4"),
    "pairs": read_pairs_set,
}


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """Mean error and skill of each set over the seeds, and the median skill."""
    by_set: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for key, cell in report["cells"].items():
        by_set[key.rpartition(" ")[0]].append(cell)
    table = make_table(["data", "seeds", "error", "baseline", "skill", "lowest", "minutes"], words={"data"})
    skills = []
    for name, cells in by_set.items():
        error, skill, minutes = (statistics.fmean(cell[key] for cell in cells) for key in ("error", "skill", "minutes"))
        skills.append(skill)
        lowest = min(cell["skill"] for cell in cells)
        figures = (f"{error:.3f}", f"{cells[0]['baseline']:.3f}", f"{skill:+.1%}", f"{lowest:+.1%}", f"{minutes:.1f}")
        table.add_row(name, str(len(cells)), *figures)
    console.print(table)
    console.print(f"median skill {statistics.median(skills):+.1%}, lowest {min(skills):+.1%}")


if __name__ == "__main__":
    main()
