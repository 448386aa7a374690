"""Training with your own classes: python train_minimal.py --task copy --with-exercises

Each class that is written in exercises/ takes its place in the model. Its forward computes the values. Its backward is
used where that is written too; otherwise the library's layer runs beside it, on the same arrays with the same dropout,
and lends its backward. Weights stay where they are: your objects hold the very arrays that the optimiser updates.
"""

import copy
import inspect
import sys
import types
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import numpy as np
from tqdm import tqdm

from exercises.checks import FILES
from exercises.free_running import WholePrefix
from implementation import (AddNorm, DecoderBlock, EncoderBlock, FeedForward, LayerNorm, MultiHeadAttention,
                            PositionalEncoding, ScaledDotProductAttention, TokenEmbedding, Transformer,
                            create_causal_mask, create_padding_mask)
from training_data import DataError

EXERCISES = Path(__file__).resolve().parent
TOLERANCE = 1e-4                 # of the largest entry; float32 stays far below, mistakes lie far above


class ExerciseError(DataError):
    """An exercise that cannot be trained with; the text is one line that names class, exercise, file and line."""


class NotWritten(ExerciseError):
    """A TODO was reached."""


# -------------------------------------------------------------------------------------------- what can be replaced


@dataclass(frozen=True)
class Part:
    """A class of an exercise: the library's class, the constructor's arguments for a given library layer, the shape
    of forward's result, and a small layer with inputs to try it on."""
    exercise: int
    library: type
    arguments: Callable
    shape: Callable
    example: Callable

    @property
    def name(self):
        return self.library.__name__


def like_first(layer, x, *_):
    return x.shape


