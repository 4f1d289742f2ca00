"""`foretell trace MODEL TEXT --select GLOB --out FILE`: any value in a pass over a text, by name."""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.terminal import note, open_model, print_json, read_description, results
from foretell.errors import UsageError, counted

if TYPE_CHECKING:
    from foretell.language_model import LanguageModel
    from foretell.model.decoder import Decoder

NAME_WIDTH = 50
OTHER_FORMATS = (".npz", ".npy", ".pt", ".pth", ".csv", ".json", ".txt")  # misleading suffixes for safetensors


@dataclass(frozen=True)
class TracedNames:
    """The names to trace, and the file for their values."""

    select: Annotated[
        list[str] | None, Parameter(help="Names, with * for one segment and ** for any number (default: all).")
    ] = None
    out: Annotated[arguments.Output, Parameter(help="The safetensors file to write.")] = None
    overwrite: arguments.Overwrite = False
    list_: Annotated[bool, Parameter(name="--list", help="Only list the names.")] = False

    def check(self, text: str | Path | None, of_text: Mapping[str, object], argument: str = "TEXT") -> None:
        """Raise `UsageError` if text or file name is missing, or the file name has a misleading suffix.

        of_text: the options for reading the text, which have no effect on a list of names. A file that cannot be
        written is an `OutputError`.
        """
        if self.list_ != (self.out is None) or self.list_ != (text is None):
            raise UsageError(f"give {argument} and --out FILE for values, or --list alone for their names")
        if self.out is None:
            if given := [name for name, value in of_text.items() if value]:
                raise UsageError(f"--{given[0]} is for a {argument}, and --list reads none; leave it out")
            return
        if self.out.suffix.lower() in OTHER_FORMATS:
            raise UsageError(
                f"--out {self.out}: values are written as safetensors; name it {self.out.stem}.safetensors"
            )
        from foretell.storage.files import check_target

        check_target(self.out, overwrite=self.overwrite)

    def show(self, loaded: LanguageModel, text: str, json: bool) -> None:
        """Trace a pass and write its values, or list the names."""
        if self.out is None:
            self.list_names(loaded.decoder, json)
        else:
            write(loaded, text, self.select or ["**"], self.out, self.overwrite, json)

    def list_stored(self, model: str, json: bool) -> bool:
        """List the names of a model's values without reading its weights; False if that cannot be done."""
        stored = read_description(model)
        if stored is None:
            return False
        from foretell.model.init import empty_decoder

        self.list_names(empty_decoder(stored.config), json)
        return True

    def list_names(self, decoder: Decoder, json: bool) -> None:
        """List the names with derived ones marked."""
        from foretell.model.structure import model_structure
        from foretell.paths import select as select_names

        structure = model_structure(decoder)
        names = select_names(self.select or ["**"], structure.names)
        derived = [name for name in names if structure[name].is_derived]
        lines = [f"{name:<{NAME_WIDTH}}  derived" if name in derived else name for name in names]
        print_json({"names": names, "derived": derived}) if json else print("\n".join(lines))


Names = Annotated[TracedNames, Parameter(name="*")]
ALL_NAMES = TracedNames()


def trace(
    model: arguments.Model,
    text: arguments.Text = None,
    /,
    *,
    file: arguments.File = None,
    names: Names = ALL_NAMES,
    as_task: arguments.AsTask = False,
    pair: arguments.Pair = None,
    allow_special: arguments.AllowSpecial = False,
    ids: arguments.Ids = False,
    json: arguments.Json = False,
    options: arguments.Options = arguments.MODEL_DEFAULTS,
) -> None:
    """Any value of a pass over a text, by name.

    Values marked `derived` are recomputed from recorded ones: attention's scores and weights, a norm's statistics.
    """
    of_text = {"as-task": as_task, "pair": pair, "allow-special": allow_special, "ids": ids}
    names.check(text if file is None else file, of_text)
    if names.list_ and options == arguments.MODEL_DEFAULTS and names.list_stored(model, json):
        return
    text = "" if names.list_ else arguments.read_text(text, file)
    loaded = open_model(model, ids=ids, allow_special=allow_special, texts=[text], **vars(options))
    if as_task or pair:
        from foretell.finetuning.predict import as_task_input

        loaded = as_task_input(loaded, pair or ())
    names.show(loaded, text, json)


def write(loaded: LanguageModel, text: str, select: list[str], out: Path, overwrite: bool, json: bool) -> None:
    import torch

    from foretell.insight.trace import Trace
    from foretell.system.device import dtype_name

    ids = loaded.encode_fitting(text)
    with torch.inference_mode(), Trace(loaded, select) as trace:
        loaded.decoder(torch.tensor([ids], device=loaded.device))
    pieces = [loaded.tokenizer.text_of(token) for token in ids]
    memory = {} if loaded.memory is None else {"memory": json_module.dumps(loaded.memory.pieces)}
    metadata = {"text": text, "ids": json_module.dumps(ids), "pieces": json_module.dumps(pieces), **memory}
    trace.save(out, metadata, overwrite=overwrite)
    values = []
    for name in trace.names():
        value, derived = trace[name], trace.is_derived(name)
        dtype = dtype_name(value.dtype)
        values.append({"name": name, "shape": list(value.shape), "dtype": dtype, "derived": derived})
        if not json:
            shape = " x ".join(map(str, value.shape))
            results().print(f"{name:<{NAME_WIDTH}} {shape:>16}{'  derived' if derived else ''}")
    if json:
        print_json({"path": str(out), "ids": ids, "values": values})
    else:
        note(f"{counted(len(values), 'value')} of {counted(len(ids), 'token')} are in {out}")
