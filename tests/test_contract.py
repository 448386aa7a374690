"""What other people's code may rely on: names, shapes, defaults, and what wrong input is answered with."""

import inspect

import numpy as np
import pytest

import implementation
import train_minimal
from implementation import (AddNorm, DecoderBlock, Dropout, EncoderBlock, FeedForward, LayerNorm, MultiHeadAttention,
                            PositionalEncoding, ScaledDotProductAttention, TokenEmbedding, Transformer,
                            create_causal_mask, create_padding_mask, softmax)
from train_minimal import (Adam, CrossEntropyLoss, average_checkpoints, beam_search, compute_accuracy,
                           generate_copy_task_data, generate_reverse_task_data, greedy_decode, load_checkpoint,
                           save_checkpoint, warmup_schedule)

pytestmark = pytest.mark.mutants

LAYERS = {
    LayerNorm: ("d_model, eps=1e-05", "gamma beta"),
    AddNorm: ("d_model, dropout_p=0.1", "gamma beta"),
    ScaledDotProductAttention: ("dropout_p=0.1", ""),
    MultiHeadAttention: ("d_model, n_heads, dropout_p=0.1", "W_Q W_K W_V W_O"),
    PositionalEncoding: ("d_model, max_len=5000, dropout_p=0.1", ""),
    FeedForward: ("d_model, d_ff, dropout_p=0.1", "W1 b1 W2 b2"),
    TokenEmbedding: ("vocab_size, d_model", "embedding"),
    EncoderBlock: ("d_model, n_heads, d_ff, dropout_p=0.1", "self_attention norm1 feed_forward norm2"),
    DecoderBlock: ("d_model, n_heads, d_ff, dropout_p=0.1",
                   "self_attention norm1 cross_attention norm2 feed_forward norm3"),
    Transformer: ("src_vocab_size, tgt_vocab_size, d_model=512, n_heads=8, n_encoder_layers=6, n_decoder_layers=6, "
                  "d_ff=2048, dropout_p=0.1, max_len=5000, *, tie_embeddings=False",
                  "src_embedding tgt_embedding positional_encoding encoder_layers decoder_layers output_projection"),
}
SIZES = dict(d_model=8, n_heads=2, d_ff=12, vocab_size=9, src_vocab_size=9, tgt_vocab_size=9, n_encoder_layers=2,
             n_decoder_layers=2, max_len=10)
METHODS = "backward named_parameters named_gradients zero_grad num_parameters train eval".split()
SRC = np.array([[3, 4, 5, 2], [6, 2, 0, 0]])
TGT = np.array([[1, 4, 3], [1, 6, 2]])


def build(kind, **changes):
    wanted = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in {**SIZES, **changes}.items() if name in wanted})


def signature(function):
    """The parameters as text, without self and annotations."""
    return ", ".join(str(p) for p in inspect.signature(function).parameters.values())


# -------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("kind", LAYERS)
def test_constructors_and_attributes(kind):
    arguments, attributes = LAYERS[kind]
    given = inspect.signature(kind)
    last = [(p.name, p.kind, p.default) for p in list(given.parameters.values())[-2:]]
    assert last == [("rng", inspect.Parameter.KEYWORD_ONLY, None),
                    ("dtype", inspect.Parameter.KEYWORD_ONLY, np.float32)]
    expected = inspect.signature(eval(f"lambda {arguments}: None")).parameters
    found = {p.name: (p.kind, p.default) for p in list(given.parameters.values())[:-2]}
    assert found == {p.name: (p.kind, p.default) for p in expected.values()}

    layer = build(kind)
    for name in [*attributes.split(), *METHODS]:
        assert hasattr(layer, name), name
    assert layer.training and callable(layer) and layer.dtype == np.float32
    for name, weight in layer.named_parameters().items():
        assert weight.dtype == np.float32 and type(weight) is np.ndarray, name
        assert layer.named_gradients()[name].shape == weight.shape


