"""Every knob of foretell, in frozen sections. TOML comes in, JSON goes out; nothing here imports torch.

Each section checks itself when it is made: unknown keys, contradictions between fields and values out of range are a
`ConfigError` of one line. Names that nanoGPT and Hugging Face use for the same field are accepted in input (`ALIASES`).

The letters for sizes, used in every comment of the package:
    B rows, T query positions, S key positions, D width, H query heads, G key/value heads, E head width,
    F feed-forward width, V vocabulary, L layers
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    ValidationError,
    model_validator,
)

from foretell.errors import ConfigError, did_you_mean

# another project's name for a field -> ours
ALIASES = {
    "n_layer": "num_layers",
    "n_layers": "num_layers",
    "num_hidden_layers": "num_layers",
    "n_head": "num_heads",
    "n_heads": "num_heads",
    "num_attention_heads": "num_heads",
    "n_kv_head": "num_kv_heads",
    "num_key_value_heads": "num_kv_heads",
    "n_embd": "width",
    "d_model": "width",
    "hidden_size": "width",
    "head_dim": "head_width",
    "n_inner": "feedforward_width",
    "intermediate_size": "feedforward_width",
    "block_size": "context_length",
    "n_positions": "context_length",
    "n_ctx": "context_length",
    "max_position_embeddings": "context_length",
    "layer_norm_epsilon": "norm_epsilon",
    "rms_norm_eps": "norm_epsilon",
    "tie_word_embeddings": "tie_embeddings",
    "sliding_window": "window",
    "max_iters": "steps",
    "warmup_iters": "warmup_steps",
    "eval_interval": "evaluate_every",
    "grad_clip": "clip_norm",
    "accumulation": "gradient_accumulation_steps",  # the first version's names, as in its run.json
    "min_learning_rate": "final_learning_rate_share",
}
# With these names of nanoGPT's, batch_size means the rows of one micro-batch
NANOGPT_TRAINING = {
    "max_iters": "steps",
    "warmup_iters": "warmup_steps",
    "eval_interval": "evaluate_every",
    "grad_clip": "clip_norm",
    "min_lr": "final_learning_rate_share",
}
LEAST_SHARE = 0.01  # a smaller final share of the learning rate is taken for a learning rate


# Beyond any model; without a limit, a mistyped or hostile size would take all memory before anything could refuse it
Depth = Annotated[int, Field(gt=0, le=2**14)]
Size = Annotated[int, Field(gt=0, le=2**24)]
Globs = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]


def _with_own_names(section: type[BaseModel], values: Any) -> Any:
    """The same mapping under our names for its keys."""
    if not isinstance(values, Mapping):
        return values
    named = {_own_name(section, str(key).replace("-", "_")): value for key, value in values.items()}
    return {key: None if value == "none" and _may_be_none(section, key) else value for key, value in named.items()}


def _may_be_none(section: type[BaseModel], key: str) -> bool:
    """Is nothing a value of this field? TOML cannot write it, so `none` stands for it there."""
    return key in section.model_fields and type(None) in get_args(section.model_fields[key].annotation)


def _own_name(section: type[BaseModel], key: str) -> str:
    own = ALIASES.get(key, key)
    return own if key not in section.model_fields and own in section.model_fields else key


def _raise_first(problems: Mapping[str, bool]) -> None:
    for message, wrong in problems.items():
        if wrong:
            raise ValueError(message)


class SectionType(type(BaseModel)):
    """The class of `Section`: calling a section with wrong values raises a one-line `ConfigError`.

    Pydantic validates nested sections without this call, so that its findings keep their whole path.
    """

    if not TYPE_CHECKING:  # a signature here would hide the fields from type checkers

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise ConfigError(_one_line(cls, error, "")) from None


class Section(BaseModel, metaclass=SectionType):
    """A part of the configuration: frozen, and closed to unknown keys.

    Values that are unknown, missing, of the wrong type or contradictory raise a one-line `ConfigError`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, values: Any) -> Any:
        return _with_own_names(cls, values)


class Bias(Section):
    """Which linear layers and norms add a bias."""

    attention: bool = True  # query, key, value
    attention_output: bool = True
    feedforward: bool = True
    norm: bool = True
    head: bool = False

    @model_validator(mode="before")
    @classmethod
    def _from_bool(cls, value: Any) -> Any:
        """`bias = false` (nanoGPT) sets all but the head's, which GPT-2 never has."""
        if isinstance(value, bool):
            return dict.fromkeys(("attention", "attention_output", "feedforward", "norm"), value)
        return value


