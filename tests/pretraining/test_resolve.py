"""What is chosen when a user leaves it open: size, steps, dropout, vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from foretell.config.model import ModelConfig
from foretell.config.section import make_section
from foretell.config.training import Config, TrainingConfig
from foretell.config.weight_shapes import weight_shapes
from foretell.errors import ConfigError, DataError
from foretell.generation.batch_generation import continue_prompt
from foretell.model.cost import saved_bytes_per_token, training_flops_per_token
from foretell.model.decoder import Decoder
from foretell.model.presets import PRESETS, SIZES, preset_config
from foretell.planning.estimate import DeviceMemory, state_parts, total, training_memory
from foretell.pretraining.pretrain import TextTraining
from foretell.pretraining.request import TextRequest
from foretell.pretraining.resolve import (
    GENERALISE,
    MEMORISE,
    Facts,
    RowFacts,
    in_times,
    resolve_config,
)
from foretell.pretraining.tokens import TokenizedText
from foretell.session.declaration import ChosenConfig, Machine
from foretell.session.fit import Footprint, check_fits
from foretell.session.request import default_dropout
from foretell.text.tokenizer_training import vocabulary_for
from foretell.training.optimizer import optimizer_flops_per_step


def test_a_part_of_a_text_is_not_zero_times():
    assert [in_times(epochs) for epochs in (12.34, 0.06, 0.0042)] == ["12.3 times", "0.1 times", "0.0042 times"]


def test_the_more_often_a_text_is_read_the_more_is_dropped():
    rates = [default_dropout(epochs, GENERALISE.dropout_by_epochs)["residual"] for epochs in (0.5, 5, 50)]
    assert rates == sorted(rates)
    assert rates[0] == 0
    assert all(default_dropout(epochs, GENERALISE.dropout_by_epochs)["attention"] == 0 for epochs in (0.5, 5, 50))


@pytest.mark.parametrize(("size", "entries"), [(1_000, 512), (373_164, 512), (1_003_856, 2048), (10**9, 16_384)])
def test_the_vocabulary_grows_with_the_text(size, entries):
    assert vocabulary_for(size) == entries


# --- resolving a request ----------------------------------------------------------------------------------------------

MEMORY = DeviceMemory("cpu", 10**10)
NO_TEXT = cast("TokenizedText", None)  # where the facts about it are known


@pytest.mark.parametrize("section", [{"training": {"batch_size": "many"}}, {"model": {"n_embd": "wide"}}])
def test_values_of_a_wrong_type_are_refused_before_any_text_is_read(section: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="input should be a valid integer"):
        request(overrides=section)


def request(**changes: Any) -> TextRequest:
    return TextRequest(source=list, names=[], out=Path("x"), **changes)


@dataclass(frozen=True)
class Known:
    """Facts about a text, and the tokens per second of the machine; None: its speed must not be measured."""

    facts: Facts
    speed: float | None = 20_000.0


class KnownTraining(TextTraining):
    """The choices for a text and a machine of which everything is known."""

    def __init__(self, request: TextRequest, known: Known):
        super().__init__(request, continue_prompt)
        self.known = known

    def facts(self, data: Any) -> Facts:
        return self.known.facts

    def seconds_per_step(self, config: Config, data: Any, machine: Machine) -> float:
        assert self.known.speed is not None, "nothing is open"
        return self.cost(config, data).tokens_per_step / self.known.speed


def resolve(request: TextRequest, known: Known) -> ChosenConfig:
    return KnownTraining(request, known).choose(NO_TEXT, Machine(torch.device("cpu"), torch.float32, MEMORY))


def facts(speed: float = 20_000.0, tokens: int = 10**6) -> Known:
    return Known(Facts(512, tokens), speed)


def test_a_size_and_its_steps_need_no_measurement() -> None:
    chosen = resolve(request(size="toy", overrides={"training": {"steps": 7}}), Known(Facts(512, 10**6), speed=None))
    config = chosen.config
    assert (chosen.size, chosen.reasons, config.training.steps) == ("toy", [], 7)
    assert (config.model.vocab_size, config.training.optimizer) == (512, "muon")


def test_open_size_and_steps_are_chosen_with_a_reason_each() -> None:
    chosen = resolve(request(minutes=2.0), facts())
    config = chosen.config
    assert [reason.split()[0] for reason in chosen.reasons] == ["size", "steps"]
    assert chosen.size in chosen.reasons[0]
    assert config.training.steps == int(120 * 20_000 / (config.training.batch_size * config.model.context_length))
    assert "2 minutes at 20,000 tokens/s, as an estimate" in chosen.reasons[1]


def test_without_minutes_the_text_is_not_read_too_often() -> None:
    chosen = resolve(request(size="toy"), facts(speed=1e9, tokens=10**5))
    training, model = chosen.config.training, chosen.config.model
    assert training.steps == GENERALISE.most_epochs * 10**5 // (training.batch_size * model.context_length)
    assert "memorise" in chosen.reasons[0]


def test_a_faster_machine_gets_a_larger_size() -> None:
    sizes = [resolve(request(minutes=60.0), facts(speed, tokens=10**9)).size for speed in (100, 20_000, 2_000_000)]
    assert len(set(sizes)) == 3
    assert sizes == [size for size in SIZES if size in sizes]


def test_the_dropout_follows_from_the_number_of_epochs() -> None:
    overrides = {"training": {"steps": 100}}
    often, seldom = (resolve(request(size="toy", overrides=overrides), facts(tokens=n)) for n in (1000, 10**6))
    assert often.config.model.dropout.residual > seldom.config.model.dropout.residual == 0
    chosen = resolve(request(size="toy", overrides={**overrides, "model": {"dropout": 0.3}}), facts(tokens=1000))
    assert chosen.config.model.dropout.residual == 0.3


def of_rows(longest: int) -> Known:
    return Known(Facts(512, 10**5, RowFacts(500, longest, "rows.csv, line 7")))


@pytest.mark.parametrize(
    ("count", "held_out", "by_heart"), [(2, 0, True), (49, 0, True), (50, 0, False), (45, 5, False)]
)
def test_a_handful_of_rows_is_learned_by_heart(count: int, held_out: int, by_heart: bool) -> None:
    rows = Known(Facts(283, 10 * count, RowFacts(count, 10, "rows.txt, line 1", held_out)))
    chosen = resolve(request(size="toy", overrides={"data": {"rows": True}}), rows)
    assert (chosen.config.model.dropout.residual == 0) == by_heart
    assert (chosen.config.training.steps >= MEMORISE.fewest_steps) == by_heart
    assert (MEMORISE.reason in chosen.reasons[0]) == by_heart
    given = resolve(request(size="toy", overrides={"training": {"steps": 7}, "model": {"dropout": 0.3}}), rows)
    assert (given.config.training.steps, given.config.model.dropout.residual) == (7, 0.3)


def test_the_context_of_a_new_model_fits_the_longest_row() -> None:
    rows: dict[str, Any] = {"size": "toy", "overrides": {"data": {"rows": True}, "training": {"steps": 5}}}
    short, long = (resolve(request(**rows), of_rows(longest)) for longest in (20, 301))
    assert (short.config.model.context_length, short.reasons) == (
        preset_config("toy", vocab_size=512).context_length,
        [],
    )
    assert long.config.model.context_length == 300
    assert long.reasons == ["context     300 tokens, for the longest row: rows.csv, line 7"]
    rows["overrides"]["model"] = {"context_length": 200}
    with pytest.raises(DataError, match=r"line 7: a row of 301 tokens, but the context is 200; .*context_length 300"):
        resolve(request(**rows), of_rows(301))


def test_a_row_of_many_thousand_tokens_does_not_decide_the_context() -> None:
    rows = request(size="toy", overrides={"data": {"rows": True}, "training": {"steps": 5}})
    with pytest.raises(DataError, match=r"line 7: a row of 9,000 tokens, but the context is 64; shorten it"):
        resolve(rows, of_rows(9_000))


def test_a_text_shorter_than_a_context_is_refused() -> None:
    with pytest.raises(DataError, match="the training text has 20 tokens"):
        resolve(request(size="toy"), facts(tokens=20))


def test_a_model_that_does_not_fit_is_refused_before_its_speed_is_measured() -> None:
    training = TextTraining(request(size="tiny"), continue_prompt)
    config = resolve_config(training.request, Facts(512, 10**6), "tiny")
    small = Machine(torch.device("cpu"), torch.float32, DeviceMemory("cpu", 10**5))
    with pytest.raises(ConfigError, match="cpu memory is 100 kB"):
        training.seconds_per_step(config, NO_TEXT, small)


def test_the_counted_memory_is_that_of_the_optimizer_in_use() -> None:
    overrides = {"training": {"steps": 1, "batch_size": 1}}
    config = resolve(request(size="tiny", overrides=overrides), facts()).config
    shapes = weight_shapes(config.model)
    limit = DeviceMemory("cpu", int(total(training_memory(config.model, shapes, config.training, MEMORY)).low))
    assert limit.size > sum(state_parts(shapes, config.training).values()) + 128 * saved_bytes_per_token(config.model)
    check_fits(Footprint(shapes, config.model), config.training, limit)
    with pytest.raises(ConfigError, match="cpu memory is"):
        adamw = {"training": {**overrides["training"], "optimizer": "adamw"}}
        other = resolve(request(size="tiny", overrides=adamw), facts()).config
        check_fits(Footprint(shapes, other.model), other.training, limit)


def test_muons_products_are_in_the_cost_of_a_size() -> None:
    muon, adamw = (
        KnownTraining(chosen, facts()).cost(resolve_config(chosen, Facts(512, 10**6), "tiny"), NO_TEXT)
        for chosen in (
            request(overrides={"training": {"optimizer": name, "batch_size": 8}}) for name in ("muon", "adamw")
        )
    )
    model = preset_config("tiny", vocab_size=512)
    assert adamw.flops_per_token == training_flops_per_token(model)
    products = optimizer_flops_per_step(weight_shapes(model), TrainingConfig(steps=1, batch_size=8, optimizer="muon"))
    assert products > 0
    expected = training_flops_per_token(model) + products / (8 * model.context_length)
    assert muon.flops_per_token == pytest.approx(expected)
    assert muon.tokens_per_step == adamw.tokens_per_step == 8 * model.context_length


@pytest.mark.parametrize("name", ["toy", "tiny", "gpt2", "gpt3-small"])
def test_weight_shapes_are_those_of_the_decoder(name: str) -> None:
    config = make_section(ModelConfig, {"vocab_size": 50, **PRESETS[name]})
    with torch.device("meta"):
        weights = dict(Decoder(config).named_parameters())
    assert weight_shapes(config) == {path: tuple(weight.shape) for path, weight in weights.items()}
