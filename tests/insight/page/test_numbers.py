"""In a real browser: the numbers shown are those of a trace, to four decimals."""

from __future__ import annotations

import pytest
import torch

from foretell.config.sampling import SamplingConfig
from foretell.config.section import make_section
from foretell.generation.filters import Prefix, make_filters
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.page.write_page import make_page, record_all, write_page
from foretell.insight.trace import Trace
from tests.insight.conftest import CONFIGURATIONS
from tests.insight.page.test_block import assert_addressed_numbers_are_recorded, recorded

TEXT = "abcdefghij"
SENTENCE = "financial data analytics is awesome"
ALL_WEIGHTS = """async () => {
    const [{ shown: { data } }, { weight }] = await Promise.all([import("page/main.js"), import("page/data.js")]);
    const each = (count, make) => Array.from({ length: count }, (_, i) => make(i));
    const { layers, heads } = data.shape, T = data.tokens.length;
    return each(layers, (l) => each(heads, (h) => each(T, (q) => each(T, (k) => weight(data, l, h, q, k).toFixed(4)))));
}"""


def weights_of(model, text):
    """The weights (L, H, T, S) of a trace."""
    ids = torch.tensor([model.tokenizer.encode(text)])
    with torch.inference_mode(), Trace(model, "**.core.weights") as trace:
        model.decoder(ids)
    return torch.stack([trace[name][0] for name in trace.names()])


def test_hovering_over_a_cell_shows_the_number_of_a_trace(smallest, open_page):
    weights = weights_of(smallest, SENTENCE)[0, 0]
    opened = open_page(smallest, SENTENCE)
    for query in range(5):
        for key in range(query + 1):
            opened.point_at(query, key)
            assert opened.text("#reading").endswith(f" → {quoted(key)}: {float(weights[query, key]):.4f}")
    assert f"{float(weights[2, 2]):.4f}" == "0.8456"  # as published for this model


def quoted(position):
    return f"“{SENTENCE.split()[position]}” ({position})"


def test_hovering_over_a_hidden_cell_says_so(smallest, open_page):
    opened = open_page(smallest, SENTENCE)
    opened.point_at(1, 3)
    assert "hidden: the key comes later" in opened.text("#reading")


QUICK = ("gpt2", "llama", "parallel", "explicit core")


@pytest.mark.parametrize(
    "config",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.long) for name in CONFIGURATIONS],
    indirect=True,
)
def test_every_kind_of_model_has_a_page_with_the_numbers_of_a_trace(config, make_model, open_page):
    model = make_model(config)
    opened = open_page(model, TEXT, f"#token=6&key=5&layer=1&head={config.num_heads - 1}")
    assert_addressed_numbers_are_recorded(opened, recorded(model, TEXT))
    shown = opened.ask(ALL_WEIGHTS)
    assert shown == in_words(weights_of(model, TEXT))
    assert shown != in_words(weights_of(model, TEXT[::-1])), "other weights would be detected"
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert opened.text("#facts").startswith(f"10 tokens · {config.num_layers} layers · ")
    assert opened.page.locator(".thumb").count() == config.num_layers * config.num_heads
    assert opened.page.locator("#lens tbody tr").count() == config.num_layers + 1
    entering = opened.text("#embedding")
    assert ("position 6" in entering) == (config.position in ("learned", "sinusoidal"))


def in_words(weights):
    return [[[[f"{float(weight):.4f}" for weight in row] for row in head] for head in layer] for layer in weights]


def test_weights_are_correct_if_only_the_last_queries_are_kept(make_model, open_page):
    model = make_model("gpt3", num_layers=6, width=64, window=(None, 3, 1, None, 4, None))
    traced = record_all(model, TEXT)
    budget = next(size for size in range(300_000, 0, -3000) if make_page(traced, size)[0].first_query)
    opened = open_page(model, TEXT, budget_bytes=budget)
    first = opened.ask('async () => (await import("page/main.js")).shown.data.firstQuery')
    shown, expected = opened.ask(ALL_WEIGHTS), weights_of(model, TEXT)
    for layer in range(6):
        for query in range(first, 10):
            assert shown[layer][1][query] == [f"{float(weight):.4f}" for weight in expected[layer, 1, query]]
    assert "Attention is kept for the last" in opened.text("footer")
    assert opened.complaints == []


@pytest.mark.parametrize("settings", [
    {},
    {"temperature": 0.5},
    {"temperature": 0},
    {"temperature": 1.7, "top_k": 4},
    {"top_k": 1},
    {"top_p": 0.6},
    {"temperature": 0.8, "top_k": 7, "top_p": 0.9},
    {"temperature": 2, "top_k": 5, "top_p": 0.35},
    {"min_p": 0.2},
    {"temperature": 1.5, "top_k": 50, "top_p": 0.95, "min_p": 0.3},
])  # fmt: skip
def test_the_sliders_show_the_distribution_of_generation(primer, primer_page, settings):
    for name, value in {"temperature": 1, "top_k": 1024, "top_p": 1, "min_p": 0, **settings}.items():
        fill_setting(primer_page, name.replace("_", "-"), value)
    logits = logits_of_model = torch.from_numpy(record_all(*primer).logits)[None].double()
    sampling = make_section(SamplingConfig, {"temperature": 1, "top_p": 1, **settings})
    for apply in make_filters(sampling).values():
        logits = apply(logits, [Prefix([])])
    probabilities = logits.softmax(-1)[0]
    kept = int((probabilities > 0).sum())
    expected = [in_digits(float(probability)) for probability in probabilities.topk(10).values]
    shown = primer_page.page.locator("#next-table td.number:not(.before)").all_inner_texts()
    assert shown == expected
    before = [in_digits(float(probability)) for probability in logits_of_model.softmax(-1)[0].topk(10).values]
    assert primer_page.page.locator("#next-table .before").all_inner_texts() == (before if settings else [])
    summary = primer_page.ask("() => document.querySelector('#next-summary').textContent")
    if kept == 1024:
        assert summary == ""
    else:
        assert summary.startswith(f"{kept:,} token{'' if kept == 1 else 's'} of 1,024")