class DropoutRates(Section):
    """Probabilities of dropping an element during training (Srivastava et al. 2014)."""

    embedding: float = Field(0.0, ge=0, lt=1)
    attention: float = Field(0.0, ge=0, lt=1)  # the attention weights; costs the fused kernel
    residual: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _from_number(cls, value: Any) -> Any:
        """`dropout = 0.2` (nanoGPT) sets all three."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            return dict.fromkeys(("embedding", "attention", "residual"), value)
        return value


FOLLOWS: Any = None  # the default of a field that follows from others, for type checkers; None itself is not valid


class RopeScaling(Section):
    """How rotary frequencies are stretched beyond the trained context (Llama 3.1's scheme, or linear interpolation)."""

    type: Literal["linear", "llama3"]
    factor: float = Field(gt=0)
    low_frequency_factor: float = Field(1.0, gt=0)
    high_frequency_factor: float = Field(4.0, gt=0)
    original_context_length: int = Field(8192, gt=0)

    @model_validator(mode="after")
    def _check(self) -> Self:
        low, high = self.low_frequency_factor, self.high_frequency_factor
        reversed_band = f"high_frequency_factor {high:g} must be above low_frequency_factor {low:g}"
        _raise_first({reversed_band: self.type == "llama3" and high <= low})
        return self


class ModelConfig(Section):
    """The shape of a decoder. The defaults of the choices are GPT-2's; the five sizes have none."""

    num_layers: Depth
    num_heads: Size
    num_kv_heads: Size = FOLLOWS  # from the others: num_heads
    width: Size
    head_width: Size = FOLLOWS  # from the others: width / num_heads
    feedforward_width: Size = FOLLOWS  # from the others: 4 * width, gated: 8/3 * width rounded up to a multiple of 8
    context_length: Size
    vocab_size: Size

    position: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    rope_theta: float = Field(10_000.0, gt=0)
    rope_scaling: RopeScaling | None = None
    norm: Literal["layernorm", "rmsnorm", "none"] = "layernorm"
    norm_placement: Literal["pre", "post"] = "pre"
    norm_epsilon: float = Field(1e-5, gt=0)
    qk_norm: bool = False  # None in input: wherever there is a norm
    feedforward: Literal["mlp", "gated", "none"] = "mlp"
    activation: Literal["gelu_tanh", "gelu_erf", "relu", "relu2", "silu"] = "gelu_tanh"
    attention_output: bool = True
    attention_residual: bool = True
    bias: Bias = Bias()
    window: int | tuple[int | None, ...] | None = None  # how many positions back a query sees, itself included
    tie_embeddings: bool = True
    dropout: DropoutRates = DropoutRates()
    init: Literal["gpt2", "torch"] = "gpt2"

    @model_validator(mode="before")
    @classmethod
    def _fill_sizes(cls, values: Any) -> Any:
        """Sizes that follow from others; anything not yet known to be a number is left for the field checks."""
        values = _with_own_names(cls, values)  # here too, since pydantic runs this before the base's validator
        if not isinstance(values, Mapping):
            return values
        values = {key: value for key, value in values.items() if not (value is None and key in DERIVED_SIZES)}
        heads, width = _as_int(values.get("num_heads")), _as_int(values.get("width"))
        if heads and width and heads > 0:
            indivisible = f"width {width} is not a multiple of num_heads {heads}; change one or set head_width"
            _raise_first({indivisible: "head_width" not in values and width % heads != 0})
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
            f"rotary positions need an even head_width, not {self.head_width}": (
                self.position == "rotary" and self.head_width % 2 != 0
            ),
            f"sinusoidal positions need an even width, not {self.width}": (
                self.position == "sinusoidal" and self.width % 2 != 0
            ),
            "rope_scaling needs position = 'rotary'": self.rope_scaling is not None and self.position != "rotary",
            "qk_norm needs a norm, and norm is 'none'": self.qk_norm and self.norm == "none",
            f"window has {len(self.windows)} entries for {self.num_layers} layers": (
                len(self.windows) != self.num_layers
            ),
            "a window must be 1 or more": any(window is not None and window < 1 for window in self.windows),
        }
        _raise_first(problems)
        return self

    @property
    def windows(self) -> tuple[int | None, ...]:
        """The attention window of each layer."""
        return self.window if isinstance(self.window, tuple) else (self.window,) * self.num_layers

    def replaced(self, **changes: Any) -> ModelConfig:
        """A checked copy with some fields changed; without norms there is no qk_norm unless `changes` asks for it."""
        values = {**self.model_dump(), **changes}
        if changes.get("norm") == "none":
            values["qk_norm"] = changes.get("qk_norm")
        return ModelConfig(**values)


