"""Every gradient written by hand is the derivative of its forward, and backward keeps its promises."""

import sys

import numpy as np
import pytest

import implementation
import optimisation
from gradient_check import gradient_errors, shake
from implementation import (AddNorm, DecoderBlock, Dropout, EncoderBlock, FeedForward, LayerNorm, MultiHeadAttention,
                            PositionalEncoding, ScaledDotProductAttention, TokenEmbedding, Transformer,
                            create_causal_mask, create_padding_mask, softmax, softmax_backward)

pytestmark = pytest.mark.mutants

B, T, S, D, H, F, V, W = 3, 5, 7, 8, 2, 9, 11, 13         # all different, so that no axis can stand in for another
D_V = 6                                                   # the width of a head's values, not that of its keys (4)
TOLERANCE = 1e-6

SRC = np.array([[3, 5, 3, 3, 2, 0, 0], [4, 4, 9, 10, 1, 4, 2], [7, 0, 0, 0, 0, 0, 0]])        # repeated, padded
TGT = np.array([[1, 12, 3, 12, 2], [1, 5, 2, 0, 0], [1, 7, 7, 7, 0]])


def hidden(rng, *shape):
    """A random mask in which every query still sees a key, except for one that sees none."""
    mask = rng.random(shape) < 0.4
    mask[..., 0] = False
    mask[-1, -1, -1] = True
    return mask


