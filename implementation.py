"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), section 3, in NumPy, gradients by hand.

The file follows the paper: weights, 3.1 stacks, 3.2 attention, 3.3 feed-forward, 3.4 embeddings, 3.5 positions,
figure 1. Each ``backward`` stands under its ``forward`` and undoes its lines in reverse order. The gradient of the
loss with respect to ``x`` is called ``dx``, and that of the weight ``W_Q`` is the array ``dW_Q`` beside it.

    B  sequences in a batch                 d_model  width of every position's vector
    T  positions that ask (queries)         h        heads
    S  positions that answer (keys)         d_k      width of a head, d_model / h
    V  words in a vocabulary, or values     d_ff     width inside the feed-forward layer

Masks are boolean and True means hidden.
"""

import copy
import math

import numpy as np


# ---------------------------------------------------------------------------------------------- what layers share


class Layer:
    """Named weights with their gradients, a mode, and what one forward leaves for one backward.

    Every layer offers ``forward`` (also by calling it) and ``backward(dout)``, which returns the gradient of
    each floating-point input of ``forward`` in order and adds the gradients of the weights to what is there.
    """

    def __init__(self, dtype=np.float32, rng=None):
        self.rng, self.dtype = np.random.default_rng(rng), np.dtype(dtype)
        self.training = True
        self._kept = None
        self._weights = ()

    def __call__(self, *args, **kwargs):
        try:
            return self.forward(*args, **kwargs)
        except BaseException:
            self.forget()                               # nor does the forward before it have its backward any more
            raise

    @property
    def shared(self):
        """What a layer hands to the layers inside it."""
        return {"rng": self.rng, "dtype": self.dtype}

    def add_weight(self, name, value):
        """Store ``value`` as ``self.name`` and zeros of its shape as its gradient ``self.dname``."""
        setattr(self, name, np.ascontiguousarray(value, dtype=self.dtype))
        setattr(self, "d" + name, np.zeros_like(getattr(self, name)))
        self._weights += (name,)

    def keep(self, *values):
        """Leave ``values`` for the one ``backward`` that follows."""
        self._kept = values

    def take(self):
        """Return what ``forward`` left and use it up. RuntimeError when there is nothing."""
        if self._kept is None:
            raise RuntimeError(f"{type(self).__name__}.backward needs a forward of its own: each forward pays for one "
                               "backward. To use a weight at two places, let two layers share its array.")
        kept, self._kept = self._kept, None
        return kept

    def children(self):
        """The (name, layer) pairs directly inside this layer, in the order of construction."""
        for name, value in vars(self).items():
            if isinstance(value, Layer):
                yield name, value
            elif isinstance(value, list):
                yield from ((f"{name}.{i}", item) for i, item in enumerate(value) if isinstance(item, Layer))

    def layers(self):
        """This layer and every layer inside it."""
        yield self
        for _, child in self.children():
            yield from child.layers()

    def twin(self):
        """A second layer on the same weights and gradients, for a second place in a model."""
        twin = copy.copy(self)
        twin._kept = None
        for name, value in vars(self).items():
            if isinstance(value, Layer):
                setattr(twin, name, value.twin())
            elif isinstance(value, list):
                setattr(twin, name, [item.twin() if isinstance(item, Layer) else item for item in value])
        return twin

    def _named(self, prefix, path=""):
        for name in self._weights:
            yield path + name, getattr(self, prefix + name)
        for name, child in self.children():
            yield from child._named(prefix, f"{path}{name}.")

    def named_parameters(self):
        """Dict from dotted name to live array; a shared weight stands there once."""
        return _first_of_each(self._named(""))

    def named_gradients(self):
        """Dict from the same dotted names to the live gradients."""
        return _first_of_each(self._named("d"))

    def num_parameters(self):
        return sum(weight.size for weight in self.named_parameters().values())

    def zero_grad(self):
        for _, gradient in self._named("d"):
            gradient.fill(0)

    def forget(self):
        """Drop whatever forwards have left."""
        for layer in self.layers():
            layer._kept = None

    def train(self, mode=True):
        """Switch dropout on (or, with mode=False, off), here and in every layer inside."""
        for layer in self.layers():
            layer.training = mode

    def eval(self):
        """Switch dropout off; ``backward`` still works."""
        self.train(False)


def _first_of_each(named_arrays):
    found, seen = {}, set()
    for name, array in named_arrays:
        if id(array) not in seen:
            seen.add(id(array))
            found[name] = array
    return found


def rows(x):
    """x with its leading axes flattened: (..., d) -> (N, d)."""
    return x.reshape(-1, x.shape[-1])


def row_sum(x):
    """The sum along the last axis, (..., d) -> (..., 1). NumPy's own takes up to ten times as long on short rows."""
    return (rows(x) @ np.ones(x.shape[-1], dtype=x.dtype)).reshape(*x.shape[:-1], 1)


