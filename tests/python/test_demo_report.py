"""The demo's report: one file, whole or not written, that says what was measured."""

import dataclasses
import math
import os
import re
import runpy
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import octet
import pytest

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "python" / "gpt"))

import demo
import errors
import plots
import report
import training
from gpt import GPT, Sizes

TASK = training.Task(steps=2, batch=2)
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
LAYERS = [
    f"blocks.{block}.{name}" for block in (0, 1) for name in ("qkv", "proj", "up", "down")
]


def short_run(name: str) -> training.Run:
    """Two eager steps of training; nothing is compiled."""
    torch.manual_seed(0)
    run = training.Run(name, GPT(Sizes(len(training.CHARACTERS))))
    for tokens, targets in training.batches(TASK):
        with torch.autocast("cpu", torch.bfloat16), training.inside(name):
            loss = run.model.loss(tokens, targets)
        loss.backward()
        run.losses.append(loss.item())
    run.model.zero_grad()
    return run


@pytest.fixture(scope="module")
def runs() -> list[training.Run]:
    return [short_run(name) for name in training.RECIPES]


@pytest.fixture(scope="module")
def found(runs: list[training.Run]) -> report.Report:
    return report.gather(runs, TASK, "cpu (there is no CUDA device)", ["A tale."] * len(runs))


class Page(HTMLParser):
    """Counts what a page has; an element that is not closed is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.marks: dict[str, int] = {}
        self.tags: dict[str, int] = {}
        self.references: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags[tag] = self.tags.get(tag, 0) + 1
        if values.get("class") == "mark":
            self.marks[tag] = self.marks.get(tag, 0) + 1
        for name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            self.references += [values[name] or ""] if name in values else []
        if tag not in ("meta", "link", "wbr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


# ---- what is measured ------------------------------------------------------------------------


def test_errors__grow_as_formats_shrink(found: report.Report) -> None:
    by = {run.name: run.errors for run in found.runs}
    for layer in LAYERS:
        for role in errors.ROLES:
            bf16, fp8, fp4 = (
                by[name][layer][role]
                for name in ("bf16", "MXFP8BlockScaling", "NVFP4BlockScaling")
            )
            assert bf16 < fp8 < fp4 < 0.5
    assert 2**-11 < by["bf16"][LAYERS[0]]["weight"] < 2**-8  # 8 bits of precision
    assert by["bf16"][LAYERS[0]]["grad_output"] == 0.0  # it arrives in bf16


def test_errors__are_those_of_the_recipes_bytes(runs: list[training.Run]) -> None:
    mxfp8 = next(run for run in runs if run.name == "MXFP8BlockScaling")
    weight = mxfp8.model.blocks[0].up.weight.detach()
    decoded = octet.MXFP8Quantizer("e4m3")(weight).dequantize()
    wanted = ((decoded - weight).norm() / weight.norm()).item()
    assert errors.errors_of(mxfp8, TASK)["blocks.0.up"]["weight"] == pytest.approx(wanted)


def test_errors__read_the_scales_of_delayed_scaling(runs: list[training.Run]) -> None:
    delayed = next(run for run in runs if run.name == "DelayedScaling")
    layer = delayed.model.blocks[0].up
    scale = layer.fp8_scale.clone()
    before = errors.errors_of(delayed, TASK)["blocks.0.up"]["weight"]
    try:
        with torch.no_grad():
            layer.fp8_scale[1] *= 2**12  # saturates
        assert errors.errors_of(delayed, TASK)["blocks.0.up"]["weight"] > 10 * before
    finally:
        layer.fp8_scale.copy_(scale)


def test_errors__repeat_and_change_no_state(runs: list[training.Run]) -> None:
    for run in runs:
        before = {key: value.clone() for key, value in run.model.state_dict().items()}
        draws = torch.get_rng_state()
        first, second = errors.errors_of(run, TASK), errors.errors_of(run, TASK)
        assert first == second
        after = run.model.state_dict()
        assert after.keys() == before.keys()
        assert all(torch.equal(after[key], before[key]) for key in before)
        assert torch.equal(torch.get_rng_state(), draws)
        assert all(parameter.grad is None for parameter in run.model.parameters())
        assert run.model.training


# ---- what is written -------------------------------------------------------------------------


def test_report__has_a_mark_for_every_figure(found: report.Report) -> None:
    page = Page(report.page(found))
    count, layers = len(found.runs), len(LAYERS)
    shown = sum(
        error > 0 for run in found.runs for by in run.errors.values() for error in by.values()
    )
    assert shown >= 3 * (count - 1) * layers  # but for bf16, whose tensors may be bf16 before
    assert page.marks == {"polyline": 2 * count, "circle": shown, "rect": count}
    assert page.tags["svg"] == 2 + 3 + 1
    assert page.tags["table"] == 1 + 3 + 1


def test_report__says_what_was_measured(found: report.Report) -> None:
    page = Page(report.page(found))
    words = "\n".join(page.words)
    for run in found.runs:
        assert f"{run.final:.4f}" in words
        assert f"{sum(run.saved.values()) / 1024:.1f}" in words
        assert f"{run.errors['blocks.1.down']['input'] * 100:.3g}%" in words
    assert "There is no GPU here" in words
    assert found.plan in "".join(page.words)
    assert "recipe mxfp8" in found.plan


def test_report__needs_nothing_from_elsewhere(found: report.Report) -> None:
    text = report.page(found)
    page = Page(text)
    assert page.references == ["data:,"]  # no icon is asked for
    assert not {"script", "img", "iframe", "object"} & page.tags.keys()
    assert not re.search(r"https?:|url\(|@import|//cdn", text)


def test_report__shows_speed_where_it_was_measured(found: report.Report) -> None:
    rows = (
        report.bench.Row(report.SHAPE, report.bench.BASE, "eager", 2.0),
        report.bench.Row(report.SHAPE, "octet mxfp8", "eager", 1.6),
        report.bench.Row(report.SHAPE, "octet nvfp4", "eager", None, "it failed"),
    )
    page = Page(report.page(dataclasses.replace(found, speed=rows)))
    words = "\n".join(page.words)
    assert page.marks["rect"] == len(found.runs) + 2
    assert "1.25" in words
    assert "it failed" in words
    assert "There is no GPU" not in words


def test_report__takes_runs_that_diverged_and_text_of_any_kind(found: report.Report) -> None:
    bad = dataclasses.replace(
        found.runs[1], losses=(3.0, math.nan), final=math.nan, tale="<b>&"
    )
    errors_ = {name: dict.fromkeys(errors.ROLES, math.inf) for name in LAYERS}
    bad = dataclasses.replace(bad, errors=errors_)
    page = Page(report.page(dataclasses.replace(found, runs=(found.runs[0], bad))))
    assert "b" not in page.tags
    assert "<b>&" in page.words
    assert "not finite" in page.words
    assert "nan" in page.words
    assert not re.search(r'(points|c?[xy]|width)="[^"]*(nan|inf)', report.page(found))


def test_plots__say_when_there_is_nothing_to_draw() -> None:
    nothing = plots.Series("a", "#000", (math.nan,))
    for plot in (
        plots.lines([nothing], "t", "step"),
        plots.dots(["row"], [nothing], "t", "x"),
        plots.bars([nothing], "t", "KiB"),
    ):
        assert "no finite figures" in plot
        assert Page(plot).marks == {}
    assert Page(plots.lines([plots.Series("a", "#000", (1.0,))], "t", "s")).marks == {
        "circle": 1
    }


def test_plots__ticks_are_round_and_inside() -> None:
    assert plots.nice_ticks(0.0, 1.0) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert plots.nice_ticks(2.0, 2.0) == [2.0]
    assert plots.log_ticks(0.015, 0.3) == pytest.approx([0.02, 0.05, 0.1, 0.2])


def test_report__is_whole_or_as_it_was(found: report.Report, tmp_path: Path) -> None:
    out = tmp_path / "new" / "folder" / "demo.html"
    report.save(found, out)
    assert out.read_text(encoding="utf-8") == report.page(found)

    def fail(made: Path) -> None:
        made.write_text("half")
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        report.replace_file(out, fail)
    assert out.read_text(encoding="utf-8") == report.page(found)
    assert list(out.parent.iterdir()) == [out]


# ---- the command -----------------------------------------------------------------------------


def test_demo__refuses_places_before_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "taken.html").mkdir()
    for out, reason in (
        (tmp_path / "demo.html", "it names a picture: "),
        (tmp_path / "file" / "demo.png", "name another folder"),
        (tmp_path / "taken.png", "taken.html is a folder"),
    ):
        with pytest.raises(SystemExit):
            demo.parse(["--out", str(out)])
        assert reason in capsys.readouterr().err
    assert demo.parse(["--out", str(tmp_path / "new" / "demo.png")]).steps == 150


def test_demo__names_a_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit, match=r"matplotlib.figure; run `make demo`"):
        runpy.run_path(str(demo.__file__))


# ---- in a browser ----------------------------------------------------------------------------

PROBE = """<script>
const seen = [...document.querySelectorAll('.mark')].filter(
    mark => [mark.getBoundingClientRect()].every(box => box.width + box.height > 0));
