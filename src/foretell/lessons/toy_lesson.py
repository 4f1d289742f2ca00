"""The lesson on the toy: its training and answers shown, and what must hold for every seed checked."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np

from foretell.generation.sequence import Sequence
from foretell.lessons import toy_values as toy
from foretell.lessons.lesson import FigureCheck, Lesson, above, below, lesson_document, near, same
from foretell.lessons.toy_values import AdamStep, ToyRun
from foretell.typesetting.document import DocumentSection, Formula, HeatMap, Paragraph, Part, Table, labelled_table
from foretell.typesetting.expression import Call, Fraction, MathRow, Matrix, Number, Root, Symbol, row, script

SEED = 1
GRADIENT_BOUND = 1e-6  # float32's gradient and float64's differences, both near 0.1; measured: 6e-8 at most in 20 seeds
ADAM_BOUND = 1e-6  # the optimizer computes in float32
WORDS = toy.VOCABULARY
QKT = row(Symbol("Q"), script("K", above="T"))
ENDS = {"end": "stopped by itself", "context": "never stopped", "None": "never stopped"}


class ToyLesson(Lesson):
    """Two prompts and one answer, learned in a hundred epochs."""

    def __init__(self, seed: int | None = None, question: str | None = None):
        self.seed = SEED if seed is None else seed
        self.run = toy.run_toy(self.seed)
        self.reply = toy.ask(self.run.decoder, question) if question is not None else None

    def document(self) -> DocumentSection:
        run = self.run
        parts = [sentences(), positions(), gradient(run), adam(run), training(run), attention(run), answers(run)]
        asked = [question(*self.reply)] if self.reply is not None else []
        return lesson_document("toy", [*introduction(run, self.seed), *parts, *asked])

    def checks(self) -> list[FigureCheck]:
        return [
            *check_positions(),
            *check_first_steps(self.run),
            *check_attention(self.run),
            *check_outcome(self.run),
        ]


def check_positions() -> list[FigureCheck]:
    """The sinusoidal positions."""
    textbook, model = toy.position_vectors_by_textbook(toy.CONTEXT), toy.position_vectors(toy.CONTEXT)
    return [
        near("position 0", toy.FIRST_POSITION, toy.position_vectors(1)[0], 1e-12),
        near("positions: the textbook's and the model's", textbook, model, 1e-12),
        near("position 0: the last cosine with the printed exponent", toy.FIRST_POSITION[3], printed_cosine(0), 1e-12),
        above("position 1: the printed exponent is wrong by", 0.4, model[1, 3] - printed_cosine(1)),
    ]


def printed_cosine(position: int) -> float:
    """The last number of a position with the exponent that the source prints for it, 2 · 0 / 4."""
    return math.cos(position / 10_000 ** (2 * 0 / 4))


def check_attention(run: ToyRun) -> list[FigureCheck]:
    """The formula gives the model's weights and output; the mask is needed after training too."""
    values = toy.attention_of_answer(run.decoder)
    exponentials = np.exp(values["masked"] - values["masked"].max(axis=1, keepdims=True))
    weights = exponentials / exponentials.sum(axis=1, keepdims=True)
    return [
        near("softmax of the masked scores", weights, values["weights"], 1e-6),
        near("the weights times V", weights @ values["value"], values["output"], 1e-5),
        below("the least P of a word, without the mask", 0.9, min(toy.probabilities_without_mask(run.decoder))),
        same("epochs of the printed losses", list(range(0, toy.EPOCHS, 10)), list(toy.PRINTED_LOSSES)),
    ]


def check_first_steps(run: ToyRun) -> list[FigureCheck]:
    """Backpropagation against finite differences, and the optimizer against Adam's definition."""
    by_hand = toy.adam_by_hand([step.gradient for step in run.steps], run.steps[0].before)
    expected, got = [astuple(step) for step in by_hand], [astuple(step) for step in run.steps]
    return [
        near("gradient and finite differences", run.finite_differences.numpy(), run.gradient.numpy(), GRADIENT_BOUND),
        same("recorded steps of Adam", toy.WATCHED_STEPS, len(run.steps)),
        near("steps of Adam by hand and by the optimizer", expected, got, ADAM_BOUND),
    ]


def check_outcome(run: ToyRun) -> list[FigureCheck]:
    """The last loss is small, and both prompts get their answer."""
    return [
        below("loss at the end", toy.LIMIT, run.epochs[-1]),
        *(
            check
            for prompt, answer in zip(toy.PROMPTS, run.answers, strict=True)
            for check in (
                same(f"answer to: {prompt}", toy.answer_ids(), answer.generated),
                same(f"stops by itself after: {prompt}", "end", answer.finish_reason),
            )
        ),
    ]


