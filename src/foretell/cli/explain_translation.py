"""`foretell explain MODEL TEXT` and `foretell trace MODEL TEXT` with a translation model: both languages of a pass."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli import trace as trace_verb
from foretell.cli.arguments import Device, Dtype, Flag, Json, ModelArgument, Verify, Whole
from foretell.cli.explain import ASK, MORE, choose_mode
from foretell.cli.terminal import note, print_json, results
from foretell.cli.translate import open_translator
from foretell.errors import ForetellError, UsageError

if TYPE_CHECKING:
    from foretell.language_model import LanguageModel
    from foretell.translation.translator import Translator

SourceText = Annotated[str | None, Parameter(help="The sentence to translate.", show_default=False)]
Target = Annotated[
    str | None, Parameter(help="The translation to look at; default: the model's own.", show_default=False)
]


def explain_translation(
    model: ModelArgument,
    text: SourceText = None,
    /,
    *,
    target: Target = None,
    value: Annotated[
        str | None, Parameter(help="One number: a trace name and an index.", group=ASK, show_default=False)
    ] = None,
    html: Annotated[Path | None, Parameter(help="Write an HTML page.", group=ASK, show_default=False)] = None,
    lens: Annotated[bool, Flag, Parameter(help="The next token as read after each block.", group=ASK)] = False,
    contributions: Annotated[
        bool, Flag, Parameter(help="What each head and feed-forward layer added to a token's logit.", group=ASK)
    ] = False,
    heads: Annotated[bool, Flag, Parameter(help="Which tokens each head attends to, of both.", group=ASK)] = False,
    ablate: Annotated[
        str | None, Parameter(help="The prediction without a part: a name or glob.", group=ASK, show_default=False)
    ] = None,
    token: Annotated[
        str | None,
        Parameter(help="The token to ask about.", allow_leading_hyphen=True, group=MORE, show_default=False),
    ] = None,
    at: Annotated[
        int | None,
        Whole,
        Parameter(
            help="After this token of the translation (default: the last).",
            allow_leading_hyphen=True,
            group=MORE,
            show_default=False,
        ),
    ] = None,
    layer: Annotated[
        int | None, Whole, Parameter(help="With --heads: the patterns of this layer.", group=MORE, show_default=False)
    ] = None,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    verify: Verify = False,
) -> None:
    """A pass over a sentence and its translation, layer by layer; and any number of it.

    Numbers are named as in `foretell trace MODEL --list`: those of the encoder begin with encoder, those of
    encoder-decoder attention contain cross_attention.
    """
    asked = {
        "value": value is not None,
        "html": html is not None,
        "lens": lens,
        "contributions": contributions,
        "heads": heads,
        "ablate": ablate is not None,
    }
    options = {"value": value, "html": html, "ablate": ablate, "token": token, "at": at, "layer": layer}
    mode, given = choose_mode(asked, options)
    if html is not None:
        from foretell.files import HTML_MARK, check_target

        check_target(html, HTML_MARK)
    translator = open_translator(model, device, dtype, verify)
    loaded, translation = conditioned(translator, text, target)
    answer = patterns(loaded, translation, layer) if heads else mode.answer(loaded, translation, given)
    print_json(answer.to_json()) if json else results().print(str(answer))
    if fault := mode.fault(answer):
        raise ForetellError(fault)


def conditioned(translator: Translator, text: str | None, target: str | None) -> tuple[LanguageModel, str]:
    """The model of the target language given the source, and the translation to look at."""
    from foretell.translation.translate import translate

    if text is None or not text.strip():
        raise UsageError("give the sentence to translate")
    if target is None:
        target = translate(translator, [text])[0].translation
        note(f"translation {target}")
    return translator.given(text), target


def patterns(loaded: LanguageModel, text: str, layer: int | None) -> Any:
    """The attention patterns of both sides, or of one layer."""
    from foretell.insight.attribution.memory_patterns import memory_patterns

    found = memory_patterns(loaded, text)
    return found if layer is None else found.layer(layer)


def trace_translation(
    model: ModelArgument,
    text: SourceText = None,
    /,
    *,
    target: Target = None,
    select: Annotated[
        list[str] | None,
        Parameter(help="Names, with * for one segment and ** for any number (default: all).", negative=""),
    ] = None,
    out: Annotated[Path | None, Parameter(help="The safetensors file to write.", show_default=False)] = None,
    list_: Annotated[bool, Flag, Parameter(name="--list", help="Only list the names that there are.")] = False,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    verify: Verify = False,
) -> None:
    """Any value of a pass over a sentence and its translation, by name."""
    if not list_ and (text is None or out is None):
        raise UsageError("give a TEXT and --out FILE, or --list for the names that there are")
    translator = open_translator(model, device, dtype, verify)
    if list_:
        trace_verb.show_names(translator.given("."), select or ["**"], json)
        return
    assert out is not None
    loaded, translation = conditioned(translator, text, target)
    trace_verb.write(loaded, translation, select or ["**"], out, json)
