"""Named mistakes to train with: python train_minimal.py --task copy --inject-bug NAME

Each is a layer of the library with the mistake built in, and with the right backward of the wrong function that it is:
training finds nothing amiss. The weights keep their names and shapes, so checkpoints load as ever.
"""

import math
from contextlib import contextmanager

import numpy as np

from exercises.free_running import WholePrefix
from implementation import (AddNorm, DecoderBlock, EncoderBlock, LayerNorm, MultiHeadAttention, PositionalEncoding,
                            ScaledDotProductAttention, TokenEmbedding, create_padding_mask, heads_product, softmax,
                            softmax_backward)

BUGS = {}                        # name -> one sentence
WRONG = {}                       # name -> the layers that take the place of the library's classes they extend


def bug(name, sentence):
    """Register a class as (one of) the wrong layers of a named mistake."""
    def register(layer):
        BUGS[name] = sentence
        WRONG.setdefault(name, []).append(layer)
        return layer
    return register


def inject(model, name):
    """(model, shift): the model with the named mistake in every layer that has a place for it. It is changed in place.

    shift is None, or what takes the place of shift_target: tgt -> what the decoder reads, what it is to predict.
    """
    model.__class__ = WholePrefix
    for layer in model.layers():
        for wrong in WRONG.get(name, ()):
            if issubclass(wrong, type(layer)):
                layer.__class__ = wrong
    return model, SHIFTS.get(name)


@contextmanager
def replaced(layer, **attributes):
    """The layer's attributes are others inside, and afterwards what they were."""
    own = {name: vars(layer)[name] for name in attributes if name in vars(layer)}
    vars(layer).update(attributes)
    try:
        yield
    finally:
        for name in attributes:
            del vars(layer)[name]
        vars(layer).update(own)


# ------------------------------------------------------------------------------- 3.2.1 scaled dot-product attention


class ScaledBy(ScaledDotProductAttention):
    """The scores are Q K^T times ``factor(d_k)``: Q is multiplied by what makes up for the library's own division."""

    def forward(self, Q, K, V, mask=None):
        self.correction = self.factor(Q.shape[-1]) * math.sqrt(Q.shape[-1])
        return super().forward(Q * self.correction, K, V, mask)

    def backward(self, dout):
        dQ, dK, dV = super().backward(dout)
        return dQ * self.correction, dK, dV


@bug("no_scaling", "the scores are not divided by sqrt(d_k)")
class NoScaling(ScaledBy):
    def factor(self, d_k):
        return 1


@bug("scale_d_k", "the scores are divided by d_k instead of sqrt(d_k)")
class DividedByWidth(ScaledBy):
    def factor(self, d_k):
        return 1 / d_k


class WeighedOtherwise(ScaledDotProductAttention):
    """The scores (B, h, T, S) become weights by ``weigh(scores, mask)``, and ``weigh_backward(dA)`` undoes it."""

    def forward(self, Q, K, V, mask=None):
        self.scale = 1 / math.sqrt(Q.shape[-1])
        self.attention_weights = self.weigh(Q @ K.swapaxes(-1, -2) * self.scale, mask)
        dropped = self.dropout(self.attention_weights)
        self.keep(Q, K, V, dropped)
        return heads_product(dropped, V)

    def backward(self, dout):
        Q, K, V, dropped = self.take()
        dscores = self.weigh_backward(self.dropout.backward(dout @ V.swapaxes(-1, -2))) * self.scale
        dK, dV = (heads_product(d.swapaxes(-1, -2), x) for d, x in ((dscores, Q), (dropped, dout)))
        return heads_product(dscores, K), dK, dV


@bug("softmax_over_queries", "softmax goes over the queries instead of the keys: columns sum to 1, not rows")
class SoftmaxOverQueries(WeighedOtherwise):
    def weigh(self, scores, mask):
        self.columns = softmax(scores if mask is None else np.where(mask, -np.inf, scores), axis=-2)
        return self.columns

    def weigh_backward(self, dA):
        return softmax_backward(dA, self.columns, axis=-2)


@bug("mask_after_softmax", "hidden keys get weight 0 only after softmax, which they took their share of")
class MaskAfterSoftmax(WeighedOtherwise):
    def weigh(self, scores, mask):
        self.shares, self.visible = softmax(scores), True if mask is None else ~mask
        return self.shares * self.visible

    def weigh_backward(self, dA):
        return softmax_backward(dA * self.visible, self.shares)


