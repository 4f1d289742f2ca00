"""The smallest decoder: from five ids to the probability of the sentence, by the model and by the textbook."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foretell.config.model import ModelConfig
from foretell.data.batch import PADDING, make_batch, make_document_batch, pad
from foretell.errors import UsageError, counted
from foretell.inference.query import embed as embed_text
from foretell.inference.query import score
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.lessons.exercise import Exercise
from foretell.lessons.lesson import FigureCheck, Lesson, above, bare_config, near, printed, same
from foretell.model.decoder import Decoder
from foretell.text import vocabulary_tokenizer
from foretell.textbook.attention import (
    AttentionParameters,
    attention,
    attention_weights,
    project,
    softmax_per_column,
    unidirectional_mask,
)
from foretell.textbook.family import decoder_forward
from foretell.textbook.transformer import embed
from foretell.training.objective import Objective
from foretell.typesetting.document import HeatMap, labelled_table
from foretell.typesetting.expression import Matrix, Number

# Printed in the source, one row per token, four digits unless a comment gives another number
VOCABULARY = ("financial", "data", "analytics", "is", "awesome", "!")
SEED = 42

TOKEN_EMBEDDING = [
    [1.9269, 1.4873, -0.4974],
    [0.4396, -0.7581, 1.0783],
    [0.8008, 1.6806, 0.3559],
    [-0.6866, 0.6105, 1.3347],
    [-0.2316, 0.0418, -0.2516],
    [0.8599, -0.3097, -0.3957],
]
POSITION_EMBEDDING = [
    [-0.4220, -1.3323, -0.3639],
    [0.1513, -0.3514, -0.7906],
    [-0.0915, 0.2352, 2.2440],
    [0.5817, 0.4528, 0.6410],
    [0.5200, 0.5567, 0.0744],
]
QUERY_WEIGHT = [[0.4414, 0.4792, -0.1353], [0.5304, -0.1265, 0.1165], [-0.2811, 0.3391, 0.5090]]
KEY_WEIGHT = [[-0.4236, 0.5018, 0.1081], [0.4266, 0.0782, 0.2784], [-0.0815, 0.4451, 0.0853]]
VALUE_WEIGHT = [[-0.2695, 0.1472, -0.2660], [-0.0677, -0.2345, 0.3830], [-0.4557, -0.2662, -0.1630]]

EMBEDDING_SUM = [
    [1.5049, 0.1550, -0.8613],
    [0.5909, -1.1096, 0.2877],
    [0.7093, 1.9158, 2.5998],
    [-0.1050, 1.0632, 1.9757],
    [0.2883, 0.5985, -0.1772],
]
SCALED_SCORES = [  # two digits
    [-0.10, -0.05, 0.45, 0.32, 0.02],
    [0.26, 0.33, -0.07, -0.12, -0.05],
    [-0.36, -0.86, 1.82, 1.22, 0.34],
    [-0.17, -0.50, 0.95, 0.63, 0.20],
    [-0.15, -0.20, 0.30, 0.23, 0.05],
]
ATTENTION_WEIGHTS = [
    [1.0000, 0.0000, 0.0000, 0.0000, 0.0000],
    [0.4841, 0.5159, 0.0000, 0.0000, 0.0000],
    [0.0963, 0.0581, 0.8456, 0.0000, 0.0000],
    [0.1430, 0.1026, 0.4381, 0.3163, 0.0000],
    [0.1608, 0.1539, 0.2520, 0.2364, 0.1969],
]
VALUES = [
    [-0.1537, -0.4681, -0.5867],
    [-0.3991, 0.3304, -0.0209],
    [-0.6008, 0.4985, -1.2570],
    [-0.3408, 0.5145, -0.5573],
    [0.0575, -0.2277, -0.2618],
]
ATTENTION_OUTPUT = [
    [-0.1537, -0.4681, -0.5867],
    [-0.2803, -0.0562, -0.2948],
    [-0.5461, 0.3957, -1.1207],
    [-0.4339, 0.3481, -0.8130],
    [-0.3068, 0.1780, -0.5976],
]
PROBABILITIES = [  # six digits; one column per word of the vocabulary
    [0.132031, 0.226309, 0.108338, 0.158296, 0.129722, 0.245304],
    [0.126194, 0.179358, 0.129261, 0.182930, 0.118820, 0.263437],
    [0.152013, 0.130360, 0.104023, 0.229152, 0.085190, 0.299262],
    [0.146018, 0.140654, 0.113094, 0.215067, 0.094568, 0.290599],
    [0.141297, 0.161098, 0.117462, 0.195718, 0.106899, 0.277526],
]

WIDTH, CONTEXT = 3, 5
BLOCK = "trunk.blocks.0"
LAYER = f"{BLOCK}.attention"
NUM_HEADS, FEEDFORWARD_WIDTH = 3, 12  # in the completed layer
COMPLETED_NAMES = {  # its steps, in the lesson and in the trace
    "heads": f"{LAYER}.core",
    **{
        name: f"{BLOCK}.{name}"
        for name in ("attention_residual", "attention_norm", "feedforward_residual", "feedforward_norm")
    },
}
WORDS = VOCABULARY[:-1]  # the five input words
END = VOCABULARY[-1]
LEAST_WORDS, MOST_WORDS, MOST_LETTERS = 2, 8, 10  # of a sentence of the reader, so that it fits a terminal
MASK_NUMBER = -1e9  # the source's replacement for masked scores
TRACE_NAMES = {  # a value's name in the lesson -> its name in the trace
    "token": "embed.token",
    "position": "embed.position",
    "stream": "embed",
    **{name: f"{LAYER}.core.{name}" for name in ("query", "key", "value", "scores", "scaled", "masked", "weights")},
    "output": f"{LAYER}.core",
    "logits": "head",
}
PRINTED = {  # value -> (its name in the check, the printed figures, digits)
    "token": ("word embedding of the sentence", TOKEN_EMBEDDING[:-1], 4),
    "position": ("position embedding", POSITION_EMBEDDING, 4),
    "stream": ("x = word + position", EMBEDDING_SUM, 4),
    "scaled": ("scaled scores", SCALED_SCORES, 2),
    "weights": ("masked attention weights", ATTENTION_WEIGHTS, 4),
    "value": ("values", VALUES, 4),
    "output": ("attention output", ATTENTION_OUTPUT, 4),
    "probabilities": ("next-token probabilities", PROBABILITIES, 6),
}
PRINTED_WEIGHTS = {"query": QUERY_WEIGHT, "key": KEY_WEIGHT, "value": VALUE_WEIGHT}
TEXTBOOK_BOUND = 1e-12  # the same float64 sums in another order
FLOAT32_BOUND = 1e-6  # the objective and the embedding return float32
WeightsByPath = dict[str, Tensor]


@dataclass(frozen=True)
class Sentence:
    """The words that the model reads. The end, !, follows them and is only a target."""

    words: tuple[str, ...] = WORDS

    @classmethod
    def read(cls, text: str) -> Sentence:
        """A reader's sentence, with or without a mark at its end. Raises UsageError if it is too short or too long."""
        words = tuple(text.rstrip(" .!?").split())
        if not LEAST_WORDS <= len(words) <= MOST_WORDS:
            raise UsageError(f"--text has {counted(len(words), 'word')}; give {LEAST_WORDS} to {MOST_WORDS}")
        if marked := next((word for word in words if not word.isalnum()), None):
            raise UsageError(f"--text: '{marked}' has signs that are not letters; leave them out")
        longest = max(words, key=len)
        if len(longest) > MOST_LETTERS:
            raise UsageError(f"--text: '{longest}' has {len(longest)} letters; give words of {MOST_LETTERS} or fewer")
        return cls(words)

    @property
    def vocabulary(self) -> tuple[str, ...]:
        return (*dict.fromkeys(word for word in self.words if word != END), END)

    @property
    def text(self) -> str:
        return " ".join(self.words) + END

    @property
    def ids(self) -> list[int]:
        return [self.vocabulary.index(word) for word in self.words]

    @property
    def targets(self) -> list[int]:
        return [*self.ids[1:], len(self.vocabulary) - 1]

    @property
    def other_text(self) -> list[int]:
        """A second text in the same batch: awesome data! for the source's sentence."""
        return [self.ids[-1], self.ids[1], len(self.vocabulary) - 1]

    @property
    def row_length(self) -> int:
        """The length of a row that holds both texts."""
        return len(self.ids) + len(self.other_text)


