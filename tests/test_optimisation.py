"""The loss, the accuracy, Adam and its learning rate [5.3, 5.4], and what a checkpoint keeps of them [6.1]."""

import copy
import math
import pickle

import numpy as np
import pytest

from gradient_check import shake
from implementation import FeedForward, Layer, Transformer, create_causal_mask, create_padding_mask
from train_minimal import (Adam, CheckpointError, CrossEntropyLoss, average_checkpoints, build_model, compute_accuracy,
                           load_checkpoint, make_masks, save_checkpoint, shift_target, warmup_schedule)

pytestmark = pytest.mark.mutants

B, T, V = 3, 5, 7
SRC = np.array([[3, 5, 3, 2, 0, 0], [4, 4, 6, 5, 1, 2], [6, 2, 0, 0, 0, 0]])
TGT = np.array([[1, 3, 3, 4, 2], [1, 5, 2, 0, 0], [1, 6, 2, 0, 0]])


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def loss_by_hand(logits, targets, ignore_index, eps):
    """-sum_v q_v log p_v, averaged over what is scored; one position after another."""
    losses = []
    for place in np.ndindex(targets.shape):
        if targets[place] != ignore_index:
            z = logits[place]
            log_p = [entry - max(z) - math.log(sum(math.exp(other - max(z)) for other in z)) for entry in z]
            q = [eps / len(z) + (1 - eps) * (v == targets[place]) for v in range(len(z))]
            losses.append(-sum(a * b for a, b in zip(q, log_p)))
    return sum(losses) / len(losses)


# --------------------------------------------------------------------------------------------- the loss, 5.4


@pytest.mark.parametrize("ignore_index", [0, 4, -100])
@pytest.mark.parametrize("eps", [0.0, 0.1, 0.7])
def test_the_loss_is_the_cross_entropy_with_the_smoothed_targets(rng, eps, ignore_index):
    """5.4: label smoothing of value eps."""
    logits, targets = rng.normal(0, 3, (B, T, V)), rng.integers(0, V, (B, T))
    targets[0, :2] = ignore_index
    loss = CrossEntropyLoss(ignore_index, eps)
    value = loss(logits, targets)
    assert type(value) is float
    assert value == pytest.approx(loss_by_hand(logits, targets, ignore_index, eps), abs=1e-12)


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.7])
def test_the_losss_backward_is_the_derivative_of_its_forward(rng, eps):
    logits, targets = rng.normal(0, 3, (B, T, V)), rng.integers(0, V, (B, T))
    loss = CrossEntropyLoss(0, eps)
    loss(logits, targets)
    dlogits = loss.backward()
    assert dlogits.shape == logits.shape and not dlogits[targets == 0].any() and dlogits[targets != 0].all()
    for _ in range(3):
        direction, step = rng.normal(size=logits.shape), 1e-6
        measured = (loss(logits + step * direction, targets) - loss(logits - step * direction, targets)) / (2 * step)
        assert measured == pytest.approx(np.sum(dlogits * direction), rel=1e-6)
    np.testing.assert_allclose(dlogits.sum(axis=-1), 0, atol=1e-12)


def test_a_logit_of_minus_infinity_is_a_token_ruled_out():
    logits, targets = np.array([[0, 0, -np.inf], [0, np.log(3), -np.inf]]), np.array([1, 1])
    assert CrossEntropyLoss()(logits, targets) == pytest.approx((np.log(2) + np.log(4 / 3)) / 2)
    assert CrossEntropyLoss(label_smoothing=0.1)(logits, targets) == np.inf


def test_the_loss_stays_in_single_precision(rng):
    logits = rng.normal(size=(B, T, V)).astype(np.float32)
    loss = CrossEntropyLoss(0, 0.1)
    value = loss(logits, TGT)
    assert type(value) is float and loss.backward().dtype == np.float32
    assert value == pytest.approx(loss_by_hand(logits.astype(float), TGT, 0, 0.1), rel=1e-6)


