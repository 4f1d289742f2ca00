"""Find the model of a MODEL argument: a path, a run, an included model, a name on the Hub or in Ollama; list models.

Imports no torch.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

from foretell.convert.hub import NAME, PREFIX, fetch_model
from foretell.convert.local_models import OLLAMA, LocalModel, find_ollama, list_local_models, size_of
from foretell.data.lines import COMPRESSIONS
from foretell.data.table import list_names
from foretell.errors import CheckpointError, as_path, did_you_mean, expanded
from foretell.runs.checkpoint import TRAINING, Checkpoint, is_checkpoint, list_checkpoints, optimizer_files
from foretell.runs.record import and_advice
from foretell.runs.run import RUNS, Run, is_run
from foretell.storage.files import (
    ADAPTER_CONFIG,
    CONFIG,
    MODEL_TYPE,
    TOKENIZER_FILE,
    WEIGHTS,
    WEIGHTS_INDEX,
    is_gguf,
    printable_name,
)
from foretell.storage.manifest import check_model_files
from foretell.text import Tokenizer, has_tokenizer, load_tokenizer

INCLUDED = ("primer", "atlas", "almanac")  # folders of foretell/included
STEP = re.compile(r"step-(\d{1,9})")
REPLAY = "foretell.trainings"  # imported by name: a replay needs every kind of training, which import this module
PICKLED = (".pth", ".pt", ".bin", ".ckpt", ".pkl")


def find_model(argument: str) -> Path:
    """The directory with the model's files, or the GGUF file that the model is."""
    argument = expanded(argument)
    name, at, which = argument.rpartition("@")
    readings = ((argument, "best"), (name, which)) if at else ((argument, "best"),)
    for candidate, checkpoint in ((home / path, which) for home in (Path(), RUNS) for path, which in readings):
        if is_run(candidate):
            return find_checkpoint(Run(candidate), checkpoint).directory
        if is_gguf(candidate):
            return candidate.resolve()  # a path from the user may be a link
        if _exists(candidate / CONFIG) or _exists(candidate / ADAPTER_CONFIG):
            if checkpoint != "best":
                raise CheckpointError(f"{candidate} is a saved model and has no checkpoints; leave out @{checkpoint}")
            return candidate
    if argument in INCLUDED:
        return Path(str(files("foretell.included") / argument))
    if argument.startswith(PREFIX):
        return fetch_model(argument)
    if argument.startswith(OLLAMA):
        return find_ollama(argument.removeprefix(OLLAMA))
    if argument and _exists(Path(argument)):
        check_not_a_file(Path(argument))
        kind = "neither a run (run.json) nor a saved model (config.json)"
        if any(_exists(Path(argument) / name) for name in (WEIGHTS, WEIGHTS_INDEX)):
            kind = f"not complete: {CONFIG} is missing"
        elif has_tokenizer(Path(argument)):
            kind = f"a tokenizer alone; a model with it: foretell train DATA --tokenizer {argument}"
        raise CheckpointError(f"{argument} is {kind}{and_advice(Path(argument))}")
    raise CheckpointError(f"no model '{argument}': no such path, no run of that name{_suggest(name or argument)}")


def find_checkpoint(run: Run, which: str) -> Checkpoint:
    """The checkpoint `best`, `last` or `step-137`; a step without a checkpoint is replayed (session/replay_run.py)."""
    if (step := STEP.fullmatch(which)) is None:
        return run.at(which)
    kept = {checkpoint.step: checkpoint for checkpoint in list_checkpoints(run.checkpoints)}
    return kept.get(int(step[1])) or importlib.import_module(REPLAY).replay_step(run, int(step[1]))


def list_models() -> Iterator[LocalModel]:
    """The runs and saved models in ./runs, the models that come with foretell, and other programs' models."""
    for path in sorted(RUNS.iterdir()) if _exists(RUNS) else ():
        weights = sorted(path.glob(f"checkpoints/*/{WEIGHTS}"))[-1:] or [*path.glob(WEIGHTS)]
        if weights:
            yield LocalModel(f"{RUNS}/{printable_name(path.name)}", MODEL_TYPE, size_of(weights))
    for name in INCLUDED:
        if _exists(home := Path(str(files("foretell.included") / name)) / WEIGHTS):
            yield LocalModel(name, MODEL_TYPE, size_of([home]))
    yield from list_local_models()