DERIVED_SIZES = ("num_kv_heads", "head_width", "feedforward_width")


class TokenizerConfig(Section):
    """Which tokenizer to make from the training text."""

    kind: Literal["characters", "words", "bytes", "bpe"] = "bpe"
    vocab_size: int | None = Field(None, gt=0)  # bpe and words; None: chosen from the amount of text
    split: Literal["gpt2", "qwen2"] | None = None  # how bpe cuts text into words before merging; None: qwen2
    start_token: str | None = None  # a special token to put before every text


class DataConfig(Section):
    """How text becomes rows of tokens."""

    text_field: str | None = None  # the field or column that holds the text, where a file has several
    validation_fraction: float = Field(0.1, ge=0, lt=1)
    document_mask: bool = False  # hide other documents that were packed into the same row
    shuffle_documents: bool = False  # join the documents in another random order in every epoch
    window_length: int | None = Field(None, gt=0)  # tokens per row, at most the context; None: the context
    special: tuple[str, ...] = ()  # names that are read as special tokens; a tokenizer that is made has them
    rows: bool = False  # each line or record is a row of its own, padded and never joined with its neighbour
    prompt_field: str | None = None  # rows of two parts: the field or column with the first part
    answer_field: str | None = None  # the field or column with the second part
    separator: str = ""  # between prompt and answer, part of the prompt
    loss_on: Literal["all", "answer"] = FOLLOWS  # from the others: "answer" where there is one, else "all"

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: Any) -> Any:
        """Prompts and answers are rows; their loss is that of the answers."""
        values = _with_own_names(cls, values)  # here too, since pydantic runs this before the base's validator
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
        _raise_first(problems)
        return self


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
    weight_decay_by_path: dict[str, Annotated[float, Field(ge=0)]] = {}  # glob: decay; the last match counts
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
        _raise_first({indivisible: self.batch_size % parts != 0})
        return self


class SamplingConfig(Section):
    """How the next token is drawn from the logits; the filters run in the order of the fields.

    These defaults are those of `foretell.generate` and of the command line.
    """

    repetition_penalty: float = Field(1.0, ge=0.01, le=100)  # 1: none (Keskar et al. 2019, section 4.1)
    logit_bias: dict[NonNegativeInt, Annotated[float, Field(ge=-(10**4), le=10**4)]] = {}  # id: added to its logit
    min_tokens: int = Field(0, ge=0)  # the tokens that end a text are impossible before
    ban: tuple[Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)], ...] = ()  # ids of words never written
    no_repeat_ngram: int | None = Field(None, gt=0)  # no run of this many ids occurs twice; None: any may
    regex: str | None = Field(None, min_length=1)  # the text after the prompt matches this regular expression
    json_schema: dict[str, Any] | None = None  # the text after the prompt is JSON of this schema
    temperature: float = Field(0.8, ge=0)  # 0: always the most likely token; 1: as the model has it
    top_k: int | None = Field(None, gt=0)  # keep the k most likely; None: all
    top_p: float = Field(0.95, gt=0, le=1)  # keep the smallest set with this much probability (Holtzman et al. 2020)
    min_p: float = Field(0.0, ge=0, le=1)  # drop what is less likely than min_p times the most likely
    seed: int = Field(1, ge=0, lt=2**63)

    @model_validator(mode="after")
    def _check(self) -> Self:
        has_both = self.regex is not None and self.json_schema is not None
        _raise_first({"regex and json_schema exclude each other; give one of them": has_both})
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
        _raise_first({f"data.window_length {window} is above model.context_length {context}": window > context})
        return self


AnySection = TypeVar("AnySection", bound=Section)


