"""`foretell finetune MODEL DATA --task ...`: train a model on labels, conversations or a domain's text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_type_hints

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.command_line import BY_TASK
from foretell.cli.terminal import report, results
from foretell.cli.train import run_prompt, show_row
from foretell.cli.training_verbs import DEFAULTS, Options, show_end, show_run, train_and_report
from foretell.distributed.launch import is_follower
from foretell.errors import UsageError, expanded, shell_words
from foretell.finetuning.kinds import KINDS, HeadFields

if TYPE_CHECKING:
    from foretell.finetuning.chat_task import ChatTask
    from foretell.finetuning.task import FinetuneTask
    from foretell.pretraining.task import TextTask
    from foretell.session.session import Session

Start = Annotated[str | None, Parameter(help="The MODEL to start from.")]
Epochs = Annotated[
    float | None, Parameter(help="Passes over the data (default: 3, or 6 from scratch; more for few examples).")
]
SHARED = {  # with predict and evaluate
    "choice_column": arguments.ChoiceColumn,
    "columns": arguments.ColumnNames,
    "encoding": arguments.Encoding,
    "decimal": arguments.DecimalMark,
    "truncate": arguments.Truncate,
}


if TYPE_CHECKING:
    HeadOptions = dict[str, Any]
else:
    described = {  # fields with their help, from the annotations
        name: Annotated[hint.__origin__, Parameter(help=hint.__metadata__[0], show_choices=False)]
        for name, hint in get_type_hints(HeadFields, include_extras=True).items()
        if name not in SHARED
    }
    HeadOptions = TypedDict("HeadOptions", described | SHARED, total=False)


def finetune(
    model: Annotated[str | None, Parameter(help="The MODEL to start from; without it, a new one.")] = None,
    data: Annotated[
        Path | None,
        Parameter(help="A csv, tsv, jsonl, json or parquet file with a row per example; for tag also CoNLL."),
    ] = None,
    /,
    *,
    task: Annotated[str | None, Parameter(help=f"{', '.join(KINDS)}, chat or text (default: classify).")] = None,
    dev: Annotated[Path | None, Parameter(help="Held-out examples (default: cut from DATA).")] = None,
    head: Annotated[HeadOptions, Parameter(name="*")] = HeadOptions(),
    from_scratch: Annotated[
        bool, Parameter(help="Make a new model of the data's words; the default without MODEL: finetune DATA.")
    ] = False,
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
    if data is None and model is not None and (from_scratch or Path(expanded(model)).is_file()):
        model, data, from_scratch = None, Path(expanded(model)), True
    if ((model is None and not from_scratch) or data is None) and not options.is_resumed:
        raise UsageError("give DATA, or MODEL and DATA: foretell finetune MODEL DATA --task classify")
    from foretell.config.section import check_known

    check_known(task or "classify", (*KINDS, *BY_TASK["finetune"]), "task")
    if dev is not None and "dev_fraction" in head:
        raise UsageError("--dev-fraction is cut from DATA, and --dev has the held-out examples; give one of them")
    if head.get("decimal") is not None and task not in ("regress", "similarity"):
        raise UsageError("--decimal is for labels that are numbers, with --task regress or similarity")
    out = options.directory([] if data is None else [data])
    from foretell.finetuning.finetune import FinetuneTraining
    from foretell.finetuning.request import make_request
    from foretell.session.protocol import load_start

    sections = options.sections({})
    for name in sections:
        if name not in ("training", "lora"):
            raise UsageError(f"--{name}... is not a section of finetune; its sections are training and lora")
    fields: HeadOptions = {**head, "columns": arguments.names_of(head.get("columns"))}
    request = make_request(
        data,
        task=task,
        dev=dev,
        start=load_start(model) if model else None,
        is_from_scratch=from_scratch,
        training=sections.get("training", {}),
        lora=sections.get("lora", {} if lora else None),
        **options.shared(out),
        **fields,
    )
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
    dev: Annotated[Path | None, Parameter(help="A file to hold out (default: a tenth of the data).")] = None,
    template: arguments.Template = None,
    truncate: Annotated[
        Literal["tail", "drop", "never"] | None,
        Parameter(help="Conversations longer than the context: cut the end (default), drop them, or never: refuse."),
    ] = None,
    spell_tokens: Annotated[
        bool, Parameter(help="Write the template's special tokens as text (default: add them to the vocabulary).")
    ] = False,
    epochs: Epochs = None,
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

    overrides = options.sections({})
    if lora:
        overrides.setdefault("lora", {})
    request = ChatRequest(
        start=load_start(model) if model is not None else None,
        data=list(data),
        dev=dev,
        template=template,
        truncate=truncate,
        spell_tokens=spell_tokens or None,
        epochs=epochs,
        overrides=overrides,
        **options.shared(out),
    )
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
    old_domain: Annotated[
        list[str] | None,
        Parameter(help="A text of the model's old domain (default: the held-out text of the run MODEL)."),
    ] = None,
    text_field: arguments.TextField = None,
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
    from foretell.config.section import make_section
    from foretell.config.training import DataConfig
    from foretell.generation.batch_generation import continue_prompt
    from foretell.pretraining.domain import DomainTraining
    from foretell.pretraining.request import TextRequest
    from foretell.pretraining.sources import find_old_domain
    from foretell.session.protocol import load_start

    overrides = options.sections({"data.text_field": text_field})
    request = TextRequest(
        source=arguments.text_source(data, make_section(DataConfig, overrides.get("data", {}), "data")),
        names=arguments.names_of_data(data) if data else [],
        overrides=overrides,
        start=None if model is None else load_start(model),
        old_domain=None if model is None else find_old_domain(old_domain or [], model),
        **options.shared(out),
    )
    train_and_report(DomainTraining(request, continue_prompt), options, lambda session: finish_text(session, json))


def finish_text(session: Session[TextTask], json: bool) -> None:
    """Show the perplexities, and a command to try."""
    from foretell.pretraining.domain import DomainReport
    from foretell.runs.run import REPORT

    report(DomainReport.of(session.run), json)
    if not json:
        prompt = shell_words(run_prompt(session.task))
        show_run(session, f"checkpoints/, metrics.jsonl, samples/, {REPORT}", "", "generate", prompt)
