"""One test for each statement of the paper, named after it, with the section in its first line.

Expected values come from the formulas written out entry by entry, never from the code under test. Weights are shaken
off the values they start with: at initialisation a swapped or doubled layer norm cannot be seen.
"""

import math

import numpy as np
import pytest

from gradient_check import shake
from implementation import (AddNorm, DecoderBlock, Dropout, EncoderBlock, FeedForward, LayerNorm, MultiHeadAttention,
                            PositionalEncoding, ScaledDotProductAttention, TokenEmbedding, Transformer,
                            create_causal_mask, create_padding_mask, softmax)

pytestmark = pytest.mark.mutants

B, T, S, D, H, F, V, W = 3, 5, 7, 8, 2, 9, 11, 13
D_K = D // H
SRC = np.array([[3, 5, 3, 3, 2, 0, 0], [4, 4, 9, 10, 1, 4, 2], [7, 0, 0, 0, 0, 0, 0]])
TGT = np.array([[1, 12, 3, 12, 2], [1, 5, 2, 6, 3], [1, 7, 7, 7, 4]])
EXACT = dict(rtol=0, atol=1e-12)


@pytest.fixture
def rng():
    return np.random.default_rng(1706_03762)


def make_model(rng, vocabulary=V, n=2, dropout_p=0.0, max_len=S + 3, **options):
    model = Transformer(vocabulary, W, D, H, n, n, F, dropout_p, max_len, rng=rng, dtype=np.float64, **options)
    return shake(model, rng)


# ------------------------------------------------------- the formulas, entry by entry, as the paper writes them down


def layer_norm_by_hand(x, gamma, beta, eps=1e-5):
    out = np.empty_like(x)
    for place in np.ndindex(x.shape[:-1]):
        mean = sum(x[place]) / len(x[place])
        variance = sum((entry - mean) ** 2 for entry in x[place]) / len(x[place])
        out[place] = [g * (entry - mean) / math.sqrt(variance + eps) + b for entry, g, b in zip(x[place], gamma, beta)]
    return out


def attention_by_hand(Q, K, V_, hidden=None):
    """For one head of one sequence: Q (T, d_k), K (S, d_k), V (S, d_v), hidden (T, S)."""
    out, weights = np.zeros((len(Q), V_.shape[1])), np.zeros((len(Q), len(K)))
    for t, q in enumerate(Q):
        seen = [s for s in range(len(K)) if hidden is None or not hidden[t, s]]
        powers = {s: math.exp(sum(a * b for a, b in zip(q, K[s])) / math.sqrt(len(q))) for s in seen}
        for s in seen:
            weights[t, s] = powers[s] / sum(powers.values())
            out[t] += weights[t, s] * V_[s]
    return out, weights


def multi_head_by_hand(layer, query, key, value, mask=None):
    """Concat(head_1, ..., head_h) W_O with head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i), a loop over heads."""
    out = np.empty_like(query)
    for b in range(len(query)):
        heads = []
        for i in range(layer.n_heads):
            own = slice(i * layer.d_k, (i + 1) * layer.d_k)
            hidden = None if mask is None else np.broadcast_to(
                mask, (len(query), layer.n_heads, query.shape[1], key.shape[1]))[b, i]
            heads.append(attention_by_hand(query[b] @ layer.W_Q[:, own], key[b] @ layer.W_K[:, own],
                                           value[b] @ layer.W_V[:, own], hidden)[0])
        out[b] = np.concatenate(heads, axis=1) @ layer.W_O
    return out


def feed_forward_by_hand(layer, x):
    hidden = np.array([max(0, entry) for entry in (x @ layer.W1 + layer.b1).ravel()])
    return hidden.reshape(*x.shape[:-1], -1) @ layer.W2 + layer.b2


def norm_by_hand(layer, x):
    return layer_norm_by_hand(x, layer.gamma, layer.beta)


