"""Mistakes that people really make in hand-written Transformers, each with an input and the right value.

Every test names its case in plain words. The values were worked out in float64 by hand or with another program, and
the wrong value that the mistake would give stands in a comment or is tested to differ.
"""

import math

import numpy as np
import pytest

from implementation import (AddNorm, Dropout, EncoderBlock, FeedForward, LayerNorm, MultiHeadAttention,
                            PositionalEncoding, ScaledDotProductAttention, TokenEmbedding, Transformer,
                            create_causal_mask, create_padding_mask, linear, linear_backward, softmax)
from train_minimal import (Adam, CrossEntropyLoss, compute_accuracy, generate_copy_task_data,
                           generate_reverse_task_data, warmup_schedule)

pytestmark = pytest.mark.mutants


def close(actual, expected, tolerance=1e-6):
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def attend(Q, K, V, mask=None, dtype=np.float64):
    """(layer, output) for one head of one sequence, given as lists of rows."""
    layer = ScaledDotProductAttention(0.0, dtype=dtype)
    Q, K, V = (np.array([[x]], dtype=dtype) for x in (Q, K, V))
    return layer, layer(Q, K, V, None if mask is None else np.array([[mask]]))


# --------------------------------------------------------------------------------------------------------- masks


def test_a_row_with_no_allowed_key_gives_zeros_not_nan():
    layer, out = attend([[1, 0], [0, 1]], [[1, 0], [0, 2]], [[1, 2], [3, 4]], [[False, False], [True, True]])
    close(out[0, 0], [[1.660477, 2.660477], [0, 0]])
    assert (layer.attention_weights[0, 0, 1] == 0).all()                                    # -1e9 would give [.5, .5]
    dQ, dK, dV = layer.backward(np.ones((1, 1, 2, 2)))
    close(dQ[0, 0], [[-0.625594, 1.251189], [0, 0]])
    close(dK[0, 0], [[-0.625594, 0], [0.625594, 0]])
    close(dV[0, 0], [[0.669762, 0.669762], [0.330238, 0.330238]])


def test_left_padding_under_a_causal_mask_hides_everything_from_the_first_rows():
    """keep = [0, 0, 1, 1, 1] and causal: rows 0 and 1 see no key at all, with a whole layer round it."""
    block = EncoderBlock(8, 2, 16, 0.0, rng=0)
    mask = create_padding_mask(np.array([[0, 0, 5, 6, 7]])) | create_causal_mask(5)
    assert mask.all(axis=-1).ravel().tolist() == [True, True, False, False, False]
    out = block(np.random.default_rng(0).normal(size=(1, 5, 8)).astype(np.float32), mask)
    dx = block.backward(np.ones_like(out))
    assert np.isfinite(out).all() and np.isfinite(dx).all()
    assert all(np.isfinite(gradient).all() for gradient in block.named_gradients().values())
    weights = block.self_attention.get_attention_weights()
    assert not weights[:, :, :2].any()
    close(weights[:, :, 2:].sum(-1), 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_causal_mask_is_not_the_wrong_way_round(dtype):
    layer, _ = attend(np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 2)), create_causal_mask(3)[0, 0], dtype)
    close(layer.attention_weights[0, 0], [[1, 0, 0], [.5, .5, 0], [1 / 3, 1 / 3, 1 / 3]])
    # reversed: [[0, .5, .5], [0, 0, 1], [NaN, NaN, NaN]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mask_is_applied_and_exact_with_unequal_scores(dtype):
    """Scores of very different sizes, in single precision: a finite stand-in for -inf would leak or drown."""
    rng = np.random.default_rng(0)
    Q, K, V = (rng.normal(size=(2, 3, n, d)).astype(dtype) * 30 for n, d in ((4, 5), (6, 5), (6, 7)))
    mask = rng.random((2, 3, 4, 6)) < 0.5
    mask[..., 0] = False
    layer = ScaledDotProductAttention(0.0, dtype=dtype)
    out = layer(Q, K, V, mask)
    assert not layer.attention_weights[mask].any()
    for b, h, t in np.ndindex(2, 3, 4):                             # each query alone, with only the keys that it sees
        seen = ~mask[b, h, t]
        alone = ScaledDotProductAttention(0.0, dtype=dtype)(Q[b:b + 1, h:h + 1, t:t + 1],
                                                            K[b:b + 1, h:h + 1, seen], V[b:b + 1, h:h + 1, seen])
        np.testing.assert_allclose(alone[0, 0, 0], out[b, h, t], rtol=1e-4, atol=1e-4)


