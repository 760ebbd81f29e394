"""octet verify and octet bench: the list of problems holds, and tables say what they ran."""

import os
import re
import subprocess

import pytest
from program import OCTET, ROOT, bad, good, lines_that_end_in_spaces

LIST = ROOT / "tests" / "problems" / "linear.txt"
SMALL = "linear m=24 k=32 n=40 in=bf16"
PROBLEMS = [line for line in LIST.read_text().splitlines() if line and not line.startswith("#")]


def shares(out: str) -> list[float]:
    """The worst errors over their bounds, one a result."""
    return [float(share) for share in re.findall(r"(\S+)  ok$", out, re.MULTILINE)]


@pytest.mark.parametrize("threads", ["1", "3"])
@pytest.mark.parametrize("cpu", ["reference", "avx2", "avx512", "avx512bf16"])
def test_verify__every_problem_of_the_list_is_within_its_bound(
    monkeypatch: pytest.MonkeyPatch, cpu: str, threads: str
) -> None:
    monkeypatch.setenv("OCTET_CPU", cpu)  # what the machine lacks counts as its best
    out = good("verify", "--threads", threads, "--file", str(LIST)).out
    assert re.findall(r"^# (.*)$", out, re.MULTILINE) == PROBLEMS
    assert len(shares(out)) > 2.5 * len(PROBLEMS)
    assert max(shares(out)) <= 1
    assert lines_that_end_in_spaces(out.splitlines()) == []


@pytest.mark.parametrize(("size", "told"), [(480, True), (24, False)])
def test_verify__says_how_far_it_is_to_who_watches(size: int, told: bool) -> None:
    """A terminal sees it; a file of results does not have it."""
    problem = f"linear m=480 k=480 n={size} in=bf16 recipe=current grad=none"
    ours, theirs = os.openpty()
    done = subprocess.run(
        [OCTET, "verify", problem], stderr=theirs, stdout=subprocess.PIPE, check=True
    )
    os.set_blocking(ours, False)
    os.write(theirs, b"end")
    seen = os.read(ours, 1 << 16)
    os.close(ours)
    os.close(theirs)
    assert (b"% of a product" in seen) == told
    assert b"of a product" not in done.stdout
    good("verify", problem)  # which says that stderr has nothing


def test_verify__names_each_result_once() -> None:
    rows = good("verify", f"{SMALL} recipe=mxfp8 bias").rows()
    assert list(rows) == ["result", "output", "grad_input", "grad_weight", "grad_bias"]
    assert rows["grad_weight"][0] == "40x32"
    assert rows["grad_bias"][0] == "1x40"


def test_verify__coarser_formats_have_wider_errors() -> None:
    """A bound that everything meets would show nothing: errors grow with the format's step."""
    errors = [
        float(good("verify", f"{SMALL} recipe={recipe}").rows()["output"][1])
        for recipe in ("none", "mxfp8", "nvfp4")
    ]
    assert errors == sorted(errors)
    assert errors[2] > 2 * errors[1] > 4 * errors[0] > 0


def test_verify__refuses_what_one_rank_cannot_do() -> None:
    done = bad(1, "verify", f"{SMALL} parallel=row tp=2")
    assert "collectives" in done.err
    assert bad(1, "verify", f"{SMALL} device=cuda").out == ""
    assert "sideways" in bad(1, "verify", f"{SMALL} sideways").err


@pytest.mark.parametrize("size", [2**60, 2**61])
def test_verify__refuses_matrices_that_no_memory_holds(size: int) -> None:
    """Those of 2^61 elements have 2^64 bytes in double precision."""
    done = bad(1, "verify", f"linear m={2**28} k={size >> 28} n=1 in=bf16")
    assert "no memory" in done.err


@pytest.mark.parametrize("command", ["verify", "bench"])
@pytest.mark.parametrize("threads", ["0", "-1", "many", "", "99999"])
def test_threads__must_be_a_number_of_them(command: str, threads: str) -> None:
    assert "--threads" in bad(2, command, "--threads", threads, SMALL).err


def test_bench__has_a_line_for_each_plan_and_step() -> None:
    rows = good("bench", f"{SMALL} recipe=mxfp8 bias delay_wgrad").rows()
    assert rows["step"] == ["us", "GFLOP/s", "GB/s"]
    for plan in ("forward", "backward", "wgrad"):
        assert float(rows[plan][0]) > 0
    for step in ("quantize input", "fprop output", "dgrad grad_input", "wgrad grad_weight"):
        assert float(rows[step][0]) > 0
    assert float(rows["fprop output"][1]) > 0
    assert rows["quantize input"][1] == "-"


def test_bench__leaves_collectives_out() -> None:
    rows = good("bench", f"{SMALL} parallel=row tp=2 bias grad=none").rows()
    assert {"forward", "fprop output.partial", "biased output.reduced"} < set(rows)
    assert not [name for name in rows if name.startswith("collective")]