def positions_by_hand(length, d_model):
    return np.array([[(math.cos if j % 2 else math.sin)(pos / 10000 ** (2 * (j // 2) / d_model))
                      for j in range(d_model)] for pos in range(length)])


# ------------------------------------------------------------------------------------------- 3.1 the two stacks


def test_layer_norm_normalises_each_position_with_the_biased_variance(rng):
    """3.1, and Ba et al. 2016 to which it refers."""
    layer, x = shake(LayerNorm(D, rng=rng, dtype=np.float64), rng), rng.normal(3, 2, (B, T, D))
    np.testing.assert_allclose(layer(x), norm_by_hand(layer, x), **EXACT)
    layer = shake(LayerNorm(D, 0.25, dtype=np.float64), rng)
    np.testing.assert_allclose(layer(x), layer_norm_by_hand(x, layer.gamma, layer.beta, eps=0.25), **EXACT)


def test_the_output_of_each_sublayer_is_layer_norm_of_x_plus_sublayer_of_x(rng):
    """3.1: LayerNorm(x + Sublayer(x)), so the norm comes after the residual connection."""
    layer, x, y = shake(AddNorm(D, 0.0, dtype=np.float64), rng), *rng.normal(size=(2, B, T, D))
    np.testing.assert_allclose(layer(x, y), norm_by_hand(layer, x + y), **EXACT)


@pytest.mark.parametrize("mask", [None, create_padding_mask(SRC), create_causal_mask(S)])
def test_an_encoder_layer_is_self_attention_then_feed_forward(rng, mask):
    """3.1: two sublayers, a residual connection round each, followed by layer normalisation."""
    block = shake(EncoderBlock(D, H, F, 0.0, rng=rng, dtype=np.float64), rng)
    x = rng.normal(size=(B, S, D))
    after_first = norm_by_hand(block.norm1, x + multi_head_by_hand(block.self_attention, x, x, x, mask))
    expected = norm_by_hand(block.norm2, after_first + feed_forward_by_hand(block.feed_forward, after_first))
    np.testing.assert_allclose(block(x, mask), expected, **EXACT)


@pytest.mark.parametrize("self_mask, cross_mask", [(None, None), (create_causal_mask(T), create_padding_mask(SRC))])
def test_a_decoder_layer_inserts_attention_over_the_encoders_output(rng, self_mask, cross_mask):
    """3.1 and 3.2.3: queries from the layer before, keys and values from the output of the encoder."""
    block = shake(DecoderBlock(D, H, F, 0.0, rng=rng, dtype=np.float64), rng)
    x, memory = rng.normal(size=(B, T, D)), rng.normal(size=(B, S, D))
    first = norm_by_hand(block.norm1, x + multi_head_by_hand(block.self_attention, x, x, x, self_mask))
    second = norm_by_hand(block.norm2,
                          first + multi_head_by_hand(block.cross_attention, first, memory, memory, cross_mask))
    expected = norm_by_hand(block.norm3, second + feed_forward_by_hand(block.feed_forward, second))
    np.testing.assert_allclose(block(x, memory, self_mask, cross_mask), expected, **EXACT)


def test_both_stacks_have_identical_layers_with_weights_of_their_own(rng):
    """3.1: N = 6 identical layers in each stack, base sizes by default."""
    model = Transformer(7, 9, d_model=16, n_heads=8, d_ff=4, max_len=3, rng=rng)
    assert len(model.encoder_layers) == len(model.decoder_layers) == 6
    for stack in (model.encoder_layers, model.decoder_layers):
        assert len({tuple((name, w.shape) for name, w in block.named_parameters().items()) for block in stack}) == 1
        first, second = stack[0].named_parameters(), stack[1].named_parameters()
        for name in first:
            assert not np.shares_memory(first[name], second[name])
            assert not np.array_equal(first[name], second[name]) or "W" not in name


def test_the_base_model_is_the_default():
    """Table 3, first row: N=6, d_model=512, d_ff=2048, h=8, P_drop=0.1; and 5000 positions."""
    names = "d_model n_heads n_encoder_layers n_decoder_layers d_ff dropout_p max_len".split()
    arguments = Transformer.__init__.__code__.co_varnames[3:]
    assert dict(zip(arguments, Transformer.__init__.__defaults__)) == dict(zip(names, (512, 8, 6, 6, 2048, 0.1, 5000)))


def test_every_output_has_mean_0_and_deviation_1_before_gain_and_bias(rng):
    """3.1: post-norm, and nothing after it, so that each stack ends in normalised vectors."""
    model = Transformer(V, W, D, H, 2, 2, F, 0.0, S, rng=rng, dtype=np.float64)          # gains 1, biases 0
    memory = model.encode(SRC, create_padding_mask(SRC))
    for out in (memory, model.decode(TGT, memory)):
        np.testing.assert_allclose(out.mean(-1), 0, atol=1e-12)
        np.testing.assert_allclose(out.std(-1), 1, atol=1e-4)                                        # 1 but for eps
    for block in (*model.encoder_layers, *model.decoder_layers):
        for name, norm in block.children():
            if name.startswith("norm"):
                shake(norm, rng)
    memory = model.encode(SRC)
    last = model.encoder_layers[-1].norm2
    np.testing.assert_allclose(((memory - last.beta) / last.gamma).std(-1), 1, atol=1e-4)
    last = model.decoder_layers[-1].norm3
    np.testing.assert_allclose(((model.decode(TGT, memory) - last.beta) / last.gamma).std(-1), 1, atol=1e-4)


def test_the_whole_model_is_figure_1(rng):
    """3, figure 1: embeddings and positions, both stacks, each decoder layer reading the encoder's last, projection."""
    model = make_model(rng)
    padding, causal = create_padding_mask(SRC), create_causal_mask(T)
    memory = model.src_embedding.embedding[SRC] * math.sqrt(D) + positions_by_hand(S, D)
    for block in model.encoder_layers:
        memory = block(memory, padding)
    x = model.tgt_embedding.embedding[TGT] * math.sqrt(D) + positions_by_hand(T, D)
    for block in model.decoder_layers:
        x = block(x, memory, causal, padding)
    np.testing.assert_allclose(model.encode(SRC, padding), memory, **EXACT)
    np.testing.assert_allclose(model.decode(TGT, memory, causal, padding), x, **EXACT)
    np.testing.assert_allclose(model(SRC, TGT, padding, causal), x @ model.output_projection, **EXACT)


def test_the_masks_reach_every_layer(rng):
    """3.2.3: the weights of each layer and head are 0 exactly where its mask hides."""
    model = make_model(rng, n=3)
    padding, causal = create_padding_mask(SRC), create_causal_mask(T)
    model(SRC, TGT, padding, causal)
    for block in model.encoder_layers:
        np.testing.assert_array_equal(block.self_attention.get_attention_weights() == 0,
                                      np.broadcast_to(padding, (B, H, S, S)))
    for block in model.decoder_layers:
        np.testing.assert_array_equal(block.self_attention.get_attention_weights() == 0,
                                      np.broadcast_to(causal, (B, H, T, T)))
        np.testing.assert_array_equal(block.cross_attention.get_attention_weights() == 0,
                                      np.broadcast_to(padding, (B, H, T, S)))


@pytest.mark.parametrize("training", [True, False])
def test_no_position_sees_its_future(rng, training):
    """3.1 and 3.2.3: position i depends on the known outputs before it alone; and later positions do depend on it."""
    model = make_model(rng)
    model.train() if training else model.eval()
    padding, causal = create_padding_mask(SRC), create_causal_mask(T)
    logits = model(SRC, TGT, padding, causal)
    for t in range(T):
        changed = TGT.copy()
        changed[:, t] = (changed[:, t] + 1) % W
        again = model(SRC, changed, padding, causal)
        np.testing.assert_allclose(again[:, :t], logits[:, :t], **EXACT)
        assert (np.abs(again[:, t:] - logits[:, t:]).max(axis=-1) > 1e-6).all(), "what follows a change must change"


def test_padding_changes_nothing(rng):
    """3.2.3, read for batches: the same sentence padded further gives the same numbers, beyond 1e-12."""
    model = make_model(rng, max_len=20)
    short, causal = SRC[:1, :5], create_causal_mask(T)
    expected = model(short, TGT[:1], create_padding_mask(short), causal)
    for longer in (6, 9, 16):
        padded = np.zeros((1, longer), dtype=int)
        padded[:, :5] = short
        np.testing.assert_allclose(model(padded, TGT[:1], create_padding_mask(padded), causal), expected, **EXACT)

    tgt = np.concatenate([TGT, np.zeros((B, 3), dtype=int)], axis=1)
    tgt_mask = create_padding_mask(tgt) | create_causal_mask(T + 3)
    np.testing.assert_allclose(model(SRC, tgt, create_padding_mask(SRC), tgt_mask)[:, :T],
                               model(SRC, TGT, create_padding_mask(SRC), causal), **EXACT)


def test_a_sequence_does_not_depend_on_its_neighbours_in_the_batch(rng):
    """The batch is ours, not the paper's: each row is a sentence of its own."""
    model = make_model(rng)
    padding, causal = create_padding_mask(SRC), create_causal_mask(T)
    together = model(SRC, TGT, padding, causal)
    for b in range(B):
        np.testing.assert_allclose(model(SRC[b:b + 1], TGT[b:b + 1], padding[b:b + 1], causal)[0], together[b], **EXACT)


def test_decoding_step_by_step_equals_one_pass(rng):
    """3.1: auto-regressive. One token at a time, with or without what earlier steps kept, gives the same numbers."""
    model, tgt = make_model(rng, max_len=S), rng.integers(1, W, (B, S))
    model.eval()
    padding, causal = create_padding_mask(SRC), create_causal_mask(S)
    logits = model(SRC, tgt, padding, causal)
    state = model.start_decoding(model.encode(SRC, padding), padding)
    for t in range(S):
        prefix = model(SRC, tgt[:, :t + 1], padding, create_causal_mask(t + 1))
        np.testing.assert_allclose(prefix, logits[:, :t + 1], **EXACT)
        np.testing.assert_allclose(model.decode_step(tgt[:, t], state), logits[:, t], **EXACT)
    with pytest.raises(ValueError, match=f"{S + 1}.*{S}"):
        model.decode_step(tgt[:, 0], state)


def test_decoding_follows_its_rows_when_they_are_reordered(rng):
    """6.1: a beam that is kept goes on from the keys and values of the answer that it continues."""
    model = make_model(rng)
    model.eval()
    padding, causal = create_padding_mask(SRC), create_causal_mask(T)
    state = model.start_decoding(model.encode(SRC, padding), padding)
    state.reorder([0, 1, 2])
    for t in range(2):
        model.decode_step(TGT[:, t], state)
    order = [2, 0, 0, 1]
    state.reorder(order)
    tgt = TGT[order].copy()
    tgt[:, 2] = [3, 4, 5, 6]
    expected = model(SRC[order], tgt, padding[order], causal)
    for t in range(2, 4):
        np.testing.assert_allclose(model.decode_step(tgt[:, t], state), expected[:, t], **EXACT)
    state.reorder(np.array([3, 1]))
    np.testing.assert_allclose(model.decode_step(tgt[[3, 1], 4], state), expected[[3, 1], 4], **EXACT)


def test_decoding_without_a_mask_equals_forward_without_one(rng):
    """3.2.3: without a source mask every target position attends to every source position."""
    model = make_model(rng)
    model.eval()
    state = model.start_decoding(model.encode(SRC))
    logits = model(SRC, TGT, None, create_causal_mask(T))
    for t in range(3):
        np.testing.assert_allclose(model.decode_step(TGT[:, t], state), logits[:, t], **EXACT)


def test_one_mask_may_serve_all_sequences_while_decoding(rng):
    """A mask of batch size 1 broadcasts, also after rows are dropped."""
    model = make_model(rng)
    model.eval()
    mask = (np.arange(S) > 3)[None, None, None, :]
    logits = model(SRC, TGT, mask, create_causal_mask(T))
    state = model.start_decoding(model.encode(SRC, mask), mask)
    np.testing.assert_allclose(model.decode_step(TGT[:, 0], state), logits[:, 0], **EXACT)
    state.reorder([2, 0])
    np.testing.assert_allclose(model.decode_step(TGT[[2, 0], 1], state), logits[[2, 0], 1], **EXACT)


# ------------------------------------------------------------------------------------------------ 3.2 attention


@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 65), (2, 65, 3), (65, 2, 3)])
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax_is_a_distribution_along_its_axis(rng, axis, shape):
    """3.2.1: exp(x) / sum exp(x). Short and long rows go different ways."""
    x = rng.normal(size=shape)
    np.testing.assert_allclose(softmax(x, axis), np.exp(x) / np.exp(x).sum(axis=axis, keepdims=True), **EXACT)
    np.testing.assert_allclose(softmax(x, axis).sum(axis=axis), 1, **EXACT)
    np.testing.assert_allclose(softmax(x + 1e4, axis), softmax(x, axis), atol=1e-11)
    np.testing.assert_allclose(softmax(x * 1e4, axis).sum(axis=axis), 1, **EXACT)                       # no overflow


