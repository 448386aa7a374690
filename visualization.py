"""Pictures of attention, positions, training and the model itself, drawn from real numbers.

    python visualization.py --checkpoint checkpoints/copy.npz --input "5 3 9" --out figures

Every ``plot_...`` function returns a matplotlib Figure that pyplot does not know of, so nothing stays open. With
``save_path`` it also writes a file (.png, .svg or .pdf), with ``show=True`` it opens a window. Attention maps have one
row for each query, first on top, and one column for each key; masks are boolean and True means hidden.
"""

import argparse
import difflib
import functools
import html
import inspect
import math
import sys
import unicodedata
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.style
import numpy as np
from matplotlib import font_manager
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Rectangle
from matplotlib.ticker import MaxNLocator
from tqdm import tqdm

from implementation import check_mask, create_causal_mask, create_padding_mask, softmax, softmax_backward
from train_minimal import (END, FIRST, PAD, START, CheckpointError, CrossEntropyLoss, Parser, UsageError, as_trained,
                           eval_mode, greedy_decode, load_checkpoint, load_extra, make_masks, parse_tokens, replacing,
                           shift_target, show_tokens, token_label)

INK, GREY, FAINT = "#1b1d21", "#6a6f78", "#dfe2e6"
BLUE, ORANGE = "#1f5a94", "#c4600c"                       # stay apart without red-green vision
VISIBLE, HIDDEN, HATCH = "#bfd0e2", "#eceef0", "#b9bec6"
ATTENTION_COLOURS = "cividis"
FONT = "DejaVu Sans"                                      # matplotlib brings it along
STYLE = {
    "font.family": [FONT], "font.size": 8, "text.color": INK, "axes.labelcolor": GREY,
    "axes.edgecolor": GREY, "axes.linewidth": 0.6, "axes.spines.top": False, "axes.spines.right": False,
    "axes.labelsize": 8, "axes.titlesize": 8, "axes.titlecolor": INK, "xtick.color": GREY, "ytick.color": GREY,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "xtick.labelsize": 7.5, "ytick.labelsize": 7.5,
    "xtick.major.size": 3, "ytick.major.size": 3, "xtick.major.width": 0.6, "ytick.major.width": 0.6,
    "xtick.minor.size": 0, "ytick.minor.size": 0, "lines.linewidth": 1.6, "lines.solid_capstyle": "round",
    "hatch.linewidth": 0.6, "text.hinting": "no_hinting", "figure.dpi": 100, "savefig.dpi": 150,
    "figure.facecolor": "white", "svg.hashsalt": "attention", "svg.fonttype": "path", "pdf.fonttype": 42,
    "axes.formatter.useoffset": False, "text.parse_math": False,
}
MARGIN = 0.3                                              # inches, as every length below
MOST_LABELS = 40


# -------------------------------------------------------------------------------------------- pages, text, files


def house_style():
    return matplotlib.style.context(["default", STYLE])


def save_figure(figure, path, dpi=150):
    """Write a figure as .png, .svg or .pdf; equal figures give equal bytes: no date, no random names inside.

    dpi counts for .png alone. Raises ValueError for another ending, OSError when the file cannot be written.
    """
    path = Path(path)
    kind = path.suffix[1:].lower()
    without_date = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None},
                    "pdf": {"CreationDate": None, "Creator": None, "Producer": None}}
    if kind not in without_date:
        raise ValueError(f"a figure is written as .png, .svg or .pdf, got {str(path)!r}")
    with house_style(), replacing(path) as beside:
        figure.savefig(beside, format=kind, metadata=without_date[kind], dpi=dpi)


def show_figure(figure):
    """Show a figure in a window of whichever backend pyplot has."""
    import matplotlib.pyplot as plt
    plt.figure(FigureClass=lambda *args, **kwargs: figure)
    plt.show()
    if not plt.isinteractive():
        plt.close(figure)


def drawing(function):
    """Give a function that returns a Figure the house style and the keywords ``save_path`` and ``show``."""
    @functools.wraps(function)
    def draw(*args, save_path=None, show=False, **kwargs):
        with house_style():
            figure = function(*args, **kwargs)
            if save_path is not None:
                save_figure(figure, save_path)
            if show:
                show_figure(figure)
        return figure

    signature = inspect.signature(function)
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
             for name, default in (("save_path", None), ("show", False))]
    draw.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])
    return draw


@functools.lru_cache(maxsize=None)
def font_with(character):
    """The name of a font that draws ``character``, the house font before every other installed one, or None."""
    fonts = sorted(font_manager.fontManager.ttflist,
                   key=lambda font: (font.name != FONT, font.style != "normal", font.weight != 400, font.name))
    for font in fonts:
        if font.name.startswith("Last Resort"):              # a box for every character there is
            continue
        try:
            face = font_manager.get_font(font.fname)
            if ord(character) in face.get_charmap():
                face.load_char(ord(character))
                if len(face.get_path()[0]):                  # colour fonts map characters to empty outlines
                    return font.name
        except (OSError, RuntimeError):                      # bitmaps only, or a broken file
            continue
    return None


@functools.lru_cache(maxsize=None)
def legible(text):
    """``text`` with blanks made visible and with U+4E2D for what no font here can draw, and the fonts it needs."""
    if text == " ":
        text = "␣"
    elif len(text) == 1 and unicodedata.combining(text):
        text = "◌" + text
    fonts, written = [FONT], []
    for character in text:
        font = FONT if character == " " else font_with(character) if character.isprintable() else None
        written.append(character if font else f"U+{ord(character):04X}")
        if font and font not in fonts:
            fonts.append(font)
    return "".join(written), fonts


def put(text_artist, text):
    """Set an artist's text literally, in fonts that have its characters."""
    written, fonts = legible(text)
    text_artist.set(text=written, fontfamily=fonts)
    if len(fonts) > 1:
        text_artist.set_fontweight("normal")                 # other fonts need not have a bold face


@functools.lru_cache(maxsize=1)
def ruler():
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    return FigureCanvasAgg(Figure(dpi=144)).figure


@functools.lru_cache(maxsize=4096)
def text_width(text, size, weight="normal"):
    artist = ruler().text(0, 0, "", size=size, weight=weight)
    put(artist, text)
    width = artist.get_window_extent().width / 144
    artist.remove()
    return width


def power_of_ten(value, _=None):
    """How a logarithmic axis writes 0.001: 10⁻³."""
    return "10" + str(round(math.log10(value))).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def line_height(size):
    return size * 1.25 / 72


class Page:
    """A figure measured in inches from its top left corner, with a heading; its content starts at (left, top)."""

    def __init__(self, width, height, title, notes=()):
        widest = max([text_width(title, 12, "bold"), *(text_width(note, 8) for note in notes)])
        self.left, self.top = MARGIN, MARGIN + 0.26 + 0.18 * len(notes) + 0.16
        self.width, self.height = max(width, widest) + 2 * MARGIN, self.top + height + MARGIN
        self.figure = Figure(figsize=(self.width, self.height))
        self.write(self.left, MARGIN, title, size=12, weight="bold", va="top")
        for i, note in enumerate(notes):
            self.write(self.left, MARGIN + 0.28 + 0.18 * i, note, color=GREY, va="top")

    def write(self, x, y, text, **style):
        put(self.figure.text(x / self.width, 1 - y / self.height, "", **{"size": 8, "va": "baseline", **style}), text)

    def axes(self, left, top, width, height):
        return self.figure.add_axes((left / self.width, 1 - (top + height) / self.height,
                                     width / self.width, height / self.height))

    def swatch(self, left, top, meaning):
        ax = self.axes(left, top - 0.02, 0.2, 0.14)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
        self.write(left + 0.27, top + 0.095, meaning, color=GREY)
        return ax

    def scale(self, left, top, label, colours=ATTENTION_COLOURS, low="0", high="1", masked=False):
        """The key to the colours, from the one called low to the one called high, and to masked cells."""
        for text, colour, after in ((label, GREY, 0.12), (low, INK, 0.06)):
            self.write(left, top + 0.095, text, color=colour)
            left += text_width(text, 8) + after
        bar = self.axes(left, top, 1.1, 0.1)
        bar.imshow(np.linspace(0, 1, 128)[None], cmap=colours, aspect="auto")
        bar.set(xticks=[], yticks=[])
        bar.set_axis_off()
        self.write(left + 1.16, top + 0.095, high)
        if masked:
            hatch(self.swatch(left + 1.16 + text_width(high, 8) + 0.25, top, "hidden by the mask"))


