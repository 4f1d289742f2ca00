"""`foretell info MODEL`: shape, cost, weights and trace names of a model or preset; and `foretell warm MODEL`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.command_line import TRANSLATION, part_kinds
from foretell.cli.terminal import messages, note, open_model, print_json, read_description, write
from foretell.errors import UsageError, counted
from foretell.storage.files import printable_name
from foretell.system.installation import describe_installation, installation_text

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

    from foretell.config.model import ModelConfig
    from foretell.config.quantization import QuantizationConfig
    from foretell.language_model import LanguageModel
    from foretell.model.decoder import Decoder
    from foretell.saved_model.config_file import StoredWeight
    from foretell.text import Tokenizer
    from foretell.typesetting.document import DocumentSection


def info(
    model: Annotated[str | None, Parameter(help="A model, or the name of a preset: tiny, gpt2, gpt3-175b, ...")] = None,
    /,
    *,
    machine: Annotated[
        bool, Parameter(help="Print versions, processor and installed extras, for a bug report.")
    ] = False,
    names: Annotated[bool, Parameter(help="List the modules, and the values to trace and explain.")] = False,
    kernels: Annotated[bool, Parameter(help="List the kernels that generation uses on this machine.")] = False,
    verify: arguments.Verify = False,
    json: arguments.Json = False,
) -> None:
    """Paths, shapes and sizes of all weights, and cost; trace names. Without a MODEL: the models on this machine.

    The path of a module is also the name of its output, and the key of its
    weights on disk. --names and --kernels load the model.
    """
    if machine and (model is not None or names or kernels or verify):
        raise UsageError("--machine is about no model; leave out MODEL, --names, --kernels and --verify")
    if machine:
        return print_json(describe_installation()) if json else write(installation_text())
    if model is None:
        if names or kernels or verify:
            raise UsageError("--names, --kernels and --verify are about a model; give a MODEL")
        return list_models(json)
    if config := find_preset(model):
        if verify:
            raise UsageError(f"{model} is a preset, a shape without weights to verify; leave out --verify")
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


def list_models(json: bool) -> None:
    """Print the models that are on this machine, with the architecture and the size that their files state."""
    from foretell import finding
    from foretell.typesetting.document import DocumentSection, Paragraph, Table
    from foretell.typesetting.numbers import format_bytes
    from foretell.typesetting.text import document_text

    models = list(finding.list_models())
    if json:
        return print_json({"models": [asdict(each) for each in models]})
    rows = [(each.name, each.architecture, format_bytes(each.bytes)) for each in models]
    hint = "What a model contains: foretell info MODEL. Others: hub:owner/name, or the path of a folder or GGUF file."
    return write(
        document_text(DocumentSection("models", [Table(("MODEL", "architecture", "size"), rows), Paragraph(hint)]))
    )


def warm(
    model: arguments.Model, /, *, json: arguments.Json = False, options: arguments.Options = arguments.MODEL_DEFAULTS
) -> None:
    """Compile the kernels that a model generates with.

    It takes about ten seconds, once per version and type of processor. A
    generation whose kernels are missing runs without them, and has them
    compiled in the background; `foretell warm` does it before.
    """
    decoder = open_model(model, **vars(options)).decoder
    from rich.progress import track

    from foretell.model.kernels import compile_kernels, needed_kernels

    needed = needed_kernels(decoder)
    if not needed:
        return print_json({"compiled": [], "ready": []}) if json else note("this model generates without kernels")
    missing = [name for name, is_compiled in needed.items() if not is_compiled]
    bar = track(compile_kernels(missing), "compiling", len(missing), console=messages(), transient=True)
    compiled = list(bar)
    if json:
        return print_json({"compiled": compiled, "ready": list(needed)})
    return write(f"{len(needed)} kernels are ready, {len(compiled)} compiled now: {'; '.join(needed)}")


def find_preset(argument: str) -> ModelConfig | None:
    """The shape of a preset, if the argument is a preset's name but not a path or run."""
    from foretell.model.presets import ASSUMED_VOCABULARY, PRESETS, SIZES, preset_config
    from foretell.runs.run import RUNS

    if argument not in PRESETS or Path(argument).exists() or (RUNS / argument).exists():
        return None
    return preset_config(argument, **({"vocab_size": ASSUMED_VOCABULARY} if argument in SIZES else {}))


