"""The walk through the toy's training and its answers."""

from __future__ import annotations

import numpy as np

from foretell.lessons.catalog import find_lesson
from foretell.lessons.figures import labelled
from foretell.lessons.toy import printed
from foretell.lessons.toy.run import PLACE, WATCHED, AdamStep, Run, rows, training_config
from foretell.lessons.toy.values import attention_of_answer, position_vectors, predictions
from foretell.typesetting.document import DocumentSection, Formula, HeatMap, Paragraph, Table
from foretell.typesetting.expression import Call, Fraction, Matrix, Number, Root, Row, Symbol, row, script

WORDS = printed.VOCABULARY
SHOWN_EPOCHS = (1, 11, 21, 31, 51, 71, 100)


def make_page(run: Run, seed: int) -> DocumentSection:
    """From two sentences to a model that answers both."""
    parts = [sentences(), positions(), gradient(run), adam(run), training(run), answers(run)]
    return DocumentSection(find_lesson("toy").title, [introduction(run, seed), *parts])


def introduction(run: Run, seed: int) -> Paragraph:
    count = sum(weight.numel() for weight in run.decoder.parameters())
    return Paragraph(
        f"Two prompts, one answer, {count} weights: width {printed.WIDTH}, one head, sinusoidal positions, a residual "
        f"around attention, a linear head. The weights below were drawn with seed {seed} and trained while you waited, "
        "by the trainer that trains every model here; --seed N draws others."
    )


def sentences() -> DocumentSection:
    table = [(prompt, printed.ANSWER) for prompt in printed.PROMPTS]
    return DocumentSection(
        "1. Two sentences to learn",
        [
            Table(("prompt", "answer"), table),
            Paragraph(
                "Prompt and answer stand in one row of eight words, and each of the first seven is to predict its "
                "right neighbour: every position is a target, the prompt's own words too. <EOS> ends the question, and "
                "ends the answer."
            ),
        ],
    )


def positions() -> DocumentSection:
    angle = Fraction(Symbol("t"), script(Number(10000), above="2i/d"))
    return DocumentSection(
        "2. Where a word stands",
        [
            Paragraph(
                "Positions are not learned here. Each pair of numbers is a sine and a cosine whose wave is a hundred "
                "times longer in the second pair. Position 0 is 0, 1, 0, 1:"
            ),
            Formula(row(script("PE", "t,2i"), "=", Call("sin", angle))),
            Formula(row(script("PE", "t,2i+1"), "=", Call("cos", angle))),
            labelled([f"position {t}" for t in range(4)], ("0", "1", "2", "3"), position_vectors(4)),
        ],
    )


def gradient(run: Run) -> DocumentSection:
    return DocumentSection(
        "3. Which way is down",
        [
            Paragraph(
                f"The first sentence goes in; its mean loss is {run.losses[0]:.4f}. Backpropagation says how the loss "
                "changes with each weight. Here are the 16 slopes of the value matrix, as the trainer has them:"
            ),
            Formula(row(Fraction(Symbol("∂L"), script("∂W", "V")), "=", Matrix(run.gradient.numpy(), digits=6))),
            Paragraph(
                "Is that so? Each weight is moved by a millionth up and down, in float64, and the loss computed anew. "
                f"The largest difference between these slopes and the gradient is {run.gradient_error:.1e}:"
            ),
            Formula(row(Fraction(Symbol("ΔL"), script("ΔW", "V")), "=", Matrix(run.slopes.numpy(), digits=6))),
        ],
    )


