"""--with-exercises: the learner's classes in the model, whatever part of the exercises is written."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from exercises import finale
from exercises.bugs import inject
from exercises.finale import install
from exercises.make_stubs import BLOCK, solutions
from implementation import Layer, Transformer, create_causal_mask, create_padding_mask
from train_minimal import DEFAULTS, Run, beam_search, greedy_decode, load_checkpoint, main

ROOT = Path(finale.__file__).resolve().parent.parent
SRC = np.array([[3, 4, 4, 5, 2], [6, 3, 2, 0, 0], [5, 5, 7, 2, 0]])
TGT = np.array([[1, 5, 3, 5], [1, 6, 2, 0], [1, 7, 5, 5]])
MASKS = create_padding_mask(SRC), create_padding_mask(TGT) | create_causal_mask(4)


def write_exercises(folder, keep, changes=()):
    """The solutions as exercises, with a TODO in place of each block whose name keep does not hold for.

    changes are (exercise, old, new); old stands there exactly once.
    """
    folder.mkdir(exist_ok=True)
    for path in solutions():
        text, number = path.read_text(encoding="utf-8"), int(re.search(r"solution_0(\d)", path.name)[1])

        def block(match):
            before = text[:match.start()]
            method = re.findall(r"^( *)def (\w+)", before, re.M)[-1]
            owner = re.findall(r"^class (\w+)", before, re.M)[-1] + "." if method[0] else ""
            return match[0] if keep(number, owner + method[1]) else f'{match[1]}raise NotImplementedError("TODO")\n'

        written = BLOCK.sub(block, text)
        for _, old, new in (change for change in changes if change[0] == number):
            assert written.count(old) == 1, old
            written = written.replace(old, new)
        (folder / path.name.replace("solution_", "exercise_")).write_text(written, encoding="utf-8")
    return folder


def everything(number, name):
    return True


def forwards(number, name):
    return not name.endswith(".backward")


def subset(seed):
    chosen = np.random.default_rng(seed)
    return lambda number, name: chosen.random() < 0.6


CHOICES = {"everything": everything, "nothing": lambda number, name: False, "forwards only": forwards,
           **{f"exercise {n} alone": lambda number, name, n=n: number == n for n in range(1, 6)},
           **{f"forwards of exercise {n}": lambda number, name, n=n: number == n and forwards(number, name)
              for n in range(1, 6)},
           "layer norm alone": lambda number, name: name.startswith("LayerNorm"),
           "layer norm forwards, add and norm": lambda number, name: name == "LayerNorm.forward" or "AddNorm" in name,
           "layer norm, add and norm forwards": lambda number, name: "LayerNorm" in name or name == "AddNorm.forward",
           **{f"subset {seed}": subset(seed) for seed in range(6)}}


def model(dropout_p=0.2, dtype=np.float64, **more):
    return Transformer(8, 8, 8, 2, 2, 2, 12, dropout_p, 9, rng=1, dtype=dtype, **more)


def one_step(model, dout=None):
    """Logits and gradients of a batch, and the random state afterwards."""
    logits = model(SRC, TGT, *MASKS)
    model.zero_grad()
    model.backward(np.random.default_rng(3).normal(size=logits.shape).astype(logits.dtype) if dout is None else dout)
    gradients = {name: gradient.copy() for name, gradient in model.named_gradients().items()}
    return logits, gradients, model.positional_encoding.dropout.rng.bit_generator.state


def assert_same_step(ours, theirs, atol=1e-12):
    np.testing.assert_allclose(ours[0], theirs[0], rtol=0, atol=atol)
    assert ours[1].keys() == theirs[1].keys()
    for name, gradient in theirs[1].items():
        np.testing.assert_allclose(ours[1][name], gradient, rtol=0, atol=10 * atol, err_msg=name)
    assert ours[2] == theirs[2]


@pytest.mark.parametrize("choice", CHOICES)
def test_right_exercises_train_as_the_library_does(choice, tmp_path, capsys):
    """Two batches: outputs, gradients, the state of the dropout; and decoding, whatever is written."""
    write_exercises(tmp_path, CHOICES[choice])
    tied = {"tie_embeddings": len(choice) % 2 == 0}
    yours, library = model(**tied), model(**tied)
    before = yours.positional_encoding.dropout.rng.bit_generator.state
    lines = install(yours, tmp_path)
    assert yours.positional_encoding.dropout.rng.bit_generator.state == before
    assert yours.named_parameters().keys() == library.named_parameters().keys()
    for _ in range(2):
        assert_same_step(one_step(yours), one_step(library))
    printed = capsys.readouterr().out
    if any("yours" in line for line in lines[1:14]):
        assert printed == "On the first batch all that is yours gives what the library gives.\n"
    else:
        assert type(yours) is Transformer and not printed and "Nothing of yours yet" in lines[-1]
    for each in (yours, library):
        each.eval()
    for decode in (greedy_decode, beam_search):
        np.testing.assert_array_equal(decode(yours, SRC, 6), decode(library, SRC, 6))
    assert yours.decoder_layers[0].cross_attention.get_attention_weights().ndim == 4


def test_the_lines_say_whose_code_is_used(tmp_path):
    keep = {"softmax", "ScaledDotProductAttention.forward", "sinusoidal_table", "PositionalEncoding.forward",
            "PositionalEncoding.backward", "create_causal_mask", "TokenEmbedding.backward"}
    lines = install(model(), write_exercises(tmp_path, lambda number, name: name in keep))
    said = {line.split()[1]: " ".join(line.split()[2:]) for line in lines[1:]}
    assert said.pop("ScaledDotProductAttention") == "forward yours, backward library"
    assert said.pop("PositionalEncoding") == "forward yours, backward yours"
    assert said.pop("create_causal_mask") == "yours"
    assert set(said) == {"MultiHeadAttention", "TokenEmbedding", "LayerNorm", "AddNorm", "FeedForward", "EncoderBlock",
                         "DecoderBlock", "Transformer", "create_padding_mask", "shift_target"}
    assert set(said.values()) == {"forward library, backward library", "library"}


def test_the_learners_objects_hold_the_arrays_of_the_model(tmp_path):
    yours = model()
    install(yours, write_exercises(tmp_path, everything))
    seats = [layer for layer in yours.layers() if hasattr(layer, "seat")]
    assert len(seats) == 1 + 4 + 2 * (2 + 2 + 1 + 1) + 2 * (3 + 4 + 1 + 1)
    for layer in seats:
        assert type(layer.seat.mine).__module__.startswith("exercises.exercise_0")
        for name in layer._weights:
            assert getattr(layer.seat.mine, name) is getattr(layer, name)
            assert getattr(layer.seat.mine, "d" + name) is getattr(layer, "d" + name)
    for switch, training in ((yours.eval, False), (yours.train, True)):
        switch()
        yours(SRC, TGT, *MASKS)
        assert {layer.seat.mine.training for layer in seats} == {training}


# ------------------------------------------------------------------------------------------------- wrong answers


SCALE = "/ math.sqrt(Q.shape[-1])                                "
NO_SCALE = (1, SCALE, "")
NO_SCALE_BACK = (1, "dscores = dscores / math.sqrt(Q.shape[-1])", "")


def test_a_wrong_forward_with_its_own_backward_trains_as_the_wrong_model(tmp_path, capsys):
    yours = model()
    install(yours, write_exercises(tmp_path, everything, [NO_SCALE, NO_SCALE_BACK]))
    assert_same_step(one_step(yours), one_step(inject(model(), "no_scaling")[0]))
    printed = capsys.readouterr().out
    assert "On the first batch your ScaledDotProductAttention differs" in printed and "grade.py 1" in printed
    assert set(re.findall(r"your (\w+) differs", printed)) == {"ScaledDotProductAttention", "attention_weights"}
    one_step(yours)
    assert not capsys.readouterr().out, "only the first batch is compared"


@pytest.mark.parametrize("keep", [everything, forwards])
def test_a_difference_is_laid_at_the_door_of_its_class_alone(keep, tmp_path, capsys):
    changes = [(4, "return self.gamma * x_hat + self.beta", "return self.gamma * x_hat"),
               (5, "return np.triu(np.ones((1, 1, seq_len, seq_len), dtype=bool), k=1)",
                "return np.triu(np.ones((1, 1, seq_len, seq_len), dtype=bool), k=2)")]
    yours = model()
    for layer in yours.layers():
        if hasattr(layer, "beta"):
            layer.beta += 0.5
    install(yours, write_exercises(tmp_path, keep, changes))
    one_step(yours)
    assert set(re.findall(r"your (\w+) differs", capsys.readouterr().out)) == {"LayerNorm", "create_causal_mask"}


def test_a_borrowed_backward_is_the_librarys_on_the_same_arrays(tmp_path):
    """The learner's last norm is wrong by a factor: the gradient is that of the library's norm all the same."""
    wrong = (4, "return self.gamma * x_hat + self.beta", "return 2 * (self.gamma * x_hat + self.beta)")
    yours, library = model(0), model(0)
    install(yours, write_exercises(tmp_path, lambda number, name: name == "LayerNorm.forward", [wrong]))
    layer, right = yours.encoder_layers[0].norm1, library.encoder_layers[0].norm1
    x, sublayer, dout = np.random.default_rng(0).normal(size=(3, 2, 4, 8))
    np.testing.assert_allclose(layer(x, sublayer), 2 * right(x, sublayer))
    for ours, theirs in zip(layer.backward(dout), right.backward(dout)):
        np.testing.assert_allclose(ours, theirs)
    np.testing.assert_allclose(layer.dgamma, right.dgamma)


def test_the_lent_backward_of_a_wrong_block_is_that_of_the_right_block(tmp_path):
    """The layers inside are the learner's too: what they computed for the wrong block must not answer for the right."""
    change = (4, "return self.norm2(x, self.feed_forward(x))", "return self.norm2(x, self.feed_forward(2 * x))")
    yours, library = model(), model()
    install(yours, write_exercises(tmp_path, forwards, [change]))
    x, dout = np.random.default_rng(0).normal(size=(2, 3, 5, 8))
    wrong, right = (each.encoder_layers[0](x, MASKS[0]) for each in (yours, library))
    assert np.abs(wrong - right).max() > 1e-3
    ours, theirs = (each.encoder_layers[0].backward(dout) for each in (yours, library))
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


