"""Write tests/golden/*.npz: what PyTorch's own layers answer for weights and inputs kept in the same file.

    python tests/make_golden.py

test_golden.py compares with NumPy alone; test_torch.py checks that the files are what this script would write.
"""

import os

import numpy as np
import torch

import torch_bridge
from gradient_check import shake
from test_golden import B, GOLDEN, H, LAYERS, Decoder, Encoder


def torch_answer(layer, inputs, tokens, masks, dout):
    """PyTorch's output, gradients of the inputs and {our name of a weight: its gradient}."""
    given = [torch.tensor(x, requires_grad=True) for x in inputs]
    if isinstance(layer, (Encoder, Decoder)):
        blocks = dict(layer.children())
        modules = {name: (torch_bridge.torch_encoder_block if isinstance(layer, Encoder)
                          else torch_bridge.torch_decoder_block)(block) for name, block in blocks.items()}
        x, *memory = given
        attn_masks = [torch_bridge.attn_mask(mask, B, H, x.shape[1]) for mask in masks]
        for module in modules.values():
            x = module(x, *memory, *attn_masks)
        x.backward(torch.tensor(dout))
        gradients = {f"{name}.{key}": gradient for name, module in modules.items()
                     for key, gradient in torch_bridge.torch_gradients(module, blocks[name]).items()}
    else:
        module = torch_bridge.TorchTransformer(layer)
        x = module(*tokens, *masks)
        x.backward(torch.tensor(dout))
        gradients = torch_bridge.torch_gradients(module, layer)
    return x.detach().numpy(), [tensor.grad.numpy() for tensor in given], gradients


def golden_arrays(name):
    """Everything in tests/golden/<name>.npz, by entry."""
    make, shapes, tokens, cases = LAYERS[name]
    rng = np.random.default_rng(len(name))
    layer = shake(make(), rng)
    inputs = [rng.normal(size=shape) for shape in shapes]
    arrays = {f"weights/{key}": weight for key, weight in layer.named_parameters().items()}
    arrays |= {f"inputs/{i}": x for i, x in enumerate(inputs)}
    for case, masks in cases.items():
        dout = rng.normal(size=layer(*inputs, *tokens, *masks).shape)
        output, dinputs, gradients = torch_answer(layer, inputs, tokens, masks, dout)
        arrays |= {f"{case}/dout": dout, f"{case}/output": output}
        arrays |= {f"{case}/dinputs/{i}": dx for i, dx in enumerate(dinputs)}
        arrays |= {f"{case}/gradients/{key}": gradient for key, gradient in gradients.items()}
    return arrays


def main():
    GOLDEN.mkdir(exist_ok=True)
    for name in LAYERS:
        unfinished = GOLDEN / f"{name}.unfinished.npz"
        np.savez_compressed(unfinished, **golden_arrays(name))
        os.replace(unfinished, GOLDEN / f"{name}.npz")
        print(f"{name}.npz: {(GOLDEN / f'{name}.npz').stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
