"""One law for all ways into a model: a text gets the same ids, score, vector, continuation and label by each of them,
or is refused for the same reason.

A way in is a `Door`: Python, an argument, `--file`, a pipe, a file of records, or a route of the server. The rules:

- Python, an argument and JSON (of records and of requests) give a text exactly as it is. So does a cell of a table.
- A file and a pipe have one reader: a byte order mark is dropped, CRLF is read as LF, NUL bytes are refused. A final
  line end is not part of a prompt, but of a document that `evaluate` reads. In records of documents, too, CRLF is LF.
- `embed --file`, `generate --prompt-file`, and pipes into `embed`, `chat` and `predict` have a text per line.
- The name of a special token is ordinary text, unless special tokens are allowed. A text that begins with the start
  token gets no second one.
- The score of an answer is of the tokens from the first that has a character of it, wherever the text is cut.
- `evaluate` skips a text without a word. It reads a longer text than the context in windows, and cuts a question.
- An empty prompt of a generation is the end token. An empty text has no score and no vector, and is refused.
- A message of `chat` has a word, as has a text to `predict`; in a request to the server a message may be empty.
- A text with several faults is refused for one of them.

FORETELL_LAWS sets the number of cases (`make laws`).
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import foretell
from foretell.cli.main import run as run_command
from foretell.data.questions import read_questions
from foretell.errors import ForetellError
from foretell.evaluation.multiple_choice import evaluate_choices, scored_rows
from foretell.evaluation.perplexity import predicted_text
from foretell.finetuning.head import head_of, with_head
from foretell.finetuning.inputs import choose_tokens
from foretell.finetuning.settings import Columns, HeadSettings
from foretell.generation.block_table import common_length
from foretell.language_model import LanguageModel
from foretell.text import train_tokenizer
from foretell.text.chat_template import find_template, prepare_tokenizer
from tests.serving.conftest import Served, start
from tests.toy import make_toy, with_large_weights
from tests.warm import Original

NUM_LAWS = 9
CASES = int(os.environ.get("FORETELL_LAWS", "90")) // NUM_LAWS
CONTEXT = 96
TEXT = "The cat sat on the mat. Ärger mit der Größe: 日本語の文, a\u0308 é, \tif x:\n\treturn 'y'\n" * 9
PIECES = [
    *("<|begin|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|", "|>"),
    *(" ", "  ", "\n", "\n\n", "\r", "\r\n", "\t", "\ufeff", "\u2028", "\x85", "\x0b", "\x0c", "\u00a0", "\x1b[0m"),
    *('"', "'", '""', ",", ";", "\\n", "\\", "/", "-", "--file", "{", "[", "=1", "# x"),
    *("the cat", " cat", "The", "sat on", "é", "e\u0301", "日本語", "文", "a\u0308", "😀", "👩\u200d🔬", "ﬁ", "\ue000"),
    *("0", "007", "1,5", "NaN", "null", "true", "text", "label"),
]
RARE = ["\0", "\ud800 ", "\udcff", "a cat " * 60]  # a pair of surrogates would be a character of JSON
FORMS = ("started", "plain", "tuned")
REASONS = {  # each has several wordings, which name what is wrong with a field, a line or a prompt
    "too long": re.compile("model's context|context of"),
    "not Unicode": re.compile("surrogate"),
    "NUL": re.compile("NUL"),
    "empty": re.compile("empty|no text|adds no token|no token to predict|nothing to predict"),
}


@dataclass(frozen=True)
class Refusal:
    """An error, by its reason."""

    reason: str

    @classmethod
    def of(cls, message: str) -> Refusal:
        return cls(next((reason for reason, words in REASONS.items() if words.search(message)), message))


Answer = Any  # ids, numbers or a label; a Refusal; None from a door that cannot take the text
Door = Callable[[], Answer]


def texts() -> st.SearchStrategy[str]:
    pieces = st.one_of(*[st.sampled_from(PIECES)] * 12, st.text(max_size=4), st.sampled_from(RARE))
    return st.lists(pieces, max_size=7).map("".join)


forms, switches = st.sampled_from(FORMS), st.booleans()
variants, cuts = st.integers(0, 11), st.floats(0, 1)


def law(**given_values: st.SearchStrategy[Any]) -> Callable[..., Any]:
    """A test of CASES drawn cases, the same in every run. They are short and not shrunk, which takes minutes."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        return settings(max_examples=CASES, phases=[Phase.explicit, Phase.generate])(given(**given_values)(test))

    return decorate


