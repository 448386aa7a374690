"""Exercise 1: scaled dot-product attention.  [section 3.2.1, equation 1]

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

Every query is compared with every key; softmax turns the scores of one query into shares that sum to 1; the answer
is the mean of the values, weighted by these shares.

    B  sequences    h  heads    T  positions that ask    S  positions that answer    d_k, d_v  width of a key, a value
"""

import math

import numpy as np

from implementation import Dropout, Layer, check_mask


def softmax(x, axis=-1):
    """exp(x) / sum(exp(x)) along axis, for scores of any size (exp(1000) would overflow).  [3.2.1]"""
    # begin: turn x into shares that sum to 1 along axis
    # Taking the largest score away changes nothing, since exp(x - c) = exp(x) / exp(c) and exp(c) cancels; but now
    # the largest exponent is 0 and nothing overflows. A slice of nothing but -inf has no largest score: 0 stands in
    # for it, every exp(-inf) is 0, and dividing by 1 leaves the zeros.
    peak = x.max(axis=axis, keepdims=True)
    e = np.exp(x - np.where(np.isfinite(peak), peak, 0))
    total = e.sum(axis=axis, keepdims=True)
    return e / np.where(total == 0, 1, total)
    # end


class ScaledDotProductAttention(Layer):
    """Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V.  [3.2.1, eq. 1]"""

    def __init__(self, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype)
        self.dropout = Dropout(dropout_p, rng=rng, dtype=dtype)
        self.attention_weights = None

    def forward(self, Q, K, V, mask=None):
        """Q (B, h, T, d_k), K (B, h, S, d_k), V (B, h, S, d_v) -> (B, h, T, d_v).

        mask broadcasts to (B, h, T, S); True means hidden: that key gets weight 0. A query whose keys are all
        hidden gets exact zeros. Store the weights (B, h, T, S) in self.attention_weights, then send them through
        self.dropout before they meet the values.
        """
        if mask is not None:
            mask = check_mask(mask, (*Q.shape[:3], K.shape[2]))
        # begin: scores, scale, mask, softmax, weighted mean
        # The dot product of two random vectors of width d_k has variance d_k. The root brings the scores back to
        # variance 1, where softmax is not saturated and its gradient not near 0.
        scores = Q @ K.swapaxes(-1, -2) / math.sqrt(Q.shape[-1])                                # (B, h, T, S)
        if mask is not None:
            # Before softmax, so that the visible keys share the whole weight. Hidden afterwards, they would not.
            scores = np.where(mask, -np.inf, scores)
        A = self.attention_weights = softmax(scores)
        A_dropped = self.dropout(A)
        self.keep(Q, K, V, A, A_dropped)
        return A_dropped @ V                                                                    # (B, h, T, d_v)
        # end

    def backward(self, dout):
        """Bonus. dout (B, h, T, d_v) -> dQ, dK, dV, in the shapes of Q, K, V. The mask has no gradient.

        self.keep(a, b) in forward leaves values here for self.take(); self.dropout has a backward of its own.
        """
        # begin: the lines of forward in reverse order
        Q, K, V, A, A_dropped = self.take()
        dA = self.dropout.backward(dout @ V.swapaxes(-1, -2))                                   # (B, h, T, S)
        dV = A_dropped.swapaxes(-1, -2) @ dout
        # Softmax: raising one score lowers all the other shares, hence the subtracted sum. A hidden key has A = 0,
        # so its gradient is 0 and the mask needs no second look.
        dscores = A * (dA - (dA * A).sum(axis=-1, keepdims=True))
        dscores = dscores / math.sqrt(Q.shape[-1])
        return dscores @ K, dscores.swapaxes(-1, -2) @ Q, dV
        # end
