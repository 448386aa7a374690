"""NumPy's side of the interactive page: the model with parts switched off, and every tensor that a pass makes.

``reference(model, settings, tokens, switches)`` answers what ``window.transformer.run`` answers. A switched-off part
is a subclass of the layer it is taken from, so all that stays on is implementation.py itself.
"""

import math

import numpy as np

from implementation import AddNorm, LayerNorm, PositionalEncoding, ScaledDotProductAttention, Transformer, softmax
from train_minimal import END, PAD, START, TASKS, make_masks, pack

SWITCHES = ("scale", "causalMask", "paddingMask", "positions", "residuals", "layerNorm")


def double_precision(model, settings):
    """The same weights in a float64 model, in eval mode."""
    sizes = {name: settings[name] for name in ("d_model", "n_heads")}
    double = Transformer(settings["vocab_size"], settings["vocab_size"], **sizes,
                         n_encoder_layers=settings["n_layers"], n_decoder_layers=settings["n_layers"],
                         d_ff=model.encoder_layers[0].feed_forward.W1.shape[1], dropout_p=0.0,
                         max_len=settings["seq_len"] + 2, dtype=np.float64)
    for name, weight in model.named_parameters().items():
        double.named_parameters()[name][...] = weight
    double.eval()
    return double


# ------------------------------------------------------------------------------------- layers with a part taken away


class SwitchedAttention(ScaledDotProductAttention):
    """Without the scale when ``scaled`` is False; zeros from the heads in ``heads_off``."""

    scaled, heads_off = True, ()

    def unscale(self, Q):
        return Q if self.scaled else Q * math.sqrt(Q.shape[-1])

    def silence(self, heads):
        heads = heads.copy()
        heads[:, list(self.heads_off)] = 0
        return heads

    def forward(self, Q, K, V, mask=None):
        out = self.silence(super().forward(self.unscale(Q), K, V, mask))
        self.seen = {"Q": Q, "K": K, "V": V, "heads": out}
        return out

    def backward(self, dout):
        dQ, dK, dV = super().backward(self.silence(dout))
        return self.unscale(dQ), dK, dV


class SwitchedAddNorm(AddNorm):
    """LayerNorm(x + sublayer) without the x + when ``residual`` is False, without the norm when ``normed`` is."""

    residual, normed = True, True

    def forward(self, x, sublayer_output):
        self.seen = {"sum": x + sublayer_output if self.residual else sublayer_output}
        out = LayerNorm.forward(self, self.seen["sum"]) if self.normed else self.seen["sum"]
        self.seen["output"] = out
        return out

    def backward(self, dout):
        dsum = LayerNorm.backward(self, dout) if self.normed else dout
        return (dsum if self.residual else np.zeros_like(dsum)), dsum


class NoPositions(PositionalEncoding):
    def forward(self, x, start=0):
        return x

    def backward(self, dout):
        return dout


def switch(model, switches):
    """Take the parts that are off out of the model, in place."""
    off = {(kind, layer): [] for kind, layer in attention_layers(model)}
    for kind, layer, head in switches.get("heads", []):
        off[kind, layer].append(head)
    for place, layer in attention_layers(model).items():
        layer.attention.__class__ = SwitchedAttention
        layer.attention.scaled, layer.attention.heads_off = switches.get("scale", True), off[place]
    for layer in model.layers():
        if isinstance(layer, AddNorm):
            layer.__class__ = SwitchedAddNorm
            layer.residual, layer.normed = switches.get("residuals", True), switches.get("layerNorm", True)
    if not switches.get("positions", True):
        for positions in (model.positional_encoding, model.tgt_positional_encoding):
            positions.__class__ = NoPositions


def attention_layers(model):
    return {**{("encoderSelfAttention", i): block.self_attention for i, block in enumerate(model.encoder_layers)},
            **{("decoderSelfAttention", i): block.self_attention for i, block in enumerate(model.decoder_layers)},
            **{("crossAttention", i): block.cross_attention for i, block in enumerate(model.decoder_layers)}}


# ------------------------------------------------------------------------------------------------- watching a pass


def watch(layer, name, log):
    """Keep what goes into and comes out of one layer's forward and backward, under ``name``."""
    forward, backward = layer.forward, layer.backward

    def watched_forward(*args, **kwargs):
        log[name] = {"inputs": args, "output": forward(*args, **kwargs)}
        return log[name]["output"]

    def watched_backward(dout):
        log[name]["dout"] = dout
        return backward(dout)
    layer.forward, layer.backward = watched_forward, watched_backward


def named_layers(layer, path=""):
    for name, child in layer.children():
        yield path + name, child
        yield from named_layers(child, f"{path}{name}.")


def masks_of(source, target, switches):
    """The masks of training, with the parts that are switched off left out."""
    hides_padding = switches.get("paddingMask", True)
    src = source if hides_padding else np.ones_like(source)
    tgt = target if hides_padding else np.ones_like(target)
    src_mask, tgt_mask = make_masks(src, tgt)
    if not switches.get("causalMask", True):
        tgt_mask = np.broadcast_to((tgt == PAD)[:, None, None, :], tgt_mask.shape)
    return src_mask, tgt_mask


