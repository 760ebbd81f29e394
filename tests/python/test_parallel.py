"""Layers that are split over ranks: they compute what unsplit layers compute of the shards."""

from typing import Any

import octet
import parallel_jobs as jobs
import pytest
from parallel_jobs import EXACT, RECIPES, SIZES, Case
from ranks import Ranks

import torch

MODES = [("column", False), ("column", True), ("row", False), ("row", True)]
SPLIT = [(mode, sequence, name) for mode, sequence in MODES for name in RECIPES]
EPS = {torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}  # half a unit in the last place


def unsplit(case: Case) -> octet.Linear:
    torch.manual_seed(7)
    dtype = getattr(torch, case.dtype)
    return octet.Linear(SIZES["in"], SIZES["out"], params_dtype=dtype, device="cpu")


def shards(case: Case, ranks: int) -> list[octet.Linear]:
    """Unsplit layers of the shares of one layer; those of row mode without its bias."""
    whole, column = unsplit(case), case.mode == "column"
    made = []
    for rank in range(ranks):
        weight = whole.weight.detach().chunk(ranks, 0 if column else 1)[rank]
        options = {"bias": column, "params_dtype": weight.dtype, "device": "cpu"}
        layer = octet.Linear(weight.shape[1], weight.shape[0], **options)
        with torch.no_grad():
            layer.weight.copy_(weight)
            if column:
                layer.bias.copy_(whole.bias.chunk(ranks)[rank])
        made.append(layer)
    return made


def run(case: Case, layer: octet.Linear, x: torch.Tensor, grad: torch.Tensor) -> Any:  # noqa: ANN401
    x = x.clone().requires_grad_()
    with jobs.within(case):
        y = layer(x)
    y.backward(grad)
    return y.detach(), x.grad


def of_shards(case: Case, ranks: int) -> dict[str, Any]:
    """Outputs and gradients by rank; where ranks add up, the summands of all."""
    x, grad = jobs.whole_tensors(case)
    layers, column = shards(case, ranks), case.mode == "column"
    xs = [x] * ranks if column else list(x.chunk(ranks, -1))
    grads = list(grad.chunk(ranks, -1)) if column else [grad] * ranks
    made = [run(case, *one) for one in zip(layers, xs, grads, strict=True)]
    return {
        "y": [y for y, _ in made],
        "dx": [dx for _, dx in made],
        "weight": [layer.weight.grad for layer in layers],
        "bias": [layer.bias.grad for layer in layers] if column else None,
    }


def assert_sum(found: torch.Tensor, summands: list[torch.Tensor], plus: Any = None) -> None:  # noqa: ANN401
    """Two summands have one sum; of more, the order is the group's."""
    total = summands[0]
    for summand in summands[1:]:
        total = total + summand
    if plus is not None:
        total = (total.float() + plus.float()).to(total.dtype)
    if len(summands) == 2:
        assert torch.equal(found, total)
        return
    size = sum(summand.float().abs() for summand in summands)
    bound = 2 * len(summands) * EPS[found.dtype] * (size + total.float().abs())
    assert ((found.float() - total.float()).abs() <= bound).all()


def check_case(case: Case, ranks: Ranks) -> None:
    found, wanted = ranks.run(jobs.train, case), of_shards(case, ranks.world)
    column, bias = case.mode == "column", unsplit(case).bias.detach()
    _, grad = jobs.whole_tensors(case)
    for rank, one in enumerate(found):
        assert torch.equal(one["weight"], wanted["weight"][rank])
        mine = (lambda t: t.chunk(ranks.world)[rank]) if case.sequence else (lambda t: t)  # noqa: B023
        if column:
            assert torch.equal(one["y0"], wanted["y"][rank])
            assert_sum(one["dx0"], [mine(t) for t in wanted["dx"]])
            assert torch.equal(one["bias"], wanted["bias"][rank])
        else:
            assert_sum(one["y0"], [mine(t) for t in wanted["y"]], bias)
            assert torch.equal(one["dx0"], wanted["dx"][rank])
            rows = mine(grad).flatten(0, -2).float()
            torch.testing.assert_close(one["bias"].float(), rows.sum(0), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("mode", "sequence", "name"), [one for one in SPLIT if one[2] in EXACT], ids=str
)
def test_parallel__ranks_compute_what_unsplit_layers_do(
    mode: str, sequence: bool, name: str, two: Ranks
) -> None:
    check_case(Case(mode, sequence, name), two)


@pytest.mark.parametrize("name", ["current", "mxfp8", "nvfp4-nearest"])
def test_parallel__four_ranks_compute_what_unsplit_layers_do(name: str, four: Ranks) -> None:
    for mode, sequence in MODES:
        check_case(Case(mode, sequence, name, rows=(512,)), four)


# Sharding cuts no block of these, and no scale is of a whole tensor.
BLOCKED = ("none", "delayed", "block", "mxfp8", "mxfp4-nearest")


@pytest.mark.parametrize("name", BLOCKED)
def test_parallel__a_split_layer_is_the_unsplit_one_of_the_same_seed(
    name: str, two: Ranks
) -> None:
    """Bit for bit where nothing is added up over ranks; else within the rounding of that."""
    for mode, sequence in MODES:
        case = Case(mode, sequence, name)
        x, grad = jobs.whole_tensors(case)
        whole, column = unsplit(case), mode == "column"
        y, dx = run(case, whole, x, grad)
        found, parts = two.run(jobs.train, case), of_shards(case, 2)
        rows = 0 if sequence else None
        exact, summed = ("y0", y, -1), ("dx0", dx, parts["dx"])
        if not column:
            exact, summed = ("dx0", dx, -1), ("y0", y, parts["y"])
        joined = torch.cat([one[exact[0]] for one in found], exact[2])
        assert torch.equal(joined, exact[1])
        weights = torch.cat([one["weight"] for one in found], 0 if column else 1)
        assert torch.equal(weights, whole.weight.grad)
        total = found[0][summed[0]]
        total = torch.cat([one[summed[0]] for one in found]) if rows == 0 else total
        size = sum(part.float().abs() for part in summed[2]) + summed[1].float().abs()
        bound = 3 * EPS[total.dtype] * size
        if not column:
            bound += 2 * EPS[total.dtype] * whole.bias.detach().float().abs()
        assert ((total.float() - summed[1].float()).abs() <= bound).all()


@pytest.mark.parametrize("rows", [(2, 64), (6, 5, 3), (34,), (0,)], ids=str)
@pytest.mark.parametrize("name", ["none", "current", "mxfp8", "nvfp4-nearest", "block"])
def test_parallel__any_rows_are_shared(rows: tuple[int, ...], name: str, two: Ranks) -> None:
    """Rows of a rank that are not whole blocks are gathered before they are quantized."""
    for mode, sequence in MODES:
        check_case(Case(mode, sequence, name, rows=rows), two)


def test_parallel__single_precision(two: Ranks) -> None:
    for mode, sequence in MODES:
        check_case(Case(mode, sequence, "mxfp8", dtype="float32"), two)