def test_arrays_changed_in_place_do_not_reach_the_library(tmp_path, capsys):
    """The learner's attention changes Q, their block what attention returned: the library runs on what was there."""
    changes = [(1, "scores = Q @ K.swapaxes(-1, -2) / math.sqrt(Q.shape[-1])",
                "Q /= math.sqrt(Q.shape[-1])\n        scores = Q @ K.swapaxes(-1, -2)"),
               (4, "return self.norm2(x, self.feed_forward(x))",
                "y = self.norm2(x, self.feed_forward(x))\n        y *= 2\n        return y")]
    yours, half = model(), model()
    install(yours, write_exercises(tmp_path, forwards, changes))
    doubled = one_step(yours)[0]
    assert set(re.findall(r"your (\w+) differs", capsys.readouterr().out)) == {"EncoderBlock"}
    for layer in half.encoder_layers:
        layer.norm2.gamma *= 2
        layer.norm2.beta *= 2
    np.testing.assert_allclose(doubled, one_step(half)[0], rtol=0, atol=1e-12)


def test_decoding_uses_the_learners_forward(tmp_path):
    """Softmax over the queries: every later position changes the earlier ones, and a cache would not show it."""
    change = (1, "attention_weights = softmax(scores)", "attention_weights = softmax(scores, axis=-2)")
    yours, wrong = model(0), inject(model(0), "softmax_over_queries")[0]
    install(yours, write_exercises(tmp_path, forwards, [change]))
    library = model(0)
    for each in (yours, wrong, library):
        each.eval()
        each.output_projection *= 5
    answer = greedy_decode(yours, SRC, 8)
    np.testing.assert_array_equal(answer, greedy_decode(wrong, SRC, 8))
    state = yours.start_decoding(yours.encode(SRC, MASKS[0]), MASKS[0])
    for token in TGT.T:
        logits = yours.decode_step(token, state)
    np.testing.assert_allclose(logits, wrong(SRC, TGT, *MASKS)[:, -1], rtol=0, atol=1e-12)
    assert np.abs(logits - library(SRC, TGT, *MASKS)[:, -1]).max() > 1e-3


