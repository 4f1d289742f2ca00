"""Read-only routes: models, health, readiness, metrics, and the files of the page."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from foretell.insight.page.write_page import FOLDER, document
from foretell.serving.errors import ApiError
from foretell.serving.models import ServedModel, ServedTask
from foretell.serving.server import Server

# Only scripts and styles from this server, no other resources, and no frames
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TYPES = {"js": "text/javascript", "css": "text/css", "html": "text/html"}


class Status:
    """GET routes, which never wait for a model."""

    def __init__(self, server: Server):
        self.server, self.files = server, live_files()
        server.registry.register(Numbers(server))

    async def models(self, request: Request) -> Response:
        """GET /v1/models."""
        return JSONResponse({"object": "list", "data": self._descriptions()})

    async def model(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        name = request.path_params["name"]
        known = next((model for model in self._descriptions() if model["id"] == name), None)
        return JSONResponse(known or describe(self.server.models.find(name)))

    def _descriptions(self) -> list[dict[str, Any]]:
        """The objects of all models; for a name that is both a model and a task, the model's."""
        tasks = self.server.models.tasks
        models = {model.name: model for model in self.server.models}
        return list(map(describe, [*models.values(), *(tasks[name] for name in tasks if name not in models)]))

    async def tokenizer_info(self, request: Request) -> Response:
        """GET /tokenizer_info: for lm-evaluation-harness, before it sends ids."""
        served = self.server.models.find(request.query_params.get("model", ""))
        tokenizer = served.model.tokenizer
        return JSONResponse(
            {
                "tokenizer_class": tokenizer.kind,
                "bos_token": None if tokenizer.start_id is None else tokenizer.piece(tokenizer.start_id),
                "eos_token": None if tokenizer.end_id is None else tokenizer.piece(tokenizer.end_id),
                "model_max_length": served.context_length,
                "chat_template": tokenizer.chat_template,
            }
        )

    async def health(self, request: Request) -> Response:
        """GET /health: the process answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """GET /ready: the models are warm, and requests are accepted."""
        if self.server.is_draining:
            raise ApiError(503, "the server is shutting down")
        if not self.server.is_ready:
            raise ApiError(503, "the models are being warmed up")
        return JSONResponse({"status": "ready"})

    async def metrics(self, request: Request) -> Response:
        """GET /metrics, for Prometheus."""
        return Response(generate_latest(self.server.registry), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def page(self, request: Request) -> Response:
        """GET / and GET /page/NAME."""
        name = request.path_params.get("name", "").lstrip("/") or "page.html"
        if name not in self.files:
            raise ApiError(404, "this path is not served")
        headers = {"content-security-policy": POLICY, "cache-control": "no-cache"}
        return Response(self.files[name], headers=headers, media_type=TYPES[name.rpartition(".")[2]])

    async def explored(self, request: Request) -> Response:
        """GET /explore: the models for the page. reads: a text, a source, or values."""
        return JSONResponse({"models": self.server.models.explored()})


def live_files() -> dict[str, str]:
    """The document of the live page, and its style and scripts by path under `page/`.

    The document lists all scripts, because a browser would request each only after reading another one's imports.
    """
    served = {file.name: file for file in FOLDER.iterdir()}
    served |= {f"live/{file.name}": file for file in files("foretell.serving").joinpath("live").iterdir()}
    contents = {name: file.read_text("utf-8") for name, file in served.items() if name.endswith((".js", ".css"))}
    scripts = [f'<link rel="modulepreload" href="page/{name}">' for name in contents if name.endswith(".js")]
    links = ['<link rel="icon" href="data:,">', '<link rel="stylesheet" href="page/style.css">', *scripts]
    start = '<script type="module" src="page/live/live.js"></script>'
    return {**contents, "page.html": document("explorer", "\n".join(links), start)}


def describe(served: ServedModel | ServedTask) -> dict[str, Any]:
    """The object of a model; a task model has no context of tokens."""
    about = {"id": served.name, "object": "model", "created": served.created, "owned_by": "foretell"}
    return about | ({"max_model_len": served.context_length} if isinstance(served, ServedModel) else {})


class Numbers(Collector):
    """Metrics that are computed on request."""

    def __init__(self, server: Server):
        self.server = server

    def collect(self):
        engine = self.server.engine
        schedulers = [each for served in self.server.models for each in (served.scheduler, served.reader)]
        running = sum(len(scheduler.running) for scheduler in schedulers)
        waiting = sum(len(scheduler.waiting) for scheduler in schedulers)
        for name, text, value in (
            ("requests", "Requests that are answered now", self.server.num_requests),
            ("sequences_running", "Sequences that are read or written now", running),
            ("sequences_waiting", "Sequences that wait for room", waiting),
            ("event_loop_lag_seconds", "The longest recent delay of the event loop", self.server.loop_lag),
            ("steps_total", "Steps of all models, without the warm-up", engine.num_steps),
            ("tokens_total", "Tokens written", engine.num_tokens),
            ("prompt_tokens_total", "Tokens of prompts, without texts to embed", engine.num_prompt_tokens),
        ):
            kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield kind(f"foretell_{name}", text, value=value)
        blocks = GaugeMetricFamily("foretell_cache_blocks_free", "Free blocks of the cache", labels=["model"])
        for served in self.server.models:
            blocks.add_metric([served.name], served.scheduler.pool.num_free)
        yield blocks