def test_changing_what_is_hidden_changes_nothing_and_the_second_call_equals_the_first():
    rng = np.random.default_rng(1)
    layer = MultiHeadAttention(8, 2, 0.0, rng=rng)
    query, memory = rng.normal(size=(2, 3, 8)).astype(np.float32), rng.normal(size=(2, 5, 8)).astype(np.float32)
    mask = create_padding_mask(np.array([[4, 5, 6, 0, 0], [4, 0, 0, 0, 0]]))
    out = layer(query, memory, memory, mask)
    np.testing.assert_array_equal(layer(query, memory, memory, mask), out)
    changed = np.where(mask[:, 0, 0, :, None], np.float32(-77), memory)
    np.testing.assert_array_equal(layer(query, changed, changed, mask), out)
    assert np.abs(layer(query, memory, memory) - out).max() > 1e-3


@pytest.mark.parametrize("mask", [np.array([[[[1, 0]]]]), np.array([[[[1, 0]]]], dtype=np.uint8),
                                  np.array([[[[0.0, -np.inf]]]])])
def test_a_mask_of_numbers_is_refused_for_it_could_mean_either(mask):
    """~np.array([1, 0]) is [-2, -1], which is true twice."""
    layer = ScaledDotProductAttention(0.0)
    x = np.ones((1, 1, 2, 4), dtype=np.float32)
    with pytest.raises(TypeError, match="True = hidden"):
        layer(x, x, x, mask)


def test_padding_is_hidden_as_a_key_not_as_a_query():
    mask = create_padding_mask(np.array([[5, 7, 0, 0]]))
    assert mask.shape == (1, 1, 1, 4) and mask.tolist() == [[[[False, False, True, True]]]]
    layer, _ = attend(np.zeros((4, 2)), np.zeros((4, 2)), np.zeros((4, 2)), np.broadcast_to(mask[0, 0], (4, 4)))
    close(layer.attention_weights[0, 0], [[.5, .5, 0, 0]] * 4)                         # the wrong axis: [.25] * 4


def test_padding_is_known_by_its_id_not_by_its_embedding():
    """Embeddings [[0, 0], [1, -1], [2, 3]]: the sum over id 1 is 0 as well, and positions make padding non-zero."""
    assert create_padding_mask(np.array([[1, 2, 0]]))[0, 0, 0].tolist() == [False, False, True]
    assert create_padding_mask(np.array([[1, 2, 0]]), pad_token=2)[0, 0, 0].tolist() == [False, True, False]


def test_cross_attention_hides_the_padding_of_the_source():
    layer, out = attend([[1, 0]], [[1, 0], [0, 1], [0, 0]], [[1, 0], [0, 1], [9, 9]], [[False, False, True]])
    close(out[0, 0], [[0.669762, 0.330238]])
    _, removed = attend([[1, 0]], [[1, 0], [0, 1]], [[1, 0], [0, 1]])
    close(out, removed, 1e-12)
    _, unmasked = attend([[1, 0]], [[1, 0], [0, 1], [0, 0]], [[1, 0], [0, 1], [9, 9]])
    close(unmasked[0, 0], [[2.737786, 2.482551]])


def test_padding_the_source_further_changes_no_output_of_the_decoder():
    model = Transformer(9, 11, 8, 2, 2, 2, 16, 0.0, 12, rng=0, dtype=np.float64)
    tgt = np.array([[1, 4, 5], [1, 10, 2]])
    src = np.array([[3, 4, 5, 6, 2], [7, 8, 2, 0, 0]])
    expected = model(src, tgt, create_padding_mask(src), create_causal_mask(3))
    for k in range(1, 7):
        longer = np.pad(src, ((0, 0), (0, k)))
        close(model(longer, tgt, create_padding_mask(longer), create_causal_mask(3)), expected, 1e-12)


# ------------------------------------------------------------------------------------------------------ attention