SOURCE = Sentence()
IDS, TARGETS = SOURCE.ids, SOURCE.targets


class SmallestLesson(Lesson):
    """One attention head and an output layer, with the loss and the chain rule.

    text: the reader's sentence instead of the source's. seed: of the weights.
    """

    name = "smallest"

    def __init__(self, weights: WeightsByPath | None = None, text: str | None = None, seed: int | None = None):
        self.sentence = sentence = SOURCE if text is None else Sentence.read(text)
        self.seed = SEED if seed is None else seed
        self.is_own = sentence != SOURCE or self.seed != SEED
        self.weights = draw_weights(sentence, self.seed) if weights is None else weights
        self.token_embedding = self.weights["embed.token.weight"].numpy()  # for all six words
        self.projections = {name: self.weights[f"{LAYER}.{name}.weight"].numpy() for name in PRINTED_WEIGHTS}
        self.model = model_values(self.weights, sentence)
        self.completed_weights = self.weights | draw_completion(self.seed)
        self.completed = completed_values(self.completed_weights, sentence)
        self.textbook = textbook_values(self.weights, sentence)
        self.losses = losses_by_layout(self.weights, sentence)  # layout of the batch -> the loss of each target
        scorer = make_smallest(self.weights, sentence.row_length, sentence)
        self.score = score(scorer, sentence.text)
        self.embedding = embed_text(scorer, " ".join(sentence.words))  # the last token's vector
        scaled = torch.from_numpy(self.model["scaled"])
        hidden = torch.ones_like(scaled).tril() == 0
        self.unmasked = scaled.softmax(-1).numpy()  # the attention weights of an encoder
        self.masked_by_number = scaled.float().masked_fill(hidden, MASK_NUMBER).softmax(-1).numpy()
        self.fully_masked = {  # the weights of a row without any visible key, by the number in its place
            number: torch.full((len(scaled),), number).softmax(-1).tolist() for number in (MASK_NUMBER, -math.inf)
        }
        self.other_positions = other_positions(self.weights, sentence)

    @property
    def skipped(self) -> str:
        return "the source prints figures of another sentence or other weights" if self.is_own else ""

    def shown(self) -> dict[str, Any]:
        model, losses = self.model, self.losses["alone"]
        words, vocabulary = self.sentence.words, self.sentence.vocabulary
        ids, digits = self.sentence.ids, 6 if len(vocabulary) <= len(VOCABULARY) else 4  # what fits a terminal
        contexts = [" ".join(words[: t + 1]) for t in range(len(ids))]
        targets = [vocabulary[target] for target in self.sentence.targets]
        headings = vocabulary if digits == 6 else [word if len(word) <= 6 else f"{word[:5]}…" for word in vocabulary]
        return {
            "is_own": self.is_own,
            "seed": self.seed,
            "sentence": self.sentence.text,
            "first_word": words[0],
            "second_word": words[1],
            "last_word": words[-1],
            "last_id": len(vocabulary) - 1,
            "num_words": len(vocabulary),
            "num_targets": len(targets),
            "contexts": [
                (str(t), context, str(ids[t]), target)
                for t, (context, target) in enumerate(zip(contexts, targets, strict=True))
            ],
            "word_vectors": Matrix(self.token_embedding, row_labels=vocabulary),
            "token": Matrix(model["token"], row_labels=words),
            "stream": Matrix(model["stream"], row_labels=words),
            "other_positions": [(vocabulary[id], str(id), str(t)) for t, id in enumerate(self.sentence.other_text)],
            **{f"W_{name[0].upper()}": self.projections[name] for name in PRINTED_WEIGHTS},
            **{name: model[name] for name in ("position", *PRINTED_WEIGHTS)},
            "scaled": Matrix(model["scaled"], 2, words),
            "masked": Matrix(model["masked"], 2),
            "weights": Matrix(model["weights"], row_labels=words),
            "weights_picture": HeatMap(model["weights"], words, words),
            "scaled_first": Matrix(model["scaled"][0], 2),
            "unmasked_first": self.unmasked[0],
            **{f"weight_{key}": model["weights"][1, key] for key in (0, 1)},
            **{f"value_{key}": model["value"][key] for key in (0, 1)},
            "output_1": model["output"][1],
            "output": Matrix(model["output"], row_labels=words),
            "num_heads": NUM_HEADS,
            "feedforward_width": FEEDFORWARD_WIDTH,
            **{name: Matrix(self.completed[name], row_labels=words) for name in COMPLETED_NAMES},
            "probabilities": labelled_table(words, headings, model["probabilities"], digits=digits, corner="after"),
            "most_likely": vocabulary[int(model["probabilities"][0].argmax())],
            "word_losses": [
                (context, target, f"{math.exp(-loss):.6f}", f"{loss:.6f}")
                for context, target, loss in zip(contexts, targets, losses, strict=True)
            ],
            "loss": f"{sum(losses):.6f}",
            "logprob": Number(-sum(losses), 6),
            "probability": Number(math.exp(self.score.logprob), 6),
            "layouts": labelled_table(
                targets, list(self.losses), np.array(list(self.losses.values())).T, digits=6, corner="target"
            ),
            "embedding": self.embedding,
            "width": WIDTH,
        }

    def checks(self) -> list[FigureCheck]:
        return [
            *([] if self.is_own else self.printed_figures()),
            *self.model_and_textbook(),
            *self.masked_by_numbers(),
            *([] if self.is_own else self.slips()),
            *self.loss_and_chain_rule(),
            *self.batch_layouts(),
        ]

    def solutions(self) -> list[Exercise]:
        shown = [f"{score:.2f}" for score in self.model["scaled"][1]]
        exponentials = " + ".join(f"exp({score})" for score in shown)
        count, size = len(self.sentence.words), len(self.sentence.vocabulary)
        return [
            Exercise.largest(self.sentence.words, self.model["weights"][-1], f"{LAYER}.core.weights[0,{count - 1},:]"),
            Exercise(float(self.unmasked[1, 0]), f"exp({shown[0]}) / ({exponentials})", f"{LAYER}.core.scaled[0,1,:]"),
            Exercise(count * math.log(size), f"{count} · ln({size})", "section 7"),
        ]

    def printed_figures(self) -> list[FigureCheck]:
        return [
            *(printed(f"{name} weight", figures, self.projections[name]) for name, figures in PRINTED_WEIGHTS.items()),
            printed("word embedding, with !", TOKEN_EMBEDDING, self.token_embedding),
            *(printed(what, figures, self.model[name], digits) for name, (what, figures, digits) in PRINTED.items()),
        ]

    def model_and_textbook(self) -> list[FigureCheck]:
        """The model and the textbook compute the same values."""
        return [
            near(f"{name}: the textbook's and the model's", value, self.model[name], TEXTBOOK_BOUND)
            for name, value in self.textbook.items()
        ] + [
            near(
                "the completed layer: the textbook's and the model's logits",
                decoder_forward(completed_config(self.sentence), to_arrays(self.completed_weights), self.sentence.ids),
                self.completed["logits"],
                TEXTBOOK_BOUND,
            )
        ]

    def masked_by_numbers(self) -> list[FigureCheck]:
        """The mask hides later words, with the source's number in place of -∞ too, unless it hides all."""
        count = len(self.sentence.words)
        return [
            same("masked with -1e9 and with -∞: weights of 0", self.masked_by_number == 0, self.model["masked"] < -1e9),
            near("masked with -1e9 and with -∞: weights", self.model["weights"], self.masked_by_number, FLOAT32_BOUND),
            near(
                "a row masked completely, with -1e9", [1 / count] * count, self.fully_masked[MASK_NUMBER], FLOAT32_BOUND
            ),
            same("a row masked completely, with -∞", True, bool(np.isnan(self.fully_masked[-math.inf]).all())),
        ]

    def slips(self) -> list[FigureCheck]:
        """Contradictions between the source's words or formulas and its code."""
        untransposed = np.abs(self.model["stream"] @ self.projections["query"] - self.model["query"]).max()
        positions = self.weights["embed.position.weight"].numpy()
        return [
            above("X W_Q, not transposed, differs from the printed queries by", 0.1, float(untransposed)),
            same("this sentence's ids are its positions", list(range(len(IDS))), IDS),
            near("positions of 'awesome data!' are 0, 1, 2", positions[:3], self.other_positions, TEXTBOOK_BOUND),
        ]

    def loss_and_chain_rule(self) -> list[FigureCheck]:
        """The loss is the sum over the targets' probabilities, as printed if they are; the first word has none."""
        losses = self.losses["alone"]
        probabilities = self.model["probabilities"] if self.is_own else PROBABILITIES
        targets = [row[target] for row, target in zip(probabilities, self.sentence.targets, strict=True)]
        expected = -sum(math.log(probability) for probability in targets)
        rounding = sum(0.5e-6 / probability for probability in targets)  # error of the printed figures' logarithms
        return [
            near("loss, from the probabilities", expected, sum(losses), rounding),
            near("log P of the sentence is minus the loss", -sum(losses), self.score.logprob, 1e-5),
            same("P of the first word", None, self.score.tokens[0].logprob),
            near("the last token's vector", self.model["output"][-1], self.embedding, FLOAT32_BOUND),
        ]

    def batch_layouts(self) -> list[FigureCheck]:
        """Alone, padded and packed, the sentence has the same losses."""
        (first, alone), *others = self.losses.items()
        return [near(f"losses {name} and {first}", alone, losses, FLOAT32_BOUND) for name, losses in others] + [
            same("losses are finite", True, bool(np.isfinite(list(self.losses.values())).all()))
        ]


