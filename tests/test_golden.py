"""Forward and every gradient equal what PyTorch wrote down with tests/make_golden.py, below 1e-9. NumPy is enough.

A file of tests/golden holds weights and inputs, and for each case (a way of masking) the masks, the upstream gradient,
PyTorch's output and its gradient of every input and weight.
"""

from pathlib import Path

import numpy as np
import pytest

from implementation import (DecoderBlock, EncoderBlock, Layer, Transformer, create_causal_mask, create_padding_mask)

GOLDEN = Path(__file__).with_name("golden")
TOLERANCE = 1e-9

B, T, S, D, H, F, V, W = 3, 5, 7, 8, 2, 9, 11, 13
SRC = np.array([[3, 5, 3, 3, 2, 0, 0], [4, 4, 9, 10, 1, 4, 2], [7, 0, 0, 0, 0, 0, 0]])
TGT = np.array([[1, 12, 3, 12, 2], [1, 5, 2, 0, 0], [1, 7, 7, 7, 0]])
PADDING, CAUSAL = create_padding_mask(SRC), create_causal_mask(T)
TGT_MASK = CAUSAL | create_padding_mask(TGT)


class Encoder(Layer):
    """A stack of encoder blocks by itself."""

    def __init__(self):
        super().__init__(np.float64)
        self.encoder_layers = [EncoderBlock(D, H, F, 0.1, rng=i, dtype=np.float64) for i in range(2)]

    def forward(self, x, mask=None):
        for block in self.encoder_layers:
            x = block(x, mask)
        return x

    def backward(self, dout):
        for block in reversed(self.encoder_layers):
            dout = block.backward(dout)
        return dout


class Decoder(Layer):
    """A stack of decoder blocks by itself."""

    def __init__(self):
        super().__init__(np.float64)
        self.decoder_layers = [DecoderBlock(D, H, F, 0.1, rng=i, dtype=np.float64) for i in range(2)]

    def forward(self, x, encoder_output, self_mask=None, cross_mask=None):
        for block in self.decoder_layers:
            x = block(x, encoder_output, self_mask, cross_mask)
        return x

    def backward(self, dout):
        dencoder_output = 0
        for block in reversed(self.decoder_layers):
            dout, dread = block.backward(dout)
            dencoder_output = dencoder_output + dread
        return dout, dencoder_output


def model(src_vocab_size, **options):
    return Transformer(src_vocab_size, W, D, H, 2, 2, F, 0.1, S, rng=0, dtype=np.float64, **options)


# file: (a new layer, shapes of its float inputs, its token inputs, {case: masks})
LAYERS = {
    "encoder": (Encoder, [(B, S, D)], [],
                {"padded": [PADDING], "padded and causal": [PADDING | create_causal_mask(S)]}),
    "decoder": (Decoder, [(B, T, D), (B, S, D)], [],
                {"causal": [CAUSAL], "padded and causal": [TGT_MASK, PADDING]}),
    "transformer": (lambda: model(V), [], [SRC, TGT],
                    {"causal": [None, CAUSAL], "padded and causal": [PADDING, TGT_MASK]}),
    "transformer_tied": (lambda: model(W, tie_embeddings=True), [], [SRC, TGT],
                         {"padded and causal": [PADDING, TGT_MASK]}),
}
CASES = [(name, case) for name, (*_, cases) in reversed(LAYERS.items()) for case in cases]


@pytest.mark.mutants
@pytest.mark.parametrize("name, case", CASES)
def test_forward_and_every_gradient_are_those_that_pytorch_wrote(name, case):
    make, shapes, tokens, cases = LAYERS[name]
    layer = make()
    layer.eval()
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as golden:
        for key, weight in layer.named_parameters().items():
            weight[...] = golden[f"weights/{key}"]
        inputs = [golden[f"inputs/{i}"] for i in range(len(shapes))]
        out = layer(*inputs, *tokens, *cases[case])
        np.testing.assert_allclose(out, golden[f"{case}/output"], rtol=0, atol=TOLERANCE)

        returned = layer.backward(golden[f"{case}/dout"])
        returned = returned if isinstance(returned, tuple) else [returned] * len(inputs)
        for i, dx in enumerate(returned):
            np.testing.assert_allclose(dx, golden[f"{case}/dinputs/{i}"], rtol=0, atol=TOLERANCE)
        for key, gradient in layer.named_gradients().items():
            np.testing.assert_allclose(gradient, golden[f"{case}/gradients/{key}"], rtol=0, atol=TOLERANCE, err_msg=key)
        compared = {key for key in golden if key.startswith(f"{case}/gradients/")}
    assert len(compared) == len(layer.named_parameters())


@pytest.mark.parametrize("name", LAYERS)
def test_the_golden_numbers_are_not_trivial(name):
    """Every weight's gradient is there and matters, in every case."""
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as golden:
        for key in golden:
            assert np.isfinite(golden[key]).all()
            if "/gradients/" in key or "/output" in key:
                assert np.abs(golden[key]).max() > 1e-3, key