def test_heads_are_split_and_merged_with_a_transpose():
    layer = MultiHeadAttention(4, 2)
    x = np.arange(8.0).reshape(1, 2, 4)
    assert layer.split_heads(x).tolist() == [[[[0, 1], [4, 5]], [[2, 3], [6, 7]]]]   # without: [[0, 1], [2, 3]] first
    heads = np.array([[[["a", "b"], ["c", "d"]], [["e", "f"], ["g", "h"]]]])
    assert layer.merge_heads(heads).tolist() == [[["a", "b", "e", "f"], ["c", "d", "g", "h"]]]
    np.testing.assert_array_equal(layer.merge_heads(layer.split_heads(x)), x)
    assert layer.split_heads(np.zeros((3, 5, 4))).shape == (3, 2, 5, 2)


def test_scores_are_divided_by_the_root_of_the_heads_width():
    """d_model 8, 2 heads, dot products 4 and 0; by sqrt(8): .804430, not at all: .982014, multiplied: .999665."""
    layer, _ = attend([np.ones(4)], [np.ones(4), np.zeros(4)], np.zeros((2, 4)))
    close(layer.attention_weights[0, 0], [[0.880797, 0.119203]])
    layer = MultiHeadAttention(8, 2, 0.0, dtype=np.float64)
    layer.W_Q[...] = layer.W_K[...] = np.eye(8)
    memory = np.array([[np.ones(8), np.zeros(8)]])
    layer(np.ones((1, 1, 8)), memory, memory)
    close(layer.get_attention_weights()[0, :, 0], [[0.880797, 0.119203]] * 2)


def test_the_scale_is_in_the_gradients_too():
    """One query, two keys, values 1 and 0: dQ = w (1 - w) (k1 - k2) / sqrt(d_k), dK likewise."""
    layer, _ = attend([np.ones(4)], [np.ones(4), np.zeros(4)], [[1.0], [0.0]])
    dQ, dK, _ = layer.backward(np.ones((1, 1, 1, 1)))
    slope = 0.880797 * 0.119203 / 2
    close(dQ[0, 0], [[slope] * 4])
    close(dK[0, 0], [[slope] * 4, [-slope] * 4])


@pytest.mark.parametrize("make", [MultiHeadAttention, lambda d, h: Transformer(5, 5, d, h, 1, 1, 4, max_len=3)])
def test_a_width_that_the_heads_do_not_divide_is_named_with_both_numbers(make):
    with pytest.raises(ValueError, match="1600.*48"):
        make(1600, 48)
    for h in (0, -2):
        with pytest.raises(ValueError, match=str(h)):
            make(8, h)


def test_attention_weights_are_kept_per_head_and_from_before_dropout():
    rng = np.random.default_rng(0)
    layer = MultiHeadAttention(8, 2, 0.5, rng=rng)
    assert layer.get_attention_weights() is None
    query, memory = rng.normal(size=(3, 4, 8)).astype(np.float32), rng.normal(size=(3, 5, 8)).astype(np.float32)
    layer(query, memory, memory)
    weights = layer.get_attention_weights()
    assert weights.shape == (3, 2, 4, 5)
    close(weights.sum(axis=-1), 1)
    assert np.abs(weights[:, 0] - weights[:, 1]).max() > 0.01, "one head's weights differ from another's"
    layer.eval()
    layer(query, memory, memory)
    np.testing.assert_array_equal(layer.get_attention_weights(), weights)


def test_a_kept_attention_weight_is_scaled_up():
    """p = 0.2, one key kept: 1 / 0.8 = 1.25; p = 0.5, weights [.5, .5], the second dropped: [1, 0]."""
    seen = set()
    for seed in range(40):
        layer = ScaledDotProductAttention(0.2, rng=seed, dtype=np.float64)
        one = layer(np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 1)))
        seen.add(round(float(one[0, 0, 0, 0]), 4))
    assert seen == {0.0, 1.25}
    seen = set()
    for seed in range(40):
        layer = ScaledDotProductAttention(0.5, rng=seed, dtype=np.float64)
        two = layer(np.ones((1, 1, 1, 2)), np.ones((1, 1, 2, 2)), np.array([[[[1.0, 0], [0, 1]]]]))
        seen.add(tuple(two[0, 0, 0].round(4)))
    assert seen == {(0, 0), (1, 0), (0, 1), (1, 1)}


