"""Writing an answer one token at a time: greedily, or with the beam search of section 6.1."""

from contextlib import contextmanager

import numpy as np

from implementation import check_tokens, create_padding_mask
from optimisation import log_softmax


@contextmanager
def eval_mode(model):
    """Dropout off inside, each layer's mode as it was afterwards, and nothing kept for a backward."""
    modes = [(layer, layer.training) for layer in model.layers()]
    model.eval()
    try:
        yield
    finally:
        for layer, training in modes:
            layer.training = training
        model.forget()


def check_max_len(model, max_len):
    longest = len(model.positional_encoding.pe)
    if not 1 <= max_len <= longest:
        raise ValueError(f"max_len={max_len} must be from 1 to {longest}, the length of the model's table of positions")


def greedy_decode(model, src, max_len, start_token=1, end_token=2, pad_token=0):
    """The most probable token at each step: sources (B, S) -> (B, T) tokens after start, T at most max_len.

    A row ends with its own end token, then padding. Raises ValueError when max_len is beyond the model's table.
    """
    check_max_len(model, max_len)
    src = check_tokens(src)
    src_mask = create_padding_mask(src, pad_token)
    with eval_mode(model):
        state = model.start_decoding(model.encode(src, src_mask), src_mask)
        token = np.full(len(src), start_token)
        done = np.zeros(len(src), dtype=bool)
        answer = np.full((len(src), max_len), pad_token)
        for n in range(max_len):
            token = np.argmax(model.decode_step(token, state), axis=-1)
            answer[~done, n] = token[~done]
            done |= token == end_token
            if done.all():
                break
    return answer[:, :n + 1]


def beam_search(model, src, max_len, beam_size=4, length_penalty=0.6, start_token=1, end_token=2, pad_token=0):
    """The best of beam_size answers held at a time: sources (B, S) -> (B, T) tokens after start.  [6.1]

    An answer of n tokens, the end token counted, scores log p / ((5 + n) / 6)^length_penalty. At each step the
    continuations with the largest log p take the places left; one that ends keeps its place. A finished answer comes
    before an unfinished one. A row's search stops early only when no open answer can still win. Raises ValueError
    for max_len beyond the model's table or beam_size below 1.
    """
    check_max_len(model, max_len)
    if beam_size < 1:
        raise ValueError(f"beam_size must be at least 1, got {beam_size}")
    src = check_tokens(src)
    B, k = len(src), beam_size
    src_mask = create_padding_mask(src, pad_token)

    def penalty(n):
        return ((5 + n) / 6) ** length_penalty

    with eval_mode(model):
        state = model.start_decoding(np.repeat(model.encode(src, src_mask), k, axis=0), np.repeat(src_mask, k, axis=0))
        tokens = np.full((B, k, max_len), pad_token)
        log_p = np.full((B, k), -np.inf)
        log_p[:, 0] = 0                                        # k copies of the same beginning would be one answer
        places = np.full((B, 1), k)
        best_score, best = np.full(B, -np.inf), np.full((B, max_len), pad_token)
        length = np.full(B, max_len)
        newest = np.full(B * k, start_token)
        for n in range(1, max_len + 1):
            logits = model.decode_step(newest, state)
            V = logits.shape[-1]
            continued = log_p[:, :, None] + log_softmax(logits).reshape(B, k, V)
            chosen = np.argsort(-continued.reshape(B, k * V), axis=-1, kind="stable")[:, :k]    # (B, k)
            log_p = np.take_along_axis(continued.reshape(B, k * V), chosen, axis=-1)
            log_p[np.arange(k) >= places] = -np.inf
            parent, newest = chosen // V, chosen % V
            tokens = np.take_along_axis(tokens, parent[:, :, None], axis=1)
            tokens[:, :, n - 1] = newest

            ended = (newest == end_token) & (log_p > -np.inf)
            score = np.where(ended, log_p / penalty(n), -np.inf)
            top = score.argmax(axis=-1)
            better = score[np.arange(B), top] > best_score
            best_score[better] = score[better, top[better]]
            best[better] = tokens[better, top[better]]
            length[better] = n
            places -= ended.sum(axis=-1, keepdims=True)
            log_p[ended] = -np.inf

            # log p only falls, and the larger penalty flatters it most: the highest score an open answer may reach.
            reachable = log_p.max(axis=-1) / max(penalty(n + 1), penalty(max_len))
            if (best_score >= reachable).all():
                break
            newest = newest.reshape(-1)
            state.reorder((np.arange(B)[:, None] * k + parent).reshape(-1))
    unfinished = best_score == -np.inf
    best[unfinished] = tokens[unfinished, log_p[unfinished].argmax(axis=-1)]
    return best[:, :length.max(initial=1)]