@pytest.mark.parametrize("eps", [-0.1, 1, 1.5, float("nan")])
def test_smoothing_outside_its_range_is_refused(eps):
    with pytest.raises(ValueError, match=str(eps)):
        CrossEntropyLoss(label_smoothing=eps)


def test_the_last_forward_is_the_one_that_counts(rng):
    loss, (first, second) = CrossEntropyLoss(), rng.normal(size=(2, B, T, V))
    loss(second, TGT)
    expected = loss.backward()
    loss(first, TGT), loss(second, TGT)
    np.testing.assert_array_equal(loss.backward(), expected)


def test_the_accuracy_is_the_share_of_scored_tokens():
    logits = np.zeros((2, 4, V))
    for place, token in zip(np.ndindex(2, 4), [3, 4, 5, 0, 6, 1, 2, 3]):
        logits[place][token] = 1
    targets = np.array([[3, 4, 6, 0], [6, 0, 0, 2]])                        # right, right, wrong, -, right, -, -, wrong
    assert compute_accuracy(logits, targets) == 3 / 5
    assert compute_accuracy(logits, targets, ignore_index=2) == 4 / 7
    assert type(compute_accuracy(logits, targets)) is float


# ------------------------------------------------------------------------------------- the learning rate, 5.3


@pytest.mark.parametrize("d_model, warmup", [(512, 4000), (64, 400), (1, 1), (3, 7)])
def test_the_learning_rate_is_equation_3(d_model, warmup):
    """5.3: a linear rise for warmup_steps, then a fall with the inverse square root of the step."""
    rates = [warmup_schedule(step, d_model, warmup) for step in range(1, 3 * warmup + 2)]
    for step, rate in enumerate(rates, 1):
        assert rate == pytest.approx(d_model ** -0.5 * min(step ** -0.5, step * warmup ** -1.5), rel=1e-12)
    assert max(rates) == rates[warmup - 1] == pytest.approx((d_model * warmup) ** -0.5)
    assert type(rates[0]) is float


def test_the_papers_warm_up_is_the_default():
    """5.3: warmup_steps = 4000."""
    assert warmup_schedule(4000, 512) > max(warmup_schedule(3999, 512), warmup_schedule(4001, 512))


# --------------------------------------------------------------------------------------------------- Adam, 5.3


class Weights:
    """Anything with the two dicts: a few arrays under names, and their gradients."""

    def __init__(self, rng, shapes, dtype=np.float64):
        self.weights = {f"w{i}": rng.normal(size=shape).astype(dtype) for i, shape in enumerate(shapes)}
        self.gradients = {name: np.zeros_like(weight) for name, weight in self.weights.items()}

    def named_parameters(self):
        return self.weights

    def named_gradients(self):
        return self.gradients


def adam_by_hand(weight, gradients, rates, beta_1, beta_2, eps):
    """Kingma & Ba 2015, algorithm 1, for one weight that sees these gradients one after another."""
    m = v = np.zeros_like(weight)
    for t, (g, rate) in enumerate(zip(gradients, rates), 1):
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g * g
        weight = weight - rate * (m / (1 - beta_1 ** t)) / (np.sqrt(v / (1 - beta_2 ** t)) + eps)
    return weight, m, v


class SmallBlocks(Adam):
    block_size = 64


# Small arrays that share a block, some larger than a block of 64, and one that fills it to the last place.
SHAPES = [(3,), (2, 5), (13, 13), (7,), (8, 8), (1,), (40, 5)]


@pytest.mark.parametrize("kind, shapes", [(Adam, [(2, 3)]), (Adam, SHAPES), (SmallBlocks, SHAPES),
                                          (SmallBlocks, SHAPES[::-1]), (Adam, [(Adam.block_size + 9,), (3,)])])
