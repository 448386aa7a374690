"""The matrix products of a training step, recorded while the step runs, and run again without anything around them.

Their time is the floor: NumPy hands each of them to BLAS, and no code around them can make them faster. Products of a
matrix with a vector of ones and of vectors with vectors (``vecdot``), which the model uses as sums, do not count.
"""

import ast
import types
from pathlib import Path

import numpy as np

import implementation
from steps import DROPOUT
from train_minimal import CrossEntropyLoss, make_masks


class _EveryProductIsACall(ast.NodeTransformer):
    """``a @ b`` becomes ``np.matmul(a, b)``, so that one function sees every product."""

    def visit_BinOp(self, node):
        self.generic_visit(node)
        if not isinstance(node.op, ast.MatMult):
            return node
        matmul = ast.Attribute(ast.Name("np", ast.Load()), "matmul", ast.Load())
        return ast.copy_location(ast.Call(matmul, [node.left, node.right], []), node)


class _RecordingNumPy(types.ModuleType):
    """NumPy, except that its products also enter a list: (a, b, result), the arrays themselves."""

    def __init__(self):
        super().__init__("numpy")
        self.products = []

    def __getattr__(self, name):
        if name in ("dot", "inner", "tensordot", "einsum", "vdot", "matvec", "vecmat"):
            raise AttributeError(f"np.{name} is a product that the recorder does not know")
        return getattr(np, name)

    def matmul(self, a, b, out=None):
        result = np.matmul(a, b, out=out)
        if a.ndim > 1 and b.ndim > 1:
            self.products.append((a, b, result))
        return result


def recording_implementation():
    """implementation.py, loaded once more with a NumPy that records: (the module, the list that fills)."""
    source = Path(implementation.__file__)
    tree = ast.parse(source.read_text(encoding="utf-8"), str(source))
    if any(isinstance(node, ast.AugAssign) and isinstance(node.op, ast.MatMult) for node in ast.walk(tree)):
        raise ValueError("the recorder does not know the operator @=")
    module = types.ModuleType("implementation_recorded")
    exec(compile(ast.fix_missing_locations(_EveryProductIsACall().visit(tree)), str(source), "exec"), vars(module))
    recorder = module.np = _RecordingNumPy()
    return module, recorder.products


def record_step(size):
    """One training step of a new model of this Size: the model, and its products as a list of (a, b, result)."""
    module, products = recording_implementation()
    model = module.Transformer(*size.model_sizes(), DROPOUT, size.length, rng=0)
    src, tgt_in, tgt_out = size.random_batch()
    loss = CrossEntropyLoss()
    loss(model(src, tgt_in, *make_masks(src, tgt_in)), tgt_out)
    model.backward(loss.backward())
    return model, products


def layout(array):
    """What of an array matters to a product's speed: its shape and how it lies in memory."""
    return array.shape, array.strides, array.dtype.str


class Replay:
    """Calling it runs the recorded products once more, on the recorded arrays, into memory that is there already."""

    def __init__(self, products):
        outputs = {}
        self.calls = [(a, b, outputs.setdefault(layout(result), np.empty_like(result))) for a, b, result in products]

    def __call__(self):
        for a, b, out in self.calls:
            np.matmul(a, b, out=out)

    def flops(self):
        return sum(2 * out.size * a.shape[-1] for a, _, out in self.calls)