@pytest.mark.parametrize("shape", [(T, S), (1, S), (B, H, T, S)])
def test_attention_is_softmax_of_scaled_dot_products_times_values(rng, shape):
    """3.2.1, equation 1, by loops over batch, heads, queries and keys."""
    hidden = rng.random(shape) < 0.4
    hidden = hidden.reshape((1,) * (4 - len(shape)) + shape)
    layer = ScaledDotProductAttention(0.0, dtype=np.float64)
    Q, K, V_ = (rng.normal(size=(B, H, n, d)) for n, d in ((T, D_K), (S, D_K), (S, 6)))
    for mask in (None, hidden):
        out = layer(Q, K, V_, mask)
        for b, h in np.ndindex(B, H):
            rows = None if mask is None else np.broadcast_to(mask, (B, H, T, S))[b, h]
            expected, weights = attention_by_hand(Q[b, h], K[b, h], V_[b, h], rows)
            np.testing.assert_allclose(out[b, h], expected, **EXACT)
            np.testing.assert_allclose(layer.attention_weights[b, h], weights, **EXACT)


def test_scaling_keeps_the_variance_of_the_scores_at_one():
    """3.2.1, footnote 4: for components of mean 0 and variance 1 the dot product has variance d_k.

    The scores are read back from the weights: log of a ratio of two weights is a difference of two scores.
    """
    for d_k in (4, 64):
        rng = np.random.default_rng(d_k)
        layer = ScaledDotProductAttention(0.0, dtype=np.float64)
        layer(rng.normal(size=(2000, 1, 1, d_k)), rng.normal(size=(2000, 1, 2, d_k)), np.ones((2000, 1, 2, 1)))
        differences = np.log(layer.attention_weights[..., 0] / layer.attention_weights[..., 1])
        assert abs(differences.var() / 2 - 1) < 0.1                        # two independent scores of variance 1