def build_layers():
    """(name, layer class with its sizes, shapes of the float inputs, masks and tokens)."""
    rng = np.random.default_rng(7)
    padding, causal = create_padding_mask(SRC), create_causal_mask(T)
    attend = [(B, H, T, D // H), (B, H, S, D // H), (B, H, S, D_V)]
    heads = [(B, T, D), (B, S, D), (B, S, D)]
    return {
        "Dropout": (Dropout, (0.3,), [(B, T, D)], []),
        "LayerNorm": (LayerNorm, (D,), [(B, T, D)], []),
        "LayerNorm of a matrix": (LayerNorm, (D,), [(T, D)], []),
        "LayerNorm with a large eps": (LayerNorm, (D, 0.5), [(B, T, D)], []),
        "AddNorm": (AddNorm, (D, 0.3), [(B, T, D), (B, T, D)], []),
        "ScaledDotProductAttention": (ScaledDotProductAttention, (0.3,), attend, []),
        "ScaledDotProductAttention, padded": (ScaledDotProductAttention, (0.3,), attend, [padding]),
        "ScaledDotProductAttention, hidden": (ScaledDotProductAttention, (0.3,), attend, [hidden(rng, B, H, T, S)]),
        "MultiHeadAttention": (MultiHeadAttention, (D, H, 0.3), heads, []),
        "MultiHeadAttention, padded": (MultiHeadAttention, (D, H, 0.3), heads, [padding]),
        "MultiHeadAttention, hidden": (MultiHeadAttention, (D, H, 0.3), heads, [hidden(rng, B, H, T, S)]),
        "MultiHeadAttention, causal": (MultiHeadAttention, (D, H, 0.3), [(B, T, D)] * 3, [causal]),
        "FeedForward": (FeedForward, (D, F, 0.3), [(B, T, D)], []),
        "FeedForward of a matrix": (FeedForward, (D, F, 0.3), [(T, D)], []),
        "PositionalEncoding": (PositionalEncoding, (D, T + 1, 0.3), [(B, T, D)], []),
        "TokenEmbedding": (TokenEmbedding, (V, D), [], [SRC]),
        "EncoderBlock": (EncoderBlock, (D, H, F, 0.3), [(B, S, D)], []),
        "EncoderBlock, padded": (EncoderBlock, (D, H, F, 0.3), [(B, S, D)], [padding]),
        "EncoderBlock, padded and causal": (EncoderBlock, (D, H, F, 0.3), [(B, S, D)],
                                            [padding | create_causal_mask(S)]),
        "DecoderBlock": (DecoderBlock, (D, H, F, 0.3), [(B, T, D), (B, S, D)], []),
        "DecoderBlock, masked": (DecoderBlock, (D, H, F, 0.3), [(B, T, D), (B, S, D)],
                                 [causal | create_padding_mask(TGT), padding]),
        "DecoderBlock, hidden": (DecoderBlock, (D, H, F, 0.3), [(B, T, D), (B, S, D)],
                                 [hidden(rng, B, H, T, T), hidden(rng, B, H, T, S)]),
        "Transformer": (Transformer, (V, W, D, H, 2, 3, F, 0.3, S), [], [SRC, TGT]),
        "Transformer, masked": (Transformer, (V, W, D, H, 2, 3, F, 0.3, S), [],
                                [SRC, TGT, padding, causal | create_padding_mask(TGT)]),
    }


LAYERS = build_layers()


def make(name, dtype=np.float64, **options):
    """The layer with shaken weights, its inputs, and what else its forward takes."""
    kind, sizes, shapes, others = LAYERS[name]
    rng = np.random.default_rng(len(name))
    layer = shake(kind(*sizes, rng=rng, dtype=dtype, **options), rng)
    return layer, [rng.normal(size=shape).astype(dtype) for shape in shapes], others, rng


def masked_model(**options):
    kind, sizes, _, others = LAYERS["Transformer, masked"]
    sizes = (W, *sizes[1:])                                                                # one vocabulary for tying
    rng = np.random.default_rng(3)
    return shake(kind(*sizes, rng=rng, dtype=np.float64, **options), rng), others, rng


# ------------------------------------------------------------------------------------------ the derivative of forward


@pytest.mark.parametrize("name", LAYERS)
def test_backward_is_the_derivative_of_forward(name):
    layer, inputs, others, rng = make(name)
    errors = gradient_errors(layer, inputs, others, rng)
    assert len(errors) == len(inputs) + len(layer.named_parameters())
    assert max(errors.values()) < TOLERANCE, errors
    assert all(np.any(gradient) for gradient in layer.named_gradients().values())


@pytest.mark.parametrize("name", ["DecoderBlock, masked", "Transformer, masked", "FeedForward", "AddNorm"])
def test_backward_is_the_derivative_of_forward_in_eval(name):
    layer, inputs, others, rng = make(name)
    layer.eval()
    errors = gradient_errors(layer, inputs, others, rng)
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_backward_of_the_whole_model_tied_and_untied(tie_embeddings):
    model, others, rng = masked_model(tie_embeddings=tie_embeddings)
    errors = gradient_errors(model, [], others, rng)
    assert len(errors) == len(model.named_parameters())
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("name", ["ScaledDotProductAttention", "MultiHeadAttention", "DecoderBlock"])
def test_backward_when_all_sizes_are_equal(name):
    """A missing transpose shows with unequal sizes; a wrong axis that still fits shows only with equal ones."""
    n, rng = 4, np.random.default_rng(1)
    kind, _, shapes, _ = LAYERS[name]
    sizes = {"ScaledDotProductAttention": (0.3,), "MultiHeadAttention": (n * n, n, 0.3),
             "DecoderBlock": (n * n, n, n, 0.3)}[name]
    shapes = [(n,) * (len(shape) - 1) + (n if len(shape) == 4 else n * n,) for shape in shapes]
    layer = shake(kind(*sizes, rng=rng, dtype=np.float64), rng)
    masks = [create_causal_mask(n), hidden(rng, n, n, n, n)][:1 + (name == "DecoderBlock")]
    errors = gradient_errors(layer, [rng.normal(size=shape) for shape in shapes], masks, rng)
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("axis", [-1, 0, 1])
def test_softmax_backward_is_the_derivative_of_softmax(axis):
    rng = np.random.default_rng(2)
    x, dout, direction = rng.normal(size=(3, B, T, S))
    step = 1e-6
    measured = np.sum(dout * (softmax(x + step * direction, axis) - softmax(x - step * direction, axis))) / (2 * step)
    expected = np.sum(softmax_backward(dout, softmax(x, axis), axis) * direction)
    assert abs(measured - expected) < TOLERANCE * abs(expected)


def test_self_attention_adds_the_gradients_of_query_key_and_value():
    """In a block one array is query, key and value at once; its gradient is the sum of the three."""
    layer, (x, *_), others, rng = make("MultiHeadAttention, causal")
    dout = rng.normal(size=x.shape)
    layer.eval()
    layer(x, x, x, *others)
    total = sum(layer.backward(dout))
    step, direction = 1e-6, rng.normal(size=x.shape)
    up, down = (np.sum(dout * layer(y, y, y, *others)) for y in (x + step * direction, x - step * direction))
    assert abs((up - down) / (2 * step) - np.sum(total * direction)) < TOLERANCE * abs(np.sum(total * direction))


def test_the_test_reports_a_wrong_gradient():
    """Each way of spoiling backward is seen: a factor, one entry, one weight, one of two paths."""
    def spoil_factor(layer):
        layer.dW1 *= 1.001

    def spoil_entry(layer):
        layer.dW2[0, 0] += 1e-3

    def drop_weight(layer):
        layer.db1[...] = 0

    for spoil, name in [(spoil_factor, "W1"), (spoil_entry, "W2"), (drop_weight, "b1")]:
        class Spoilt(FeedForward):
            def backward(self, dout):
                dx = super().backward(dout)
                spoil(self)
                return dx

        rng = np.random.default_rng(0)
        layer = shake(Spoilt(D, F, rng=rng, dtype=np.float64), rng)
        errors = gradient_errors(layer, [rng.normal(size=(B, T, D))], [], rng)
        assert [wrong for wrong, error in errors.items() if error > TOLERANCE] == [name]


def test_the_test_refuses_single_precision():
    layer, inputs, others, rng = make("FeedForward", dtype=np.float32)
    with pytest.raises(TypeError, match="float32"):
        gradient_errors(layer, inputs, others, rng)


# ---------------------------------------------------------------------------------------------- gradients accumulate


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_add_up_until_zero_grad(name):
    layer, inputs, others, rng = make(name)
    layer.eval()
    dout = rng.normal(size=layer(*inputs, *others).shape)
    layer.backward(dout)
    once = {key: gradient.copy() for key, gradient in layer.named_gradients().items()}
    arrays = layer.named_gradients()

    layer(*inputs, *others)
    layer.backward(2 * dout)
    for key, gradient in layer.named_gradients().items():
        assert gradient is arrays[key], "the gradient of a weight stays one array"
        np.testing.assert_allclose(gradient, 3 * once[key], rtol=1e-9, atol=1e-12)

    layer.zero_grad()
    assert not any(np.any(gradient) for gradient in arrays.values())
    layer(*inputs, *others)
    layer.backward(dout)
    for key, gradient in arrays.items():
        np.testing.assert_array_equal(gradient, once[key])


@pytest.mark.parametrize("name", LAYERS)
def test_names_of_weights_and_gradients_agree(name):
    layer, *_ = make(name)
    parameters, gradients = layer.named_parameters(), layer.named_gradients()
    assert list(parameters) == list(gradients)
    assert layer.num_parameters() == sum(weight.size for weight in parameters.values())
    for key, weight in parameters.items():
        assert gradients[key].shape == weight.shape and gradients[key].dtype == weight.dtype
        owner, *_, last = [layer] + key.split(".")
        for part in key.split(".")[:-1]:
            owner = owner[int(part)] if part.isdigit() else getattr(owner, part)
        assert getattr(owner, last) is weight
        assert getattr(owner, "d" + last) is gradients[key]


# ---------------------------------------------------------------------------- one forward pays for one backward


@pytest.mark.parametrize("name", LAYERS)
def test_backward_needs_a_forward_of_its_own(name):
    layer, inputs, others, rng = make(name)
    with pytest.raises(RuntimeError, match="forward"):
        layer.backward(np.ones((B, T, D)))
    dout = rng.normal(size=layer(*inputs, *others).shape)
    layer.backward(dout)
    with pytest.raises(RuntimeError, match="forward"):
        layer.backward(dout)


@pytest.mark.parametrize("name", [name for name in LAYERS if name != "Dropout"])                # which takes any array
def test_a_forward_that_fails_leaves_nothing_for_a_backward(name):
    layer, inputs, others, rng = make(name)
    dout = rng.normal(size=layer(*inputs, *others).shape)
    with pytest.raises((ValueError, TypeError)):
        layer(np.ones((B + 1, S + 1, D + 1)), *[*inputs, *others][1:])
    with pytest.raises(RuntimeError, match="forward"):
        layer.backward(dout)
    assert not any(gradient.any() for gradient in layer.named_gradients().values())


@pytest.mark.parametrize("name", LAYERS)
def test_backward_belongs_to_the_last_forward(name):
    """Two forwards, one backward: the gradients are those of the second."""
    layer, inputs, others, rng = make(name)
    layer.eval()
    dout = rng.normal(size=layer(*inputs, *others).shape)
    alone = layer.backward(dout)
    weights_alone = {key: gradient.copy() for key, gradient in layer.named_gradients().items()}

    layer.zero_grad()
    layer(*[rng.normal(size=x.shape) for x in inputs], *others)
    layer(*inputs, *others)
    again = layer.backward(dout)
    for one, two in zip(alone if isinstance(alone, tuple) else [alone], again if isinstance(again, tuple) else [again]):
        np.testing.assert_array_equal(one, two)
    for key, gradient in layer.named_gradients().items():
        np.testing.assert_array_equal(gradient, weights_alone[key])
    with pytest.raises(RuntimeError):
        layer.backward(dout)


def test_a_layer_at_two_places_is_refused():
    layer, (x,), _, rng = make("FeedForward")
    layer(layer(x))
    dx = layer.backward(x)
    with pytest.raises(RuntimeError, match="share"):
        layer.backward(dx)


def test_twins_share_weights_and_gradients_but_not_what_forward_left():
    """The way to use one weight at two places: the gradient is the sum of both uses."""
    layer, (x,), _, rng = make("FeedForward")
    layer.eval()
    layer(x)
    twin = layer.twin()
    with pytest.raises(RuntimeError):
        twin.backward(x)
    for name in layer.named_parameters():
        assert twin.named_parameters()[name] is layer.named_parameters()[name]
        assert twin.named_gradients()[name] is layer.named_gradients()[name]

    class Twice(implementation.Layer):
        def __init__(self):
            super().__init__(np.float64)
            self.first, self.second = layer, twin

        def forward(self, x):
            return self.second(self.first(x))

        def backward(self, dout):
            return self.first.backward(self.second.backward(dout))

    twice = Twice()
    assert twice.num_parameters() == layer.num_parameters()
    assert list(twice.named_parameters()) == ["first.W1", "first.b1", "first.W2", "first.b2"]
    errors = gradient_errors(twice, [x], [], rng)
    assert max(errors.values()) < TOLERANCE, errors


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_a_twin_of_the_whole_model_shares_every_weight_and_nothing_else(tie_embeddings):
    model, (src, tgt, src_mask, tgt_mask), rng = masked_model(tie_embeddings=tie_embeddings)
    model.eval()
    twin = model.twin()
    assert not {id(layer) for layer in model.layers()} & {id(layer) for layer in twin.layers()}
    assert len(list(model.layers())) == len(list(twin.layers()))
    assert list(twin.named_parameters()) == list(model.named_parameters())
    other_src, other_tgt = src[::-1], tgt[::-1, :4]
    dlogits, other_dlogits = rng.normal(size=(B, T, W)), rng.normal(size=(B, 4, W))

    model(src, tgt, src_mask, tgt_mask)
    model.backward(dlogits)
    model(other_src, other_tgt)
    model.backward(other_dlogits)
    expected = {name: gradient.copy() for name, gradient in model.named_gradients().items()}

    model.zero_grad()
    model(src, tgt, src_mask, tgt_mask)
    twin(other_src, other_tgt)                                        # before the first model has gone backward
    model.backward(dlogits)
    twin.backward(other_dlogits)
    for name, gradient in twin.named_gradients().items():
        np.testing.assert_array_equal(gradient, expected[name])


def test_an_encode_or_decode_by_itself_leaves_nothing_for_the_whole_models_backward():
    model, (src, tgt, src_mask, tgt_mask), rng = masked_model()
    memory = np.ones((B, S, D))
    for part in (lambda: model.encode(src, src_mask), lambda: model.decode(tgt, memory, tgt_mask, src_mask)):
        logits = model(src, tgt, src_mask, tgt_mask)
        part()
        with pytest.raises(RuntimeError):
            model.backward(np.ones_like(logits))


# ---------------------------------------------------------------------------------------- what belongs to the caller


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_the_callers_arrays_are_never_changed(name, training):
    """Read-only arrays are accepted everywhere, and arrays that could be written are not."""
    layer, inputs, others, rng = make(name)
    if not training:
        layer.eval()
    given = [*inputs, *others]
    dout = rng.normal(size=layer(*given).shape)
    given.append(dout)
    copies = [array.copy() for array in given]
    layer(*given[:-1])
    layer.backward(dout)
    for array, copy in zip(given, copies):
        np.testing.assert_array_equal(array, copy)

    for array in given:
        array.flags.writeable = False
    try:
        layer(*given[:-1])
        layer.backward(dout)
    finally:
        for array in given:
            array.flags.writeable = True


@pytest.mark.parametrize("name", LAYERS)
def test_the_layout_in_memory_does_not_matter(name):
    """Transposed, strided and Fortran-ordered arrays give the same answers as contiguous ones."""
    def scattered(array):
        wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), dtype=array.dtype, order="F")
        wide[..., ::2] = array
        return wide[..., ::2]

    layer, inputs, others, rng = make(name)
    layer.eval()
    out = layer(*inputs, *others)
    dout = rng.normal(size=out.shape)
    returned = layer.backward(dout)
    gradients = {key: gradient.copy() for key, gradient in layer.named_gradients().items()}
    layer.zero_grad()
    np.testing.assert_allclose(layer(*map(scattered, inputs), *map(scattered, others)), out, rtol=1e-12, atol=1e-12)
    again = layer.backward(scattered(dout))
    if returned is not None:
        pairs = zip(returned, again) if isinstance(returned, tuple) else [(returned, again)]
        for one, two in pairs:
            np.testing.assert_allclose(two, one, rtol=1e-12, atol=1e-12)
    for key, gradient in layer.named_gradients().items():
        np.testing.assert_allclose(gradient, gradients[key], rtol=1e-12, atol=1e-12)


