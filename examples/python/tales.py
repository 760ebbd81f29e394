"""Text to learn from: short tales by a small grammar, the same for everyone."""

import random

HEROES = ("fox", "miller", "owl", "sailor", "old queen", "young weaver", "clockmaker", "heron")
THINGS = ("lantern", "copper key", "loaf of bread", "map", "silver bell", "letter", "kite")
PLACES = ("the mill", "the harbour", "a quiet wood", "the high pass", "the market", "the tower")
DEEDS = ("found", "carried", "mended", "hid", "painted", "lost", "traded")
TIMES = ("At dawn", "One evening", "In winter", "After the rain", "Long ago", "Before supper")
ENDS = (
    "and nobody ever spoke of it again.",
    "and everyone was glad.",
    "so the {hero} slept well that night.",
    "but the {hero} kept walking.",
)


def tale(draw: random.Random) -> str:
    """One sentence: who did what, where, and how it ended."""
    hero = draw.choice(HEROES)
    start, deed, thing, place = map(draw.choice, (TIMES, DEEDS, THINGS, PLACES))
    end = draw.choice(ENDS).format(hero=hero)
    return f"{start} the {hero} {deed} a {thing} near {place}, {end}\n"


def tales(count: int = 2000) -> str:
    """Many tales in a row."""
    draw = random.Random(8)
    return "".join(tale(draw) for _ in range(count))
