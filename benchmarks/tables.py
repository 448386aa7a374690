"""The results as Markdown tables for the README, and as a figure."""

import math
from pathlib import Path

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"
NAMES = {"teaching": "teaching", "d128": "d 128", "middle": "middle", "base": "paper base",
         "base_37k": "paper base, 37,000 words"}


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def figure(value, digits=3):
    """A number with three significant digits, thousands separated; a dash for None."""
    if value is None:
        return "–"
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def ratio(a, b):
    return "–" if a is None or b is None else f"{a / b:.2f}"


def list_of(words):
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def machine_line(results):
    machine, versions = results["machine"], results["versions"]
    torch = f", PyTorch {versions['torch']}" if versions.get("torch") else ""
    return (f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']} GB, {machine['system']}; "
            f"Python {versions['python']}, NumPy {versions['numpy']} with {versions['blas']}{torch}; commit "
            f"{results['commit']}. One run, everything interleaved, medians of at least five, "
            f"{results['blas_threads']} BLAS thread{'s' * (results['blas_threads'] != 1)} on each side unless the "
            "table says otherwise.")


def step_text(rows):
    def total(row, gradients, update):
        return row[gradients] + row[update] if gradients in row else None

    body, slower = [], []
    for row in rows:
        ours = total(row, "gradients_ms", "update_ms")
        theirs, fused = (total(row, "torch_gradients_ms", update) for update in ("torch_update_ms",
                                                                                 "torch_fused_update_ms"))
        if theirs is not None and min(ours / theirs, ours / fused) > 1:
            slower.append(NAMES[row["size"]])
        body.append([NAMES[row["size"]], f"{row['parameters'] / 1e6:.2f} M", figure(row["gradients_ms"]),
                     figure(row["update_ms"]), figure(ours), figure(row.get("torch_gradients_ms")),
                     figure(row.get("torch_update_ms")), figure(row.get("torch_fused_update_ms")), figure(theirs),
                     ratio(ours, theirs), ratio(ours, fused), figure(row["floor_ms"]), ratio(ours, row["floor_ms"]),
                     ratio(row["floor_ms"], theirs)])
    sizes = "; ".join(f"{NAMES[row['size']]}: d_model {row['d_model']}, {row['n_heads']} heads, {row['n_layers']} + "
                      f"{row['n_layers']} layers, d_ff {row['d_ff']}, batch {row['batch']}, length {row['length']}, "
                      f"vocabulary {row['vocab']:,}" for row in rows)
    text = [table(["one training step, ms", "weights", "forward, backward", "Adam", "**step**",
                   "PyTorch forward, backward", "its Adam", "its fused Adam", "**its step**", "**ours / PyTorch**",
                   "ours / PyTorch fused", "floor", "**ours / floor**", "floor / PyTorch"], body),
            "The floor is the time of the step's own matrix products alone, replayed on the arrays of a recorded step. "
            f"PyTorch is eager `torch.nn.Transformer` with embeddings, float32. Sizes: {sizes}. Dropout 0.1."]
    if "torch_gradients_ms" not in rows[0]:
        text.append("PyTorch was not installed, so its columns are empty.")
    elif slower:
        text.append(f"PyTorch is faster at {list_of(slower)}.")
    return "\n\n".join(text)


def learning_text(rows):
    def cells(run):
        if run is None:
            return ["–", "–", "–"]
        steps = f"{run['steps']:,}" if run["perfect"] else f"not within {run['steps']:,}"
        return [steps, figure(run["seconds"]), figure(1e3 * run["seconds"] / run["steps"])]

    body = [[row["task"], *cells(row["runs"]["ours"]), *cells(row["runs"].get("torch"))] for row in rows]
    return "\n\n".join([
        table(["to 100 % exact match", "steps", "seconds", "ms a step", "PyTorch steps", "its seconds",
               "its ms a step"], body),
        "Until five validations in a row, 100 steps apart, are without a mistake, with the defaults of "
        "`train_minimal.py`; the time of the validations does not count. Both sides start from the same weights and "
        "see the same batches with the same loss."])


def decoding_text(rows):
    body, positions = [], []
    for row in rows:
        for entry in row["lengths"]:
            speed = entry["tokens_per_second"]
            body.append([f"{NAMES[row['size']]}, batch {row['batch']}", str(entry["length"]), figure(speed["cached"]),
                         figure(speed.get("recomputed")), figure(speed.get("torch")),
                         ratio(speed["cached"], speed.get("recomputed")),
                         {True: "yes", False: "no", None: "–"}[entry["same_tokens"]]])
        at = row["ms_at_position"]
        positions.append(f"{NAMES[row['size']]}, batch {row['batch']}: {figure(at['10'])} and {figure(at['500'])} ms")
    return "\n\n".join([
        table(["greedy decoding, tokens a second", "length", "cached keys and values", "recomputing",
               "PyTorch, recomputing", "cached / recomputing", "same tokens"], body),
        f"One more token at position 10 and at position 500 takes, {'; '.join(positions)}. `torch.nn.Transformer` "
        "offers no cache."])


def memory_text(rows):
    body = [[NAMES[row["size"]], figure(row.get("ours_mb")), figure(row.get("torch_mb")),
             ratio(row.get("ours_mb"), row.get("torch_mb"))] for row in rows]
    return "\n\n".join([
        table(["peak memory of a step, MB", "ours", "PyTorch", "ours / PyTorch"], body),
        "Resident memory beyond the imports, with weights, gradients and Adam's moments, each in a process of its "
        "own."])