def test_softmax_is_over_the_keys():
    close(softmax(np.array([[1.0, 2], [3, 4]])), [[0.268941, 0.731059]] * 2)
    close(softmax(np.array([[1.0, 2], [3, 4]]), axis=0), [[.119203, .119203], [.880797, .880797]])
    close(softmax([[1, 2], [3, 4]]), [[0.268941, 0.731059]] * 2)                               # a list of whole numbers
    rng = np.random.default_rng(0)
    for shape in ((3, 5), (2, 3, 5), (2, 4, 3, 5)):
        weights = softmax(rng.normal(size=shape))
        close(weights.sum(axis=-1), 1)
        assert np.abs(weights.sum(axis=-2) - 1).max() > 0.01


def test_softmax_survives_large_numbers_and_hidden_ones():
    close(softmax(np.array([1000.0, 1001.0])), [0.268941, 0.731059])
    close(softmax(np.array([-1000.0, -1001.0], dtype=np.float32)), [0.731059, 0.268941])
    assert softmax(np.array([-np.inf, 3.0])).tolist() == [0, 1]
    assert softmax(np.array([-np.inf, -np.inf])).tolist() == [0, 0]
    assert softmax(np.array([-np.inf, -3e38], dtype=np.float32)).tolist() == [0, 1]


# -------------------------------------------------------------------------------------------------------- dropout


def test_nothing_is_dropped_in_eval_at_any_depth():
    src, tgt = np.array([[3, 4, 2], [5, 2, 0]]), np.array([[1, 4, 3, 2], [1, 5, 2, 0]])
    model = Transformer(7, 7, 8, 2, 2, 2, 16, 0.5, 10, rng=0)
    without = Transformer(7, 7, 8, 2, 2, 2, 16, 0.0, 10, rng=0)
    for name, weight in without.named_parameters().items():
        weight[...] = model.named_parameters()[name]
    assert np.abs(model(src, tgt) - model(src, tgt)).max() > 1e-3
    model.eval()
    assert not any(layer.training for layer in model.layers())
    np.testing.assert_array_equal(model(src, tgt), model(src, tgt))
    np.testing.assert_array_equal(model(src, tgt), without(src, tgt))
    model.train()
    assert all(layer.training for layer in model.layers())
    assert np.abs(model(src, tgt) - model(src, tgt)).max() > 1e-3


def test_a_probability_of_zero_draws_no_random_numbers():
    rng = np.random.default_rng(0)
    layer = Dropout(0.0, rng=rng)
    before = rng.bit_generator.state
    x = np.ones((3, 4), dtype=np.float32)
    np.testing.assert_array_equal(layer(x), x)
    layer = Dropout(0.5, rng=rng)
    layer.eval()
    layer(x)
    assert rng.bit_generator.state == before
    with pytest.raises(ValueError, match="1"):
        Dropout(1)


def dropout_with_mask(mask, dtype=np.float64):
    """A Dropout(0.5) whose next forward keeps exactly ``mask``: the right seed is looked for."""
    for seed in range(1000):
        if (Dropout(0.5, rng=seed, dtype=dtype)(np.ones(len(mask))) > 0).tolist() == mask:
            return Dropout(0.5, rng=seed, dtype=dtype)
    raise AssertionError("no seed gives this mask")


def test_dropouts_backward_uses_the_mask_and_the_scale():
    layer = dropout_with_mask([True, False, True, False])
    layer(np.array([5.0, 6, 7, 8]))
    assert layer.backward(np.array([1.0, 2, 3, 4])).tolist() == [2, 0, 6, 0]     # no mask [2,4,6,8], no scale [1,0,3,0]
    layer = dropout_with_mask([True, False, True, False])
    layer(np.zeros(4))                                             # kept zeros pass their gradient, dropped ones do not
    assert layer.backward(np.array([1.0, 2, 3, 4])).tolist() == [2, 0, 6, 0]
    layer.eval()
    assert layer(np.array([5.0, 6])).tolist() == [5, 6]
    assert layer.backward(np.array([1.0, 2])).tolist() == [1, 2]


def test_dropouts_backward_uses_the_mask_of_the_last_forward():
    layer = Dropout(0.5, rng=3, dtype=np.float64)
    first, second = layer(np.ones(64)), layer(np.ones(64))
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(layer.backward(np.ones(64)), second)


# --------------------------------------------------------------------------------------- positions and embeddings


