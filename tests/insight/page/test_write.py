"""The page file: written atomically, fetches nothing, and no text becomes markup."""

from __future__ import annotations

import json
import re

import pytest

from foretell.errors import OutputError
from foretell.insight.page.write_page import (
    FOLDER,
    absolute_imports,
    as_script,
    module_addresses,
    page_html,
    printable,
    read,
    write_page,
)

TEXT = "abc"


def test_a_page_is_written_and_reported(make_model, tmp_path):
    path = tmp_path / "page.html"
    report = write_page(make_model("gpt2"), TEXT, path)
    assert report.bytes == path.stat().st_size
    assert (report.tokens, report.layers, report.heads, report.cut) == (3, 2, 2, [])
    assert report.to_json()["path"] == str(path)
    assert [file.name for file in tmp_path.iterdir()] == ["page.html"]


def test_a_page_replaces_an_existing_file_and_a_failure_keeps_it(make_model, tmp_path):
    path = tmp_path / "page.html"
    write_page(make_model("gpt2"), "abc", path)
    write_page(make_model("gpt2"), "abcd", path)
    before = path.read_bytes()
    with pytest.raises(OutputError):
        write_page(make_model("gpt2"), TEXT, path, budget_bytes=1000)
    assert path.read_bytes() == before


def test_a_folder_or_a_missing_parent_is_refused(make_model, tmp_path):
    with pytest.raises(OutputError, match="no folder"):
        write_page(make_model("gpt2"), TEXT, tmp_path / "no" / "page.html")
    with pytest.raises(OutputError, match="is a folder"):
        write_page(make_model("gpt2"), TEXT, tmp_path)


def test_the_same_pass_gives_the_same_file(make_model):
    assert page_html(make_model("gpt2"), TEXT) == page_html(make_model("gpt2"), TEXT)


def test_a_page_fetches_nothing(make_model):
    document = page_html(make_model("gpt2"), TEXT)
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", document)
    addresses = set(re.findall(r"https?://[^\s\"'%\\]+", document))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1998/Math/MathML"}


def test_json_inside_a_script_cannot_end_it():
    text = "</script><!-- <script> & \u2028 \x00 \x7f"
    written = as_script({"text": text})
    assert "<" not in written
    assert json.loads(written) == {"text": text}


def test_the_name_of_a_model_cannot_become_markup(make_model):
    document = page_html(make_model("gpt2", name="<img src=x onerror=alert(1)>{{style}}\x00"), TEXT)
    assert "<img" not in document
    assert "\x00" not in document
    assert printable("a\x00\u202eb") == "a\ufffd\ufffdb"


@pytest.mark.parametrize(("name", "heading"), [
    ("/home/someone/runs/news", "news"), ("C:\\models\\news", "news"), ("hub:acme/news@main", "hub:acme/news@main"),
    ("runs/news@last", "runs/news@last"),
])  # fmt: skip
def test_the_heading_has_no_absolute_path(make_model, name, heading):
    document = page_html(make_model("gpt2", name=name), TEXT)
    assert f'<h1 id="model-name">{heading}</h1>' in document
    assert "someone" not in document


def test_every_module_is_imported_and_imports_existing_modules_only():
    addresses = module_addresses()
    own = [file.name for file in FOLDER.iterdir() if file.name.endswith(".js")]
    assert set(addresses) == {f"page/{name}" for name in own}
    for name in own:
        imported = set(re.findall(r'from "([^"]+)"', absolute_imports(read(name))))
        assert imported <= set(addresses), name
        importers = [other for other in own if other != name and f'"./{name}"' in read(other)]
        assert importers or name == "main.js", f"nothing imports {name}"
