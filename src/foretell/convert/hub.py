"""Models on the Hugging Face Hub: `hub:owner/name[@revision]` becomes a local directory.

The extra `hub` (huggingface_hub) downloads into its own cache, so that HF_HOME, HF_ENDPOINT, HF_TOKEN and
HF_HUB_OFFLINE mean what they mean elsewhere. Only the files that a model is read from are asked for; config.json is
the last of them, so that a directory that has it has the small files too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

from foretell.convert.hub_progress import Progress, Say, in_words, speaking
from foretell.errors import CheckpointError, ForetellError, UsageError
from foretell.files import read_json

PREFIX = "hub:"
CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZER, PAIR = "tokenizer.json", ("vocab.json", "merges.txt")
BESIDE = (
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "chat_template.jinja",
)
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
REVISION = re.compile(r"\w[\w./-]*")

Fetch = Callable[[str], Path]  # a file's name to where it is now
Download = Callable[[str, dict[str, int], Fetch], Path]


def fetch_model(name: str, say: Say) -> Path:
    """The directory of a model on the Hub, `owner/name` or `owner/name@revision`, downloaded where it is not cached.

    `say` gets a line for what is downloaded, and how far it is. Offline (HF_HUB_OFFLINE, or no Hub within reach) what
    was downloaded before is used, and said. Raises UsageError for a name that is none, CheckpointError for whatever
    cannot be had: no such repository or revision, no right to it, no safetensors in it, a broken download.
    """
    return fetch(name, say, download, has_weights)


def fetch_tokenizer(name: str, say: Say) -> Path:
    """The directory of a model's tokenizer alone, without its weights; otherwise as `fetch_model`."""
    return fetch(name, say, download_small, lambda directory: True)


def fetch(name: str, say: Say, get: Download, is_complete: Callable[[Path], bool]) -> Path:
    """The directory that `get` fills from the Hub, or the one in the cache, if it `is_complete`, when offline."""
    repository, revision = parse_name(name.removeprefix(PREFIX))
    hub = import_hub()
    if hub.is_offline_mode():
        return find_cached(hub, repository, revision, is_complete, "HF_HUB_OFFLINE is set")
    try:
        commit, sizes = list_files(hub, repository, revision)
    except UnreachableError as error:
        directory = find_cached(hub, repository, revision, is_complete, str(error))
        say(f"{error}: what was downloaded before is used")
        return directory
    directory = get(repository, sizes, partial(fetch_file, hub, repository, commit, sizes, say))
    with failures(hub, repository, revision):
        # By the revision's name, which writes down in the cache which commit it stands for
        if Path(hub.hf_hub_download(repository, CONFIG, revision=revision)).parent != directory:
            raise CheckpointError(f"{PREFIX}{repository} has changed while it was downloaded; try again")
    return directory


class UnreachableError(CheckpointError):
    """The Hub gave no answer."""