@pytest.mark.parametrize("options", [{}, dict(betas=(0.5, 0.7), eps=0.3), dict(betas=(0.0, 0.0))])
def test_adam_is_the_algorithm_of_kingma_and_ba(rng, kind, shapes, options):
    """5.3: beta_1 = 0.9, beta_2 = 0.98, eps = 1e-9 by default. Five steps, each with a rate of its own."""
    beta_1, beta_2 = options.get("betas", (0.9, 0.98))
    eps = options.get("eps", 1e-9)
    model = Weights(rng, shapes)
    before = {name: weight.copy() for name, weight in model.weights.items()}
    arrays = dict(model.weights)
    adam, rates = kind(model, **options), [0.1, 0.02, 0.5, 0.03, 0.2]
    seen = {name: [] for name in before}
    for rate in rates:
        for name, gradient in model.gradients.items():
            gradient[...] = rng.normal(0, 10.0 ** rng.integers(-9, 2), gradient.shape)
            seen[name].append(gradient.copy())
        adam.step(rate)
        for name, gradient in model.gradients.items():
            np.testing.assert_array_equal(gradient, seen[name][-1], err_msg="the gradient is the caller's")
    for name, weight in model.weights.items():
        assert weight is arrays[name]
        expected, m, v = adam_by_hand(before[name], seen[name], rates, beta_1, beta_2, eps)
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(adam.m[name], m, rtol=1e-10, atol=1e-25)
        np.testing.assert_allclose(adam.v[name], v, rtol=1e-10, atol=1e-25)
        assert adam.m[name].shape == adam.v[name].shape == weight.shape
    assert adam.steps == 5


def test_adam_works_in_blocks_that_are_full_but_not_too_large(rng, monkeypatch):
    """3 + 61 fill a block; 30 + 30 leave no room for 10; 100 is cut into 64 and 36, and the 7 joins its rest."""
    sizes, sqrt = [], np.sqrt

    def recording(x, **options):
        sizes.append(x.size)
        return sqrt(x, **options)

    adam = SmallBlocks(Weights(rng, [(3,), (61,), (30,), (30,), (2, 5), (8, 8), (100,), (7,), (130,)]))
    monkeypatch.setattr(np, "sqrt", recording)
    adam.step(0.1)
    assert sizes == [64, 60, 10, 64, 64, 43, 64, 64, 2]


def test_the_first_step_has_the_length_of_the_rate_whatever_the_gradient(rng):
    """Both moments are corrected for starting at zero; eps is added to the corrected root."""
    model = Weights(rng, [(4,)])
    before = model.weights["w0"].copy()
    model.gradients["w0"][...] = [1e-3, -5.0, 1e-9, 0.0]
    Adam(model).step(0.1)
    np.testing.assert_allclose(before - model.weights["w0"], [0.1, -0.1, 0.05, 0], atol=1e-6)


def test_a_gradient_that_stays_zero_moves_nothing(rng):
    model = Weights(rng, [(3, 4)], np.float32)
    before = model.weights["w0"].copy()
    adam = Adam(model)
    for _ in range(3):
        adam.step(0.5)
    np.testing.assert_array_equal(model.weights["w0"], before)


def test_adam_updates_in_place_and_in_the_weights_precision(rng):
    layer = shake(FeedForward(6, 9, rng=rng), rng)
    arrays = layer.named_parameters()
    adam = Adam(layer)
    for _ in range(3):
        layer.backward(np.ones_like(layer(rng.normal(size=(2, 6)).astype(np.float32))))
        adam.step(np.float64(0.1))
    for name, weight in layer.named_parameters().items():
        assert weight is arrays[name] and weight.dtype == adam.m[name].dtype == adam.v[name].dtype == np.float32


