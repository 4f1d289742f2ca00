"""Token ids as text: for any model with --ids, and for a model that has no tokenizer."""

from __future__ import annotations

import pytest

import foretell as foretell_package
from foretell.language_model import load_model
from foretell.saved_model.model_parts import DECODER, DecoderPart
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


def test_a_saved_model_without_a_tokenizer_works_on_ids(foretell, trained, tmp_path):
    model = foretell_package.load(trained, device="cpu")
    (tmp_path / "bare").mkdir()
    save_parts(tmp_path / "bare", {DECODER: DecoderPart(model.decoder)})
    bare = load_model(tmp_path / "bare")
    assert bare.encode("84 104 101") == [84, 104, 101]
    for verb in (*VERBS, ["info"]):
        outcome = foretell(verb[0], "bare", *([] if verb[0] == "info" else [CAT]), *verb[1:])
        assert outcome.code == 0
        assert "no tokenizer; a text is token ids, such as '464 3290'" in outcome.err
    refused = foretell("next", "bare", "The cat")
    assert refused.code == 1
    assert "The" in refused.last_line
