"""The settings of a training run: tokenizer, data, optimizer, and `Config`, which combines them with the model."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from foretell.config.model import ModelConfig, Size
from foretell.config.section import FOLLOWS, Section, raise_first, with_own_names
from foretell.errors import ConfigError

Globs = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]
MOST_MINUTES = 10 * 525_600


class TokenizerConfig(Section):
    """The tokenizer to make from the training text."""

    kind: Literal["characters", "words", "bytes", "bpe"] = Field("bpe", description="what a token is")
    vocab_size: Size | None = Field(
        None, description="number of entries, for bpe and words; none: chosen from the amount of text"
    )
    split: Literal["gpt2", "qwen2"] | None = Field(
        None, description="how bpe cuts text into words before merging; none: qwen2"
    )
    start_token: str | None = Field(None, description="a special token to put before every text")


class DataConfig(Section):
    """Settings for making rows of tokens from text."""

    text_field: str | None = Field(None, description="the field or column that holds the text, if a file has several")
    validation_fraction: float = Field(0.1, ge=0, lt=1, description="share of the documents held out")
    document_mask: bool = Field(False, description="hide other documents that were packed into the same row")
    shuffle_documents: bool = Field(False, description="join the documents in another random order in every epoch")
    window_length: int | None = Field(
        None, gt=0, description="tokens per row of training, at most the context; none: the context"
    )
    special: tuple[str, ...] = Field(
        (), description="names in the data that are read as special tokens; a tokenizer that is made has them"
    )
    rows: bool = Field(False, description="each line or record is a separate row, hidden from the others")
    packing: bool | None = Field(None, description="several rows in one; none: only if they are conversations")
    prompt_field: str | None = Field(None, description="rows of two parts: the field or column with the prompt")
    answer_field: str | None = Field(None, description="the field or column with the answer")
    separator: str = Field("", description="between prompt and answer, part of the prompt")
    loss_on: Literal["all", "answer"] = Field(
        FOLLOWS, description="all tokens or the answer's; left out: the answer if there is one"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Prompts and answers are rows; only the answers count in the loss."""
        values = with_own_names(cls, values)  # here too, since pydantic runs this before the base's validator
        if not isinstance(values, Mapping):
            return values
        has_answers = values.get("answer_field") is not None
        return {**({"rows": True} if has_answers else {}), "loss_on": "answer" if has_answers else "all", **values}

    @model_validator(mode="after")
    def _check(self) -> Self:
        named = [self.prompt_field is not None, self.answer_field is not None]
        problems = {
            "prompt_field and answer_field go together; give both": any(named) and not all(named),
            "prompt_field and answer_field are rows; leave out rows = false": any(named) and not self.rows,
            "text_field is for rows of one part; leave it out next to prompt_field": (
                any(named) and self.text_field is not None
            ),
            "separator goes between prompt and answer; give prompt_field and answer_field": (
                self.separator != "" and not any(named)
            ),
            "loss_on = 'answer' needs answer_field": self.loss_on == "answer" and self.answer_field is None,
            "rows are not joined, so document_mask has nothing to hide; leave it out": self.rows and self.document_mask,
            "rows are in random order by themselves; leave out shuffle_documents": self.rows and self.shuffle_documents,
            "rows are as long as their data; leave out window_length": self.rows and self.window_length is not None,
        }
        raise_first(problems)
        return self