def make_section(section: type[AnySection], values: Mapping[str, Any], where: str = "") -> AnySection:
    """Build a section from plain values, converting text; what is wrong with them is a `ConfigError` of one line."""
    try:
        return section.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(_one_line(section, error, where)) from None


def translate_training_input(values: Mapping[str, Any]) -> dict[str, Any]:
    """A user's `training` section under our names for its keys.

    nanoGPT's `min_lr` becomes a share of `learning_rate`. A share that looks like a learning rate, and a nanoGPT recipe
    whose batch_size counts the rows of one micro-batch, are a `ConfigError` of one line.
    """
    given = {str(key).replace("-", "_"): value for key, value in values.items()}
    _refuse_nanogpt_batch(given)
    translated = {ALIASES.get(key, key): value for key, value in given.items() if key != "min_lr"}
    share = translated.get("final_learning_rate_share")
    if isinstance(share, float) and 0 < share < LEAST_SHARE:
        raise ConfigError(
            f"training.final_learning_rate_share = {share:g} looks like a learning rate; it is the share of "
            "learning_rate at which the schedule ends: 0.1 is a tenth"
        )
    if "min_lr" in given:
        translated["final_learning_rate_share"] = _share_of(given["min_lr"], translated)
    return translated


def _share_of(final_rate: Any, training: Mapping[str, Any]) -> float:
    """nanoGPT's min_lr as a share of the learning rate."""
    rate = training.get("learning_rate")
    is_known = all(isinstance(value, int | float) and value > 0 for value in (final_rate, rate))
    if not is_known or "final_learning_rate_share" in training:
        raise ConfigError(
            f"training.min_lr = {final_rate!r} is a learning rate: give learning_rate with it, or "
            "final_learning_rate_share = min_lr / learning_rate alone"
        )
    return final_rate / rate


def _refuse_nanogpt_batch(given: Mapping[str, Any]) -> None:
    """Refuse a batch_size that counts rows per micro-batch, with the equivalent that counts rows per step."""
    rows, parts = given.get("batch_size"), given.get("gradient_accumulation_steps", 1)
    names = [name for name in NANOGPT_TRAINING if name in given]
    if names and isinstance(rows, int) and isinstance(parts, int) and parts > 1:
        renamed = ", ".join(f"{NANOGPT_TRAINING[name]} for {name}" for name in names)
        raise ConfigError(
            f"training: batch_size = {rows} next to nanoGPT's {names[0]} would be the rows of one micro-batch, and "
            f"here it is all rows of a step; write batch_size = {rows * parts} with gradient_accumulation_steps = "
            f"{parts}, and {renamed}"
        )


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, unchecked."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"no configuration file at {path}") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path} is not a readable TOML file: {error}") from None


def check_known(key: str, known: tuple[str, ...], what: str) -> None:
    """Refuse a key that is not known, with the nearest that is."""
    if key not in known:
        raise ConfigError(f"unknown {what} '{key}'{did_you_mean(key, known) or ' (known: ' + ', '.join(known) + ')'}")


def _as_int(value: Any) -> int | None:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _one_line(section: type[BaseModel], error: ValidationError, where: str) -> str:
    """The first of pydantic's findings as `where.field: what (what to do)`."""
    findings = error.errors(include_url=False)
    # A size that follows from others is missing only because one of those is wrong
    finding = next(
        (each for each in findings if each["loc"][-1:] not in [(size,) for size in DERIVED_SIZES]), findings[0]
    )
    path = ".".join(str(part) for part in (*([where] if where else []), *finding["loc"]))
    if finding["type"] == "extra_forbidden":
        owner = _section_at(section, finding["loc"][:-1])
        known = tuple(owner.model_fields)
        near = did_you_mean(str(finding["loc"][-1]), known)
        return f"unknown key '{path}'{near or '; known here: ' + ', '.join(known)}"
    if finding["type"] == "missing":
        return f"missing key '{path}'"
    message = finding["msg"].removeprefix("Value error, ")
    if finding["type"] == "value_error":
        return f"{path}: {message}" if path else message
    return f"{path} = {finding['input']!r}: {message[0].lower() + message[1:]}"


def _section_at(section: type[BaseModel], location: tuple[int | str, ...]) -> type[BaseModel]:
    for part in location:
        annotation = section.model_fields[str(part)].annotation if str(part) in section.model_fields else None
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            section = annotation
    return section
