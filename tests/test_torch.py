"""PyTorch's own layers, loaded with our weights, give our numbers: forward and every gradient, below 1e-9."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from conftest import need

torch = need("torch")

import make_golden                                                                                   # noqa: E402
import torch_bridge                                                                                  # noqa: E402
import test_golden                                                                                   # noqa: E402
from gradient_check import shake                                                                     # noqa: E402
from implementation import (DecoderBlock, EncoderBlock, LayerNorm, MultiHeadAttention,               # noqa: E402
                            ScaledDotProductAttention, Transformer, create_causal_mask, create_padding_mask, softmax)
from train_minimal import Adam, CrossEntropyLoss, save_checkpoint, warmup_schedule                   # noqa: E402

B, T, S, D, H, F, V, W = 3, 5, 7, 8, 2, 9, 11, 13
TOLERANCE = 1e-9

SRC = np.array([[3, 5, 3, 3, 2, 0, 0], [4, 4, 9, 10, 1, 4, 2], [7, 0, 0, 0, 0, 0, 0]])
TGT = np.array([[1, 12, 3, 12, 2], [1, 5, 2, 0, 0], [1, 7, 7, 7, 0]])
PADDING, CAUSAL = create_padding_mask(SRC), create_causal_mask(T)
TGT_MASK = CAUSAL | create_padding_mask(TGT)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def assert_same(ours, theirs):
    np.testing.assert_allclose(ours, theirs.detach().numpy() if torch.is_tensor(theirs) else theirs,
                               rtol=0, atol=TOLERANCE)


def tensors(*arrays):
    return [torch.tensor(array, requires_grad=True) for array in arrays]


def compare(layer, module, inputs, masks, call, rng):
    """Forward, the gradients of the inputs and of every weight; call(module, *tensors) is PyTorch's forward."""
    layer.eval()
    out = layer(*inputs, *masks)
    given = tensors(*inputs)
    expected = call(module, *given)
    assert_same(out, expected)
    dout = rng.normal(size=out.shape)
    returned = layer.backward(dout)
    expected.backward(torch.tensor(dout))
    for dx, tensor in zip(returned if isinstance(returned, tuple) else [returned], given, strict=True):
        assert_same(dx, tensor.grad)
    expected_gradients = torch_bridge.torch_gradients(module, layer)
    for name, gradient in layer.named_gradients().items():
        assert_same(gradient, expected_gradients[name])


def test_softmax_and_layer_norm():
    rng = np.random.default_rng(0)
    x, dout = rng.normal(size=(2, B, T, D))
    for axis in (-1, 0, 1):
        assert_same(softmax(x, axis), torch.softmax(torch.tensor(x), axis))
    layer = shake(LayerNorm(D, dtype=np.float64), rng)
    module = torch.nn.LayerNorm(D, eps=1e-5, dtype=torch.float64)
    with torch.no_grad():
        module.weight.copy_(torch.tensor(layer.gamma))
        module.bias.copy_(torch.tensor(layer.beta))
    given, = tensors(x)
    expected = module(given)
    assert_same(layer(x), expected)
    expected.backward(torch.tensor(dout))
    assert_same(layer.backward(dout), given.grad)
    assert_same(layer.dgamma, module.weight.grad)
    assert_same(layer.dbeta, module.bias.grad)


@pytest.mark.parametrize("mask", ["none", "padded", "some", "rows hidden"])
def test_scaled_dot_product_attention(mask):
    """F.scaled_dot_product_attention, where True takes part; a query with nothing to see gets zeros there too."""
    rng = np.random.default_rng(1)
    Q, K, V_ = rng.normal(size=(B, H, T, D)), rng.normal(size=(B, H, S, D)), rng.normal(size=(B, H, S, 6))
    hidden = {"none": None, "padded": PADDING, "some": rng.random((B, H, T, S)) < 0.4}.get(mask)
    if mask == "rows hidden":
        hidden = rng.random((B, H, T, S)) < 0.4
        hidden[:, 0, 2] = hidden[1, :, 0] = True
    layer = ScaledDotProductAttention(0.0, dtype=np.float64)
    out = layer(Q, K, V_, hidden)
    given = tensors(Q, K, V_)
    visible = None if hidden is None else torch.tensor(~np.broadcast_to(hidden, (B, H, T, S)))
    expected = torch.nn.functional.scaled_dot_product_attention(*given, attn_mask=visible)
    assert_same(out, expected)
    dout = rng.normal(size=out.shape)
    expected.backward(torch.tensor(dout))
    for gradient, tensor in zip(layer.backward(dout), given):
        assert_same(gradient, tensor.grad)
    if mask == "rows hidden":
        assert not out[1, :, 0].any() and np.isfinite(out).all()


