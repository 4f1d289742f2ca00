"""`Section`: the base class of every part of the configuration, which checks itself when it is made.

An error is one line: where, what, and the nearest key that exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic_core import ErrorDetails

from foretell.errors import ConfigError, did_you_mean

# the name of a field in another project -> foretell's name
ALIASES = {
    "n_layer": "num_layers",
    "n_layers": "num_layers",
    "num_hidden_layers": "num_layers",
    "n_head": "num_heads",
    "n_heads": "num_heads",
    "num_attention_heads": "num_heads",
    "n_kv_head": "num_kv_heads",
    "num_key_value_heads": "num_kv_heads",
    "n_embd": "width",
    "d_model": "width",
    "hidden_size": "width",
    "head_dim": "head_width",
    "n_inner": "feedforward_width",
    "intermediate_size": "feedforward_width",
    "block_size": "context_length",
    "n_positions": "context_length",
    "n_ctx": "context_length",
    "max_position_embeddings": "context_length",
    "layer_norm_epsilon": "norm_epsilon",
    "rms_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tie_embeddings",
    "sliding_window": "window",
    "max_iters": "steps",
    "warmup_iters": "warmup_steps",
    "eval_interval": "evaluate_every",
    "eval_every": "evaluate_every",
    "eval_steps": "evaluate_every",
    "grad_clip": "clip_norm",
    "min_learning_rate": "final_learning_rate_share",
}
# nanoGPT's names in a `training` section; with them, batch_size means the rows of one micro-batch
NANOGPT_TRAINING = {name: ALIASES[name] for name in ("max_iters", "warmup_iters", "eval_interval", "grad_clip")}
NANOGPT_TRAINING["min_lr"] = "final_learning_rate_share"
MOST_SHOWN = 80  # characters of a wrong value
LEAST_SHARE = 0.01  # a smaller final share is probably a learning rate given by mistake


def with_own_names(section: type[BaseModel], values: Any) -> Any:
    """Rename fields to foretell's names. The text `none` becomes None, which TOML cannot write."""
    if not isinstance(values, Mapping):
        return values
    nullable = {key for key, info in section.model_fields.items() if type(None) in get_args(info.annotation)}
    return {key: None if value == "none" and key in nullable else value for key, value in own_names(values).items()}


def own_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename fields to foretell's names; a field with two different values is a `ConfigError`."""
    given: dict[str, tuple[str, Any]] = {}
    for key, value in values.items():
        plain = str(key).replace("-", "_")
        other, first = given.setdefault(ALIASES.get(plain, plain), (plain, value))
        if first is not value and first != value:  # NaN is not equal to itself
            raise ConfigError(f"{other} = {first!r} and {plain} = {value!r} are the same setting; give one of them")
    return {own: value for own, (_, value) in given.items()}


def training_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """A user's `training` section under foretell's names.

    nanoGPT's `min_lr` becomes a share of `learning_rate`. A share that looks like a learning rate, and a nanoGPT recipe
    whose batch_size counts the rows of one micro-batch, are a `ConfigError` of one line.
    """
    given = {str(key).replace("-", "_"): value for key, value in values.items()}
    _refuse_nanogpt_batch(given)
    translated = own_names({key: value for key, value in given.items() if key != "min_lr"})
    share = translated.get("final_learning_rate_share")
    if isinstance(share, float) and 0 < share < LEAST_SHARE:
        raise ConfigError(
            f"training.final_learning_rate_share = {share:g} looks like a learning rate; it is the share of "
            "learning_rate at which the schedule ends: 0.1 is a tenth"
        )
    if "min_lr" in given:
        rates = given["min_lr"], translated.get("learning_rate")
        if share is not None or not all(isinstance(rate, int | float) and rate > 0 for rate in rates):
            raise ConfigError(
                f"training.min_lr = {rates[0]!r} is a learning rate: give learning_rate with it, or "
                "final_learning_rate_share = min_lr / learning_rate alone"
            )
        translated["final_learning_rate_share"] = rates[0] / rates[1]
    return translated


