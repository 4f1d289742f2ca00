"""Globs over module paths, which select modules, weights and values everywhere.

`*` matches one segment or a part of one, `**` any number of segments, also none: `trunk.blocks.*.attention` matches
the attention of all blocks, `**.query` everything named query.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

from foretell.errors import UsageError, check_type

SUGGESTIONS = 3
# Names of modules and values in Hugging Face and TransformerLens -> names in foretell
FOREIGN_BLOCK = re.compile(r"(?:[a-z_]+\.)*?(?:h|layers|blocks)\.(\d+|\*+)(?:\.(.+))?")
OUTSIDE_BLOCKS = {
    "wte": "embed.token",
    "tokens_embed": "embed.token",
    "embed_tokens": "embed.token",
    "hook_embed": "embed.token",
    "wpe": "embed.position",
    "positions_embed": "embed.position",
    "hook_pos_embed": "embed.position",
    "ln_f": "trunk.norm",
    "norm": "trunk.norm",
    "ln_final": "trunk.norm",
    "lm_head": "head",
    "unembed": "head",
}
# Within a block; an empty name is the block itself
IN_BLOCK = {
    "attn": "attention",
    "attn.c_attn": "attention.query, .key and .value",
    "attn.c_proj": "attention.output",
    "attn.q_proj": "attention.query",
    "attn.k_proj": "attention.key",
    "attn.v_proj": "attention.value",
    "attn.o_proj": "attention.output",
    "attn.q_norm": "attention.query_norm",
    "attn.k_norm": "attention.key_norm",
    "attn.hook_q": "attention.query",
    "attn.hook_k": "attention.key",
    "attn.hook_v": "attention.value",
    "attn.hook_rot_q": "attention.core.query",
    "attn.hook_rot_k": "attention.core.key",
    "attn.hook_attn_scores": "attention.core.masked",
    "attn.hook_pattern": "attention.core.weights",
    "attn.hook_z": "attention.core",
    "hook_attn_out": "attention",
    "mlp": "feedforward",
    "mlp.c_fc": "feedforward.up",
    "mlp.c_proj": "feedforward.down",
    "mlp.gate_proj": "feedforward.gate",
    "mlp.up_proj": "feedforward.up",
    "mlp.down_proj": "feedforward.down",
    "mlp.act": "feedforward.activation",
    "mlp.act_fn": "feedforward.activation",
    "mlp.hook_post": "feedforward.activation",
    "hook_mlp_out": "feedforward",
    "ln_1": "attention_norm",
    "ln1": "attention_norm",
    "input_layernorm": "attention_norm",
    "ln_2": "feedforward_norm",
    "ln2": "feedforward_norm",
    "post_attention_layernorm": "feedforward_norm",
    "hook_resid_mid": "attention_residual",
    "hook_resid_post": "",
}


def select(globs: str | Iterable[str], names: Sequence[str], otherwise: str = "") -> list[str]:
    """The names that any glob matches, in the order of `names`; raises `UsageError` for a glob without a match."""
    check_type("names", globs, Iterable, "a glob or a list of globs")
    patterns = [globs] if isinstance(globs, str) else list(globs)
    for glob in patterns:
        check_type("a glob", glob, str, "a string")
        if not any(matches(glob, name) for name in names):
            raise UsageError(f"nothing here is named '{glob}'{suggest(glob, names) or otherwise}")
    return [name for name in names if any(matches(glob, name) for glob in patterns)]


def matches(glob: str, name: str) -> bool:
    """True if the glob matches the whole name."""
    return _compile(glob).fullmatch(f"{name}.") is not None if "*" in glob else glob == name


def suggest(name: str, names: Iterable[str]) -> str:
    """`; near it: a, b` with the most similar names, or globs of names; empty if none is similar.

    For a name of Hugging Face or TransformerLens, the text gives foretell's name.
    """
    names = list(names)
    translated = translate(name)
    if translated and any(matches(translated.partition(",")[0], known) for known in names):
        return f"; here it is called {translated}"
    known = list(dict.fromkeys(form for known in names for form in _forms(known)))
    near = difflib.get_close_matches(name, known, n=SUGGESTIONS, cutoff=0.6)
    return f"; near it: {', '.join(near)}" if near else ""


def translate(name: str) -> str | None:
    """foretell's name for a name of Hugging Face or TransformerLens; None if it is neither.

    `transformer.h.0.attn` is trunk.blocks.0.attention, `blocks.0.attn.hook_pattern` its core.weights.
    """
    plain = re.sub(r"\.(weight|bias|hook_normalized)$", "", name)
    block = FOREIGN_BLOCK.fullmatch(plain)
    if block is None:
        return OUTSIDE_BLOCKS.get(re.sub(r"^(transformer|model|base_model)\.", "", plain))
    rest = (block[2] or "").replace("self_attn", "attn")
    if rest and rest not in IN_BLOCK:
        return None
    return f"trunk.blocks.{block[1]}.{IN_BLOCK.get(rest, '')}".rstrip(".")


def starred(name: str) -> str:
    """The name with every number replaced by `*`."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)


def _forms(name: str) -> tuple[str, ...]:
    return name, starred(name), f"**.{name.rpartition('.')[2]}"


@lru_cache(maxsize=256)
def _compile(glob: str) -> re.Pattern[str]:
    """The glob as a pattern in which every segment, even the last, ends in a dot, so `**` needs no special case."""
    return re.compile("".join(_segment(part) for part in glob.split(".")))


def _segment(part: str) -> str:
    if part == "**":
        return r"(?:[^.]+\.)*"
    return re.escape(part).replace(r"\*", "[^.]*") + r"\."
