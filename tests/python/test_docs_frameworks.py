"""The page about other libraries: its Python runs, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import ROOT, program

PAGE = ROOT / "docs" / "frameworks.md"

# Libraries keep what they found of TransformerEngine, and accelerate its state: so a process.
# Where torchtitan cannot be imported, as much of its interface as the page uses stands in.
BEGIN = """
import sys, titan_protocol
if not titan_protocol.is_installed():
    sys.modules.update(titan_protocol.modules())
exec(compile(open(sys.argv[1]).read(), sys.argv[2], "exec"), {"__name__": "page"})
print("all of it")
"""


def test_frameworks__the_page_runs(tmp_path: Path) -> None:
    for name in ("accelerate", "lightning", "peft", "transformers"):
        pytest.importorskip(name)
    source = program(PAGE)
    assert source.count("assert ") > 7
    (tmp_path / "page.py").write_text(source)
    path = os.pathsep.join([str(ROOT / "python"), str(Path(__file__).parent)])
    env = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", BEGIN, str(tmp_path / "page.py"), str(PAGE)],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.stdout.endswith("all of it\n"), done.stderr[-3000:]
