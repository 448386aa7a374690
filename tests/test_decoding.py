"""Greedy decoding and beam search [6.1] against references that write one answer at a time from whole forwards."""

import numpy as np
import pytest

from implementation import Transformer, create_causal_mask, create_padding_mask
from train_minimal import beam_search, greedy_decode

pytestmark = pytest.mark.mutants

V, START, END, PAD = 6, 1, 2, 0
SRC = np.array([[3, 5, 3, 2, 0, 0], [4, 4, 5, 3, 5, 2], [5, 2, 0, 0, 0, 0], [3, 4, 5, 4, 2, 0]])


def make_model(seed, sharpness=2.0, dropout_p=0.0, max_len=12, tie_embeddings=False):
    """A model with random weights, and random positions, so that its answers wander and end at different steps."""
    rng = np.random.default_rng(seed)
    model = Transformer(V, V, 16, 2, 1, 1, 12, dropout_p, max_len, tie_embeddings=tie_embeddings, rng=rng,
                        dtype=np.float64)
    model.positional_encoding.pe[...] = rng.normal(size=model.positional_encoding.pe.shape)
    if not tie_embeddings:                                                                   # no token is the favourite
        model.output_projection *= sharpness / np.linalg.norm(model.output_projection, axis=0)
    return model


def log_probabilities(model, src, prefix, start=START, pad=PAD):
    """Of each next token after ``prefix``, for one source, by a whole forward in eval mode."""
    src, tgt = np.array([src]), np.array([[start, *prefix]])
    logits = model(src, tgt, create_padding_mask(src, pad), create_causal_mask(tgt.shape[1]))[0, -1]
    return logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())


def greedy_by_hand(model, src, max_len, start=START, end=END, pad=PAD):
    answer = []
    while len(answer) < max_len and end not in answer:
        answer.append(int(np.argmax(log_probabilities(model, src, answer, start, pad))))
    return answer


def score(log_p, n, alpha):
    return log_p / ((5 + n) / 6) ** alpha


def beam_by_hand(model, src, max_len, k, alpha, start=START, end=END, pad=PAD):
    """The search for one source, never stopping early: (answer, its score or None when unfinished)."""
    still_open, finished = [([], 0.0)], []
    for n in range(1, max_len + 1):
        longer = []
        for tokens, log_p in still_open:
            step = log_probabilities(model, src, tokens, start, pad)
            longer += [(tokens + [token], log_p + step[token]) for token in range(len(step))]
        longer.sort(key=lambda pair: -pair[1])
        longer = longer[:k - len(finished)]                                       # an answer that ended keeps its place
        finished += [(score(log_p, n, alpha), tokens) for tokens, log_p in longer if tokens[-1] == end]
        still_open = [pair for pair in longer if pair[0][-1] != end]
    if finished:
        best = max(finished, key=lambda pair: pair[0])
        return best[1], best[0]
    return max(still_open, key=lambda pair: pair[1])[0], None


def assert_answers(found, answers, max_len):
    """Rows hold the answers, padded to the longest of them."""
    assert found.dtype.kind == "i" and found.shape[1] <= max_len
    assert found.shape == (len(answers), max(map(len, answers)))
    for row, answer in zip(found.tolist(), answers):
        assert row == answer + [PAD] * (found.shape[1] - len(answer))


# ------------------------------------------------------------------------------------------------ greedy decoding


@pytest.mark.parametrize("seed", range(8))
def test_greedy_takes_the_most_probable_token_until_the_end_token(seed):
    model = make_model(seed, tie_embeddings=seed == 7)
    found = greedy_decode(model, SRC, 10)
    model.eval()
    assert_answers(found, [greedy_by_hand(model, src, 10) for src in SRC], 10)


def test_the_models_of_these_tests_end_their_answers_at_different_steps():
    lengths = set()
    for seed in range(8):
        model = make_model(seed)
        model.eval()
        lengths |= {len(greedy_by_hand(model, src, 10)) for src in SRC}
    assert len(lengths) >= 5 and 10 in lengths and min(lengths) < 4, lengths


