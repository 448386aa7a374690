"""The mistakes of --inject-bug: wrong in the way they say, differentiated rightly, decoded without a cache."""

import types
from pathlib import Path

import numpy as np
import pytest

import implementation
from exercises import measure_bugs
from exercises.bugs import BUGS, WRONG, inject
from gradient_check import gradient_errors, shake
from implementation import Transformer, create_causal_mask, create_padding_mask
from reference import definitions, changed_source
from train_minimal import DEFAULTS, Run, beam_search, greedy_decode, load_checkpoint, main, save_checkpoint

SRC = np.array([[3, 4, 4, 5, 2], [6, 3, 2, 0, 0], [5, 5, 7, 2, 0]])
TGT = np.array([[1, 5, 3, 5], [1, 6, 2, 0], [1, 7, 5, 5]])


def masks(src=SRC, tgt=TGT):
    return create_padding_mask(src), create_padding_mask(tgt) | create_causal_mask(tgt.shape[1])


def model(module=implementation, layers=1, dropout_p=0.0, **more):
    built = module.Transformer(8, 8, 8, 2, layers, layers, 12, dropout_p, 9, rng=1, dtype=np.float64, **more)
    return shake(built, np.random.default_rng(2), 0.2)


def library_with(changes):
    """implementation.py with the lines of the catalogue changed."""
    source = Path(implementation.__file__).read_text(encoding="utf-8")
    for name in {where.partition(".")[0] for where, _, _ in changes} & definitions().keys():
        source = source.replace(definitions()[name][0], changed_source(name, changes))
    module = types.ModuleType("changed_implementation")
    exec(source, vars(module))
    return module


def test_the_ten_that_were_asked_for_and_more_are_there():
    assert {"no_causal_mask", "mask_after_softmax", "softmax_over_queries", "heads_split_without_transpose",
            "heads_merged_without_transpose", "no_scaling", "no_sqrt_d_model", "pre_norm", "no_positions",
            "memory_ignored", "target_not_shifted"} <= BUGS.keys()
    assert all(sentence and "\n" not in sentence for sentence in BUGS.values())


@pytest.mark.parametrize("bug", BUGS)
def test_backward_is_the_derivative_of_the_wrong_function(bug):
    wrong, shift = inject(model(dropout_p=0.2), bug)
    tgt = shift(np.c_[TGT, TGT[:, -1]])[0] if shift else TGT
    errors = gradient_errors(wrong, (), (SRC, tgt, *masks()), np.random.default_rng(3))
    assert errors.keys() == model().named_parameters().keys()
    assert max(errors.values()) < 1e-6


@pytest.mark.parametrize("bug", BUGS.keys() - {"target_not_shifted"})
def test_the_wrong_model_is_the_mistake_of_the_catalogue(bug):
    """The same numbers as the library with its text changed as the catalogue says, and not those of the library."""
    changes = [change for _, changes in measure_bugs.changes_of(bug) for change in changes]
    library = library_with(changes)
    given = library.create_padding_mask(SRC), library.create_padding_mask(TGT) | library.create_causal_mask(4)
    expected = model(library, layers=2)(SRC, TGT, *given)
    wrong, shift = inject(model(layers=2), bug)
    np.testing.assert_allclose(wrong(SRC, TGT, *masks()), expected, rtol=0, atol=1e-12)
    assert np.abs(expected - model(layers=2)(SRC, TGT, *masks())).max() > 1e-3
    assert shift is None


def test_the_target_that_is_not_shifted():
    _, shift = inject(model(), "target_not_shifted")
    read, predicted = shift(TGT)
    np.testing.assert_array_equal(read, predicted)
    np.testing.assert_array_equal(read, TGT[:, :-1])


def by_forward(wrong, src, steps, choose=lambda logits: logits.argmax(axis=-1)):
    """Writing one token at a time with nothing but forward."""
    tokens = np.ones((len(src), 1), dtype=int)
    for _ in range(steps):
        tokens = np.c_[tokens, choose(wrong(src, tokens, *masks(src, tokens))[:, -1])]
    return tokens[:, 1:]


@pytest.mark.parametrize("bug", ["softmax_over_queries", "mask_after_softmax", "heads_split_without_transpose",
                                 "no_causal_mask", "pre_norm", "memory_ignored"])