@pytest.mark.parametrize("function, arguments", [
    (softmax, "x, axis=-1"), (create_padding_mask, "tokens, pad_token=0"), (create_causal_mask, "seq_len"),
    (LayerNorm.forward, "self, x"), (AddNorm.forward, "self, x, sublayer_output"),
    (ScaledDotProductAttention.forward, "self, Q, K, V, mask=None"),
    (MultiHeadAttention.forward, "self, query, key, value, mask=None"),
    (MultiHeadAttention.split_heads, "self, x"), (MultiHeadAttention.merge_heads, "self, x"),
    (MultiHeadAttention.get_attention_weights, "self"), (FeedForward.forward, "self, x"),
    (EncoderBlock.forward, "self, x, mask=None"),
    (DecoderBlock.forward, "self, x, encoder_output, self_mask=None, cross_mask=None"),
    (Transformer.encode, "self, src, src_mask=None"),
    (Transformer.decode, "self, tgt, encoder_output, tgt_mask=None, cross_mask=None"),
    (Transformer.forward, "self, src, tgt, src_mask=None, tgt_mask=None"),
    (Transformer.start_decoding, "self, encoder_output, cross_mask=None"),
    (Transformer.decode_step, "self, tokens, state"),
    (generate_copy_task_data, "n_samples, seq_len, vocab_size=12, *, min_len=1, rng=None"),
    (generate_reverse_task_data, "n_samples, seq_len, vocab_size=12, *, min_len=1, rng=None"),
    (CrossEntropyLoss.__init__, "self, ignore_index=0, label_smoothing=0.0"),
    (CrossEntropyLoss.forward, "self, logits, targets"), (CrossEntropyLoss.backward, "self"),
    (compute_accuracy, "logits, targets, ignore_index=0"),
    (Adam.__init__, "self, model, betas=(0.9, 0.98), eps=1e-09"), (Adam.step, "self, learning_rate"),
    (warmup_schedule, "step, d_model, warmup_steps=4000"),
    (greedy_decode, "model, src, max_len, start_token=1, end_token=2, pad_token=0"),
    (beam_search, "model, src, max_len, beam_size=4, length_penalty=0.6, start_token=1, end_token=2, pad_token=0"),
    (average_checkpoints, "paths"), (save_checkpoint, "path, model, optimizer=None, **state"),
    (load_checkpoint, "path"),
])
def test_signatures(function, arguments):
    found = inspect.signature(function).parameters
    expected = inspect.signature(eval(f"lambda {arguments}: None")).parameters
    assert [(p.name, p.kind, p.default) for p in found.values() if p.name in expected] == \
        [(p.name, p.kind, p.default) for p in expected.values()]
    more = [p for p in found.values() if p.name not in expected]
    assert all(p.default is not p.empty for p in more), "what comes on top must be optional"
    places = inspect.Parameter.POSITIONAL_OR_KEYWORD
    assert all(p.kind != places for p in more) or list(found)[:len(expected)] == list(expected)


@pytest.mark.parametrize("kind", [*LAYERS, Dropout])
def test_backward_takes_one_array(kind):
    assert len(inspect.signature(kind.backward).parameters) == 2


def test_dotted_names_reach_the_weights():
    model = build(Transformer)
    parameters = model.named_parameters()
    assert parameters["encoder_layers.0.self_attention.W_Q"] is model.encoder_layers[0].self_attention.W_Q
    assert parameters["encoder_layers.0.norm1.gamma"] is model.encoder_layers[0].norm1.gamma
    assert parameters["decoder_layers.1.cross_attention.W_O"] is model.decoder_layers[1].cross_attention.W_O
    assert parameters["src_embedding.embedding"] is model.src_embedding.embedding
    assert parameters["output_projection"] is model.output_projection
    assert model.named_gradients()["decoder_layers.1.feed_forward.b1"] is model.decoder_layers[1].feed_forward.db1
    assert len(parameters) == 3 + 2 * (4 + 4 + 4) + 2 * (4 + 4 + 4 + 6)
    model.output_projection += 1                                                   # live: editing in place is seen
    assert model.named_parameters()["output_projection"] is model.output_projection