# --- what a file means ------------------------------------------------------------------------------------------------


def document_of(content: bytes) -> str:
    return content.decode().removeprefix("\ufeff").replace("\r\n", "\n")


def prompt_of(content: bytes) -> str:
    return document_of(content).removesuffix("\n")


def contents_of(text: str, meaning: Callable[[bytes], str]) -> list[bytes]:
    """The files that mean a text: with and without a byte order mark, with either line end, with and without a final
    one."""
    if "\0" in text:
        return [text.encode("utf-8", "surrogatepass")]
    try:
        forms = [text.encode(), text.replace("\n", "\r\n").encode()]
    except UnicodeEncodeError:
        return []
    contents = [mark + form + end for form in forms for mark in (b"", b"\xef\xbb\xbf") for end in (b"", b"\n", b"\r\n")]
    return [content for content in contents if meaning(content) == text]


# --- the models and the doors -----------------------------------------------------------------------------------------


def make_models(folder: Path) -> dict[str, LanguageModel]:
    """A model with a start token, one without, and a tuned form of the first; as saved and loaded."""
    template = find_template("chatml")
    models = {}
    for form, first in ("started", "<|begin|>"), ("plain", None):
        tokenizer = train_tokenizer("bpe", [TEXT], vocab_size=330, split="qwen2", start=first)
        model = make_toy(prepare_tokenizer(tokenizer, template), context_length=CONTEXT, width=16, name=form)
        with_large_weights(model.decoder)
        models[form] = model
    head = HeadSettings(
        task="classify",
        labels=("one", "two", "three"),
        pool="mean",
        tokens=choose_tokens(models["started"].tokenizer, "mean", has_delimiter=False),
        columns=Columns(texts=("text",), label="label"),
    )
    models["tuned"] = with_head(models["started"], head, seed=3)
    with_large_weights(head_of(models["tuned"]).linear)
    for form, model in models.items():
        model.save(folder / form)
    return {form: foretell.load(folder / form) for form in models}


class House:
    """The models, the server, and a folder for files."""

    def __init__(self, folder: Path, models: dict[str, LanguageModel], served: Served):
        self.folder, self.models, self.served = folder, models, served

    def model(self, form: str, allow_special: bool = False) -> LanguageModel:
        return self.models[form].reading_special() if allow_special else self.models[form]

    def file(self, name: str, content: bytes | str) -> str:
        path = self.folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    def command(self, verb: str, form: str, *words: str, stdin: bytes | None = None) -> list[Any] | Refusal:
        """The lines of JSON that a command writes."""
        out, err = io.StringIO(), io.StringIO()
        piped = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin or b"")), encoding="utf-8")
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            mock.patch.object(sys, "stdin", piped),
            contextlib.chdir(self.folder),
        ):
            code = run_command([verb, form, "--json", *words])
        if code:
            return Refusal.of(err.getvalue().splitlines()[-1])
        return [json.loads(line) for line in out.getvalue().split("\n") if line]

    def post(self, path: str, form: str, **body: Any) -> Any:
        answer = self.served.post(path, model=form, **body)
        return answer.json() if answer.status_code == 200 else Refusal.of(answer.json()["error"]["message"])


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, original: Original) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("doors")
    models = make_models(folder)
    served = start(original, *(str(folder / form) for form in FORMS), "--memory", "0.05")
    yield House(folder, models, served)
    served.process.kill()
    served.close()


def python(ask: Callable[[], Answer]) -> Answer:
    try:
        return ask()
    except ForetellError as error:
        return Refusal.of(error.for_command_line())


def part(answer: Answer, *path: Any) -> Answer:
    """A part of an answer that is not a refusal."""
    if isinstance(answer, Refusal):
        return answer
    for key in path:
        answer = answer[key]
    return answer


def are_equal(one: Answer, other: Answer) -> bool:
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(are_equal, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-5, abs_tol=1e-5)
    return type(one) is type(other) and one == other