@pytest.mark.parametrize("mask", [None, PADDING, np.arange(S) > np.arange(2, T + 2)[:, None] + np.zeros((1, 1, 1, 1))])
def test_multi_head_attention(mask):
    rng = np.random.default_rng(2)
    layer = shake(MultiHeadAttention(D, H, 0.0, rng=rng, dtype=np.float64), rng)
    inputs = [rng.normal(size=(B, n, D)) for n in (T, S, S)]
    attn_mask = None if mask is None else torch_bridge.attn_mask(mask, B, H, T)
    compare(layer, torch_bridge.torch_attention(layer), inputs, [mask],
            lambda module, *given: module(*given, attn_mask=attn_mask, need_weights=False)[0], rng)
    weights = torch_bridge.torch_attention(layer)(*tensors(*inputs), attn_mask=attn_mask, average_attn_weights=False)[1]
    assert_same(layer.get_attention_weights(), weights)


@pytest.mark.parametrize("mask", [None, PADDING, PADDING | create_causal_mask(S)])
def test_encoder_block(mask):
    rng = np.random.default_rng(3)
    block = shake(EncoderBlock(D, H, F, 0.0, rng=rng, dtype=np.float64), rng)
    src_mask = None if mask is None else torch_bridge.attn_mask(mask, B, H, S)
    compare(block, torch_bridge.torch_encoder_block(block), [rng.normal(size=(B, S, D))], [mask],
            lambda module, x: module(x, src_mask=src_mask), rng)


@pytest.mark.parametrize("masks", [(None, None), (CAUSAL, None), (TGT_MASK, PADDING)])
def test_decoder_block(masks):
    rng = np.random.default_rng(4)
    block = shake(DecoderBlock(D, H, F, 0.0, rng=rng, dtype=np.float64), rng)
    self_mask, cross_mask = (None if mask is None else torch_bridge.attn_mask(mask, B, H, T) for mask in masks)
    compare(block, torch_bridge.torch_decoder_block(block), [rng.normal(size=(B, n, D)) for n in (T, S)], masks,
            lambda module, x, memory: module(x, memory, tgt_mask=self_mask, memory_mask=cross_mask), rng)


@pytest.mark.parametrize("masks", [(None, None), (PADDING, None), (None, CAUSAL), (PADDING, TGT_MASK)])
@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_the_whole_model(tie_embeddings, masks):
    rng = np.random.default_rng(5)
    model = Transformer(W if tie_embeddings else V, W, D, H, 2, 3, F, 0.1, S, tie_embeddings=tie_embeddings, rng=rng,
                        dtype=np.float64)
    shake(model, rng)
    logits, gradients = torch_bridge.largest_differences(model, SRC, TGT, *masks, rng.normal(size=(B, T, W)))
    assert logits < TOLERANCE
    assert len(gradients) == len(model.named_parameters())
    assert max(gradients.values()) < TOLERANCE, gradients


def test_the_whole_model_in_single_precision_and_at_the_papers_width():
    """d_model 512 and 8 heads, one block in each stack: float32 agrees to its own precision."""
    rng = np.random.default_rng(6)
    model = Transformer(V, W, 512, 8, 1, 1, 256, 0.1, S, rng=rng)
    logits, gradients = torch_bridge.largest_differences(model, SRC, TGT, PADDING, TGT_MASK,
                                                         rng.normal(size=(B, T, W)).astype(np.float32))
    assert logits < 1e-4
    assert max(gradients.values()) < 1e-3, gradients


