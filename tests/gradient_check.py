"""Is backward the derivative of forward? One random direction per array answers for all of its entries at once.

With L = sum(dout * forward(...)), the change of L along a direction u must be sum(gradient * u). The weak version of
this test (dout of ones, fresh weights, one sequence, no dropout) passes on many wrong gradients, so the callers shake
the weights, draw dout at random and leave dropout on; the same random numbers are replayed for every forward.
"""

import numpy as np

STEP = 1e-6


def shake(layer, rng, size=0.3):
    """Move every weight off the values it starts with: gains of 1, biases of 0. Returns the layer."""
    for weight in layer.named_parameters().values():
        weight += rng.normal(0, size, weight.shape)
    return layer


class Replay:
    """Calls ``layer`` again and again with the same random numbers."""

    def __init__(self, layer):
        self.layer = layer
        self.generators = [part.rng.bit_generator for part in layer.layers() if hasattr(part, "rng")]
        self.states = [generator.state for generator in self.generators]

    def __call__(self, *args):
        for generator, state in zip(self.generators, self.states):
            generator.state = state
        return self.layer(*args)


def gradient_errors(layer, inputs, others, rng):
    """The relative error of each gradient that ``layer.backward`` gives, by name.

    ``inputs`` are the floating-point arrays that forward takes, named by their number here; ``others`` are the masks
    and token ids that follow them. Every weight is named as in ``named_parameters``.
    """
    arrays = dict(enumerate(inputs)) | layer.named_parameters()
    for name, array in arrays.items():
        if array.dtype != np.float64:
            raise TypeError(f"differences of {array.dtype} numbers prove nothing: {name} must be float64")

    forward = Replay(layer)
    dout = rng.normal(size=forward(*inputs, *others).shape)
    layer.zero_grad()
    returned = layer.backward(dout)
    if not isinstance(returned, tuple):
        returned = () if returned is None else (returned,)
    assert len(returned) == len(inputs), f"backward returned {len(returned)} gradients for {len(inputs)} inputs"
    gradients = dict(enumerate(returned)) | layer.named_gradients()
    assert gradients.keys() == arrays.keys()

    errors = {}
    for name, array in arrays.items():
        gradient = gradients[name].copy()
        assert gradient.shape == array.shape
        # Half of the direction is the gradient's own, so that the slope along it is never small by chance.
        direction = unit(rng.normal(size=array.shape)) + unit(gradient)
        expected = np.sum(gradient * direction)

        before, ends = array.copy(), []
        for step in (STEP, -STEP):
            array[...] = before + step * direction
            ends.append(np.sum(dout * forward(*inputs, *others)))
        array[...] = before
        measured = (ends[0] - ends[1]) / (2 * STEP)
        errors[name] = abs(measured - expected) / max(abs(measured), abs(expected), 1e-300)
    return errors


def unit(x):
    length = np.linalg.norm(x)
    return x / length if length > 0 else x