def _refuse_nanogpt_batch(given: Mapping[str, Any]) -> None:
    """Refuse a batch_size that counts rows per micro-batch, with the equivalent that counts rows per step."""
    rows, parts = given.get("batch_size"), given.get("gradient_accumulation_steps", 1)
    names = [name for name in NANOGPT_TRAINING if name in given]
    if names and isinstance(rows, int) and isinstance(parts, int) and parts > 1:
        renamed = ", ".join(f"{NANOGPT_TRAINING[name]} for {name}" for name in names)
        raise ConfigError(
            f"training: batch_size = {rows} with nanoGPT's {names[0]} would be the rows of one micro-batch, and "
            f"here it is all rows of a step; write batch_size = {rows * parts} with gradient_accumulation_steps = "
            f"{parts}, and {renamed}"
        )


FOLLOWS: Any = None  # the default of a field that follows from others, for type checkers; None itself is not valid
DERIVED_SIZES = ("num_kv_heads", "head_width", "feedforward_width")  # sizes of a model that follow from others


class SectionType(type(BaseModel)):
    """The class of `Section`: calling a section with wrong values raises a one-line `ConfigError`.

    Pydantic validates nested sections without this call, so its errors keep the whole path.
    """

    if not TYPE_CHECKING:  # a signature here would hide the fields from type checkers

        def __call__(cls, **values: Any) -> Any:
            return make_section(cls, values)


class Section(BaseModel, metaclass=SectionType):
    """A part of the configuration: frozen, and closed to unknown keys.

    Values that are unknown, missing, of the wrong type or contradictory raise a one-line `ConfigError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, values: Any) -> Any:
        return with_own_names(cls, values)


AnySection = TypeVar("AnySection", bound=Section)


def make_section(section: type[AnySection], values: Mapping[str, Any], where: str = "") -> AnySection:
    """A section from plain values, converting text; an error names the path of the field, below `where`."""
    try:
        return section.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_one_line(section, error.errors(include_url=False), where)) from None
    except UnicodeEncodeError:
        raise ConfigError(f"{where or 'a value'} contains an unpaired surrogate, which UTF-8 cannot encode") from None


def check_given(section: type[Section], values: Mapping[str, Any], where: str) -> None:
    """Refuse invalid values of some fields, under foretell's names; other fields may be missing."""
    try:
        section.model_validate(dict(values))
    except ValidationError as error:
        if findings := [each for each in error.errors(include_url=False) if each["loc"] and each["loc"][0] in values]:
            raise ConfigError(_one_line(section, findings, where)) from None


def check_known(key: str, known: tuple[str, ...], what: str) -> None:
    """Refuse an unknown key; the message suggests the nearest known one."""
    if key not in known:
        raise ConfigError(f"unknown {what} '{key}'{did_you_mean(key, known) or ' (known: ' + ', '.join(known) + ')'}")


def raise_first(problems: Mapping[str, bool]) -> None:
    """Raise a `ValueError` with the first message whose condition is true."""
    for message, is_wrong in problems.items():
        if is_wrong:
            raise ValueError(message)


def _one_line(section: type[BaseModel], findings: Sequence[ErrorDetails], where: str) -> str:
    """The first of pydantic's errors as `where.field: what (what to do)`."""
    # A size that follows from others is missing only because one of the others is wrong
    primary = [finding for finding in findings if not finding["loc"] or finding["loc"][-1] not in DERIVED_SIZES]
    finding = (primary or findings)[0]
    path = ".".join(str(part) for part in (*([where] if where else []), *finding["loc"]))
    if finding["type"] == "extra_forbidden":
        known = tuple(_section_at(section, finding["loc"][:-1]).model_fields)
        near = did_you_mean(str(finding["loc"][-1]), known)
        return f"unknown key '{path}'{near or '; known here: ' + ', '.join(known)}"
    if finding["type"] == "missing":
        return f"missing key '{path}'"
    message = "must be a list" if finding["type"] == "tuple_type" else finding["msg"].removeprefix("Value error, ")
    if finding["type"] == "value_error":
        return f"{path}: {message}" if path else message
    value = repr(finding["input"])
    shown = value if len(value) <= MOST_SHOWN else f"{value[:MOST_SHOWN]}…"
    return f"{path} = {shown}: {message[0].lower() + message[1:]}"


def _section_at(section: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    """The innermost section on the path of an error."""
    for part in location:
        annotation = section.model_fields[str(part)].annotation if str(part) in section.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            section = annotation
    return section