def test_a_wrong_weight_or_a_wrong_mask_would_be_seen():
    rng = np.random.default_rng(7)
    model = shake(Transformer(V, W, D, H, 1, 1, F, 0.0, S, rng=rng, dtype=np.float64), rng)
    theirs = torch_bridge.TorchTransformer(model)
    expected = theirs(SRC, TGT, PADDING, TGT_MASK).detach().numpy()
    assert np.abs(model(SRC, TGT, PADDING, TGT_MASK) - expected).max() < TOLERANCE
    assert np.abs(model(SRC, TGT, PADDING, CAUSAL) - expected).max() > 1e-3
    assert np.abs(model(SRC, TGT, None, TGT_MASK) - expected).max() > 1e-3
    for name, weight in model.named_parameters().items():
        entry = tuple(n // 2 for n in weight.shape)
        if name.endswith("embedding"):
            entry = 3, 2                                                                     # a token that is used
        before = weight[entry]
        weight[entry] += 0.1
        assert np.abs(model(SRC, TGT, PADDING, TGT_MASK) - expected).max() > 1e-6, name
        weight[entry] = before


@pytest.mark.parametrize("name", test_golden.LAYERS)
def test_the_golden_files_are_what_pytorch_writes_today(name):
    arrays = make_golden.golden_arrays(name)
    with np.load(test_golden.GOLDEN / f"{name}.npz", allow_pickle=False) as golden:
        assert set(golden) == set(arrays)
        for key in golden:
            np.testing.assert_allclose(golden[key], arrays[key], rtol=0, atol=1e-12, err_msg=key)


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.4])
def test_the_loss(eps):
    rng = np.random.default_rng(8)
    logits, targets = rng.normal(0, 3, (B, T, V)), rng.integers(0, V, (B, T))
    loss, (given,) = CrossEntropyLoss(0, eps), tensors(logits)
    expected = torch.nn.functional.cross_entropy(given.reshape(-1, V), torch.tensor(targets.ravel()), ignore_index=0,
                                                 label_smoothing=eps)
    expected.backward()
    assert loss(logits, targets) == pytest.approx(expected.item(), abs=1e-12)
    np.testing.assert_allclose(loss.backward(), given.grad.numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_eight_training_steps_end_at_the_same_weights(tie_embeddings):
    """torch.nn.Transformer, cross-entropy and torch.optim.Adam, started from our weights and fed our batches."""
    rng = np.random.default_rng(9)
    model = Transformer(W, W, D, H, 2, 2, F, 0.0, S, tie_embeddings=tie_embeddings, rng=rng, dtype=np.float64)
    shake(model, rng)
    theirs = torch_bridge.TorchTransformer(model)
    # PyTorch would also train attention's biases, which we do not have: they stay at zero, out of its optimiser.
    trained = [p for name, p in theirs.named_parameters() if not name.endswith(("in_proj_bias", "out_proj.bias"))]
    loss, adam = CrossEntropyLoss(0, 0.1), Adam(model)
    torch_adam = torch.optim.Adam(trained, lr=1.0, betas=(0.9, 0.98), eps=1e-9, foreach=False)
    for step in range(1, 9):
        src, tgt = rng.permutation(SRC), rng.permutation(TGT)
        masks, rate = (create_padding_mask(src), create_causal_mask(T - 1)), warmup_schedule(step, D, 4) / 10
        value = loss(model(src, tgt[:, :-1], *masks), tgt[:, 1:])
        model.zero_grad()
        model.backward(loss.backward())
        adam.step(rate)

        torch_adam.param_groups[0]["lr"] = rate
        torch_adam.zero_grad()
        expected = torch.nn.functional.cross_entropy(theirs(src, tgt[:, :-1], *masks).reshape(-1, W),
                                                     torch.tensor(tgt[:, 1:].ravel()), ignore_index=0,
                                                     label_smoothing=0.1)
        expected.backward()
        torch_adam.step()
        assert value == pytest.approx(expected.item(), abs=TOLERANCE)
    weights = dict(theirs.named_parameters())
    for name, weight in model.named_parameters().items():
        expected = torch_bridge.as_ours(name, weights[torch_bridge.torch_name(name)])
        np.testing.assert_allclose(weight, expected.detach().numpy(), rtol=0, atol=TOLERANCE, err_msg=name)


# ----------------------------------------------------------------------------------- python tests/torch_bridge.py


@pytest.mark.parametrize("tie_embeddings", [False, True])
def test_the_script_compares_a_trained_checkpoint(tmp_path, tie_embeddings, capsys):
    model = Transformer(W, W, D, H, 2, 1, F, 0.1, S, tie_embeddings=tie_embeddings, rng=0)
    save_checkpoint(tmp_path / "model.npz", model)
    assert torch_bridge.main([str(tmp_path / "model.npz")]) == 0
    out = capsys.readouterr().out
    assert f"{model.num_parameters():,} weights" in out and torch.__version__ in out
    logits, gradients = (float(re.search(rf"{what}: +(\S+)", out)[1]) for what in ("logits", "gradients"))
    assert 0 < logits < TOLERANCE and 0 < gradients < TOLERANCE
    assert f"{len(model.named_parameters())} arrays compared" in out


@pytest.mark.parametrize("arguments", [[], ["missing.npz"], ["a", "b"]])
def test_the_script_answers_wrong_use_in_one_line(arguments, capsys):
    assert torch_bridge.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1


def test_the_script_says_in_one_line_that_pytorch_is_missing(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('no torch here', name='torch')")
    done = subprocess.run([sys.executable, torch_bridge.__file__, "c.npz"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert "pip install torch" in done.stderr
