"""`foretell quantize MODEL OUT --to int8|int4`: write a model with integer weights, and say what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from foretell.cli.arguments import Device, Json, ModelArgument, Verify, Whole
from foretell.cli.convert import find_weights_of
from foretell.cli.terminal import ProgressLine, open_model, print_json, results
from foretell.errors import UsageError

if TYPE_CHECKING:
    from foretell.quantization.quantize import QuantizationReport

EMBEDDED = "the language reference inside Python"


def quantize(
    model: ModelArgument,
    out: Annotated[Path, Parameter(help="The new directory.")],
    /,
    *,
    to: Annotated[Literal["int8", "int4"], Parameter(help="int8 or int4.", show_choices=False)],
    group: Annotated[
        int | None,
        Whole,
        Parameter(help="Inputs that share a scale; default: 64 in int8, 32 in int4, or less where that divides."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        Parameter(
            negative="", consume_multiple=False, help="A glob of module paths that stay as they are; may be repeated."
        ),
    ] = None,
    calibrate: Annotated[
        str | None, Parameter(help="Texts for which int4 weights are rounded: a file or folder.", show_default=False)
    ] = None,
    text: Annotated[
        str | None,
        Parameter(
            help="Texts to measure on; default: half of --calibrate's, or Python's reference.", show_default=False
        ),
    ] = None,
    verify: Verify = False,
    json: Json = False,
    device: Device = "auto",
) -> None:
    """Write a model with integer weights, and report what that costs.

    The report has the error of each kind of layer, the sizes, and the perplexity of a text before and after.
    """
    from foretell.files import check_new

    check_new(out)
    if calibrate is not None and to != "int4":
        raise UsageError(f"only int4 is calibrated; {to} loses too little, leave --calibrate out")
    loaded = open_model(model, device, "float32", verify=verify)
    from foretell.convert.huggingface import stored_dtype
    from foretell.model.quantized_linear import make_quantization
    from foretell.quantization.quantize import choose_texts, quantize_with_report, read_texts

    loaded.check_not_quantized("quantize")
    settings = make_quantization(loaded.decoder, to, group, keep or ())
    measured = read_texts(text) if text or not calibrate else None
    texts = choose_texts(loaded, measured, None if calibrate is None else read_texts(calibrate))
    quantized, report = quantize_with_report(loaded, settings, texts, ProgressLine)
    source = find_weights_of(model)
    quantized.save(out, stored_dtype(source))
    sizes = {"before": weights_size(source), "after": weights_size(out)}
    facts = {"path": str(out), "measured_on": text or calibrate or EMBEDDED, "bytes": sizes, **report.to_json()}
    print_json(facts) if json else show(model, facts, report)


def weights_size(directory: Path) -> int:
    """The bytes of the files with weights."""
    from foretell.convert.huggingface import find_tensors

    return sum(file.stat().st_size for file in {tensor.file for tensor in find_tensors(directory).values()})


def show(model: str, facts: dict[str, Any], report: QuantizationReport) -> None:
    """Print the report as tables of at most 80 columns."""
    console, settings, sizes = results(), report.settings, facts["bytes"]
    rounding = "calibrated" if settings.calibrated else "rounded to nearest"
    console.print(f"{facts['path']}: {model} in {settings.to}, groups of {settings.group}, {rounding}\n")
    console.print(f"{'error of the output':<44} {'layers':>6} {'mean':>9} {'largest':>9}")
    for kind in facts["kinds"]:
        console.print(f"{kind['kind']:<44} {kind['count']:>6} {kind['mean']:>9.3%} {kind['largest']:>9.3%}")
    before, after = report.before.perplexity, report.after.perplexity
    ratio = sizes["before"] / sizes["after"]
    size = f"{sizes['before'] / 1e6:,.1f} MB before, {sizes['after'] / 1e6:,.1f} MB after"
    console.print(f"\nsize        {size}: {ratio:.1f} times smaller")
    console.print(f"perplexity  {before:,.3f} before, {after:,.3f} after: {report.perplexity_change:+.2%}")
    console.print(f"measured on {report.before.tokens:,} tokens of {facts['measured_on']}")