def test_the_programs_module_offers_every_name():
    for name in ("generate_copy_task_data generate_reverse_task_data CrossEntropyLoss compute_accuracy Adam "
                 "warmup_schedule greedy_decode beam_search average_checkpoints save_checkpoint "
                 "load_checkpoint").split():
        assert callable(getattr(train_minimal, name))


# --------------------------------------------------------------------------------------------- what backward returns


def test_backward_returns_one_gradient_for_each_floating_point_input():
    rng = np.random.default_rng(0)
    x, memory = rng.normal(size=(2, 3, 8)).astype(np.float32), rng.normal(size=(2, 4, 8)).astype(np.float32)
    heads = rng.normal(size=(2, 2, 3, 4)).astype(np.float32)
    for kind, inputs in ((LayerNorm, [x]), (AddNorm, [x, x]), (FeedForward, [x]), (PositionalEncoding, [x]),
                         (MultiHeadAttention, [x, memory, memory]), (ScaledDotProductAttention, [heads] * 3),
                         (EncoderBlock, [x]), (DecoderBlock, [x, memory])):
        layer = build(kind)
        returned = layer.backward(np.ones_like(layer(*inputs)))
        if len(inputs) == 1:
            assert isinstance(returned, np.ndarray)
        else:
            assert isinstance(returned, tuple)
        shapes = [array.shape for array in (returned if isinstance(returned, tuple) else [returned])]
        assert shapes == [array.shape for array in inputs]
    for layer, inputs in ((build(TokenEmbedding), [TGT]), (build(Transformer), [SRC, TGT])):
        assert layer.backward(np.ones_like(layer(*inputs))) is None


def test_shapes_of_the_whole_model():
    model = build(Transformer, tgt_vocab_size=7)
    assert model.output_projection.shape == (8, 7)
    memory = model.encode(SRC, create_padding_mask(SRC))
    assert memory.shape == (2, 4, 8)
    assert model.decode(TGT, memory).shape == (2, 3, 8)
    assert model(SRC, TGT, create_padding_mask(SRC), create_causal_mask(3)).shape == (2, 3, 7)
    state = model.start_decoding(memory, create_padding_mask(SRC))
    assert model.decode_step(TGT[:, 0], state).shape == (2, 7)
    assert model.positional_encoding.pe.shape == (10, 8)


# ------------------------------------------------------------------------------------------------------------ masks


def test_masks_have_four_axes_and_are_boolean():
    assert create_padding_mask(SRC).shape == (2, 1, 1, 4) and create_padding_mask(SRC).dtype == bool
    assert create_causal_mask(3).shape == (1, 1, 3, 3) and create_causal_mask(3).dtype == bool
    assert (create_padding_mask(SRC) | create_causal_mask(4)).shape == (2, 1, 4, 4)
    assert create_padding_mask([[3, 0]]).tolist() == [[[[False, True]]]]
    with pytest.raises(ValueError, match=r"\(4,\)"):
        create_padding_mask(SRC[0])
    for seq_len in (0, -1, 2.5):
        with pytest.raises(ValueError, match=f"seq_len.*{seq_len}"):
            create_causal_mask(seq_len)


@pytest.mark.parametrize("shape", [(3,), (3, 4), (2, 3, 4), (1, 2, 3, 4, 1), (3, 1, 1, 4), (1, 1, 4, 3), (1, 3, 3, 4),
                                   (1, 1, 3, 0)])
