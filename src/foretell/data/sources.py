"""Documents from files, folders and standard input: whole texts, and the texts of records (`table`).

Text must be valid UTF-8: bytes that do not decode are an error, never a replacement character. Every change (byte order
marks, CRLF, empty documents, skipped files) is logged as a warning, with one line for each kind.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from foretell.config.training import DataConfig
from foretell.data.documents import NO_TEXT, AnsweredDocument, Document, TextDocument, open_large
from foretell.data.learned import NOT_LEARNED, ROW_FIELDS, is_learned, learned_flags
from foretell.data.lines import CRLF, Note, TextFile, content_suffix, find_files, nearest_name, reading
from foretell.data.table import FORMATS, TEXT, Row, Table, check_unique, describe_type, list_names
from foretell.errors import DataError, UsageError, as_path, did_you_mean
from foretell.text.tokenizer_json import END_NAMES

logger = logging.getLogger(__name__)

# Suffixes of files that are read in a folder; a file given by name can have any suffix.
PROSE_SUFFIXES = (".txt", ".text", ".md", ".rst", ".tex", ".org")
CODE_SUFFIXES = (
    *(".c", ".cc", ".cpp", ".cs", ".go", ".h", ".hpp", ".java", ".jl", ".js", ".kt", ".lua", ".php", ".pl"),
    *(".py", ".pyi", ".r", ".rb", ".rs", ".scala", ".sh", ".sql", ".swift", ".ts"),
)
FOLDER_SUFFIXES = frozenset((*PROSE_SUFFIXES, *FORMATS, *CODE_SUFFIXES))

MOST_NAMED = 8  # skipped files that are logged with their errors
# <|im_end|> ends a turn of a conversation, not a document
DOCUMENT_ENDS = frozenset(END_NAMES) - {"<|im_end|>"}
LARGE = 2**24  # bytes; larger text files are read in pieces
REACHED_BEFORE = "reached before, skipped"
Identity = tuple[int, int]  # device and inode
Texts = tuple[str, ...]  # the texts of the requested fields of a record


class RecordField(NamedTuple):
    """A field, and the option that sets it. None: `text`, or the only column."""

    name: str | None
    option: str

    def __str__(self) -> str:
        return self.name or TEXT


def read_documents(
    paths: Sequence[str | Path], *, text_field: str | None = None, strict: bool = False
) -> Iterator[Document]:
    """The documents of files, folders (recursively, in sorted order) and `-` (standard input), in the order given.

    A `.jsonl` file holds one document per line, a `.json` file a list of them (strings, or objects with the field
    `text`), `.csv`, `.tsv` and `.parquet` one per row (column `text`, or the only one); `text_field` names another.
    Every other file is one document; from LARGE bytes on it is read in pieces and never held in memory. Line ends
    become LF, a byte order mark is dropped, documents of only whitespace and files reached twice are skipped; each kind
    is logged in one line. Files that end in .gz, .bz2, .xz or .zst are decompressed. An unreadable file in a folder is
    skipped and logged; it is an error with `strict`, or if no other file has text.

    Raises UsageError for no or an empty path, and DataError for input that is missing, empty, unreadable, binary, not
    UTF-8 or malformed, with the line. Missing paths and folders without text files are reported by the call itself,
    before the first document is requested.
    """
    return DocumentReader(paths, DataConfig(text_field=text_field), strict=strict).read()


class DocumentReader:
    """`read_documents` for texts that are read several times, without repeated log messages.

    The configuration has the names of the fields. With an answer field, every record becomes an `AnsweredDocument`,
    with the separator at the end of its prompt. With `rows`, each line of a file without fields is a record. Without,
    the names of end tokens in `special` separate documents.
    Standard input can be read only once.
    """

    def __init__(self, paths: Sequence[str | Path], config: DataConfig | None = None, *, strict: bool = False):
        if isinstance(paths, str | Path) or not paths:
            raise UsageError(f"paths {paths!r}: give a list of at least one file, folder or '-' for standard input")
        if not all(str(path) for path in paths):
            raise UsageError("a path is empty; give a file, a folder or '-' for standard input")
        self.paths = list(paths)
        self.config, self.strict = config or DataConfig(), strict
        self.ends = [] if self.config.rows else [name for name in self.config.special if name in DOCUMENT_ENDS]
        self._logged: set[str] = set()

    def read(self) -> Iterator[Document]:
        """Read all documents; raises the errors of `read_documents`."""
        notes = _ReadingNotes()
        try:
            inputs = _find_inputs(self.paths, notes)
        finally:
            self._log(notes)
        if (name := self.config.text_field) is not None and all(source.is_one_text for source in inputs):
            raise DataError(f"{inputs[0]}: has no field {name!r}; give a file that ends in {', '.join(FORMATS)}")
        return self._iter_documents(inputs, notes)

    def _iter_documents(self, inputs: list[_InputFile], notes: _ReadingNotes) -> Iterator[Document]:
        any_text = False
        try:
            for source in inputs:
                if source.in_folder and not self.strict and not self._can_be_read(source, notes):
                    continue
                for document in self._iter_documents_of(source, notes):
                    any_text = True
                    yield from document.separated(self.ends) if self.ends else [document]
        finally:
            self._log(notes)
        if not any_text and notes.left_out:
            raise notes.left_out[0]
        if not any_text:
            raise DataError(f"{inputs[0]}: holds no text, and neither does any other file; give files with text")

    def _iter_documents_of(self, source: _InputFile, notes: _ReadingNotes) -> Iterator[Document]:
        if source.is_one_text and not self.config.rows and source.is_large:
            assert source.file.path is not None
            yield open_large(source.file.path, notes.add)
            return
        any_text = False
        for where, texts in self._iter_texts(source, notes):
            if any(text.strip() for text in texts):
                any_text = True
                yield _make_document(where, texts, self.config.separator, notes.add)
            elif not source.is_one_text or self.config.rows:
                notes.add("empty document skipped", where)
        if not any_text and source.in_folder:
            notes.add("file without text skipped", str(source))
        elif not any_text:
            raise DataError(f"{source}: {NO_TEXT}")

    def _iter_texts(self, source: _InputFile, notes: _ReadingNotes) -> Iterator[tuple[str, Texts]]:
        """(where, texts) of every record, also empty ones; a file without fields is one record, or one per line."""
        prompt, answer = self.config.prompt_field, self.config.answer_field
        if source.is_one_text and answer is not None:
            raise DataError(
                f"{source}: has no fields {prompt!r} and {answer!r}; give a file that ends in {', '.join(FORMATS)}"
            )
        if source.is_one_text and not self.config.rows:
            yield str(source), (source.file.text(notes.add),)
            return
        fields = [RecordField(prompt, "--prompt-field"), RecordField(answer, "--answer-field")]
        if answer is None:
            fields = [RecordField(self.config.text_field, "--text-field")]
        columns = _TextColumns(fields, notes.add)
        for row in Table(source.file, choose=columns.choose, note=notes.add).records():
            if is_learned(learned_flags(row.cells, columns.marks), row.where):
                yield row.where, columns.texts(row)
            else:
                notes.add(NOT_LEARNED, row.where)

    def _can_be_read(self, source: _InputFile, notes: _ReadingNotes) -> bool:
        """Read a file once, so that an unreadable file is skipped as a whole; notes the error."""
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
    """Counts of changes to the input by kind, with the first example: one line for a folder, not 10,000."""

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
        left_out = [f"left out: {error.for_command_line()}" for error in self.left_out[:MOST_NAMED]]
        unnamed = len(self.left_out) - MOST_NAMED
        return [*changes, *left_out, *([f"left out: {unnamed:,} more files"] if unnamed > 0 else [])]


@dataclass(frozen=True)
class _InputFile:
    """A file to read; it may be empty only if it was found in a folder."""

    file: TextFile
    in_folder: bool = False

    @property
    def is_one_text(self) -> bool:
        """True for one text, False for records with fields."""
        return self.file.suffix not in FORMATS

    @property
    def is_large(self) -> bool:
        """True for a file that is read in pieces."""
        if self.file.path is None or self.file.is_compressed:
            return False
        with reading(self.file.path):
            return self.file.path.stat().st_size >= LARGE

    def __str__(self) -> str:
        return str(self.file)


class _TextColumns:
    """Extracts the texts of the requested fields."""

    def __init__(self, fields: Sequence[RecordField], note: Note):
        self.fields, self.note = fields, note
        self.names = [str(field) for field in fields]
        # of an answer; a column that the user named is a text
        self.marks = [name for name in ROW_FIELDS if name not in self.names] if len(fields) > 1 else []

    def choose(self, columns: list[str], where: str) -> list[str]:
        """The columns of the fields, in a file with a header."""
        check_unique(columns, self.names, where)
        if len(columns) == 1 and [field.name for field in self.fields] == [None] and columns[0] != TEXT:
            self.note(f"no column {TEXT!r}, so the only one is read, {columns[0][:40]!r}", where)
            self.names = columns
        for wanted, name in zip(self.fields, self.names, strict=True):
            check_present("column", columns, wanted, name, where)
        return list(dict.fromkeys([*self.names, *(name for name in self.marks if name in columns)]))

    def texts(self, row: Row) -> Texts:
        if row.is_blank:
            return ("",) * len(self.fields)
        if not row.has_columns and len(self.fields) == 1:
            return (row.cells[TEXT],)
        if not row.has_columns:
            names = " and ".join(map(repr, self.names))
            raise DataError(f"{row.where}: a string; write an object with the fields {names}")
        return tuple(self._text(row, *wanted) for wanted in zip(self.fields, self.names, strict=True))

    def _text(self, row: Row, wanted: RecordField, name: str) -> str:
        check_present("field", list(row.cells), wanted, name, row.where)
        if not isinstance(row.cells[name], str):
            raise DataError(f"{row.where}: field {name!r} is {describe_type(row.cells[name])}; it must be a string")
        return row.cells[name]


def check_present(kind: str, columns: Sequence[str], wanted: RecordField, name: str, where: str) -> None:
    """Refuse a missing column or field; the error has the existing names and the option."""
    if name not in columns:
        raise DataError(
            f"{where}: no {kind} {name!r} among the {kind}s {list_names(columns)}{did_you_mean(name, columns)}; name "
            f"the right one with {wanted.option}"
        )


def _find_inputs(paths: Sequence[str | Path], notes: _ReadingNotes) -> list[_InputFile]:
    """Every file to read, once: a text that is read twice could be in both training and validation."""
    inputs: list[_InputFile] = []
    seen: set[Identity] = set()
    for path in paths:
        if str(path) == "-":
            new = [standard] if (standard := _InputFile(TextFile(None))) not in inputs else []
        else:
            with reading(path):
                new = _find_at(as_path("data", path), seen, notes)
        inputs += new
        if not new:
            notes.add("given twice, read once", path)
    if not inputs:
        raise DataError(f"{paths[0]}: contains only links to itself; give files with text")
    return inputs


def _find_at(path: Path, seen: set[Identity], notes: _ReadingNotes) -> list[_InputFile]:
    if path.is_symlink() and not path.exists():
        raise DataError(f"{path}: a broken or circular link; give the file it should point to")
    if not path.exists():
        raise DataError(f"{path}: no such file or folder{nearest_name(path) or '; check the path'}")
    if path.is_char_device() or path.is_block_device():
        raise DataError(f"{path}: a device, not a text; give a file, or '-' for standard input")
    if path.is_dir():
        return _find_in_folder(path, seen, notes)
    if not _is_new(path, seen):
        return []
    # named pipes are read like files
    return [_InputFile(file) for file in (find_files(path) if path.is_file() else [TextFile(path)])]


def _is_new(path: Path, seen: set[Identity]) -> bool:
    status = path.stat()  # resolving paths instead takes 8 s for 900 nested folders
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
            inputs.append(_InputFile(TextFile(path), in_folder=True))
    if not inputs and REACHED_BEFORE not in skipped:
        examples = ", ".join((*PROSE_SUFFIXES[:3], *FORMATS))
        raise DataError(
            f"{folder}: no file to read in this folder ({skipped.total():,} skipped); "
            f"it should hold files such as {examples}, or name the files one by one"
        )
    return inputs


def _why_skipped(path: Path, seen: set[Identity]) -> str | None:
    """The reason to skip an entry of a folder; None if it is read or entered."""
    if path.name.startswith("."):
        return "hidden, skipped"
    if not (path.is_file() or path.is_dir()):
        return "neither file nor folder, skipped"
    if path.is_file() and content_suffix(path) not in FOLDER_SUFFIXES:
        return f"suffix {path.suffix.lower()} skipped" if path.suffix else "no suffix, skipped"
    return None if _is_new(path, seen) else REACHED_BEFORE


def _make_document(where: str, texts: Texts, separator: str, note: Note) -> Document:
    clean = [_with_newlines(_encodable(text, where), where, note) for text in texts]
    if len(clean) == 1:
        return TextDocument(where, clean[0])
    for what, text in zip(("prompt", "answer"), clean, strict=True):
        if not text.strip():
            raise DataError(f"{where}: the {what} is empty; fill it in, or remove this record")
    return AnsweredDocument(where, clean[0] + separator, clean[1])


def _encodable(text: str, where: str) -> str:
    """The text. Raises DataError if a JSON escape such as \\ud800 is half a character, which UTF-8 cannot represent."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        half = f"\\u{ord(text[error.start]):04x}"
        raise DataError(f"{where}: {half} is half of a surrogate pair, not a character; write both or none") from None
    return text


def _with_newlines(text: str, where: str, note: Note) -> str:
    if "\r\n" not in text:
        return text
    note(CRLF, where)
    return text.replace("\r\n", "\n")
