"""Figures show the arrays they were given, stay readable and leave nothing open; the command line errs in one line."""

import html
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import Rectangle

import implementation as model_code
import train_minimal as training
import visualization as vis
from exercises import bugs, finale

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = dict(training.DEFAULTS, d_model=16, n_heads=2, n_layers=2, seq_len=6)
HISTORY = [{"step": step, "loss": 3.0 / step ** 0.3, "learning_rate": step * 1e-5, "token_accuracy": step / 200,
            **({"exact_match": step / 250} if step % 100 == 0 else {})} for step in range(10, 201, 10)]
STRANGE = "a $_^\\<&{中文ع😀🥺\u0301\u200b"


@pytest.fixture(autouse=True)
def nothing_warns_and_nothing_stays_open():
    import matplotlib.pyplot as plt
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert plt.get_fignums() == []


def write_checkpoint(path, settings=SETTINGS, vocabulary=None, history=HISTORY, **sizes):
    model = (training.build_model(settings, rng=3) if not sizes
             else model_code.Transformer(12, 12, 16, 2, 2, 2, 32, 0.1, rng=3, **sizes))
    training.save_checkpoint(path, model, settings=settings, step=200, vocabulary=vocabulary, history=history)
    return path


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "copy.npz")


@pytest.fixture(scope="module")
def strange_checkpoint(tmp_path_factory):
    vocabulary = "".join(sorted(set(STRANGE)))
    return write_checkpoint(tmp_path_factory.mktemp("checkpoints") / "text.npz",
                            dict(SETTINGS, vocab_size=3 + len(vocabulary)), vocabulary)


@pytest.fixture(scope="module")
def example(checkpoint):
    return vis.Example.of(training.load_checkpoint(checkpoint), [5, 3, 9])


def weights(*shape, seed=0):
    return np.random.default_rng(seed).dirichlet(np.full(shape[-1], 0.4), size=shape[:-1])


def images(figure):
    """The arrays of the maps of a figure, the bars that explain the colours left out."""
    return [image.get_array() for ax in figure.axes for image in ax.images if ax.axison]


def texts(figure):
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text)]


def tick_labels(axis):
    return [label.get_text() for label in axis.get_ticklabels()]


# ------------------------------------------------------------------------------------------- what is drawn is true


def test_one_head_shows_its_array_queries_in_rows_first_on_top():
    w = weights(4, 6)
    figure = vis.plot_attention_weights(w, x_labels=list("abcdef"), y_labels=list("wxyz"), title="One head")
    ax = figure.axes[0]
    np.testing.assert_array_equal(images(figure)[0], w)
    assert not np.ma.getmaskarray(images(figure)[0]).any()
    assert tick_labels(ax.xaxis) == list("abcdef") and tick_labels(ax.yaxis) == list("wxyz")
    assert ax.get_ylim()[0] > ax.get_ylim()[1] and ax.get_xlim()[0] < ax.get_xlim()[1]      # row 0 on top
    assert ax.images[0].get_clim() == (0, 1)
    assert ax.images[0].get_cmap().name in ("cividis", "viridis")
    assert {"One head", "keys →", "queries →"} <= set(texts(figure))


def test_numbers_in_cells_are_the_weights():
    figure = vis.plot_attention_weights(np.array([[0.25, 0.75], [1.0, 0.0]]))
    written = {tuple(map(round, text.get_position())): text.get_text() for text in figure.axes[0].texts}
    assert written == {(0, 0): ".25", (1, 0): ".75", (0, 1): "1", (1, 1): "0"}


def test_masked_cells_are_hatched_and_zeros_are_not():
    w, mask = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[False, True], [False, False]])
    figure = vis.plot_attention_weights(w, mask=mask)
    np.testing.assert_array_equal(np.ma.getmaskarray(images(figure)[0]), mask)
    assert figure.axes[0].patch.get_hatch()
    assert "hidden by the mask" in texts(figure)
    FigureCanvasAgg(figure).draw()
    pixels, height = np.asarray(figure.canvas.buffer_rgba())[..., :3], figure.bbox.height

    def cell(row, column):
        x, y = figure.axes[0].transData.transform((column + 0.3, row + 0.3))
        return pixels[int(height - y) - 4:int(height - y) + 4, int(x) - 4:int(x) + 4].reshape(-1, 3)

    assert cell(0, 1).min() > 150 and len(np.unique(cell(0, 1), axis=0)) > 1             # pale, and not one colour
    assert cell(1, 0).max() < 110 and len(np.unique(cell(1, 0), axis=0)) == 1            # the dark end of the map
    assert vis.plot_attention_weights(w).axes[0].patch.get_hatch() is None


