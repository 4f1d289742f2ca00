"""An option that cannot have an effect is refused or named on stderr; none is dropped silently."""

from __future__ import annotations

import shlex

import pytest

from foretell.cli.example_files import write_examples
from tests.design.test_surface import CHOSEN, OPTIONS, named

PLAN = "plan --size tiny --gpu a100"
# For each function, options that have an effect only in some commands, with a command in which they have none
CASES: dict[str, dict[str, str]] = {
    "predict": {
        option: f"predict primer 'a text' --{option} {value}"
        for option, value in {
            "column": "text", "choice-column": "a", "columns": "text,label", "encoding": "latin-1", "out": "x.csv"
        }.items()
    },
    "demo": {"minutes": "demo --files --minutes 1", "out": "demo --files --out runs/x"},
    "lesson": {
        "weights": "lesson toy --weights x", "at": "lesson toy --at 1", "seed": "lesson mask --seed 1",
        "model": "lesson toy --model x", "ask": "lesson mask --ask x", "break": "lesson toy --break",
        "out": "lesson toy --out x", "open": "lesson toy --open", "exercise": "lesson --exercise 1",
        "html": "lesson --html x.html", "text": "lesson toy --text x",
    },
    "train": {
        "strict": "train my.txt --strict", "json": "train my.txt --json",
        "start-from": "train my.txt --start-from ''", "tokenizer": "train my.txt --tokenizer=",
    },
    "finetune": {
        "dev-fraction": "finetune primer reviews.csv --dev reviews.csv --dev-fraction 0.2",
        "decimal": "finetune primer reviews.csv --decimal ,",
    },
    "generate": {
        "file": "generate primer The --file my.txt", "prompt-file": "generate primer The --prompt-file my.txt",
        "progress": "generate primer The --progress", "ids": "generate primer '1 2' --ids --allow-special",
    },
    "next": {"file": "next primer The --file my.txt"},
    "score": {"file": "score primer The --file my.txt"},
    "translate": {
        "beam": "translate x a --temperature 1 --beam 2",
        "length-penalty": "translate x a --temperature 1 --length-penalty 1",
    },
    "info": {
        "names": "info --machine --names", "kernels": "info --machine --kernels", "verify": "info gpt2 --verify"
    },
    "convert": {
        "group": "convert primer out --group 8", "head": "convert primer out --to int8 --head int8",
        "keep": "convert primer out --to gguf --keep '**'", "calibrate": "convert primer x --to int8 --calibrate x",
        "text": "convert primer out --to peft --text my.txt", "device": "convert primer out --to gguf --device cpu",
        "family": "convert primer out --family gpt2", "dtype": "convert primer out --to int4 --dtype float32",
    },
    "runs": {"png": "runs x --delete --png y.png", "json": "runs x --delete --json"},
    "explain": {
        option: f"explain primer The --{option} {value}".rstrip()
        for option, value in {
            "token": "x", "at": "0", "layer": "0", "against": "x", "with": "mean", "label": "x", "pieces": ""
        }.items()
    },
    "trace": {
        option: f"trace primer --list --{option} {value}".rstrip()
        for option, value in {"ids": "", "allow-special": "", "as-task": "", "pair": "x"}.items()
    },
    "cli.forecast:train_forecast": {
        "start-from": "train --task forecast passengers.csv --start-from ''",
    },
    "cli.forecast:evaluate_forecast": {
        "stride": "evaluate almanac passengers.csv --stride 3",
        "horizon": "evaluate almanac passengers.csv --test passengers.csv --horizon 3",
        "windows": "evaluate almanac passengers.csv --test passengers.csv --windows 3",
    },
    "cli.forecast:explain_forecast": {"spans": "explain almanac passengers.csv --heads --spans 3"},
    "cli.forecast:trace_forecast": {
        "context": "trace almanac --list --context 3", "series": "trace almanac --list --series y",
        "date-format": "trace almanac --list --date-format %Y",
    },
}  # fmt: skip
# All other options, which every command of a verb obeys, or refuses by a test of that verb
OBEYED = named(
    "ablate adapter allow-special answer-field as-task at ban base batch-tokens best-by "
    "calibrate check checkpoint-activations checkpoint-every choice-column class-weights column columns "
    "config context contexts contributions date-format decimal delete dev device draft dropout dtype "
    "encoding epochs every exportable family file files frequency-penalty from-scratch gpu "
    "gpus grace group group-column head head-dropout heads help-config hold-out horizon host html "
    "id-column ids json json-schema keep key-file kind label-column layer lens levels limit list "
    "lm-weight logit-bias look-budget lora loss-on machine max-requests max-tokens memory min-p "
    "min-tokens minimum minutes model n no-hold-out no-key no-repeat-ngram of old-domain only open out overwrite pair "
    "parallel patch-from paths per-series plot pool port prediction presence-penalty private "
    "prompt-field quantize questions receipt regex repetition-penalty report resume reverse rows "
    "sample-prompt samples season seed select separate-vocabularies separator series set "
    "show-batch size slide special speculate spell-tokens split start-token step steps stop strict "
    "strict-fields stride system target target-column task temperature template test text text-column "
    "text-field time-column timings to token tokens top top-k top-p truncate update value verify "
    "vocab-size word-dropout workers "
)
COMMANDS = [(option, command) for cases in CASES.values() for option, command in cases.items()]


@pytest.mark.parametrize(("option", "command"), COMMANDS, ids=[command for _, command in COMMANDS])
def test_an_option_without_effect_is_refused_by_its_name(option, command, foretell, tmp_path):
    write_examples(tmp_path)
    outcome = foretell(*shlex.split(command))
    assert f"--{option}" in outcome.err, outcome.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("function", {**OPTIONS, **CHOSEN})
def test_every_option_is_declared(function):
    options = {**OPTIONS, **CHOSEN}[function]
    cases = {f"--{option}" for option in CASES.get(function, {})}
    assert cases <= options and options - cases <= OBEYED
