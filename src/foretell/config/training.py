"""How a model is trained."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from foretell.config.section import Section, raise_first

Globs = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


class TrainingConfig(Section):
    """How a model is trained. Counts of steps are optimizer steps."""

    steps: int = Field(gt=0, le=10**12)  # more would take longer than anything trained so far
    batch_size: int = Field(32, gt=0)  # rows per step, over all ranks and micro-batches
    gradient_accumulation_steps: int = Field(1, gt=0)  # micro-batches per step
    learning_rate: float = Field(1e-3, gt=0)
    final_learning_rate_share: float = Field(0.1, ge=0, le=1)  # where the schedule ends, as a share of learning_rate
    warmup_steps: int = Field(50, ge=0)
    schedule: Literal["cosine", "linear", "stable_decay", "constant"] = "cosine"
    decay_fraction: float = Field(0.2, gt=0, le=1)  # stable_decay: the last share of the steps, falling linearly
    optimizer: Literal["adamw", "muon", "sgd"] = "adamw"
    frozen: tuple[str, ...] = ()  # globs over weight paths; these weights are not trained
    weight_decay: float = Field(0.1, ge=0)  # for weights of two dimensions or more; the others have none
    weight_decay_by_path: dict[str, Annotated[float, Field(ge=0)]] = Field({})  # glob: decay; the last match counts
    momentum: float = Field(0.95, ge=0, lt=1)  # muon and sgd
    beta1: float = Field(0.9, ge=0, lt=1)  # beta1, beta2, epsilon: adamw, also for what muon leaves to it
    beta2: float = Field(0.95, ge=0, lt=1)
    epsilon: float = Field(1e-8, gt=0)
    clip_norm: float | None = Field(1.0, gt=0)
    compile: bool | None = None  # the blocks and the loss by torch's compiler; None: on a GPU
    label_smoothing: float = Field(0.0, ge=0, lt=1)  # Szegedy et al. 2016, section 7; validation losses stay plain
    patience: int | None = Field(None, gt=0)  # evaluations without a better validation loss before training stops
    evaluate_every: int = Field(100, gt=0)
    evaluation_tokens: int = Field(65_536, gt=0)  # validation tokens per evaluation during training
    log_every: int = Field(10, gt=0)
    sample_every: int = Field(200, gt=0)
    sample_prompts: tuple[str, ...] = ()  # empty: the beginning of the validation text
    checkpoint_every: int = Field(200, gt=0)
    parallel: Literal["ddp", "fsdp"] = "ddp"  # many processes have copies of the weights, or shards
    checkpoint_activations: Globs = ()  # over module paths; their values are computed again for the gradient
    keep_checkpoints: int = Field(2, gt=0)  # the last few; the best is always kept
    seed: int = Field(1, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = self.gradient_accumulation_steps
        indivisible = f"batch_size {self.batch_size} is not a multiple of gradient_accumulation_steps {parts}"
        raise_first({indivisible: self.batch_size % parts != 0})
        return self