@torch.inference_mode()
def other_positions(weights: WeightsByPath, sentence: Sentence) -> np.ndarray:
    """The position vectors that the model adds to a text whose ids are not its positions."""
    model = make_smallest(weights, sentence.row_length, sentence)
    with Trace(model, "embed.position") as trace:
        model.decoder(torch.tensor([sentence.other_text]))
    return last_two_axes(trace["embed.position"])


def draw_weights(sentence: Sentence = SOURCE, seed: int = SEED) -> WeightsByPath:
    """The weights drawn in the source's way: the seed is set again before each of three groups of layers."""
    words, positions = len(sentence.vocabulary), len(sentence.words)
    return draw_groups(
        seed,
        {"embed.token": lambda: nn.Embedding(words, WIDTH), "embed.position": lambda: nn.Embedding(positions, WIDTH)},
        {f"{LAYER}.{name}": lambda: nn.Linear(WIDTH, WIDTH, bias=False) for name in ("query", "key", "value")},
        {"head": lambda: nn.Linear(WIDTH, words)},
    )


def draw_completion(seed: int = SEED) -> WeightsByPath:
    """The weights of the completed layer that the source does not print; its norms do not scale."""
    sizes = {
        "attention.output": (WIDTH, WIDTH),
        "feedforward.up": (WIDTH, FEEDFORWARD_WIDTH),
        "feedforward.down": (FEEDFORWARD_WIDTH, WIDTH),
    }
    drawn = draw_groups(
        seed, {f"{BLOCK}.{name}": partial(nn.Linear, *size, bias=False) for name, size in sizes.items()}
    )
    norms = (f"{BLOCK}.{name}.weight" for name in ("attention_norm", "feedforward_norm"))
    return drawn | {path: torch.ones(WIDTH).double() for path in norms}


