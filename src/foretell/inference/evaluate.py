"""`foretell.evaluate`: the loss of texts, or the accuracy at questions, read from a file."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from foretell.data.questions import EvaluationTask, choose_task, read_endings, read_questions
from foretell.data.sources import read_documents
from foretell.evaluation.multiple_choice import ChoiceResult, EndingResult, evaluate_choices, evaluate_endings
from foretell.evaluation.perplexity import Progress, TextEvaluation, evaluate_texts, silent
from foretell.language_model import LanguageModel, check_model
from foretell.training.objective import Objective


def evaluate(
    model: LanguageModel,
    data: str | Path,
    *,
    task: EvaluationTask | None = None,
    stride: int | None = None,
    text_field: str | None = None,
    limit: int | None = None,
    progress: Progress = silent,
) -> TextEvaluation | ChoiceResult | EndingResult:
    """Loss, perplexity and bits per byte of texts, or accuracy at questions, as `foretell evaluate` measures them.

    data: a file or folder of texts (`-`: standard input), or a file of questions. task: by default chosen by the file's
    fields. stride: tokens from one window to the next, half the context by default. limit: only the first texts or
    questions. Raises UsageError, DataError or CheckpointError.
    """
    check_model(model)
    chosen = choose_task(data, task, stride, text_field, limit)
    if chosen == "choice":
        return evaluate_choices(model, read_questions(Path(data))[:limit], progress)
    if chosen == "ending":
        return evaluate_endings(model, read_endings(Path(data))[:limit], progress)
    documents = islice(read_documents([data], text_field=text_field), limit)
    texts = [document.text for document in documents]
    return evaluate_texts(model, Objective(model.decoder), texts, stride, progress)
