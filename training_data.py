"""What the model is trained on [5.1]: sequences to copy or to reverse, random numbers or the lines of a text.

Special tokens are padding 0, start 1, end 2; data tokens count from 3. A sequence of length 4 or more belongs to
training, validation or test by its tokens alone, shorter ones are always training data.
"""

import hashlib
import re
import unicodedata
import zlib
from pathlib import Path

import numpy as np

PAD, START, END, FIRST = 0, 1, 2, 3
TASKS = {"copy": lambda tokens: tokens, "reverse": lambda tokens: tokens[::-1]}


class DataError(ValueError):
    """A file that cannot be trained on; the text is one line that says why."""


def pack(sequences, task, width):
    """Lists of tokens -> src (n, width + 1): tokens, end, padding; tgt (n, width + 2): start, tokens, end, padding."""
    src = np.full((len(sequences), width + 1), PAD)
    tgt = np.full((len(sequences), width + 2), PAD)
    tgt[:, 0] = START
    for i, tokens in enumerate(sequences):
        n = len(tokens)
        src[i, :n], src[i, n] = tokens, END
        tgt[i, 1:n + 1], tgt[i, n + 1] = TASKS[task](tokens), END
    return src, tgt


def random_sequences(n_samples, seq_len, vocab_size, min_len, rng):
    """n_samples arrays of data tokens, lengths uniform in min_len..seq_len. ValueError for impossible sizes."""
    if n_samples < 0 or not 1 <= min_len <= seq_len:
        raise ValueError("n_samples must not be negative, and 1 <= min_len <= seq_len; "
                         f"got n_samples={n_samples}, min_len={min_len}, seq_len={seq_len}")
    if vocab_size <= FIRST:
        raise ValueError(f"vocab_size must be at least {FIRST + 1} (ids 0, 1, 2 are padding, start, end), "
                         f"got {vocab_size}")
    lengths = rng.integers(min_len, seq_len, n_samples, endpoint=True)
    tokens = rng.integers(FIRST, vocab_size, (n_samples, seq_len))
    return [row[:n] for row, n in zip(tokens, lengths)]


def generate_copy_task_data(n_samples, seq_len, vocab_size=12, *, min_len=1, rng=None):
    """Random sequences and their copies: src (n, seq_len + 1) tokens, end, padding; tgt (n, seq_len + 2) start first.

    Lengths are uniform in min_len..seq_len, tokens in 3..vocab_size - 1.
    """
    return pack(random_sequences(n_samples, seq_len, vocab_size, min_len, np.random.default_rng(rng)), "copy", seq_len)


def generate_reverse_task_data(n_samples, seq_len, vocab_size=12, *, min_len=1, rng=None):
    """The same, with every target in reverse order."""
    return pack(random_sequences(n_samples, seq_len, vocab_size, min_len, np.random.default_rng(rng)), "reverse",
                seq_len)


def split_of(tokens):
    """"train", "validation" or "test": by the tokens alone, the same in every run; shorter than 4 is always "train"."""
    if len(tokens) < 4:
        return "train"
    share = zlib.crc32(np.asarray(tokens, dtype="<i8").tobytes()) % 10
    return {0: "test", 1: "validation"}.get(share, "train")


class RandomNumbers:
    """Random sequences of numbers: endless training batches, and held-out sets of distinct sequences."""

    vocabulary = None

    def __init__(self, settings):
        self.seq_len, self.vocab_size = settings["seq_len"], settings["vocab_size"]

    def batch(self, step, size, rng):
        """size training sequences, lengths uniform: a sequence of another split is drawn again."""
        sequences = random_sequences(size, self.seq_len, self.vocab_size, 1, rng)
        for i in range(size):
            while split_of(sequences[i]) != "train":
                sequences[i] = rng.integers(FIRST, self.vocab_size, len(sequences[i]))
        return sequences

    def held_out(self, split, size):
        """Up to size distinct sequences, lengths 4 to seq_len in equal shares as far as that many exist."""
        lengths = range(4, self.seq_len + 1)
        rng, found = np.random.default_rng(1706_03762), []
        for i, length in enumerate(lengths):
            share = size * (i + 1) // len(lengths) - size * i // len(lengths)
            distinct = {}
            for tokens in self.candidates(length, 40 * share, rng):
                if len(distinct) < share and split_of(tokens) == split:
                    distinct[tokens.tobytes()] = tokens
            found += distinct.values()
        return found

    def short(self):
        """The sequences of length 1 and 2, which are always training data; 1,000 of a length with more than 20,000."""
        rng = np.random.default_rng(1706_03762)
        return [tokens for length in (1, 2) for tokens in self.candidates(length, 1000, rng)]

    def candidates(self, length, size, rng):
        """All sequences of a length in random order, or where there are more than 20,000, size random ones."""
        n_data = self.vocab_size - FIRST
        if n_data ** length > 20_000:
            return rng.integers(FIRST, self.vocab_size, (size, length))
        return rng.permutation(np.indices([n_data] * length).reshape(length, -1).T + FIRST)


