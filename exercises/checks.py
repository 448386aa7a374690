"""What is asked of each exercise: parts, the checks of each part with their points, and inputs drawn anew each time.

A part is one TODO. It knows which code of the library it corresponds to, so that a mistake of the catalogue can be
placed, and on which other parts it rests, so that one mistake is not reported as two.
"""

from dataclasses import dataclass, field

import numpy as np

import implementation
from implementation import create_causal_mask, create_padding_mask

TITLES = {1: "scaled dot-product attention", 2: "multi-head attention", 3: "embeddings and positional encoding",
          4: "the encoder block", 5: "masks, the decoder block, the Transformer"}

FILES = {1: "exercise_01_scaled_dot_product.py", 2: "exercise_02_multi_head_attention.py",
         3: "exercise_03_positional_encoding.py", 4: "exercise_04_encoder_block.py",
         5: "exercise_05_full_transformer.py"}


@dataclass(eq=False)
class Case:
    """A request to a submission (see ``submission.execute``), its input arrays, and outcomes that were computed."""
    request: dict
    arrays: dict
    outcomes: dict = field(default_factory=dict)


@dataclass(eq=False)
class Check:
    """The named results of a case must be the library's. With exact_zeros, what should be 0 must be 0."""
    name: str
    case: Case
    results: tuple
    points: int = 1
    exact_zeros: bool = False


@dataclass(eq=False)
class Part:
    """One TODO: the name in the learner's file, the code of the library behind it, the parts it rests on."""
    name: str
    code: tuple
    checks: list
    rests_on: tuple = ()
    bonus: bool = False


def draw_weights(rng, name, kwargs):
    """Weights for a new object of the library's class: far from 0 and 1, where many mistakes cannot be seen.

    Those of the Transformer are smaller: what large weights make in block after block drowns a mistake at the bottom.
    """
    layer = getattr(implementation, name)(**{**kwargs, "dtype": np.dtype(kwargs["dtype"])})
    spread = 0.3 if name == "Transformer" else 0.5
    return {f"weights.{name}": rng.normal(0, spread, array.shape) + (name.rpartition(".")[2] == "gamma")
            for name, array in layer.named_parameters().items()}


def on(rng, name, kwargs, calls, arrays, read=None, dtype="float64"):
    """A case on a new object of a class."""
    kwargs = {**kwargs, "rng": int(rng.integers(2**31)), "dtype": dtype}
    request = {"new": [name, kwargs], "calls": calls, "read": read or {}}
    return Case(request, {**arrays, **draw_weights(rng, name, kwargs)})


def of(function, arguments, result, **arrays):
    """A case on a function; result names what it returns, an argument that is no string is passed as it is."""
    results = [result] if isinstance(result, str) else result
    return Case({"new": None, "calls": [[function, arguments, {}, results]]}, arrays)


def random_mask(rng, shape):
    """True with probability 0.4, with two keys visible and one hidden in every row; no two sequences have the same.

    With one visible key a query has no choice: softmax is constant, and mistakes in its gradient cannot be seen.
    """
    while True:
        mask = rng.random(shape) < 0.4
        mask[..., :2], mask[..., -1] = False, True
        mask = rng.permuted(mask, axis=-1)
        if len(np.unique(mask, axis=0)) == shape[0]:
            return mask


def sentences(rng, B, length, start=False):
    """Token ids as the tasks make them, (B, length): data tokens, end, padding; start before them where asked for.

    The first sentence has two places of padding, the others none.
    """
    ids = rng.integers(3, 9, (B, length))
    ids[:, -1], ids[0, -3:] = 2, (2, 0, 0)
    ids[:, :int(start)] = 1
    return ids


# -------------------------------------------------------------------------------------------------- exercise 1


