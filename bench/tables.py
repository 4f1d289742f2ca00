"""Writes the tables of docs/finetuning.md and its reference into the current folder.

Reviews with labels (one in ten is wrong) and stars, entailments, pairs, choices, and tagged names.
"""

import csv
import json
import random
from itertools import pairwise
from pathlib import Path

draw = random.Random(1)
STARS = {"awful": 1, "boring": 1, "dull": 2, "clumsy": 2, "lovely": 4, "funny": 4, "great": 5, "moving": 5}


def review(one, two):
    return f"The {draw.choice(('film', 'book', 'song', 'play'))} was {one} and {two}."


def opinion(one, two):
    return "good" if STARS[one] + STARS[two] > 6 else "bad"


def rated(one, two):  # one label in ten is wrong
    return opinion(one, two) if draw.random() < 0.9 else {"good": "bad", "bad": "good"}[opinion(one, two)]


def write(name, header, rows):
    with Path(name).open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


words = [draw.sample(list(STARS), 2) for _ in range(600)]
write("reviews.csv", ["text", "label"], [(review(*each), rated(*each)) for each in words])
write("stars.csv", ["review", "stars"], [(review(*each), (STARS[each[0]] + STARS[each[1]]) / 2) for each in words])
write(
    "entailment.csv",
    ["premise", "hypothesis", "label"],
    [(review(*each), f"It was {told}.", opinion(*each) == told) for each in words for told in ("good", "bad")],
)
pairs = list(pairwise(words))
write(
    "pairs.csv",
    ["text1", "text2", "label"],
    [(review(*one), review(*two), "same" if opinion(*one) == opinion(*two) else "other") for one, two in pairs],
)
with Path("choices.jsonl").open("w") as file:
    for each in words:
        row = {
            "query": review(*each) + " So",
            "choices": ["she smiled.", "she left."],
            "gold": int(opinion(*each) == "bad"),
        }
        file.write(json.dumps(row) + "\n")

PEOPLE = ("Ann", "Bo Lind", "Paris Berg", "Raj", "Florence Chan", "Sydney")
PLACES = ("Lima", "New York", "Paris", "Hong Kong", "Florence", "Sydney")
PHRASES = ("PER met PER in LOC .", "PER flew from LOC to LOC .", "LOC is far from LOC .", "Then PER wrote to PER .")


def tagged(phrase):
    for word in phrase.split():
        names = draw.choice({"PER": PEOPLE, "LOC": PLACES}.get(word, (word,))).split()
        yield from ((name, "O" if names == [word] else f"{'B' if name == names[0] else 'I'}-{word}") for name in names)


others = [draw.sample(list(STARS), 2) for _ in range(200)]
write("test.csv", ["text", "label"], [(review(*each).replace("The", "This"), rated(*each)) for each in others])
draw = random.Random(2)
sentences = [list(tagged(draw.choice(PHRASES))) for _ in range(400)]
with Path("names.jsonl").open("w") as file:
    for sentence in sentences[:300]:
        row = {"tokens": [word for word, _ in sentence], "tags": [tag for _, tag in sentence]}
        file.write(json.dumps(row) + "\n")
with Path("names.conll").open("w") as file:
    file.write("\n\n".join("\n".join(f"{word} {tag}" for word, tag in sentence) for sentence in sentences[300:]))
