"""The choice of the matrices of a decoder that are stored as integers, of their forms, and their replacement."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from torch import Tensor, nn

from foretell.config.quantization import QuantizationConfig, Scheme
from foretell.errors import ConfigError, UsageError
from foretell.model.decoder import HEAD, Decoder, ScaledEmbedding, TiedHead
from foretell.model.dispatch import plain_form
from foretell.model.quantization import FORMS, UNIT_INPUTS, MatrixForm, bits_per_weight, check_group, choose_group
from foretell.model.quantized_linear import (
    EMBEDDINGS,
    LINEARS,
    SCALED_EMBEDDINGS,
    TOKEN,
    QuantizedEmbedding,
    QuantizedTiedHead,
)
from foretell.model.surgery import replace
from foretell.paths import select
from foretell.system.device import check_name

logger = logging.getLogger(__name__)


def quantize_decoder(decoder: Decoder, config: QuantizationConfig) -> list[str]:
    """Replace linear layers, token embedding and head by quantised forms, in place; returns their paths.

    A head, and a token embedding tied to it, have the scheme `config.head`: int8 is the default in an int4 model too,
    because in int4 they lose as much quality as all other layers, or more. On the meta device the new layers have only
    shapes. A group that does not divide a width is a `ConfigError`, and a glob without a match a `UsageError`.
    """
    layers = check_groups(decoder, config)
    if layers:
        forms = {decoder.get_submodule(path): form_of(path, decoder, config) for path in layers}
        table = decoder.embed.token
        token = embedding_form(table, forms[table]) if table in forms else None
        replace(decoder, layers, lambda layer: quantized_form(layer, forms[layer], token))
    return layers


def check_groups(decoder: Decoder, config: QuantizationConfig) -> list[str]:
    """The paths of the layers to quantise; a group that does not divide their widths is a `ConfigError`."""
    layers = quantized_paths(decoder, config.keep, config.forms)
    for path in layers:
        if not isinstance(layer := decoder.get_submodule(path), TiedHead):
            form = form_of(path, decoder, config)
            check_group(path, matrix_of(layer).shape[-1], UNIT_INPUTS if form.has_units else form.group)
    return layers


def form_of(path: str, decoder: Decoder, config: QuantizationConfig) -> MatrixForm:
    """The form of a layer. A token embedding has the form of the head that is tied to it, or is in int8."""
    is_tied = isinstance(decoder.head, TiedHead)
    path = TOKEN if path == HEAD and is_tied else path
    if config.forms:
        return FORMS[config.forms[path]]
    ends: dict[str, Scheme] = {TOKEN: config.head if is_tied else "int8", HEAD: config.head}
    scheme = ends.get(path, config.to)
    return MatrixForm(scheme, config.group, has_minima=scheme == "int4")


def embedding_form(table: nn.Module, form: MatrixForm) -> QuantizedEmbedding:
    weight, is_scaled = matrix_of(table).detach(), isinstance(table, ScaledEmbedding)
    kind: type[Any] = (SCALED_EMBEDDINGS if is_scaled else EMBEDDINGS)[form.scheme]
    settings = {"scale": table.scale} if isinstance(table, ScaledEmbedding) else {}
    return kind(kind.buffers_of(weight, form), weight.dtype, **settings)


def quantized_form(layer: nn.Module, form: MatrixForm, token: QuantizedEmbedding | None) -> nn.Module:
    """The quantised form of a linear layer, head or token embedding; `token` is the quantised embedding, if any."""
    if isinstance(layer, nn.Embedding):
        assert token is not None
        return token
    if isinstance(layer, TiedHead):
        assert token is not None
        return QuantizedTiedHead(token, layer.bias)
    assert isinstance(layer, nn.Linear)
    weight, kind = layer.weight.detach(), LINEARS[form.scheme]
    return kind(kind.buffers_of(weight, form), layer.bias, weight.dtype)


def quantized_paths(decoder: Decoder, keep: Sequence[str] = (), forms: Mapping[str, str] | None = None) -> list[str]:
    """The paths of the layers to quantise. If `keep` matches a tied head or the token embedding, both are kept.

    forms: by the paths of the layers, instead of `keep`; a tied head follows its embedding.
    """
    modules = dict(decoder.named_modules())
    plain = {path: plain_form(type(module)) for path, module in modules.items()}
    paths = [TOKEN, *(path for path, form in plain.items() if form is nn.Linear or issubclass(form, TiedHead))]
    is_tied = isinstance(decoder.head, TiedHead)
    if forms:
        if unknown := next((path for path in forms if path not in paths), None):
            raise ConfigError(f"forms names '{unknown}', which is not a matrix of the decoder")
        return [path for path in paths if path in forms or (is_tied and path == HEAD and TOKEN in forms)]
    kept = set(select(keep, [path for path in modules if path])) if keep else set()
    if is_tied and kept & {TOKEN, HEAD}:
        kept |= {TOKEN, HEAD}
    return [path for path in paths if path not in kept]


def matrix_of(layer: nn.Module) -> Tensor:
    assert isinstance(layer, (nn.Linear, nn.Embedding))
    return layer.weight


def make_quantization(
    decoder: Decoder, to: Scheme, group: int | None = None, keep: Sequence[str] = (), head: Scheme = "int8"
) -> QuantizationConfig:
    """The settings for a decoder; `group` defaults to one that fits its widths.

    Raises UsageError for a head with fewer bits than the other layers. Logs a warning for int4 in groups so small that
    int8 takes about as much memory: it is more accurate.
    """
    check_schemes(to, head)
    paths = quantized_paths(decoder, keep)
    if head == "int4" and HEAD not in paths:
        raise UsageError("--keep matches the head, so it cannot be int4; leave out --head or that --keep")
    layers = [decoder.get_submodule(path) for path in paths]
    widths = [matrix_of(layer).shape[-1] for layer in layers if not isinstance(layer, TiedHead)]
    chosen = choose_group(to, widths) if group is None else group
    settings = QuantizationConfig(to=to, group=chosen, head=head, keep=tuple(keep or ()))
    if to == "int4":
        bits, bits_of_int8 = bits_per_weight(to, chosen), bits_per_weight("int8", choose_group("int8", widths))
        if bits > 0.9 * bits_of_int8:
            logger.warning(
                f"int4 in groups of {chosen} takes {bits:.1f} bits per weight; int8 takes {bits_of_int8:.1f} and is "
                "more accurate"
            )
    return settings


def check_schemes(to: Scheme, head: Scheme) -> None:
    """Refuse unknown names, and a head in int4 with other layers in int8."""
    for name in (to, head):
        check_name("scheme", name, get_args(Scheme))
    if head == "int4" != to:
        raise UsageError(f"--head int4 is for int4 models, not for {to}; leave --head out")
