"""The sections of the configuration as dicts, for editors and type checkers, as in
`train(model={"width": 256})`, and the options of trainings as keywords.

Written by `python tests/config/test_typed_dicts.py`; import it under TYPE_CHECKING. The names of nanoGPT and Hugging
Face are accepted too, but type checkers do not know them.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from foretell.session.reporter import Reporter

class TuningDict(TypedDict, total=False):
    resume: bool
    progress: bool | None
    reporter: Reporter | None

class ModelDict(TypedDict, total=False):
    num_layers: int
    num_heads: int
    num_kv_heads: int
    width: int
    head_width: int
    feedforward_width: int
    context_length: int
    vocab_size: int
    position: Literal["learned", "sinusoidal", "rotary", "none"]
    rope_theta: float
    local_rope_theta: float | None
    rotary_share: float
    rope_scaling: Mapping[str, Any] | None
    norm: Literal["layernorm", "rmsnorm", "rmsnorm_offset", "none"]
    norm_placement: Literal["pre", "post", "update", "sandwich"]
    norm_epsilon: float
    qk_norm: bool
    qk_norm_scope: Literal["head", "all_heads"]
    query_pre_attn_scalar: int | None
    feedforward: Literal["mlp", "gated", "none"]
    activation: Literal["gelu_tanh", "gelu_erf", "relu", "relu2", "silu"]
    attention_output: bool
    attention_residual: bool
    residual: Literal["sequential", "parallel", "parallel_shared_norm"]
    bias: Mapping[str, bool] | bool
    window: int | Sequence[int | None] | None
    tie_embeddings: bool
    scale_embeddings: bool
    dropout: Mapping[str, float] | float
    init: Literal["gpt2", "torch"]

class TokenizerDict(TypedDict, total=False):
    kind: Literal["characters", "words", "bytes", "bpe"]
    vocab_size: int | None
    split: Literal["gpt2", "qwen2"] | None
    start_token: str | None

class DataDict(TypedDict, total=False):
    text_field: str | None
    validation_fraction: float
    document_mask: bool
    shuffle_documents: bool
    window_length: int | None
    special: Sequence[str]
    rows: bool
    packing: bool | None
    prompt_field: str | None
    answer_field: str | None
    separator: str
    loss_on: Literal["all", "answer"]

class TrainingDict(TypedDict, total=False):
    steps: int
    batch_size: int
    gradient_accumulation_steps: int
    learning_rate: float
    final_learning_rate_share: float
    warmup_steps: int
    schedule: Literal["cosine", "linear", "stable_decay", "constant"]
    decay_fraction: float
    optimizer: Literal["adamw", "muon", "sgd"]
    frozen: Sequence[str]
    weight_decay: float
    weight_decay_by_path: Mapping[str, float]
    momentum: float
    beta1: float
    beta2: float
    epsilon: float
    clip_norm: float | None
    compile: bool | None
    label_smoothing: float
    patience: int | None
    evaluate_every: int
    evaluation_tokens: int
    log_every: int
    sample_every: int
    sample_prompts: Sequence[str]
    checkpoint_every: int
    parallel: Literal["ddp", "fsdp"]
    checkpoint_activations: Sequence[str]
    keep_checkpoints: int
    similar_vectors: bool
    seed: int

class LoRADict(TypedDict, total=False):
    rank: int
    alpha: float
    dropout: float
    targets: Sequence[str]
    also_trained: Sequence[str]

class TrainDict(TypedDict, total=False):
    text_field: str | None
    rows: bool
    prompt_field: str | None
    answer_field: str | None
    loss_on: Literal["all", "answer"] | None
    special: Sequence[str]
    size: str | None
    kind: str | None
    start_token: str | None
    workers: int
    sample_prompt: Sequence[str]
    columns: Sequence[str]
    id_column: str | None
    time_column: str | None
    target_column: str | None
    separator: str | None
    decimal: Literal[".", ","] | None
    date_format: str | None
    horizon: int | None
    season: int | None
    is_from_scratch: bool
    minutes: float | None
    steps: int | None
    seed: int | None
    checkpoint_every: int | None
    device: Literal["auto", "cpu", "cuda", "mps"]
    dtype: Literal["auto", "float32", "bfloat16"]
    batch_size: int | None
    learning_rate: float | None
    model: ModelDict | None
    data: DataDict | None
    training: TrainingDict | None
    codec: Mapping[str, Any] | None
    series: Mapping[str, Any] | None

class HeadDict(TuningDict, total=False):
    choice_column: Sequence[str]
    columns: Sequence[str]
    encoding: Literal["utf-8", "latin-1", "cp1252"] | None
    truncate: Literal["head", "tail", "middle", "never"] | None
    dev_fraction: float | None
    group_column: str | None
    text_column: Sequence[str]
    label_column: str | None
    decimal: Literal[".", ","] | None
    pool: Literal["extract", "last", "mean"] | None
    lm_weight: float | None
    class_weights: Literal["balanced", "none"] | None
    best_by: str | None
    size: str | None
    epochs: float | None
    dropout: float | None
    head_dropout: float | None
    word_dropout: float | None
    is_from_scratch: bool
    minutes: float | None
    steps: int | None
    seed: int | None
    checkpoint_every: int | None
    device: Literal["auto", "cpu", "cuda", "mps"]
    dtype: Literal["auto", "float32", "bfloat16"]
    batch_size: int | None
    learning_rate: float | None
    training: TrainingDict | None
    lora: LoRADict | None

class ChatDict(TuningDict, total=False):
    dev: str | Path | None
    template: str | None
    truncate: Literal["drop", "tail", "never"] | None
    spell_tokens: bool
    epochs: float | None
    minutes: float | None
    steps: int | None
    seed: int | None
    checkpoint_every: int | None
    device: Literal["auto", "cpu", "cuda", "mps"]
    dtype: Literal["auto", "float32", "bfloat16"]
    batch_size: int | None
    learning_rate: float | None
    model: ModelDict | None
    data: DataDict | None
    training: TrainingDict | None
    lora: LoRADict | None

class DomainDict(TuningDict, total=False):
    old_domain: Sequence[str | Path]
    text_field: str | None
    minutes: float | None
    steps: int | None
    seed: int | None
    checkpoint_every: int | None
    device: Literal["auto", "cpu", "cuda", "mps"]
    dtype: Literal["auto", "float32", "bfloat16"]
    batch_size: int | None
    learning_rate: float | None
    model: ModelDict | None
    data: DataDict | None
    training: TrainingDict | None