def check(case: object, **doors: Door) -> None:
    """All doors that can take the text give the first one's answer."""
    name, first, expected = "", "", None
    for name, door in doors.items():
        answer = door()
        if expected is None:
            first, expected = name, answer
        if answer is not None and not are_equal(answer, expected):
            pytest.fail(f"{case!r}\n  {first}: {expected!r}\n  {name}: {answer!r}", pytrace=False)


def flags(allow_special: bool) -> list[str]:
    return ["--allow-special"] if allow_special else []


def prompt_doors(
    house: House, verb: str, form: str, text: str, variant: int, words: Sequence[str], get: Callable[[Any], Answer]
) -> dict[str, Door]:
    """An argument, and a file and a pipe that mean the text."""

    def ask(*source: str, stdin: bytes | None = None) -> Answer:
        lines = house.command(verb, form, *words, *source, stdin=stdin)
        if stdin is not None and "\0" in text:
            assert isinstance(lines, Refusal)
            assert lines.reason == "NUL" or "not UTF-8" in lines.reason  # a half character before it
            return None
        return lines if isinstance(lines, Refusal) else get(lines[0])

    doors: dict[str, Door] = {"argument": lambda: ask("--", text)}
    if contents := contents_of(text, prompt_of):
        content = contents[variant % len(contents)]
        doors["file"] = lambda: ask("--file", house.file("prompt.txt", content), stdin=b"")
        doors["pipe"] = lambda: ask("-", stdin=content)
    return doors


# --- the laws ---------------------------------------------------------------------------------------------------------


@example(form="plain", text="\ud800", special=False, variant=0)
@law(form=forms, text=texts(), special=switches, variant=variants)
def test_a_text_has_one_row_of_ids(house: House, form: str, text: str, special: bool, variant: int) -> None:
    model = house.model(form, special)
    check(
        (form, text, special),
        python=lambda: python(lambda: model.encode(text)),
        long=lambda: python(lambda: predicted_text(model.tokenizer, text).ids.tolist()),
        **prompt_doors(house, "tokenize", form, text, variant, flags(special), lambda line: line["ids"]),
        server=lambda: part(house.post("/tokenize", form, prompt=text, allow_special=special), "tokens"),
    )


def columns_of(tokens: list[dict[str, Any]]) -> Answer:
    return [[token["id"] for token in tokens], [token["logprob"] for token in tokens]]


@example(form="started", text="", special=False, variant=0)
@example(form="plain", text="", special=False, variant=0)
@example(form="started", text="<|begin|>", special=True, variant=0)
@law(form=forms, text=texts(), special=switches, variant=variants)
def test_a_text_has_one_score(house: House, form: str, text: str, special: bool, variant: int) -> None:
    model = house.model(form, special)

    def echoed() -> Answer:
        answer = house.post(
            "/v1/completions", form, prompt=text, allow_special=special, max_tokens=0, echo=True, logprobs=0
        )
        if isinstance(answer, Refusal):
            return answer
        own = slice(len(model.tokenizer.start_ids), None)
        ids, logprobs = model.encode(text)[own], answer["choices"][0]["logprobs"]["token_logprobs"][own]
        return [ids, logprobs] if text and ids else None  # a completion begins with a start or end token

    def server() -> Answer:
        answer = house.post("/v1/score", form, text=text, allow_special=special)
        return answer if isinstance(answer, Refusal) else columns_of(answer["data"][0]["tokens"])

    check(
        (form, text, special),
        python=lambda: python(lambda: columns_of(foretell.score(model, text).to_json()["tokens"])),
        **prompt_doors(house, "score", form, text, variant, flags(special), lambda line: columns_of(line["tokens"])),
        server=server,
        echo=echoed,
    )