class TrainingConfig(Section):
    """Settings of training. Counts of steps are optimizer steps."""

    # More steps would take longer than anything trained so far
    steps: int = Field(gt=0, le=10**12, description="optimizer steps")
    batch_size: int = Field(32, gt=0, description="rows per step, over all processes and micro-batches")
    gradient_accumulation_steps: int = Field(1, gt=0, description="micro-batches per step")
    learning_rate: float = Field(1e-3, gt=0, le=1e30, description="the highest rate, after the warm-up")
    final_learning_rate_share: float = Field(0.1, ge=0, le=1, description="the final rate, as a share of learning_rate")
    warmup_steps: int = Field(50, ge=0, description="steps in which the rate rises")
    schedule: Literal["cosine", "linear", "stable_decay", "constant"] = Field(
        "cosine", description="how the rate falls"
    )
    decay_fraction: float = Field(
        0.2, gt=0, le=1, description="stable_decay: share of the steps, at the end, in which the rate falls"
    )
    optimizer: Literal["adamw", "muon", "sgd"] = Field("adamw", description="the optimizer of the matrices")
    frozen: tuple[str, ...] = Field((), description="globs over weight paths that are not trained")
    weight_decay: float = Field(0.1, ge=0, description="for weights of two dimensions or more; the others have none")
    weight_decay_by_path: dict[str, Annotated[float, Field(ge=0)]] = Field(
        {}, description="glob = decay; the last match counts"
    )
    momentum: float = Field(0.95, ge=0, lt=1, description="muon and sgd")
    beta1: float = Field(0.9, ge=0, lt=1, description="adamw, also for weights that muon does not train")
    beta2: float = Field(0.95, ge=0, lt=1, description="adamw, also for weights that muon does not train")
    epsilon: float = Field(1e-8, gt=0, description="adamw, also for weights that muon does not train")
    clip_norm: float | None = Field(1.0, gt=0, description="largest norm of the gradient; none: not clipped")
    compile: bool | None = Field(None, description="blocks and loss by torch's compiler; none: long runs on a GPU")
    # Szegedy et al. 2016, section 7; validation losses are not smoothed
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of the target's probability given to all tokens")
    patience: int | None = Field(
        None, gt=0, description="evaluations without a better validation loss before training stops"
    )
    evaluate_every: int = Field(100, gt=0, description="steps between evaluations")
    evaluation_tokens: int = Field(65_536, gt=0, description="validation tokens per evaluation during training")
    log_every: int = Field(10, gt=0, description="steps between lines of metrics.jsonl")
    sample_every: int = Field(200, gt=0, description="steps between samples")
    sample_prompts: tuple[str, ...] = Field((), description="texts to continue; none: the held-out text's beginning")
    checkpoint_every: int = Field(200, gt=0, description="steps between checkpoints")
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp", description="ddp: a copy of the model on every process; fsdp: a share of it"
    )
    checkpoint_activations: Globs = Field(
        (), description="globs of modules whose values are computed again for the gradient"
    )
    keep_checkpoints: int = Field(2, gt=0, description="number of latest ones to keep, besides the best")
    similar_vectors: bool = Field(
        False, description="initialise tokens with similar neighbors by similar vectors, not random"
    )
    seed: int = Field(1, ge=0, lt=2**63, description="the seed of everything random")

    @model_validator(mode="after")
    def _check(self) -> Self:
        parts = self.gradient_accumulation_steps
        indivisible = f"batch_size {self.batch_size} is not a multiple of gradient_accumulation_steps {parts}"
        raise_first({indivisible: self.batch_size % parts != 0})
        return self


class Config(Section):
    """One whole training run."""

    model: ModelConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig

    @property
    def window_length(self) -> int:
        """Tokens per row of training, at most."""
        return self.data.window_length or self.model.context_length

    @model_validator(mode="after")
    def _check(self) -> Self:
        window, context = self.data.window_length or 0, self.model.context_length
        raise_first({f"data.window_length {window} is above model.context_length {context}": window > context})
        raise_first({"data.packing joins rows; give data.rows = true": bool(self.data.packing) and not self.data.rows})
        return self


def check_minutes(minutes: float | None) -> None:
    if minutes is not None and not (isinstance(minutes, Real) and 0 < minutes <= MOST_MINUTES):
        raise ConfigError(f"minutes must be a positive number of at most {MOST_MINUTES:,} (ten years), not {minutes}")
