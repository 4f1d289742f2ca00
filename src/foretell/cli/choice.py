"""Verbs with several functions: `--task` chooses one, or the kind of the MODEL does. Each has its own options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from foretell.errors import ForetellError, UsageError, did_you_mean

TRANSLATION = ("encoder_decoder", "marian")  # the kind of our part, and another program's model_type
# verb: what --task names and the function for it; a task without an entry is left to the verb's own function
BY_TASK: dict[str, dict[str, str]] = {
    "train": {
        "text": "foretell.cli.train:train",
        "forecast": "foretell.cli.train_forecast:train_forecast",
        "translate": "foretell.cli.train_translate:train_translate",
    },
    "finetune": {
        "text": "foretell.cli.finetune_text:finetune_text",
        "chat": "foretell.cli.finetune_chat:finetune_chat",
    },
}
# verb: the kind of a part of MODEL, as its config.json names it, and the function for such a model
BY_MODEL: dict[str, dict[str, str]] = {
    "evaluate": {
        "series_codec": "foretell.cli.forecast:evaluate_forecast",
        "task_head": "foretell.cli.predict:evaluate_task",
        **dict.fromkeys(TRANSLATION, "foretell.cli.translate:evaluate_translation"),
    },
    "explain": dict.fromkeys(TRANSLATION, "foretell.cli.explain:explain_translation"),
    "trace": dict.fromkeys(TRANSLATION, "foretell.cli.trace:trace_translation"),
}


def choose_function(verb: str, default: str, arguments: Sequence[str]) -> str:
    """The import path of the function for these arguments; `default` where they choose none."""
    functions = BY_TASK.get(verb, {})
    task = given_task(arguments)
    if task is None and functions:
        task = task_of_run(arguments)
    if task in functions:
        return functions[task]
    if task is not None and verb == "train":
        raise UsageError(f"unknown task '{task}'{did_you_mean(task, functions)}; known: {', '.join(functions)}")
    by_kind = BY_MODEL.get(verb, {}) if task is None else {}
    if by_kind and len(arguments) > 1 and not arguments[1].startswith("-"):
        return next((by_kind[kind] for kind in part_kinds(arguments[1]) if kind in by_kind), default)
    return default


def given_task(arguments: Sequence[str]) -> str | None:
    """The value of --task; None if it is not given."""
    for index, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option == "--":
            break
        if option == "--task":
            return value if equals else next(iter(arguments[index + 1 : index + 2]), None)
    return None


def task_of_run(arguments: Sequence[str]) -> str | None:
    """The task of the run in --out that --resume continues; None for the verb's own task, and without a run."""
    from foretell.files import read_json

    given = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    given |= {option: value for option, equals, value in (each.partition("=") for each in arguments) if equals}
    if "--resume" not in given or not given.get("--out"):
        return None
    try:
        record = read_json(Path(given["--out"]) / "run.json")
    except ForetellError:  # the verb itself reports it
        return None
    verb, _, task = str(record.get("verb", "")).partition(" --task ")
    return task if verb == arguments[0] and task else None


def part_kinds(model: str) -> list[str]:
    """The kinds of the parts of a saved model; empty where it cannot be found, which the verb itself reports."""
    from foretell.files import CONFIG, read_json
    from foretell.finding import find_model

    if model.startswith("hub:"):  # found by the verb, which says that it downloads
        return []
    try:
        values = read_json(find_model(model) / CONFIG)
    except ForetellError:
        return []
    parts = values.get("parts")
    if not isinstance(parts, dict):
        return [str(values.get("model_type"))]  # another program's layout
    return [str(part["kind"]) for part in parts.values() if isinstance(part, dict) and "kind" in part]
