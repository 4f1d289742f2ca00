"""`foretell convert`: write a model as a saved one, with integer weights or for other programs. `push`: to the Hub."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from foretell.cli import arguments
from foretell.cli.terminal import ProgressLine, note, open_model, print_json, report, results, write
from foretell.errors import UsageError, counted

if TYPE_CHECKING:
    from foretell.language_model import LanguageModel


IntegerForm = Literal["int8", "int4"]
INTEGERS = Group("With --to int8 or int4", sort_key=1)
EXPORTS = ("huggingface", "gguf", "peft")
TARGETS = {  # option: the values of --to with which it has an effect; None: without --to
    "family": EXPORTS,
    "dtype": (None, *EXPORTS),
    **dict.fromkeys(("head", "calibrate"), ("int4",)),
    **dict.fromkeys(("group", "keep", "text", "device"), ("int8", "int4")),
}


def of_integers(help: str, **options: Any) -> Parameter:
    return Parameter(help=help, group=INTEGERS, **options)


@dataclass(frozen=True)
class IntegerOptions:
    """How weights are rounded, and on which texts the loss of quality is measured."""

    group: Annotated[
        int | None,
        Parameter(
            help="Inputs that share a scale (default: 64 in int8, 32 in int4, or less to divide the widths).",
            group=INTEGERS,
        ),
    ] = None
    head: Annotated[
        IntegerForm | None, of_integers("Of an int4 model: int8 (default), or int4, faster but less accurate.")
    ] = None
    keep: Annotated[
        list[str] | None,
        of_integers("A glob of module paths that are not quantised; may be repeated.", consume_multiple=False),
    ] = None
    calibrate: Annotated[str | None, of_integers("Texts for which int4 weights are rounded: a file or folder.")] = None
    text: Annotated[
        str | None, of_integers("Texts to measure on (default: half of --calibrate's, or Python's reference).")
    ] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mps"] | None, of_integers("Where to compute: auto (default), cpu, cuda or mps.")
    ] = None


def convert(
    source: arguments.Model,
    target: Annotated[Path, arguments.OUTPUT, Parameter(help="The new directory, or the new file.")],
    /,
    *,
    to: Annotated[
        Literal["int8", "int4", "huggingface", "gguf", "peft"] | None,
        Parameter(
            help="int8 or int4 (weights as integers), huggingface, gguf, or peft (LoRA updates alone) "
            "(default: a saved model).",
        ),
    ] = None,
    adapter: Annotated[
        Path | None, Parameter(help="Apply this LoRA adapter, a directory in peft's layout, to SOURCE.")
    ] = None,
    family: Annotated[
        str | None,
        Parameter(
            help="gpt2, openai-gpt, llama, mistral, qwen2, qwen3, phi3, gpt_neox, stablelm, phi; for gguf gpt2, llama, "
            "qwen2, qwen3, olmo2, gemma3 (default: what fits)."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        Parameter(help="float32, float16 or bfloat16; gguf: f32, f16, q8_0 or packed (default: as in SOURCE)."),
    ] = None,
    verify: arguments.Verify = False,
    json: arguments.Json = False,
    integers: Annotated[IntegerOptions, Parameter(name="*")] = IntegerOptions(),
) -> None:
    """Write a model: as a saved model, with integer weights, or in another program's format.

    With integer weights, the report has the error of each kind of layer, the sizes, and the perplexity of a text before
    and after. Other formats are read back by independent code and compared with the model; export-report.json has the
    differences.
    """
    from foretell.storage.files import check_new

    check_new(target)
    check_options(to, {"family": family, "dtype": dtype, **vars(integers)})
    if to is None:
        return save(source, target, adapter, dtype, verify, json)
    if to == "int8" or to == "int4":
        return quantize(source, target, to, adapter, integers, verify, json)
    if to == "peft":
        return convert_adapter(source, target, adapter, family, dtype, verify, json)
    check_export(to, family, dtype)
    model = open_model(source, device="cpu", dtype="float32", adapter=adapter, verify=verify)
    exported = export_model(model, source, target, to, family, dtype)
    for line in exported.get("notes", ()):
        note(line)
    if json:
        return print_json({"path": str(target), **exported})
    from foretell.typesetting.document import DocumentSection, Paragraph, Table
    from foretell.typesetting.text import document_text

    size = sum(file["bytes"] for file in exported["files"].values())
    title = f"{target}: {exported['family']} ({exported['architecture']}), {exported['dtype']}, {size / 1e6:,.1f} MB"
    labels = [Paragraph(f"labels: {', '.join(exported['labels'])}")] if "labels" in exported else []
    rows = classifier_rows(exported) if labels else export_rows(exported)
    return write(document_text(DocumentSection(title, [*labels, Table(("", ""), rows)])))


def check_options(to: str | None, given: dict[str, Any]) -> None:
    """Refuse an option of another target."""
    where = f"with --to {to}" if to else "without --to"
    for name, targets in TARGETS.items():
        if given[name] is not None and to not in targets:
            raise UsageError(f"--{name} has no effect {where}; it goes with --to {', '.join(filter(None, targets))}")


def save(source: str, target: Path, adapter: Path | None, dtype: str | None, verify: bool, json: bool) -> None:
    """Write a model of any layout as a saved model."""
    from foretell.convert.huggingface import stored_dtype
    from foretell.system.device import dtype_name, find_dtype

    chosen = None if dtype is None else find_dtype(dtype)
    model = open_model(source, device="cpu", dtype="float32", adapter=adapter, verify=verify)
    chosen = chosen or stored_dtype(find_weights_of(source))
    model.save(target, chosen)
    size = weights_size(target)
    if json:
        return print_json({"path": str(target), "dtype": dtype_name(chosen), "bytes": size})
    return write(f"{target}: a saved model in {dtype_name(chosen)}, {size / 1e6:,.1f} MB")


def check_export(to: str, family: str | None, dtype: str | None) -> None:
    """Refuse a family or precision that a format does not have, before a model is loaded."""
    from foretell.convert.export import EXPORTERS
    from foretell.convert.families import find_family

    if family is not None:
        find_family(family, EXPORTERS[to].families)
    if dtype is not None:
        EXPORTERS[to].check_precision(to, dtype)


def export_model(
    model: LanguageModel, source: str, target: Path, to: str, family: str | None, dtype: str | None
) -> dict[str, Any]:
    """Write a model (a classifier with its head) in a format; returns the report of the comparison."""
    from foretell.convert.export import EXPORTERS
    from foretell.convert.huggingface import stored_dtype

    exporter = EXPORTERS[to]
    precision = exporter.precision_for(model, dtype, stored_dtype(find_weights_of(source)))
    if "task_head" in model.parts and to == "huggingface":
        from foretell.finetuning.export_classifier import export_classifier

        return export_classifier(model, target, precision, family)
    return exporter.export(model, target, precision, family)


def push(
    source: arguments.Model,
    target: Annotated[str, Parameter(help="The place on the Hub, hub:owner/name.")],
    /,
    *,
    update: Annotated[bool, Parameter(help="Add a commit to an existing repository.")] = False,
    private: Annotated[bool, Parameter(help="Make a new repository private.")] = False,
    family: Annotated[str | None, Parameter(help="Family as in convert --to huggingface (default: what fits).")] = None,
    dtype: Annotated[str | None, Parameter(help="float32, float16 or bfloat16 (default: as in SOURCE).")] = None,
    verify: arguments.Verify = False,
    json: arguments.Json = False,
) -> None:
    """Write a model to the Hugging Face Hub, with a model card.

    transformers and foretell load it: as after `convert --to huggingface`. The card has the data, digests,
    loss and bits per byte of the run, and how to load the model. Needs a token: HF_TOKEN, or hf auth login.
    """
    import tempfile

    from foretell.convert.push import find_target, model_card
    from foretell.finding import find_model
    from foretell.runs.checkpoint import Checkpoint, is_checkpoint

    check_export("huggingface", family, dtype)
    hub = find_target(target, private=private, update=update)
    model = open_model(source, device="cpu", dtype="float32", verify=verify)
    directory = find_model(source)
    checkpoint = Checkpoint(directory) if is_checkpoint(directory) else None
    with tempfile.TemporaryDirectory() as folder:
        exported = export_model(model, source, Path(folder) / "model", "huggingface", family, dtype)
        address = hub.upload(Path(folder) / "model", model_card(hub.repository, exported, checkpoint))
    if json:
        return print_json({"path": target, "commit": address, **exported})
    return write(f"{target}: {exported['family']} in {exported['dtype']}, {address}")


def find_weights_of(source: str) -> Path:
    """The directory with the weights of a MODEL; for an adapter, the directory of its base model."""
    from foretell.convert.peft import base_of, is_adapter
    from foretell.finding import find_model

    directory = find_model(source)
    return find_model(base_of(directory)) if is_adapter(directory) else directory


def convert_adapter(
    source: str, target: Path, adapter: Path | None, family: str | None, dtype: str | None, verify: bool, json: bool
) -> None:
    """Write the LoRA updates of a model in peft's layout."""
    from foretell.convert.export import DTYPES
    from foretell.convert.peft import export_peft

    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"--to peft writes {', '.join(DTYPES)}, not {dtype}")
    model = open_model(source, device="cpu", dtype="float32", adapter=adapter, keep_adapters=True, verify=verify)
    report = export_peft(model, target, DTYPES[dtype or "float32"], family)
    if json:
        print_json({"path": str(target), **report})
        return
    layers = report["layers"]
    results().print(
        f"{target}: LoRA of rank {report['rank']} for {counted(len(layers), 'layer')} of a {report['family']}"
    )
    note(f"it belongs on the same base model: PeftModel.from_pretrained(base, '{target}')")


