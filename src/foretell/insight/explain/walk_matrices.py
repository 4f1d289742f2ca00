"""The vectors of a small model as matrices, one row per token, with the formulas between them."""

from __future__ import annotations

from foretell.insight.explain.recording import Array, Recording, to_array
from foretell.insight.layers import UPDATES, memory_weights_of, stream_path
from foretell.model.structure import Value
from foretell.typesetting.document import DocumentSection, Formula, Part
from foretell.typesetting.expression import Call, Expression, Fraction, Matrix, Root, Script, Symbol, row, script

LABEL = 10  # characters of a row's token label
DIGITS, WIDE = 4, 6  # wider matrices have one digit less, so that eight columns fit on a line


def layer_matrices(recording: Recording, layer: int) -> DocumentSection:
    """The matrices of one layer, from its input stream to its output stream."""
    structure = recording.structure
    stream = "X"
    parts: list[Part] = [shown(recording, structure.stream[layer], Symbol(stream), "the stream, one row per token")]
    memory = [("C", "X″")] if memory_weights_of(structure, layer) else []
    updates = iter((("U", "X′"), *memory, ("F", "X‴" if memory else "X″")))
    for value in stream_path(structure, layer):
        if value.formula not in UPDATES:  # a norm after an update
            parts += after_norm(recording, value.name, stream)
            continue
        letter, after = next(updates)
        parts += update_matrices(recording, layer, value, stream, letter)
        parts.append(shown(recording, value.name, Symbol(after), f"the stream after {letter}"))
        stream = after
    return DocumentSection(f"Layer {layer}", parts)


def update_matrices(recording: Recording, layer: int, value: Value, stream: str, letter: str) -> list[Part]:
    """The matrices of one sublayer: the normalized stream that it reads, its heads if it has any, and its output."""
    structure, block = recording.structure, recording.structure.stream[layer + 1]
    before, update = value.reads
    path = [other.name for other in stream_path(structure, layer)]
    parts: list[Part] = []
    for name, other in structure.values.items():
        is_in_block = name == other.module and name.rpartition(".")[0] == block
        if is_in_block and other.reads == (before,) and name not in path:
            parts += after_norm(recording, name, stream)
    cores = structure.with_formula("attention", f"{update}.")
    for core in cores:
        for head in range(recording.config.num_heads):
            parts += head_matrices(recording, core.name, head)
    note = "the output of attention, all heads together" if cores else "the output of the feed-forward layer"
    return [*parts, shown(recording, update, Symbol(letter), note)]


def last_matrices(recording: Recording) -> DocumentSection:
    """The matrices from the last stream to probabilities."""
    parts = after_norm(recording, "trunk.norm", "X")
    parts.append(shown(recording, "head", Symbol("logits"), "one logit per token of the vocabulary"))
    distribution = Formula(
        row(
            Symbol("P"),
            "=",
            Call("softmax", Symbol("logits")),
            "=",
            labelled(recording, to_array(recording.model.log_probabilities(recording.stored("head").cpu()).exp())),
        ),
        "probabilities: row t is the distribution of the token after position t",
    )
    return DocumentSection("The head", [*parts, distribution])


def head_matrices(recording: Recording, core: str, head: int) -> list[Part]:
    """Queries, keys, values, scores, weights and outputs of one head."""
    config = recording.config
    group = head // (config.num_heads // config.num_kv_heads)
    inputs = [
        matrix(recording, f"{core}.{name}", script(letter, str(head)), index, f"{core}.{name}[{index}]")
        for name, letter, index in (("query", "Q", head), ("key", "K", group), ("value", "V", group))
    ]
    q, k, v, a = (script(letter, str(head)) for letter in "QKVA")
    scores = Fraction(row(q, Script(k, above=Symbol("T"))), Root(Symbol("E")))
    masked, weights, mixed = (recording.array(name)[head] for name in (f"{core}.masked", f"{core}.weights", core))
    return [
        *inputs,
        Formula(
            row(script("S", str(head)), "=", Call("mask", scores), "=", labelled(recording, masked)),
            f"{core}.masked[{head}]: row t, column s is the masked score of query t and key s",
        ),
        Formula(
            row(a, "=", Call("softmax", script("S", str(head))), "=", labelled(recording, weights)),
            f"{core}.weights[{head}]: every row sums to 1",
        ),
        Formula(row(a, v, "=", labelled(recording, mixed)), f"{core}[{head}]: each row a weighted sum of the values"),
    ]


def after_norm(recording: Recording, name: str, read: str) -> list[Part]:
    """The output of a norm; empty if the model has none."""
    if recording.structure[name].formula == "identity":
        return []
    return [shown(recording, name, Call("norm", Symbol(read)), "")]


def shown(recording: Recording, name: str, symbol: Expression, note: str) -> Formula:
    """A stream (T, D) with its name."""
    note = f"{name}: {note}" if note else name
    return Formula(row(symbol, "=", labelled(recording, recording.array(name), recording.dimensions(name)[0])), note)


def matrix(recording: Recording, name: str, symbol: Expression, head: int, note: str) -> Formula:
    """One head of a value (H, T, E)."""
    values, meaning = recording.array(name)[head], recording.dimensions(name)[1]
    return Formula(row(symbol, "=", labelled(recording, values, meaning)), note)


def labelled(recording: Recording, values: Array, meaning: str = "position") -> Matrix:
    """A matrix with a token label for each row; `meaning` is that of the dimension of the rows."""
    labels = [recording.token_on(meaning, position)[:LABEL] for position in range(len(values))]
    return Matrix(values, DIGITS if values.shape[1] <= WIDE else DIGITS - 1, labels)
