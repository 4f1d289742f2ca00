"""Translation from English to French: BLEU of an encoder-decoder trained from nothing, with the defaults.

    python bench/translate.py --data fra-eng.zip                  30 minutes of training, then the held-out sentences
    python bench/translate.py --data fra-eng.zip --minutes 3 --seed 2
    python bench/translate.py --data fra-eng.zip --quick          20 steps, to see that it runs

5% of the English sentences are held out, chosen by a hash of the sentence in lower case without punctuation, so that
no near-duplicate is on both sides. A hundredth of the others is held out too, to choose the best checkpoint. BLEU and
chrF are sacrebleu's defaults (cased, 13a). The same from the command line, but for the split: `foretell train --task
translate PAIRS --minutes 30`.
"""

from __future__ import annotations

import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from arguments import BenchmarkReport, make_parser, make_table, print_report, start_report
from measure import note
from rich.console import Console

from foretell.session.protocol import run_training
from foretell.session.reporter import Reporter
from foretell.translation.pairs import Pair, read_pairs, split_pairs
from foretell.translation.task import PairData
from foretell.translation.train import PairRequest, TranslationTraining
from foretell.translation.translate import Decoding, evaluate_pairs, measure_quality, translate
from foretell.translation.translator import Translator, load_translator

TEST_SHARE, VALIDATION_SHARE = 0.05, 0.01
SHOWN = 20
QUICK = {"steps": 20, "evaluate_every": 20}


def main() -> None:
    """Train, translate the held-out sentences, and print a table or one JSON object."""
    parser = make_parser("BLEU of English to French after training with the defaults.", "20 steps only")
    parser.add_argument("--data", type=Path, required=True, help="pairs: English, tab, French (also as a zip)")
    parser.add_argument("--minutes", type=float, default=30.0, help="of training (default: 30)")
    parser.add_argument("--seed", type=int, default=1, help="of weights, batches and dropout (default: 1)")
    parser.add_argument("--out", type=Path, help="keep the run here")
    arguments = parser.parse_args()
    split = split_data(arguments.data)
    with tempfile.TemporaryDirectory() as folder:
        out = arguments.out or Path(folder) / "run"
        request = PairRequest(
            paths=[arguments.data],
            out=out,
            minutes=None if arguments.quick else arguments.minutes,
            overrides={"training": {"seed": arguments.seed, **(QUICK if arguments.quick else {})}},
            pairs=split.learned,
        )
        report = measure(request, split, arguments.quick)
    print_report(report, print_tables, as_json=arguments.json)


@dataclass(frozen=True)
class Split:
    """The pairs to learn from, and those whose English sentence is held out."""

    learned: PairData
    test: list[Pair]
    pairs: int
    sentences: int


def split_data(path: Path) -> Split:
    """The pairs of a file, split by the hash of the English sentence."""
    pairs = read_pairs([path])
    outer = split_pairs(pairs, TEST_SHARE, "test")
    inner = split_pairs(outer["train"], VALIDATION_SHARE, "validation")
    learned = PairData(inner["train"], inner["validation"])
    return Split(learned, outer["validation"], len(pairs), len({pair.source for pair in pairs}))


def measure(request: PairRequest, split: Split, is_quick: bool) -> BenchmarkReport:
    """One run from nothing, and its quality on the held-out pairs."""
    report = start_report("translate", "sacrebleu")
    begun = time.perf_counter()
    session = run_training(TranslationTraining(request), Notes())
    best = session.run.best()
    translator = load_translator(best.directory, "cpu", "float32")
    test = split.test[:: len(split.test) // 50] if is_quick else split.test
    trained, begun = time.perf_counter() - begun, time.perf_counter()
    result = evaluate_pairs(translator, test, Decoding())
    seconds = time.perf_counter() - begun
    greedy = measure_quality(translator, test, Decoding(beam_size=1))
    return report | {
        "split": {
            "pairs": split.pairs,
            "sentences": split.sentences,
            "train_pairs": len(split.learned.train),
            "validation_pairs": len(split.learned.validation),
            "test_pairs": len(test),
            "test_sentences": result.quality.sentences,
        },
        "config": session.task.config.model_dump(mode="json"),
        "parameters": session.task.record.parameters,
        "steps": session.progress.step,
        "best_step": best.step,
        "training_seconds": session.progress.seconds,
        "run_seconds": trained,
        "decoding_seconds": seconds,
        "test": result.to_json(),
        "greedy_bleu": greedy.bleu,
        "curve": [line for line in session.run.metrics.records() if line["validation_loss"] is not None],
        "translations": examples(translator, test),
    }


class Notes(Reporter):
    """The progress of the training, on stderr."""

    def metrics(self, metrics: dict[str, Any], steps: int) -> None:
        if metrics["validation_loss"] is not None:
            bleu = "" if metrics.get("bleu") is None else f", BLEU {metrics['bleu']:.1f} (200 pairs, greedy)"
            note(
                f"step {metrics['step']:,}/{steps:,}  {metrics['seconds']:.0f} s  loss {metrics['loss']:.3f}  "
                f"validation {metrics['validation_loss']:.3f}{bleu}"
            )


def examples(translator: Translator, test: list[Pair]) -> list[dict[str, Any]]:
    """Random held-out sentences with their translations and references."""
    references: dict[str, list[str]] = {}
    for pair in test:
        references.setdefault(pair.source, []).append(pair.target)
    chosen = random.Random(1).sample(sorted(references), min(SHOWN, len(references)))
    return [each.to_json() | {"references": references[each.source]} for each in translate(translator, chosen)]


def print_tables(console: Console, report: BenchmarkReport) -> None:
    """The split, the curve, the figures and the translations."""
    split, test = report["split"], report["test"]
    console.print(
        f"{split['train_pairs']:,} pairs to learn from; held out {split['test_pairs']:,} pairs of "
        f"{split['test_sentences']:,} sentences, and {split['validation_pairs']:,} to choose the checkpoint"
    )
    table = make_table(["step", "seconds", "loss", "validation", "BLEU of 200, greedy"])
    for line in report["curve"]:
        bleu = line.get("bleu")
        shown = (f"{line['step']:,}", f"{line['seconds']:.0f}", f"{line['loss']:.3f}", f"{line['validation_loss']:.3f}")
        table.add_row(*shown, "" if bleu is None else f"{bleu:.1f}")
    console.print(table)
    console.print(
        f"{report['parameters']:,} parameters, {report['training_seconds'] / 60:.1f} minutes of training\n"
        f"BLEU {test['bleu']:.2f} (one reference), greedy "
        f"{report['greedy_bleu']:.2f}, all references {test['bleu_all_references']:.2f}, chrF {test['chrf']:.2f}, "
        f"loss {test['loss']:.3f}\n{test['signature']}"
    )
    for each in report["translations"]:
        console.print(f"{each['source']}\n  → {each['translation']}\n    ({' | '.join(each['references'])})")


if __name__ == "__main__":
    main()
