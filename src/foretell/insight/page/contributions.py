"""Direct contributions to logits: of heads and layers, and of the strongest neurons of a feed-forward layer.

The numbers are as in `direct_logit_attribution`, at the positions of the lens. Several positions are computed at once,
because the weights of all output projections must be converted to float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foretell.insight.layers import Neurons
from foretell.insight.page.page_pass import LENS_POSITIONS, TOP, PageModel, PagePass, array

PARTS_AT_ONCE, WRITES_AT_ONCE = 16, 4  # positions per section
NEURONS_SHOWN = 10  # neurons per position: those that add the longest vectors to the stream
TOKENS_WRITTEN = 5  # tokens whose logits a neuron raises most, and the same number that it lowers most
VOCABULARY_AT_ONCE = 8192  # rows of the head in float32
OUTCOMES = 10  # labels with contributions on a page: the most probable ones
MEAN_ID = -1  # the id of the mean of all labels


def sections_of(length: int, at_once: int) -> int:
    """The number of sections for the last positions of a text."""
    return -(-min(length, LENS_POSITIONS) // at_once)


def positions_of(traced: PagePass, section: int, at_once: int) -> slice:
    """The positions of a section; the first section begins where the lens does."""
    start = traced.lens_from + section * at_once
    return slice(start, min(len(traced.ids), start + at_once))


def stream_needs(page: PageModel, _: Any) -> list[str]:
    """The values that the terms of the stream are computed from."""
    return page.head_stream.names()


def neurons_in(page: PageModel, layer: int) -> Neurons:
    neurons = page.neurons[layer]
    assert neurons is not None, f"layer {layer} has no neurons"
    return neurons


# --- heads and layers ------------------------------------------------------------------------------------------------


@torch.inference_mode()
def logit_contributions(traced: PagePass, section: int) -> np.ndarray:
    """Id, logit and contributions of all N parts for K tokens after each of P positions: (P, K, 2 + N).

    The tokens are the most probable ones and, last, the next token of the text (at the end of the text, the most
    probable token again).
    """
    at = positions_of(traced, section, PARTS_AT_ONCE)
    readout = traced.logit_readout
    logits = traced.page.model.decoder.head(traced.recorded.hidden[at])[:, : len(traced.page.vocabulary)]  # (P, V)
    best = logits.topk(min(TOP, logits.shape[-1])).indices  # (P, K - 1)
    following = best[:, 0].clone()
    next_ids = torch.tensor(traced.ids[at.start + 1 : at.stop + 1], device=best.device, dtype=best.dtype)
    following[: len(next_ids)] = next_ids
    ids = torch.cat([best, following[:, None]], dim=-1)  # (P, K)
    directions = readout.weight[ids].double().transpose(0, 1)  # (K, P, D)
    parts = traced.contributions.products(at, directions).permute(2, 1, 0)  # (P, K, N)
    biases = [] if readout.biases is None else [readout.biases[ids][..., None]]
    columns = [ids[..., None], logits.gather(1, ids)[..., None], parts, *biases]
    return array(torch.cat([column.double() for column in columns], dim=-1).float())


# --- outcomes --------------------------------------------------------------------------------------------------------


def outcome_logits(traced: PagePass) -> np.ndarray:
    """The outputs (C,)."""
    assert traced.outputs is not None, "the model has a task's head"
    return array(traced.outputs)


def shown_outcomes(traced: PagePass, position: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids (K,), outputs and constants (K, 2), and weights (K, D) of the largest outputs and, as id -1, of the mean of
    all if there are several. The constant is the part of an output that does not come from the pass."""
    task = traced.page.task
    assert traced.outputs is not None, "the model has a task's head"
    own = task.at(task.outputs(traced.recorded.hidden), position).double() - task.constant
    whole = task.at(traced.outputs, position).double()
    weight = task.scale * task.weight.double()
    whole = whole[task.first : task.first + len(weight)]
    numbers = torch.stack([whole, whole - own[: len(weight)]], dim=-1)  # (C, 2)
    ids = numbers[:, 0].topk(min(OUTCOMES, len(numbers))).indices
    if len(numbers) == 1:
        return ids + task.first, numbers, weight
    return (
        torch.cat([ids, torch.full_like(ids[:1], MEAN_ID)]),
        torch.cat([numbers[ids], numbers.mean(0)[None]]),
        torch.cat([weight[ids], weight.mean(0)[None]]),
    )


