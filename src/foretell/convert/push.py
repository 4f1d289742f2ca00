"""Upload of an exported model to the Hugging Face Hub, with a model card generated from its run.

The extra `hub` uploads, so HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE have their usual meaning.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

from foretell.convert.hub import PREFIX, import_hub, one_line_errors, parse_name
from foretell.errors import OutputError, UsageError
from foretell.runs.checkpoint import Checkpoint, validation_loss
from foretell.runs.run import Run
from foretell.runs.summary import bits_per_byte, read_held_out, summarize, training_digest
from foretell.storage.files import write_text
from foretell.typesetting.numbers import format_bytes

logger = logging.getLogger(__name__)

CARD = "README.md"  # the Hub's file name of model cards
CLASSIFIER = ("predict", "text-classification", "AutoModelForSequenceClassification")
LANGUAGE_MODEL = ("generate", "text-generation", "AutoModelForCausalLM")


@dataclass(frozen=True)
class HubTarget:
    """The target repository, checked before the model is exported."""

    hub: ModuleType
    repository: str
    is_new: bool
    is_private: bool

    def upload(self, directory: Path, card: str) -> str:
        """Write the card and commit all files of the directory; returns the URL of the commit."""
        write_text(directory / CARD, card)
        files = sorted(path for path in directory.iterdir() if path.is_file())
        size = format_bytes(sum(path.stat().st_size for path in files))
        logger.info(f"uploading {len(files)} files, {size}, to {PREFIX}{self.repository}")
        self.hub.utils.disable_progress_bars()  # the log has a line instead
        api = self.hub.HfApi()
        with one_line_errors(self.hub, self.repository, "main", "the upload failed"):
            if self.is_new:
                api.create_repo(self.repository, private=self.is_private)
            additions = [self.hub.CommitOperationAdd(path.name, path) for path in files]
            commit = api.create_commit(self.repository, additions, commit_message="Upload with foretell")
        return str(commit.commit_url)


def find_target(name: str, *, private: bool = False, update: bool = False) -> HubTarget:
    """The repository `hub:owner/name`; refused without a token, offline, or if it exists and `update` is not given."""
    if not name.startswith(PREFIX) or "@" in name:
        raise UsageError(f"'{name}' is not a place on the Hub; write {PREFIX}owner/name")
    repository, revision = parse_name(name.removeprefix(PREFIX))
    hub = import_hub()
    if hub.is_offline_mode():
        raise OutputError(f"{name} cannot be written while HF_HUB_OFFLINE is set; unset it")
    if hub.get_token() is None:
        raise OutputError(f"{name} needs a token that may write: set HF_TOKEN, or run hf auth login")
    with one_line_errors(hub, repository, revision):
        exists = hub.HfApi().repo_exists(repository)
    if exists and not update:
        raise OutputError(f"{name} exists; give another name, or --update to add a commit to it")
    return HubTarget(hub, repository, not exists, private)


def model_card(repository: str, exported: dict[str, Any], checkpoint: Checkpoint | None) -> str:
    """Markdown with the Hub's metadata: instructions to load the model, and a description of its training."""
    verb, pipeline, model_class = CLASSIFIER if "labels" in exported else LANGUAGE_MODEL
    metadata = ["---", "library_name: transformers", f"pipeline_tag: {pipeline}", "tags:", "- foretell", "---"]
    loading = [
        *("```console", "pip install 'foretell[hub]'", f'foretell {verb} {PREFIX}{repository} "Your text"', "```", ""),
        *("```python", f"from transformers import {model_class}, AutoTokenizer", ""),
        f'model = {model_class}.from_pretrained("{repository}")',
        *(f'tokenizer = AutoTokenizer.from_pretrained("{repository}")', "```"),
    ]
    pairs = [(probe["logit_difference"], probe["logit_bound"]) for probe in exported.get("probes", [exported])]
    difference, bound = min(pairs, key=lambda pair: pair[1] - pair[0])  # where they are nearest
    parity = (
        f"The files are a {exported['family']} ({exported['architecture']}) in {exported['dtype']}. Independent code "
        f"read them back after the export: outputs differ by {difference:.1e} at most, {bound:.1e} are allowed."
    )
    title = [f"# {repository.partition('/')[2]}", "", "A decoder that was trained with foretell."]
    training = [] if checkpoint is None else ["", "## Training", "", *table(describe_training(checkpoint))]
    return "\n".join([*metadata, "", *title, "", "## Load it", "", *loading, "", parity, *training, ""])


def describe_training(checkpoint: Checkpoint) -> list[tuple[str, str]]:
    """Data, size, length and loss of a training. Data are named without their folders."""
    run = Run(checkpoint.directory.parents[1])
    record, summary, held_out = run.record(), summarize(run), read_held_out(run)
    loss = validation_loss(checkpoint)
    rows = [
        ("data", ", ".join(PurePath(name).name for name in summary.data)),
        ("digest of the training tokens", training_digest(run)),
        ("digest of the held-out data", summary.held_out),
        ("held out", record.split),
        ("size", f"{summary.size}, {summary.parameters:,} parameters" if summary.parameters else summary.size),
        ("steps", f"{checkpoint.step:,} of {summary.steps:,}"),
        ("validation loss", loss if loss != float("inf") else None),
        ("bits per byte", bits_per_byte(loss, held_out)),
        ("seed", record.section("training").get("seed")),
        ("precision", record.dtype),
        ("foretell", run.environment().get("foretell")),
    ]
    return [(name, shown(value)) for name, value in rows if value is not None]


def shown(value: object) -> str:
    """A float with four decimals, or any other value as text."""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table of names and values."""
    return ["| | |", "|---|---|", *(f"| {name} | {value.replace('|', chr(92) + '|')} |" for name, value in rows)]