def test_a_mask_of_another_shape_is_refused_with_both_shapes(shape):
    rng = np.random.default_rng(0)
    Q, K = rng.normal(size=(2, 2, 3, 4)), rng.normal(size=(2, 2, 4, 4))
    with pytest.raises(ValueError) as error:
        ScaledDotProductAttention(0.0)(Q, K, K, np.zeros(shape, dtype=bool))
    assert str(shape) in str(error.value) and "(2, 2, 3, 4)" in str(error.value)


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 1, 1, 4), (1, 2, 1, 1), (1, 1, 3, 4), (2, 2, 3, 4)])
def test_every_mask_that_broadcasts_is_taken(shape):
    rng = np.random.default_rng(0)
    Q, K = rng.normal(size=(2, 2, 3, 4)), rng.normal(size=(2, 2, 4, 4))
    mask = rng.random(shape) < 0.5
    layer = ScaledDotProductAttention(0.0)
    layer(Q, K, K, mask)
    assert ((layer.attention_weights == 0) == mask).all()


@pytest.mark.parametrize("mask", [np.zeros((1, 1, 3, 3)), np.zeros((1, 1, 3, 3), dtype=int)])
@pytest.mark.parametrize("which", ["src_mask", "tgt_mask"])
def test_a_mask_that_is_not_boolean_says_which_way_round_true_is(mask, which):
    with pytest.raises(TypeError, match="True = hidden"):
        build(Transformer)(SRC[:, :3], TGT, **{which: mask})


@pytest.mark.parametrize("shapes", [[(2, 3, 4)] * 3, [(2, 2, 3, 4), (2, 2, 5, 4), (2, 2, 6, 4)],
                                    [(2, 2, 3, 4), (2, 2, 5, 3), (2, 2, 5, 4)],
                                    [(2, 2, 3, 4), (2, 1, 5, 4), (2, 2, 5, 4)],
                                    [(2, 2, 3, 4), (2, 2, 5, 4), (1, 2, 5, 4)]])
def test_attention_inputs_that_do_not_fit_are_refused_with_their_shapes(shapes):
    with pytest.raises(ValueError) as error:
        ScaledDotProductAttention(0.0)(*[np.zeros(shape) for shape in shapes])
    assert all(str(shape) in str(error.value) for shape in shapes)


def test_lists_are_taken_for_arrays():
    rng = np.random.default_rng(0)
    Q, K, mask = rng.normal(size=(2, 2, 3, 4)), rng.normal(size=(2, 2, 5, 4)), rng.random((2, 2, 3, 5)) < 0.5
    layer = ScaledDotProductAttention(0.0)
    np.testing.assert_array_equal(layer(Q.tolist(), K.tolist(), K.tolist(), mask.tolist()), layer(Q, K, K, mask))
    Q, K = rng.integers(-2, 3, Q.shape), rng.integers(-2, 3, K.shape)                               # whole numbers, too
    layer = ScaledDotProductAttention(0.0, dtype=np.float64)
    np.testing.assert_array_equal(layer(Q, K, K, mask), layer(Q.astype(float), K.astype(float), K.astype(float), mask))
    x = rng.normal(size=(2, 3, 8))
    layer = MultiHeadAttention(8, 2, 0.0, dtype=np.float64)
    np.testing.assert_array_equal(layer(x.tolist(), x.tolist(), x.tolist()), layer(x, x, x))
    model = build(Transformer, rng=0)
    model.eval()
    np.testing.assert_array_equal(model(SRC.tolist(), TGT.tolist()), model(SRC, TGT))
    loss = CrossEntropyLoss()
    assert loss([[0.0, 1.0, 2.0]], [2]) == loss(np.array([[0.0, 1.0, 2.0]]), np.array([2]))
    assert compute_accuracy([[0.0, 1.0, 2.0]], [2]) == 1.0
    for decode in (greedy_decode, beam_search):
        np.testing.assert_array_equal(decode(model, SRC.tolist(), 4), decode(model, SRC, 4))
        with pytest.raises(TypeError, match="integers"):
            decode(model, SRC.astype(float), 4)


def test_multi_head_attention_wants_three_axes():
    with pytest.raises(ValueError, match=r"\(3, 8\)"):
        MultiHeadAttention(8, 2)(np.zeros((3, 8)), np.zeros((1, 3, 8)), np.zeros((1, 3, 8)))


# ------------------------------------------------------------------------------------------------------- randomness


