"""Transformer blocks for few tokens as one compiled function, made of the kernels of the single layers.

Their phases follow each other on threads that are started once. In a model in bfloat16 values are rounded where the
plain modules return them, so a block computes what its modules do, in the same order.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from foretell.model.kernels.activations import padded_inputs, padded_outputs, prepare
from foretell.model.kernels.block_attention import CacheView, attend, store_token
from foretell.model.kernels.block_rows import NormView, activate_tiles, add_update, normalise, rotate, round_row
from foretell.model.kernels.compiling import compiled, compiled_callback, inlined
from foretell.model.kernels.matmul import multiply_part, read_matrix, read_rows
from foretell.model.kernels.numba_numbers import write_numbers
from foretell.model.kernels.numba_scalars import read_double, read_long
from foretell.model.kernels.packed_matrix import MatrixView
from foretell.model.kernels.tasks import claim, finish, num_tasks, wait

PHASES = 11
MIN_ROWS = 4  # with fewer, one thread does what is done row by row


class BlockView(NamedTuple):
    """What compiled code is given of a block."""

    qkv: MatrixView
    output: MatrixView
    up: MatrixView  # gated: tiles of gates and of what they multiply, in turns
    down: MatrixView
    attention_norm: NormView
    feedforward_norm: NormView
    query_norm: NormView
    key_norm: NormView
    layer: int  # of the cache
    width: int
    heads: int
    kv_heads: int
    head_width: int
    feedforward_width: int
    window: int  # 0: none
    activation: int
    is_gated: bool
    is_post_norm: bool
    has_residual: bool


class PassView(NamedTuple):
    """One pass over M tokens, the same for all layers: addresses of tables, positions (M,), counts and angles (M, E).

    rows: M, or the next multiple of 16 above 16. The cache is given by the addresses of its first layer and strides,
    those of a layer in bytes. tables has `table_width` blocks (int32) per row of the batch, and T tokens follow each
    other in a row; those after the first `counts` of them are padding. The angles of all rows of the batch are the same
    where `angle_rows` is 1; without rotation their addresses are 0.
    """

    rows: int
    is_narrow: bool
    keys: int
    values: int
    layer_stride: int
    head_stride: int
    block_stride: int
    M: int
    T: int
    tables: int
    table_width: int
    positions: int
    counts: int
    cosine: int
    sine: int
    angle_rows: int


class Scratch(NamedTuple):
    """Addresses of float32 arrays that live as long as one call: rows of each kind, padded."""

    stream: int
    source: int  # what the next product reads: (rows, D)
    qkv: int
    mixed: int  # the heads' outputs
    update: int
    inner: int
    hidden: int
    prepared: int


@cache
def block_program() -> Any:
    """The compiled program of blocks."""
    return compiled_callback(compute_blocks, 1)


def compute_blocks(arguments):
    """Read the stream (M, D) of a pass, and write the output of one block after the other: (count, M, D).

    The arguments are the addresses of the pass's numbers, of the stream and of the first output, the bytes of an
    output, the number of blocks, and the address of each one's numbers.
    """
    threads, counters, address = read_long(arguments, 0), read_long(arguments, 1), read_long(arguments, 2)
    step, x, out = read_pass(read_long(arguments, 3)), read_long(arguments, 4), read_long(arguments, 5)
    for index in range(read_long(arguments, 7)):
        block = read_block(read_long(arguments, 8 + index))
        compute_block(block, step, x, out, lay_out(block, step.rows, address), threads, counters, index * PHASES)
        x, out = out, out + read_long(arguments, 6)


@inlined
def compute_block(block, step, x, out, scratch, threads, counters, first):
    """The output of one block. first: the counters of its phases begin there."""
    cache = layer_of_cache(step, block.layer)
    for phase in range(PHASES):
        tasks = count_tasks(block, step.M, phase, threads)
        task = claim(counters, first + phase)
        while task < tasks:
            do_task(block, cache, step, x, out, scratch, step.rows, step.is_narrow, phase, task, tasks)
            finish(counters, first + phase)
            task = claim(counters, first + phase)
        wait(counters, first + phase, tasks)


def as_numbers(view: BlockView | PassView) -> np.ndarray:
    """A view as an array of integers, in which compiled code reads it."""
    numbers: list[float] = []
    for part in view:
        numbers += part if isinstance(part, tuple) else [part]
    return np.array([np.float64(x).view(np.int64) if isinstance(x, float) else x for x in numbers], dtype=np.int64)


@inlined
def layer_of_cache(step, layer):
    """The view of a layer of the cache."""
    start = layer * step.layer_stride
    return CacheView(step.keys + start, step.values + start, step.head_stride, step.block_stride)


@inlined
def read_pass(n):
    """The view of a pass that was given to `as_numbers`, from the numbers at an address."""
    rows, is_narrow, keys, values = read_long(n, 0), read_long(n, 1) != 0, read_long(n, 2), read_long(n, 3)
    strides, M, T = (read_long(n, 4), read_long(n, 5), read_long(n, 6)), read_long(n, 7), read_long(n, 8)
    tables, table_width, positions, counts = read_long(n, 9), read_long(n, 10), read_long(n, 11), read_long(n, 12)
    cosine, sine, angle_rows = read_long(n, 13), read_long(n, 14), read_long(n, 15)
    return PassView(
        rows, is_narrow, keys, values, strides[0], strides[1], strides[2], M, T, tables, table_width, positions, counts,
        cosine, sine, angle_rows,
    )  # fmt: skip


@inlined
def read_norm(n, at):
    """A norm, from the numbers at an address."""
    return NormView(read_long(n, at), read_long(n, at + 1), read_long(n, at + 2), read_double(n, at + 3))


@inlined
def read_block(n):
    """The view that was given to `as_numbers`, from the numbers at an address."""
    qkv, output, up, down = read_matrix(n, 0), read_matrix(n, 10), read_matrix(n, 20), read_matrix(n, 30)
    one, two, query, key = read_norm(n, 40), read_norm(n, 44), read_norm(n, 48), read_norm(n, 52)
    layer, width, heads, kv_heads = read_long(n, 56), read_long(n, 57), read_long(n, 58), read_long(n, 59)
    head_width, inner, window, activation = read_long(n, 60), read_long(n, 61), read_long(n, 62), read_long(n, 63)
    is_gated, is_post_norm, has_residual = read_long(n, 64) != 0, read_long(n, 65) != 0, read_long(n, 66) != 0
    return BlockView(
        qkv, output, up, down, one, two, query, key, layer, width, heads, kv_heads, head_width, inner, window,
        activation, is_gated, is_post_norm, has_residual,
    )  # fmt: skip


@inlined
def lay_out(block, rows, address):
    """The addresses of the arrays, one after the other."""
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
def count_tasks(block, M, phase, parts):
    """The number of tasks of a phase."""
    if phase == 1:
        return num_tasks(padded_outputs(block.qkv.outputs) // 16, parts)
    if phase == 3:
        return M * block.kv_heads
    if phase == 5 or phase == 9:
        return num_tasks(padded_outputs(block.width) // 16, parts)
    if phase == 7:
        return num_tasks(padded_outputs(block.feedforward_width) // 16, parts)
    return parts if M >= MIN_ROWS else 1


@compiled
def do_task(block, cache, step, x, out, scratch, rows, is_narrow, phase, task, tasks):
    """One task of a phase: some rows, some tiles of outputs, or one group of heads of a token."""
    row, end = task * step.M // tasks, (task + 1) * step.M // tasks
    if phase == 0:
        begin(block, x, scratch, rows, is_narrow, row, end)
    elif phase == 1:
        N = padded_outputs(block.qkv.outputs)
        first, last = task * (N // 16) // tasks, (task + 1) * (N // 16) // tasks
        multiply_part(block.qkv, scratch.source, scratch.prepared, rows, is_narrow, scratch.qkv, first, last)
    elif phase == 2:
        store_rows(block, cache, step, scratch, is_narrow, row, end)
    elif phase == 3:
        attend_group(block, cache, step, scratch, is_narrow, task // block.kv_heads, task % block.kv_heads)
    elif phase == 4:
        prepare(block.output, scratch.mixed, scratch.prepared, rows, is_narrow, row, end)
    elif phase == 5:
        project(block.output, block, step.M, scratch.mixed, scratch, rows, is_narrow, block.has_residual, task, tasks)
    elif phase == 6:
        norm_between(block, scratch, rows, is_narrow, row, end)
    elif phase == 7:
        widen_stream(block, step.M, scratch, rows, is_narrow, task, tasks)
    elif phase == 8:
        prepare(block.down, scratch.hidden, scratch.prepared, rows, is_narrow, row, end)
    elif phase == 9:
        project(block.down, block, step.M, scratch.hidden, scratch, rows, is_narrow, True, task, tasks)
    else:
        finish_rows(block, out, scratch, is_narrow, row, end)


@inlined
def norm_rows(block, norm, x, out, is_narrow, first, last):
    """Norms of rows of (M, D)."""
    D = padded_inputs(block.width)
    for row in range(first, last):
        normalise(norm, x, row * D, out, row * D, block.width, is_narrow)


@inlined
def copy_norm(is_on, norm):
    """The norm, or one that changes nothing."""
    return NormView(norm.kind if is_on else 0, norm.scale if is_on else 0, norm.shift if is_on else 0, norm.epsilon)


@compiled
def begin(block, x, scratch, rows, is_narrow, first, last):
    """Read rows of the stream; the products for query, key and value read their norm."""
    read_rows(x, block.width, scratch.stream, padded_inputs(block.width), is_narrow, first, last)
    norm = copy_norm(not block.is_post_norm, block.attention_norm)
    norm_rows(block, norm, scratch.stream, scratch.source, is_narrow, first, last)
    prepare(block.qkv, scratch.source, scratch.prepared, rows, is_narrow, first, last)


@compiled
def store_rows(block, cache, step, scratch, is_narrow, first, last):
    """Normalise and rotate queries and keys of some tokens, and put keys and values into the cache."""
    H, G, E, N = block.heads, block.kv_heads, block.head_width, padded_outputs(block.qkv.outputs)
    for token in range(first, last):
        at = token * N
        round_row(scratch.qkv, at, N, is_narrow)
        angle = (token % step.T if step.angle_rows == 1 else token) * E
        for head in range(H + G):
            norm = block.query_norm if head < H else block.key_norm
            if norm.kind != 0:
                normalise(norm, scratch.qkv, at + head * E, scratch.qkv, at + head * E, E, is_narrow)
            if step.cosine != 0:
                rotate(scratch.qkv, at + head * E, E, step.cosine, step.sine, angle, is_narrow)
        if token % step.T < read_long(step.counts, token // step.T):  # else padding
            position, table = read_long(step.positions, token), table_of_token(step, token)
            for head in range(G):
                key = at + (H + head) * E
                store_token(cache, table, position, head, scratch.qkv, key, key + G * E, E, is_narrow)


@inlined
def table_of_token(step, token):
    """The address of the table of a token's row."""
    return step.tables + token // step.T * step.table_width * 4


