"""Damage to a model's files is found when it is opened: small files always, weights by `verify` and before training."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import foretell
from foretell.cli.main import run
from foretell.convert.export import export_huggingface
from foretell.errors import CheckpointError
from foretell.finding import find_tokenizer
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.session.protocol import load_start
from foretell.storage.manifest import EXPORT_REPORT, MANIFEST, Manifest, write_manifest


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The same model as a saved model and as an export."""
    folder = tmp_path_factory.mktemp("originals")
    tokenizer = foretell.load("primer").tokenizer
    config = foretell.preset("tiny", vocab_size=tokenizer.vocab_size, num_layers=1)
    model = LanguageModel(foretell.make_decoder(config, seed=1).eval(), tokenizer)
    model.save(folder / "saved")
    export_huggingface(model, folder / "export")
    return {name: folder / name for name in ("saved", "export")}


@pytest.fixture(params=["saved", "export"])
def model(request: pytest.FixtureRequest, originals: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals[request.param], tmp_path / request.param))


def change_byte(path: Path, index: int = -3) -> None:
    """Change one bit of a number's smallest digits, or of a text."""
    content = bytearray(path.read_bytes())
    content[index] ^= 1
    path.write_bytes(content)


def test_an_intact_model_is_verified(model: Path) -> None:
    load(model, verify=True)
    load(model, verify=None)


@pytest.mark.parametrize("open_model", [lambda path: load(path, verify=True), load_start])
def test_a_changed_byte_in_the_weights_is_found(model: Path, open_model: Callable[[Path], object]) -> None:
    change_byte(model / "model.safetensors", index=-1_000)
    load(model)
    with pytest.raises(CheckpointError, match=r"model.safetensors is damaged or was changed: .* \S+\.json$"):
        open_model(model)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("open_model", [load, lambda path: find_tokenizer(str(path))], ids=["model", "tokenizer"])
def test_a_changed_small_file_is_always_found(model: Path, name: str, open_model: Callable[[Path], object]) -> None:
    change_byte(model / name)
    with pytest.raises(CheckpointError, match=f"{name} is damaged"):
        open_model(model)


def test_weights_of_another_size_are_always_found(model: Path) -> None:
    with (model / "model.safetensors").open("ab") as file:
        file.write(b"0")
    with pytest.raises(CheckpointError, match="model.safetensors is damaged or was changed"):
        load(model)


def test_a_model_without_a_manifest_loads_and_cannot_be_verified(model: Path) -> None:
    for name in (MANIFEST, EXPORT_REPORT):
        (model / name).unlink(missing_ok=True)
    load(model)
    load(model, verify=None)
    with pytest.raises(CheckpointError, match=f"cannot be verified: it has neither {MANIFEST} nor {EXPORT_REPORT}"):
        load(model, verify=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "is damaged or of another version"),
        ('{"format": 1, "files": []}', "is damaged or of another version"),
        ('{"format": 1, "files": {}}', "is not as it was written"),
        ('{\n  "format": 1,\n  "files": {}\n}\n', "does not name config.json"),
        ('{\n  "format": 1,\n  "files": {\n    "config.json": 5\n  }\n}\n', "does not name model.safetensors"),
        ('{\n  "format": 1,\n  "files": {\n    "/etc/passwd": 5\n  }\n}\n', "'/etc/passwd', which is not a file of"),
    ],
)
def test_a_damaged_manifest_is_one_line(originals: dict[str, Path], tmp_path: Path, content: str, message: str) -> None:
    model = Path(shutil.copytree(originals["saved"], tmp_path / "saved"))
    (model / MANIFEST).write_text(content, encoding="utf-8")
    with pytest.raises(CheckpointError, match=message):
        load(model)


def test_the_report_of_a_gguf_file_next_to_a_model_says_nothing_about_the_model(
    originals: dict[str, Path], tmp_path: Path
) -> None:
    model = Path(shutil.copytree(originals["export"], tmp_path / "export"))
    (model / EXPORT_REPORT).write_text('{"files": {"x.gguf": {"bytes": 1, "sha256": ""}}}', encoding="utf-8")
    load(model)
    assert Manifest.find(model) is None


def test_the_verb_says_what_is_damaged(model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    change_byte(model / "model.safetensors", index=-1_000)
    assert run(["next", str(model), "a"]) == 0
    assert run(["next", str(model), "a", "--verify"]) == 1
    assert "model.safetensors is damaged or was changed" in capfd.readouterr().err.splitlines()[-1]


def test_a_saved_model_is_replaced_with_its_manifest(originals: dict[str, Path], tmp_path: Path) -> None:
    model = load(originals["saved"], "cpu")
    for _ in range(2):
        model.save(tmp_path / "again")
    assert load(tmp_path / "again", verify=True).config == model.config


def test_the_model_in_the_package_is_as_it_was_made() -> None:
    load("primer", verify=True)


def test_a_manifest_names_every_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    for _ in range(2):
        write_manifest(tmp_path)
        assert list(Manifest.read(tmp_path).files) == ["a", "b"]
