"""CTranslate2 as a contender: GPT-2's weights, converted by its own converter from transformers' layout."""

from __future__ import annotations

import tempfile
from pathlib import Path

import ctranslate2
import torch
from ctranslate2.converters import TransformersConverter
from gpt2_names import save_transformers
from measure import Clock

from foretell.model.decoder import Decoder


class CTranslate2:
    """A decoder's weights in CTranslate2; precision: float32, bfloat16 or int8."""

    name = "CTranslate2"

    def __init__(self, decoder: Decoder, precision: str, rows: int):
        self.folder = tempfile.TemporaryDirectory()
        source, target = Path(self.folder.name) / "hf", Path(self.folder.name) / "ct2"
        save_transformers(decoder, source)
        TransformersConverter(str(source)).convert(str(target), quantization=precision)
        threads = torch.get_num_threads()
        self.generator = ctranslate2.Generator(
            str(target), device="cpu", compute_type=precision, intra_threads=threads, inter_threads=1
        )

    def decode(self, prompts: list[list[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        """Greedy continuations, and the seconds from the first token to the last: of all, less those for one token."""
        one, _ = self._generate(prompts, 1)
        all_of_them, texts = self._generate(prompts, new_tokens)
        return all_of_them - one, texts

    def read(self, prompt: list[int]) -> float:
        """The seconds of reading a prompt, up to the next token."""
        return self._generate([prompt], 1)[0]

    def _generate(self, prompts: list[list[int]], new_tokens: int) -> tuple[float, list[list[int]]]:
        started = Clock.now()
        results = self.generator.generate_batch(
            [[f"<{token}>" for token in prompt] for prompt in prompts],
            max_length=new_tokens,
            min_length=new_tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return Clock.now() - started, [result.sequences_ids[0] for result in results]
