"""A pass over few tokens as one compiled program: from ids through the blocks to logits.

Embedding and head may be left out, so the same program computes one block. Values are rounded to the model's dtype
where the plain modules return them.
"""

from __future__ import annotations

import numpy as np

from foretell.model.kernels import vectors as v
from foretell.model.kernels.block_program import (
    NORM,
    PHASES,
    block_at,
    compute_block,
    norm_rows,
    normalise,
    pass_at,
    share,
    tasks_by_rows,
)
from foretell.model.kernels.compiling import compiled, merged
from foretell.model.kernels.matmul import write_outputs
from foretell.model.kernels.packing import MATRIX, padded_inputs, padded_outputs, prepare
from foretell.model.kernels.threads import CALL, claim, finish, wait
from foretell.model.kernels.vector_math import read_number, read_numbers, rounded_number, write_numbers

# Addresses of the ids (M,) and of tables in the model's dtype: token vectors (V, D), or integers where `group` of them
# share a scale and perhaps a minimum in float32 (0 without); position vectors, 0 without
EMBEDDING = np.dtype(v.fields("ids tokens scales minima group is_int4 positions width"))
# The final norm and the head: logits (count, V) of the tokens whose indices are at `chosen`; rows: count, padded
HEAD = np.dtype([("norm", NORM), ("matrix", MATRIX), *v.fields("chosen count rows logits")])
# Records by address, 0: left out; `count` blocks by the addresses of theirs. Blocks read and write x and out (M, D) in
# turns, the first one reads x
PROGRAM = np.dtype([*CALL, *v.fields("step x out embedding head count blocks")])
NORMED = np.dtype([*CALL, ("norm", NORM), *v.fields("x out M width is_narrow")])
PASS_PHASES = 3  # besides the phases of blocks: embedding, final norm, head
call_at, embedding_at, head_at = v.record_at(PROGRAM), v.record_at(EMBEDDING), v.record_at(HEAD)
normed_call_at = v.record_at(NORMED)


def compute_pass(address):
    """Read ids or a stream, and write the output of the last block, or logits."""
    call = call_at(address)
    step, threads, counters, x, out = pass_at(call.step), call.threads, call.counters, call.x, call.out
    if call.embedding != 0:
        tasks = tasks_by_rows(step.M, threads)
        task = claim(counters, 0)
        while task < tasks:
            first, end = share(step.M, task, tasks)
            embed_rows(embedding_at(call.embedding), step, x, call.scratch, first, end)
            finish(counters, 0)
            task = claim(counters, 0)
        wait(counters, 0, tasks)
    for index in range(call.count):
        block = block_at(v.read_int64(call.blocks, index))
        compute_block(block, step, x, out, call.scratch, threads, counters, PASS_PHASES + index * PHASES)
        x, out = out, x
    if call.head != 0:
        compute_logits(head_at(call.head), x, call.scratch, step.is_narrow != 0, threads, counters)


@merged
def compute_logits(head, x, memory, is_narrow, threads, counters):
    """The logits of chosen tokens, from the stream x (M, D)."""
    matrix, rows = head.matrix, head.rows
    D, N = padded_inputs(matrix.inputs), padded_outputs(matrix.outputs)
    result = memory + rows * D * 4
    prepared = result + rows * N * 4
    tasks = tasks_by_rows(head.count, threads)
    task = claim(counters, 1)
    while task < tasks:
        first, end = share(head.count, task, tasks)
        for row in range(first, end):
            read_numbers(x, v.read_int64(head.chosen, row) * matrix.inputs, matrix.inputs, memory, row * D, is_narrow)
        norm_rows(head.norm, memory, memory, D, matrix.inputs, is_narrow, first, end)
        prepare(matrix, memory, prepared, rows, is_narrow, first, end)
        finish(counters, 1)
        task = claim(counters, 1)
    wait(counters, 1, tasks)
    write_outputs(matrix, memory, prepared, rows, is_narrow, result, head.count, head.logits, threads, counters, 2)


@compiled
def embed_rows(embedding, step, x, memory, first, end):
    """Write the embedding of tokens first, ... end - 1 to x (M, D)."""
    is_narrow, width = step.is_narrow != 0, embedding.width
    for token in range(first, end):
        row, at = v.read_int64(embedding.ids, token) * width, token * width
        if embedding.group == 0:
            read_numbers(embedding.tokens, row, width, memory, at, is_narrow)
        else:
            read_integers(embedding, row, memory, at, is_narrow)
        if embedding.positions != 0:
            position = v.read_int64(step.positions, token) * width
            for i in range(width):
                value = v.read_float(memory, at + i) + read_number(embedding.positions, position + i, is_narrow)
                v.write_float(memory, at + i, rounded_number(value, is_narrow))
        write_numbers(memory, at, width, x, at, is_narrow)


@compiled
def read_integers(embedding, row, memory, at, is_narrow):
    """Write a token vector, which begins at number `row` of its table: integers times scales, plus any minima."""
    for start in range(0, embedding.width, embedding.group):
        index = (row + start) // embedding.group
        scale = v.read_float(embedding.scales, index)
        minimum = v.read_float(embedding.minima, index) if embedding.minima != 0 else np.float32(0)
        for i in range(start, start + embedding.group):
            if embedding.is_int4 != 0:
                integer = v.read_int8(embedding.tokens, (row + i) // 2) >> (row + i) % 2 * 4 & 15
            else:
                integer = v.read_int8(embedding.tokens, row + i)
            v.write_float(memory, at + i, rounded_number(np.float32(integer) * scale + minimum, is_narrow))


def compute_norm(address):
    """Norms of rows x (M, D), in the model's dtype."""
    call = normed_call_at(address)
    width, is_narrow = call.width, call.is_narrow != 0
    row = claim(call.counters, 0)
    while row < call.M:
        at = row * width
        read_numbers(call.x, at, width, call.scratch, at, is_narrow)
        normalise(call.norm, call.scratch, at, call.scratch, at, width, is_narrow)
        write_numbers(call.scratch, at, width, call.out, at, is_narrow)
        row = claim(call.counters, 0)
