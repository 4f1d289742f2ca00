"""`foretell explain MODEL TEXT --html FILE`: a pass over a text as a page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli.arguments import Device, Dtype, Json, ModelArgument, TextArgument, read_text
from foretell.cli.terminal import note, open_model, print_json, results
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.insight.page.write import PageReport


def explain(
    model: ModelArgument,
    text: TextArgument,
    /,
    *,
    html: Annotated[Path | None, Parameter(help="The page to write.", show_default=False)] = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
) -> None:
    """A pass over a text as a page to look at: tokens, attention, the stream, the lens, what comes next.

    The page is one file that opens from disk, without a network. Open it in a browser.
    """
    if html is None:
        raise UsageError("give --html FILE, the page to write")
    text = read_text(text)
    from foretell.insight.trace_file import check_target

    check_target(html)
    loaded = open_model(model, device, dtype)
    from foretell.insight.page.write import write_page

    report = write_page(loaded, text, html)
    if json:
        print_json(report.to_json())
    else:
        show(report)


def show(report: PageReport) -> None:
    """What is in the page, and what is not."""
    from foretell.insight.page.fit import in_megabytes

    shape = f"{report.tokens} tokens, {report.layers} layers, {report.heads} heads a layer"
    results().print(f"{report.path}: {shape}, {in_megabytes(report.bytes)}")
    for sentence in report.cut:
        note(sentence)
