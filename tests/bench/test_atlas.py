"""The small world and its model: texts without held-out combinations, and the shipped weights' figures and story."""

from __future__ import annotations

import re
from itertools import islice

import pytest
import torch
from atlas import best_heads, repeated_words, share_right

import foretell
from foretell.data.batch import make_batch
from foretell.finding import find_model
from foretell.included.atlas.world import COUNTRY_OF, KINDS, addition, documents, is_held_out, questions
from foretell.insight.attribution.ablation import ablate
from foretell.insight.attribution.head_patterns import head_patterns
from foretell.insight.attribution.patch_map import patch_map
from foretell.language_model import LanguageModel
from foretell.storage.manifest import check_model_files
from foretell.training.objective import Objective

FACT = "The capital of Spain is Madrid, and the capital of Italy is"
OTHER = "The capital of France is Paris, and the capital of Germany is"


@pytest.fixture(scope="module")
def atlas() -> LanguageModel:
    return foretell.load("atlas", "cpu", "float32")


def test_a_text_is_a_function_of_the_seed_and_its_index():
    first, second = ([text.content for text in documents(1, count)] for count in (5, 8))
    assert first == second[:5]
    assert first != [text.content for text in documents(2, 5)]


def test_no_training_text_has_a_held_out_combination():
    texts = " ".join(text.content for text in islice(documents(3, 2000), 2000))
    sums = {f"{min(terms, key=int)} plus {max(terms, key=int)}" for terms in re.findall(r"(\d+) plus (\d+)", texts)}
    residents = {" ".join(pair) for pair in re.findall(r"(\w+) (?:lives in|comes from) (\w+)", texts)}
    residents -= {f"who {town}" for town in COUNTRY_OF}
    known = {pair for pair in residents if pair.split()[0] not in ("He", "She")}
    assert len(sums) > 150 and len(known) > 800
    assert not any(map(is_held_out, sums | known))


def test_questions_are_about_held_out_combinations_and_have_the_true_answer():
    for question in questions(addition, 1, 50):
        first, second = map(int, re.findall(r"\d+", question.context))
        assert is_held_out(f"{min(first, second)} plus {max(first, second)}")
        assert int(question.ending) == first + second


def test_the_files_are_small_and_as_the_manifest_lists_them():
    directory = find_model("atlas")
    check_model_files(directory, in_full=True)
    assert sum(path.stat().st_size for path in directory.iterdir() if path.is_file()) < 5e6


def test_it_answers_questions_about_combinations_that_it_never_read(atlas):
    right = share_right(atlas, 100)  # 500 questions of each kind: docs/atlas.md
    assert set(right) == {kind.__name__ for kind in KINDS}
    assert right.pop("addition") > 0.75
    assert min(right.values()) > 0.93


def test_it_has_a_previous_token_head_and_an_induction_head(atlas):
    patterns = head_patterns(atlas, repeated_words())
    best = best_heads(patterns)
    assert min(share for _, _, share in best.values()) > 0.8
    assert best["previous"][0] < best["induction"][0]  # the induction head reads what the other one wrote
    assert {"previous token", "induction"} <= {role.does for role in patterns.roles()[:4]}


def test_the_country_matters_at_its_own_token_and_later_at_the_last_one(atlas):
    patches = patch_map(atlas, FACT, OTHER)
    assert patches.token.text == "Rome" and patches.token.probability > 0.9
    differences = patches.differences
    country, last = patches.tokens.index("Italy"), len(patches.tokens) - 1
    assert differences[0, country] < -3 and abs(differences[0, last]) < 0.1  # after the embedding
    assert differences[-1, last] < -3 and abs(differences[-1, country]) < 0.1  # after the last layer


def test_without_its_most_important_head_the_fact_is_less_probable(atlas):
    effect = ablate(atlas, FACT, "trunk.blocks.*.attention.core[*]")
    before, after = effect.token.probability, min(each.probability for each in effect.effects)
    assert after < before - 0.04


def test_a_step_against_the_gradient_teaches_a_new_fact(atlas):
    model = foretell.load("atlas", "cpu", "float32")
    ids = model.encode("The capital of Italy is Milan")
    batch = make_batch(torch.tensor([ids]).numpy())

    def loss() -> torch.Tensor:
        return -model.decoder(torch.tensor([ids]))[0, -2].log_softmax(-1)[ids[-1]]

    before = loss()
    Objective(model.decoder)(batch).sum.backward()
    torch.optim.SGD(model.decoder.parameters(), lr=0.01).step()
    assert loss() < before - 0.5
