"""What is measured: each function here is one section of the results, a plain dict or list of numbers for JSON."""

import contextlib
import json
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

import products
from steps import DROPOUT, SIZES, OurStep, Size

from implementation import Transformer, create_causal_mask, create_padding_mask, linear              # noqa: E402
from train_minimal import DEFAULTS, Run, copy_into, eval_mode, greedy_decode                         # noqa: E402

try:
    import torch
    import torch_steps
except ModuleNotFoundError:
    torch = None

clock = time.perf_counter


class Settings:
    """How thorough a run is."""

    def __init__(self, quick=False, threads=1, report=print):
        self.quick, self.threads, self.report = quick, threads, report
        self.rounds = 5 if quick else 7
        self.slice = 0.02 if quick else 0.1             # seconds that a candidate runs in each round, at least once
        self.decoded_lengths = (16, 256) if quick else (16, 64, 256, 512)


@contextlib.contextmanager
def blas_threads(count):
    """``count`` threads for NumPy's products and for PyTorch."""
    with threadpool_limits(limits=count):
        before = torch and torch.get_num_threads()
        if torch:
            torch.set_num_threads(count)
        try:
            yield
        finally:
            if torch:
                torch.set_num_threads(before)


def interleaved(groups, rounds, slice_seconds=0.0):
    """Time every function of every group, all groups in turn in each round: {name: [seconds a call, each round]}.

    A group is a dict of functions that run one after the other, like the parts of a step. It is repeated until it has
    run for slice_seconds, so that in short steps it runs on its own data in the cache, as in training.
    """
    repeats = []
    for group in groups:                                        # a first, untimed call of each
        start = clock()
        for function in group.values():
            function()
        repeats.append(max(1, round(slice_seconds / (clock() - start))))
    times = {name: [] for group in groups for name in group}
    for _ in range(rounds):
        for group, repeat in zip(groups, repeats):
            spent = dict.fromkeys(group, 0.0)
            for _ in range(repeat):
                for name, function in group.items():
                    start = clock()
                    function()
                    spent[name] += clock() - start
            for name, seconds in spent.items():
                times[name].append(seconds / repeat)
    return times


def medians(times):
    return {name: statistics.median(seconds) for name, seconds in times.items()}


# ---------------------------------------------------------------------------------------------- one training step


def step(settings):
    """Ours, PyTorch's and the floor for every size, in milliseconds."""
    results = []
    for name, size in SIZES.items():
        if settings.quick and name == "base_37k":
            continue
        settings.report(f"step: {name}")
        ours = OurStep(size)
        replay = products.Replay(products.record_step(size)[1])
        groups = [{"gradients": ours.gradients, "update": ours.update}, {"floor": replay}]
        if torch:
            theirs = torch_steps.TorchStep(ours)
            groups.append({"torch_gradients": theirs.gradients, "torch_update": theirs.update,
                           "torch_fused_update": theirs.fused_update})
        rounds = settings.rounds if size.d_model > 128 or settings.quick else 2 * settings.rounds
        with blas_threads(settings.threads):
            times = interleaved(groups, rounds, settings.slice)
        results.append({"size": name, **vars(size), "parameters": ours.model.num_parameters(), "rounds": rounds,
                        "products": len(replay.calls), "gflop": replay.flops() / 1e9,
                        **{f"{part}_ms": 1e3 * seconds for part, seconds in medians(times).items()}})
    return results


# ------------------------------------------------------------------------------------------------------- learning


class TimedRun(Run):
    """A training run that knows how long its steps took, validations apart. Batches come from a generator of their own,
    so that dropout does not change which batches are seen."""

    def __init__(self, settings):
        super().__init__(settings)
        self.rng = np.random.default_rng(settings["seed"] + 1)
        self.validating = 0.0

    def exact(self, sequences):
        start = clock()
        try:
            return self.exact_match_of(sequences)
        finally:
            self.validating += clock() - start

    def exact_match_of(self, sequences):
        return super().exact(sequences)

    def until_perfect(self, max_steps):
        start = clock()
        while not self.perfect() and self.step < max_steps:
            self.train_step()
        return {"steps": self.step, "seconds": clock() - start - self.validating, "perfect": self.perfect()}


class TorchRun(TimedRun):
    """The same run with PyTorch's forward, backward and Adam. To validate, the weights come back into our model."""

    def __init__(self, settings):
        super().__init__(settings)
        self.ours, self.model = self.model, torch_steps.TorchInPlace(self.model)
        self.optimizer = torch_steps.TorchAdam(self.model)

    def exact_match_of(self, sequences):
        theirs, self.model = self.model, self.ours
        try:
            copy_into(self.ours.named_parameters(), theirs.named_parameters())
            return super().exact_match_of(sequences)
        finally:
            self.model = theirs


