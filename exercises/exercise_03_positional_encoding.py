"""Exercise 3: embeddings and positional encoding.  [sections 3.4 and 3.5]

    PE(pos, 2i)     = sin(pos / 10000^(2i / d_model))
    PE(pos, 2i + 1) = cos(pos / 10000^(2i / d_model))

Attention sees a set, not a sequence: shuffle the words and every answer shuffles along. So each position adds a
pattern of its own to its word, from waves whose lengths grow from 2 pi to nearly 10000 times 2 pi.

    B  sequences    T  positions    V  words in the vocabulary

Write what is marked TODO, then run this file: it grades itself, and --hint helps. The gradients are a bonus.
"""

if __name__ == "__main__":          # grades this file in a process of its own, and exits
    import grade
    grade.this_file()

import math

import numpy as np

from implementation import Dropout, Layer, check_tokens, rows


def sinusoidal_table(max_len, d_model):
    """PE (max_len, d_model), row 0 for position 0. An odd d_model is allowed: its last column is a sine.  [3.5]"""
    raise NotImplementedError("TODO: angles first, then sines into the even columns and cosines into the odd ones")


class TokenEmbedding(Layer):
    """Row number token of the table, times sqrt(d_model).  [3.4]"""

    def __init__(self, vocab_size, d_model, *, rng=None, dtype=np.float32):
        super().__init__(dtype)
        rng = np.random.default_rng(rng)
        self.d_model = d_model
        self.add_weight("embedding", rng.normal(0, d_model ** -0.5, (vocab_size, d_model)))

    def forward(self, tokens):
        """Token ids (B, T) -> (B, T, d_model)."""
        tokens = check_tokens(tokens, len(self.embedding))
        raise NotImplementedError("TODO: look the rows up and scale them")

    def backward(self, dout):
        """Bonus. dout (B, T, d_model); adds to self.dembedding (V, d_model) and returns nothing.

        A token may stand at many positions. rows(x) flattens (B, T, d) to (B T, d).
        """
        raise NotImplementedError("TODO: every position adds to the row of its token")


class PositionalEncoding(Layer):
    """Dropout(x + PE), position 0 first.  [3.5, 5.4]"""

    def __init__(self, d_model, max_len=5000, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype)
        self.pe = np.asarray(sinusoidal_table(max_len, d_model), dtype=self.dtype)
        self.dropout = Dropout(dropout_p, rng=rng, dtype=dtype)

    def forward(self, x, start=0):
        """Scaled embeddings (B, T, d_model) -> the same shape, with the rows start, start + 1, ... of self.pe added.

        start is 0 in training; decoding, which writes one token at a time, says where it is. The sum goes through
        self.dropout. A sequence that would pass the end of the table raises ValueError.
        """
        raise NotImplementedError("TODO: add the right rows to every sequence")

    def backward(self, dout):
        """Bonus. dout (B, T, d_model) -> dx, the gradient at the scaled embeddings."""
        raise NotImplementedError("TODO: what reaches x")
