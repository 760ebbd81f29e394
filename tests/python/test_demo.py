"""The demo: its numbers repeat, its table says what was measured, its picture is written."""

import re
import sys
from pathlib import Path

import octet
import pytest
from laws import RECIPES, inputs, layer, within

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python" / "gpt"))

import demo
import training

NAMES = ["bf16", "NVFP4BlockScaling"]  # the latter rounds at random
TASK = training.Task(steps=3, batch=2)


@pytest.fixture(scope="module")
def runs() -> list[training.Run]:
    with training.steady("cpu"):
        return demo.train_all(NAMES, TASK)


def test_demo__repeats_to_the_last_digit(runs: list[training.Run]) -> None:
    with training.steady("cpu"):
        again = training.train(NAMES[1], TASK)
        other = training.batches(training.Task(steps=1, seed=1))
    assert again.losses == runs[1].losses
    assert not torch.equal(next(other)[0], next(training.batches(TASK))[0])


def test_demo__starts_every_recipe_alike(runs: list[training.Run]) -> None:
    bf16, nvfp4 = (run.losses for run in runs)
    assert bf16[0] == pytest.approx(nvfp4[0], abs=0.05)
    assert bf16 != nvfp4
    assert bf16[2] < bf16[0]


def test_demo__table_says_what_was_measured(runs: list[training.Run]) -> None:
    head, rule, *rows = demo.table(runs, TASK).splitlines()
    assert re.split(r"  +", head) == list(demo.HEADER)
    assert set(rule) == {"-"}
    assert [row.split()[0] for row in rows] == NAMES
    linears = sum(isinstance(part, octet.Linear) for part in runs[0].model.modules())
    for run, row in zip(runs, rows, strict=True):
        assert f"{run.final:.4f}" in row
        assert run.graphs.count == 1
        assert f"  {run.graphs.forward} + {run.graphs.backward}  " in row
    assert (runs[0].graphs.forward, runs[0].graphs.backward) == (0, 0)  # bf16 is torch's own
    quantized = linears - 1  # the head is outside of the autocast: torch's own, too
    assert runs[1].graphs.forward >= quantized
    assert runs[1].graphs.backward == quantized
    assert f"{runs[1].final - runs[0].final:+.4f}" in rows[1]


def test_demo__writes_text_and_a_picture(runs: list[training.Run], tmp_path: Path) -> None:
    assert len(training.write(runs[1], 5)) == 5
    demo.draw(runs, tmp_path / "new" / "demo.png")
    assert (tmp_path / "new" / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_demo__refuses_what_it_cannot_do(capsys: pytest.CaptureFixture[str]) -> None:
    for words, reason in ((["--steps", "0"], "at least 1"), (["--recipe", "fp7"], "fp7")):
        with pytest.raises(SystemExit):
            demo.parse(words)
        assert reason in capsys.readouterr().err
    assert demo.parse([]).recipe is None


# ---- octet.measure, the table's bytes --------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("params_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_measure__is_what_autograd_saves(name: str, params_dtype: torch.dtype) -> None:
    linear = layer(params_dtype=params_dtype)
    x, _ = inputs()
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: sizes.append(tensor.nbytes) or tensor, lambda tensor: tensor
    ):
        within(RECIPES[name], linear)(x.requires_grad_())
    found = octet.measure(linear, x[..., 0].numel(), RECIPES[name])
    assert found.saved == sum(sizes)
    assert found.workspace > 0
