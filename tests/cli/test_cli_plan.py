"""octet plan: one problem or many, from arguments or a file, with bytes worked out by hand."""

import re
from pathlib import Path

import pytest
from program import bad, good

README = "linear m=8192 k=4096 n=14336 in=bf16 recipe=mxfp8 bias"
SMALL = "linear m=64 k=32 n=96 in=bf16 recipe=mxfp8"

# Rowwise and columnwise bytes of x (8192, 4096), w (14336, 4096) and dy (8192, 14336): data,
# and a scale of one byte for 32 elements. All are multiples of 256, so nothing is padded.
X_ROW = X_COL = 8192 * 4096 + 8192 * 4096 // 32
W_ROW = W_COL = 14336 * 4096 + 14336 * 4096 // 32
DY_ROW = DY_COL = 8192 * 14336 + 8192 * 14336 // 32


def plans(out: str) -> list[str]:
    """The plans of an output, which blank lines separate."""
    return out.split("\n\n")


def kinds(out: str) -> list[str]:
    return re.findall(r"^linear (forward|backward|wgrad): ", out, re.MULTILINE)


def titles(out: str) -> list[str]:
    return re.findall(r"^# (.*)$", out, re.MULTILINE)


def section(plan: str, title: str) -> list[str]:
    """The indented lines below a title of a plan."""
    found = re.search(rf"^{title}\n((?:  .*\n)*)", plan, re.MULTILINE)
    assert found, plan
    return found[1].splitlines()


def in_bytes(plan: str) -> dict[str, int]:
    last = plan.rstrip("\n").splitlines()[-1]
    assert last.startswith("in bytes: "), plan
    return {word: int(count) for word, count in re.findall(r"(\w+) (\d+)", last)}


def gemm_scratch() -> int:
    """The workspace of a plan that quantizes nothing: what its GEMMs want for themselves."""
    return in_bytes(good("plan", README.replace("mxfp8", "none")).out)["workspace"]


def test_plan__forward_of_the_readme_has_its_sections_and_bytes() -> None:
    forward = plans(good("plan", README).out)[0]
    given = section(forward, "arguments")
    assert [line.split()[1] for line in given] == ["input", "weight", "bias"]
    assert [line.split("  ")[-1].strip() for line in given] == [
        "64.0 MiB",  # 8192 * 4096 * 2
        "112.0 MiB",  # 14336 * 4096 * 2
        "28.0 KiB",  # 14336 * 2
    ]
    steps = section(forward, "steps")
    assert [line.split()[1] for line in steps] == ["quantize", "quantize", "fprop"]
    (output,) = section(forward, "outputs")
    assert output.endswith("224.0 MiB")  # 8192 * 14336 * 2
    saved = section(forward, "saved for the next plan")
    assert [line.split()[1] for line in saved] == ["input.quantized"] * 2 + [
        "weight.quantized"
    ] * 2
    assert in_bytes(forward) == {
        "stored": X_COL + W_COL,
        "aliased": 0,
        "workspace": X_ROW + W_ROW + gemm_scratch(),
    }


def test_plan__backward_of_the_readme_has_its_sections_and_bytes() -> None:
    backward = plans(good("plan", README).out)[1]
    assert len(section(backward, "restored from the plan before")) == 4
    results = section(backward, "outputs")
    assert [line.split()[1] for line in results] == ["grad_input", "grad_weight", "grad_bias"]
    assert in_bytes(backward) == {
        "stored": 0,
        "aliased": 0,
        "workspace": DY_ROW + DY_COL + gemm_scratch(),
    }


@pytest.mark.parametrize(
    ("words", "known"),
    [
        ("", ["forward", "backward"]),
        ("grad=none", ["forward"]),
        ("grad=x", ["forward", "backward"]),
        ("delay_wgrad", ["forward", "backward", "wgrad"]),
        ("delay_wgrad grad=x", ["forward", "backward"]),
        ("bias grad=b", ["forward", "backward"]),
    ],
)
def test_plan__backward_follows_where_anything_requires_grad(
    words: str, known: list[str]
) -> None:
    assert kinds(good("plan", f"{SMALL} {words}").out) == known


def test_plan__of_linear_backward_stands_alone() -> None:
    text = SMALL.replace("linear", "linear-backward")
    out = good("plan", text).out
    assert kinds(out) == ["backward"]
    assert out == plans(good("plan", SMALL).out)[1]