def test_adam_moves_a_tied_weight_once_and_all_its_names_with_it(rng):
    model = Transformer(V, V, 8, 2, 1, 1, 8, 0.0, 8, tie_embeddings=True, rng=rng)
    before = model.src_embedding.embedding.copy()
    model.backward(np.ones_like(model(SRC, TGT)))
    Adam(model).step(0.125)
    moved = model.src_embedding.embedding - before
    assert np.abs(moved).max() == pytest.approx(0.125, rel=1e-3)
    np.testing.assert_array_equal(model.output_projection, model.tgt_embedding.embedding.T)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_a_copy_of_model_and_adam_goes_on_in_the_same_way(copied, tie_embeddings):
    model = Transformer(V, V, 8, 2, 1, 1, 8, 0.1, 8, tie_embeddings=tie_embeddings, rng=0)
    loss, adam = CrossEntropyLoss(0, 0.1), Adam(model)
    one_training_step(model, loss, adam, 0.01)
    again, adam_again = copied((model, adam))
    for _ in range(2):
        assert one_training_step(model, loss, adam, 0.01) == one_training_step(again, loss, adam_again, 0.01)
    assert np.array_equal(model.output_projection, again.output_projection) and model.output_projection is not (
        again.output_projection)
    assert tie_embeddings == np.shares_memory(again.output_projection, again.src_embedding.embedding)
    for name, moment in adam_again.v.items():
        np.testing.assert_array_equal(moment, adam.v[name])


def test_adam_refuses_what_it_cannot_do(rng):
    model = Weights(rng, [(3, 4)])
    for options in (dict(betas=(1.0, 0.9)), dict(betas=(0.9, 1.0)), dict(betas=(-0.1, 0.9)), dict(betas=(0.9, -0.1)),
                    dict(eps=0), dict(eps=-1e-9)):
        with pytest.raises(ValueError):
            Adam(model, **options)
    model.weights["w0"] = model.weights["w0"].T
    with pytest.raises(ValueError, match="w0"):
        Adam(model)


def one_training_step(model, loss, adam, rate, src=SRC, tgt=TGT):
    tgt_in, tgt_out = tgt[:, :-1], tgt[:, 1:]
    value = loss(model(src, tgt_in, create_padding_mask(src),
                       create_padding_mask(tgt_in) | create_causal_mask(tgt_in.shape[1])), tgt_out)
    model.zero_grad()
    model.backward(loss.backward())
    adam.step(rate)
    return value


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_training_lowers_the_loss_of_a_batch_to_its_floor(tie_embeddings):
    """With smoothing the least loss is the entropy of the smoothed target, not 0."""
    model = Transformer(V, V, 16, 2, 1, 1, 32, 0.0, 8, tie_embeddings=tie_embeddings, rng=0)
    loss, adam, eps = CrossEntropyLoss(0, 0.1), Adam(model), 0.1
    for step in range(1, 121):
        value = one_training_step(model, loss, adam, warmup_schedule(step, 16, 40) / 4)
    q = np.array([1 - eps + eps / V] + [eps / V] * (V - 1))
    floor = -(q * np.log(q)).sum()
    assert floor < value < floor + 0.02


def test_the_decoder_reads_the_tokens_before_the_one_it_predicts():
    """3.1: the output embeddings are offset by one position; and padding and future are hidden from it."""
    tgt_in, tgt_out = shift_target(TGT)
    assert tgt_in.tolist() == [[1, 3, 3, 4], [1, 5, 2, 0], [1, 6, 2, 0]]
    assert tgt_out.tolist() == [[3, 3, 4, 2], [5, 2, 0, 0], [6, 2, 0, 0]]
    src_mask, tgt_mask = make_masks(SRC, tgt_in)
    np.testing.assert_array_equal(src_mask[:, 0, 0], SRC == 0)
    assert src_mask.shape == (3, 1, 1, 6) and tgt_mask.shape == (3, 1, 4, 4)
    for b, query, key in np.ndindex(3, 4, 4):
        assert tgt_mask[b, 0, query, key] == (key > query or tgt_in[b, key] == 0)


