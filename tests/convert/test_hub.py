"""Downloads from the Hub, with a server in this process in its place: requests, results and failures."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from foretell.cli.main import run
from foretell.convert.hub import fetch_model, format_bytes, parse_name, progress_class
from foretell.errors import CheckpointError, ForetellError, UsageError
from foretell.finding import find_tokenizer
from foretell.loading import load
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.saved_model.parts_on_disk import save_model
from foretell.text import train_tokenizer
from tests.convert.hub_server import Hub, constants, point_at, running

pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")


@pytest.fixture(scope="module")
def model_files(tmp_path_factory) -> dict[str, bytes]:
    """A model of ours, with other files that repositories hold."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer("bytes", ["a"])
    save_model(directory, make_decoder(preset_config("toy", vocab_size=tokenizer.vocab_size), seed=1), tokenizer)
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    others = ("README.md", "pytorch_model.bin", "model.fp16.safetensors", "onnx/model.onnx", "vocab.json", "merges.txt")
    return {**files, "generation_config.json": b'{"eos_token_id": 256}', **{name: name.encode() for name in others}}


@pytest.fixture
def server(model_files, monkeypatch, tmp_path) -> Iterator[Hub]:
    """The Hub with one model, and an empty cache."""
    with running(Hub({"cats/tiny": dict(model_files)})) as state:
        point_at(monkeypatch, state.endpoint, tmp_path / "cache")
        yield state


@pytest.fixture(autouse=True)
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """The library's log from level INFO."""
    caplog.set_level(logging.INFO, logger="foretell")
    return caplog


def test_only_the_files_that_a_model_is_read_from_are_downloaded(server, log):
    directory = fetch_model("cats/tiny")
    needed = ["model.safetensors", "tokenizer.json", "generation_config.json", "config.json"]
    assert server.downloads() == needed
    assert sorted(path.name for path in directory.iterdir()) == sorted(needed)
    assert [line.split()[1] for line in log.messages] == needed
    assert log.messages[1].startswith("downloading tokenizer.json of cats/tiny, ")


def test_cached_files_are_not_downloaded_again(server, log):
    first = fetch_model("cats/tiny")
    server.asked.clear()
    assert fetch_model("cats/tiny") == first
    assert server.downloads() == []
    assert len(log.messages) == 4


def test_a_model_on_the_hub_works_like_any_other_model(server, capfd):
    assert load("hub:cats/tiny", device="cpu").tokenizer.end_ids == (256,)
    assert run(["next", "hub:cats/tiny@v1", "The", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["context"] == "The"
    assert "downloading model.safetensors of cats/tiny" in captured.err
    assert run(["tokenize", "hub:cats/tiny", "The", "--json"]) == 0


KINDS = ("gpt2", "openai-gpt", "llama", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_every_family_generates_from_the_cache(kind, server, directory_of, capfd):
    original = directory_of(kind)
    server.repositories["they/model"] = {path.name: path.read_bytes() for path in original.iterdir()}
    assert run(["generate", "hub:they/model", "ab", "--max-tokens", "4", "--temperature", "0", "--json"]) == 0
    captured = capfd.readouterr()
    cached = fetch_model("they/model")
    links = [path for path in cached.iterdir() if path.is_symlink()]
    assert {path.resolve().parent.name for path in links} == {"blobs"}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in links}
    assert "downloading model.safetensors of they/model" in captured.err
    assert run(["generate", str(original), "ab", "--max-tokens", "4", "--temperature", "0", "--json"]) == 0
    assert json.loads(captured.out) == json.loads(capfd.readouterr().out)


def test_a_tokenizer_is_downloaded_without_the_weights_and_is_not_a_model_offline(server, monkeypatch, tmp_path):
    assert find_tokenizer("hub:cats/tiny").end_ids == (256,)
    assert server.downloads() == ["tokenizer.json", "generation_config.json", "config.json"]
    point_at(monkeypatch, server.endpoint, tmp_path / "cache", offline=True)
    assert find_tokenizer("hub:cats/tiny").encode("a") == [97]
    assert "is not in the cache" in refused("cats/tiny")


def test_each_revision_has_its_own_directory(server):
    assert fetch_model("cats/tiny@v1").name == "b" * 40
    assert fetch_model("cats/tiny").name == "a" * 40
    assert fetch_model("cats/tiny@" + "b" * 40).name == "b" * 40


def test_only_the_shards_that_the_index_lists_are_downloaded(server):
    files = server.repositories["cats/tiny"]
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    del files["model.safetensors"]
    files |= {name: name.encode() for name in (*parts, "model-00001-of-00099.safetensors")}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": parts[0], "b": parts[1]}}).encode()
    fetch_model("cats/tiny")
    assert [name for name in server.downloads() if "safetensors" in name] == ["model.safetensors.index.json", *parts]


@pytest.mark.parametrize("name", ["../../etc/passwd.safetensors", "gone.safetensors", "onnx/model.onnx"])
def test_an_index_that_names_a_missing_file_is_refused(server, name):
    files = server.repositories["cats/tiny"]
    del files["model.safetensors"]
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": name}}).encode()
    with pytest.raises(CheckpointError, match="names '.*', which the repository does not have"):
        fetch_model("cats/tiny")


def test_vocabulary_and_merges_are_downloaded_if_there_is_no_tokenizer_json(server):
    del server.repositories["cats/tiny"]["tokenizer.json"]
    fetch_model("cats/tiny")
    assert server.downloads()[1:3] == ["vocab.json", "merges.txt"]


def refused(name: str) -> str:
    """The one-line error for the user."""
    with pytest.raises(ForetellError) as caught:
        fetch_model(name)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pickled_weights_are_refused_before_any_download(server):
    del server.repositories["cats/tiny"]["model.safetensors"]
    line = refused("cats/tiny")
    assert "no model.safetensors but pytorch_model.bin, which is a pickle and can run any code" in line
    assert server.downloads() == []


def test_a_repository_without_config_json_is_refused(server):
    del server.repositories["cats/tiny"]["config.json"]
    assert "has no config.json" in refused("cats/tiny")


def test_an_unknown_repository_or_revision_is_named(server):
    assert refused("cats/none") == "hub:cats/none does not exist, or is private: check the name, or set HF_TOKEN"
    assert "hub:cats/tiny has no revision 'v9'" in refused("cats/tiny@v9")


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "GatedRepo", "is gated: accept its terms"),
        (401, "GatedRepo", "is gated"),
        (401, "", "HF_TOKEN"),
        (403, "", "HF_TOKEN"),
        (500, "", "status 500; try again later"),
    ],
)
def test_a_denied_request_advises_what_to_do(server, status, code, words):
    server.refuse = (status, code)
    assert words in refused("cats/tiny")


