"""Many prompts at once for `foretell generate`: a file of prompts, results as they end, and how long it took."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretell.cli.arguments import decode_text, read_bytes
from foretell.cli.terminal import ProgressLine, messages, print_json
from foretell.errors import DataError, OutputError
from foretell.files import check_target

if TYPE_CHECKING:
    from foretell.inference.completion import Completer

Items = Iterator[tuple[int, str, bool]]  # of `Completer.advance`
MARK = b'"prompt"'  # in every line of a file of completions


def read_prompts(file: Path) -> list[str]:
    """The lines of a file that are not blank."""
    lines = decode_text(read_bytes(file, "--prompt-file"), str(file)).splitlines()
    prompts = [line for line in lines if line.strip()]
    if not prompts:
        raise DataError(f"--prompt-file {file} has no prompt; write one per line")
    return prompts


class Timings:
    """How long a generation takes: until its first token, and per token after it."""

    def __init__(self, completer: Completer):
        self.completer, self.started, self.first = completer, time.perf_counter(), 0.0

    def watch(self, items: Items) -> Items:
        """The same items; the first is the first token."""
        for item in items:
            self.first = self.first or time.perf_counter()
            yield item

    def show(self) -> None:
        """One line on stderr."""
        now, sequences = time.perf_counter(), self.completer.sequences
        read, written = (
            sum(map(len, ids)) for ids in ([s.prompt for s in sequences], [s.generated for s in sequences])
        )
        line = f"{read:,} prompt tokens; {written:,} new tokens in {now - self.started:.2f} s"
        if self.first and written > 1:
            rate = (written - 1) / (now - self.first)
            line += f", the first after {self.first - self.started:.2f} s, then {rate:,.1f} tokens/s"
        messages().print(line, style="dim")


def write_completions(completer: Completer, items: Items, out: Path | None, progress: bool) -> None:
    """Write each completion as a line of JSON as soon as it has ended, to a file or to stdout."""
    target = None if out is None else check_target(out, MARK)
    if target is None:
        return write_lines(completer, items, progress, print_json)
    try:
        with target.open("w", encoding="utf-8") as file:
            write_lines(
                completer,
                items,
                progress,
                lambda value: print(json.dumps(value, ensure_ascii=False), file=file, flush=True),
            )
    except OSError as error:
        raise OutputError(f"could not write {out}: {error.strerror}") from None


def write_lines(
    completer: Completer, items: Items, progress: bool, write_value: Callable[[dict[str, Any]], None]
) -> None:
    """Write each completion as soon as it has ended."""
    with ProgressLine("prompts") if progress else nullcontext() as show:
        for done, index in enumerate((index for index, _, has_ended in items if has_ended), start=1):
            write_value({"index": index, **completer.completion(index).to_json()})
            if show is not None:
                show(done, len(completer.sequences))
