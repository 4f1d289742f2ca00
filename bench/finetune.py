"""Fine-tuning with the defaults against TF-IDF with logistic regression, on three small data sets.

    python bench/finetune.py --data FOLDER --results finetune.json          what is missing of 3 sets, 3 seeds
    python bench/finetune.py --data FOLDER --results finetune.json --sets trec --seeds 1 --minutes 2
    python bench/finetune.py --data FOLDER --quick                          a few steps of one cell, to see that it runs

FOLDER holds classification/ (Twitter financial news, SST-2, TREC) and lm_corpora/. The models of a data set and a seed:
primer; a model that is first trained for --minutes on the task's own training texts and on wikitext2_valid.txt; and
random weights (--from-scratch). Each is tuned for at most --minutes. Nothing but data and minutes is given. The best
checkpoint is chosen on a tenth of the training file; the test file is read once per model. Results are added to
--results model by model, so that a stopped benchmark goes on where it was (--work keeps the models).

Both baselines are scikit-learn's: its defaults, and 1-2-grams with C and sublinear counts chosen by cross-validation on
the training file. Models have the mean of the seeds and its standard error; the last column is two standard errors of
an accuracy on the test file.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import foretell  # isort: skip - before torch, so that OpenMP's threads wait as in the command line
from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report, use_threads
from measure import note
from rich.console import Console

if TYPE_CHECKING:
    from foretell.config.typed_dicts import TrainingDict

Labelled = list[tuple[str, str]]

CORPUS = "wikitext2_valid.txt"
REPEATS = 6  # of a task's texts in the text of pre-training
MODELS = ("primer", "own texts", "random weights")
QUICK: TrainingDict = {"steps": 3, "batch_size": 4}


def main() -> None:
    """Fill in the missing cells, then print a table or one JSON object."""
    parser = make_parser(
        "Accuracy of small fine-tuned models next to TF-IDF.", "a few steps of one cell", with_threads=True
    )
    parser.add_argument("--data", type=Path, required=True, help="the folder with classification/ and lm_corpora/")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--minutes", type=float, default=4.0, help="of each training (default: 4)")
    parser.add_argument("--results", type=Path, help="a JSON file: cells in it are kept, new ones are added")
    parser.add_argument("--work", type=Path, help="keep models and runs in this folder")
    arguments = parser.parse_args()
    use_threads(arguments.threads)
    cells = read_cells(arguments.results)
    if arguments.quick:
        arguments.sets, arguments.seeds = arguments.sets[:1], arguments.seeds[:1]
    with tempfile.TemporaryDirectory() as temporary:
        work = arguments.work or Path(temporary)
        sets = {name: prepare(name, arguments.data, work / name) for name in arguments.sets}
        for key, make in runs(sets, arguments).items():
            if key not in cells:
                cells[key] = make()
                note(f"{key}: {json.dumps(cells[key])}")
                if arguments.results:
                    arguments.results.write_text(json.dumps(cells, indent=1), encoding="utf-8")
    report = {**start_report("finetune", "scikit-learn"), "minutes": arguments.minutes, "cells": cells}
    print_report(report, print_tables, as_json=arguments.json)


def runs(sets: dict[str, DataSet], arguments: argparse.Namespace) -> dict[str, Callable[[], Any]]:
    """The work for each entry of the results: baselines, then all models and data sets for one seed after the other."""
    minutes = None if arguments.quick else arguments.minutes
    return {
        **{f"{name} baselines": partial(baselines, data, quick=arguments.quick) for name, data in sets.items()},
        **{
            f"{name} {seed} {model}": partial(run_model, data, model, seed, minutes)
            for seed in arguments.seeds
            for name, data in sets.items()
            for model in arguments.models
        },
    }


def read_cells(path: Path | None) -> dict[str, Any]:
    """The results of earlier calls."""
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else {}


# --- data ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class DataSet:
    """Files of labelled rows, the text of pre-training, and where models go."""

    train: Labelled
    test: Labelled
    folder: Path

    def file(self, part: str) -> Path:
        return self.folder / f"{part}.csv"


def read_twitter(folder: Path) -> tuple[Labelled, Labelled]:
    """Twitter financial news: its valid file is the test."""
    return read_csv(folder / "twitter_financial_news_train.csv"), read_csv(folder / "twitter_financial_news_valid.csv")


def read_csv(path: Path) -> Labelled:
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def read_sst2(folder: Path) -> tuple[Labelled, Labelled]:
    """SST-2: sentences with 0 or 1; its dev file is not used."""
    return read_tabs(folder / "sst2_train.tsv"), read_tabs(folder / "sst2_test.tsv")


def read_tabs(path: Path) -> Labelled:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(text, label) for text, _, label in (line.rpartition("\t") for line in lines if line.strip())]


def read_trec(folder: Path) -> tuple[Labelled, Labelled]:
    """TREC: questions with one of six coarse labels."""
    return read_questions(folder / "trec_train.txt"), read_questions(folder / "trec_test.txt")


def read_questions(path: Path) -> Labelled:
    lines = path.read_text(encoding="latin-1").splitlines()
    return [(text, label.partition(":")[0]) for label, _, text in (line.partition(" ") for line in lines if line)]


SETS = {"twitter": read_twitter, "sst2": read_sst2, "trec": read_trec}


def prepare(name: str, source: Path, folder: Path) -> DataSet:
    """Write the files of a data set, and the text of pre-training."""
    folder.mkdir(parents=True, exist_ok=True)
    train, test = SETS[name](source / "classification")
    data = DataSet(train, test, folder)
    for part, rows in (("train", train), ("test", test)):
        with data.file(part).open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("text", "label"), *rows])
    own = "".join(" ".join(text.split()) + "\n" for text, _ in train)
    corpus = (source / "lm_corpora" / CORPUS).read_text(encoding="utf-8")
    (folder / "pretraining.txt").write_text(corpus + own * REPEATS, encoding="utf-8")
    return data


# --- models ----------------------------------------------------------------------------------------------------------


def run_model(data: DataSet, model: str, seed: int, minutes: float | None) -> dict[str, Any]:
    """Train and tune a model; accuracies on the held-out part and on the test file, minutes, and the machine's load."""
    started = time.perf_counter()
    start = pretrain(data, seed, minutes) if model == "own texts" else "primer" if model == "primer" else None
    tuned = tune(data, start, model, seed, minutes)
    return {**tuned, "minutes": minutes_since(started), "load": round(os.getloadavg()[0], 1)}


