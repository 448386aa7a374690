"""The parameter counts of Table 3 for every row that the constructor can express.

    python tests/table3.py

prints them beside the paper's figures. Rows B are missing: there the width of a head is not d_model / h. Every row
shares one vocabulary of about 37,000 between source, target and output (sections 3.4 and 5.1).
"""

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from implementation import Transformer                                                               # noqa: E402

VOCABULARY = 37_000
BASE = dict(N=6, d_model=512, d_ff=2048, h=8)

# (row, what differs from the base model, the paper's figure in millions or None where it repeats the base's)
ROWS = [
    ("base", {}, 65),
    ("A, h=1", dict(h=1), None),
    ("A, h=4", dict(h=4), None),
    ("A, h=16", dict(h=16), None),
    ("A, h=32", dict(h=32), None),
    ("C, N=2", dict(N=2), 36),
    ("C, N=4", dict(N=4), 50),
    ("C, N=8", dict(N=8), 80),
    ("C, d_model=256", dict(d_model=256), 28),
    ("C, d_model=1024", dict(d_model=1024), 168),
    ("C, d_ff=1024", dict(d_ff=1024), 53),
    ("C, d_ff=4096", dict(d_ff=4096), 90),
    ("big", dict(d_model=1024, d_ff=4096, h=16), 213),
]


class NoDraws(np.random.Generator):
    """A generator whose arrays are one zero seen many times: weights that are counted need not be drawn."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def uniform(self, low=0.0, high=1.0, size=None):
        return np.broadcast_to(0.0, size)

    def normal(self, loc=0.0, scale=1.0, size=None):
        return np.broadcast_to(0.0, size)


def counted(N, d_model, d_ff, h):
    """num_parameters() of the model with these sizes. One byte a weight: only their number matters."""
    model = Transformer(VOCABULARY, VOCABULARY, d_model, h, N, N, d_ff, max_len=1, tie_embeddings=True,
                        rng=NoDraws(), dtype=np.int8)
    return model.num_parameters()


def written_from_the_paper(N, d_model, d_ff, h):
    """The same number from the sections' formulas. h does not enter: h heads of d_model / h make up d_model."""
    attention = 4 * d_model * d_model                                       # 3.2.2: W_Q, W_K, W_V and W_O, no biases
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model         # 3.3: W1, b1, W2, b2
    norm = 2 * d_model                                                      # 3.1: a gain and a bias
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return VOCABULARY * d_model + N * (encoder_layer + decoder_layer)       # 3.4: one matrix for all three uses


def main():
    print("| row of Table 3 | ours, million | the paper, million | difference |")
    print("| --- | ---: | ---: | ---: |")
    for row, change, paper in ROWS:
        ours, paper = counted(**BASE | change) / 1e6, paper or 65
        print(f"| {row} | {ours:.1f} | {paper} | {ours - paper:+.1f} |")


if __name__ == "__main__":
    main()
