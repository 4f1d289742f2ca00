"""`foretell verify RECEIPT --model M`: check that the model wrote an answer."""

from __future__ import annotations

import json as json_module
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.terminal import open_model, print_json, write
from foretell.errors import DataError, ForetellError


def verify(
    receipt: Annotated[str, Parameter(help="A file: a receipt, or an answer with receipts; - reads standard input.")],
    /,
    *,
    model: Annotated[str, Parameter(help="A path, a run's name, primer, or hub:owner/name.")],
    positions: Annotated[int | None, arguments.whole("How many tokens to check; default: all.")] = None,
    json: arguments.Json = False,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """Check receipts: compute answers again, and compare every digest.

    The text of a receipt is printed. Text stored with a receipt in an answer
    is not read.

    Receipts come from `generate --strict --receipt --json`, and from a server with --strict as
    "look": {"receipt": true}. The exit code is 1 if one is rejected.
    """
    text = (
        arguments.read_text(receipt)
        if receipt == arguments.STANDARD_INPUT
        else arguments.read_named(Path(receipt), "RECEIPT")
    )
    receipt_objects = list(receipts_in(parsed(text, receipt)))
    if not receipt_objects:
        raise DataError(f"{receipt} has no receipt; generate with --strict --receipt --json writes one")
    from foretell.inference.answer_receipt import AnswerReceipt
    from foretell.inference.verification import verify as verify_receipt

    receipts = [AnswerReceipt.from_json(values) for values in receipt_objects]
    if options.dtype == "auto":
        options = replace(options, dtype="bfloat16" if receipts[0].model.dtype == "bfloat16" else "float32")
    loaded = open_model(model, strict=True, **options.keywords())
    results = [verify_receipt(loaded, each, positions) for each in receipts]
    for result in results:
        print_json(result.to_json()) if json else write(f"{result}\n")
    if rejected := sum(result.verdict == "rejected" for result in results):
        raise ForetellError(f"{receipt}: {rejected} of {len(results)} receipts rejected")


def parsed(text: str, name: str) -> Any:
    """The value of JSON, or the list of values of JSON Lines."""
    try:
        return json_module.loads(text)
    except (ValueError, RecursionError):
        try:
            return [json_module.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            raise DataError(f"{name} is not readable JSON: {error}") from None


def receipts_in(value: Any) -> Iterator[dict[str, Any]]:
    """The receipts at any place in an answer."""
    if isinstance(value, dict) and ("request" in value or str(value.get("format")).startswith("foretell.receipt/")):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from receipts_in(part)