def test_free_running_decoding_is_the_wrong_forward_on_the_prefix(bug):
    wrong, _ = inject(model(layers=2), bug)
    wrong.eval()
    for src in (SRC, SRC[1:2]):
        written = by_forward(wrong, src, 6)
        ended = np.cumsum(written == 2, axis=1) - (written == 2) > 0
        expected = np.where(ended, 0, written)
        for answer in (greedy_decode(wrong, src, 6), beam_search(wrong, src, 6, beam_size=1)):
            np.testing.assert_array_equal(answer, expected[:, :answer.shape[1]])
            assert not expected[:, answer.shape[1]:].any()


def test_a_step_gives_the_last_logits_of_forward_where_a_cache_would_not():
    cached, whole = model(layers=2), inject(model(layers=2), "no_causal_mask")[0]
    for layer in cached.layers():
        for wrong in WRONG["no_causal_mask"]:
            if issubclass(wrong, type(layer)):
                layer.__class__ = type("Cached", (wrong,), {name: getattr(Transformer, name)
                                                            for name in ("encode", "start_decoding", "decode_step")})
    expected = whole(SRC, TGT, *masks())[:, -1]
    differences = []
    for wrong in (whole, cached):
        state = wrong.start_decoding(wrong.encode(SRC, masks()[0]), masks()[0])
        for token in TGT.T:
            logits = wrong.decode_step(token, state)
        differences.append(np.abs(logits - expected)[[0, 2]].max())           # row 1 ends in padding
    assert differences[0] == 0 < 1e-3 < differences[1]


def test_beams_are_reordered_with_their_sources():
    wrong, _ = inject(model(), "softmax_over_queries")
    wrong.eval()
    src = np.repeat(SRC, 2, axis=0)
    src_mask = create_padding_mask(src)
    state = wrong.start_decoding(np.repeat(wrong.encode(SRC, src_mask[::2]), 2, axis=0), src_mask)
    wrong.decode_step(np.ones(6, dtype=int), state)
    order = np.array([5, 0, 3, 3, 2, 1])
    state.reorder(order)
    tokens = np.array([3, 4, 5, 6, 7, 3])
    expected = wrong(src[order], np.c_[np.ones(6, dtype=int), tokens], src_mask[order], create_causal_mask(2))[:, -1]
    np.testing.assert_allclose(wrong.decode_step(tokens, state), expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="4 rows does not come from the 3 sequences"):
        wrong.encode(SRC)
        wrong.start_decoding(np.zeros((4, 5, 8)))


def test_a_wrong_model_stays_in_float32_and_its_checkpoint_loads(tmp_path):
    for bug in BUGS:
        wrong, _ = inject(Transformer(8, 8, 8, 2, 1, 1, 12, 0.1, 9, rng=1, tie_embeddings=True), bug)
        logits = wrong(SRC, TGT, *masks())
        wrong.backward(np.ones_like(logits))
        assert {a.dtype for a in (logits, *wrong.named_gradients().values())} == {np.dtype(np.float32)}
        assert np.abs(logits).max() > 0 and wrong.decoder_layers[-1].cross_attention.get_attention_weights().shape == (
            3, 2, 4, 5)
    save_checkpoint(tmp_path / "wrong.npz", wrong)
    loaded = load_checkpoint(tmp_path / "wrong.npz").model
    assert type(loaded) is Transformer
    for name, weight in wrong.named_parameters().items():
        np.testing.assert_array_equal(loaded.named_parameters()[name], weight)


# ------------------------------------------------------------------------------------------------- the command line


