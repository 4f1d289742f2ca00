"""Preprocessing of the command line: the choice of a verb's function, and options of other programs.

Some verbs have several functions with different options; `--task` or the kind of the MODEL chooses one.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from foretell.errors import ForetellError, UsageError, did_you_mean, expanded

if TYPE_CHECKING:
    from pydantic import BaseModel

TRANSLATION = ("encoder_decoder", "marian")  # the kind of our part, and another program's model_type
# verb: tasks with their functions; other tasks use the verb's default function
BY_TASK: dict[str, dict[str, str]] = {
    "train": {
        "text": "foretell.cli.train:train",
        "forecast": "foretell.cli.forecast:train_forecast",
        "translate": "foretell.cli.translate:train_translate",
    },
    "finetune": {"text": "foretell.cli.finetune:finetune_text", "chat": "foretell.cli.finetune:finetune_chat"},
    "evaluate": {"chat": "foretell.cli.chat:evaluate_chat"},
}
STANDARD_INPUT = "<stdin>"  # replaces `-`, which cyclopts would treat as an option
# verb: kinds of parts of MODEL (in its config.json) with their functions
BY_MODEL: dict[str, dict[str, str]] = {
    "evaluate": {
        "series_codec": "foretell.cli.forecast:evaluate_forecast",
        "task_head": "foretell.cli.predict:evaluate_task",
        **dict.fromkeys(TRANSLATION, "foretell.cli.translate:evaluate_translation"),
    },
    "explain": {
        "series_codec": "foretell.cli.forecast:explain_forecast",
        **dict.fromkeys(TRANSLATION, "foretell.cli.translate:explain_translation"),
    },
    "trace": {
        "series_codec": "foretell.cli.forecast:trace_forecast",
        **dict.fromkeys(TRANSLATION, "foretell.cli.translate:trace_translation"),
    },
}


def choose_function(verb: str, default: str, arguments: Sequence[str]) -> str:
    """The import path of the function for these arguments; `default` if they select none."""
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
        chosen = next((by_kind[kind] for kind in part_kinds(arguments[1]) if kind in by_kind), default)
        is_open = verb == "evaluate" and chosen == default
        return functions["chat"] if is_open and any(map(is_chat_file, arguments[2:3])) else chosen
    return default


def is_chat_file(path: str) -> bool:
    """True for a file of conversations, according to its first record."""
    from foretell.data.questions import has_conversations

    return has_conversations(Path(expanded(path)))


def given_task(arguments: Sequence[str]) -> str | None:
    for index, argument in enumerate(arguments):
        option, equals, value = argument.partition("=")
        if option == "--":
            break
        if option == "--task":
            return value if equals else next(iter(arguments[index + 1 : index + 2]), None)
    return None


def task_of_run(arguments: Sequence[str]) -> str | None:
    """The task of the run in --out that --resume continues; None for the verb's default task, and without a run."""
    from foretell.runs.record import read_record

    given = dict(zip(arguments, [*arguments[1:], ""], strict=True))
    given |= {option: value for option, equals, value in (each.partition("=") for each in arguments) if equals}
    if "--resume" not in given or not given.get("--out"):
        return None
    try:
        record = read_record(Path(expanded(given["--out"])))
    except ForetellError:  # the verb reports it
        return None
    verb, _, task = (record.verb or "").partition(" --task ")
    return task if verb == arguments[0] and task else None


def part_kinds(model: str) -> list[str]:
    """The kinds of the parts of a saved model; empty if it is not found, which the verb reports."""
    from foretell.finding import find_model
    from foretell.storage.files import CONFIG, read_json

    if model.startswith("hub:"):  # downloaded by the verb
        return []
    try:
        values = read_json(find_model(model) / CONFIG)
    except ForetellError:
        return []
    parts = values.get("parts")
    if not isinstance(parts, dict):
        return [str(values.get("model_type"))]  # another program's layout
    return [str(part["kind"]) for part in parts.values() if isinstance(part, dict) and "kind" in part]


# --- options of other programs ---------------------------------------------------------------------------------------