@bug("double_softmax", "softmax is applied twice, which also gives hidden keys weight again: exp(0) is 1")
class DoubleSoftmax(WeighedOtherwise):
    def weigh(self, scores, mask):
        self.once = softmax(scores if mask is None else np.where(mask, -np.inf, scores))
        self.twice = softmax(self.once)
        return self.twice

    def weigh_backward(self, dA):
        return softmax_backward(softmax_backward(dA, self.twice), self.once)


# ------------------------------------------------------------------------------------ 3.2.2 multi-head attention


class HeadsOtherwise(MultiHeadAttention):
    """Heads are split or merged in another way; ``split_back`` and ``merge_back`` undo split_heads and merge_heads."""

    def split_back(self, x):
        return MultiHeadAttention.merge_heads(self, x)

    def merge_back(self, x):
        return MultiHeadAttention.split_heads(self, x)

    def backward(self, dout):
        # The library's backward takes merge_heads for the inverse of split_heads. Here they may not belong together.
        with replaced(self, split_heads=self.merge_back, merge_heads=self.split_back):
            return super().backward(dout)

    def reshape_to_heads(self, x):
        """(B, T, d_model) -> (B, h, T, d_k) without moving a number: a head gets some positions with all features."""
        return x.reshape(len(x), self.n_heads, x.shape[1], self.d_k)

    def reshape_to_rows(self, x):
        """(B, h, T, d_k) -> (B, T, d_model), the inverse."""
        return x.reshape(len(x), x.shape[2], self.n_heads * self.d_k)


@bug("heads_split_without_transpose", "split_heads reshapes straight to (B, h, T, d_k), without a transpose")
class SplitWithoutTranspose(HeadsOtherwise):
    split_heads, split_back = HeadsOtherwise.reshape_to_heads, HeadsOtherwise.reshape_to_rows


@bug("heads_merged_without_transpose", "merge_heads reshapes straight to (B, T, d_model), without a transpose")
class MergeWithoutTranspose(HeadsOtherwise):
    merge_heads, merge_back = HeadsOtherwise.reshape_to_rows, HeadsOtherwise.reshape_to_heads


@bug("heads_without_transpose", "both: heads are split and merged by reshape alone")
class HeadsWithoutTranspose(HeadsOtherwise):
    split_heads, split_back = HeadsOtherwise.reshape_to_heads, HeadsOtherwise.reshape_to_rows
    merge_heads, merge_back = HeadsOtherwise.reshape_to_rows, HeadsOtherwise.reshape_to_heads


class WeightsOtherwise(MultiHeadAttention):
    """``weights()`` says which arrays stand in for which weights and gradients."""

    def forward(self, query, key, value, mask=None):
        with replaced(self, **self.weights()):
            return super().forward(query, key, value, mask)

    def backward(self, dout):
        with replaced(self, **self.weights()):
            return super().backward(dout)


@bug("key_with_w_q", "the keys are projected by W_Q, and W_K lies idle")
class KeysProjectedByW_Q(WeightsOtherwise):
    def weights(self):
        return dict(W_K=self.W_Q, dW_K=self.dW_Q)


@bug("no_output_projection", "the output projection W_O is missing")
class NoOutputProjection(WeightsOtherwise):
    def weights(self):
        return dict(W_O=np.eye(len(self.W_O), dtype=self.dtype), dW_O=np.zeros_like(self.W_O))


# -------------------------------------------------------------------------------------- 3.4 embeddings, 3.5 positions


@bug("no_sqrt_d_model", "the embeddings are not multiplied by sqrt(d_model)")
class NotScaledByRoot(TokenEmbedding):
    scale = property(lambda self: 1)


@bug("no_positions", "no positional encoding is added")
class NoPositions(PositionalEncoding):
    def forward(self, x, start=0):
        return self.dropout(x)


@bug("sin_cos_halves", "all sines stand before all cosines instead of side by side")
class SinCosHalves(PositionalEncoding):
    def forward(self, x, start=0):
        sines_first = np.r_[0:x.shape[-1]:2, 1:x.shape[-1]:2]
        with replaced(self, pe=self.pe[:start + x.shape[1], sines_first]):
            return super().forward(x, start)


# --------------------------------------------------------------------------------------------- 3.1 blocks, figure 1


