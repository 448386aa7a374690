"""Exercise 5: masks, the decoder block, the whole Transformer.  [sections 3.1 and 3.2.3, figure 1]

    encoder:  x = EncoderBlock(x) six times over
    decoder:  y = DecoderBlock(y, x) six times over, each block reading the encoder's last output x
    logits:   y W_out, one score for each word of the vocabulary; the softmax belongs to the loss

The decoder learns at every position at once to predict the next token. Two things keep that honest: a mask, so that no
position sees its future, and a shift, so that what it is to predict is not what it is given.

    B  sequences    S  source positions    T  target positions    Masks are boolean; True means hidden.
"""

import numpy as np

from implementation import (AddNorm, EncoderBlock, FeedForward, Layer, MultiHeadAttention, PositionalEncoding,
                            TokenEmbedding, glorot_uniform)


def create_padding_mask(tokens, pad_token=0):
    """True where a key is padding: token ids (B, S) -> boolean (B, 1, 1, S)."""
    # begin: compare, and make room for heads and queries
    # Padding is hidden from every head and every query, so these two axes have length 1 and broadcast. On the query
    # axis, (B, 1, S, 1), the mask would blind the padding instead of hiding it.
    return (tokens == pad_token)[:, None, None, :]
    # end


def create_causal_mask(seq_len):
    """True where a key lies in the query's future: boolean (1, 1, seq_len, seq_len).  [3.2.3]"""
    # begin: everything above the diagonal
    # k=1 leaves the diagonal visible: position t sees itself, whose input is the token before the one it predicts.
    return np.triu(np.ones((1, 1, seq_len, seq_len), dtype=bool), k=1)
    # end


def shift_target(tgt):
    """Target ids (B, T + 1), start token first -> what the decoder reads, what it is to predict, each (B, T).  [3.1]"""
    # begin: all but the last, all but the first
    # At position t the decoder has read tokens 0 to t and is asked for token t + 1.
    return tgt[:, :-1], tgt[:, 1:]
    # end


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
        # begin: three sublayers, each with its Add & Norm
        x = self.norm1(x, self.self_attention(x, x, x, self_mask))
        # The decoder asks, the encoder answers: queries from x, keys and values from the source.
        x = self.norm2(x, self.cross_attention(x, encoder_output, encoder_output, cross_mask))
        return self.norm3(x, self.feed_forward(x))
        # end

    def backward(self, dout):
        """Bonus. dout (B, T, d_model) -> dx, dencoder_output.

        attention.backward returns dquery, dkey, dvalue; norm.backward returns dx, dsublayer_output.
        """
        # begin: the three lines of forward in reverse order
        dx, dsublayer = self.norm3.backward(dout)
        dx = dx + self.feed_forward.backward(dsublayer)
        dx, dsublayer = self.norm2.backward(dx)
        dquery, dkey, dvalue = self.cross_attention.backward(dsublayer)
        dencoder_output = dkey + dvalue                 # it was both key and value
        dx, dsublayer = self.norm1.backward(dx + dquery)
        dquery, dkey, dvalue = self.self_attention.backward(dsublayer)
        return dx + dquery + dkey + dvalue, dencoder_output
        # end


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
        # begin: embed, add positions, pass through the encoder's blocks
        x = self.positional_encoding(self.src_embedding(src))
        for block in self.encoder_layers:
            x = block(x, src_mask)
        return x
        # end

    def decode(self, tgt, encoder_output, tgt_mask=None, cross_mask=None):
        """Target ids (B, T) and the encoder's output (B, S, d_model) -> (B, T, d_model).

        Positions of the target come from tgt_positional_encoding. No output projection yet.
        """
        # begin: embed, add positions, pass through the decoder's blocks
        x = self.tgt_positional_encoding(self.tgt_embedding(tgt))
        for block in self.decoder_layers:
            # Every block reads the encoder's last output; only x moves on from block to block.
            x = block(x, encoder_output, tgt_mask, cross_mask)
        return x
        # end

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        """Ids (B, S) and (B, T) -> logits (B, T, tgt_vocab_size). src_mask hides source positions from both stacks."""
        # begin: encode, decode, project
        encoder_output = self.encode(src, src_mask)
        decoder_output = self.decode(tgt, encoder_output, tgt_mask, src_mask)
        return decoder_output @ self.output_projection
        # end
