"""Conversations as text, by a Jinja template: a built-in one, a file, or the one that came with a checkpoint."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from foretell.errors import TokenizerError, UsageError, did_you_mean
from foretell.files import TEMPLATE_LIMIT, read_text
from foretell.text.template_sandbox import SandboxedTemplate
from foretell.text.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant"]

PLAIN = """{{ bos_token }}{% for message in messages %}
{% if message.role == 'system' %}{{ message.content + '\n\n' }}
{%- elif message.role == 'user' %}{{ 'User: ' + message.content + '\n' }}
{%- else %}{{ 'Assistant: ' + message.content + eos_token + '\n' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}
"""
CHATML = """{{ bos_token }}{% for message in messages %}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}
"""
ALPACA = """{{ bos_token }}{% for message in messages %}
{% if message.role == 'system' %}{{ message.content + '\n\n' }}
{%- elif message.role == 'user' %}{{ '### Instruction:\n' + message.content + '\n\n' }}
{%- else %}{{ '### Response:\n' + message.content + eos_token + '\n\n' }}
{%- endif %}
{% endfor %}
{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}
"""
LLAMA3 = """{{ bos_token }}{% for message in messages %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content + '<|eot_id|>' }}
{%- endfor %}
{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}
"""
BUILT_IN = {"plain": PLAIN, "chatml": CHATML, "alpaca": ALPACA, "llama3": LLAMA3}
SPECIAL_NAME = re.compile(r"<\|[^<>|\s]{1,40}\|>")  # how templates and tokenizers write special tokens


@dataclass(frozen=True)
class Message:
    role: Role
    content: str

    def to_json(self) -> dict[str, str]:
        return {"role": self.role, "content": self.content}


@dataclass(frozen=True)
class ChatTemplate:
    """A Jinja text that writes conversations. Compiled when first used, which can raise TokenizerError."""

    name: str
    source: str

    @cached_property
    def _compiled(self) -> SandboxedTemplate:
        return SandboxedTemplate(self.source, f"the chat template of {self.name}")

    @property
    def special_names(self) -> list[str]:
        return list(dict.fromkeys(SPECIAL_NAME.findall(self.source)))

    @property
    def needs_end_token(self) -> bool:
        """True if an answer ends with the tokenizer's own end token."""
        return "eos_token" in self.source

    def render(self, messages: Sequence[Message], tokenizer: Tokenizer, *, add_generation_prompt: bool = False) -> str:
        """The conversation as text; with `add_generation_prompt` the beginning of an answer follows.

        Raises TokenizerError if the template refuses the conversation, does not end or is unsafe.
        """
        starts, end_id = tokenizer.start_ids, tokenizer.end_id
        return self._compiled.render(
            messages=[message.to_json() for message in messages],
            add_generation_prompt=add_generation_prompt,
            bos_token=tokenizer.piece(starts[0]) if starts else "",
            eos_token="" if end_id is None else tokenizer.piece(end_id),
            tools=None,
            documents=None,
        )


def find_template(argument: str) -> ChatTemplate:
    """A built-in template by its name, or a template from a file."""
    if argument in BUILT_IN:
        return ChatTemplate(argument, BUILT_IN[argument])
    path = Path(argument)
    if not (path.suffix or os.sep in argument):
        known = ", ".join(BUILT_IN)
        raise UsageError(
            f"no chat template '{argument}'{did_you_mean(argument, BUILT_IN)}; known: {known}, or a Jinja file's name"
        )
    return ChatTemplate(path.name, read_text(path, TEMPLATE_LIMIT, TokenizerError))


def own_template(tokenizer: Tokenizer, name: str) -> ChatTemplate | None:
    """The template that came with a tokenizer, None if there is none."""
    return None if tokenizer.chat_template is None else ChatTemplate(name, tokenizer.chat_template)


def missing_names(template: ChatTemplate, tokenizer: Tokenizer) -> list[str]:
    """The special tokens of a template that are missing in a tokenizer."""
    return [name for name in template.special_names if name not in tokenizer.special_tokens]


def check_template(template: ChatTemplate, tokenizer: Tokenizer) -> None:
    """Refuse a template that cannot write a question and its answer."""
    question, answer = Message("user", "question"), Message("assistant", "answer")
    text = template.render([question, answer], tokenizer)
    if not 0 <= text.find(question.content) < text.find(answer.content):
        raise TokenizerError(f"the chat template of {template.name} leaves out a question or its answer")