def test_plan__problem_may_be_one_argument_or_several() -> None:
    out = good("plan", SMALL).out
    assert good("plan", *SMALL.split()).out == out
    assert good("plan", "linear m=64 k=32", "n=96 in=bf16 recipe=mxfp8").out == out
    assert good("plan", "--", SMALL).out == out
    assert good("plan", f"  {SMALL}").out == out


def test_plan__of_one_problem_has_no_title_and_several_have_one_each() -> None:
    inference, backward = f"{SMALL} grad=none", "linear-backward m=8 k=8 n=8 in=f32"
    assert titles(good("plan", SMALL).out) == []
    out = good("plan", SMALL, *backward.split(), inference).out
    assert titles(out) == [SMALL, backward, inference]
    assert kinds(out) == ["forward", "backward", "backward", "forward"]
    assert len(plans(out)) == 4


def test_plan__leading_axes_are_multiplied() -> None:
    flat = good("plan", "linear m=512 k=64 n=96 in=bf16 recipe=mxfp8").out
    assert good("plan", "linear m=4x128 k=64 n=96 in=bf16 recipe=mxfp8").out == flat


@pytest.mark.parametrize("recipe", ["none", "delayed", "current", "block", "mxfp8", "nvfp4"])
@pytest.mark.parametrize("m", ["0", "1", "300"])
def test_plan__exists_for_every_recipe_and_any_size(recipe: str, m: str) -> None:
    out = good("plan", f"linear m={m} k=129 n=1 in=bf16 bias recipe={recipe}").out
    assert kinds(out) == ["forward", "backward"]


def test_plan__one_bad_problem_fails_the_run_and_the_others_are_still_shown() -> None:
    done = bad(1, "plan", SMALL, "linear m=64 k=32 n=96 in=bf17", f"{SMALL} bias")
    assert titles(done.out) == [SMALL, f"{SMALL} bias"]
    assert done.err.count("octet plan: ") == 1
    assert "bf17" in done.err


FILE = f"""\
# two problems
{SMALL}

\t{SMALL} bias grad=none   # inference
   # an indented comment
"""


def test_file__has_a_problem_a_line_with_comments(tmp_path: Path) -> None:
    path = tmp_path / "problems"
    path.write_text(FILE)
    out = good("plan", "--file", str(path)).out
    assert titles(out) == [SMALL, f"{SMALL} bias grad=none"]
    assert kinds(out) == ["forward", "backward", "forward"]
    assert good("plan", f"--file={path}").out == out
    assert good("plan", "--file", "-", stdin=FILE).out == out
    assert good("plan", "--file", "-", stdin=FILE.replace("\n", "\r\n")).out == out
    assert good("plan", "--file", "-", stdin=FILE.rstrip("\n")).out == out


def test_file__bad_lines_are_named_and_the_others_are_still_shown(tmp_path: Path) -> None:
    path = tmp_path / "problems"
    lines = [f"{SMALL} sideways", SMALL, "# a comment", "", "frobnicate m=1"]
    path.write_text("\n".join(lines))
    done = bad(1, "plan", "--file", str(path))
    assert titles(done.out) == [SMALL]
    named = re.findall(r"^octet plan: (.*?): column (\d+): ", done.err, re.MULTILINE)
    assert named == [(f"{path}:1", str(len(SMALL) + 2)), (f"{path}:5", "1")]
    shown = done.err.splitlines()
    assert shown[1] == f"  {lines[0]}"
    assert shown[2] == " " * (2 + len(SMALL) + 1) + "^"


def test_file__of_nothing_prints_nothing() -> None:
    assert good("plan", "--file", "-", stdin="").out == ""
    assert good("plan", "--file", "-", stdin="\n# nothing\n").out == ""


def test_file__may_hold_lines_of_any_length() -> None:
    text = SMALL.replace(" ", " " * 50_000)
    out = good("plan", "--file", "-", stdin=text).out
    assert kinds(out) == ["forward", "backward"]


def test_file__line_with_a_zero_byte_is_refused() -> None:
    done = bad(1, "plan", "--file", "-", stdin=f"{SMALL}\n{SMALL}\0 bias\n")
    assert "octet plan: stdin:2: " in done.err
    assert titles(done.out) == [SMALL]


