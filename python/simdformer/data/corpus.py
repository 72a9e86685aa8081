"""The corpus of the demonstration checkpoint: small English documents from a seeded
generator.

A few kinds of document, each chosen because a small transformer can learn it and because something
can be *seen* in the model that did: stories (names that come back), facts to look up again
(attention reaches for the right sentence), lists to repeat (induction heads), sums and counting,
opposites and kinds, rhymes, and one famous question.
"""

from collections.abc import Callable, Iterator
from random import Random

__all__ = ["ULTIMATE", "ask", "documents", "facts", "state"]


def words(text: str) -> list[str]:
    return text.split()


def pairs(text: str) -> list[tuple[str, str]]:
    """The two words around each hyphen."""
    return [(a, b) for a, _, b in (pair.partition("-") for pair in text.split())]


NAMES = words(
    "Ada Ben Cleo Dora Emil Finn Gus Hana Ida Jon Kira Leo Mia Nils Olga Pip Rosa Sam Tess Uma "
    "Vera Will Yara Zoe"
)
ANIMALS = words(
    "bear cat crow dog duck fox frog goat hare hen horse mole mouse otter owl pig rabbit sheep "
    "snail wolf"
)
COLOURS = words("red blue green yellow white black brown golden silver purple")
THINGS = words(
    "ball bell boat book box cap coat cup drum hat kite lamp map ring rope scarf spoon stone tent "
    "wheel"
)
FRUITS = words("apple banana cherry fig grape lemon melon peach pear plum")
PLACES = words(
    "barn bridge cave field forest garden harbour hill island lake market meadow mill mountain "
    "river tower village"
)
MOODS = words("happy sad tired brave shy proud angry calm hungry curious lonely sleepy")
SIZES = words("small big old young little tall thin round quick slow")
WEATHER = words("sunny rainy windy cold warm foggy snowy stormy")
NUMBERS = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen"
)
ANYTHING = [*NAMES, *ANIMALS, *COLOURS, *THINGS, *FRUITS, *PLACES, *MOODS, *SIZES]
OPPOSITES = pairs(
    "hot-cold big-small old-young day-night up-down left-right fast-slow open-closed happy-sad "
    "light-dark wet-dry full-empty high-low early-late loud-quiet first-last"
)
RHYMES = pairs(
    "cat-hat mat-rat fox-box goat-boat hen-pen frog-log bee-tree mouse-house bear-chair snail-pail "
    "king-ring moon-spoon"
)
ULTIMATE = "the answer to the ultimate question of life, the universe, and everything is "

Writer = Callable[[Random], str]


def article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def story(r: Random) -> str:
    hero, friend = r.sample(NAMES, 2)
    animal, other = r.sample(ANIMALS, 2)
    home, place = r.sample(PLACES, 2)
    size, mood, colour, thing, fruit = (
        r.choice(some) for some in (SIZES, MOODS, COLOURS, THINGS, FRUITS)
    )
    opening = r.choice([
        f"Once upon a time there was {article(size)} {animal} named {hero}.",
        f"{hero} was {article(size)} {animal}.",
        f"One {r.choice(WEATHER)} morning, {article(size)} {animal} named {hero} woke up.",
    ])  # fmt: skip
    middle = [
        r.choice([f"{hero} lived in the {home}.", f"The {animal} lived near the {home}."]),
        r.choice([
            f"One day {hero} felt {mood} and walked to the {place}.",
            f"{hero} was {mood}, so the {animal} went to the {place}.",
        ]),
        f"There {hero} met {article(other)} named {friend}.",
        r.choice([
            (
                f'"Have you seen my {colour} {thing}?" asked {friend}. '
                f'"Yes," said {hero}, "it is in the {home}."'
            ),
            f'"I am so hungry," said {friend}. {hero} gave the {other} {article(fruit)}.',
            f'"Who are you?" asked {friend}. "I am {hero}, the {animal}," said {hero}.',
            f"{friend} had lost a {colour} {thing}. {hero} looked for the {thing} and found it.",
        ]),
    ]  # fmt: skip
    ending = r.choice([
        f"{hero} and {friend} became friends.",
        f"From that day on, the {animal} and the {other} were friends.",
        f"Then {hero} went home to the {home} and was happy.",
        f'"Thank you, {hero}," said {friend}. And they both went home.',
    ])  # fmt: skip
    return " ".join([opening, *middle, ending])


Fact = tuple[str, str, str]  # name, colour, thing