def test_every_head_of_a_layer_on_one_scale():
    w, mask = weights(6, 3, 5), np.zeros((1, 3, 5), dtype=bool)
    mask[..., 4] = True
    figure = vis.plot_multi_head_attention(w, x_labels=list("abcde"), y_labels=list("xyz"), mask=mask)
    assert len(images(figure)) == 6
    for shown, head in zip(images(figure), w):
        np.testing.assert_array_equal(shown.data, head)
        np.testing.assert_array_equal(np.ma.getmaskarray(shown), mask[0])
    assert {ax.images[0].get_clim() for ax in figure.axes if ax.images and ax.axison} == {(0, 1)}
    assert [t for t in texts(figure) if t.startswith("head")] == [f"head {i}" for i in range(1, 7)]


def test_the_sheet_shows_every_layer_and_head_of_the_three_kinds(example):
    a = example.attention
    figure = vis.plot_every_head(a["encoder"], a["decoder"], a["cross"], example.source_labels, example.target_labels,
                                 target_mask=example.masks["decoder"])
    expected = [head for kind in ("encoder", "decoder", "cross") for layer in a[kind] for head in layer]
    assert len(images(figure)) == len(expected) == 2 * 2 * 3
    for shown, head in zip(images(figure), expected):
        np.testing.assert_array_equal(shown.data, head)
    hidden = [np.ma.getmaskarray(shown) for shown in images(figure)]
    causal = model_code.create_causal_mask(len(example.target_labels))[0, 0]
    assert all((mask == causal).all() for mask in hidden[4:8]) and not any(mask.any() for mask in hidden[:4])


def test_an_example_is_the_models_own_pass(example):
    model = example.checkpoint.model
    np.testing.assert_array_equal(example.src, [[5, 3, 9, 2]])
    np.testing.assert_array_equal(example.tgt[:, 1:], training.greedy_decode(model, example.src, 4))
    tgt_in = example.tgt[:, :-1]
    logits = model(example.src, tgt_in, *training.make_masks(example.src, tgt_in))
    np.testing.assert_array_equal(example.probabilities, model_code.softmax(logits)[0])
    for layer, block in enumerate(model.decoder_layers):
        np.testing.assert_array_equal(example.attention["cross"][layer],
                                      block.cross_attention.get_attention_weights()[0])
        np.testing.assert_array_equal(example.attention["decoder"][layer],
                                      block.self_attention.get_attention_weights()[0])
    np.testing.assert_array_equal(example.attention["encoder"][1],
                                  model.encoder_layers[1].self_attention.get_attention_weights()[0])
    np.testing.assert_array_equal(example.probabilities.argmax(axis=-1), example.tgt[0, 1:])


NOT_THE_LIBRARYS = ("attention", "heads", "every-head", "decoding", "entropy", "gradients", "learning")


@pytest.mark.parametrize("bug", bugs.BUGS)
def test_a_model_trained_with_a_mistake_is_drawn_with_it(tmp_path, bug):
    path = write_checkpoint(tmp_path / "bug.npz", dict(SETTINGS, inject_bug=bug))
    example, model = (vis.Example.of(training.load_checkpoint(path), [5, 3, 9, 4]),
                      bugs.inject(training.load_checkpoint(path).model, bug)[0])
    src = np.array([[5, 3, 9, 4, 2]])
    np.testing.assert_array_equal(example.tgt[:, 1:], training.greedy_decode(model, src, 5))
    np.testing.assert_array_equal(example.probabilities.argmax(axis=-1), example.tgt[0, 1:])
    assert f"the mistake {bug} " in example.remark and example.remark in example.notes
    for kind, weights in example.attention.items():
        assert not weights[example.masks[kind]].any()                   # what is hatched has no weight
    for name in NOT_THE_LIBRARYS if bug in ("no_causal_mask", "memory_ignored") else ["gradients"]:
        assert example.remark in texts(vis.FIGURES[name][0](example)), name


@pytest.mark.parametrize("bug, hidden", [("no_causal_mask", 0), ("causal_sees_next", 6), ("no_positions", 10)])
def test_a_mask_that_the_model_does_not_keep_to_is_not_drawn(tmp_path, monkeypatch, bug, hidden):
    monkeypatch.setattr(vis, "greedy_decode", lambda *_: np.array([[4, 9, 3, 5, 2]]))
    path = write_checkpoint(tmp_path / "bug.npz", dict(SETTINGS, inject_bug=bug))
    example = vis.Example.of(training.load_checkpoint(path), [5, 3, 9, 4])
    assert (example.masks["decoder"].sum(axis=(-1, -2)) == hidden).all()


def test_gradients_are_those_of_the_target_that_it_was_trained_on(tmp_path):
    path = write_checkpoint(tmp_path / "bug.npz", dict(SETTINGS, inject_bug="target_not_shifted"))
    checkpoint = training.load_checkpoint(path)
    example = vis.Example.of(checkpoint, [5, 3, 9, 4])
    shifts = [None, bugs.SHIFTS["target_not_shifted"]]
    right, wrong = (vis.gradient_norms(checkpoint.model, example.src, example.tgt, label_smoothing=0.1,
                                       **({"shift": shift} if shift else {})) for shift in shifts)
    shown = np.concatenate([line.get_xdata() for ax in vis.draw_gradients(example).axes for line in ax.lines])
    np.testing.assert_allclose(np.sort(shown), np.sort(list(wrong.values())))
    assert right["output_projection"] != pytest.approx(wrong["output_projection"])


