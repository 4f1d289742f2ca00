"""Options of trainings: each has a help, and sets a field that exists."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from foretell.config.options import help_of, settings_of
from foretell.errors import ConfigError
from foretell.finetuning.chat_tuning import ChatRequest
from foretell.finetuning.request import FinetuneRequest
from foretell.forecasting.train import ForecastRequest
from foretell.pretraining.options import DomainOptions, TextFields, TextOptions
from foretell.pretraining.request import TextRequest
from foretell.session.request import TrainingRequest, read_keywords
from foretell.translation.train import PairRequest

REQUESTS: list[type[TrainingRequest]] = [TextRequest, ForecastRequest, PairRequest, FinetuneRequest, ChatRequest]


@pytest.mark.parametrize("request_type", REQUESTS)
def test_an_option_has_a_help_and_sets_a_field_of_the_configuration(request_type: type[TrainingRequest]) -> None:
    options = [each for each in fields(request_type) if each.metadata]
    assert len(options) > 8
    for each in options:
        assert each.metadata["help"].endswith((".", "..."))
        section, _, key = each.metadata["sets"].partition(".")
        assert not section or key in request_type.section_type(section).model_fields


def test_only_given_options_are_settings() -> None:
    assert [*settings_of(TextOptions())] == []
    given = TextOptions(rows=True, special=["<EOS>"], size="toy")
    assert [*settings_of(given)] == [("rows", "data", "rows", True), ("special", "data", "special", ["<EOS>"])]


def test_an_option_is_a_field_of_its_section() -> None:
    options: dict[str, Any] = {"source": list, "names": [], "out": Path("x")}
    request = TextRequest(kind="bytes", steps=3, overrides={"training": {"seed": 5}}, **options)
    assert request.section("tokenizer") == {"kind": "bytes"}
    assert request.section("training") == {"seed": 5, "steps": 3}
    with pytest.raises(ConfigError, match=r"steps is given twice: training.steps is 4 and 3"):
        TextRequest(steps=3, overrides={"training": {"steps": 4}}, **options)
    with pytest.raises(ConfigError, match="training is a section, a dict of its fields, not int"):
        TextRequest(overrides={"training": 4}, **options)


def test_keywords_are_options_or_sections() -> None:
    keywords = {"text_field": "body", "minutes": 1.0, "training": {"seed": 5}}
    given = {"text_field": "body", "minutes": 1.0, "overrides": {"training": {"seed": 5}}}
    assert read_keywords("finetune", DomainOptions, keywords) == given
    with pytest.raises(ConfigError, match="unknown option of finetune: 'text_feild', did you mean 'text_field'"):
        read_keywords("finetune", DomainOptions, {"text_feild": "body"})


def test_a_help_is_said_once() -> None:
    assert help_of(DomainOptions, "text_field") is help_of(TextFields, "text_field")