def test_a_model_is_built_from_settings():
    """n_layers in each stack, and d_ff = 4 d_model as in the paper."""
    settings = dict(vocab_size=7, d_model=8, n_heads=2, n_layers=3, dropout=0.2, tie_embeddings=True)
    model = build_model(settings, rng=0)
    assert len(model.encoder_layers) == len(model.decoder_layers) == 3
    assert model.encoder_layers[0].feed_forward.W1.shape == (8, 32) and model.encoder_layers[0].norm1.dropout.p == 0.2
    assert model.output_projection.base is not None and model.src_embedding.embedding.shape == (7, 8)
    assert model.dtype == np.float32 and build_model(settings, rng=0, dtype=np.float64).dtype == np.float64


# ------------------------------------------------------------------------------------------------ checkpoints, 6.1


def small_model(seed=0, **options):
    return Transformer(V, V, 8, 2, 1, 2, 12, 0.2, 8, rng=seed, **options)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_a_checkpoint_gives_back_what_was_saved(tmp_path, tie_embeddings, dtype):
    model = small_model(tie_embeddings=tie_embeddings, dtype=dtype)
    adam = Adam(model, betas=(0.8, 0.95), eps=1e-7)
    for _ in range(3):
        one_training_step(model, CrossEntropyLoss(), adam, 0.01)
    path = tmp_path / "new" / "model.npz"
    newest = {name: weight + 1 for name, weight in model.named_parameters().items()}
    save_checkpoint(path, model, adam, newest=newest, step=3, vocabulary="abcd", settings={"task": "copy"},
                    history=[{"step": 3}])
    loaded = load_checkpoint(path)
    assert (loaded.step, loaded.vocabulary, loaded.settings["task"]) == (3, "abcd", "copy")
    assert loaded.history == [{"step": 3}]
    assert not any(layer.training for layer in loaded.model.layers())
    assert loaded.model.encoder_layers[0].norm1.dropout.p == 0.2 and len(loaded.model.positional_encoding.pe) == 8
    assert loaded.model.config == model.config
    assert loaded.model.num_parameters() == model.num_parameters()
    for name, weight in model.named_parameters().items():
        again = loaded.model.named_parameters()[name]
        assert again.dtype == dtype
        np.testing.assert_array_equal(again, weight)
        np.testing.assert_array_equal(loaded.newest[name], newest[name])
        np.testing.assert_array_equal(loaded.optimizer.m[name], adam.m[name])
        np.testing.assert_array_equal(loaded.optimizer.v[name], adam.v[name])
    assert (loaded.optimizer.steps, tuple(loaded.optimizer.betas), loaded.optimizer.eps) == (3, (0.8, 0.95), 1e-7)
    model.eval()
    np.testing.assert_array_equal(loaded.model(SRC, TGT), model(SRC, TGT))
    assert [entry.name for entry in path.parent.iterdir()] == ["model.npz"], "nothing is left beside it"

    with np.load(path, allow_pickle=False) as entries:
        assert all(entries[name].dtype.kind in "fU" for name in entries)
        kinds = {name.split("/")[0] for name in entries}
    assert kinds == {"parameters", "newest", "adam_m", "adam_v", "state"}


def test_training_goes_on_from_a_checkpoint_bit_for_bit(tmp_path):
    """Moments and step count are kept: without them the loss jumps after resuming."""
    def steps(model, adam, first, last):
        return [one_training_step(model, CrossEntropyLoss(), adam, 0.01 * step) for step in range(first, last)]

    unbroken = small_model()
    unbroken.eval()
    adam = Adam(unbroken)
    losses = steps(unbroken, adam, 1, 4)
    save_checkpoint(tmp_path / "c.npz", unbroken, adam, step=3)
    losses += steps(unbroken, adam, 4, 7)
    loaded = load_checkpoint(tmp_path / "c.npz")
    assert steps(loaded.model, loaded.optimizer, 4, 7) == losses[3:]
    for name, weight in unbroken.named_parameters().items():
        np.testing.assert_array_equal(loaded.model.named_parameters()[name], weight)
        np.testing.assert_array_equal(loaded.optimizer.v[name], adam.v[name])


def rewrite(path, change):
    with np.load(path) as entries:
        arrays = dict(entries)
    change(arrays)
    np.savez(path, **arrays)