@pytest.mark.parametrize("d_model, row", [(5, [0.841471, 0.540302, 0.025116, 0.999685, 0.000631]),
                                          (3, [0.841471, 0.540302, 0.002154]), (1, [0.841471])])
def test_an_odd_width_has_positions_too(d_model, row):
    close(PositionalEncoding(d_model, 3, 0.0).pe[1], row)


def test_the_exponent_is_not_doubled_and_cosine_shares_that_of_sine():
    pe = PositionalEncoding(4, 50, 0.0, dtype=np.float64).pe
    close(pe[1], [0.841471, 0.540302, 0.010000, 0.999950])                  # doubled: [.841471, .999950, .0001, 1]
    close(pe[2], [0.909297, -0.416147, 0.019999, 0.999800])
    pe = PositionalEncoding(8, 50, 0.0, dtype=np.float64).pe
    close((pe * pe).sum(axis=1), 4, 1e-12)
    close((pe[1:] * pe[:-1]).sum(axis=1), 3.535256)


def test_positions_added_to_whole_numbers_are_not_cut_off():
    layer = PositionalEncoding(4, 5, 0.0)
    close(layer(np.zeros((1, 2, 4), dtype=np.int64))[0, 1], [0.841471, 0.540302, 0.010000, 0.999950])


def test_a_repeated_token_collects_the_gradients_of_all_its_places():
    layer = TokenEmbedding(3, 2, dtype=np.float64)
    layer.scale = 1.0
    layer(np.array([[0, 0, 1]]))
    layer.backward(np.ones((1, 3, 2)))
    assert layer.dembedding.tolist() == [[2, 2], [1, 1], [0, 0]]                # += by index: [[1, 1], [1, 1], [0, 0]]


@pytest.mark.parametrize("token", [-1, 3, -100])
def test_a_token_outside_the_vocabulary_is_named_with_its_size(token):
    layer = TokenEmbedding(3, 2)
    with pytest.raises(IndexError, match=rf"{token}\b.*\b3\b"):
        layer(np.array([[0, token, 1]]))


def test_tokens_that_are_not_integers_are_refused():
    for tokens in (np.array([[0.0, 1.0]]), np.array([[True, False]]), [["a", "b"]]):
        with pytest.raises(TypeError, match="integers"):
            TokenEmbedding(3, 2)(tokens)
    with pytest.raises(TypeError, match="integers"):
        create_padding_mask(np.array([[0.0, 1.0]]))


@pytest.mark.parametrize("generate", [generate_copy_task_data, generate_reverse_task_data])
def test_random_data_covers_the_vocabulary_exactly(generate):
    src, tgt = generate(500, 4, vocab_size=9, rng=0)
    assert np.unique(src).tolist() == [0, 2, 3, 4, 5, 6, 7, 8]                     # padding, end, data up to V - 1
    assert np.unique(tgt).tolist() == list(range(9))
    src, _ = generate(50, 4, vocab_size=70_000, rng=0)                             # in int16, 40,000 would be -25,536
    assert src.min() >= 0 and src.max() > 40_000


def test_the_embedding_is_multiplied_by_the_root_of_the_width():
    layer = TokenEmbedding(3, 16, dtype=np.float64)
    layer.embedding[...] = 0.1
    close(layer(np.array([[1]])), np.full((1, 1, 16), 0.4), 1e-12)                       # divided: 0.025
    layer.backward(np.ones((1, 1, 16)))
    close(layer.dembedding, [[0] * 16, [4] * 16, [0] * 16], 1e-12)


def test_a_tied_matrix_collects_the_gradients_of_both_its_uses():
    layer = TokenEmbedding(3, 2, dtype=np.float64)
    layer.embedding[...] = [[.1, .2], [.3, -.1], [0, .4]]
    loss = CrossEntropyLoss(ignore_index=-1)
    x = layer(np.array([[1]]))
    loss(linear(x, layer.embedding.T), np.array([[2]]))
    layer.backward(linear_backward(loss.backward(), x, layer.embedding.T, layer.dembedding.T))
    close(layer.dembedding, [[0.138311, -0.046104], [0.360273, -0.406376], [-0.295395, 0.098465]])


# ----------------------------------------------------------------------------------------------------- layer norm


