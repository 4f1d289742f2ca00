"""`foretell trace MODEL TEXT --select GLOB --out FILE`: any value of a pass over a text, by name."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli.arguments import (
    AsTask,
    Device,
    Dtype,
    FileOption,
    Flag,
    Ids,
    Json,
    ModelArgument,
    Pair,
    TextArgument,
    Verify,
    read_text,
    task_input,
)
from foretell.cli.explain import SourceText, Target, given_source
from foretell.cli.options import MODEL_DEFAULTS, Options
from foretell.cli.terminal import note, print_json, results
from foretell.cli.translate import open_translator
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.insight.trace import Trace
    from foretell.language_model import LanguageModel

NAME_WIDTH = 50

Select = Annotated[
    list[str] | None,
    Parameter(help="Names, with * for one segment and ** for any number (default: all).", negative=""),
]
Out = Annotated[Path | None, Parameter(help="The safetensors file to write.", show_default=False)]
ListNames = Annotated[bool, Flag, Parameter(name="--list", help="Only list the names that there are.")]


def trace(
    model: ModelArgument,
    text: TextArgument = None,
    /,
    *,
    file: FileOption = None,
    select: Select = None,
    out: Out = None,
    list_: ListNames = False,
    as_task: AsTask = False,
    pair: Pair = None,
    ids: Ids = False,
    json: Json = False,
    options: Options = MODEL_DEFAULTS,
) -> None:
    """Any value of a pass over a text, by name.

    Values marked `derived` are recomputed from recorded ones: attention's scores and weights, a norm's statistics.
    """
    if list_:
        text = ""
    else:
        check_given(out, text if file is None else file)
        text = read_text(text, file)
    loaded = options.open(model, ids)
    if as_task or pair:
        loaded = task_input(loaded, pair)
    if out is None or list_:
        show_names(loaded, select or ["**"], json)
    else:
        write(loaded, text, select or ["**"], out, json)


def trace_translation(
    model: ModelArgument,
    text: SourceText = None,
    /,
    *,
    target: Target = None,
    select: Select = None,
    out: Out = None,
    list_: ListNames = False,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    verify: Verify = False,
) -> None:
    """Any value of a pass over a sentence and its translation, by name."""
    if not list_:
        check_given(out, text)
    translator = open_translator(model, device=device, dtype=dtype, verify=verify)
    if out is None or list_:
        show_names(translator.given("."), select or ["**"], json)
    else:
        write(*given_source(translator, text, target), select or ["**"], out, json)


def check_given(out: Path | None, text: str | Path | None) -> None:
    """Raise `UsageError` where a file is to be written and a text or the name of the file is missing."""
    if out is None or text is None:
        raise UsageError("give a TEXT and --out FILE, or --list for the names that there are")


def show_names(loaded: LanguageModel, select: list[str], json: bool) -> None:
    """The names that the globs match, derived ones marked."""
    from foretell.model.structure import model_structure
    from foretell.paths import select as select_names

    structure = model_structure(loaded.decoder)
    names = select_names(select, structure.names)
    derived = [name for name in names if structure[name].is_derived]
    if json:
        print_json({"names": names, "derived": derived})
    else:
        print("\n".join(f"{name:<{NAME_WIDTH}}  derived" if name in derived else name for name in names))


def write(loaded: LanguageModel, text: str, select: list[str], out: Path, json: bool) -> None:
    """Trace one pass and write its values."""
    import torch

    from foretell.files import check_target
    from foretell.insight.recorded_values import FORMAT
    from foretell.insight.trace import Trace

    check_target(out, FORMAT.encode())
    ids = loaded.encode_fitting(text)
    with torch.inference_mode(), Trace(loaded, select) as trace:
        loaded.decoder(torch.tensor([ids], device=loaded.device))
    pieces = [loaded.tokenizer.text_of(token) for token in ids]
    memory = {} if loaded.memory is None else {"memory": json_module.dumps(loaded.memory.pieces)}
    trace.save(out, {"text": text, "ids": json_module.dumps(ids), "pieces": json_module.dumps(pieces), **memory})
    values = [describe(trace, name) for name in trace.names()]
    if json:
        print_json({"path": str(out), "ids": ids, "values": values})
        return
    for value in values:
        shape = " x ".join(str(size) for size in value["shape"])
        results().print(f"{value['name']:<{NAME_WIDTH}} {shape:>16}{'  derived' if value['derived'] else ''}")
    note(f"{len(values)} values of {len(ids)} tokens are in {out}")


def describe(trace: Trace, name: str) -> dict[str, Any]:
    """One line of the report."""
    value = trace[name]
    dtype = str(value.dtype).removeprefix("torch.")
    return {"name": name, "shape": list(value.shape), "dtype": dtype, "derived": trace.is_derived(name)}
