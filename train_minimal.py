"""Train the Transformer to copy or to reverse sequences, on numbers or on lines of text.  [5, 6.1]

    python train_minimal.py --task copy
    python train_minimal.py --task reverse --predict "5 3 9"

The sequences [5.1] come from training_data.py, the loss and Adam [5.3, 5.4] from optimisation.py, greedy decoding and
beam search [6.1] from decoding.py, saved models from checkpoints.py; all of them are offered here too.
"""

import argparse
import importlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import sys
import time
import unicodedata
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from checkpoints import (Checkpoint, CheckpointError, average_checkpoints, check_entries, copy_into, load_checkpoint,
                         replacing, save_checkpoint)
from decoding import beam_search, eval_mode, greedy_decode
from implementation import Transformer, create_causal_mask, create_padding_mask
from optimisation import Adam, CrossEntropyLoss, compute_accuracy, warmup_schedule
from training_data import (END, FIRST, PAD, START, TASKS, DataError, RandomNumbers, TextLines, generate_copy_task_data,
                           generate_reverse_task_data, pack, parse_tokens, show_tokens, token_label)

__all__ = ["Adam", "Checkpoint", "CheckpointError", "CrossEntropyLoss", "average_checkpoints", "beam_search",
           "compute_accuracy", "generate_copy_task_data", "generate_reverse_task_data", "greedy_decode",
           "load_checkpoint", "parse_tokens", "save_checkpoint", "token_label", "warmup_schedule"]

EPOCH = 100                      # batches, also the steps between two validations
RECORD = 10                      # steps between two records of the loss
SNAPSHOT, SNAPSHOTS = 20, 5      # the model that is tested is a running mean of weights seen every 20 steps  [6.1]
MAX_STEPS = 10_000
SMALL_MODEL = 10_000_000         # parameters; below, one BLAS thread is fastest
LONGEST = 5000                   # positions in a model's table

DEFAULTS = dict(task="copy", data=None, seq_len=8, vocab_size=12, d_model=64, n_heads=4, n_layers=2, batch_size=128,
                lr=None, warmup=None, dropout=0.0, label_smoothing=0.1, tie_embeddings=False, seed=42)
SAVED = [*DEFAULTS, "inject_bug", "with_exercises"]      # what makes a run the run it is, and goes into its checkpoint

# Each step frees and takes back the same memory. The C library on Linux would return it to the system in between, and
# pay for every page anew, until it has seen one block of nearly 32 MB freed. Elsewhere this line does nothing.
np.empty(2**25 - 2**16, dtype=np.uint8)


class UsageError(Exception):
    """Something the user can put right; the text is one line."""


class Diverged(Exception):
    """A loss or weights that are no longer numbers."""


# --------------------------------------------------------------------------------------------------- training


def build_model(settings, rng=None, dtype=np.float32):
    """The Transformer of a settings dict: n_layers in each stack, d_ff = 4 d_model as in the paper."""
    return Transformer(settings["vocab_size"], settings["vocab_size"], settings["d_model"], settings["n_heads"],
                       settings["n_layers"], settings["n_layers"], 4 * settings["d_model"], settings["dropout"],
                       tie_embeddings=settings["tie_embeddings"], rng=rng, dtype=dtype)


def shift_target(tgt):
    """What the decoder reads, and what it must predict at each of these positions: the next token.  [3.1]"""
    return tgt[:, :-1], tgt[:, 1:]


def make_masks(src, tgt_in):
    """The source's padding mask, and the target's: padding or future.  [3.2.3]"""
    return create_padding_mask(src), create_padding_mask(tgt_in) | create_causal_mask(tgt_in.shape[1])


def learning_rate(step, settings):
    """The schedule of 5.3; with ``lr`` the same curve, scaled so that its peak is lr."""
    rate = warmup_schedule(step, settings["d_model"], settings["warmup"])
    if settings["lr"] is not None:
        rate *= settings["lr"] / warmup_schedule(settings["warmup"], settings["d_model"], settings["warmup"])
    return rate


