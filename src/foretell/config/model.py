"""The shape of a decoder."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from foretell.config.section import DERIVED_SIZES, FOLLOWS, Section, raise_first, with_own_names

# Larger than in any model; without a limit, a mistyped or hostile size would exhaust memory before it is refused
Depth = Annotated[int, Field(gt=0, le=2**14)]
LARGEST = 2**24
Size = Annotated[int, Field(gt=0, le=LARGEST)]


class Bias(Section):
    """The linear layers and norms that add a bias."""

    attention: bool = True  # query, key, value
    attention_output: bool = True
    feedforward: bool = True
    norm: bool = True
    head: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_bool(cls, value: Any) -> Any:
        """`bias = false` (nanoGPT) sets all except the head's bias, which GPT-2 never has."""
        if isinstance(value, bool):
            return dict.fromkeys(("attention", "attention_output", "feedforward", "norm"), value)
        return value


class DropoutRates(Section):
    """Probabilities of dropping an element during training (Srivastava et al. 2014)."""

    embedding: float = Field(0.0, ge=0, lt=1)
    attention: float = Field(0.0, ge=0, lt=1)  # attention weights; the fused kernel cannot be used then
    residual: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        """`dropout = 0.2` (nanoGPT) sets all three."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            raise_first({f"{value} is not a rate; give a number from 0 to less than 1": not 0 <= value < 1})
            return dict.fromkeys(("embedding", "attention", "residual"), value)
        return value


class RopeScaling(Section):
    """Scaling of rotary frequencies beyond the trained context (Llama 3.1's scheme, or linear interpolation)."""

    type: Literal["linear", "llama3"]
    factor: float = Field(gt=0)
    low_frequency_factor: float = Field(1.0, gt=0)
    high_frequency_factor: float = Field(4.0, gt=0)
    original_context_length: int = Field(8192, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        reversed_band = f"high_frequency_factor {high:g} must be above low_frequency_factor {low:g}"
        raise_first({reversed_band: self.type == "llama3" and high <= low})
        return self


class ModelConfig(Section):
    """The shape of a decoder. The defaults of the choices are GPT-2's; the five sizes have none."""

    num_layers: Depth = Field(description="blocks")
    num_heads: Size = Field(description="query heads per layer")
    num_kv_heads: Size = Field(
        FOLLOWS, description="key and value heads; fewer than num_heads is grouped-query attention; left out: num_heads"
    )
    width: Size = Field(description="size of the residual stream")
    head_width: Size = Field(FOLLOWS, description="size of a head; left out: width / num_heads")
    feedforward_width: Size = Field(
        FOLLOWS, description="left out: 4 * width, gated: 8/3 * width rounded up to a multiple of 8"
    )
    context_length: Size = Field(description="the most tokens that the model can see")
    vocab_size: Size = Field(description="rows of the embedding; left out: the tokenizer's")

    position: Literal["learned", "sinusoidal", "rotary", "none"] = Field(
        "learned", description="how positions are represented"
    )
    rope_theta: float = Field(10_000.0, gt=0, description="base of the rotary frequencies")
    local_rope_theta: float | None = Field(
        None, gt=0, description="base in layers with a window, without rope_scaling; left out: as in other layers"
    )
    rotary_share: float = Field(1.0, gt=0, le=1, description="share of a head's elements that rotary positions rotate")
    rope_scaling: RopeScaling | None = Field(
        None, description="rotary positions for a longer context than the model was trained with"
    )
    norm: Literal["layernorm", "rmsnorm", "rmsnorm_offset", "none"] = Field(
        "layernorm", description="kind of normalisation; rmsnorm_offset: its weights are stored minus 1"
    )
    norm_placement: Literal["pre", "post", "update", "sandwich"] = Field(
        "pre",
        description="before each part of a block, after its addition, of the update before its addition, or both "
        "before the part and of its update (sandwich)",
    )
    norm_epsilon: float = Field(1e-5, gt=0, description="added to the variance")
    qk_norm: bool = Field(False, description="normalise queries and keys")  # None in input: wherever there is a norm
    qk_norm_scope: Literal["head", "all_heads"] = Field(
        "head", description="what a norm of queries and keys sees: one head, or all heads of a token"
    )
    query_pre_attn_scalar: Size | None = Field(
        None, description="scores are divided by the root of this number; left out: head_width"
    )
    feedforward: Literal["mlp", "gated", "none"] = Field("mlp", description="kind of feed-forward layer")
    activation: Literal["gelu_tanh", "gelu_erf", "relu", "relu2", "silu"] = Field(
        "gelu_tanh", description="activation of the feed-forward layer"
    )
    attention_output: bool = Field(True, description="a projection of the heads' outputs")
    attention_residual: bool = Field(True, description="add the attention's output to the stream")
    residual: Literal["sequential", "parallel", "parallel_shared_norm"] = Field(
        "sequential",
        description="parallel: attention and feed-forward read the same stream, through two norms or a shared one",
    )
    bias: Bias = Field(
        Bias(), description="biases: true, false, or attention, attention_output, feedforward, norm, head"
    )
    window: int | tuple[int | None, ...] | None = Field(
        None, description="how many positions back a query sees, itself included; a number or one per layer"
    )
    tie_embeddings: bool = Field(True, description="the head uses the weights of the token embedding")
    scale_embeddings: bool = Field(False, description="multiply token vectors by the root of the width")
    dropout: DropoutRates = Field(DropoutRates(), description="a rate, or embedding, attention, residual")
    init: Literal["gpt2", "torch"] = Field("gpt2", description="initial weights as in GPT-2 or in torch")

    @model_validator(mode="before")
    @classmethod
    def _fill_sizes(cls, values: Any) -> Any:
        """Compute the sizes that follow from others; values that are not numbers are left for the field checks."""
        values = with_own_names(cls, values)  # here too, since pydantic runs this before the base's validator
        if not isinstance(values, Mapping):
            return values
        values = {key: value for key, value in values.items() if not (value is None and key in DERIVED_SIZES)}
        heads, width = _as_int(values.get("num_heads")), _as_int(values.get("width"))
        if heads and width and heads > 0:
            indivisible = f"width {width} is not a multiple of num_heads {heads}; change one or set head_width"
            raise_first({indivisible: "head_width" not in values and width % heads != 0})
            values.setdefault("num_kv_heads", heads)
            values.setdefault("head_width", width // heads)
            gated = values.get("feedforward", "mlp") == "gated"
            values.setdefault("feedforward_width", -(-8 * width // 24) * 8 if gated else 4 * width)
        if "qk_norm" in values and values["qk_norm"] is None:
            values["qk_norm"] = values.get("norm") != "none"
        return values

    @model_validator(mode="after")
    def _check(self) -> Self:
        attention_width = self.num_heads * self.head_width
        problems = {
            f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}": (
                self.num_heads % self.num_kv_heads != 0
            ),
            f"attention_output is off, so num_heads * head_width ({attention_width}) must equal width ({self.width})": (
                not self.attention_output and attention_width != self.width
            ),
            f"residual = '{self.residual}' needs feedforward, attention_residual and norm_placement = 'pre'": (
                self.residual != "sequential"
                and (self.feedforward == "none" or not self.attention_residual or self.norm_placement != "pre")
            ),
            f"rotary positions need an even head_width, not {self.head_width}": (
                self.position == "rotary" and self.head_width % 2 != 0
            ),
            f"rotary_share {self.rotary_share:g} of head_width {self.head_width} must be an even number of elements": (
                self.position == "rotary" and (self.rotary_width < 2 or self.rotary_width % 2 != 0)
            ),
            f"sinusoidal positions need an even width, not {self.width}": (
                self.position == "sinusoidal" and self.width % 2 != 0
            ),
            "rope_scaling needs position = 'rotary'": self.rope_scaling is not None and self.position != "rotary",
            "local_rope_theta needs position = 'rotary'": (
                self.local_rope_theta is not None and self.position != "rotary"
            ),
            "qk_norm needs a norm, and norm is 'none'": self.qk_norm and self.norm == "none",
            f"window has {len(self.windows)} entries for {self.num_layers} layers": (
                len(self.windows) != self.num_layers
            ),
            f"a window must be from 1 to {LARGEST:,}": any(
                window is not None and not 1 <= window <= LARGEST for window in self.windows
            ),
        }
        raise_first(problems)
        return self

    @property
    def windows(self) -> tuple[int | None, ...]:
        return self.window if isinstance(self.window, tuple) else (self.window,) * self.num_layers

    @property
    def has_final_norm(self) -> bool:
        """True if the stream itself is not normalised in the blocks, so that the head needs a norm before it."""
        return self.norm_placement != "post"

    def is_local(self, layer: int) -> bool:
        """True for a layer that rotates by `local_rope_theta`."""
        return self.local_rope_theta is not None and self.windows[layer] is not None

    @property
    def query_factor(self) -> float:
        """The factor on queries after which scores divided by the root of head_width have the configured scale."""
        return math.sqrt(self.head_width / (self.query_pre_attn_scalar or self.head_width))

    @property
    def rotary_width(self) -> int:
        """R, the number of a head's elements that rotary positions rotate."""
        return int(self.head_width * self.rotary_share)

    def training_flops_per_token(self, parameters: int) -> int:
        """6N + 12 L (H E) T: forward and backward, with attention over a full context.

        Chowdhery et al. 2022, appendix B. N is `parameters` without learned positions, which are not multiplied.
        """
        looked_up = self.context_length * self.width if self.position == "learned" else 0
        attention_width = self.num_heads * self.head_width
        return 6 * (parameters - looked_up) + 12 * self.num_layers * attention_width * self.context_length

    def cache_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of the keys and values of one position in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_width * element_bytes

    def replaced(self, **changes: Any) -> ModelConfig:
        """A checked copy with some fields changed; without norms there is no qk_norm unless `changes` asks for it."""
        values = {**self.model_dump(), **changes}
        if changes.get("norm") == "none":
            values["qk_norm"] = changes.get("qk_norm")
        return ModelConfig(**values)


def _as_int(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None
