"""Products in chunks, each of which is scattered while the next is made: the same bits."""

from typing import Any

import octet
import parallel_jobs as jobs
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
        if rows == (256,):
            assert_same(two.run(jobs.train, chunked(case, 2)), wanted)


@pytest.mark.parametrize(("mode", "name"), [("column", "mxfp8"), ("row", "nvfp4-nearest")])
def test_chunks__options_keep_their_bits(mode: str, name: str, two: Ranks) -> None:
    for options in (
        {"delay_wgrad_compute": True},
        {"return_bias": True},
        {"bias": False},
        {"save_original_input": True},
    ):
        case = Case(mode, True, name, options=tuple(options.items()))
        assert_same(two.run(jobs.train, chunked(case)), two.run(jobs.train, case))
    case = Case(mode, True, name)
    for job in (jobs.microbatches, jobs.checkpointed):
        assert_same(two.run(job, chunked(case)), two.run(job, case))


def test_chunks__outputs_leave_quantized(two: Ranks) -> None:
    case = Case("row", True, "current", rows=(4, 64))
    wanted = two.run(jobs.quantized_ends, case)
    for one, other in zip(two.run(jobs.quantized_ends, chunked(case)), wanted, strict=True):
        assert torch.equal(one["y"], other["y"])
        assert one["shape"] == other["shape"]


# ---- compiled --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "block", "mxfp8", "delayed", "nvfp4-nearest"])
@pytest.mark.parametrize("mode", ["column", "row"])
def test_chunks__compiled_is_eager(mode: str, name: str, two: Ranks) -> None:
    if name == "delayed" and not jobs.COMPILES_DELAYED:
        pytest.skip("this torch refuses the compiled backward of delayed scaling over ranks")
    case = chunked(Case(mode, True, name, steps=2))
    wanted = two.run(jobs.train, case)
    assert_same(two.run(jobs.train, case._replace(compiled="aot_eager")), wanted)


@pytest.mark.parametrize("mode", ["column", "row"])
def test_chunks__symbolic_sizes_are_eager(mode: str, two: Ranks) -> None:
    case = chunked(Case(mode, True, "mxfp8", rows=(384, 2), compiled="none dynamic", steps=3))
    wanted = two.run(jobs.train, case)
    found = two.run(jobs.train, case._replace(compiled="aot_eager dynamic"))
    assert [one.pop("graphs") for one in found] == [1, 1]
    assert_same(found, wanted)


@pytest.mark.parametrize(("mode", "name"), [("column", "mxfp8"), ("row", "current")])
def test_chunks__inductor_is_eager(mode: str, name: str, two: Ranks) -> None:
    case = chunked(Case(mode, True, name, steps=2))
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


def test_chunks__a_chunk_travels_while_the_next_is_made(two: Ranks) -> None:
    for made in two.run(jobs.graphs, chunked(Case("row", True, "mxfp8"))):
        assert made["order"][0] == ["phase", "scatter"] * 4 + ["wait for scatter"] * 4 + [
            "phase"
        ]


def test_chunks__the_last_chunk_travels_beside_wgrad(two: Ranks) -> None:
    for made in two.run(jobs.graphs, chunked(Case("column", True, "mxfp8"))):
        order = made["order"][1]
        products = ["phase", "scatter"] * 4
        assert order[:2] == ["gather"] * 2
        assert order[2 : 2 + len(products)] == products
        rest = order[2 + len(products) :]
        assert rest == ["wait for gather"] * 2 + ["phase"] + ["wait for scatter"] * 4 + [
            "phase"
        ]


# ---- refused and accepted --------------------------------------------------------------------


@pytest.mark.parametrize("option", ["ub_overlap_rs", "ub_overlap_rs_dgrad"])
def test_chunks__numbers_that_there_are_not(option: str) -> None:
    for value in (0, 5, -1, 2.0, "4"):
        with pytest.raises(ValueError, match=rf"{option}={value!r}.*True, False.*1 to 4"):
            octet.Linear(64, 64, device="cpu", **{option: value})
    for value in (True, False, None, 1, 4):  # on one rank they mean nothing
        octet.Linear(60, 44, device="cpu", **{option: value})


def test_chunks__a_gather_in_chunks_is_refused() -> None:
    with pytest.raises(NotImplementedError, match=r"ub_overlap_ag=True.*leave out"):
        octet.Linear(64, 64, device="cpu", ub_overlap_ag=True)


def test_chunks__columns_that_chunks_cannot_share(two: Ranks) -> None:
    for mode, word in (("row", "out_features is 500"), ("column", "in_features is 250")):
        for text in two.errors(jobs.uneven_chunks, mode):
            assert text.startswith("ValueError: octet.Linear 'fc1'")
            assert f"{word}, but a product in 4 chunks has a multiple of 64 columns" in text
            assert "fewer chunks" in text


def test_chunks__flops_are_those_of_the_whole_product(two: Ranks) -> None:
    for mode in ("column", "row"):
        case = Case(mode, True, "mxfp8")
        assert two.run(jobs.flops, chunked(case)) == two.run(jobs.flops, case)
