"""Load these weights into torch.nn.Transformer and get the same logits and gradients.

    python tests/torch_bridge.py checkpoints/copy.npz

prints the largest differences for a trained checkpoint, in float64. The functions are for tests and for reuse: PyTorch
calls by other names, transposes and stacks what we keep apart, and its masks come in two polarities:

    W_Q, W_K, W_V (in, out) side by side        in_proj_weight (3 out, in), one on top of the other
    W_O, W1, W2 (in, out)                       out_proj.weight, linear1.weight, linear2.weight (out, in)
    True = hidden, as here                      attn_mask and key_padding_mask of nn.Transformer
    True = takes part                           attn_mask of F.scaled_dot_product_attention
"""

import math
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

try:
    import torch
except ModuleNotFoundError:
    if __name__ != "__main__":
        raise
    print("PyTorch is missing: pip install torch (its CPU build is enough)", file=sys.stderr)
    sys.exit(2)

from implementation import Transformer, create_causal_mask, create_padding_mask                      # noqa: E402
from train_minimal import load_checkpoint                                                            # noqa: E402

# Our name -> PyTorch's. W_Q, W_K and W_V are the thirds of one array there.
INWARD = ("W_Q", "W_K", "W_V")
PARTS = {"encoder_layers": "transformer.encoder.layers", "decoder_layers": "transformer.decoder.layers",
         "self_attention": "self_attn", "cross_attention": "multihead_attn"}
WEIGHTS = {"W_Q": "in_proj_weight", "W_K": "in_proj_weight", "W_V": "in_proj_weight", "W_O": "out_proj.weight",
           "W1": "linear1.weight", "b1": "linear1.bias", "W2": "linear2.weight", "b2": "linear2.bias",
           "gamma": "weight", "beta": "bias", "embedding": "weight", "output_projection": "output_projection.weight"}
TRANSPOSED = (*INWARD, "W_O", "W1", "W2", "output_projection")


def torch_name(name):
    """Our dotted name of a weight in an attention, a block or a model -> PyTorch's."""
    *path, last = name.split(".")
    return ".".join([PARTS.get(part, part) for part in path if part != "feed_forward"] + [WEIGHTS[last]])


def as_ours(name, array):
    """The part of PyTorch's array (a weight or its gradient) that is our weight ``name``, laid out as ours."""
    last = name.split(".")[-1]
    if last in INWARD:
        array = array.chunk(3)[INWARD.index(last)]
    return array.T if last in TRANSPOSED else array


def load_weights(module, layer):
    """Copy the weights of our ``layer`` into its PyTorch counterpart. Biases that we do not have become zero."""
    theirs = dict(module.named_parameters())
    with torch.no_grad():
        for name, parameter in theirs.items():
            if name.endswith(("in_proj_bias", "out_proj.bias")):
                parameter.zero_()
        for name, weight in layer.named_parameters().items():
            as_ours(name, theirs[torch_name(name)]).copy_(torch.from_numpy(weight))
    return module


def torch_gradients(module, layer):
    """PyTorch's gradients after a backward there, under our names and in our layout."""
    theirs = dict(module.named_parameters())
    return {name: as_ours(name, theirs[torch_name(name)].grad).numpy() for name in layer.named_parameters()}


def dtype_of(layer):
    return {"float32": torch.float32, "float64": torch.float64}[layer.dtype.name]


def attn_mask(mask, batch, n_heads, queries):
    """Our mask, broadcast over heads and queries, as the attn_mask of nn.Transformer: (batch heads, queries, keys)."""
    shape = batch, n_heads, queries, mask.shape[-1]
    return torch.as_tensor(np.broadcast_to(mask, shape).reshape(-1, *shape[2:]).copy())


def torch_attention(layer):
    """nn.MultiheadAttention with the weights of our MultiHeadAttention, without dropout."""
    # bias=True and zeros: with bias=False other PyTorch layers that take the option drop more than attention's biases.
    module = torch.nn.MultiheadAttention(len(layer.W_O), layer.n_heads, dropout=0.0, bias=True, batch_first=True,
                                         dtype=dtype_of(layer))
    return load_weights(module, layer)


def block_sizes(block):
    d_model, d_ff = block.feed_forward.W1.shape
    return dict(d_model=d_model, nhead=block.self_attention.n_heads, dim_feedforward=d_ff, dropout=0.0,
                activation="relu", layer_norm_eps=block.norm1.eps, batch_first=True, norm_first=False,
                dtype=dtype_of(block))


def torch_encoder_block(block):
    return load_weights(torch.nn.TransformerEncoderLayer(**block_sizes(block)), block)


def torch_decoder_block(block):
    return load_weights(torch.nn.TransformerDecoderLayer(**block_sizes(block)), block)