def weights_of(model):
    return np.concatenate([weight.ravel() for weight in model.named_parameters().values()])


@pytest.mark.parametrize("kind", LAYERS)
def test_rng_is_a_number_a_generator_or_none(kind):
    first, second = build(kind, rng=5), build(kind, rng=5)
    from_generator = build(kind, rng=np.random.default_rng(5))
    for name, weight in first.named_parameters().items():
        np.testing.assert_array_equal(weight, second.named_parameters()[name])
        np.testing.assert_array_equal(weight, from_generator.named_parameters()[name])
    build(kind, rng=None)


def test_weights_differ_with_the_seed_and_between_layers():
    assert not np.array_equal(weights_of(build(Transformer, rng=1)), weights_of(build(Transformer, rng=2)))
    assert not np.array_equal(weights_of(build(Transformer)), weights_of(build(Transformer)))
    block = build(DecoderBlock, rng=1)
    assert not np.array_equal(block.self_attention.W_Q, block.self_attention.W_K)
    assert not np.array_equal(block.self_attention.W_Q, block.cross_attention.W_Q)


def test_dropout_in_different_layers_draws_different_masks():
    """Also when the whole model is given one number as rng."""
    model = build(Transformer, rng=1)
    x = np.ones((1, 4, 8), dtype=np.float32)
    drawn = [layer(np.ones(64, dtype=np.float32)).tobytes() for layer in model.layers() if isinstance(layer, Dropout)]
    assert len(drawn) == len(set(drawn)) == 2 + 2 * 4 + 2 * 6
    for kind in (EncoderBlock, DecoderBlock):
        block = build(kind, rng=1, dropout_p=0.5)
        assert (block.norm1.dropout(x) != block.norm2.dropout(x)).any()


def test_numpys_global_random_state_is_neither_read_nor_changed():
    def everything():
        model = build(Transformer, rng=1)
        logits = model(SRC, TGT)
        model.backward(np.ones_like(logits))
        generate_copy_task_data(5, 4, rng=1), generate_reverse_task_data(5, 4, rng=1)
        model.eval()
        return logits, greedy_decode(model, SRC, 5), beam_search(model, SRC, 5)

    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    first = everything()
    np.testing.assert_array_equal(np.random.get_state()[1], before)
    np.random.seed(99)
    for one, two in zip(first, everything()):
        np.testing.assert_array_equal(one, two)


def test_numpy_and_the_standard_library_are_all_that_the_model_imports():
    names = {name for name, value in vars(implementation).items() if inspect.ismodule(value)}
    assert names <= {"np", "math", "copy"}


# --------------------------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize("kind, name", [(kind, name) for kind in LAYERS for name in SIZES
                                        if name in inspect.signature(kind).parameters])
@pytest.mark.parametrize("size", [0, -3, 2.5])
def test_sizes_below_one_are_refused_with_their_name_and_value(kind, name, size):
    with pytest.raises(ValueError) as error:
        build(kind, **{name: size})
    assert str(size) in str(error.value) and name in str(error.value)


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if "dropout_p" in inspect.signature(kind).parameters])
@pytest.mark.parametrize("p", [-0.1, 1, 1.5, float("nan")])
def test_dropout_outside_its_range_is_refused(kind, p):
    with pytest.raises(ValueError) as error:
        build(kind, dropout_p=p)
    assert str(p) in str(error.value)
    build(kind, dropout_p=0)


@pytest.mark.parametrize("kind", [MultiHeadAttention, EncoderBlock, DecoderBlock, Transformer])
def test_a_width_that_is_no_multiple_of_the_heads_is_refused_with_both(kind):
    with pytest.raises(ValueError, match=r"30.*4"):
        build(kind, d_model=30, n_heads=4)


def test_tying_unequal_vocabularies_is_refused_with_both():
    with pytest.raises(ValueError, match=r"9.*7"):
        Transformer(9, 7, 8, 2, 1, 1, 8, tie_embeddings=True)


