"""Exercises: questions of a lesson that a reader answers with paper and a calculator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from foretell.errors import UsageError
from foretell.insight.explain.steps import plain


@dataclass(frozen=True)
class Exercise:
    """The answer to a question, computed by the lesson; the lesson's text has the question.

    formula: how the answer follows from numbers that the lesson shows, with `·`, `√(x)`, `ln` and `^`. where: an
    address or a section. tolerance: for numbers that are not whole; the shown operands are rounded.
    """

    answer: float | str
    formula: str
    where: str
    tolerance: float = 0.01
    question: str = ""

    @classmethod
    def largest(cls, names: Sequence[str], numbers: Sequence[float], where: str) -> Self:
        """Which name has the largest number?"""
        name, _ = max(zip(names, numbers, strict=True), key=lambda pair: pair[1])
        return cls(name, "the largest of " + ", ".join(f"{number:.4f}" for number in numbers), where)

    @property
    def shown(self) -> str:
        """The answer as text; a number has four digits."""
        return f"{self.answer:.4g}" if isinstance(self.answer, float) else str(self.answer)

    def accepts(self, reply: str) -> bool:
        """True for the word in upper or lower case, the whole number, or a number within the tolerance.

        A number may have a decimal comma. Raises UsageError if the answer is a number and the reply is not.
        """
        reply = reply.strip().strip("'\"`")
        if isinstance(self.answer, str):
            return reply.casefold() == self.answer.casefold()
        try:
            number = float(reply.replace(",", ".").replace("−", "-").removesuffix("%"))
        except ValueError:
            raise UsageError(f"the answer {reply!r} is not a number, such as 0.25") from None
        return abs(number - self.answer) <= (self.tolerance if isinstance(self.answer, float) else 0)

    def verdict(self, reply: str) -> str:
        """One line: right, or the right answer, and its origin."""
        origin = f"{self.shown}: {self.formula} ({self.where})"
        return f"right, {origin}" if self.accepts(reply) else f"no, the answer is {origin}"

    def to_json(self, reply: str) -> dict[str, Any]:
        answer = {"question": self.question, "reply": reply, "right": self.accepts(reply), "answer": plain(self.answer)}
        return {**answer, "formula": self.formula, "where": self.where}