class TextLines:
    """The distinct lines of a UTF-8 file, characters (code points after NFC) as tokens."""

    def __init__(self, path, seq_len=None):
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise DataError(f"cannot read --data {path}: {error.strerror}") from None
        self.digest = hashlib.sha256(content).hexdigest()
        lines, limit, allowed = {}, seq_len or 64, "--seq-len" if seq_len else "the longest --seq-len by default,"
        for number, raw in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
            try:
                line = unicodedata.normalize("NFC", raw.removesuffix(b"\r").decode("utf-8"))
            except UnicodeDecodeError as error:
                raise DataError(f"{path}, line {number}: byte 0x{raw[error.start]:02x} at position {error.start + 1} "
                                 "is not UTF-8") from None
            if not line.strip():
                continue
            if len(line) > limit:
                raise DataError(f"{path}, line {number} has {len(line)} characters, more than {allowed} {limit}")
            lines[line] = None
        if len(lines) < 100:
            raise DataError(f"{path} has {len(lines)} distinct lines; at least 100 are needed to train, validate and "
                             "test")
        self.seq_len = seq_len or max(map(len, lines))
        self.vocabulary = "".join(sorted(set("".join(lines))))
        self.vocab_size = FIRST + len(self.vocabulary)
        self.lines = {"train": [], "validation": [], "test": []}
        for line in lines:
            tokens = np.array(parse_tokens(line, self.vocab_size, self.vocabulary))
            self.lines[split_of(tokens)].append(tokens)

    def batch(self, step, size, rng):
        """The sequences number (step - 1) size to step size of pass after pass, each pass shuffled by its number."""
        train, batch = self.lines["train"], []
        for position in range((step - 1) * size, step * size):
            which_pass, place = divmod(position, len(train))
            if which_pass != getattr(self, "_pass", None):
                self._pass, self._order = which_pass, np.random.default_rng(which_pass).permutation(len(train))
            batch.append(train[self._order[place]])
        return batch

    def held_out(self, split, size):
        """Up to size lines of a split, from all over the file, which may be sorted."""
        lines = self.lines[split]
        chosen = np.random.default_rng(1706_03762).permutation(len(lines))[:size]
        return [lines[i] for i in sorted(chosen)]

    def short(self):
        """The sequences of length 1 and 2, which are always training data."""
        return [tokens for tokens in self.lines["train"] if len(tokens) <= 2]


def parse_tokens(text, vocab_size, vocabulary=None):
    """Token ids of "5 3 9", or of the characters of text where there is a vocabulary. ValueError names a stranger."""
    if vocabulary is not None:
        ids = {character: FIRST + i for i, character in enumerate(vocabulary)}
        text = unicodedata.normalize("NFC", text)
        unknown = next((character for character in text if character not in ids), None)
        if unknown is not None:
            raise ValueError(f"the character {unknown!r} (U+{ord(unknown):04X}) is not in the vocabulary of "
                             f"{len(vocabulary)} characters")
        tokens = [ids[character] for character in text]
    else:
        tokens = []
        for word in text.replace(",", " ").split():
            if not re.fullmatch(r"[0-9]{1,9}", word) or not FIRST <= int(word) < vocab_size:
                raise ValueError(f"{word!r} is not a token of the vocabulary: numbers from {FIRST} to {vocab_size - 1}")
            tokens.append(int(word))
    if not tokens:
        raise ValueError("the sequence is empty: give at least one token")
    return tokens


def token_label(token, vocabulary=None):
    """How a token is shown: <pad>, <start>, <end>, the number, or the character (as \\t where it is a control)."""
    if token < FIRST:
        return ("<pad>", "<start>", "<end>")[token]
    label = str(token) if vocabulary is None else vocabulary[token - FIRST]
    return label if label.isprintable() else label.encode("unicode_escape").decode()


def show_tokens(tokens, vocabulary=None):
    """A sequence up to its end token as one line of text."""
    tokens = list(tokens)
    tokens = tokens[:tokens.index(END)] if END in tokens else [token for token in tokens if token != PAD]
    return ("" if vocabulary else " ").join(token_label(token, vocabulary) for token in tokens)