# ----------------------------------------------------------------------------------------- a query with nothing to see


def test_a_query_with_nothing_to_see_gets_exact_zeros_and_spoils_no_other_row():
    """Left padding under a causal mask: the first queries see no key at all."""
    rng = np.random.default_rng(4)
    layer = ScaledDotProductAttention(0.0, dtype=np.float64)
    Q, K = rng.normal(size=(2, B, H, S, D))
    V_ = rng.normal(size=(B, H, S, D_V))
    tokens = np.array([[0, 0, 5, 6, 7, 8, 9]] * B)
    mask = create_padding_mask(tokens) | create_causal_mask(S)
    out = layer(Q, K, V_, mask)
    dout = rng.normal(size=out.shape)
    dQ, dK, dV = layer.backward(dout)
    assert not out[:, :, :2].any() and not layer.attention_weights[:, :, :2].any() and not dQ[:, :, :2].any()
    assert all(np.isfinite(array).all() for array in (out, dQ, dK, dV))

    seen = layer(Q[:, :, 2:], K[:, :, 2:], V_[:, :, 2:], create_causal_mask(S - 2))
    np.testing.assert_allclose(out[:, :, 2:], seen, rtol=0, atol=1e-12)
    for whole, part in zip((dQ, dK, dV), layer.backward(dout[:, :, 2:])):
        np.testing.assert_allclose(whole[:, :, 2:], part, rtol=0, atol=1e-12)
        assert not whole[:, :, :2].any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_whole_source_of_padding_gives_finite_numbers(dtype):
    rng = np.random.default_rng(5)
    model = Transformer(V, W, D, H, 2, 2, F, 0.1, S, rng=rng, dtype=dtype)
    src = np.zeros((B, S), dtype=int)
    logits = model(src, TGT, create_padding_mask(src), create_causal_mask(T) | create_padding_mask(TGT))
    model.backward(rng.normal(size=logits.shape).astype(dtype))
    assert np.isfinite(logits).all()
    assert all(np.isfinite(gradient).all() for gradient in model.named_gradients().values())