def growth_text(growth):
    e, at = growth["exponents"], growth["attention_overtakes_at"]
    body = [[f"n = {p['length']}", figure(p["attention_ms"]), figure(p["rest_ms"]), figure(p["step_ms"]),
             figure(p["memory_mb"])] for p in growth["by_length"]]
    widths = [[f"d = {p['width']}", figure(p["attention_ms"]), figure(p["step_ms"] - p["attention_ms"]),
               figure(p["step_ms"]), figure(p["memory_mb"])] for p in growth["by_width"]]
    where = ("within these lengths it does not overtake the rest" if at is None
             else f"at length {at:.0f} it overtakes everything else")
    return "\n\n".join([
        table(["growth of a step", "attention, ms", "the rest, ms", "step, ms", "memory, MB"], body + widths),
        f"Table 1 of the paper, measured: one layer in each stack, batch {growth['batch']}; against the length n with "
        f"d_model {growth['d_model']}, against the width d with length {growth['length_of_widths']}. Fitted from n = "
        f"{e['attention_from']} up, the time inside the attentions (Q K^T to A V) grows as "
        f"n^{e['attention_time']:.2f}, the rest as n^{e['rest_time']:.2f}, the step as n^{e['step_time']:.2f}, memory "
        f"as n^{e['memory']:.2f}; {where}. From d = {e['width_from']} up the step grows as d^{e['width_time']:.2f}, "
        f"memory as d^{e['width_memory']:.2f}.",
        "![Time and memory of a step against length and width](benchmarks/growth.png)"])


def threads_text(rows, cores):
    body = [[NAMES[row["size"]], *(figure(row[f"{where}_{count}_ms"]) for where in ("alone", "beside")
                                   for count in (1, 2)),
             ratio(row["alone_2_ms"], row["alone_1_ms"]), ratio(row["beside_2_ms"], row["beside_1_ms"])]
            for row in rows]
    return "\n\n".join([
        table(["BLAS threads, ms a step", "1, alone", "2, alone", "1, beside one busy process",
               "2, beside one busy process", "2 / 1 alone", "2 / 1 beside"], body),
        f"On these {cores} cores. Threads wait for each other at the end of every product, and a thread whose core is "
        "taken makes the others wait; `train_minimal.py` therefore takes one thread for small models, and "
        "`--threads N` overrides."])


def markdown(results):
    """Everything that stands between the two markers in the README."""
    texts = {"step": step_text, "learning": learning_text, "decoding": decoding_text, "memory": memory_text,
             "growth": growth_text, "threads": lambda rows: threads_text(rows, results["machine"]["cores"])}
    command = "python benchmarks/run.py" + " --quick" * results["quick"]
    parts = [f"Measured by `{command}` on {machine_line(results)}"]
    if results["quick"]:
        parts.append("A quick run measures fewer and smaller things: its figures are rough.")
    parts += [text(results[section]) for section, text in texts.items() if section in results]
    return "\n\n".join(parts) + "\n"


def with_tables(document, results):
    """The text of the README with these results between its markers. ValueError when a marker is missing."""
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(BEGIN) > document.index(END):
        raise ValueError(f"needs one line {BEGIN} and after it one line {END}")
    head, rest = document.split(BEGIN)
    return f"{head}{BEGIN}\n\n{markdown(results)}\n{END}{rest.split(END)[1]}"


def draw_growth(growth, path):
    """Time and memory against length and width, in logarithms, and where attention overtakes the rest."""
    from matplotlib.figure import Figure

    drawing = Figure(figsize=(11, 4), layout="constrained", dpi=120)
    time, memory, width = drawing.subplots(1, 3)
    n = [point["length"] for point in growth["by_length"]]
    for key, label, style in (("step_ms", "step", "k-o"), ("attention_ms", "inside attention", "C3-s"),
                              ("rest_ms", "the rest", "C0-^")):
        time.plot(n, [point[key] for point in growth["by_length"]], style, label=label, markersize=4)
    for power, key, color in ((2, "attention_ms", "C3"), (1, "rest_ms", "C0")):
        time.plot(n, [growth["by_length"][-1][key] * (x / n[-1]) ** power for x in n], color + ":", linewidth=1,
                  label=f"slope {power}")
    if growth["attention_overtakes_at"]:
        at = growth["attention_overtakes_at"]
        time.axvline(at, color="gray", linestyle="--", linewidth=1)
        time.text(at, 0.02, f" n = {at:.0f}", transform=time.get_xaxis_transform())
    time.set(title=f"time, d_model {growth['d_model']}", xlabel="length n", ylabel="ms")
    memory.plot(n, [point["memory_mb"] for point in growth["by_length"]], "k-o", label="step", markersize=4)
    top = growth["by_length"][-1]["memory_mb"]
    for power, color in ((2, "C3"), (1, "C0")):
        memory.plot(n, [top * (x / n[-1]) ** power for x in n], color + ":", linewidth=1, label=f"slope {power}")
    memory.set(title=f"memory, d_model {growth['d_model']}", xlabel="length n", ylabel="MB")
    d = [point["width"] for point in growth["by_width"]]
    width.plot(d, [point["step_ms"] for point in growth["by_width"]], "k-o", label="step, ms", markersize=4)
    width.plot(d, [point["memory_mb"] for point in growth["by_width"]], "C2-s", label="memory, MB", markersize=4)
    last = growth["by_width"][-1]["step_ms"]
    width.plot(d, [last * (x / d[-1]) ** 2 for x in d], "C3:", linewidth=1, label="slope 2")
    width.set(title=f"length {growth['length_of_widths']}", xlabel="width d")
    for axes in (time, memory, width):
        axes.set(xscale="log", yscale="log")
        axes.set_xticks(d if axes is width else n, labels=[str(x) for x in (d if axes is width else n)])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    beside = Path(path).with_suffix(".tmp.png")
    drawing.savefig(beside, metadata={"Software": None})
    beside.replace(path)
