"""A submission in a process of its own: arrays go in, arrays come out, nothing else is believed.

Both ends of the pipe are here. ``Submission`` is the grader's end. Run as a program, this file is the other end: it
sets its limits, loads the submission, and then answers requests. A request names what to call and carries the input
arrays, which the grader draws after the submission was loaded. Nothing is compared here, so there is nothing to patch.
"""

import functools
import hashlib
import json
import os
import queue
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
from pathlib import Path

import numpy as np

TIME_LIMIT = 10.0                       # seconds for loading, and for one request
PATIENCE = 6                            # times this long, when a busy machine gives it less than half of that
MEMORY_LIMIT = 2 * 2**30                # bytes of address space
OUTPUT_LIMIT = 4 * 2**20                # bytes that a submission may print
REPLY_LIMIT = 2**26                     # bytes of one reply

INPUTS_KEPT = "inputs kept"              # the result that says of each argument whether it is as it was

ROOT = Path(__file__).resolve().parents[1]


# ------------------------------------------------------------------------------------------------- the messages


def pack(header, arrays):
    """A dict and named arrays as bytes: a length, the dict as JSON with the arrays' types and shapes, their bytes."""
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    listed = [[name, array.dtype.str, np.shape(array)] for name, array in arrays.items()]
    head = json.dumps({**header, "arrays": listed}).encode()
    body = struct.pack("<I", len(head)) + head + b"".join(array.tobytes() for array in arrays.values())
    return struct.pack("<Q", len(body)) + body