def draw_groups(seed: int, *groups: Mapping[str, Callable[[], nn.Module]]) -> WeightsByPath:
    """The weights of modules by path; the seed is set again before each group.

    In float64: one printed probability is 0.22630851 before rounding, too close to a tie for float32.
    """
    weights: WeightsByPath = {}
    with torch.random.fork_rng(devices=[]):
        for group in groups:
            torch.manual_seed(seed)
            for path, make in group.items():
                for name, weight in make().named_parameters():
                    weights[f"{path}.{name}"] = weight.detach().double()
    return weights


def smallest_config(sentence: Sentence, context_length: int) -> ModelConfig:
    """One layer and one head without norm, feed-forward layer, output projection or residual."""
    sizes = {"width": WIDTH, "context_length": context_length, "vocab_size": len(sentence.vocabulary)}
    return bare_config(**sizes, attention_residual=False)


def completed_config(sentence: Sentence) -> ModelConfig:
    """`smallest_config` with several heads, and norms after two residuals: around attention, and around an MLP."""
    return smallest_config(sentence, len(sentence.words)).replaced(
        num_heads=NUM_HEADS,
        num_kv_heads=None,
        head_width=None,
        norm="layernorm",
        norm_placement="post",
        feedforward="mlp",
        feedforward_width=FEEDFORWARD_WIDTH,
        activation="gelu_erf",
        attention_output=True,
        attention_residual=True,
        bias={"attention": False, "attention_output": False, "feedforward": False, "norm": False, "head": True},
    )


