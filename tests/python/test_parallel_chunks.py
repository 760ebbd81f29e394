"""Products in chunks, each of which is scattered or gathered beside others: the same bits."""

from typing import Any

import octet
import parallel_jobs as jobs
import parallel_refusals as refusals
import pytest
from laws import RECIPES as LAWS
from parallel_jobs import Case
from ranks import Ranks

import torch


def chunked(case: Case, chunks: int = 0) -> Case:
    """The case with as many chunks as its sizes have: 128 x 128 blocks of 256 are two."""
    few = case.mode == "column" and case.recipe == "block"
    count = chunks or (2 if few else True)
    asked = (("ub_overlap_rs", count), ("ub_overlap_rs_dgrad", count))
    return case._replace(options=(*case.options, *asked))


def gathered(case: Case, chunks: int | bool = True) -> Case:
    """The case whose gathered rows are cut."""
    return case._replace(options=(*case.options, ("ub_overlap_ag", chunks)))


def assert_same(found: list[Any], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        one.pop("graphs", None)
        assert one.keys() == other.keys()
        for key in one:
            assert torch.equal(one[key], other[key]), key


# ---- bits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("mode", ["column", "row"])
def test_chunks__bits_are_those_of_the_whole_product(mode: str, name: str, two: Ranks) -> None:
    for rows in ((256,), (2, 40)):  # whole blocks, and rows that are gathered as values
        case = Case(mode, True, name, rows=rows, steps=2)
        wanted = two.run(jobs.train, case)
        assert_same(two.run(jobs.train, chunked(case)), wanted)
        assert_same(two.run(jobs.train, gathered(case)), wanted)
        if rows == (256,):
            assert_same(two.run(jobs.train, gathered(chunked(case, 2), 2)), wanted)


@pytest.mark.parametrize(("mode", "name"), [("column", "mxfp8"), ("row", "nvfp4-nearest")])
def test_chunks__options_keep_their_bits(mode: str, name: str, two: Ranks) -> None:
    for options in (
        {"delay_wgrad_compute": True},
        {"return_bias": True},
        {"bias": False},
        {"save_original_input": True},
    ):
        case = Case(mode, True, name, options=tuple(options.items()))
        assert_same(two.run(jobs.train, gathered(chunked(case))), two.run(jobs.train, case))
    case = Case(mode, True, name)
    for job in (jobs.microbatches, jobs.checkpointed):
        assert_same(two.run(job, gathered(chunked(case))), two.run(job, case))


@pytest.mark.parametrize("mode", ["column", "row"])
def test_chunks__of_four_ranks(mode: str, four: Ranks) -> None:
    for name in ("current", "nvfp4-nearest"):
        case = Case(mode, True, name, rows=(384,))
        assert_same(four.run(jobs.train, gathered(case, 3)), four.run(jobs.train, case))


def test_chunks__gradients_arrive_quantized(two: Ranks) -> None:
    case = Case("row", True, "mxfp8")
    for one, other in zip(
        two.run(jobs.quantized_gradients, gathered(case)),
        two.run(jobs.quantized_gradients, case),
        strict=True,
    ):
        assert one["kind"] == other["kind"] == "QuantizedTensor"
        assert torch.equal(one["dx"], other["dx"])
        assert torch.equal(one["weight"], other["weight"])


def test_chunks__outputs_leave_quantized(two: Ranks) -> None:
    for mode, cut in (("row", chunked), ("column", gathered)):
        case = Case(mode, True, "current", rows=(4, 64))
        wanted = two.run(jobs.quantized_ends, case)
        for one, other in zip(two.run(jobs.quantized_ends, cut(case)), wanted, strict=True):
            assert torch.equal(one["y"], other["y"])
            assert one["shape"] == other["shape"]


# ---- compiled --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "block", "mxfp8", "delayed", "nvfp4-nearest"])
@pytest.mark.parametrize("mode", ["column", "row"])
def test_chunks__compiled_is_eager(mode: str, name: str, two: Ranks) -> None:
    if name == "delayed" and not jobs.COMPILES_DELAYED:
        pytest.skip("this torch refuses the compiled backward of delayed scaling over ranks")
    case = gathered(chunked(Case(mode, True, name, steps=2)))
    wanted = two.run(jobs.train, case)
    assert_same(two.run(jobs.train, case._replace(compiled="aot_eager")), wanted)


@pytest.mark.parametrize("mode", ["column", "row"])
def test_chunks__symbolic_sizes_are_eager(mode: str, two: Ranks) -> None:
    case = Case(mode, True, "mxfp8", rows=(384, 2), compiled="none dynamic", steps=3)
    case = gathered(chunked(case))
    wanted = two.run(jobs.train, case)
    found = two.run(jobs.train, case._replace(compiled="aot_eager dynamic"))
    assert [one.pop("graphs") for one in found] == [1, 1]
    assert_same(found, wanted)


@pytest.mark.parametrize(("mode", "name"), [("column", "mxfp8"), ("row", "current")])
def test_chunks__inductor_is_eager(mode: str, name: str, two: Ranks) -> None:
    case = gathered(chunked(Case(mode, True, name, steps=2)))
    wanted = two.run(jobs.train, case)
    assert_same(two.run(jobs.train, case._replace(compiled="inductor")), wanted)


# ---- graphs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mxfp8", "current"])
@pytest.mark.parametrize("mode", ["column", "row"])
def test_chunks__graphs_hold_the_collectives_of_the_plan(
    mode: str, name: str, two: Ranks
) -> None:
    whole = two.run(jobs.graphs, Case(mode, True, name))
    for made, usual in zip(
        two.run(jobs.graphs, chunked(Case(mode, True, name))), whole, strict=True
    ):
        for seen, planned in zip(made["seen"], made["planned"], strict=True):
            assert sorted(tuple(one[:2]) for one in seen) == sorted(map(tuple, planned))
        found = [one for graph in made["seen"] for one in graph if one[0] == "reduce_scatter"]
        (other,) = (
            one for graph in usual["seen"] for one in graph if one[0] == "reduce_scatter"
        )
        assert len(found) == 4
        assert sum(sent for *_, sent in found) == other[2]


@pytest.mark.parametrize("name", ["mxfp8", "current"])
@pytest.mark.parametrize("mode", ["column", "row"])
def test_chunks__gathers_of_graphs_are_those_of_the_plan(
    mode: str, name: str, two: Ranks
) -> None:
    whole = two.run(jobs.graphs, Case(mode, True, name))
    for made, usual in zip(
        two.run(jobs.graphs, gathered(Case(mode, True, name))), whole, strict=True
    ):
        for seen, planned in zip(made["seen"], made["planned"], strict=True):
            assert sorted(tuple(one[:2]) for one in seen) == sorted(map(tuple, planned))
            assert all(one[1] == "torch.uint8" for one in seen if one[0] == "all_gather")
        at = 0 if mode == "column" else 1  # forward gathers the input, backward the gradient
        found, other = (
            [s for s in m["seen"][at] if s[0] == "all_gather"] for m in (made, usual)
        )
        assert len(found) == len(other) + 3
        assert sum(sent for *_, sent in found) == sum(sent for *_, sent in other)


def test_chunks__a_chunk_is_gathered_while_another_is_multiplied(two: Ranks) -> None:
    product = ["wait for gather", "phase"]
    for made in two.run(jobs.overlapped, gathered(Case("column", True, "mxfp8"))):
        assert made["order"][0] == [
            *["phase", *["gather"] * 5, "phase"],  # the weight is cast beside the gathers
            *["wait for gather", *product * 4],  # of all scales, and of each chunk
        ]
    for made in two.run(jobs.overlapped, gathered(Case("row", True, "current"))):
        assert made["order"][1][-8:] == product * 4


def test_chunks__a_chunk_travels_while_the_next_is_made(two: Ranks) -> None:
    for made in two.run(jobs.overlapped, chunked(Case("row", True, "mxfp8"))):
        assert made["order"][0] == ["phase", "scatter"] * 4 + ["wait for scatter"] * 4 + [
            "phase"
        ]


def test_chunks__the_last_chunk_travels_beside_wgrad(two: Ranks) -> None:
    for made in two.run(jobs.overlapped, chunked(Case("column", True, "mxfp8"))):
        order = made["order"][1]
        products = ["phase", "scatter"] * 4
        assert order[:2] == ["gather"] * 2
        assert order[2 : 2 + len(products)] == products
        rest = order[2 + len(products) :]
        assert rest == ["wait for gather"] * 2 + ["phase"] + ["wait for scatter"] * 4 + [
            "phase"
        ]


# ---- refused and accepted --------------------------------------------------------------------


@pytest.mark.parametrize("option", ["ub_overlap_ag", "ub_overlap_rs", "ub_overlap_rs_dgrad"])
def test_chunks__numbers_that_there_are_not(option: str) -> None:
    for value in (0, 5, -1, 2.0, "4"):
        with pytest.raises(ValueError, match=rf"{option}={value!r}.*True, False.*1 to 4"):
            octet.Linear(64, 64, device="cpu", **{option: value})
    for value in (True, False, None, 1, 4):  # on one rank they mean nothing
        octet.Linear(60, 44, device="cpu", **{option: value})


def test_chunks__rows_that_chunks_cannot_share(two: Ranks) -> None:
    for mode, word in (("row", "(60, 128), 60 rows"), ("column", "(30, 256), 30 rows")):
        multiple = 8 if mode == "row" else 4
        case = gathered(Case(mode, True, "current", rows=(60,), options=(("name", "fc1"),)))
        for text in two.errors(jobs.train, case):
            assert text.startswith("ValueError: octet.Linear 'fc1'")
            assert f"input is {word}, but what 2 ranks gather in 4 chunks" in text
            assert f"a multiple of {multiple} rows: give ub_overlap_ag fewer chunks" in text


def test_chunks__ranks_that_disagree_are_told(two: Ranks) -> None:
    for text in two.errors(refusals.refused, "chunks"):
        assert "call it differently" in text
        assert "gather_chunks=2" in text
        assert "gather_chunks=4" in text


def test_chunks__columns_that_chunks_cannot_share(two: Ranks) -> None:
    for mode, word in (("row", "out_features is 500"), ("column", "in_features is 250")):
        for text in two.errors(refusals.uneven_chunks, mode):
            assert text.startswith("ValueError: octet.Linear 'fc1'")
            assert f"{word}, but a product in 4 chunks has a multiple of 64 columns" in text
            assert "fewer chunks" in text


def test_chunks__flops_are_those_of_the_whole_product(two: Ranks) -> None:
    for mode in ("column", "row"):
        case = Case(mode, True, "mxfp8")
        assert two.run(jobs.flops, gathered(chunked(case))) == two.run(jobs.flops, case)