def test_the_learners_masks_are_used_in_training(tmp_path):
    change = (5, "return np.triu(np.ones((1, 1, seq_len, seq_len), dtype=bool), k=1)",
              "return np.zeros((1, 1, seq_len, seq_len), dtype=bool)")
    yours = model()
    install(yours, write_exercises(tmp_path, lambda number, name: name == "create_causal_mask", [change]))
    assert_same_step(one_step(yours), one_step(inject(model(), "no_causal_mask")[0]))

    change = (5, "return (tokens == pad_token)", "return (tokens == 5)")
    yours, library = model(), model()
    install(yours, write_exercises(tmp_path, lambda number, name: name == "create_padding_mask", [change]))
    five = create_padding_mask(SRC, 5), create_padding_mask(TGT, 5) | create_causal_mask(4)
    np.testing.assert_array_equal(yours(SRC, TGT, *MASKS), library(SRC, TGT, *five))


def test_another_style_is_as_good(tmp_path, capsys):
    """Keywords, float64 in a float32 model, gradients that are set instead of added, helper methods, other names."""
    changes = [
        (4, "x = self.norm1(x, self.self_attention(x, x, x, mask))\n        return self.norm2",
         "y = self.self_attention(query=x, key=x, value=x, mask=mask)\n        x = self.norm1(sublayer_output=y, x=x)\n"
         "        return self.norm2"),
        (1, "return A_dropped @ V        ", "return self.mix(A_dropped, V).astype(np.float64)  "),
        (1, "    def backward(self, dout):", "    def mix(self, A, V):\n"
         "        return np.einsum('bhts,bhsd->bhtd', A, V)\n\n    def backward(self, dout):"),
        (4, "self.dW2 += rows(dropped).T @ rows(dout)", "self.dW2 = self.dW2 + rows(dropped).T @ rows(dout)"),
        (3, "return self.embedding[tokens] * math.sqrt(self.d_model)",
         "return self.embedding[tokens] * np.sqrt(np.float64(self.d_model))"),
    ]
    yours, library = model(0.1, np.float32), model(0.1, np.float32)
    install(yours, write_exercises(tmp_path, everything, changes))
    ours = one_step(yours)
    assert_same_step(ours, one_step(library), atol=1e-5)
    assert {a.dtype for a in (ours[0], *ours[1].values())} == {np.dtype(np.float32)}
    assert "all that is yours" in capsys.readouterr().out


