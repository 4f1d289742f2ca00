"""Parity with transformers in both directions: logits with and without a cache, greedy text, loss, tokens, weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import foretell
from foretell.config.sampling import SamplingConfig
from foretell.convert.export import write_huggingface
from foretell.convert.families import differences
from foretell.convert.family import Family
from foretell.convert.huggingface import load_huggingface
from foretell.convert.huggingface_files import read_config
from foretell.data.batch import make_batch
from foretell.generation.batch_generation import generate
from foretell.generation.sampling import Sampler
from foretell.generation.sequence import Sequence
from foretell.language_model import LanguageModel
from foretell.model.cache import KVCache
from foretell.training.objective import Objective

ABSOLUTE = 1e-4  # float32
GREEDY = Sampler(SamplingConfig(temperature=0))


def some_ids(model: LanguageModel, rows: int = 3) -> Tensor:
    """Rows that fill the context."""
    config = model.decoder.config
    shape = (rows, config.context_length)
    return torch.randint(config.vocab_size, shape, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def theirs(case, make_theirs):
    return make_theirs(case)


@pytest.fixture
def ours(case, directory_of) -> LanguageModel:
    return foretell.load(directory_of(case), "cpu")


@pytest.fixture
def family(case, directory_of) -> Family:
    return read_config(directory_of(case))[0]


@torch.no_grad()
def test_logits_equal_those_of_transformers(theirs, ours: LanguageModel) -> None:
    ids = some_ids(ours)
    expected = theirs(ids).logits
    assert expected.std() > 0.5, "nearly constant logits would equal anything"
    torch.testing.assert_close(ours.decoder(ids), expected, rtol=0, atol=ABSOLUTE)


@torch.no_grad()
def test_cached_logits_equal_those_of_transformers(theirs, ours: LanguageModel) -> None:
    ids = some_ids(ours)
    cache = KVCache(ours.decoder.config, len(ids), ids.shape[1], ours.dtype, ours.device)
    pieces = [ids[:, :3], *ids[:, 3:].split(1, dim=1)]
    logits = torch.cat([ours.decoder(piece, cache.make_room([piece.shape[1]] * len(ids))) for piece in pieces], dim=1)
    torch.testing.assert_close(logits, theirs(ids).logits, rtol=0, atol=ABSOLUTE)


@torch.no_grad()
def test_greedy_text_equals_that_of_transformers(theirs, ours: LanguageModel) -> None:
    prompt = [1, 2, 3]
    count = ours.decoder.config.context_length - len(prompt)
    sequence = Sequence(prompt)
    drawn = [event.token for event in generate(ours.decoder, [sequence], GREEDY, count)]
    expected = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=count, pad_token_id=0)
    assert drawn == expected[0, len(prompt) :].tolist()


@torch.no_grad()
def test_the_loss_equals_that_of_transformers(theirs, ours: LanguageModel) -> None:
    ids = some_ids(ours)
    loss = Objective(ours.decoder)(make_batch(ids.numpy()))
    torch.testing.assert_close(loss.sum / loss.count, theirs(ids, labels=ids).loss, rtol=0, atol=ABSOLUTE)


@torch.no_grad()
def test_transformers_computes_our_logits_from_written_files(
    family: Family, ours: LanguageModel, tmp_path: Path
) -> None:
    write_huggingface(tmp_path, ours, family, torch.float32)
    ids = some_ids(ours)
    theirs, loading = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(loading.values()), loading
    torch.testing.assert_close(theirs.eval()(ids).logits, ours.decoder(ids), rtol=0, atol=ABSOLUTE)


def test_transformers_reads_our_tokens_from_written_files(
    family: Family, ours: LanguageModel, their_tokenizer, tmp_path: Path
) -> None:
    write_huggingface(tmp_path, ours, family, torch.float32)
    kind = "AutoTokenizer" if family.tokenizer_class is None else "PreTrainedTokenizerFast"
    theirs, text = their_tokenizer(tmp_path, kind), "the cat sat on a mat.\nand  that  was that."
    assert theirs(text)["input_ids"] == ours.tokenizer.encode(text)
    assert theirs.decode(ours.tokenizer.encode(text)) == text
    assert theirs.eos_token_id == ours.tokenizer.end_id


def test_reading_and_writing_is_bit_identical(
    case, family: Family, ours: LanguageModel, directory_of, tmp_path: Path
) -> None:
    write_huggingface(tmp_path, ours, family, torch.float32)
    back = load_huggingface(tmp_path)
    assert back.decoder.config == ours.decoder.config
    assert back.tokenizer.fingerprint == ours.tokenizer.fingerprint
    for (path, weight), (name, other) in zip(
        ours.decoder.named_parameters(), back.decoder.named_parameters(), strict=True
    ):
        assert path == name
        assert torch.equal(weight, other), path
    written, original = (load_file(folder / "model.safetensors") for folder in (tmp_path, directory_of(case)))
    assert written.keys() == original.keys()
    assert all(torch.equal(written[name], original[name]) for name in written)


def test_a_family_can_express_its_own_models(case, directory_of) -> None:
    family, config, _ = read_config(directory_of(case))
    assert differences(config, family) == {}