def test_numpys_own_integers_are_sizes_too():
    assert build(MultiHeadAttention, d_model=np.int64(8), n_heads=np.int32(2)).W_Q.shape == (8, 8)


def test_one_sequence_outside_of_a_batch_is_refused_with_its_shape():
    model = build(Transformer)
    for src, tgt in ((SRC[0], TGT), (SRC, TGT[0])):
        with pytest.raises(ValueError, match=r"batch.*\(\d, 8\)"):
            model(src, tgt)


def test_a_sequence_beyond_the_table_is_refused_with_both_lengths():
    model = build(Transformer)
    with pytest.raises(ValueError, match=r"11.*10"):
        model(np.full((1, 11), 3), TGT[:1])
    with pytest.raises(ValueError, match=r"12.*10"):
        model(SRC, np.full((2, 12), 3))
    assert model(np.full((1, 10), 3), np.full((1, 10), 3)).shape == (1, 10, 9)


# --------------------------------------------------------------------------------------------------------- tokens


@pytest.mark.parametrize("token", [9, -1, 10**12])
def test_a_token_outside_the_vocabulary_is_refused_with_the_size(token):
    model = build(Transformer)
    for src, tgt in (([[3, token]], [[1, 3]]), ([[3, 4]], [[1, token]])):
        with pytest.raises(IndexError, match=rf"{token}\b.*\b9\b"):
            model(np.array(src), np.array(tgt))
    state = model.start_decoding(model.encode(SRC))
    with pytest.raises(IndexError, match=rf"{token}\b.*\b9\b"):
        model.decode_step(np.array([3, token]), state)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint64])
def test_tokens_may_be_integers_of_any_kind(dtype):
    model = build(Transformer, rng=0)
    model.eval()
    np.testing.assert_array_equal(model(SRC.astype(dtype), TGT.astype(dtype)), model(SRC, TGT))
    with pytest.raises(TypeError, match="float"):
        model(SRC.astype(float), TGT)


@pytest.mark.parametrize("target", [9, -1, -100])
def test_a_target_outside_the_vocabulary_is_refused_with_the_size(target):
    logits = np.zeros((1, 2, 9))
    for score in (CrossEntropyLoss(), lambda *args: compute_accuracy(*args)):
        with pytest.raises(IndexError, match=rf"{target}\b.*\b9\b"):
            score(logits, np.array([[3, target]]))
        with pytest.raises(TypeError, match="integers"):
            score(logits, np.array([[3.0, 1.0]]))


@pytest.mark.parametrize("ignore_index", [-100, 42, 3])
def test_the_ignored_target_may_lie_outside_the_vocabulary(ignore_index):
    logits = np.random.default_rng(0).normal(size=(2, 9))
    loss = CrossEntropyLoss(ignore_index=ignore_index)
    alone = CrossEntropyLoss(ignore_index=ignore_index)
    assert loss(logits, np.array([4, ignore_index])) == alone(logits[:1], np.array([4]))
    dlogits = loss.backward()
    np.testing.assert_array_equal(dlogits[:1], alone.backward())
    assert not dlogits[1:].any()
    assert compute_accuracy(logits, np.array([logits[0].argmax(), ignore_index]), ignore_index) == 1.0


def test_targets_must_have_the_shape_of_the_logits():
    for score in (CrossEntropyLoss(), compute_accuracy):
        with pytest.raises(ValueError, match=r"\(2, 3\)"):
            score(np.zeros((2, 3, 9)), np.full((2, 4), 3))
        with pytest.raises(ValueError, match=r"\(2, 3\)"):
            score(np.zeros((2, 3, 9)), np.full(6, 3))


@pytest.mark.parametrize("generate, answer", [(generate_copy_task_data, lambda tokens: tokens),
                                              (generate_reverse_task_data, lambda tokens: tokens[::-1])])