def test_a_model_trained_with_own_classes_is_drawn_with_them(tmp_path, monkeypatch):
    path = write_checkpoint(tmp_path / "own.npz", dict(SETTINGS, with_exercises=True))
    library = vis.Example.of(training.load_checkpoint(write_checkpoint(tmp_path / "library.npz")), [5, 3, 9])
    solution = (ROOT / "exercises" / "solutions" / "solution_01_scaled_dot_product.py").read_text(encoding="utf-8")
    (tmp_path / "exercises").mkdir()
    for path_of_stub in (ROOT / "exercises").glob("exercise_*.py"):
        shutil.copy(path_of_stub, tmp_path / "exercises")
    monkeypatch.setattr(finale, "EXERCISES", tmp_path / "exercises")
    wrong, n = re.subn(r"math\.sqrt\((\w[\w.\[\]-]*)\)", r"\1", solution)
    assert n
    for code, same in ((solution, True), (wrong, False)):
        (tmp_path / "exercises" / "exercise_01_scaled_dot_product.py").write_text(code, encoding="utf-8")
        checkpoint = training.load_checkpoint(path)
        for _ in range(2):                                              # a second example of the same checkpoint
            example = vis.Example.of(checkpoint, [5, 3, 9])
            difference = np.abs(example.attention["encoder"][0] - library.attention["encoder"][0]).max()
            assert (difference < 1e-6) == same and "exercises/" in example.remark


def test_decoding_shows_the_candidates_of_each_step_best_first():
    probabilities, attention = weights(3, 7, seed=1), weights(3, 4, seed=2)
    chosen = np.array([probabilities[0].argmax(), np.argsort(-probabilities[1])[2], probabilities[2].argmax()])
    names = ["<pad>", "<start>", "<end>", "p", "q", "r", "s"]
    figure = vis.plot_decoding(chosen, probabilities, attention, list("abcd"), names, most=4)
    looked, candidates = images(figure)
    np.testing.assert_array_equal(looked, attention)
    np.testing.assert_array_equal(candidates, -np.sort(-probabilities, axis=-1)[:, :4])
    ax = figure.axes[1]
    frames = [patch.get_xy() for patch in ax.patches if isinstance(patch, Rectangle)]
    assert frames == [(-0.5, -0.5), (1.5, 0.5), (-0.5, 1.5)]
    written = [text.get_text() for text in ax.texts]
    first = int(probabilities[0].argmax())
    assert written[:2] == [names[first], f"{100 * probabilities[0, first]:.1f}%"]
    assert tick_labels(figure.axes[0].yaxis) == ["<start>", names[chosen[0]], names[chosen[1]]]


@pytest.mark.parametrize("share, text", [(0, "0%"), (1, "100%"), (0.5, "50.0%"), (0.0004, "<0.1%"), (0.99951, ">99.9%"),
                                         (0.001, "0.1%")])
def test_a_percentage_claims_no_certainty_that_is_not_there(share, text):
    assert vis.percent(share) == text


def test_masks_are_those_of_the_model():
    tokens = np.array([5, 3, 2, 0])
    figure = vis.plot_masks(tokens, ["5", "3", "<end>", "<pad>"])
    padding, causal, both = (np.ma.getmaskarray(image) for image in images(figure)[:3])
    np.testing.assert_array_equal(padding, np.broadcast_to(tokens == 0, (4, 4)))
    np.testing.assert_array_equal(causal, np.triu(np.ones((4, 4), dtype=bool), 1))
    np.testing.assert_array_equal(both, padding | causal)


def test_entropy_is_in_bits_and_its_limit_counts_visible_keys():
    np.testing.assert_allclose(vis.attention_entropy([[0.25] * 4, [1, 0, 0, 0], [0.5, 0.5, 0, 0]]), [2, 0, 1])
    w = np.zeros((1, 2, 2, 4))
    w[:, 0, :, :2], w[:, 1, 0, 0], w[:, 1, 1, :2] = 0.5, 1, 0.5
    mask = np.array([[[[False, False, False, True]]]])
    figure = vis.plot_attention_entropy({"cross": w}, {"cross": mask})
    np.testing.assert_allclose(images(figure)[0], [[1.0, 0.5]])
    assert "uniform: 1.58 bits" in texts(figure)                                         # log2 of 3 visible keys


