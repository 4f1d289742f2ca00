"""`foretell convert SOURCE TARGET --to huggingface|gguf|peft`: write a model in another program's format."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Json, ModelArgument, Verify
from foretell.cli.terminal import note, open_model, print_json, results
from foretell.errors import UsageError


def convert(
    source: ModelArgument,
    target: Annotated[Path, Parameter(help="The new directory, or the new file.")],
    /,
    *,
    to: Annotated[
        Literal["huggingface", "gguf", "peft"],
        Parameter(help="The format: huggingface, gguf, or peft (LoRA updates alone).", show_choices=False),
    ],
    adapter: Annotated[
        Path | None, Parameter(help="Apply this LoRA adapter, a directory in peft's layout, to SOURCE.")
    ] = None,
    family: Annotated[
        str | None,
        Parameter(
            help="gpt2, openai-gpt, llama, mistral, qwen2, qwen3 (gguf: gpt2, llama, qwen2, qwen3); default: what fits."
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        Parameter(help="float32, float16 or bfloat16 (gguf: f32, f16 or q8_0); default: as in SOURCE."),
    ] = None,
    verify: Verify = False,
    json: Json = False,
) -> None:
    """Write a model in another program's format.

    The result is read back by independent code and compared with the model; export-report.json has the differences.
    """
    if to == "peft":
        return convert_adapter(source, target, adapter, family, dtype, json)
    from foretell.convert.export import EXPORTERS
    from foretell.convert.families import find_family
    from foretell.convert.huggingface import stored_dtype
    from foretell.files import check_new

    exporter = EXPORTERS[to]
    check_new(target)
    if family is not None:
        find_family(family, exporter.families)
    if dtype is not None:
        exporter.check_precision(to, dtype)
    model = open_model(source, "cpu", "float32", adapter=adapter, verify=verify)
    chosen = dtype or exporter.defaults[stored_dtype(find_weights_of(source))]
    if "task_head" in model.parts and to == "huggingface":
        from foretell.finetuning.export_classifier import export_classifier

        return show_classifier(target, export_classifier(model, target, exporter.precisions[chosen], family), json)
    report = exporter.export(model, target, exporter.precisions[chosen], family)
    for line in report["notes"]:
        note(line)
    if json:
        print_json({"path": str(target), **report})
    else:
        show(target, report)
    return None


def find_weights_of(source: str) -> Path:
    """The directory with the weights of a MODEL; of an adapter, that of its base model."""
    from foretell.convert.peft import base_of, is_adapter
    from foretell.finding import find_model

    directory = find_model(source)
    return find_model(base_of(directory)) if is_adapter(directory) else directory


def convert_adapter(
    source: str, target: Path, adapter: Path | None, family: str | None, dtype: str | None, json: bool
) -> None:
    """Write the LoRA updates of a model in peft's layout."""
    from foretell.convert.export import DTYPES
    from foretell.convert.peft import export_peft
    from foretell.files import check_new

    check_new(target)
    if dtype is not None and dtype not in DTYPES:
        raise UsageError(f"--to peft writes {', '.join(DTYPES)}, not {dtype}")
    model = open_model(source, "cpu", "float32", adapter=adapter, keep_adapters=True)
    report = export_peft(model, target, DTYPES[dtype or "float32"], family)
    if json:
        print_json({"path": str(target), **report})
        return
    layers = report["layers"]
    results().print(f"{target}: LoRA of rank {report['rank']} for {len(layers)} layers of a {report['family']}")
    note(f"it belongs on the same base model: PeftModel.from_pretrained(base, '{target}')")


def show_classifier(target: Path, report: dict[str, Any], json: bool) -> None:
    """Print what was written of a tuned classifier."""
    if json:
        return print_json({"path": str(target), **report})
    size = sum(file["bytes"] for file in report["files"].values())
    lines = [
        f"{target}: {report['family']} ({report['architecture']}), {report['dtype']}, {size / 1e6:,.1f} MB",
        f"labels      {', '.join(report['labels'])}",
        f"outputs     {report['logit_difference']:.1e} apart at most, {report['logit_bound']:.1e} allowed",
        f"tokenizer   {report['texts']} of {report['texts']} texts are the same, special tokens included",
    ]
    return results().print("\n".join(lines))


def show(target: Path, report: dict[str, Any]) -> None:
    """Print what was written and how far the result differs from the model."""
    probes, tokenizer, rounding = report["probes"], report["tokenizer"], report["rounding"]
    size = sum(file["bytes"] for file in report["files"].values())
    nearest = min(probes, key=lambda probe: probe["logit_bound"] - probe["logit_difference"])
    greedy, same = (sum(probe[key] for probe in probes) for key in ("greedy_tokens", "greedy_same"))
    cut = f", cut as by llama.cpp's {report['pre_tokenizer']}" if "pre_tokenizer" in report else ""
    lines = [
        f"{target}: {report['family']} ({report['architecture']}), {report['dtype']}, {size / 1e6:,.1f} MB",
        f"logits      {nearest['logit_difference']:.1e} apart at most, {nearest['logit_bound']:.1e} allowed",
        f"divergence  {max(probe['divergence'] for probe in probes):.1e} nats at most, "
        f"{report['bounds']['divergence']:.1e} allowed",
        f"greedy      {same} of {greedy} tokens are the same",
        f"tokenizer   {tokenizer['same']} of {tokenizer['texts']} texts are the same{cut}",
    ]
    if rounding:
        lines.append(
            f"rounding    {rounding['logit_change']:.1e} in a logit at most, {rounding['divergence']:.1e} nats"
        )
    results().print("\n".join(lines))