const wide = document.documentElement.scrollWidth - window.innerWidth;
document.body.dataset.probe = `${seen.length} marks, ${Math.max(wide, 0)} over`;
</script></body>"""


def browse(page: Path, tmp_path: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [
            *(str(BROWSER), "--headless=new", "--no-sandbox", "--disable-gpu"),
            *("--disable-dev-shm-usage", "--enable-logging=stderr"),
            *(f"--user-data-dir={tmp_path / 'profile'}", *words, page.as_uri()),
        ],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium: apt-get install chromium")
@pytest.mark.parametrize("size", ["1200,900", "500,900"])
def test_report__loads_in_a_browser(found: report.Report, tmp_path: Path, size: str) -> None:
    path = tmp_path / "demo.html"
    text = report.page(found)
    path.write_text(text.replace("</body>", PROBE), encoding="utf-8")
    done = browse(path, tmp_path, f"--window-size={size}", "--dump-dom")
    marks = sum(Page(text).marks.values())
    assert f'data-probe="{marks} marks, 0 over"' in done.stdout
    assert "CONSOLE" not in done.stderr


@pytest.mark.skipif(BROWSER is None, reason="there is no chromium: apt-get install chromium")
def test_report__prints(found: report.Report, tmp_path: Path) -> None:
    path, pdf = tmp_path / "demo.html", tmp_path / "demo.pdf"
    report.save(found, path)
    browse(path, tmp_path, f"--print-to-pdf={pdf}")
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))
    assert 2 <= pages <= 8
