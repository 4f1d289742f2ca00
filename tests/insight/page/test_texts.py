"""Any text, from any tokenizer: it is shown, and never executed."""

from __future__ import annotations

import pytest

from foretell.language_model import LanguageModel
from foretell.text.tokenizer_training import train_tokenizer

HOSTILE = [
    "</script><script>document.title='run'</script>",
    "<img src=x onerror=\"document.title='run'\"> & '\" `${1}` {{style}}",
    "<!-- --> ]]> \\u003c/script> \u2028\u2029 NUL \x00 bell \x07 escape \x1b delete \x7f tab\tline\nreturn\r\n",
    "שלום עולם \u202eabc\u202c العربية 👩‍👩‍👧 e\u0301 한국어 \ufeff\u200b\u200d",
    " \n",
]


@pytest.fixture(scope="module")
def by_bytes(make_model):
    tokenizer = train_tokenizer("bytes", ["x"])
    return make_model("gpt2", tokenizer, name="<b>model</b>", context_length=100, width=16)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_is_shown_and_never_executed(by_bytes, open_page, text):
    opened = open_page(by_bytes, text)
    assert opened.complaints == []
    assert opened.page.title() == "<b>model</b> · foretell"
    assert opened.ask('async () => (await import("page/main.js")).shown.data.tokens.length') == len(text.encode())
    assert opened.ask("() => document.querySelectorAll('img, b, main script').length") == 0
    assert opened.ask("() => JSON.parse(document.querySelector('#structure').textContent).text") == text


def test_bytes_of_incomplete_characters_are_shown_as_bytes(by_bytes, open_page):
    opened = open_page(by_bytes, "é")
    assert opened.page.locator("#tokens button").all_inner_texts() == ["<0xC3>", "<0xA9>"]


def test_invisible_characters_have_a_mark(by_bytes, open_page):
    opened = open_page(by_bytes, " a\n\t\x00")
    assert opened.page.locator("#tokens button").all_inner_texts() == ["␣", "a", "⏎", "⇥", "U+0000"]
    shown = opened.ask('async () => ["   ", "  a b  "].map((await import("page/format.js")).visible)')
    assert shown == ["␣␣␣", "␣␣a b␣␣"]


def test_a_special_token_is_shown_by_its_name(by_bytes, open_page):
    opened = open_page(by_bytes, "a")
    vocabulary = opened.ask('async () => (await import("page/main.js")).shown.data.vocabulary')
    assert vocabulary[-1] == "<|endoftext|>"
    assert len(vocabulary) == by_bytes.tokenizer.vocab_size


def test_rows_of_the_head_without_a_token_are_left_out(make_model, open_page):
    letters = train_tokenizer("characters", ["ab"])
    model = make_model("gpt2", letters)
    wider = LanguageModel(make_model("gpt2").decoder, letters, "wider")
    assert wider.decoder.config.vocab_size > model.decoder.config.vocab_size
    assert "tokens of 3;" in open_page(wider, "ab").text("#next-table caption")
