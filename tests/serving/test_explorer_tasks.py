"""The live page of models with a task's head, and of forecasters: labels, numbers, values and their next one."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import torch

from foretell.config.section import make_section
from foretell.finetuning.head import with_head
from foretell.finetuning.inputs import choose_tokens
from foretell.finetuning.label_attribution import attribute_label, readout_of
from foretell.finetuning.predict import as_task_input, predict
from foretell.finetuning.settings import Columns, HeadSettings, Pool
from foretell.forecasting.codec import CodecConfig, SeriesCodec, SeriesCodecPart
from foretell.forecasting.forecaster import PART, as_forecaster
from foretell.forecasting.span_effects import next_probabilities
from foretell.forecasting.value_model import ValueModel, reading_values, value_text
from foretell.insight.explain.explain_address import explain_value
from foretell.insight.page.contributions import outcome_parts
from foretell.insight.page.page_pass import PageModel
from foretell.insight.page.sections import all_sections, find_sections, needed_values
from foretell.language_model import LanguageModel
from foretell.loading import load
from foretell.model.init import make_decoder
from foretell.model.presets import preset_config
from foretell.text import id_tokenizer
from tests.insight.explain.test_explanation import opened as address_at
from tests.serving.conftest import click, click_on, code_of, edit, scroll_to, settled, show_part

TEXT, LABELS = "a fine day", ("good", "bad", "neither")
VALUES, BINS = "3 1 4 - 5 9 2.5 6", 31
TAGS = ("B-<img src=x onerror=window.ran=1>", "I-LOC", "O")
TUNED: list[tuple[str, str, tuple[str, ...], Pool]] = [
    ("labels", "classify", LABELS, "mean"),
    ("stars", "regress", (), "extract"),
    ("follows", "entailment", LABELS, "extract"),
    ("similar", "similarity", LABELS, "mean"),
    ("close", "similarity", (), "extract"),
    ("answers", "choice", (), "extract"),
    ("tags", "tag", TAGS, "last"),
]
SECOND = ["a dull one"]
ORDER = "Texts in the other order"
SEVERAL = {"follows": SECOND, "similar": SECOND, "close": SECOND, "answers": ["yes", "no", "so"]}
CORE = "trunk.blocks.0.attention.core"
LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("stars", "close")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory, toy_model):
    """A classifier that reads the mean, one for numbers that reads a token of its task, and a forecaster."""
    base, folder = load(toy_model, dtype="float32"), tmp_path_factory.mktemp("tasks")
    for name, task, labels, pool in TUNED:
        tokens = choose_tokens(base.tokenizer, pool, name in SEVERAL)
        values: dict[str, Any] = {} if labels or task == "choice" else {"mean": 3.0, "deviation": 2.0}
        shape: dict[str, Any] = {"task": task, "labels": labels, "pool": pool, "columns": Columns(texts=("text",))}
        head = HeadSettings(**shape, tokens=tokens, **values)
        tuned = with_head(base, head, seed=3)
        with torch.no_grad():
            tuned.parts["task_head"].linear.weight.mul_(4)  # pyrefly: ignore[missing-attribute]
        tuned.save(folder / name)
    codec = SeriesCodec(make_section(CodecConfig, {"bins": BINS}))
    config = preset_config("toy", vocab_size=codec.vocab_size, context_length=32)
    part = SeriesCodecPart(codec, 4, season=3)  # a cycle: the values of a bin differ from time to time
    decoder = make_decoder(config, seed=5).eval()
    LanguageModel(decoder, id_tokenizer(codec.vocab_size), "series", parts={PART: part}).save(folder / "series")
    return folder


@pytest.fixture(scope="module")
def server(start_server, folders):
    names = [*(name for name, *_ in TUNED), "series"]
    return start_server(*(str(folders / name) for name in names), "--memory", "0.05")


def opened(open_live: Any, model: str, text: str = TEXT, viewport: Any = None, **state: str) -> Any:
    values = {"model": model, "text": text, **state}
    options = {"viewport": viewport} if viewport else {}
    return open_live("#" + "&".join(f"{name}={quote(value)}" for name, value in values.items()), **options)


def show_outcome(page: Any) -> None:
    """Bring the outcome and its contributions into view, and wait for their numbers."""
    show_part(page, "#outcome-section", "#outcome-sums tbody tr")


def contents(given: Any, outcomes: Any, *names: str, changes: Any = None) -> dict[str, np.ndarray]:
    """The contents of sections of the page of TEXT, by name."""
    page = PageModel.of(given, outcomes)
    found = find_sections(page, all_sections(page), names)
    traced = page.record(given.encode_fitting(TEXT), TEXT, needed_values(page, found.values()), changes)
    return {name: family.content(traced, index) for name, (family, index) in found.items()}


def lines(server: Any, **body: Any) -> list[Any]:
    answer = server.post("/explore", **body)
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def codec_values(forecaster: Any, model: ValueModel, ids: list[int]) -> np.ndarray:
    return forecaster.codec.decode(ids, model.scale, -model.context)


def numbers(page: Any, selector: str) -> list[str]:
    return [text.replace("−", "-") for text in page.locator(selector).all_inner_texts()]


# --- the routes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["labels", "stars", "series"])
def test_sections_are_those_of_a_pass_with_the_library(server, folders, name):
    model, text = load(folders / name, dtype="float32"), VALUES if name == "series" else TEXT
    if name == "series":
        given = reading_values(as_forecaster(model), text)
        page = PageModel.of(given, levels=given.levels)
    else:
        given = as_task_input(model)
        page = PageModel.of(given, readout_of(given, TEXT))
    sections = all_sections(page)
    names = [each for each in sections if each.startswith(("outcomes.", "levels", "logits", "vocabulary"))]
    assert len(names) == (3 if name == "series" else 6)
    first, *rest = lines(server, model=name, text=text, sections=names)
    ids = given.encode_fitting(text)
    assert [token["id"] for token in first["pass"]["tokens"]] == ids
    found = find_sections(page, sections, names)
    traced = page.record(ids, text, needed_values(page, found.values()))
    for each, line in zip(names, rest, strict=True):
        family, index = found[each]
        assert line["section"]["content"] == family.section(traced, index).content, each


def test_outputs_and_contributions_are_those_of_the_verbs(folders):
    for name in ("labels", "stars"):
        model = load(folders / name, dtype="float32")
        given = as_task_input(model)
        sections = ("logits", "parts", "tokens", "words")
        outcomes = readout_of(given, TEXT)
        content = contents(given, outcomes, *(f"outcomes.{each}" for each in sections))
        [prediction] = predict(model, TEXT)
        shown = torch.tensor(content["outcomes.logits"]).double()
        if prediction.probabilities:
            shares = [*prediction.probabilities.values()]
            assert shown.softmax(0).tolist() == pytest.approx(shares, abs=1e-6)
        else:
            assert shown.item() == pytest.approx(prediction.value, abs=1e-6)
        own = attribute_label(model, [TEXT])
        name = "task_head.contributions" + (".difference" if prediction.probabilities else "")
        index = f"{prediction.label!r},-1" if prediction.probabilities else "0"
        numbers = [explain_value(given, TEXT, f"{name}[{index},{n}]", outcomes) for n in range(len(own.parts))]
        assert [each.stored for each in numbers] == pytest.approx([part.value for part in own.parts], abs=1e-5)
        rows = content["outcomes.parts"][0].astype(float)
        row = rows[0] - rows[-1] if len(rows) > 1 else rows[0]  # minus the mean of all labels
        np.testing.assert_allclose(row[3:], [part.value for part in own.parts], atol=1e-5)
        assert row[1] == pytest.approx(own.logit, abs=1e-5)
        tokens = content["outcomes.tokens"].astype(float)
        by_token = tokens[:, 0] - (tokens[:, -1] if len(rows) > 1 else 0)
        owners = content["outcomes.words"]
        words = [by_token[owners == index].sum() for index in range(owners.max() + 1)]
        np.testing.assert_allclose(words, [word.value for word in own.words], atol=1e-5)


@pytest.mark.parametrize("name", ["labels", "stars"])
def test_every_number_of_a_head_follows_from_its_operands(folders, server, name):
    given = as_task_input(load(folders / name, dtype="float32"))
    outcomes, [prediction] = readout_of(given, TEXT), predict(given, TEXT)
    addresses = [
        "task_head[-1]",
        "task_head.weight[0,3]",
        "trunk.norm[-1,5]",
        f"task_head.contributions[0,'{CORE}[1]']",
    ]
    if name == "labels":
        addresses += ["task_head['bad']", "task_head.probabilities['bad']", "task_head.mean[5]"]
        addresses += ["task_head.contributions.vector[1,5]", "task_head.contributions.difference['bad',-1,'all']"]
        addresses += ["task_head.contributions[-1,2]"]
    for address in addresses:
        explanation = explain_value(given, TEXT, address, outcomes)
        assert explanation.agrees, str(explanation)
        answer = server.ask("/explore/value", model=name, text=TEXT, address=address)
        assert (answer["address"], answer["stored"]) == (explanation.address, explanation.stored)
    if name == "stars":
        assert explain_value(given, TEXT, "task_head[0]", outcomes).stored == pytest.approx(prediction.value, abs=1e-6)
    else:
        share = explain_value(given, TEXT, "task_head.probabilities['bad']", outcomes)
        assert share.stored == pytest.approx(prediction.to_json()["probabilities"]["bad"], abs=1e-6)
        assert share.meaning == ("output 1 bad",)
    assert outcomes is not None
    other = dataclasses.replace(outcomes, weight=outcomes.weight * 1.001)
    assert not explain_value(given, TEXT, "task_head[0]", other).agrees


@pytest.mark.parametrize(
    ("name", "address", "words"),
    [
        ("labels", "task_head", "task_head has shape (4)"),
        ("labels", "task_head[4]", "out of range"),
        ("labels", "task_head.contributions.word[0,9]", "out of range"),
        ("labels", "task_head['ugly']", "no output is named 'ugly'"),
        ("labels", "task_head.weights[0,0]", "no value is named 'task_head.weights'"),
        ("stars", "task_head.probabilities[0]", "no value is named"),
        ("series", "task_head[0]", "no value is named"),
    ],
)
def test_numbers_that_a_head_lacks_are_refused(server, name, address, words):
    text = VALUES if name == "series" else TEXT
    assert words in server.refuse("/explore/value", model=name, text=text, address=address)["message"]


def operands_of(explanation, draw, width):
    """Some addresses that an explanation shows, and the numbers that it shows for them."""
    for step in explanation.to_json()["steps"]:
        yield from ((address, None) for address in re.findall(r"[\w.]+\[[\d,]+\]", step.get("remark", "")))
        for column, pattern in step.get("operands", {}).items():
            if "columns" not in step:
                yield pattern, None
                continue
            entries = next(iter(step["columns"].values()))
            row = draw.randrange(len(entries))
            yield address_at(pattern, entries[row], width), step["columns"][column][row]


@pytest.mark.parametrize("name", [name for name, *_ in TUNED])
def test_contributions_of_words_open_down_to_weights(folders, name):
    given, outcomes = read(folders, name)
    draw, seen, at = random.Random(4), set(), "4," if name == "tags" else ""
    last = len(outcomes.weight) > 1 and name != "answers"
    words = max(outcomes.words()) + 1
    todo = [f"task_head.contributions.word[{at}0,{word}]" for word in range(words)]
    todo += [f"task_head.contributions[{at}0,'all']", f"task_head.contributions.token[{at}0,'{CORE}[1]',1]"]
    if last:
        todo += [f"task_head.contributions.word.difference[{at}0,-1,1]", f"task_head.difference[{at}1,-1]"]
    numbers, visited = [(address, None) for address in todo], set()
    while numbers:
        address, shown = numbers.pop()
        if address in visited:
            continue  # the remark about a weight names it
        visited.add(address)
        explanation = explain_value(given, TEXT, address, outcomes)
        assert explanation.agrees, str(explanation)
        assert shown is None or explanation.stored == pytest.approx(shown, abs=1e-6), address
        seen.add(explanation.name)
        if explanation.name.startswith(("task_head", "contributions")):
            numbers += operands_of(explanation, draw, given.config.head_width)
    assert {f"task_head.contributions.{kind}" for kind in ("word", "token", "read")} <= seen
    assert {f"{CORE}.value", f"{CORE}.weights", "contributions.vector", "task_head.weight"} & seen
    total = sum(
        explain_value(given, TEXT, f"task_head.contributions.token[{at}0,'all',{token}]", outcomes).stored
        for token in range(len(outcomes.words()))
    )
    whole = explain_value(given, TEXT, f"task_head.contributions[{at}0,'all']", outcomes)
    assert total == pytest.approx(whole.stored, abs=1e-6)


@pytest.mark.parametrize("name", ["labels", "tags"])
def test_contributions_that_open_are_those_of_the_page(folders, name):
    given, outcomes = read(folders, name)
    of = ".4" if name == "tags" else ""
    parts, tokens = contents(given, outcomes, f"outcomes.parts{of}", f"outcomes.tokens{of}").values()
    at, names = "4," if name == "tags" else "", [outcomes.names.index(each) for each in outcomes.names]
    for row, (label, logit, _, *values) in enumerate(parts[0]):
        index = len(names) if label < 0 else int(label)
        assert explain_value(given, TEXT, f"task_head[{at}{index}]", outcomes).stored == pytest.approx(logit, abs=1e-5)
        for part in (0, 3, len(values) - 1):
            number = explain_value(given, TEXT, f"task_head.contributions[{at}{index},{part}]", outcomes)
            assert number.stored == pytest.approx(values[part], abs=1e-5)
        word = explain_value(given, TEXT, f"task_head.contributions.word[{at}{index},1]", outcomes).stored
        own = [position for position, owner in enumerate(outcomes.words()) if owner == 1]
        assert word == pytest.approx(tokens[own, row].sum(), abs=1e-5)


def test_the_pass_over_any_answer_is_shown(folders, server):
    answers = SEVERAL["answers"]
    [prediction] = predict(load(folders / "answers", dtype="float32"), [[TEXT, *answers]])
    seen = []
    for answer in range(len(answers)):
        body = {"model": "answers", "text": TEXT, "others": answers, "answer": answer}
        first = lines(server, **body, sections=["outcomes.logits", "outcomes.parts"])[0]
        seen.append("".join(token["text"] for token in first["pass"]["tokens"]))
        assert first["pass"]["outcomes"]["first"] == answer and answers[answer] in seen[-1]
        stored = server.ask("/explore/value", **body, address=f"task_head[{answer}]")
        assert stored["agrees"] and [step for step in stored["steps"] if "columns" in step]
        whole = server.ask("/explore/value", **body, address=f"task_head.contributions[{answer},'all']")
        assert whole["agrees"] and whole["stored"] == pytest.approx(stored["stored"], abs=1e-4)
        given = as_task_input(load(folders / "answers", dtype="float32"), answers, answer)
        [parts] = contents(given, readout_of(given, TEXT), "outcomes.parts").values()
        assert parts[0, 0, :2].tolist() == pytest.approx([answer, stored["stored"]], abs=1e-5)
        share = server.ask("/explore/value", **body, address=f"task_head.probabilities[{answer}]")["stored"]
        assert share == pytest.approx([*prediction.to_json()["probabilities"].values()][answer], abs=1e-5)
        other = server.refuse("/explore/value", **body, address=f"task_head.contributions[{(answer + 1) % 3},0]")
        assert "pass over this answer" in other["message"]
    assert len(set(seen)) == len(answers)
    for name, answer in (("answers", 3), ("labels", 1)):
        refused = server.refuse("/explore", model=name, text=TEXT, others=SEVERAL.get(name, []), answer=answer)
        assert f"no answer {answer}" in refused["message"]


def test_the_tokens_of_a_changed_pass_still_add_up(folders):
    given = as_task_input(load(folders / "labels", dtype="float32"))
    changes = {CORE: lambda value: value * 0.5, "trunk.blocks.1.attention.core": lambda value: value + 1}
    parts, tokens = contents(
        given, readout_of(given, TEXT), "outcomes.parts", "outcomes.tokens", changes=changes
    ).values()
    np.testing.assert_allclose(tokens.sum(0), parts[0, :, 1], atol=1e-5)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"text": "1 two 3"}, "'two' is not a number"),
        ({"text": "- -"}, "all missing"),
        ({"text": "1 1e999"}, "infinite"),
        ({"text": "1e308 -1e308 1e308"}, "too large to compute with"),
        ({"text": " ".join(["1"] * 40)}, "context"),
    ],
)
def test_values_that_cannot_be_read_are_refused(server, body, words):
    assert words in server.refuse("/explore", model="series", **body)["message"]


def read(folders: Any, name: str, text: str = TEXT) -> Any:
    """The model that reads an example as its head does, and its outcomes."""
    given = as_task_input(load(folders / name, dtype="float32"), SEVERAL.get(name, ()))
    return given, readout_of(given, text)


@pytest.mark.parametrize("name", [*SEVERAL, "tags"])
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_sections_of_several_sequences_and_of_tags(folders, server, name, factor):
    given, outcomes = read(folders, name)
    page = PageModel.of(given, outcomes)
    names = ["outcomes.logits", "outcomes.parts.4" if name == "tags" else "outcomes.parts"]
    found = find_sections(page, all_sections(page), names)
    replace = {CORE: lambda value: value * factor}
    traced = page.record(given.encode(TEXT), TEXT, needed_values(page, found.values()), replace)
    body = {"text": TEXT, "others": SEVERAL.get(name, []), "change": [{"value": CORE, "scale": factor}]}
    first, *rest = lines(server, model=name, sections=names, **body)
    assert first["pass"]["outcomes"]["kind"] == outcomes.kind
    for each, line in zip(names, rest, strict=True):
        family, index = found[each]
        assert line["section"]["content"] == family.section(traced, index).content, each
    _, output, constant, *parts = outcome_parts(traced, 4)[0, 0].astype(float)
    assert constant + sum(parts) == pytest.approx(output, abs=1e-4)


@pytest.mark.parametrize("name", [*SEVERAL, "tags"])
def test_outputs_of_several_sequences_and_of_tags_are_those_of_predict(folders, server, name):
    given, outcomes = read(folders, name)
    [prediction] = predict(given, [[TEXT, *SEVERAL.get(name, ())]])
    answer = prediction.to_json()
    traced = PageModel.of(given, outcomes).record(given.encode(TEXT), TEXT, [])
    assert traced.outputs is not None
    outputs = traced.outputs.double()
    if name == "tags":
        ends = [0, 5, 9]  # of the words
        assert [TAGS[index] for index in outputs[ends].argmax(-1)] == answer["tags"]
    elif name == "close":
        assert outputs.item() == pytest.approx(prediction.value, abs=1e-5)
    else:
        assert outputs.softmax(0).tolist() == pytest.approx([*answer["probabilities"].values()], abs=1e-6)
    index = "4,1" if name == "tags" else "0"
    body = {"model": name, "text": TEXT, "others": SEVERAL.get(name, [])}
    for address in (f"task_head[{index}]", *([] if name == "close" else [f"task_head.probabilities[{index}]"])):
        explanation = explain_value(given, TEXT, address, outcomes)
        assert explanation.agrees, str(explanation)
        assert server.ask("/explore/value", **body, address=address)["stored"] == explanation.stored


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"model": "follows"}, "reads two texts, not 1"),
        ({"model": "similar", "others": ["b", "c"]}, "reads two texts, not 3"),
        ({"model": "answers", "others": ["b"]}, "two answers or more"),
        ({"model": "labels", "others": ["b"]}, "reads one text"),
        ({"model": "labels", "sections": ["outcomes.parts.0"]}, "no section"),
        ({"model": "tags", "sections": ["outcomes.parts.99"]}, "no position 99"),
    ],
)
def test_the_wrong_number_of_texts_is_refused(server, body, words):
    assert words in server.refuse("/explore", text=TEXT, **body)["message"]


# --- the page in a browser -------------------------------------------------------------------------------------------


def test_the_label_of_a_text_follows_the_text(open_live, folders):
    page = opened(open_live, "labels")
    model = load(folders / "labels", dtype="float32")
    for text in ("a finer day", "no day at all"):
        edit(page, text)
        show_outcome(page)
        [prediction] = predict(model, text)
        assert page.locator("#outcome .result").inner_text() == prediction.label
        expected = sorted(prediction.to_json()["probabilities"].values(), reverse=True)
        assert numbers(page, "#outcome tbody .number") == [f"{share:.4f}" for share in expected]
    rows = [row.split("\t") for row in page.locator("#outcome-word-table tbody tr").all_inner_texts()]
    words = {word.text.strip(): word.value for word in attribute_label(model, [text]).words}
    shown = {row[0].replace("␣", "").strip(): float(row[1].replace("−", "-")) for row in rows[:-1]}
    assert shown == pytest.approx(words, abs=6e-5)
    assert numbers(page, "#outcome-sums .total .number")[-1] == f"{attribute_label(model, [text]).logit:.4f}"


def test_a_label_opens_down_to_a_weight_of_the_head(open_live):
    page = opened(open_live, "labels")
    page.locator("#outcome-section").scroll_into_view_if_needed()
    panel, number = page.locator("#value"), page.locator("#outcome .opens").first
    for address in ("task_head.probabilities[", "task_head[", "task_head.mean[", "trunk["):
        with page.expect_response(lambda answer: answer.url.endswith("/explore/value")):
            number.click()
        settled(page)
        assert panel.locator("code[aria-current]").inner_text().startswith(address)
        assert "The value follows from its operands" in panel.inner_text()
        number = panel.locator("tbody tr").first.locator("td").nth(2).locator(".opens")
    click_on(page.locator("#outcome-sums .opens").first)
    assert panel.locator("code[aria-current]").inner_text().startswith("task_head.contributions.difference[")
    assert "The value follows from its operands" in panel.inner_text()


def test_a_head_that_is_switched_off_changes_the_label(open_live, folders):
    page = opened(open_live, "labels")
    page.locator("#changes").scroll_into_view_if_needed()
    click(page, "Head 0 of layer 0 off")
    page.locator("#change-effect tbody tr").first.wait_for()
    model = load(folders / "labels", dtype="float32")
    [before] = predict(model, TEXT)
    given = as_task_input(model)
    outcomes, page_model = readout_of(given, TEXT), PageModel.of(given)
    assert outcomes is not None
    off = {CORE: lambda value: value * torch.tensor([0.0, *[1.0] * (value.shape[1] - 1)])[None, :, None, None]}
    traced = page_model.record(given.encode(TEXT), TEXT, [], off)
    after = dict(zip(LABELS, outcomes.outputs(traced.recorded.hidden).softmax(0).tolist(), strict=True))
    for row in page.locator("#change-effect tbody tr").all_inner_texts():
        label, changed, original, _ = row.split("\t")
        assert changed == f"{after[label]:.4f}" and original == f"{before.to_json()['probabilities'][label]:.4f}"
    assert page.locator("#change-effect .summary").inner_text().startswith("Label: ")


def test_a_number_and_its_change(open_live, folders):
    page = opened(open_live, "stars")
    page.locator("#outcome-section").scroll_into_view_if_needed()
    page.locator("#outcome-number").wait_for()
    [prediction] = predict(load(folders / "stars", dtype="float32"), TEXT)
    assert float(numbers(page, "#outcome-number")[0]) == pytest.approx(prediction.value, abs=6e-5)
    page.locator("#outcome-sums tbody tr").first.wait_for()
    assert "Mean of the training examples" in page.locator("#outcome-sums").inner_text()
    click(page, "Attention of layer 0 off")
    page.locator("#change-effect tbody tr").first.wait_for()
    [words] = numbers(page, "#change-effect .summary")
    assert f"originally {prediction.value:.4f}" in words


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("stars", ["Mean of the training examples"]),
        ("similar", [ORDER]),
        ("close", [ORDER, "Mean of the training examples"]),
    ],
)
def test_what_the_parts_do_not_add_opens(open_live, folders, name, constants):
    page = opened(open_live, name, TEXT, others=json.dumps(SEVERAL.get(name, [])))
    show_outcome(page)
    rows = page.locator("#outcome-sums tr.total")
    for words in [*constants, "Remainder"]:
        number = rows.filter(has_text=words).locator(".opens")
        shown = float(number.inner_text().replace("−", "-"))
        click_on(number)
        assert float(numbers(page, "#value dd")[0]) == pytest.approx(shown, abs=0.501e-4)
        assert "The value follows" in page.locator("#value .summary").inner_text()
        if words == ORDER:
            assert "in the other order" in page.locator("#value .hint").first.inner_text()
            click_on(page.locator("#value-body .opens").nth(1))  # an operand is of the same pass
            assert "in the other order" in page.locator("#value .hint").first.inner_text()
            assert "The value follows" in page.locator("#value .summary").inner_text()


def test_a_series_its_next_value_and_a_continuation(open_live, folders):
    page = opened(open_live, "series", VALUES)
    forecaster = as_forecaster(load(folders / "series", dtype="float32"))
    model = reading_values(forecaster, VALUES)
    ids = model.encode(VALUES)
    tokens = [value_text(value) for value in codec_values(forecaster, model, ids)]
    assert page.locator("#tokens .token").all_inner_texts() == tokens
    page.locator("#series tbody .number").first.wait_for()
    mean = float(next_probabilities(forecaster, np.array([ids]))[0] @ model.levels)
    assert float(numbers(page, "#series tbody .number")[0]) == pytest.approx(mean, rel=1e-3)
    for cell in page.locator("#series tbody .number").all():
        shown, address = cell.inner_text(), cell.get_attribute("data-address")
        click_on(cell.locator(".opens"))
        stored = explain_value(model, VALUES, address, levels=model.levels)
        assert stored.agrees and float(numbers(page, "#value dd")[0]) == pytest.approx(stored.stored, rel=1e-6)
        assert float(shown.replace("−", "-")) == pytest.approx(stored.stored, rel=1e-3)
    click_on(page.locator("#value tbody .opens").first)
    assert page.locator("#value code").inner_text() == f"head[{len(ids) - 1},0]"
    page.keyboard.press("Escape")
    assert page.locator("#series polyline").count() == 2  # the missing value parts the line
    read = codec_values(forecaster, model, ids)
    lines = " ".join(line.get_attribute("points") or "" for line in page.locator("#series polyline").all())
    heights = [-float(point.split(",")[1]) for point in lines.split()]
    assert np.corrcoef(heights, read[~np.isnan(read)])[0, 1] == pytest.approx(1)  # each with the cycle of its own time
    page.locator("#next-table .link").first.click()
    page.locator("#tokens").scroll_into_view_if_needed()
    page.locator("#tokens .token").nth(len(ids)).wait_for()
    assert page.get_by_role("button", name="Add the most probable value").is_enabled()
    page.locator("#changes").scroll_into_view_if_needed()
    page.locator("#change-effect .summary:has-text('Loss of the values: ')").wait_for()
    more = page.locator("#tokens .token").nth(len(ids)).inner_text()
    assert page.locator("#continuations .token").all_inner_texts() == [more]
    following = forecaster.codec.decode(np.arange(BINS)[:, None], model.scale, 1)[:, 0]
    assert set(page.locator("#next-table .piece").all_inner_texts()) <= {value_text(value) for value in following}
    click(page, "Into the text")
    assert page.locator("#text").input_value().split()[len(ids) :] == [more]


def test_another_scale_has_other_values(open_live, folders):
    page = opened(open_live, "series", VALUES)
    first = [float(text) for text in numbers(page, "#next-table tbody .piece")]
    edit(page, "3000 1000 4000 - 5000 9000 2500 6000")
    values = [float(text) / 1000 for text in numbers(page, "#next-table tbody .piece")]
    assert values == pytest.approx(first, rel=2e-3)
    page.locator("#model").focus()
    page.locator("#model").select_option("labels")
    settled(page)
    assert page.locator("#text").input_value() == "This is a text."
    assert not page.locator("#series-section").is_visible() and page.locator("#outcome-section").is_visible()


@pytest.mark.parametrize(("other", "words"), [("series", "predicts values"), ("stars", "predicts a number")])
def test_models_with_other_outcomes_are_not_compared(open_live, other, words):
    page = opened(open_live, "labels", otherText="3 1 4", otherModel=other)
    page.locator("#compare").scroll_into_view_if_needed()
    page.locator("#compared .summary").wait_for()
    assert f"No comparison: {other} {words}, and labels the labels “bad”, “good”, “neither”." in page.content()
    assert page.locator("#compared table").count() == 0
    offered = page.locator("#other-model option").all_inner_texts()
    assert "labels" in offered and "series" not in offered


def test_a_pair_is_compared_with_another_model_of_pairs(open_live):
    page = opened(open_live, "follows", others=json.dumps(SECOND))
    page.locator("#compare details").evaluate("details => details.open = true")
    page.locator("#other-model").select_option("similar")
    click(page, "Compare", "#compare", exact=True)
    assert page.locator("#other-model").input_value() == "similar"
    assert page.locator("#compared tbody").first.locator("tr").count() == len(LABELS)


@pytest.mark.parametrize("name", ["follows", "answers", pytest.param("close", marks=pytest.mark.long)])
def test_the_prediction_follows_both_texts(open_live, folders, name):
    others = SEVERAL[name]
    page = opened(open_live, name, others=json.dumps(others))
    assert page.locator("#others").input_value() == "\n".join(others)
    for text in others[0], "another <b>text</b>":
        with page.expect_response(lambda answer: answer.url.endswith("/explore")):
            page.locator("#others").fill("\n".join([text, *others[1:]]))
        settled(page)
        show_outcome(page)
        [prediction] = predict(load(folders / name, dtype="float32"), [[TEXT, text, *others[1:]]])
        if name == "close":
            assert float(numbers(page, "#outcome-number")[0]) == pytest.approx(prediction.value, abs=6e-5)
            assert "Texts in the other order" in page.locator("#outcome-sums").inner_text()
        else:
            assert page.locator("#outcome .result").inner_text() == prediction.label
            shares = sorted(prediction.to_json()["probabilities"].values(), reverse=True)
            assert numbers(page, "#outcome tbody .number") == [f"{share:.4f}" for share in shares]
    remainder = page.locator("#outcome-sums tr").filter(has_text="Remainder").locator(".number").inner_text()
    assert abs(float(remainder.replace("−", "-"))) <= 1e-4
    click_on(page.locator("#outcome-sums .opens").first)
    assert "The value follows from its operands" in page.locator("#value").inner_text()


def test_the_tags_of_words_follow_the_text(open_live, folders, accessibility_problems):
    page = opened(open_live, "tags", "Anna Smith")
    text = "we saw Anna <b>"
    edit(page, text)
    show_outcome(page)
    prediction = predict(load(folders / "tags", dtype="float32"), text)[0].to_json()
    rows = [row.split("\t") for row in page.locator("#outcome-tag-table tbody tr").all_inner_texts()]
    shown = [(word, tag, float(share)) for word, tag, share in rows]
    expected = zip(text.split(), prediction["tags"], prediction["probabilities"], strict=True)
    assert shown == [(word, tag, pytest.approx(share, abs=6e-5)) for word, tag, share in expected]
    assert page.locator("#outcome-tags small").all_inner_texts() == prediction["tags"]
    page.locator("#outcome-tags button").nth(1).focus()
    page.keyboard.press("Enter")
    settled(page)
    assert page.locator("#outcome-contributions-title").inner_text() == "Contributions to the tag of “saw”"
    assert abs(float(numbers(page, "#outcome-sums .total .number")[1])) <= 1e-4  # the remainder
    click_on(page.locator("#outcome-tag-table .opens").nth(1))
    assert page.locator("#value code").first.inner_text().startswith("task_head.probabilities[5,")
    assert "The value follows from its operands" in page.locator("#value").inner_text()
    assert page.evaluate("window.ran") is None and page.locator("#outcome img, #outcome b").count() == 0
    assert accessibility_problems(page) == []
    click(page, "Attention of layer 0 off")
    page.locator("#change-effect tbody tr").first.wait_for()
    assert page.locator("#change-effect .summary").inner_text().startswith("Tag of “w” (5): ")


@pytest.mark.parametrize("name", ["labels", "series", "answers", *LONG])
def test_python_prints_the_numbers_of_the_page(open_live, folders, name, capsys):
    others = json.dumps(SEVERAL.get(name, []))
    given = (VALUES, "[15]") if name == "series" else (TEXT, "[]")
    page = opened(open_live, name, given[0], others=others, appended=given[1])
    code = code_of(page, "As Python").replace(json.dumps(name), repr(str(folders / name)))
    exec(compile(code, "<page>", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    shown = [float(text) for text in numbers(page, "#next-table tbody .number")[:5]]
    assert [float(line.split()[0]) for line in printed[:5]] == pytest.approx(shown, abs=6e-5)
    if name == "series":
        pieces = page.locator("#next-table .piece").all_inner_texts()[:5]
        assert [line.split()[1] for line in printed[:5]] == [repr(piece) for piece in pieces]
    else:
        show_outcome(page)
        shown = numbers(page, "#outcome-number" if name in ("stars", "close") else "#outcome tbody .number")
        assert {word for line in printed[6:] for word in line.split()} >= set(shown)


def test_long_labels_fit_into_a_narrow_window(open_live):
    page = opened(open_live, "labels", viewport={"width": 1024, "height": 800})
    show_outcome(page)
    row = page.locator("#outcome-sums th", has_text="Logit of ")
    row.evaluate("(cell, label) => { cell.textContent = `Logit of “${label}”`; }", "c" * 34)
    cut = "table => table.offsetWidth - table.parentElement.clientWidth"
    assert page.locator("#outcome-sums").evaluate(cut) <= 0


@pytest.mark.parametrize(("name", "place"), [("labels", "outcome"), ("series", "series")])
def test_the_panels_are_accessible_and_in_the_tour(open_live, accessibility_problems, name, place):
    page = opened(open_live, name, VALUES if name == "series" else TEXT)
    scroll_to(page.locator(f"#{place}-section"))
    assert accessibility_problems(page) == []
    page.locator("#tour-button").click()
    click(page, "Next", "#tour")
    settled(page)
    assert page.locator(f".toured #{place}").count() == 1
    assert "being computed" not in page.locator("#tour").inner_text()


@pytest.mark.parametrize("name", ["labels", "tags", *LONG])
def test_words_sums_and_differences_open(open_live, name):
    page = opened(open_live, name, others=json.dumps(SEVERAL.get(name, [])))
    sum_of_parts, last = ("#outcome-sums .total >> nth=0", "#outcome-sums tr:last-child")
    for row in ("#outcome-word-table tbody tr:first-child", sum_of_parts, last):
        number = page.locator(row).locator(".opens").last
        scroll_to(number)
        shown = float(number.inner_text().replace("−", "-"))
        click_on(number)
        stored = page.locator("#value-body dd").first.inner_text().replace("−", "-")
        assert float(stored) == pytest.approx(shown, abs=6e-5)
        page.keyboard.press("Escape")


def test_another_answer_can_be_shown(open_live):
    others = json.dumps(SEVERAL["answers"])
    page = opened(open_live, "answers", others=others)
    assert page.locator("#text-title").inner_text() == "The question and the answer as tokens"
    chosen = page.locator("#outcome tbody tr").all_inner_texts()
    page.locator("#answer").select_option("so")
    settled(page)
    assert "answer=2" in page.url and "pass over “so”" in page.locator("#outcome-lead").inner_text()
    assert page.locator("#tokens").inner_text().replace("\n", "").endswith("so<|extract|>")
    assert page.locator("#outcome tbody tr").all_inner_texts() == chosen
    page.locator("#others").fill("yes\nno")
    page.locator("#answer option").nth(2).wait_for(state="detached")  # the pass begins some time after the last key
    settled(page)
    assert page.locator("#answer").input_value() == "0"


CUT_SELECTS = """() => [...document.querySelectorAll("#outcome-contributions select")].filter((select) => {
    const width = select.offsetWidth;
    select.style.maxWidth = "none";
    const [own, around] = [select, select.closest(".card")].map((each) => each.getBoundingClientRect());
    return own.width > width + 1 || own.right > around.right;
}).length"""


@pytest.mark.parametrize("width", [420, pytest.param(1280, marks=pytest.mark.long)])
def test_the_selects_of_contributions_have_room_for_their_words(open_live, width):
    page = opened(open_live, "labels", viewport={"width": width, "height": 900})
    scroll_to(page.locator("#outcome-contributions select").first)
    assert page.locator("#outcome-contributions select").count() == 2
    assert page.evaluate(CUT_SELECTS) == 0