def parse_name(name: str) -> tuple[str, str]:
    """Repository and revision; `main` where none is named."""
    repository, at, revision = name.partition("@")
    if not NAME.fullmatch(repository) or ".." in repository or "--" in repository:
        raise UsageError(
            f"'{PREFIX}{name}' names no model on the Hub; write {PREFIX}owner/name or {PREFIX}owner/name@revision"
        )
    if at and (not REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(f"'{revision}' is no revision; write a branch, a tag or a commit after @")
    return repository, revision or "main"


def import_hub() -> ModuleType:
    """The package huggingface_hub, which not everyone needs."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
        import huggingface_hub.hf_api
    except ImportError:
        raise CheckpointError(
            f"{PREFIX} needs the extra 'hub': pip install 'foretell[hub]', or give a directory with the model's files"
        ) from None
    return huggingface_hub


def list_files(hub: ModuleType, repository: str, revision: str) -> tuple[str, dict[str, int]]:
    """The commit of a revision, and the size of each file in the repository's top folder."""
    with failures(hub, repository, revision):
        api = hub.HfApi()
        commit = api.repo_info(repository, revision=revision).sha
        entries = api.list_repo_tree(repository, revision=commit)
        return commit, {entry.path: entry.size for entry in entries if isinstance(entry, hub.hf_api.RepoFile)}


def download(repository: str, sizes: dict[str, int], fetch: Fetch) -> Path:
    """Every file that a model is read from."""
    refuse_unreadable(repository, sizes)
    for name in weight_files(repository, sizes, fetch):
        fetch(name)
    return download_small(repository, sizes, fetch)


def download_small(repository: str, sizes: dict[str, int], fetch: Fetch) -> Path:
    """The tokenizer's files and the others beside the weights, config.json last."""
    if CONFIG not in sizes:
        raise CheckpointError(f"{PREFIX}{repository} has no {CONFIG}, so it is no model that can be read")
    for name in small_files(sizes):
        fetch(name)
    return fetch(CONFIG).parent


def fetch_file(hub: ModuleType, repository: str, commit: str, sizes: dict[str, int], say: Say, name: str) -> Path:
    """One file, from the cache or the Hub."""
    cached = hub.try_to_load_from_cache(repository, name, revision=commit)
    if isinstance(cached, str):
        return Path(cached)
    say(f"downloading {name} of {repository}, {in_words(sizes[name])}")
    with failures(hub, repository, commit, name), speaking(say):
        bar = partial(Progress, name, say)
        return Path(hub.hf_hub_download(repository, name, revision=commit, tqdm_class=bar))


def small_files(sizes: dict[str, int]) -> list[str]:
    """The tokenizer's files and the others that are read, as far as the repository has them."""
    tokenizer = (TOKENIZER,) if TOKENIZER in sizes else PAIR
    return [name for name in (*tokenizer, *BESIDE) if name in sizes]


def weight_files(repository: str, sizes: dict[str, int], fetch: Fetch) -> list[str]:
    """The one file of weights, or those that the index lists."""
    if WEIGHTS in sizes:
        return [WEIGHTS]
    places = read_json(fetch(INDEX)).get("weight_map")
    names = sorted({str(name) for name in places.values()}) if isinstance(places, dict) else []
    if not names:
        raise CheckpointError(f"{PREFIX}{repository}: {INDEX} has no weight_map from names to files")
    for name in names:
        if name not in sizes or "/" in name or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{PREFIX}{repository}: {INDEX} names '{name[:80]}', which the repository does not have"
            )
    return names


def refuse_unreadable(repository: str, sizes: dict[str, int]) -> None:
    """Refuse a repository that has no model for us, before anything is downloaded."""
    if WEIGHTS not in sizes and INDEX not in sizes:
        pickled = next((name for name in sorted(sizes) if name.endswith(PICKLED)), None)
        reason = "" if pickled is None else f" but {pickled}, which is a pickle and can run any code when it is opened"
        raise CheckpointError(f"{PREFIX}{repository} has no {WEIGHTS}{reason}; find one that has")


def find_cached(hub: ModuleType, repository: str, revision: str, is_complete: Callable[[Path], bool], why: str) -> Path:
    """The directory of what was downloaded before, if it is complete; `why` nothing is downloaded now."""
    found = hub.try_to_load_from_cache(repository, CONFIG, revision=revision)
    directory = Path(found).parent if isinstance(found, str) else None
    if directory is None or not is_complete(directory):
        at = "" if revision == "main" else f"@{revision}"
        raise CheckpointError(
            f"{PREFIX}{repository}{at} is not in the cache (HF_HOME), and {why}; download it while online"
        )
    return directory


def has_weights(directory: Path) -> bool:
    """Whether all files of weights are there: other programs may have downloaded only some."""
    if (directory / WEIGHTS).exists() or not (directory / INDEX).exists():
        return (directory / WEIGHTS).exists()
    places = read_json(directory / INDEX).get("weight_map")
    return isinstance(places, dict) and all((directory / str(name)).exists() for name in places.values())


@contextmanager
def failures(hub: ModuleType, repository: str, revision: str, file: str = "") -> Generator[None]:
    """Every way in which the Hub fails, as one line."""
    errors = hub.errors
    name = PREFIX + repository
    try:
        yield
    except ForetellError:
        raise
    except errors.GatedRepoError as error:
        raise CheckpointError(f"{name} is gated: accept its terms on its page, and set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise CheckpointError(f"{name} does not exist, or is private: check the name, or set HF_TOKEN") from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{name} has no revision '{revision}'; name a branch, a tag or a commit") from error
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        advice = "set a valid HF_TOKEN" if status in (401, 403) else "try again later"
        raise CheckpointError(f"{name}: the Hub answered with status {status}; {advice}") from error
    except Exception as error:  # the transport's errors are those of whatever HTTP library is in use
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        if file:
            raise CheckpointError(f"{name}: {file} could not be downloaded whole ({reason}); try again") from error
        raise UnreachableError(f"{hub.constants.ENDPOINT} cannot be reached ({reason})") from error