def test_multi_head_attention_is_the_projected_concatenation_of_heads(rng):
    """3.2.2: head i uses its own columns of W_Q, W_K and W_V; W_O mixes the heads."""
    layer = MultiHeadAttention(D, H, 0.0, rng=rng, dtype=np.float64)
    query, key, value = (rng.normal(size=(B, n, D)) for n in (T, S, S))
    for mask in (None, create_padding_mask(SRC), rng.random((B, H, T, S)) < 0.3):
        np.testing.assert_allclose(layer(query, key, value, mask), multi_head_by_hand(layer, query, key, value, mask),
                                   **EXACT)
    assert layer.get_attention_weights().shape == (B, H, T, S)


def test_heads_are_narrow_so_that_their_number_does_not_change_the_size():
    """3.2.2: d_k = d_v = d_model / h; 64 in the base model."""
    layers = {h: MultiHeadAttention(64, h) for h in (1, 2, 8, 64)}
    assert {layer.num_parameters() for layer in layers.values()} == {4 * 64 * 64}
    for h, layer in layers.items():
        assert layer.d_k == 64 // h and layer.split_heads(np.zeros((2, 3, 64))).shape == (2, h, 3, 64 // h)


def test_the_causal_mask_hides_what_comes_later_and_nothing_else():
    """3.2.3: values that correspond to illegal connections are set to -inf before the softmax."""
    mask = create_causal_mask(T)
    assert mask.shape == (1, 1, T, T) and mask.dtype == bool
    for query, key in np.ndindex(T, T):
        assert mask[0, 0, query, key] == (key > query)