def test_attention_that_leaves_no_weights_draws_a_blank(tmp_path, capsys):
    yours = model()
    install(yours, write_exercises(tmp_path, everything, [(1, "A = self.attention_weights = softmax", "A = softmax")]))
    assert_same_step(one_step(yours), one_step(model()))
    assert re.findall(r"your (\w+) differs", capsys.readouterr().out) == ["attention_weights"]
    assert not yours.encoder_layers[0].self_attention.get_attention_weights().any()


def test_one_forward_pays_for_one_backward(tmp_path):
    yours = model()
    install(yours, write_exercises(tmp_path, everything))
    logits, _, _ = one_step(yours)
    with pytest.raises(RuntimeError):
        yours.backward(logits)
    yours(SRC, TGT, *MASKS)
    yours.forget()
    with pytest.raises(RuntimeError):
        yours.encoder_layers[0].backward(np.zeros((3, 5, 8)))


# ------------------------------------------------------------------------------------------------ code that crashes


CRASHES = {
    "forward": ([(2, "context = self.merge_heads(self.attention(Q, K, V, mask))", "context = 1 / 0  #")],
                r"exercise 2, MultiHeadAttention.forward: exercise_02_multi_.*py, line \d+: ZeroDivisionError"),
    "backward": ([(4, "self.dW2 += rows(dropped).T @ rows(dout)", "self.dW2 += rows(dropped) @ rows(dout)")],
                 r"exercise 4, FeedForward.backward: exercise_04_encoder_block.py, line \d+: ValueError"),
    "constructor": ([(3, "        self.d_model = d_model", "        self.d_model = d_mode")],
                    r"exercise 3, TokenEmbedding.__init__: .*, line \d+: NameError"),
    "syntax": ([(4, "class AddNorm(LayerNorm):", "class AddNorm(LayerNorm:")],
               r"exercise 4, the file cannot be loaded: exercise_04_encoder_block.py, line \d+: SyntaxError"),
    "import": ([(5, "import numpy as np\n", "import numpy as np\nimport nothing_of_the_kind\n")],
               r"exercise 5, .*, line \d+: ModuleNotFoundError"),
    "exit": ([(1, "import math\n", "import math, sys\nsys.exit(0)\n")], r"exercise 1, .*, line \d+: SystemExit"),
    "shape": ([(3, "return self.dropout(x + self.pe[start:end])",
                "return np.concatenate([x, x + self.pe[start:end]], axis=-1)")],
              r"exercise 3, PositionalEncoding.forward returns shape \(2, 3, 16\) where floats of shape \(2, 3, 8\)"),
    "nothing returned": ([(4, "return self.norm2(x, self.feed_forward(x))", "self.norm2(x, self.feed_forward(x))")],
                         r"exercise 4, EncoderBlock.forward returns None where floats"),
    "gradients missing": ([(2, "return dQ @ self.W_Q.T, dK @ self.W_K.T, dV @ self.W_V.T", "return dQ @ self.W_Q.T")],
                          r"exercise 2, MultiHeadAttention.backward returns 1 gradients where 3 are due"),
    "mask of numbers": ([(5, "return (tokens == pad_token)[:, None, None, :]", "return 1.0 * (tokens == 0)")],
                        r"exercise 5, create_padding_mask returns float64 of shape \(2, 3\) where bool of shape"),
    "shift of one side": ([(5, "return tgt[:, :-1], tgt[:, 1:]", "return tgt, tgt[:, 1:]")],
                          r"exercise 5, shift_target returns .* where"),
    "class renamed": ([(2, "class MultiHeadAttention(", "class Attention(")],
                      r"exercise 2 \(exercise_02_multi_head_attention.py\) has no class MultiHeadAttention"),
    "in training only": ([(1, "scores = Q @ K", "assert Q.shape[0] == 2, 'a small batch'\n        scores = Q @ K")],
                         r"exercise 1, ScaledDotProductAttention.forward: .*, line \d+: AssertionError: a small batch"),
    "todo in training only": ([(1, "scores = Q @ K",
                                "if len(Q) > 2:\n            raise NotImplementedError\n        scores = Q @ K")],
                              r"exercise 1, ScaledDotProductAttention.forward: .*, line \d+: NotImplementedError"),
}
SMALL = "--d-model 8 --n-heads 2 --n-layers 1 --seq-len 4 --batch-size 4 --with-exercises --checkpoint".split()


