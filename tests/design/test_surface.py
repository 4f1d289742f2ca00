"""The names that users rely on: public names, verbs and their options. A change here is a decision."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from cyclopts import App

import foretell
import foretell.errors
from foretell.cli.main import VERBS, make_app


def named(words: str) -> set[str]:
    """The options of these names."""
    return {f"--{word}" for word in words.split()}


TRAINING = named("minutes steps out resume config seed checkpoint-every set report device dtype")  # of every training
SERIES_FORMAT = named("id-column time-column target-column separator decimal date-format")
LOADING = named("device dtype quantize verify")
MODEL = LOADING | named("strict")
OPTIONS = {
    "demo": named("minutes out files"),
    "lesson": named("check exercise text html overwrite weights at seed model ask break out open json"),
    "train": named(
        "size tokenizer kind start-from text-field sample-prompt exportable show-batch help-config strict json workers "
        "rows special start-token prompt-field answer-field loss-on"
    )
    | TRAINING,
    "finetune": named(
        "task dev dev-fraction text-column label-column choice-column columns encoding truncate pool lm-weight "
        "class-weights best-by epochs dropout head-dropout group-column word-dropout lora json from-scratch size "
        "decimal"
    )
    | TRAINING,
    "predict": named("column choice-column columns encoding truncate out overwrite json") | LOADING,
    "runs": named("png overwrite delete json"),
    "generate": named(
        "max-tokens temperature top-k top-p min-p repetition-penalty stop frequency-penalty presence-penalty "
        "prompt-file out overwrite speculate draft timings progress n logit-bias ban min-tokens no-repeat-ngram regex "
        "json-schema seed slide receipt file allow-special ids json"
    )
    | MODEL,
    "chat": named(
        "system template max-tokens temperature top-k top-p min-p logit-bias ban min-tokens no-repeat-ngram regex "
        "json-schema repetition-penalty seed json frequency-penalty presence-penalty"
    )
    | MODEL,
    "next": named("file allow-special start-token ids top at every json") | MODEL,
    "score": named("file allow-special start-token ids json") | MODEL,
    "translate": named("file beam length-penalty temperature top-k top-p seed json") | LOADING,
    "evaluate": named("task stride text-field rows prompt-field answer-field separator allow-special limit json")
    | MODEL,
    "forecast": named("horizon levels minimum season samples seed series column out paths plot html overwrite json")
    | SERIES_FORMAT
    | LOADING,
    "embed": named("file allow-special ids pool json") | MODEL,
    "serve": named("host port key-file no-key memory look-budget max-requests grace template open strict-fields")
    | MODEL,
    "info": named("machine names kernels verify json"),
    "plan": named("size tokens gpus gpu parallel checkpoint-activations context only set json"),
    "explain": named(
        "value html overwrite lens contributions heads ablate patch-from check prediction label as-task pair pieces "
        "token against with at layer of step file allow-special ids json"
    )
    | LOADING,
    "trace": named("as-task pair file allow-special ids select out overwrite list json") | MODEL,
    "tokenize": named("file allow-special json"),
    "warm": named("json") | MODEL,
    "push": named("update private family dtype verify json"),
    "convert": named("to adapter family dtype group head keep calibrate text device verify json"),
    "tokenizer train": named("kind vocab-size split text-field special start-token out json"),
}


PUBLIC = foretell.__all__


@pytest.mark.parametrize("name", [*PUBLIC, "__version__"])
def test_a_public_name_can_be_imported_and_is_listed(name):
    assert getattr(foretell, name) is not None
    assert name in dir(foretell)


def test_every_public_function_and_class_is_documented():
    for name in PUBLIC:
        if name != "PRESETS":
            assert getattr(foretell, name).__doc__, name


def test_every_public_name_is_on_the_page_of_the_python_api():
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    assert [name for name in [*PUBLIC, "__version__"] if not re.search(rf"\b{name}\b", page)] == []


def test_the_list_of_names_is_what_type_checkers_and_star_imports_see():
    stub = Path(foretell.__file__).with_suffix(".pyi")
    imports = [node for node in ast.parse(stub.read_text(encoding="utf-8")).body if isinstance(node, ast.ImportFrom)]
    assert sorted(str(alias.asname) for node in imports for alias in node.names) == PUBLIC
    names: dict[str, object] = {}
    exec("from foretell import *", names)
    assert set(PUBLIC) <= set(names)
    assert stub.with_name("py.typed").is_file()


def test_all_errors_are_public():
    classes = {name: value for name, value in vars(foretell.errors).items() if isinstance(value, type)}
    errors = {name for name, value in classes.items() if issubclass(value, foretell.ForetellError)}
    public = {name for name in PUBLIC if name.endswith("Error") or name == "Interrupted"}
    assert errors == public - {"NoRoomError"}  # which has its home with the rule that it reports
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    tree = page.split("## Errors")[1].split("```")[1]
    assert set(re.findall(r"\b\w+Error\b|\bInterrupted\b", tree)) == public


def test_the_version_is_that_of_the_project():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    assert foretell.__version__ == project["project"]["version"]


def test_importing_the_package_imports_neither_torch_nor_pydantic():
    code = "import sys, foretell; dir(foretell); sys.exit('torch' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_public_name_is_an_attribute_error():
    name = "nonsense"
    with pytest.raises(AttributeError, match=name):
        getattr(foretell, name)


def test_the_verbs():
    assert {*VERBS, "tokenizer train"} == set(OPTIONS)


# function of a verb that --task or the kind of the model chooses: its options
CHOSEN = {
    "cli.forecast:train_forecast": named("size horizon hold-out no-hold-out season column start-from from-scratch")
    | SERIES_FORMAT
    | TRAINING,
    "cli.translate:train_translate": named("size batch-tokens separate-vocabularies dev reverse column") | TRAINING,
    "cli.finetune:finetune_text": named("old-domain text-field json") | TRAINING,
    "cli.finetune:finetune_chat": named("dev template truncate spell-tokens epochs lora show-batch") | TRAINING,
    "cli.chat:evaluate_chat": named("base questions limit html overwrite json") | MODEL,
    "cli.forecast:explain_forecast": named(
        "spans context series column json value html overwrite lens contributions heads ablate token at layer of"
    )
    | SERIES_FORMAT
    | LOADING,
    "cli.forecast:trace_forecast": named("context series column select out overwrite list json")
    | SERIES_FORMAT
    | LOADING,
    "cli.forecast:evaluate_forecast": named(
        "horizon windows stride test contexts series season levels per-series out overwrite samples seed column json"
    )
    | SERIES_FORMAT
    | LOADING,
}


def options_of(app: App, *path: str) -> set[str]:
    """The long options of a verb, as the whole application parses it."""
    verb = app
    for name in path:
        verb = verb[name]
    arguments = verb.assemble_argument_collection(default_parameter=app.default_parameter)
    return {name for argument in arguments for name in argument.names if name.startswith("--")}


@pytest.mark.parametrize("function", CHOSEN)
def test_the_options_of_a_chosen_function(function):
    app = make_app()
    app.command(f"foretell.{function}", name="verb")
    assert options_of(app, "verb") == CHOSEN[function]


@pytest.mark.parametrize("verb", OPTIONS)
def test_the_options_of_a_verb(verb):
    assert options_of(make_app(), *verb.split()) == OPTIONS[verb]
