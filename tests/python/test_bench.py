"""python -m octet.bench: tables of a user's own shapes."""

import json
from pathlib import Path

import pytest
from octet import bench

import torch

QUICK = ["--device", "cpu", "--modes", "eager", "--rounds", "1", "--seconds", "0.001"]


def test_bench__every_contender_has_a_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, plot = tmp_path / "rows.json", tmp_path / "rows.svg"
    bench.main(["16,64,32", "8,32,32", *QUICK, "--json", str(data), "--plot", str(plot)])
    rows = json.loads(data.read_text())
    for shape in ([16, 64, 32], [8, 32, 32]):
        names = [row["name"] for row in rows if row["shape"] == shape and row["ms"]]
        assert names[0] == "nn.Linear"
        assert {f"octet {name}" for name in bench.RECIPES} <= set(names)
    shown = capsys.readouterr()
    assert shown.out.count("| 16,64,32 |") == len(rows) // 2
    assert "| nn.Linear | eager |" in shown.out
    assert shown.err == ""  # no progress where nobody looks
    bars = [row for row in rows if row["ms"]]
    assert plot.read_text().count("<rect") == len(bars) + 1  # and the white page


def test_bench__ratios_are_to_nn_linear_of_the_same_shape_and_mode() -> None:
    slow, fast = (8, 8, 8), (16, 16, 16)
    rows = [
        bench.Row(slow, "nn.Linear", "eager", 4.0),
        bench.Row(slow, "octet mxfp8", "eager", 2.0),
        bench.Row(fast, "nn.Linear", "eager", 1.0),
        bench.Row(fast, "octet mxfp8", "eager", 2.0),
        bench.Row(fast, "octet mxfp8", "compiled", 2.0),
    ]
    found = bench.ratios(rows)
    assert found[rows[1]] == 2.0
    assert found[rows[3]] == 0.5
    assert rows[4] not in found


def test_bench__a_contender_that_fails_is_a_row_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> torch.nn.Module:
        raise RuntimeError("no such GPU\nand more")

    monkeypatch.setattr(bench, "_ours", refuse)
    bench.main(["8,32,32", *QUICK, "--recipes", "mxfp8"])
    shown = capsys.readouterr().out
    assert "| octet mxfp8 | eager | - | - | RuntimeError: no such GPU |" in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["8,32"], "'8,32' is no shape; write rows,in_features,out_features"),
        (["8,0,32"], "'8,0,32' is no shape"),
        (["--recipes", "fp9"], "'fp9' is not known; choose among delayed, current"),
        (["--device", "meta"], "Octet runs on cpu and cuda"),
        (["--rounds", "0"], "--rounds is at least 1"),
        (["--json", "/nowhere/at/all.json"], "there is no folder /nowhere/at"),
    ],
)
def test_bench__bad_words_are_refused_before_anything_runs(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench.main([*QUICK, *words])
    assert ended.value.code == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
