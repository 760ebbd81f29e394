"""Remembered plans: an op computes the same on every call, in every thread, after any other."""

import threading
from collections.abc import Iterator

import octet
import pytest
from octet import _C, _ops

import torch

RECIPES = ("none", "current", "block", "mxfp8", "nvfp4+norht+nosr")


def words(recipe: str) -> str:
    return f"in=bf16 recipe={recipe} bias grad=xwb"


def step(sizes: tuple[int, int, int], recipe: str) -> list[torch.Tensor]:
    """Forward's outputs and backward's, from operands that depend on the sizes alone."""
    m, k, n = sizes
    generator = torch.Generator().manual_seed(m * 10007 + k * 101 + n)
    x, w, b, dy = (
        torch.randn(*shape, generator=generator).bfloat16()
        for shape in ((m, k), (n, k), (n,), (m, n))
    )
    outs = _ops.linear([x, w, b], sizes, words(recipe))
    kept = [x, w] if recipe == "none" else [outs[-1]]
    return [*outs, *_ops.linear_backward([dy, *kept], sizes, words(recipe))]


@pytest.mark.parametrize("recipe", RECIPES)
def test_plan_cache__a_remembered_plan_gives_the_same_bytes(recipe: str) -> None:
    sizes = (5, 33, 17)
    first = step(sizes, recipe)
    count, _ = _C.cached_plans()[0]
    again = step(sizes, recipe)
    assert all(map(torch.equal, first, again))
    assert _C.cached_plans()[0][0] == count


def test_plan_cache__more_problems_than_it_holds() -> None:
    _, most = _C.cached_plans()[0]
    first = step((3, 8, 8), "mxfp8")
    x = torch.randn(3 * most, 4)
    whole = _ops.quantize(x, [], "f32 mxfp8:e4m3/1x32+row")
    for rows in range(1, 3 * most, 2):
        data, _ = _ops.quantize(x[:rows], [], "f32 mxfp8:e4m3/1x32+row")
        assert torch.equal(data, whole[0][:rows])
        assert _C.cached_plans()[0][0] <= most
    assert all(map(torch.equal, first, step((3, 8, 8), "mxfp8")))


def test_plan_cache__an_error_is_not_remembered() -> None:
    sizes, text = (4, 12, 6), "in=bf16 recipe=current"
    x, w = torch.randn(4, 12).bfloat16(), torch.randn(6, 12).bfloat16()
    before, _ = _C.cached_plans()[0]
    for _ in range(3):
        with pytest.raises(ValueError, match="currant"):
            _ops.linear([x, w], sizes, "in=bf16 recipe=currant")
        with pytest.raises(ValueError, match="sizes"):
            _ops.linear([x, w], (12,), text)
    assert _C.cached_plans()[0][0] == before
    right = _ops.linear([x, w], sizes, text)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"input.*dtype"):
            _ops.linear([x.float(), w], sizes, text)
        with pytest.raises(ValueError, match="elements"):
            _ops.linear([x[:2], w], sizes, text)
        assert all(map(torch.equal, right, _ops.linear([x, w], sizes, text)))


def test_plan_cache__knows_how_many_threads_torch_has() -> None:
    sizes, before, found = (96, 256, 192), torch.get_num_threads(), []
    try:
        for threads in (2, 1, 2, 1):
            torch.set_num_threads(threads)
            found.append(step(sizes, "mxfp8"))
    finally:
        torch.set_num_threads(before)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def _sizes(thread: int) -> Iterator[tuple[int, int, int]]:
    """Some that every thread asks for, and some of its own."""
    for i in range(40):
        yield (1 + i % 4, 32, 16) if i % 2 else (1 + i, 24 + thread, 8)


def test_plan_cache__threads_call_at_once() -> None:
    wanted = {
        (thread, i): step(sizes, RECIPES[i % len(RECIPES)])
        for thread in range(4)
        for i, sizes in enumerate(_sizes(thread))
    }
    start, wrong = threading.Barrier(4), []

    def work(thread: int) -> None:
        start.wait()
        for _ in range(3):
            for i, sizes in enumerate(_sizes(thread)):
                found = step(sizes, RECIPES[i % len(RECIPES)])
                if not all(map(torch.equal, found, wanted[thread, i])):
                    wrong.append((thread, sizes))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_plan_cache__a_layers_first_step_plans_once() -> None:
    active = octet.recipe.DelayedScaling(margin=5, amax_history_len=7)  # no other test's
    linear = octet.Linear(24, 40, device="cpu", params_dtype=torch.float16)
    x = torch.randn(3, 24, dtype=torch.float16, requires_grad=True)
    plannings = _C.cached_plans()[2]
    with octet.autocast(recipe=active):
        y = linear(x)
    y.sum().backward()
    assert _C.cached_plans()[2] == plannings + 1  # forward and backward are one chain
