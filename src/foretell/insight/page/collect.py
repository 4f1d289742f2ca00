"""One traced pass over a text, as the arrays that a page shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretell.config import ModelConfig
from foretell.errors import OutputError, TokenizerError
from foretell.insight.attribution.direct_logit_attribution import head_weights
from foretell.insight.attribution.logit_lens import lens_logits
from foretell.insight.recording import encoder_weights, memory_weights_of, updates_of, weights_of
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel, MemoryText, check_model
from foretell.model.cache import FreshKVView
from foretell.model.decoder import Decoder
from foretell.model.structure import Structure, model_structure
from foretell.text import Tokenizer

TOP = 5  # tokens per reading of the lens
LENS_POSITIONS = 256
TOP_ROWS = 10  # top tokens after the last position whose rows of the head are kept
STEPS = 10_000  # per unit: stored numbers are multiples of 0.0001


@dataclass(frozen=True)
class LensArrays:
    """The logit lens at P points of the stream and T positions.

    ids, probabilities and logits (P, T, K) belong to the top tokens. following and ranks (P, T) are probability and
    rank (0 is the most probable) of the text's next token; at the last position, which has none, they are 0 and -1.
    """

    ids: np.ndarray
    probabilities: np.ndarray
    logits: np.ndarray
    following: np.ndarray
    ranks: np.ndarray


def lens_arrays(decoder: Decoder, streams: Sequence[Tensor], next_ids: Tensor, vocab_size: int) -> LensArrays:
    """The lens of P streams (T, D); next_ids (T-1,) or (T,) are the tokens after the first positions."""
    readings = [_read_stream(decoder, stream, next_ids, vocab_size) for stream in streams]
    return LensArrays(*(np.stack(parts) for parts in zip(*readings, strict=True)))


def _read_stream(decoder: Decoder, stream: Tensor, next_ids: Tensor, vocab_size: int) -> list[np.ndarray]:
    logits = lens_logits(decoder, stream)[:, :vocab_size].float()  # (T, V)
    T, K = len(logits), min(TOP, vocab_size)
    logprobs = logits.log_softmax(-1)
    top = logits.topk(K)  # (T, K)
    following, ranks = torch.zeros(T), torch.full((T,), -1)
    count = len(next_ids)
    next_logits = logits[:count].gather(1, next_ids[:, None])  # (count, 1)
    following[:count] = logprobs[:count].gather(1, next_ids[:, None])[:, 0].exp().cpu()
    ranks[:count] = (logits[:count] > next_logits).sum(-1).cpu()
    parts = (top.indices, logprobs.gather(1, top.indices).exp(), top.values, following, ranks)
    return [part.cpu().numpy() for part in parts]


@dataclass(frozen=True)
class StreamPoint:
    """A point of the residual stream: the name of its value, and the layer that ends there, if one does."""

    name: str
    label: str
    layer: int | None = None


@dataclass(frozen=True)
class TracedMemory:
    """The tokens of the memory, and the weights of each layer in multiples of 0.0001.

    cross (H, T, S): from the text to the memory; encoder (H, S, S): of the encoder.
    """

    ids: list[int]
    pieces: list[str]
    cross: list[np.ndarray]
    encoder: list[np.ndarray]


@dataclass(frozen=True)
class TracedPass:
    """The values of one pass. `attention` holds, per layer, the weights (H, N) of the N visible (query, key) pairs,
    row by row, as whole multiples of 0.0001."""

    config: ModelConfig
    name: str
    text: str
    ids: list[int]
    pieces: list[str]
    vocabulary: list[str | None]
    attention: list[np.ndarray]
    queries: list[np.ndarray]  # (H, T, E) per layer, the core's inputs
    keys: list[np.ndarray]  # (G, T, E)
    points: list[StreamPoint]
    streams: np.ndarray  # (P, T, D)
    words: np.ndarray  # (T, D)
    positions: np.ndarray | None  # (T, D)
    logits: np.ndarray  # (V,), at the last position
    lens: LensArrays  # of the last LENS_POSITIONS positions, at points with a layer
    lens_points: list[int]
    row_ids: list[int]  # ids of the tokens whose rows of the head are in `rows`
    rows: np.ndarray  # (R, D)
    row_biases: np.ndarray  # (R,)
    memory: TracedMemory | None = None


@torch.inference_mode()
def collect(model: LanguageModel, text: str) -> TracedPass:
    """Run the model once over a text and collect everything that a page can show."""
    check_model(model)
    decoder, config, structure = model.decoder, model.decoder.config, model_structure(model.decoder)
    ids = model.encode_fitting(text)
    points = stream_points(decoder, structure)
    attention = [attention_names(decoder, structure, layer) for layer in range(config.num_layers)]
    vocab_size = model.tokenizer.vocab_size
    batch = torch.tensor([ids], device=model.device)
    memory = [*(memory_weights_of(structure, layer) for layer in range(config.num_layers)), *encoder_weights(structure)]
    memory_names = [value.name for value in memory if value is not None]
    embedding = [name for name in ("embed.token", "embed.position") if name in structure.values]
    cores = [name for names in attention for name in names]
    with Trace(decoder, [*embedding, *cores, *(point.name for point in points), *memory_names]) as trace:
        final = decoder.hidden(batch)[0]  # (T, D)
    streams = torch.stack([trace[point.name][0] for point in points])  # (P, T, D)
    logits = decoder.head(final[-1:])[0, :vocab_size]  # (V,)
    lens_points = [index for index, point in enumerate(points) if point.layer is not None]
    lens_from = max(0, len(ids) - LENS_POSITIONS)
    lens = lens_arrays(decoder, list(streams[lens_points, lens_from:]), batch[0, lens_from + 1 :], vocab_size)
    row_ids = sorted({*lens.ids[-1, :, 0].tolist(), *logits.topk(min(TOP_ROWS, vocab_size)).indices.tolist()})
    rows, biases = head_rows(decoder, structure, row_ids)
    visible = {window: FreshKVView(batch).mask(window).allowed[0, 0] for window in set(config.windows)}  # (T, S) each
    return TracedPass(
        config=config,
        name=model.name,
        text=text,
        ids=ids,
        pieces=[model.tokenizer.text_of(token_id) for token_id in ids],
        vocabulary=[token_text(model.tokenizer, token_id) for token_id in range(vocab_size)],
        attention=[
            whole_steps(weights, array(trace[weights][0][:, visible[window]]))
            for (_, _, weights), window in zip(attention, config.windows, strict=True)
        ],
        queries=[array(trace[query][0]) for query, _, _ in attention],
        keys=[array(trace[key][0]) for _, key, _ in attention],
        points=points,
        streams=array(streams),
        words=array(trace["embed.token"][0]),
        positions=array(trace["embed.position"].expand(1, -1, -1)[0]) if "embed.position" in embedding else None,
        logits=array(logits),
        lens=lens,
        lens_points=lens_points,
        row_ids=row_ids,
        rows=rows,
        row_biases=biases,
        memory=None if model.memory is None else traced_memory(trace, model.memory, memory_names, config.num_layers),
    )


def traced_memory(trace: Trace, memory: MemoryText, names: list[str], layers: int) -> TracedMemory:
    """The page's data of a memory; the first `layers` names belong to the decoder's layers."""
    weights = [whole_steps(name, array(trace[name][0])) for name in names]
    return TracedMemory(list(memory.ids), memory.pieces, weights[:layers], weights[layers:])


def stream_points(decoder: Decoder, structure: Structure) -> list[StreamPoint]:
    """The points of the stream on a page: the embedding, the middle and the end of each block, the last norm."""
    start, *blocks = structure.stream
    points = [StreamPoint(start, "embedding", -1)]
    for layer, block in enumerate(blocks):
        updates = updates_of(decoder, structure, layer)
        inner = [update for update in updates[:-1] or updates if structure[block].reads[0] != update.name]
        points += [
            StreamPoint(update.name, f"layer {layer}, after {update.reads[1].rpartition('.')[2]}") for update in inner
        ]
        points.append(StreamPoint(block, f"after layer {layer}", layer))
    (final,) = structure["head"].reads
    if structure.origin(final) != structure.origin(blocks[-1]):
        points.append(StreamPoint(final, "after the last norm"))
    return points


def attention_names(decoder: Decoder, structure: Structure, layer: int) -> tuple[str, str, str]:
    """The names of a core's queries and keys, and of a layer's weights. Raises the error of `weights_of`."""
    weights = weights_of(decoder, structure, layer)
    core = structure.with_formula("attention", f"{structure.stream[layer + 1]}.")[0]
    query, key, *_ = core.reads
    return query, key, weights.name


def head_rows(decoder: Decoder, structure: Structure, row_ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The rows (R, D) of the head for some tokens, and their biases (R,)."""
    weight, bias = head_weights(decoder, structure)
    biases = np.zeros(len(row_ids), np.float32) if bias is None else array(bias[row_ids])
    return array(weight[row_ids]), biases


def token_text(tokenizer: Tokenizer, token_id: int) -> str | None:
    """The text of a token id; None for an id that is not used by any token."""
    try:
        return tokenizer.text_of(token_id)
    except TokenizerError:
        return None


def array(values: Tensor) -> np.ndarray:
    """The tensor as an array on the CPU, in float32 or better."""
    return values.detach().to("cpu", torch.promote_types(values.dtype, torch.float32)).numpy()


def steps(values: np.ndarray) -> np.ndarray:
    """The nearest whole multiples of 0.0001, ties to even as in Python's formatting.

    A float32 times 10,000 is exact in float64, so the multiple is the one that `f"{value:.4f}"` shows.
    """
    return np.rint(values.astype(np.float64) * STEPS)


def whole_steps(name: str, weights: np.ndarray) -> np.ndarray:
    """Attention weights as `steps`, in 16 bits."""
    check_finite(name, weights)
    return steps(weights).astype(np.uint16)


def check_finite(name: str, values: np.ndarray) -> None:
    """Raise `OutputError` if a value is infinite or NaN."""
    if not np.isfinite(values).all():
        raise OutputError(f"the page cannot be made: the model's {name} are not all finite numbers")
