"""`foretell finetune MODEL DATA --task text`: a domain's text, and what the model forgets of its old one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from foretell.cli.main import run

OTHER = "Shares rose by 7 percent, and the market closed higher than on Monday.\n" * 30
QUICK = ["--steps", "8", "--dtype", "float32", "--training.checkpoint-every", "4", "--training.evaluate-every", "4"]
FAST = [*QUICK, "--training.learning-rate", "0.01"]


@pytest.fixture(scope="module")
def learned(corpus: Path, made_once: Callable[..., Path]) -> Path:
    """A run that has learned its text well enough to forget it."""

    def train(out: Path) -> None:
        options = ["--size", "toy", "--model.width", "16", "--model.context-length", "32", "--kind", "bytes"]
        assert run(["train", str(corpus), *options, "--steps", "60", "--lr", "0.02", "--out", str(out)]) == 0

    return made_once("learned", train)


@pytest.fixture
def shares(tmp_path: Path) -> Path:
    (tmp_path / "shares.txt").write_text(OTHER, encoding="utf-8")
    return tmp_path / "shares.txt"


def tuned(foretell, *arguments) -> dict:
    outcome = foretell("finetune", *arguments, "--task", "text", *FAST, "--json").succeeds()
    return outcome.json


def perplexity(report: dict, domain: str) -> tuple[float, float]:
    """Before and after."""
    before, after = (report[when][domain]["perplexity"] for when in ("before", "after"))
    return before, after


def test_both_domains_are_measured_before_and_after(foretell, shares, learned) -> None:
    report = tuned(foretell, learned, shares, "--out", "x")
    new, old = perplexity(report, "new_domain"), perplexity(report, "old_domain")
    assert new[1] < new[0] / 2
    assert old[1] > old[0]  # forgotten
    assert report["old_domain"] == f"the held-out text of {learned}"
    assert report == json.loads(Path("x/report.json").read_text())
    metrics = [json.loads(line) for line in Path("x/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics if line.get("old_domain_loss")] == [4, 8]
    record = json.loads(Path("x/run.json").read_text())
    assert (record["verb"], record["old_domain"]) == ("finetune --task text", report["old_domain"])
    assert foretell("generate", "x", "Shares", "--max-tokens", "3").code == 0


def test_the_figures_are_those_of_evaluate(foretell, shares, trained, tmp_path) -> None:
    (tmp_path / "short.txt").write_text("The cat sat on the mat.")
    report = tuned(foretell, trained, shares, "--old-domain", "short.txt", "--out", "x")
    assert report["old_domain"] == "short.txt"
    for when, model in (("before", trained), ("after", "x")):
        told = foretell("score", model, "The cat sat on the mat.<|endoftext|>", "--allow-special", "--json").json
        assert report[when]["old_domain"]["perplexity"] == pytest.approx(told["perplexity"], rel=1e-5)


def test_an_interrupted_run_has_the_report_of_the_uninterrupted_one(foretell, shares, trained) -> None:
    whole = tuned(foretell, trained, shares, "--out", "whole")
    tuned(foretell, trained, shares, "--out", "cut")
    shutil.rmtree("cut/checkpoints/step-000008")
    Path("cut/report.json").write_text(json.dumps({"before": whole["before"]}))
    outcome = foretell("finetune", "--task", "text", "--out", "cut", "--resume", "auto", "--json").succeeds()
    assert {**outcome.json, "minutes": 0} == {**whole, "minutes": 0}


def test_the_terminal_shows_the_table_and_says_what_is_missing(foretell, shares, trained, learned, tmp_path) -> None:
    shutil.copytree(trained / "checkpoints" / "step-000012", tmp_path / "plain")
    outcome = foretell("finetune", "plain", shares, "--task", "text", *FAST, "--out", "x")
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["perplexity", "before", "after", "tokens"]
    assert lines[2].startswith("new domain") and lines[3] == "old domain"
    text = " ".join(lines)
    assert "new domain: " in text and "shares.txt" in text and "the best step is 8" in text
    assert "old domain: not measured; --old-domain FILE names a text" in text
    outcome = foretell("finetune", learned, shares, "--task", "text", *FAST, "--out", "y")
    assert "forgetting: the old domain's perplexity rose by" in outcome.out


def test_a_text_shorter_than_the_context_is_taken(foretell, trained, tmp_path) -> None:
    (tmp_path / "tiny.txt").write_text("Shares rose.")
    report = tuned(foretell, trained, "tiny.txt", "--out", "x")
    assert perplexity(report, "new_domain")[1] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["RUN"], 2, ["give MODEL and DATA"]),
        (["--resume", "auto", "--out", "nowhere"], 2, ["nowhere is not a run"]),
        (["RUN", "missing.txt", "--out", "x"], 1, ["missing.txt"]),
        (["RUN", "shares.txt", "--old-domain", "missing.txt", "--out", "x"], 1, ["missing.txt"]),
        (["runs/none", "shares.txt", "--out", "x"], 1, ["runs/none"]),
        (["RUN", "shares.txt", "--model.width", "8", "--out", "x"], 2, ["shape", "model.width"]),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(foretell, shares, trained, arguments, code, words) -> None:
    outcome = foretell("finetune", *(word.replace("RUN", str(trained)) for word in arguments), "--task", "text")
    assert outcome.code == code, outcome.err
    assert all(word in outcome.last_line for word in words), outcome.last_line
    assert not Path("x").exists()