def test_every_position_of_the_decoder_attends_to_all_positions_of_the_source(rng):
    """3.2.3: a change anywhere in the source reaches every output."""
    model = make_model(rng)
    logits = model(SRC, TGT, None, create_causal_mask(T))
    for s in range(S):
        changed = SRC.copy()
        changed[:, s] = (changed[:, s] + 1) % V
        assert (np.abs(model(changed, TGT, None, create_causal_mask(T)) - logits).max(axis=-1) > 1e-8).all()


# --------------------------------------------------------------------------------------------- 3.3 feed-forward


def test_the_feed_forward_network_is_two_linear_maps_with_a_relu_between(rng):
    """3.3, equation 2."""
    layer, x = shake(FeedForward(D, F, 0.0, rng=rng, dtype=np.float64), rng), rng.normal(size=(B, T, D))
    np.testing.assert_allclose(layer(x), feed_forward_by_hand(layer, x), **EXACT)
    assert layer.W1.shape == (D, F) and layer.W2.shape == (F, D) and layer.b1.shape == (F,) and layer.b2.shape == (D,)


def test_the_feed_forward_network_treats_each_position_separately_and_identically(rng):
    """3.3: position-wise."""
    layer, x = shake(FeedForward(D, F, 0.0, rng=rng, dtype=np.float64), rng), rng.normal(size=(B, T, D))
    out = layer(x)
    for b, t in np.ndindex(B, T):
        np.testing.assert_allclose(layer(x[b, t][None]), out[b, t][None], **EXACT)