def hatch(ax):
    ax.patch.set(facecolor=HIDDEN, hatch="///////", edgecolor=HATCH, linewidth=0)


def checked_labels(labels, count, what):
    """labels as strings, numbers from 0 when there are none. ValueError unless there is one for each."""
    if labels is None:
        labels = range(count)
    labels = [str(label) for label in labels]
    if len(labels) != count:
        raise ValueError(f"{len(labels)} labels for {count} {what}")
    return labels


class Labels:
    """Names of cells along a line, thinned to 40 at most and to the room there is; wide ones above columns turned."""

    def __init__(self, labels, cell, size=7.5, columns=True):
        self.size = size
        step = max(math.ceil(len(labels) / MOST_LABELS), math.ceil(line_height(size) / cell - 1e-9))
        self.places = range(0, len(labels), step)
        self.labels = [labels[place] for place in self.places]
        widths = [text_width(label, size) for label in self.labels]
        taken, self.turned = list(widths), [False] * len(widths)
        while columns and any((left + right) / 2 > step * cell - 0.03 for left, right in zip(taken, taken[1:])):
            widest = max(taken)
            if widest <= line_height(size):
                break
            self.turned = [turned or width == widest for turned, width in zip(self.turned, taken)]
            taken = [min(width, line_height(size)) if turned else width for turned, width in zip(self.turned, taken)]
        self.overhang = max(0.0, (taken[0] - cell) / 2)
        self.room = 0.09 + max(width if turned or not columns else line_height(size)
                               for width, turned in zip(widths, self.turned))

    def name(self, axis):
        written = [legible(label) for label in self.labels]
        fonts = list(dict.fromkeys(font for _, needed in written for font in needed))
        axis.set_ticks(list(self.places), labels=[text for text, _ in written], fontsize=self.size, fontfamily=fonts)
        for tick, turned in zip(axis.get_major_ticks(), self.turned):
            for text in (tick.label1, tick.label2):
                text.set_rotation(90 if turned else 0)


# ------------------------------------------------------------------------------------------------- attention maps


def draw_map(ax, values, mask=None, *, cell, colours=ATTENTION_COLOURS, low=0.0, high=1.0):
    """Cells of ``values`` (rows, columns) in colour, hatched where the mask hides them, apart where there is room."""
    values = np.asarray(values)
    hidden = np.zeros(values.shape, dtype=bool) if mask is None else np.broadcast_to(mask, values.shape)
    if hidden.any():
        hatch(ax)
    ax.imshow(np.ma.array(values, mask=hidden), cmap=colours, vmin=low, vmax=high, aspect="auto", interpolation="none")
    ax.tick_params(length=0, pad=3)
    ax.spines[:].set_visible(False)
    if cell >= 0.1:
        rows, columns = values.shape
        ax.vlines(np.arange(1, columns) - 0.5, -0.5, rows - 0.5, color="white", linewidth=0.8)
        ax.hlines(np.arange(1, rows) - 0.5, -0.5, columns - 0.5, color="white", linewidth=0.8)


def on_colour(colour):
    """Ink or white, whichever reads better on an RGB(A) colour."""
    red, green, blue = colour[:3]
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.52 else INK


def write_numbers(ax, values, mask, size):
    """Each visible weight to two places in its cell: 1, .97, 0."""
    colours = matplotlib.colormaps[ATTENTION_COLOURS]
    hidden = np.zeros(values.shape, dtype=bool) if mask is None else np.broadcast_to(mask, values.shape)
    for (row, column), value in np.ndenumerate(values):
        if not hidden[row, column]:
            text = f"{value:.2f}"
            text = {"0.00": "0", "1.00": "1"}.get(text, text.lstrip("0"))
            ax.text(column, row, text, ha="center", va="center", size=size, color=on_colour(colours(float(value))))


def checked_weights(weights, ndim, axes):
    """Attention weights as an array of numbers from 0 to 1 with ``ndim`` axes. ValueError says what is wrong."""
    weights = np.asarray(weights)
    if weights.ndim != ndim or 0 in weights.shape:
        raise ValueError(f"attention weights must be {axes}, got shape {weights.shape}")
    if not (np.min(weights) >= -1e-6 and np.max(weights) <= 1 + 1e-6):          # false for NaN too
        raise ValueError(f"attention weights lie between 0 and 1, got {np.min(weights):g} to {np.max(weights):g}")
    return weights


def spread_mask(mask, shape):
    """mask as an array of that shape, or None. TypeError unless boolean, ValueError unless it broadcasts."""
    if mask is None:
        return None
    mask = np.asarray(mask)
    check_mask(mask.reshape((1,) * (4 - mask.ndim) + mask.shape), (1,) * (4 - len(shape)) + tuple(shape))
    return np.broadcast_to(mask, shape)


class Maps:
    """Attention maps (rows, columns, T, S) on a grid: queries named on the left, keys along the top.

    names stand above the columns of the grid, sides beside its rows. A cell is a square such that a map fits into
    side, or what ``cell`` (width, height) says.
    """

    def __init__(self, maps, queries, keys, mask=None, *, side=None, names=None, sides=None, cell=None,
                 colours=ATTENTION_COLOURS, numbers=True):
        self.maps, self.names, self.sides, self.colours, self.numbers = maps, names, sides, colours, numbers
        T, S = maps.shape[2:]
        queries, keys = checked_labels(queries, T, "queries (rows)"), checked_labels(keys, S, "keys (columns)")
        self.mask = spread_mask(mask, maps.shape)
        width, height = cell or [min(0.42, side / max(T, S))] * 2
        self.cell = min(width, height)
        size = 7.5 if self.cell >= 0.2 else 6.5
        self.queries, self.keys = Labels(queries, height, size, columns=False), Labels(keys, width, size)
        self.map_width, self.map_height = S * width, T * height
        self.pitch_x = max([self.map_width, *(text_width(name, 8) for name in names or [])]) + 0.18
        self.pitch_y = self.map_height + 0.16
        self.side_room = 0.26 if sides else 0
        self.left = self.side_room + max(0.2 + self.queries.room, 0.54 + self.keys.overhang)
        self.top = self.keys.room + (0.22 if names else 0)
        rows, columns = maps.shape[:2]
        self.width = self.left + columns * self.pitch_x - 0.18
        self.height = self.top + rows * self.pitch_y - 0.16

    def draw(self, page, left, top):
        rows, columns = self.maps.shape[:2]
        for row, column in np.ndindex(rows, columns):
            x, y = left + self.left + column * self.pitch_x, top + self.top + row * self.pitch_y
            ax = page.axes(x, y, self.map_width, self.map_height)
            mask = None if self.mask is None else self.mask[row, column]
            draw_map(ax, self.maps[row, column], mask, cell=self.cell, colours=self.colours)
            ax.xaxis.tick_top()
            ax.xaxis.set_label_position("top")
            if row == 0:
                self.keys.name(ax.xaxis)
            else:
                ax.set_xticks([])
            if column == 0:
                self.queries.name(ax.yaxis)
            else:
                ax.set_yticks([])
            if self.names and row == 0:
                page.write(x, y - self.keys.room - 0.02, self.names[column])
            if self.numbers and self.cell >= 0.28:
                write_numbers(ax, self.maps[row, column], mask, 7 if self.cell >= 0.34 else 6)
            if column == 0 and self.sides:
                page.write(left + 0.05, y + self.map_height / 2, self.sides[row], rotation=90, ha="center",
                           va="center", color=GREY)
        page.write(left + self.left - 0.08 - self.keys.overhang, top + self.top - 0.07, "keys →", color=GREY,
                   ha="right")
        page.write(left + self.side_room + 0.04, top + self.top + 0.02, "queries →", color=GREY, rotation=270,
                   ha="center", va="top")


@drawing
def plot_attention_weights(attention_weights, x_labels=None, y_labels=None, title="Attention weights", *, mask=None,
                           notes=()):
    """One head's weights (T, S): a row for each query, a column for each key, colours from 0 to 1.  [3.2.1]

    x_labels name the keys, y_labels the queries. mask is boolean, True = hidden, and broadcasts to (T, S). ValueError
    for another shape, for weights outside 0 to 1 and for a wrong number of labels.
    """
    weights = checked_weights(attention_weights, 2, "(queries, keys) of one head")
    maps = Maps(weights[None, None], y_labels, x_labels, spread_mask(mask, weights.shape), side=6)
    page = Page(max(maps.width, 4.1), maps.height + 0.4, title, notes)
    maps.draw(page, page.left, page.top)
    page.scale(page.left, page.top + maps.height + 0.28, "attention weight", masked=mask is not None)
    return page.figure


