"""octet.cache_info: all caches of the package. Each has a limit, and none changes a result."""

from typing import NamedTuple

from octet import _C, _constant


class CacheInfo(NamedTuple):
    """How many entries a cache has, and how many it may have at most."""

    entries: int
    capacity: int


def cache_info() -> dict[str, CacheInfo]:
    """The caches of this process, by name, with entries and capacity: plans, GPU launches,
    captured graphs, algorithms of matrix products, and parsed texts. See docs/caches.md.

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