@pytest.mark.parametrize("kind", ["parameters", "adam_m", "adam_v"])
def test_a_missing_or_misshapen_entry_is_named_with_both_shapes(tmp_path, kind):
    path, entry = tmp_path / "c.npz", f"{kind}/encoder_layers.0.feed_forward.W1"
    model = small_model()
    for change, words in ((lambda arrays: arrays.update({entry: np.zeros((3, 5), np.float32)}), ["(3, 5)", "(8, 12)"]),
                          (lambda arrays: arrays.pop(entry), ["nothing", "(8, 12)"]),
                          (lambda arrays: arrays.update({f"{kind}/stranger": np.zeros(4, np.float32)}), ["(4,)"])):
        save_checkpoint(path, model, Adam(model), step=1)
        rewrite(path, change)
        with pytest.raises(CheckpointError) as error:
            load_checkpoint(path)
        message = str(error.value)
        assert (entry in message or f"{kind}/stranger" in message) and all(word in message for word in words), message
        assert "\n" not in message and str(path) in message


def test_what_is_not_a_checkpoint_is_refused_in_one_line(tmp_path):
    path = tmp_path / "c.npz"
    model = small_model()
    save_checkpoint(path, model)
    whole = path.read_bytes()
    np.savez(tmp_path / "foreign.npz", a=np.arange(3))
    foreign = (tmp_path / "foreign.npz").read_bytes()
    np.savez(tmp_path / "pickled.npz", state=np.array([{}], dtype=object))
    pickled = (tmp_path / "pickled.npz").read_bytes()
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 255]) + whole[middle + 1:]
    for content in (b"", b"not a zip file", whole[:middle], whole[:-1], foreign, pickled, flipped):
        path.write_bytes(content)
        with pytest.raises(CheckpointError) as error:
            load_checkpoint(path)
        assert "\n" not in str(error.value) and str(path) in str(error.value)
    for missing in (tmp_path / "missing.npz", tmp_path):
        with pytest.raises(ValueError, match=missing.name) as error:
            load_checkpoint(missing)
        assert "\n" not in str(error.value)


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path):
    path, model = tmp_path / "c.npz", small_model()
    save_checkpoint(path, model, step=1)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        save_checkpoint(path, model, step=object())                                          # JSON cannot hold it
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["c.npz"]


def test_the_same_model_makes_the_same_file(tmp_path):
    for name in ("a.npz", "b.npz"):
        save_checkpoint(tmp_path / name, small_model(), step=1)
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_averaging_takes_the_mean_of_each_weight(tmp_path):
    """6.1: a single model obtained by averaging the last checkpoints."""
    models = [small_model(seed) for seed in range(3)]
    paths = [tmp_path / f"{i}.npz" for i in range(3)]
    for path, model in zip(paths, models):
        save_checkpoint(path, model)
    average = average_checkpoints(paths)
    parameters = [model.named_parameters() for model in models]
    assert list(average) == list(parameters[0])
    for name, weight in average.items():
        np.testing.assert_allclose(weight, sum(p[name].astype(float) for p in parameters) / 3, rtol=1e-6, atol=1e-8)
        assert weight.dtype == np.float32
    for name, weight in average_checkpoints(iter(paths[:1])).items():
        np.testing.assert_array_equal(weight, parameters[0][name])
    with pytest.raises(ValueError):
        average_checkpoints([])
    save_checkpoint(paths[0], Transformer(V, V, 8, 2, 1, 2, 13, rng=0))
    with pytest.raises(CheckpointError, match=r"(?s)12.*13|13.*12"):
        average_checkpoints(paths)


def test_a_model_of_other_layers_than_the_transformer_trains_too():
    """Adam asks for two dicts, nothing more: a stack of one's own is enough."""
    class Two(Layer):
        def __init__(self):
            super().__init__()
            self.stack = [FeedForward(4, 8, 0.0, rng=i) for i in range(2)]

    model = Two()
    Adam(model).step(0.1)
    assert len(model.named_parameters()) == 8