def classifier_rows(exported: dict[str, Any]) -> list[tuple[str, str]]:
    """The difference between an exported classifier and the model."""
    return [
        ("outputs", f"{exported['logit_difference']:.1e} apart at most, {exported['logit_bound']:.1e} allowed"),
        ("tokenizer", f"{exported['texts']} of {exported['texts']} texts are the same, special tokens included"),
    ]


def export_rows(exported: dict[str, Any]) -> list[tuple[str, str]]:
    """The difference between an exported model and the model."""
    probes, tokenizer, rounding = exported["probes"], exported["tokenizer"], exported["rounding"]
    nearest = min(probes, key=lambda probe: probe["logit_bound"] - probe["logit_difference"])
    greedy, same = (sum(probe[key] for probe in probes) for key in ("greedy_tokens", "greedy_same"))
    cut = f", cut as by llama.cpp's {exported['pre_tokenizer']}" if "pre_tokenizer" in exported else ""
    divergence = max(probe["divergence"] for probe in probes)
    rows = [
        ("logits", f"{nearest['logit_difference']:.1e} apart at most, {nearest['logit_bound']:.1e} allowed"),
        ("divergence", f"{divergence:.1e} nats at most, {exported['bounds']['divergence']:.1e} allowed"),
        ("greedy", f"{same} of {greedy} tokens are the same"),
        ("tokenizer", f"{tokenizer['same']} of {tokenizer['texts']} texts are the same{cut}"),
    ]
    if rounding:
        change = f"{rounding['logit_change']:.1e} in a logit at most, {rounding['divergence']:.1e} nats"
        rows.append(("rounding", change))
    return rows


