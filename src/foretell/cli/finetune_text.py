"""`foretell finetune MODEL DATA... --task text`: go on with a domain's text, and measure what is forgotten."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Json, Whole, describe_data, text_source
from foretell.cli.processes import decided
from foretell.cli.terminal import messages, note, print_json, results
from foretell.cli.train import check_there_is_a_run, default_out, merge, run_prompt
from foretell.distributed.launch import is_follower
from foretell.errors import UsageError


def finetune_text(
    model: Annotated[str | None, Parameter(help="The MODEL to start from.")] = None,
    /,
    *data: Annotated[str, Parameter(help="Text, jsonl, json, csv or tsv files, folders of them, or -.")],
    old_domain: Annotated[
        list[str] | None,
        Parameter(negative="", help="A text of the model's old domain; default: the held-out text of the run MODEL."),
    ] = None,
    minutes: Annotated[float | None, Parameter(help="How long to train; default: at most 10.")] = None,
    steps: Annotated[int | None, Whole, Parameter(help="How many optimizer steps instead.")] = None,
    out: Annotated[Path | None, Parameter(help="The run's folder; default: runs/ and the data's name.")] = None,
    resume: Annotated[Literal["auto", "never"], Parameter(help="auto (or nothing) continues the run OUT.")] = "never",
    config: Annotated[Path | None, Parameter(help="A TOML file with sections, as for train.")] = None,
    text_field: Annotated[str | None, Parameter(help="The field or column with the text.")] = None,
    seed: Annotated[int | None, Whole, Parameter(help="The seed of everything random.")] = None,
    settings: Annotated[
        list[str] | None, Parameter(name="--set", negative="", help="Any field, as --training.learning-rate 1e-5.")
    ] = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """Go on with a domain's text.

    Trains as `train --from MODEL` does, and reports the perplexity of held-out text of the new and of the old domain,
    before and after.
    """
    if not data and not (resume == "auto" and out is not None):
        raise UsageError("give MODEL and DATA: foretell finetune MODEL DATA... --task text")
    if not data:
        check_there_is_a_run(out)
    out = out or Path(decided(lambda: str(default_out(data, resume == "auto"))))
    is_resumed = resume == "auto" and (out / "run.json").exists()
    note(f"opening     {out}" if is_resumed else f"reading     {describe_data(data)}")
    from foretell.config import DataConfig, make_section
    from foretell.pretraining.domain import continue_on_domain
    from foretell.pretraining.old_domain import find_old_domain
    from foretell.pretraining.request import Request
    from foretell.session.display import make_reporter
    from foretell.session.reporter import Reporters
    from foretell.start import load_start

    options: dict[str, Any] = {"training.steps": steps, "training.seed": seed, "data.text_field": text_field}
    overrides = merge(config, settings or [], options)
    request = Request(
        text_source(data, make_section(DataConfig, overrides.get("data", {}), "data")),
        described=[describe_data(data)] if data else [],
        out=out,
        minutes=minutes,
        overrides=overrides,
        start=None if model is None else load_start(model),
        old_domain=None if model is None else find_old_domain(old_domain or [], model),
        device=device,
        dtype=dtype,
        verb="finetune --task text",
    )
    with Reporters([make_reporter(messages())]) as reporter:
        session, report = continue_on_domain(request, reporter, resume=resume == "auto")
    if not is_follower():
        print_json(report) if json else show(report, out, run_prompt(session.task))


def show(report: dict[str, Any], out: Path, prompt: str) -> None:
    """The perplexities, and what to do with the run."""
    from foretell.pretraining.domain import REPORT, report_lines
    from foretell.session.failures import command_name

    console = results()
    console.print("\n".join(report_lines(report)))
    console.print(f"run         {out}: checkpoints/, metrics.jsonl, samples/, {REPORT}")
    console.print(f"try         {command_name()} generate {shlex.quote(str(out))} {shlex.quote(prompt)}")
