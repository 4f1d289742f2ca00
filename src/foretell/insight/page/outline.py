"""The unpacked part of a page: the shape of a model with the names of its values, and the tokens of a pass."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from foretell.insight.page.block_values import SUBLAYERS
from foretell.insight.page.contributions import PARTS_AT_ONCE, WRITES_AT_ONCE
from foretell.insight.page.learning import can_learn
from foretell.insight.page.page_pass import PageModel, PagePass

FORMAT = "foretell.page/1"


def heading_of(name: str) -> str:
    """A model's name; only the last part of an absolute path, because pages are shared with others."""
    for path in (PurePosixPath(name), PureWindowsPath(name)):
        if path.is_absolute() and path.name:
            return path.name
    return name


def pass_outline(traced: PagePass) -> dict[str, Any]:
    """The text of a pass and its tokens, and the tokens of the source that an encoder read."""
    tokens = token_list(traced.ids, traced.pieces)
    if traced.page.levels is not None:
        for token, value in zip(tokens, traced.page.model.values_of(traced.ids), strict=True):
            token["value"] = value
    outline: dict[str, Any] = {"text": traced.text, "tokens": tokens, "lensFrom": traced.lens_from}
    if traced.page.readout is not None:
        outline["outcomes"] = traced.page.readout.to_json()  # the answers of a choice
    if (memory := traced.page.model.memory) is not None:
        source = token_list(list(memory.ids), memory.pieces)
        outline["memory"] = {"tokens": source, "layers": len(traced.page.encoder)}
    return outline


def model_outline(page: PageModel) -> dict[str, Any]:
    """The shape of a model, and the names of its values."""
    config = page.config
    return {
        "format": FORMAT,
        "model": heading_of(page.model.name),
        "shape": {
            "layers": config.num_layers,
            "heads": config.num_heads,
            "groups": config.num_kv_heads,
            "width": config.width,
            "headWidth": config.head_width,
            "feedforward": config.feedforward_width,
            "vocabulary": len(page.vocabulary),
        },
        "windows": config.windows,
        "position": config.position,
        "places": [asdict(point) for point in page.points],
        "lensPlaces": page.lens_points,
        "cores": page.cores,
        **page.block_outline,
        "sublayers": SUBLAYERS,
        "neurons": [neurons.values if neurons else None for neurons in page.neurons],
        "hasContributions": page.head_input is not None,
        "canLearn": can_learn(page),
        "hasLevels": page.levels is not None,
        "atOnce": {"parts": PARTS_AT_ONCE, "writes": WRITES_AT_ONCE},
    }


def token_list(ids: list[int], pieces: list[str]) -> list[dict[str, Any]]:
    return [{"id": token_id, "text": piece} for token_id, piece in zip(ids, pieces, strict=True)]