def check_files(directory: Path, *, in_full: bool | None = False) -> None:
    """Compare a model's files with its manifest. Raises `CheckpointError` for a checkpoint without one."""
    skipped = [TRAINING]
    if is_checkpoint(directory):
        skipped += optimizer_files(Checkpoint(directory).manifest().files)
    check_model_files(directory, skip=skipped, in_full=in_full)


def check_not_a_file(path: Path) -> None:
    """Refuse a single file, since a model is a folder; the error describes the file and gives advice."""
    if path.is_dir():
        return
    folder = path.parent if path.parent != Path() else "."
    has_config = _exists(path.parent / CONFIG)
    if path.suffix == ".gguf":
        advice = "not a GGUF file: it does not begin with GGUF; get it again"
    elif path.suffix in PICKLED:
        advice = f"a pickle, which can run any code when it is opened; name a folder with {WEIGHTS} of the same model"
    elif path.suffix in (".safetensors", ".json") and (has_config or is_run(path.parent)):
        advice = f"one file of a model; name its folder, {folder}"
    elif path.suffix == ".safetensors":
        advice = f"weights alone; name a folder that has {CONFIG} and {TOKENIZER_FILE} next to them"
    else:
        advice = "a file; a model is a folder, the name of a run, or hub:owner/name"
    raise CheckpointError(f"{path} is {advice}")


def find_tokenizer(argument: str) -> Tokenizer:
    """The tokenizer of a model, of a tokenizer.json, or of a folder with vocab.json and merges.txt."""
    path = Path(argument := expanded(argument))
    if is_gguf(path) or argument.startswith(OLLAMA):
        from foretell.convert.gguf.files import read_gguf  # here: other models are found without it

        return read_gguf(find_model(argument)).tokenizer
    is_own = path.is_file() or (not _exists(path / CONFIG) and (has_tokenizer(path) or not is_run(RUNS / argument)))
    if _exists(path) and not is_run(path) and is_own:
        return load_tokenizer(os.path.realpath(path))  # a path from the user may be a link
    if argument.startswith(PREFIX):
        return load_tokenizer(fetch_model(argument, with_weights=False))
    directory = find_model(argument)
    check_files(directory)
    return load_tokenizer(directory)


def run_directory(out: str | Path | None, data: Sequence[str | Path], resume: bool) -> Path:
    """The directory of a run to make or resume, by default named after the data; one that is taken is refused."""
    directory = default_run_directory(data, resume) if out is None else as_path("out", out)
    Run.check_free(directory, resume)
    return directory


def default_run_directory(data: Sequence[str | Path], resume: bool = False) -> Path:
    """runs/NAME, named after the first data file; unless `resume`, a number is added if the name is taken."""
    name = Path(os.path.realpath(data[0])).name if data else "reference"
    name = Path(name).stem if Path(name).suffix.lower() in COMPRESSIONS else name
    first = "stdin" if data and str(data[0]) == "-" else re.sub(r"[\x00-\x1f\x7f]", "_", Path(name).stem) or "run"
    path, number = RUNS / first, 2
    while not resume and path.exists():
        path, number = RUNS / f"{first}-{number}", number + 1
    return path


def _suggest(name: str) -> str:
    from foretell.model.presets import PUBLISHED

    if name in PUBLISHED:
        on_hub = f"; its weights are {PREFIX}openai-community/{name}" if name.startswith("gpt2") else ""
        return f"; {name} is a preset, a shape without weights{on_hub}"
    if NAME.fullmatch(name) and not name.startswith("runs/"):
        return f"; if it is on the Hub, write {PREFIX}{name}"
    folders = sorted(RUNS.iterdir()) if _exists(RUNS) else []
    known = [*INCLUDED, *(printable_name(path.name) for path in folders if is_run(path) or _exists(path / CONFIG))]
    return did_you_mean(name.removeprefix("runs/"), known) or f"; there is {list_names(known)}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a name that no file can have
        return False