def exercise_1(rng):
    def heads(B, h, T, S, d_k, d_v, size=1.5, **more):
        return {"Q": size * rng.normal(size=(B, h, T, d_k)), "K": size * rng.normal(size=(B, h, S, d_k)),
                "V": rng.normal(size=(B, h, S, d_v)), "dout": rng.normal(size=(B, h, T, d_v)), **more}

    def attention(arrays, dropout_p=0.0, mask=True, backward=False, dtype="float64"):
        arrays = {name: a if a.dtype == bool else a.astype(dtype) for name, a in arrays.items()}
        calls = [["forward", ["Q", "K", "V"] + ["mask"] * mask, {}, ["output"]]]
        if backward:
            calls.append(["backward", ["dout"], {}, ["dQ", "dK", "dV"]])
        return on(rng, "ScaledDotProductAttention", {"dropout_p": dropout_p}, calls, arrays,
                  {"weights": "attention_weights"}, dtype)

    blind = random_mask(rng, (2, 1, 4, 5))
    blind[0, :, 1] = blind[1, :, 3] = True
    gradients = attention(heads(2, 3, 4, 5, 6, 7), mask=False, backward=True)
    steep = heads(2, 2, 6, 6, 4, 3, mask=random_mask(rng, (2, 1, 1, 6)))
    # Scores of -180000 to -410000 for the visible keys and as much above 0 for the hidden ones; for every other query
    # reversed. Whole numbers and d_k = 4 keep them exact in float32: two keys that score nearly the same are no
    # matter of rounding.
    steep["Q"] = rng.integers(300, 450, (2, 2, 6, 4)) * np.where(np.arange(6) % 2, -1.0, 1.0)[:, None]
    steep["K"] = rng.integers(300, 450, (2, 2, 6, 4)) * np.where(steep["mask"].swapaxes(-1, -2), 1.0, -1.0)
    # Rows so far apart that the maximum of one is none for the others; quarters are exact in float32, too.
    large = np.array([[1000], [3000], [5000]]) + rng.integers(0, 3200, (3, 5)) / 4
    both = ("output", "weights")
    square = heads(2, 4, 4, 4, 4, 4, mask=np.array(random_mask(rng, (2, 1, 4, 4))))
    square["mask"][0, 0, 2] = True
    return [
        Part("softmax", ("softmax",), [
            Check("softmax along the last axis", of("softmax", ["x"], "y", x=rng.normal(size=(3, 5))), ("y",)),
            Check("softmax along another axis", of("softmax", ["x", 1], "y", x=rng.normal(size=(2, 4, 3))), ("y",)),
            Check("softmax of very large scores", of("softmax", ["x"], "y", x=large), ("y",)),
        ]),
        Part("ScaledDotProductAttention.forward", ("ScaledDotProductAttention.forward",), [
            Check("attention without a mask", attention(heads(2, 3, 4, 5, 6, 7), mask=False), ("output",)),
            Check("attention when all sizes are equal", attention(heads(4, 4, 4, 4, 4, 4), mask=False), ("output",)),
            Check("attention_weights, from before dropout",
                  attention(heads(2, 3, 4, 5, 6, 7), 0.5, False), ("weights",)),
            Check("a padding mask (B, 1, 1, S)",
                  attention(heads(2, 3, 4, 5, 6, 7, mask=random_mask(rng, (2, 1, 1, 5)))), both, exact_zeros=True),
            Check("a causal mask (1, 1, T, T)",
                  attention(heads(2, 3, 5, 5, 4, 6, mask=create_causal_mask(5))), both, exact_zeros=True),
            Check("a query with nothing to see", attention(heads(2, 3, 4, 5, 6, 7, mask=blind), dtype="float32"),
                  both, exact_zeros=True),
            Check("hidden, however large the scores",
                  attention(steep, dtype="float32"), both, exact_zeros=True),
        ], rests_on=("softmax",)),
        Part("ScaledDotProductAttention.backward", ("ScaledDotProductAttention.backward", "softmax_backward"), [
            Check("dQ", gradients, ("dQ",)), Check("dK", gradients, ("dK",)), Check("dV", gradients, ("dV",)),
            Check("gradients with a mask, a blind query, equal sizes", attention(square, backward=True),
                  ("dQ", "dK", "dV"), exact_zeros=True),
        ], rests_on=("softmax", "ScaledDotProductAttention.forward"), bonus=True),
    ]


# -------------------------------------------------------------------------------------------------- exercise 2