def adam(run: Run) -> DocumentSection:
    config, first = training_config(), run.steps[0]
    names = ("gradient g", "mean m", "mean square v", "m corrected", "v corrected", "weight before", "weight after")
    cells = [
        (name, *(significant(value) for value in line)) for name, line in zip(names, columns(run.steps), strict=True)
    ]
    update = row(
        script("w", "1"),
        "=",
        script("w", "0"),
        "-",
        Symbol("η"),
        Fraction(script("m̂", "1"), row(Root(script("v̂", "1")), "+", Symbol("ε"))),
    )
    numbers = row(
        "=",
        Number(first.before, 6),
        "-",
        Number(config.learning_rate, 2),
        Fraction(
            Number(first.corrected_mean, 6), row(Root(Number(first.corrected_square, 10)), "+", Number(config.epsilon))
        ),
        "=",
        Number(first.after, 6),
    )
    row_, column = PLACE
    return DocumentSection(
        "4. One step of Adam, by hand",
        [
            Paragraph(
                "Adam keeps two running means of each weight's gradient, of itself and of its square, and corrects "
                f"them for having started at 0. For the weight in row {row_}, column {column} of that matrix:"
            ),
            Formula(
                row(
                    script("m", "1"),
                    "=",
                    Number(config.beta1, 1),
                    "·",
                    Number(0),
                    "+",
                    Number(1 - config.beta1, 1),
                    "·",
                    Number(first.gradient, 6),
                    "=",
                    Number(first.mean, 7),
                )
            ),
            Formula(
                row(
                    script("m̂", "1"),
                    "=",
                    Fraction(script("m", "1"), row(Number(1), "-", Number(config.beta1, 1))),
                    "=",
                    Number(first.corrected_mean, 6),
                )
            ),
            Formula(Row((*update.items, *numbers.items))),
            Paragraph(
                "In the first step the two means are the gradient and its square, so the fraction is 1 or -1: "
                f"however steep, the weight moves by {config.learning_rate}, the learning rate. Later steps remember "
                "the earlier ones:"
            ),
            Table((WATCHED.removeprefix("trunk.blocks.0."), *(f"step {n + 1}" for n in range(len(run.steps)))), cells),
        ],
    )


def columns(steps: list[AdamStep]) -> list[list[float]]:
    """The steps' values, one line a quantity."""
    names = ("gradient", "mean", "square", "corrected_mean", "corrected_square", "before", "after")
    return [[getattr(step, name) for step in steps] for name in names]


def significant(value: float) -> str:
    """Five digits that mean something, however small the number."""
    return f"{value:.6f}" if abs(value) >= 1e-3 else f"{value:.4e}"


def training(run: Run) -> DocumentSection:
    epochs = run.epochs
    table = [(str(number), f"{epochs[number - 1]:.5f}", bar(epochs[number - 1])) for number in SHOWN_EPOCHS]
    return DocumentSection(
        "5. A hundred times both sentences",
        [
            Table(("epoch", "larger loss", ""), table),
            Paragraph(
                f"A model that knows nothing has a loss of ln 7 = {np.log(7):.4f}. The post's run fell from "
                f"{printed.FIRST_LOSS} to {printed.LAST_LOSS}; its seed is not given, but every seed that we tried "
                f"ends below {printed.LIMIT}."
            ),
        ],
    )


def bar(loss: float) -> str:
    """The loss as a bar; its length falls with the logarithm, or nothing would be left to see."""
    return "█" * max(1, round(8 * (np.log10(loss) + 4)))


def answers(run: Run) -> DocumentSection:
    table = [
        (prompt, " ".join(WORDS[token] for token in answer.generated), ENDS[str(answer.finish_reason)])
        for prompt, answer in zip(printed.PROMPTS, run.answers, strict=True)
    ]
    labels = [WORDS[token] for token in rows()[0][:-1]]
    weights, probabilities = attention_of_answer(run.decoder), predictions(run.decoder)
    return DocumentSection(
        "6. Both prompts, answered",
        [
            Table(("prompt", "answer", ""), table),
            Paragraph(
                "The likeliest word is appended and read again, until it is <EOS>. The model has learned its prompts "
                "by heart as well: this is what it expects after each word of the first, and where it looks to know it."
            ),
            Table(("after", "expects", "P"), [(WORDS[a], WORDS[b], f"{p:.4f}") for a, b, p in probabilities]),
            HeatMap(weights, labels, labels),
        ],
    )


ENDS = {"end": "stopped by itself", "context": "never stopped", "None": "never stopped"}