def introduction(run: ToyRun, seed: int) -> list[Part]:
    count = sum(weight.numel() for weight in run.decoder.parameters())
    return [
        Paragraph(
            f"This model has {count} weights: width {toy.WIDTH}, one head, sinusoidal positions, a residual around "
            "attention, and a linear head. It learns one answer to two prompts. Its weights were drawn with seed "
            f"{seed} and trained just now, by the same loop that trains every foretell model. --seed N draws other "
            "weights, and --ask TEXT asks the trained model something else."
        ),
        Paragraph("A decoder alone differs from the standard transformer, which translates, in two ways:"),
        Table(
            ("", "standard transformer", "decoder alone"),
            [
                ("units", "an encoder reads, a decoder writes", "one unit reads and writes"),
                ("attention", "self-attention, masked self-attention", "masked self-attention"),
                ("", "and encoder-decoder attention", "and no other"),
            ],
        ),
        Paragraph(
            "The source says that the standard transformer uses the mask only in training. Its decoder uses it when it "
            "writes, too: a word must be read as it was in training, before the words after it. Section 7 shows what "
            "happens to the numbers without it."
        ),
    ]


def sentences() -> DocumentSection:
    rows = [(prompt, toy.ANSWER) for prompt in toy.PROMPTS]
    return DocumentSection(
        "1. Two sentences to learn",
        [
            Table(("prompt", "answer"), rows),
            Paragraph(
                "Prompt and answer form one row of eight words. At each of the first seven positions, the next word is "
                "the target, also within the prompt. <EOS> marks the end of the prompt, and the end of the answer."
            ),
        ],
    )


def positions() -> DocumentSection:
    angle = Fraction(Symbol("t"), script(Number(10000), above="2i/d"))
    return DocumentSection(
        "2. Positions",
        [
            Paragraph(
                "The position vectors are not learned. Each pair of numbers is a sine and a cosine. The second pair's "
                "wavelength is a hundred times the first pair's. Position 0 is 0, 1, 0, 1:"
            ),
            Formula(row(script("PE", "t,2i"), "=", Call("sin", angle))),
            Formula(row(script("PE", "t,2i+1"), "=", Call("cos", angle))),
            labelled_table([f"position {t}" for t in range(4)], ("0", "1", "2", "3"), toy.position_vectors(4)),
            Paragraph(
                "A recurrent network reads one word after the other, so it knows their order. A transformer reads all "
                "words at once; without these vectors it would not know the order."
            ),
            Paragraph(
                "The source has a slip in its example: it prints the last cosine of position 0 with the exponent "
                "2·0/4, where the formula has 2·1/4. At position 0 both give 1. At position 1 the printed exponent "
                f"would give {printed_cosine(1):.5f}; the right number is {toy.position_vectors(2)[1, 3]:.5f}."
            ),
        ],
    )


def gradient(run: ToyRun) -> DocumentSection:
    return DocumentSection(
        "3. The gradient",
        [
            Paragraph(
                f"The mean loss of the first sentence is {run.losses[0]:.4f}. Backpropagation computes how the loss "
                "changes with each weight. This is the gradient of the value matrix in the first step:"
            ),
            Formula(row(Fraction(Symbol("∂L"), script("∂W", "V")), "=", Matrix(run.gradient.numpy(), digits=6))),
            Paragraph(
                "To check it, each weight is moved up and down by a millionth, in float64, and the loss is computed "
                f"again. The largest difference between these slopes and the gradient is {run.gradient_error:.1e}:"
            ),
            Formula(
                row(Fraction(Symbol("ΔL"), script("ΔW", "V")), "=", Matrix(run.finite_differences.numpy(), digits=6))
            ),
        ],
    )


def adam(run: ToyRun) -> DocumentSection:
    matrix_row, column = toy.WATCHED_INDEX
    rate = toy.toy_training().learning_rate
    return DocumentSection(
        "4. One step of Adam, by hand",
        [
            Paragraph(
                "Adam keeps two running means for each weight: of its gradient, and of the gradient's square. Both "
                "start at 0, and are corrected for that start. For the weight in row "
                f"{matrix_row}, column {column} of the value matrix:"
            ),
            *adam_formulas(run.steps[0]),
            Paragraph(
                "In the first step the corrected means are the gradient and its square, so the fraction is 1 or -1. "
                f"However large the gradient is, the weight moves by {rate}, the learning rate. In later steps the "
                "means include the earlier gradients:"
            ),
            steps_table(run.steps),
        ],
    )


def adam_formulas(first: AdamStep) -> list[Part]:
    """The first step's running mean, its correction, and the update."""
    config = toy.toy_training()
    beta, rest = Number(config.beta1, 1), Number(1 - config.beta1, 1)
    mean, corrected = script("m", "1"), script("m̂", "1")
    denominator = row(Root(script("v̂", "1")), "+", Symbol("ε"))
    value_of_denominator = row(Root(Number(first.corrected_square, 10)), "+", Number(config.epsilon))
    update = row(script("w", "1"), "=", script("w", "0"), "-", Symbol("η"), Fraction(corrected, denominator))
    values = row(
        "=",
        Number(first.before, 6),
        "-",
        Number(config.learning_rate, 2),
        Fraction(Number(first.corrected_mean, 6), value_of_denominator),
        "=",
        Number(first.after, 6),
    )
    return [
        Formula(
            row(mean, "=", beta, "·", Number(0), "+", rest, "·", Number(first.gradient, 6), "=", Number(first.mean, 7))
        ),
        Formula(row(corrected, "=", Fraction(mean, row(Number(1), "-", beta)), "=", Number(first.corrected_mean, 6))),
        Formula(MathRow((*update.items, *values.items))),
    ]


