"""The options of every training, checked before any work, and compared with the run's when it is resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, get_args

from pydantic_core import to_jsonable_python

from foretell.config.options import option, settings_of
from foretell.config.section import Section, check_given, check_known, make_section, own_names, training_names
from foretell.config.training import TrainingConfig, check_minutes
from foretell.errors import ConfigError
from foretell.runs.record import RESUMABLE, RunRecord
from foretell.session.budget import FEWEST_STEPS
from foretell.session.options import TrainingOptions
from foretell.session.start import Start

MOST_EPOCHS = 10_000


def intervals(steps: int) -> dict[str, int]:
    """The default number of steps between actions."""
    evaluate_every = min(250, -(-steps // 10))
    return {
        "log_every": max(1, min(10, steps // 100)),
        "evaluate_every": evaluate_every,
        "sample_every": -(-steps // 5),
        "checkpoint_every": 2 * evaluate_every,  # a checkpoint between evaluations would need its own evaluation
    }


def default_dropout(epochs: float, by_epochs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Dropout rates by the number of epochs; models memorise data that is read more often.

    by_epochs: limits with the rate below each. Attention weights have no dropout, because the fused kernel has none.
    """
    rate = next(rate for limit, rate in by_epochs if epochs < limit)
    return {"embedding": rate, "attention": 0.0, "residual": rate}