@drawing
def plot_multi_head_attention(attention_weights, head_names=None, title="Multi-head attention", *, x_labels=None,
                              y_labels=None, mask=None, notes=()):
    """The heads of one layer, weights (h, T, S), side by side on one scale.  [3.2.2]

    Labels and mask as in plot_attention_weights; the mask broadcasts to (h, T, S).
    """
    weights = checked_weights(attention_weights, 3, "(heads, queries, keys) of one sequence")
    names = ([f"head {i + 1}" for i in range(len(weights))] if head_names is None
             else checked_labels(head_names, len(weights), "heads"))
    columns = min(4, len(weights))
    rows = math.ceil(len(weights) / columns)
    mask = spread_mask(mask, weights.shape)
    maps = [Maps(weights[None, i * columns:(i + 1) * columns], y_labels, x_labels,
                 None if mask is None else mask[None, i * columns:(i + 1) * columns],
                 side=2.6 if weights.shape[2] <= 20 else 3.4, names=names[i * columns:(i + 1) * columns])
            for i in range(rows)]
    pitch = maps[0].height + 0.2
    page = Page(max(maps[0].width, 4.1), rows * pitch + 0.2, title, notes)
    for i, row in enumerate(maps):
        row.draw(page, page.left, page.top + i * pitch)
    page.scale(page.left, page.top + rows * pitch + 0.08, "attention weight", masked=mask is not None)
    return page.figure


KINDS = {"encoder": "Encoder self-attention", "decoder": "Decoder self-attention",
         "cross": "Cross-attention, from the decoder to the encoder"}


@drawing
def plot_every_head(encoder, decoder, cross, source_labels=None, target_labels=None,
                    title="Every head of every layer", *, source_mask=None, target_mask=None, notes=()):
    """The weights of one example on one sheet: a row for each layer, a column for each head, for the three kinds.

    encoder (layers, h, S, S), decoder (layers, h, T, T), cross (layers, h, T, S). source_mask broadcasts to the first
    and the third, target_mask to the second. Queries and keys of the encoder are source tokens, those of the decoder
    target tokens.  [3.2.3]
    """
    blocks = []
    longest = max(np.shape(weights)[-1] for weights in (encoder, decoder))
    cell = min(0.3, max(1.25, 0.05 * longest) / longest)
    for kind, weights, queries, keys, mask in (("encoder", encoder, source_labels, source_labels, source_mask),
                                               ("decoder", decoder, target_labels, target_labels, target_mask),
                                               ("cross", cross, target_labels, source_labels, source_mask)):
        weights = checked_weights(weights, 4, f"(layers, heads, queries, keys) for {kind}")
        names = [f"head {i + 1}" for i in range(weights.shape[1])]
        blocks.append((kind, Maps(weights, queries, keys, mask, cell=(cell, cell), names=names,
                                  sides=[f"layer {i + 1}" for i in range(len(weights))])))
    page = Page(max(4.1, *(maps.width for _, maps in blocks)), sum(maps.height + 0.65 for _, maps in blocks), title,
                notes)
    top = page.top
    for kind, maps in blocks:
        page.write(page.left, top + 0.1, KINDS[kind], size=9, weight="bold")
        maps.draw(page, page.left, top + 0.28)
        top += maps.height + 0.65
    page.scale(page.left, top - 0.16, "attention weight",
               masked=source_mask is not None or target_mask is not None)
    return page.figure


@drawing
def plot_masks(tokens, labels=None, pad_token=0, title="What a query may see"):
    """The masks for a sequence of token ids that ends in padding: padding, causal, and both together.  [3.2.3]"""
    tokens = np.asarray(tokens)
    if tokens.ndim != 1 or not len(tokens):
        raise ValueError(f"tokens must be one sequence of ids, got shape {tokens.shape}")
    n = len(tokens)
    labels = checked_labels(labels, n, "tokens")
    padding, causal = create_padding_mask(tokens[None], pad_token), create_causal_mask(n)
    shown = {"padding": padding, "causal": causal, "padding | causal": padding | causal}
    masks = np.array([np.broadcast_to(mask, (1, 1, n, n))[0, 0] for mask in shown.values()])[None]
    maps = Maps(np.ones(masks.shape), labels, labels, masks, side=2.6, names=list(shown),
                colours=ListedColormap([VISIBLE]), numbers=False)
    page = Page(maps.width, maps.height + 0.4, title,
                ["Encoder and cross-attention hide padding; the decoder hides its future too. True means hidden."])
    maps.draw(page, page.left, page.top)
    page.swatch(page.left, page.top + maps.height + 0.28, "visible").patch.set_facecolor(VISIBLE)
    hatch(page.swatch(page.left + 0.9, page.top + maps.height + 0.28, "hidden by the mask"))
    return page.figure


def attention_entropy(weights):
    """-sum_k a_k log2 a_k for each query, in bits: 0 for a look at one key, log2 n for an even look at n.

    weights (..., S) -> (...).
    """
    weights = np.asarray(weights, dtype=np.float64)
    return -(weights * np.log2(weights, where=weights > 0, out=np.zeros_like(weights))).sum(axis=-1) + 0.0


@drawing
def plot_attention_entropy(attention, masks=None, title="How spread out is each head?", *, notes=()):
    """The mean over queries of each head's entropy in bits, coloured from 0 to that of an uniform attention.

    attention maps "encoder", "decoder" and "cross" (any of them) to weights (layers, h, T, S), masks maps the same
    names to boolean masks that broadcast to them.
    """
    tables = []
    for kind, weights in attention.items():
        weights = checked_weights(weights, 4, f"(layers, heads, queries, keys) for {kind}")
        hidden = spread_mask((masks or {}).get(kind, np.array(False)), weights.shape)
        even = float(np.log2(np.maximum((~hidden).sum(axis=-1), 1)).mean())
        tables.append((kind, attention_entropy(weights).mean(axis=-1), even))
    cell, width, gap = 0.34, 0.48, 0.55
    pitches = [max(table.shape[1] * width, 1.75) + gap for _, table, _ in tables]
    layers = max(len(table) for _, table, _ in tables)
    page = Page(0.55 + sum(pitches) - gap, 0.75 + layers * cell + 0.45, title,
                ["Mean over queries, in bits. 0: each looks at one key. Uniform: each looks at all visible keys alike.",
                 *notes])
    left = page.left + 0.55
    for (kind, table, even), pitch in zip(tables, pitches):
        page.write(left, page.top + 0.1, KINDS[kind].partition(",")[0], weight="bold")
        page.write(left, page.top + 0.27, f"uniform: {even:.2f} bits", color=GREY)
        ax = page.axes(left, page.top + 0.6, table.shape[1] * width, len(table) * cell)
        draw_map(ax, table, cell=cell, high=max(even, 1e-9))
        ax.xaxis.tick_top()
        Labels([str(i + 1) for i in range(table.shape[1])], width).name(ax.xaxis)
        if kind == tables[0][0]:
            page.write(page.left, page.top + 0.55, "head", color=GREY)
            Labels([f"layer {i + 1}" for i in range(len(table))], cell, columns=False).name(ax.yaxis)
        else:
            ax.set_yticks([])
        for (layer, head), value in np.ndenumerate(table):
            colour = matplotlib.colormaps[ATTENTION_COLOURS](value / max(even, 1e-9))
            ax.text(head, layer, f"{value:.2f}", ha="center", va="center", size=7, color=on_colour(colour))
        left += pitch
    page.scale(page.left, page.top + 0.6 + layers * cell + 0.32, "entropy", high="uniform")
    return page.figure


