# ---
# jupyter:
#   jupytext:
#     formats: ipynb,.text.py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # From a dictionary to a trained Transformer
#
# One story, about an hour. It begins with a lookup in a dictionary and ends with a model that you have trained yourself
# and that reverses your own sequence. On the way every part of the Transformer is computed, drawn and checked. Nothing
# is redefined here: all of it is the code of `implementation.py` and `train_minimal.py`.
#
# Run the cells in order. Before you run one, guess what it will show. Section numbers are those of [the
# paper](https://arxiv.org/abs/1706.03762); longer explanations are in [paper_notes.md](paper_notes.md).

# %%
# %matplotlib inline
import math
import sys
from pathlib import Path

here = Path.cwd()                                    # this also works when started from a folder below the project
sys.path.insert(0, str(next(folder for folder in (here, *here.parents) if (folder / "implementation.py").exists())))

import numpy as np

from implementation import (EncoderBlock, MultiHeadAttention, PositionalEncoding, ScaledDotProductAttention,
                            TokenEmbedding, Transformer, create_causal_mask, create_padding_mask, softmax)
from train_minimal import (Adam, CrossEntropyLoss, compute_accuracy, generate_reverse_task_data, greedy_decode,
                           make_masks, shift_target)
from visualization import (plot_attention_weights, plot_masks, plot_multi_head_attention, plot_position_similarity,
                           plot_positional_encoding, plot_transformer_architecture, visualize_attention_scaling)

np.set_printoptions(precision=6, suppress=True, floatmode="fixed")

# %% [markdown]
# ## 1 A soft dictionary
#
# A dictionary compares your query with its keys, finds the one that is equal, and hands over its value. All or nothing.

# %%
dictionary = {"cat": 10.0, "sat": 20.0, "mat": 30.0}
print(dictionary["sat"])

# %% [markdown]
# Make everything a vector, and "equal" becomes "has a large dot product". Turn the dot products into weights that sum
# to 1 with a softmax, and the answer is a weighted average of *all* values. A query that is one of the keys gets
# (nearly) its value. A query between two keys gets a mixture, which no dictionary can give.

# %%
keys = np.array([[4.0, 0, 0], [0, 4, 0], [0, 0, 4]])                 # cat, sat, mat
values = np.array([[10.0], [20], [30]])
queries = np.array([[0.0, 4, 0], [0, 2, 2], [0, 0, 0]])              # "sat"; between "sat" and "mat"; nothing at all
weights = softmax(queries @ keys.T / math.sqrt(3))
print(weights)
print((weights @ values)[:, 0])
assert np.allclose(weights.sum(axis=1), 1)

# %%
plot_attention_weights(weights, ["cat", "sat", "mat"], ["sat", "sat or mat", "nothing"], "A soft dictionary")

# %% [markdown]
# That was equation 1 of the paper, all of it: softmax(Q Kᵀ / √d_k) V. The class computes the same, for a batch of
# sequences and several heads at once.

# %%
attention = ScaledDotProductAttention(dropout_p=0, dtype=np.float64)
assert np.allclose(attention(queries[None, None], keys[None, None], values[None, None])[0, 0], weights @ values)
print("the class and the three lines agree")

# %% [markdown]
# ## 2 A pronoun finds its noun
#
# "Ming gives the book back to Hong, because **she** has an exam." Suppose a query means "a person, female, not a
# thing", and keys say what each word is. Then *she* finds *Hong* in one step, however many words stand between.

# %%
words = ["Ming", "gives", "the", "book", "back", "to", "Hong", "because", "she"]
#                     person, female, thing
is_what = np.array([[1, -1, 0], [0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0], [0, 0, 0], [1, 1, 0], [0, 0, 0], [0, 1, 0]])
she_looks_for = np.array([[6, 6, -6.0]])
found = softmax(she_looks_for @ is_what.T / math.sqrt(3))
print(words[int(found.argmax())], f"gets {found.max():.6f}")
plot_attention_weights(found, words, ["she"], "Whom does she mean?")