def row_mean(x):
    return row_sum(x) / x.shape[-1]


def row_mean_of_product(x, y):
    """The mean of x * y along the last axis, (..., d) -> (..., 1), without an array of the products."""
    return np.vecdot(x, y)[..., None] / x.shape[-1]


def row_max(x):
    """The maximum along the last axis, (..., d) -> (..., 1). Short rows go faster when they lie side by side."""
    if x.shape[-1] > 64:
        return x.max(axis=-1, keepdims=True)
    return rows(x).T.copy().max(axis=0).reshape(*x.shape[:-1], 1)


def column_sum(x):
    """The sum over all axes but the last, (..., d) -> (d,)."""
    return np.ones(x.size // x.shape[-1], dtype=x.dtype) @ rows(x)


def linear(x, W, b=None):
    """x W + b as one two-dimensional product: (..., d_in) -> (..., d_out)."""
    out = rows(x) @ W
    if b is not None:
        out += b
    return out.reshape(*x.shape[:-1], W.shape[1])


def linear_backward(dout, x, W, dW, db=None):
    """Add the weights' gradients to dW and db and return dx."""
    dW += rows(x).T @ rows(dout)
    if db is not None:
        db += column_sum(dout)
    return linear(dout, W.T)


def glorot_uniform(rng, d_in, d_out):
    """Uniform in +-sqrt(6 / (d_in + d_out)). The paper does not state its initialisation; its code uses this one."""
    limit = math.sqrt(6 / (d_in + d_out))
    return rng.uniform(-limit, limit, (d_in, d_out))


def check_sizes(**sizes):
    for name, size in sizes.items():
        if not isinstance(size, (int, np.integer)) or size < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")


def check_tokens(tokens, vocab_size=None):
    """tokens as an integer array. TypeError for other kinds, IndexError for an id outside [0, vocab_size)."""
    tokens = np.asarray(tokens)
    if tokens.dtype.kind not in "iu":
        raise TypeError(f"token ids must be integers, got {tokens.dtype}")
    if vocab_size is not None and tokens.size:
        for token in (tokens.min(), tokens.max()):
            if not 0 <= token < vocab_size:
                raise IndexError(f"token id {token} is outside the vocabulary of size {vocab_size} "
                                 f"(ids 0 to {vocab_size - 1})")
    return tokens


# ------------------------------------------------------------------------------- 3.1 encoder and decoder stacks


class Dropout(Layer):
    """x * m / (1 - p) with each m 0 with probability p, else 1; the identity in eval() and for p = 0.  [5.4]

    m is drawn from 16 bits a value, so p is met to 1 / 2^17; the scale uses the probability really drawn.
    """

    def __init__(self, p, *, rng=None, dtype=np.float32):
        super().__init__(dtype, rng)
        if not 0 <= p < 1:
            raise ValueError(f"dropout_p must be in [0, 1), got {p!r}")
        self.p = p
        if isinstance(self.rng.bit_generator, np.random.MT19937):               # its words have 32 bits instead of 64
            self.rng = np.random.default_rng(self.rng.integers(2**63))

    def forward(self, x):
        if not self.training or self.p == 0:
            self.keep(None)
            return x
        hidden = min(round(self.p * 2**16), 2**16 - 1)                  # of the 2^16 values, those that drop
        bits = self.rng.bit_generator.random_raw(-(-x.size // 4)).view(np.uint16)       # words of four values
        kept = bits[:x.size].reshape(x.shape) >= hidden
        scaled_mask = np.multiply(kept, 2**16 / (2**16 - hidden), dtype=x.dtype)
        self.keep(scaled_mask)
        return x * scaled_mask

    def backward(self, dout):
        scaled_mask, = self.take()
        return dout if scaled_mask is None else dout * scaled_mask


class LayerNorm(Layer):
    """LN(x) = gamma * (x - mean) / sqrt(var + eps) + beta, per position; var is biased.  [3.1; Ba et al. 2016]

    x and the result are (..., d_model). The paper does not state eps; it stands inside the root.
    """

    def __init__(self, d_model, eps=1e-5, *, rng=None, dtype=np.float32):
        super().__init__(dtype, rng)
        check_sizes(d_model=d_model)
        self.eps = eps
        self.add_weight("gamma", np.ones(d_model))
        self.add_weight("beta", np.zeros(d_model))

    def forward(self, x):
        centred = x - row_mean(x)
        rstd = 1 / np.sqrt(row_mean_of_product(centred, centred) + self.eps)                    # (..., 1)
        x_hat = centred * rstd
        self.keep(x_hat, rstd)
        return self.gamma * x_hat + self.beta

    def backward(self, dout):
        x_hat, rstd = self.take()
        self.dgamma += column_sum(dout * x_hat)
        self.dbeta += column_sum(dout)
        dx_hat = dout * self.gamma
        # x reaches x_hat by three paths: directly, through the mean, through the variance.
        return rstd * (dx_hat - row_mean(dx_hat) - x_hat * row_mean_of_product(dx_hat, x_hat))


class AddNorm(LayerNorm):
    """LayerNorm(x + Dropout(Sublayer(x))), the "Add & Norm" of figure 1.  [3.1, 5.4]"""

    def __init__(self, d_model, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(d_model, rng=rng, dtype=dtype)
        self.dropout = Dropout(dropout_p, **self.shared)

    def forward(self, x, sublayer_output):
        return super().forward(x + self.dropout(sublayer_output))

    def backward(self, dout):
        dx = super().backward(dout)
        return dx, self.dropout.backward(dx)


class EncoderBlock(Layer):
    """Self-attention, then feed-forward, each followed by Add & Norm: (B, S, d_model) -> (B, S, d_model).  [3.1]

    mask broadcasts to (B, h, S, S).
    """

    def __init__(self, d_model, n_heads, d_ff, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype, rng)
        self.self_attention = MultiHeadAttention(d_model, n_heads, dropout_p, **self.shared)
        self.norm1 = AddNorm(d_model, dropout_p, **self.shared)
        self.feed_forward = FeedForward(d_model, d_ff, dropout_p, **self.shared)
        self.norm2 = AddNorm(d_model, dropout_p, **self.shared)

    def forward(self, x, mask=None):
        x = self.norm1(x, self.self_attention(x, x, x, mask))
        return self.norm2(x, self.feed_forward(x))

    def backward(self, dout):
        dx, dsublayer = self.norm2.backward(dout)
        dx = dx + self.feed_forward.backward(dsublayer)
        dx, dsublayer = self.norm1.backward(dx)
        dquery, dkey, dvalue = self.self_attention.backward(dsublayer)
        return dx + dquery + dkey + dvalue


class DecoderBlock(Layer):
    """Masked self-attention, attention to the encoder's output, feed-forward, each with Add & Norm.  [3.1]

    x is (B, T, d_model), encoder_output (B, S, d_model); self_mask broadcasts to (B, h, T, T), cross_mask to
    (B, h, T, S). Returns (B, T, d_model).
    """

    def __init__(self, d_model, n_heads, d_ff, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype, rng)
        self.self_attention = MultiHeadAttention(d_model, n_heads, dropout_p, **self.shared)
        self.norm1 = AddNorm(d_model, dropout_p, **self.shared)
        self.cross_attention = MultiHeadAttention(d_model, n_heads, dropout_p, **self.shared)
        self.norm2 = AddNorm(d_model, dropout_p, **self.shared)
        self.feed_forward = FeedForward(d_model, d_ff, dropout_p, **self.shared)
        self.norm3 = AddNorm(d_model, dropout_p, **self.shared)

    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        x = self.norm1(x, self.self_attention(x, x, x, self_mask))
        x = self.norm2(x, self.cross_attention(x, encoder_output, encoder_output, cross_mask))
        return self.norm3(x, self.feed_forward(x))

    def backward(self, dout):
        dx, dsublayer = self.norm3.backward(dout)
        dx = dx + self.feed_forward.backward(dsublayer)
        dx, dsublayer = self.norm2.backward(dx)
        dquery, dkey, dvalue = self.cross_attention.backward(dsublayer)
        dx, dsublayer = self.norm1.backward(dx + dquery)
        dencoder_output = dkey + dvalue
        dquery, dkey, dvalue = self.self_attention.backward(dsublayer)
        return dx + dquery + dkey + dvalue, dencoder_output

    def step(self, x, state, number):
        """``forward`` for the newest position alone, x (B, 1, d_model); state holds what block ``number`` has seen."""
        x = self.norm1(x, self.self_attention.attend(x, *state.extend(number, *self.self_attention.project(x, x))))
        x = self.norm2(x, self.cross_attention.attend(x, *state.memory[number], state.cross_mask))
        return self.norm3(x, self.feed_forward(x))


# -------------------------------------------------------------------------------------------------- 3.2 attention


def softmax(x, axis=-1):
    """exp(x) / sum(exp(x)) along axis, shifted by the maximum; a slice of nothing but -inf gives zeros.  [3.2.1]"""
    x = np.asarray(x)
    if x.dtype.kind != "f":
        x = x.astype(np.float64)
    x = x.swapaxes(axis, -1)
    peak = np.maximum(row_max(x), np.finfo(x.dtype).min)                      # finite, so -inf - peak is -inf
    e = np.exp(x - peak)
    e /= np.maximum(row_sum(e), 1)                # the peak alone adds exp(0) = 1: less means nothing to see
    return e.swapaxes(axis, -1)


def softmax_backward(dout, y, axis=-1):
    """The gradient at x of y = softmax(x): y * (dout - sum(dout * y)), no Jacobian built."""
    dout, y = dout.swapaxes(axis, -1), y.swapaxes(axis, -1)
    return (y * (dout - row_sum(dout * y))).swapaxes(axis, -1)


def create_padding_mask(tokens, pad_token=0):
    """True where a key is padding: (B, S) token ids -> (B, 1, 1, S). TypeError for ids that are not integers."""
    tokens = check_tokens(tokens)
    if tokens.ndim != 2:
        raise ValueError(f"tokens must be (batch, seq), got shape {tokens.shape}")
    return (tokens == pad_token)[:, None, None, :]


def create_causal_mask(seq_len):
    """True where a key lies in the query's future: (1, 1, seq_len, seq_len).  [3.2.3]"""
    check_sizes(seq_len=seq_len)
    return np.triu(np.ones((1, 1, seq_len, seq_len), dtype=bool), k=1)


def check_mask(mask, shape):
    """mask as an array. TypeError unless boolean, ValueError unless it is 4-D and broadcasts to shape."""
    mask = np.asarray(mask)
    if mask.dtype != bool:
        raise TypeError(f"a mask must be boolean with True = hidden, False = visible; got {mask.dtype}")
    if mask.ndim != 4 or any(m not in (1, s) for m, s in zip(mask.shape, shape)):
        raise ValueError(f"a mask of shape {mask.shape} does not broadcast to (batch, heads, queries, keys) = {shape}")
    return mask


def heads_product(a, b):
    """a @ b, (B, h, T, K) x (B, h, K, d) -> (B, h, T, d), laid out in memory as (B, T, h, d): merging heads is free."""
    B, h, T, _ = a.shape
    out = np.empty((B, T, h, b.shape[-1]), dtype=np.result_type(a, b)).swapaxes(1, 2)
    return np.matmul(a, b, out=out)


class ScaledDotProductAttention(Layer):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V.  [3.2.1, eq. 1]

    Q is (B, h, T, d_k), K (B, h, S, d_k), V (B, h, S, d_v); the result is (B, h, T, d_v). mask broadcasts to
    (B, h, T, S). A query with nothing to see gets exact zeros. ``attention_weights`` (B, h, T, S) are kept from
    before dropout. The paper does not mention dropout on the weights; its code has a switch for it.
    """

    def __init__(self, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype, rng)
        self.dropout = Dropout(dropout_p, **self.shared)
        self.attention_weights = None

    def forward(self, Q, K, V, mask=None):
        Q, K, V = (x if x.dtype.kind == "f" else x.astype(self.dtype) for x in map(np.asarray, (Q, K, V)))
        if not (Q.ndim == K.ndim == V.ndim == 4 and Q.shape[:2] == K.shape[:2] == V.shape[:2]
                and Q.shape[3] == K.shape[3] and K.shape[2] == V.shape[2]):
            raise ValueError("Q, K, V must be (batch, heads, T, d_k), (batch, heads, S, d_k), (batch, heads, S, d_v); "
                             f"got {Q.shape}, {K.shape}, {V.shape}")
        scores = Q @ K.swapaxes(-1, -2)                                                         # (B, h, T, S)
        scores *= 1 / math.sqrt(Q.shape[-1])
        if mask is not None:
            np.copyto(scores, -np.inf, where=check_mask(mask, scores.shape))
        A = self.attention_weights = softmax(scores)
        A_dropped = self.dropout(A)
        self.keep(Q, K, V, A, A_dropped)
        return heads_product(A_dropped, V)                                                      # (B, h, T, d_v)

    def backward(self, dout):
        Q, K, V, A, A_dropped = self.take()
        dA = self.dropout.backward(dout @ V.swapaxes(-1, -2))                                   # (B, h, T, S)
        dV = heads_product(A_dropped.swapaxes(-1, -2), dout)
        dscores = softmax_backward(dA, A)         # 0 wherever A is 0, so what the mask hid needs no second look
        dscores *= 1 / math.sqrt(Q.shape[-1])
        return heads_product(dscores, K), heads_product(dscores.swapaxes(-1, -2), Q), dV


class MultiHeadAttention(Layer):
    """Concat(head_1, ..., head_h) W_O, head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i).  [3.2.2]

    query is (B, T, d_model), key and value (B, S, d_model); the result is (B, T, d_model). The paper's h matrices
    W_Q_i stand side by side in one W_Q (d_model, d_model), head i in columns i d_k to (i + 1) d_k.
    """

    def __init__(self, d_model, n_heads, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype, rng)
        check_sizes(d_model=d_model, n_heads=n_heads)
        if d_model % n_heads:
            raise ValueError(f"d_model must be a multiple of n_heads, got d_model={d_model}, n_heads={n_heads}")
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        for name in ("W_Q", "W_K", "W_V", "W_O"):
            self.add_weight(name, glorot_uniform(self.rng, d_model, d_model))
        self.attention = ScaledDotProductAttention(dropout_p, **self.shared)

    def split_heads(self, x):
        """(B, T, d_model) -> (B, h, T, d_k), a view."""
        return x.reshape(*x.shape[:2], self.n_heads, self.d_k).swapaxes(1, 2)

    def merge_heads(self, x):
        """(B, h, T, d_k) -> (B, T, d_model), the inverse of split_heads."""
        B, h, T, d_k = x.shape
        return x.swapaxes(1, 2).reshape(B, T, h * d_k)

    def project(self, key, value):
        """The heads of keys and values, (B, h, S, d_k) each."""
        return self.split_heads(linear(key, self.W_K)), self.split_heads(linear(value, self.W_V))

    def attend(self, query, K, V, mask=None):
        """The layer's output for query (B, T, d_model), given heads of keys and values."""
        Q = self.split_heads(linear(query, self.W_Q))
        context = self.merge_heads(self.attention(Q, K, V, mask))                               # (B, T, d_model)
        self.keep(context)
        return linear(context, self.W_O)

    def forward(self, query, key, value, mask=None):
        query, key, value = np.asarray(query), np.asarray(key), np.asarray(value)
        if not query.ndim == key.ndim == value.ndim == 3:
            raise ValueError("query, key, value must be (batch, seq, d_model), "
                             f"got {query.shape}, {key.shape}, {value.shape}")
        output = self.attend(query, *self.project(key, value), mask)
        self.keep(query, key, value, *self.take())
        return output

    def backward(self, dout):
        query, key, value, context = self.take()
        dcontext = linear_backward(dout, context, self.W_O, self.dW_O)
        dQ, dK, dV = self.attention.backward(self.split_heads(dcontext))                        # (B, h, T or S, d_k)
        return (linear_backward(self.merge_heads(dQ), query, self.W_Q, self.dW_Q),
                linear_backward(self.merge_heads(dK), key, self.W_K, self.dW_K),
                linear_backward(self.merge_heads(dV), value, self.W_V, self.dW_V))

    def get_attention_weights(self):
        """The (B, h, T, S) weights of the last forward, before dropout: every row sums to 1. None before any."""
        return self.attention.attention_weights


# ----------------------------------------------------------------------------------------------- 3.3 feed-forward


class FeedForward(Layer):
    """FFN(x) = max(0, x W1 + b1) W2 + b2, at each position alike.  [3.3, eq. 2]

    (..., d_model) -> (..., d_ff) -> (..., d_model). Dropout after the ReLU is a switch of the authors' code.
    """

    def __init__(self, d_model, d_ff, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype, rng)
        check_sizes(d_model=d_model, d_ff=d_ff)
        self.add_weight("W1", glorot_uniform(self.rng, d_model, d_ff))
        self.add_weight("b1", np.zeros(d_ff))
        self.add_weight("W2", glorot_uniform(self.rng, d_ff, d_model))
        self.add_weight("b2", np.zeros(d_model))
        self.dropout = Dropout(dropout_p, **self.shared)

    def forward(self, x):
        hidden = linear(x, self.W1, self.b1)                                                    # (..., d_ff)
        np.maximum(hidden, np.zeros_like(self.b1), out=hidden)     # a row of zeros: half the time of the number 0
        hidden = self.dropout(hidden)
        self.keep(x, hidden)
        return linear(hidden, self.W2, self.b2)

    def backward(self, dout):
        x, hidden = self.take()
        dhidden = self.dropout.backward(linear_backward(dout, hidden, self.W2, self.dW2, self.db2))
        return linear_backward(dhidden * (hidden > 0), x, self.W1, self.dW1, self.db1)


# ------------------------------------------------------------------------------------ 3.4 embeddings, 3.5 positions


class TokenEmbedding(Layer):
    """Row number ``token`` of the table, times sqrt(d_model): (B, T) ids -> (B, T, d_model).  [3.4]

    Raises IndexError for an id outside the vocabulary, TypeError for ids that are not integers.
    """

    def __init__(self, vocab_size, d_model, *, rng=None, dtype=np.float32):
        super().__init__(dtype, rng)
        check_sizes(vocab_size=vocab_size, d_model=d_model)
        self.scale = math.sqrt(d_model)
        self.add_weight("embedding", self.rng.normal(0, d_model ** -0.5, (vocab_size, d_model)))

    def forward(self, tokens):
        tokens = check_tokens(tokens, len(self.embedding))
        self.keep(tokens)
        return self.embedding[tokens] * self.scale

    def backward(self, dout):
        tokens, = self.take()
        # A token may stand at many positions: its row collects them all. ``dembedding[tokens] += ...`` would keep one.
        # On flat arrays np.add.at takes a fifth of the time that it takes row by row.
        d_model = dout.shape[-1]
        places = tokens.reshape(-1, 1).astype(np.intp) * d_model + np.arange(d_model)
        np.add.at(self.dembedding.reshape(-1), places.reshape(-1), (dout * self.scale).reshape(-1))


class PositionalEncoding(Layer):
    """x + PE with PE(pos, 2i) = sin(pos / 10000^(2i/d_model)), PE(pos, 2i+1) = cos(the same).  [3.5]

    x and the result are (B, T, d_model), position 0 first. Dropout acts on the sum [5.4]. Raises ValueError for a
    sequence longer than max_len.
    """

    def __init__(self, d_model, max_len=5000, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype, rng)
        check_sizes(d_model=d_model, max_len=max_len)
        angles = np.arange(max_len)[:, None] / 10000 ** (np.arange(0, d_model, 2) / d_model)    # (max_len, ceil(d/2))
        self.pe = np.empty((max_len, d_model), dtype=self.dtype)
        self.pe[:, 0::2] = np.sin(angles)
        self.pe[:, 1::2] = np.cos(angles[:, :d_model // 2])
        self.dropout = Dropout(dropout_p, **self.shared)

    def forward(self, x, start=0):
        """Positions count from ``start``, which decoding uses to add one position at a time."""
        if x.ndim != 3:
            raise ValueError(f"x must be (batch, seq, d_model), got {x.shape}: tokens come in batches, (batch, seq)")
        end = start + x.shape[1]
        if end > len(self.pe):
            raise ValueError(f"a sequence of length {end} is longer than max_len={len(self.pe)}")
        return self.dropout(x + self.pe[start:end])

    def backward(self, dout):
        return self.dropout.backward(dout)


# ---------------------------------------------------------------------------------------- figure 1: the whole model


class Transformer(Layer):
    """The encoder-decoder of figure 1: token ids (B, S) and (B, T) -> logits (B, T, tgt_vocab_size).  [3]

    The softmax over the logits belongs to the loss. With tie_embeddings one matrix serves as source embedding,
    target embedding and (transposed) output projection [3.4]. Masks are the caller's: None hides nothing.
    Raises ValueError for impossible sizes.
    """

    def __init__(self, src_vocab_size, tgt_vocab_size, d_model=512, n_heads=8, n_encoder_layers=6, n_decoder_layers=6,
                 d_ff=2048, dropout_p=0.1, max_len=5000, *, tie_embeddings=False, rng=None, dtype=np.float32):
        super().__init__(dtype, rng)
        check_sizes(src_vocab_size=src_vocab_size, tgt_vocab_size=tgt_vocab_size, d_model=d_model, n_heads=n_heads,
                    n_encoder_layers=n_encoder_layers, n_decoder_layers=n_decoder_layers, d_ff=d_ff, max_len=max_len)
        if tie_embeddings and src_vocab_size != tgt_vocab_size:
            raise ValueError("tie_embeddings needs one vocabulary, got "
                             f"src_vocab_size={src_vocab_size}, tgt_vocab_size={tgt_vocab_size}")
        self.config = dict(
            src_vocab_size=src_vocab_size, tgt_vocab_size=tgt_vocab_size, d_model=d_model, n_heads=n_heads,
            n_encoder_layers=n_encoder_layers, n_decoder_layers=n_decoder_layers, d_ff=d_ff, dropout_p=dropout_p,
            max_len=max_len, tie_embeddings=tie_embeddings)
        self.src_embedding = TokenEmbedding(src_vocab_size, d_model, **self.shared)
        self.tgt_embedding = (self.src_embedding.twin() if tie_embeddings
                              else TokenEmbedding(tgt_vocab_size, d_model, **self.shared))
        self.positional_encoding = PositionalEncoding(d_model, max_len, dropout_p, **self.shared)
        self.tgt_positional_encoding = self.positional_encoding.twin()
        self.encoder_layers = [EncoderBlock(d_model, n_heads, d_ff, dropout_p, **self.shared)
                               for _ in range(n_encoder_layers)]
        self.decoder_layers = [DecoderBlock(d_model, n_heads, d_ff, dropout_p, **self.shared)
                               for _ in range(n_decoder_layers)]
        if tie_embeddings:
            self.tie()
        else:
            self.add_weight("output_projection", glorot_uniform(self.rng, d_model, tgt_vocab_size))

    def tie(self):
        """Make the output projection and its gradient views of the source embedding's."""
        self.output_projection = self.src_embedding.embedding.T                                 # (d_model, V)
        self.doutput_projection = self.src_embedding.dembedding.T

    def __setstate__(self, state):
        """A copy by copy.deepcopy or pickle, which turn each view into an array of its own."""
        vars(self).update(state)
        if self.config["tie_embeddings"]:
            self.tie()

    def encode(self, src, src_mask=None):
        """Source ids (B, S) -> the encoder's output (B, S, d_model)."""
        self._kept = None
        x = self.positional_encoding(self.src_embedding(src))
        for block in self.encoder_layers:
            x = block(x, src_mask)
        return x

    def decode(self, tgt, encoder_output, tgt_mask=None, cross_mask=None):
        """Target ids (B, T) and the encoder's output -> (B, T, d_model), before the output projection."""
        self._kept = None
        x = self.tgt_positional_encoding(self.tgt_embedding(tgt))
        for block in self.decoder_layers:
            x = block(x, encoder_output, tgt_mask, cross_mask)
        return x

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        """src_mask hides source positions in the encoder and in the decoder's attention to it."""
        decoder_output = self.decode(tgt, self.encode(src, src_mask), tgt_mask, src_mask)
        self.keep(decoder_output)
        return linear(decoder_output, self.output_projection)                                   # (B, T, tgt_vocab)

    def backward(self, dlogits):
        decoder_output, = self.take()
        dx = linear_backward(dlogits, decoder_output, self.output_projection, self.doutput_projection)
        dencoder_output = 0                                  # every decoder block reads it: the gradients add up
        for block in reversed(self.decoder_layers):
            dx, dread = block.backward(dx)
            dencoder_output = dencoder_output + dread
        self.tgt_embedding.backward(self.tgt_positional_encoding.backward(dx))
        dx = dencoder_output
        for block in reversed(self.encoder_layers):
            dx = block.backward(dx)
        self.src_embedding.backward(self.positional_encoding.backward(dx))

    def start_decoding(self, encoder_output, cross_mask=None):
        """The state from which decode_step writes, one token at a time, after the encoder's output (B, S, d_model)."""
        self.forget()
        memory = [block.cross_attention.project(encoder_output, encoder_output) for block in self.decoder_layers]
        if cross_mask is not None:
            cross_mask = np.broadcast_to(cross_mask, (len(encoder_output), *np.shape(cross_mask)[1:]))
        return DecodingState(memory, cross_mask, list(self.layers()))

    def decode_step(self, tokens, state):
        """The newest token of each row (B,) -> logits (B, tgt_vocab_size) for the next one; state grows by a position.

        In eval mode these are the last logits of ``forward`` on all tokens so far under a causal mask, but each position
        is computed once.
        """
        x = self.tgt_positional_encoding(self.tgt_embedding(np.asarray(tokens)[:, None]), start=state.length)
        for number, block in enumerate(self.decoder_layers):
            x = block.step(x, state, number)
        state.length += 1
        for layer in state.layers:                                      # forget(), without walking through the model
            layer._kept = None
        return linear(x[:, 0], self.output_projection)


class DecodingState:
    """What decoding remembers, for each decoder block: heads of past positions and of the encoder's output.

    ``past`` has room for more positions than the ``length`` that are written; it is doubled when it runs out.
    """

    def __init__(self, memory, cross_mask, layers):
        self.memory, self.cross_mask, self.layers = memory, cross_mask, layers
        self.past, self.length = [None] * len(memory), 0

    def extend(self, block, K, V):
        """Add the newest position's heads (B, h, 1, d_k) to those of a block; all so far are returned."""
        if self.past[block] is None:
            self.past[block] = [K, V]
        past = self.past[block]
        for i, newest in enumerate((K, V)):
            if self.length == past[i].shape[2]:
                past[i] = np.concatenate([past[i], np.empty_like(past[i])], axis=2)
            past[i][:, :, self.length] = newest[:, :, 0]
        return [heads[:, :, :self.length + 1] for heads in past]

    def reorder(self, indices):
        """Row i continues what row indices[i] held: for beams, and to drop rows that are done."""
        self.past, self.memory = ([heads and [array[indices] for array in heads] for heads in both]
                                  for both in (self.past, self.memory))
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask[indices]
