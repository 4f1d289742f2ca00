"""The sizes and SHA-256 of a model's files, in `manifest.json`, and the check of files against it. Imports no torch.

A saved model and a checkpoint have a manifest of all their files; a Hugging Face export of foretell lists its files in
`export-report.json`. Models of other programs have neither.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from foretell.errors import CheckpointError
from foretell.storage.files import CONFIG, TOKENIZER_FILE, WEIGHTS, read_json, read_text, sha256, to_json, write_json

MANIFEST, EXPORT_REPORT = "manifest.json", "export-report.json"
FORMAT = 1
READ_FOR_INFERENCE = (CONFIG, WEIGHTS, TOKENIZER_FILE)
LARGE = ".safetensors"  # files of tensors; their content is compared only on request


@dataclass(frozen=True)
class Manifest:
    """The expected files of a directory: `{"bytes", "sha256"}` by name."""

    path: Path
    files: dict[str, Any]

    @classmethod
    def read(cls, directory: Path) -> Self:
        """The manifest of a directory; a `CheckpointError` if it is missing or was changed."""
        path = directory / MANIFEST
        values = read_json(path)
        if values.get("format") != FORMAT or not isinstance(values.get("files"), dict):
            raise CheckpointError(f"{path} is damaged or of another version")
        manifest = cls(path, values["files"])
        # Comparing the text also detects damage that JSON ignores: white space, a repeated key, an escaped letter
        if read_text(path) != to_json(values):
            raise CheckpointError(f"{path} is damaged: it is not as it was written")
        return manifest

    @classmethod
    def find(cls, directory: Path) -> Self | None:
        """The manifest, or the list of files in an export's report; None if there is neither."""
        if (directory / MANIFEST).exists():
            return cls.read(directory)
        path = directory / EXPORT_REPORT
        if not path.exists():
            return None
        files = read_json(path).get("files")
        if not isinstance(files, dict):
            raise CheckpointError(f"{path} is damaged: it does not list the files")
        if CONFIG not in files:  # the report is about a GGUF file that was written into a model's directory
            return None
        return cls(path, files)

    def __post_init__(self) -> None:
        """Refuse names that lead out of the directory."""
        for name in self.files:
            if (self.path.parent / name).parent != self.path.parent:
                raise CheckpointError(f"{self.path} names '{name}', which is not a file of this directory")

    def require(self, names: Iterable[str]) -> None:
        """Refuse a manifest that does not name these files."""
        for name in names:
            if name not in self.files:
                raise CheckpointError(f"{self.path} is damaged: it does not name {name}")

    def check(self, names: Iterable[str] | None = None, *, in_full: bool = True) -> None:
        """Compare files (None: all) with their entries; a `CheckpointError` names the first that differs.

        Without `in_full`, files of tensors are compared by their size alone.
        """
        for name in self.files if names is None else names:
            self.check_file(self.path.parent / name, self.files[name], in_full or not name.endswith(LARGE))

    def check_file(self, path: Path, expected: Any, with_content: bool) -> None:
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: {self.path} names it")
        try:
            is_same = isinstance(expected, dict) and path.stat().st_size == expected.get("bytes")
            if is_same and with_content:
                is_same = describe_file(path) == expected
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        if not is_same:
            raise CheckpointError(f"{path} is damaged or was changed: it does not match its entry in {self.path}")


def describe_file(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def describe_files(paths: Iterable[Path]) -> dict[str, Any]:
    return {path.name: describe_file(path) for path in sorted(paths)}


def write_manifest(directory: Path, names: Iterable[str] | None = None) -> None:
    """Write the manifest of these files of a directory (None: all)."""
    chosen = [directory / name for name in names] if names is not None else directory.iterdir()
    files = describe_files(path for path in chosen if path.name != MANIFEST)
    write_json(directory / MANIFEST, {"format": FORMAT, "files": files})


def check_model_files(directory: Path, skip: Iterable[str] = (), *, in_full: bool | None = False) -> None:
    """Compare the files of a model, except those in `skip`, with its manifest or export report, if it has one.

    Weights are compared by size, or by content with `in_full`: True refuses a model with neither list, None accepts it.
    """
    manifest = Manifest.find(directory)
    if manifest is None:
        if in_full:
            raise CheckpointError(f"{directory} cannot be verified: it has neither {MANIFEST} nor {EXPORT_REPORT}")
        return
    manifest.require(name for name in READ_FOR_INFERENCE if (directory / name).exists())
    manifest.check([name for name in manifest.files if name not in skip], in_full=in_full is not False)