@example(form="plain", text="\ue000", special=False, variant=0)
@law(form=forms, text=texts(), special=switches, variant=variants)
def test_a_document_has_its_texts_score(house: House, form: str, text: str, special: bool, variant: int) -> None:
    model = house.model(form, special)
    score = python(lambda: foretell.score(model, text.replace("\r\n", "\n")))
    if not text.strip():
        score = Refusal("empty")
    elif isinstance(score, Refusal) and score.reason == "too long":
        return  # in windows
    elif not isinstance(score, Refusal):
        score = Refusal("empty") if score.perplexity is None else score.logprob

    def evaluated(path: str, stdin: bytes | None = None) -> Answer:
        lines = house.command("evaluate", form, *flags(special), "--task", "text", "--", path, stdin=stdin)
        return lines if isinstance(lines, Refusal) else -lines[0]["loss"] * lines[0]["tokens"]

    doors: dict[str, Door] = {"score": lambda: score}
    if contents := [] if "\0" in text else contents_of(text, document_of):
        content = contents[variant % len(contents)]
        doors["file"] = lambda: evaluated(house.file("document.txt", content))
        doors["pipe"] = lambda: evaluated("-", content)
    doors["lines"] = lambda: evaluated(house.file("texts.jsonl", json.dumps({"text": text})))
    doors["list"] = lambda: evaluated(house.file("texts.json", json.dumps([text])))
    if not set(text) & set("\0\ud800\udcff"):
        doors["table"] = lambda: evaluated(house.file("texts.csv", table(["text"], [text], ",")))
    check((form, text, special), **doors)


def table(header: list[str], row: list[str], separator: str) -> str:
    lines = io.StringIO()
    csv.writer(lines, delimiter=separator).writerows([header, row])
    return lines.getvalue()


@example(form="plain", text="The cat", answers=[""], special=False, cut=0.9)
@example(form="plain", text="The ", answers=[""], special=False, cut=0.75)
@example(form="plain", text="é", answers=["x", "e"], special=False, cut=0.0)
@law(form=forms, text=texts(), answers=st.lists(texts(), min_size=1, max_size=2), special=switches, cut=cuts)
def test_an_answer_has_one_score(
    house: House, form: str, text: str, answers: list[str], special: bool, cut: float
) -> None:
    model = house.model(form, special)
    position = round(cut * len(text))
    context, answers = text[:position], [text[position:] + answer for answer in answers]

    def own() -> Answer:
        owns = [model.tokenizer.encode(context + answer) for answer in answers]
        rows = [model.tokenizer.with_start_ids(own) for own in owns]
        firsts = [first_of_answer(model, row, own, context) for row, own in zip(rows, owns, strict=True)]
        if any(first == len(row) for row, first in zip(rows, firsts, strict=True)):
            return Refusal("empty")
        first = min(common_length(*rows), *firsts)
        rows = rows if first else [[*model.tokenizer.end_ids[:1], *row] for row in rows]
        if max(map(len, rows)) > CONTEXT:
            return None
        logits = [model.log_probabilities(model([row])[0].detach()) for row in rows]
        return [
            sum(float(each[at - 1, row[at]]) for at in range(max(1, first), len(row)))
            for row, each in zip(rows, logits, strict=True)
        ]

    expected = python(own)
    if expected is None:
        return  # `evaluate` cuts the beginning of a question

    def server() -> Answer:
        answer = house.post("/v1/score", form, context=context, continuations=answers, allow_special=special)
        return answer if isinstance(answer, Refusal) else [row["logprob"] for row in answer["data"]]

    def chosen() -> Answer:
        line = json.dumps({"query": context, "choices": answers, "gold": 0})
        path = house.folder / house.file("choices.jsonl", line)
        return python(lambda: evaluate_choices(model, read_questions(path)).answers[0].logprobs)

    def ended(name: str, content: str) -> Answer:
        lines = house.command("evaluate", form, *flags(special), "--task", "ending", "--", house.file(name, content))
        if isinstance(lines, Refusal):
            return lines
        (row,), first = scored_rows(model.tokenizer, context, answers)
        return [(first - len(row)) * math.log(lines[0]["perplexity"])]

    doors: dict[str, Door] = {"own": lambda: expected, "server": server}
    if len(answers) > 1:
        doors["choices"] = chosen
    else:
        line = {"context": context, "continuation": answers[0]}
        doors["lines"] = lambda: ended("endings.jsonl", json.dumps(line))
        if not set("".join(line.values())) & set("\0\ud800\udcff"):
            doors["table"] = lambda: ended("endings.csv", table([*line], [*line.values()], ","))
    if "" in answers or isinstance(expected, Refusal):  # several faults have no order
        assert all(isinstance(door(), Refusal) for door in doors.values()), (form, context, answers, special)
        return
    check((form, context, answers, special), **doors)


