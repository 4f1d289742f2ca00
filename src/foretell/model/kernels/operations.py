"""Passes over few tokens in compiled code: a list of operations, which threads run phase by phase.

A phase is a matrix product with the operations on its tiles of outputs, attention by heads, or operations on rows of
tokens. Values are arrays of float32 in scratch memory, with rows padded to a multiple of 16 or 32 numbers. In a
bfloat16 model, a value is rounded where the plain module returns it; in between, values are in float32.
"""

from __future__ import annotations

import numpy as np

from foretell.model.kernels import vectors as v
from foretell.model.kernels.block_attention import CachedRow, attend, store_token
from foretell.model.kernels.compiling import compiled, inlined, merged
from foretell.model.kernels.matmul import matrix_at, multiply_part
from foretell.model.kernels.packing import prepare
from foretell.model.kernels.threads import CALL, claim, finish, num_tasks, wait
from foretell.model.kernels.vector_math import activate, read_numbers, rounded, rounded_number, row_sum, write_numbers

MIN_ROWS = 4  # with fewer, one thread runs the phases that work on rows
MATMUL, ATTEND, ACTIVATE, MULTIPLY, ADD, COPY, WRITE = range(7)
NORM, ROTATE, SCALE, STORE, EMBED, READ, CHOOSE, PREPARE = range(7, 15)
ON_TILES = {ACTIVATE, MULTIPLY, ADD, COPY, WRITE}  # element by element, so they also run on the tiles of a product

# A value: element `first + i` of a row of `pitch` numbers, in an array at `at` numbers per row of the scratch memory.
# step: distance of its tiles of 16; 32 if tiles of two values alternate
VIEW = np.dtype(v.fields("at first pitch step"))
OPERATION = np.dtype(
    [
        ("source", VIEW),
        ("other", VIEW),  # the second operand; values in the cache; prepared activations of a product
        ("target", VIEW),
        *v.fields("kind end is_chosen"),  # end: index after the phase; is_chosen: for the tokens with logits alone
        *v.fields("width count"),  # numbers per row, or heads: their width and their number
        *v.fields("tiles turns"),  # tiles of outputs, or of the elements; tiles of the matrix in one of them
        *v.fields("matrix embedding"),  # addresses of records
        *v.fields("activation layer window kv_heads"),  # layer: its index in the cache; window 0: none
        *v.fields("is_centered scale shift"),  # a norm, with addresses of scale and shift in float32
        *v.fields("is_local"),  # reads the angles of layers with a window
        ("epsilon", "f8"),
        ("factor", "f8"),  # of SCALE
    ]
)
# A table in the model's dtype, or of integers where `group` of them share a scale and perhaps a minimum in float32 (0
# without); its rows are found by id or, if is_position, by position
EMBEDDING = np.dtype(v.fields("table scales minima group is_int4 is_position"))
# One pass over M tokens. The T tokens of a row of the batch are consecutive
PASS = np.dtype(
    [
        *v.fields("M T rows is_narrow"),  # rows: M padded for the matrix unit
        # the addresses of the cache's first layer, and the strides: layer_stride in bytes, the others in elements
        *v.fields("keys values layer_stride head_stride block_stride"),
        # addresses: block table (int32) of each row, positions (M,), number of tokens of each row without padding
        *v.fields("tables table_width positions counts"),
        # addresses: cosines and sines of angles (A, E), also of layers with a window; the angle of each token (M,)
        *v.fields("cosine sine local_cosine local_sine angles"),
    ]
)
# `count` operations, which read ids (M,) or x (M, D) and write out, in the model's dtype; `chosen`: the indices of the
# tokens with logits, their number, and the number padded
PROGRAM = np.dtype([*CALL, *v.fields("step operations count ids x out chosen num_chosen chosen_rows")])
OPERATION_BYTES = OPERATION.itemsize
call_at, pass_at, operation_at = v.record_at(PROGRAM), v.record_at(PASS), v.record_at(OPERATION)
embedding_at = v.record_at(EMBEDDING)