# ----------------------------------------------------------------------------------------------- 3.4 embeddings


def test_embeddings_are_multiplied_by_the_root_of_d_model(rng):
    """3.4."""
    layer = TokenEmbedding(V, D, rng=rng, dtype=np.float64)
    out = layer(SRC)
    for b, s in np.ndindex(B, S):
        np.testing.assert_allclose(out[b, s], layer.embedding[SRC[b, s]] * math.sqrt(D), **EXACT)


def test_one_matrix_under_three_names_when_tied(rng):
    """3.4: the two embeddings and the linear map before the softmax share one matrix; its gradient is the sum."""
    model = make_model(rng, vocabulary=W, tie_embeddings=True)
    assert model.tgt_embedding.embedding is model.src_embedding.embedding
    assert model.output_projection.shape == (D, W)
    model.src_embedding.embedding[5, 2] = 0.123                                                  # a live view
    assert model.output_projection[2, 5] == 0.123 and model.tgt_embedding.embedding[5, 2] == 0.123
    assert np.shares_memory(model.doutput_projection, model.src_embedding.dembedding)
    names = [name for name in model.named_parameters() if "embedding" in name or "projection" in name]
    assert names == ["src_embedding.embedding"]
    model.train(), model.eval()
    assert np.shares_memory(model.output_projection, model.src_embedding.embedding)

    separate = make_model(rng, vocabulary=W)
    for name, weight in separate.named_parameters().items():
        same = {"tgt_embedding.embedding": "src_embedding.embedding",
                "output_projection": "src_embedding.embedding"}.get(name, name)
        tied = model.named_parameters()[same]
        weight[...] = tied.T if name == "output_projection" else tied
    masks = create_padding_mask(SRC), create_causal_mask(T)
    logits = model(SRC, TGT, *masks)
    np.testing.assert_allclose(logits, separate(SRC, TGT, *masks), **EXACT)
    dlogits = rng.normal(size=logits.shape)
    model.backward(dlogits)
    separate.backward(dlogits)
    parts = separate.named_gradients()
    total = (parts["src_embedding.embedding"] + parts["tgt_embedding.embedding"] + parts["output_projection"].T)
    np.testing.assert_allclose(model.named_gradients()["src_embedding.embedding"], total, **EXACT)
    assert model.num_parameters() == separate.num_parameters() - 2 * W * D


def test_three_matrices_when_not_tied(rng):
    """3.4, switched off: three arrays that share nothing."""
    model = make_model(rng, vocabulary=W)
    three = model.src_embedding.embedding, model.tgt_embedding.embedding, model.output_projection
    assert not any(np.shares_memory(a, b) for a, b in zip(three, three[1:] + three[:1]))


# ------------------------------------------------------------------------------------------------ 3.5 positions


@pytest.mark.parametrize("d_model", [8, 6, 1, 5, 29])
def test_positions_are_the_formula(d_model):
    """3.5: sine in even columns, cosine in odd ones, both of pos / 10000^(2i / d_model); position 0 comes first."""
    layer = PositionalEncoding(d_model, 40, 0.0, dtype=np.float64)
    np.testing.assert_allclose(layer.pe, positions_by_hand(40, d_model), **EXACT)
    assert not layer.pe[0, 0::2].any() and (layer.pe[0, 1::2] == 1).all()


def test_positions_are_added_to_the_embeddings(rng):
    """3.5: the sum, at the bottoms of both stacks."""
    layer, x = PositionalEncoding(D, 9, 0.0, dtype=np.float64), rng.normal(size=(B, T, D))
    np.testing.assert_allclose(layer(x) - x, np.broadcast_to(positions_by_hand(T, D), x.shape), **EXACT)
    np.testing.assert_allclose(layer(x, start=4) - x, np.broadcast_to(positions_by_hand(9, D)[4:], x.shape), **EXACT)


