"""The files of a Hugging Face directory: which there are, that they are inside, and which tensor lies in which."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from foretell.convert.reader import StoredTensor, read_header
from foretell.errors import CheckpointError
from foretell.files import read_json

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
READ = (".json", ".txt", ".safetensors", ".model")
MOST_JSON_BYTES = 2**23
PICKLES = ("*.bin", "*.bin.index.json", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


def check_files(directory: Path) -> None:
    """Refuse files that are none, and links that lead out of the directory.

    In a download cache, where files are links from snapshots/REVISION to blobs, a link may lead there.
    """
    home = directory.resolve()
    homes = [home, home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [home]
    for path in sorted(directory.iterdir()):
        if path.suffix not in READ:
            continue
        target = path.resolve()
        if path.is_symlink() and not any(target.is_relative_to(one) for one in homes):
            raise CheckpointError(f"{path} is a link out of its directory, to {target}; copy the file there instead")
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise CheckpointError(f"{path} is no regular file")


def read_small_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file that has no reason to be large."""
    if path.exists() and path.stat().st_size > MOST_JSON_BYTES:
        raise CheckpointError(f"{path} has {path.stat().st_size:,} bytes, far more than such a file needs")
    return read_json(path)


def find_tensors(directory: Path) -> dict[str, StoredTensor]:
    """Every tensor of the directory's safetensors, in one file or in several that an index lists."""
    if (directory / WEIGHTS).exists():
        return read_header(directory / WEIGHTS)
    if (directory / INDEX).exists():
        return read_shards(directory)
    refuse_pickles(directory)
    raise CheckpointError(f"{directory} has no weights: neither {WEIGHTS} nor {INDEX}")


def read_shards(directory: Path) -> dict[str, StoredTensor]:
    """The tensors that the index lists, each in the file where it says."""
    path = directory / INDEX
    places = read_small_json(path).get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
        raise CheckpointError(f"{path} has no weight_map from names to files")
    files = sorted(set(places.values()))
    for file in files:
        if file != Path(file).name or "\\" in file or not file.endswith(".safetensors"):
            raise CheckpointError(f"{path} names {file[:80]!r}, which is no safetensors file of its own directory")
    tensors = {(file, name): tensor for file in files for name, tensor in read_header(directory / file).items()}
    listed = {(file, name) for name, file in places.items()}
    for file, name in sorted(listed ^ tensors.keys()):
        found = "is in the index and not in the file" if (file, name) in listed else "is in the file, not in the index"
        raise CheckpointError(f"{directory / file}: '{name[:80]}' {found}")
    return {name: tensor for (_, name), tensor in tensors.items()}


def refuse_pickles(directory: Path) -> None:
    """Say why a directory that has only old files is not read."""
    found = [path.name for pattern in PICKLES for path in sorted(directory.glob(pattern))]
    if found:
        raise CheckpointError(
            f"{directory} has only {found[0]}; such a file can run any code when it is opened, so foretell opens none: "
            f"get {WEIGHTS} of the same model"
        )
