"""The benchmark runs, measures what it says, and its tables stand in the README. Nothing here depends on time."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import products                                                                                      # noqa: E402
import run                                                                                           # noqa: E402
import sections                                                                                      # noqa: E402
import tables                                                                                        # noqa: E402
from conftest import need                                                                            # noqa: E402
from steps import OurStep, Size                                                                      # noqa: E402
from train_minimal import make_masks                                                                 # noqa: E402

TINY = Size(d_model=8, n_heads=2, n_layers=2, d_ff=12, batch=3, length=5, vocab=11)


def expected_products(size):
    """What sections 3.1 to 3.4 of the paper, and their derivatives, have to multiply: a Counter of pairs of shapes."""
    B, T, h, d_k = size.batch, size.length, size.n_heads, size.d_model // size.n_heads
    found = Counter()

    def linear(d_in, d_out):
        found.update([((B * T, d_in), (d_in, d_out)), ((d_in, B * T), (B * T, d_out)), ((B * T, d_out), (d_out, d_in))])

    def attention():
        for _ in range(4):                                                                  # W_Q, W_K, W_V, W_O
            linear(size.d_model, size.d_model)
        wide, narrow = (B, h, T, T), (B, h, T, d_k)
        found.update([(narrow, (B, h, d_k, T))] * 2)                                        # Q K^T, dA = dout V^T
        found.update([(wide, narrow)] * 4)                                                  # A V, dV, dQ, dK

    def feed_forward():
        linear(size.d_model, size.d_ff)
        linear(size.d_ff, size.d_model)

    for _ in range(size.n_layers):
        for part in (attention, feed_forward, attention, attention, feed_forward):          # encoder, then decoder
            part()
    linear(size.d_model, size.vocab)
    return found


def shapes(calls):
    return Counter((a.shape, b.shape) for a, b, _ in calls)


def test_the_recorded_step_is_the_real_one():
    model, _ = products.record_step(TINY)
    step = OurStep(TINY)
    step.gradients()
    real = step.model.named_gradients()
    for name, gradient in model.named_gradients().items():
        assert np.array_equal(gradient, real[name]), name


def test_the_recorded_products_are_all_of_a_step():
    assert shapes(products.record_step(TINY)[1]) == expected_products(TINY)


def test_the_replayed_products_are_exactly_the_recorded_ones(monkeypatch):
    recorded = products.record_step(TINY)[1]
    replay, replayed = products.Replay(recorded), []

    def matmul(a, b, out):
        replayed.append((a, b, np.matmul(a, b, out=out)))

    class Watched:
        def __getattr__(self, name):
            return matmul if name == "matmul" else getattr(np, name)

    monkeypatch.setattr(products, "np", Watched())
    replay()
    assert len(replayed) == len(recorded)
    for one, other in zip(recorded, replayed):
        assert [products.layout(array) for array in one] == [products.layout(array) for array in other]
    assert replay.flops() == sum(2 * result.size * a.shape[-1] for a, _, result in recorded)


@pytest.mark.parametrize("source", ["np.dot(a, b)", "np.einsum('ij,jk->ik', a, b)", "np.inner(a, b)"])
def test_a_product_that_the_recorder_cannot_see_is_an_error(source):
    with pytest.raises(AttributeError, match="does not know"):
        eval(source, {"np": products._RecordingNumPy(), "a": np.ones((2, 2)), "b": np.ones((2, 2))})


def test_everything_is_timed_in_every_round_and_groups_take_turns():
    order = []
    times = sections.interleaved([{"a": lambda: order.append("a"), "b": lambda: order.append("b")},
                                  {"c": lambda: order.append("c")}], rounds=5)
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 5, "b": 5, "c": 5}
    assert order == ["a", "b", "c"] * 6                                                     # one round is not timed


@pytest.fixture
def tiny_sections(monkeypatch):
    sizes = {"teaching": TINY, "middle": TINY}
    monkeypatch.setattr(sections, "SIZES", sizes)
    settings = sections.Settings(quick=True, report=lambda line: None)
    settings.slice, settings.decoded_lengths = 0.0, (3, 40)
    return settings


def test_the_step_is_measured_against_pytorch_and_the_floor(tiny_sections):
    need("torch")
    rows = sections.step(tiny_sections)
    parts = {"gradients_ms", "update_ms", "floor_ms", "torch_gradients_ms", "torch_update_ms", "torch_fused_update_ms"}
    for row in rows:
        assert parts <= row.keys() and all(row[part] > 0 for part in parts)
        assert row["rounds"] >= 5 and row["products"] == expected_products(TINY).total()
    text = tables.step_text(rows)
    assert text.count("\n| ") == 1 + len(rows) and "not installed" not in text


def test_without_pytorch_our_columns_stay(tiny_sections, monkeypatch):
    monkeypatch.setattr(sections, "torch", None)
    rows = sections.step(tiny_sections)
    assert not any(key.startswith("torch") for row in rows for key in row)
    text = tables.step_text(rows)
    assert "PyTorch was not installed" in text and "–" in text


def test_both_ways_to_decode_write_the_same_tokens(tiny_sections, monkeypatch):
    monkeypatch.setattr(sections, "torch", None)
    monkeypatch.setattr(sections, "seconds_at_position", lambda model, src, positions, rounds: {10: 1.0, 500: 2.0})
    (row,) = sections.decoding(tiny_sections)
    assert [entry["same_tokens"] for entry in row["lengths"]] == [True, True]
    assert "yes" in tables.decoding_text([row])


def test_pytorch_gives_our_logits_when_dropout_is_off_and_its_weights_are_live():
    torch, torch_steps = need("torch"), need("torch_steps")
    step = OurStep(TINY)
    model = torch_steps.TorchModel(step.model)
    step.model.eval()
    model.eval()
    with torch.no_grad():
        theirs = model(torch.from_numpy(step.src), torch.from_numpy(step.tgt_in)).numpy()
    ours = step.model(step.src, step.tgt_in, *make_masks(step.src, step.tgt_in))
    assert np.allclose(theirs, ours, atol=1e-5)

    driven = torch_steps.TorchInPlace(step.model)
    driven.torch_model.eval()
    for name, weight in driven.named_parameters().items():
        assert np.array_equal(weight, step.model.named_parameters()[name]), name
        weight += 0.5                                              # the live weight of PyTorch, not a copy
        step.model.named_parameters()[name] += 0.5
    masks = make_masks(step.src, step.tgt_in)
    assert np.allclose(driven(step.src, step.tgt_in, *masks), step.model(step.src, step.tgt_in, *masks), atol=1e-4)


def test_pytorch_drops_where_it_says():
    torch, torch_steps = need("torch"), need("torch_steps")
    model = torch_steps.TorchModel(OurStep(TINY).model)
    rates = [module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)]
    rates += [module.dropout for module in model.modules() if isinstance(module, torch.nn.MultiheadAttention)]
    assert len(rates) == 1 + 2 * (3 + 4) + 2 * 3 and set(rates) == {sections.DROPOUT}


def test_exponents_and_the_crossing_of_known_curves():
    points = [{"n": n, "square": n**2 / 100, "line": float(n)} for n in (16, 32, 64, 128, 256)]
    assert sections.exponent(points, "n", "square", 32) == pytest.approx(2)
    assert sections.exponent(points, "n", "line", 16) == pytest.approx(1)
    assert sections.crossing(points, "n", "square", "line") == pytest.approx(100)
    assert sections.crossing(points, "n", "line", "square") is None


def test_growth_knows_the_time_inside_attention(monkeypatch):
    point = sections.growth_point(TINY, rounds=3)
    assert 0 < point["attention_ms"] < point["step_ms"] and point["memory_mb"] > 0


RESULTS = {"machine": {"processor": "a processor", "cores": 2, "memory_gb": 8, "system": "Linux"},
           "versions": {"python": "3", "numpy": "2", "blas": "a BLAS", "torch": None},
           "commit": "1234567", "blas_threads": 1, "quick": False,
           "memory": [{"size": "base", "ours_mb": 1234.5}],
           "threads": [{"size": "teaching", "alone_1_ms": 9.0, "alone_2_ms": 12.0, "beside_1_ms": 9.9,
                        "beside_2_ms": 99.0}]}


def test_tables_go_between_the_markers_and_nothing_else_changes():
    document = f"above\n{tables.BEGIN}\nold\n{tables.END}\nbelow\n"
    once = tables.with_tables(document, RESULTS)
    assert once.startswith(f"above\n{tables.BEGIN}\n") and once.endswith(f"{tables.END}\nbelow\n")
    assert "old" not in once and "1,234" in once.replace("1,235", "1,234") and "11.00" not in once and "10.00" in once
    assert tables.with_tables(once, RESULTS) == once
    for broken in ("no marker", tables.BEGIN, f"{tables.END} {tables.BEGIN}"):
        with pytest.raises(ValueError, match="benchmarks: begin"):
            tables.with_tables(broken, RESULTS)


def test_the_readme_is_checked_and_written(tmp_path, monkeypatch, capsys):
    readme, results = tmp_path / "README.md", tmp_path / "results.json"
    monkeypatch.setattr(run, "README", readme)
    monkeypatch.setattr(run, "RESULTS", results)
    readme.write_text(f"{tables.BEGIN}\n{tables.END}\n", encoding="utf-8")
    results.write_text(json.dumps(RESULTS), encoding="utf-8")
    assert run.main(["--check"]) == 1
    assert run.main(["--write-tables"]) == 0
    assert run.main(["--check"]) == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["README.md", "results.json"]


@pytest.mark.parametrize("argv, words", [(["--only", "speed"], "--only takes step"), (["--threads", "0"], "at least 1"),
                                         (["--threads", "x"], "invalid int"), (["--nonsense"], "--nonsense"),
                                         (["--check"], "cannot read")])
def test_wrong_usage_is_one_line_and_status_2(argv, words, monkeypatch, capsys):
    monkeypatch.setattr(run, "RESULTS", ROOT / "no such directory" / "results.json")
    assert run.main(argv) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.count("\n") == 1 and words in output.err


def test_the_description_names_the_processor_and_not_the_machine():
    text = json.dumps(run.description(sections.Settings()))
    assert run.platform.node() not in text and str(ROOT) not in text
    assert "numpy" in text and run.processor() in text


def test_the_readme_holds_the_tables_of_the_committed_results():
    assert run.tables_into_readme(check=True) == 0, "python benchmarks/run.py --write-tables"


@pytest.mark.slow
def test_a_quick_run(tmp_path):
    need("torch")
    path = tmp_path / "results.json"
    process = subprocess.run([sys.executable, str(ROOT / "benchmarks" / "run.py"), "--quick", "--json", str(path)],
                             capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    results = json.loads(path.read_text())
    assert results.keys() >= set(sections.SECTIONS) and results["quick"]
    assert all(entry["same_tokens"] for row in results["decoding"] for entry in row["lengths"])
    for run_of_a_side in results["learning"][0]["runs"].values():
        assert run_of_a_side["perfect"]
    tables.draw_growth(results["growth"], tmp_path / "growth.png")
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
