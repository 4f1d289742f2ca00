"""The size of the code: files and lines per package may go down; raising a limit needs a reason here.

`python tests/design/test_size.py` prints the table of the present numbers, to paste below.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "foretell"
TOP = "(top)"  # files that are in no package

# package: files, lines. Lower a number when the package shrinks; never raise one here, add a line to RAISED.
LIMITS = {
    "(top)": (15, 1929),
    "cli": (24, 4612),
    "config": (4, 554),
    "convert": (10, 2355),
    "data": (11, 2450),
    "distributed": (4, 416),
    "evaluation": (3, 471),
    "finetuning": (23, 3322),
    "forecasting": (11, 1813),
    "generation": (9, 1732),
    "inference": (4, 832),
    "insight": (21, 4442),
    "lessons": (12, 2612),
    "model": (38, 6404),
    "planning": (4, 977),
    "pretraining": (9, 1518),
    "primer": (2, 39),
    "quantization": (3, 353),
    "runs": (6, 1085),
    "saved_model": (3, 481),
    "serving": (23, 3152),
    "session": (10, 1954),
    "text": (10, 2540),
    "textbook": (5, 1097),
    "training": (7, 1060),
    "translation": (10, 1659),
    "typesetting": (5, 1058),
}
# (package, files, lines, the reason): what a package may have above its limit
RAISED: list[tuple[str, int, int, str]] = [
    ("cli", 0, 16, "chat: a NUL in a name, an unknown home and endless input are errors of one line"),
    ("finetuning", 0, 6, "conversations: roles and parts of a wrong type are errors of one line"),
    ("insight", 0, 24, "the weights of the last query and the logits of one position, without all others"),
    ("model", 0, 10, "mask.py: the mask of the last queries, which insight needs"),
    (
        "(top)",
        2,
        465,
        "trainings.py: train and finetune, typed for editors; norms.py: the record of a norm; files that users name; "
        "device.py: the name of a dtype, from session and insight",
    ),
    ("config", 0, 27, "descriptions of the fields, from cli, which --help-config shows"),
    ("data", 0, 21, "batches count the tokens that the model reads, without padding; limits of a zip as a whole"),
    ("text", 0, 6, "long texts of a batch are encoded in pieces"),
    ("training", 0, 8, "steps count the tokens that the model reads, without padding"),
    ("translation", 0, 5, "batches count the tokens of both languages, without padding"),
    ("evaluation", 0, 8, "results describe themselves as documents, which cli did"),
    (
        "finetuning",
        0,
        470,
        "the interface of a kind, in place of branches on the task; a fifth kind, tags; the memory of long texts; "
        "batches count tokens",
    ),
    (
        "forecasting",
        0,
        42,
        "an evaluation describes itself as a document, which cli did; independent draws for each series",
    ),
    ("generation", 0, 51, "limits of the size of a constraint, and errors instead of a dropped constraint"),
    ("inference", 0, 32, "evaluate for Python, which cli did: a file of texts or questions to its evaluation"),
    ("lessons", 0, 106, "the completed layer of the first text with its numbers, and the encoder of the last"),
    (
        "quantization",
        0,
        69,
        "quantize for Python, which cli did: texts to measure and calibrate on; the report is a document",
    ),
    ("cli", 1, 8, "sampling.py: verbs that do not sample start without the sampling options"),
    ("runs", 0, 117, "a table of runs describes itself as a document, which cli did; what --delete may remove"),
    (
        "typesetting",
        0,
        49,
        "the reader of formulas in LaTeX's notation, for lessons in Markdown; text bars, from four packages; NumPy is "
        "imported in functions",
    ),
    (
        "(top)",
        0,
        36,
        "train and forecast take DataFrames",
    ),
    (
        "cli",
        0,
        126,
        "options for the format of series; evaluate --task chat; folds and groups; --dev and --reverse of translation",
    ),
    (
        "data",
        0,
        3,
        "limits of compressed text that is read as a stream",
    ),
    (
        "finetuning",
        4,
        603,
        "a tuned linear baseline, cross-validation and groups; the evaluation of conversations",
    ),
    (
        "forecasting",
        4,
        847,
        "formats of dates and tables, found or named; DataFrames; naive forecasts in evaluations; the choice of a size",
    ),
    (
        "model",
        0,
        31,
        "the parents of the kernel cache are checked",
    ),
    (
        "pretraining",
        0,
        6,
        "the context of rows",
    ),
    (
        "runs",
        0,
        59,
        "the record of the time that a training has spent, and of its folds",
    ),
    (
        "session",
        1,
        158,
        "trainings of a given wall time; the choice of a size that fits the time, for every task; memory that is kept",
    ),
    (
        "text",
        0,
        57,
        "words of a megabyte are cut before a vocabulary is made, and signals end that",
    ),
    (
        "training",
        1,
        162,
        "trainings of a given wall time",
    ),
    (
        "translation",
        0,
        75,
        "held-out pairs from a file, the other direction, and the choice of a size",
    ),
    (
        "typesetting",
        0,
        10,
        "texts shortened to one line, from session",
    ),
    ("(top)", 1, 99, "installation.py: versions, processor and extras without torch; the options of new fine-tunings"),
    (
        "cli",
        0,
        141,
        "warm, info --machine; explain --prediction by word; calibrated intervals; a check of the source language",
    ),
    ("convert", 0, 1, "ensembles are refused by every exporter"),
    (
        "finetuning",
        2,
        460,
        "words and Shapley values of a prediction; models from random weights; the mixture with a linear model",
    ),
    ("forecasting", 2, 422, "calibration of intervals on held-out windows; forecasts explained by spans"),
    ("generation", 0, 21, "rows without filters are sampled together; the first pass with plain modules"),
    ("insight", 2, 234, "Shapley values, exact or sampled; the effects of words"),
    ("model", 1, 211, "kernels are compiled in the background: the kernels that a model needs, and which are compiled"),
    ("runs", 0, 17, "files of a checkpoint that are replaced after the last step"),
    ("saved_model", 0, 5, "the parts of calibration and of languages"),
    ("session", 0, 19, "a lost record of the time is logged"),
    ("text", 1, 87, "words as groups of tokens, in all scripts"),
    ("training", 0, 11, "trainings that end when the data is learned"),
    ("translation", 1, 243, "the check of the source language; the length penalty chosen on held-out pairs"),
    ("(top)", 0, 18, "penalties among the sampling options"),
    ("cli", 1, 132, "serve and its options"),
    (
        "finetuning",
        1,
        54,
        "tables of an attribution apart from its computation; recipes by what a training starts from",
    ),
    ("forecasting", 0, 25, "progress by context; windows that are kept, and cut once; one more import"),
    (
        "generation",
        5,
        521,
        "log-probabilities, errors of one sequence, pauses, turns and parts of prompts, for a server; a list of "
        "sequences apart from the scheduler",
    ),
    ("inference", 1, 38, "a continuation apart from the program that steps the scheduler"),
    (
        "model",
        1,
        300,
        "float32 products without bfloat16 instructions; integer sums on AVX2; copies with their own hooks",
    ),
    ("text", 0, 34, "lower-case words; the bytes of a token"),
    ("training", 0, 5, "the time that closing a training takes"),
    ("serving", 1, 28, "changes.py: the operations of `change`, for the passes of the explorer too"),
    ("(top)", 1, 25, "safetensors_header.py: the header of weights without torch"),
    ("cli", 0, 56, "info from the files of a model, without torch; names on request"),
    ("config", 0, 13, "two formulas of cost, from model, which imports torch"),
    ("convert", 0, 2, "imports of the header"),
    ("saved_model", 1, 56, "config_file.py: the description of a saved model without torch"),
    (
        "insight",
        2,
        251,
        "the page's sections: a registry of names and needs, from which a file and a live page take what they show",
    ),
    ("(top)", 0, 8, "files.py: a removed directory, refused for lines and for checkpoints"),
    ("cli", 0, 1, "one more line of imports"),
    ("finetuning", 0, 1, "one more line of imports"),
    ("insight", 1, 18, "the values that a trace holds apart from the trace"),
    ("model", 1, 25, "pairs of tiles and rows apart from the instructions"),
    ("pretraining", 0, 3, "imports from more files"),
    ("runs", 2, 50, "the record and the files of lines apart from the run"),
    ("session", 1, 19, "the declaration of a training apart from the protocol"),
    ("translation", 0, 1, "one more line of imports"),
    (
        "serving",
        3,
        320,
        "patch_map.py, values.py, page_file.py: the map of patches, the operands of a number and the file of a pass",
    ),
    (
        "inference",
        2,
        483,
        "answer_receipt.py, verification.py: receipts of answers as digests, and their check on another machine",
    ),
    ("generation", 1, 44, "logit_digests.py: digests of logits, and a Merkle tree over them"),
    ("cli", 1, 70, "verify: its options and output"),
    ("model", 0, 18, "strict.py: activations and softmax with the same bits on AVX2 and AVX-512"),
    ("(top)", 0, 9, "a digest of weights, which loading.py had; errors in the words of the command line"),
    ("insight", 0, 45, "explain: weights have addresses; each operand of a listing has one; ids in place of a text"),
    ("cli", 0, 58, "push: its options, and the export that it shares with convert"),
    ("convert", 1, 128, "push.py: model cards and uploads to the Hub"),
    ("runs", 0, 17, "a digest of the training tokens, for model cards"),
    ("serving", 1, 140, "explorer.py: the live page's files and the sections of a pass"),
    ("insight", 0, 20, "the live page's document and files"),
    ("cli", 0, 10, "serve --open: its option and line"),
    (
        "insight",
        4,
        760,
        "the page shows the whole block: the values of a layer in the order of the pass, the strongest neurons and the "
        "tokens that they write, contributions to logits; sections of single positions",
    ),
    ("forecasting", 0, 13, "forecasts display themselves in notebooks"),
    ("insight", 0, 15, "traces display themselves in notebooks"),
    ("insight", 0, 40, "the lens of one position, which a live page fetches"),
    ("serving", 0, 8, "no section after the end of a text"),
    ("generation", 0, 30, "NoRoomError: a prompt that does not fit, in the words of each interface"),
    ("model", 0, 69, "attention with dropout in the cache of a core, in training on a CPU"),
    ("(top)", 0, 5, "the size of a stored tensor"),
    ("config", 0, 10, "the settings of quantised weights, from model, which imports torch"),
    ("saved_model", 0, 37, "quantised weights as their files describe them"),
    ("model", 0, 70, "attention with dropout in the cache of a core, in training on a CPU"),
    ("(top)", 0, 1, "the name of the file of examples"),
    ("cli", 0, 17, "lesson sort: its options; serve reads examples"),
    ("insight", 0, 1, "a structure that is known is not computed in every pass"),
    ("lessons", 1, 165, "sort: a sorter that is trained, saved and opened"),
    ("saved_model", 0, 7, "the file of examples"),
    ("serving", 0, 38, "examples of the live page"),
]

SMALL = 60  # lines; a smaller module with a single importer belongs in it
# Modules that are kept: take one out when it is merged, and give a reason for one that is new
KEPT: dict[str, str] = {}
# A function name in three packages of one layer is a protocol, or a copy
PROTOCOL_NAMES: set[str] = set()


def package_of(path: Path, source: Path = SOURCE) -> str:
    """`model` for src/foretell/model/kernels/matmul.py."""
    parts = path.relative_to(source).parts
    return parts[0] if len(parts) > 1 else TOP


def measure(source: Path = SOURCE) -> dict[str, tuple[int, int]]:
    """The files and lines of each package."""
    lengths: dict[str, list[int]] = defaultdict(list)
    for path in source.rglob("*.py"):
        lengths[package_of(path, source)].append(len(path.read_text("utf-8").splitlines()))
    return {package: (len(lines), sum(lines)) for package, lines in sorted(lengths.items())}


def limits() -> dict[str, tuple[int, int]]:
    """LIMITS with RAISED."""
    total = dict(LIMITS)
    for package, files, lines, _ in RAISED:
        before = total.get(package, (0, 0))
        total[package] = (before[0] + files, before[1] + lines)
    return total


def excesses(sizes: dict[str, tuple[int, int]], allowed: dict[str, tuple[int, int]]) -> list[str]:
    """The packages that are too large, one line each."""
    return [
        f"{package}: {files} files, {lines} lines; the limit is {limit[0]}, {limit[1]}"
        for package, (files, lines) in sizes.items()
        if files > (limit := allowed.get(package, (0, 0)))[0] or lines > limit[1]
    ]


def table(sizes: dict[str, tuple[int, int]]) -> str:
    return "\n".join(f'    "{package}": ({files}, {lines}),' for package, (files, lines) in sizes.items())


def test_no_package_is_larger_than_its_limit():
    sizes = measure()
    assert excesses(sizes, limits()) == [], f"if packages were merged or renamed, the table is\n{table(sizes)}"


def test_limits_of_packages_that_are_gone_are_removed():
    assert set(LIMITS) <= set(measure())


def test_every_raised_limit_has_a_reason():
    assert [entry for entry in RAISED if len(entry[3].split()) < 4] == []


def test_a_package_above_its_limit_is_detected():
    assert excesses({"a": (2, 10), "b": (3, 9)}, {"a": (2, 10), "b": (2, 9)}) == [
        "b: 3 files, 9 lines; the limit is 2, 9"
    ]
    assert len(excesses({"new": (1, 1)}, {})) == 1


# --- small modules ----------------------------------------------------------------------------------------------------


def importers(source: Path) -> dict[str, set[str]]:
    """module -> the modules that import it; `__init__` files, which only repeat names, count for all who use them."""
    paths = {module_name(path, source): path for path in source.rglob("*.py")}
    importing: dict[str, set[str]] = defaultdict(set)
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif isinstance(node, ast.Import):
                imported = {alias.name for alias in node.names}
            else:
                continue
            for module in imported & paths.keys():
                importing[module].add(name)
    return importing


def module_name(path: Path, source: Path) -> str:
    """`foretell.model.mask` for src/foretell/model/mask.py."""
    return ".".join(path.relative_to(source.parent).with_suffix("").parts).removesuffix(".__init__")


def small_modules_with_one_importer(source: Path) -> list[str]:
    """Modules that belong in their only importer."""
    importing = importers(source)
    found = []
    for path in sorted(source.rglob("*.py")):
        lines, users = len(path.read_text("utf-8").splitlines()), importing[module_name(path, source)]
        if lines < SMALL and path.stem not in ("__init__", "__main__") and len(users) == 1:
            (user,) = users
            is_layer = (source.parent / user.replace(".", "/")).is_dir()  # an __init__ that others import from
            if not is_layer and user.split(".")[1] == path.relative_to(source).parts[0]:
                found.append(f"{path.relative_to(source)} ({lines} lines) is imported by {user} alone")
    return found


def test_no_small_module_has_a_single_importer_in_its_package():
    lines = small_modules_with_one_importer(SOURCE)
    assert [line for line in lines if line.split()[0] not in KEPT] == []
    assert {line.split()[0] for line in lines} == set(KEPT), "take out of KEPT what was merged"


def test_a_small_module_with_a_single_importer_is_detected(tmp_path):
    package = tmp_path / "foretell" / "text"
    package.mkdir(parents=True)
    (package / "small.py").write_text("def f():\n    return 1\n")
    (package / "user.py").write_text("from foretell.text.small import f\n")
    assert small_modules_with_one_importer(tmp_path / "foretell") == [
        "text/small.py (2 lines) is imported by foretell.text.user alone"
    ]
    (package / "other.py").write_text("from foretell.text import small\n")
    assert small_modules_with_one_importer(tmp_path / "foretell") == []


# --- one function, several copies -------------------------------------------------------------------------------------


def layers() -> list[set[str]]:
    """The packages that do not import each other, from the import order in the architecture page."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    return [set(re.findall(r"\w+", layer)) for layer in page.split("## Import order")[1].split("```")[1].split("<")]


def repeated_functions(source: Path, siblings: Iterable[set[str]]) -> dict[str, list[str]]:
    """Function name -> the packages of one layer, three or more, that define it at the top level of a module."""
    packages: dict[str, set[str]] = defaultdict(set)
    for path in source.rglob("*.py"):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                packages[node.name].add(package_of(path, source))
    return {
        name: sorted(defining & layer)
        for name, defining in sorted(packages.items())
        for layer in siblings
        if len(defining & layer) >= 3
    }


def test_no_function_is_defined_in_three_sibling_packages():
    repeated = repeated_functions(SOURCE, layers())
    assert {name: where for name, where in repeated.items() if name not in PROTOCOL_NAMES} == {}


@pytest.mark.parametrize(("name", "count"), [("start", 1), ("only_two", 0)])
def test_a_function_in_three_siblings_is_detected(tmp_path, name, count):
    for package in ("a", "b", "c"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "x.py").write_text("" if package == "c" and count == 0 else f"def {name}(): ...\n")
    assert len(repeated_functions(tmp_path, [{"a", "b", "c"}])) == count


if __name__ == "__main__":
    print(table(measure()))
