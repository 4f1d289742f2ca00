"""Options that people bring from other programs: those that are taken, and what the others are called here."""

from __future__ import annotations

from collections.abc import Iterable

from foretell.errors import did_you_mean

# verb: an option of other programs and ours, which means exactly the same
SYNONYMS = {
    "train": {
        "--batch-size": "--training.batch-size",
        "--learning-rate": "--training.learning-rate",
        "--lr": "--training.learning-rate",
        "--max-steps": "--steps",
        "--max-iters": "--steps",
        "--parallel": "--training.parallel",
        "--checkpoint-activations": "--training.checkpoint-activations",
    },
    "finetune": {
        "--batch-size": "--training.batch-size",
        "--learning-rate": "--training.learning-rate",
        "--lr": "--training.learning-rate",
        "--patience": "--training.patience",
        "--freeze": "--training.frozen",
        "--parallel": "--training.parallel",
        "--checkpoint-activations": "--training.checkpoint-activations",
    },
    "generate": {"--max-new-tokens": "--max-tokens", "--n-predict": "--max-tokens", "--temp": "--temperature"},
}
SEVERAL = "give --n, or several PROMPTS, for several continuations; --max-tokens is their length"
NO_CHAT = "foretell chat MODEL is a conversation; here give a PROMPT, or - to read one from standard input"
ANY_VERB = {
    "--model": "the MODEL is the first argument",
    "-m": "the MODEL is the first argument",
    "--prompt": "the text is the argument after the MODEL; --file FILE reads it",
    "--text": "the text is the argument after the MODEL; --file FILE reads it",
    "--gpu": "--device cuda computes on the GPU",
    "--cpu": "--device cpu computes on the CPU",
    "--output": "the option is --out",
    "-o": "the option is --out",
}
HINTS = {
    "train": {
        "--epochs": "give --steps or --minutes; the log says how many times the text is read",
        "--num-epochs": "give --steps or --minutes; the log says how many times the text is read",
        "--model": "--size chooses the shape; --start-from MODEL continues a trained one",
        "--from": "the option is --start-from",
        "--text": "the text files are arguments: foretell train DATA...",
    },
    "generate": {
        "--num-return-sequences": SEVERAL,
        "--num-samples": SEVERAL,
        "--interactive": NO_CHAT,
        "-i": NO_CHAT,
        "--do-sample": "--temperature 0 takes the most likely token, any other samples",
        "--num-beams": "there is no beam search; --temperature 0 takes the most likely token",
    },
    "runs": dict.fromkeys(
        ("--yes", "-y", "--force", "-f"), "answer the question: echo y | foretell runs --delete NAME"
    ),
    "next": dict.fromkeys(("--n", "-n", "--top-k", "--topk", "-k"), "--top N shows N tokens"),
}


# verb: options that take no value, and what sets the number that may have been meant
WITHOUT_VALUE = {"finetune": {"--lora": "--lora.rank {} sets the rank of the updates"}}


def taken(verb: str, argument: str) -> str:
    """An option, or OPTION=VALUE, of another program as ours where it means the same; else the argument."""
    option, equals, value = argument.partition("=")
    return f"{SYNONYMS.get(verb, {}).get(option, option)}{equals}{value}"


def hint(verb: str, option: str, known: Iterable[str]) -> str:
    """What to write instead of an unknown option; empty if nothing is near."""
    if text := {**ANY_VERB, **HINTS.get(verb, {})}.get(option):
        return f": {text}"
    if verb == "train" and (field := configuration_field(option)):
        return f": it is --{field}"
    # without the hyphens, which would make any two options similar
    near = did_you_mean(option.lstrip("-"), [name.lstrip("-") for name in known])
    return near.replace("'", "--", 1).replace("'", "") if near else ""


def configuration_field(option: str) -> str | None:
    """`section.field` for the field of the configuration that an option is named after, also under another name."""
    from foretell.config import ALIASES, DataConfig, ModelConfig, TokenizerConfig, TrainingConfig

    name = option.lstrip("-").replace("-", "_")
    sections = {"model": ModelConfig, "tokenizer": TokenizerConfig, "data": DataConfig, "training": TrainingConfig}
    for section, fields in sections.items():
        field = next((known for known in (name, ALIASES.get(name)) if known in fields.model_fields), None)
        if field:
            return f"{section}.{field.replace('_', '-')}"
    return None
