"""A transformer block for few tokens in compiled code that combines the kernels of single layers.

The threads of a program (pass_program.py) run its phases in sequence. Arrays of float32 are given by their addresses,
with rows padded to a multiple of 32 numbers. A block has the same operations in the same order as its modules. In a
bfloat16 model, a value is rounded where the plain module returns it; in between, values are in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from foretell.model.kernels import vectors as v
from foretell.model.kernels.block_attention import CachedRow, attend, store_token
from foretell.model.kernels.compiling import compiled, inlined, merged
from foretell.model.kernels.matmul import multiply_part, read_rows
from foretell.model.kernels.packing import MATRIX, padded_inputs, padded_outputs, prepare
from foretell.model.kernels.threads import claim, finish, num_tasks, wait
from foretell.model.kernels.vector_math import activate, rounded, rounded_number, row_sum, write_numbers

# The phases of a block: even ones compute rows of tokens, odd ones tiles of outputs, and 3 heads of tokens
#  0  norm before the attention                  1  query, key, value
#  2  norms of heads, rotation, cache            3  attention
#  4                                             5  output, residual
#  6  norms after and before                     7  gate, up, activation
#  8                                             9  down, residual
# 10  norm after the feed-forward layer, output
# An even phase before a matmul also prepares its activations
PHASES = 11
MIN_ROWS = 4  # with fewer, one thread runs the phases that work on rows

# A norm (0: none, 1: LayerNorm, 2: RMSNorm) with the addresses of its scale and shift in float32, which are never null
NORM = np.dtype([*v.fields("kind scale shift"), ("epsilon", "f8")])
# A norm that the block does not have is of kind 0, with scales of 1 and shifts of -0, which change nothing
BLOCK = np.dtype(
    [
        *v.fields("qkv output up down", MATRIX),  # gated up: tiles of gates and of values alternate
        *v.fields("before_attention after_attention before_feedforward after_feedforward query_norm key_norm", NORM),
        *v.fields("layer width heads kv_heads head_width feedforward_width"),  # layer: its index in the cache
        *v.fields("window activation is_gated has_residual"),  # window 0: none
        *v.fields("is_parallel"),  # the feed-forward layer reads the block's input
    ]
)
# One pass over M tokens, the same for all layers. The T tokens of a row of the batch are consecutive
PASS = np.dtype(
    [
        *v.fields("M T rows is_narrow"),  # rows: M padded for the matrix unit
        # the addresses of the cache's first layer, and the strides: layer_stride in bytes, the others in elements
        *v.fields("keys values layer_stride head_stride block_stride"),
        # addresses: block table (int32) of each row, positions (M,), number of tokens of each row without padding
        *v.fields("tables table_width positions counts"),
        # addresses: cosines and sines of angles (A, E), 0 without rotation; the angle of each token (M,)
        *v.fields("cosine sine angles"),
    ]
)
pass_at, block_at = v.record_at(PASS), v.record_at(BLOCK)


class Scratch(NamedTuple):
    """Addresses of float32 arrays with padded rows, which are valid during one call."""

    stream: int
    source: int  # the input of the next matmul: (rows, D)
    qkv: int
    mixed: int  # the heads' outputs
    update: int
    inner: int
    hidden: int
    prepared: int


@merged
def compute_block(block, step, x, out, memory, threads, counters, first):
    """The output of a block (M, D), in the model's dtype, from x (M, D); its phases count from `first` on."""
    scratch = lay_out(block, step.rows, memory)
    for phase in range(PHASES):
        tasks = count_tasks(block, step.M, phase, threads)
        task = claim(counters, first + phase)
        while task < tasks:
            do_task(block, step, x, out, scratch, phase, task, tasks)
            finish(counters, first + phase)
            task = claim(counters, first + phase)
        wait(counters, first + phase, tasks)


@inlined
def lay_out(block, rows, address):
    """The addresses of the arrays in the scratch memory."""
    D, row = padded_inputs(block.width), rows * 4
    source = address + row * D
    qkv = source + row * D
    mixed = qkv + row * padded_outputs(block.qkv.outputs)
    update = mixed + row * padded_inputs(block.output.inputs)
    inner = update + row * D
    hidden = inner + row * padded_outputs(block.up.outputs)
    prepared = hidden + row * padded_inputs(block.feedforward_width)
    return Scratch(address, source, qkv, mixed, update, inner, hidden, prepared)


