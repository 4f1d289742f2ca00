"""`foretell translate MODEL TEXT|FILE|-`: translate sentences, one per line; and `train` and `evaluate` for it."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.explain import Questions
from foretell.cli.terminal import ProgressLine, note, print_json, report, show_loaded, show_loading, write
from foretell.cli.trace import ALL_NAMES, Names
from foretell.cli.training_verbs import DEFAULTS, Options, show_end, train_and_report
from foretell.errors import UsageError, counted, expanded, shell_words
from foretell.translation.options import PairOptions, TranslationOptions

if TYPE_CHECKING:
    from foretell.language_model import LanguageModel
    from foretell.session.session import Session
    from foretell.translation.task import TranslationTask
    from foretell.translation.translate import Decoding
    from foretell.translation.translator import Translator

LINES_AT_ONCE = 512  # lines translated together and then printed

Beam = Annotated[int | None, Parameter(help="Number of beams; 1 is greedy (default: 5).")]
LengthPenalty = Annotated[
    float | None, Parameter(help="Exponent of Wu et al.'s length penalty (default: the model's).")
]


def translate(
    model: arguments.Model,
    text: Annotated[
        str | None, Parameter(help="A sentence, a file with one sentence per line, or - for standard input.")
    ] = None,
    /,
    *,
    file: arguments.File = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    temperature: Annotated[float | None, Parameter(help="Sample with this temperature, without a beam.")] = None,
    top_k: Annotated[int | None, Parameter(help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[
        float | None, Parameter(help="Sample from the most likely tokens up to this total probability (default: 0.95).")
    ] = None,
    seed: Annotated[int | None, Parameter(help="The seed of the samples (default: 1).")] = None,
    json: arguments.Json = False,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """Translate sentences, one per line.

    The output has a line per line of the input. With --json each is an object with source, translation and score: the
    log-probability in nats, divided by the length penalty.
    """
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "seed": seed}
    decoding = choose_decoding(
        beam, length_penalty, {key: value for key, value in sampling.items() if value is not None}
    )
    sentences = read_sentences(text, file)
    translator = open_translator(model, **vars(options))
    from foretell.translation.translate import translate as translate_all

    unended = 0
    with ProgressLine("sentences") as progress:
        for first in range(0, len(sentences), LINES_AT_ONCE):
            group = sentences[first : first + LINES_AT_ONCE]
            for each in translate_all(translator, group, decoding):
                unended += each.finish_reason == "length"
                print_json(each.to_json()) if json else write(" ".join(each.translation.splitlines()))
            progress(first + len(group), len(sentences))
    if unended:
        note(f"{unended:,} of {len(sentences):,} translations were cut: the model did not end them")


def evaluate_translation(
    model: arguments.Model,
    *pairs: Annotated[Path, Parameter(help="A file with two columns, two aligned files, or a zip of either.")],
    reading: Annotated[PairOptions, arguments.ONE_COLUMN] = PairOptions(),
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    limit: arguments.Limit = None,
    json: arguments.Json = False,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """Loss per token, BLEU and chrF of a translation model on pairs.

    BLEU and chrF are sacrebleu's, with its default settings. Only the tokenizer of BLEU is chosen by the script of the
    training's targets; the signature names it. Where a sentence has several translations, BLEU is also given against
    all of them.
    """
    decoding = choose_decoding(beam, length_penalty, {})
    from foretell.translation.pairs import read_pairs
    from foretell.translation.translate import evaluate_pairs, load_sacrebleu

    load_sacrebleu()
    read = read_pairs([Path(path) for path in pairs], reverse=reading.reverse, columns=reading.columns)[:limit]
    translator = open_translator(model, **vars(options))
    result = evaluate_pairs(translator, read, decoding)
    if result.left_out:
        note(f"left out of the loss: {counted(result.left_out, 'pair')} longer than the model's context")
    report(result, json)


def choose_decoding(beam: int | None, alpha: float | None, sampling: dict) -> Decoding:
    """The decoding settings from options; contradictory options are a `UsageError`."""
    from foretell.config.sampling import SamplingConfig
    from foretell.translation.translate import BEAM_SIZE, Decoding

    if beam is not None and not 1 <= beam <= 1000:
        raise UsageError(f"--beam must be from 1 to 1000, not {beam}")
    if alpha is not None and not 0 <= alpha <= 10:
        raise UsageError(f"--length-penalty must be from 0 to 10, not {alpha:g}")
    if sampling and (beam is not None or alpha is not None):
        searching = "--length-penalty" if beam is None else "--beam"
        raise UsageError(
            f"--{next(iter(sampling)).replace('_', '-')} samples, and {searching} searches; give one of them"
        )
    chosen = SamplingConfig(**sampling) if sampling else None
    return Decoding(BEAM_SIZE if beam is None else beam, alpha, chosen)


def read_sentences(text: str | None, file: Path | None = None) -> list[str]:
    """The lines of an argument, of a file or of standard input; empty lines are kept."""
    if file is None and text is not None and text != arguments.STANDARD_INPUT:
        arguments.refuse_folder(text)
        if arguments.is_file(path := Path(expanded(text))):
            text, file = None, path
    from foretell.data.lines import content_suffix
    from foretell.data.table import FORMATS

    if file is not None and content_suffix(file) in FORMATS:
        raise UsageError(f"{file} is a table; write the sentences to translate into a .txt file, one per line")
    lines = arguments.read_text(text, file).split("\n")
    if not any(line.strip() for line in lines):
        raise UsageError("the text is empty; give at least one sentence")
    return lines


def open_translator(argument: str, **options: Any) -> Translator:
    """Load a translation model, with a line on stderr before, and one about its properties after."""
    show_loading(argument)
    from foretell.translation.translator import load_translator

    translator = load_translator(argument, **options)
    show_loaded(argument, translator.model, translator.precision, translator.notes)
    return translator


def translate_step_by_step(argument: str, sentence: str) -> tuple[list[tuple[str, str]], str]:
    """For the lesson: (the words so far, the next token) for each greedy step, and the translation."""
    if not sentence.strip():
        raise UsageError("the text is empty; give at least one sentence")
    translator = open_translator(argument, verify=None)
    from foretell.translation.translate import Decoding
    from foretell.translation.translate import translate as translate_all

    result = translate_all(translator, [sentence], Decoding(beam_size=1))[0]
    texts = [translator.vocabulary.decode(result.ids[:count]) for count in range(len(result.ids) + 1)]
    added = [after[len(before) :] for before, after in pairwise(texts)]
    steps = zip(texts, [*added, "<eos>"] if result.finish_reason == "end" else added, strict=False)
    return [(" ".join(["<sos>", *text.split()]), token.strip()) for text, token in steps], result.translation


def train_translate(
    *pairs: Annotated[Path, Parameter(help="A file with two columns, two aligned files, or a zip of either.")],
    chosen: Annotated[TranslationOptions, arguments.ONE_COLUMN] = TranslationOptions(),
    options: Options = DEFAULTS,
) -> None:
    """Train an encoder-decoder to translate.

    The first column, or file, is translated into the second. Without --dev some sentences are held out, chosen by a
    hash of the source in lower case without punctuation, so that no near-duplicate is on both sides.

    Sections of the configuration: model, tokenizer, pairs, training. The most used:

    --pairs.validation-fraction, --pairs.longest, --tokenizer.vocab-size,

    --training.learning-rate, --training.label-smoothing, --model.dropout.
    """
    if not pairs and not options.is_resumed:
        raise UsageError("give a file of pairs: two columns separated by a tab, two aligned files, or a zip")
    out = options.directory(pairs)
    from foretell.translation.train import PairRequest, TranslationTraining

    request = PairRequest(paths=pairs, **options.request(out, chosen))
    train_and_report(TranslationTraining(request), options, finish)


def finish(session: Session[TranslationTask]) -> None:
    """Show the best loss and BLEU, and a sentence to translate."""
    data, best = session.task.data, session.run.best().training()
    loss, bleu = best["validation_loss"], best["evaluation"].get("bleu")
    tokenizer = session.task.config.pairs.bleu_tokenizer
    on = f"{counted(min(200, len(data.validation)), 'pair')}, greedy, tokenizer {tokenizer}"
    shown = "" if bleu is None else f", BLEU {bleu:.1f} on {on}"
    figures = "" if loss is None else f"validation loss {loss:.3f}{shown}"
    show_end(session, figures, "translate", shell_words((data.validation or data.train)[0].source))


SourceText = Annotated[str | None, Parameter(help="The sentence to translate.")]
Target = Annotated[str | None, Parameter(help="The translation to look at (default: the model's own).")]


def explain_translation(
    model: arguments.Model,
    text: SourceText = None,
    /,
    *,
    target: Target = None,
    questions: Annotated[Questions, Parameter(name="*")] = Questions(),
    json: arguments.Json = False,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """A pass over a sentence and its translation, layer by layer; and any number in it.

    Numbers are named as in `foretell trace MODEL --list`: the encoder's begin with encoder, and names of
    encoder-decoder attention contain cross_attention.
    """
    question, details = questions.chosen()
    translator = open_translator(model, **vars(options))
    question.show(*given_source(translator, text, target), details, json)


def given_source(translator: Translator, text: str | None, target: str | None) -> tuple[LanguageModel, str]:
    """The model of the target language given the source, and the translation to look at."""
    from foretell.translation.translate import translate

    if text is None or not text.strip():
        raise UsageError("give the sentence to translate")
    if target is None:
        target = translate(translator, [text])[0].translation
        note(f"translation {target}")
    return translator.given(text), target


def trace_translation(
    model: arguments.Model,
    text: SourceText = None,
    /,
    *,
    target: Target = None,
    names: Names = ALL_NAMES,
    json: arguments.Json = False,
    options: arguments.Loading = arguments.LOADING_DEFAULTS,
) -> None:
    """Any value of a pass over a sentence and its translation, by name."""
    names.check(text, {"target": target})
    translator = open_translator(model, **vars(options))
    loaded, translation = (translator.given("."), "") if names.list_ else given_source(translator, text, target)
    names.show(loaded, translation, json)