def test_layer_norm_uses_the_biased_variance_with_eps_inside_the_root():
    layer = LayerNorm(4, dtype=np.float64)
    close(layer(np.array([[1.0, 0, 0, 0]])), [[1.732005, -0.577335, -0.577335, -0.577335]])       # n - 1: 1.499970
    close(layer(np.array([[7.0, 7, 7, 7]])), [[0, 0, 0, 0]])
    close(LayerNorm(4, eps=1e-6, dtype=np.float64)(np.array([[1, 2, 3, 4]]) * 1e-3),
          [[-1.5 / math.sqrt(1.25 + 1), -0.5 / 1.5, 0.5 / 1.5, 1.0]])
    close(layer(np.array([[1, 2, 3, 4]]) * 1e-3), [[-0.447214, -0.149071, 0.149071, 0.447214]])   # outside: 1.160996


def test_layer_norms_gradient_goes_by_three_paths():
    layer = LayerNorm(4, dtype=np.float64)
    layer(np.array([[1.0, 2, 4, 5]]))
    dx = layer.backward(np.array([[1.0, 2, 3, 5]]))
    close(dx, [[0.031618, 0.094866, -0.411093, 0.284609]])        # without the variance: [-1.106795, ..., 1.423022]
    close(dx.sum(), 0, 1e-12)


def test_the_norm_comes_after_the_residual():
    """x = [1, 3] and the identity as sublayer: LN(x + x) = [-1, 1]; x + LN(x) would be [0, 4]."""
    x = np.array([[1.0, 3]])
    close(AddNorm(2, 0.0, dtype=np.float64)(x, x), [[-0.999999, 0.999999]], 2e-6)


def test_a_stack_is_not_normalised_once_more_at_its_end():
    """Twice differs from once by 6e-6 with fresh gains; with gains of its own the last norm's output stands."""
    model = Transformer(7, 7, 4, 2, 1, 1, 8, 0.0, 9, rng=0, dtype=np.float64)
    for block, norm in ((model.encoder_layers[-1], "norm2"), (model.decoder_layers[-1], "norm3")):
        getattr(block, norm).gamma[...] = [1, 2, 3, 4]
        getattr(block, norm).beta[...] = 10
    memory = model.encode(np.array([[3, 4, 2]]))
    for out in (memory, model.decode(np.array([[1, 5]]), memory)):
        x_hat = (out - 10) / [1, 2, 3, 4]
        close(x_hat.mean(-1), 0, 1e-12)
        close(x_hat.std(-1), 1, 1e-4)


# -------------------------------------------------------------------------------------- checking gradients by hand


def slope(function, at, step):
    """The central difference of a function of one number."""
    return (function(at + step) - function(at - step)) / (2 * step)


def test_a_difference_across_a_kink_is_not_the_gradient():
    """ReLU at 0: the difference says 0.5; at 4e-6 with a step of 1e-5 it says 0.7. Backward is right: 0 and 1."""
    layer = FeedForward(1, 1, 0.0, dtype=np.float64)
    layer.W1[...] = layer.W2[...] = 1
    for at, difference, gradient in ((0.0, 0.5, 0), (4e-6, 0.7, 1), (4e-5, 1.0, 1), (-4e-5, 0.0, 0)):
        close(slope(lambda x: layer(np.array([[x]])).item(), at, 1e-5), difference)
        layer(np.array([[at]]))
        assert layer.backward(np.array([[1.0]])).item() == gradient


def test_single_precision_differences_condemn_a_right_gradient():
    """x . y with 200 entries: off by over 1 % in float32, by less than 1e-8 in float64."""
    worst = {}
    for dtype, step in ((np.float32, 1e-3), (np.float64, 1e-5)):
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(2, 200)).astype(dtype)

        def moved(i, by):
            other = x.copy()
            other[i] += dtype(by)
            return float(other @ y)

        worst[dtype] = max(abs((moved(i, step) - moved(i, -step)) / (2 * step) - y[i]) / abs(y[i]) for i in range(200))
    assert worst[np.float32] > 0.01 and worst[np.float64] < 1e-8, worst


# ------------------------------------------------------------------------------------------ the loss and training


LOGITS = np.array([[0, 1, 3, .5, -1]])


