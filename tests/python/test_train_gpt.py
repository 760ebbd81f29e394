"""The example that trains a GPT on one process or on many."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ranks import Ranks

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "examples/python/train_gpt.py"
SMALL = ["--batch", "2", "--width", "64", "--context", "64", "--depth", "1", "--steps", "4"]


def train(ranks: int, *options: str) -> float:
    """The loss that it prints, started as its users start it."""
    program = [str(PROGRAM), *SMALL, *options]
    start = [sys.executable]
    if ranks > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    made = subprocess.run(
        [*start, *program], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert made.returncode == 0, made.stderr[-3000:]
    words = made.stdout.split()
    return float(words[words.index("loss") + 1])


def job(rank: int, options: list[str]) -> float:
    """The loss of its last step, on ranks that are there already."""
    spec = importlib.util.spec_from_file_location("train_gpt", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    sys.argv = [str(PROGRAM), *SMALL, *options]
    asked = program.arguments()
    return program.train(asked, program.Ranks(asked.tp, asked.sp, asked.device))


def test_train_gpt__ranks_that_share_layers_learn_as_one_process_does() -> None:
    """The same batches and the same first weights; sums are rounded in another order."""
    assert train(2, "--tp", "2", "--sp") == pytest.approx(train(1), rel=2e-3)


def test_train_gpt__shards_learn_as_replicas_do_and_resume(two: Ranks, tmp_path: Path) -> None:
    folder = ["--recipe", "nvfp4", "--checkpoints", str(tmp_path), "--every", "2"]
    found = two.run(job, ["--fsdp", *folder])
    assert found == pytest.approx(two.run(job, ["--recipe", "nvfp4"]), rel=2e-3)
    for last in tmp_path.glob("*/0000004"):
        shutil.rmtree(last)
    assert two.run(job, ["--fsdp", *folder, "--resume"]) == found


def test_train_gpt__resumes_by_what_all_ranks_have_saved(two: Ranks, tmp_path: Path) -> None:
    """As where a rank dies before it has saved. Delayed scaling's scales come back, too."""
    options = ["--tp", "2", "--sp", "--recipe", "delayed", "--every", "1"]
    options += ["--checkpoints", str(tmp_path)]
    found = two.run(job, options)
    for last in (*tmp_path.glob("*/0000004"), tmp_path / "tp1-of-2/0000003"):
        shutil.rmtree(last)
    assert two.run(job, [*options, "--resume"]) == found
    with pytest.raises(AssertionError, match="resume with the --tp that saved it"):
        train(1, "--checkpoints", str(tmp_path), "--resume")


def test_train_gpt__says_what_is_wrong() -> None:
    for options, why in (
        (["--tp", "3"], "--heads is 4; it must be a multiple of 3"),
        (["--resume"], "--resume needs --checkpoints"),
        (["--tp", "2"], "--tp is 2; it must divide the 1 processes"),
    ):
        with pytest.raises(AssertionError, match=why):
            train(1, *options)