@drawing
def plot_decoding(chosen, probabilities, attention, source_labels, vocabulary_labels, *, most=5,
                  title="Writing the answer, one token at a time", notes=()):
    """A row for each step: where the decoder looks in the source, and the candidates for the next token, best first.

    chosen (T,) token ids, probabilities (T, V), attention (T, S), vocabulary_labels the names of all V tokens. The
    candidate that was chosen has a frame.
    """
    chosen, probabilities = np.asarray(chosen), np.asarray(probabilities)
    attention = checked_weights(attention, 2, "(steps, source tokens)")
    steps, V = probabilities.shape
    if chosen.shape != (steps,) or len(attention) != steps:
        raise ValueError(f"{steps} steps of probabilities need as many tokens and rows of attention, "
                         f"got {chosen.shape} and {attention.shape}")
    names = checked_labels(vocabulary_labels, V, "tokens of the vocabulary")
    before = [names[START], *(names[token] for token in chosen[:-1])]
    most = min(most, V)
    best = np.argsort(-probabilities, axis=-1, kind="stable")[:, :most]                        # (T, most)
    values = np.take_along_axis(probabilities, best, axis=-1)
    cell = min(0.42, max(7.2 / steps, 0.14))
    maps = Maps(attention[None, None], before, source_labels, cell=(min(cell, 7.2 / attention.shape[1]), cell))
    width = max(0.9, max(text_width(names[token], 7) for token in set(best.flat)) + 0.62)
    right = max(maps.width, 2.2) + 0.6
    page = Page(right + width * most, maps.height + 0.7, title, notes)
    page.write(page.left, page.top + 0.1, "where it looks in the source", weight="bold")
    page.write(page.left + right, page.top + 0.1, "what it would write next, best first", weight="bold")
    top = page.top + 0.25
    maps.draw(page, page.left, top)
    ax = page.axes(page.left + right, top + maps.top, width * most, maps.map_height)
    draw_map(ax, values, cell=cell)
    ax.xaxis.tick_top()
    Labels([f"{i + 1}." for i in range(most)], width).name(ax.xaxis)
    Labels([str(i + 1) for i in range(steps)], cell, columns=False).name(ax.yaxis)
    page.write(page.left + right - 0.06, top + maps.top - 0.1, "step", color=GREY, ha="right")
    for (step, rank), token in np.ndenumerate(best):
        value = values[step, rank]
        if cell >= 0.14:
            colour = on_colour(matplotlib.colormaps[ATTENTION_COLOURS](float(value)))
            put(ax.text(rank - 0.42, step, "", ha="left", va="center", size=7.5 if cell > 0.2 else 6, color=colour,
                        weight="bold"), names[token])
            ax.text(rank + 0.42, step, percent(value), ha="right", va="center", color=colour,
                    size=7 if cell > 0.2 else 6)
        if token == chosen[step]:
            ax.add_patch(Rectangle((rank - 0.5, step - 0.5), 1, 1, fill=False, edgecolor=ORANGE, linewidth=1.6,
                                   clip_on=False, zorder=4))
    page.scale(page.left, top + maps.height + 0.25, "weight, probability")
    return page.figure


def percent(share):
    """A share of 1 as a percentage that never claims a 0 or a 100 that it is not."""
    if 0 < share < 0.001:
        return "<0.1%"
    if 0.999 < share < 1:
        return ">99.9%"
    return f"{100 * share:.1f}%" if share not in (0, 1) else f"{share:.0%}"


# ------------------------------------------------------------------------------------------------------ positions