# --------------------------------------------------------------------------------------------- float32 stays float32


def float64_arrays(run):
    """Places in the model, the loss and Adam where a float64 array is held or returned while ``run()`` runs."""
    found, files = set(), (implementation.__file__, optimisation.__file__)

    def arrays(value):
        if isinstance(value, np.ndarray) and value.dtype == np.float64 and value.size:
            yield value
        elif isinstance(value, (tuple, list)):
            for item in value:
                yield from arrays(item)
        elif isinstance(value, implementation.Layer) and value._kept is not None:
            yield from arrays(value._kept)

    def trace(frame, event, value):
        if frame.f_code.co_filename not in files:
            return None
        if any(True for local in [*frame.f_locals.values(), value] for _ in arrays(local)):
            found.add((frame.f_code.co_qualname, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(before)
    return found


@pytest.mark.parametrize("training, tie_embeddings", [(True, False), (False, True)])
def test_float32_stays_float32(training, tie_embeddings):
    rng = np.random.default_rng(6)
    model = Transformer(W, W, D, H, 1, 1, F, 0.3, S, tie_embeddings=tie_embeddings, rng=rng)
    src_mask, tgt_mask = create_padding_mask(SRC), create_causal_mask(T) | create_padding_mask(TGT)
    loss, adam = optimisation.CrossEntropyLoss(0, 0.1), optimisation.Adam(model)
    if not training:
        model.eval()

    def one_step():
        logits = model(SRC, TGT, src_mask, tgt_mask)
        assert logits.dtype == np.float32
        loss(logits, TGT)
        model.zero_grad()
        model.backward(loss.backward())
        adam.step(optimisation.warmup_schedule(1, D))
        state = model.start_decoding(model.encode(SRC, src_mask), src_mask)
        for tokens in TGT.T[:2]:
            assert model.decode_step(tokens, state).dtype == np.float32
        state.reorder([0, 0, 1])

    assert float64_arrays(one_step) == set()
    for arrays in (model.named_parameters(), model.named_gradients()):
        assert all(array.dtype == np.float32 for array in arrays.values())
    assert model.positional_encoding.pe.dtype == np.float32


@pytest.mark.parametrize("name", LAYERS)
def test_each_layer_answers_in_its_own_precision(name):
    for dtype in (np.float32, np.float64):
        layer, inputs, others, rng = make(name, dtype=dtype)
        out = layer(*inputs, *others)
        returned = layer.backward(rng.normal(size=out.shape).astype(dtype))
        assert out.dtype == dtype
        for gradient in returned if isinstance(returned, tuple) else [returned]:
            assert gradient is None or gradient.dtype == dtype


def test_the_search_for_float64_finds_what_numpy_promotes():
    """np.sqrt of a whole number is a float64 scalar, which turns a float32 array into a float64 one."""
    model = TokenEmbedding(V, D)
    model.scale = np.sqrt(D)
    assert float64_arrays(lambda: model(SRC))
