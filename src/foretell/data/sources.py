"""Documents from text files, JSON Lines, JSON, CSV, TSV (all also compressed), Parquet, folders and standard input.

Text is UTF-8, read strictly: bytes that do not decode are an error, never a replacement character. Every change on
the way (byte order marks, CRLF, empty documents, files left out) is logged as a warning, one line for each kind.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from foretell.data.compressed import COMPRESSIONS, DecompressedLines, open_compressed
from foretell.data.documents import AnsweredDocument, Document, FileDocument, TextDocument, has_crlf, is_clean
from foretell.data.parquet import SUFFIX as PARQUET
from foretell.data.parquet import iter_parquet
from foretell.data.records import RECORD_LINES, RECORD_SUFFIXES, RecordFields, Texts, iter_lines, iter_records
from foretell.errors import DataError, UsageError, did_you_mean

logger = logging.getLogger(__name__)

# The files that are read in a folder; a file named by itself is read with any suffix.
PROSE_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".org")
CODE_SUFFIXES = (
    *(".c", ".cc", ".cpp", ".cs", ".go", ".h", ".hpp", ".java", ".jl", ".js", ".kt", ".lua", ".php", ".pl"),
    *(".py", ".pyi", ".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".swift", ".ts"),
)
FOLDER_SUFFIXES = frozenset((*PROSE_SUFFIXES, *RECORD_SUFFIXES, PARQUET, *CODE_SUFFIXES))

MOST_NAMED = 8  # files that are left out, each with its error
EVERY_TEXT = RecordFields()  # the field `text` of records, and files without fields as a whole
LARGE = 2**24  # bytes; larger text files are read in pieces
STANDARD_INPUT = "standard input"
REACHED_BEFORE = "reached before, skipped"
Identity = tuple[int, int]  # device and inode
NO_TEXT = "holds no text (empty, or nothing but whitespace); give a file with text"


def read_documents(
    paths: Sequence[str | Path], *, text_field: str | None = None, strict: bool = False
) -> Iterator[Document]:
    """The documents of files, folders (recursively, in sorted order) and `-` (standard input), in the order given.

    A `.jsonl` file holds one document per line, a `.json` file a list of them (strings, or objects with the field
    `text`), `.csv`, `.tsv` and `.parquet` one per row (column `text`, or the only one); `text_field` names another.
    Every other file is one document; from LARGE bytes on it is read in pieces and never held in memory. Line ends
    become LF, a byte order mark is dropped, documents of nothing but whitespace and files reached twice are skipped:
    each is logged, one line for each kind. Files that end in .gz, .bz2, .xz or .zst are decompressed. A file found in
    a folder that cannot be read is left out and named; with `strict`, and if no other file has text, it is an error.

    Raises UsageError for no or an empty path, and DataError for input that is missing, empty, unreadable, binary, not
    UTF-8 or malformed, with the line. Missing paths and folders without text files are reported by the call itself,
    before the first document is requested.
    """
    return DocumentReader(paths, RecordFields(text_field), strict=strict).read()


class DocumentReader:
    """`read_documents` for texts that are read several times: what an earlier reading logged is not logged again.

    With an answer in `fields`, every record becomes an `AnsweredDocument`, `separator` at the end of its prompt.
    Standard input can be read only once.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        fields: RecordFields = EVERY_TEXT,
        *,
        separator: str = "",
        strict: bool = False,
    ):
        if isinstance(paths, str | Path) or not paths or not all(str(path) for path in paths):
            raise UsageError(f"paths {paths!r}: give a list of at least one file, folder or '-' for standard input")
        self.paths = list(paths)
        self.fields, self.separator = fields, separator
        self.strict = strict
        self._logged: set[str] = set()

    def read(self) -> Iterator[Document]:
        """One reading of all documents; errors are those of `read_documents`."""
        notes = _ReadingNotes()
        try:
            inputs = _find_inputs(self.paths, notes)
        finally:
            self._log(notes)
        return self._iter_documents(inputs, notes)

    def _iter_documents(self, inputs: list[_InputFile], notes: _ReadingNotes) -> Iterator[Document]:
        any_text = False
        try:
            for source in inputs:
                if source.in_folder and not self.strict and not self._can_be_read(source, notes):
                    continue
                for document in self._iter_documents_of(source, notes):
                    any_text = True
                    yield document
        finally:
            self._log(notes)
        if not any_text and notes.left_out:
            raise notes.left_out[0]
        if not any_text:
            raise DataError(f"{inputs[0]}: holds no text, and neither does any other file; give files with text")

    def _iter_documents_of(self, source: _InputFile, notes: _ReadingNotes) -> Iterator[Document]:
        if not self.fields.by_line and source.path is not None and _is_large(source, source.path):
            yield _large_document(source, source.path, notes)
            return
        any_text = False
        for where, texts in self._iter_texts(source, notes):
            if any(text.strip() for text in texts):
                any_text = True
                yield _make_document(where, texts, self.separator, notes)
            elif source.has_records or self.fields.by_line:
                notes.add("empty document skipped", where)
        if not any_text and source.in_folder:
            notes.add("file without text skipped", str(source))
        elif not any_text:
            raise DataError(f"{source}: {NO_TEXT}")

    def _iter_texts(self, source: _InputFile, notes: _ReadingNotes) -> Iterator[tuple[str, Texts]]:
        if source.path is not None and source.suffix == PARQUET:
            if source.is_compressed:
                raise DataError(f"{source}: parquet is compressed by itself and not read from within; decompress it")
            with _readable(str(source)):
                yield from iter_parquet(source.path, self.fields, notes.add)
            return
        with _opened(source) as file:
            yield from iter_records(file, str(source), source.suffix, self.fields, notes.add)

    def _can_be_read(self, source: _InputFile, notes: _ReadingNotes) -> bool:
        """Read a file once, so that one that cannot be read is left out as a whole; the error is noted."""
        try:
            for _ in self._iter_documents_of(source, _ReadingNotes()):
                pass
        except DataError as error:
            notes.left_out.append(error)
            return False
        return True

    def _log(self, notes: _ReadingNotes) -> None:
        for line in notes.take_lines():
            if line not in self._logged:
                self._logged.add(line)
                logger.warning(line)


