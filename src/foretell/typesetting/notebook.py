"""Results that display themselves: as text when printed, as HTML or LaTeX in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, TypeVar

from foretell.typesetting.document import DocumentSection, iter_formulas
from foretell.typesetting.html import fragment
from foretell.typesetting.text import document_text


class ShowsHtml(Protocol):
    """What a notebook can display."""

    def _repr_html_(self) -> str: ...


Item = TypeVar("Item", bound=ShowsHtml)


class Shown(ABC):
    """Base class of results that display as a document, without scripts."""

    @abstractmethod
    def document(self) -> DocumentSection:
        """The document to display."""

    def __str__(self) -> str:
        return document_text(self.document())

    def _repr_html_(self) -> str:
        return fragment(self.document(), level=3)

    def _repr_latex_(self) -> str | None:
        """The formulas alone, one per line; None without formulas, so that a notebook uses another format."""
        lines = [formula.expression.latex() for formula in iter_formulas(self.document())]
        return "$$\\begin{gathered}\n" + " \\\\\n".join(lines) + "\n\\end{gathered}$$" if lines else None


class ShownList(list[Item]):
    """A list of results that displays them below each other. It equals any list of the same items."""

    def __repr__(self) -> str:
        return "\n\n".join(map(str, self)) or "[]"

    def _repr_html_(self) -> str:
        return "\n".join(item._repr_html_() for item in self) or "[]"