@compiled
def attend_group(block, cache, step, scratch, is_narrow, token, group):
    """Attention of the query heads of a token that share a key head."""
    E, per_group = block.head_width, block.heads // block.kv_heads
    position = read_long(step.positions, token)
    table = table_of_token(step, token)
    query, out = token * padded_outputs(block.qkv.outputs), token * padded_inputs(block.output.inputs)
    for head in range(group * per_group, (group + 1) * per_group):
        start, at = query + head * E, out + head * E
        attend(cache, table, position, group, block.window, scratch.qkv, start, E, scratch.mixed, at, is_narrow)


@compiled
def project(matrix, block, M, x, scratch, rows, is_narrow, has_residual, task, tasks):
    """Multiply by some tiles of a matrix with D outputs, and add them to the stream."""
    N = padded_outputs(block.width)
    first, last = task * (N // 16) // tasks, (task + 1) * (N // 16) // tasks
    multiply_part(matrix, x, scratch.prepared, rows, is_narrow, scratch.update, first, last)
    D = padded_inputs(block.width)
    add_update(scratch.stream, D, scratch.update, N, has_residual, M, first * 16, last * 16, is_narrow)


@compiled
def norm_between(block, scratch, rows, is_narrow, first, last):
    """The norm after the attention, or before the feed-forward layer."""
    if block.is_post_norm:
        norm_rows(block, block.attention_norm, scratch.stream, scratch.stream, is_narrow, first, last)
    norm = copy_norm(not block.is_post_norm, block.feedforward_norm)
    norm_rows(block, norm, scratch.stream, scratch.source, is_narrow, first, last)
    prepare(block.up, scratch.source, scratch.prepared, rows, is_narrow, first, last)


@compiled
def widen_stream(block, M, scratch, rows, is_narrow, task, tasks):
    """Some of the feed-forward layer's inner values, activated."""
    F, N = padded_outputs(block.feedforward_width) // 16, padded_outputs(block.up.outputs)
    first, last = task * F // tasks, (task + 1) * F // tasks
    tiles = 2 if block.is_gated else 1
    multiply_part(
        block.up, scratch.source, scratch.prepared, rows, is_narrow, scratch.inner, first * tiles, last * tiles
    )
    width, kind = padded_inputs(block.feedforward_width), block.activation
    activate_tiles(scratch.inner, N, scratch.hidden, width, M, first, last, kind, block.is_gated, is_narrow)


@compiled
def finish_rows(block, out, scratch, is_narrow, first, last):
    """Write rows of the stream."""
    if block.is_post_norm:
        norm_rows(block, block.feedforward_norm, scratch.stream, scratch.stream, is_narrow, first, last)
    D, width = padded_inputs(block.width), block.width
    for row in range(first, last):
        write_numbers(scratch.stream, row * D, width, out, row * width, is_narrow)
