"""Results that display themselves: as text when printed, as HTML or LaTeX in a notebook."""

from __future__ import annotations

from abc import ABC, abstractmethod

from foretell.typesetting.document import DocumentSection
from foretell.typesetting.html import fragment
from foretell.typesetting.latex import document_latex
from foretell.typesetting.text import document_text


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
        """The formulas alone; None without formulas, so that a notebook uses another format."""
        return document_latex(self.document()) or None