def exercise_2(rng):
    def layer(d_model, n_heads, calls, read=None, dropout_p=0.0, **arrays):
        return on(rng, "MultiHeadAttention", {"d_model": d_model, "n_heads": n_heads, "dropout_p": dropout_p}, calls,
                  arrays, read)

    def normal(*shape):
        return rng.normal(size=shape)

    apart = {"query": normal(2, 4, 12), "key": normal(2, 5, 12), "value": normal(2, 5, 12), "dout": normal(2, 4, 12)}
    alike = {"query": normal(4, 4, 4), "key": normal(4, 4, 4), "value": normal(4, 4, 4), "dout": normal(4, 4, 4)}
    forward = ["forward", ["query", "key", "value"], {}, ["output"]]
    masked = ["forward", ["query", "key", "value", "mask"], {}, ["output"]]
    backward = ["backward", ["dout"], {}, ["dquery", "dkey", "dvalue"]]
    weights = {name: name for name in ("dW_Q", "dW_K", "dW_V", "dW_O")}
    split = ["split_heads", ["x"], {}, ["heads"]]
    merge = ["merge_heads", ["x"], {}, ["merged"]]
    gradients = layer(12, 3, [masked, backward], weights, **apart, mask=random_mask(rng, (2, 1, 1, 5)))
    return [
        Part("MultiHeadAttention.split_heads", ("MultiHeadAttention.split_heads",), [
            Check("split_heads", layer(12, 3, [split], x=normal(2, 5, 12)), ("heads",)),
            Check("split_heads when all sizes are equal", layer(9, 3, [split], x=normal(3, 3, 9)), ("heads",)),
        ]),
        Part("MultiHeadAttention.merge_heads", ("MultiHeadAttention.merge_heads",), [
            Check("merge_heads", layer(12, 3, [merge], x=normal(2, 3, 5, 4)), ("merged",)),
            Check("merge_heads when all sizes are equal", layer(9, 3, [merge], x=normal(3, 3, 3, 3)), ("merged",)),
        ]),
        Part("MultiHeadAttention.forward", ("MultiHeadAttention.project", "MultiHeadAttention.attend",
                                            "MultiHeadAttention.forward"), [
            Check("query, key and value from three sources", layer(12, 3, [forward], **apart), ("output",), 2),
            Check("when all sizes are equal", layer(4, 2, [forward], **alike), ("output",)),
            Check("self-attention", layer(12, 4, [["forward", ["query", "query", "query"], {}, ["output"]]],
                                          query=normal(3, 5, 12)), ("output",)),
            Check("with a mask", layer(12, 3, [masked], **apart, mask=random_mask(rng, (2, 1, 1, 5))), ("output",)),
            Check("the weights of each head",
                  layer(12, 3, [forward, ["get_attention_weights", [], {}, ["weights"]]], **apart), ("weights",)),
        ], rests_on=("MultiHeadAttention.split_heads", "MultiHeadAttention.merge_heads")),
        Part("MultiHeadAttention.backward", ("MultiHeadAttention.backward",), [
            Check("dquery, dkey, dvalue", gradients, ("dquery", "dkey", "dvalue")),
            Check("dW_Q, dW_K, dW_V", gradients, ("dW_Q", "dW_K", "dW_V")),
            Check("dW_O", gradients, ("dW_O",)),
            Check("gradients of weights are added",
                  layer(4, 2, [forward, backward, forward, backward], weights, **alike), tuple(weights)),
        ], rests_on=("MultiHeadAttention.split_heads", "MultiHeadAttention.merge_heads", "MultiHeadAttention.forward"),
             bonus=True),
    ]


# -------------------------------------------------------------------------------------------------- exercise 3


