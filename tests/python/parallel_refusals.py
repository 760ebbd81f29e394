"""Jobs of ranks that disagree or go wrong, and of how their calls are compared."""

import os
from typing import Any

import octet
import torch.distributed as dist
from octet import _parallel, recipe
from parallel_jobs import RECIPES, SIZES, Case, layer_of, own_tensors, tracker, within

import torch


def alone() -> Any:  # noqa: ANN401
    """A group of this rank and no other."""
    return [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]


def refused(rank: int, what: str) -> None:
    """Each way to go wrong, on every rank."""
    case, options = Case("column", True, "mxfp8"), {}
    asked, amaxes = RECIPES["mxfp8"], None
    x, _ = own_tensors(case)
    if what == "missing group":
        options = {"tp_group": None, "tp_size": 2, "get_rng_state_tracker": tracker}
    elif what == "size of group":
        options = {"tp_size": 3}
    elif what == "other group":
        options = {"tp_group": alone(), "tp_size": 2}
    elif what == "not a group":
        options = {"tp_group": 5}
    elif what == "shape":
        x = x[: 64 * (1 + rank)]
    elif what == "recipe":
        asked = RECIPES["mxfp8" if rank else "current"]
    elif what == "autocast":  # which one rank has not entered
        asked = None if rank else asked
    elif what == "option":
        options = {"save_original_input": bool(rank)}
    elif what == "chunks":
        options = {"ub_overlap_ag": 4 if rank else 2}
    elif what == "rows":
        case, x = case._replace(mode="row"), x[:7, : SIZES["in"] // 2]
    elif what == "no rows":
        x = x[0]
    elif what == "own scales":
        asked = recipe.DelayedScaling(reduce_amax=False)
    elif what == "few scales":
        asked, amaxes = recipe.DelayedScaling(), alone()
    layer = layer_of(case, name="fc1", **options)
    entered = asked is not None
    with octet.autocast(enabled=entered, recipe=asked, amax_reduction_group=amaxes):
        layer(x.requires_grad_())


def regrouped(rank: int) -> dict[str, Any]:
    """A layer whose group is destroyed, and its calls over another one."""
    case = Case("column", True)
    first = dist.new_group(list(range(dist.get_world_size())))
    layer, (x, _) = layer_of(case, tp_group=first, name="fc1"), own_tensors(case)
    found: dict[str, Any] = {}
    with within(case), torch.no_grad():
        found["before"] = layer(x)
        dist.destroy_process_group(first)
        try:
            layer(x)
        except ValueError as error:
            found["error"] = str(error)
        layer.set_tensor_parallel_group(dist.group.WORLD)
        found["after"] = layer(x)
    return found


def uneven_chunks(rank: int, mode: str) -> None:
    """A layer whose scattered product has columns that four chunks cannot share."""
    torch.manual_seed(7)
    options = {"tp_group": dist.group.WORLD, "sequence_parallel": True, "device": "cpu"}
    asked = {"ub_overlap_rs": 4, "ub_overlap_rs_dgrad": 4, "name": "fc1"}
    layer = octet.Linear(250, 500, parallel_mode=mode, **options, **asked)
    x = torch.randn(8, layer.in_features)
    layer(x.requires_grad_())


def traced_by_hand(rank: int) -> list[list[str]]:
    """The collectives of graphs that make_fx makes of new layers, one after the other."""
    from torch.fx.experimental.proxy_tensor import make_fx

    found = []
    for number in range(8):
        layer, rows = layer_of(Case("row")), 64 + 2 * number
        with torch.no_grad(), within(Case()):
            graph = make_fx(layer)(torch.randn(rows, SIZES["in"] // 2).bfloat16()).graph
        found.append([str(n.target) for n in graph.nodes if "c10d" in str(n.target)])
    return found


def faked(rank: int) -> list[int]:
    """The shape that one rank alone is told by fake tensors, before all ranks make the call."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    layer, (x, _) = layer_of(Case("column", True)), own_tensors(Case("column", True))
    shape = []
    with within(Case()):
        if rank == 0:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.no_grad():
                shape = list(layer(mode.from_tensor(x)).shape)
        return shape or list(layer(x).shape) if rank else [*shape, *layer(x).shape]


def refused_compiled(rank: int, what: str) -> None:
    case = Case("column", True, "mxfp8")
    layer, (x, _) = layer_of(case, name="fc1"), own_tensors(case)
    if what == "shape":
        x = x[: 64 * (1 + rank)]
    asked = RECIPES["mxfp8" if rank or what != "recipe" else "current"]
    with octet.autocast(recipe=asked):
        torch.compile(layer, backend="aot_eager", fullgraph=True, dynamic=what == "shape")(x)


def compared(rank: int, setting: str | None) -> int:
    """How often a layer's calls are compared: three of two kinds, each made twice."""
    counted, usual = [], _parallel.check_agreement
    os.environ.pop("OCTET_CHECK_RANKS", None)
    if setting is not None:
        os.environ["OCTET_CHECK_RANKS"] = setting
    _parallel.check_agreement = lambda *given: counted.append(usual(*given))
    try:
        layer, (x, _) = layer_of(Case()), own_tensors(Case())
        for rows in (256, 128, 64):
            with within(Case()):
                layer(x[:rows])
            layer(x[:rows])
    finally:
        _parallel.check_agreement = usual
        os.environ.pop("OCTET_CHECK_RANKS", None)
    return len(counted)


def strange_scales(rank: int) -> None:
    case = Case("column", True, "delayed")
    layer, (x, _) = layer_of(case), own_tensors(case)
    octet.prepare(layer, RECIPES["delayed"])
    layer.fp8_scale.fill_(3.0 if rank else 1.0)
    with within(case):
        layer(x)


def die(rank: int, case: Case) -> None:
    """The last rank ends inside a step."""
    layer, (x, _) = layer_of(case), own_tensors(case)
    with within(case):
        layer(x)
        if rank == dist.get_world_size() - 1:
            os._exit(1)
        for _ in range(3):
            layer(x)
