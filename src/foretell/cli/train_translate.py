"""`foretell train --task translate PAIRS`: train an encoder-decoder on pairs of sentences."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Flag, Whole
from foretell.cli.processes import decided
from foretell.cli.terminal import messages, note, results
from foretell.cli.train import check_there_is_a_run, default_out, merge
from foretell.distributed.launch import is_follower
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.session.session import Session
    from foretell.translation.task import TranslationTask


def train_translate(
    *pairs: Annotated[str, Parameter(help="A file with two columns, two aligned files, or a zip of either.")],
    size: Annotated[
        str, Parameter(help="toy, tiny, small, base, or vaswani-tiny, vaswani-small, vaswani-base.")
    ] = "small",
    minutes: Annotated[float | None, Parameter(help="How long to train; default: at most 10.")] = None,
    steps: Annotated[int | None, Whole, Parameter(help="How many optimizer steps instead.")] = None,
    batch_tokens: Annotated[
        int | None, Whole, Parameter(help="Tokens per step, of both languages; default: 4096.")
    ] = None,
    out: Annotated[Path | None, Parameter(help="The run's folder; default: runs/ and the data's name.")] = None,
    resume: Annotated[
        Literal["auto", "never"], Parameter(help="auto (or nothing) resumes a run that exists.")
    ] = "never",
    config: Annotated[Path | None, Parameter(help="A TOML file with the sections below.")] = None,
    separate_vocabularies: Annotated[
        bool, Flag, Parameter(help="A vocabulary per language, not one for both.")
    ] = False,
    seed: Annotated[int | None, Whole, Parameter(help="The seed of everything random.")] = None,
    checkpoint_every: Annotated[int | None, Whole, Parameter(help="Steps between checkpoints.")] = None,
    settings: Annotated[
        list[str] | None,
        Parameter(
            name="--set", negative="", help="Any field, also as --model.width 256, --training.learning-rate 1e-3."
        ),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Train an encoder-decoder to translate.

    The first column, or file, is translated into the second. Some sentences are held out, chosen by a hash of the
    source in lower case without punctuation, so that no near-duplicate is on both sides.

    Sections of the configuration: model, tokenizer, pairs, training. The most used:

    --pairs.validation-fraction, --pairs.longest, --tokenizer.vocab-size,

    --training.learning-rate, --training.label-smoothing, --model.dropout.
    """
    if not pairs:
        if resume != "auto":
            raise UsageError("give a file of pairs: two columns separated by a tab, two aligned files, or a zip")
        check_there_is_a_run(out)
    out = out or Path(decided(lambda: str(default_out(pairs, resume == "auto"))))
    note(f"reading     {', '.join(pairs)}" if pairs else f"opening     {out}")
    from foretell.session.display import make_reporter
    from foretell.session.reporter import Reporters
    from foretell.translation.train import PairRequest, train_translation

    options = {"training.steps": steps, "training.seed": seed, "training.checkpoint_every": checkpoint_every}
    options |= {"pairs.batch_tokens": batch_tokens}
    request = PairRequest(
        pairs,
        out=out,
        size=size,
        minutes=minutes,
        overrides=merge(config, settings or [], options),
        is_shared=not separate_vocabularies,
        device=device,
        dtype=dtype,
    )
    with Reporters([make_reporter(messages())]) as reporter:
        session = train_translation(request, reporter, resume=resume == "auto")
    if not is_follower():
        finish(session)


def finish(session: Session[TranslationTask]) -> None:
    """The loss curve, the best loss, and what to do with the run."""
    from foretell.session.failures import command_name
    from foretell.session.plots import plot, points_of

    run, task = session.run, session.task
    console = results()
    console.print()
    points = points_of(run.metrics(), "loss", "step")
    if len(points) > 1:
        console.print(plot([points], "step"))
    best = run.best()
    training = best.training()
    if training["validation_loss"] is not None:
        bleu = training["evaluation"].get("bleu")
        shown = "" if bleu is None else f", BLEU {bleu:.1f} on {min(200, len(task.data.validation))} pairs, greedy"
        console.print(f"best        step {best.step:,}: validation loss {training['validation_loss']:.3f}{shown}")
    console.print(f"run         {run.directory}: checkpoints/, metrics.jsonl, samples/")
    example = (task.data.validation or task.data.train)[0].source
    directory = shlex.quote(str(run.directory))
    console.print(f"try         {command_name()} translate {directory} {shlex.quote(example)}")