def first_of_answer(model: LanguageModel, row: list[int], own: list[int], context: str) -> int:
    """The index in a row, after any start token, of the first of its own ids with a byte after the context."""
    size, end = len(context.encode()), 0
    for index, token in enumerate(own):
        end += len(model.tokenizer.bytes_of(token))
        if end > size:
            return max(len(model.tokenizer.start_ids), len(row) - len(own) + index)
    return len(row)


@example(form="started", text="", special=False, pool="last", variant=0)
@law(form=forms, text=texts(), special=switches, pool=st.sampled_from(["last", "mean"]), variant=variants)
def test_a_text_has_one_vector(house: House, form: str, text: str, special: bool, pool: Any, variant: int) -> None:
    model = house.model(form, special)
    doors = prompt_doors(
        house, "embed", form, text, variant, [*flags(special), "--pool", pool], lambda line: line["embedding"]
    )
    if "\n" in text or not text.strip():
        doors = {"argument": doors["argument"]}  # the others have a text per line

    def server() -> Answer:
        return part(
            house.post("/v1/embeddings", form, input=text, pooling=pool, allow_special=special), "data", 0, "embedding"
        )

    check(
        (form, text, special, pool),
        python=lambda: python(lambda: foretell.embed(model, text, pool)),
        **doors,
        server=server,
    )


@law(form=forms, text=texts(), special=switches, variant=variants)
def test_a_prompt_has_one_continuation(house: House, form: str, text: str, special: bool, variant: int) -> None:
    model = house.model(form, special)
    greedy = {"max_tokens": 1, "temperature": 0.0}

    def shown(ids: list[int]) -> Answer:
        return [token for token in ids if token not in model.tokenizer.end_ids]

    def server() -> Answer:
        answer = house.post(
            "/v1/completions", form, prompt=text, allow_special=special, return_token_ids=True, **greedy
        )
        return answer if isinstance(answer, Refusal) else shown(answer["choices"][0]["token_ids"])

    words = [*flags(special), "--max-tokens", "1", "--temperature", "0"]
    doors = prompt_doors(house, "generate", form, text, variant, words, lambda line: shown(line["token_ids"]))
    if text:
        following = prompt_doors(
            house, "next", form, text, variant, flags(special), lambda line: shown([line["tokens"][0]["id"]])
        )
        doors |= {f"next by {name}": door for name, door in following.items()}
    check(
        (form, text, special),
        python=lambda: python(lambda: shown(foretell.generate(model, [text], **greedy)[0].token_ids)),
        **doors,
        server=server,
    )


@law(form=st.sampled_from(FORMS[:2]), text=texts(), system=st.one_of(st.none(), texts()), variant=variants)
def test_a_message_has_one_answer(house: House, form: str, text: str, system: str | None, variant: int) -> None:
    greedy: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0}
    ends = house.models[form].tokenizer.end_ids

    def shown(ids: list[int]) -> Answer:
        return [token for token in ids if token not in ends]

    def piped(content: bytes) -> Answer:
        words = [] if system is None else [f"--system={system}"]
        lines = house.command("chat", form, "--max-tokens", "3", "--temperature", "0", *words, stdin=content)
        return lines if isinstance(lines, Refusal) else shown(lines[0]["token_ids"])

    def server() -> Answer:
        messages = [{"role": "user", "content": text}]
        if system is not None and system.strip():
            messages.insert(0, {"role": "system", "content": system})
        answer = house.post("/v1/chat/completions", form, messages=messages, return_token_ids=True, **greedy)
        return answer if isinstance(answer, Refusal) else shown(answer["choices"][0]["token_ids"])

    doors: dict[str, Door] = {
        "python": lambda: python(
            lambda: shown(foretell.Chat(house.models[form], system, **greedy).say(text).token_ids)
        ),
    }
    if text.strip():
        doors["server"] = server
    line = f"/{text}" if text.startswith("/") else text
    contents = contents_of(line, prompt_of)
    if contents and text.strip() and not set("\0\n") & set(text):
        doors["pipe"] = lambda: piped(contents[variant % len(contents)])
    check((form, text, system), **doors)


