"""Exercise 5: masks, the decoder block, the whole Transformer.  [sections 3.1 and 3.2.3, figure 1]

    encoder:  x = EncoderBlock(x) six times over
    decoder:  y = DecoderBlock(y, x) six times over, each block reading the encoder's last output x
    logits:   y W_out, one score for each word of the vocabulary; the softmax belongs to the loss

The decoder learns at every position at once to predict the next token. Two things keep that honest: a mask, so that no
position sees its future, and a shift, so that what it is to predict is not what it is given.

    B  sequences    S  source positions    T  target positions    Masks are boolean; True means hidden.

Write what is marked TODO, then run this file: it grades itself, and --hint helps. The gradients are a bonus.
"""

if __name__ == "__main__":          # grades this file in a process of its own, and exits
    import grade
    grade.this_file()

import numpy as np

from implementation import (AddNorm, EncoderBlock, FeedForward, Layer, MultiHeadAttention, PositionalEncoding,
                            TokenEmbedding, glorot_uniform)


def create_padding_mask(tokens, pad_token=0):
    """True where a key is padding: token ids (B, S) -> boolean (B, 1, 1, S)."""
    raise NotImplementedError("TODO: compare, and make room for heads and queries")


def create_causal_mask(seq_len):
    """True where a key lies in the query's future: boolean (1, 1, seq_len, seq_len).  [3.2.3]"""
    raise NotImplementedError("TODO: everything above the diagonal")


def shift_target(tgt):
    """Target ids (B, T + 1), start token first -> what the decoder reads, what it is to predict, each (B, T).  [3.1]"""
    raise NotImplementedError("TODO: all but the last, all but the first")


class DecoderBlock(Layer):
    """Masked self-attention, attention to the encoder's output, feed-forward, each with Add & Norm.  [3.1]"""

    def __init__(self, d_model, n_heads, d_ff, dropout_p=0.1, *, rng=None, dtype=np.float32):
        super().__init__(dtype)
        rng = np.random.default_rng(rng)
        self.self_attention = MultiHeadAttention(d_model, n_heads, dropout_p, rng=rng, dtype=dtype)
        self.norm1 = AddNorm(d_model, dropout_p, rng=rng, dtype=dtype)
        self.cross_attention = MultiHeadAttention(d_model, n_heads, dropout_p, rng=rng, dtype=dtype)
        self.norm2 = AddNorm(d_model, dropout_p, rng=rng, dtype=dtype)
        self.feed_forward = FeedForward(d_model, d_ff, dropout_p, rng=rng, dtype=dtype)
        self.norm3 = AddNorm(d_model, dropout_p, rng=rng, dtype=dtype)

    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        """x (B, T, d_model), encoder_output (B, S, d_model) -> (B, T, d_model).

        Attention takes (query, key, value, mask); norm takes (x, sublayer_output) and is Add & Norm.
        """
        raise NotImplementedError("TODO: three sublayers, each with its Add & Norm")

    def backward(self, dout):
        """Bonus. dout (B, T, d_model) -> dx, dencoder_output.

        attention.backward returns dquery, dkey, dvalue; norm.backward returns dx, dsublayer_output.
        """
        raise NotImplementedError("TODO: the three lines of forward in reverse order")


class Transformer(Layer):
    """The encoder-decoder of figure 1: token ids (B, S) and (B, T) -> logits (B, T, tgt_vocab_size).  [3]"""

    def __init__(self, src_vocab_size, tgt_vocab_size, d_model=512, n_heads=8, n_encoder_layers=6, n_decoder_layers=6,
                 d_ff=2048, dropout_p=0.1, max_len=5000, *, tie_embeddings=False, rng=None, dtype=np.float32):
        super().__init__(dtype)
        rng = np.random.default_rng(rng)
        shared = dict(rng=rng, dtype=dtype)
        self.src_embedding = TokenEmbedding(src_vocab_size, d_model, **shared)
        self.tgt_embedding = (self.src_embedding.twin() if tie_embeddings
                              else TokenEmbedding(tgt_vocab_size, d_model, **shared))
        self.positional_encoding = PositionalEncoding(d_model, max_len, dropout_p, **shared)
        self.tgt_positional_encoding = self.positional_encoding.twin()
        self.encoder_layers = [EncoderBlock(d_model, n_heads, d_ff, dropout_p, **shared)
                               for _ in range(n_encoder_layers)]
        self.decoder_layers = [DecoderBlock(d_model, n_heads, d_ff, dropout_p, **shared)
                               for _ in range(n_decoder_layers)]
        if tie_embeddings:                              # one matrix, three uses [3.4]
            self.output_projection = self.src_embedding.embedding.T
            self.doutput_projection = self.src_embedding.dembedding.T
        else:
            self.add_weight("output_projection", glorot_uniform(rng, d_model, tgt_vocab_size))

    def encode(self, src, src_mask=None):
        """Source ids (B, S) -> the encoder's output (B, S, d_model). src_embedding scales by sqrt(d_model) itself."""
        raise NotImplementedError("TODO: embed, add positions, pass through the encoder's blocks")

    def decode(self, tgt, encoder_output, tgt_mask=None, cross_mask=None):
        """Target ids (B, T) and the encoder's output (B, S, d_model) -> (B, T, d_model).

        Positions of the target come from tgt_positional_encoding. No output projection yet.
        """
        raise NotImplementedError("TODO: embed, add positions, pass through the decoder's blocks")

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        """Ids (B, S) and (B, T) -> logits (B, T, tgt_vocab_size). src_mask hides source positions from both stacks."""
        raise NotImplementedError("TODO: encode, decode, project")
