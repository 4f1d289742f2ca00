"""What shows itself: in a terminal when printed, in a notebook as HTML or LaTeX, always from the same document."""

from __future__ import annotations

from abc import ABC, abstractmethod

from foretell.typesetting.document import DocumentSection
from foretell.typesetting.html import fragment
from foretell.typesetting.latex import document_latex
from foretell.typesetting.text import document_text


class Shown(ABC):
    """A result that has a document. No scripts are needed to see it."""

    @abstractmethod
    def document(self) -> DocumentSection:
        """What there is to show."""

    def __str__(self) -> str:
        return document_text(self.document())

    def _repr_html_(self) -> str:
        return fragment(self.document(), level=3)

    def _repr_latex_(self) -> str | None:
        """The formulas alone; None where there are none, and a notebook looks for something else."""
        return document_latex(self.document()) or None
