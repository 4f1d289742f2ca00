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

# package: files, lines. Lower a number when the package shrinks; never raise one here, add to RAISED.
LIMITS = {
    "(top)": (15, 1929),
    "cli": (24, 4612),
    "config": (4, 554),
    "convert": (10, 2355),
    "data": (11, 2450),
    "distributed": (4, 408),
    "evaluation": (3, 466),
    "finetuning": (23, 3322),
    "forecasting": (11, 1813),
    "generation": (9, 1732),
    "inference": (4, 832),
    "insight": (21, 4442),
    "lessons": (12, 2612),
    "model": (38, 6377),
    "planning": (4, 885),
    "pretraining": (9, 1504),
    "primer": (2, 39),
    "quantization": (3, 353),
    "runs": (6, 1085),
    "saved_model": (3, 481),
    "serving": (21, 3031),
    "session": (10, 1954),
    "text": (10, 2540),
    "textbook": (5, 1035),
    "training": (7, 1060),
    "translation": (10, 1659),
    "typesetting": (5, 1058),
}
# (package, files, lines, the reason): what a package may have above its limit; one entry for each package
RAISED: list[tuple[str, int, int, str]] = [
    (
        "(top)",
        6,
        923,
        "training for editors and DataFrames; files as users name them; headers and shapes of weights without torch; "
        "malloc, waiting threads; compiled activations have torch's name; how to forecast and translate; "
        "data must be paths; folders that cannot be written are refused first; "
        "messages of errors for requests, and with the line of the input; free memory is returned; "
        "rows in memory for finetune; "
        "one check for the types of arguments, and for plurals; "
        "messages with Python's keywords; wrong paths and globs; Ctrl-C during imports; presets are not models; "
        "heads in int4; explanations can be pickled; values of a series; probabilities of a text in one place",
    ),
    ("almanac", 2, 68, "the included forecaster: its recipe and training"),
    (
        "cli",
        5,
        862,
        "speedrun, whose record outlives Ctrl-C, serve, verify, push and warm; "
        "options of series, folds, sampling and lessons, with advice on wrong ones; heads in int4; ports; "
        "files, templates and constraints are checked before a model is loaded; a full or missing standard output; "
        "tables are not sentences; series without an origin; forecasters do not chat; unbuffered output; pairs "
        "in the other direction",
    ),
    (
        "config",
        0,
        81,
        "descriptions of fields for --help-config; costs and quantised weights without torch; "
        "heads that are rotated in part; minutes are checked before anything is read; "
        "minutes that are not numbers; heads in int4",
    ),
    (
        "convert",
        3,
        316,
        "push.py: model cards and uploads to the Hub; a Hugging Face directory without torch; "
        "Pythia, Phi, Phi-3 and StableLM; "
        "errors with the names of config.json; "
        "a config.json without a width of heads; arguments of another type; "
        "a directory is read back in one place, also for labels",
    ),
    (
        "data",
        2,
        207,
        "limits of compressed files; separators, encodings and line ends of tables; DataFrames and rows in memory; "
        "numbers with separators of thousands, read in one place for series and labels, with their largest; "
        "advice for frames; units after numbers",
    ),
    (
        "evaluation",
        1,
        97,
        "rows as training reads them; questions too long are left out, counted; replayed rows; the first loss of tasks",
    ),
    (
        "finetuning",
        5,
        1803,
        "tags, folds, groups, ensembles with a linear baseline, words with Shapley values; chats; rows in memory; "
        "advice on files and labels; columns without common names, by their cells; predictions with decimal commas; "
        "True as true; near-duplicates stay together; dicts are not texts; "
        "columns that are not those of the training are named",
    ),
    (
        "forecasting",
        7,
        2173,
        "formats of dates, numbers and tables; seasons; calibrated, combined and explained forecasts; "
        "synthetic series; one function for each phase of reading a table; "
        "values of another file by their times; the time of the closing report; "
        "forecasts with the separator of their file; times in milliseconds; impossible and missing days; periods",
    ),
    (
        "generation",
        7,
        765,
        "for a server: log-probabilities and ranks, errors of one sequence, pauses, parts of prompts, shorter for few; "
        "digests of logits; blocks with numbers that are not finite are cleared; constraints complete too early; "
        "recorded steps that other rows use; "
        "a missing setting of a sequence is one line; a constraint is checked without a model; "
        "prompt tokens that are scored, by that name",
    ),
    (
        "inference",
        3,
        569,
        "receipts of answers and their verification; evaluate from Python; texts of a file are embedded together",
    ),
    (
        "insight",
        22,
        3304,
        "the page opens every number, also of labels, series and encoders, in a file and live; one lens for explain, "
        "page and server; Shapley values; wrong types, globs and budgets are one line; "
        "values of a series in the outline; sublayers in words, once; changed attention is one part; "
        "one table of direct contributions, also to labels",
    ),
    ("lessons", 2, 309, "sort, induction: models that are trained and opened; the layer and encoder of two texts"),
    (
        "model",
        9,
        1503,
        "kernels compiled in the background, float32 and AVX2 products, attention with dropout, strict layers; "
        "blocks of the cache are cleared, no row reads padding; compiled activations for many rows; "
        "a pass that keeps its keys; compiled blocks with parallel parts; sums of softmax in one pass; "
        "float32 by oneDNN on AMD; rotary positions in encoder-decoder attention; "
        "wrong sizes of a cache are one line; "
        "arguments of another type; modules in a wrapper of the compiler are refused; "
        "whole passes in one call; blocks can be pickled; "
        "only where compiled code can read and watch all that the modules would; heads in int4",
    ),
    ("planning", 0, 2, "arguments of another type are refused; whole gradients of shards"),
    (
        "pretraining",
        3,
        270,
        "speedruns, whose records others repeat, without idle settings; a stop before the first step; plans",
    ),
    ("quantization", 0, 86, "quantize from Python; its report is a document; the type of a model; heads in int4"),
    (
        "runs",
        1,
        259,
        "records of time, folds and kept inputs; a table of runs and the reports and settings of all tasks",
    ),
    (
        "saved_model",
        1,
        94,
        "what a folder contains, and whether it fits, without torch; parts of calibration, languages, examples; the "
        "command for a model by its parts",
    ),
    (
        "serving",
        3,
        1028,
        "the explorer: passes of models for any task, operands, patch maps, page files, examples; the routes of tasks "
        "in messages; Python's usual collection of garbage; logits from kept keys before a pass; what models were "
        "opened from, and what a page file shows first; errors name the field of each route; refusals of headers, "
        "methods and bodies with their reason; log-probabilities of prompts in vLLM's shape; positions outside a pass; "
        "all types that a field may have; the lens of a pass that was kept; requests are freed without a collection; "
        "free memory is returned; "
        "changes to numbers too large to compute with are refused; counters and times of requests; vLLM's names of "
        "schemas and the known ones in errors; log-probabilities of echoed prompts by both fields; "
        "answers are counted after the warm-up; explained numbers that are NaN are refused; "
        "malformed bodies in chunks get an answer; a turn of the loop between choices; "
        "texts far longer than the context are not encoded; tool calls and other items by name; absolute addresses; "
        "fields that would change an answer are not ignored; values that were not computed are named",
    ),
    (
        "session",
        2,
        324,
        "trainings of a given time, with the size of the lowest expected loss; a default start; displays in notebooks",
    ),
    (
        "text",
        1,
        151,
        "words as groups of tokens in all scripts; long words are cut; the bytes of a token; one is kept; "
        "whole texts are not kept; names of built-in templates; short texts in batches; "
        "arguments and stop strings in another encoding",
    ),
    ("textbook", 0, -18, "heads that are rotated in part"),
    (
        "training",
        3,
        413,
        "trainings of a given wall time, or until the data is learned; gradients of chunks of logits; "
        "pace and loop are two files; arguments of another type; the most that is reserved for the end",
    ),
    (
        "translation",
        3,
        542,
        "held-out files, named columns, the check of the source language; the hypothesis closest to all; "
        "the length penalty by measurement; initial vectors; pairs whose sides are exchanged; mini; texts are strings",
    ),
    (
        "typesetting",
        0,
        43,
        "the reader of formulas for lessons in Markdown; bars and short lines from other packages; closer columns; "
        "short representations of results",
    ),
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


def test_a_package_is_raised_once():
    packages = [package for package, *_ in RAISED]
    assert packages == sorted(set(packages)), "a second entry adds to the first: make the two one"


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