# %% [markdown]
# In a trained model nobody writes such features. Each word's vector is multiplied by three learned matrices: `W_Q`
# makes the query (what am I looking for), `W_K` the key (what do I offer to be found by), `W_V` the value (what I hand
# over).
#
# ## 3 Why divide by √d_k
#
# The dot product of two random vectors of 64 numbers has variance 64: some scores are large. The softmax of large
# scores is nearly 0 or 1 everywhere, and there its gradient is nearly 0. Dividing by √64 brings the variance back to 1.

# %%
rng = np.random.default_rng(0)
q, k = rng.normal(size=(2, 10_000, 64))
dots = (q * k).sum(axis=1)
print(f"variance {dots.var():.1f}, divided by 8: {(dots / 8).var():.2f}")
assert 60 < dots.var() < 70
visualize_attention_scaling()

# %% [markdown]
# ## 4 Many heads
#
# One softmax can follow one pattern. So the model has several attentions side by side, each narrower. `split_heads`
# turns `(batch, seq, d_model)` into `(batch, heads, seq, d_k)`. A bare `reshape` would give that shape too, with the
# positions mixed up:

# %%
layer = MultiHeadAttention(d_model=4, n_heads=2, dropout_p=0, rng=0)
x = np.arange(8).reshape(1, 2, 4)
print("position 0 is", x[0, 0].tolist(), "and position 1 is", x[0, 1].tolist())
print("head 0 by split_heads:", layer.split_heads(x)[0, 0].tolist())
print("head 0 by reshape:    ", x.reshape(1, 2, 2, 2)[0, 0].tolist())
assert np.array_equal(layer.merge_heads(layer.split_heads(x)), x)

# %%
layer = MultiHeadAttention(d_model=32, n_heads=4, dropout_p=0, rng=1, dtype=np.float64)
x = np.random.default_rng(0).normal(size=(1, len(words), 32))
layer(x, x, x)
print(layer.get_attention_weights().shape, "= batch, heads, queries, keys")
plot_multi_head_attention(layer.get_attention_weights()[0], x_labels=words, y_labels=words,
                          title="Four heads before any training: four different views, no meaning yet")

# %% [markdown]
# ## 5 Two masks
#
# Sequences of a batch are padded to one length; padding must not be looked at. And the decoder must not look at words
# that it has yet to write. `True` means hidden, and hiding happens *before* the softmax: the score becomes minus
# infinity.

# %%
tokens = np.array([[5, 7, 4, 0, 0]])                                 # three tokens and two places of padding
both = create_causal_mask(5) | create_padding_mask(tokens)
print(both[0, 0].astype(int))
plot_masks(tokens[0], ["5", "7", "4", "<pad>", "<pad>"])

# %% [markdown]
# ## 6 Where am I?
#
# Shuffle the words, and attention's outputs are shuffled the same way: it does not know any order. So a pattern of
# waves is added to each word's vector, fast waves in the first dimensions and slow ones in the last.

# %%
order = [4, 0, 3, 1, 2]
x = np.random.default_rng(0).normal(size=(1, 5, 32))
assert np.allclose(layer(x, x, x)[:, order], layer(x[:, order], x[:, order], x[:, order]))
positions = PositionalEncoding(32, max_len=60, dropout_p=0, dtype=np.float64)
before, after = positions(x), positions(x[:, order])
assert not np.allclose(layer(before, before, before)[:, order], layer(after, after, after))
print("without positions: shuffled in, shuffled out; with positions: another sentence")
plot_positional_encoding(positions.pe, max_positions=60, dims_to_show=32)

# %%
print("the first numbers of position 1:", positions.pe[1, :4])
plot_position_similarity(positions.pe, max_positions=60)

