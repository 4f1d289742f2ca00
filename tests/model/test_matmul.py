"""Matrix products of few rows: equal to the plain product, with the same bits with any other rows."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from foretell.model.quantization import (
    dequantize,
    dequantize_int4,
    quantize_int4,
    quantize_int8,
    times_scales,
    unpack_int4,
)

pytest.importorskip("numba")

from foretell.model.kernels import amx, matmul, vector_matmul
from foretell.model.kernels.compiling import FEATURES
from foretell.model.kernels.matmul import Matmul, fastest_unit
from foretell.model.kernels.packing import PackedMatrix, pack_floats, pack_int4, pack_int8
from foretell.model.kernels.threads import SCRATCH
from foretell.model.kernels.vectors import HAS_INTEGER_DOTS

IS_EMULATED = "FORETELL_AMX" in os.environ  # `make amx`
if IS_EMULATED:
    importlib.import_module("tests.model.emulated_amx").emulate_amx()
HAS_AMX = amx.HAS_AMX or IS_EMULATED
GROUP = 32
BITS = (32, 16, 8, 4)
UNITS = ("vectors", *(["dots"] if HAS_INTEGER_DOTS else []), *(["amx"] if HAS_AMX else []))
READS = {"vectors": (32, 16, 8, 4), "dots": (8, 4), "amx": (16, 8)}
CASES = [(bits, unit) for bits in BITS for unit in UNITS if bits in READS[unit]]
DTYPES = (torch.float32, torch.bfloat16)
# Rounding of sums of numbers up to 16 times as large as the weights (int4), in units of the sum of absolute products
BOUND = 2e-6


def packed(bits: int, outputs: int, inputs: int, group: int = GROUP, bias: Tensor | None = None):
    """Random weights, packed and as float32."""
    weight = torch.randn(outputs, inputs, generator=torch.Generator().manual_seed(outputs))
    if bits >= 16:
        weight = weight.to(torch.float32 if bits == 32 else torch.bfloat16)
        return pack_floats(weight, bias), weight.float()
    if bits == 8:
        stored = quantize_int8(weight, group)
        return pack_int8(stored["integers"], stored["scales"], None, bias), times_scales(**stored, dtype=torch.float32)
    stored = quantize_int4(weight, group)
    integers = unpack_int4(stored["integers"])
    return pack_int4(integers, stored["scales"], stored["minima"], bias), dequantize_int4(**stored)


def largest_error(output: Tensor, x: Tensor, weight: Tensor, bias: Tensor | float = 0.0) -> float:
    """The largest error in units of the sum of absolute products."""
    exact = x.double() @ weight.double().T + bias
    return ((output.double() - exact).abs() / (x.double().abs() @ weight.double().abs().T + 1)).max().item()


@pytest.mark.parametrize(("bits", "unit"), CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 32), (1, 64), (50, 96), (257, 160)])
@pytest.mark.parametrize("rows", [1, 2, 7, 16, 33])
def test_products_equal_float64(bits, unit, dtype, outputs, inputs, rows):
    bias = torch.randn(outputs)
    matrix, weight = packed(bits, outputs, inputs, bias=bias)
    x = torch.randn(rows, inputs).to(dtype)
    output = Matmul(matrix, unit)(x)
    assert output.dtype == dtype
    assert output.shape == (rows, outputs)
    assert largest_error(output, x, weight, bias) < (BOUND if dtype == torch.float32 else 2**-8)


@pytest.mark.parametrize(("bits", "unit"), [case for case in CASES if case[0] >= 16])
@pytest.mark.parametrize("inputs", [1, 7, 31, 97])
def test_any_number_of_inputs_is_multiplied(bits, unit, inputs):
    matrix, weight = packed(bits, 19, inputs)
    x = torch.randn(3, inputs)
    assert largest_error(Matmul(matrix, unit)(x), x, weight) < BOUND


@pytest.mark.parametrize(
    ("bits", "group"),
    [(8, 4), (8, 48), (8, 96), (8, 192), (8, 128), (8, 256), (8, 768), (4, 8), (4, 24), (4, 64), (4, 192), (4, 256)],
)
@pytest.mark.parametrize("unit", UNITS)
def test_groups_of_any_size_are_scaled(bits, group, unit):
    matrix, weight = packed(bits, 20, 768, group)
    x = torch.randn(5, 768)
    if bits in READS[unit] and (unit == "vectors" or group % 32 == 0):
        assert largest_error(Matmul(matrix, unit)(x), x, weight) < BOUND


@pytest.mark.parametrize(("bits", "unit"), CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_has_the_same_bits_with_any_other_rows_and_threads(bits, unit, dtype):
    multiply = Matmul(packed(bits, 83, 128)[0], unit)
    x = torch.randn(64, 128).to(dtype)
    together = multiply(x)
    for rows in (1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 63):
        torch.set_num_threads(1 + rows % 3)
        order = torch.randperm(64)[:rows]
        assert torch.equal(multiply(x[order]), together[order])


@pytest.mark.parametrize(("bits", "unit"), CASES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_rows_have_no_outputs(bits, unit, dtype):
    assert Matmul(packed(bits, 24, 64)[0], unit)(torch.zeros(2, 0, 64, dtype=dtype)).shape == (2, 0, 24)


@pytest.mark.parametrize(("bits", "unit"), CASES)
def test_rows_at_any_address_are_read(bits, unit):
    multiply = Matmul(packed(bits, 24, 64)[0], unit)
    memory = torch.randn(3 * 64 + 9)
    for first in range(9):
        x = memory[first : first + 3 * 64].view(3, 64)
        assert torch.equal(multiply(x), multiply(x.clone()))
    assert torch.equal(multiply(memory[:192].view(64, 3).T), multiply(memory[:192].view(64, 3).T.contiguous()))


@pytest.mark.parametrize(("bits", "unit"), CASES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_infinities_and_nan_stay_in_their_row_and_do_not_become_finite(bits, unit, value, dtype):
    multiply = Matmul(packed(bits, 40, 64)[0], unit)
    x = torch.randn(3, 64).to(dtype)
    expected = multiply(x)
    x[1, 5] = value
    output = multiply(x)
    assert not output[1].isfinite().any()
    assert torch.equal(output[[0, 2]], expected[[0, 2]])


@pytest.mark.skipif(not amx.HAS_AMX, reason="needs a processor with AMX")
def test_the_matrix_unit_multiplies_int8_and_bfloat16_and_vnni_int4():
    assert [fastest_unit(bits, 32 if bits < 16 else 0) for bits in BITS] == ["vectors", "amx", "amx", "dots"]


@pytest.mark.skipif(not (HAS_AMX and HAS_INTEGER_DOTS), reason="needs a processor with AMX")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("group", [32, 64, 128, 192, 256])
def test_vectors_and_matrix_unit_have_the_same_integer_sums(dtype, group):
    matrix, _ = packed(8, 53, 768, group)
    for rows in (1, 3, 5, 15, 16, 35):
        x = (torch.randn(rows, 768) * 10 ** torch.randn(rows, 768)).to(dtype)
        assert torch.equal(Matmul(matrix, "dots")(x), Matmul(matrix, "amx")(x))


@pytest.mark.skipif(not HAS_INTEGER_DOTS, reason="needs a processor with AVX2")
@pytest.mark.parametrize("bits", [8, 4])
def test_planes_of_integers_lose_less_than_bfloat16_activations_hold(bits):
    matrix, weight = packed(bits, 64, 256, 64)
    x = torch.randn(4, 256).bfloat16()
    exact = x.double() @ weight.double().T
    rounded = (x.double() * (1 + 2**-9 * torch.randn(4, 256))) @ weight.double().T  # as a rounding to bfloat16 would be
    two_planes = Matmul(matrix, "dots")(x).double()
    error = (two_planes - exact.bfloat16().double()).abs().mean()
    assert error < 0.1 * (rounded - exact).abs().mean()


@pytest.mark.parametrize(("bits", "unit"), CASES)
@pytest.mark.parametrize("inputs", [64, 72])
def test_memory_left_by_an_earlier_call_is_not_read(bits, unit, inputs):
    is_padded = inputs == 72  # integers in groups of 8 are multiplied by vectors alone
    matrix, _ = packed(bits, 24, inputs, 8 if is_padded else 32)
    multiply = Matmul(matrix, "vectors" if is_padded and bits < 16 else unit)
    x = torch.randn(3, inputs)
    expected = multiply(x)
    SCRATCH.memory.fill(torch.nan)
    assert torch.equal(multiply(x), expected)


@pytest.mark.parametrize(("bits", "unit"), CASES)
def test_matrices_that_take_turns_are_multiplied_apart(bits, unit):
    matrix, _ = packed(bits, 96, 64, bias=torch.randn(96))
    x = torch.randn(19, 64)
    tiles = Matmul(matrix, unit)(x).unflatten(1, (-1, 16))  # (19, 6, 16)
    assert torch.equal(Matmul(matrix.part(2, 64), unit)(x), tiles[:, 2:].flatten(1))
    assert torch.equal(Matmul(matrix.part(1, 48, turns=2), unit)(x), tiles[:, 1::2].flatten(1))


@pytest.mark.parametrize(("bits", "unit"), CASES)
def test_rows_that_are_multiplied_in_parts_have_the_same_bits(bits, unit, monkeypatch):
    multiply, x = Matmul(packed(bits, 40, 64)[0], unit), torch.randn(7, 5, 64)
    whole = multiply(x)
    monkeypatch.setattr(matmul, "ROWS_AT_ONCE", 16)
    assert torch.equal(multiply(x), whole)


def test_a_kernel_that_drops_an_input_is_detected():
    matrix, weight = packed(16, 16, 64)
    x = torch.randn(2, 64)
    weight[:, 63] = 0
    assert largest_error(Matmul(matrix, "vectors")(x), x, weight) > 100 * BOUND


def digests(bits: int) -> list[str]:
    """Lines with sums of the bits of products on this processor, also of groups that are decoded in several parts."""
    lines = []
    for inputs, group in ((96, 32), (1152, 384), (1536, 768)):
        for dtype in DTYPES:
            x = torch.randn(15, inputs, generator=torch.Generator().manual_seed(1)).to(dtype)
            y = Matmul(packed(bits, 50, inputs, group)[0], "dots")(x)
            total = y.view(torch.int32 if dtype == torch.float32 else torch.int16).long().sum().item()
            lines.append(f"{bits} {inputs} {dtype} {total}")
    return lines


@pytest.mark.skipif(sys.platform != "linux" or not {"avx512f"} <= FEATURES, reason="needs a processor with AVX-512")
@pytest.mark.parametrize("features", ["", "+avx2,+fma"], ids=["generic", "AVX2"])
def test_a_processor_without_avx512_has_the_same_products(features):
    """The kernels compiled for Haswell, in a process of their own: with AVX2 integer sums have the bits of VNNI."""
    code = f"""