@dataclass
class _ReadingNotes:
    """What was done to the input, counted by kind with the first example: a folder gives one line, not 10,000."""

    counts: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    left_out: list[DataError] = field(default_factory=list)

    def add(self, what: str, where: str | Path) -> None:
        self.counts[what] += 1
        self.first.setdefault(what, str(where))

    def take_lines(self) -> list[str]:
        """One line for each kind since the last call."""
        counts, first = dict(self.counts), dict(self.first)
        self.counts.clear()
        self.first.clear()
        changes = [
            f"{what}: {first[what]}" + (f" and {count - 1:,} more" if count > 1 else "")
            for what, count in counts.items()
        ]
        left_out = [f"left out: {error}" for error in self.left_out[:MOST_NAMED]]
        unnamed = len(self.left_out) - MOST_NAMED
        return [*changes, *left_out, *([f"left out: {unnamed:,} more files"] if unnamed > 0 else [])]


@dataclass(frozen=True)
class _InputFile:
    """One file to read (path None: standard input); it may be empty only if it was found in a folder."""

    path: Path | None
    in_folder: bool = False

    @property
    def suffix(self) -> str:
        """The suffix of the content: .jsonl for x.jsonl.gz."""
        return "" if self.path is None else _content_suffix(self.path)

    @property
    def has_records(self) -> bool:
        """Whether it holds records with fields, and not one text."""
        return self.suffix in (*RECORD_SUFFIXES, PARQUET)

    @property
    def is_compressed(self) -> bool:
        return self.path is not None and self.path.suffix.lower() in COMPRESSIONS

    def __str__(self) -> str:
        return STANDARD_INPUT if self.path is None else str(self.path)


def _content_suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in COMPRESSIONS else suffix


# --- finding files ---------------------------------------------------------------------------------------------------


def _find_inputs(paths: Sequence[str | Path], notes: _ReadingNotes) -> list[_InputFile]:
    """Every file to read, once: a text read twice would be in both the training and the validation part."""
    inputs: list[_InputFile] = []
    seen: set[Identity] = set()
    for path in paths:
        if str(path) == "-":
            new = [] if _InputFile(None) in inputs else [_InputFile(None)]
        else:
            with _readable(str(path)):
                new = _find_at(Path(path), seen, notes)
        inputs += new
        if not new:
            notes.add("given twice, read once", path)
    if not inputs:
        raise DataError(f"{paths[0]}: only links that lead back to it; give files with text")
    return inputs


def _find_at(path: Path, seen: set[Identity], notes: _ReadingNotes) -> list[_InputFile]:
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path}: a link that leads nowhere or to itself; give the file it should lead to")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder{_nearest_name(path) or '; check the path'}")
    if path.is_char_device() or path.is_block_device():
        raise DataError(f"{path}: a device, not a text; give a file, or '-' for standard input")
    if path.is_dir():
        return _find_in_folder(path, seen, notes)
    return [_InputFile(path)] if _is_new(path, seen) else []


