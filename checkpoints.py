"""Checkpoints: a run saved whole and read back, and the mean of several.  [6.1]"""

import json
import os
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from implementation import Transformer
from optimisation import Adam


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the text is one line that says why."""


class Checkpoint:
    """A trained model with what a run knew: model (in eval mode), optimizer or None, settings, step, vocabulary,
    history, random_state, and newest, the weights that training goes on from. ``state`` holds all that was saved
    beside the arrays, and path is where."""

    def __init__(self, path, model, optimizer, newest, state):
        self.path, self.model, self.optimizer, self.newest, self.state = path, model, optimizer, newest, state
        self.settings = {**model.config, "vocab_size": model.config["src_vocab_size"], **state.get("settings", {})}
        self.step, self.vocabulary = state.get("step", 0), state.get("vocabulary")
        self.history, self.random_state = state.get("history", []), state.get("random_state")


@contextmanager
def replacing(path):
    """A name beside ``path`` to write to; the finished file is renamed into place, an unfinished one removed."""
    path = Path(path)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield beside
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def save_checkpoint(path, model, optimizer=None, *, newest=None, **state):
    """Write weights, Adam's moments and ``state`` (anything JSON can hold) to an .npz file that needs no pickle.

    Where the model holds the mean of recent weights, ``newest`` are those that training goes on from. The file is
    written beside and renamed into place: at every moment path holds a whole checkpoint, old or new. Raises OSError
    when it cannot be written.
    """
    path = Path(path)
    arrays = {f"parameters/{name}": weight for name, weight in model.named_parameters().items()}
    arrays |= {f"newest/{name}": weight for name, weight in (newest or {}).items()}
    state = {"format": 1, "model": model.config, **state}
    if optimizer is not None:
        arrays |= {f"adam_m/{name}": moment for name, moment in optimizer.m.items()}
        arrays |= {f"adam_v/{name}": moment for name, moment in optimizer.v.items()}
        state["adam"] = {"steps": optimizer.steps, "betas": optimizer.betas, "eps": optimizer.eps}
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as beside, open(beside, "wb") as file:
        np.savez(file, state=np.array(json.dumps(state)), **arrays)
        file.flush()
        os.fsync(file.fileno())


def read_arrays(path):
    """The arrays of a checkpoint file and its state, whole or not at all. CheckpointError says what is wrong."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as entries:
            arrays = {name: entries[name] for name in entries.files}
        state = json.loads(arrays.pop("state").item())
        if state["format"] != 1:
            raise CheckpointError(f"{path} has format {state['format']}; this program reads format 1")
        return arrays, state
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from None
    except Exception as error:       # whatever bytes are there: zip, NumPy and JSON each raise their own kinds
        raise CheckpointError(f"{path} is damaged or not a checkpoint of this program: "
                              f"{' '.join(str(error).split())[:120] or type(error).__name__}") from None


def check_entries(path, kind, saved, live):
    """CheckpointError unless two dicts hold arrays of the same names, kinds and shapes."""
    for name in [*live, *saved]:
        there, here = (f"{d[name].dtype} {d[name].shape}" if name in d else "nothing" for d in (saved, live))
        if there != here:
            raise CheckpointError(f"{path}: the entry {kind}/{name} holds {there} where {here} is expected")


def copy_into(arrays, others):
    for name, array in arrays.items():
        array[...] = others[name]


def fill(path, kind, arrays, live):
    """Copy the entries ``kind/...`` of a checkpoint into the live arrays of the same names."""
    saved = {name.removeprefix(kind + "/"): array for name, array in arrays.items() if name.startswith(kind + "/")}
    check_entries(path, kind, saved, live)
    copy_into(live, saved)


def load_checkpoint(path):
    """The Checkpoint that save_checkpoint wrote. CheckpointError, one line, for a file that is missing or damaged, or
    whose entries do not fit its model, naming the entry and both shapes."""
    arrays, state = read_arrays(path)
    try:
        dtype = arrays["parameters/src_embedding.embedding"].dtype
        model, optimizer = Transformer(**state["model"], rng=0, dtype=dtype), None
        weights = model.named_parameters()
        fill(path, "parameters", arrays, weights)
        newest = {name: weight.copy() for name, weight in weights.items()}
        if any(name.startswith("newest/") for name in arrays):
            fill(path, "newest", arrays, newest)
        if "adam" in state:
            optimizer = Adam(model, state["adam"]["betas"], state["adam"]["eps"])
            optimizer.steps = state["adam"]["steps"]
            fill(path, "adam_m", arrays, optimizer.m)
            fill(path, "adam_v", arrays, optimizer.v)
        model.eval()
        return Checkpoint(path, model, optimizer, newest, state)
    except CheckpointError:
        raise
    except Exception as error:                                        # a state that some other program wrote
        raise CheckpointError(f"{path} is not a checkpoint of this program: {type(error).__name__}: "
                              f"{' '.join(str(error).split())[:120]}") from None


def average_checkpoints(paths):
    """The mean of each weight over several checkpoints, a dict from dotted name to array.  [6.1]

    CheckpointError when the files hold different entries or shapes, ValueError for no path.
    """
    paths = list(paths)
    if not paths:
        raise ValueError("average_checkpoints needs at least one path")
    weights = [load_checkpoint(path).model.named_parameters() for path in paths]
    for path, others in zip(paths, weights):
        check_entries(path, "parameters", others, weights[0])
    return {name: np.mean([w[name] for w in weights], axis=0, dtype=np.float64).astype(first.dtype)
            for name, first in weights[0].items()}