import importlib.util, torch
from foretell.model.kernels import amx, matmul, vector_matmul, vectors
spec = importlib.util.spec_from_file_location("cases", {__file__!r})
cases = importlib.util.module_from_spec(spec); spec.loader.exec_module(cases)
assert vector_matmul.ROWS == 2 and not amx.HAS_AMX
assert vectors.HAS_INTEGER_DOTS == ("avx2" in {features!r})
assert torch.get_num_threads() == 1  # numba starts more
for bits, unit in cases.CASES:
    matrix, weight = cases.packed(bits, 50, 96)
    x = torch.randn(15, 96, generator=torch.Generator().manual_seed(1))
    y = matmul.Matmul(matrix, unit)(x)
    assert cases.largest_error(y, x, weight) < cases.BOUND, bits
    for rows in (1, 5):  # more than seven are multiplied with decoded weights
        assert torch.equal(matmul.Matmul(matrix, unit)(x[3:][:rows]), y[3:][:rows])
    if unit == "dots":
        print("\\n".join(cases.digests(bits)))
"""
    inherited = {name: value for name, value in os.environ.items() if name != "FORETELL_AMX"}
    environment = {**inherited, "NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": features, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(digests(8) + digests(4)) * ("avx2" in features)


def test_the_number_of_rows_at_once_suits_the_registers():
    assert vector_matmul.ROWS in (2, 8)


def test_packed_weights_take_the_memory_that_they_should():
    def bytes_per_weight(matrix: PackedMatrix) -> float:
        return matrix.nbytes / (1024 * 1024)

    assert bytes_per_weight(packed(32, 1024, 1024)[0]) == pytest.approx(4, rel=0.01)
    assert bytes_per_weight(packed(16, 1024, 1024)[0]) == pytest.approx(2, rel=0.01)
    assert bytes_per_weight(packed(8, 1024, 1024, 64)[0]) == pytest.approx(1 + 2 / 64, rel=0.01)
    assert bytes_per_weight(packed(4, 1024, 1024, 64)[0]) == pytest.approx(0.5 + 4 / 64, rel=0.01)


PACKED = [(8, False), (8, True), (4, True)]  # bits, and whether there are minima


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize(("bits", "has_minima"), PACKED)
@pytest.mark.parametrize("factors", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("group", [16, 32])
def test_scales_and_minima_of_every_type_are_multiplied(unit, bits, has_minima, factors, group):
    if bits not in READS[unit] or (unit == "amx" and has_minima) or (unit != "vectors" and group < 32):
        pytest.skip("another unit multiplies these")
    draw = torch.Generator().manual_seed(bits)
    low, high = (0, 16) if bits == 4 else (-128, 128)
    integers = torch.randint(low, high, (48, 256), generator=draw, dtype=torch.int16)
    scales, minima = torch.randn(2, 48, 256 // group, generator=draw).to(factors)
    if bits == 8:
        matrix = pack_int8(integers.to(torch.int8), scales, minima if has_minima else None, None)
    else:
        matrix = pack_int4(integers.to(torch.uint8), scales, minima, None)
    weight = dequantize(integers, scales, minima if has_minima else None)
    for rows in (1, 3, 20):
        x = torch.randn(rows, 256, generator=draw)
        assert largest_error(Matmul(matrix, unit)(x), x, weight) < BOUND