def pretrain(data: DataSet, seed: int, minutes: float | None) -> Path:
    """The run of a language model on the task's own texts and the corpus."""
    out = data.folder / f"pretrained-{seed}"
    training: TrainingDict = {"seed": seed, **(QUICK if minutes is None else {})}
    foretell.train(data.folder / "pretraining.txt", out, minutes=minutes, training=training, progress=False)
    return out


def tune(data: DataSet, start: Path | str | None, name: str, seed: int, minutes: float | None) -> dict[str, Any]:
    """Tune a model; its accuracy on the held-out examples and on the test file."""
    out = data.folder / f"{name.replace(' ', '-')}-{seed}"
    training: TrainingDict = {"seed": seed, **(QUICK if minutes is None else {})}
    model = foretell.finetune(
        start,
        data.file("train"),
        out,
        is_from_scratch=start is None,
        progress=False,
        training=training,
        minutes=minutes,
    )
    report = json.loads((out / "report.json").read_text(encoding="utf-8"))
    test = foretell.evaluate_task(model, data.file("test"))
    return {"test": test.figures["accuracy"], "dev": report["dev"]["accuracy"], "step": report["best_step"]}


def minutes_since(started: float) -> float:
    return round((time.perf_counter() - started) / 60, 2)


def baselines(data: DataSet, *, quick: bool) -> dict[str, Any]:
    """Accuracy of the most frequent label, of TF-IDF with logistic regression as it comes, and tuned."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline

    texts, labels = zip(*data.train, strict=True)
    test_texts, test_labels = zip(*data.test, strict=True)
    plain = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, labels)
    wide = make_pipeline(TfidfVectorizer(ngram_range=(1, 2), token_pattern=WORD), LogisticRegression(max_iter=1000))
    grid = {
        "logisticregression__C": [10.0] if quick else [1.0, 3.0, 10.0, 30.0, 100.0],
        "tfidfvectorizer__sublinear_tf": [False] if quick else [False, True],
    }
    search = GridSearchCV(wide, grid, cv=2 if quick else 5).fit(texts, labels)
    majority = max(set(labels), key=labels.count)
    return {
        "test examples": len(test_labels),
        "majority": share([label == majority for label in test_labels]),
        "default": float(plain.score(test_texts, test_labels)),
        "grid": float(search.score(test_texts, test_labels)),
        "chosen": {key.rpartition("__")[2]: value for key, value in search.best_params_.items()},
    }


WORD = r"(?u)\b\w+\b"  # words of one letter too


def share(hits: Sequence[bool]) -> float:
    return sum(hits) / len(hits)


# --- the table -------------------------------------------------------------------------------------------------------


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """Accuracies on the test files: baselines, then for each model the mean of the seeds and its standard error."""
    cells = report["cells"]
    table = make_table(["data", "majority", "TF-IDF", "tuned TF-IDF", *MODELS, "2 SE"], words={"data"})
    of_model = {
        (name, model): [cell for key, cell in cells.items() if key.startswith(f"{name} ") and key.endswith(f" {model}")]
        for name in SETS
        for model in MODELS
    }
    for name in SETS:
        if base := cells.get(f"{name} baselines"):
            error = 2 * math.sqrt(base["grid"] * (1 - base["grid"]) / base["test examples"])
            baseline = [f"{base[key]:.3f}" for key in ("majority", "default", "grid")]
            own = [mean_and_error([cell["test"] for cell in of_model[name, model]]) for model in MODELS]
            table.add_row(name, *baseline, *own, f"{error:.3f}")
    console.print(table)
    for model in MODELS:
        if done := [cell for name in SETS for cell in of_model[name, model]]:
            minutes, loads = [cell["minutes"] for cell in done], [cell["load"] for cell in done]
            console.print(
                f"{model}: {min(minutes):.1f} to {max(minutes):.1f} minutes, load {min(loads)} to {max(loads)}"
            )


def mean_and_error(values: Sequence[float]) -> str:
    """The mean with its standard error; nothing without values, and no error of one."""
    if len(values) < 2:
        return f"{values[0]:.3f}" if values else ""
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}"


if __name__ == "__main__":
    main()