TRAINING_SYNONYMS = {
    "--batch-size": "--training.batch-size",
    "--learning-rate": "--training.learning-rate",
    "--lr": "--training.learning-rate",
    "--parallel": "--training.parallel",
    "--checkpoint-activations": "--training.checkpoint-activations",
}
# verb: options of other programs, and our options with exactly the same meaning
SYNONYMS = {
    "train": {
        **TRAINING_SYNONYMS,
        "--max-steps": "--steps",
        "--max-iters": "--steps",
        "--vocab-size": "--tokenizer.vocab-size",
    },
    "finetune": {**TRAINING_SYNONYMS, "--patience": "--training.patience", "--freeze": "--training.frozen"},
    "generate": {"--max-new-tokens": "--max-tokens", "--n-predict": "--max-tokens", "--temp": "--temperature"},
}
TEXT = "the text is the argument after the MODEL; --file FILE reads it"
EPOCHS = "give --steps or --minutes; the log shows how many times the text is read"
SEVERAL = "give --n, or several PROMPTS, for several continuations; --max-tokens is their length"
NO_CHAT = "foretell chat MODEL is a conversation; here give a PROMPT, or - to read one from standard input"
PATIENCE = {"--early-stopping": "--training.patience N ends a training after N evaluations without a better loss"}
ANY_VERB = {
    **dict.fromkeys(("--model", "-m"), "the MODEL is the first argument"),
    **dict.fromkeys(("--prompt", "--text"), TEXT),
    "--gpu": "--device cuda computes on the GPU",
    "--cpu": "--device cpu computes on the CPU",
    **dict.fromkeys(("--output", "-o"), "the option is --out"),
}
HINTS = {
    "train": {
        **dict.fromkeys(("--epochs", "--num-epochs"), EPOCHS),
        "--model": "--size chooses the shape; --start-from MODEL continues a trained one",
        "--from": "the option is --start-from",
        "--text": "the text files are arguments: foretell train DATA...",
        **PATIENCE,
    },
    "finetune": PATIENCE,
    "generate": {
        **dict.fromkeys(("--num-return-sequences", "--num-samples"), SEVERAL),
        **dict.fromkeys(("--interactive", "-i"), NO_CHAT),
        "--do-sample": "--temperature 0 takes the most likely token, any other samples",
        "--num-beams": "there is no beam search; --temperature 0 takes the most likely token",
    },
    "runs": dict.fromkeys(
        ("--yes", "-y", "--force", "-f"), "answer the question: echo y | foretell runs --delete NAME"
    ),
    "next": dict.fromkeys(("--n", "-n", "--top-k", "--topk", "-k"), "--top N shows N tokens"),
}


# verb: options without a value, and advice for the number that may have been intended
WITHOUT_VALUE = {"finetune": {"--lora": "--lora.rank {} sets the rank of the updates"}}


def taken(verb: str, argument: str) -> str:
    """Our option for an option (or OPTION=VALUE) of another program with the same meaning; else the argument."""
    option, equals, value = argument.partition("=")
    return f"{SYNONYMS.get(verb, {}).get(option, option)}{equals}{value}"


def hint(verb: str, option: str, known: Iterable[str]) -> str:
    """The advice for an unknown option; empty if there is none."""
    if text := {**ANY_VERB, **HINTS.get(verb, {})}.get(option):
        return f": {text}"
    field = configuration_field(option) if verb in ("train", "finetune") else None
    if field and (verb == "train" or field.startswith("training.")):
        return f": it is --{field}"
    # compare without hyphens, which would make any two options similar
    near = did_you_mean(option.lstrip("-"), [name.lstrip("-") for name in known])
    return near.replace("'", "--", 1).replace("'", "") if near else ""


def configuration_field(option: str) -> str | None:
    """`section.field` for an option with the name of a configuration field, possibly another project's name."""
    from foretell.config.section import own_names

    (name,) = own_names({option.lstrip("-"): None})
    named = (section for section, fields in sections().items() if name in fields.model_fields)
    return next((f"{section}.{name.replace('_', '-')}" for section in named), None)


def sections() -> dict[str, type[BaseModel]]:
    """The sections of the configuration of `train`."""
    from foretell.config.training import Config

    return {name: cast("type[BaseModel]", info.annotation) for name, info in Config.model_fields.items()}


# --- arguments that cyclopts does not parse itself -------------------------------------------------------------------

NEW_VERBS = {"quantize": "convert"}  # former verb: the one with the same arguments and options
WITH_SECTIONS = ("train", "finetune", "plan")  # verbs that take --section.key value
SECTION_OPTION = re.compile(r"--[a-z]+\.[\w.-]+")


def rewrite(arguments: Sequence[str]) -> list[str]:
    """The command line rewritten for cyclopts.

    `-` becomes STANDARD_INPUT, `--model.width 256` becomes `--set model.width=256`, `--resume` without a value becomes
    `--resume auto`, and options of other programs become ours if they mean the same. A --task that chose the function
    (`BY_TASK`) is dropped. A number after an option without a value is refused, because it would become an argument.
    """
    words = deque(arguments)
    verb = arguments[0] if arguments else ""
    if verb in NEW_VERBS:
        raise UsageError(
            f"{verb} is part of {NEW_VERBS[verb]}: foretell {shlex.join([NEW_VERBS[verb], *arguments[1:]])}"
        )
    rewritten: list[str] = []
    while words:
        given = words.popleft()
        if given == "--":
            return [*rewritten, given, *words]
        argument = taken(verb, given)
        option, equals, value = argument.partition("=")
        following = value if equals else words[0] if words else ""
        if option in WITHOUT_VALUE.get(verb, {}) and following.isdigit():
            raise UsageError(f"{option} takes no value; {WITHOUT_VALUE[verb][option].format(following)}")
        if verb in WITH_SECTIONS and SECTION_OPTION.fullmatch(option):
            if not equals and (not words or words[0].startswith("--")):
                raise UsageError(f"{given} needs a value")
            rewritten += ["--set", f"{option[2:]}={value if equals else words.popleft()}"]
        elif option == "--task" and following in BY_TASK.get(verb, {}):
            if not equals:
                words.popleft()
        elif argument == "--resume" and (not following or following.startswith("-")):
            rewritten += ["--resume", "auto"]
        else:
            rewritten.append(STANDARD_INPUT if argument == "-" else argument)
    return rewritten