def quantize(
    source: str, target: Path, to: IntegerForm, adapter: Path | None, options: IntegerOptions, verify: bool, json: bool
) -> None:
    """Write a model with integer weights, and report the error of each kind of layer, the sizes and the perplexity."""
    from foretell.convert.huggingface import stored_dtype
    from foretell.convert.quantize import WeightFiles
    from foretell.convert.quantize import quantize as quantize_model
    from foretell.model.quantize_decoder import check_schemes

    head = options.head or "int8"
    check_schemes(to, head)
    model = open_model(source, device=options.device or "auto", dtype="float32", adapter=adapter, verify=verify)
    quantized, result = quantize_model(
        model,
        to,
        group=options.group,
        head=head,
        keep=options.keep or (),
        calibrate=options.calibrate,
        text=options.text,
        step=ProgressLine,
    )
    weights = find_weights_of(source)
    quantized.save(target, stored_dtype(weights))
    report(replace(result, files=WeightFiles(target, weights_size(weights), weights_size(target))), json)


def weights_size(directory: Path) -> int:
    from foretell.convert.huggingface_files import find_tensors

    if directory.is_file():  # GGUF
        return directory.stat().st_size
    return sum(file.stat().st_size for file in {tensor.file for tensor in find_tensors(directory).values()})
