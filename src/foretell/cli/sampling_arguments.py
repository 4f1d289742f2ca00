"""The options of sampling, which `generate` and `chat` share."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from foretell.cli.arguments import Whole, decode_text
from foretell.errors import DataError, UsageError

Repeated = Parameter(negative="", consume_multiple=False, allow_leading_hyphen=True, show_default=False)


@dataclass(frozen=True)
class SamplingArguments:
    """Options that are left out have the defaults of `SamplingConfig`."""

    temperature: Annotated[
        float | None, Parameter(help="0 always takes the most likely token; default: 0.8.", show_default=False)
    ] = None
    top_k: Annotated[int | None, Whole, Parameter(help="Keep the k most likely tokens.", show_default=False)] = None
    top_p: Annotated[float | None, Parameter(help="Keep this much probability; default: 0.95.", show_default=False)] = (
        None
    )
    min_p: Annotated[
        float | None,
        Parameter(help="Drop what is less likely than this share of the most likely; default: 0.", show_default=False),
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Parameter(help="Above 1, tokens that occurred become less likely; default: 1.", show_default=False),
    ] = None
    no_repeat_ngram: Annotated[
        int | None, Whole, Parameter(help="No run of this many tokens occurs twice.", show_default=False)
    ] = None
    logit_bias: Annotated[
        list[str] | None, Repeated, Parameter(help="TOKEN=NUMBER, added to its logit; may be repeated.")
    ] = None
    ban: Annotated[list[str] | None, Repeated, Parameter(help="Never write this word; may be repeated.")] = None
    regex: Annotated[
        str | None,
        Parameter(
            help="The continuation matches this regular expression.", show_default=False, allow_leading_hyphen=True
        ),
    ] = None
    json_schema: Annotated[
        Path | None, Parameter(help="The continuation is JSON of the schema in this file.", show_default=False)
    ] = None
    min_tokens: Annotated[
        int | None, Whole, Parameter(help="The text cannot end before this many tokens.", show_default=False)
    ] = None
    seed: Annotated[
        int | None,
        Whole,
        Parameter(help="The same seed and prompts give the same text; default: 1.", show_default=False),
    ] = None

    def given(self) -> dict[str, Any]:
        """The options that were given, as the keywords of `foretell.generate`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value is not None}
        if "logit_bias" in given:
            given["logit_bias"] = dict(map(parse_bias, given["logit_bias"]))
        if "json_schema" in given:
            given["json_schema"] = read_schema(given["json_schema"])
        return given

    def check(self) -> None:
        """Refuse values that no model takes, before one is loaded."""
        from foretell.config import SamplingConfig

        needs_tokenizer = ("logit_bias", "ban")
        SamplingConfig(**{name: value for name, value in self.given().items() if name not in needs_tokenizer})


Sampling = Annotated[SamplingArguments, Parameter(name="*")]
DEFAULTS = SamplingArguments()


def read_schema(file: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        schema = json.loads(decode_text(file.read_bytes(), f"--json-schema {file}"))
    except OSError as error:
        raise DataError(f"--json-schema {file}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise DataError(f"--json-schema {file} is not JSON: {error}") from None
    if not isinstance(schema, dict):
        raise DataError(f"--json-schema {file} holds {type(schema).__name__}, and a schema is an object")
    return schema


def parse_bias(text: str) -> tuple[str, float]:
    """`TOKEN=NUMBER` as both; the token may contain `=`."""
    token, _, number = text.rpartition("=")
    try:
        return token, float(number)
    except ValueError:
        raise UsageError(f"--logit-bias takes TOKEN=NUMBER, such as ' the=-5' or '#262=3', not '{text}'") from None