def default_warmup(seq_len):
    """6000 steps for sequences of 8, 12,000 for 24: longer ones are learned later; the rate must be low until then."""
    return 3000 + 375 * seq_len


class Run:
    """A training run: data, model, optimiser, the random state, and the step it has reached."""

    def __init__(self, settings, checkpoint=None):
        self.settings, self.step, self.saved, self.history = settings, 0, None, []
        if settings["data"] is None:
            self.data = RandomNumbers(settings)
        else:
            self.data = TextLines(settings["data"], settings["seq_len"])
            if settings.setdefault("data_digest", self.data.digest) != self.data.digest:
                raise UsageError(f"{settings['data']} is not the file that this checkpoint was trained on")
            settings.update(seq_len=self.data.seq_len, vocab_size=self.data.vocab_size)
        if settings["warmup"] is None:
            settings["warmup"] = default_warmup(settings["seq_len"])
        self.held_out = {"validation": self.data.held_out("validation", 500), "test": self.data.held_out("test", 1000)}
        for split, sequences in self.held_out.items():
            if not sequences:
                raise UsageError(f"no sequence of length 4 or more falls to the {split} set: give more or longer "
                                 "sequences")
        self.rng = np.random.default_rng(settings["seed"])
        try:
            self.model = build_model(settings, self.rng)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self.shift_target, self.notes = as_trained(self.model, settings)
        self.loss, self.optimizer = CrossEntropyLoss(PAD, settings["label_smoothing"]), Adam(self.model)
        self.mean = {name: weight.copy() for name, weight in self.model.named_parameters().items()}
        if checkpoint is not None:
            self.continue_from(checkpoint)

    def continue_from(self, checkpoint):
        check_entries(checkpoint.path, "parameters", checkpoint.newest, self.model.named_parameters())
        copy_into(self.model.named_parameters(), checkpoint.newest)
        copy_into(self.mean, checkpoint.model.named_parameters())
        copy_into(self.optimizer.m, checkpoint.optimizer.m)
        copy_into(self.optimizer.v, checkpoint.optimizer.v)
        self.optimizer.steps = checkpoint.optimizer.steps
        self.rng.bit_generator.state = checkpoint.random_state
        self.step, self.saved, self.history = checkpoint.step, checkpoint.step, checkpoint.history

    def update_mean(self):
        """A snapshot enters the mean: with equal weight while there are up to five, then with a fifth.  [6.1]

        The paper takes the mean of its last five checkpoints. This running mean needs one copy instead of five; the
        last five snapshots hold two thirds of its weight.
        """
        share = 1 / min(self.step // SNAPSHOT, SNAPSHOTS)
        for name, weight in self.model.named_parameters().items():
            self.mean[name] += share * (weight - self.mean[name])

    @contextmanager
    def averaged(self):
        """Inside, the model has the mean of its recent weights; the newest, which training goes on from, are given."""
        weights = self.model.named_parameters()
        newest = {name: weight.copy() for name, weight in weights.items()}
        if self.step >= SNAPSHOT:
            copy_into(weights, self.mean)
        try:
            yield newest
        finally:
            copy_into(weights, newest)

    def check(self, *arrays):
        """Diverged where one of the arrays holds anything but numbers."""
        if not all(np.isfinite(array).all() for array in arrays):
            raise Diverged(f"at step {self.step} the loss or a weight is no longer a number; the checkpoint is that of "
                           f"step {self.saved}. A lower --lr or a longer --warmup may help")

    def save(self, path):
        self.check(*self.model.named_parameters().values())
        try:
            with self.averaged() as newest:
                save_checkpoint(path, self.model, self.optimizer, newest=newest, settings=self.settings, step=self.step,
                                data_position=self.step * self.settings["batch_size"], vocabulary=self.data.vocabulary,
                                random_state=self.rng.bit_generator.state, history=self.history)
        except OSError as error:
            raise UsageError(f"cannot write the checkpoint {path}: {error.strerror or error}; what stood there before "
                             "is untouched") from None
        self.saved = self.step

    def pack(self, sequences):
        return pack(sequences, self.settings["task"], self.settings["seq_len"])

    def train_step(self):
        """One batch: forward, loss, backward, update. Every tenth step, and each validation, enters the history."""
        self.step += 1
        rate = learning_rate(self.step, self.settings)
        src, tgt = self.pack(self.data.batch(self.step, self.settings["batch_size"], self.rng))
        tgt_in, tgt_out = self.shift_target(tgt)
        logits = self.model(src, tgt_in, *make_masks(src, tgt_in))
        loss = self.loss(logits, tgt_out)
        self.check(loss)
        self.model.zero_grad()
        self.model.backward(self.loss.backward())
        self.optimizer.step(rate)
        if self.step % SNAPSHOT == 0:
            self.update_mean()
        if self.step % RECORD == 0:
            self.history.append({"step": self.step, "loss": loss, "learning_rate": rate,
                                 "token_accuracy": compute_accuracy(logits, tgt_out)})
        if self.step % EPOCH == 0:
            with self.averaged():
                self.history[-1]["exact_match"] = float(self.exact(self.held_out["validation"]).mean())

    def decode(self, sequences):
        src, _ = self.pack(sequences)
        return greedy_decode(self.model, src, src.shape[1])

    def exact(self, sequences):
        """For each sequence whether free-running decoding gives its target to the last token."""
        src, tgt = self.pack(sequences)
        answers = greedy_decode(self.model, src, src.shape[1])
        targets = tgt[:, 1:]
        padded = np.full_like(targets, PAD)
        padded[:, :answers.shape[1]] = answers
        return (padded == targets).all(axis=1)

    def teacher_forced(self, sequences):
        """Cross-entropy without smoothing, and token accuracy, when the decoder is fed the right tokens so far."""
        src, tgt = self.pack(sequences)
        tgt_in, tgt_out = self.shift_target(tgt)
        with eval_mode(self.model):
            logits = self.model(src, tgt_in, *make_masks(src, tgt_in))
        return CrossEntropyLoss(PAD)(logits, tgt_out), compute_accuracy(logits, tgt_out)

    def exact_matches(self):
        """The exact match of each validation so far."""
        return [record["exact_match"] for record in self.history if "exact_match" in record]

    def perfect(self, level=1.0):
        """Whether the last five validations reached ``level``, by default without a mistake: one alone may be luck."""
        matches = self.exact_matches()
        return len(matches) >= 5 and min(matches[-5:]) >= level


def load_extra(name):
    """A module of exercises/, loaded only when its option is given."""
    return importlib.import_module(f"exercises.{name}")


def as_trained(model, settings):
    """Put a named mistake, or the reader's own classes, in the place of the library's layers, if settings say so.

    Returns what stands in for shift_target, and notes for the reader. UsageError for a mistake that is not known.
    """
    shift, notes = None, []
    bug = settings.get("inject_bug")
    if bug:
        bugs = load_extra("bugs")
        if bug not in bugs.BUGS:
            raise UsageError(f"the checkpoint was trained with the mistake {bug!r}, which is not in exercises/bugs.py")
        _, shift = bugs.inject(model, bug)
        notes = [f"With the mistake {bug}: {bugs.BUGS[bug]}"]
    if settings.get("with_exercises"):
        notes = load_extra("finale").install(model)
        shift = getattr(model, "shift_target", None)
    return shift or shift_target, notes


# ------------------------------------------------------------------------------------------------- command line


def whole_number(least):
    def parse(text):
        if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {least}, got {text!r}")
        return int(text)
    return parse


def number(condition, words):
    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not condition(value):
            raise argparse.ArgumentTypeError(f"must be {words}, got {text!r}")
        return value
    return parse


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise UsageError(message)


def parse_arguments(argv):
    """The options that were given, and only these, so that a resumed run can tell them from defaults."""
    parser = Parser("train_minimal.py", allow_abbrev=False, argument_default=argparse.SUPPRESS,
                    formatter_class=argparse.RawDescriptionHelpFormatter,
                    description="Train the Transformer to copy or to reverse sequences, and watch it learn.",
                    epilog="exit status: 0 the target exact match was reached, 1 it was not, 2 wrong usage, "
                           "130 interrupted\nOptions may also be written with underscores: --batch_size 64.")

    def add(group, option, explanation, **kwargs):
        default = DEFAULTS.get(option.lstrip("-").replace("-", "_"))
        shown = "" if default is None or kwargs.get("action") else f" (default: {default})"
        group.add_argument(option, help=(explanation + shown).replace("%", "%%"), **kwargs)

    positive = dict(type=whole_number(1), metavar="N")
    task = parser.add_argument_group("what to learn")
    add(task, "--task", "copy: repeat the sequence; reverse: write it backwards", choices=list(TASKS))
    add(task, "--seq-len", "longest sequence, at least 4; longer ones take more steps to learn. With --data the "
        "default is the longest line, at most 64", **positive)
    add(task, "--vocab-size", "number of token ids; the first three are padding, start and end", metavar="N",
        type=whole_number(FIRST + 2))
    add(task, "--data", "learn the task on the lines of this UTF-8 text file, characters as tokens", metavar="FILE")
    model = parser.add_argument_group("the model")
    add(model, "--d-model", "width of each position's vector, a multiple of --n-heads; d_ff is 4 times it", **positive)
    add(model, "--n-heads", "attention heads in each layer", **positive)
    add(model, "--n-layers", "layers in the encoder, and as many in the decoder", **positive)
    add(model, "--dropout", "probability of dropping a value, in [0, 1). The paper has 0.1; these tasks have endless "
        "data and nothing to overfit", metavar="P", type=number(lambda p: 0 <= p < 1, "in [0, 1)"))
    add(model, "--tie-embeddings", "one matrix as source embedding, target embedding and output projection, as in "
        "section 3.4 (default: three)", action="store_true")
    training = parser.add_argument_group("training")
    add(training, "--batch-size", "sequences in a batch; smaller is faster a step and noisier", **positive)
    add(training, "--lr", "the peak of the learning rate curve of section 5.3 (default: the paper's, "
        "(d_model * warmup)^-0.5); a run that stops during the warm-up does not reach it", metavar="X",
        type=number(lambda x: 0 < x < math.inf, "a number above 0"))
    add(training, "--warmup", "steps in which the learning rate rises (default: 3000 + 375 * seq-len). The paper has "
        "4000 for d_model 512; short runs end before the rate falls. If the loss jumps about, raise it", **positive)
    add(training, "--label-smoothing", "share of each target spread over all classes, in [0, 1)", metavar="E",
        type=number(lambda p: 0 <= p < 1, "in [0, 1)"))
    add(training, "--seed", "fixes weights, batches and dropout", metavar="N", type=whole_number(0))
    add(training, "--max-steps", f"stop after this step, counted from 1 also after --resume (default: {MAX_STEPS})",
        **positive)
    add(training, "--epochs", f"the same in epochs of {EPOCH} batches; not together with --max-steps", **positive)
    add(training, "--no-early-stop", "go on to the last step; by default training stops when five validations in a "
        "row reach the target exact match, or 1.0 where that is 0", action="store_true")
    add(training, "--target-exact-match", "share of test sequences to get entirely right for exit status 0 (default: "
        "1.0, or 0 with --data)", metavar="X", type=number(lambda x: 0 <= x <= 1, "in [0, 1]"))
    add(training, "--threads", "BLAS threads (default: 1 for models under "
        f"{SMALL_MODEL:,} parameters, else what NumPy takes)", **positive)
    files = parser.add_argument_group("checkpoints and results")
    add(files, "--checkpoint", "where the model is kept (default: checkpoints/<task>.npz)", metavar="PATH", type=Path)
    add(files, "--checkpoint-every", f"steps between two checkpoints (default: {EPOCH})", **positive)
    add(files, "--resume", "go on from the checkpoint, bit for bit as if never stopped", action="store_true")
    add(files, "--metrics-file", "also write every figure to this file as JSON lines", metavar="PATH", type=Path)
    add(files, "--predict", 'decode your own sequence with the checkpoint, e.g. --predict "5 3 9"', metavar="TOKENS")
    study = parser.add_argument_group("experiments")
    add(study, "--inject-bug", "train with one named mistake; --inject-bug list names them", metavar="NAME")
    add(study, "--with-exercises", "train with your own classes from exercises/ in place of the library's",
        action="store_true")

    argv = [re.sub(r"^--[a-z_]+", lambda option: option[0].replace("_", "-"), argument) for argument in argv]
    options = vars(parser.parse_args(argv))
    if "epochs" in options and "max_steps" in options:
        raise UsageError("--epochs and --max-steps say the same thing: give one of them")
    if options.get("seq_len", 4) < 4:
        raise UsageError(f"--seq-len must be at least 4, got {options['seq_len']}: shorter sequences are all training "
                         "data, so nothing would be left to test on")
    if options.get("seq_len", 4) >= LONGEST:
        raise UsageError(f"--seq-len must be below {LONGEST}, the length of the model's table of positions, got "
                         f"{options['seq_len']}")
    if "inject_bug" in options and "with_exercises" in options:
        raise UsageError("--inject-bug and --with-exercises both replace layers: give one of them")
    if "data" in options and "vocab_size" in options:
        raise UsageError("--vocab-size does not go with --data: the vocabulary is built from the file")
    return options


def say(line=""):
    with tqdm.external_write_mode():                                       # above the progress bar, if there is one
        print(line, flush=True)


def warn(line):
    print("train_minimal.py:", *line.splitlines(), file=sys.stderr)


def percent(share):
    return f"{100 * share:.1f} %"


def describe(run, path):
    s, model = run.settings, run.model
    say(f"Transformer: {s['n_layers']} + {s['n_layers']} layers, d_model {s['d_model']}, {s['n_heads']} heads, "
        f"d_ff {4 * s['d_model']}, vocabulary {s['vocab_size']}, {model.num_parameters():,} parameters, {model.dtype}")
    what = (f"sequences of 1 to {s['seq_len']} numbers from {FIRST} to {s['vocab_size'] - 1}" if s["data"] is None
            else f"{len(run.data.lines['train']):,} lines of {s['data']}, up to {s['seq_len']} characters")
    say(f"Task: {s['task']} {what}; held out {len(run.held_out['validation']):,} for validation, "
        f"{len(run.held_out['test']):,} for the test")
    say(f"Checkpoint: {path}")
    for note in run.notes:
        say(note)


def train(run, options, path, record):
    """Train until the validations are perfect or the steps are up. A first Ctrl-C finishes the step, saves and then
    raises KeyboardInterrupt; a second one does not wait."""
    last = options.get("max_steps", options.get("epochs", MAX_STEPS // EPOCH) * EPOCH)
    every, level, interrupted = options.get("checkpoint_every", EPOCH), options.get("target_exact_match") or 1.0, []

    def perfect():
        return "no_early_stop" not in options and run.perfect(level)

    def finish_this_step(*_):
        interrupted.append(True)
        signal.signal(signal.SIGINT, previous)                 # a second Ctrl-C does not wait

    previous = signal.signal(signal.SIGINT, finish_this_step)
    sample = run.held_out["validation"][-1]
    vocabulary = run.data.vocabulary
    try:
        with tqdm(total=last, initial=min(run.step, last), disable=None, leave=False,
                  bar_format="{n_fmt}/{total_fmt} {bar} {remaining}{postfix}") as bar:
            while run.step < last and not interrupted and not perfect():
                run.train_step()
                bar.update()
                if run.step % RECORD == 0:
                    entry = run.history[-1]
                    bar.set_postfix_str(f"loss {entry['loss']:.3f}, rate {entry['learning_rate']:.5f}, "
                                        f"tokens {percent(entry['token_accuracy'])}, "
                                        f"exact {percent((run.exact_matches() or [0.0])[-1])}", refresh=False)
                    record({"event": "train", **entry})
                if run.step % EPOCH == 0:
                    with run.averaged():
                        answer = show_tokens(run.decode([sample])[0], vocabulary)
                    say(f"step {run.step:5d}  loss {entry['loss']:.3f}  rate {entry['learning_rate']:.5f}  "
                        f"token accuracy {percent(entry['token_accuracy']):>7}  "
                        f"exact match {percent(entry['exact_match']):>7}  "
                        f"| {show_tokens(sample, vocabulary)} -> {answer}")
                if run.step % every == 0:
                    run.save(path)
    finally:
        signal.signal(signal.SIGINT, previous)
    if run.saved != run.step:
        run.save(path)
    if interrupted:
        raise KeyboardInterrupt
    say(f"Stopped at step {run.step}: "
        + (f"five validations in a row reached {percent(level)}" if perfect() else "no steps left"))


def report(run, path, record, started):
    """Print and record what the test set says. Returns the share of test sequences that are entirely right."""
    test, vocabulary = run.held_out["test"], run.data.vocabulary
    exact = run.exact(test)
    loss, token_accuracy = run.teacher_forced(test)
    say(f"\nTest on {len(test):,} sequences never trained on: exact match {percent(exact.mean())} when decoding "
        f"freely;\ntoken accuracy {percent(token_accuracy)} and loss {loss:.4f} when fed the right tokens so far")
    lengths = np.array([len(tokens) for tokens in test])
    for length in np.unique(lengths):
        right = exact[lengths == length]
        say(f"  length {length:2d}: {right.sum():4d} of {len(right):4d}")
    short = run.data.short()
    if short:
        say(f"  lengths 1 and 2, seen in training: {run.exact(short).sum():4d} of {len(short):4d}")
    examples = [test[i] for i in np.linspace(0, len(test) - 1, 3).astype(int)]
    for tokens, answer in zip(examples, run.decode(examples)):
        say(f"  {show_tokens(tokens, vocabulary)} -> {show_tokens(answer, vocabulary)}")
    for drawn in (examples[1], min(examples, key=len)):                # the shortest, where the other is too wide
        lines = list(heatmap(run, drawn))
        if columns(lines[1]) <= shutil.get_terminal_size().columns:
            break
    say("\n".join(lines))
    shown = show_tokens(drawn, vocabulary)
    say(f"\nThe model is in {path}. To plot its attention:\n  python visualization.py --checkpoint "
        f"{shlex.quote(str(path))} --input {shlex.quote(shown) if vocabulary else json.dumps(shown)} --out figures")
    record({"event": "final", "task": run.settings["task"], "test_exact_match": float(exact.mean()), "test_loss": loss,
            "test_token_accuracy": token_accuracy, "steps": run.step, "seconds": time.perf_counter() - started})
    return float(exact.mean())


def heatmap(run, tokens):
    """The cross-attention of the last decoder layer, mean over heads, as lines of text: darker is more."""
    src, _ = run.pack([tokens])
    src = src[:, :len(tokens) + 1]
    answer = greedy_decode(run.model, src, run.settings["seq_len"] + 1)
    written = np.concatenate([[[START]], answer], axis=1)[:, :-1]
    with eval_mode(run.model):
        run.model(src, written, *make_masks(src, written))
    weights = run.model.decoder_layers[-1].cross_attention.get_attention_weights()[0].mean(axis=0)
    sources, answers = ([token_label(token, run.data.vocabulary) for token in row] for row in (src[0], answer[0]))
    width = max(map(columns, sources + answers)) + 1
    yield "Cross-attention of the last layer: a row is a token being written, a column one being read"
    for label, cells in [("", sources), *zip(answers, [[" .:-=+*#%@"[min(int(10 * w), 9)] * 2 for w in row]
                                                       for row in weights])]:
        yield "  " + "".join(" " * (width - columns(cell)) + cell for cell in (label, *cells))


def columns(text):
    """How many columns of a terminal text takes: wide letters two, marks that join the letter before them none."""
    return sum((unicodedata.east_asian_width(letter) in "WF") + (unicodedata.category(letter) not in ("Mn", "Me"))
               for letter in text)


def predict(options, path):
    checkpoint = open_checkpoint(options, path)
    settings, vocabulary, model = checkpoint.settings, checkpoint.vocabulary, checkpoint.model
    try:
        tokens = parse_tokens(options["predict"], model.config["src_vocab_size"], vocabulary)
        longest = settings.get("seq_len")
        if isinstance(longest, int) and len(tokens) > longest:
            warn(f"warning: {len(tokens)} tokens, but the model was trained on at most {longest}")
        src = np.array([[*tokens, END]])
        as_trained(model, settings)
        with threadpool_limits(options.get("threads", 1), "blas"):
            answer = greedy_decode(model, src, len(tokens) + 1)[0]
    except ValueError as error:
        raise UsageError(str(error)) from None
    print(f"{show_tokens(tokens, vocabulary)} -> {show_tokens(answer, vocabulary)}")
    return 0


def open_checkpoint(options, path):
    """The checkpoint at path, when it fits the options that were given."""
    if not path.exists():
        raise UsageError(f"there is no checkpoint {path}; train one with: python train_minimal.py "
                         f"--task {options.get('task', DEFAULTS['task'])} --checkpoint {path}")
    checkpoint = load_checkpoint(path)
    for name, value in options.items():
        saved = checkpoint.settings.get(name)
        moved = name == "data" and saved is not None                    # what counts is what is in the file: see Run
        if name in SAVED and saved != value and not moved:
            raise UsageError(f"{flag(name)} {value} does not fit {path}, which has {saved}")
    return checkpoint


def flag(name):
    return "--" + name.replace("_", "-")


def check_run(checkpoint):
    """CheckpointError unless a run can go on from the checkpoint: a model alone, or another program's state, cannot."""
    state, optimizer, step = checkpoint.state, checkpoint.optimizer, checkpoint.step
    try:
        settings = {name: state["settings"][name] for name in DEFAULTS}
        settings = {name: value for name, value in settings.items()
                    if (name, value) not in (("data", None), ("lr", None), ("tie_embeddings", False))
                    and not (name == "vocab_size" and settings["data"])}
        whole = (settings == parse_arguments([flag(name) + ("" if value is True else f"={value}")
                                              for name, value in settings.items()])
                 and isinstance(step, int) and step >= 0 and optimizer is not None and optimizer.steps == step
                 and isinstance(state["history"], list))
        np.random.default_rng().bit_generator.state = state["random_state"]
    except (UsageError, KeyError, TypeError, ValueError, OverflowError):
        whole = False
    if not whole:
        raise CheckpointError(f"{checkpoint.path} holds a model but no run that could be resumed")


def keep_previous(path):
    """A checkpoint that a new run would replace is kept beside, under a name of its own."""
    if path.exists():
        previous = path.with_name(path.stem + ".previous.npz")
        try:
            with replacing(previous) as beside:
                shutil.copyfile(path, beside)
        except OSError as error:
            raise UsageError(f"cannot keep the checkpoint {path} as {previous}: {error.strerror}") from None
        say(f"The checkpoint that was at {path} is kept as {previous}")


def open_metrics(path, history):
    """A function that adds one event to the metrics file, or does nothing where none is wanted.

    The file begins with the history, so that after --resume it holds the whole run, each step once.
    """
    def write(events, mode):
        try:
            with open(path, mode, encoding="utf-8") as file:
                file.writelines(json.dumps(event) + "\n" for event in events)
        except OSError as error:
            raise UsageError(f"cannot write --metrics-file {path}: {error.strerror}") from None

    if path is None:
        return lambda event: None
    write([{"event": "train", **entry} for entry in history], "w")
    return lambda event: write([event], "a")


def run_command(options):
    task = options.get("task", DEFAULTS["task"])
    name = "-".join(filter(None, (task, options.get("inject_bug"), options.get("with_exercises") and "exercises")))
    path = options.get("checkpoint", Path("checkpoints") / f"{name}.npz")
    if options.get("inject_bug") == "list":
        for bug, sentence in load_extra("bugs").BUGS.items():
            print(f"{bug:<32}{sentence}")
        return 0
    if "inject_bug" in options and options["inject_bug"] not in load_extra("bugs").BUGS:
        raise UsageError(f"there is no bug {options['inject_bug']!r}; --inject-bug list names them")
    if path.exists() and not path.is_file():
        raise UsageError(f"--checkpoint {path} is not a file")
    if "predict" in options:
        return predict(options, path)
    settings, checkpoint = DEFAULTS, None
    if "resume" in options:
        checkpoint = open_checkpoint(options, path)
        check_run(checkpoint)
        settings = checkpoint.state["settings"]
    settings = {**settings, **{name: options[name] for name in SAVED if name in options}}
    if settings["data"] is not None and "seq_len" not in options and checkpoint is None:
        settings["seq_len"] = None
    started, run = time.perf_counter(), Run(settings, checkpoint)
    record = open_metrics(options.get("metrics_file"), run.history)
    threads = options.get("threads", 1 if run.model.num_parameters() < SMALL_MODEL else None)
    with threadpool_limits(threads, "blas"), np.errstate(over="ignore", invalid="ignore"):         # see Run.check
        if checkpoint is None:
            keep_previous(path)
            run.save(path)
        describe(run, path)
        say(f"Threads: {threads or 'as many as NumPy takes'}"
            + ("" if "threads" in options or threads is None else "; small models are fastest on one (--threads N)"))
        try:
            train(run, options, path, record)
            with run.averaged():
                reached = report(run, path, record, started)
        except KeyboardInterrupt:
            say(f"Interrupted; everything up to step {run.saved} is in {path}. To go on:\n"
                f"  {resume_command(run, options, path)}")
            return 130
    target = options.get("target_exact_match", 1.0 if settings["data"] is None else 0.0)
    if reached < target:
        say(f"The target exact match of {percent(target)} was not reached.")
        return 1
    return 0


def resume_command(run, options, path):
    """The command that goes on with a run; what the checkpoint does not hold is asked for again."""
    words = ["python", "train_minimal.py", "--resume", "--task", run.settings["task"], "--checkpoint", str(path)]
    for name, value in options.items():
        if name not in (*SAVED, "resume", "checkpoint"):
            words += [flag(name)] if value is True else [flag(name), str(value)]
    return shlex.join(words)


def main(argv=None):
    """Run the command line and return its exit status."""
    try:
        return run_command(parse_arguments(sys.argv[1:] if argv is None else argv))
    except (UsageError, DataError, CheckpointError) as error:
        warn(f"error: {error}")
        return 2
    except Diverged as error:
        warn(f"error: {error}")
        return 1
    except MemoryError:
        warn("error: a model or batch of this size does not fit into memory")
        return 2
    except BrokenPipeError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())       # whoever read the output has gone
        return 130 if isinstance(error.__context__, KeyboardInterrupt) else 1
    except OSError as error:
        warn(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")               # for letters that the terminal cannot show
    sys.exit(main())
