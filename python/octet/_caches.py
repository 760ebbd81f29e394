"""All caches of the package: each has a bound, and none changes a result."""

from typing import NamedTuple

from octet import _C, _constant


class CacheInfo(NamedTuple):
    """How many entries a cache has, and how many it may have."""

    entries: int
    capacity: int


def cache_info() -> dict[str, CacheInfo]:
    """Every cache of this process, by name: the plans that ops remember, the launches that a
    GPU has decided of them, those that are replayed, the algorithms of its products, and what
    the front end remembers of texts.

    >>> octet.cache_info()["plans"].capacity > 0
    True
    """
    graphs, most, _ = _C.replays()
    plans, structures, _, prepared, rules = _C.cached_plans()
    found = {
        "plans": CacheInfo(*plans),
        "plans without sizes": CacheInfo(*structures),
        "prepared plans": CacheInfo(*prepared),
        "rules of delayed scaling": CacheInfo(*rules),
        "replayed launches": CacheInfo(graphs, most),
        "products of cuBLASLt": CacheInfo(*_C.algorithms()),
    }
    found |= {name: CacheInfo(*info) for name, info in sorted(_constant.caches().items())}
    return found