def test_positional_encoding_and_its_dot_products():
    pe = model_code.PositionalEncoding(12, 30, dtype=np.float64).pe
    figure = vis.plot_positional_encoding(pe, max_positions=20, dims_to_show=10)
    np.testing.assert_array_equal(images(figure)[0], pe[:20, :10])
    assert figure.axes[0].images[0].get_clim() == (-1, 1)
    waves = [line for ax in figure.axes for line in ax.lines if len(line.get_xdata()) == 20]
    for line, dimension in zip(waves, (0, 2, 4), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), pe[:20, dimension])
        assert f"dim. {dimension}" in texts(figure)
    figure = vis.plot_position_similarity(pe, positions=[3, 7])
    np.testing.assert_allclose(images(figure)[0], pe @ pe.T)
    curves = [line.get_ydata() for ax in figure.axes for line in ax.lines if len(line.get_xdata()) == 30]
    np.testing.assert_allclose(curves, (pe @ pe.T)[[3, 7]])


def test_scaling_64_dimensions_have_variance_64_and_1_after_the_scale():
    figure = vis.visualize_attention_scaling((4, 64, 256))
    def curves(ax):
        return [np.asarray(line.get_ydata(), dtype=float) for line in ax.lines]
    (raw, scaled), (sharp, soft), (vanishing, steady) = (curves(ax) for ax in figure.axes[:3])
    np.testing.assert_allclose(raw, [4, 64, 256], rtol=0.1)
    np.testing.assert_allclose(scaled, [1, 1, 1], rtol=0.1)
    assert sharp[1] > 0.8 and sharp[2] > sharp[1] > sharp[0] and soft.max() < 0.3         # one weight takes all
    assert vanishing[2] < vanishing[1] < 0.7 * vanishing[0] and np.ptp(steady) < 0.03
    bars = [[bar.get_height() for bar in ax.patches] for ax in figure.axes[3:]]
    np.testing.assert_allclose([sum(heights) for heights in bars], [1, 1])
    again = vis.visualize_attention_scaling((4, 64, 256))
    np.testing.assert_array_equal(curves(again.axes[0])[0], raw)


def test_scores_and_gradient_of_the_scaling_figure():
    rng = np.random.default_rng(0)
    assert vis.sample_scores(5, 7, 3, rng).shape == (7, 3)
    y = model_code.softmax(rng.normal(size=(4, 6)))
    derivatives = [np.diag(row) - np.outer(row, row) for row in y]
    assert vis.gradient_through_softmax(y) == pytest.approx(np.mean([np.linalg.norm(d) for d in derivatives]))


def test_learning_curves_are_the_history():
    figure = vis.plot_learning_curves(HISTORY, floor=0.4)
    lines = {round(float(line.get_ydata()[-1]), 6): line for ax in figure.axes for line in ax.lines}
    for name in ("loss", "token_accuracy", "exact_match", "learning_rate"):
        records = [(entry["step"], entry[name]) for entry in HISTORY if name in entry]
        line = lines[round(records[-1][1], 6)]
        np.testing.assert_allclose(line.get_xydata(), records)
    assert "80.0% whole sequences, held out" in texts(figure)
    assert "0.40 is the smallest possible" in texts(figure)
    assert "0.002 at step 200" in texts(figure)


def test_the_smallest_loss_is_the_entropy_of_the_smoothed_target():
    q = np.full(12, 0.1 / 12)
    q[0] += 0.9
    assert vis.smallest_loss(12, 0.1) == pytest.approx(-(q * np.log(q)).sum())


@pytest.mark.parametrize("tied", [False, True])
def test_gradient_norms_are_those_of_one_backward(tied):
    model = model_code.Transformer(12, 12, 16, 2, 2, 1, 32, 0.5, tie_embeddings=tied, rng=0, dtype=np.float64)
    src, tgt = np.array([[5, 3, 2]]), np.array([[1, 3, 5, 2]])
    for gradient in model.named_gradients().values():
        gradient[...] = 7
    norms = vis.gradient_norms(model, src, tgt, label_smoothing=0.1)
    assert all((gradient == 7).all() for gradient in model.named_gradients().values()) and model.training
    model.eval()
    model.zero_grad()
    loss = training.CrossEntropyLoss(label_smoothing=0.1)
    loss(model(src, tgt[:, :-1], *training.make_masks(src, tgt[:, :-1])), tgt[:, 1:])
    model.backward(loss.backward())
    gradients = model.named_gradients()
    name = "decoder_layers.0.cross_attention"
    parts = [gradients[f"{name}.{weight}"].ravel() for weight in ("W_Q", "W_K", "W_V", "W_O")]
    assert norms[name] == pytest.approx(np.linalg.norm(np.concatenate(parts)))
    total = np.sqrt(sum(float((gradient ** 2).sum()) for gradient in gradients.values()))
    assert np.linalg.norm(list(norms.values())) == pytest.approx(total)
    assert ("output_projection" in norms) is not tied

    figure = vis.plot_gradient_norms(norms)
    shown = np.concatenate([line.get_xdata() for ax in figure.axes for line in ax.lines])
    np.testing.assert_allclose(np.sort(shown), np.sort(list(norms.values())))
    first = figure.axes[0].lines[0].get_xdata()
    assert first[0] == norms["src_embedding"] and first[1] == norms["encoder_layers.0.self_attention"]
    if not tied:
        assert figure.axes[1].lines[0].get_xdata()[-1] == norms["output_projection"]