def sinusoids(length, d_model, dtype):
    """The positions of section 3.5, written out once more, one entry at a time."""
    table = torch.empty(length, d_model, dtype=dtype)
    for position in range(length):
        for column in range(d_model):
            angle = position / 10000 ** (column // 2 * 2 / d_model)
            table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


class TorchTransformer(torch.nn.Module):
    """Figure 1 around torch.nn.Transformer, with the weights of our model and without dropout.

    Masks as in our own Transformer: source (B, 1, 1, S), target (B or 1, 1, T, T), True = hidden.
    """

    def __init__(self, model):
        super().__init__()
        sizes, dtype = block_sizes(model.encoder_layers[0]), dtype_of(model)
        self.d_model, self.n_heads = sizes["d_model"], sizes["nhead"]
        source, target = (len(table.embedding) for table in (model.src_embedding, model.tgt_embedding))
        self.src_embedding = torch.nn.Embedding(source, self.d_model, dtype=dtype)
        self.tgt_embedding = torch.nn.Embedding(target, self.d_model, dtype=dtype)
        self.transformer = torch.nn.Transformer(num_encoder_layers=len(model.encoder_layers),
                                                num_decoder_layers=len(model.decoder_layers), **sizes)
        # By default each stack ends in one more layer norm, which the paper does not have.
        self.transformer.encoder.norm = self.transformer.decoder.norm = None
        self.output_projection = torch.nn.Linear(self.d_model, target, bias=False, dtype=dtype)
        if model.src_embedding.embedding is model.tgt_embedding.embedding:
            self.tgt_embedding.weight = self.output_projection.weight = self.src_embedding.weight
        load_weights(self, model)

    def embed(self, table, tokens):
        vectors = table(tokens) * math.sqrt(self.d_model)
        return vectors + sinusoids(tokens.shape[1], self.d_model, vectors.dtype)

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        src, tgt = torch.as_tensor(src), torch.as_tensor(tgt)
        padding = None if src_mask is None else torch.as_tensor(src_mask)[:, 0, 0, :]
        if tgt_mask is not None:
            tgt_mask = attn_mask(tgt_mask, len(tgt), self.n_heads, tgt.shape[1])
        decoder_output = self.transformer(self.embed(self.src_embedding, src), self.embed(self.tgt_embedding, tgt),
                                          tgt_mask=tgt_mask, src_key_padding_mask=padding,
                                          memory_key_padding_mask=padding)
        return self.output_projection(decoder_output)


def largest_differences(model, src, tgt, src_mask, tgt_mask, dlogits):
    """Between our model in eval mode and PyTorch with its weights: (of the logits, {weight: of its gradient})."""
    model.eval()
    model.zero_grad()
    logits = model(src, tgt, src_mask, tgt_mask)
    model.backward(dlogits)

    theirs = TorchTransformer(model)
    torch_logits = theirs(src, tgt, src_mask, tgt_mask)
    torch_logits.backward(torch.as_tensor(dlogits))
    gradients = torch_gradients(theirs, model)
    return (np.abs(logits - torch_logits.detach().numpy()).max(),
            {name: np.abs(gradient - gradients[name]).max() for name, gradient in model.named_gradients().items()})


def main(argv):
    if argv in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    try:
        path, = argv
        trained = load_checkpoint(path).model
    except ValueError as error:                                                    # a CheckpointError is one, too
        print(error if len(argv) == 1 else "usage: python tests/torch_bridge.py CHECKPOINT", file=sys.stderr)
        return 2
    model = Transformer(**trained.config, dtype=np.float64)
    for name, weight in trained.named_parameters().items():
        model.named_parameters()[name][...] = weight

    rng = np.random.default_rng(0)
    vocab_size, longest = len(model.src_embedding.embedding), len(model.positional_encoding.pe) - 1
    B, S = 16, min(longest, 12)
    src, tgt = rng.integers(3, vocab_size, (2, B, S))
    for tokens in (src, tgt):                                           # padded to one length, at least one token each
        tokens[np.arange(S) >= rng.integers(1, S + 1, (B, 1))] = 0
    src_mask, tgt_mask = create_padding_mask(src), create_padding_mask(tgt) | create_causal_mask(S)
    logits, gradients = largest_differences(model, src, tgt, src_mask, tgt_mask,
                                            rng.normal(size=(B, S, len(model.tgt_embedding.embedding))))
    worst = max(gradients, key=gradients.get)
    print(f"{model.num_parameters():,} weights of {path} in torch.nn.Transformer {torch.__version__}, float64")
    print(f"largest difference of the logits:     {logits:.1e}")
    print(f"largest difference of the gradients:  {gradients[worst]:.1e} ({worst}; {len(gradients)} arrays compared)")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