def run_program(address):
    """Run all operations, with a barrier after each phase."""
    call = call_at(address)
    step, threads, counters = pass_at(call.step), call.threads, call.counters
    index, phase = 0, 0
    while index < call.count:
        operation = operation_at(call.operations + index * OPERATION_BYTES)
        M = call.num_chosen if operation.is_chosen else step.M
        tasks = count_tasks(operation, M, threads)
        task = claim(counters, phase)
        while task < tasks:
            do_task(call, step, operation, index, M, task, tasks)
            finish(counters, phase)
            task = claim(counters, phase)
        wait(counters, phase, tasks)
        index, phase = operation.end, phase + 1


@inlined
def count_tasks(operation, M, threads):
    if operation.kind == ATTEND:
        return M * operation.kv_heads
    if operation.kind == MATMUL:
        return num_tasks(operation.tiles, threads)
    return threads if M >= MIN_ROWS else 1


@merged
def do_task(call, step, operation, index, M, task, tasks):
    """One task of a phase: some rows, some tiles of outputs, or one group of heads of a token."""
    rows, is_narrow = call.chosen_rows if operation.is_chosen else step.rows, step.is_narrow != 0
    if operation.kind == ATTEND:
        attend_group(operation, step, call.scratch, task // operation.kv_heads, task % operation.kv_heads)
    elif operation.kind == MATMUL:
        first, last = share(operation.tiles, task, tasks)
        multiply_tiles(operation, step, call.scratch, M, rows, first, last)
        for i in range(index + 1, operation.end):
            run_on_tiles(operation_at(call.operations + i * OPERATION_BYTES), call, step, 0, M, first, last)
    else:
        first, last = share(M, task, tasks)
        for i in range(index, operation.end):
            inner = operation_at(call.operations + i * OPERATION_BYTES)
            if inner.kind <= WRITE:
                run_on_tiles(inner, call, step, first, last, 0, inner.tiles)
            elif inner.kind == PREPARE:
                source, out = address_of(inner.source, step, call.scratch), address_of(inner.target, step, call.scratch)
                prepare(matrix_at(inner.matrix), source, out, rows, is_narrow, first, last)
            else:
                run_on_rows(inner, call, step, first, last)


@inlined
def share(count, task, tasks):
    """The range of the rows or tiles of a task: the first, and one after the last."""
    return task * count // tasks, (task + 1) * count // tasks


@inlined
def address_of(view, step, memory):
    """The address of the array that a value is in."""
    return memory + step.rows * view.at * 4


@inlined
def multiply_tiles(operation, step, memory, M, rows, first, last):
    """Tiles first, ... last - 1 of a product, rounded."""
    out, is_narrow, turns = address_of(operation.target, step, memory), step.is_narrow != 0, operation.turns
    source, prepared = address_of(operation.source, step, memory), address_of(operation.other, step, memory)
    matrix = matrix_at(operation.matrix)
    multiply_part(matrix, source, prepared, rows, is_narrow, out, first * turns, last * turns)
    for row in range(M if is_narrow else 0):
        for i in range(first * turns * 16, last * turns * 16, 16):
            at = row * operation.target.pitch + i
            v.store_float(out, at, v.round_to_bfloat16(v.load_float(out, at)))


@compiled
def run_on_tiles(operation, call, step, first, last, first_tile, last_tile):
    """An operation on the elements of rows first, ... last - 1, in some tiles of 16."""
    kind, is_narrow, memory = operation.kind, step.is_narrow != 0, call.scratch
    a, b, c = operation.source, operation.other, operation.target
    x, y, out = address_of(a, step, memory), address_of(b, step, memory), address_of(c, step, memory)
    for row in range(first, last):
        if kind == WRITE:
            start = first_tile * 16
            width, at = min(last_tile * 16, operation.width) - start, row * operation.width + start
            write_numbers(x, row * a.pitch + start, width, call.out, at, is_narrow)
            continue
        for tile in range(first_tile, last_tile):
            value = v.load_float(x, row * a.pitch + a.first + tile * a.step)
            if kind == ACTIVATE:
                value = activate(value, operation.activation)
            elif kind != COPY:
                other = v.load_float(y, row * b.pitch + b.first + tile * b.step)
                value = v.multiply(value, other) if kind == MULTIPLY else v.add(value, other)
            v.store_float(out, row * c.pitch + c.first + tile * c.step, rounded(value, is_narrow))


@compiled
def run_on_rows(operation, call, step, first, last):
    """An operation on whole rows first, ... last - 1."""
    kind, width, is_narrow = operation.kind, operation.width, step.is_narrow != 0
    x, out = address_of(operation.source, step, call.scratch), address_of(operation.target, step, call.scratch)
    for row in range(first, last):
        start = row * operation.source.pitch + operation.source.first
        at = row * operation.target.pitch + operation.target.first
        if kind == NORM:
            for head in range(0, operation.count * width, width):
                normalise(operation, x, start + head, out, at + head, width, is_narrow)
        elif kind == ROTATE:
            angle, is_local = v.read_int64(step.angles, row) * width, operation.is_local != 0
            cosine = step.local_cosine if is_local else step.cosine
            sine = step.local_sine if is_local else step.sine
            for head in range(0, operation.count * width, width):
                rotate(x, start + head, width, cosine, sine, angle, is_narrow)
        elif kind == SCALE:
            for i in range(width):
                product = v.read_float(x, start + i) * np.float32(operation.factor)
                v.write_float(out, at + i, rounded_number(product, is_narrow))
        elif kind == STORE:
            store_row(operation, step, call.scratch, row)
        elif kind == READ:
            read_numbers(call.x, row * width, width, out, at, is_narrow)
        elif kind == CHOOSE:
            chosen = v.read_int64(call.chosen, row) * operation.source.pitch + operation.source.first
            read_numbers(x, chosen, width, out, at, False)
        elif kind == EMBED:
            embedding = embedding_at(operation.embedding)
            index = v.read_int64(step.positions if embedding.is_position else call.ids, row) * width
            if embedding.group == 0:
                read_numbers(embedding.table, index, width, out, at, is_narrow)
            else:
                read_integers(embedding, index, width, out, at, is_narrow)


# --- operations on a row ---------------------------------------------------------------------------------------------


@inlined
def read_integers(embedding, row, width, x, at, is_narrow):
    """Write a vector, which begins at number `row` of its table: integers times scales, plus any minima."""
    for start in range(0, width, embedding.group):
        index = (row + start) // embedding.group
        scale = v.read_float(embedding.scales, index)
        minimum = v.read_float(embedding.minima, index) if embedding.minima != 0 else np.float32(0)
        for i in range(start, start + embedding.group):
            if embedding.is_int4 != 0:
                integer = v.read_int8(embedding.table, (row + i) // 2) >> (row + i) % 2 * 4 & 15
            else:
                integer = v.read_int8(embedding.table, row + i)
            v.write_float(x, at + i, rounded_number(np.float32(integer) * scale + minimum, is_narrow))


@inlined
def row_of_cache(operation, step, token):
    layer, table = operation.layer * step.layer_stride, step.tables + token // step.T * step.table_width * 4
    return CachedRow(step.keys + layer, step.values + layer, step.head_stride, step.block_stride, table)


@inlined
def store_row(operation, step, memory, token):
    """Store the keys and values of a token in the cache, unless it is padding."""
    keys, values, E = operation.source, operation.other, operation.width
    x, y = address_of(keys, step, memory), address_of(values, step, memory)
    if token % step.T < v.read_int64(step.counts, token // step.T):
        position, row = v.read_int64(step.positions, token), row_of_cache(operation, step, token)
        for head in range(operation.count):
            key, value = token * keys.pitch + keys.first, token * values.pitch + values.first
            store_token(row, position, head, x, key + head * E, y, value + head * E, E, step.is_narrow != 0)


@compiled
def attend_group(operation, step, memory, token, group):
    """Attention of the query heads of a token that share a key head."""
    E, per_group = operation.width, operation.count // operation.kv_heads
    position, row = v.read_int64(step.positions, token), row_of_cache(operation, step, token)
    x, out = address_of(operation.source, step, memory), address_of(operation.target, step, memory)
    query, mixed = token * operation.source.pitch + operation.source.first, token * operation.target.pitch
    for head in range(group * per_group, (group + 1) * per_group):
        start, at = query + head * E, mixed + head * E
        attend(row, position, group, operation.window, x, start, E, out, at, step.is_narrow != 0)


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


@inlined
def normalise(norm, x, first, out, at, width, is_narrow):
    """Write the norm of x[first : first + width] to out[at : at + width]; the two may be the same."""
    mean, scale, shift = np.float32(0), norm.scale, norm.shift
    if norm.is_centered:
        mean = row_sum(x, first, width) / np.float32(width)
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
