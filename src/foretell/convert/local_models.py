"""Models of other programs on this machine: Ollama's, LM Studio's, and the cache of the Hugging Face Hub."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.convert.gguf.header import ARCHITECTURE, read_general
from foretell.convert.hub import PREFIX as HUB
from foretell.errors import CheckpointError
from foretell.storage.files import CONFIG, printable_name, read_json

OLLAMA = "ollama:"
REGISTRY, LIBRARY, LATEST = "registry.ollama.ai", "library", "latest"
MODEL_LAYER = "application/vnd.ollama.image.model"  # the GGUF file; other layers are its template and parameters
DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
OLLAMA_NAME = re.compile(r"(?:[\w.-]*\w[\w.-]*/){0,2}[\w.-]*\w[\w.-]*(?::[\w.-]*\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class LocalModel:
    """A model that a command may name. architecture: as its files state it, or what is wrong with them."""

    name: str
    architecture: str
    bytes: int


def ollama_folders() -> list[Path]:
    """The folders in which Ollama keeps models: OLLAMA_MODELS, or the user's and the service's."""
    if chosen := os.environ.get("OLLAMA_MODELS"):
        return [Path(chosen)]
    return [Path.home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def find_ollama(name: str) -> Path:
    """The GGUF file of Ollama's model NAME[:TAG]. Raises `CheckpointError` if there is none, or it is not complete."""
    if not OLLAMA_NAME.fullmatch(name):
        raise CheckpointError(f"'{OLLAMA}{name[:80]}' is not a name of Ollama; write {OLLAMA}NAME or {OLLAMA}NAME:TAG")
    path, _, tag = name.partition(":")
    parts = path.split("/")
    parts = [*(REGISTRY, LIBRARY)[: 3 - len(parts)], *parts] if len(parts) < 3 else parts
    for folder in ollama_folders():
        manifest = folder.joinpath("manifests", *parts, tag or LATEST)
        if manifest.is_file():
            return model_blob(manifest)
    known = [each.removeprefix(OLLAMA) for each, _ in iter_ollama()]
    places = " and ".join(map(str, ollama_folders()))
    near = f"; it has {', '.join(known[:8])}" if known else ""
    raise CheckpointError(f"Ollama has no model '{name}' in {places}{near}")


def model_blob(manifest: Path) -> Path:
    """The model's file that a manifest names."""
    folder = manifest.parents[4]  # of manifests/HOST/OWNER/NAME/TAG
    layers = read_json(manifest).get("layers")
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and layer.get("mediaType") == MODEL_LAYER:
            digest = DIGEST.fullmatch(str(layer.get("digest")))
            if digest is None:
                break
            blob = folder / "blobs" / f"sha256-{digest[1]}"
            if not blob.is_file():
                raise CheckpointError(f"{manifest} names {blob.name}, which is missing: pull the model again")
            return blob.resolve()  # a store may be linked to another disk
    raise CheckpointError(f"{manifest} names no model; it is damaged, or its model is not a GGUF file")


def iter_ollama() -> Iterator[tuple[str, Path]]:
    """(name, manifest) of Ollama's models, with names such as `ollama:smollm2:135m`."""
    for folder in ollama_folders():
        for manifest in sorted((folder / "manifests").glob("*/*/*/*")):
            host, owner, name, tag = manifest.parts[-4:]
            shown = [host, owner] if host != REGISTRY else [owner] if owner != LIBRARY else []
            yield f"{OLLAMA}{'/'.join((*shown, name))}:{tag}", manifest


def list_local_models() -> Iterator[LocalModel]:
    """Ollama's, LM Studio's and the Hub cache's models."""
    for name, manifest in iter_ollama():
        yield describe(name, lambda manifest=manifest: gguf_facts(model_blob(manifest)))
    for path in sorted((Path.home() / ".lmstudio" / "models").glob("*/*/*.gguf")):
        yield describe(str(path), lambda path=path: gguf_facts(path))
    for directory in sorted(hub_cache().glob("models--*--*/snapshots/*")):
        if (directory / CONFIG).exists():
            owner, _, name = directory.parent.parent.name.removeprefix("models--").partition("--")
            yield describe(f"{HUB}{owner}/{name}", lambda directory=directory: directory_facts(directory))


def describe(name: str, read_facts: Callable[[], tuple[Any, int]]) -> LocalModel:
    """A model with its architecture and size, or with the reason why they cannot be read."""
    try:
        architecture, size = read_facts()
    except CheckpointError as error:
        return LocalModel(name, f"not readable: {error}", 0)
    return LocalModel(name, printable_name(str(architecture)[:40]), size)


def gguf_facts(path: Path) -> tuple[Any, int]:
    return read_general(path).get(ARCHITECTURE), path.stat().st_size


def directory_facts(directory: Path) -> tuple[Any, int]:
    """The model_type and the size of the weights of a directory."""
    return read_json(directory / CONFIG).get("model_type"), size_of(directory.glob("*.safetensors"))


def size_of(files: Iterable[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def hub_cache() -> Path:
    """The cache of the package huggingface_hub."""
    home = os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub")
