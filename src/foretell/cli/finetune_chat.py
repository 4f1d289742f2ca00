"""`foretell finetune MODEL DATA... --task chat`: train a model on conversations."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Flag
from foretell.cli.terminal import results
from foretell.cli.training import DEFAULTS, Options, show_end, train_and_report
from foretell.distributed.launch import is_follower
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.finetuning.chat_task import ChatTask
    from foretell.session.session import Session


def finetune_chat(
    model: Annotated[str | None, Parameter(help="The MODEL to tune: a path, a run's name, primer, hub:...")] = None,
    /,
    *data: Annotated[Path, Parameter(help="json, jsonl, csv or tsv files with conversations.")],
    dev: Annotated[Path | None, Parameter(help="A file to hold out; default: a tenth of the data.")] = None,
    template: Annotated[
        str | None, Parameter(help="plain, chatml, alpaca, llama3 or a Jinja file; default: the model's, else chatml.")
    ] = None,
    truncate: Annotated[
        Literal["drop", "tail"] | None,
        Parameter(help="Conversations longer than the context: drop them or cut the end (default: error)."),
    ] = None,
    spell_tokens: Annotated[
        bool, Flag, Parameter(help="Write the template's special tokens as text; default: add them to the vocabulary.")
    ] = False,
    epochs: Annotated[float | None, Parameter(help="How often the data is read; default: 3.")] = None,
    lora: Annotated[bool, Flag, Parameter(help="Train low-rank updates alone; also --lora.rank 8.")] = False,
    options: Options = DEFAULTS,
    show_batch: Annotated[
        bool, Flag, Parameter(help="First show the next batch: learned tokens with their loss, others dim.")
    ] = False,
) -> None:
    """Train a model to answer.

    DATA has conversations, of which only the answers are learned. Shapes of a row:

    messages (role, content); conversations (from, value);

    instruction, input, output; prompt, completion; prompt, chosen, rejected.
    """
    if (model is None or not data) and not options.is_resumed:
        raise UsageError("give a MODEL and one or more files of conversations, or --out RUN --resume auto")
    out = options.directory(data)
    from foretell.finetuning.chat_tuning import ChatRequest, ChatTraining
    from foretell.loading import load_start

    overrides = options.sections({})
    if lora:
        overrides.setdefault("lora", {})
    request = ChatRequest(
        start=load_start(model) if model is not None else None,
        data=list(data),
        out=out,
        held_out=dev,
        template=template,
        truncation=truncate,
        spell_tokens=spell_tokens or None,
        minutes=options.minutes,
        epochs=epochs,
        overrides=overrides,
        device=options.device,
        dtype=options.dtype,
    )
    before = show_next_batch if show_batch and not is_follower() else lambda session: None
    train_and_report(ChatTraining(request), options, finish, before)


def show_next_batch(session: Session[ChatTask]) -> None:
    """The batch of the next step: which tokens are learned, with their losses now, and which are masked."""
    from foretell.cli.batch_display import show_row
    from foretell.finetuning.chat_task import replay_batch

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
    """The best loss, compared with the one before."""
    loss, before = session.run.best().training()["validation_loss"], session.task.loss_before
    earlier = "" if before is None else f", {before:.3f} before"
    best = "" if loss is None else f"loss {loss:.3f} on held-out answers{earlier}"
    show_end(session, best, "chat", "")
