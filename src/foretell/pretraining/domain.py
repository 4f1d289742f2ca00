"""Continued training on a domain's text, with the perplexity on the new and the old domain before and after.

The old domain is a split of the run's token store, like `train` and `validation`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foretell.config.training import Config
from foretell.errors import CheckpointError
from foretell.evaluation.loss import Evaluation, bits_per_byte, has_bits_per_byte, json_number
from foretell.language_model import load_model
from foretell.model.decoder import Decoder
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.task import TextTask
from foretell.pretraining.tokens import OLD_DOMAIN, TokenizedText
from foretell.runs.run import REPORT
from foretell.runs.summary import RunReport
from foretell.session.failures import explain_stop
from foretell.session.state import SessionState
from foretell.storage.files import read_json, write_json
from foretell.training.objective import Objective
from foretell.typesetting.document import DocumentSection, Paragraph, Table

MOST_TOKENS = 2**18  # tokens evaluated in each domain, evenly spread

logger = logging.getLogger(__name__)


class DomainTraining(TextTraining):
    """Continued training on a domain's text. report.json has the figures of both domains before and after."""

    verb = "finetune --task text"

    def make_task(self, config: Config, data: TokenizedText, model: Decoder) -> TextTask:
        task = super().make_task(config, data, model)
        task.closing_evaluations = 2 * MOST_TOKENS / config.training.evaluation_tokens  # for both domains
        return task

    def opened(self, session: SessionState[TextTask]) -> None:
        if session.progress.step == 0:
            with explain_stop("before the first step", session.run):
                figures = evaluate_domains(session.task, session.task.objective, session.dtype)
            session.world.decide(lambda: write_json(session.run.directory / REPORT, {"before": figures}))

    def closed(self, session: SessionState[TextTask]) -> None:
        path = session.run.directory / REPORT
        report = make_report(session, recorded_before(path))
        session.world.decide(lambda: write_json(path, report))


def recorded_before(path: Path) -> dict[str, Any]:
    """The figures from before the first step; empty, with a warning, if the report is lost."""
    try:
        return read_json(path)["before"]
    except (CheckpointError, KeyError):
        logger.warning(f"{path} is lost, and with it the figures from before the training")
        return {}


def evaluate_domains(task: TextTask, objective: nn.Module, dtype: torch.dtype) -> dict[str, Any]:
    """Figures for the held-out text of both domains; None for a domain without one."""
    held_out, old = task.text.store.split("validation"), task.text.store.splits.get(OLD_DOMAIN)
    figures: dict[str, Any] = {"new_domain": None, OLD_DOMAIN: None}
    has_bits = has_bits_per_byte(task.text.tokenizer)
    if task.data.held_out_tokens:
        evaluation = task.evaluate_held_out(dtype, MOST_TOKENS, objective)
        is_whole = has_bits and not task.config.data.rows
        figures["new_domain"] = figures_of(evaluation, (len(held_out), held_out.bytes) if is_whole else None)
    if old is not None:
        evaluation = task.evaluate_old_domain(dtype, MOST_TOKENS, objective)
        figures[OLD_DOMAIN] = figures_of(evaluation, (old.tokens, old.bytes) if has_bits else None)
    return figures


def figures_of(evaluation: Evaluation, size: tuple[int, int] | None) -> dict[str, Any]:
    """An evaluation as JSON. size: tokens and bytes of the text; None if not every token is predicted."""
    return {
        "loss": evaluation.loss,
        "perplexity": json_number(evaluation.perplexity),
        "bits_per_byte": None if size is None else bits_per_byte(evaluation.loss, *size),
        "tokens": evaluation.tokens,
    }


def make_report(session: SessionState[TextTask], before: dict[str, Any]) -> dict[str, Any]:
    task, best = session.task, session.run.best()
    decoder = load_model(best.directory, session.device).decoder
    record = task.record
    assert record.start is not None, "a domain is learned by a trained model"
    return {
        "task": "text",
        "model": record.start.model,
        "data": record.data,
        OLD_DOMAIN: record.task.get(OLD_DOMAIN),
        "best_step": best.step,
        "minutes": round(session.progress.seconds / 60, 3),
        "before": before,
        "after": evaluate_domains(task, Objective(decoder), session.dtype),
    }


@dataclass(frozen=True)
class DomainReport(RunReport):
    """The report of a training on a domain's text."""

    def document(self) -> DocumentSection:
        """The perplexity on each domain before and after, its text, and what was forgotten."""
        report = self.values
        texts = {"new_domain": ", ".join(report["data"]), OLD_DOMAIN: report[OLD_DOMAIN]}
        missing = {"new_domain": "nothing is held out", OLD_DOMAIN: "not measured; --old-domain FILE names a text"}
        rows, lines = [], []
        for domain, text in texts.items():
            before, after = (report[when].get(domain) or {} for when in ("before", "after"))
            label = domain.replace("_", " ")
            perplexities = (shown(figures.get("perplexity")) for figures in (before, after))
            rows.append((label, *perplexities, f"{after['tokens']:,}" if after else ""))
            lines.append(f"{label}: {text if after else missing[domain]}")
        table = Table(("perplexity", "before", "after", "tokens"), rows)
        lines = [*lines, *forgetting(report), f"the best step is {report['best_step']:,}"]
        return DocumentSection("", [table, *map(Paragraph, lines)])


def forgetting(report: dict[str, Any]) -> list[str]:
    """The change of the perplexity on the old domain, if it is known."""
    before, after = (report[when].get(OLD_DOMAIN) or {} for when in ("before", "after"))
    if not before.get("perplexity") or not after.get("perplexity"):
        return []
    change = after["perplexity"] / before["perplexity"] - 1
    moved = f"the old domain's perplexity {'rose' if change > 0 else 'fell'} by {abs(change):.1%}"
    return [f"forgetting: {'' if change > 0 else 'none, '}{moved}"]


def shown(perplexity: float | None) -> str:
    return "" if perplexity is None else f"{perplexity:,.2f}"
