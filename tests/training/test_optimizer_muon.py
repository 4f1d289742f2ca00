"""Muon: its updates are nearly orthogonal, of AdamW's size, and the same for stacked matrices as for single ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from foretell.training import optimizer as module
from foretell.training.optimizer import Muon, orthogonalize, orthogonalize_flops

SIDES = st.integers(1, 40)


def matrix_with(singular_values: Tensor, rows: int, columns: int, seed: int) -> Tensor:
    """A random matrix with these singular values."""
    generator = torch.Generator().manual_seed(seed)
    count = len(singular_values)
    left, right = (torch.linalg.qr(torch.randn(side, count, generator=generator))[0] for side in (rows, columns))
    return left @ singular_values.diag() @ right.mT


def singular_values(matrix: Tensor) -> Tensor:
    return torch.linalg.svdvals(matrix.float())


@given(rows=SIDES, columns=SIDES, seed=st.integers(0, 999), scale=st.floats(1e-4, 1e4), smallest=st.floats(0.1, 1))
def test_all_singular_values_become_about_1(rows: int, columns: int, seed: int, scale: float, smallest: float) -> None:
    count = min(rows, columns)
    matrix = matrix_with(torch.linspace(1, smallest, count) * scale, rows, columns, seed)
    values = singular_values(orthogonalize(matrix[None], torch.float32)[0])
    assert values.min() > 0.65
    assert values.max() < 1.2


@given(rows=SIDES, columns=SIDES, seed=st.integers(0, 999))
def test_singular_vectors_stay_those_of_the_matrix(rows: int, columns: int, seed: int) -> None:
    """U' (near U V') V has the new singular values on its diagonal and zeros elsewhere."""
    matrix = matrix_with(torch.linspace(1, 0.5, min(rows, columns)), rows, columns, seed).double()
    u, _, vt = torch.linalg.svd(matrix, full_matrices=False)
    inside = u.mT @ orthogonalize(matrix[None], torch.float64)[0] @ vt.mT
    torch.testing.assert_close(inside, inside.diag().diag(), rtol=0, atol=1e-9)


def test_too_few_iterations_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = matrix_with(torch.linspace(1, 0.1, 40), 40, 40, 0)
    monkeypatch.setattr(module, "COEFFICIENTS", module.COEFFICIENTS[:2])
    assert singular_values(orthogonalize(matrix[None], torch.float32)[0]).min() < 0.65


@pytest.mark.parametrize("shape", [(17, 58), (58, 17), (64, 64), (1, 40), (7, 300)])
def test_rounding_does_not_amplify_the_only_direction(shape: tuple[int, int]) -> None:
    """Above 1 the first polynomial grows without bound: without the margin a value of 17 x 58 would be 12.6."""
    assert singular_values(orthogonalize(torch.full((1, *shape), 0.3), torch.bfloat16)[0]).max() < 1.2


def test_a_matrix_that_fades_has_smaller_and_smaller_updates() -> None:
    matrix = torch.randn(1, 32, 48, generator=torch.Generator().manual_seed(0))
    sizes = [orthogonalize(matrix * scale, torch.float32).norm().item() for scale in (1, 1e-12, 1e-15)]
    assert sizes[0] > 10 * sizes[1] > 100 * sizes[2] > 0


def test_in_bfloat16_singular_values_become_about_1_too() -> None:
    matrix = matrix_with(torch.linspace(1, 0.1, 40), 40, 96, 0)
    values = singular_values(orthogonalize(matrix[None], torch.bfloat16)[0])
    assert values.min() > 0.6
    assert values.max() < 1.25


def test_a_zero_gradient_gives_a_zero_update() -> None:
    assert torch.equal(orthogonalize(torch.zeros(2, 3, 5), torch.float32), torch.zeros(2, 3, 5))


def steps_of(optimizer: torch.optim.Optimizer, weights: list[Tensor], gradients: list[list[Tensor]]) -> None:
    for step in gradients:
        for weight, gradient in zip(weights, step, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()


@pytest.fixture
def gradients() -> list[list[Tensor]]:
    """Of three steps, for three matrices of which two are alike."""
    generator = torch.Generator().manual_seed(0)
    return [[torch.randn(shape, generator=generator) for shape in ((8, 20), (20, 8), (8, 20))] for _ in range(3)]


def new_weights() -> list[Tensor]:
    return [torch.nn.Parameter(torch.full(shape, 0.3)) for shape in ((8, 20), (20, 8), (8, 20))]


def make_muon(weights: list[Tensor], dtype: torch.dtype = torch.float32, momentum: float = 0.9) -> Muon:
    return Muon([{"params": weights, "weight_decay": 0.2}], learning_rate=0.1, momentum=momentum, dtype=dtype)


def test_updates_agree_with_torchs_muon(gradients: list[list[Tensor]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both with polynomials that converge; they round at other places. Another momentum would be noticed."""
    slow, steps = (15 / 8, -10 / 8, 3 / 8), 12
    monkeypatch.setattr(module, "COEFFICIENTS", (slow,) * steps)
    ours, others, theirs = new_weights(), new_weights(), new_weights()
    steps_of(make_muon(ours, torch.bfloat16), ours, gradients)
    steps_of(make_muon(others, torch.bfloat16, momentum=0.8), others, gradients)
    settings = {"weight_decay": 0.2, "momentum": 0.9, "ns_coefficients": slow, "ns_steps": steps}
    peer = torch.optim.Muon(theirs, lr=0.1, adjust_lr_fn="match_rms_adamw", **settings)
    steps_of(peer, theirs, gradients)
    for one, other, expected in zip(ours, others, theirs, strict=True):
        limit = 0.04 * (expected - 0.3).norm()
        assert (one - expected).norm() < limit < (other - expected).norm()


@pytest.mark.parametrize("elements", [1, 2**20], ids=["alone", "stacked"])
def test_stacked_matrices_are_updated_as_single_ones(
    elements: int, gradients: list[list[Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", {"cpu": elements})
    together = new_weights()
    steps_of(make_muon(together), together, gradients)
    for number, weight in enumerate(new_weights()):
        steps_of(make_muon([weight]), [weight], [[step[number]] for step in gradients])
        torch.testing.assert_close(weight, together[number], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(64, 64), (96, 32), (32, 96)])
def test_an_update_has_the_size_of_one_of_adamw(shape: tuple[int, int]) -> None:
    weight = torch.nn.Parameter(torch.zeros(shape))
    weight.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    Muon([{"params": [weight]}], learning_rate=1.0, momentum=0.95, dtype=torch.float32).step()
    assert weight.square().mean().sqrt().item() == pytest.approx(0.2, rel=0.25)


@pytest.mark.parametrize("shape", [(8, 8), (8, 24), (24, 8)])
def test_the_counted_operations_are_those_of_the_products(shape: tuple[int, int]) -> None:
    with FlopCounterMode(display=False) as counter:
        orthogonalize(torch.randn(1, *shape, generator=torch.Generator().manual_seed(0)), torch.float32)
    assert orthogonalize_flops(*shape) == counter.get_total_flops()
