"""Exercise 4: the encoder block.  [sections 3.1 and 3.3; 5.4 for dropout; layer norm from Ba et al. 2016]

    FFN(x) = max(0, x W1 + b1) W2 + b2                           eq. 2
    Add & Norm: LayerNorm(x + Dropout(Sublayer(x)))              figure 1
    LayerNorm(x) = gamma * (x - mean) / sqrt(var + eps) + beta

Attention mixes the positions, feed-forward works on each alone. Round both, x itself passes by on the residual path,
and layer norm keeps the sums at one size. Six such blocks on top of each other are the encoder.

    B  sequences    S  positions    d_ff  width inside the feed-forward layer
"""

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
        # begin: centre, divide by the root, scale, shift
        # eps stands inside the root: a constant vector, of variance 0, then gives beta and not 0 / 0.
        centred = x - x.mean(axis=-1, keepdims=True)
        variance = (centred ** 2).mean(axis=-1, keepdims=True)                                  # (..., 1)
        rstd = 1 / np.sqrt(variance + self.eps)
        x_hat = centred * rstd
        self.keep(x_hat, rstd)
        return self.gamma * x_hat + self.beta
        # end

    def backward(self, dout):
        """Bonus. dout (..., d_model) -> dx; adds to self.dgamma and self.dbeta. rows(x) flattens (..., d) to (N, d)."""
        # begin: three paths lead from x to the output
        x_hat, rstd = self.take()
        self.dgamma += rows(dout * x_hat).sum(axis=0)
        self.dbeta += rows(dout).sum(axis=0)
        dx_hat = dout * self.gamma
        # Directly, through the mean, through the variance. Together they make dx blind to what layer norm removes: it
        # sums to 0, and (but for eps) it is orthogonal to x_hat.
        return rstd * (dx_hat
                       - dx_hat.mean(axis=-1, keepdims=True)
                       - x_hat * (dx_hat * x_hat).mean(axis=-1, keepdims=True))
        # end


class AddNorm(LayerNorm):
    """LayerNorm(x + Dropout(Sublayer(x))).  [3.1, 5.4]  It has gamma, beta and the methods of LayerNorm above."""

    def __init__(self, d_model, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(d_model, dtype=dtype)
        self.dropout = Dropout(dropout_p, rng=rng, dtype=dtype)

    def forward(self, x, sublayer_output):
        """Both (..., d_model) -> (..., d_model). super().forward is layer norm."""
        # begin: add, then norm
        # Post-norm, as in the paper: the norm comes after the sum. (Most later models norm x before the sublayer.)
        return super().forward(x + self.dropout(sublayer_output))
        # end

    def backward(self, dout):
        """Bonus. dout (..., d_model) -> dx, dsublayer_output."""
        # begin: a sum passes its gradient on to both sides
        dx = super().backward(dout)
        return dx, self.dropout.backward(dx)
        # end


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
        # begin: widen, ReLU, dropout, narrow
        # Without the ReLU, W1 W2 would be one matrix and the layer a detour.
        hidden = np.maximum(x @ self.W1 + self.b1, 0)                                           # (..., d_ff)
        dropped = self.dropout(hidden)
        self.keep(x, hidden, dropped)
        return dropped @ self.W2 + self.b2
        # end

    def backward(self, dout):
        """Bonus. dout (..., d_model) -> dx; adds to self.dW1, db1, dW2 and db2."""
        # begin: the lines of forward in reverse order
        x, hidden, dropped = self.take()
        self.dW2 += rows(dropped).T @ rows(dout)
        self.db2 += rows(dout).sum(axis=0)
        # ReLU lets the gradient through where it let the value through.
        dhidden = self.dropout.backward(dout @ self.W2.T) * (hidden > 0)
        self.dW1 += rows(x).T @ rows(dhidden)
        self.db1 += rows(dhidden).sum(axis=0)
        return dhidden @ self.W1.T
        # end


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
        # begin: two sublayers, each with its Add & Norm
        # Self-attention: the same x asks, is asked and answers.
        x = self.norm1(x, self.self_attention(x, x, x, mask))
        return self.norm2(x, self.feed_forward(x))
        # end

    def backward(self, dout):
        """Bonus. dout (B, S, d_model) -> dx. The layers inside collect the gradients of their own weights."""
        # begin: the two lines of forward in reverse order
        # Where x went two ways, two gradients come back and add up; into self-attention it went three more ways.
        dx, dsublayer = self.norm2.backward(dout)
        dx = dx + self.feed_forward.backward(dsublayer)
        dx, dsublayer = self.norm1.backward(dx)
        dquery, dkey, dvalue = self.self_attention.backward(dsublayer)
        return dx + dquery + dkey + dvalue
        # end
