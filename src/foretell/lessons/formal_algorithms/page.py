"""The walk through the formal algorithms."""

from __future__ import annotations

import numpy as np

from foretell.lessons.catalog import find_lesson
from foretell.lessons.figures import labelled
from foretell.lessons.formal_algorithms import printed
from foretell.lessons.formal_algorithms.attention import AttentionFacts
from foretell.lessons.formal_algorithms.decoder import ETA, STEPS, TEMPERATURES, DecoderFacts, x
from foretell.model.cost import count_parameters
from foretell.model.presets import preset_config
from foretell.typesetting.document import DocumentSection, Formula, Paragraph, Table
from foretell.typesetting.expression import Call, Fraction, Matrix, Number, Root, Symbol, row, script

MODELS = ("gpt1", "gpt2", "gpt2-xl", "gpt3-175b")
SHOWN_STEPS = (0, 5, 10, 20, STEPS - 1)
KT = script("K", above="T")


def make_page(attention: AttentionFacts, decoder: DecoderFacts) -> DocumentSection:
    """From one query to GPT-3."""
    parts = [single_query(attention), mask(attention), two_forms(decoder), training(decoder), inference(decoder)]
    return DocumentSection(find_lesson("algorithms").title, [introduction(), *parts, models()])


def introduction() -> Paragraph:
    return Paragraph(
        "A transformer is a few algorithms, each short enough for a slide. Here they run, in NumPy and in the symbols "
        "of their source (foretell's textbook), and each result is compared with the model that trains and generates."
    )


def single_query(found: AttentionFacts) -> DocumentSection:
    query, keys = np.array([printed.QUERY]), np.array(printed.KEYS)
    scores = Matrix(found.dot_products, digits=0)
    product = row(Symbol("q"), KT, "=", Matrix(query, 0), Matrix(keys.T, 0), "=", scores)
    scaled = Fraction(Symbol("0.1 q Kᵀ"), Root(Number(2)))
    return DocumentSection(
        "1. One query",
        [
            Paragraph("A word at position 2 asks; three words offer their keys. A dot product measures each match:"),
            Formula(product),
            Paragraph(
                "The softmax makes shares of the scores. These are so large that the last key takes all but 10⁻³⁰, and "
                "the second word looks at nothing but the third, which is its future:"
            ),
            Formula(row(Call("softmax", row(Symbol("q"), KT)), "=", Matrix(found.unscaled))),
            Paragraph(
                "Scores grow with the width, and large ones leave no choice. So they are divided by its root. With a "
                "query a tenth as long, one sees what that does: first without, then with it, then what is taken:"
            ),
            Formula(row(Call("softmax", Symbol("0.1 q Kᵀ")), "=", Matrix(found.weak))),
            Formula(row(Call("softmax", scaled), "=", Matrix(found.weak_scaled))),
            Formula(row(Symbol("ṽ"), "=", Matrix(found.weak_scaled), Matrix(keys, 0), "=", Matrix(found.mixture))),
        ],
    )


def mask(found: AttentionFacts) -> DocumentSection:
    moved = [["moves" if one else "stays" for one in line] for line in (found.open_moves, found.masked_moves)]
    return DocumentSection(
        "2. The mask",
        [
            Paragraph(
                "Four words, each scored against each (row: who looks). Where the mask has a 0, -∞ is put in, and the "
                "softmax of a row leaves nothing there:"
            ),
            Formula(
                row(
                    Matrix(np.array(printed.ASSOCIATIONS)),
                    "→",
                    Matrix(found.masked, digits=0),
                    "→",
                    Matrix(found.weights),
                )
            ),
            Paragraph(
                "Without the mask this is BERT's attention, with it GPT's. "
                "What happens to each word's output when the last word is exchanged:"
            ),
            Table(
                ("attention", *(f"word {n + 1}" for n in range(4))), [("unmasked", *moved[0]), ("masked", *moved[1])]
            ),
        ],
    )


