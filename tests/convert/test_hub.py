"""The Hub, answered for by a server in this process: what is asked for, what comes back, and all that can go wrong."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from foretell.cli.main import run
from foretell.convert.hub import fetch_model, parse_name
from foretell.convert.hub_progress import Progress, in_words
from foretell.errors import CheckpointError, ForetellError, UsageError
from foretell.language_model import save_model
from foretell.loading import find_tokenizer, load
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.text import train_tokenizer

pytest.importorskip("huggingface_hub", reason="the extra `hub` is not installed")
constants = pytest.importorskip("huggingface_hub.constants")
COMMITS = {"main": "a" * 40, "v1": "b" * 40, "a" * 40: "a" * 40, "b" * 40: "b" * 40}


@dataclass
class Hub:
    """Repositories by name, what was asked for, and what is to go wrong."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    refuse: tuple[int, str] | None = None  # status and error code of every answer
    cut: dict[str, int] = field(default_factory=dict)  # file: how many more times its transfer breaks off half way
    endpoint: str = ""

    def downloads(self) -> list[str]:
        return [path.rpartition("/")[2] for path in self.asked if path.startswith("GET") and "/resolve/" in path]


def make_handler(state: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(with_body=False)

        def do_GET(self) -> None:
            self.answer(with_body=True)

        def answer(self, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            state.asked.append(f"{self.command} {path}")
            state.tokens.add(self.headers.get("Authorization"))
            if state.refuse is not None:
                return self.fail(*state.refuse)
            parts = path.removeprefix("/api/models").strip("/").split("/")
            files = state.repositories.get("/".join(parts[:2]))
            if files is None:
                return self.fail(404, "RepoNotFound")
            if parts[3] not in COMMITS:
                return self.fail(404, "RevisionNotFound")
            commit = COMMITS[parts[3]]
            if parts[2] == "resolve":
                return self.send_file("/".join(parts[4:]), files, commit, with_body)
            listing = [{"type": "file", "path": p, "size": len(c), "oid": sha(c)} for p, c in files.items()]
            if parts[2] == "tree":
                return self.send_json([*listing, {"type": "directory", "path": "onnx", "oid": "c" * 40}])
            return self.send_json({"id": "/".join(parts[:2]), "sha": commit, "siblings": [], "private": False})

        def fail(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def send_json(self, value: object) -> None:
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_file(self, name: str, files: dict[str, bytes], commit: str, with_body: bool) -> None:
            if name not in files:
                return self.fail(404, "EntryNotFound")
            content, start = files[name], 0
            if asked := self.headers.get("Range"):
                state.ranges.append(asked)
                start = int(asked.removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if asked else 200)
            self.send_header("ETag", f'"{sha(content)}"')
            self.send_header("X-Repo-Commit", commit)
            self.send_header("Accept-Ranges", "bytes")
            if asked:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            if with_body and state.cut.get(name, 0) > 0:
                state.cut[name] -= 1
                body = body[: len(body) // 2]
                self.close_connection = True
            if with_body:
                self.wfile.write(body)
            return None

    return Handler


def sha(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@pytest.fixture(scope="module")
def model_files(tmp_path_factory) -> dict[str, bytes]:
    """A model of ours, with the files around it that repositories have."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = train_tokenizer("bytes", ["a"])
    save_model(directory, make_decoder(preset_config("toy", vocab_size=tokenizer.vocab_size), seed=1), tokenizer)
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    others = ("README.md", "pytorch_model.bin", "model.fp16.safetensors", "onnx/model.onnx", "vocab.json", "merges.txt")
    return {**files, "generation_config.json": b'{"eos_token_id": 256}', **{name: name.encode() for name in others}}


@pytest.fixture
def server(model_files, monkeypatch, tmp_path) -> Iterator[Hub]:
    """The Hub, with one model, and a cache of its own."""
    state = Hub({"cats/tiny": dict(model_files)})
    http = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(state))
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    state.endpoint = f"http://127.0.0.1:{http.server_port}"
    point_at(monkeypatch, state.endpoint, tmp_path / "cache")
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


def point_at(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path, offline: bool = False) -> None:
    """What HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE do where they are set before Python starts."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("time.sleep", lambda seconds: None)


@pytest.fixture
def said() -> list[str]:
    return []


def test_only_the_files_that_a_model_is_read_from_are_downloaded(server, said):
    directory = fetch_model("cats/tiny", said.append)
    needed = ["model.safetensors", "tokenizer.json", "generation_config.json", "config.json"]
    assert server.downloads() == needed
    assert sorted(path.name for path in directory.iterdir()) == sorted(needed)
    assert said[1].startswith("downloading tokenizer.json of cats/tiny, ")
    assert len(said) == 4


def test_what_is_in_the_cache_is_not_downloaded_again(server, said):
    first = fetch_model("cats/tiny", said.append)
    server.asked.clear()
    assert fetch_model("cats/tiny", said.append) == first
    assert server.downloads() == []
    assert len(said) == 4


def test_a_model_on_the_hub_is_loaded_and_asked_like_any_other(server, capfd):
    assert load("hub:cats/tiny", device="cpu").tokenizer.end_ids == (256,)
    assert run(["next", "hub:cats/tiny@v1", "The", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out)["context"] == "The"
    assert "downloading model.safetensors of cats/tiny" in captured.err
    assert run(["tokenize", "hub:cats/tiny", "The", "--json"]) == 0


KINDS = ("gpt2", "openai-gpt", "llama", "mistral", "qwen2", "qwen3")


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_every_family_is_loaded_from_the_cache_and_writes(kind, server, directory_of, capfd):
    there = directory_of(kind)
    server.repositories["they/model"] = {path.name: path.read_bytes() for path in there.iterdir()}
    assert run(["generate", "hub:they/model", "ab", "--max-tokens", "4", "--temperature", "0", "--json"]) == 0
    captured = capfd.readouterr()
    cached = fetch_model("they/model", print)
    links = [path for path in cached.iterdir() if path.is_symlink()]
    assert {path.resolve().parent.name for path in links} == {"blobs"}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in links}
    assert "downloading model.safetensors of they/model" in captured.err
    assert run(["generate", str(there), "ab", "--max-tokens", "4", "--temperature", "0", "--json"]) == 0
    assert json.loads(captured.out) == json.loads(capfd.readouterr().out)


def test_a_tokenizer_comes_without_the_weights_and_is_no_model_offline(server, said, monkeypatch, tmp_path):
    assert find_tokenizer("hub:cats/tiny").end_ids == (256,)
    assert server.downloads() == ["tokenizer.json", "generation_config.json", "config.json"]
    point_at(monkeypatch, server.endpoint, tmp_path / "cache", offline=True)
    assert find_tokenizer("hub:cats/tiny").encode("a") == [97]
    assert "is not in the cache" in refused("cats/tiny", said)


def test_a_revision_is_a_directory_of_its_own(server, said):
    assert fetch_model("cats/tiny@v1", said.append).name == "b" * 40
    assert fetch_model("cats/tiny", said.append).name == "a" * 40
    assert fetch_model("cats/tiny@" + "b" * 40, said.append).name == "b" * 40


def test_weights_in_parts_are_those_that_the_index_lists(server, said):
    files = server.repositories["cats/tiny"]
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    del files["model.safetensors"]
    files |= {name: name.encode() for name in (*parts, "model-00001-of-00099.safetensors")}
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": parts[0], "b": parts[1]}}).encode()
    fetch_model("cats/tiny", said.append)
    assert [name for name in server.downloads() if "safetensors" in name] == ["model.safetensors.index.json", *parts]


@pytest.mark.parametrize("name", ["../../etc/passwd.safetensors", "gone.safetensors", "onnx/model.onnx"])
def test_an_index_that_names_what_is_not_there_is_refused(server, said, name):
    files = server.repositories["cats/tiny"]
    del files["model.safetensors"]
    files["model.safetensors.index.json"] = json.dumps({"weight_map": {"a": name}}).encode()
    with pytest.raises(CheckpointError, match="names '.*', which the repository does not have"):
        fetch_model("cats/tiny", said.append)


def test_two_files_stand_for_a_tokenizer_where_there_is_no_other(server, said):
    del server.repositories["cats/tiny"]["tokenizer.json"]
    fetch_model("cats/tiny", said.append)
    assert server.downloads()[1:3] == ["vocab.json", "merges.txt"]


def refused(name: str, said: list[str]) -> str:
    """The one line of an error that is meant for the user."""
    with pytest.raises(ForetellError) as caught:
        fetch_model(name, said.append)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_pickled_weights_are_refused_with_the_reason_before_anything_is_downloaded(server, said):
    del server.repositories["cats/tiny"]["model.safetensors"]
    line = refused("cats/tiny", said)
    assert "no model.safetensors but pytorch_model.bin, which is a pickle and can run any code" in line
    assert server.downloads() == []


def test_a_repository_without_a_configuration_is_no_model(server, said):
    del server.repositories["cats/tiny"]["config.json"]
    assert "has no config.json" in refused("cats/tiny", said)


def test_what_does_not_exist_is_named(server, said):
    assert refused("cats/none", said) == "hub:cats/none does not exist, or is private: check the name, or set HF_TOKEN"
    assert "hub:cats/tiny has no revision 'v9'" in refused("cats/tiny@v9", said)


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
def test_a_refusal_says_what_to_do(server, said, status, code, words):
    server.refuse = (status, code)
    assert words in refused("cats/tiny", said)


def test_a_transfer_that_breaks_off_goes_on_where_it_was_and_says_so(server, said, model_files, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1024)
    server.cut = {"model.safetensors": 1}
    directory = fetch_model("cats/tiny", said.append)
    assert (directory / "model.safetensors").read_bytes() == model_files["model.safetensors"]
    assert server.ranges == [f"bytes={len(model_files['model.safetensors']) // 2 // 1024 * 1024}-"]
    assert [line for line in said if "Trying to resume" in line and "\n" not in line]


def test_a_transfer_that_never_ends_is_one_line_and_can_be_tried_again(server, said, model_files):
    find_tokenizer("hub:cats/tiny")
    server.cut = {"model.safetensors": 1000}
    assert "model.safetensors could not be downloaded whole" in refused("cats/tiny", said)
    server.cut = {}
    server.asked.clear()
    directory = fetch_model("cats/tiny", said.append)
    assert server.downloads() == ["model.safetensors"]  # what was whole is kept
    assert (directory / "model.safetensors").read_bytes() == model_files["model.safetensors"]


def test_offline_what_was_downloaded_is_used_and_the_rest_refused(server, said, monkeypatch, tmp_path):
    online = fetch_model("cats/tiny", said.append)
    point_at(monkeypatch, server.endpoint, tmp_path / "cache", offline=True)
    server.asked.clear()
    assert fetch_model("cats/tiny", said.append) == online
    line = "hub:cats/tiny@v1 is not in the cache (HF_HOME), and HF_HUB_OFFLINE is set; download it while online"
    assert refused("cats/tiny@v1", said) == line
    assert server.asked == []


def test_half_a_download_is_not_taken_for_a_model_when_offline(server, said, monkeypatch, tmp_path):
    directory = fetch_model("cats/tiny", said.append)
    (directory / "model.safetensors").unlink()
    point_at(monkeypatch, server.endpoint, tmp_path / "cache", offline=True)
    assert "is not in the cache" in refused("cats/tiny", said)


def test_without_a_hub_within_reach_what_was_downloaded_is_used_and_said(server, said, monkeypatch, tmp_path):
    online = fetch_model("cats/tiny", said.append)
    point_at(monkeypatch, "http://127.0.0.1:9", tmp_path / "cache")
    assert fetch_model("cats/tiny", said.append) == online
    assert "http://127.0.0.1:9 cannot be reached" in said[-1]
    assert "what was downloaded before is used" in said[-1]
    point_at(monkeypatch, "http://127.0.0.1:9", tmp_path / "empty")
    assert "cannot be reached" in refused("cats/tiny", said)


def test_without_the_extra_the_error_says_so(monkeypatch, said):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "needs the extra 'hub': pip install 'foretell[hub]'" in refused("cats/tiny", said)


@pytest.mark.parametrize(
    "name",
    ["", "tiny", "a/b/c", "../b", "a/..", "a/../b", "/etc/passwd", "a/b..c", "a b/c", "a--b/c", "https://x/y", "a/b@",
     "a/b@../x", "a/b@-x", "a/b@x y", "a/b@x\\y"],
)  # fmt: skip
def test_a_name_that_is_none_is_refused_before_the_hub_is_asked(name):
    with pytest.raises(UsageError, match="names no model on the Hub|is no revision"):
        parse_name(name)


def test_a_name_may_have_a_revision():
    assert parse_name("cats/tiny-2.5_b") == ("cats/tiny-2.5_b", "main")
    assert parse_name("cats/tiny@refs/pr/1") == ("cats/tiny", "refs/pr/1")


def test_progress_is_a_line_now_and_then(said, monkeypatch):
    clock = iter([0.0, 0.5, 3.0, 3.0, 3.5])
    monkeypatch.setattr("foretell.convert.hub_progress.time.monotonic", lambda: next(clock))
    with Progress("model.safetensors", said.append, total=2_000_000) as progress:
        for _ in range(3):
            progress.update(400_000)
    assert said == ["model.safetensors: 800 kB of 2.0 MB (40%)"]
    assert [in_words(size) for size in (0, 999, 1500, 548_000_000, 3.2e9)] == [
        *("0 bytes", "999 bytes", "1.5 kB", "548 MB", "3.2 GB")
    ]


def test_the_environment_says_where_the_hub_and_the_cache_are(server, tmp_path):
    """HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE, in a process that has nothing else to go by."""
    code = "from foretell.convert.hub import fetch_model; print(fetch_model('cats/tiny', print))"
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