@inlined
def count_tasks(block, M, phase, threads):
    if phase == 3:
        return M * block.kv_heads
    if phase % 2 == 1:
        return num_tasks(padded_outputs(matrix_of(block, phase).outputs) // 16 // tiles_at_once(block, phase), threads)
    return tasks_by_rows(M, threads)


@inlined
def tasks_by_rows(M, threads):
    """The number of tasks that rows are divided into."""
    return threads if M >= MIN_ROWS else 1


@inlined
def matrix_of(block, phase):
    """The matrix that a phase prepares activations for or multiplies by."""
    if phase < 2:
        return block.qkv
    if phase < 6:
        return block.output
    return block.up if phase < 8 else block.down


@inlined
def tiles_at_once(block, phase):
    """The number of tiles of outputs that are computed together: a gate and its values."""
    return 2 if phase == 7 and block.is_gated else 1


@inlined
def share(count, task, tasks):
    """The range of the rows or tiles of a task: the first, and one after the last."""
    return task * count // tasks, (task + 1) * count // tasks


@merged
def do_task(block, step, x, out, scratch, phase, task, tasks):
    """One task of a phase: some rows, some tiles of outputs, or one group of heads of a token."""
    if phase == 3:
        attend_group(block, step, scratch, task // block.kv_heads, task % block.kv_heads)
    elif phase % 2 == 1:
        compute_tiles(block, step, scratch, phase, task, tasks)
    else:
        first, end = share(step.M, task, tasks)
        compute_rows(block, step, x, out, scratch, phase, first, end)


@merged
def compute_rows(block, step, x, out, scratch, phase, first, end):
    """The phases that work on whole rows, for tokens first, ... end - 1."""
    is_narrow = step.is_narrow != 0
    if phase == 0:
        read_input(block, x, scratch, is_narrow, first, end)
    elif phase == 2:
        store_rows(block, step, scratch.qkv, is_narrow, first, end)
    elif phase == 6:
        norm_between(block, x, scratch, is_narrow, first, end)
    elif phase == 10:
        write_output(block, scratch.stream, out, is_narrow, first, end)
    if phase != 2 and phase != 10:
        matrix, source = matrix_of(block, phase), input_of(scratch, phase)
        prepare(matrix, source, scratch.prepared, step.rows, is_narrow, first, end)


@merged
def compute_tiles(block, step, scratch, phase, task, tasks):
    """The phases that multiply by some tiles of a matrix."""
    matrix, at_once, is_narrow = matrix_of(block, phase), tiles_at_once(block, phase), step.is_narrow != 0
    first, last = share(padded_outputs(matrix.outputs) // 16 // at_once, task, tasks)
    source, result = input_of(scratch, phase), output_of(scratch, phase)
    multiply_part(matrix, source, scratch.prepared, step.rows, is_narrow, result, first * at_once, last * at_once)
    if phase == 7:
        activate_tiles(block, result, scratch.hidden, step.M, is_narrow, first, last)
    elif phase != 1:
        has_residual = phase == 9 or block.has_residual != 0
        add_update(matrix.outputs, scratch.stream, result, step.M, has_residual, is_narrow, first, last)


@inlined
def input_of(scratch, phase):
    """The address of the input of a phase's matrix."""
    if phase == 4 or phase == 5:
        return scratch.mixed
    return scratch.hidden if phase > 7 else scratch.source


@inlined
def output_of(scratch, phase):
    """The address of the output of a phase's matrix."""
    if phase == 1:
        return scratch.qkv
    return scratch.inner if phase == 7 else scratch.update


# --- parts of a phase ------------------------------------------------------------------------------------------------


@inlined
def read_input(block, x, scratch, is_narrow, first, end):
    """Read the block's input into the stream, and write the norm before the attention."""
    D = padded_inputs(block.width)
    read_rows(x, block.width, scratch.stream, D, is_narrow, first, end)
    norm_rows(block.before_attention, scratch.stream, scratch.source, D, block.width, is_narrow, first, end)


@inlined
def norm_between(block, x, scratch, is_narrow, first, end):
    """The norm after the attention, and the norm before the feed-forward layer, which may read the block's input."""
    D, stream = padded_inputs(block.width), scratch.stream
    norm_rows(block.after_attention, stream, stream, D, block.width, is_narrow, first, end)
    if block.is_parallel:
        read_rows(x, block.width, scratch.source, D, is_narrow, first, end)
        stream = scratch.source
    norm_rows(block.before_feedforward, stream, scratch.source, D, block.width, is_narrow, first, end)


@inlined
def write_output(block, stream, out, is_narrow, first, end):
    """The norm after the feed-forward layer, in the model's dtype."""
    D = padded_inputs(block.width)
    norm_rows(block.after_feedforward, stream, stream, D, block.width, is_narrow, first, end)
    for row in range(first, end):
        write_numbers(stream, row * D, block.width, out, row * block.width, is_narrow)


@inlined
def add_update(width, stream, update, M, has_residual, is_narrow, first, last):
    """Add tiles first, ... last - 1 of an update to the stream, or replace the stream by them."""
    D, N = padded_inputs(width), padded_outputs(width)
    for row in range(M):
        for i in range(first * 16, last * 16, 16):
            new = rounded(v.load_float(update, row * N + i), is_narrow)
            if has_residual:
                new = rounded(v.add(v.load_float(stream, row * D + i), new), is_narrow)
            v.store_float(stream, row * D + i, new)


@inlined
def row_of_cache(block, step, token):
    layer, table = block.layer * step.layer_stride, step.tables + token // step.T * step.table_width * 4
    return CachedRow(step.keys + layer, step.values + layer, step.head_stride, step.block_stride, table)


@compiled
def store_rows(block, step, qkv, is_narrow, first, last):
    """Normalise and rotate the queries and keys of some tokens, and store keys and values in the cache."""
    H, G, E, N = block.heads, block.kv_heads, block.head_width, padded_outputs(block.qkv.outputs)
    for token in range(first, last):
        start = token * N
        for i in range(start, start + N if is_narrow else start, 16):
            v.store_float(qkv, i, v.round_to_bfloat16(v.load_float(qkv, i)))
        angle = v.read_int64(step.angles, token) * E if step.cosine != 0 else 0
        for head in range(H + G):
            at, norm = start + head * E, block.query_norm if head < H else block.key_norm
            normalise(norm, qkv, at, qkv, at, E, is_narrow)
            if step.cosine != 0:
                rotate(qkv, at, E, step.cosine, step.sine, angle, is_narrow)
        if token % step.T < v.read_int64(step.counts, token // step.T):  # else padding
            position, row = v.read_int64(step.positions, token), row_of_cache(block, step, token)
            for head in range(G):
                key = start + (H + head) * E
                store_token(row, position, head, qkv, key, key + G * E, E, is_narrow)


@compiled
def attend_group(block, step, scratch, token, group):
    """Attention of the query heads of a token that share a key head."""
    E, per_group = block.head_width, block.heads // block.kv_heads
    position, row = v.read_int64(step.positions, token), row_of_cache(block, step, token)
    is_narrow = step.is_narrow != 0
    query, out = token * padded_outputs(block.qkv.outputs), token * padded_inputs(block.output.inputs)
    for head in range(group * per_group, (group + 1) * per_group):
        start, at = query + head * E, out + head * E
        attend(row, position, group, block.window, scratch.qkv, start, E, scratch.mixed, at, is_narrow)


@inlined
def squares(x, first, width, mean):
    """The sum of (x[first + i] - mean)^2 for i < width."""
    center, sums, total = v.broadcast(mean), v.broadcast(0.0), np.float32(0)
    whole = width // 16 * 16
    for i in range(0, whole, 16):
        difference = v.subtract(v.load_float(x, first + i), center)
        sums = v.fma(difference, difference, sums)
    for i in range(whole, width):
        total += (v.read_float(x, first + i) - mean) * (v.read_float(x, first + i) - mean)
    return v.reduce_add(sums) + total


@compiled
def normalise(norm, x, first, out, at, width, is_narrow):
    """Write the norm of x[first : first + width] to out[at : at + width]; the two may be the same."""
    if norm.kind == 0 and x + first * 4 == out + at * 4:
        return
    mean, inverse, scale, shift = np.float32(0), np.float32(1), norm.scale, norm.shift
    if norm.kind == 1:
        mean = row_sum(x, first, width) / np.float32(width)
    if norm.kind != 0:
        variance = squares(x, first, width, mean) / np.float32(width)
        inverse = np.float32(1) / np.sqrt(variance + np.float32(norm.epsilon))
    whole, center, factor = width // 16 * 16, v.broadcast(mean), v.broadcast(inverse)
    for i in range(0, whole, 16):
        value = v.multiply(v.subtract(v.load_float(x, first + i), center), factor)
        value = v.add(v.multiply(value, v.load_float(scale, i)), v.load_float(shift, i))
        v.store_float(out, at + i, rounded(value, is_narrow))
    for i in range(whole, width):
        value = (v.read_float(x, first + i) - mean) * inverse * v.read_float(scale, i) + v.read_float(shift, i)
        v.write_float(out, at + i, rounded_number(value, is_narrow))


@compiled
def norm_rows(norm, x, out, D, width, is_narrow, first, last):
    """Norms of rows of (M, D)."""
    for row in range(first, last):
        normalise(norm, x, row * D, out, row * D, width, is_narrow)


@inlined
def rotate(x, first, width, cosine, sine, angle, is_narrow):
    """Rotate a head in place: pair i is elements i and i + width / 2. Its angles begin at index `angle`."""
    half = width // 2
    for i in range(half):
        c = rounded_number(v.read_float(cosine, angle + i), is_narrow)
        s = rounded_number(v.read_float(sine, angle + i), is_narrow)
        one, two = v.read_float(x, first + i), v.read_float(x, first + half + i)
        one_c, two_s = rounded_number(one * c, is_narrow), rounded_number(two * s, is_narrow)
        two_c, one_s = rounded_number(two * c, is_narrow), rounded_number(one * s, is_narrow)
        v.write_float(x, first + i, rounded_number(one_c - two_s, is_narrow))
        v.write_float(x, first + half + i, rounded_number(two_c + one_s, is_narrow))


@inlined
def activate_tiles(block, inner, hidden, M, is_narrow, first, last):
    """Activate tiles first, ... last - 1 of 16 inner values; if gated, a tile of gates precedes each tile."""
    columns, width = padded_outputs(block.up.outputs), padded_inputs(block.feedforward_width)
    for row in range(M):
        for tile in range(first, last):
            at = row * columns + tile * (32 if block.is_gated else 16)
            value = rounded(activate(rounded(v.load_float(inner, at), is_narrow), block.activation), is_narrow)
            if block.is_gated:
                value = rounded(v.multiply(value, rounded(v.load_float(inner, at + 16), is_narrow)), is_narrow)
            v.store_float(hidden, row * width + tile * 16, value)
