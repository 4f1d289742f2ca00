"""Evaluation of models on conversations: the loss of the answers, and generated answers side by side."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.config.sampling import SamplingConfig
from foretell.data.data_use import hash_stream
from foretell.data.rows import PackedRows
from foretell.errors import UsageError
from foretell.evaluation.loss import TOKENS_AT_ONCE, evaluate, json_number, perplexity
from foretell.evaluation.material import CHATS
from foretell.evaluation.overlap import Overlap, overlap_entry, overlap_lines, overlap_with
from foretell.finetuning.chat_data import encode_all, rows_in_memory
from foretell.finetuning.chat_tuning import DEFAULT_TEMPLATE
from foretell.finetuning.conversations import Conversation, ConversationReader
from foretell.inference.completion import Completion, make_completer
from foretell.language_model import LanguageModel
from foretell.saved_model.config_file import command_of
from foretell.text.chat_template import ChatFormat, find_template, own_template, prepare_tokenizer
from foretell.training.objective import Objective
from foretell.typesetting.document import DocumentSection, Paragraph, Part, Table
from foretell.typesetting.html import Shown

ANSWERS, ANSWER_TOKENS = 5, 64
DIFFERENT = "The losses are over different tokens: the models do not have the same template, tokenizer and context."


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnswerFigures:
    """The loss of the answers in conversations, in nats per answer token.

    conversations: the number of conversations, some cut to the context. notes: how many were cut or left out.
    """

    model: str
    template: str
    conversations: int
    answer_tokens: int
    loss: float
    notes: tuple[str, ...] = ()
    overlap: Overlap | None = None

    def to_json(self) -> dict[str, Any]:
        values = {name: value for name, value in asdict(self).items() if name != "overlap"}
        return {**values, "perplexity": json_number(perplexity(self.loss)), **overlap_entry(self.overlap)}


@dataclass(frozen=True)
class AnsweredQuestion:
    """The last question of a conversation, the answer in the data, and the greedy answer of each model.

    cut: the models whose answer did not end within ANSWER_TOKENS or the context.
    """

    question: str
    answer: str
    answers: dict[str, str]
    cut: tuple[str, ...] = ()


@dataclass(frozen=True)
class ChatEvaluation(Shown):
    """The figures of each model, and the answers to the first questions. data: the names of the files."""

    figures: list[AnswerFigures]
    questions: list[AnsweredQuestion]
    data: str = ""

    def to_json(self) -> dict[str, Any]:
        models = [each.to_json() for each in self.figures]
        return {"models": models, "questions": [asdict(each) for each in self.questions]}

    def document(self) -> DocumentSection:
        """A table of figures, and a table of answers for each question."""
        rows = [
            (each.model, f"{each.loss:.3f}", f"{perplexity(each.loss):,.1f}", f"{each.answer_tokens:,}", each.template)
            for each in self.figures
        ]
        parts: list[Part] = [Table(("", "loss", "perplexity", "answer tokens", "template"), rows)]
        if len({(each.answer_tokens, each.template) for each in self.figures}) > 1:
            parts.append(Paragraph(DIFFERENT))
        parts += [Paragraph(f"{each.model}: {note}") for each in self.figures for note in each.notes]
        parts += [
            Paragraph(f"{each.model}: {line.text}") for each in self.figures for line in overlap_lines(each.overlap)
        ]
        for each in self.questions:
            answers = {"in the data": each.answer, **each.answers}
            shown = [(name + " (cut)" * (name in each.cut), _on_one_line(text)) for name, text in answers.items()]
            parts += [Paragraph(_on_one_line(each.question)), Table(("", "answer"), shown)]
        return DocumentSection(f"Answers to {self.data}", parts)


def evaluate_chats(
    models: Sequence[LanguageModel], paths: Sequence[str | Path], *, questions: int = ANSWERS, limit: int | None = None
) -> ChatEvaluation:
    """Evaluate models on the conversations of files, or on the first `limit` of them.

    Each model uses its own chat template; a model without one uses the default, with special tokens as ordinary text.
    Conversations longer than the context are cut off at their ends. Raises DataError for files without conversations,
    and for rows of another form.
    """
    for model in models:
        if command := command_of(model.name, [part.kind for part in model.parts.values()]):
            raise UsageError(f"{model.name} has no conversations; use it with: {command}")
    reader = ConversationReader()
    conversations = reader.read(paths)[:limit]
    for note in reader.notes:
        logger.info(f"note        {note}")
    asked = [each for each in conversations if each.messages[-1].role == "assistant"][:questions]
    figures, answers = [], [dict[str, Completion]() for _ in asked]
    for model in models:
        chat_format, template = format_of(model)
        figures.append(figures_of(model, template, conversations, chat_format))
        for each, conversation in zip(answers, asked, strict=True):
            each[model.name] = answer_to(model, conversation, chat_format)
    shown = [
        AnsweredQuestion(
            conversation.messages[-2].content,
            conversation.messages[-1].content,
            {name: answer.text.strip() for name, answer in each.items()},
            tuple(name for name, answer in each.items() if answer.finish_reason in ("length", "context")),
        )
        for conversation, each in zip(asked, answers, strict=True)
    ]
    return ChatEvaluation(figures, shown, ", ".join(map(str, paths)))


def format_of(model: LanguageModel) -> tuple[ChatFormat, str]:
    """The model's template, or the default one in ordinary text, with the model's tokenizer; and its name."""
    own = own_template(model.tokenizer, model.name)
    template = own or find_template(DEFAULT_TEMPLATE)
    tokenizer = model.tokenizer if own else prepare_tokenizer(model.tokenizer, template, add_tokens=False)
    return ChatFormat(template, tokenizer), template.name


def figures_of(
    model: LanguageModel, template: str, conversations: Sequence[Conversation], chat_format: ChatFormat
) -> AnswerFigures:
    context = model.config.context_length
    encoded, notes = encode_all(conversations, chat_format, context, "tail")
    chats = rows_in_memory(encoded)
    packed = PackedRows(chats, context)
    loss = evaluate(Objective(model.decoder), packed.iter_batches(max(1, TOKENS_AT_ONCE // packed.length))).loss
    hashes = np.concatenate(list(hash_stream(chats.tokens, is_whole=True)))
    overlap = overlap_with(model.data_use, hashes, CHATS)
    return AnswerFigures(model.name, template, len(chats), chats.num_targets, loss, tuple(notes), overlap)


def answer_to(model: LanguageModel, conversation: Conversation, chat_format: ChatFormat) -> Completion:
    """The greedy answer to the last question; empty and cut if the question leaves no room for an answer."""
    prompt = chat_format.encode_prompt(conversation.messages[:-1])
    room = model.config.context_length - len(prompt)
    if room < 1:
        return Completion("", "", [], "context")
    completer = make_completer(
        model, [prompt], SamplingConfig(temperature=0), stop=chat_format.stop_texts, stop_ids=chat_format.stop_ids
    )
    return completer.finished(min(ANSWER_TOKENS, room))[0]


def _on_one_line(text: str) -> str:
    """A text on one line, with visible line ends."""
    return " ⏎ ".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