def test_file__that_cannot_be_read_says_which_and_why(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    done = bad(1, "plan", "--file", str(missing))
    assert done.err == f"octet plan: cannot open {missing}: No such file or directory\n"
    done = bad(1, "plan", "--file", str(tmp_path))
    assert done.err == f"octet plan: cannot read {tmp_path}: Is a directory\n"


BLOCK = "fp8-block:e4m3"


@pytest.mark.parametrize("recipe", ["current", "block"])
@pytest.mark.parametrize(
    ("m", "k", "n", "padded"),
    [
        (48, 64, 96, ["", "", ""]),
        (47, 64, 96, ["", "", "operands"]),
        (48, 62, 96, ["operands", "operands and sums", "operands and sums"]),
        (48, 64, 90, ["operands and sums", "operands", ""]),
    ],
)
def test_plan__padded_products_say_so_and_have_room(
    m: int, k: int, n: int, padded: list[str], recipe: str
) -> None:
    text = f"linear m={m} k={k} n={n} in=bf16 recipe={recipe} device=cuda:0/90"
    out = good("plan", text).out
    products = re.findall(r"^ +\d+ +([fdw](?:prop|grad)) .*?(?:, ([^,]*) padded)?$", out, re.M)
    assert [name for name, _ in products] == ["fprop", "dgrad", "wgrad"]
    assert [what for _, what in products] == padded


@pytest.mark.parametrize(
    ("recipe", "m", "n", "behind"),
    [
        ("block", 48, 96, ["", "", ""]),
        ("block", 47, 96, ["7", "7", ""]),
        ("block", 3, 97, ["3", "3", "1"]),
        ("block", 0, 96, ["", "", ""]),
        ("current", 47, 97, ["", "", ""]),
    ],
)
def test_plan__rows_behind_whole_eights_are_told(
    recipe: str, m: int, n: int, behind: list[str]
) -> None:
    def told(device: str) -> list[str]:
        text = f"linear m={m} k=64 n={n} in=bf16 recipe={recipe} device={device}"
        out = good("plan", text).out
        rows = r"(?:, rows behind whole eights: (\d+))?(?:, [a-z ]* padded)?$"
        return re.findall(r"^ +\d+ +[fdw](?:prop|grad) .*?" + rows, out, re.M)

    assert told("cuda:0/90") == behind
    assert told("cuda:0/89") == ["", "", ""]  # there blocks are emulated
    assert told("cpu") == ["", "", ""]


@pytest.mark.parametrize(
    ("arch", "recipe", "mebibytes"),
    [
        (90, "none", 24),
        (90, "mxfp8", 32),
        (90, "mxfp8:product=exact", 24),
        (90, "block", 32),
        (90, f"custom:input={BLOCK},weight=mxfp8:e4m3,grad_output={BLOCK}", 32),  # wgrad's
        (
            90,
            f"custom:input=mxfp8:e4m3,weight={BLOCK}/128x128,grad_output={BLOCK}",
            32,
        ),  # dgrad's
        (90, "current", 0),
        (89, "current", 0),
        (89, "block", 32),
        (100, "none", 32),
        (100, "mxfp8", 32),
    ],
)
def test_plan__products_have_room_for_a_workspace_where_there_is_one(
    arch: int, recipe: str, mebibytes: int
) -> None:
    text = f"linear m=48 k=64 n=96 in=bf16 recipe={recipe} device=cuda:0/{arch}"
    own = re.findall(r"of it (\d+)\.0 MiB for the products' own use", good("plan", text).out)
    assert own[-1:] == ([str(mebibytes)] if mebibytes else [])


def test_plan__room_for_padding_by_hand() -> None:
    def workspace(m: int) -> int:
        text = f"linear m={m} k=64 n=96 in=bf16 recipe=current device=cuda:0/90"
        return in_bytes(plans(good("plan", text).out)[1])["workspace"]

    def block(data: int) -> int:
        return (data + 255) // 256 * 256

    # dy by rows and by columns; then, for wgrad, dy (96, 47) and x (64, 47) in rows of 48
    # bytes: dy's lie where its rows were, which dgrad has read.
    own = workspace(48) - 2 * block(96 * 48) + 2 * block(96 * 47)
    assert block(96 * 48) == block(96 * 47)
    assert workspace(47) == own + block(64 * 48)


def test_plan__room_for_padded_blocks_by_hand() -> None:
    def workspace(k: int) -> int:
        text = f"linear m=48 k={k} n=96 in=bf16 recipe=block device=cuda:0/90"
        return in_bytes(plans(good("plan", text).out)[1])["workspace"] - (32 << 20)

    def block(data: int) -> int:
        return (data + 255) // 256 * 256

    # dy by rows and by columns, with a scale for each of them.
    whole = 2 * block(48 * 96) + block(48 * 4) + block(96 * 4)
    assert workspace(64) == whole
    # w (62, 96) and x (62, 48) with two lines more; x's lie where dy's rows or w's were, which
    # dgrad has read. One scratch for sums of dx, and then for those of dw with a scale for each
    # of x's lines.
    copies = block(64 * 96)
    dx, dw = block(48 * 64 * 4), block(96 * 64 * 4) + block(64 * 4)
    assert workspace(62) == whole + copies + max(dx, dw)


def test_plan__room_for_folded_operands_by_hand() -> None:
    def workspace(m: int, k: int) -> int:
        text = f"linear m={m} k={k} n=96 in=bf16 recipe=mxfp8 device=cuda:0/90 grad=none"
        return in_bytes(plans(good("plan", text).out)[0])["workspace"] - (32 << 20)

    def block(data: int) -> int:
        return (data + 255) // 256 * 256

    def room(m: int, k: int) -> int:
        scales = (k + 127) // 128
        bytes_ = block(m * k) + block(96 * k) + 2 * block(128 * ((k + 127) // 128 * 4))
        rows, length = (m + 7) // 8 * 8, (k + 15) // 16 * 16  # folded: eights of whole 16
        folded = block(rows * length) + block(96 * length)
        return bytes_ + folded + block(scales * rows * 4) + block(scales * 96 * 4)

    for m, k in ((48, 128), (48, 130), (47, 100), (33, 257)):
        assert workspace(m, k) == room(m, k)


def test_plan__what_is_saved_does_not_depend_on_folding() -> None:
    def saved(recipe: str) -> str:
        text = f"linear m=64 k=96 n=48 in=bf16 recipe={recipe} device=cuda:0/90"
        return good("plan", text).out.split("saved for the next plan")[1].split("saves")[0]

    assert saved("mxfp8") == saved("mxfp8:product=exact")


@pytest.mark.parametrize("arch", [80, 90, 100, 120])
def test_plan__every_gpu_emulates_mxfp4_and_says_so(arch: int) -> None:
    problem = "linear m=64 k=96 n=48 in=bf16 recipe=mxfp4"
    out = good("plan", f"{problem} device=cuda:0/{arch}").out
    assert out.count("emulated exactly in bf16") == 3
    assert "emulated" not in good("plan", problem).out


# ---- chunks ----------------------------------------------------------------------------------

ROW = "linear m=4096 k=2048 n=8192 in=bf16 recipe=mxfp8 parallel=row tp=4 sequence grad=none"


def model(*words: str) -> dict[str, float]:
    """The numbers of the model below a forward plan."""
    text = good("plan", *words).out
    found = re.search(
        r"modelled at (?P<link>[\d.]+) GB/s, (?P<speed>[\d.]+) TFLOP/s "
        r"and (?P<latency>[\d.]+) us a collective, without casts:\n"
        r"  a rank sends (?P<bytes>\d+) B, .* in (?P<collectives>\d+) collectives, "
        r"(?P<links>[\d.]+) us; products (?P<products>[\d.]+) us, (?P<chunks>\d) chunks?\n"
        r"  one after the other (?P<apart>[\d.]+) us, beside each other (?P<beside>[\d.]+) us: "
        r"(?P<gained>[\d.]+) us are gained\n",
        text,
    )
    assert found, text
    return {name: float(value) for name, value in found.groupdict().items()}


def test_plan__chunks_are_told() -> None:
    out = good("plan", f"{ROW} chunks=4").out
    steps = re.findall(
        r"^ +\d+ +(fprop|reduce-scatter|cast) .*?(?:, chunk (\d) of 4)?$", out, re.M
    )
    assert steps[:8:2] == [("fprop", str(i)) for i in range(1, 5)]
    assert steps[1:8:2] == [("reduce-scatter", "")] * 4
    assert steps[8:] == [("cast", str(i)) for i in range(1, 5)]


def test_plan__models_collectives_by_hand() -> None:
    whole, cut = model(ROW), model(f"{ROW} chunks=4")
    product = 2 * 4096 * 2048 * 8192 / 1000e12 * 1e6  # us
    bytes_sent = 4096 * 8192 * 2 * 3 // 4
    link = bytes_sent / 450e9 * 1e6
    assert (whole["link"], whole["speed"], whole["latency"]) == (450, 1000, 10)
    assert whole["bytes"] == cut["bytes"] == bytes_sent
    assert (whole["collectives"], cut["collectives"], cut["chunks"]) == (1, 4, 4)
    assert whole["products"] == pytest.approx(product, abs=0.06)
    assert whole["apart"] == whole["beside"] == pytest.approx(product + link + 10, abs=0.11)
    assert whole["gained"] == 0
    # Links are the longer way: the first chunk's product, and then all that travels.
    assert cut["apart"] == whole["apart"]
    assert cut["beside"] == pytest.approx(product / 4 + link + 4 * 10, abs=0.11)
    assert cut["gained"] == pytest.approx(cut["apart"] - cut["beside"], abs=0.11)


COLUMN = ROW.replace("parallel=row", "parallel=column")


def test_plan__gathered_chunks_are_told() -> None:
    out = good("plan", f"{COLUMN} gather_chunks=4").out
    steps = re.findall(
        r"^ +\d+ +(all-gather|assemble|fprop|join) .*?(?:, chunk (\d) of 4)?$", out, re.M
    )
    gathers = [("all-gather", ""), *(("all-gather", str(i)) for i in range(1, 5))]
    assert steps[:5] == gathers  # all scales, and then the chunks
    assert steps[5:] == [
        (word, str(i)) for i in range(1, 5) for word in ("assemble", "fprop", "join")
    ]


def test_plan__models_gathers_by_hand() -> None:
    whole, cut = model(COLUMN), model(f"{COLUMN} gather_chunks=4")
    product = 2 * 4096 * 4 * 2048 * 8192 / 1000e12 * 1e6  # us
    data, scales = (size * 3 / 450e9 * 1e6 for size in (4096 * 2048, 4096 * 2048 // 32))
    assert whole["bytes"] == cut["bytes"] == (4096 * 2048 + 4096 * 2048 // 32) * 3
    assert (whole["collectives"], cut["collectives"], cut["chunks"]) == (2, 5, 4)
    assert (
        cut["apart"] == whole["apart"] == pytest.approx(data + scales + 20 + product, abs=0.2)
    )
    # Products are the longer way: what comes before the first of them, and then all.
    assert cut["beside"] == pytest.approx(scales + 10 + data / 4 + 10 + product, abs=0.2)


def test_plan__models_another_machine() -> None:
    slow = ["--link", "1000", "--speed=100", "--latency", "0"]
    cut = model(*slow, f"{ROW} chunks=4")
    product = 2 * 4096 * 2048 * 8192 / 100e12 * 1e6
    link = 4096 * 8192 * 2 * 3 / 4 / 1000e9 * 1e6
    assert (cut["link"], cut["speed"], cut["latency"]) == (1000, 100, 0)
    assert cut["beside"] == pytest.approx(product + link / 4, abs=0.11)  # the last chunk's


def test_plan__backward_hides_its_collectives() -> None:
    text = ROW.replace("parallel=row", "parallel=column").replace(" grad=none", "")
    forward, backward = good("plan", f"{text} chunks=4").out.split("linear backward")
    assert "us are gained" in forward
    assert " 0.0 us are gained" in forward
    gained = re.search(r"([\d.]+) us are gained", backward)
    assert gained
    assert float(gained[1]) > 0


def test_plan__models_nothing_where_nothing_travels() -> None:
    assert "modelled" not in good("plan", "linear m=64 k=64 n=64 in=bf16 recipe=mxfp8").out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("n=8008 chunks=4", "n is 8008; a product in 4 chunks has a multiple of 64 columns"),
        ("n=8192 chunks=5", "chunks is 5; a product has 4 chunks at most"),
        ("n=8192 gather_chunks=5", "gather_chunks is 5; a product has 4 chunks at most"),
    ],
)
def test_plan__chunks_that_there_are_not(words: str, why: str) -> None:
    assert why in bad(1, "plan", ROW.replace("n=8192", words)).err


def test_plan__chunks_of_what_is_not_scattered() -> None:
    err = bad(1, "plan", ROW.replace(" sequence", " chunks=4")).err
    assert "chunks is 4 without sequence_parallel: nothing is scattered" in err
    err = bad(1, "plan", ROW.replace(" sequence", " gather_chunks=4")).err
    assert "gather_chunks is 4 without sequence_parallel: nothing is gathered" in err


def test_plan__rows_that_gathered_chunks_cannot_share() -> None:
    text = COLUMN.replace("m=4096", "m=4098").replace(" grad=none", " grad=x")
    err = bad(1, "plan", f"{text} gather_chunks=4").err
    assert "m is 4098; a product in 4 chunks has a multiple of 4 rows: take fewer" in err


@pytest.mark.parametrize("option", ["--link=0", "--speed=fast", "--latency=-1", "--link="])
def test_plan__rates_that_are_none(option: str) -> None:
    assert "it is a number above 0" in bad(2, "plan", option, ROW).err