def test_the_position_k_steps_on_is_a_linear_function_of_the_position():
    """3.5: for any fixed offset k, PE(pos + k) = M_k PE(pos) with one matrix for all pos (a rotation of each pair)."""
    pe = PositionalEncoding(D, 60, 0.0, dtype=np.float64).pe
    for k in (1, 7):
        M, *_ = np.linalg.lstsq(pe[:30], pe[k:30 + k], rcond=None)
        np.testing.assert_allclose(pe[:60 - k] @ M, pe[k:], atol=1e-9)
        np.testing.assert_allclose(M @ M.T, np.eye(D), atol=1e-6)


def test_wavelengths_run_from_two_pi_towards_10000_times_two_pi():
    """3.5: a geometric progression."""
    d_model = 512
    pe = PositionalEncoding(d_model, 2, 0.0, dtype=np.float64).pe
    wavelengths = 2 * math.pi / np.arcsin(pe[1, 0::2])
    np.testing.assert_allclose(wavelengths[1:-1] / wavelengths[:-2], 10000 ** (2 / d_model), rtol=1e-9)
    assert wavelengths[0] == pytest.approx(2 * math.pi)
    assert wavelengths[-1] == pytest.approx(2 * math.pi * 10000 ** (1 - 2 / d_model))


def test_without_positions_the_encoder_cannot_tell_an_order(rng):
    """3.5: attention contains no recurrence and no convolution, so order must come from the positions."""
    model, order = make_model(rng), rng.permutation(S)
    plain = model.encode(SRC)
    assert np.abs(model.encode(SRC[:, order]) - plain[:, order]).max() > 1e-3
    model.positional_encoding.pe[...] = 0
    np.testing.assert_allclose(model.encode(SRC[:, order]), model.encode(SRC)[:, order], **EXACT)


def test_both_stacks_add_the_same_positions(rng):
    """3.5: one table, a second layer for the decoder."""
    model = make_model(rng)
    assert model.tgt_positional_encoding.pe is model.positional_encoding.pe
    assert model.tgt_positional_encoding is not model.positional_encoding


# -------------------------------------------------------------------------------------------------- 5.4 dropout


class Doubling:
    """Stands in for a dropout layer, so that what it acts on can be read off the output."""

    def __call__(self, x):
        return 2 * x


def test_dropout_acts_on_the_output_of_each_sublayer_before_it_is_added(rng):
    """5.4: residual dropout."""
    layer, x, y = shake(AddNorm(D, 0.1, dtype=np.float64), rng), *rng.normal(size=(2, B, T, D))
    layer.dropout = Doubling()
    np.testing.assert_allclose(layer(x, y), norm_by_hand(layer, x + 2 * y), **EXACT)


def test_dropout_acts_on_the_sums_of_embeddings_and_positions(rng):
    """5.4: in both the encoder and decoder stacks."""
    layer, x = PositionalEncoding(D, T, 0.1, dtype=np.float64), rng.normal(size=(B, T, D))
    layer.dropout = Doubling()
    np.testing.assert_allclose(layer(x), 2 * (x + positions_by_hand(T, D)), **EXACT)


def test_dropout_acts_on_attention_weights_and_after_the_relu_as_the_authors_code_has_it(rng):
    """Not in 5.4; the weights kept for plotting are those before dropout."""
    Q, K, V_ = (rng.normal(size=(B, H, n, D_K)) for n in (T, S, S))
    attention = ScaledDotProductAttention(0.1, dtype=np.float64)
    attention.dropout = Doubling()
    expected, weights = attention_by_hand(Q[1, 1], K[1, 1], V_[1, 1])
    np.testing.assert_allclose(attention(Q, K, V_)[1, 1], 2 * expected, **EXACT)
    np.testing.assert_allclose(attention.attention_weights[1, 1], weights, **EXACT)

    layer, x = shake(FeedForward(D, F, 0.1, rng=rng, dtype=np.float64), rng), rng.normal(size=(B, T, D))
    layer.dropout = Doubling()
    np.testing.assert_allclose(layer(x), 2 * feed_forward_by_hand(layer, x) - layer.b2, **EXACT)


