"""The sampling options of `foretell generate` and `chat`, generated from the fields of `SamplingConfig`."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Parameter

from foretell.cli import arguments
from foretell.config.sampling_options import SamplingFields
from foretell.errors import DataError, UsageError
from foretell.storage.files import JSON_LIMIT

TYPED: dict[str, Any] = {"logit_bias": list[str], "ban": list[str], "json_schema": Path}  # types that differ


@dataclass(frozen=True)
class GivenSampling:
    """The sampling options on the command line, None if left out; fields as in `SamplingFields`."""

    def given(self) -> dict[str, Any]:
        """The given options as keywords of `foretell.generate`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value is not None}
        if "logit_bias" in given:
            given["logit_bias"] = dict(map(parse_bias, given["logit_bias"]))
        if "json_schema" in given:
            given["json_schema"] = read_schema(given["json_schema"])
        return given

    def check(self) -> None:
        """Refuse invalid values before a model is loaded."""
        from foretell.config.sampling import SamplingConfig

        needs_tokenizer = ("logit_bias", "ban")
        config = SamplingConfig(**{name: value for name, value in self.given().items() if name not in needs_tokenizer})
        if config.regex is not None or config.json_schema is not None:
            from foretell.generation.constraint import make_grammar

            make_grammar(config)


def sampling_option(name: str, hint: Any) -> Any:
    """The type of an option with its parameters, from the annotation of a field."""
    default, kind = getattr(SamplingFields, name), TYPED.get(name, hint.__origin__)
    help = next(text for text in hint.__metadata__ if isinstance(text, str))
    parameter = Parameter(
        help=help + (f" (default: {default:g})." if isinstance(default, int | float) else "."),
        consume_multiple=False,
        allow_leading_hyphen=kind in (list[str], str | None),
    )
    return Annotated[kind | None, parameter]


if TYPE_CHECKING:
    SamplingArguments = GivenSampling
else:
    HINTS = get_type_hints(SamplingFields, include_extras=True)
    SamplingArguments = make_dataclass(
        "SamplingArguments",
        [(name, sampling_option(name, hint), None) for name, hint in reversed(HINTS.items())],  # most used first
        bases=(GivenSampling,),
        namespace={"__module__": __name__},  # by default `types`, which cyclopts treats as a built-in type
        frozen=True,
    )

Sampling = Annotated[SamplingArguments, Parameter(name="*")]
SAMPLING_DEFAULTS = SamplingArguments()


def read_schema(file: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        schema = json.loads(arguments.read_named(file, "--json-schema", JSON_LIMIT))
    except json.JSONDecodeError as error:
        raise DataError(f"--json-schema {file} is not JSON: {error}") from None
    except (ValueError, RecursionError) as error:  # a number with thousands of digits, or such deep nesting
        reason = "nested too deeply" if isinstance(error, RecursionError) else "a number with too many digits"
        raise DataError(f"--json-schema {file} is not readable JSON: {reason}") from None
    if not isinstance(schema, dict):
        raise DataError(f"--json-schema {file} holds {type(schema).__name__}, and a schema is an object")
    return schema


def parse_bias(text: str) -> tuple[str, float]:
    """Split `TOKEN=NUMBER`; the token may contain `=`."""
    token, _, number = text.rpartition("=")
    try:
        if not token:
            raise ValueError
        return token, float(number)
    except ValueError:
        raise UsageError(f"--logit-bias takes TOKEN=NUMBER, such as ' the=-5' or '#262=3', not '{text}'") from None
