"""Explanations of what is computed from the logits: token probabilities and the loss."""

from __future__ import annotations

import numpy as np

from foretell.errors import UsageError
from foretell.insight.explain.recording import IMPLIED, Array, Recording, TracedScalar, to_array
from foretell.insight.explain.steps import Equation, Listing, Step, Working, numeral
from foretell.typesetting.expression import Call, Fraction, Symbol, row, script


def implied_shape(recording: Recording, name: str) -> tuple[int, ...]:
    """The shape of the token probabilities (T, V), over the tokenizer's tokens only, or of the losses (T,)."""
    return (len(recording.ids), recording.vocabulary)[: 2 if name == "probabilities" else 1]


def implied_number(recording: Recording, name: str, index: tuple[int, ...]) -> float:
    """A token probability, or the negative log-probability of the next token, as next and score compute it."""
    position, *rest = index
    logprobs = recording.model.log_probabilities(recording.logits(position))  # (V,)
    if name == "probabilities":
        return float(logprobs[rest[0]].exp())
    return -float(logprobs[recording.ids[position + 1]])


def explain_probability(recording: Recording, scalar: TracedScalar) -> Working:
    """exp(logit) over the sum of all exp(logit)."""
    position, token = scalar.index
    if token >= recording.vocabulary:
        raise UsageError(
            f"the head has a logit for id {token}, but the tokenizer has only {recording.vocabulary} tokens; "
            "such an id is never sampled and has no probability"
        )
    logits = to_array(recording.logits(position))[: recording.vocabulary]
    exponentials = np.exp(logits - logits.max())
    value = float(exponentials[token] / exponentials.sum())
    formula = Fraction(script("exp", str(token)), row(script("Σ", "v"), script("exp", "v")))
    quotient = Fraction(numeral(exponentials[token]), numeral(exponentials.sum()))
    steps: list[Step] = [
        sorted_tokens(recording, position, (logits, exponentials), token),
        Equation(row(Symbol("probability"), "=", formula, "=", quotient, "=", numeral(value)), value),
    ]
    return Working(steps, value, value * (2 + float(logits.max() - logits[token])))


def sorted_tokens(recording: Recording, position: int, row_of: tuple[Array, Array], token: int) -> Listing:
    """The distribution after a position, most probable first, with the explained token in focus."""
    logits, exponentials = row_of
    order = np.argsort(-logits, kind="stable")
    columns = {
        "number": order.tolist(),
        "token": [recording.named(token_id) for token_id in order.tolist()],
        "logit": logits[order],
        "exp": exponentials[order],
        "probability": exponentials[order] / exponentials.sum(),
    }
    note = f"logits = head[{position}], most probable first; exp is of logit - {logits.max():.6f}, the largest"
    return Listing(note, columns, ("exp", "probability"), focus=int(np.flatnonzero(order == token)[0]))


def explain_loss(recording: Recording, scalar: TracedScalar) -> Working:
    """-log of the probability of the next token."""
    position = scalar.index[0]
    target = recording.ids[position + 1]
    probability = explain_probability(recording, TracedScalar(IMPLIED["probabilities"], (position, target)))
    logits = to_array(recording.logits(position))[: recording.vocabulary]
    shifted = logits - logits.max()
    value = float(np.log(np.exp(shifted).sum()) - shifted[target])
    equation = row(Symbol("loss"), "=", "-", Call("log", numeral(probability.value)), "=", numeral(value))
    note = f"position {position} is followed by {recording.token(position + 1)}, id {target}; in nats"
    return Working([*probability.steps, Equation(equation, value, note)], value, 2 + abs(value))


def check_loss_position(position: int, length: int) -> None:
    """Raise `UsageError` for the loss of the last token: no token follows it."""
    if position == length - 1:
        others = f"; give 0 to {length - 2}" if length > 1 else ""
        raise UsageError(f"loss[{position}] does not exist: token {position} is the last of the text{others}")