@pytest.mark.parametrize("tied", [False, True])
def test_figure_1_has_the_sizes_of_the_model(tied):
    model = model_code.Transformer(13, 13, 24, 3, 1, 2, 40, tie_embeddings=tied, rng=0)
    counts = vis.count_weights(vis.sizes_of(model))
    block = model.decoder_layers[0]
    for kind, layer in (("attention", block.cross_attention), ("norm", block.norm1), ("all", model),
                        ("feed_forward", block.feed_forward), ("src_embedding", model.src_embedding)):
        assert counts[kind] == layer.num_parameters(), kind
    written = texts(vis.plot_transformer_architecture(model=model))
    assert f"3 heads of 8: {block.self_attention.num_parameters():,} weights" in written
    assert f"24 → 40 → 24: {block.feed_forward.num_parameters():,} weights" in written
    assert "13 × 24 = 312" in written and {"1×", "2×"} <= set(written)
    assert any(f"{model.num_parameters():,} weights" in text for text in written)
    assert written.count("Add & Norm") == 5
    assert ("shared with the source" in written) is tied


def test_figure_1_without_a_model_is_the_papers_base_model():
    written = texts(vis.plot_transformer_architecture())
    assert any("d_model 512, 8 heads of d_k 64, d_ff 2,048, 6 + 6 layers" in text for text in written)


# ------------------------------------------------------------------------------------------------ labels and fonts


@pytest.mark.parametrize("labels, words", [(dict(x_labels=list("abc")), r"3 labels for 4 keys \(columns\)"),
                                           (dict(y_labels=list("abcd")), r"4 labels for 3 queries \(rows\)")])
def test_a_wrong_number_of_labels_is_an_error(labels, words):
    with pytest.raises(ValueError, match=words):
        vis.plot_attention_weights(weights(3, 4), **labels)


@pytest.mark.parametrize("n", [1, 40, 41, 60, 150])
def test_labels_are_thinned_beyond_forty(n):
    names = [f"t{i}" for i in range(n)]
    ax = vis.plot_attention_weights(weights(n, n), names, names).axes[0]
    for axis in (ax.xaxis, ax.yaxis):
        places = axis.get_ticklocs()
        assert len(places) <= 40 and places[0] == 0 and len(set(np.diff(places))) <= 1
        assert tick_labels(axis) == [names[int(place)] for place in places]
    assert n > 40 or len(ax.get_yticks()) == n


def touching(one, other):
    return min(one.x1, other.x1) - max(one.x0, other.x0) > 0.5 and min(one.y1, other.y1) - max(one.y0, other.y0) > 0.5


def assert_tidy(figure):
    """Nothing leaves the page, and no label of an axis touches its neighbour."""
    FigureCanvasAgg(figure)
    drawn, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert drawn.x0 >= 0 and drawn.y0 >= 0 and drawn.x1 <= width and drawn.y1 <= height, drawn
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            boxes = [label.get_window_extent() for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels())
                     if label.get_text() and low <= place <= high]
            assert not any(touching(one, other) for one, other in zip(boxes, boxes[1:])), tick_labels(axis)


@pytest.mark.parametrize("labels", [["a"], ["<start>", "5", "11"], [str(i) for i in range(60)],
                                    ["Rindfleischetikettierung", "is", "long"], list("中文ع😀🥺") * 3])
def test_labels_stay_on_the_page_and_apart(labels):
    n = len(labels)
    assert_tidy(vis.plot_attention_weights(weights(n, n), labels, labels, "A title that is wider than a small map is"))
    assert_tidy(vis.plot_multi_head_attention(weights(3, n, n), x_labels=labels, y_labels=labels))
    assert_tidy(vis.plot_every_head(*[weights(1, 2, n, n)] * 3, labels, labels))


@pytest.mark.parametrize("tokens", [pytest.param([7], marks=pytest.mark.slow), [3 + i % 9 for i in range(60)]])
def test_every_figure_of_short_and_long_inputs_is_tidy(checkpoint, tokens):
    example = vis.Example.of(training.load_checkpoint(checkpoint), tokens)
    for draw, _ in vis.FIGURES.values():
        assert_tidy(draw(example))