@dataclass(frozen=True, kw_only=True)
class TrainingRequest(TrainingOptions):
    """Options of every training. A subclass adds data and options of its task.

    `overrides` holds sections of the configuration `config_type`; missing fields are chosen later. An option that sets
    a field of a section is added to it.
    """

    config_type: ClassVar[type[Section]]
    free_with_start: ClassVar[tuple[str, ...]] = ("dropout",)  # fields of the model that can change with a start model

    out: Path
    batch_size: int | None = option("Rows of a step.", sets="training.batch_size")
    learning_rate: float | None = option("The largest learning rate.", sets="training.learning_rate")
    size: str | None = None
    fewest_steps: int = FEWEST_STEPS  # of a new model, even if they exceed the minutes (`TimeBudget`)
    epochs: float | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)
    start: Start | None = None  # a trained model to continue from

    def __post_init__(self) -> None:
        sections: dict[str, dict[str, Any]] = {}
        for name, values in self.overrides.items():
            if values is not None and not isinstance(values, Mapping):
                raise ConfigError(f"{name} is a section, a dict of its fields, not {type(values).__name__}")
            sections |= {} if values is None else {name: {**values}}
        for name, section, key, value in settings_of(self):
            first = sections.setdefault(section, {}).setdefault(key, value)
            if first is not value and first != value:  # NaN is not equal to itself
                raise ConfigError(f"{name} is given twice: {section}.{key} is {first!r} and {value!r}; give one")
        object.__setattr__(self, "overrides", sections)
        for name in self.overrides:
            check_known(name, tuple(self.config_type.model_fields), "configuration section")
            for key in self.section(name).keys() - self.section_type(name).model_fields.keys():
                homes = [each for each in self.config_type.model_fields if key in self.section_type(each).model_fields]
                if homes:
                    raise ConfigError(f"unknown key '{name}.{key}'; it is {homes[0]}.{key}")
            check_given(self.section_type(name), self.section(name), name)
        self._check_duration()
        if self.start is not None and (given := self.other_shape()):
            raise ConfigError(
                f"{self.start.name}, the model to start from, has a fixed shape; leave out {given}, only "
                f"{' and '.join(self.free_with_start)} can change"
            )

    def other_shape(self) -> str:
        """The first given option that would change the shape of the start model; empty if there is none."""
        if self.size is not None:
            return f"--size {self.size}"
        return next((f"model.{key}" for key in self.section("model") if key not in self.free_with_start), "")

    def _check_duration(self) -> None:
        check_minutes(self.minutes)
        if self.epochs is not None and not 0 < self.epochs <= MOST_EPOCHS:
            raise ConfigError(f"epochs must be a positive number of at most {MOST_EPOCHS:,}, not {self.epochs:g}")
        durations = {"minutes": self.minutes, "epochs": self.epochs, "steps": self.section("training").get("steps")}
        given = [name for name, value in durations.items() if value is not None]
        if len(given) > 1:
            raise ConfigError(f"{given[0]} and {given[1]} both set the length of the training; give one of them")

    @property
    def least_steps(self) -> int:
        """The steps that a training with minutes takes even if it has to exceed them; a trained start needs none."""
        return self.fewest_steps if self.start is None else 0

    @property
    def described(self) -> list[str]:
        """The names of the data in run.json; empty if none was given, which is allowed when resuming."""
        raise NotImplementedError

    @property
    def choices(self) -> dict[str, Any]:
        """Options outside the configuration. run.json records the given ones, and they cannot change."""
        return {}

    @classmethod
    def section_type(cls, name: str) -> type[Section]:
        """The class of a section, which may be optional in the configuration."""
        annotation = cls.config_type.model_fields[name].annotation
        kinds: tuple[Any, ...] = get_args(annotation) or (annotation,)
        return next(kind for kind in kinds if kind is not type(None))

    def section(self, name: str) -> dict[str, Any]:
        """The fields that the user set in a section, by foretell's names; accepts nanoGPT's and Hugging Face's too."""
        values = self.overrides.get(name, {})
        return training_names(values) if name == "training" else own_names(values)

    def configured(self, name: str) -> Any:
        """A section with the user's fields and the defaults of its class."""
        return make_section(self.section_type(name), self.section(name), name)

    @property
    def given_steps(self) -> int | None:
        """The requested number of steps; None if it has to be chosen."""
        values = self.section("training")
        return None if values.get("steps") is None else make_section(TrainingConfig, values, "training").steps

    # --- resuming ----------------------------------------------------------------------------------------------------

    def check_same_run(self, config: Any, record: RunRecord) -> None:
        """Refuse settings, data or a start that differ from the run's. Options that are not given keep their values."""
        for name in self.overrides:
            self._check_same_section(name, getattr(config, name))
        recorded = record.to_json()
        asked = to_jsonable_python({"size": self.size, "minutes": self.minutes, "epochs": self.epochs, **self.choices})
        for name, value in asked.items():
            if value not in (None, [], recorded.get(name)):
                raise self.changed(name, recorded.get(name), value)
        given = ", ".join(self.described)  # earlier versions recorded the joined names of texts
        if given != ", ".join(record.data[: len(self.described)]):
            raise self.changed("data", ", ".join(record.data), given)
        start = record.start
        if self.start is not None and (start is None or start.weights_sha256 != self.start.digest):
            raise self.changed("start_from", start and start.model, self.start.argument)

    def _check_same_section(self, name: str, old: Section | None) -> None:
        """Refuse changed fields of a section, except training settings that affect only memory use."""
        if old is None:
            raise self.changed(name, None, self.section(name))
        new = make_section(type(old), {**old.model_dump(), **self.section(name)}, name)
        for key in type(old).model_fields:
            if getattr(new, key) != getattr(old, key) and not (name == "training" and key in RESUMABLE):
                raise self.changed(f"{name}.{key}", getattr(old, key), getattr(new, key))

    def changed(self, what: str, old: Any, new: Any) -> ConfigError:
        return ConfigError(
            f"{self.out} was started with {what} = {old}, not {new}; leave it out to resume, or start again with "
            "another --out"
        )


def read_keywords(function: str, declared: Any, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a request from keywords of Python: options that `declared` or any training has, and sections."""
    options = [each.name for each in (*fields(declared), *fields(TrainingRequest)) if each.metadata]
    for name in keywords:
        check_known(name, (*options, *declared.sections), f"option of {function}:")
    given = {name: value for name, value in keywords.items() if name in options}
    return {**given, "overrides": {name: value for name, value in keywords.items() if name not in options}}
