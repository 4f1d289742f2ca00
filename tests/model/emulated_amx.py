"""Intel's matrix unit (AMX) in software: its instructions become calls of functions in C, one set of tiles per thread.

With FORETELL_AMX in the environment, the tests of matrix products run the kernels for AMX on any processor with gcc.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from foretell.model.kernels import compiling, vectors

FUNCTIONS = ("ldtilecfg", "tilerelease", "tilezero", "tileloadd64", "tilestored64", "tdpbf16ps", "tdpbssd")
# Wrong sizes, equal tiles and tiles that were not configured end the process, as they would on the processor
TILES = r"""
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef uint8_t Byte;
static _Thread_local struct { Byte bytes[16][64]; int rows, width; } tiles[8];
static _Thread_local int is_configured;
static void check(int is_right) { if (!is_right) abort(); }

void ldtilecfg(const Byte *settings) {
  check(settings[0] == 1);
  for (int t = 0; t < 8; t++) {
    tiles[t].width = settings[16 + 2 * t] | settings[17 + 2 * t] << 8;
    tiles[t].rows = settings[48 + t];
    check(tiles[t].width > 0 && tiles[t].width <= 64 && tiles[t].width % 4 == 0);
    check(tiles[t].rows > 0 && tiles[t].rows <= 16);
    memset(tiles[t].bytes, 0, 1024);
  }
  is_configured = 1;
}
void tilerelease(void) { is_configured = 0; }
void tilezero(Byte t) { check(is_configured); memset(tiles[t].bytes, 0, 1024); }
void tileloadd64(Byte t, const Byte *memory, int64_t stride) {
  check(is_configured);
  memset(tiles[t].bytes, 0, 1024);
  for (int m = 0; m < tiles[t].rows; m++) memcpy(tiles[t].bytes[m], memory + m * stride, tiles[t].width);
}
void tilestored64(Byte t, Byte *memory, int64_t stride) {
  check(is_configured);
  for (int m = 0; m < tiles[t].rows; m++) memcpy(memory + m * stride, tiles[t].bytes[m], tiles[t].width);
}
static void check_product(Byte sums, Byte x, Byte weights) {
  check(is_configured && sums != x && sums != weights && x != weights);
  check(tiles[x].width / 4 == tiles[weights].rows && tiles[sums].width == tiles[weights].width);
  check(tiles[sums].rows == tiles[x].rows);
}
static float from_bfloat16(const Byte *bytes) {
  uint32_t bits = (uint32_t)bytes[1] << 24 | (uint32_t)bytes[0] << 16;
  if (!(bits & 0x7f800000)) bits &= 0x80000000; /* denormal numbers count as zero */
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
#define FOR_EACH_PRODUCT(x, weights)                      \
  for (int m = 0; m < tiles[x].rows; m++)                 \
    for (int k = 0; k < tiles[x].width; k += 4)           \
      for (int n = 0; n < tiles[weights].width; n += 4)
void tdpbf16ps(Byte sums, Byte x, Byte weights) {
  check_product(sums, x, weights);
  FOR_EACH_PRODUCT(x, weights) {
    const Byte *left = &tiles[x].bytes[m][k], *right = &tiles[weights].bytes[k / 4][n];
    float sum;
    memcpy(&sum, &tiles[sums].bytes[m][n], 4);
    sum += from_bfloat16(left) * from_bfloat16(right);
    sum += from_bfloat16(left + 2) * from_bfloat16(right + 2);
    memcpy(&tiles[sums].bytes[m][n], &sum, 4);
  }
}
void tdpbssd(Byte sums, Byte x, Byte weights) {
  check_product(sums, x, weights);
  FOR_EACH_PRODUCT(x, weights) {
    const int8_t *left = (int8_t *)&tiles[x].bytes[m][k], *right = (int8_t *)&tiles[weights].bytes[k / 4][n];
    int32_t sum;
    memcpy(&sum, &tiles[sums].bytes[m][n], 4);
    for (int byte = 0; byte < 4; byte++) sum += left[byte] * right[byte];
    memcpy(&tiles[sums].bytes[m][n], &sum, 4);
  }
}
"""


def emulate_amx() -> None:
    """Compile kernels that call these functions in the place of AMX, in a cache of this process."""
    folder = Path(tempfile.mkdtemp())
    library = folder / "tiles.so"
    command = ["gcc", "-x", "c", "-O2", "-shared", "-fPIC", "-o", str(library), "-"]
    subprocess.run(command, input=TILES, text=True, check=True)
    loaded, call = ctypes.CDLL(str(library)), vectors.call
    for name in FUNCTIONS:
        llvm.add_symbol(f"emulated_{name}", ctypes.cast(loaded[name], ctypes.c_void_p).value)

    def emulated_call(builder: Any, name: str, *rest: Any) -> Any:
        instruction = name.removeprefix("llvm.x86.")
        return call(builder, f"emulated_{instruction}" if instruction in FUNCTIONS else name, *rest)

    vars(vectors)["call"] = emulated_call
    vars(compiling)["CACHE"] = str(folder)