def _is_new(path: Path, seen: set[Identity]) -> bool:
    status = path.stat()  # resolving a path instead takes 8 s for 900 nested folders
    identity = status.st_dev, status.st_ino
    if identity in seen:
        return False
    seen.add(identity)
    return True


def _find_in_folder(folder: Path, seen: set[Identity], notes: _ReadingNotes) -> list[_InputFile]:
    if not _is_new(folder, seen):
        return []
    inputs: list[_InputFile] = []
    skipped: Counter[str] = Counter()
    pending = sorted(folder.iterdir(), reverse=True)
    while pending:
        path = pending.pop()
        if reason := _why_skipped(path, seen):
            notes.add(reason, path)
            skipped[reason] += 1
        elif path.is_dir():
            pending += sorted(path.iterdir(), reverse=True)
        else:
            inputs.append(_InputFile(path, in_folder=True))
    if not inputs and REACHED_BEFORE not in skipped:
        examples = ", ".join((*PROSE_SUFFIXES[:3], *RECORD_SUFFIXES, PARQUET))
        raise DataError(
            f"{folder}: no file to read in this folder ({skipped.total():,} skipped); "
            f"it should hold files such as {examples}, or name the files one by one"
        )
    return inputs


def _why_skipped(path: Path, seen: set[Identity]) -> str | None:
    """Why a folder's entry is skipped, or None if it is to be read or entered."""
    if path.name.startswith("."):
        return "hidden, skipped"
    if not (path.is_file() or path.is_dir()):
        return "neither file nor folder, skipped"
    if path.is_file() and _content_suffix(path) not in FOLDER_SUFFIXES:
        return f"suffix {path.suffix.lower()} skipped" if path.suffix else "no suffix, skipped"
    return None if _is_new(path, seen) else REACHED_BEFORE


def _nearest_name(path: Path) -> str:
    """A suggestion for the first missing part of a path."""
    while not path.parent.exists():
        path = path.parent
    return did_you_mean(path.name, (entry.name for entry in path.parent.iterdir())) if path.parent.is_dir() else ""


# --- reading files ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{error.filename or name}: cannot be read ({error.strerror}); check the path and its permissions"
        ) from error


@contextlib.contextmanager
def _opened(source: _InputFile) -> Iterator[BinaryIO | DecompressedLines]:
    with _readable(str(source)):
        if source.path is None:
            yield sys.stdin.buffer
        elif source.is_compressed:
            with open_compressed(source.path, source.suffix not in RECORD_LINES) as file:
                yield file
        else:
            with source.path.open("rb") as file:
                yield file


def _make_document(where: str, texts: Texts, separator: str, notes: _ReadingNotes) -> Document:
    clean = [_with_newlines(_encodable(text, where), where, notes) for text in texts]
    if len(clean) == 1:
        return TextDocument(where, clean[0])
    for what, text in zip(("prompt", "answer"), clean, strict=True):
        if not text.strip():
            raise DataError(f"{where}: the {what} is empty; fill it in, or remove this record")
    return AnsweredDocument(where, clean[0] + separator, clean[1])


def _encodable(text: str, where: str) -> str:
    """The text, unless a JSON escape such as \\ud800 put half a character into it, which UTF-8 cannot hold."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"{where}: {half} is half of a surrogate pair, not a character; write both or none") from None
    return text


def _with_newlines(text: str, where: str, notes: _ReadingNotes) -> str:
    if "\r\n" not in text:
        return text
    notes.add("CRLF line ends read as LF", where)
    return text.replace("\r\n", "\n")


# --- files too large to hold -----------------------------------------------------------------------------------------


def _is_large(source: _InputFile, path: Path) -> bool:
    """Whether a file is one text that should not be held in memory."""
    with _readable(str(source)):
        is_one_text = not source.has_records and not source.is_compressed
        return is_one_text and path.stat().st_size >= LARGE


def _large_document(source: _InputFile, path: Path, notes: _ReadingNotes) -> FileDocument:
    """Check a file once, in pieces, so that errors and notes come before any of its text is used."""
    with _readable(str(source)):
        status = path.stat()
        with path.open("rb") as file:
            start = len(codecs.BOM_UTF8) if file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
    if start:
        notes.add("byte order mark dropped", str(source))
    document = FileDocument(str(source), path, start, status.st_size, status.st_mtime_ns)
    if not is_clean(path):
        with _opened(source) as file:  # raises the error that names the line
            for _ in iter_lines(file, str(source), _ReadingNotes().add):
                pass
    if not any(piece.strip() for piece in document.pieces()):
        raise DataError(f"{source}: {NO_TEXT}")
    if has_crlf(path):
        notes.add("CRLF line ends read as LF", str(source))
    return document