def steps_table(steps: list[AdamStep]) -> Table:
    """One row per quantity, one column per step."""
    names = ("gradient g", "mean m", "mean square v", "m corrected", "v corrected", "weight before", "weight after")
    columns = [astuple(step) for step in steps]
    rows = [(name, *map(five_digits, line)) for name, *line in zip(names, *columns, strict=True)]
    weight = toy.WATCHED_PATH.removeprefix("trunk.blocks.0.")
    return Table((weight, *(f"step {n + 1}" for n in range(len(steps)))), rows)


def five_digits(value: float) -> str:
    """At least four significant digits, with an exponent for small numbers."""
    return f"{value:.6f}" if abs(value) >= 1e-3 else f"{value:.4e}"


def training(run: ToyRun) -> DocumentSection:
    losses = run.second_losses
    rows = [
        (str(epoch), f"{printed:.5f}", f"{losses[epoch]:.5f}", bar(losses[epoch]))
        for epoch, printed in toy.PRINTED_LOSSES.items()
    ]
    return DocumentSection(
        "5. A hundred epochs",
        [
            Paragraph(
                "The source prints the loss of the second sentence every ten epochs, counted from 0. Its seed is not "
                "given, so its losses are data; those of this run are next to them:"
            ),
            Table(("epoch", "as printed", "this run", ""), rows),
            Paragraph(
                f"A model that gives all seven words the same probability has a loss of ln 7 = {np.log(7):.4f}. The "
                f"larger loss of the two sentences at the end is {run.epochs[-1]:.5f}; each of 20 tested seeds ends "
                f"below {toy.LIMIT}."
            ),
        ],
    )


def attention(run: ToyRun) -> DocumentSection:
    values = toy.attention_of_answer(run.decoder)
    scores = row(Fraction(QKT, Root(script("d", "k"))), "+", Symbol("M"))
    formula = Call("Attention", row(Symbol("Q"), ",", Symbol("K"), ",", Symbol("V")))
    return DocumentSection(
        "6. What the trained model attends to",
        [
            Paragraph("M is the mask: 0 where a word may look, and -∞ where it may not:"),
            Formula(row(formula, "=", Call("softmax", scores), Symbol("V"))),
            Paragraph("These are the scores of the first prompt and its answer, with d = 4:"),
            Formula(row(*scores.items, "=", Matrix(values["masked"], digits=2, row_labels=row_words()))),
            Paragraph("Their softmax, row by row, as a picture; the columns are the same words:"),
            HeatMap(values["weights"], row_words(), row_words()),
        ],
    )


def row_words() -> list[str]:
    """The first prompt and its answer, without the last <EOS>, which is only a target."""
    return [WORDS[token] for token in toy.training_rows()[0][:-1]]


def bar(loss: float) -> str:
    """The loss as a bar on a logarithmic scale, on which small losses remain visible."""
    return "█" * max(1, round(8 * (np.log10(loss) + 4)))


def answers(run: ToyRun) -> DocumentSection:
    rows = [reply(prompt, answer) for prompt, answer in zip(toy.PROMPTS, run.answers, strict=True)]
    predictions = zip(toy.most_likely_next(run.decoder), toy.probabilities_without_mask(run.decoder), strict=True)
    rows_of_predictions = [(WORDS[a], WORDS[b], f"{p:.4f}", f"{unmasked:.4f}") for (a, b, p), unmasked in predictions]
    return DocumentSection(
        "7. Both prompts, answered",
        [
            Table(("prompt", "answer", ""), rows),
            Paragraph(
                "The most likely word is appended and the model reads again, until that word is <EOS>. The model has "
                "also memorised its prompts. The table shows its prediction after each word of the first prompt, and "
                "the same probability without the mask:"
            ),
            Table(("after", "prediction", "P", "without the mask"), rows_of_predictions),
            Paragraph(
                "So the mask is not only for training. Without it, a trained model sees what it never saw in training, "
                "and its probabilities change."
            ),
        ],
    )


def question(prompt: str, answer: Sequence) -> DocumentSection:
    return DocumentSection("8. Your question", [Table(("prompt", "answer", ""), [reply(prompt, answer)])])


def reply(prompt: str, answer: Sequence) -> tuple[str, str, str]:
    """A prompt, the generated words, and why they end."""
    return prompt, " ".join(WORDS[token] for token in answer.generated), ENDS[str(answer.finish_reason)]