def two_forms(found: DecoderFacts) -> DocumentSection:
    rows = [
        ("the listing", found.overwriting[-1]),
        ("GPT-2's residual", found.residual[-1]),
        ("foretell's model", found.model[-1]),
    ]
    inner = Call("LayerNorm", Symbol("X"))
    return DocumentSection(
        "3. The decoder, in two forms",
        [
            Paragraph(
                "DTransformer: token + position, then layers of attention and feed-forward, a last norm, an "
                "unembedding, a softmax. The listing overwrites X with its normalised value, and adds attention to "
                "that:"
            ),
            Formula(row(Symbol("X"), "←", inner)),
            Formula(row(Symbol("X"), "←", Symbol("X"), "+", Call("Attention", Symbol("X")))),
            Paragraph("GPT-2 normalises a copy. X itself goes on as it was, and the updates add up in it:"),
            Formula(row(Symbol("X"), "←", Symbol("X"), "+", Call("Attention", inner))),
            Paragraph(
                f"These are two models, not two ways to write one. The same small random weights, after the {len(x)} "
                "tokens " + " ".join(map(str, x)) + ", give each of five tokens:"
            ),
            labelled([name for name, _ in rows], range_labels(5), np.array([p for _, p in rows]), digits=6),
            Paragraph("GPT-2's form is what was trained and published, and what the model here computes."),
        ],
    )


def range_labels(count: int) -> list[str]:
    return [f"token {number}" for number in range(count)]


def training(found: DecoderFacts) -> DocumentSection:
    sentence = ", ".join(map(str, printed.IDS))
    rows = [(str(step), f"{found.losses[step]:.4f}") for step in SHOWN_STEPS]
    loss = row(
        "-",
        Symbol("log"),
        Symbol("P[1, 11987]"),
        "=",
        "-",
        Symbol("log"),
        Number(printed.P_CAT),
        "=",
        Number(found.loss_of_cat),
    )
    return DocumentSection(
        "4. Training",
        [
            Paragraph(
                f"{' '.join(printed.WORDS)} is {sentence}. After The, a model gives cat, token 11987, a probability of "
                f"{printed.P_CAT}. The loss at t = 1 is"
            ),
            Formula(loss),
            Paragraph(
                "The cross entropy with a target that is 1 for cat and 0 for every other token is the same number, "
                f"{found.cross_entropy_of_cat:.4f}: all other terms are multiplied by 0."
            ),
            Paragraph(
                f"DTraining goes down the slope of that loss, summed over the sequence: θ ← θ - η ∇loss. With η = "
                f"{ETA} on the {len(x)} tokens from above:"
            ),
            Table(("step", "loss"), rows),
        ],
    )


def inference(found: DecoderFacts) -> DocumentSection:
    tempered = labelled([f"τ = {tau}" for tau in TEMPERATURES], range_labels(5), np.array(found.tempered))
    drawn = " ".join(map(str, found.generated))
    return DocumentSection(
        "5. Inference",
        [
            Paragraph(
                "DInference draws the next token from q ∝ p^(1/τ), appends it, and reads again. A low temperature τ "
                "favours the likely, a high one makes all alike:"
            ),
            tempered,
            Paragraph(f"Four tokens drawn at τ = 1, after {' '.join(map(str, x))}: {drawn}."),
        ],
    )


def models() -> DocumentSection:
    rows = []
    for name in MODELS:
        config = preset_config(name)
        banded = "dense and banded in turn" if any(config.windows) else "dense"
        norm = {"pre": "before", "post": "after"}[config.norm_placement]
        billions = f"{count_parameters(config) / 1e9:.3f}"
        rows.append((name, str(config.num_layers), str(config.num_heads), str(config.width), norm, banded, billions))
    return DocumentSection(
        "6. What became of it",
        [
            Table(("model", "layers", "heads", "width", "norm", "attention", "billions"), rows),
            Paragraph(
                "GPT-1 normalises after each sublayer; for a task it gets one more layer at the end, and is "
                "fine-tuned. GPT-2 moves the norm to the front and grows: the slides say 1.542 billion parameters, the "
                "shape counts 1.558. GPT-3 has GPT-2's shape, with every second layer seeing only a band. Each is a "
                "preset here: foretell train --size gpt2-xl."
            ),
        ],
    )
