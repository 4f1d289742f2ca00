"""Models of other programs: found by Ollama's names, and listed with architecture and size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretell.cli.main import run
from foretell.convert.gguf.write import write_gguf
from foretell.convert.local_models import MODEL_LAYER, find_ollama
from foretell.errors import CheckpointError
from foretell.finding import find_model

DIGEST = "ab" * 32


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with Ollama's store, a model of LM Studio's and one in the Hub's cache."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("OLLAMA_MODELS", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    store = tmp_path / ".ollama" / "models"
    (store / "blobs").mkdir(parents=True)
    write_gguf(store / "blobs" / f"sha256-{DIGEST}", "llama", {}, {})
    for name in ("registry.ollama.ai/library/smollm2/135m", "registry.ollama.ai/me/mine/latest", "hf.co/a/b/Q4_0"):
        write_manifest(store / "manifests" / name, f"sha256:{DIGEST}")
    studio = tmp_path / ".lmstudio" / "models" / "them" / "other"
    studio.mkdir(parents=True)
    write_gguf(studio / "other.gguf", "gemma3", {}, {})
    snapshot = tmp_path / ".cache" / "huggingface" / "hub" / "models--owner--name" / "snapshots" / "1"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"model_type": "qwen3"}', encoding="utf-8")
    (snapshot / "model.safetensors").write_bytes(bytes(5))
    return tmp_path


def write_manifest(path: Path, digest: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    layers = [{"mediaType": "text/plain", "digest": "x"}, {"mediaType": MODEL_LAYER, "digest": digest}]
    path.write_text(json.dumps({"layers": layers}), encoding="utf-8")


@pytest.mark.parametrize("name", ["smollm2:135m", "me/mine", "me/mine:latest", "hf.co/a/b:Q4_0"])
def test_a_name_of_ollama_is_its_file(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = home / ".ollama" / "models" / "blobs" / f"sha256-{DIGEST}"
    assert find_model(f"ollama:{name}") == find_ollama(name) == expected
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    with pytest.raises(CheckpointError, match=f"Ollama has no model '{name}' in {home / 'elsewhere'}"):
        find_ollama(name)


@pytest.mark.parametrize("name", ["../../x", "a/b/c/d", "", "a:b:c", "/etc/passwd", "..", "a b"])
def test_anything_else_is_no_name_of_ollama(name: str, home: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a name of Ollama; write ollama:NAME"):
        find_ollama(name)


def test_a_missing_tag_is_suggested_and_a_missing_file_is_named(home: Path) -> None:
    with pytest.raises(CheckpointError, match="Ollama has no model 'smollm2'.*smollm2:135m"):
        find_ollama("smollm2")
    manifests = home / ".ollama" / "models" / "manifests" / "registry.ollama.ai" / "library"
    for digest, message in (
        ("sha256:" + "0" * 64, "which is missing: pull the model again"),
        ("../../x", "names no model"),
    ):
        write_manifest(manifests / "broken" / "latest", digest)
        with pytest.raises(CheckpointError, match=message):
            find_ollama("broken")


def test_info_lists_the_models_of_this_machine(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["info", "--json"]) == 0
    listed = {each["name"]: each for each in json.loads(capfd.readouterr().out)["models"]}
    studio = str(home / ".lmstudio" / "models" / "them" / "other" / "other.gguf")
    assert {name: listed[name]["architecture"] for name in listed if name not in ("primer", "atlas", "almanac")} == {
        "ollama:smollm2:135m": "llama",
        "ollama:me/mine:latest": "llama",
        "ollama:hf.co/a/b:Q4_0": "llama",
        studio: "gemma3",
        "hub:owner/name": "qwen3",
    }
    assert listed["hub:owner/name"]["bytes"] == 5 and listed["primer"]["architecture"] == "foretell"
    assert run(["info"]) == 0
    assert "ollama:smollm2:135m" in capfd.readouterr().out