@pytest.mark.parametrize("crash", CRASHES)
def test_a_crash_is_one_clear_line(crash, tmp_path, monkeypatch, capsys):
    changes, says = CRASHES[crash]
    monkeypatch.setattr(finale, "EXERCISES", write_exercises(tmp_path, everything, changes))
    assert main([*SMALL, str(tmp_path / "m.npz"), "--max-steps", "1"]) == 2
    error = capsys.readouterr().err
    assert re.search(says, error), error
    assert error.startswith("train_minimal.py: error: ") and error.count("\n") == 1


def test_a_missing_file_is_an_exercise_not_written(tmp_path):
    lines = install(model(), tmp_path)
    assert len([line for line in lines if line.endswith("library")]) == 13 and "Nothing of yours yet" in lines[-1]


# ------------------------------------------------------------------------------------------------- the command line


def test_the_finale_prints_whose_code_trains_and_resumes_bit_for_bit(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(finale, "EXERCISES", write_exercises(tmp_path / "exercises", everything))
    whole, parts = str(tmp_path / "whole.npz"), str(tmp_path / "parts.npz")
    assert main([*SMALL, whole, "--dropout", "0.1", "--max-steps", "4"]) == 1
    printed = capsys.readouterr().out
    assert re.search(r"MultiHeadAttention +forward yours, backward yours\n", printed)
    assert "all that is yours gives what the library gives" in printed and "Cross-attention" in printed
    assert main([*SMALL, parts, "--dropout", "0.1", "--max-steps", "2"]) == 1
    assert main(["--checkpoint", parts, "--resume", "--max-steps", "4"]) == 1
    assert "forward yours" in capsys.readouterr().out
    ours, theirs = (load_checkpoint(path).model.named_parameters() for path in (parts, whole))
    for name, weight in theirs.items():
        np.testing.assert_array_equal(ours[name], weight)
    assert main(["--checkpoint", whole, "--predict", "3 4"]) == 0
    assert capsys.readouterr().out.startswith("3 4 -> ")


def test_the_learners_shift_is_used(tmp_path, monkeypatch):
    change = (5, "return tgt[:, :-1], tgt[:, 1:]", "return tgt[:, 1:], tgt[:, 1:]")
    monkeypatch.setattr(finale, "EXERCISES", write_exercises(tmp_path, everything, [change]))
    run = Run({**DEFAULTS, "d_model": 8, "n_layers": 1, "with_exercises": True})
    read, predicted = run.shift_target(TGT)
    np.testing.assert_array_equal(read, TGT[:, 1:])
    np.testing.assert_array_equal(read, predicted)


def test_exercises_are_loaded_only_when_asked_for(tmp_path):
    program = """if True:
        import sys, train_minimal
        arguments = sys.argv[1:]
        train_minimal.main([a for a in arguments if a != "--with-exercises"])
        assert not [name for name in sys.modules if name.startswith("exercises")]
        train_minimal.main(arguments)
        assert "exercises.exercise_05_full_transformer" in sys.modules
    """
    done = subprocess.run([sys.executable, "-c", program, *SMALL, tmp_path / "m.npz", "--max-steps", "1"], cwd=ROOT,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["everything", "forwards only"])
def test_ones_own_classes_learn_to_copy(choice, tmp_path, monkeypatch):
    monkeypatch.setattr(finale, "EXERCISES", write_exercises(tmp_path, CHOICES[choice]))
    run = Run({**DEFAULTS, "d_model": 48, "n_layers": 1, "batch_size": 64, "warmup": 200, "lr": 5e-3,
               "with_exercises": True})
    for _ in range(700):
        run.train_step()
    assert run.exact(run.held_out["test"]).mean() > 0.97
    assert isinstance(run.model.encoder_layers[0].seat.mine, Layer)
