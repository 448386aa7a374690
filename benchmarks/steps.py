"""One training step of our model at the sizes that are measured."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from implementation import Transformer                                                               # noqa: E402
from train_minimal import Adam, CrossEntropyLoss, make_masks                                         # noqa: E402

DROPOUT = 0.1
RATE = 1e-4


@dataclass(frozen=True)
class Size:
    """A model with n_layers in each stack, and the batch that it is trained on."""

    d_model: int
    n_heads: int
    n_layers: int
    d_ff: int
    batch: int
    length: int
    vocab: int

    def model_sizes(self):
        """The arguments of Transformer up to d_ff."""
        return self.vocab, self.vocab, self.d_model, self.n_heads, self.n_layers, self.n_layers, self.d_ff

    def random_batch(self, seed=0):
        """src, tgt_in and tgt_out, (batch, length) each, without padding."""
        return np.random.default_rng(seed).integers(3, self.vocab, (3, self.batch, self.length))


SIZES = {
    "teaching": Size(64, 4, 2, 256, 32, 10, 12),
    "d128": Size(128, 8, 2, 512, 32, 10, 100),
    "middle": Size(256, 8, 3, 1024, 16, 32, 1000),
    "base": Size(512, 8, 6, 2048, 8, 32, 1000),
    "base_37k": Size(512, 8, 6, 2048, 8, 32, 37_000),
}


class OurStep:
    """A training step in two parts: gradients() is forward, loss and backward; update() is Adam."""

    def __init__(self, size, max_len=None):
        self.src, self.tgt_in, self.tgt_out = size.random_batch()
        self.model = Transformer(*size.model_sizes(), DROPOUT, max_len or size.length, rng=0)
        self.loss, self.adam = CrossEntropyLoss(), Adam(self.model)

    def gradients(self):
        logits = self.model(self.src, self.tgt_in, *make_masks(self.src, self.tgt_in))
        self.loss(logits, self.tgt_out)
        self.model.zero_grad()
        self.model.backward(self.loss.backward())

    def update(self):
        self.adam.step(RATE)

    def __call__(self):
        self.gradients()
        self.update()
