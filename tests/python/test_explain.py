"""octet.explain of a model: facts from the plan, and a model that stays as it was."""

import copy
import itertools
import re
from html.parser import HTMLParser
from typing import Any

import octet
import pytest
from laws import RECIPES
from octet import _C, _call_time, _signatures

import torch

QUANTIZING = {name: recipe for name, recipe in RECIPES.items() if recipe is not None}


class Model(torch.nn.Module):
    """Two layers on one tensor, a BatchNorm, dropout, a counter: state of every kind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        bf16 = {"device": "cpu", "params_dtype": torch.bfloat16}
        self.a, self.b = octet.Linear(64, 48, **bf16), octet.Linear(64, 48, **bf16)
        self.norm = torch.nn.BatchNorm1d(48, dtype=torch.bfloat16)
        self.drop, self.calls = torch.nn.Dropout(0.5), 0
        self.mlp = octet.LayerNormMLP(48, 32, activation="swiglu", **bf16)
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One output."""
        self.calls += 1
        self.late = x
        y = self.mlp(self.drop(self.norm(self.a(x) + self.b(x))))
        if self.fails:
            self.register_buffer("half_done", torch.ones(1))
            raise RuntimeError("in the middle")
        return y


def snapshot(model: torch.nn.Module) -> dict[str, Any]:
    """All that explain must leave alone."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    layers = [m for m in model.modules() if isinstance(m, octet.Linear)]
    return {
        "state": state,
        "versions": [p._version for p in model.parameters()],
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "modes": [m.training for m in model.modules()],
        "keys": [sorted(vars(m)) for m in model.modules()],
        "ids": [{k: id(v) for k, v in vars(m).items()} for m in model.modules()],
        "last": [(m._calls.last, id(m._calls.decided), m._pending.waits) for m in layers],
        "hooks": [len(m._forward_hooks) for m in model.modules()],
        "rng": torch.get_rng_state(),
        "cast": [id(m._weight_cache.tensor) for m in layers],
    }


def same(a: Any, b: Any) -> bool:  # noqa: ANN401
    """Whether two snapshots agree."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def x() -> torch.Tensor:
    return torch.randn(32, 64, dtype=torch.bfloat16, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("name", QUANTIZING)
def test_explain__rows_say_what_the_plan_says(name: str) -> None:
    model, recipe = Model(), QUANTIZING[name]
    rows = {row.name: row for row in octet.explain(model, x(), recipe=recipe).rows}
    assert list(rows) == ["a", "b", "mlp.fc1", "mlp.fc2"]
    row = rows["a"]
    assert (row.m, row.k, row.n) == (32, 64, 48)
    # The input gets no gradient, so forward saves what octet.measure says of such a call.
    words = _signatures.linear_words(
        (torch.bfloat16,) * 3, (None, None), recipe.text, (False, True, True), ()
    )
    assert row.saved_bytes == sum(_C.measure("linear", words, (32, 64, 48))[:2])
    plan = octet.explain(64, 48, 32, recipe, device="cpu")
    for text in row.quantizers.values():
        assert text.split("+")[0] in plan
    assert set(row.products) == {"fprop", "wgrad"}
    assert set(rows["mlp.fc1"].products) == {"fprop", "dgrad", "wgrad"}
    for each in rows.values():
        assert each.how == _C.support(each.quantizers["weight"], "cpu") == "native"
        assert each.milliseconds > 0
        assert each.bf16_milliseconds > 0
    assert sum(each.share for each in rows.values()) == pytest.approx(1)
    # nn.Linear saves its input and, where that gets a gradient, its weight.
    assert row.bf16_saved_bytes == 2 * 32 * 64


@pytest.mark.parametrize("name", ["delayed", "nvfp4"])
@pytest.mark.parametrize("fails", [False, True])
def test_explain__leaves_the_model_as_it_was(name: str, fails: bool) -> None:
    model, recipe = Model(), QUANTIZING[name]
    with octet.autocast(recipe=recipe):
        model(x()).sum().backward()  # gradients, scales, histories, decided calls
    model.fails = fails
    model.a.eval()
    before = snapshot(model)
    if fails:
        with pytest.raises(RuntimeError, match="in the middle"):
            octet.explain(model, x(), recipe=recipe)
    else:
        octet.explain(model, x(), recipe=recipe)
    assert same(before, snapshot(model))


def test_explain__training_goes_on_as_if_it_had_not_been() -> None:
    recipe = QUANTIZING["delayed"]
    losses = []
    for looks in (False, True):
        torch.manual_seed(0)
        model, found = Model(), []
        step = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            with octet.autocast(recipe=recipe):
                if looks:
                    octet.explain(model, x())
                loss = model(x()).float().square().mean()
            loss.backward()
            if looks:
                octet.explain(model, x(), recipe=QUANTIZING["nvfp4"])
            step.step()
            step.zero_grad()
            found.append(loss.item())
        losses.append(found)
    assert losses[0] == losses[1]


def test_explain__compiled_models_are_looked_into_without_a_new_graph() -> None:
    from laws import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    whole = Model()
    model = torch.nn.Sequential(whole.a, whole.norm, whole.mlp)
    compiled = torch.compile(model, backend=counter)
    with octet.autocast(recipe=QUANTIZING["mxfp8"]):
        compiled(x())
        graphs = counter.frame_count
        rows = octet.explain(compiled, x()).rows
        compiled(x())
    assert counter.frame_count == graphs > 0
    assert [row.name for row in rows] == ["0", "2.fc1", "2.fc2"]


def test_explain__says_who_reads_one_tensor_and_who_is_not_called() -> None:
    model = Model()
    model.unused = octet.Linear(8, 8, device="cpu")
    found = octet.explain(model, x(), recipe=QUANTIZING["mxfp8"])
    notes = {row.name: " ".join(row.notes) for row in found.rows}
    assert "a, b read one tensor" in notes["a"]
    assert "a, b read one tensor" in notes["b"]
    assert "read one tensor" not in notes["mlp.fc1"]
    assert notes["unused"] == "this forward does not call it"


def test_explain__without_gradients_tells_of_casts_at_each_call() -> None:
    model = Model().eval()
    with torch.no_grad():
        found = octet.explain(model, x())
        with octet.constant_weights():
            constant = octet.explain(model, x())
    row = found.rows[0]
    assert set(row.products) == {"fprop"}
    assert row.saved_bytes == 0
    assert "octet.constant_weights()" in row.notes[0]
    assert not any("cast at each call" in note for r in constant.rows for note in r.notes)
    assert found.recipe == octet.default_recipe().text


def test_explain__a_gpu_that_emulates_is_said_by_its_plan() -> None:
    """product_facts on devices that are not here: the plan needs no driver."""
    for device, recipe, wanted in (
        ("cuda:0/90", "mxfp8", "folded"),
        ("cuda:0/90", "nvfp4", "emulated"),
        ("cuda:0/90", "current", "native"),
        ("cuda:0/100", "mxfp8", "native"),
    ):
        bf16 = (torch.bfloat16, torch.bfloat16, None)
        words = _signatures.linear_words(
            bf16, (None, None), recipe, (True, True, False), (("device", device),)
        )
        found = _C.product_facts("linear", words, (32, 64, 48))
        assert [row[:2] for row in found] == [("fprop", wanted)]
        assert wanted in octet._C.explain("linear", words, (32, 64, 48)) or wanted == "native"
    ragged = _C.product_facts("linear", words.replace("mxfp8", "current"), (32, 60, 48))
    whole = _C.product_facts("linear", words.replace("mxfp8", "current"), (32, 64, 48))
    assert ragged[0][2]
    assert not whole[0][2]


def test_explain__html_is_a_whole_fragment_without_scripts() -> None:
    model = torch.nn.Sequential()
    model.add_module("<b>&", octet.Linear(64, 32, device="cpu"))
    found = octet.explain(model, torch.randn(16, 64))
    html, opened = found.to_html(), []

    class Parser(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:  # noqa: ANN401
            opened.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert opened.pop() == tag

    Parser().feed(html)
    assert not opened
    assert "&lt;b&gt;&amp;" in html
    assert not re.search(r"<script|src=|href=|<b>", html)
    assert found.to_dict()["rows"][0]["name"] == "<b>&"
    assert "<b>&" in str(found)
    assert "saves" in str(found)


class Twice(torch.nn.Module):
    """Two groups of layers that read one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.up, self.gate = (
            octet.Linear(64, 64, device="cpu") for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One output."""
        y = self.q(x) + self.k(x)
        return self.up(y) * self.gate(y)


def test_explain__what_rows_share_is_said_once() -> None:
    given = torch.randn(16, 64, requires_grad=True)
    found = octet.explain(Twice(), given, recipe=QUANTIZING["mxfp8"])
    title, common, head, *lines = str(found).splitlines()
    assert title.startswith("recipe mxfp8, on cpu")
    assert re.match("all rows: input mxfp8:.*; weight mxfp8:.*; products native$", common)
    assert head.split()[:5] == ["layer", "m", "k", "n", "saves"]
    assert [line.split()[0] for line in lines[:4]] == ["q", "k", "up", "gate"]
    (note,) = [line for line in lines if "read one tensor" in line]
    assert note.startswith("q, k read one tensor: torch.compile")
    assert note.endswith(" (so do 1 more groups)")
    assert found.to_html().count("mxfp8:") == 3
    assert found.rows[0].quantizers["input"].startswith("mxfp8:")  # rows have it each


def test_explain__takes_the_least_of_several_runs_on_a_busy_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(_call_time.time, "perf_counter", lambda: clock[0])
    durations = iter([0.5] * 4 + [0.2, 0.2] * 4 + [0.001, 0.002] + [0.2] * 9)

    def run() -> None:
        clock[0] += next(durations)

    found = _call_time._least_times([run, run], torch.device("cpu"))
    assert found == pytest.approx([0.001, 0.002])


@pytest.mark.parametrize("busy", [False, True])
def test_explain__says_when_others_kept_the_processor_busy(
    busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = itertools.count()
    monkeypatch.setattr(_call_time.time, "perf_counter", lambda: next(wall))
    monkeypatch.setattr(_call_time.time, "process_time", lambda: 0 if busy else 2 * next(wall))
    model = torch.nn.Sequential(octet.Linear(64, 32, device="cpu"))
    (row,) = octet.explain(model, torch.randn(16, 64)).rows
    assert any("kept the processor busy" in note for note in row.notes) == busy
    assert not busy or not any("slower than bf16" in note for note in row.notes)


def test_explain__transformers_models_converted_and_fused() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        vocab_size=64,
    )
    torch.manual_seed(0)
    plain = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    ids = torch.arange(32).reshape(2, 16)
    model = octet.convert(copy.deepcopy(plain))
    rows = octet.explain(model, input_ids=ids, labels=ids).rows
    assert len(rows) == 8
    assert {row.m for row in rows} == {32}
    fused = octet.convert(plain, fuse=True)
    names = [row.name for row in octet.explain(fused, ids).rows]
    assert len(names) == 5
    assert all(row.how == "native" for row in rows)


def test_explain__bad_input_names_the_fix() -> None:
    with pytest.raises(ValueError, match=r"no octet layer in Sequential; convert it first"):
        octet.explain(torch.nn.Sequential(torch.nn.Linear(8, 8)), torch.randn(2, 8))
    meta = torch.nn.Sequential(octet.Linear(8, 8, device="meta"))
    with pytest.raises(ValueError, match=r"0 is on meta.*load the weights"):
        octet.explain(meta, torch.randn(2, 8))
    model = Model()
    with pytest.raises(TypeError, match=r"Model does not take what it was given \(nothing\)"):
        octet.explain(model)
    with pytest.raises(ValueError, match="its last axis must be 64"):
        octet.explain(model, torch.randn(2, 8, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="recipe is 'mxfp8'"):
        octet.explain(model, x(), recipe="mxfp8")
    with pytest.raises(TypeError, match=r"it is a torch\.nn\.Module"):
        octet.explain("model", x())
