"""Text to learn from: short tales by a small grammar, the same for everyone."""

import random

HEROES = ("fox", "miller", "owl", "sailor", "old queen", "young weaver", "clockmaker", "heron")
DEEDS = ("found", "carried", "mended", "painted", "lost", "traded")
THINGS = ("lantern", "copper key", "loaf of bread", "map", "silver bell", "kite")
PLACES = ("by the mill", "in the harbour", "on the high pass", "at the market", "near the sea")


def tale(draw: random.Random) -> str:
    """One sentence: who did what to which thing, and where."""
    hero, deed, thing, place = map(draw.choice, (HEROES, DEEDS, THINGS, PLACES))
    return f"The {hero} {deed} a {thing} {place}.\n"


def tales(count: int = 4000) -> str:
    """Many tales in a row."""
    draw = random.Random(8)
    return "".join(tale(draw) for _ in range(count))