def test_an_interrupted_transfer_is_resumed_with_a_warning(server, log, model_files, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    server.cut = {"model.safetensors": 1}
    directory = fetch_model("cats/tiny")
    assert (directory / "model.safetensors").read_bytes() == model_files["model.safetensors"]
    assert server.ranges == [f"bytes={len(model_files['model.safetensors']) // 2 // 1024 * 1024}-"]
    assert [line for line in log.messages if "Trying to resume" in line and "\n" not in line]


def test_a_failed_transfer_is_one_line_and_can_be_tried_again(server, model_files):
    find_tokenizer("hub:cats/tiny")
    server.cut = {"model.safetensors": 1000}
    assert "model.safetensors could not be downloaded" in refused("cats/tiny")
    server.cut = {}
    server.asked.clear()
    directory = fetch_model("cats/tiny")
    assert server.downloads() == ["model.safetensors"]  # complete files are kept
    assert (directory / "model.safetensors").read_bytes() == model_files["model.safetensors"]


def test_offline_only_earlier_downloads_are_used(server, monkeypatch, tmp_path):
    online = fetch_model("cats/tiny")
    point_at(monkeypatch, server.endpoint, tmp_path / "cache", offline=True)
    server.asked.clear()
    assert fetch_model("cats/tiny") == online
    line = "hub:cats/tiny@v1 is not in the cache (HF_HOME), and HF_HUB_OFFLINE is set; download it while online"
    assert refused("cats/tiny@v1") == line
    assert server.asked == []


def test_an_incomplete_download_is_refused_offline(server, monkeypatch, tmp_path):
    directory = fetch_model("cats/tiny")
    (directory / "model.safetensors").unlink()
    point_at(monkeypatch, server.endpoint, tmp_path / "cache", offline=True)
    assert "is not in the cache" in refused("cats/tiny")


def test_an_unreachable_hub_falls_back_to_the_earlier_download_with_a_warning(server, log, monkeypatch, tmp_path):
    online = fetch_model("cats/tiny")
    point_at(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    assert fetch_model("cats/tiny") == online
    assert "http://127.0.0.1:9 cannot be reached" in log.messages[-1]
    assert "using the earlier download" in log.messages[-1]
    point_at(monkeypatch, "http://127.0.0.1:9", tmp_path / "empty")
    assert "cannot be reached" in refused("cats/tiny")


def test_without_the_extra_the_error_tells_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "needs the extra 'hub': pip install 'foretell[hub]'" in refused("cats/tiny")


@pytest.mark.parametrize(
    "name",
    ["", "tiny", "a/b/c", "../b", "a/..", "a/../b", "/etc/passwd", "a/b..c", "a b/c", "a--b/c", "https://x/y", "a/b@",
     "a/b@../x", "a/b@-x", "a/b@x y", "a/b@x\\y"],
)  # fmt: skip
def test_an_invalid_name_is_refused_without_a_request(name):
    with pytest.raises(UsageError, match="is not a model on the Hub|is not a revision"):
        parse_name(name)


def test_a_name_may_have_a_revision():
    assert parse_name("cats/tiny-2.5_b") == ("cats/tiny-2.5_b", "main")
    assert parse_name("cats/tiny@refs/pr/1") == ("cats/tiny", "refs/pr/1")


def test_progress_is_logged_every_two_seconds(log, monkeypatch):
    clock = iter([0.0, 0.5, 3.0, 3.0, 3.5])
    monkeypatch.setattr("foretell.convert.hub.time.monotonic", lambda: next(clock))
    with progress_class("model.safetensors")(total=2_000_000, unit="B") as progress:
        for _ in range(3):
            progress.update(400_000)
    assert log.messages == ["model.safetensors: 800 kB of 2.0 MB (40%)"]
    assert [format_bytes(size) for size in (0, 999, 1500, 548_000_000, 3.2e9)] == [
        *("0 bytes", "999 bytes", "1.5 kB", "548 MB", "3.2 GB")
    ]


def test_environment_variables_choose_the_hub_and_the_cache(server, tmp_path):
    """HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE, in a new process."""
    code = "from foretell.convert.hub import fetch_model; print(fetch_model('cats/tiny'))"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_secret"}
    environment |= {"HF_ENDPOINT": server.endpoint, "HF_HUB_DISABLE_TELEMETRY": "1"}

    def call(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=environment | more, capture_output=True, text=True, check=False)

    online = call()
    assert (tmp_path / "home" / "hub" / "models--cats--tiny").is_dir(), online.stderr
    assert "Bearer hf_secret" in server.tokens
    server.asked.clear()
    offline = call(HF_HUB_OFFLINE="1")
    assert offline.stdout.splitlines()[-1] == online.stdout.splitlines()[-1]
    assert server.asked == []
