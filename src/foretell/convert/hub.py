"""Models on the Hugging Face Hub: download `hub:owner/name[@revision]` and return its local directory.

The extra `hub` (huggingface_hub) downloads into its own cache, so HF_HOME, HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE
have their usual meaning. Only the needed files of a model are downloaded. config.json is the last one, so that a cached
directory with a config.json also has the other small files.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from foretell.errors import CheckpointError, ForetellError, UsageError
from foretell.storage.files import CONFIG, TOKENIZER_FILE, WEIGHTS, WEIGHTS_INDEX, read_json
from foretell.typesetting.numbers import format_bytes

logger = logging.getLogger(__name__)

PREFIX = "hub:"
NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
REVISION = re.compile(r"\w[\w./-]*")
PAIR = ("vocab.json", "merges.txt")  # read if there is no tokenizer.json
OPTIONAL = (
    *("generation_config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    "chat_template.jinja",
)
PICKLED = (".bin", ".pt", ".pth", ".ckpt")
PROGRESS_SECONDS = 2.0


def fetch_model(name: str, *, with_weights: bool = True) -> Path:
    """The directory of a model on the Hub, `owner/name` or `owner/name@revision`, downloaded if it is not cached.

    Downloads and their progress are logged. Offline (HF_HUB_OFFLINE, or if the Hub cannot be reached), a complete
    earlier download is used. Raises UsageError for an invalid name, and CheckpointError if the model cannot be fetched
    (unknown repository or revision, no access, no safetensors, or a failed download).
    """
    repository, revision = parse_name(name.removeprefix(PREFIX))
    hub = import_hub()
    if hub.is_offline_mode():
        return find_cached(hub, repository, revision, "HF_HUB_OFFLINE is set", with_weights=with_weights)
    try:
        with one_line_errors(hub, repository, revision):
            info = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
    except UnreachableError as error:
        directory = find_cached(hub, repository, revision, str(error), with_weights=with_weights)
        logger.warning("%s: using the earlier download", error)
        return directory
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or () if "/" not in file.rfilename}
    listing = HubListing(repository, info.sha, sizes)
    if CONFIG not in sizes:
        raise CheckpointError(f"{PREFIX}{repository} has no {CONFIG}, so it is not a model that can be read")
    weights = weight_files(hub, listing) if with_weights else []
    tokenizer = (TOKENIZER_FILE,) if TOKENIZER_FILE in sizes else PAIR
    for file in (*weights, *(file for file in (*tokenizer, *OPTIONAL) if file in sizes)):
        download(hub, listing, file)
    directory = download(hub, listing, CONFIG).parent
    with one_line_errors(hub, repository, revision):
        # Use the revision's name, so that the cache records its commit
        if Path(hub.hf_hub_download(repository, CONFIG, revision=revision)).parent != directory:
            raise CheckpointError(f"{PREFIX}{repository} changed during the download; try again")
    return directory


def parse_name(name: str) -> tuple[str, str]:
    """Repository and revision; `main` if the name has none."""
    repository, at, revision = name.partition("@")
    if not NAME.fullmatch(repository) or ".." in repository or "--" in repository:
        raise UsageError(
            f"'{PREFIX}{name}' is not a model on the Hub; write {PREFIX}owner/name or {PREFIX}owner/name@revision"
        )
    if at and (not REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(f"'{revision}' is not a revision; write a branch, a tag or a commit after @")
    return repository, revision or "main"


def import_hub() -> ModuleType:
    """The optional package huggingface_hub, or a `CheckpointError` with the command that installs it."""
    try:
        import huggingface_hub
        import huggingface_hub.constants
        import huggingface_hub.errors
    except ImportError:
        raise CheckpointError(
            f"{PREFIX} needs the extra 'hub': pip install 'foretell[hub]', or give a directory with the model's files"
        ) from None
    return huggingface_hub


@dataclass(frozen=True)
class HubListing:
    """A repository at a commit, with the size in bytes of each file in its top folder."""

    repository: str
    commit: str
    sizes: dict[str, int]


class UnreachableError(CheckpointError):
    """The Hub did not answer."""


def weight_files(hub: ModuleType, listing: HubListing) -> list[str]:
    """The weight file, or the files in the index; refuses a repository without safetensors."""
    name = f"{PREFIX}{listing.repository}"
    if WEIGHTS in listing.sizes:
        return [WEIGHTS]
    if WEIGHTS_INDEX not in listing.sizes:
        pickled = next((file for file in sorted(listing.sizes) if file.endswith(PICKLED)), None)
        reason = "" if pickled is None else f" but {pickled}, which is a pickle and can run any code when it is opened"
        raise CheckpointError(f"{name} has no {WEIGHTS}{reason}; use a model that has it")
    files = indexed_files(download(hub, listing, WEIGHTS_INDEX))
    if not files:
        raise CheckpointError(f"{name}: {WEIGHTS_INDEX} has no weight_map from names to files")
    for file in files:
        if file not in listing.sizes or not file.endswith(".safetensors"):
            raise CheckpointError(f"{name}: {WEIGHTS_INDEX} names '{file[:80]}', which the repository does not have")
    return files


def indexed_files(index: Path) -> list[str]:
    """The files in an index of weights; none if it is damaged."""
    weight_map = read_json(index).get("weight_map")
    return sorted({str(file) for file in weight_map.values()}) if isinstance(weight_map, dict) else []


def find_cached(hub: ModuleType, repository: str, revision: str, reason: str, *, with_weights: bool) -> Path:
    """The directory of a complete earlier download. reason: the reason why nothing can be downloaded."""
    config = hub.try_to_load_from_cache(repository, CONFIG, revision=revision)
    directory = Path(config).parent if isinstance(config, str) else None
    if directory is None or (with_weights and not has_weights(directory)):
        at = "" if revision == "main" else f"@{revision}"
        raise CheckpointError(
            f"{PREFIX}{repository}{at} is not in the cache (HF_HOME), and {reason}; download it while online"
        )
    return directory


def has_weights(directory: Path) -> bool:
    """True if all weight files are present; other programs may have downloaded only some."""
    if (directory / WEIGHTS).exists():
        return True
    files = indexed_files(directory / WEIGHTS_INDEX) if (directory / WEIGHTS_INDEX).exists() else []
    return bool(files) and all((directory / file).exists() for file in files)


def download(hub: ModuleType, listing: HubListing, name: str) -> Path:
    """The path of one file in the cache, downloaded if it is not there.

    Files are downloaded one by one instead of by `snapshot_download`, whose threads finish their files before Ctrl-C
    takes effect, even with max_workers=1. With files that take 20 s each and Ctrl-C after 6 s, hf_hub_download ends
    after 0.4 s and snapshot_download after 18 s (huggingface_hub 2.4.0).
    """
    cached = hub.try_to_load_from_cache(listing.repository, name, revision=listing.commit)
    if isinstance(cached, str):
        return Path(cached)
    logger.info("downloading %s of %s, %s", name, listing.repository, format_bytes(listing.sizes[name]))
    bar = progress_class(name)
    with (
        one_line_errors(hub, listing.repository, listing.commit, f"{name} could not be downloaded"),
        warnings_in_our_log(),
    ):
        return Path(hub.hf_hub_download(listing.repository, name, revision=listing.commit, tqdm_class=bar))


def progress_class(name: str) -> type:
    """A progress bar for huggingface_hub that draws nothing and logs a line about the file every PROGRESS_SECONDS."""
    from tqdm import tqdm  # a dependency of huggingface_hub

    class LoggedProgress(tqdm):
        def __init__(self, *, total: float | None = None, initial: int = 0, **_: Any):
            super().__init__(total=total, initial=initial, disable=True)
            self.last = time.monotonic()

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if time.monotonic() - self.last >= PROGRESS_SECONDS:
                self.last = time.monotonic()
                whole = f" of {format_bytes(self.total)} ({self.n / self.total:.0%})" if self.total else ""
                logger.info("%s: %s%s", name, format_bytes(self.n), whole)

    return LoggedProgress


@contextmanager
def warnings_in_our_log() -> Generator[None]:
    """Redirect huggingface_hub's warnings, such as about a resumed transfer, to our log, in one line each."""

    def forward(record: logging.LogRecord) -> bool:
        logger.warning(" ".join(record.getMessage().split()))
        return False

    handlers = logging.getLogger("huggingface_hub").handlers
    for handler in handlers:
        handler.addFilter(forward)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(forward)


@contextmanager
def one_line_errors(hub: ModuleType, repository: str, revision: str, failure: str | None = None) -> Generator[None]:
    """Convert every error of the Hub to one line. failure: the message for a broken transfer."""
    errors, name = hub.errors, PREFIX + repository
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
    except Exception as error:  # transport errors depend on the HTTP library in use
        reason = " ".join(str(error.__cause__ or error).split())[:120] or type(error).__name__
        if failure is not None:
            raise CheckpointError(f"{name}: {failure} ({reason}); try again") from error
        raise UnreachableError(f"{hub.constants.ENDPOINT} cannot be reached ({reason})") from error
