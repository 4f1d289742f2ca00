"""`ChatTraining`: the declaration of training on conversations, and its request."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from foretell.config.model import ModelConfig
from foretell.config.section import Section, make_section
from foretell.config.training import TrainingConfig
from foretell.config.weight_shapes import count_parameters
from foretell.errors import as_path, counted
from foretell.finetuning.chat_data import ChatData, EncodedConversation, encode_all, split
from foretell.finetuning.chat_task import ChatConfig, ChatTask, row_batches
from foretell.finetuning.conversations import ConversationReader
from foretell.finetuning.kinds import ChatOptions
from foretell.finetuning.request import FEWEST_STEPS, TuningRecipe
from foretell.finetuning.split import count_repeated
from foretell.finetuning.tuning import SMALL_WIDTH, TunedTraining, trained_weights, with_updates
from foretell.language_model import LanguageModel
from foretell.model.init import with_vocabulary
from foretell.model.lora import LoRAConfig
from foretell.runs.record import RunRecord
from foretell.runs.run import Run
from foretell.session.declaration import describe_recipe
from foretell.session.fit import Footprint
from foretell.session.reporter import Reporter
from foretell.session.request import TrainingRequest
from foretell.session.start import Start
from foretell.storage.files import TOKENIZER_FILE, sync
from foretell.text import Tokenizer, load_tokenizer
from foretell.text.chat_template import (
    ChatFormat,
    ChatTemplate,
    find_template,
    missing_names,
    own_template,
    prepare_tokenizer,
)

DEFAULT_TEMPLATE, DEFAULT_EPOCHS = "chatml", 3.0
DEFAULTS = {"batch_size": 8, "weight_decay": 0.01}
# With low-rank updates of larger models: 1e-3 is measured at width 576, and gives Hu et al.'s 2e-4 at GPT-3's 12,288
LOW_RANK = TuningRecipe(learning_rate=8.7e-4)
LEARNING_RATES = 1e-3, 1e-4  # for widths below SMALL_WIDTH (measured on primer, docs/chat.md), and for larger ones

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class ChatRequest(ChatOptions, TrainingRequest):
    """A request to tune on conversations. Data and model can be missing only when resuming."""

    config_type: ClassVar[type[Section]] = ChatConfig

    data: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.configured("data"), self.configured("lora")

    @property
    def described(self) -> list[str]:
        return [str(as_path("data", path)) for path in [*self.data, *([] if self.dev is None else [self.dev])]]

    @property
    def choices(self) -> dict[str, Any]:
        template = None if self.template is None else find_template(self.template).name
        return {"template": template, "truncation": self.truncate, "spell_tokens": self.spell_tokens or None}


@dataclass(frozen=True)
class TokenizedChats:
    """The tokenized conversations of a run, the template's name, and the tokenizer."""

    chats: ChatData
    template: str
    tokenizer: Tokenizer