def describe_stored(argument: str, verify: bool) -> dict[str, Any] | None:
    """Facts about a model from its configuration and the headers of its files, without torch."""
    stored = read_description(argument, verify)
    if stored is None:
        return None
    facts = describe(printable_name(argument), stored.config, stored.tokenizer, stored.weights())
    return {**facts, "quantization": as_values(stored.quantization)}


def describe_preset(name: str, config: ModelConfig, names: bool) -> dict[str, Any]:
    """Facts about a preset, as if its weights were in float32."""
    from foretell.model.presets import ASSUMED_VOCABULARY, SIZES

    assumed = f"; its vocabulary comes from the text, {ASSUMED_VOCABULARY:,} is assumed" if name in SIZES else ""
    note(f"{name} is a preset: a shape without weights{assumed}")
    facts = describe(name, config, None, weights_of_shape(config))
    if not names:
        return facts
    from foretell.model.init import empty_decoder

    return {**facts, **describe_names(empty_decoder(config))}


def describe_model(argument: str, verify: bool, names: bool, kernels: bool) -> dict[str, Any]:
    """Facts about a model, which is loaded, with its names and kernels if requested."""
    if {*TRANSLATION} & {*part_kinds(argument)}:
        from foretell.cli.translate import open_translator

        model = open_translator(argument, device="cpu", verify=verify).given("")
    else:
        model = open_model(argument, device="cpu", verify=verify)
    facts = describe(model.name, model.decoder.config, model.tokenizer, weights_in_memory(model))
    listed = describe_names(model.decoder) if names else {}
    chosen = describe_kernels(model.decoder) if kernels else {}
    return {**facts, **listed, "quantization": as_values(model.quantization), **chosen}


def as_values(settings: QuantizationConfig | None) -> dict[str, Any] | None:
    """The settings of a quantised model, as plain values."""
    return None if settings is None else settings.model_dump(mode="json")


def describe_kernels(decoder: Decoder) -> dict[str, Any]:
    """The modules that generation replaces on this machine, and the one that ends a compiled pass."""
    from foretell.model.kernels import find_obstacle, prepare_for_generation

    plain = dict(decoder.named_modules())
    kernels = [
        {
            "path": path,
            "plain": type(plain[path]).__name__,
            "kernel": type(module).__name__,
            "precision": precision_of(plain[path], decoder.dtype),
        }
        for path, module in prepare_for_generation(decoder, wait=True).named_modules()
        if path and type(module) is not type(plain[path])
    ]
    return {"kernels": kernels, "program": {"ends_at": find_obstacle(decoder)}}


def precision_of(module: Module, dtype: torch.dtype) -> str:
    """The schemes of the quantised matrices that a module reads, or else its dtype."""
    from foretell.model.quantized_linear import QuantizedMatrix, QuantizedTiedHead
    from foretell.system.device import dtype_name

    parts = [module.token[0]] if isinstance(module, QuantizedTiedHead) else module.modules()
    schemes = {part.scheme for part in parts if isinstance(part, QuantizedMatrix)}
    return " and ".join(sorted(schemes)) or dtype_name(dtype)


def describe_names(decoder: Decoder) -> dict[str, Any]:
    """The paths of the modules, and the names of the values to trace."""
    from foretell.model.structure import model_structure

    return {
        "modules": [path for path, _ in decoder.named_modules() if path],
        "names": [
            {
                "name": trace_name,
                "derived": value.is_derived,
                "formula": value.formula or "returned",
                "backward": value.backward or None,
            }
            for trace_name, value in model_structure(decoder).values.items()
        ],
    }


