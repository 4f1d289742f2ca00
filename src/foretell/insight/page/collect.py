"""One traced pass over a text, as the arrays that a page shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foretell.config import ModelConfig
from foretell.errors import TokenizerError
from foretell.insight.page.lens import Lens, look_through
from foretell.insight.page.pack import refuse_endless, steps
from foretell.insight.points import trace_names
from foretell.insight.trace import Trace
from foretell.language_model import LanguageModel
from foretell.model.cache import FreshKVView
from foretell.text import Tokenizer

CORE = "trunk.blocks.{layer}.attention.core"
LENS_POSITIONS = 256
LIKELIEST = 10  # tokens after the last position whose rows of the head are kept
FINAL = "trunk"  # what the head reads


@dataclass(frozen=True)
class Place:
    """A point of the residual stream: the name of its value, and the layer whose end it is, where it is one."""

    name: str
    label: str
    layer: int | None = None


@dataclass(frozen=True)
class Pass:
    """What one pass computed. Attention holds, for each layer, the weights (H, N) of the N pairs that may see each
    other, row by row, in whole multiples of 0.0001."""

    config: ModelConfig
    name: str
    text: str
    ids: list[int]
    pieces: list[str]
    vocabulary: list[str | None]
    attention: list[np.ndarray]
    queries: list[np.ndarray]  # (H, T, E) a layer, as the core takes them
    keys: list[np.ndarray]  # (G, T, E)
    places: list[Place]
    streams: np.ndarray  # (P, T, D)
    words: np.ndarray  # (T, D)
    positions: np.ndarray | None  # (T, D)
    logits: np.ndarray  # (V,), after the last token
    lens: Lens  # of the last LENS_POSITIONS positions, at the places that have a layer and at the final one
    lens_places: list[int]
    row_ids: list[int]  # tokens whose rows of the head are in `rows`
    rows: np.ndarray  # (R, D)
    row_biases: np.ndarray  # (R,)


@torch.inference_mode()
def collect(model: LanguageModel, text: str) -> Pass:
    """Run the model once over a text and take from it all that a page can show."""
    decoder, config = model.decoder, model.decoder.config
    ids = model.encode_fitting(text)
    places = stream_places(config)
    vocab_size = model.tokenizer.vocab_size
    batch = torch.tensor([ids], device=model.device)
    with Trace(decoder, selected_names(model, places)) as trace:
        final = decoder.hidden(batch)[0]  # (T, D)
    streams = torch.stack([trace[place.name][0] for place in places])  # (P, T, D)
    logits = decoder.head(final[-1:])[0, :vocab_size]  # (V,)
    lens_places = [number for number, place in enumerate(places) if place.layer is not None]
    lens_from = max(0, len(ids) - LENS_POSITIONS)
    lens = look_through(decoder, list(streams[lens_places, lens_from:]), batch[0, lens_from + 1 :], vocab_size)
    row_ids = sorted({*lens.ids[-1, :, 0].tolist(), *logits.topk(min(LIKELIEST, vocab_size)).indices.tolist()})
    rows, biases = head_rows(model, row_ids)
    layers = range(config.num_layers)
    return Pass(
        config=config,
        name=model.name,
        text=text,
        ids=ids,
        pieces=[model.tokenizer.text_of(token) for token in ids],
        vocabulary=[token_text(model.tokenizer, token) for token in range(vocab_size)],
        attention=[seen_weights(trace, layer, batch, config.windows[layer]) for layer in layers],
        queries=[array(trace[f"{CORE.format(layer=layer)}.query"][0]) for layer in layers],
        keys=[array(trace[f"{CORE.format(layer=layer)}.key"][0]) for layer in layers],
        places=places,
        streams=array(streams),
        words=array(trace["embed.token"][0]),
        positions=array(trace["embed.position"].expand(1, -1, -1)[0]) if "embed.position" in trace.selected else None,
        logits=array(logits),
        lens=lens,
        lens_places=lens_places,
        row_ids=row_ids,
        rows=rows,
        row_biases=biases,
    )


def stream_places(config: ModelConfig) -> list[Place]:
    """Where the stream of vectors is looked at: the embedding, the middle and the end of each block, the last norm."""
    places = [Place("embed", "embedding", -1)]
    for layer in range(config.num_layers):
        block = f"trunk.blocks.{layer}"
        if config.feedforward != "none" or config.norm_placement == "post":
            places.append(Place(f"{block}.attention_residual", f"layer {layer}, after attention"))
        places.append(Place(block, f"after layer {layer}", layer))
    if config.norm_placement == "pre" and config.norm != "none":
        places.append(Place(FINAL, "after the last norm"))
    return places


def selected_names(model: LanguageModel, places: list[Place]) -> list[str]:
    """The names that a page's numbers are read from."""
    cores = [CORE.format(layer=layer) for layer in range(model.decoder.config.num_layers)]
    attention = [f"{core}.{part}" for core in cores for part in ("query", "key", "weights")]
    there = set(trace_names(model))
    embedding = [name for name in ("embed.token", "embed.position") if name in there]
    return [*embedding, *attention, *(place.name for place in places)]


def seen_weights(trace: Trace, layer: int, batch: Tensor, window: int | None) -> np.ndarray:
    """The weights (H, N) of a layer where a query may see a key, row by row, in multiples of 0.0001."""
    name = f"{CORE.format(layer=layer)}.weights"
    allowed = FreshKVView(batch).mask(window).allowed[0, 0]  # (T, S)
    weights = array(trace[name][0][:, allowed])  # (H, N)
    refuse_endless(name, weights)
    return steps(weights).astype(np.uint16)


def head_rows(model: LanguageModel, row_ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """The rows (R, D) of the head for some tokens, and their biases (R,)."""
    head, config = model.decoder.head, model.decoder.config
    weight = model.decoder.embed.token.weight if config.tie_embeddings else head.weight
    assert isinstance(weight, Tensor)
    biases = array(head.bias[row_ids]) if isinstance(head.bias, Tensor) else np.zeros(len(row_ids), np.float32)
    return array(weight[row_ids]), biases


def token_text(tokenizer: Tokenizer, token: int) -> str | None:
    """A token as a person reads it; None for an id inside the range that no token has."""
    try:
        return tokenizer.text_of(token)
    except TokenizerError:
        return None


def array(values: Tensor) -> np.ndarray:
    """On the CPU, in float32 at least."""
    return values.detach().to("cpu", torch.promote_types(values.dtype, torch.float32)).numpy()