def learning(settings):
    """Steps and seconds until training would stop by itself, on copy and reverse with the defaults of training."""
    results = []
    for task in ("copy",) if settings.quick else ("copy", "reverse"):
        smaller = dict(seq_len=4, d_model=32, n_layers=1, warmup=100) if settings.quick else {}
        row = {"task": task, "runs": {}}
        for side, run_class in {"ours": TimedRun, "torch": TorchRun}.items():
            if side == "torch" and not torch:
                continue
            settings.report(f"learning: {task}, {side}")
            with blas_threads(settings.threads):
                row["runs"][side] = run_class({**DEFAULTS, "task": task, **smaller}).until_perfect(6000)
        results.append(row)
    return results


# ------------------------------------------------------------------------------------------------------- decoding


def greedy_recomputing(model, src, max_len):
    """Greedy decoding without cached keys and values: each step computes every position so far once more."""
    src_mask = create_padding_mask(src)
    with eval_mode(model):
        encoder_output = model.encode(src, src_mask)
        tokens = np.ones((len(src), 1), dtype=int)
        for _ in range(max_len):
            x = model.decode(tokens, encoder_output, create_causal_mask(tokens.shape[1]), src_mask)
            newest = linear(x[:, -1], model.output_projection).argmax(axis=-1)
            tokens = np.concatenate([tokens, newest[:, None]], axis=1)
    return tokens[:, 1:]


def greedy_cached(model, src, max_len):
    return greedy_decode(model, src, max_len, end_token=-1)                 # no answer ends before max_len


def seconds_at_position(model, src, positions, rounds):
    """The median time of a decode_step that adds the position with this number, for each of positions."""
    src_mask, times = create_padding_mask(src), {position: [] for position in positions}
    with eval_mode(model):
        encoder_output = model.encode(src, src_mask)
        for _ in range(rounds):
            state, token = model.start_decoding(encoder_output, src_mask), np.ones(len(src), dtype=int)
            for position in range(max(positions) + 6):
                start = clock()
                token = model.decode_step(token, state).argmax(axis=-1)
                for wanted in positions:
                    if abs(position - wanted) <= 5:
                        times[wanted].append(clock() - start)
    return {position: statistics.median(seconds) for position, seconds in times.items()}


def decoding(settings):
    """Greedy decoding against length: tokens a second with cached keys and values, recomputing, and in PyTorch."""
    results = []
    for name, batch in (("teaching", 1), ("teaching", 8), ("middle", 1)):
        if settings.quick and (name, batch) != ("teaching", 1):
            continue
        size = SIZES[name]
        model = Transformer(*size.model_sizes(), DROPOUT, 520, rng=3)
        src = np.random.default_rng(1).integers(3, size.vocab, (batch, 16))
        theirs = torch and torch_steps.TorchModel(model)
        row = {"size": name, "batch": batch, "source_length": 16, "lengths": []}
        with blas_threads(settings.threads):
            for length in settings.decoded_lengths:
                settings.report(f"decoding: {name}, batch {batch}, length {length}")
                groups, same = [{"cached": lambda: greedy_cached(model, src, length)}], None
                if length <= 256:
                    same = bool((greedy_cached(model, src, length) == greedy_recomputing(model, src, length)).all())
                    groups.append({"recomputed": lambda: greedy_recomputing(model, src, length)})
                    if torch and not settings.quick:
                        groups.append({"torch": lambda: torch_steps.greedy_recomputing(theirs, src, length)})
                seconds = medians(interleaved(groups, 5))
                row["lengths"].append({"length": length, "same_tokens": same, "tokens_per_second": {
                    side: batch * length / value for side, value in seconds.items()}})
            row["ms_at_position"] = {str(position): 1e3 * seconds for position, seconds
                                     in seconds_at_position(model, src, (10, 500), 2 if settings.quick else 5).items()}
        results.append(row)
    return results


# --------------------------------------------------------------------------------------------------------- memory


def memory(settings):
    """The peak of a step beyond the imports, in MB, each side in a process of its own (Linux)."""
    results = []
    for name in ("teaching",) if settings.quick else ("teaching", "middle", "base"):
        row = {"size": name}
        for side in ("ours", "torch") if torch else ("ours",):
            settings.report(f"memory: {name}, {side}")
            process = subprocess.run([sys.executable, str(Path(__file__).with_name("peak_memory.py")), side, name],
                                     capture_output=True, text=True)
            if process.returncode:
                settings.report(f"memory: not measured ({process.stderr.strip().splitlines()[-1]})")
            else:
                row[f"{side}_mb"] = json.loads(process.stdout)["peak_mb"]
        results.append(row)
    return results


