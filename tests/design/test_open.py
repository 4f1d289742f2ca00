"""Every place in the source that opens a file: small files are opened by `files.open_regular`, which waits for no pipe,
follows no link out of a model's folder, and reads no more than a limit."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "foretell"
OPENING = {"open", "fdopen", "read_text", "read_bytes", "ZipFile", "ParquetFile", "safe_open", "load_file"}
# Functions of these names that are ours, by the value that they are an attribute of
OURS = {
    "arguments",
    "options",
    "TokenStore",
    "RowStream",
    "ChatData",
    "cls",
    "FollowedRun",
    "(Run if current_world().is_first else FollowedRun)",
}
# module: the calls that open a file in another way; why that is safe
ALLOWED = {
    # the opener; a file whose kind was checked before; a name that a writer made
    "storage/files.py": ["os.open", "os.fdopen", "path.open", "path.open", "os.open", "path.open"],
    "convert/gguf/write.py": ["path.open"],
    # files of this package
    "__init__.py": ["Path(__file__).with_suffix('.pyi').read_text"],
    "lessons/registry.py": ["files('foretell.lessons').joinpath(f'{self.name}.md').read_text"],
    "cli/serve.py": ["webbrowser.open"],  # a page, not a file
    "typesetting/html.py": ["files('foretell.typesetting').joinpath('page.css').read_text"],
    "insight/page/write_page.py": ["FOLDER.joinpath(name).read_text"],
    "serving/status.py": ["file.read_text"],
    "model/kernels/compiling.py": ["file.read_bytes"],
    # files of the system, and descriptors
    "system/device.py": ["path.read_text"],
    "system/installation.py": ["path.read_text"],
    "cli/main.py": ["os.open", "open", "open", "os.open"],
    "cli/terminal.py": ["os.open"],
    "runs/lock.py": ["os.open"],
    "model/kernels/warming.py": ["os.open"],  # a folder, to lock it
    "storage/safetensors_files.py": ["safe_open"],  # the descriptor of a file that open_regular opened
    "convert/peft.py": ["load_file"],  # reads back the adapter that the export has just written
    # data, read a piece at a time: `find_files` and the index of the store refuse anything but regular files
    "data/lines.py": [
        "path.open",
        "zipfile.ZipFile",
        "zipfile.ZipFile",
        "archive.open",
        "importlib.import_module('compression.zstd').open",
        "path.open",
        "zstandard.open",
    ],
    "data/table.py": ["parquet.ParquetFile"],
    "data/documents.py": ["self.path.open", "self.path.open", "self.path.open", "path.open"],
    "data/shards.py": ["self.path.open", "path.open"],
    # writing
    "data/shard_writer.py": ["path.open"],
    "runs/record.py": ["self.path.open"],
    "finetuning/predict.py": ["temporary.open"],
    "cli/generate.py": ["target.open"],
}


def calls(source: str) -> list[str]:
    """The calls in a module that open a file without the functions of storage/files.py, in order."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in OPENING:
            owner = ast.unparse(node.func.value)
            name = f"({owner})" if isinstance(node.func.value, ast.BinOp | ast.IfExp) else owner
            if name not in OURS:
                found.append((node.lineno, node.col_offset, f"{name}.{node.func.attr}"))
        elif isinstance(node.func, ast.Name) and node.func.id in OPENING - {"read_text", "read_bytes"}:
            found.append((node.lineno, node.col_offset, node.func.id))
    return [name for _, _, name in sorted(found)]


def test_every_file_is_opened_by_the_opener_or_is_listed():
    found = {path.relative_to(SOURCE).as_posix(): calls(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}
    assert {module: names for module, names in sorted(found.items()) if names} == dict(sorted(ALLOWED.items())), (
        "use open_regular, read_bytes or read_text of files.py, or add the call here with its reason"
    )


def test_a_new_call_is_found():
    assert calls("Path('x').read_bytes()\nopen('x')\nread_text(path)\noptions.open(model)\nzipfile.ZipFile(path)") == [
        "Path('x').read_bytes",
        "open",
        "zipfile.ZipFile",
    ]
