"""Rotary positions: the angle of a position, and a query or key that is turned by it. And the core's plain inputs."""

from __future__ import annotations

import math

from foretell.insight.explain.linear import factor, number
from foretell.insight.explain.place import Place, address_of
from foretell.insight.explain.recording import Recording
from foretell.insight.explain.steps import Equation, Remark, Working
from foretell.textbook.family import frequency
from foretell.typesetting.expression import Call, Expression, Number, Symbol, row, script


def explain_angle(recording: Recording, place: Place) -> Working:
    """cos or sin of position * frequency."""
    position, element = place.index
    config = recording.config
    pair = element % (config.head_width // 2)
    step = frequency(config, pair)
    angle = position * step
    name, wave = {"cosine": ("cos", math.cos), "sine": ("sin", math.sin)}[place.name.rpartition(".")[2]]
    value = wave(angle)
    trained = row(script(Number(config.rope_theta, 0), "", f"-{2 * pair}/{config.head_width}"))
    steps = [
        Equation(
            row(Symbol("frequency"), "=", *trained.items, *scaling_words(recording), "=", number(step)),
            step,
            f"elements {pair} and {pair + config.head_width // 2} are pair {pair}; the angle is in radians",
        ),
        Equation(row(Symbol("angle"), "=", Number(position), "·", number(step), "=", number(angle)), angle),
        Equation(row(Call(name, number(angle)), "=", number(value)), value),
    ]
    # The frequency is a power, whose exponent is rounded: theta^x is off by as much as ln(theta) x is
    return Working(list(steps), value, 1 + angle * (2 + math.log(config.rope_theta)))


def scaling_words(recording: Recording) -> list[Expression | str]:
    """`, stretched` where the trained frequency is not the one in use."""
    scaling = recording.config.rope_scaling
    return [] if scaling is None else [",", Symbol(f"{scaling.type} scaling by {scaling.factor:g}")]


def explain_query(recording: Recording, place: Place) -> Working:
    """The query that the core gets: after its norm, and turned by its position."""
    return turned(recording, place, place.name.replace(".core.query", ".query_norm"))


def explain_key(recording: Recording, place: Place) -> Working:
    """The key that the core gets."""
    return turned(recording, place, place.name.replace(".core.key", ".key_norm"))


def explain_value_input(recording: Recording, place: Place) -> Working:
    """The value that the core gets: the head's part of the projection."""
    head, position, element = place.index
    source = place.name.replace(".core.value", ".value")
    width = recording.config.head_width
    place_in_row = (position, head * width + element)
    value = float(recording.array(source)[place_in_row])
    own = f"elements {head * width} to {(head + 1) * width - 1} of the projection"
    remark = Remark(f"Key head {head} has {own}; this one is {address_of(source, *place_in_row)}.")
    return Working([remark, Equation(row(Symbol("v"), "=", number(value)), value)], value, 0.0)


def turned(recording: Recording, place: Place, source: str) -> Working:
    """An element and its partner, turned by the position's angle; as it is where positions are not rotations."""
    before = float(recording.array(source)[place.index])
    if recording.config.position != "rotary":
        remark = Remark(f"Without rotary positions this is {address_of(source, *place.index)} as it is.")
        return Working([remark, Equation(row(Symbol("x"), "=", number(before)), before)], before, 0.0)
    head, position, element = place.index
    half = recording.config.head_width // 2
    is_first = element < half
    partner = element + half if is_first else element - half
    beside = float(recording.array(source)[head, position, partner])
    cosine, sine = (float(recording.array(f"trunk.rotation.{name}")[position, element]) for name in ("cosine", "sine"))
    kept, brought = before * cosine, (-beside if is_first else beside) * sine
    value = kept + brought
    sign = "-" if is_first else "+"
    formula = row(
        *(Symbol("x"), "·", Symbol("cos"), sign, Symbol("y"), "·", Symbol("sin"), "="),
        *(number(before), "·", factor(cosine), sign, factor(beside), "·", factor(sine), "=", number(value)),
    )
    operands = {
        "x": address_of(source, *place.index),
        "y": f"{address_of(source, head, position, partner)}, its partner",
        "cos": address_of("trunk.rotation.cosine", position, element),
        "sin": address_of("trunk.rotation.sine", position, element),
    }
    return Working([Equation(formula, value, "", operands)], value, abs(kept) + abs(brought))
