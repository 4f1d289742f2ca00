"""`foretell lesson [NAME]`: shows the worked examples and checks their figures."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.cli.terminal import WIDTH, ProgressLine, note, print_json, results, write_document, write_page
from foretell.errors import LessonError, UsageError
from foretell.lessons.registry import ENTRIES, EXERCISES, LessonEntry, find_lesson, make_lesson
from foretell.storage.files import check_target, check_writable

if TYPE_CHECKING:
    from foretell.lessons.exercise import Exercise
    from foretell.lessons.lesson import Lesson, LessonReport
    from foretell.lessons.translation import LiveTranslation

LONGEST_REPLY = 1000  # characters
SHOWN_ONLY = ("at", "model", "ask", "out", "open", "break")  # options that affect only the display, not the checks


def lesson(
    name: Annotated[str | None, Parameter(help="A lesson's name, or E1 to E7 (none: list all lessons).")] = None,
    /,
    *,
    check: Annotated[bool, Parameter(help="Check the figures of one lesson or of all.")] = False,
    exercise: Annotated[int | None, Parameter(help="Ask exercise 1, 2 or 3, and check the answer.")] = None,
    html: Annotated[arguments.Output, Parameter(help="Write the lesson as a page.")] = None,
    weights: Annotated[str | None, Parameter(help="gpt2: a directory with GPT-2.")] = None,
    at: Annotated[int | None, Parameter(help="gpt2: one more position to show.")] = None,
    text: Annotated[str | None, Parameter(help="smallest: your own sentence of 2 to 8 words.")] = None,
    seed: Annotated[int | None, Parameter(help="smallest, toy: the seed of the weights.")] = None,
    model: Annotated[str | None, Parameter(help="translation: a MODEL that translates a sentence live.")] = None,
    ask: Annotated[str | None, Parameter(help="toy, translation: what the trained model is asked.")] = None,
    break_: Annotated[bool, Parameter(name="--break", help="mask: show a model that is refused.")] = False,
    out: Annotated[arguments.Output, Parameter(help="sort, induction: save the model.")] = None,
    open_page: Annotated[
        bool, Parameter("--open", help="sort, induction: save the model, in runs/ unless --out, and serve its page.")
    ] = False,
    overwrite: arguments.Overwrite = False,
    json: arguments.Json = False,
) -> None:
    """How a decoder works, in short lessons with every number shown.

    --check compares the computed figures with those that the sources print; exit code 1 if one differs. --exercise
    prints a question and reads the answer from standard input.
    """
    values = {"text": text, "weights": weights, "at": at, "seed": seed, "model": model, "ask": ask, "out": out}
    given = {option: value is not None for option, value in values.items()}
    given |= {"break": break_, "open": open_page}
    entries = [find_lesson(name)] if name is not None else list(ENTRIES)
    refuse_other_lessons_options(name, entries, [option for option, is_given in given.items() if is_given], check)
    if exercise is not None:
        refuse_with_exercise(exercise, name, {"check": check, "html": html is not None, **given})
    if check and (shown_only := [option for option in SHOWN_ONLY if given[option]]):
        raise UsageError(f"--check covers everything; leave out --{shown_only[0]}, which only changes what is shown")
    if html is not None and (check or json or name is None):
        raise UsageError("--html writes one lesson: foretell lesson NAME --html FILE, without --check or --json")
    if seed is not None and not 0 <= seed < 2**63:
        raise UsageError(f"--seed {seed}: give 0 or more, and less than 2**63")
    if ask is not None and model is None and name is not None and entries[0].name == "translation":
        raise UsageError("--ask needs a model that translates: foretell lesson translation --model MODEL --ask TEXT")
    if name is None and not check:
        list_lessons(json)
        return
    if html is not None:
        check_target(html, overwrite=overwrite)
    if out is not None:
        check_writable(out)
    if not check:
        note("computing ...")
    options = {
        "smallest": {"text": text, "seed": seed},
        "gpt2": {"weights": weights, "at": at},
        "toy": {"seed": seed, "question": ask},
        "translation": {"live": live_translation(model, ask) if model is not None else None},
        "mask": {"broken": break_},
    }
    if check:
        check_lessons(entries, options, json)
    else:
        made = make_lesson(entries[0].name, **options.get(entries[0].name, {}))
        if exercise is not None:
            ask_exercise(made.exercises()[exercise - 1], json)
            return
        show(entries[0], made, html, json)
        if out is not None or open_page:
            save_trained(made, Path("runs", made.name) if out is None else out, open_page)


def refuse_with_exercise(exercise: int, name: str | None, given: dict[str, bool]) -> None:
    """Raise a `UsageError` for an exercise that does not exist, or an option that has no effect on one."""
    if not 1 <= exercise <= EXERCISES or name is None:
        what = "give the name of a lesson" if name is None else f"a lesson has {EXERCISES}"
        raise UsageError(f"--exercise {exercise}: {what}: foretell lesson smallest --exercise 1")
    if without_effect := [option for option in ("check", "html", *SHOWN_ONLY) if given[option]]:
        raise UsageError(f"--exercise asks one question; leave out --{without_effect[0]}, which has no effect on it")


def ask_exercise(exercise: Exercise, json: bool) -> None:
    """Print the question, read an answer from standard input, and print whether it is right."""
    if not json:
        write_document(textwrap.fill(exercise.question, WIDTH))
    reply = sys.stdin.readline(LONGEST_REPLY).strip() if sys.stdin is not None else ""
    if not reply:
        raise UsageError("no answer on standard input: type a number or a word, or pipe it: echo 0.5 | foretell ...")
    shown = textwrap.fill(exercise.verdict(reply), WIDTH, subsequent_indent="  ")
    print_json(exercise.to_json(reply)) if json else write_document(shown)


def save_trained(made: Lesson, out: Path, open_page: bool) -> None:
    """Save the lesson's model, and serve it if its page is requested."""
    from foretell.cli.serve import serve
    from foretell.lessons.trained import TrainedLesson

    assert isinstance(made, TrainedLesson), "checked by refuse_other_lessons_options"
    made.save(out)
    note(f"{out}: foretell serve {out} --open")
    if open_page:
        serve([str(out)], port=0, open_page=True)


