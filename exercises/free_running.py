"""Decoding for models whose forward is not the library's: every step computes the whole sequence anew."""

import numpy as np

from implementation import Transformer, create_causal_mask, create_padding_mask


class WholePrefix(Transformer):
    """A Transformer that writes each token by ``forward`` on the source and all tokens so far, with nothing cached.

    Keys and values of past positions may be cached only where no position depends on a later one. With a mistake in
    the model that may be wrong, and a cache would hide the mistake. Here the logits of a step are, by definition, the
    last ones of the same forward that training runs.
    """

    def encode(self, src, src_mask=None):
        self.source = np.asarray(src)
        return super().encode(src, src_mask)

    def start_decoding(self, encoder_output, cross_mask=None):
        """encoder_output must come from the last ``encode``; each of its rows may stand there several times (beams).

        ValueError when its length says that it does not.
        """
        times, rest = divmod(len(encoder_output), max(len(self.source), 1))
        if rest:
            raise ValueError(f"an encoder output of {len(encoder_output)} rows does not come from the "
                             f"{len(self.source)} sequences that were encoded last")
        source = np.repeat(self.source, times, axis=0)
        if cross_mask is not None:
            cross_mask = np.broadcast_to(cross_mask, (len(source), *np.shape(cross_mask)[1:]))
        return Prefix(source, cross_mask)

    def decode_step(self, tokens, state):
        state.tokens = np.concatenate([state.tokens, np.asarray(tokens)[:, None]], axis=1)
        mask = create_padding_mask(state.tokens) | create_causal_mask(state.length)
        logits = self(state.source, state.tokens, state.cross_mask, mask)
        self.forget()
        return logits[:, -1]


class Prefix:
    """What such decoding remembers: the source, the tokens written so far."""

    def __init__(self, source, cross_mask):
        self.source, self.cross_mask = source, cross_mask
        self.tokens = np.empty((len(source), 0), dtype=np.int64)

    @property
    def length(self):
        return self.tokens.shape[1]

    def reorder(self, indices):
        """Row i continues what row indices[i] held."""
        self.source, self.tokens = self.source[indices], self.tokens[indices]
        if self.cross_mask is not None:
            self.cross_mask = self.cross_mask[indices]