def outcome_directions(traced: PagePass, position: int, weight: Tensor) -> tuple[slice, Tensor]:
    """The positions that the head of the task reads, and directions (K, P, D) for weights (K, D)."""
    at = traced.page.task.positions(len(traced.ids), position)
    count = at.stop - at.start
    return at, (weight / count)[:, None].expand(-1, count, -1)


@torch.inference_mode()
def outcome_parts(traced: PagePass, position: int | str) -> np.ndarray:
    """Id, output, constant and contributions of all N parts for K outputs: (1, K, 3 + N)."""
    ids, numbers, weight = shown_outcomes(traced, int(position))
    values = traced.contributions.of_parts(*outcome_directions(traced, int(position), weight)).T  # (K, N)
    return array(torch.cat([ids[:, None].double(), numbers, values], dim=-1).float()[None])


@torch.inference_mode()
def outcome_tokens(traced: PagePass, position: int | str) -> np.ndarray:
    """The contributions of all T tokens to K outputs, (T, K)."""
    _, _, weight = shown_outcomes(traced, int(position))
    tokens = traced.contributions.of_tokens(*outcome_directions(traced, int(position), weight))
    return array(tokens.sum(0).T.float())


# --- neurons ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class StrongestNeurons:
    """The K neurons of a layer that add the longest vectors to the stream, at each of T positions.

    ids (T, K). values (T, K, C): the recorded numbers of each, and last the length of its vector. factors (T, K): the
    multipliers of the neurons' weight columns.
    """

    ids: Tensor
    values: Tensor
    factors: Tensor


@torch.inference_mode()
def strongest_neurons(traced: PagePass, layer: int) -> StrongestNeurons:
    neurons = neurons_in(traced.page, layer)
    recorded = {name: traced.recorded.trace[name][0].float() for name in neurons.values}  # (T, F) each
    factors = torch.stack([recorded[name] for name in neurons.factors]).prod(dim=0)
    lengths = factors.abs() * neurons.down.weight.float().norm(dim=0)
    ids = lengths.topk(min(NEURONS_SHOWN, lengths.shape[-1])).indices  # (T, K)
    values = torch.stack([each.gather(1, ids) for each in (*recorded.values(), lengths)], dim=-1)
    return StrongestNeurons(ids, values, factors.gather(1, ids))


@torch.inference_mode()
def neuron_writes(traced: PagePass, layer: int, section: int) -> np.ndarray:
    """The tokens whose logits each of K neurons raises and lowers most, at P positions: (P, K, 2 * TOKENS_WRITTEN, 2).

    The last axis has the token id and the neuron's direct contribution to the logit.
    """
    at = positions_of(traced, section, WRITES_AT_ONCE)
    neurons, strongest = neurons_in(traced.page, layer), strongest_neurons(traced, layer)
    columns = neurons.down.weight.T[strongest.ids[at]].double()  # (P, K, D)
    vectors = (columns * strongest.factors[at, :, None].double()).transpose(0, 1)  # (K, P, D)
    carried = traced.contributions.stream.carry(neurons.update, vectors, traced.recorded.trace, at)
    rows = traced.logit_readout.weight[: len(traced.page.vocabulary)].split(VOCABULARY_AT_ONCE)
    logits = torch.cat([carried.float() @ part.float().T for part in rows], dim=-1).transpose(0, 1)  # (P, K, V)
    count = min(TOKENS_WRITTEN, logits.shape[-1])
    highest, lowest = logits.topk(count), logits.topk(count, largest=False)
    ids = torch.cat([highest.indices, lowest.indices], dim=-1)
    values = torch.cat([highest.values, lowest.values], dim=-1)
    return array(torch.stack([ids.float(), values], dim=-1))


def write_operations(page: PageModel) -> int:
    """The floating-point operations of `neuron_writes` for one section of all layers."""
    layers = sum(neurons is not None for neurons in page.neurons)
    return 2 * layers * WRITES_AT_ONCE * NEURONS_SHOWN * page.config.vocab_size * page.config.width
