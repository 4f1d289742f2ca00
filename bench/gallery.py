"""Make the pages of the gallery from the commands in docs/gallery.md, and renew the pictures of the documents.

    python bench/gallery.py              all pages, in docs/gallery
    python bench/gallery.py --missing    the pages that are not there
    python bench/gallery.py --pictures   also the pictures of the pages, of the live page and of a forecast

A section of docs/gallery.md shows the commands that write its page, and a picture with a link to it; the fragment of
the link is the choice that the picture shows. The commands of a page run in a new folder with the files of
`foretell demo --files`. The website has the pages, git does not. `forecast-m4.png` and `scale.png` are drawn with the
measurements that they show.
"""

from __future__ import annotations

import argparse
import io
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from browser import chromium
from processes import serving

DOCS = Path(__file__).parents[1] / "docs"
PAGES, PICTURES = DOCS / "gallery", DOCS / "pictures"
MAX_BYTES = 20_000_000  # of all pages together
MAX_PICTURE_BYTES = 250_000
VIEWPORT = {"width": 1280, "height": 900}
COMMAND = re.compile(r"^\$ (foretell .+)$", re.MULTILINE)
LINK = re.compile(r"\(pictures/(?P<picture>[\w.-]+)\)\]\(gallery/(?P<file>[\w.-]+)(?P<choice>#[^)]*)?\)")

Commands = tuple[str, ...]
LIVE: dict[str, tuple[Commands, str, str]] = {  # picture: commands before, model to serve, fragment of the link
    "page-live.png": ((), "atlas", ""),
    "page-tags.png": (
        ("foretell finetune primer names.jsonl --task tag --out runs/names",),
        "runs/names",
        "#text=Ann+Lind+flew+from+Paris+to+Hong+Kong+.&token=12&outcome-section=",
    ),
}
DRAWN: dict[str, Commands] = {
    "forecast-passengers.png": (
        "foretell train --task forecast past.csv",
        "foretell forecast past passengers.csv --horizon 24 --plot forecast-passengers.png",
    )
}


@dataclass(frozen=True)
class GalleryPage:
    """A section of the gallery: the commands, the file that they write, and its picture after a choice."""

    commands: Commands
    file: str
    picture: str
    choice: str


def read_gallery() -> list[GalleryPage]:
    """The pages that docs/gallery.md shows."""
    sections = (DOCS / "gallery.md").read_text(encoding="utf-8").split("\n## ")[1:]
    links = [(section, LINK.search(section)) for section in sections]
    return [
        GalleryPage(tuple(COMMAND.findall(section)), link["file"], link["picture"], link["choice"] or "")
        for section, link in links
        if link is not None
    ]


@contextmanager
def after(commands: Iterable[str]) -> Iterator[Path]:
    """A temporary folder with the files of the demo, in which the commands have run."""
    with tempfile.TemporaryDirectory() as folder:
        for command in ("foretell demo --files", *commands):
            print(f"$ {command}", file=sys.stderr, flush=True)
            arguments = [sys.executable, "-m", *shlex.split(command)]
            subprocess.run(arguments, cwd=folder, stdout=subprocess.DEVNULL, check=True)
        yield Path(folder)


def write_pages(pages: Iterable[GalleryPage], target: Path) -> None:
    """Write each page into the folder."""
    target.mkdir(exist_ok=True)
    for page in pages:
        started = time.monotonic()
        with after(page.commands) as folder:
            shutil.copyfile(folder / page.file, target / page.file)
        megabytes = (target / page.file).stat().st_size / 1e6
        print(f"{target / page.file}: {megabytes:.2f} MB after {time.monotonic() - started:.0f} s")


def renew_pictures(pages: Iterable[GalleryPage]) -> None:
    """Photograph the pages and the live page, and draw the forecast."""
    with chromium() as browser:
        for page in pages:
            address = f"{(PAGES / page.file).as_uri()}{page.choice}"
            photograph(browser, address, "html[data-complete]", PICTURES / page.picture)
        for picture, (commands, model, choice) in LIVE.items():
            with after(commands) as folder, serving(str(folder / model) if commands else model) as (port, _):
                address = f"http://127.0.0.1:{port}/{choice}"
                photograph(browser, address, "html[data-ready][data-requests='0']", PICTURES / picture)
    for picture, commands in DRAWN.items():
        with after(commands) as folder:
            save_picture((folder / picture).read_bytes(), PICTURES / picture)


def photograph(browser: Any, address: str, ready: str, target: Path) -> None:
    """Write what a reader sees who opens the address."""
    context = browser.new_context(viewport=VIEWPORT, color_scheme="light", reduced_motion="reduce")
    page = context.new_page()
    page.goto(address)
    page.wait_for_selector(ready)
    if (trouble := page.locator("#trouble")).is_visible():
        sys.exit(f"{address}: {trouble.inner_text()}")
    save_picture(page.screenshot(), target)
    context.close()


def save_picture(png: bytes, target: Path) -> None:
    """Write a picture with 256 colors, which takes a third of the bytes."""
    from PIL import Image  # comes with matplotlib; the pages do not need it

    with Image.open(io.BytesIO(png)) as picture:
        picture.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)
    size = target.stat().st_size
    print(f"{target}: {size / 1e3:.0f} kB")
    if size > MAX_PICTURE_BYTES:
        sys.exit(f"{target} has more than {MAX_PICTURE_BYTES:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", action="store_true", help="only pages that are not there")
    parser.add_argument("--pictures", action="store_true", help="also renew the pictures")
    options = parser.parse_args()
    pages = read_gallery()
    write_pages([page for page in pages if not (options.missing and (PAGES / page.file).exists())], PAGES)
    size = sum((PAGES / page.file).stat().st_size for page in pages)
    if size > MAX_BYTES:
        sys.exit(f"the pages have {size:,} bytes, more than {MAX_BYTES:,}")
    if options.pictures:
        renew_pictures(pages)


if __name__ == "__main__":
    main()
