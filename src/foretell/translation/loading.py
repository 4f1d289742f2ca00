"""`load_translator`: the translation model that a MODEL argument names."""

from __future__ import annotations

from pathlib import Path

from foretell.device import DeviceName, DtypeName, choose_device, choose_inference_dtype
from foretell.files import printable_name
from foretell.finding import check_files, find_model
from foretell.model.quantized_linear import Scheme
from foretell.translation.marian import is_marian, load_marian
from foretell.translation.translator import Translator, load_saved


def load_translator(
    argument: str | Path,
    device: DeviceName = "auto",
    dtype: DtypeName = "auto",
    *,
    verify: bool | None = False,
    quantize: Scheme | None = None,
) -> Translator:
    """Load a translation model for inference, named as for `foretell.load`; verify, quantize: as there."""
    if quantize is not None:
        plain = load_translator(argument, device, "float32", verify=verify)
        return plain.quantize(quantize, choose_inference_dtype(dtype, plain.device))
    chosen = choose_device(device)
    directory = find_model(str(argument))
    check_files(directory, in_full=verify)
    read = load_marian if is_marian(directory) else load_saved
    return read(directory, chosen, choose_inference_dtype(dtype, chosen), name=printable_name(argument))