def exercise_3(rng):
    def table(d_model, max_len):
        return on(rng, "PositionalEncoding", {"d_model": d_model, "max_len": max_len, "dropout_p": 0.0}, [], {},
                  {"pe": "pe"})

    def positions(B, T, d_model, start=0, dropout_p=0.0, backward=False, max_len=12):
        arguments = ["x", start] if start else ["x"]
        calls = [["forward", arguments, {}, ["output"]]] + [["backward", ["dout"], {}, ["dx"]]] * backward
        return on(rng, "PositionalEncoding", {"d_model": d_model, "max_len": max_len, "dropout_p": dropout_p}, calls,
                  {"x": rng.normal(size=(B, T, d_model)), "dout": rng.normal(size=(B, T, d_model))})

    def embedding(calls, vocab_size=7, d_model=6, **arrays):
        read = {"dembedding": "dembedding"} if len(calls) > 1 else {}
        return on(rng, "TokenEmbedding", {"vocab_size": vocab_size, "d_model": d_model}, calls, arrays, read)

    look_up = ["forward", ["tokens"], {}, ["output"]]
    back = ["backward", ["dout"], {}, []]
    gradient, table_only = {"dout": rng.normal(size=(2, 4, 6))}, ("dembedding",)
    every = rng.permutation(np.append(np.arange(7), rng.integers(0, 7, 3))).reshape(2, 5)       # some of them twice
    return [
        Part("sinusoidal_table", ("PositionalEncoding.__init__",), [
            Check("the table, even width", table(6, 5), ("pe",)),
            Check("the table, odd width", table(7, 5), ("pe",)),
            Check("the table, long and wide", table(24, 60), ("pe",)),
        ]),
        Part("TokenEmbedding.forward", ("TokenEmbedding.__init__", "TokenEmbedding.forward"), [
            Check("rows of the table, scaled", embedding([look_up], tokens=every), ("output",), 2),
        ]),
        Part("PositionalEncoding.forward", ("PositionalEncoding.forward",), [
            Check("positions added to every sequence", positions(2, 5, 6), ("output",)),
            Check("positions when all sizes are equal", positions(4, 4, 4), ("output",)),
            Check("positions from start on, as in decoding", positions(2, 3, 6, start=5), ("output",)),
            Check("dropout acts on the sum", positions(2, 6, 8, dropout_p=0.5), ("output",)),
            # Of a table with one row NumPy alone makes no error: it adds the row to both positions.
            Check("ValueError for a sequence longer than the table", positions(2, 2, 6, max_len=1), ("output",)),
        ], rests_on=("sinusoidal_table",)),
        Part("TokenEmbedding.backward", ("TokenEmbedding.backward",), [
            Check("dembedding, each token once",
                  embedding([look_up, back], 9, tokens=rng.permutation(9)[:8].reshape(2, 4), **gradient), table_only),
            Check("dembedding, a token at many places",
                  embedding([look_up, back], tokens=np.array([[3, 3, 5, 3], [1, 5, 0, 3]]), **gradient), table_only),
            Check("dembedding is added to what is there",
                  embedding([look_up, back, look_up, back], tokens=rng.integers(0, 7, (2, 4)), **gradient), table_only),
        ], rests_on=("TokenEmbedding.forward",), bonus=True),
        Part("PositionalEncoding.backward", ("PositionalEncoding.backward",), [
            Check("dx", positions(2, 5, 8, dropout_p=0.5, backward=True), ("dx",)),
        ], rests_on=("sinusoidal_table", "PositionalEncoding.forward"), bonus=True),
    ]


# -------------------------------------------------------------------------------------------------- exercise 4


