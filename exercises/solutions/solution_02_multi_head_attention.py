"""Exercise 2: multi-head attention.  [section 3.2.2]

    MultiHead(Q, K, V) = Concat(head_1, ..., head_h) W_O      head_i = Attention(Q W_Q_i, K W_K_i, V W_V_i)

One attention gives one weighted mean. Several heads, each on its own d_k = d_model / h features, can look for
several things at once. The h matrices W_Q_i stand side by side in one W_Q, head i in columns i d_k to (i + 1) d_k.

    B  sequences    h  heads    T  positions that ask    S  positions that answer    d_k  width of a head
"""

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
        # begin: one axis of features becomes two, and heads come before positions
        # reshape never moves a number: it can only cut the last axis into (h, d_k). Moving the heads in front of the
        # positions is the business of the transpose. reshape(B, h, T, d_k) alone would give head 0 the first
        # positions with all their features.
        B, T, _ = x.shape
        return x.reshape(B, T, self.n_heads, self.d_k).transpose(0, 2, 1, 3)
        # end

    def merge_heads(self, x):
        """(B, h, T, d_k) -> (B, T, d_model), the inverse of split_heads."""
        # begin: the two steps of split_heads, undone in reverse order
        B, h, T, d_k = x.shape
        return x.transpose(0, 2, 1, 3).reshape(B, T, h * d_k)
        # end

    def forward(self, query, key, value, mask=None):
        """query (B, T, d_model), key and value (B, S, d_model) -> (B, T, d_model).

        self.attention takes and returns heads; mask goes to it unchanged.
        """
        # begin: project, split, attend, merge, project
        Q = self.split_heads(query @ self.W_Q)                                                  # (B, h, T, d_k)
        K = self.split_heads(key @ self.W_K)                                                    # (B, h, S, d_k)
        V = self.split_heads(value @ self.W_V)
        # Projecting first and splitting afterwards is the same as h small projections: each head reads its own columns.
        context = self.merge_heads(self.attention(Q, K, V, mask))                               # (B, T, d_model)
        self.keep(query, key, value, context)
        # Until here the heads know nothing of one another. W_O mixes them.
        return context @ self.W_O
        # end

    def backward(self, dout):
        """Bonus. dout (B, T, d_model) -> dquery, dkey, dvalue; adds to self.dW_Q, dW_K, dW_V and dW_O.

        self.attention.backward(d_heads) returns dQ, dK, dV. Gradients of weights are added (+=), never set.
        rows(x) flattens (B, T, d) to (B T, d).
        """
        # begin: the lines of forward in reverse order
        # For y = x W:  dx = dy W^T, and dW = x^T dy, summed over all sequences and positions.
        query, key, value, context = self.take()
        self.dW_O += rows(context).T @ rows(dout)
        dQ, dK, dV = self.attention.backward(self.split_heads(dout @ self.W_O.T))               # (B, h, T or S, d_k)
        # Splitting is a rearrangement: its gradient is the rearrangement backwards.
        dQ, dK, dV = self.merge_heads(dQ), self.merge_heads(dK), self.merge_heads(dV)
        self.dW_Q += rows(query).T @ rows(dQ)
        self.dW_K += rows(key).T @ rows(dK)
        self.dW_V += rows(value).T @ rows(dV)
        return dQ @ self.W_Q.T, dK @ self.W_K.T, dV @ self.W_V.T
        # end

    def get_attention_weights(self):
        """The (B, h, T, S) weights of the last forward."""
        return self.attention.attention_weights
