"""`foretell finetune MODEL DATA... --task text`: continue on a domain's text, and measure what is forgotten."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import Json, describe_data, text_source
from foretell.cli.terminal import print_json, results
from foretell.cli.train import run_prompt
from foretell.cli.training import DEFAULTS, Options, train_and_report
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.pretraining.task import TextTask
    from foretell.session.session import Session


def finetune_text(
    model: Annotated[str | None, Parameter(help="The MODEL to start from.")] = None,
    /,
    *data: Annotated[str, Parameter(help="Text, jsonl, json, csv or tsv files, folders of them, or -.")],
    old_domain: Annotated[
        list[str] | None,
        Parameter(negative="", help="A text of the model's old domain; default: the held-out text of the run MODEL."),
    ] = None,
    text_field: Annotated[str | None, Parameter(help="The field or column with the text.")] = None,
    options: Options = DEFAULTS,
    json: Json = False,
) -> None:
    """Continue on a domain's text.

    Trains as `train --start-from MODEL` does, and reports the perplexity of held-out text of the new and of the old
    domain, before and after.
    """
    if (model is None or not data) and not options.is_resumed:
        raise UsageError("give MODEL and DATA: foretell finetune MODEL DATA... --task text")
    out = options.directory(data)
    from foretell.config import DataConfig, make_section
    from foretell.loading import load_start
    from foretell.pretraining.domain import DomainTraining
    from foretell.pretraining.request import TextRequest
    from foretell.pretraining.tokens import find_old_domain

    overrides = options.sections({"data.text_field": text_field})
    request = TextRequest(
        source=text_source(data, make_section(DataConfig, overrides.get("data", {}), "data")),
        names=[describe_data(data)] if data else [],
        out=out,
        minutes=options.minutes,
        overrides=overrides,
        start=None if model is None else load_start(model),
        old_domain=None if model is None else find_old_domain(old_domain or [], model),
        device=options.device,
        dtype=options.dtype,
    )
    train_and_report(DomainTraining(request), options, lambda session: finish(session, json))


def finish(session: Session[TextTask], json: bool) -> None:
    """The perplexities, and a command to try."""
    from foretell.files import read_json
    from foretell.pretraining.domain import REPORT, report_lines
    from foretell.session.failures import command_name

    out, console = session.run.directory, results()
    report = read_json(out / REPORT)
    if json:
        return print_json(report)
    console.print("\n".join(report_lines(report)))
    console.print(f"run         {out}: checkpoints/, metrics.jsonl, samples/, {REPORT}")
    console.print(
        f"try         {command_name()} generate {shlex.quote(str(out))} {shlex.quote(run_prompt(session.task))}"
    )
    return None