def exercise_4(rng):
    def normal(*shape, size=1.0):
        return size * rng.normal(size=shape)

    def norm(x, backward=False):
        calls = [["forward", ["x"], {}, ["output"]]] + [["backward", ["dout"], {}, ["dx"]]] * backward
        return on(rng, "LayerNorm", {"d_model": x.shape[-1]}, calls, {"x": x, "dout": normal(*x.shape)},
                  {"dgamma": "dgamma", "dbeta": "dbeta"} if backward else {})

    def add_norm(dropout_p, backward=False):
        calls = ([["forward", ["x", "sublayer_output"], {}, ["output"]]]
                 + [["backward", ["dout"], {}, ["dx", "dsublayer_output"]]] * backward)
        return on(rng, "AddNorm", {"d_model": 8, "dropout_p": dropout_p}, calls,
                  {"x": normal(2, 5, 8), "sublayer_output": normal(2, 5, 8), "dout": normal(2, 5, 8)})

    def feed_forward(x, backward=False):
        calls = [["forward", ["x"], {}, ["output"]]] + [["backward", ["dout"], {}, ["dx"]]] * backward
        return on(rng, "FeedForward", {"d_model": x.shape[-1], "d_ff": 9, "dropout_p": 0.0}, calls,
                  {"x": x, "dout": normal(*x.shape)},
                  {name: name for name in ("dW1", "db1", "dW2", "db2")} if backward else {})

    def block(mask, backward=False):
        arrays = {"x": normal(2, 5, 8), "dout": normal(2, 5, 8)}
        if mask:
            arrays["mask"] = random_mask(rng, (2, 1, 1, 5))
        calls = ([["forward", ["x"] + ["mask"] * mask, {}, ["output"]]]
                 + [["backward", ["dout"], {}, ["dx"]]] * backward)
        read = {"dW_Q": "self_attention.dW_Q", "dW1": "feed_forward.dW1", "dgamma": "norm1.dgamma"} if backward else {}
        return on(rng, "EncoderBlock", {"d_model": 8, "n_heads": 2, "d_ff": 12, "dropout_p": 0.0}, calls, arrays, read)

    parts = ("LayerNorm.forward", "AddNorm.forward", "FeedForward.forward", "EncoderBlock.forward")
    return [
        Part("LayerNorm.forward", ("LayerNorm.forward",), [
            Check("layer norm", norm(normal(2, 5, 6)), ("output",)),
            Check("layer norm when all sizes are equal", norm(normal(4, 4, 4)), ("output",)),
            Check("layer norm of tiny numbers", norm(normal(2, 5, 6, size=2e-3)), ("output",)),
        ]),
        Part("AddNorm.forward", ("AddNorm.forward",), [
            Check("Add & Norm", add_norm(0.0), ("output",)),
            Check("Add & Norm, dropout on the sublayer's output", add_norm(0.5), ("output",)),
        ], rests_on=parts[:1]),
        Part("FeedForward.forward", ("FeedForward.forward",), [
            Check("feed-forward", feed_forward(normal(2, 5, 6)), ("output",), 2),
        ]),
        Part("EncoderBlock.forward", ("EncoderBlock.forward",), [
            Check("the block", block(False), ("output",), 2),
            Check("the block with a mask", block(True), ("output",)),
        ], rests_on=parts[:3]),
        Part("LayerNorm.backward", ("LayerNorm.backward",), [
            Check("layer norm: dx, dgamma, dbeta", norm(normal(2, 5, 6), True), ("dx", "dgamma", "dbeta")),
        ], rests_on=parts[:1], bonus=True),
        Part("AddNorm.backward", ("AddNorm.backward",), [
            Check("Add & Norm: dx, dsublayer_output", add_norm(0.5, True), ("dx", "dsublayer_output")),
        ], rests_on=(*parts[:2], "LayerNorm.backward"), bonus=True),
        Part("FeedForward.backward", ("FeedForward.backward",), [
            Check("feed-forward: dx, dW1, db1, dW2, db2", feed_forward(normal(2, 5, 6), True),
                  ("dx", "dW1", "db1", "dW2", "db2")),
        ], rests_on=(parts[2],), bonus=True),
        Part("EncoderBlock.backward", ("EncoderBlock.backward",), [
            Check("the block: dx, and gradients inside", block(True, True), ("dx", "dW_Q", "dW1", "dgamma")),
        ], rests_on=(*parts, "LayerNorm.backward", "AddNorm.backward", "FeedForward.backward"), bonus=True),
    ]


# -------------------------------------------------------------------------------------------------- exercise 5