def test_characters_are_shown_literally_or_by_code_point(monkeypatch):
    assert vis.legible("$x_1^2$\\frac") == ("$x_1^2$\\frac", ["DejaVu Sans"])
    assert vis.legible(" ")[0] == "␣" and vis.legible("\n")[0] == "U+000A" and vis.legible("\u200b")[0] == "U+200B"
    assert vis.legible("\u0301")[0] == "◌\u0301" and vis.legible("two words")[0] == "two words"
    assert vis.legible("عA") == ("عA", ["DejaVu Sans"])
    assert vis.legible("\u231a") == ("\u231a", ["DejaVu Sans", vis.font_with("\u231a")])  # a watch: not in DejaVu Sans
    assert vis.font_with("\u231a") is not None
    with monkeypatch.context() as patch:
        patch.setattr(vis.font_manager.fontManager, "ttflist",
                      [font for font in vis.font_manager.fontManager.ttflist if font.name == "DejaVu Sans"])
        for cached in (vis.font_with, vis.legible, vis.text_width):
            cached.cache_clear()
        assert vis.legible("中")[0] == "U+4E2D" and vis.legible("🥺")[0] == "U+1F97A"
        figure = vis.plot_attention_weights(np.eye(3), ["中", "$a$", " "], ["🥺", "ع", "\u231a"], "中 $x$")
        FigureCanvasAgg(figure).draw()
        assert tick_labels(figure.axes[0].xaxis) == ["U+4E2D", "$a$", "␣"]
        assert "U+4E2D $x$" in texts(figure)
        assert not any(text.get_parse_math() for text in figure.findobj(matplotlib.text.Text))
        assert_tidy(figure)
    for cached in (vis.font_with, vis.legible, vis.text_width):
        cached.cache_clear()


@pytest.mark.parametrize("call, error, words", [
    (lambda: vis.plot_attention_weights(weights(2, 3, 3)), ValueError, r"\(queries, keys\).*\(2, 3, 3\)"),
    (lambda: vis.plot_attention_weights(np.full((2, 2), 3.0)), ValueError, "between 0 and 1, got 3"),
    (lambda: vis.plot_attention_weights(np.full((2, 2), np.nan)), ValueError, "between 0 and 1, got nan"),
    (lambda: vis.plot_attention_weights(np.eye(2), mask=np.eye(2)), TypeError, "True = hidden"),
    (lambda: vis.plot_attention_weights(np.eye(2), mask=np.zeros((3, 2), bool)), ValueError, "does not broadcast"),
    (lambda: vis.plot_multi_head_attention(weights(3, 3)), ValueError, "one sequence, got shape"),
    (lambda: vis.plot_multi_head_attention(weights(2, 3, 3), ["one"]), ValueError, "1 labels for 2 heads"),
    (lambda: vis.plot_positional_encoding(np.zeros(3)), ValueError, "positions, d_model"),
    (lambda: vis.plot_learning_curves([]), ValueError, "history is empty"),
    (lambda: vis.plot_gradient_norms({}), ValueError, "no gradient norms"),
    (lambda: vis.plot_masks(np.zeros((2, 2), int)), ValueError, "one sequence"),
    (lambda: vis.plot_attention_weights(np.eye(2), save_path="figure.bmp"), ValueError, "figure.bmp"),
])
def test_misuse_names_what_is_wrong(call, error, words):
    with pytest.raises(error, match=words):
        call()


# -------------------------------------------------------------------------------------- pyplot, styles and files


def test_importing_touches_neither_pyplot_nor_settings():
    code = ("import sys, matplotlib; before = dict(matplotlib.rcParams.copy()); import visualization; "
            "assert 'matplotlib.pyplot' not in sys.modules; assert dict(matplotlib.rcParams.copy()) == before")
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=120)


def test_thirty_calls_leave_no_figure_open_and_settings_as_they_were(tmp_path):
    import matplotlib.pyplot as plt
    before = dict(matplotlib.rcParams.copy())
    for i in range(30):
        figure = vis.plot_attention_weights(np.eye(2), save_path=tmp_path / "map.png" if i % 10 == 0 else None)
        assert isinstance(figure, matplotlib.figure.Figure)
    assert plt.get_fignums() == [] and dict(matplotlib.rcParams.copy()) == before


def test_show_opens_a_window_once_and_closes_it(monkeypatch):
    import matplotlib.pyplot as plt
    seen = []
    monkeypatch.setattr(plt, "show", lambda: seen.extend(plt.figure(number) for number in plt.get_fignums()))
    vis.plot_attention_weights(np.eye(2))
    assert seen == []
    figure = vis.plot_attention_weights(np.eye(2), show=True)
    assert seen == [figure] and plt.get_fignums() == []


