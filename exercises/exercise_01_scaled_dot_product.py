"""Exercise 1: scaled dot-product attention.  [section 3.2.1, equation 1]

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V

Every query is compared with every key; softmax turns the scores of one query into shares that sum to 1; the answer
is the mean of the values, weighted by these shares.

    B  sequences    h  heads    T  positions that ask    S  positions that answer    d_k, d_v  width of a key, a value

Write what is marked TODO, then run this file: it grades itself, and --hint helps. The gradients are a bonus.
"""

if __name__ == "__main__":          # grades this file in a process of its own, and exits
    import grade
    grade.this_file()

import math

import numpy as np

from implementation import Dropout, Layer, check_mask


def softmax(x, axis=-1):
    """exp(x) / sum(exp(x)) along axis, for scores of any size (exp(1000) would overflow).  [3.2.1]"""
    raise NotImplementedError("TODO: turn x into shares that sum to 1 along axis")


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
        raise NotImplementedError("TODO: scores, scale, mask, softmax, weighted mean")

    def backward(self, dout):
        """Bonus. dout (B, h, T, d_v) -> dQ, dK, dV, in the shapes of Q, K, V. The mask has no gradient.

        self.keep(a, b) in forward leaves values here for self.take(); self.dropout has a backward of its own.
        """
        raise NotImplementedError("TODO: the lines of forward in reverse order")