def tensors_of(model, log):
    """Every tensor of the pass under the names of the page."""
    tensors = {f"{name}.output": log[name]["output"] for name, layer in named_layers(model)
               if name.endswith(("embedding", "encoding", "attention", "norm1", "norm2", "norm3", "feed_forward"))
               and not name.endswith("attention.attention")}
    for name, layer in named_layers(model):
        if isinstance(layer, ScaledDotProductAttention):
            place = name.removesuffix(".attention")
            dots = layer.seen["Q"] @ layer.seen["K"].swapaxes(-1, -2)
            tensors |= {f"{place}.{part}": value for part, value in layer.seen.items()}
            tensors[f"{place}.dots"] = dots
            tensors[f"{place}.scores"] = dots / math.sqrt(layer.seen["Q"].shape[-1]) if layer.scaled else dots
            tensors[f"{place}.weights"] = layer.attention_weights
            heads = layer.seen["heads"]
            tensors[f"{place}.concatenation"] = np.concatenate(list(heads.swapaxes(0, 1)), axis=-1)
        elif isinstance(layer, AddNorm):
            tensors[f"{name}.sum"] = layer.seen["sum"]
        elif name.endswith("feed_forward.dropout"):
            tensors[f"{name.removesuffix('.dropout')}.hidden"], = log[name]["inputs"]
    return {name: tensor[0] for name, tensor in tensors.items()}


def reference(model, settings, task, tokens, switches=None):
    """The answer of ``window.transformer.run(task, tokens, switches)``, computed by implementation.py."""
    switches = dict(switches or {})
    gradient = switches.pop("gradient", None)
    model = double_precision(model, settings)
    switch(model, switches)
    source, _ = pack([tokens], task, settings["seq_len"])
    output, step_logits = [], []
    while len(output) <= settings["seq_len"] and END not in output:
        target = np.array([[START, *output]])
        step_logits.append(model(source, target, *masks_of(source, target, switches))[0, -1])
        output.append(int(step_logits[-1].argmax()))

    log = {}
    for name, layer in named_layers(model):
        watch(layer, name, log)
    target = np.array([[START, *output[:-1]]])
    src_mask, tgt_mask = masks_of(source, target, switches)
    logits = model(source, target, src_mask, tgt_mask)
    places = attention_layers(model)
    by_kind = {}
    for (kind, _), layer in places.items():
        by_kind.setdefault(kind, []).append(layer.attention.attention_weights[0])
    answer = {
        "source": source[0], "target": target[0], "output": output, "stepLogits": np.array(step_logits),
        "answer": [*TASKS[task](tokens), END], "logits": logits[0], "probabilities": softmax(logits)[0],
        "encoderOutput": log[f"encoder_layers.{settings['n_layers'] - 1}.norm2"]["output"][0],
        **by_kind,
        "tensors": {**tensors_of(model, log), "output_projection.logits": logits[0],
                    "output_projection.probabilities": softmax(logits)[0]},
        "masks": {"encoderSelfAttention": np.broadcast_to(src_mask[0, 0], (source.size, source.size)),
                  "decoderSelfAttention": np.broadcast_to(tgt_mask[0, 0], (target.size, target.size)),
                  "crossAttention": np.broadcast_to(src_mask[0, 0], (target.size, source.size))},
    }
    if gradient is not None:
        dlogits = np.zeros_like(logits)
        dlogits[0, gradient[0], gradient[1]] = 1
        model.backward(dlogits)
        answer["gradients"] = {"sourceEmbeddings": log["src_embedding"]["dout"][0],
                               "targetEmbeddings": log["tgt_embedding"]["dout"][0]}
        # What the attention hands to its dropout's backward is the gradient at the weights.
        name_of = {id(layer): name for name, layer in named_layers(model)}
        for (kind, _), layer in places.items():
            gradient_here = log[f"{name_of[id(layer)]}.attention.dropout"]["dout"][0]
            answer["gradients"].setdefault(kind, []).append(gradient_here)
    return answer


def score(model, settings, task, tokens, switches=None):
    """The answer of ``window.transformer.score``: teacher-forced and free-running."""
    switches = dict(switches or {})
    source, target = pack([tokens], task, settings["seq_len"])
    right = [*TASKS[task](tokens), END]
    switched = double_precision(model, settings)
    switch(switched, switches)
    logits = switched(source, target[:, :-1], *masks_of(source, target[:, :-1], switches))[0]
    taught = logits.argmax(-1)
    written = reference(model, settings, task, tokens, switches)["output"]
    return {"logits": logits, "teacherForced": float(np.mean(taught[:len(right)] == right)),
            "exactMatch": written == right}


def differences(page, ours, path=""):
    """The largest difference under each name of nested dicts; infinite where a name is missing or a shape differs."""
    if isinstance(ours, dict):
        for name, value in ours.items():
            yield from differences(page.get(name), value, f"{path}.{name}" if path else name)
        return
    try:
        page, ours = np.asarray(page, dtype=np.float64), np.asarray(ours, dtype=np.float64)
    except (TypeError, ValueError):
        yield path, math.inf
        return
    if page.shape != ours.shape or np.isnan(page).any():
        yield path, math.inf
    else:
        yield path, float(np.abs(page - ours).max(initial=0))