@bug("no_residual", "the residual is missing: only the sublayer's output is normalised")
class NoResidual(AddNorm):
    def forward(self, x, sublayer_output):
        return super().forward(np.zeros_like(x), sublayer_output)

    def backward(self, dout):
        dx, dsublayer = super().backward(dout)
        return np.zeros_like(dx), dsublayer


PRE_NORM = "pre_norm", "the norm comes before each sublayer instead of after the sum (pre-norm)"


@bug(*PRE_NORM)
class PreNorm(AddNorm):
    """x + Dropout(Sublayer(LN(x))): the block calls ``norm`` before the sublayer."""

    def norm(self, x):
        return LayerNorm.forward(self, x)

    def norm_backward(self, dout):
        return LayerNorm.backward(self, dout)

    def forward(self, x, sublayer_output):
        return x + self.dropout(sublayer_output)

    def backward(self, dout):
        return dout, self.dropout.backward(dout)


@bug(*PRE_NORM)
class PreNormEncoderBlock(EncoderBlock):
    def forward(self, x, mask=None):
        n = self.norm1.norm(x)
        x = self.norm1(x, self.self_attention(n, n, n, mask))
        return self.norm2(x, self.feed_forward(self.norm2.norm(x)))

    def backward(self, dout):
        dx, dsublayer = self.norm2.backward(dout)
        dx = dx + self.norm2.norm_backward(self.feed_forward.backward(dsublayer))
        dx, dsublayer = self.norm1.backward(dx)
        return dx + self.norm1.norm_backward(sum(self.self_attention.backward(dsublayer)))


@bug(*PRE_NORM)
class PreNormDecoderBlock(DecoderBlock):
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        n = self.norm1.norm(x)
        x = self.norm1(x, self.self_attention(n, n, n, self_mask))
        x = self.norm2(x, self.cross_attention(self.norm2.norm(x), encoder_output, encoder_output, cross_mask))
        return self.norm3(x, self.feed_forward(self.norm3.norm(x)))

    def backward(self, dout):
        dx, dsublayer = self.norm3.backward(dout)
        dx = dx + self.norm3.norm_backward(self.feed_forward.backward(dsublayer))
        dx, dsublayer = self.norm2.backward(dx)
        dquery, dkey, dvalue = self.cross_attention.backward(dsublayer)
        dx, dsublayer = self.norm1.backward(dx + self.norm2.norm_backward(dquery))
        return dx + self.norm1.norm_backward(sum(self.self_attention.backward(dsublayer))), dkey + dvalue


@bug("memory_ignored", "the decoder never reads the encoder's output: cross-attention is left out")
class MemoryIgnored(DecoderBlock):
    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        self.read = encoder_output
        attention = self.cross_attention.attention
        attention.attention_weights = np.zeros((len(x), self.cross_attention.n_heads, x.shape[1],
                                                encoder_output.shape[1]), x.dtype)
        x = self.norm1(x, self.self_attention(x, x, x, self_mask))
        return self.norm3(x, self.feed_forward(x))

    def backward(self, dout):
        dx, dsublayer = self.norm3.backward(dout)
        dx, dsublayer = self.norm1.backward(dx + self.feed_forward.backward(dsublayer))
        return dx + sum(self.self_attention.backward(dsublayer)), np.zeros_like(self.read)


# ---------------------------------------------------------------------------------- 3.2.3 the mask, 3.1 the shift


@bug("no_causal_mask", "the decoder sees the tokens that it is to predict: only padding is hidden")
class NoCausalMask(WholePrefix):
    def decode(self, tgt, encoder_output, tgt_mask=None, cross_mask=None):
        return super().decode(tgt, encoder_output, create_padding_mask(tgt), cross_mask)


@bug("causal_sees_next", "the causal mask is off by one: each position sees the token that it is to predict")
class CausalSeesNext(WholePrefix):
    def decode(self, tgt, encoder_output, tgt_mask=None, cross_mask=None):
        beyond = np.triu(np.ones((1, 1, tgt.shape[1], tgt.shape[1]), dtype=bool), k=2)
        return super().decode(tgt, encoder_output, create_padding_mask(tgt) | beyond, cross_mask)


BUGS["target_not_shifted"] = "the decoder reads the very token that it is to predict"
SHIFTS = {"target_not_shifted": lambda tgt: (tgt[:, :-1], tgt[:, :-1])}
