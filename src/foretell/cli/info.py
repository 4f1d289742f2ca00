"""`foretell info MODEL`: the shape of a model or preset, its cost, weights and trace names; `foretell warm MODEL`."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.terminal import messages, note, open_model, print_json, write
from foretell.errors import UsageError
from foretell.installation import describe_installation, installation_text

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

    from foretell.config import ModelConfig
    from foretell.model.decoder import Decoder
    from foretell.text import Tokenizer
    from foretell.typesetting.document import DocumentSection


def info(
    model: Annotated[str | None, Parameter(help="A model, or the name of a preset: tiny, gpt2, gpt3-175b, ...")] = None,
    /,
    *,
    machine: Annotated[
        bool, Parameter(help="Versions, processor and installed extras instead, for a bug report.")
    ] = False,
    names: Annotated[bool, Parameter(help="Also list the modules, and the values to trace and explain.")] = False,
    kernels: Annotated[bool, Parameter(help="Also list the kernels that generation uses on this machine.")] = False,
    verify: arguments.Verify = False,
    json: arguments.Json = False,
) -> None:
    """Paths, shapes and sizes of all weights, and cost; trace names.

    The path of a module is also the name of its output, and the key of its
    weights on disk. --names and --kernels load the model.
    """
    if machine:
        return print_json(describe_installation()) if json else write(installation_text())
    if model is None:
        raise UsageError("info needs a MODEL, or --machine")
    if config := find_preset(model):
        facts = describe_preset(model, config, names)
        if kernels:
            note("a preset has no weights, so no kernels are chosen")
    else:
        stored = None if names or kernels else describe_stored(model, verify)
        facts = stored or describe_model(model, verify, names, kernels)
    if json:
        return print_json(facts)
    from foretell.typesetting.text import document_text

    return write(document_text(document(facts)))


def warm(
    model: arguments.Model, /, *, json: arguments.Json = False, options: arguments.Options = arguments.MODEL_DEFAULTS
) -> None:
    """Compile the kernels that a model generates with.

    It takes about ten seconds, once per version and type of processor. A
    generation whose kernels are missing runs without them, and has them
    compiled in the background; `foretell warm` does it before.
    """
    decoder = options.open(model).decoder
    from foretell.model.kernels.fast_decoder import has_numba, is_worthwhile

    if not has_numba():
        raise UsageError("kernels need numba: pip install numba")
    if not is_worthwhile(decoder, None):
        return print_json({"compiled": [], "ready": []}) if json else note("this model generates without kernels")
    from rich.progress import track

    from foretell.model.kernels.compiling import is_compiled
    from foretell.model.kernels.warming import compile_kernels, needed_kernels

    needed = needed_kernels(decoder)
    missing = [name for name in needed if not is_compiled(name)]
    bar = track(compile_kernels(missing), "compiling", len(missing), console=messages(), transient=True)
    compiled = list(bar)
    if json:
        return print_json({"compiled": compiled, "ready": needed})
    return write(f"{len(needed)} kernels are ready, {len(compiled)} compiled now: {'; '.join(needed)}")


def find_preset(argument: str) -> ModelConfig | None:
    """The shape of a preset, if the argument names one and neither a path nor a run."""
    from foretell.model.presets import ASSUMED_VOCABULARY, PRESETS, SIZES, preset_config
    from foretell.runs.run import RUNS

    if argument not in PRESETS or Path(argument).exists() or (RUNS / argument).exists():
        return None
    return preset_config(argument, **({"vocab_size": ASSUMED_VOCABULARY} if argument in SIZES else {}))


def describe_stored(argument: str, verify: bool) -> dict[str, Any] | None:
    """The facts about a saved model from its configuration and the header of its weights, without torch.

    None for other layouts, and for updates or an encoder inside the model.
    """
    from foretell.files import printable_name
    from foretell.finding import check_files, find_model
    from foretell.saved_model.config_file import read_stored_model

    directory = find_model(argument)
    check_files(directory, in_full=verify)
    stored = read_stored_model(directory)
    if stored is None:
        return None
    for line in stored.tokenizer.notes:
        note(line)
    weights = sorted(
        (asdict(weight) for weight in stored.weights()), key=lambda weight: in_reading_order(weight["path"])
    )
    parameters = sum(weight["parameters"] for weight in weights)
    facts = describe(printable_name(argument), stored.config, stored.tokenizer, parameters, weights)
    settings = stored.quantization
    return {**facts, "quantization": settings and settings.model_dump(mode="json")}


def in_reading_order(path: str) -> tuple[bool, list[tuple[int, str]]]:
    """A key that sorts paths by name, layers by number, and the head to the end."""
    return path.startswith("head."), [(len(part) if part.isdecimal() else 0, part) for part in path.split(".")]


def describe_preset(name: str, config: ModelConfig, names: bool) -> dict[str, Any]:
    """The facts about a preset, from a decoder without weights."""
    from foretell.model.init import empty_decoder
    from foretell.model.presets import ASSUMED_VOCABULARY, SIZES

    assumed = f"; its vocabulary comes from the text, {ASSUMED_VOCABULARY:,} is assumed" if name in SIZES else ""
    note(f"{name} is a preset: a shape without weights{assumed}")
    return describe_decoder(name, empty_decoder(config), None, names)


def describe_model(argument: str, verify: bool, names: bool, kernels: bool) -> dict[str, Any]:
    """The facts about a model that can be loaded, with its names and kernels if asked for."""
    model = open_model(argument, "cpu", "auto", verify=verify)
    facts = describe_decoder(model.name, model.decoder, model.tokenizer, names)
    settings = model.quantization
    chosen = {"kernels": describe_kernels(model.decoder)} if kernels else {}
    return {**facts, "quantization": settings and settings.model_dump(mode="json"), **chosen}


def describe_kernels(decoder: Decoder) -> list[dict[str, str]]:
    """Path, plain class, class and precision of the modules that a generation on this machine replaces."""
    from foretell.model.kernels.fast_decoder import with_fast_kernels

    plain = dict(decoder.named_modules())
    return [
        {
            "path": path,
            "plain": type(plain[path]).__name__,
            "kernel": type(module).__name__,
            "precision": precision_of(plain[path], decoder.dtype),
        }
        for path, module in with_fast_kernels(decoder, wait=True).named_modules()
        if type(module) is not type(plain[path])
    ]


def precision_of(module: Module, dtype: torch.dtype) -> str:
    """The schemes of the quantised matrices that a module reads, or else its dtype."""
    from foretell.device import dtype_name
    from foretell.model.quantized_linear import QuantizedMatrix, QuantizedTiedHead

    parts = [module.token[0]] if isinstance(module, QuantizedTiedHead) else module.modules()
    schemes = {part.scheme for part in parts if isinstance(part, QuantizedMatrix)}
    return " and ".join(sorted(schemes)) or dtype_name(dtype)


def describe_decoder(name: str, decoder: Decoder, tokenizer: Tokenizer | None, names: bool) -> dict[str, Any]:
    """The facts about a decoder in memory or without weights, with its modules and trace names if asked for."""
    from foretell.model.cost import count_parameters
    from foretell.model.structure import model_structure

    facts = describe(name, decoder.config, tokenizer, count_parameters(decoder.config), describe_weights(decoder))
    if not names:
        return facts
    return {
        **facts,
        "modules": [path for path, _ in decoder.named_modules() if path],
        "names": [
            {"name": trace_name, "derived": value.is_derived}
            for trace_name, value in model_structure(decoder).values.items()
        ],
    }


def describe(
    name: str, config: ModelConfig, tokenizer: Tokenizer | None, decoder_parameters: int, weights: list[dict[str, Any]]
) -> dict[str, Any]:
    """Configuration, tokenizer, cost and all weights, as plain values; the cost follows from `decoder_parameters`."""
    return {
        "name": name,
        "config": config.model_dump(mode="json"),
        "tokenizer": tokenizer
        and {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "special": tokenizer.special_tokens},
        "parameters": sum(weight["parameters"] for weight in weights),
        "weight_bytes": sum(weight["bytes"] for weight in weights),
        "training_flops_per_token": config.training_flops_per_token(decoder_parameters),
        "cache_bytes_per_token": config.cache_bytes_per_token(element_bytes=4),
        "weights": weights,
    }


def describe_weights(decoder: Decoder) -> list[dict[str, Any]]:
    """Path, shape, count, type and bytes of each weight; of a quantised one with its scales and minima."""
    from foretell.device import dtype_name
    from foretell.model.quantized_linear import quantized_layers, stored_buffers

    quantized, buffers = quantized_layers(decoder), stored_buffers(decoder)
    weights: list[dict[str, Any]] = []
    for path, module in decoder.named_modules():
        if layer := quantized.get(path):
            shape = [layer.out_features, layer.in_features]
            size = sum(buffer.nbytes for key, buffer in buffers.items() if key.rpartition(".")[0] == path)
            facts = {"parameters": shape[0] * shape[1], "type": layer.scheme, "bytes": size}
            weights.append({"path": f"{path}.integers", "shape": shape, **facts})
        for name, weight in module.named_parameters(path, recurse=False):
            facts = {"parameters": weight.numel(), "type": dtype_name(weight.dtype)}
            weights.append({"path": name, "shape": list(weight.shape), **facts, "bytes": weight.nbytes})
    return weights


def document(facts: dict[str, Any]) -> DocumentSection:
    """The facts as tables of at most 80 columns."""
    from foretell.typesetting.document import DocumentSection, Table

    settings = facts.get("quantization")
    weights = [
        (
            weight["path"],
            "×".join(f"{size:,}" for size in weight["shape"]),
            f"{weight['parameters']:,}",
            *([weight["type"]] if settings else []),
        )
        for weight in facts["weights"]
    ]
    parts = [
        Table(("", ""), summary(facts)),
        Table(("weight", "shape", "parameters", *(["type"] if settings else [])), weights),
    ]
    if "names" in facts:
        patterns = name_patterns(facts["names"]).items()
        traced = [(pattern, "derived" if is_derived else "") for pattern, is_derived in patterns]
        parts.append(Table(("value to trace and explain (*: any layer)", "from recorded ones"), traced))
    if "kernels" in facts:
        columns = ("path", "kernel", "plain", "precision")
        rows = [tuple(chosen[column] for column in columns) for chosen in facts["kernels"]]
        header = ("module", "kernel that generates here", "replaces", "precision")
        parts.append(Table(header, rows or [("none: every module stays as it is", "", "", "")]))
    return DocumentSection(facts["name"], parts)


def summary(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Shape, tokenizer and cost, a row for each."""
    config, tokenizer = facts["config"], facts["tokenizer"]
    layers, heads = config["num_layers"], f"{config['num_heads']} heads of {config['head_width']}"
    flops, cache = facts["training_flops_per_token"] / 1e6, facts["cache_bytes_per_token"]
    rows = [
        ("parameters", f"{facts['parameters']:,} in {layers} layers, {heads}, width {config['width']}"),
        ("context", f"{config['context_length']} tokens, {config['position']} positions"),
        ("norm", f"{config['norm']} ({config['norm_placement']})"),
        ("feed-forward", f"{config['feedforward']} of {config['feedforward_width']}, {config['activation']}"),
    ]
    if tokenizer is None:
        rows.append(("preset", f"no weights and no tokenizer; a vocabulary of {config['vocab_size']:,}"))
    else:
        rows.append(("tokenizer", f"{tokenizer['kind']}, {tokenizer['vocab_size']:,} tokens"))
    rows += [("training", f"{flops:,.1f} MFLOP per token"), ("cache", f"{cache:,} bytes per token")]
    if settings := facts.get("quantization"):
        rounding = "calibrated" if settings["calibrated"] else "rounded to nearest"
        size = f"{facts['weight_bytes'] / 1e6:,.1f} MB"
        rows.append(("weights", f"{settings['to']} in groups of {settings['group']}, {rounding}; {size}"))
    return rows


def name_patterns(names: list[dict[str, Any]]) -> dict[str, bool]:
    """The trace names with `*` for the layer, each once; the value is whether it is derived."""
    return {re.sub(r"(?<=^trunk\.blocks\.)\d+", "*", entry["name"]): entry["derived"] for entry in names}
