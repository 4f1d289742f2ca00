"""The kernels for processors without AVX become NEON's instructions; under an emulator, they have the same bits.

They are compiled for AArch64 in a minute, so `make neon` runs these tests, and `make test` does not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("numba")

from foretell.model.kernels.matmul import Matmul
from foretell.model.kernels.packing import INPUTS, LANES, PackedMatrix, pack_floats, pack_int4, pack_int8

BITS = (32, 16, 8, 4)
OUTPUTS, WIDTH, GROUP, ROWS = 48, 96, 32, 5
pytestmark = pytest.mark.skipif("FORETELL_NEON" not in os.environ, reason="make neon runs it")
COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
# Compiles each kernel for AArch64, in a process whose numba knows of no AVX
COMPILE = """
import sys
from pathlib import Path
import llvmlite.binding as llvm
from numba import cfunc, types
from foretell.model.kernels.compiling import FEATURES
from foretell.model.kernels.matmul import KERNEL_ARGUMENTS, make_kernel
assert not any(name.startswith("avx") for name in FEATURES)
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
target = llvm.Target.from_triple("aarch64-unknown-linux-gnu")
machine = target.create_target_machine(features="+neon", opt=3, reloc="static")
for bits in (32, 16, 8, 4):
    signature = types.void(*[types.int64] * KERNEL_ARGUMENTS)
    kernel = cfunc(signature, error_model="numpy")(make_kernel(bits, "vectors", 2, bits == 4))
    code = kernel.inspect_llvm().replace(kernel._wrapper_name, f"kernel{bits}")
    lines = [line for line in code.splitlines() if not line.startswith(("target triple", "target datalayout"))]
    module = llvm.parse_assembly("\\n".join(lines))
    module.triple, module.data_layout = target.triple, str(machine.target_data)
    Path(sys.argv[1], f"kernel{bits}.s").write_text(machine.emit_assembly(module))
    Path(sys.argv[1], f"kernel{bits}.o").write_bytes(machine.emit_object(module))
"""
# Reads sizes and arrays from a file, calls a kernel, and writes its output
PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
typedef int64_t I;
#define KERNEL(bits) extern void kernel##bits(I, I, I, I, I, I, I, I);
KERNEL(32) KERNEL(16) KERNEL(8) KERNEL(4)
static I read_array(I bytes) {
  void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
  if (fread(memory, 1, bytes, stdin) != (size_t)bytes) exit(1);
  return (I)memory;
}
int main(void) {
  I n[10];  /* bits, inputs, group, rows, outputs, bytes of words, factors, bias, x, totals */
  if (fread(n, 8, 10, stdin) != 10) return 1;
  I words = read_array(n[5]), factors = read_array(n[6]), bias = read_array(n[7]), x = read_array(n[8]);
  I totals = read_array(n[9]), out = (I)aligned_alloc(64, n[3] * n[4] * 4 + 64);
  I matrix[12] = {0, 0, words, factors, bias, n[0], n[4], n[1], n[2], 0, 1, n[0] == 4};  /* the fields of MATRIX */
  void (*kernel)(I, I, I, I, I, I, I, I) =
    n[0] == 32 ? kernel32 : n[0] == 16 ? kernel16 : n[0] == 8 ? kernel8 : kernel4;
  kernel((I)matrix, x, totals, n[3], 0, out, 0, n[4] / 16);
  fwrite((void *)out, 4, n[3] * n[4], stdout);
  return 0;
}
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with each kernel as assembly and as object code for AArch64."""
    folder = tmp_path_factory.mktemp("neon")
    environment = {**os.environ, "NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""}
    command = [sys.executable, "-c", COMPILE, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def packed(bits: int) -> PackedMatrix:
    """Random weights."""
    random = torch.Generator().manual_seed(bits)
    weight, bias = torch.randn(OUTPUTS, WIDTH, generator=random), torch.randn(OUTPUTS, generator=random)
    scales, minima = torch.rand(2, OUTPUTS, WIDTH // GROUP, generator=random).bfloat16()
    if bits >= 16:
        return pack_floats(weight.to(torch.float32 if bits == 32 else torch.bfloat16), bias)
    if bits == 8:
        return pack_int8((weight * 40).clamp(-127, 127).to(torch.int8), scales, None, bias)
    return pack_int4((weight.abs() * 6).clamp(max=15).to(torch.uint8), scales, -minima, bias)


@pytest.mark.parametrize("bits", BITS)
def test_kernels_become_instructions_on_vectors_of_neon(bits, compiled):
    code = (compiled / f"kernel{bits}.s").read_text()
    assert len(re.findall(r"\bfmla\s+v\d+\.4s", code)) >= 8  # products with sums in float32
    assert not re.search(r"\bbl\s+(fmaf|__)", code)  # no calls for single numbers


@pytest.mark.skipif(COMPILER is None or EMULATOR is None, reason="needs aarch64-linux-gnu-gcc and qemu-aarch64")
@pytest.mark.parametrize("bits", BITS)
def test_kernels_have_the_same_bits_on_neon(bits, compiled):
    assert COMPILER is not None
    assert EMULATOR is not None
    (compiled / "main.c").write_text(PROGRAM)
    objects = [str(compiled / f"kernel{each}.o") for each in BITS]
    program = str(compiled / "main")
    # a group of 0 would raise an exception of Python, which this program does not have
    options = ["-static", "-O1", "-Wl,--unresolved-symbols=ignore-all", "-o", program]
    subprocess.run([COMPILER, *options, str(compiled / "main.c"), *objects], check=True)
    matrix, x = packed(bits), torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    done = subprocess.run([EMULATOR, program], input=as_input(matrix, x), capture_output=True, check=True)
    output = torch.from_numpy(np.frombuffer(done.stdout, np.float32).copy()).view(ROWS, OUTPUTS)
    assert torch.equal(output, Matmul(matrix, "vectors")(x))


def as_input(matrix: PackedMatrix, x: Tensor) -> bytes:
    """What the program reads."""
    assert WIDTH % INPUTS == 0
    assert OUTPUTS % LANES == 0
    group = matrix.group or matrix.inputs
    totals = [[float(sum_in_order(part)) for part in row.split(group)] for row in x]
    arrays = (matrix.words, matrix.factors, matrix.bias, x, torch.tensor(totals))
    parts = [array.contiguous().view(torch.uint8).numpy().tobytes() if array.numel() else b"" for array in arrays]
    sizes = [matrix.bits, matrix.inputs, group, ROWS, OUTPUTS, *map(len, parts)]
    return b"".join([np.array(sizes, np.int64).tobytes(), *parts])


def sum_in_order(part: Tensor) -> np.float32:
    """The sum of a group as `prepare` computes it: one number after the other, in float32."""
    total = np.float32(0)
    for value in part.numpy():
        total += value
    return total