def unpack(body):
    """What ``pack`` packed, without the first length. ValueError for anything else; no pickle, no objects."""
    try:
        size, = struct.unpack_from("<I", body)
        header = json.loads(body[4:4 + size])
        arrays, at = {}, 4 + size
        for name, dtype, shape in header.pop("arrays"):
            dtype = np.dtype(dtype)
            if dtype.kind not in "biufc" or any(n < 0 for n in shape):
                raise ValueError(f"not an array of numbers: {dtype}")
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(body, dtype, count, at).reshape(shape).copy()
            at += count * dtype.itemsize
    except (struct.error, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise ValueError(f"not a message: {problem}") from None
    return header, arrays


def read_message(stream, limit=REPLY_LIMIT):
    """The bytes of the next message, or None at the end of the stream."""
    length = stream.read(8)
    if len(length) < 8 or struct.unpack("<Q", length)[0] > limit:
        return None
    return stream.read(struct.unpack("<Q", length)[0])


# ------------------------------------------------------------------------- what a request asks for, on either end


def resolve(owner, dotted):
    """(object, last name) for a dotted name such as encoder_layers.0.norm1.gamma."""
    *path, last = dotted.split(".")
    for name in path:
        owner = owner[int(name)] if name.isdigit() else getattr(owner, name)
    return owner, last


def execute(request, namespace, arrays):
    """Carry a request out and return its named results as arrays.

    request: ``new`` [class, keyword arguments] or None for functions; ``calls``, each [name, arguments (a string names
    an array), keyword arguments, names of results]; ``read``, {name of a result: dotted attribute} after all calls.
    Arrays named ``weights.X`` are put into X of the new object. A last result says whether arguments were left alone.
    """
    arrays = {name: array.copy() for name, array in arrays.items()}
    before = {name: array.copy() for name, array in arrays.items()}
    target, results = namespace, {}
    if request["new"]:
        name, kwargs = request["new"]
        target = lookup(namespace, name)(**{k: np.dtype(v) if k == "dtype" else v for k, v in kwargs.items()})
        for name, value in arrays.items():
            if name.startswith("weights."):
                owner, last = resolve(target, name.removeprefix("weights."))
                getattr(owner, last)[...] = value
    used = []
    for call, arguments, kwargs, names in request["calls"]:
        function = lookup(target, call)
        used += [name for name in arguments if isinstance(name, str) and name not in used]
        result = function(*(arrays[a] if isinstance(a, str) else a for a in arguments), **kwargs)
        if len(names) == 1:
            result = (result,)
        elif names and not (isinstance(result, (tuple, list)) and len(result) == len(names)):
            raise TypeError(f"{call} should return {len(names)} arrays ({', '.join(names)}), not {kind_of(result)}")
        for name, value in zip(names, result if names else ()):
            results[name] = as_array(value, call)
    for name, dotted in request.get("read", {}).items():
        owner, last = resolve(target, dotted)
        results[name] = as_array(lookup(owner, last), dotted)
    results[INPUTS_KEPT] = np.array([np.array_equal(arrays[name], before[name]) for name in used])
    return results


def lookup(owner, name):
    try:
        return owner[name] if isinstance(owner, dict) else getattr(owner, name)
    except (KeyError, AttributeError):
        raise AttributeError(f"{name} is missing") from None


def kind_of(value):
    if isinstance(value, (tuple, list)):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"one {type(value).__name__}"


def as_array(value, where):
    array = np.asarray(value) if value is not None else None
    if array is None or array.dtype.kind not in "biufc":
        raise TypeError(f"{where} gave {kind_of(value)} where an array of numbers is due")
    return array


# --------------------------------------------------------------------------------------------- the grader's end


class Stopped(Exception):
    """The submission's process is gone. status is "error" or "timeout", the text says how it ended."""

    def __init__(self, status, text):
        super().__init__(text)
        self.status = status


class Submission:
    """A running process for one submission. ``notes`` collects what it did to NumPy's global state."""

    def __init__(self, time_limit=TIME_LIMIT, memory_limit=MEMORY_LIMIT):
        self.time_limit, self.memory_limit = time_limit, memory_limit
        self.notes, self.output = [], ""
        self.log = tempfile.TemporaryFile()
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL", "VECLIB_MAXIMUM")}
        self.process = subprocess.Popen([sys.executable, str(Path(__file__).resolve())], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, start_new_session=True,
                                        env={**os.environ, **threads, "PYTHONDONTWRITEBYTECODE": "1"})
        self.replies = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def load(self, path, source, library, hidden):
        """Load the source (bytes) of the file at path. Returns the error of its loading, or None.

        library: the text of ``implementation`` without what the exercise asks for. hidden: the names left out of it.
        """
        header = {"path": str(Path(path).resolve()), "library": library, "hidden": sorted(hidden),
                  "memory_limit": self.memory_limit}
        return self._ask(header, {"source": np.frombuffer(source, np.uint8)})[1]

    def _listen(self):
        while (body := read_message(self.process.stdout)) is not None:
            self.replies.put(body)
        self.replies.put(None)

    def _ask(self, header, arrays):
        nonce = os.urandom(16).hex()
        try:
            self.process.stdin.write(pack({**header, "nonce": nonce}, arrays))
            self.process.stdin.flush()
            body = self._next_reply()
        except queue.Empty:
            text = f"no answer within {self.time_limit:g} seconds: is there an endless loop?"
            raise self._stopped("timeout", text) from None
        except (BrokenPipeError, OSError):
            body = None
        if body is None:
            raise self._stopped("error", self._epitaph())
        try:
            reply, results = unpack(body)
            if reply.get("nonce") != nonce:
                raise ValueError("an answer to no question")
        except ValueError:
            text = "the file wrote into the grader's channel; only its return values count"
            raise self._stopped("error", text) from None
        self.notes += [note for note in reply["notes"] if note not in self.notes]
        return results, reply["error"]

    def _next_reply(self):
        """The next reply. A process that ran out of time because others kept the machine busy is given more."""
        began = self._processor_seconds()
        for _ in range(PATIENCE):
            try:
                return self.replies.get(timeout=self.time_limit)
            except queue.Empty:
                now = self._processor_seconds()
                if now is None or began is None or now - began > self.time_limit / 2:
                    break
        raise queue.Empty

    def _processor_seconds(self):
        """What the process has used; None when it sleeps, or where this cannot be told."""
        try:
            fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "S" else (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _stopped(self, status, text):
        self.close()
        return Stopped(status, text)

    def run(self, request, arrays):
        """The named results of ``execute`` in the process, and the error there or None.

        An error is a dict: type, text, line (number in the submission, or None) and code (the text of that line).
        """
        return self._ask({"request": request}, arrays)

    def _epitaph(self):
        try:
            status = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "the file closed the grader's channel"
        if status < 0:
            name = signal.Signals(-status).name
            return f"the process crashed ({name})"
        return f"the file ended its own process (exit status {status}) before it answered; that counts as no answer"

    def close(self):
        """End the process and all that it started, and keep the last of what it printed in ``output``."""
        if self.log.closed:
            return
        if self.process.poll() is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except (AttributeError, ProcessLookupError, PermissionError):
                self.process.kill()
        self.process.wait()
        self.log.seek(max(0, self.log.seek(0, os.SEEK_END) - 2000))
        self.output = self.log.read().decode("utf-8", "replace").strip()
        for stream in (self.process.stdin, self.process.stdout, self.log):
            try:
                stream.close()
            except OSError:
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


# ---------------------------------------------------------------------------------------- the submission's end


def set_limits(memory_limit):
    """Bound memory and printed output. Returns what could not be bounded, as a list of notes."""
    try:
        import resource
    except ImportError:
        return ["on this system submissions run without a memory limit"]
    resource.setrlimit(resource.RLIMIT_FSIZE, (OUTPUT_LIMIT, OUTPUT_LIMIT))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        if sys.platform == "darwin":
            raise ValueError                              # accepted there, but not obeyed
        resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    except (ValueError, OSError):
        unit = 1 if sys.platform == "darwin" else 1024

        def watch():
            while resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit < memory_limit:
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        threading.Thread(target=watch, daemon=True).start()
    return []


def guard(own_path):
    """Refuse, from now on: this project's files, writing, other processes, the network. No sandbox, only a fence."""
    refused = {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn",
               "os.kill", "os.killpg", "pty.spawn", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate",
               "os.link", "os.symlink", "shutil.rmtree", "socket.connect", "socket.bind", "socket.sendto"}
    root, own = str(ROOT) + os.sep, str(own_path)
    python = tuple(str(Path(p).resolve()) + os.sep for p in {sys.prefix, sys.base_prefix} if Path(p).resolve() != ROOT)
    realpath, basename = os.path.realpath, os.path.basename               # bound now: os.path can be patched

    def refuse(text):
        raise PermissionError(f"refused while grading: {text}")

    def hook(event, arguments):
        if event in refused:
            refuse(f"{event}; a submission computes and does nothing else")
        if event == "open" and not isinstance(arguments[0], int):
            name, mode, flags = (*arguments, None, None)[:3]
            path = realpath(os.fsdecode(name))
            writes = (mode and set(mode) & set("wax+")) or (not mode and (flags or 0) & (os.O_WRONLY | os.O_RDWR))
            if writes and path != os.devnull:
                refuse(f"writing {basename(path)}")
            answer = basename(path).startswith(("implementation.", "solution_0"))
            if path != own and (answer or path.startswith(root) and not path.startswith(python)):
                refuse(f"reading {basename(path)} of this project")
    sys.addaudithook(hook)


def describe(problem, path):
    """An exception as a dict; the line is the last one inside the submission."""
    if isinstance(problem, SyntaxError):
        line, code = problem.lineno, (problem.text or "").strip()
        text = problem.msg
    else:
        frames = [f for f in traceback.extract_tb(problem.__traceback__) if f.filename == path]
        line = frames[-1].lineno if frames else None
        code, text = frames[-1].line if frames else None, str(problem)
    return {"type": type(problem).__name__, "text": text[:500], "line": line, "code": code,
            "memory": isinstance(problem, MemoryError), "todo": isinstance(problem, NotImplementedError),
            "left": isinstance(problem, (SystemExit, KeyboardInterrupt))}


class GlobalState:
    """NumPy's global error mode (here: quiet) and random state: noticed when changed, and put back."""

    def __init__(self):
        np.seterr(all="ignore")
        self.errors, self.random, self.calls = np.geterr(), np.random.get_state(), np.geterrcall()

    def restore(self):
        notes = []
        if np.geterr() != self.errors or np.geterrcall() is not self.calls:
            notes.append("the file changed NumPy's global error mode (np.seterr); the grader put it back")
            np.seterr(**self.errors)
            np.seterrcall(self.calls)
        if not all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), self.random)):
            notes.append("the file used the global random state (np.random.seed, np.random.rand, ...), which this "
                         "library never touches: use the layer's rng")
            np.random.set_state(self.random)
        return notes