def draw(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


HIDDEN = np.array([[0, 0, 0, 0, 1], [0, 0, 0, 1, 1]], dtype=bool)[:, None, None, :]
CAUSAL = create_causal_mask(3)
SOURCE, TOKENS = np.array([[3, 4, 5, 3, 0], [4, 3, 2, 0, 0]]), np.array([[1, 3, 3], [4, 2, 0]])

PARTS = [
    Part(1, ScaledDotProductAttention, lambda layer: (layer.dropout.p,),
         lambda layer, Q, K, V, mask=None: (*Q.shape[:3], V.shape[3]),
         lambda: (ScaledDotProductAttention(rng=0),
                  (draw(2, 2, 3, 4), draw(2, 2, 5, 4), draw(2, 2, 5, 4), HIDDEN))),
    Part(2, MultiHeadAttention, lambda layer: (len(layer.W_Q), layer.n_heads, layer.attention.dropout.p), like_first,
         lambda: (MultiHeadAttention(8, 2, rng=0), (draw(2, 3, 8), draw(2, 5, 8), draw(2, 5, 8), HIDDEN))),
    Part(3, TokenEmbedding, lambda layer: layer.embedding.shape,
         lambda layer, tokens: (*tokens.shape, layer.embedding.shape[1]),
         lambda: (TokenEmbedding(5, 8, rng=0), (TOKENS,))),
    Part(3, PositionalEncoding, lambda layer: (*layer.pe.shape[::-1], layer.dropout.p), like_first,
         lambda: (PositionalEncoding(8, 4, rng=0), (draw(2, 3, 8),))),
    Part(4, LayerNorm, lambda layer: (len(layer.gamma), layer.eps), like_first,
         lambda: (LayerNorm(8), (draw(2, 3, 8),))),
    Part(4, AddNorm, lambda layer: (len(layer.gamma), layer.dropout.p), like_first,
         lambda: (AddNorm(8, rng=0), (draw(2, 3, 8), draw(2, 3, 8)))),
    Part(4, FeedForward, lambda layer: (*layer.W1.shape, layer.dropout.p), like_first,
         lambda: (FeedForward(8, 6, rng=0), (draw(2, 3, 8),))),
    Part(4, EncoderBlock, lambda layer: block_arguments(layer), like_first,
         lambda: (EncoderBlock(8, 2, 6, rng=0), (draw(2, 5, 8), HIDDEN))),
    Part(5, DecoderBlock, lambda layer: block_arguments(layer), like_first,
         lambda: (DecoderBlock(8, 2, 6, rng=0), (draw(2, 3, 8), draw(2, 5, 8), CAUSAL, HIDDEN))),
    Part(5, Transformer, lambda layer: [size for name, size in layer.config.items() if name != "tie_embeddings"],
         lambda layer, src, tgt, *_: (*tgt.shape, layer.output_projection.shape[1]),
         lambda: (Transformer(6, 5, 8, 2, 1, 1, 6, rng=0, max_len=5), (SOURCE, TOKENS, HIDDEN, CAUSAL))),
]


def block_arguments(layer):
    d_model, d_ff = layer.feed_forward.W1.shape
    return d_model, layer.self_attention.n_heads, d_ff, layer.norm1.dropout.p


class Written:
    """What a learner's file has for a part: the class, and whether its forward and its backward are written."""

    def __init__(self, part, module):
        self.part = part
        self.cls = getattr(module, part.name, None) if module else None
        self.forward = self.backward = False
        if module and not isinstance(self.cls, type):
            raise ExerciseError(f"exercise {part.exercise} ({FILES[part.exercise]}) has no class {part.name}")
        if self.cls:
            self.try_out()

    def try_out(self):
        """Call forward, then backward, on small arrays: what raises NotImplementedError is not written yet."""
        layer, inputs = self.part.example()
        try:
            seat = Seat(self, layer, Session())
            output = seat.forward(layer, inputs)
            self.forward = True
            if hasattr(self.cls, "backward"):
                seat.backward(layer, np.ones_like(output), inputs)
                self.backward = True
        except NotWritten:
            pass

    @property
    def line(self):
        whose = ["yours" if done else "library" for done in (self.forward, self.forward and self.backward)]
        return f"  {self.part.exercise}  {self.part.name:<27}forward {whose[0]}, backward {whose[1]}"


def call(exercise, name, function, *args):
    """function(*args); what it raises becomes an ExerciseError that says where."""
    try:
        return function(*args)
    except ExerciseError:
        raise
    except (Exception, SystemExit) as error:
        kind = NotWritten if isinstance(error, NotImplementedError) else ExerciseError
        raise kind(f"exercise {exercise}, {name}: {place(error, exercise)}") from error


def place(error, exercise):
    """Where in the exercise's file an error arose, and what it says, in one line."""
    line, at = None, error.__traceback__
    while at:
        if Path(at.tb_frame.f_code.co_filename).name == FILES[exercise]:
            line = at.tb_lineno
        at = at.tb_next
    if isinstance(error, SyntaxError):
        line = error.lineno
    where = FILES[exercise] + (f", line {line}" if line else "")
    return f"{where}: {type(error).__name__}: {' '.join(str(error).split())[:200]}"


def load(exercise, folder):
    """The module of an exercise, or None where there is no file."""
    path = folder / FILES[exercise]
    if not path.exists():
        return None
    module = types.ModuleType(f"exercises.{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    call(exercise, "the file cannot be loaded",
         lambda: exec(compile(path.read_bytes(), str(path), "exec"), vars(module)))
    return module


# ------------------------------------------------------------------------------- one layer, the learner's in its place


class Session:
    """What the layers of one model share: whether this is the first batch, and what differed in it."""

    def __init__(self):
        self.first, self.comparing, self.answering, self.differences = True, False, False, {}

    def compare(self, exercise, name, got, expected):
        largest = np.abs(expected).max(initial=0) or 1.0
        difference = float(np.abs(got - expected).max(initial=0) / largest)
        if not difference <= TOLERANCE:
            self.differences.setdefault((exercise, name), difference)

    @contextmanager
    def second_pass(self):
        """Inside, a layer that is called with the arrays of its last call answers as it did then."""
        before, self.answering = self.answering, True
        try:
            yield
        finally:
            self.answering = before

    def finish(self):
        """Say how the first batch went."""
        self.first = self.comparing = False
        if not self.differences:
            say("On the first batch all that is yours gives what the library gives.")
        for (exercise, name), difference in sorted(self.differences.items()):
            size = f", by up to {difference:.1g} of its largest entry" if difference else ""
            say(f"On the first batch your {name} differs from the library's{size}. It trains as it is; "
                f"python exercises/grade.py {exercise} knows more.")


def say(line):
    tqdm.write(line, file=sys.stdout)


class Seat:
    """One place in the model: the learner's object and the library's layer, on the same weights and layers inside."""

    def __init__(self, written, layer, session):
        self.written, self.part, self.session = written, written.part, session
        self.library = copy.copy(layer)
        if self.part.library is LayerNorm:
            self.library.__class__ = LayerNorm              # the norm that an AddNorm is built upon
        self.mine = call(self.part.exercise, f"{self.part.name}.__init__", self.build)
        self.generators = list({id(part.rng): part.rng for part in layer.layers() if getattr(part, "p", 0)}.values())

    def build(self):
        layer = self.library
        mine = self.written.cls(*self.part.arguments(layer), rng=0, dtype=layer.dtype)
        self.arrays = [prefix + name for name in layer._weights for prefix in ("", "d")]
        if self.part.library is Transformer:                # tied, it is a view and no weight of its own
            self.arrays += ["output_projection", "doutput_projection"]
        for name in dict.fromkeys(self.arrays + [child.partition(".")[0] for child, _ in layer.children()]):
            setattr(mine, name, getattr(layer, name))
        return mine

    def random_states(self):
        return [generator.bit_generator.state for generator in self.generators] if self.training else []

    def restore(self, states):
        for generator, state in zip(self.generators, states):
            generator.bit_generator.state = state

    @property
    def training(self):
        return self.mine.training

    def ask(self, method, *args):
        return call(self.part.exercise, f"{self.part.name}.{method}", getattr(self.mine, method), *args)

    def array(self, value, shape, method, what="returns"):
        """value as an array of the model's kind. ExerciseError unless it has the shape."""
        came = np.asarray(value)
        if came.dtype.kind != "f" or came.shape != shape:
            came = ("None" if value is None else f"shape {came.shape}" if came.dtype.kind == "f"
                    else f"{came.dtype} of shape {came.shape}")
            raise ExerciseError(f"exercise {self.part.exercise}, {self.part.name}.{method} {what} {came} where floats "
                                f"of shape {shape} are due ({FILES[self.part.exercise]})")
        return came.astype(self.library.dtype, copy=False)

    def forward(self, layer, args):
        return self.array(self.ask("forward", *args), self.part.shape(layer, *args), "forward")

    def backward(self, layer, dout, args):
        """The learner's backward, in the form of the library's: nothing, one array, or a tuple."""
        returned = self.ask("backward", dout)
        shapes = [a.shape for a in args if isinstance(a, np.ndarray) and a.dtype.kind == "f"]
        if shapes:
            returned = returned if isinstance(returned, (tuple, list)) else (returned,)
            if len(returned) != len(shapes):
                raise ExerciseError(f"exercise {self.part.exercise}, {self.part.name}.backward returns {len(returned)} "
                                    f"gradients where {len(shapes)} are due ({FILES[self.part.exercise]})")
            returned = tuple(self.array(d, shape, "backward") for d, shape in zip(returned, shapes))
        for name in self.arrays:
            here, there = getattr(self.library, name), getattr(self.mine, name)
            if there is not here:                           # set with = instead of +=: what was added before is gone
                here[...] = self.array(there, here.shape, "backward", f"sets {name} to")
                setattr(self.mine, name, here)
        return None if not shapes else returned[0] if len(shapes) == 1 else returned


class Yours:
    """Mixed into a library class: the learner's object in ``seat`` computes forward, and backward where it can."""

    def forward(self, *args, **kwargs):
        seat, session = self.seat, self.seat.session
        if kwargs:
            bound = inspect.signature(seat.part.library.forward).bind(self, *args, **kwargs)
            bound.apply_defaults()
            args = bound.args[1:]
        seat.mine.training = self.training
        if session.answering and self._kept and same(args, self._kept[0]):
            _, output, unchanged, states = self._kept
            if np.array_equal(output, unchanged):
                seat.restore(states)
                return output
        states = seat.random_states()
        if not seat.written.backward:
            before = copies(args)
            output = seat.forward(self, args)
            seat.restore(states)
            with session.second_pass():                     # on the arrays as they were, if yours has changed them
                expected = seat.library.forward(*(a if np.array_equal(a, b) else b for a, b in zip(args, before)))
        elif session.comparing:
            expected = seat.library.forward(*args)
            seat.restore(states)
            with session.second_pass():
                output = seat.forward(self, args)
        else:
            output = seat.forward(self, args)
        if session.comparing:
            session.compare(seat.part.exercise, seat.part.name, output, expected)
        self.keep(args, output, output.copy(), seat.random_states())
        return output

    def backward(self, dout):
        args, *_ = self.take()
        return (self.seat.backward(self, dout, args) if self.seat.written.backward
                else self.seat.library.backward(dout))


def copies(args):
    return [a.copy() if isinstance(a, np.ndarray) else a for a in args]


def same(these, those):
    return len(these) == len(those) and all(a is b for a, b in zip(these, those))


class YourAttention(Yours):
    """Attention also leaves its weights, for the pictures: blank where the learner's forward leaves none."""

    def forward(self, Q, K, V, mask=None):
        output = super().forward(Q, K, V, mask)
        session, shape = self.seat.session, (*Q.shape[:3], K.shape[2])
        weights = np.asarray(getattr(self.seat.mine, "attention_weights", None))
        if weights.shape != shape or weights.dtype.kind != "f":
            weights = np.zeros(shape, dtype=self.dtype)
        if session.comparing:
            session.compare(1, "attention_weights", weights, self.seat.library.attention_weights)
        self.attention_weights = weights.astype(self.dtype, copy=False)
        return output


def class_for(part):
    """A library class with the learner's part mixed in."""
    yours = YourAttention if part.library is ScaledDotProductAttention else Yours
    mixed = type(f"Your{part.name}", (yours, part.library), {})
    if part.library is LayerNorm:                           # in the model it is what an AddNorm is built upon
        return type("AddNormOnYourLayerNorm", (AddNorm, mixed), {})
    return mixed


# ------------------------------------------------------------------------------------------------ the whole model


class YourFunction:
    """A function of exercise 5, with its results held to the form that they must have."""

    def __init__(self, name, module, library, example):
        self.name, self.library, self.session = name, library, None
        self.function, self.written = getattr(module, name, None) if module else None, False
        if module and not callable(self.function):
            raise ExerciseError(f"exercise 5 ({FILES[5]}) has no function {name}")
        if self.function:
            try:
                self(example)
                self.written = True
            except NotWritten:
                pass

    def __call__(self, argument):
        returned, expected = call(5, self.name, self.function, argument), self.library(argument)
        arrays = [np.asarray(a) for a in (returned if isinstance(expected, tuple) else (returned,))]
        due = expected if isinstance(expected, tuple) else (expected,)
        # A target may be shifted by another step, but both sides must then have one length.
        fits = (len(arrays) == len(due) and all(a.dtype.kind in "iu" and a.ndim == 2 for a in arrays)
                and arrays[0].shape == arrays[1].shape and arrays[0].size if isinstance(expected, tuple)
                else arrays[0].dtype == bool and arrays[0].shape == expected.shape)
        if not fits:
            form = [f"{a.dtype} of shape {a.shape}" for a in (*arrays, *due)]
            raise ExerciseError(f"exercise 5, {self.name} returns {' and '.join(form[:len(arrays)])} where "
                                f"{' and '.join(form[len(arrays):])} is due ({FILES[5]})")
        if self.session and self.session.first and not all(map(np.array_equal, arrays, due)):
            self.session.differences[5, self.name] = None
        return tuple(arrays) if isinstance(expected, tuple) else arrays[0]

    @property
    def line(self):
        return f"  5  {self.name:<27}{'yours' if self.written else 'library'}"


class YourMasks:
    """Mixed into a Transformer: forward makes its masks anew where the learner can make them."""

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        padding, causal = self.masks
        if src_mask is not None:
            src_mask = padding(src)
        if tgt_mask is not None:
            tgt_mask = padding(tgt) | causal(tgt.shape[1])
        self.session.comparing = self.session.first and self.training
        logits = super().forward(src, tgt, src_mask, tgt_mask)
        if self.session.comparing:
            self.session.finish()
        return logits


def install(model, exercises_dir=None):
    """Put the learner's classes into the model and return what to print: class by class, whose code is used.

    Where shift_target is written, model.shift_target is the learner's. ExerciseError for code that crashes.
    """
    folder, session = Path(exercises_dir or EXERCISES), Session()
    modules = {exercise: load(exercise, folder) for exercise in FILES}
    written = [Written(part, modules[part.exercise]) for part in PARTS]
    functions = {name: YourFunction(name, modules[5], library, example) for name, library, example in (
        ("create_padding_mask", create_padding_mask, TOKENS), ("create_causal_mask", create_causal_mask, 3),
        ("shift_target", library_shift, TOKENS))}
    lines = ["Whose code trains (yours: exercises/, library: implementation.py), exercise by exercise:",
             *(part.line for part in written), *(function.line for function in functions.values())]
    if not any(part.forward for part in written) and not any(function.written for function in functions.values()):
        return [*lines, f"Nothing of yours yet: begin with exercises/{FILES[1]}"]

    layers = list(model.layers())
    for own in written:
        if own.forward:
            mixed = class_for(own.part)
            for layer in layers:
                if isinstance(layer, own.part.library):
                    layer.seat = Seat(own, layer, session)
                    layer.__class__ = mixed
    model.__class__ = type("YourTransformer", (YourMasks, *((Yours,) if isinstance(model, Yours) else ()), WholePrefix),
                           {})
    for function in functions.values():
        function.session = session
    model.session = session
    model.masks = [functions[name] if functions[name].written else functions[name].library
                   for name in ("create_padding_mask", "create_causal_mask")]
    if functions["shift_target"].written:
        model.shift_target = functions["shift_target"]
    return lines


def library_shift(tgt):
    from train_minimal import shift_target                  # here, for that module imports this one
    return shift_target(tgt)