def facts(r: Random) -> list[Fact]:
    count = r.randint(2, 5)
    names, colours, things = (r.sample(some, count) for some in (NAMES, COLOURS, THINGS))
    return list(zip(names, colours, things, strict=True))


def state(known: list[Fact]) -> str:
    return " ".join(f"{name} has a {colour} {thing}." for name, colour, thing in known)


def ask(r: Random, known: list[Fact]) -> tuple[str, str]:
    """A question about one of the facts, up to where the answer begins, and the answer."""
    name, colour, thing = r.choice(known)
    return r.choice([
        (f"What colour is the {thing} of {name}? It is", f" {colour}."),
        (f"Who has the {thing}?", f" {name} has the {thing}."),
        (f"What does {name} have? {name} has a", f" {colour} {thing}."),
    ])  # fmt: skip


def lookup(r: Random) -> str:
    known = facts(r)
    questions = ["".join(ask(r, known)) for _ in range(r.randint(2, 6))]
    return " ".join([state(known), *questions])


def repeat(r: Random) -> str:
    items = [f"{r.choice(COLOURS)} {r.choice(THINGS + ANIMALS)}" for _ in range(r.randint(3, 6))]
    line = ", ".join(items)
    return f"Say it again: {line}. " + " ".join([f"{line}."] * r.randint(1, 2))


def echo(r: Random) -> str:
    """Words in no order, again and again: only looking back tells what comes next."""
    line = " ".join(r.choice(ANYTHING) for _ in range(r.randint(3, 12)))
    return "Say it again: " + " ".join([line] * r.randint(2, 4)) + "."


def arithmetic(r: Random) -> str:
    lines = []
    for _ in range(r.randint(2, 5)):
        a, b = r.randint(0, 9), r.randint(0, 9)
        lines.append(r.choice([
            f"{a} + {b} = {a + b}.",
            f"{NUMBERS[a]} plus {NUMBERS[b]} is {NUMBERS[a + b]}.",
            f"the answer to {NUMBERS[a]} plus {NUMBERS[b]} is {a + b}.",
        ]))  # fmt: skip
    return " ".join(lines)


def counting(r: Random) -> str:
    start, step = r.randint(0, 60), r.choice([1, 1, 1, 2, 5, 10])
    return (
        f"Count by {step}: "
        + ", ".join(str(start + step * i) for i in range(r.randint(6, 12)))
        + "."
    )


def knowledge(r: Random) -> str:
    lines = []
    for _ in range(r.randint(2, 5)):
        a, b = r.choice(OPPOSITES)
        if r.random() < 0.5:
            a, b = b, a
        kind, all_words = r.choice(
            [("animal", ANIMALS), ("fruit", FRUITS), ("thing", THINGS), ("colour", COLOURS)]
        )
        word = r.choice(all_words)
        lines.append(r.choice([
            f"The opposite of {a} is {b}.",
            f"If it is not {a}, it is {b}.",
            (
                f"{word.capitalize()} is a colour."
                if kind == "colour"
                else f"{article(word).capitalize()} is {article(kind)}."
            ),
        ]))  # fmt: skip
    return " ".join(lines)


def rhyme(r: Random) -> str:
    lines = []
    for animal, thing in r.sample(RHYMES, r.randint(1, 3)):
        lines.append(r.choice([
            f"The {animal} sat on the {thing}.",
            f"The {r.choice(COLOURS)} {animal} has a {thing}.",
            f"I saw a {animal} with a {r.choice(SIZES)} {thing}.",
        ]))  # fmt: skip
    return " ".join(
        [*lines, r.choice(["The cat sat on the mat.", "What a funny rhyme!", "And that is all."])]
    )


def ultimate(r: Random) -> str:
    if r.random() < 0.6:
        return f"{ULTIMATE}42"
    name, number = r.choice(NAMES), r.randint(0, 99)
    fact = f"the answer of {name} is {number}."
    return f"{fact} what is the answer of {name}? it is {number}. {ULTIMATE}42"


KINDS: list[tuple[Writer, int]] = [
    (story, 22), (lookup, 30), (repeat, 8), (echo, 18), (arithmetic, 8),
    (counting, 3), (knowledge, 4), (rhyme, 3), (ultimate, 4),
]  # fmt: skip


def documents(seed: int) -> Iterator[str]:
    """An endless stream of documents; the same for the same seed."""
    r = Random(seed)
    writers, weights = zip(*KINDS, strict=True)
    while True:
        yield r.choices(writers, weights)[0](r)