# %% [markdown]
# Words are multiplied by √d_model before positions are added, or the waves would drown them (3.4):

# %%
embedding = TokenEmbedding(1000, 512, rng=0, dtype=np.float64)
print(f"a row of the table: {embedding.embedding.std():.3f}; times √512: {embedding(np.arange(1000)[None]).std():.3f}; "
      f"a wave: {math.sqrt(0.5):.3f}")

# %% [markdown]
# ## 7 A block
#
# Attention moves information between positions. A feed-forward layer then works on each position alone. Around both:
# add the input back in, then bring each position's vector to mean 0 and variance 1. The shape that goes in comes out,
# so blocks can be stacked.

# %%
block = EncoderBlock(d_model=32, n_heads=4, d_ff=128, dropout_p=0, rng=0, dtype=np.float64)
out = block(x)
print(x.shape, "->", out.shape)
print("parts:", [name for name, _ in block.children()])
assert np.allclose(out.mean(axis=-1), 0) and np.allclose(out.var(axis=-1), 1, atol=1e-3)

# %% [markdown]
# ## 8 A gradient, checked by hand
#
# Every layer has a `backward` that is written by hand: it takes the gradient of the loss at the layer's output and
# hands back that at its input. Is it right? Ask the definition: move one weight a little to either side, and see how
# much the loss changes.

# %%
layer = MultiHeadAttention(d_model=8, n_heads=2, dropout_p=0, rng=0, dtype=np.float64)
x, target = np.random.default_rng(1).normal(size=(2, 1, 5, 8))


def loss():
    return ((layer(x, x, x) - target) ** 2).sum()


loss()
layer.zero_grad()
layer.backward(2 * (layer(x, x, x) - target))                       # the derivative of the squared error
by_hand = layer.dW_Q[3, 5]

step = 1e-5
layer.W_Q[3, 5] += step
above = loss()
layer.W_Q[3, 5] -= 2 * step
below = loss()
layer.W_Q[3, 5] += step
print(f"backward says {by_hand:.6f}, the definition says {(above - below) / (2 * step):.6f}")
assert np.isclose(by_hand, (above - below) / (2 * step), rtol=1e-6)

# %% [markdown]
# That is one of the 256 weights of this layer. The tests do it for every array of every layer, along random directions,
# with masks and dropout on, and compare with PyTorch as well.
#
# ## 9 The whole model
#
# Two towers, an output matrix. Small enough to train while you wait:

# %%
SEQ_LEN, VOCAB = 6, 10                                               # ids 0, 1, 2 are padding, start, end


def new_model(seed):
    return Transformer(VOCAB, VOCAB, d_model=32, n_heads=4, n_encoder_layers=1, n_decoder_layers=1, d_ff=128,
                       dropout_p=0, max_len=20, rng=seed)


model = new_model(seed=0)
print(f"{model.num_parameters():,} weights")
plot_transformer_architecture(model)

# %% [markdown]
# The task: reverse a sequence. The decoder's input is the target shifted right by one (start, then the tokens), and the
# same tokens with an end are to come out.

# %%
src, tgt = generate_reverse_task_data(3, SEQ_LEN, VOCAB, rng=4)
tgt_in, tgt_out = shift_target(tgt)
for name, tokens in ("source ", src[0]), ("put in ", tgt_in[0]), ("get out", tgt_out[0]):
    print(name, tokens)

# %% [markdown]
# ## 10 Train it
#
# A thousand steps: forward, loss, backward, and Adam. The learning rate climbs for 100 steps, then falls to 0. The
# numbers of a training run differ in their last digits from machine to machine, so this cell prints none; it asserts
# the result: 500 sequences from another seed, decoded freely, every token of every one right. (The short ones it has
# met in training.)

# %%
STEPS, WARMUP, PEAK = 1000, 100, 0.005


