"""Token ids as text: for any model with --ids, and for a model that has no tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

import foretell as foretell_package
from foretell.language_model import load_model
from foretell.saved_model.part import DECODER, DecoderPart
from foretell.saved_model.parts_on_disk import save_parts

CAT = " ".join(str(byte) for byte in b"The cat")
VERBS = [["next"], ["score"], ["embed"], ["generate", "--max-tokens", "3"], ["explain"], ["trace", "--out", "t"]]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb[0])
def test_ids_give_the_numbers_of_the_text_that_they_encode(foretell, trained, verb):
    text = foretell(verb[0], trained, "The cat", *verb[1:], "--json")
    ids = foretell(verb[0], trained, CAT, *verb[1:], "--ids", "--json")
    assert (text.code, ids.code) == (0, 0)
    if verb[0] == "embed":
        assert ids.json["embedding"] == text.json["embedding"]
    if verb[0] == "generate":
        assert ids.json["token_ids"] == text.json["token_ids"]
    if verb[0] == "score":
        assert [token["logprob"] for token in ids.json["tokens"]] == [token["logprob"] for token in text.json["tokens"]]


def test_an_end_token_ends_a_text_of_ids_and_min_tokens_delays_it():
    model = foretell_package.load("primer", device="cpu")
    (end,) = model.tokenizer.end_ids
    bias: dict[str, Any] = {"temperature": 0, "logit_bias": {end: 99.0}}
    plain = foretell_package.generate(model, "If", 5, **bias)
    on_ids = foretell_package.generate(model.on_ids(), " ".join(map(str, model.encode("If"))), 5, **bias)
    assert (plain.token_ids, plain.finish_reason) == (on_ids.token_ids, on_ids.finish_reason) == ([], "end")
    later = foretell_package.generate(model.on_ids(), "4 5", 5, min_tokens=3, **bias)
    assert (len(later.token_ids), later.finish_reason) == (3, "end")


def test_a_saved_model_without_a_tokenizer_works_on_ids(foretell, trained, tmp_path):
    model = foretell_package.load(trained, device="cpu")
    (tmp_path / "bare").mkdir()
    save_parts(tmp_path / "bare", {DECODER: DecoderPart(model.decoder)})
    bare = load_model(tmp_path / "bare")
    assert bare.encode("84 104 101") == [84, 104, 101]
    for verb in (*VERBS, ["info"]):
        outcome = foretell(verb[0], "bare", *([] if verb[0] == "info" else [CAT]), *verb[1:]).succeeds()
        assert "no tokenizer; a text is token ids, such as '464 3290'" in outcome.err
    refused = foretell("next", "bare", "The cat")
    assert refused.code == 1
    assert "The" in refused.last_line