@pytest.mark.parametrize("decode", [greedy_decode, beam_search])
def test_an_answer_does_not_depend_on_its_neighbours(decode):
    """Each row stops at its own end token; the end token is included, then padding."""
    for seed in range(6):
        model = make_model(seed)
        together = decode(model, SRC, 9)
        for row, src in zip(together.tolist(), SRC):
            alone = decode(model, src[None], 9)[0].tolist()
            assert row == alone + [PAD] * (len(row) - len(alone))
            padded = decode(model, np.pad(src, (0, 3))[None], 9)[0].tolist()
            assert padded == alone
            if END in row:
                assert set(row[row.index(END) + 1:]) <= {PAD}


@pytest.mark.parametrize("decode", [greedy_decode, beam_search])
def test_decoding_is_in_eval_mode_and_leaves_each_layers_mode_as_it_was(decode):
    model = make_model(1, dropout_p=0.5)
    expected = decode(make_model(1), SRC, 8)
    model.encoder_layers[0].eval()                                        # part of it frozen, the rest in training
    before = [layer.training for layer in model.layers()]
    np.testing.assert_array_equal(decode(model, SRC, 8), expected)
    assert [layer.training for layer in model.layers()] == before and len(set(before)) == 2
    with pytest.raises(IndexError):
        decode(model, SRC + V, 8)
    assert [layer.training for layer in model.layers()] == before
    model.eval()
    decode(model, SRC, 8)
    assert not any(layer.training for layer in model.layers())


@pytest.mark.parametrize("decode", [greedy_decode, beam_search])
def test_decoding_keeps_nothing_for_a_backward_and_changes_no_array_of_the_callers(decode):
    model, src = make_model(1), SRC.copy()
    weights = {name: weight.copy() for name, weight in model.named_parameters().items()}
    decode(model, src, 8)
    np.testing.assert_array_equal(src, SRC)
    for name, weight in model.named_parameters().items():
        np.testing.assert_array_equal(weight, weights[name])
    for layer in model.layers():
        with pytest.raises(RuntimeError):
            layer.backward(np.zeros((4, 1, 16)))


@pytest.mark.parametrize("decode", [greedy_decode, beam_search])
def test_a_length_beyond_the_models_table_is_refused_before_the_first_step(decode):
    model = make_model(0, max_len=7)
    model.encode = model.decode_step = None                                                      # not even called
    for max_len in (8, 100, 0, -1):
        with pytest.raises(ValueError, match=rf"{max_len}\b.*\b7\b"):
            decode(model, SRC, max_len)
    assert decode(make_model(0, max_len=7), SRC, 7).shape[1] <= 7


@pytest.mark.parametrize("decode", [greedy_decode, beam_search])
def test_special_tokens_may_have_other_numbers(decode):
    model = make_model(3, sharpness=1.5)
    other = dict(start_token=5, end_token=4, pad_token=3)
    src = np.array([[0, 1, 2, 4, 3], [2, 2, 4, 3, 3]])
    found = decode(model, src, 9, **other).tolist()
    model.eval()
    for row, source in zip(found, src):
        expected = (greedy_by_hand(model, source, 9, 5, 4, 3) if decode is greedy_decode
                    else beam_by_hand(model, source, 9, 4, 0.6, 5, 4, 3)[0])
        assert row == expected + [3] * (len(row) - len(expected))


@pytest.mark.parametrize("decode", [greedy_decode, beam_search])
def test_decoding_works_in_single_precision_and_stops_as_soon_as_all_rows_have_ended(decode):
    model = Transformer(V, V, 8, 2, 1, 1, 12, 0.1, 12, rng=0)
    model.output_projection[...] = 0
    model.decoder_layers[-1].norm3.beta[...] = 1
    model.output_projection[:, END] = 1                                                # the end token, whatever comes
    steps = []
    one_step = model.decode_step
    model.decode_step = lambda tokens, state: steps.append(1) or one_step(tokens, state)
    assert decode(model, SRC, 12).tolist() == [[END]] * 4
    assert len(steps) == 1


# ---------------------------------------------------------------------------------------------------- beam search