class ChatTraining(TunedTraining[ChatRequest, ChatTask]):
    """Training on conversations. The run stores their tokens and the tokenizer."""

    verb = "finetune --task chat"

    def read(self, run: Run, reporter: Reporter) -> TokenizedChats:
        template = choose_template(self.request, self.start)
        tokenizer = choose_tokens(self.request, template, self.start.tokenizer)
        train, held_out = read_data(self.request, ChatFormat(template, tokenizer), self.start.config.context_length)
        tokenizer.note_unknown(token for each in train for chat in each.chats for token in chat.ids)
        tokenizer.save(run.tokens / TOKENIZER_FILE)
        sync(run.tokens / TOKENIZER_FILE)
        return TokenizedChats(ChatData.write(run.tokens, tokenizer, train, held_out), template.name, tokenizer)

    def reopen(self, run: Run, record: RunRecord) -> TokenizedChats:
        tokenizer = load_tokenizer(run.tokens / TOKENIZER_FILE)
        chats = ChatData.open(run.tokens, tokenizer, record.task["conversations"])
        return TokenizedChats(chats, record.task["template"], tokenizer)

    def configure(self, data: TokenizedChats, steps: int | None = None) -> ChatConfig:
        """Steps for the epochs, evenly spaced evaluations and samples, and the user's settings."""
        request, model = self.request, self.start.config
        given = request.section("training")
        values = {**model.model_dump(), "vocab_size": max(model.vocab_size, data.tokenizer.vocab_size)}
        shape = make_section(ModelConfig, values | request.section("model"), "model")
        rows = len(row_batches(request.configured("data"), data.chats.train, model.context_length))
        epochs = DEFAULT_EPOCHS if request.epochs is None else request.epochs
        checked = make_section(TrainingConfig, {"steps": 1, **DEFAULTS, **given}, "training")
        steps = given.get("steps") or steps or max(1, math.ceil(epochs * rows / checked.batch_size))
        often = max(1, int(steps) // 10)
        is_large = model.width >= SMALL_WIDTH
        learning_rate = (
            LOW_RANK.rate(model.width) if is_large and "lora" in request.overrides else LEARNING_RATES[is_large]
        )
        chosen = {**DEFAULTS, "learning_rate": learning_rate, "steps": steps, "warmup_steps": min(50, often)}
        chosen |= {"evaluate_every": often, "checkpoint_every": often, "sample_every": 2 * often}
        return ChatConfig(
            model=shape,
            data=request.configured("data"),
            training=make_section(TrainingConfig, chosen | given, "training"),
            lora=choose_lora(request, model, shape),
        )

    def most_steps(self, config: ChatConfig) -> int:
        return max(FEWEST_STEPS, super().most_steps(config))

    def recorded(self, data: TokenizedChats) -> dict[str, Any]:
        return {"template": data.template, "conversations": data.chats.digest}

    def footprint(self, config: ChatConfig, data: TokenizedChats) -> Footprint:
        rows = row_batches(config.data, data.chats.train, config.model.context_length)
        return self.footprint_of(config, config.model.replaced(context_length=rows.longest))

    def first_model(self, config: ChatConfig, data: TokenizedChats, start: Start | None) -> LanguageModel:
        """The start's weights, with rows for new tokens and any requested LoRA updates."""
        assert start is not None, "a chat run begins with a model"
        shape = config.model.replaced(vocab_size=start.config.vocab_size)
        decoder = start.decoder(shape, trained_weights(config.lora))
        decoder = with_vocabulary(decoder, config.model.vocab_size, config.training.seed).train()
        return with_updates(LanguageModel(decoder, data.tokenizer), config.lora, config.training.seed)

    def make_task(self, config: ChatConfig, data: TokenizedChats, model: LanguageModel) -> ChatTask:
        tuned = replace(model, tokenizer=data.tokenizer)
        return ChatTask(config, data.chats, tuned)

    def describe(self, task: ChatTask) -> list[str]:
        chats, training = task.data, task.config.training
        epochs = training.steps * training.batch_size / len(task.train)
        return [
            f"data        {counted(len(chats.train), 'conversation')} to learn from, {len(chats.held_out):,} held out",
            f"tokens      {len(chats.train.tokens):,}, of which {chats.train.num_targets:,} are answers and learned; "
            f"held out {chats.held_out.num_targets:,}",
            f"rows        {len(chats.train):,}, {task.train.described}; read {epochs:.1f} times",
            *task.record.reasons,
            f"model       {task.record.size}, {count_parameters(task.config.model):,} parameters",
            describe_recipe(training, f"{counted(training.steps, 'step')} of {counted(training.batch_size, 'row')}"),
        ]


def choose_template(request: ChatRequest, start: Start) -> ChatTemplate:
    """The requested template, the model's, or the default."""
    if request.template is not None:
        template, reason = find_template(request.template), "as requested"
    elif own := own_template(start.tokenizer, start.name):
        template, reason = own, "the model's own"
    else:
        template, reason = find_template(DEFAULT_TEMPLATE), "the model has no template"
    logger.info(f"template    {template.name}: {reason}")
    return template


def choose_tokens(request: ChatRequest, template: ChatTemplate, tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with the template's tokens; logs the new ones."""
    missing = missing_names(template, tokenizer)
    prepared = prepare_tokenizer(tokenizer, template, add_tokens=not request.spell_tokens)
    new = [name for name in prepared.special_tokens if name not in tokenizer.special_tokens]
    if new:
        logger.info(f"tokens      new in the vocabulary: {', '.join(new)}; their rows begin with random values")
    if spelled := [name for name in missing if name not in prepared.special_tokens]:
        logger.info(f"tokens      written as ordinary text: {', '.join(spelled)}")
    return prepared


def read_data(
    request: ChatRequest, chat_format: ChatFormat, context_length: int
) -> tuple[list[EncodedConversation], list[EncodedConversation]]:
    """The conversations that fit, with their tokens: those for training, and the held-out ones."""
    reader = ConversationReader()

    def read(paths: Sequence[str | Path]) -> tuple[list[EncodedConversation], list[str]]:
        return encode_all(
            reader.read([as_path("data", path) for path in paths]), chat_format, context_length, request.truncate
        )

    train, notes = read(request.data)
    if request.dev is not None:
        held_out, more = read([request.dev])
        notes += more
    else:
        train, held_out = split(train, request.configured("data").validation_fraction, 0)
    learned, evaluated = ([each.conversation.messages for each in part] for part in (train, held_out))
    if repeated := count_repeated(learned, evaluated):
        notes.append(f"{repeated:,} of the held-out conversations are also learned from, word for word")
    for note in [*reader.notes, *notes]:
        logger.info(f"note        {note}")
    return train, held_out


def choose_lora(request: ChatRequest, start: ModelConfig, model: ModelConfig) -> LoRAConfig | None:
    """The requested LoRA updates. With new tokens, the weights that have a row per token are trained too."""
    if "lora" not in request.overrides:
        return None
    lora = request.configured("lora")
    if model.vocab_size > start.vocab_size and not lora.also_trained:
        rows = ("embed.token.weight",) if model.tie_embeddings else ("embed.token.weight", "head.weight")
        logger.info(f"lora        {' and '.join(rows)} trained too, for the rows of new tokens")
        lora = lora.model_copy(update={"also_trained": rows})
    return lora