@pytest.mark.parametrize("kind, start", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_files_are_of_their_kind_and_equal_byte_for_byte(tmp_path, kind, start):
    def draw(name):
        vis.plot_attention_weights(weights(3, 3), list("a中$"), mask=np.eye(3, dtype=bool),
                                   save_path=tmp_path / f"{name}.{kind}")
        return (tmp_path / f"{name}.{kind}").read_bytes()
    first = draw("first")
    with matplotlib.rc_context({"figure.facecolor": "black", "font.size": 30, "savefig.dpi": 20, "svg.hashsalt": "x"}):
        second = draw("second")
    assert first.startswith(start) and first == second
    assert b"Date" not in first and b"Matplotlib v" not in first
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"first.{kind}", f"second.{kind}"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "map.png"
    path.write_bytes(b"old")

    def fail(self, file, **kwargs):
        Path(file).write_bytes(b"half")
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", fail)
    with pytest.raises(OSError):
        vis.plot_attention_weights(np.eye(2), save_path=path)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


# ---------------------------------------------------------------------------------------------------- command line


def run(capsys, *arguments):
    status = vis.main([str(argument) for argument in arguments])
    return (status, *capsys.readouterr())


def refused(capsys, *arguments):
    """The one line on standard error of a call that must end with status 2."""
    status, out, err = run(capsys, *arguments)
    assert status == 2 and out == "" and err.count("\n") == 1 and "Traceback" not in err, err
    return err


@pytest.mark.parametrize("kind", ["png", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("svg", "pdf"))])
def test_all_figures_and_an_index_page(capsys, tmp_path, checkpoint, kind):
    out = tmp_path / "new" / "folder"
    status, stdout, err = run(capsys, "--checkpoint", checkpoint, "--input", "5 3 9", "--out", out, "--format", kind)
    assert (status, err) == (0, "")
    assert {path.name for path in out.iterdir()} == {"index.html", *(f"{name}.{kind}" for name in vis.FIGURES)}
    assert "12 figures" in stdout and str(out / "index.html") in stdout and stdout.startswith("5 3 9 → ")
    page = (out / "index.html").read_text(encoding="utf-8")
    for name, (_, caption) in vis.FIGURES.items():
        assert page.count(f'href="{name}.{kind}"') == 1 and html.escape(caption) in page
    assert page.count("<img ") == page.count(" alt=") == (0 if kind == "pdf" else 12)
    assert "http" not in page and "step 200" in page
    if kind == "svg":
        assert run(capsys, "--checkpoint", checkpoint, "--input", "5 3 9", "--out", tmp_path, "--format", kind)[0] == 0
        for path in out.iterdir():
            assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def test_a_model_that_is_not_the_librarys_is_one_line_and_in_the_index(capsys, tmp_path):
    path = write_checkpoint(tmp_path / "bug.npz", dict(SETTINGS, inject_bug="scale_d_k"))
    status, _, err = run(capsys, "--checkpoint", path, "--figure", "masks", "--out", tmp_path)
    assert status == 0 and err.count("\n") == 1
    assert err.startswith("bug.npz: Trained and drawn with the mistake scale_d_k (the scores are divided by d_k")
    example = vis.Example.of(training.load_checkpoint(path), [5, 3, 9])
    assert html.escape(f"{example.remark}. {vis.AS_IN_THE_LIBRARY}.") in vis.index_page(example, {}, "png", "bug.npz")
    write_checkpoint(path, dict(SETTINGS, inject_bug="unheard_of"))
    assert "'unheard_of', which is not in exercises/bugs.py" in refused(capsys, "--checkpoint", path)


def test_one_figure_alone(capsys, tmp_path, checkpoint):
    status, stdout, err = run(capsys, "--checkpoint", checkpoint, "--figure", "masks", "--out", tmp_path)
    assert (status, err) == (0, "") and [path.name for path in tmp_path.iterdir()] == ["masks.png"]
    assert stdout.strip() == str(tmp_path / "masks.png")


def test_list_names_every_figure_without_a_checkpoint(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "--list")
    assert (status, err) == (0, "") and [line.split()[0] for line in out.splitlines()] == list(vis.FIGURES)


def test_without_a_checkpoint_it_says_which_command_makes_one(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "python train_minimal.py --task copy" in refused(capsys, "--input", "5 3 9")
    assert "--task reverse --checkpoint made/reverse.npz" in refused(capsys, "--checkpoint", "made/reverse.npz")
    assert list(tmp_path.iterdir()) == []


def test_the_default_checkpoint_and_output_folder(capsys, tmp_path, monkeypatch, checkpoint):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "copy.npz").write_bytes(checkpoint.read_bytes())
    assert run(capsys, "--figure", "decoding")[0] == 0
    assert (tmp_path / "figures" / "decoding.png").exists()