@pytest.mark.parametrize("alpha", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("k", [2, 4])
@pytest.mark.parametrize("seed", range(4))
def test_beam_search_is_the_search_written_out(seed, k, alpha):
    model = make_model(seed, sharpness=(0.7, 1.2)[seed % 2])
    found = beam_search(model, SRC, 7, k, alpha)
    model.eval()
    assert_answers(found, [beam_by_hand(model, src, 7, k, alpha)[0] for src in SRC], 7)


def test_the_papers_beam_and_length_penalty_are_the_defaults():
    """6.1: beam size 4 and alpha = 0.6; both matter for these models."""
    differ = set()
    for seed in range(12):
        model = make_model(seed, sharpness=0.8)
        found = beam_search(model, SRC, 7)
        np.testing.assert_array_equal(found, beam_search(model, SRC, 7, beam_size=4, length_penalty=0.6))
        for name, options in (("k", dict(beam_size=3)), ("alpha", dict(length_penalty=0.0))):
            if not np.array_equal(found, beam_search(model, SRC, 7, **options)):
                differ.add(name)
    assert differ == {"k", "alpha"}


@pytest.mark.parametrize("seed", range(8))
def test_a_beam_of_one_is_greedy(seed):
    model = make_model(seed)
    np.testing.assert_array_equal(beam_search(model, SRC, 10, beam_size=1), greedy_decode(model, SRC, 10))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_beam_wide_enough_finds_the_best_of_all_answers(alpha):
    """Six tokens, three steps: 1 + 5 + 25 answers that end, all held at once. The best is known by trying each."""
    for seed in range(3):
        model = make_model(seed, sharpness=0.5)
        found = beam_search(model, SRC[:2], 3, 6 ** 3, alpha)
        model.eval()
        for src, row in zip(SRC, found.tolist()):
            best = (-np.inf, None)
            others = [token for token in range(V) if token != END]
            for middle in [[]] + [[a] for a in others] + [[a, b] for a in others for b in others]:
                answer = middle + [END]
                log_p = sum(log_probabilities(model, src, answer[:n])[token] for n, token in enumerate(answer))
                best = max(best, (score(log_p, len(answer), alpha), answer))
            assert row[:len(best[1])] == best[1]


def test_a_longer_answer_may_win_by_the_length_penalty():
    """((5 + n) / 6)^alpha divides log p, which is negative: a large alpha favours long answers."""
    lengths = {}
    for alpha in (0.0, 1.0, 4.0):
        lengths[alpha] = []
        for seed in range(8):
            found = beam_search(make_model(seed, sharpness=1.0), SRC, 7, 4, alpha)
            lengths[alpha] += [row.index(END) if END in row else 7 for row in found.tolist()]
    assert np.mean(lengths[0.0]) < np.mean(lengths[1.0]) < np.mean(lengths[4.0])


def test_a_finished_answer_comes_before_an_unfinished_one():
    """Also when the unfinished one is more probable; with nothing finished, the most probable unfinished one."""
    kinds = set()
    for seed in range(12):
        model = make_model(seed, sharpness=1.0)
        found = beam_search(model, SRC, 3)
        model.eval()
        for src, row in zip(SRC, found.tolist()):
            answer, finished_score = beam_by_hand(model, src, 3, 4, 0.6)
            assert row[:len(answer)] == answer
            kinds.add(finished_score is None)
    assert kinds == {True, False}


def test_beam_search_stops_early_only_when_no_open_answer_can_win():
    """Fewer steps than asked for where the best is settled, and the same answers as without stopping."""
    stopped = 0
    for seed in range(10):
        model = make_model(seed, sharpness=3.0)
        steps, one_step = [], model.decode_step
        model.decode_step = lambda tokens, state: steps.append(1) or one_step(tokens, state)
        found = beam_search(model, SRC[:1], 10)
        del model.decode_step
        model.eval()
        assert found[0].tolist() == beam_by_hand(model, SRC[0], 10, 4, 0.6)[0]
        stopped += len(steps) < 10
    assert stopped >= 3


def scripted_model(*rows):
    """A model that answers step n of a row with the probabilities row[n], {token: p}, whatever came before.

    ``model.calls`` has an entry for each step that was asked for.
    """
    model = make_model(0)
    one_step, model.calls = model.decode_step, []

    def decode_step(tokens, state):
        model.calls.append(1)
        logits = np.full_like(one_step(tokens, state), -1000.0)
        for beams, row in zip(np.split(logits, len(rows)), rows):
            for token, p in row[state.length - 1].items():
                beams[:, token] = np.log(p)
        return logits

    model.decode_step = decode_step
    return model


def test_the_search_goes_on_while_the_longest_answer_may_still_win():
    """p = 0.6 for ending at once, 0.4 for ending after twelve tokens: -0.51 against -0.92 / (17 / 6)^0.6 = -0.49."""
    model = scripted_model([{END: 0.6, 3: 0.4}] + [{3: 1.0}] * 10 + [{END: 1.0}])
    assert beam_search(model, SRC[:1], 12).tolist() == [[3] * 11 + [END]]
    assert beam_search(model, SRC[:1], 12, length_penalty=0.0).tolist() == [[END]]
    assert beam_search(model, SRC[:1], 11).tolist() == [[END]]                                   # no room for the other


def test_with_a_negative_length_penalty_the_next_step_is_the_best_chance():
    """alpha = -1 multiplies by (5 + n) / 6: log 0.45 = -0.80 at once against log 0.53 * 7 / 6 = -0.74 a step later."""
    model = scripted_model([{END: 0.45, 3: 0.53, 4: 0.02}, {END: 1.0}, {END: 1.0}, {END: 1.0}])
    assert beam_search(model, SRC[:1], 4, length_penalty=-1.0).tolist() == [[3, END]]
    model = scripted_model([{END: 0.45, 3: 0.50, 4: 0.05}])       # log 0.45 = -0.80 against log 0.50 * 7 / 6 = -0.81
    assert beam_search(model, SRC[:1], 4, length_penalty=-1.0).tolist() == [[END]] and len(model.calls) == 1


def test_of_two_equal_answers_the_shorter_wins_whatever_its_neighbours_still_do():
    """0.5 for ending at once and 0.5 for ending a step later, alpha = 0; the neighbour's search goes on for longer."""
    equal, longer = [{END: 0.5, 3: 0.5}, {END: 1.0}, {END: 1.0}], [{3: 1.0}, {3: 1.0}, {END: 1.0}]
    model = scripted_model(equal, longer)
    assert beam_search(model, SRC[:2], 4, 2, 0.0).tolist() == [[END, PAD, PAD], [3, 3, END]] and len(model.calls) == 3
    model = scripted_model(equal)
    assert beam_search(model, SRC[:1], 4, 2, 0.0).tolist() == [[END]] and len(model.calls) == 1


def test_the_search_of_a_batch_stops_when_that_of_each_row_is_settled():
    """Each open answer is measured against the best of its own row: log 0.4 beats log 0.2, but of another row."""
    model = scripted_model([{END: 0.2, 3: 0.16, 4: 0.16, 5: 0.16, 0: 0.16, 1: 0.16}], [{END: 0.6, 3: 0.4}])
    assert beam_search(model, SRC[:2], 4, 2, 0.0).tolist() == [[END], [END]] and len(model.calls) == 1


@pytest.mark.parametrize("decode", [greedy_decode, beam_search])
def test_a_single_step_is_a_length_too(decode):
    model = make_model(0)
    assert decode(model, SRC, 1).shape == (4, 1)


@pytest.mark.parametrize("decode", [greedy_decode, beam_search])
def test_decoding_that_is_broken_off_leaves_nothing_behind(decode):
    model = make_model(0)

    def interrupted(*args):
        raise KeyboardInterrupt

    model.decoder_layers[0].feed_forward.forward = interrupted
    with pytest.raises(KeyboardInterrupt):
        decode(model, SRC, 5)
    assert all(layer.training for layer in model.layers())
    for layer in model.layers():
        with pytest.raises(RuntimeError):
            layer.backward(np.zeros((4, 1, 16)))


def test_a_beam_wider_than_the_vocabulary_works():
    model = make_model(2)
    found = beam_search(model, SRC, 4, beam_size=50)
    model.eval()
    assert_answers(found, [beam_by_hand(model, src, 4, 50, 0.6)[0] for src in SRC], 4)


@pytest.mark.parametrize("k", [0, -1])
def test_a_beam_of_nothing_is_refused(k):
    with pytest.raises(ValueError, match=str(k)):
        beam_search(make_model(0), SRC, 5, beam_size=k)