def describe(
    name: str, config: ModelConfig, tokenizer: Tokenizer | None, weights: Iterable[StoredWeight]
) -> dict[str, Any]:
    """Configuration, tokenizer, cost and all weights, as plain values."""
    from foretell.text import id_tokenizer

    listed = [asdict(weight) for weight in weights]
    parameters = sum(weight["parameters"] for weight in listed)
    kind = tokenizer and tokenizer.kind
    if tokenizer and kind == "words" and tokenizer.fingerprint == id_tokenizer(tokenizer.vocab_size).fingerprint:
        kind = "ids"
    return {
        "name": name,
        "config": config.model_dump(mode="json"),
        "tokenizer": tokenizer
        and {"kind": kind, "vocab_size": tokenizer.vocab_size, "special": tokenizer.special_tokens},
        "parameters": parameters,
        "weight_bytes": sum(weight["bytes"] for weight in listed),
        "training_flops_per_token": config.training_flops_per_token(parameters),
        "cache_bytes_per_token": config.cache_bytes_per_token(element_bytes=4),
        "weights": listed,
    }


def weights_of_shape(config: ModelConfig) -> Iterator[StoredWeight]:
    """The weights of a new decoder, in float32."""
    from foretell.config.weight_shapes import weight_shapes
    from foretell.saved_model.config_file import StoredWeight

    for path, shape in weight_shapes(config).items():
        yield StoredWeight(path, shape, prod(shape), "float32", 4 * prod(shape))


def weights_in_memory(model: LanguageModel) -> Iterator[StoredWeight]:
    """The weights of a loaded model and its parts, including scales and minima of quantised weights."""
    from foretell.model.quantized_linear import quantized_layers
    from foretell.saved_model.config_file import StoredWeight
    from foretell.saved_model.part import stored_buffers
    from foretell.system.device import dtype_name

    quantized, buffers = quantized_layers(model.decoder), stored_buffers(model.decoder)
    for path, module in model.decoder.named_modules():
        if layer := quantized.get(path):
            shape = (layer.out_features, layer.in_features)
            size = sum(buffer.nbytes for key, buffer in buffers.items() if key.rpartition(".")[0] == path)
            yield StoredWeight(f"{path}.integers", shape, prod(shape), layer.scheme, size)
        for name, weight in module.named_parameters(path, recurse=False):
            yield StoredWeight(name, tuple(weight.shape), weight.numel(), dtype_name(weight.dtype), weight.nbytes)
    for part, outside in model.parts.items():
        for name, weight in outside.weights().items():
            path = f"{part}.{name}"
            yield StoredWeight(path, tuple(weight.shape), weight.numel(), dtype_name(weight.dtype), weight.nbytes)


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
        layer = re.compile(r"(?<=^trunk\.blocks\.)\d+")
        patterns = {layer.sub("*", entry["name"]): "derived" if entry["derived"] else "" for entry in facts["names"]}
        parts.append(Table(("value to trace and explain (*: any layer)", "from recorded ones"), [*patterns.items()]))
    if "kernels" in facts:
        columns = ("path", "kernel", "plain", "precision")
        rows = [tuple(chosen[column] for column in columns) for chosen in facts["kernels"]]
        header = ("module", "kernel that generates here", "replaces", "precision")
        parts.append(Table(header, rows or [("none: every module stays as it is", "", "", "")]))
    return DocumentSection(facts["name"], parts)


def summary(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Shape, tokenizer and cost, a row for each."""
    config, tokenizer = facts["config"], facts["tokenizer"]
    layers, heads = str(config["num_layers"]), f"{counted(config['num_heads'], 'head')} of {config['head_width']}"
    if "encoder_layers" in config:
        layers = f"{config['encoder_layers'] or layers} + {layers}"
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
        from foretell.config.quantization import QuantizationConfig

        size = f"{facts['weight_bytes'] / 1e6:,.1f} MB"
        rows.append(("weights", f"{QuantizationConfig(**settings)}; {size}"))
    if "program" in facts:
        end = facts["program"]["ends_at"]
        rows.append(
            (
                "compiled pass",
                f"ends at {end['path'] or 'the decoder'}: {end['reason']}" if end else "from ids to logits",
            )
        )
    return rows
