"""Exercise 4: the encoder block.  [sections 3.1 and 3.3; 5.4 for dropout; layer norm from Ba et al. 2016]

    FFN(x) = max(0, x W1 + b1) W2 + b2                           eq. 2
    Add & Norm: LayerNorm(x + Dropout(Sublayer(x)))              figure 1
    LayerNorm(x) = gamma * (x - mean) / sqrt(var + eps) + beta

Attention mixes the positions, feed-forward works on each alone. Round both, x itself passes by on the residual path,
and layer norm keeps the sums at one size. Six such blocks on top of each other are the encoder.

    B  sequences    S  positions    d_ff  width inside the feed-forward layer

Write what is marked TODO, then run this file: it grades itself, and --hint helps. The gradients are a bonus.
"""

if __name__ == "__main__":          # grades this file in a process of its own, and exits
    import grade
    grade.this_file()

import numpy as np

from implementation import Dropout, Layer, MultiHeadAttention, glorot_uniform, rows


class LayerNorm(Layer):
    """gamma * (x - mean) / sqrt(var + eps) + beta, over the features of each position; var divides by d_model."""

    def __init__(self, d_model, eps=1e-5, *, rng=None, dtype=np.float32):
        super().__init__(dtype)
        self.eps = eps
        self.add_weight("gamma", np.ones(d_model))
        self.add_weight("beta", np.zeros(d_model))

    def forward(self, x):
        """(..., d_model) -> (..., d_model)."""
        raise NotImplementedError("TODO: centre, divide by the root, scale, shift")

    def backward(self, dout):
        """Bonus. dout (..., d_model) -> dx; adds to self.dgamma and self.dbeta. rows(x) flattens (..., d) to (N, d)."""
        raise NotImplementedError("TODO: three paths lead from x to the output")


class AddNorm(LayerNorm):
    """LayerNorm(x + Dropout(Sublayer(x))).  [3.1, 5.4]  It has gamma, beta and the methods of LayerNorm above."""

    def __init__(self, d_model, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(d_model, dtype=dtype)
        self.dropout = Dropout(dropout_p, rng=rng, dtype=dtype)

    def forward(self, x, sublayer_output):
        """Both (..., d_model) -> (..., d_model). super().forward is layer norm."""
        raise NotImplementedError("TODO: add, then norm")

    def backward(self, dout):
        """Bonus. dout (..., d_model) -> dx, dsublayer_output."""
        raise NotImplementedError("TODO: a sum passes its gradient on to both sides")


class FeedForward(Layer):
    """max(0, x W1 + b1) W2 + b2, at each position alike.  [3.3, eq. 2]"""

    def __init__(self, d_model, d_ff, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype)
        rng = np.random.default_rng(rng)
        self.add_weight("W1", glorot_uniform(rng, d_model, d_ff))
        self.add_weight("b1", np.zeros(d_ff))
        self.add_weight("W2", glorot_uniform(rng, d_ff, d_model))
        self.add_weight("b2", np.zeros(d_model))
        self.dropout = Dropout(dropout_p, rng=rng, dtype=dtype)

    def forward(self, x):
        """(..., d_model) -> (..., d_ff) -> (..., d_model). self.dropout acts after the ReLU."""
        raise NotImplementedError("TODO: widen, ReLU, dropout, narrow")

    def backward(self, dout):
        """Bonus. dout (..., d_model) -> dx; adds to self.dW1, db1, dW2 and db2."""
        raise NotImplementedError("TODO: the lines of forward in reverse order")


class EncoderBlock(Layer):
    """Self-attention, then feed-forward, each followed by Add & Norm.  [3.1, figure 1 on the left]"""

    def __init__(self, d_model, n_heads, d_ff, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype)
        rng = np.random.default_rng(rng)
        self.self_attention = MultiHeadAttention(d_model, n_heads, dropout_p, rng=rng, dtype=dtype)
        self.norm1 = AddNorm(d_model, dropout_p, rng=rng, dtype=dtype)
        self.feed_forward = FeedForward(d_model, d_ff, dropout_p, rng=rng, dtype=dtype)
        self.norm2 = AddNorm(d_model, dropout_p, rng=rng, dtype=dtype)

    def forward(self, x, mask=None):
        """(B, S, d_model) -> (B, S, d_model). self.self_attention takes (query, key, value, mask)."""
        raise NotImplementedError("TODO: two sublayers, each with its Add & Norm")

    def backward(self, dout):
        """Bonus. dout (B, S, d_model) -> dx. The layers inside collect the gradients of their own weights."""
        raise NotImplementedError("TODO: the two lines of forward in reverse order")
