"""`foretell finetune MODEL DATA... --task chat`: train a model on conversations."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Flag, Whole
from foretell.cli.processes import decided
from foretell.cli.terminal import messages, note, results
from foretell.cli.train import merge
from foretell.distributed.launch import is_follower
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.finetuning.chat_task import ChatTask
    from foretell.session.session import Session


def finetune_chat(
    model: Annotated[str | None, Parameter(help="The MODEL to tune: a path, a run's name, primer, hub:...")] = None,
    /,
    *data: Annotated[Path, Parameter(help="json, jsonl, csv or tsv files with conversations.")],
    out: Annotated[Path | None, Parameter(help="The run's folder; default: runs/ and the data's name.")] = None,
    dev: Annotated[Path | None, Parameter(help="A file to hold out; default: a tenth of the data.")] = None,
    template: Annotated[
        str | None, Parameter(help="plain, chatml, alpaca, llama3 or a Jinja file; default: the model's, else chatml.")
    ] = None,
    truncate: Annotated[
        Literal["drop", "tail"] | None,
        Parameter(help="Of what is longer than the context: drop it, or its tail; default: refuse."),
    ] = None,
    spell_tokens: Annotated[
        bool, Flag, Parameter(help="Write the template's special tokens as text; default: add them to the vocabulary.")
    ] = False,
    epochs: Annotated[float | None, Parameter(help="How often the data is read; default: 3.")] = None,
    steps: Annotated[int | None, Whole, Parameter(help="How many optimizer steps instead.")] = None,
    resume: Annotated[
        Literal["auto", "never"], Parameter(help="auto (or nothing) resumes a run that exists.")
    ] = "never",
    lora: Annotated[bool, Flag, Parameter(help="Train low-rank updates alone; also --lora.rank 8.")] = False,
    seed: Annotated[int | None, Whole, Parameter(help="The seed of everything random.")] = None,
    show_batch: Annotated[
        bool, Flag, Parameter(help="First show the next batch: learned tokens with their loss, others dim.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        Parameter(name="--set", negative="", help="Any field, as --training.learning-rate 1e-3, --model.dropout 0.1."),
    ] = None,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Train a model to answer.

    DATA has conversations, of which only the answers are learned. Shapes of a row:

    messages (role, content); conversations (from, value);

    instruction, input, output; prompt, completion; prompt, chosen, rejected.
    """
    is_resumed = resume == "auto" and out is not None and (out / "run.json").exists()
    if not is_resumed and (model is None or not data):
        raise UsageError("give a MODEL and one or more files of conversations, or --out RUN --resume auto")
    note(f"opening     {out}" if is_resumed else f"reading     {', '.join(map(str, data))}")
    from foretell.finding import default_run_directory
    from foretell.finetuning.chat_tuning import ChatRequest, tune_chat
    from foretell.session.display import make_reporter
    from foretell.session.reporter import Reporters
    from foretell.start import load_start

    overrides = merge(None, settings or [], {"training.steps": steps, "training.seed": seed})
    if lora:
        overrides.setdefault("lora", {})
    request = ChatRequest(
        start=load_start(model) if model is not None else None,
        data=list(data),
        out=out or Path(decided(lambda: str(default_run_directory(data, resume == "auto")))),
        held_out=dev,
        template=template,
        truncation=truncate,
        spell_tokens=spell_tokens,
        epochs=epochs,
        overrides=overrides,
        device=device,
        dtype=dtype,
    )
    with Reporters([make_reporter(messages())]) as reporter:
        before = show_next_batch if show_batch and not is_follower() else lambda session: None
        session = tune_chat(request, reporter, resume=resume == "auto", before=before)
        if not is_follower():
            finish(session)


def show_next_batch(session: Session[ChatTask]) -> None:
    """The batch of the next step: which tokens are learned, with their losses now, and which are masked."""
    from foretell.cli.batch_display import show_row
    from foretell.finetuning.chat_batch import replay_batch

    console = results()
    step, task = session.progress.step, session.task
    replayed = replay_batch(task.decoder, task.batch(step).to(session.device), task.tokenizer)
    for index, row in enumerate(replayed):
        learned = sum(token.loss is not None for token in row.tokens)
        console.print(f"row {index}: {learned} of {len(row.tokens)} tokens are learned", style="bold")
        show_row(console, row)
        console.print()
    console.print(
        f"step {step + 1}: {len(replayed)} of {task.config.training.batch_size} rows; - is masked", style="dim"
    )


def finish(session: Session[ChatTask]) -> None:
    """The best loss, compared with the one before, and what to do with the run."""
    from foretell.session.failures import command_name

    console, best = results(), session.run.best()
    loss, before = best.training()["validation_loss"], session.task.loss_before
    if loss is not None:
        earlier = "" if before is None else f", {before:.3f} before"
        console.print(f"best        step {best.step:,}: loss {loss:.3f} on held-out answers{earlier}")
    console.print(f"run         {session.run.directory}: checkpoints/, metrics.jsonl, samples/")
    console.print(f"try         {command_name()} chat {shlex.quote(str(session.run.directory))}")
