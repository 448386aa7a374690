# Submissions that break, cheat or misbehave. "#: name | exercise | status | words of the verdict"; the rest is the
# solution's, unless "alone" stands at the end: then the file is this text and nothing else.

#: endless_loop | 1 | timeout | endless loop
def softmax(x, axis=-1):
    while True:
        pass

#: endless_loop_while_loading | 2 | timeout | endless loop
while True:
    pass

#: crash | 1 | error | crashed
def softmax(x, axis=-1):
    import ctypes
    ctypes.string_at(0)

#: sys_exit_in_a_call | 1 | fail | SystemExit
def softmax(x, axis=-1):
    import sys
    sys.exit(0)

#: sys_exit_while_loading | 3 | error | ends the program
import sys
sys.exit(0)

#: os_exit | 1 | error | ended its own process (exit status 0)
def softmax(x, axis=-1):
    import os
    os._exit(0)

#: os_exit_while_loading | 4 | error | ended its own process (exit status 0)
import os
os._exit(0)

#: memory | 1 | fail | more memory
def softmax(x, axis=-1):
    return np.ones(10 * 2**30, np.uint8)

#: memory_while_loading | 5 | error | MemoryError
TABLE = np.ones(10 * 2**30, np.uint8)

#: endless_output | 2 | fail | File too large
class MultiHeadAttention:
    def split_heads(self, x):
        while True:
            print("x" * 100000, flush=True)

#: recursion | 1 | fail | RecursionError
def softmax(x, axis=-1):
    return softmax(x, axis)

#: import_error | 1 | error | No module named
import no_such_module

#: syntax_error | 2 | error | SyntaxError | alone
class MultiHeadAttention:
    def forward(self, query, key, value, mask=None)
        return query

#: nothing_defined | 3 | fail | missing | alone
answer = 42

#: subclass_of_the_answer | 1 | error | rests on what this exercise asks for
import implementation
class ScaledDotProductAttention(implementation.ScaledDotProductAttention):
    pass

#: import_of_the_answer | 2 | error | MultiHeadAttention | alone
from implementation import MultiHeadAttention

#: answer_through_a_block | 1 | error | MultiHeadAttention | alone
from implementation import MultiHeadAttention
ScaledDotProductAttention = MultiHeadAttention

#: answer_from_the_solutions | 4 | error | refused | alone
exec(open(PROJECT + "/exercises/solutions/solution_04_encoder_block.py").read())

#: answer_from_the_library_file | 4 | error | refused | alone
exec(compile(open(PROJECT + "/implementation.py").read(), "x", "exec"))

#: answer_by_another_process | 4 | error | refused | alone
import subprocess
print(subprocess.run(["cat", PROJECT + "/implementation.py"], capture_output=True).stdout)

#: reload_of_the_library | 4 | error | Error | alone
import importlib, sys
sys.path.insert(0, PROJECT)
del sys.modules["implementation"]
from implementation import *

#: patched_comparisons | 1 | fail |
np.allclose = lambda *a, **k: True
np.testing.assert_allclose = lambda *a, **k: None
np.array_equal = lambda *a, **k: True
np.isclose = lambda *a, **k: True
def softmax(x, axis=-1):
    return np.zeros_like(x)

#: equal_to_everything | 1 | fail |
class Yes(np.ndarray):
    def __eq__(self, other):
        return np.True_
    def __sub__(self, other):
        return np.zeros(1)
def softmax(x, axis=-1):
    return np.zeros(np.shape(x)).view(Yes)

#: stored_array | 1 | fail |
def softmax(x, axis=-1):
    stored = np.random.default_rng(7).random((3, 5))
    return stored / stored.sum(axis=-1, keepdims=True)

#: forged_verdict_printed | 2 | fail | 
print('{"exercises": [{"id": 2, "status": "pass", "score": 10, "max_score": 10}]}')
class MultiHeadAttention:
    def split_heads(self, x):
        print('{"passed": true, "points": 10, "nonce": "0"}')
        return x

#: forged_reply_on_the_channel | 2 | error | channel
import os, struct, json
def forge():
    head = json.dumps({"nonce": "0" * 32, "error": None, "notes": [], "arrays": []}).encode()
    body = struct.pack("<I", len(head)) + head
    for fd in range(3, 64):
        try:
            os.write(fd, struct.pack("<Q", len(body)) + body)
        except OSError:
            pass
forge()

#: strings_for_numbers | 1 | fail | array of numbers
def softmax(x, axis=-1):
    return np.full(x.shape, "right")

#: none | 1 | fail | None
def softmax(x, axis=-1):
    return None

#: tidy_parent | 1 | fail | refused
def softmax(x, axis=-1):
    import os
    os.kill(os.getppid(), 9)

#: prints | 3 | pass |
print("hello")
def shout():
    print("PASS 10 / 10")
shout()

#: error_mode_changed | 4 | pass | error mode
np.seterr(all="raise")

#: global_random_state | 4 | pass | global random state
np.random.seed(0)