def train(model, causal=True):
    rng, loss, optimizer = np.random.default_rng(0), CrossEntropyLoss(), Adam(model)
    for step in range(1, STEPS + 1):
        src, tgt = generate_reverse_task_data(64, SEQ_LEN, VOCAB, rng=rng)
        tgt_in, tgt_out = shift_target(tgt)
        src_mask, tgt_mask = make_masks(src, tgt_in)
        if not causal:
            tgt_mask = create_padding_mask(tgt_in)
        loss(model(src, tgt_in, src_mask, tgt_mask), tgt_out)
        model.zero_grad()
        model.backward(loss.backward())
        optimizer.step(PEAK * min(step / WARMUP, (STEPS - step) / (STEPS - WARMUP)))
    model.eval()


def exact_match(model):
    """The share of 500 sequences from another seed that are decoded without a single mistake."""
    src, tgt = generate_reverse_task_data(500, SEQ_LEN, VOCAB, rng=1_000_000)
    decoded = np.zeros_like(tgt[:, 1:])
    answer = greedy_decode(model, src, SEQ_LEN + 1)
    decoded[:, :answer.shape[1]] = answer
    return (decoded == tgt[:, 1:]).all(axis=1).mean()


train(model)
assert exact_match(model) == 1.0
print("500 of 500 sequences reversed without a mistake")

# %% [markdown]
# ## 11 Your own sequence
#
# Change the numbers (3 to 9, at most six of them) and run the cell again.

# %%
mine = [5, 3, 9, 4, 7]
source = np.array([[*mine, 2]])
answer = greedy_decode(model, source, len(mine) + 1)[0]
print(mine, "->", answer[:-1].tolist())
assert answer.tolist() == [*reversed(mine), 2]

# %% [markdown]
# ## 12 Look inside
#
# The decoder's attention to the source, one row for each token that it writes. To write the first token it has to find
# the *last* of the source, and so on backwards. Which head does it, and how sharply, differs from run to run; that
# together they go from the end to the beginning is what the cell asserts.

# %%
written = np.array([[1, *answer[:-1]]])
model(source, written, *make_masks(source, written))
cross = model.decoder_layers[0].cross_attention.get_attention_weights()[0]
centre = (cross.mean(axis=0) @ np.arange(len(mine) + 1))              # where the heads look on average, row by row
assert centre[0] > centre[len(mine) - 1] + 1                         # near the end for the first token, then forward
plot_multi_head_attention(cross, x_labels=[*map(str, mine), "<end>"], y_labels=["<start>", *map(str, answer[:-1])],
                          title="Where the decoder looks in the source")

# %% [markdown]
# ## 13 The same model with the causal mask left out
#
# One line less: the decoder may look at all of its input, the answer included. Judge it the usual way, given the right
# tokens so far (*teacher forcing*), and it seems as good as the other. Let it write on its own, and it fails, because
# the answer it used to peep at is not there yet.

# %%
cheat = new_model(seed=0)
train(cheat, causal=False)
src, tgt = generate_reverse_task_data(500, SEQ_LEN, VOCAB, rng=1_000_000)
tgt_in, tgt_out = shift_target(tgt)
teacher_forced = compute_accuracy(cheat(src, tgt_in, create_padding_mask(src), create_padding_mask(tgt_in)), tgt_out)
assert teacher_forced > 0.97 and exact_match(cheat) < 0.2
print("given the right tokens: more than 97 % right; on its own: fewer than 20 % of the sequences")

# %% [markdown]
# This is why `train_minimal.py` decodes freely, and on sequences really held out: here the short ones were seen in
# training. A falling loss says little.
#
# ## 14 Where to go now
#
# - Write these layers yourself: [exercises](exercises/README.md).
# - Read the paper with [the notes](paper_notes.md) beside it.
# - Train the larger model: `python train_minimal.py --task reverse`, and draw all of its heads:
#   `python visualization.py`.
# - Switch parts of a trained model off in your browser: `visualizations/transformer_interactive.html`.