@pytest.mark.parametrize("arguments, words", [
    (["--figure", "archtecture"], "did you mean architecture?"),
    (["--figure", "zzz"], "there are architecture, attention,"),
    (["--input", "5 3 99"], "'99'"),
    (["--input", "five"], "'five'"),
    (["--input", ""], "empty"),
    (["--input", " ".join(["5"] * 201)], "201 tokens; a figure shows at most 200"),
    (["--format", "bmp"], "bmp"),
    (["--colour", "red"], "--colour"),
])
def test_wrong_usage_is_one_line(capsys, tmp_path, checkpoint, arguments, words):
    assert words in refused(capsys, "--checkpoint", checkpoint, "--out", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


def test_more_tokens_than_positions_is_one_line(capsys, tmp_path):
    path = write_checkpoint(tmp_path / "short.npz", max_len=5)
    assert "5 tokens; the model has positions for 4 and the end token" in refused(
        capsys, "--checkpoint", path, "--input", "3 4 5 6 7", "--out", tmp_path)
    assert run(capsys, "--checkpoint", path, "--input", "3 4 5 6", "--figure", "attention", "--out", tmp_path)[0] == 0
    assert run(capsys, "--checkpoint", path, "--figure", "attention", "--out", tmp_path)[0] == 0


@pytest.mark.parametrize("damage", [lambda data: data[:len(data) // 2], lambda data: b"", lambda data: b"not a zip",
                                    lambda data: data[:3000] + b"\x00\xff" * 40 + data[3080:]])
def test_a_damaged_checkpoint_is_one_line(capsys, tmp_path, checkpoint, damage):
    path = tmp_path / "damaged.npz"
    path.write_bytes(damage(checkpoint.read_bytes()))
    assert "damaged.npz" in refused(capsys, "--checkpoint", path, "--out", tmp_path / "out")


def test_a_folder_as_checkpoint_is_one_line(capsys, tmp_path):
    refused(capsys, "--checkpoint", tmp_path, "--out", tmp_path / "out")


def test_an_output_folder_that_cannot_be_written_is_one_line(capsys, tmp_path, checkpoint):
    (tmp_path / "file").write_text("in the way")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        message = refused(capsys, "--checkpoint", checkpoint, "--figure", "masks", "--out", out)
        assert f"cannot write to {out}" in message


def test_text_of_any_script(capsys, tmp_path, strange_checkpoint):
    status, _, err = run(capsys, "--checkpoint", strange_checkpoint, "--input", STRANGE, "--format", "svg", "--out",
                         tmp_path)
    assert (status, err) == (0, "")
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert "\\&lt;&amp;{中文ع😀🥺" in page and "<&" not in page
    assert "U+0416" in refused(capsys, "--checkpoint", strange_checkpoint, "--input", "aЖ", "--out", tmp_path)


def test_scripts_that_run_leftwards_get_a_line_for_source_and_one_for_answer(strange_checkpoint, example):
    checkpoint = training.load_checkpoint(strange_checkpoint)
    notes = vis.Example.of(checkpoint, training.parse_tokens("aع", 99, checkpoint.vocabulary)).notes
    assert notes[0] == "source: aع" and notes[1].startswith("answer: ") and len(example.notes) == 1


def test_a_checkpoint_without_history_still_gives_the_other_figures(capsys, tmp_path, monkeypatch):
    path = write_checkpoint(tmp_path / "bare.npz", history=[])
    monkeypatch.setattr(vis, "FIGURES", {name: vis.FIGURES[name] for name in ("masks", "learning", "entropy")})
    status, _, err = run(capsys, "--checkpoint", path, "--out", tmp_path / "out")
    assert status == 0 and err == "learning was not drawn: the history is empty: no step of the training was recorded\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["entropy.png", "index.html", "masks.png"]
    assert "learning" not in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert "history is empty" in refused(capsys, "--checkpoint", path, "--figure", "learning", "--out", tmp_path)


def test_a_terminal_sees_a_progress_bar(capsys, tmp_path, monkeypatch, checkpoint):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    status, _, err = run(capsys, "--checkpoint", checkpoint, "--figure", "masks", "--out", tmp_path)
    assert status == 0 and "figures" in err and "1/1" in err


def test_interrupted(capsys, tmp_path, monkeypatch, checkpoint):
    def stop(example):
        raise KeyboardInterrupt
    monkeypatch.setitem(vis.FIGURES, "masks", (stop, ""))
    status, out, err = run(capsys, "--checkpoint", checkpoint, "--figure", "masks", "--out", tmp_path)
    assert (status, out, err) == (130, "", "interrupted\n")


def test_as_a_program_without_a_display(tmp_path, checkpoint):
    environment = {key: value for key, value in os.environ.items() if key not in ("DISPLAY", "MPLBACKEND")}
    command = [sys.executable, str(ROOT / "visualization.py"), "--checkpoint", str(checkpoint)]
    done = subprocess.run([*command, "--figure", "attention", "--out", str(tmp_path)], env=environment,
                          capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "") and (tmp_path / "attention.png").exists()
    failed = subprocess.run([*command, "--figure", "none"], env=environment, capture_output=True, text=True,
                            timeout=120)
    assert failed.returncode == 2 and failed.stderr.startswith("visualization.py: error: ") and failed.stderr.count("\n") == 1
