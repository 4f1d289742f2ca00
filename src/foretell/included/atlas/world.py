"""A small world in plain sentences: countries and towns, who lives where, agreement, copies, lists and sums.

Each kind of story is a function of a random generator. Square brackets in its text mark the words that follow from
what was said before, or from what is always true. A story is about a combination, such as a person and a town, or two
numbers. One combination in HELD_OUT_SHARE is in no training text, and questions ask about these alone.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from foretell.data.documents import TextDocument
from foretell.data.questions import Ending

HELD_OUT_SHARE = 8  # one combination in eight
DOCUMENT_TOKENS = (10, 60)  # a document ends with the story in which it reaches a number between these
LONGEST_DOCUMENT = 120  # tokens; a story that would make it longer is left out
INVENTED_SHARE = 0.2  # of the lists of people
LARGEST_TERM = 20

# country: capital, two more towns, language
COUNTRIES = {
    "France": ("Paris", "Lyon", "Toulouse", "French"),
    "Germany": ("Berlin", "Hamburg", "Munich", "German"),
    "Italy": ("Rome", "Milan", "Naples", "Italian"),
    "Spain": ("Madrid", "Seville", "Valencia", "Spanish"),
    "Portugal": ("Lisbon", "Porto", "Braga", "Portuguese"),
    "Greece": ("Athens", "Patras", "Larissa", "Greek"),
    "Poland": ("Warsaw", "Krakow", "Gdansk", "Polish"),
    "Sweden": ("Stockholm", "Uppsala", "Lund", "Swedish"),
    "Norway": ("Oslo", "Bergen", "Trondheim", "Norwegian"),
    "Denmark": ("Copenhagen", "Aarhus", "Odense", "Danish"),
    "Finland": ("Helsinki", "Turku", "Tampere", "Finnish"),
    "Hungary": ("Budapest", "Szeged", "Debrecen", "Hungarian"),
    "Romania": ("Bucharest", "Cluj", "Brasov", "Romanian"),
    "Bulgaria": ("Sofia", "Plovdiv", "Varna", "Bulgarian"),
    "Turkey": ("Ankara", "Istanbul", "Izmir", "Turkish"),
    "Russia": ("Moscow", "Kazan", "Omsk", "Russian"),
    "Japan": ("Tokyo", "Osaka", "Kyoto", "Japanese"),
    "China": ("Beijing", "Shanghai", "Wuhan", "Chinese"),
    "Vietnam": ("Hanoi", "Hue", "Danang", "Vietnamese"),
    "Thailand": ("Bangkok", "Phuket", "Pattaya", "Thai"),
    "Korea": ("Seoul", "Busan", "Daegu", "Korean"),
    "Estonia": ("Tallinn", "Tartu", "Narva", "Estonian"),
    "Latvia": ("Riga", "Ventspils", "Jelgava", "Latvian"),
    "Albania": ("Tirana", "Durres", "Vlore", "Albanian"),
}
COUNTRY_OF = {town: country for country, (*towns, _) in COUNTRIES.items() for town in towns}
WOMEN = str.split("Anna Maria Clara Eva Julia Laura Nina Olga Rosa Sara Emma Ida Lena Marta Vera Alice")
MEN = str.split("Tom Paul Peter Max Hugo Leo Oscar Adam Karl Martin Felix Victor Simon Robert Daniel Ben")
PRONOUNS = {**dict.fromkeys(WOMEN, ("She", "her")), **dict.fromkeys(MEN, ("He", "his"))}
NOUNS = str.split(
    "dog cat bird tree house car book ship horse table chair flower lamp door boat apple garden cow key king"
)
ADJECTIVES = str.split("red green blue black white yellow brown grey big small old new good beautiful")
PLACES = ("near", "behind", "next to", "in front of")
WORDS = [*NOUNS, *(f"{noun}s" for noun in NOUNS), *ADJECTIVES, *PRONOUNS, *COUNTRIES, *COUNTRY_OF]
WORDS += [language for *_, language in COUNTRIES.values()]
SYLLABLES = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]


class Story(NamedTuple):
    """A text with brackets, and what it combines; questions are about the first combination."""

    text: str
    combinations: list[str]


Rng = random.Random
Kind = Callable[[Rng], Story]


def people(rng: Rng, count: int) -> list[str]:
    """Different names; one of them may be invented, which the model reads as an unknown word."""
    names = rng.sample([*PRONOUNS], count)
    if rng.random() < INVENTED_SHARE:
        names[rng.randrange(count)] = "".join(rng.sample(SYLLABLES, 3)).capitalize()
    return names


# ---------------------------------------------------------------------------------------------- what is always true
FORMS = (
    "{capital} is the capital of [{country}].",
    "{country} has the capital [{capital}].",
    "The town of {town} is in [{country}].",
    "{town} is a town in [{country}].",
    "People in {country} speak [{language}].",
    "People in {town} speak [{language}].",
    "{language} is the language of [{country}].",
    "{town} is in the country whose capital is [{capital}].",
)


def fact(rng: Rng) -> Story:
    """A fact; the combination is its form and the country or the town."""
    country, form = rng.choice([*COUNTRIES]), rng.choice(FORMS)
    *towns, language = COUNTRIES[country]
    town = rng.choice(towns)
    text = form.format(country=country, capital=towns[0], town=town, language=language)
    return Story(text, [f"{form} {town if '{town}' in form else country}"])


def two_facts(rng: Rng) -> Story:
    """Two countries in a sentence: the second answer does not depend on the first country."""
    first, second = rng.sample([*COUNTRIES], 2)
    relation = rng.choice(("capital", "language"))
    known, asked = (COUNTRIES[name][0 if relation == "capital" else -1] for name in (first, second))
    link = rng.choice((", and", ", but"))
    text = f"The {relation} of {first} is [{known}]{link} the {relation} of {second} is [{asked}]."
    return Story(text, [f"{relation} {first} {second}"])


# --------------------------------------------------------------------------------------- what the text said before
def residents(rng: Rng) -> Story:
    """People and their towns, and facts that follow about one of them. Each pair is a combination."""
    count = rng.randint(1, 3)
    pairs = [*zip(people(rng, count), rng.sample([*COUNTRY_OF], count), strict=True)]
    verb = rng.choice(("lives in", "comes from"))
    person, town = pairs[0]
    country = COUNTRY_OF[town]
    capital, *_, language = COUNTRIES[country]
    about = [
        f"{person} {verb} [{town}].",
        f"The country of {person} is [{country}].",
        f"{person} speaks [{language}].",
        f"The one who {verb} {town} is [{person}].",
        f"{person} {verb} [{town}], a town in [{country}].",
    ]
    if count == 1 and person in PRONOUNS:
        pronoun, possessive = PRONOUNS[person]
        about += [f"[{pronoun}] speaks [{language}].", f"The capital of {possessive} country is [{capital}]."]
    sentences = [f"{name} {verb} {home}." for name, home in rng.sample(pairs, count)]
    return Story(" ".join([*sentences, *rng.sample(about, rng.randint(1, 3))]), [" ".join(pair) for pair in pairs])


def gift(rng: Rng) -> Story:
    """Two people, one of whom acts: the other one is named next. The combination is the two."""
    pair = people(rng, 2)
    giver, taker = rng.sample(pair, 2)
    thing, town = rng.choice(NOUNS), rng.choice([*COUNTRY_OF])
    text = f"{' and '.join(pair)} went to {town}. {giver} gave the {thing} to [{taker}]."
    if rng.random() < 0.5:
        text += f" Now {taker} has the [{thing}]."
    return Story(text, [" ".join(sorted(pair))])


def agreement(rng: Rng) -> Story:
    """The verb agrees with the first noun, not with the nearest; the combination is the two nouns."""
    subject, other = rng.sample(NOUNS, 2)
    is_plural, other_is_plural = rng.random() < 0.5, rng.random() < 0.5
    day, verbs = rng.choice((("Today", ("is", "are")), ("Yesterday", ("was", "were"))))
    where = f"{rng.choice(PLACES)} the {other}{'s' * other_is_plural}"
    if rng.random() < 0.4:
        where = f"that {rng.choice([*PRONOUNS])} likes {where}"
    text = f"{day} the {subject}{'s' * is_plural} {where} [{verbs[is_plural]}] {rng.choice(ADJECTIVES)}."
    return Story(text, [f"{subject} {other}"])


def repetition(rng: Rng) -> Story:
    """A list of random words that is written again, up to three times; the combination is the list."""
    count = rng.randint(3, rng.choice((6, 12, 24)))
    words = rng.sample(WORDS, count) if rng.random() < 0.8 or count > 12 else people(rng, count)
    separator = rng.choice((" ", " ", ", "))
    again = separator.join([words[0], *(f"[{word}]" for word in words[1:])])
    start, between = rng.choice((("", separator), ("List: ", ". Again: "), ("", ". ")))
    text = start + between.join([separator.join(words), *[again] * rng.randint(1, 1 if count > 6 else 3)])
    return Story(f"{text}.", [" ".join(words)])


def addition(rng: Rng) -> Story:
    """A sum; the combination is its terms in either order."""
    first, second = rng.randint(0, LARGEST_TERM), rng.randint(0, LARGEST_TERM)
    return Story(f"{first} plus {second} is [{first + second}].", [f"{min(first, second)} plus {max(first, second)}"])


# kind: its share of the stories of the training
KINDS: dict[Kind, float] = {
    fact: 0.15, two_facts: 0.1, residents: 0.2, gift: 0.08, agreement: 0.07, repetition: 0.2, addition: 0.2,
}  # fmt: skip


# ------------------------------------------------------------------------------------------------ texts and questions
def is_held_out(combination: str) -> bool:
    return zlib.crc32(combination.encode()) % HELD_OUT_SHARE == 0


def training_story(rng: Rng) -> str:
    """A story without a held-out combination."""
    [kind] = rng.choices([*KINDS], [*KINDS.values()])
    story = kind(rng)
    while any(map(is_held_out, story.combinations)):
        story = kind(rng)
    return re.sub(r"[\[\]]", "", story.text)


def documents(seed: int, count: int) -> Iterator[TextDocument]:
    """The training texts: stories of all kinds in random order. Text `index` is a function of (seed, index)."""
    for index in range(count):
        rng = random.Random(f"{seed} {index}")
        text, length = training_story(rng), rng.randint(*DOCUMENT_TOKENS)
        while count_tokens(text) < length:
            longer = f"{text} {training_story(rng)}"
            if count_tokens(longer) > LONGEST_DOCUMENT:
                break
            text = longer
        yield TextDocument(f"text {index}", text)


def count_tokens(text: str) -> int:
    """The number of words and punctuation marks."""
    return len(re.findall(r"\w+|[^\w\s]", text))


def questions(kind: Kind, seed: int, count: int) -> list[Ending]:
    """The last bracket of stories about held-out combinations, as endings to predict."""
    rng, asked = random.Random(seed), []
    while len(asked) < count:
        story = kind(rng)
        if is_held_out(story.combinations[0]):
            before, _, answer = story.text.rpartition(" [")
            context, ending = re.sub(r"[\[\]]", "", before), answer.partition("]")[0]
            asked.append(Ending(context, ending, f"{kind.__name__} {len(asked)}", separator=" "))
    return asked
