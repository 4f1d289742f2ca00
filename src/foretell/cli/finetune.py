"""`foretell finetune MODEL DATA --task ...`: train a model on labels, conversations or a domain's text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.command_line import BY_TASK
from foretell.cli.terminal import report, results
from foretell.cli.train import run_prompt, show_row
from foretell.cli.training_verbs import DEFAULTS, Options, show_end, show_run, train_and_report
from foretell.distributed.launch import is_follower
from foretell.errors import UsageError, expanded, shell_words
from foretell.finetuning.kinds import KINDS, ChatOptions, HeadOptions
from foretell.pretraining.options import DomainOptions

if TYPE_CHECKING:
    from foretell.finetuning.chat_task import ChatTask
    from foretell.finetuning.task import FinetuneTask
    from foretell.pretraining.task import TextTask
    from foretell.session.session import Session

Start = Annotated[str | None, Parameter(help="The MODEL to start from.")]


def finetune(
    model: Annotated[str | None, Parameter(help="The MODEL to start from; without it, a new one.")] = None,
    data: Annotated[
        Path | None,
        Parameter(help="A csv, tsv, jsonl, json or parquet file with a row per example; for tag also CoNLL."),
    ] = None,
    /,
    *,
    dev: Annotated[Path | None, Parameter(help="Held-out examples (default: cut from DATA).")] = None,
    chosen: Annotated[HeadOptions, arguments.FLAT] = HeadOptions(),
    lora: Annotated[bool, Parameter(help="Train only low-rank updates (--lora.rank 8) and the new layer.")] = False,
    options: Options = DEFAULTS,
    json: arguments.Json = False,
) -> None:
    """Train a model with one extra layer on labelled texts.

    GPT-1's recipe (Radford et al. 2018): one new linear layer reads the vector that --pool names, new tokens begin,
    separate and end the texts if the task needs them, and language modelling is a second loss. The held-out examples
    decide which checkpoint is best.

    Parquet files need a package: pip install 'foretell[data]'.

    With --lora (Hu et al. 2021) the model's own weights do not change; --lora.rank, --lora.alpha, --lora.dropout and
    --lora.targets (globs of module paths) change the updates.
    """
    if data is None and model is not None and (chosen.is_from_scratch or Path(expanded(model)).is_file()):
        model, data, chosen = None, Path(expanded(model)), replace(chosen, is_from_scratch=True)
    if ((model is None and not chosen.is_from_scratch) or data is None) and not options.is_resumed:
        raise UsageError("give DATA, or MODEL and DATA: foretell finetune MODEL DATA --task classify")
    from foretell.config.section import check_known

    task = chosen.task or "classify"
    check_known(task, (*KINDS, *BY_TASK["finetune"]), "task")
    if dev is not None and chosen.dev_fraction is not None:
        raise UsageError("--dev-fraction is cut from DATA, and --dev has the held-out examples; give one of them")
    if chosen.decimal is not None and task not in ("regress", "similarity"):
        raise UsageError("--decimal is for labels that are numbers, with --task regress or similarity")
    out = options.directory([] if data is None else [data])
    from foretell.finetuning.finetune import FinetuneTraining
    from foretell.finetuning.request import FinetuneRequest
    from foretell.session.protocol import load_start

    given = options.request(out, replace(chosen, columns=arguments.names_of(chosen.columns)))
    for name in given["overrides"]:
        if name not in chosen.sections:
            raise UsageError(f"--{name}... is not a section of finetune; its sections are training and lora")
    if lora:
        given["overrides"].setdefault("lora", {})
    request = FinetuneRequest(data=data, dev=dev, start=load_start(model) if model else None, **given)
    train_and_report(FinetuneTraining(request), options, lambda session: finish(session, json))


def finish(session: Session[FinetuneTask], json: bool) -> None:
    """Show the report, and a command to try."""
    from foretell.finetuning.report import FinetuneReport
    from foretell.runs.run import REPORT, REPORT_PICTURE

    files, texts = "checkpoints/, metrics.jsonl", session.task.head.task.reader.form.arguments
    if (session.run.directory / REPORT).exists():  # a run without held-out examples has none
        report(FinetuneReport.of(session.run), json)
        files += f", {REPORT}"
    if not json:
        show_run(session, files, REPORT_PICTURE, "predict", texts)


def finetune_chat(
    model: Start = None,
    /,
    *data: Annotated[Path, Parameter(help="json, jsonl, csv or tsv files with conversations.")],
    chosen: Annotated[ChatOptions, arguments.FLAT] = ChatOptions(),
    lora: Annotated[bool, Parameter(help="Train only low-rank updates (--lora.rank 8).")] = False,
    options: Options = DEFAULTS,
    show_batch: Annotated[
        bool, Parameter(help="Show the next batch before training: trained tokens with their loss, others dim.")
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
    from foretell.session.protocol import load_start

    arguments.usable_template(str, chosen.template)
    given = options.request(out, chosen)
    if lora:
        given["overrides"].setdefault("lora", {})
    request = ChatRequest(start=load_start(model) if model is not None else None, data=list(data), **given)
    before = show_next_batch if show_batch and not is_follower() else lambda session: None
    train_and_report(ChatTraining(request), options, finish_chat, before)


def show_next_batch(session: Session[ChatTask]) -> None:
    """Show the batch of the next step: the learned tokens with their present losses, and the masked ones."""
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


def finish_chat(session: Session[ChatTask]) -> None:
    """Show the best loss, compared with the loss before training."""
    loss, before = session.run.best().training()["validation_loss"], session.task.loss_before
    earlier = "" if before is None else f", {before:.3f} before"
    best = "" if loss is None else f"loss {loss:.3f} on held-out answers{earlier}"
    show_end(session, best, "chat", "")


def finetune_text(
    model: Start = None,
    /,
    *data: Annotated[
        str,
        Parameter(help="Text, jsonl, json, csv or tsv files, folders of them, or -.", converter=arguments.data_name),
    ],
    chosen: Annotated[DomainOptions, arguments.FLAT] = DomainOptions(),
    options: Options = DEFAULTS,
    json: arguments.Json = False,
) -> None:
    """Continue on a domain's text.

    Trains like `train --start-from MODEL`, and reports the perplexity of held-out text of the new and of the old
    domain, before and after.
    """
    if (model is None or not data) and not options.is_resumed:
        raise UsageError("give MODEL and DATA: foretell finetune MODEL DATA... --task text")
    out = options.directory(data)
    from foretell.generation.batch_generation import continue_prompt
    from foretell.pretraining.domain import DomainTraining
    from foretell.pretraining.sources import find_old_domain, text_request
    from foretell.session.protocol import load_start

    given = options.request(out, chosen)
    given["old_domain"] = None if model is None else find_old_domain(chosen.old_domain, model)
    given["start"] = None if model is None else load_start(model)
    names = arguments.names_of_data(data) if data else []
    request = text_request(arguments.paths_of(data), names=names, **given)
    train_and_report(DomainTraining(request, continue_prompt), options, lambda session: finish_text(session, json))


def finish_text(session: Session[TextTask], json: bool) -> None:
    """Show the perplexities, and a command to try."""
    from foretell.pretraining.domain import DomainReport
    from foretell.runs.run import REPORT

    report(DomainReport.of(session.run), json)
    if not json:
        prompt = shell_words(run_prompt(session.task))
        show_run(session, f"checkpoints/, metrics.jsonl, samples/, {REPORT}", "", "generate", prompt)