@drawing
def plot_positional_encoding(pe, max_positions=100, dims_to_show=64, title="Positional encoding", *, notes=()):
    """The table PE (max_len, d_model), its first positions and dimensions, and some dimensions as waves.  [3.5]"""
    pe = checked_table(pe)[:max_positions, :dims_to_show]
    n, d = pe.shape
    page = Page(8.2, 3.55, title, notes or ["Each dimension is a wave over positions: even ones sin, odd ones cos, "
                                            "ever slower from left to right."])
    ax = page.axes(page.left + 0.45, page.top + 0.4, 3.6, 2.7)
    draw_map(ax, pe, cell=0, colours="RdBu_r", low=-1, high=1)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set(xlabel="dimension", ylabel="position")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    page.scale(page.left + 0.45, page.top + 3.3, "PE", colours="RdBu_r", low="−1", high="1")

    shown = [i for i in dict.fromkeys(np.linspace(0, d / 2, 5).astype(int) // 2 * 2)]
    left, height = page.left + 4.75, 2.7 / len(shown)
    for row, dimension in enumerate(shown):
        ax = page.axes(left, page.top + 0.4 + row * height, 2.7, height * 0.8)
        ax.axhline(0, color=FAINT, linewidth=0.6)
        ax.plot(np.arange(n), pe[:, dimension], color=BLUE, linewidth=1.3, marker="o" if n < 30 else "",
                markersize=2.5)
        ax.set(ylim=(-1.15, 1.15), yticks=[-1, 1], yticklabels=["−1", "1"])
        ax.spines["bottom"].set_visible(False)
        ax.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        ax.tick_params(length=0, labelbottom=row == len(shown) - 1)
        page.write(left + 2.78, page.top + 0.4 + row * height + height * 0.44, f"dim. {dimension}", color=BLUE)
    ax.set_xlabel("position")
    return page.figure


def checked_table(pe):
    pe = np.asarray(pe)
    if pe.ndim != 2 or 0 in pe.shape:
        raise ValueError(f"pe must be a table (positions, d_model), got shape {pe.shape}")
    return pe


@drawing
def plot_position_similarity(pe, positions=None, max_positions=100, title="How alike are two positions?", *, notes=()):
    """The dot products PE_i · PE_j of all positions, and those of a few chosen ones as curves.  [3.5]"""
    pe = checked_table(pe)[:max_positions]
    n, d = pe.shape
    chosen = sorted({0, n // 4, n // 2, 3 * n // 4}) if positions is None else [p for p in positions if p < n]
    products = pe @ pe.T
    low, high = min(0.0, float(products.min())), float(products.max())
    page = Page(8.2, 3.55, title, notes or [f"The dot product of two rows of the table ({d} dimensions) depends on "
                                            "their distance alone, so every diagonal has one colour."])
    ax = page.axes(page.left + 0.45, page.top + 0.4, 2.7, 2.7)
    draw_map(ax, products, cell=0, low=low, high=high)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set(xlabel="position", ylabel="position")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    page.scale(page.left + 0.45, page.top + 3.3, "dot product", low=f"{low:.3g}".replace("-", "−"),
               high=f"{high:.3g}")
    ax = page.axes(page.left + 4.1, page.top + 0.4, 3.9, 2.7)
    ax.axhline(0, color=FAINT, linewidth=0.8)
    for i, position in enumerate(chosen):
        colour = matplotlib.colormaps["viridis"](0.85 * i / max(len(chosen) - 1, 1))
        ax.plot(np.arange(n), products[position], color=colour, linewidth=1.4)
        ax.plot([position], [products[position, position]], "o", color=colour, markersize=4)
        ax.annotate(str(position), (position, products[position, position]), (0, 5), textcoords="offset points",
                    ha="center", color=colour, weight="bold")
    ax.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    ax.set(xlabel="other position", ylabel="dot product with the position that is named")
    return page.figure


def sample_scores(d_k, n_queries, n_keys, rng):
    """q · k for n_queries standard normal queries, each with n_keys such keys of its own: (n_queries, n_keys)."""
    q, k = rng.standard_normal((n_queries, 1, d_k)), rng.standard_normal((n_queries, d_k, n_keys))
    return (q @ k)[:, 0]


def gradient_through_softmax(y):
    """The mean over rows of the Frobenius norm of the derivative of softmax where its value is y (rows, n)."""
    columns = softmax_backward(np.eye(y.shape[-1]), y[:, None])                                 # (rows, n, n)
    return float(np.sqrt((columns ** 2).sum(axis=(-1, -2))).mean())


@drawing
def visualize_attention_scaling(d_k_values=(4, 16, 64, 256, 1024), *, n_queries=500, n_keys=16, example=64, rng=0,
                                title="Why attention divides by √d_k"):
    """The variance of q · k, its softmax and the gradient through that, with and without the scale.  [3.2.1]

    Queries and keys are independent standard normal vectors of d_k numbers. ``example`` is the d_k of the softmax that
    is drawn whole.
    """
    rng, d_k_values = np.random.default_rng(rng), sorted({*d_k_values})
    curves, shown = {"q·k": [], "q·k / √d_k": []}, {}
    for d_k in sorted({*d_k_values, example}):
        scores = sample_scores(d_k, n_queries, n_keys, rng)
        for name, scaled in zip(curves, (scores, scores / math.sqrt(d_k))):
            y = softmax(scaled)
            if d_k in d_k_values:
                curves[name].append((scaled.var(), y.max(axis=-1).mean(), gradient_through_softmax(y)))
            if d_k == example:
                shown[name] = y[0]
    page = Page(8.2, 5.7, title,
                [f"{n_queries} queries with {n_keys} keys each, all numbers standard normal: q·k has the variance d_k, "
                 "and a softmax of such numbers picks one key.",
                 "Divided by √d_k, the variance is 1 whatever the width, and the gradient gets through."])
    colours = dict(zip(curves, (ORANGE, BLUE)))

    def panel(column, row, heading):
        left, top = page.left + 0.45 + column * 4.3, page.top + row * 2.95
        page.write(left - 0.45, top + 0.1, heading, weight="bold")
        return left, top + 0.3

    for (column, row), measure, heading in (((0, 0), 0, "Variance of the scores"),
                                            ((0, 1), 1, f"Largest of {n_keys} weights, mean"),
                                            ((1, 1), 2, "Gradient through the softmax (norm of its derivative, mean)")):
        left, top = panel(column, row, heading)
        ax = page.axes(left, top, 2.6, 2.05)
        for name, values in curves.items():
            y = [value[measure] for value in values]
            ax.plot(d_k_values, y, color=colours[name], marker="o", markersize=4)
            ax.annotate(name, (d_k_values[-1], y[-1]), (8, 0), textcoords="offset points", color=colours[name],
                        va="center")
            if measure == 0:
                for d_k, value in zip(d_k_values, y):
                    ax.annotate(f"{value:.3g}" if value < 1000 else f"{value:.0f}", (d_k, value), (0, 7),
                                textcoords="offset points", ha="center", size=7, color=colours[name])
        ax.set_xscale("log", base=2)
        ax.margins(x=0.1)
        ax.set_xticks(d_k_values, labels=[str(d_k) for d_k in d_k_values])
        ax.minorticks_off()
        ax.set_xlabel("d_k")
        if measure == 0:
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(power_of_ten)
            ax.margins(y=0.15)
        else:
            ax.set_ylim(0, None if measure == 2 else 1.05)
    left, top = panel(1, 0, f"The weights of one query, d_k = {example}")
    for i, (name, weights) in enumerate(shown.items()):
        ax = page.axes(left, top + i * 1.1, 2.6, 0.95)
        ax.bar(np.arange(n_keys) + 1, weights, color=colours[name], width=0.75)
        ax.set(ylim=(0, 1), yticks=[0, 1], xticks=[1, n_keys] if i else [])
        ax.annotate(name, (1, 0.5), (8, 0), xycoords="axes fraction", textcoords="offset points", color=colours[name],
                    va="center")
    ax.set_xlabel("key", labelpad=-6)
    return page.figure


# ------------------------------------------------------------------------------------------------------- training


def smallest_loss(vocab_size, label_smoothing):
    """The loss of a model that answers with the smoothed target itself: no model's is lower.  [5.4]"""
    q = np.full(vocab_size, label_smoothing / vocab_size)
    q[0] += 1 - label_smoothing
    loss = CrossEntropyLoss(ignore_index=-1, label_smoothing=label_smoothing)
    return loss(np.log(np.maximum(q, np.finfo(float).tiny))[None], np.array([0]))


@drawing
def plot_learning_curves(history, title="Learning", *, floor=None, notes=()):
    """Loss, accuracy and learning rate over the steps of a run, from a checkpoint's ``history``.  [5.3]

    history is a list of dicts with step, loss, learning_rate, token_accuracy and, at validations, exact_match; floor
    is the smallest loss there can be. ValueError for an empty history.
    """
    if not history:
        raise ValueError("the history is empty: no step of the training was recorded")

    def column(name):
        pairs = [(entry["step"], entry[name]) for entry in history if entry.get(name) is not None]
        return np.array(pairs, dtype=float).reshape(-1, 2).T

    page = Page(8.2, 5.2, title, notes)
    last = max(entry["step"] for entry in history)

    def panel(number, heading, lines, value_text):
        """One panel; each line is (name in the history, colour, label), labelled where it ends."""
        top = page.top + 1.72 * number
        page.write(page.left, top + 0.1, heading, weight="bold")
        ax = page.axes(page.left + 0.5, top + 0.28, 5.3, 1.2)
        ends = []
        for name, colour, label in lines:
            x, y = column(name)
            if len(x):
                ax.plot(x, y, color=colour, marker="o" if name == "exact_match" or len(x) < 3 else "", markersize=3,
                        clip_on=False)
                ends.append((y[-1], colour, f"{value_text(y[-1])} {label}"))
        ax.set(xlim=(0, last), ylim=(0, 1 if value_text is percent else None))
        ax.tick_params(labelbottom=number == 2)
        return ax, ends

    def label_ends(ax, ends):
        """Texts beside the right edge at the heights of the ends, moved down where two would touch."""
        ceiling, high = math.inf, ax.get_ylim()[1]
        for y, colour, text in sorted(ends, key=lambda end: -end[0]):
            ceiling = min(y / high, ceiling - 0.13)
            put(ax.annotate("", (1, ceiling), (7, 0), xycoords="axes fraction", textcoords="offset points",
                            color=colour, va="center"), text)

    ax, ends = panel(0, "Loss", [("loss", BLUE, "at the end")], "{:.2f}".format)
    if floor:
        ax.axhline(floor, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
        ends.append((floor, GREY, f"{floor:.2f} is the smallest possible"))
    label_ends(ax, ends)
    ax, ends = panel(1, "Share that is right", [("exact_match", ORANGE, "whole sequences, held out"),
                                                ("token_accuracy", BLUE, "tokens, in training")], percent)
    ax.set_yticks([0, 0.5, 1], labels=["0%", "50%", "100%"])
    label_ends(ax, ends)
    ax, ends = panel(2, "Learning rate", [("learning_rate", BLUE, "at the end")], "{:.2g}".format)
    label_ends(ax, ends)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xlabel("step")
    x, y = column("learning_rate")
    if len(x):
        peak = int(np.argmax(y))
        ax.annotate(f"{y[peak]:.2g} at step {x[peak]:.0f}", (x[peak], y[peak]), (6, 4), textcoords="offset points")
    return page.figure


def gradient_norms(model, src, tgt, *, label_smoothing=0.0, shift=shift_target):
    """The norm of the loss's gradient for each layer: a dict from dotted name to float, after one forward and backward.

    src (B, S), tgt (B, T) with the start token first; shift makes of tgt what the decoder reads and what it is to
    predict. The model's mode and its gradients stay as they were.
    """
    before = {name: gradient.copy() for name, gradient in model.named_gradients().items()}
    with eval_mode(model):
        model.zero_grad()
        tgt_in, targets = shift(tgt)
        logits = model(src, tgt_in, *make_masks(src, tgt_in))
        loss = CrossEntropyLoss(label_smoothing=label_smoothing)
        loss(logits, targets)
        model.backward(loss.backward())
        squares = {}
        for name, gradient in model.named_gradients().items():
            layer = name.rpartition(".")[0] or name
            squares[layer] = squares.get(layer, 0.0) + float((gradient.astype(np.float64) ** 2).sum())
            gradient[...] = before[name]
    return {name: math.sqrt(square) for name, square in squares.items()}


def words_for(name):
    """encoder_layers.0.norm1 -> ("layer 1", "norm1"); src_embedding -> ("", "embedding")."""
    parts = name.split(".")
    if parts[0] in ("encoder_layers", "decoder_layers"):
        return f"layer {int(parts[1]) + 1}", ".".join(parts[2:]).replace("_attention", "-attention").replace("_", "-")
    return "", {"src_embedding": "embedding", "tgt_embedding": "embedding"}.get(name, name.replace("_", " "))


@drawing
def plot_gradient_norms(norms, title="How much gradient reaches each layer", *, notes=()):
    """The norms that gradient_norms returns, in the order of the forward pass, encoder and decoder side by side."""
    if not norms:
        raise ValueError("there are no gradient norms to draw")
    sides = {"Encoder": [], "Decoder": []}
    for name, norm in norms.items():
        on_the_left = name.startswith(("src_embedding", "encoder_layers"))
        sides["Encoder" if on_the_left else "Decoder"].append((name, norm))
    # named_gradients lists the stacks in order of construction and a weight of the model itself first.
    sides["Decoder"].sort(key=lambda item: item[0] == "output_projection")
    positive = [norm for norm in norms.values() if norm > 0] or [1.0]
    low = 10 ** math.floor(math.log10(min(positive)) - 0.05)
    high = 10 ** math.ceil(math.log10(max(positive)) + 0.05)
    row = 0.2
    most = max(len(items) for items in sides.values())
    page = Page(8.6, most * row + 0.8, title, notes)
    for i, (side, items) in enumerate(sides.items()):
        left, top = page.left + 4.45 * i, page.top + 0.25
        page.write(left, page.top + 0.1, side, weight="bold")
        if not items:
            continue
        ax = page.axes(left + 1.75, top, 1.9, len(items) * row)
        y = np.arange(len(items))
        values = np.array([norm for _, norm in items])
        ax.hlines(y, low, np.maximum(values, low), color=FAINT, linewidth=1.2)
        ax.plot(np.where(values > 0, values, np.nan), y, "o", color=BLUE, markersize=4.5)
        ax.set_xscale("log")
        ax.xaxis.set_major_formatter(power_of_ten)
        ax.set(xlim=(low, high), ylim=(len(items) - 0.5, -0.5), yticks=[])
        ax.spines["left"].set_visible(False)
        ax.minorticks_off()
        ax.set_xlabel("norm of the gradient")
        previous = None
        for place, (name, norm) in enumerate(items):
            layer, part = words_for(name)
            middle = top + (place + 0.5) * row
            if layer != previous and layer:
                page.write(left, middle, layer, color=GREY, va="center")
            previous = layer
            page.write(left + 1.65, middle, part, ha="right", va="center")
            page.write(left + 3.72, middle, f"{norm:.2g}" if norm >= 0.01 else f"{norm:.1e}", va="center", color=GREY,
                       size=7)
    return page.figure


# ---------------------------------------------------------------------------------------------- figure 1 of the paper


PAPER_BASE = dict(src_vocab_size=37000, tgt_vocab_size=37000, d_model=512, n_heads=8, n_encoder_layers=6,
                  n_decoder_layers=6, d_ff=2048, tie_embeddings=True)                            # [5.1, table 3]


def sizes_of(model):
    """The sizes that the arrays of a Transformer have, under the names of its constructor."""
    encoder, decoder = model.encoder_layers, model.decoder_layers
    (src_vocab_size, d_model), tgt_vocab_size = model.src_embedding.embedding.shape, len(model.tgt_embedding.embedding)
    return dict(src_vocab_size=src_vocab_size, tgt_vocab_size=tgt_vocab_size, d_model=d_model,
                n_heads=encoder[0].self_attention.n_heads, n_encoder_layers=len(encoder), n_decoder_layers=len(decoder),
                d_ff=encoder[0].feed_forward.W1.shape[1],
                tie_embeddings=model.tgt_embedding.embedding is model.src_embedding.embedding)


def count_weights(sizes):
    """How many weights each kind of box of figure 1 has, and all of them together."""
    d, d_ff = sizes["d_model"], sizes["d_ff"]
    counts = {"attention": 4 * d * d, "norm": 2 * d, "feed_forward": 2 * d * d_ff + d_ff + d,
              "src_embedding": sizes["src_vocab_size"] * d, "tgt_embedding": sizes["tgt_vocab_size"] * d}
    tables = 1 if sizes["tie_embeddings"] else 3
    counts["all"] = (sizes["n_encoder_layers"] * (counts["attention"] + 2 * counts["norm"] + counts["feed_forward"])
                     + sizes["n_decoder_layers"] * (2 * counts["attention"] + 3 * counts["norm"]
                                                    + counts["feed_forward"])
                     + counts["src_embedding"] + (tables - 1) * counts["tgt_embedding"])
    return counts


BOX_COLOURS = {"attention": "#d5e3f1", "feed_forward": "#f7e3c8", "norm": "#eceef0", "embedding": "#dcebdc",
               "output": "#e9e0f0"}


@drawing
def plot_transformer_architecture(model=None, title=None):
    """Figure 1 of the paper with the sizes and the numbers of weights of ``model``, or of the paper's base model."""
    sizes = PAPER_BASE if model is None else sizes_of(model)
    counts = count_weights(sizes)
    d, h, d_ff = (sizes[name] for name in ("d_model", "n_heads", "d_ff"))
    width, height, left, right, box = 8.3, 7.1, 2.15, 6.15, 2.5     # the page, the middles of the stacks, a box's width
    page = Page(width, height, title or ("The Transformer: the paper's base model" if model is None
                                           else "The Transformer: this model"),
                [f"d_model {d:,}, {h} heads of d_k {d // h}, d_ff {d_ff:,}, {sizes['n_encoder_layers']} + "
                 f"{sizes['n_decoder_layers']} layers, {counts['all']:,} weights"
                 + (" (embeddings and output share one table)" if sizes["tie_embeddings"] else "")])
    ax = page.axes(page.left, page.top, width, height)
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.set_axis_off()
    ink = dict(color=GREY, linewidth=1.0, solid_capstyle="butt", solid_joinstyle="round")

    def line(*points, arrow=True):
        (x, y), (from_x, from_y) = points[-1], points[-2]
        ax.plot(*zip(*points), **ink)
        if arrow:
            ax.annotate("", (x, y), (from_x, from_y),
                        arrowprops=dict(arrowstyle="-|>,head_width=0.16,head_length=0.32", color=GREY, linewidth=1.0,
                                        shrinkA=0, shrinkB=0))

    def say(x, y, text, **style):
        put(ax.text(x, y, "", **{"ha": "center", "va": "center", **style}), text)

    def draw_box(x, y, height, kind, name, detail="", section=""):
        """A box whose lower edge is at y; returns its upper edge."""
        ax.add_patch(FancyBboxPatch((x - box / 2, y), box, height, boxstyle="round,pad=0,rounding_size=0.06",
                                    facecolor=BOX_COLOURS[kind], edgecolor="none"))
        if detail and height >= 0.4:
            say(x, y + height * 0.67, name, weight="bold")
            say(x, y + height * 0.30, detail, size=7, color="#474c55")
        elif detail:
            say(x - box / 2 + 0.12, y + height / 2, name, weight="bold", ha="left")
            say(x + box / 2 - 0.12, y + height / 2, detail, size=7, color="#474c55", ha="right")
        else:
            say(x, y + height / 2, name, weight="bold")
        return y + height

    def stack(x, outside, y, sublayers):
        """Sublayers from below, each with its residual path on the outer side; the upper edge, and the middles."""
        middles = []
        for kind, name, detail in sublayers:
            branch = y - 0.17
            line((x, y - (0.36 if middles else 0.2)), (x, y))
            top = draw_box(x, y, 0.5, kind, name, detail)
            middles.append((y + top) / 2)
            line((x, top), (x, top + 0.13), arrow=False)
            edge = x + outside * (box / 2 + 0.2)
            draw_box(x, top + 0.13, 0.28, "norm", "Add & Norm", f"{counts['norm']:,}")
            line((x, branch), (edge, branch), (edge, top + 0.27), (x + outside * box / 2, top + 0.27))
            y = top + 0.41 + 0.36
        return y - 0.36, middles

    attention = f"{h} heads of {d // h}: {counts['attention']:,} weights"
    feed_forward = f"{d:,} → {d_ff:,} → {d:,}: {counts['feed_forward']:,} weights"
    bottoms = {}
    for x, outside, tokens, table, n in ((left, -1, "source tokens", "src_embedding", sizes["src_vocab_size"]),
                                         (right, 1, "target tokens so far", "tgt_embedding", sizes["tgt_vocab_size"])):
        say(x, 0.1, tokens, color=GREY)
        line((x, 0.22), (x, 0.42))
        shared = sizes["tie_embeddings"] and outside == 1
        top = draw_box(x, 0.42, 0.5, "embedding", "Embedding",
                       "shared with the source" if shared else f"{n:,} × {d:,} = {counts[table]:,}")
        line((x, top), (x, top + 0.2))
        ax.plot([x], [top + 0.32], "o", markersize=16, markerfacecolor="white", markeredgecolor=GREY)
        say(x, top + 0.32, "+", size=11, color=GREY)
        wave = np.linspace(0, 2 * math.pi, 60)
        centre = x + outside * (box / 2 + 0.2)
        ax.plot(centre + (wave - math.pi) * 0.045, top + 0.32 + 0.08 * np.sin(wave), color=GREY, linewidth=1.2)
        line((centre - outside * 0.2, top + 0.32), (x + outside * 0.13, top + 0.32))
        say(centre, top + 0.08, "positions", size=7, color=GREY)
        bottoms[x] = top + 0.44 + 0.5
        line((x, top + 0.44), (x, bottoms[x] - 0.2), arrow=False)
    encoder_top, _ = stack(left, -1, bottoms[left], [("attention", "Multi-Head Attention", attention),
                                                     ("feed_forward", "Feed Forward", feed_forward)])
    decoder_top, middles = stack(right, 1, bottoms[right], [
        ("attention", "Masked Multi-Head Attention", attention), ("attention", "Multi-Head Attention", attention),
        ("feed_forward", "Feed Forward", feed_forward)])
    for x, outside, top, n, name in ((left, -1, encoder_top, sizes["n_encoder_layers"], "encoder"),
                                     (right, 1, decoder_top, sizes["n_decoder_layers"], "decoder")):
        low, edge = bottoms[x] - 0.3, x + outside * (box / 2 + 0.36)
        inner = x - outside * (box / 2 + 0.14)
        ax.add_patch(FancyBboxPatch((min(edge, inner), low), abs(edge - inner), top + 0.14 - low, facecolor="none",
                                    boxstyle="round,pad=0,rounding_size=0.1", edgecolor="#c3c8cf", linewidth=1.0,
                                    zorder=0))
        say(edge + outside * 0.1, (low + top) / 2 + 0.1, f"{n}×", size=14, ha="left" if outside > 0 else "right")
        say(edge + outside * 0.1, (low + top) / 2 - 0.14, name, color=GREY, ha="left" if outside > 0 else "right")

    middle = (left + right) / 2
    line((left, encoder_top), (left, encoder_top + 0.4), (middle, encoder_top + 0.4), (middle, middles[1]),
         (right - box / 2, middles[1]))
    say(middle - 0.06, encoder_top + 0.52, "the encoder's output", color=GREY, ha="right")
    say(middle + 0.06, middles[1] + 0.1, "K, V", color=GREY, ha="left")
    say(right - 0.08, middles[1] - 0.36, "Q", color=GREY, ha="right")
    line((right, decoder_top), (right, decoder_top + 0.42))
    top = draw_box(right, decoder_top + 0.42, 0.5, "output", "Linear",
                   "shared with the embeddings" if sizes["tie_embeddings"]
                   else f"{d:,} × {sizes['tgt_vocab_size']:,} = {counts['tgt_embedding']:,}")
    line((right, top), (right, top + 0.18))
    top = draw_box(right, top + 0.18, 0.28, "output", "Softmax")
    line((right, top), (right, top + 0.2))
    say(right, top + 0.3, f"probabilities of {sizes['tgt_vocab_size']:,} tokens", color=GREY)
    return page.figure


# ------------------------------------------------------------------------------- one example, and the command line


def remark_on(settings):
    """A line about a model that was not trained as the library has it, or None."""
    bug = settings.get("inject_bug")
    if bug:
        return f"Trained and drawn with the mistake {bug} ({load_extra('bugs').BUGS[bug]})"
    if settings.get("with_exercises"):
        return "Trained with the classes of exercises/, drawn with those that are written there now"


def whole_pass(model, src, tgt_in):
    """The probabilities (T, V) of one pass, and its attention: "encoder", "decoder", "cross" -> (layers, h, T, S)."""
    with eval_mode(model):
        probabilities = softmax(model(src, tgt_in, *make_masks(src, tgt_in)))[0]
    layers = {"encoder": [block.self_attention for block in model.encoder_layers],
              "decoder": [block.self_attention for block in model.decoder_layers],
              "cross": [block.cross_attention for block in model.decoder_layers]}
    return probabilities, {kind: np.stack([layer.get_attention_weights()[0] for layer in of_kind])
                           for kind, of_kind in layers.items()}


@dataclass
class Example:
    """What a checkpoint's model does with one source: the answer, and the attention of the pass that gives it."""

    checkpoint: object
    src: np.ndarray                      # (1, S) the tokens and end
    tgt: np.ndarray                      # (1, T + 1) start and the model's own answer
    probabilities: np.ndarray            # (T, V) for each token of the answer
    looks: np.ndarray                    # (T, S) where the last layer looks in the source then, the mean of its heads
    attention: dict                      # "encoder", "decoder", "cross" -> (layers, h, queries, keys)
    masks: dict                          # the same names and shapes -> booleans, True = hidden
    remark: str | None = None            # when it is not the library's model: a line that says so
    shift: object = shift_target

    @classmethod
    def of(cls, checkpoint, tokens):
        """Decode greedily, then run the whole pass once with that answer as the decoder's input."""
        model = checkpoint.model
        shift, _ = as_trained(model, checkpoint.settings)
        remark = remark_on(checkpoint.settings)
        src = np.array([[*tokens, END]])
        answer = greedy_decode(model, src, src.shape[1])
        tgt = np.concatenate([[[START]], answer], axis=1)
        tgt_in, _ = shift_target(tgt)
        probabilities, attention = whole_pass(model, src, tgt_in)
        looks = attention["cross"][-1].mean(axis=0)
        if remark:                       # earlier positions may see later ones: what it knew at a step is another pass
            steps = [whole_pass(model, src, tgt_in[:, :n + 1]) for n in range(tgt_in.shape[1])]
            probabilities = np.stack([step[-1] for step, _ in steps])
            looks = np.stack([maps["cross"][-1].mean(axis=0)[-1] for _, maps in steps])
        source_mask, target_mask = make_masks(src, tgt_in)
        masks = {"encoder": source_mask, "decoder": target_mask, "cross": source_mask}
        # A mask that the model does not keep to hides nothing: where there is weight, the weight is shown.
        masks = {kind: mask & (attention[kind] == 0) for kind, mask in masks.items()}
        return cls(checkpoint, src, tgt, probabilities, looks, attention, masks, remark, shift)

    def labels(self, tokens):
        return [token_label(int(token), self.checkpoint.vocabulary) for token in tokens]

    @property
    def source_labels(self):
        return self.labels(self.src[0])

    @property
    def target_labels(self):
        """Of what the decoder reads: start, and the answer without its last token."""
        return self.labels(self.tgt[0, :-1])

    @property
    def texts(self):
        """The source and the answer as text."""
        return tuple(shortened(show_tokens(tokens, self.checkpoint.vocabulary))
                     for tokens in (self.src[0], self.tgt[0, 1:]))

    @property
    def notes(self):
        """Source and answer in one line; in a line each where a script that runs leftwards would turn the arrow. Then
        the remark, if there is one."""
        source, answer = self.texts
        leftwards = any(unicodedata.bidirectional(character) in ("R", "AL") for character in source + answer)
        lines = [f"source: {source}", f"answer: {answer}"] if leftwards else [f"{source} → {answer}"]
        return lines + self.remarks

    @property
    def remarks(self):
        return [self.remark] if self.remark else []


def shortened(text, most=44):
    return text if len(text) <= most else text[:most - 1].rstrip() + "…"


def draw_architecture(example):
    return plot_transformer_architecture(example.checkpoint.model)


def draw_attention(example):
    weights = example.attention["cross"][-1]
    head = int(attention_entropy(weights).mean(axis=-1).argmin())
    return plot_attention_weights(
        weights[head], example.source_labels, example.target_labels, "Where the decoder looks while it writes",
        notes=[*example.notes, f"Cross-attention of layer {len(example.attention['cross'])}, head {head + 1}, which "
                                "has the lowest entropy there"])


def draw_heads(example):
    return plot_multi_head_attention(
        example.attention["decoder"][0], title="The heads of the decoder's first self-attention",
        x_labels=example.target_labels, y_labels=example.target_labels, mask=example.masks["decoder"][0],
        notes=example.notes)


def draw_every_head(example):
    return plot_every_head(**example.attention, source_labels=example.source_labels,
                           target_labels=example.target_labels, target_mask=example.masks["decoder"],
                           notes=example.notes)


def draw_decoding(example):
    names = example.labels(range(example.probabilities.shape[-1]))
    return plot_decoding(example.tgt[0, 1:], example.probabilities, example.looks, example.source_labels, names,
                         notes=[*example.notes, "Left: cross-attention of the last layer, mean of its heads. "
                                                  "A frame marks the token that was written."])


def draw_masks(example):
    tokens = np.concatenate([example.src[0], [PAD, PAD]])
    return plot_masks(tokens, example.labels(tokens))


def draw_entropy(example):
    return plot_attention_entropy(example.attention, example.masks, notes=example.notes)


def draw_gradients(example):
    checkpoint = example.checkpoint
    norms = gradient_norms(checkpoint.model, example.src, example.tgt,
                           label_smoothing=checkpoint.settings.get("label_smoothing", 0.0), shift=example.shift)
    return plot_gradient_norms(norms, notes=[*example.notes, "One backward pass from the loss of that answer"])


def draw_learning(example):
    settings = example.checkpoint.settings
    floor = None
    if settings.get("label_smoothing"):
        floor = smallest_loss(example.probabilities.shape[-1], settings["label_smoothing"])
    return plot_learning_curves(example.checkpoint.history, "How this model learned", floor=floor,
                                notes=example.remarks)


def draw_positions(example):
    return plot_positional_encoding(example.checkpoint.model.positional_encoding.pe)


def draw_similarity(example):
    return plot_position_similarity(example.checkpoint.model.positional_encoding.pe)


FIGURES = {        # name -> what draws it for an Example, and a caption
    "architecture": (draw_architecture, "Figure 1 of the paper with the sizes and the weight counts of this model."),
    "attention": (draw_attention, "One head of cross-attention: a row for each token that the decoder has read, a "
                                  "column for each source token."),
    "heads": (draw_heads, "Every head of the decoder's first self-attention; what the causal mask hides is hatched."),
    "every-head": (draw_every_head, "All layers and heads: encoder self-attention, decoder self-attention, "
                                    "cross-attention."),
    "decoding": (draw_decoding, "Greedy decoding step by step: where the decoder looks, and the best candidates with "
                                "their probabilities."),
    "masks": (draw_masks, "The padding mask, the causal mask, and both, for the source with two places of padding."),
    "entropy": (draw_entropy, "How evenly each head spreads its attention, in bits."),
    "gradients": (draw_gradients, "The norm of the gradient that one backward pass leaves in each layer."),
    "learning": (draw_learning, "Loss, accuracy and learning rate over the training run that made the checkpoint."),
    "positional-encoding": (draw_positions, "The table of positional encodings, and some of its dimensions as waves."),
    "position-similarity": (draw_similarity, "The dot product between the encodings of any two positions."),
    "attention-scaling": (lambda example: visualize_attention_scaling(),
                          "Scores of random vectors with and without the division by √d_k: variance, softmax, "
                          "gradient."),
}
MOST_TOKENS = 200                                         # beyond it the cells of a map are smaller than a pixel


def default_input(checkpoint):
    """As many data tokens as the model was trained for, always the same."""
    vocab_size = len(checkpoint.model.src_embedding.embedding)
    most = min(checkpoint.settings.get("seq_len", 8), 12, len(checkpoint.model.positional_encoding.pe) - 1)
    return list(np.random.default_rng(3).integers(FIRST, vocab_size, most))


def index_page(example, figures, kind, source):
    """An HTML page with the figures (a dict from name to Figure) as they stand beside it, and their captions."""
    sizes, escape = sizes_of(example.checkpoint.model), html.escape
    facts = (f"Checkpoint {source}, step {example.checkpoint.step:,}; d_model {sizes['d_model']}, {sizes['n_heads']} "
             f"heads, {sizes['n_encoder_layers']} + {sizes['n_decoder_layers']} layers, "
             f"{example.checkpoint.model.num_parameters():,} weights.")
    if example.remark:
        facts += f" {example.remark}. {AS_IN_THE_LIBRARY}."
    parts = []
    for name, figure in figures.items():
        file, caption = f"{name}.{kind}", escape(FIGURES[name][1])
        width, height = (round(110 * inches) for inches in figure.get_size_inches())
        shown = file if kind == "pdf" else (f'<img src="{file}" width="{width}" height="{height}" alt="{caption}" '
                                            'loading="lazy">')
        parts.append(f'<figure id="{name}"><a href="{file}">{shown}</a><figcaption>{caption}</figcaption></figure>')
    source_text, answer = (escape(text) for text in example.texts)
    return INDEX.format(source=source_text, answer=answer, facts=escape(facts), figures="\n".join(parts))


AS_IN_THE_LIBRARY = "Figure 1, the masks and the positions are drawn as the library has them"

INDEX = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{source} → {answer}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.4rem; overflow-wrap: anywhere; }}
figure {{ margin: 2.5rem 0; }}
img {{ max-width: 100%; height: auto; background: white; border-radius: 6px; }}
figcaption {{ opacity: 0.8; margin-top: 0.4rem; }}
</style>
<h1><bdi>{source}</bdi> → <bdi>{answer}</bdi></h1>
<p>{facts}</p>
{figures}
</html>
"""


def write_figures(example, names, out, kind, source):
    """Draw the figures named and, unless it is a single one, the page that shows them.

    Returns the paths of the figures, and a line for each that could not be drawn.
    """
    out, drawn, skipped = Path(out), {}, []
    out.mkdir(parents=True, exist_ok=True)
    for name in tqdm(names, desc="figures", unit="figure", disable=None, leave=False):
        try:
            drawn[name] = FIGURES[name][0](example)
        except ValueError as error:
            if len(names) == 1:
                raise
            skipped.append(f"{name} was not drawn: {error}")
        else:
            save_figure(drawn[name], out / f"{name}.{kind}")
    if len(names) > 1:
        with replacing(out / "index.html") as beside:
            beside.write_text(index_page(example, drawn, kind, source), encoding="utf-8")
    return [out / f"{name}.{kind}" for name in drawn], skipped


def parse_arguments(argv):
    parser = Parser(prog="visualization.py", description="Draw what a trained model does with a sequence.",
                    formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--checkpoint", metavar="FILE", default="checkpoints/copy.npz",
                        help="what train_minimal.py wrote")
    parser.add_argument("--input", metavar="TOKENS",
                        help='the source: "5 3 9", or text for a model trained with --data (default: a fixed sequence)')
    parser.add_argument("--out", metavar="DIR", default="figures", help="where the figures go")
    parser.add_argument("--figure", metavar="NAME", help="this figure alone, without the index page")
    parser.add_argument("--format", choices=("png", "svg", "pdf"), default="png")
    parser.add_argument("--list", action="store_true", help="name the figures and stop")
    return parser.parse_args(argv)


def run(argv):
    options = parse_arguments(argv)
    if options.list:
        for name, (_, caption) in FIGURES.items():
            print(f"{name:20} {caption}")
        return
    if options.figure is not None and options.figure not in FIGURES:
        close = difflib.get_close_matches(options.figure, FIGURES, 1)
        raise UsageError(f"there is no figure {options.figure!r}"
                         + (f"; did you mean {close[0]}?" if close else f"; there are {', '.join(FIGURES)}"))
    path = Path(options.checkpoint)
    if not path.exists():
        task = path.stem if path.stem in ("copy", "reverse") else "copy"
        raise UsageError(f"there is no checkpoint {path}; this command makes one: "
                         f"python train_minimal.py --task {task} --checkpoint {path}")
    checkpoint = load_checkpoint(path)
    vocab_size, longest = len(checkpoint.model.src_embedding.embedding), len(checkpoint.model.positional_encoding.pe)
    tokens = (default_input(checkpoint) if options.input is None
              else parse_tokens(options.input, vocab_size, checkpoint.vocabulary))
    if len(tokens) + 1 > min(longest, MOST_TOKENS + 1):
        limit = (f"the model has positions for {longest - 1} and the end token" if longest <= MOST_TOKENS
                 else f"a figure shows at most {MOST_TOKENS}")
        raise UsageError(f"--input has {len(tokens)} tokens; {limit}")
    example = Example.of(checkpoint, tokens)
    if example.remark:
        print(f"{path.name}: {example.remark}. {AS_IN_THE_LIBRARY}.", file=sys.stderr)
    names = list(FIGURES) if options.figure is None else [options.figure]
    try:
        written, skipped = write_figures(example, names, options.out, options.format, path.name)
    except OSError as error:
        raise UsageError(f"cannot write to {options.out}: {error.strerror or error}") from None
    for note in skipped:
        print(note, file=sys.stderr)
    if options.figure is None:
        print(f"{' → '.join(example.texts)}: {len(written)} figures, see {Path(options.out) / 'index.html'}")
    else:
        print(written[0])


def main(argv=None):
    """Run the command line; the exit status: 0, 2 for wrong usage, 130 when interrupted."""
    try:
        run(argv)
    except (UsageError, CheckpointError, ValueError) as error:
        print(f"visualization.py: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
