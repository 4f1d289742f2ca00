"""What a model writes as it learns: always the same prompts, always the same draws."""

from __future__ import annotations

from dataclasses import dataclass

from foretell.config import SamplingConfig
from foretell.data.shards import TokenStream
from foretell.errors import ConfigError
from foretell.generation.engine import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.model.decoder import Decoder
from foretell.text import Tokenizer

PROMPT_TOKENS, SAMPLE_TOKENS = 8, 48
SAMPLING = SamplingConfig(temperature=0.8, top_k=50, top_p=1.0)
SEPARATOR = "\n\n" + "-" * 40 + "\n\n"  # between the texts of one step


@dataclass(frozen=True)
class Sample:
    """A prompt and what a model went on with."""

    prompt: str
    continuation: str

    @property
    def text(self) -> str:
        return self.prompt + self.continuation


class Samples:
    """Texts to be continued: those that were asked for, or the beginning of a stream."""

    def __init__(self, prompts: tuple[str, ...], stream: TokenStream, tokenizer: Tokenizer, context_length: int):
        self.tokenizer, self.context_length = tokenizer, context_length
        self.prompts = [self.encode(prompt) for prompt in prompts]
        if not prompts:
            count = min(PROMPT_TOKENS, len(stream), max(1, context_length // 2))
            self.prompts = [stream.read(0, count).tolist()]

    def encode(self, prompt: str) -> list[int]:
        """A prompt's ids; one that leaves no room for an answer is a `ConfigError`."""
        ids = self.tokenizer.encode_input(prompt)
        if not 0 < len(ids) < self.context_length:
            raise ConfigError(
                f"the sample prompt {prompt[:30]!r} has {len(ids)} tokens; it needs between 1 and "
                f"{self.context_length - 1}, one less than model.context_length"
            )
        return ids

    def write(self, decoder: Decoder) -> list[Sample]:
        """Every prompt, continued; the decoder is left in training mode."""
        decoder.eval()
        written = [self.continued(decoder, prompt) for prompt in self.prompts]
        decoder.train()
        return written

    def continued(self, decoder: Decoder, prompt: list[int]) -> Sample:
        """A prompt and up to SAMPLE_TOKENS tokens after it."""
        sequence = Sequence(prompt)
        sampler = Sampler(SAMPLING, self.tokenizer.vocab_size)
        count = min(SAMPLE_TOKENS, self.context_length - len(prompt))
        for _ in generate(decoder, [sequence], sampler, count, end_id=self.tokenizer.end_id):
            pass
        before = self.tokenizer.decode(prompt, skip_special=True)
        whole = self.tokenizer.decode(prompt + sequence.generated, skip_special=True)
        if whole.startswith(before):  # tokens that are words get their space only from their neighbour
            return Sample(before, whole[len(before) :])
        return Sample(before, self.tokenizer.decode(sequence.generated, skip_special=True))