@torch.inference_mode()
def completed_values(weights: WeightsByPath, sentence: Sentence) -> dict[str, np.ndarray]:
    """The steps of the completed layer and the logits after it, one row per token."""
    decoder = Decoder(completed_config(sentence)).double().eval()
    decoder.load_state_dict(weights)
    with Trace(decoder, list(COMPLETED_NAMES.values())) as trace:
        logits = decoder(torch.tensor([sentence.ids]))
    values = {name: trace[path][0] for name, path in COMPLETED_NAMES.items()}
    values["heads"] = values["heads"].transpose(0, 1).flatten(1)  # (H, T, E) to (T, D)
    return {name: value.numpy() for name, value in values.items()} | {"logits": logits[0].numpy()}


def to_arrays(weights: WeightsByPath) -> dict[str, np.ndarray]:
    return {path: weight.numpy() for path, weight in weights.items()}


def make_smallest(
    weights: WeightsByPath, context_length: int | None = None, sentence: Sentence = SOURCE
) -> LanguageModel:
    """The decoder with these weights. A context longer than the sentence has room for padding or a second text.

    The added positions have vectors of zeros; no token of the sentence uses them.
    """
    position = weights["embed.position.weight"]
    context_length = context_length or len(position)
    decoder = Decoder(smallest_config(sentence, context_length)).double().eval()
    padded = nn.functional.pad(position, (0, 0, 0, context_length - len(position)))
    decoder.load_state_dict(weights | {"embed.position.weight": padded})
    return LanguageModel(decoder, vocabulary_tokenizer(sentence.vocabulary), "the smallest decoder")


