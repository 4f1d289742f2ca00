"""`foretell serve MODEL...`: models behind OpenAI's protocol."""

from __future__ import annotations

import logging
import os
import webbrowser
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.command_line import TRANSLATION, part_kinds
from foretell.cli.terminal import note, open_model
from foretell.errors import UsageError
from foretell.system.allocator import share_one_arena

if TYPE_CHECKING:
    from foretell.serving.models import ModelSettings, ServedModel, ServedTask

KEY = "FORETELL_API_KEY"
LEAST_KEY = 16  # characters
EVERY_STEP = "@step-*"


def serve(
    models: Annotated[list[str], Parameter(help="Paths, runs, RUN@step-*, primer, hub:owner/name; or NAME=MODEL.")],
    /,
    *,
    host: Annotated[str, Parameter(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="The port; 0 takes a free one.")] = 8000,
    key_file: Annotated[Path | None, Parameter(help=f"A file of keys, one per line; or set {KEY}.")] = None,
    no_key: Annotated[bool, Parameter(help="Accept requests from other machines without a key.")] = False,
    memory: Annotated[float | None, Parameter(help="GiB of all caches (default: a quarter of the machine's).")] = None,
    look_budget: Annotated[float, Parameter(help="MiB of recorded values per request.")] = 64.0,
    max_requests: Annotated[int, Parameter(help="The largest number of requests that wait or run.")] = 256,
    grace: Annotated[float, Parameter(help="Seconds that running requests have to end after SIGTERM.")] = 30.0,
    template: arguments.Template = None,
    open_page: Annotated[bool, Parameter("--open", help="Open the explorer page in a browser.")] = False,
    strict_fields: Annotated[bool, Parameter(help="Refuse unknown fields instead of naming them.")] = False,
    options: arguments.Options = arguments.MODEL_DEFAULTS,
) -> None:
    """Serve models to programs that speak OpenAI's protocol.

    Completions, chats, responses, embeddings, scores and tokens, at
    http://HOST:PORT/v1. Any request may also look inside the model.
    """
    keys = read_keys(key_file)
    check_numbers({"--memory": memory, "--look-budget": look_budget, "--grace": grace}, max_requests, port)
    named = [each for argument in models for each in with_steps(*name_and_model(argument))]
    check_names([name for name, _ in named])
    share_one_arena()  # before threads start
    try:
        from foretell.serving.run import ServerRun, listen, make_app
    except ModuleNotFoundError as error:
        raise UsageError(f"a server needs {error.name}: pip install 'foretell[serve]'") from None
    from foretell.serving.access import LOOPBACK
    from foretell.serving.models import ModelSettings, ServedModels
    from foretell.serving.server import Server

    if host not in LOOPBACK and not keys and not no_key:
        raise UsageError(f"{host} can be reached from other machines; set {KEY}, or give --key-file FILE or --no-key")
    with listen(host, port) as listener:
        logging.getLogger("foretell.serving").setLevel(logging.INFO)
        cache = None if memory is None else int(memory * 2**30)
        settings = ModelSettings(cache, len(named), template, int(look_budget * 2**20))
        opened = [open_served(name, model, options, settings) for name, model in named]
        tasks = [task for _, tasks in opened for task in tasks]
        for task in tasks:
            note(f"{task.name} was trained for a task; requests to {task.path} are answered")
        served = ServedModels([model for model, _ in opened if model], tasks, dict(named))
        server = Server(served, max_requests, strict_fields)
        address = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        note(f"serving {', '.join(served.names)} at {address}/v1, to explore at {address}; Ctrl-C ends")

        def started() -> None:
            note("ready")
            if open_page:
                webbrowser.open(address)

        ServerRun(server, make_app(server, keys, is_local=host in LOOPBACK), listener, grace, started).run()


def check_numbers(values: Mapping[str, float | None], max_requests: int, port: int) -> None:
    """Raises UsageError for a number with which no request could be answered."""
    for option, value in values.items():
        least = "0 or more" if option == "--grace" else "more than 0"
        if value is not None and not (0 <= value < 2**40 and (value or option == "--grace")):
            raise UsageError(f"{option} must be {least}, not {value:g}")
    if max_requests < 1:
        raise UsageError(f"--max-requests must be at least 1, not {max_requests}")
    if not 0 <= port < 2**16:
        raise UsageError(f"--port must be 0 to 65535, not {port}")


def name_and_model(argument: str) -> tuple[str, str]:
    """(name, model) of an argument MODEL or NAME=MODEL."""
    name, is_named, model = argument.partition("=")
    if is_named and not Path(argument).exists():
        if not model:
            raise UsageError(f"{argument} names no model; give NAME=MODEL")
        return name, model
    return Path(argument.removeprefix("hub:")).name, argument


def with_steps(name: str, model: str) -> list[tuple[str, str]]:
    """Each kept step of RUN@step-* by name, for the slider of the live page; of another argument, itself."""
    if not model.endswith(EVERY_STEP):
        return [(name, model)]
    from foretell.runs.checkpoint import list_checkpoints
    from foretell.runs.run import find_run

    own = model.removesuffix(EVERY_STEP)
    steps = [checkpoint.step for checkpoint in list_checkpoints(find_run(own).checkpoints)]
    if not steps:
        raise UsageError(f"{own} has no checkpoint yet, so there is no step to serve")
    return [(f"{name.removesuffix(EVERY_STEP)}@step-{step}", f"{own}@step-{step}") for step in steps]


def check_names(names: list[str]) -> None:
    if "" in names:
        raise UsageError("a model has no name; give NAME=MODEL")
    if double := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two models are named {double}; give one another name: NAME=MODEL")


def open_served(
    name: str, model: str, options: arguments.Options, settings: ModelSettings
) -> tuple[ServedModel | None, list[ServedTask]]:
    """A named model and its tasks; a translation model has only a task."""
    from foretell.convert.hub import PREFIX
    from foretell.finding import find_model
    from foretell.serving.models import read_examples, serve_model
    from foretell.serving.tasks import tasks_of, translation_task

    if not set(TRANSLATION).isdisjoint(part_kinds(model)):
        from foretell.cli.translate import open_translator

        loading = {name: value for name, value in vars(options).items() if name != "strict"}  # or not: alike
        translator = open_translator(model, **loading)
        return None, [translation_task(name, translator, settings.look_bytes)]
    loaded = open_model(model, **vars(options))
    served = serve_model(name, loaded, settings)
    if not model.startswith(PREFIX):  # a model on the Hub would be looked up there again
        served.examples = read_examples(find_model(model))
    return served, tasks_of(name, loaded, settings.look_bytes)


def read_keys(file: Path | None) -> list[bytes]:
    """The keys of a file and of FORETELL_API_KEY. Raises UsageError, with the line, for an invalid key."""
    lines = [] if file is None else arguments.read_named(file, "--key-file").split("\n")
    sources = [(f"--key-file {file}, line {number}", line) for number, line in enumerate(lines, start=1)]
    keys = [(source, key) for source, line in [*sources, (KEY, os.environ.get(KEY, ""))] if (key := line.strip())]
    for source, key in keys:
        if not (key.isascii() and key.isprintable()):
            raise UsageError(f"{source}: the key has characters beyond printable ASCII, which a header cannot carry")
        if len(key) < LEAST_KEY:
            raise UsageError(f"{source}: the key has {len(key)} characters; give at least {LEAST_KEY}")
    if file is not None and not keys:
        raise UsageError(f"--key-file {file} has no key")
    return [key.encode() for _, key in keys]
