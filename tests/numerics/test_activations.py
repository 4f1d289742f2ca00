"""Each activation is one function in torch, in NumPy and as a formula, under a name that the configuration has."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from torch import nn

from foretell.config.model import ModelConfig
from foretell.convert.families import ACTIVATION_WORDS
from foretell.insight.explain.explain_activation import FORMULAS
from foretell.model.description import describe
from foretell.numerics.activations import ACTIVATIONS, activation_name, erf, gelu_erf
from foretell.textbook.training import gelu_erf_derivative

X = np.array([-1000.0, -30.0, -3.0, -0.5, 0.0, 0.25, 1.0, 4.0, 1000.0])


def test_the_configuration_has_these_names():
    assert set(get_args(ModelConfig.model_fields["activation"].annotation)) == set(ACTIVATIONS)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_numpy_matches_torch_far_into_both_tails_and_keeps_float32(name):
    activation = ACTIVATIONS[name]
    expected = activation.make()(torch.from_numpy(X)).numpy()
    assert activation.compute(X) == pytest.approx(expected, rel=1e-13, abs=1e-15)
    assert activation.compute(X.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_module_is_known_by_its_class_and_settings(name):
    assert activation_name(ACTIVATIONS[name].make()) == name
    assert describe(ACTIVATIONS[name].make()).formula == "activation"
    assert activation_name(nn.Tanh()) == ""


def test_every_activation_has_a_name_in_transformers_and_a_formula():
    assert set(ACTIVATION_WORDS.values()) == set(ACTIVATIONS) == set(FORMULAS)


def test_erf_matches_torch_and_gelus_derivative_finite_differences():
    assert erf(X) == pytest.approx(torch.erf(torch.from_numpy(X)).numpy(), rel=1e-13, abs=1e-15)
    x, step = np.linspace(-4, 4, 17), 1e-6
    slope = (gelu_erf(x + step) - gelu_erf(x - step)) / (2 * step)
    assert gelu_erf_derivative(x) == pytest.approx(slope, abs=1e-9)


def test_relu2_is_the_square_of_positive_inputs():
    x, expected = [-3.0, -0.5, 0.0, 0.5, 3.0], [0.0, 0.0, 0.0, 0.25, 9.0]
    assert ACTIVATIONS["relu2"].make()(torch.tensor(x)).tolist() == expected
    assert ACTIVATIONS["relu2"].compute(np.array(x)).tolist() == expected