def model_values(weights: WeightsByPath, sentence: Sentence = SOURCE) -> dict[str, np.ndarray]:
    """The values of one pass over the sentence, traced in the model; one row per token."""
    model = make_smallest(weights, sentence=sentence)
    with torch.inference_mode(), Trace(model, list(TRACE_NAMES.values())) as trace:
        model.decoder(torch.tensor([sentence.ids]))
    values = {name: last_two_axes(trace[path]) for name, path in TRACE_NAMES.items()}
    return values | {"probabilities": last_two_axes(torch.from_numpy(values["logits"]).softmax(-1))}


def last_two_axes(value: Tensor) -> np.ndarray:
    """The value without its batch and head axes, which have size 1."""
    return value.reshape(value.shape[-2:]).numpy()


def textbook_values(weights: WeightsByPath, sentence: Sentence) -> dict[str, np.ndarray]:
    """Compute `model_values` by the formal algorithms, transposed to one row per token."""
    arrays, ids, length = to_arrays(weights), sentence.ids, len(sentence.words)
    zero = np.zeros(WIDTH)
    W_q, W_k, W_v = (arrays[f"{LAYER}.{name}.weight"] for name in ("query", "key", "value"))
    head = AttentionParameters(W_q, zero, W_k, zero, W_v, zero)
    X = embed(ids, arrays["embed.token.weight"].T, arrays["embed.position.weight"].T)
    mask = unidirectional_mask(length)
    columns = {
        "stream": X,
        "query": project(W_q, zero, X),
        "key": project(W_k, zero, X),
        "value": project(W_v, zero, X),
        "weights": attention_weights(X, X, head, mask),
        "output": attention(X, X, head, mask),
        "logits": decoder_forward(smallest_config(sentence, length), arrays, ids).T,
    }
    columns["probabilities"] = softmax_per_column(columns["logits"])
    return {name: value.T for name, value in columns.items()}


@torch.inference_mode()
def losses_by_layout(weights: WeightsByPath, sentence: Sentence) -> dict[str, list[float]]:
    """-log P of the sentence's targets: alone in its batch, padded, and packed with another text."""
    row, other, length = [*sentence.ids, sentence.targets[-1]], sentence.other_text, sentence.row_length
    padded, lengths = pad([row, other], length + 1)
    packed = np.array([[*other, *row]])  # the sentence comes second, so a faulty mask would change its loss
    packed_documents = np.array([[0] * len(other) + [1] * len(row)])
    padded_documents = np.where(np.arange(length + 1) < np.array(lengths)[:, None], 0, PADDING)
    batches = {
        "alone": make_batch(np.array([row])),
        "padded": make_batch(padded, lengths),
        "padded, and hidden": make_document_batch(padded, padded_documents),
        "packed": make_document_batch(packed, packed_documents),
    }
    objective = Objective(make_smallest(weights, length, sentence).decoder)
    losses = {name: objective.token_losses(batch)[0] for name, batch in batches.items()}  # (T,) each
    losses["packed"] = losses["packed"][len(other) :]
    return {name: values[: len(sentence.words)].tolist() for name, values in losses.items()}