def test_the_list_names_every_mistake_with_its_sentence(capsys):
    assert main(["--inject-bug", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines] == list(BUGS)
    assert all(line.endswith(sentence) for line, sentence in zip(lines, BUGS.values()))


SMALL = "--d-model 8 --n-heads 2 --n-layers 1 --seq-len 4 --batch-size 4".split()


@pytest.mark.parametrize("bug", ["no_causal_mask", "memory_ignored", "target_not_shifted"])
def test_a_run_reports_both_figures_and_can_be_asked_and_resumed(bug, tmp_path, capsys):
    run = ["--checkpoint", str(tmp_path / "m.npz"), "--inject-bug", bug]
    assert main([*SMALL, *run, "--max-steps", "2"]) == 1
    printed = capsys.readouterr().out
    assert "exact match" in printed and "token accuracy" in printed and f"mistake {bug}: {BUGS[bug]}" in printed
    assert main([*run, "--resume", "--max-steps", "3"]) == 1
    capsys.readouterr()
    assert main(["--checkpoint", str(tmp_path / "m.npz"), "--predict", "3 4"]) == 0
    assert capsys.readouterr().out.startswith("3 4 -> ")


def test_a_mistake_that_is_not_known_is_one_line(tmp_path, monkeypatch, capsys):
    path = str(tmp_path / "m.npz")
    monkeypatch.setitem(BUGS, "forgotten", "a mistake that a later version no longer has")
    assert main([*SMALL, "--checkpoint", path, "--inject-bug", "forgotten", "--max-steps", "1"]) == 1
    monkeypatch.delitem(BUGS, "forgotten")
    for options in (["--predict", "3 4"], ["--resume"]):
        capsys.readouterr()
        assert main(["--checkpoint", path, *options]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "'forgotten', which is not in exercises/bugs.py" in error


@pytest.mark.slow
@pytest.mark.parametrize("bug, exact", [("no_causal_mask", (0, 0.2)), ("no_scaling", (0.95, 1))])
def test_teacher_forcing_is_blind(bug, exact):
    """Both train to nearly 100 % under teacher forcing; free-running decoding tells them apart."""
    run = Run({**DEFAULTS, **measure_bugs.SETTING, "n_layers": 2, "inject_bug": bug})
    for _ in range(measure_bugs.STEPS):
        run.train_step()
    _, token_accuracy = run.teacher_forced(run.held_out["test"])
    assert token_accuracy > 0.97
    assert exact[0] <= run.exact(run.held_out["test"]).mean() <= exact[1]


# ------------------------------------------------------------------------------------------------ the measured table


@pytest.mark.parametrize("bug", BUGS)
def test_the_grader_rejects_and_names_each_of_them(bug):
    named = measure_bugs.graded(bug)
    assert named and {mistake.id for mistake, _ in measure_bugs.changes_of(bug)} == set(named)


def test_the_page_shows_what_was_measured():
    """All of it, in the setting of today; --measure and then no option bring it up to date."""
    stored = measure_bugs.load()
    assert stored["bugs"].keys() == {"none", *BUGS, *measure_bugs.DEEPER}
    assert (stored["setting"], stored["steps"]) == (measure_bugs.SETTING, measure_bugs.STEPS)
    assert measure_bugs.main(["--check"]) == 0


def test_the_measured_story():
    """What exercises/README.md tells: teacher forcing is blind to the mask, copying is blind to the scale."""
    bugs = measure_bugs.load()["bugs"]
    assert bugs["none"]["copy"] == {"teacher_forced": 1, "exact_match": 1}
    for blind in ("no_causal_mask, 2 + 2 layers", "softmax_over_queries", "mask_after_softmax", "causal_sees_next"):
        assert bugs[blind]["copy"]["teacher_forced"] > 0.99 and bugs[blind]["copy"]["exact_match"] < 0.2
    assert min(bugs["no_scaling"]["copy"].values()) > 0.99
    assert all(row["named"] for name, row in bugs.items() if name != "none")


def test_only_the_part_between_the_marks_is_written(tmp_path, monkeypatch, capsys):
    page = tmp_path / "README.md"
    monkeypatch.setattr(measure_bugs, "PAGE", page)
    page.write_text("before\n<!-- measured: begin -->\nold\n<!-- measured: end -->\nafter\n", encoding="utf-8")
    assert measure_bugs.main(["--check"]) == 1
    assert measure_bugs.main([]) == 0 == measure_bugs.main(["--check"])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n") and text.endswith("after\n") and "| `no_scaling` |" in text
    page.write_text("no marks", encoding="utf-8")
    assert measure_bugs.main([]) == 2 and "once each" in capsys.readouterr().err


def test_percent_never_rounds_to_all_or_nothing():
    assert [measure_bugs.percent(share) for share in (0, 0.0004, 0.066, 0.5, 0.9996, 1)] == [
        "0 %", "0.1 %", "6.6 %", "50 %", "99.9 %", "100 %"]