@functools.cache
def compiled(source):
    return compile(source, "implementation.py", "exec")


def prepare_library(source, hidden):
    """The module ``implementation`` from the source without the names in hidden."""
    module = types.ModuleType("implementation")
    exec(compiled(source), vars(module))

    def missing(name):
        reason = "is missing"
        if name in hidden:
            reason = "rests on what this exercise asks for, so it is absent while grading"
        raise AttributeError(f"implementation.{name} {reason}")
    module.__getattr__ = missing
    sys.modules["implementation"] = module


def serve():
    """Read the first message, load the submission, answer requests until the pipe closes."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)                                           # what the submission prints goes to the log
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)                                     # and what it reads is empty
    os.close(nothing)
    sys.path = [p for p in sys.path if Path(p or ".").resolve() not in (ROOT, ROOT / "exercises")]
    header, arrays = unpack(read_message(requests))
    path = header["path"]
    prepare_library(header["library"], header["hidden"])
    state = GlobalState()
    notes = set_limits(header["memory_limit"])
    source = arrays["source"].tobytes()
    module = types.ModuleType("submission")
    module.__file__ = path
    sys.modules["submission"] = module
    guard(path)

    def attempt(action, *arguments):
        """(result, error) of a call into the submission; nothing that it raises ends this loop."""
        try:
            return action(*arguments), None
        except BaseException as problem:
            return {}, describe(problem, path)

    def load():
        exec(compile(source, path, "exec"), vars(module))
        return {}

    results, error = attempt(load)
    while True:
        notes += state.restore()
        try:
            message = pack({"nonce": header["nonce"], "error": error, "notes": notes}, results)
        except MemoryError as problem:
            message = pack({"nonce": header["nonce"], "error": describe(problem, path), "notes": notes}, {})
        replies.write(message)
        replies.flush()
        body = read_message(requests)
        if body is None:
            os._exit(0)
        header, arrays = unpack(body)
        notes = []
        results, error = attempt(execute, header["request"], vars(module), arrays)


def digest(path):
    """A short fingerprint of a file's bytes."""
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:16]


if __name__ == "__main__":
    serve()
