"""Exercise 2: multi-head attention.  [section 3.2.2]

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O      head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i)

One attention gives one weighted mean. Several heads, each on its own d_k = d_model / h features, can look for
several things at once. The h matrices W_Q_i stand side by side in one W_Q, head i in columns i d_k to (i + 1) d_k.

    B  sequences    h  heads    T  positions that ask    S  positions that answer    d_k  width of a head

Write what is marked TODO, then run this file: it grades itself, and --hint helps. The gradients are a bonus.
"""

if __name__ == "__main__":          # grades this file in a process of its own, and exits
    import grade
    grade.this_file()

import numpy as np

from implementation import Layer, ScaledDotProductAttention, glorot_uniform, rows


class MultiHeadAttention(Layer):
    """Concat(head_1, ..., head_h) W_O, head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i).  [3.2.2]"""

    def __init__(self, d_model, n_heads, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype)
        if d_model % n_heads:
            raise ValueError(f"d_model must be a multiple of n_heads, got d_model={d_model}, n_heads={n_heads}")
        rng = np.random.default_rng(rng)
        self.n_heads, self.d_k = n_heads, d_model // n_heads
        for name in ("W_Q", "W_K", "W_V", "W_O"):                       # each (d_model, d_model), no bias
            self.add_weight(name, glorot_uniform(rng, d_model, d_model))
        self.attention = ScaledDotProductAttention(dropout_p, rng=rng, dtype=dtype)

    def split_heads(self, x):
        """(B, T, d_model) -> (B, h, T, d_k). Head 0 gets the first d_k features of every position."""
        raise NotImplementedError("TODO: one axis of features becomes two, and heads come before positions")

    def merge_heads(self, x):
        """(B, h, T, d_k) -> (B, T, d_model), the inverse of split_heads."""
        raise NotImplementedError("TODO: the two steps of split_heads, undone in reverse order")

    def forward(self, query, key, value, mask=None):
        """query (B, T, d_model), key and value (B, S, d_model) -> (B, T, d_model).

        self.attention takes and returns heads; mask goes to it unchanged.
        """
        raise NotImplementedError("TODO: project, split, attend, merge, project")

    def backward(self, dout):
        """Bonus. dout (B, T, d_model) -> dquery, dkey, dvalue; adds to self.dW_Q, dW_K, dW_V and dW_O.

        self.attention.backward(d_heads) returns dQ, dK, dV. Gradients of weights are added (+=), never set.
        rows(x) flattens (B, T, d) to (B T, d).
        """
        raise NotImplementedError("TODO: the lines of forward in reverse order")

    def get_attention_weights(self):
        """The (B, h, T, S) weights of the last forward."""
        return self.attention.attention_weights
