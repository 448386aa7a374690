"""The same training step in PyTorch eager: torch.nn.Transformer with embeddings, started from the same weights."""

import math
import sys
from pathlib import Path

import torch
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from torch_bridge import TorchTransformer, as_ours, torch_name                                       # noqa: E402

from steps import DROPOUT, RATE                                                                      # noqa: E402


class TorchModel(TorchTransformer):
    """torch.nn.Transformer as its documentation has it: a causal mask, padding masks, its own places of dropout."""

    def __init__(self, model, dropout=DROPOUT):
        super().__init__(model)
        for module in self.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = dropout
            elif isinstance(module, torch.nn.MultiheadAttention):
                module.dropout = dropout
        self.transformer.encoder.use_nested_tensor = False               # a prototype, for padding, that warns
        self.dropout = torch.nn.Dropout(dropout)
        self.positions = torch.from_numpy(model.positional_encoding.pe)

    def embed(self, table, tokens):
        return self.dropout(table(tokens) * math.sqrt(self.d_model) + self.positions[:tokens.shape[1]])

    def encode(self, src):
        return self.transformer.encoder(self.embed(self.src_embedding, src), src_key_padding_mask=src == 0)

    def decode(self, tgt, encoder_output, src):
        return self.transformer.decoder(
            self.embed(self.tgt_embedding, tgt), encoder_output, tgt_mask=causal_mask(tgt.shape[1]),
            tgt_key_padding_mask=tgt == 0, memory_key_padding_mask=src == 0)

    def forward(self, src, tgt):
        return self.output_projection(self.decode(tgt, self.encode(src), src))


def causal_mask(length):
    return torch.ones(length, length, dtype=torch.bool).triu(1)


def adam(model, **kind):
    return torch.optim.Adam(model.parameters(), RATE, betas=(0.9, 0.98), eps=1e-9, **kind)


class TorchStep:
    """A training step in parts, as steps.OurStep; the update with PyTorch's default Adam or with its fused one."""

    def __init__(self, ours):
        self.model = TorchModel(ours.model)
        self.src, self.tgt_in, self.tgt_out = map(torch.from_numpy, (ours.src, ours.tgt_in, ours.tgt_out))
        self.default_adam, self.fused_adam = adam(self.model), adam(self.model, fused=True)

    def gradients(self):
        logits = self.model(self.src, self.tgt_in)
        loss = functional.cross_entropy(logits.flatten(0, 1), self.tgt_out.flatten(), ignore_index=0)
        self.model.zero_grad()
        loss.backward()

    def update(self):
        self.default_adam.step()

    def fused_update(self):
        self.fused_adam.step()

    def __call__(self):
        self.gradients()
        self.update()


class TorchInPlace:
    """A TorchModel that a training loop written for our model can drive: NumPy in, NumPy out, gradients by autograd.

    The biases of its attentions, which our model does not have, stay at zero.
    """

    def __init__(self, model):
        self.names = list(model.named_parameters())
        self.torch_model = TorchModel(model, dropout=model.config["dropout_p"])
        for name, parameter in self.torch_model.named_parameters():
            parameter.requires_grad_(not name.endswith(("in_proj_bias", "out_proj.bias")))

    def __call__(self, src, tgt, src_mask, tgt_mask):
        self._logits = self.torch_model(torch.from_numpy(src), torch.from_numpy(tgt))
        return self._logits.detach().numpy()

    def named_parameters(self):
        """PyTorch's live weights under our names and in our layout."""
        theirs = dict(self.torch_model.named_parameters())
        return {name: as_ours(name, theirs[torch_name(name)].detach()).numpy() for name in self.names}

    def zero_grad(self):
        self.torch_model.zero_grad()

    def backward(self, dlogits):
        self._logits.backward(torch.from_numpy(dlogits))
        del self._logits


class TorchAdam:
    """PyTorch's default Adam with the learning rate given at each step."""

    def __init__(self, in_place):
        self.adam = adam(in_place.torch_model)

    def step(self, learning_rate):
        self.adam.param_groups[0]["lr"] = learning_rate
        self.adam.step()


@torch.no_grad()
def greedy_recomputing(model, src, max_len):
    """Greedy decoding with torch.nn.Transformer, which keeps no keys and values: each step computes all positions."""
    model.eval()
    src = torch.from_numpy(src)
    encoder_output = model.encode(src)
    tokens = torch.ones(len(src), 1, dtype=torch.long)
    for _ in range(max_len):
        logits = model.output_projection(model.decode(tokens, encoder_output, src)[:, -1])
        tokens = torch.cat([tokens, logits.argmax(dim=-1, keepdim=True)], dim=1)
    return tokens[:, 1:].numpy()