def refuse_other_lessons_options(name: str | None, entries: list[LessonEntry], given: list[str], check: bool) -> None:
    """Raise a `UsageError` for an option that none of the chosen lessons accepts."""
    for option in given:
        owners = [entry.name for entry in ENTRIES if option in entry.options]
        if not any(option in entry.options for entry in entries) or (name is None and not check):
            raise UsageError(
                f"--{option} is for the lesson {' and '.join(owners)}: foretell lesson {owners[0]} --{option}"
            )


def live_translation(model: str, sentence: str | None) -> LiveTranslation:
    """The translation of a sentence (by default the lesson's) by a model of `train --task translate`."""
    from foretell.cli.translate import translate_step_by_step
    from foretell.lessons.translation import SENTENCE, LiveTranslation

    sentence = SENTENCE if sentence is None else sentence
    steps, translation = translate_step_by_step(model, sentence)
    return LiveTranslation(model, sentence, steps, translation)


def list_lessons(json: bool) -> None:
    """Print the lessons' names and titles."""
    if json:
        print_json({"lessons": [describe(entry) for entry in ENTRIES]})
        return
    for entry in ENTRIES:
        results().print(f"{entry.name:<12} {entry.alias:<3} {entry.title}")
    note("foretell lesson NAME shows one; foretell lesson --check checks the figures of all")


def describe(entry: LessonEntry) -> dict[str, Any]:
    """One lesson of the list, for JSON."""
    return {"name": entry.name, "alias": entry.alias or None, "title": entry.title, "source": entry.source}


def show(entry: LessonEntry, made: Lesson, html: Path | None, json: bool) -> None:
    """Show a lesson on the terminal, as a page, or as text in JSON."""
    if html is not None:
        write_page(html, entry.title, made)
    elif json:
        print_json({**describe(entry), "text": str(made)})
    else:
        write_document(str(made))


def check_lessons(entries: list[LessonEntry], options: dict[str, dict[str, Any]], json: bool) -> None:
    """Check the lessons with their options, and print the reports; a wrong figure is a `LessonError`."""
    reports = []
    for index, entry in enumerate(entries, start=1):
        with ProgressLine("computing") as progress:
            progress.show(f"{entry.name}, {index} of {len(entries)}")
            reports.append(make_lesson(entry.name, **options.get(entry.name, {})).report())
        if not json:
            show_report(reports[-1])
    if json:
        print_json({"lessons": [report.to_json() for report in reports]})
    failed = [report.name for report in reports if report.failures]
    if failed:
        count = sum(len(report.failures) for report in reports)
        what = (
            "1 figure differs from its computed value"
            if count == 1
            else f"{count} figures differ from their computed values"
        )
        raise LessonError(f"{what}, in {', '.join(failed)}")


def show_report(report: LessonReport) -> None:
    """Print a line for the lesson and one for each figure that differs."""
    good = len(report.checks) - len(report.failures)
    counts = f"{good} of {len(report.checks)} figures agree" if report.failures else f"{good} figures agree"
    results().print(f"{report.name:<12} {report.status:<8} {counts}")
    for failure in report.failures:
        results().print(f"  {failure.difference()}")
    if report.skipped:
        results().print(f"  skipped: {report.skipped}")