def exercise_5(rng):
    def normal(*shape):
        return rng.normal(size=shape)

    def block(B, T, S, masks=True, backward=False):
        arrays = {"x": normal(B, T, 8), "encoder_output": normal(B, S, 8), "dout": normal(B, T, 8),
                  "self_mask": create_causal_mask(T), "cross_mask": random_mask(rng, (B, 1, 1, S))}
        calls = ([["forward", ["x", "encoder_output"] + ["self_mask", "cross_mask"] * masks, {}, ["output"]]]
                 + [["backward", ["dout"], {}, ["dx", "dencoder_output"]]] * backward)
        read = {"dW_K": "cross_attention.dW_K", "dW_Q": "self_attention.dW_Q", "dgamma": "norm2.dgamma",
                "dW1": "feed_forward.dW1"} if backward else {}
        return on(rng, "DecoderBlock", {"d_model": 8, "n_heads": 2, "d_ff": 12, "dropout_p": 0.0}, calls, arrays, read)

    def model(calls, **arrays):
        kwargs = {"src_vocab_size": 9, "tgt_vocab_size": 10, "d_model": 8, "n_heads": 2, "n_encoder_layers": 2,
                  "n_decoder_layers": 3, "d_ff": 12, "dropout_p": 0.0, "max_len": 12}
        return on(rng, "Transformer", kwargs, calls, arrays)

    src, tgt = sentences(rng, 2, 5), sentences(rng, 2, 5, start=True)
    # In every row padding, start, end and data tokens in any order; the first two rows begin with what is to be hidden.
    padded = np.array([[0, 1, 2, a, b] for a, b in rng.integers(3, 9, (3, 2))])
    padded = np.array([[0, *rng.permutation(padded[0, 1:])], [2, *rng.permutation(padded[1, [0, 1, 3, 4]])],
                       rng.permutation(padded[2])])
    gradients = block(2, 4, 5, masks=False, backward=True)
    masks = {"src_mask": create_padding_mask(src), "tgt_mask": create_padding_mask(tgt) | create_causal_mask(5)}
    encode = [["encode", ["src", "src_mask"], {}, ["output"]]]
    decode = [["decode", ["tgt", "encoder_output", "tgt_mask", "src_mask"], {}, ["output"]]]
    forward = [["forward", ["src", "tgt", "src_mask", "tgt_mask"], {}, ["logits"]]]
    everything = ("dx", "dencoder_output", "dW_K", "dW_Q", "dgamma", "dW1")
    small = ("create_padding_mask", "create_causal_mask", "shift_target")
    transformer = ("Transformer.encode", "Transformer.decode")
    return [
        Part(small[0], small[:1], [
            Check("padding is hidden", of(small[0], ["tokens"], "mask", tokens=padded), ("mask",)),
            Check("another pad_token is hidden", of(small[0], ["tokens", 2], "mask", tokens=padded), ("mask",)),
        ]),
        Part(small[1], small[1:2], [Check("the future is hidden", of(small[1], [5], "mask"), ("mask",))]),
        Part(small[2], small[2:], [
            Check("the target is shifted", of(small[2], ["tgt"], ["reads", "predicts"], tgt=sentences(rng, 2, 6, True)),
                  ("reads", "predicts")),
        ]),
        Part("DecoderBlock.forward", ("DecoderBlock.forward",), [
            Check("the decoder block", block(2, 4, 5, masks=False), ("output",)),
            Check("the decoder block when all lengths are equal", block(2, 5, 5, masks=False), ("output",)),
            Check("the decoder block with both masks", block(2, 5, 5), ("output",)),
        ]),
        Part("Transformer.encode", ("Transformer.encode",), [
            Check("encode", model(encode, src=src, **masks), ("output",)),
        ]),
        Part("Transformer.decode", ("Transformer.decode",), [
            Check("decode", model(decode, tgt=tgt, encoder_output=normal(2, 5, 8), **masks), ("output",)),
        ], rests_on=("DecoderBlock.forward",)),
        Part("Transformer.forward", ("Transformer.forward",), [
            Check("logits", model(forward, src=src, tgt=tgt, **masks), ("logits",)),
        ], rests_on=("DecoderBlock.forward", *transformer)),
        Part("DecoderBlock.backward", ("DecoderBlock.backward",), [
            Check("dx", gradients, ("dx",)), Check("dencoder_output", gradients, ("dencoder_output",)),
            Check("gradients of the layers inside", gradients, everything[2:]),
            Check("gradients with both masks", block(2, 5, 5, backward=True), everything),
        ], rests_on=("DecoderBlock.forward",), bonus=True),
    ]


DRAW = {1: exercise_1, 2: exercise_2, 3: exercise_3, 4: exercise_4, 5: exercise_5}


def parts_of(exercise, rng):
    """The parts of an exercise with inputs drawn from rng."""
    return DRAW[exercise](np.random.default_rng(rng))