@law(text=texts(), variant=variants)
def test_a_text_has_one_label(house: House, text: str, variant: int) -> None:
    model = house.models["tuned"]

    def shown(line: dict[str, Any]) -> Answer:
        return [line["label"], *map(float, line["probabilities"].values())]

    def predicted(*words: str, stdin: bytes | None = None) -> Answer:
        lines = house.command("predict", "tuned", *words, stdin=stdin)
        return lines if isinstance(lines, Refusal) else shown(lines[0])

    def server() -> Answer:
        answer = house.post("/v1/predict", "tuned", input=text)
        return answer if isinstance(answer, Refusal) else shown(answer["data"][0])

    doors: dict[str, Door] = {
        "python": lambda: python(lambda: shown(foretell.predict(model, text)[0].to_json())),
        "server": server,
    }
    if "/" in text and os.path.isdir(text):  # noqa: PTH112 - a text may not be a path at all
        refusal = predicted("--", text)  # rather than a label of what may be meant as data
        assert isinstance(refusal, Refusal) and "is a folder; give a file, or a text" in refusal.reason
    else:
        doors["argument"] = lambda: predicted("--", text)
    if text.strip():
        doors["lines"] = lambda: predicted(house.file("rows.jsonl", json.dumps({"text": text, "id": 1})))
        doors["list"] = lambda: predicted(house.file("rows.json", json.dumps([{"text": text, "id": 1}])))
        if not set(text) & set("\0\ud800\udcff"):
            doors["table"] = lambda: predicted(house.file("rows.csv", table(["id", "text"], ["1", text], ",")))
            if set(text) & set("\t\r\n"):
                doors["tabs"] = lambda: predicted(house.file("rows.tsv", table(["id", "text"], ["1", text], "\t")))
            elif '""' not in text:
                doors["tabs"] = lambda: predicted(house.file("rows.tsv", f"id\ttext\n1\t{text}\n"))
        if "\n" not in text and (contents := contents_of(text, prompt_of)) and "\0" not in text:
            content = contents[variant % len(contents)]
            doors["pipe"] = lambda: predicted("-", stdin=content)
            doors["text file"] = lambda: predicted(house.file("rows.txt", content))
    check(text, **doors)
    if not text.strip():
        return

    def evaluated() -> Answer:
        row = json.dumps({"text": text, "label": "two"})
        lines = house.command("evaluate", "tuned", "--", house.file("labelled.jsonl", row))
        return lines if isinstance(lines, Refusal) else -lines[0]["figures"]["loss"]

    check(
        text,
        python=lambda: python(lambda: math.log(foretell.predict(model, text)[0].to_json()["probabilities"]["two"])),
        evaluate=evaluated,
    )


@law(form=forms, lines=st.lists(texts(), min_size=2, max_size=3), special=switches, variant=variants)
def test_a_line_of_a_file_is_a_text(house: House, form: str, lines: list[str], special: bool, variant: int) -> None:
    model, lines = house.model(form, special), [line.replace("\n", " ") for line in lines]
    contents = contents_of("\n".join(lines), prompt_of)
    own = [line for line in lines if line.strip()]
    if not contents or not own or any("\0" in line for line in lines):
        return
    content = contents[variant % len(contents)]

    def each(ask: Callable[[str], Answer]) -> Answer:
        return python(lambda: [ask(line) for line in own])

    def command(verb: str, field: str, *words: str, stdin: bytes | None = None) -> Answer:
        found = house.command(verb, form, *flags(special), *words, stdin=stdin)
        return found if isinstance(found, Refusal) else [line[field] for line in found]

    case = form, lines, special
    check(
        case,
        python=lambda: each(lambda line: foretell.embed(model, line)),
        file=lambda: command("embed", "embedding", "--file", house.file("lines.txt", content)),
        pipe=lambda: command("embed", "embedding", "-", stdin=content),
    )
    greedy = {"max_tokens": 1, "temperature": 0.0}
    words = ["--max-tokens", "1", "--temperature", "0"]
    check(
        case,
        python=lambda: each(lambda line: foretell.generate(model, [line], **greedy)[0].token_ids),
        file=lambda: command("generate", "token_ids", *words, "--prompt-file", house.file("lines.txt", content)),
    )
