"""`foretell explain MODEL TEXT` and `foretell trace MODEL TEXT` with a translation model: both languages of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli import trace as trace_verb
from foretell.cli.arguments import Device, Dtype, Json, ModelArgument, Verify
from foretell.cli.explain_questions import NO_QUESTION, Asked, choose_mode
from foretell.cli.terminal import note
from foretell.cli.translate import open_translator
from foretell.errors import UsageError

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
    questions: Asked = NO_QUESTION,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    verify: Verify = False,
) -> None:
    """A pass over a sentence and its translation, layer by layer; and any number of it.

    Numbers are named as in `foretell trace MODEL --list`: those of the encoder begin with encoder, those of
    encoder-decoder attention contain cross_attention.
    """
    given = questions.given()
    mode = choose_mode(questions.asked(), given)
    mode = replace(mode, answer=patterns) if questions.heads else mode
    questions.check_page()
    translator = open_translator(model, device=device, dtype=dtype, verify=verify)
    loaded, translation = conditioned(translator, text, target)
    mode.show(loaded, translation, given, json)


def conditioned(translator: Translator, text: str | None, target: str | None) -> tuple[LanguageModel, str]:
    """The model of the target language given the source, and the translation to look at."""
    from foretell.translation.translate import translate

    if text is None or not text.strip():
        raise UsageError("give the sentence to translate")
    if target is None:
        target = translate(translator, [text])[0].translation
        note(f"translation {target}")
    return translator.given(text), target


def patterns(loaded: LanguageModel, text: str, options: Mapping[str, Any]) -> Any:
    """The attention patterns of both sides, or of one layer."""
    from foretell.insight.attribution.head_patterns import memory_patterns

    both_sides = memory_patterns(loaded, text)
    return both_sides.layer(options["layer"]) if options else both_sides


def trace_translation(
    model: ModelArgument,
    text: SourceText = None,
    /,
    *,
    target: Target = None,
    select: trace_verb.Select = None,
    out: trace_verb.Out = None,
    list_: trace_verb.ListNames = False,
    json: Json = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    verify: Verify = False,
) -> None:
    """Any value of a pass over a sentence and its translation, by name."""
    if not list_ and (text is None or out is None):
        raise UsageError("give a TEXT and --out FILE, or --list for the names that there are")
    translator = open_translator(model, device=device, dtype=dtype, verify=verify)
    if list_:
        trace_verb.show_names(translator.given("."), select or ["**"], json)
        return
    assert out is not None
    loaded, translation = conditioned(translator, text, target)
    trace_verb.write(loaded, translation, select or ["**"], out, json)