# --------------------------------------------------------------------------------------------------------- growth


class AttentionClock:
    """Adds up the time inside the attentions of a model, Q K^T to A V: the part of a step that grows with n^2."""

    def __init__(self, model):
        self.seconds = 0.0
        for layer in model.layers():
            if hasattr(layer, "attention_weights"):
                layer.forward, layer.backward = self.timed(layer.forward), self.timed(layer.backward)

    def timed(self, function):
        def call(*args):
            start = clock()
            try:
                return function(*args)
            finally:
                self.seconds += clock() - start
        return call


def growth_point(size, rounds):
    """Medians of a step's time and of the attentions' share of it, and the peak of what a step allocates."""
    step = OurStep(size)
    attention, whole, inside = AttentionClock(step.model), [], []
    step()
    for _ in range(rounds):
        attention.seconds, start = 0.0, clock()
        step()
        whole.append(clock() - start)
        inside.append(attention.seconds)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    step()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"step_ms": 1e3 * statistics.median(whole), "attention_ms": 1e3 * statistics.median(inside),
            "memory_mb": (peak - before) / 2**20}


def exponent(points, x, y, least):
    """The slope of log y against log x over the points with x of at least ``least``."""
    chosen = [point for point in points if point[x] >= least]
    return float(np.polyfit(np.log([point[x] for point in chosen]), np.log([point[y] for point in chosen]), 1)[0])


def crossing(points, x, y, z):
    """Where y overtakes z, between two points on straight lines in logarithms; None when it does not."""
    for left, right in zip(points, points[1:]):
        a, b = np.log(left[y] / left[z]), np.log(right[y] / right[z])
        if a < 0 <= b:
            return float(np.exp(np.interp(0, [a, b], np.log([left[x], right[x]]))))
    return None


def growth(settings):
    """One encoder and one decoder layer against length n (d_model 64) and against width d (length 32)."""
    lengths = (16, 32, 64, 128, 256) if settings.quick else (16, 32, 64, 128, 256, 512, 1024)
    widths = (64, 128, 256) if settings.quick else (64, 128, 256, 512, 1024)
    rounds = 5 if settings.quick else 7
    by_length, by_width = [], []
    with blas_threads(settings.threads):
        for n in lengths:
            settings.report(f"growth: length {n}")
            by_length.append({"length": n, **growth_point(Size(64, 4, 1, 256, 2, n, 100), rounds)})
        for d in widths:
            settings.report(f"growth: width {d}")
            by_width.append({"width": d, **growth_point(Size(d, max(1, d // 64), 1, 4 * d, 2, 32, 100), rounds)})
    for point in by_length:
        point["rest_ms"] = point["step_ms"] - point["attention_ms"]
    last = lengths[-1] // 8
    return {"d_model": 64, "n_heads": 4, "d_ff": 256, "batch": 2, "length_of_widths": 32,
            "by_length": by_length, "by_width": by_width,
            "exponents": {"attention_from": last,
                          "attention_time": exponent(by_length, "length", "attention_ms", last),
                          "rest_time": exponent(by_length, "length", "rest_ms", last),
                          "step_time": exponent(by_length, "length", "step_ms", last),
                          "memory": exponent(by_length, "length", "memory_mb", last),
                          "width_from": widths[-1] // 4,
                          "width_time": exponent(by_width, "width", "step_ms", widths[-1] // 4),
                          "width_memory": exponent(by_width, "width", "memory_mb", widths[-1] // 4)},
            "attention_overtakes_at": crossing(by_length, "length", "attention_ms", "rest_ms")}


# -------------------------------------------------------------------------------------------------------- threads


@contextlib.contextmanager
def busy_process():
    """Another program that keeps one processor busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def threads(settings):
    """A step with one and with two BLAS threads, alone and beside one busy process, in milliseconds."""
    results = []
    for name in ("teaching",) if settings.quick else ("teaching", "d128", "middle", "base"):
        step, row = OurStep(SIZES[name]), {"size": name}
        for beside, company in {"alone": contextlib.nullcontext, "beside": busy_process}.items():
            settings.report(f"threads: {name}, {beside}")
            times = {1: [], 2: []}
            with company():
                for _ in range(6):
                    for count in times:
                        with threadpool_limits(limits=count):
                            start = clock()
                            step()
                            times[count].append(clock() - start)
            for count, seconds in times.items():
                row[f"{beside}_{count}_ms"] = 1e3 * statistics.median(seconds[1:])
        results.append(row)
    return results


SECTIONS = {function.__name__: function for function in (step, learning, decoding, memory, growth, threads)}
