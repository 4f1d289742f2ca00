"""The kinds of fine-tuning with a head, by the name that `finetune --task` gives them.

A kind is a subclass of `Kind` and an entry here. Its module is imported only when used, so that `--help` is instant.
"""

from __future__ import annotations

from foretell.errors import did_you_mean

KINDS: dict[str, str] = {
    "classify": "foretell.finetuning.label_kind:LabelKind",
    "regress": "foretell.finetuning.number_kind:NumberKind",
    "similarity": "foretell.finetuning.pair_kinds:SimilarityKind",
    "entailment": "foretell.finetuning.pair_kinds:EntailmentKind",
    "choice": "foretell.finetuning.choice_kind:ChoiceKind",
    "tag": "foretell.finetuning.tag_kind:TagKind",
}


def known_task(task: str) -> str:
    """The name, if a kind has it; else a ValueError, which pydantic reports."""
    if task not in KINDS:
        raise ValueError(f"unknown task '{task}'{did_you_mean(task, KINDS)}; known: {', '.join(KINDS)}")
    return task