def test_label_smoothing_spreads_eps_over_all_classes():
    """V = 5, eps = 0.4, target 2: q = [.08, .08, .68, .08, .08], loss 1.171166; spread over V - 2: 1.384499."""
    loss = CrossEntropyLoss(label_smoothing=0.4)
    close(loss(LOGITS, np.array([2])), 1.171166)
    close(loss.backward(), softmax(LOGITS) - [[.08, .08, .68, .08, .08]], 1e-12)
    close(CrossEntropyLoss()(LOGITS, np.array([2])), -math.log(softmax(LOGITS)[0, 2]), 1e-12)
    close(CrossEntropyLoss(label_smoothing=0.1)(np.array([[0.3, -0.2]]), np.array([1])),
          -0.95 * math.log(softmax(np.array([.3, -.2]))[1]) - 0.05 * math.log(softmax(np.array([.3, -.2]))[0]), 1e-12)


def test_padding_targets_count_for_nothing():
    """Not in the sum, not in the divisor, not in the gradient."""
    loss = CrossEntropyLoss(label_smoothing=0.4)
    logits = np.concatenate([LOGITS, LOGITS[:, ::-1], LOGITS + 3])
    close(loss(logits, np.array([2, 0, 0])), 1.171166)
    dlogits = loss.backward()
    close(dlogits[0], (softmax(LOGITS) - [[.08, .08, .68, .08, .08]])[0], 1e-12)
    assert not dlogits[1:].any()


def test_a_confident_wrong_answer_has_a_finite_loss():
    """From logits, with log-softmax: log of a probability that has become 0 would be -inf."""
    loss = CrossEntropyLoss(label_smoothing=0.1)
    logits = np.array([[0, 0, 1000.0], [1000.0, -1000, 0]])
    value = loss(logits, np.array([1, 1]))
    close(value, (0.9 * 1000 + 0.1 / 3 * 2000 + 0.9 * 2000 + 0.1 / 3 * 3000) / 2, 1e-9)
    assert np.isfinite(loss.backward()).all()


@pytest.mark.parametrize("shape", [(3,), (2, 3), (0,), (0, 4)])
def test_a_batch_of_nothing_but_padding_costs_nothing(shape):
    """Never NaN: 0.0 with zero gradients, also for the accuracy and for an empty batch."""
    loss = CrossEntropyLoss(label_smoothing=0.1)
    logits = np.ones((*shape, 5), dtype=np.float32)
    targets = np.zeros(shape, dtype=int)
    assert loss(logits, targets) == 0.0
    dlogits = loss.backward()
    assert dlogits.shape == logits.shape and not dlogits.any()
    assert compute_accuracy(logits, targets) == 0.0


def test_the_learning_rate_at_given_steps():
    for step, rate in ((1, 1.746928e-7), (4000, 6.987712e-4), (16000, 3.493856e-4)):
        assert warmup_schedule(step, 512) == pytest.approx(rate, rel=1e-6)
    for step, rate in ((1, 0.01118), (5, 0.055902), (10, 0.111803), (20, 0.079057), (40, 0.055902)):
        assert warmup_schedule(step, 8, 10) == pytest.approx(rate, abs=1e-6)


@pytest.mark.parametrize("arguments", [(0, 512), (-1, 512), (1, 0), (1, 512, 0), (np.int64(0), 512)])
def test_the_learning_rate_has_no_step_0(arguments):
    with pytest.raises(ValueError):
        warmup_schedule(*arguments)


def losses_on_random_labels(steps, causal):
    """Train on targets that have nothing to do with their sources, and return the loss on fresh ones."""
    rng = np.random.default_rng(0)
    model, loss = Transformer(13, 13, 16, 2, 1, 1, 32, 0.0, 12, rng=rng), CrossEntropyLoss()
    adam = Adam(model)

    def forward():
        src, tgt = rng.integers(3, 13, (2, 32, 7))
        logits = model(src, tgt[:, :-1], None, create_causal_mask(6) if causal else None)
        return loss(logits, tgt[:, 1:])

    for _ in range(steps):
        forward()
        model.zero_grad()
        model.backward(loss.backward())
        adam.step(0.01)
    return np.mean([forward() for _ in range(20)])


def test_what_cannot_be_known_is_not_known():
    """Random labels over ten classes: nothing beats log(10) = 2.302585 on fresh data. With a leak the loss falls."""
    assert losses_on_random_labels(100, causal=True) > 2.30
    assert losses_on_random_labels(100, causal=False) < 1.5