def test_dropout_stands_in_these_places_and_no_others(rng):
    """5.4: two sums and every sublayer; in addition every attention and every feed-forward layer."""
    model = make_model(rng, dropout_p=0.25)
    places = []

    def walk(layer, path):
        for name, child in layer.children():
            if isinstance(child, Dropout):
                places.append(f"{path}{name}")
                assert child.p == 0.25
            walk(child, f"{path}{name}.")

    walk(model, "")
    expected = ["positional_encoding.dropout", "tgt_positional_encoding.dropout"]
    for i in range(2):
        expected += [f"encoder_layers.{i}.{place}.dropout" for place in
                     ("self_attention.attention", "norm1", "feed_forward", "norm2")]
        expected += [f"decoder_layers.{i}.{place}.dropout" for place in
                     ("self_attention.attention", "norm1", "cross_attention.attention", "norm2", "feed_forward",
                      "norm3")]
    assert sorted(places) == sorted(expected)


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.99995])
def test_the_kept_share_is_right_and_the_expected_value_unchanged(p):
    """5.4: P_drop, and scaling by the reciprocal of the probability to keep; 10 million draws."""
    n = 10_000_000
    out = Dropout(p, rng=5)(np.ones(n, dtype=np.float32))
    scale, kept = out.max(), np.count_nonzero(out) / n
    assert np.count_nonzero(out == scale) == np.count_nonzero(out)
    deviation = math.sqrt(p * (1 - p) / n)
    assert abs(1 / scale - (1 - p)) < 1e-4
    assert abs(kept * scale - 1) < 4 * deviation * scale + 1e-7
    together = np.count_nonzero(out[1:] * out[:-1]) / (n - 1)                    # neighbours are drawn independently
    assert abs(together - kept ** 2) < 8 * deviation


@pytest.mark.parametrize("p", [1e-9, 1 - 1e-9])
def test_dropout_at_the_ends_of_its_range_is_finite(p):
    out = Dropout(p, rng=5)(np.ones((100, 1000), dtype=np.float32))
    assert np.isfinite(out).all()
    assert (np.count_nonzero(out == 0) < 10) if p < 0.5 else (np.count_nonzero(out) < 100)


@pytest.mark.parametrize("generator", [np.random.PCG64, np.random.Philox, np.random.SFC64, np.random.MT19937])
def test_dropout_takes_any_of_numpys_generators(generator):
    """Their raw words have 64 bits, those of the Mersenne Twister 32."""
    out = Dropout(0.3, rng=np.random.Generator(generator(0)))(np.ones((100, 1003)))
    assert abs(np.count_nonzero(out == 0) / out.size - 0.3) < 5 * math.sqrt(0.3 * 0.7 / out.size)


def test_dropout_draws_anew_each_time_and_each_entry_by_itself():
    layer = Dropout(0.5, rng=1, dtype=np.float64)
    x = np.ones((40, 50, 60))
    first, second = layer(x) == 0, layer(x) == 0
    assert 0.45 < (first != second).mean() < 0.55
    for axis in range(3):
        shares = first.mean(axis=axis)
        assert 0.4 < shares.mean() < 0.6 and shares.std() < 0.15, "whole rows or columns were dropped together"


# ------------------------------------------------------------------------------------ what the paper leaves open


def test_projections_start_glorot_uniform_and_biases_at_zero():
    """Not stated in the paper: uniform within sqrt(6 / (in + out)), as its code has it."""
    model = Transformer(50, 60, 128, 4, 1, 1, 256, max_len=4, rng=0)
    for name, weight in model.named_parameters().items():
        last = name.split(".")[-1]
        if last in ("W_Q", "W_K", "W_V", "W_O", "W1", "W2", "output_projection"):
            limit = math.sqrt(6 / sum(weight.shape))
            assert 0.99 * limit < np.abs(weight).max() <= limit * (1 + 1e-6), name
            assert weight.std() == pytest.approx(limit / math.sqrt(3), rel=0.02), name
            assert abs(weight.mean()) < 0.02 * limit, name
        elif last in ("b1", "b2", "beta"):
            assert not weight.any(), name
        elif last == "gamma":
            assert (weight == 1).all(), name
        else:
            assert last == "embedding"


def test_embeddings_start_with_deviation_one_over_the_root_of_d_model():
    """Not stated in the paper: after the factor sqrt(d_model) of 3.4 the entries have variance 1."""
    for d_model in (16, 256):
        table = TokenEmbedding(4000, d_model, rng=0).embedding
        assert table.std() == pytest.approx(d_model ** -0.5, rel=0.01) and abs(table.mean()) < 0.02 * d_model ** -0.5
        assert np.abs(table).max() > 3.5 * d_model ** -0.5, "a normal distribution, not a uniform one"
