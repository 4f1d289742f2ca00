"""A server in this process in the place of the Hub: downloads, and uploads as its API and Git LFS define them."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

constants = pytest.importorskip("huggingface_hub.constants", reason="the extra `hub` is not installed")
COMMITS = {"main": "a" * 40, "v1": "b" * 40, "a" * 40: "a" * 40, "b" * 40: "b" * 40}


@dataclass
class Hub:
    """Repositories by name, the requests received, and the failures to simulate."""

    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    ranges: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    refuse: tuple[int, str] | None = None  # status and error code of every answer
    refuse_writing: tuple[int, str] | None = None  # the same for POST alone
    cut: dict[str, int] = field(default_factory=dict)  # file: how many more transfers of it break off half way
    endpoint: str = ""
    created: dict[str, dict[str, Any]] = field(default_factory=dict)  # the requests that made repositories
    stored: dict[str, bytes] = field(default_factory=dict)  # Git LFS: content by SHA-256
    commits: list[str] = field(default_factory=list)  # their messages

    def take(self, repository: str, key: str, value: dict[str, Any]) -> None:
        """One line of a commit."""
        if key == "header":
            self.commits.append(value["summary"])
        elif key == "file":
            self.repositories[repository][value["path"]] = base64.b64decode(value["content"])
        else:
            self.repositories[repository][value["path"]] = self.stored[value["oid"]]

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

        def do_PUT(self) -> None:
            state.asked.append(f"PUT {self.path}")
            content = self.read_body()
            assert hashlib.sha256(content).hexdigest() == self.path.rpartition("/")[2]
            state.stored[hashlib.sha256(content).hexdigest()] = content
            self.send_json({})

        def do_POST(self) -> None:
            path = self.path.partition("?")[0]
            body = self.read_body()
            state.asked.append(f"POST {path}")
            state.tokens.add(self.headers.get("Authorization"))
            if state.refuse_writing is not None:
                return self.fail(*state.refuse_writing)
            repository = "/".join(path.removeprefix("/api/models").strip("/").split("/")[:2]).removesuffix(".git")
            if path == "/api/repos/create":
                asked = json.loads(body)
                repository = f"{asked['organization']}/{asked['name']}"
                state.created[repository], state.repositories[repository] = asked, {}
                return self.send_json({"url": f"{state.endpoint}/{repository}"})
            if path == "/api/validate-yaml":
                return self.send_json({"errors": [], "warnings": []})
            if "/preupload/" in path:
                names = [file["path"] for file in json.loads(body)["files"]]
                return self.send_json({"files": [upload_mode(name) for name in names]})
            if path.endswith("/info/lfs/objects/batch"):
                objects = json.loads(body)["objects"]
                actions = [{"upload": {"href": f"{state.endpoint}/lfs/{each['oid']}"}} for each in objects]
                pairs = zip(objects, actions, strict=True)
                return self.send_json({"objects": [{**each, "actions": action} for each, action in pairs]})
            for line in map(json.loads, body.splitlines()):
                state.take(repository, line["key"], line["value"])
            return self.send_json({"commitUrl": f"{state.endpoint}/{repository}/commit/main", "commitOid": "a" * 40})

        def read_body(self) -> bytes:
            """The body of a request, in chunks or of a given length."""
            if "Content-Length" in self.headers:
                return self.rfile.read(int(self.headers["Content-Length"]))
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            return body

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
            parts += ["", "main"][len(parts) - 2 :]
            if parts[3] not in COMMITS:
                return self.fail(404, "RevisionNotFound")
            commit = COMMITS[parts[3]]
            if parts[2] == "resolve":
                return self.send_file("/".join(parts[4:]), files, commit, with_body)
            listing = [
                {"type": "file", "path": name, "size": len(content), "oid": sha(content)}
                for name, content in files.items()
            ]
            if parts[2] == "tree":
                return self.send_json([*listing, {"type": "directory", "path": "onnx", "oid": "c" * 40}])
            siblings = [{"rfilename": name, "size": len(content)} for name, content in files.items()]
            return self.send_json({"id": "/".join(parts[:2]), "sha": commit, "siblings": siblings, "private": False})

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


def upload_mode(name: str) -> dict[str, Any]:
    """The Hub's answer for a file to be uploaded: weights go through Git LFS."""
    return {"path": name, "uploadMode": "lfs" if name.endswith(".safetensors") else "regular", "shouldIgnore": False}


@contextmanager
def running(state: Hub) -> Iterator[Hub]:
    """The server, until the block ends."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(state))
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    state.endpoint = f"http://127.0.0.1:{http.server_port}"
    yield state
    http.shutdown()
    http.server_close()
    thread.join()


def point_at(monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path, offline: bool = False) -> None:
    """The effect of HF_ENDPOINT, HF_HOME and HF_HUB_OFFLINE set before Python starts."""
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr("time.sleep", lambda seconds: None)