def test_data_is_padded_with_0_and_stands_between_start_1_and_end_2(generate, answer):
    src, tgt = generate(400, 5, vocab_size=7, min_len=2, rng=0)
    assert src.shape == (400, 6) and tgt.shape == (400, 7)
    assert src.dtype.kind == tgt.dtype.kind == "i"
    lengths = []
    for source, target in zip(src.tolist(), tgt.tolist()):
        n = source.index(2)
        tokens = source[:n]
        assert all(3 <= token < 7 for token in tokens)
        assert source == tokens + [2] + [0] * (5 - n)
        assert target == [1] + answer(tokens) + [2] + [0] * (5 - n)
        lengths.append(n)
    counts = np.bincount(lengths)
    assert len(counts) == 6 and not counts[:2].any() and counts[2:].min() > 70                # uniform in 2..5


@pytest.mark.parametrize("generate", [generate_copy_task_data, generate_reverse_task_data])
def test_data_repeats_with_its_seed_and_refuses_impossible_sizes(generate):
    for one, two in zip(generate(20, 5, rng=3), generate(20, 5, rng=np.random.default_rng(3))):
        np.testing.assert_array_equal(one, two)
    assert generate(0, 5)[0].shape == (0, 6)
    assert {np.count_nonzero(row >= 3) for row in generate(200, 3, rng=0)[0]} == {1, 2, 3}
    assert generate(20, 5, rng=0)[0].max() == 11                                                     # vocab_size 12
    for arguments in (dict(n_samples=-1), dict(seq_len=0), dict(vocab_size=3), dict(min_len=0), dict(min_len=6)):
        with pytest.raises(ValueError, match=str(next(iter(arguments.values())))):
            generate(**{**dict(n_samples=2, seq_len=5), **arguments})


# --------------------------------------------------------------------------------------------------- train and eval


def test_a_new_object_is_in_training_mode_and_eval_reaches_all_of_it():
    model = build(Transformer)
    assert all(layer.training for layer in model.layers())
    model.eval()
    assert not any(layer.training for layer in model.layers())
    model.train()
    assert all(layer.training for layer in model.layers())


def test_backward_works_in_eval_and_attention_weights_are_kept():
    model = build(Transformer, rng=0)
    model.eval()
    model.backward(np.ones_like(model(SRC, TGT)))
    assert all(gradient.any() for gradient in model.named_gradients().values())
    for block in model.decoder_layers:
        assert block.self_attention.get_attention_weights().shape == (2, 2, 3, 3)
        assert block.cross_attention.get_attention_weights().shape == (2, 2, 3, 4)


def test_decoding_keeps_nothing_for_a_backward_but_the_attention_weights():
    model = build(Transformer, rng=0)
    logits = model(SRC, TGT)
    model.eval()
    state = model.start_decoding(model.encode(SRC), create_padding_mask(SRC))
    for n in range(3):
        if n:
            model.decode_step(TGT[:, n], state)
            for block in model.decoder_layers:
                assert block.self_attention.get_attention_weights().shape == (2, 2, 1, n)
                assert block.cross_attention.get_attention_weights().shape == (2, 2, 1, 4)
        for layer in model.layers():
            with pytest.raises(RuntimeError):
                layer.backward(np.ones_like(logits))


def test_decoding_remembers_no_more_than_it_must():
    """Room for the keys and values of past positions is doubled when it runs out."""
    model = build(Transformer, rng=0)
    state = model.start_decoding(model.encode(SRC))
    for n in range(1, 10):
        model.decode_step(np.array([3, 4]), state)
        assert state.length == n
        assert all(n <= heads.shape[2] <= 2 * n for block in state.past for heads in block)


def test_the_loss_pays_one_backward_for_one_forward():
    loss = CrossEntropyLoss()
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()
    logits, targets = np.random.default_rng(0).normal(size=(2, 3, 9)), np.array([[3, 4, 0], [8, 2, 0]])
    copies = logits.copy(), targets.copy()
    loss(logits, targets)
    loss.backward()
    with pytest.raises(RuntimeError, match="forward"):
        loss.backward()
    np.testing.assert_array_equal(logits, copies[0])
    np.testing.assert_array_equal(targets, copies[1])