def fill_setting(opened, name, value):
    opened.ask("() => { document.querySelector('#sampling').open = true; }")
    opened.page.locator(f"#{name}-number").fill(str(value))


def in_digits(probability):
    """Four decimals; of a small probability two significant digits."""
    if probability == 0 or probability >= 0.001:
        return f"{probability:.4f}"
    return (
        f"{probability:.5f}" if probability >= 0.0001 else f"{probability:.1e}".replace("e-0", "e−").replace("e-", "e−")
    )


def test_no_probability_but_0_is_shown_as_0(primer_page):
    shown = primer_page.ask("""async () => {
        const { probability, storedProbability } = await import("page/format.js");
        return [[0.65436, 0.001, 0.00034, 2.14e-7, 0].map(probability), [0.6544, 0.0001, 0].map(storedProbability)];
    }""")
    assert shown == [["0.6544", "0.0010", "0.00034", "2.1e−7", "0.0000"], ["0.6544", "0.0001", "< 0.0001"]]


def test_bars_of_every_table_have_one_scale(primer_page):
    for name, value in (("temperature", 1), ("top-p", 1), ("min-p", 0), ("top-k", 1024)):
        fill_setting(primer_page, name, value)
    shares = primer_page.ask("""() => [...document.querySelectorAll(".bars:not(.signed) tbody tr")].map((line) => {
        const bar = line.querySelector(".bar div"), inside = bar.clientWidth;
        const number = [...line.querySelectorAll("td.number")].at(-1).innerText;
        return [Number(number), bar.firstChild.getBoundingClientRect().width / inside];
    })""")
    assert len(shares) > 20
    assert all(abs(number - share) < 0.01 for number, share in shares), shares
    assert "a full bar is probability 1" in primer_page.text("#next-table caption")
    assert "A full bar is weight 1" in primer_page.text("#row-table caption")


def test_attention_score_scaled_score_and_logit_have_their_own_words(primer_page):
    headings = primer_page.page.locator("#row-table thead th").all_inner_texts()
    assert headings == ["Key", "Token", "Scaled score", "Weight"]
    assert "largest scaled attention score" in primer_page.text("#formulas")


def test_a_slider_moves_its_number(primer_page):
    primer_page.page.locator("#top-p-number").fill("1")
    slider = primer_page.page.locator("#top-p")
    slider.focus()
    slider.press("Home")
    assert primer_page.page.locator("#top-p-number").input_value() == "0.01"
    assert primer_page.text("#next-summary").startswith("1 token of")


def test_tokens_that_tie_with_the_last_of_top_k_are_kept(make_model, open_page):
    model = make_model("gpt2", tie_embeddings=False)
    top_id = int(record_all(model, TEXT).logits.argmax())
    weight = model.decoder.head.weight.data
    weight[(top_id + 1) % len(weight)] = weight[top_id]
    opened = open_page(model, TEXT)
    fill_setting(opened, "top-k", 1)
    shown = opened.page.locator("#next-table td.number:not(.before)").all_inner_texts()
    assert shown == ["0.5000", "0.5000", *["0.0000"] * (len(shown) - 2)]


def test_the_weight_computed_in_the_page_is_the_recorded_one(smallest, open_page):
    opened = open_page(smallest, SENTENCE, "#token=3&key=2")
    assert opened.text("#recorded-weight") == opened.text("#computed-weight") == "0.4381"
    formulas = opened.page.locator("#embedding .equation, #formulas .equation")
    assert formulas.count() == 10
    # text content has no spaces between numbers
    assert "=0.9529" in "".join(formulas.all_text_contents()), "the published score 0.95, to four decimals"


def test_numbers_are_also_in_tables(smallest, open_page):
    opened = open_page(smallest, SENTENCE, "#token=4")
    rows = dict(zip(
        opened.page.locator("#row-table tbody th").all_inner_texts(),
        opened.page.locator("#row-table tbody td.number:nth-of-type(3)").all_inner_texts(), strict=True,
    ))  # fmt: skip
    assert rows == {"analytics": "0.2520", "is": "0.2364", "awesome": "0.1969", "financial": "0.1608", "data": "0.1539"}
    vectors = opened.page.locator("#vectors tbody tr").all_inner_texts()
    assert vectors[2].split("\t") == ["word + position", "0.2883", "0.5985", "−0.1772"]
    assert vectors[-1].split("\t") == ["after layer 0", "−0.3068", "0.1780", "−0.5976"]


def test_probabilities_after_filters_have_addresses_in_a_file(primer, tmp_path, open_page):
    path, (model, text) = tmp_path / "filtered.html", primer
    write_page(model, text, path)
    opened = open_page.file(path, "#temperature=0.7&top_k=5&min_p=0.2")
    cells = opened.page.locator("#next-table td.number, #next-summary span").all()
    names = {cell.get_attribute("data-address").partition("(")[0].partition("[")[0] for cell in cells}
    assert names == {"probabilities", "probabilities.filtered", "probabilities.kept"}
    for cell in cells:
        explanation = explain_value(model, text, cell.get_attribute("data-address"))
        assert explanation.agrees and f"{explanation.stored:.4f}" == cell.inner_text(), explanation.address
