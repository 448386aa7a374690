/* Elements, colours, pictures with their tables, and controls. Text goes into the page as text nodes only. */

// -------------------------------------------------------------------------------------------- making elements

const SVG = new Set(["svg", "g", "rect", "path", "text", "line", "circle", "polyline"]);

function el(tag, properties = {}, ...children) {
  const element = SVG.has(tag)
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false || value === null) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) element.style.setProperty(key, v);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const $ = (id) => document.getElementById(id);
const range = (n) => Array.from({ length: n }, (_, i) => i);

function number(x, digits = 4) {
  const text = Math.abs(x).toFixed(digits);
  return x < 0 && Number(text) !== 0 ? `\u2212${text}` : text;
}

function share(x) {
  // a weight in a small cell
  const text = x.toFixed(2);
  return text === "0.00" ? "0" : text === "1.00" ? "1" : text.slice(1);
}

const tokenText = (token) => el("span", { class: isSpecial(token) && "special" }, labelOf(token));
const shapeText = (shape) => `(${shape.join(", ")})`;

/* "W_{i}^Q" with subscripts and superscripts. */
function formula(text) {
  const parts = text.split(/([_^](?:\{[^}]*\}|\w))/).map((part) => {
    if (!/^[_^]/.test(part)) return part;
    return el(part[0] === "_" ? "sub" : "sup", {}, part.slice(1).replace(/[{}]/g, ""));
  });
  return el("p", { class: "formula" }, parts);
}

const openTables = new Set();

/* A table of values that is made when it is first opened. */
function valuesTable(name, rows, columns, values, { hidden, digits = 4, corner = "" } = {}) {
  const place = el("div");
  const id = `${state.view} ${name}`;
  const details = el(
    "details",
    { "data-key": id, ontoggle: fill, open: openTables.has(id) },
    el("summary", { "data-key": `summary ${id}` }, "Values", el("span", { class: "hidden-text" }, ` of ${name}`)),
    place,
  );
  function fill() {
    openTables[details.open ? "add" : "delete"](id);
    if (!details.open || place.firstChild) return;
    const head = el(
      "tr",
      {},
      el("th", { scope: "col" }, corner || el("span", { class: "hidden-text" }, "row")),
      columns.map((column) => el("th", { scope: "col" }, column)),
    );
    const body = values.map((row, i) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, rows[i]),
        row.map((x, j) => el("td", {}, hidden?.[i][j] ? "masked" : number(x, digits))),
      ),
    );
    place.append(
      el(
        "div",
        { class: "scroll tall", tabindex: 0, role: "region", "aria-label": `Values of ${name}` },
        el("table", {}, el("caption", { class: "hidden-text" }, name), el("thead", {}, head), el("tbody", {}, body)),
      ),
    );
  }
  if (details.open) fill();
  return details;
}

// ------------------------------------------------------------------------------------------------------ colours

/* The colours of the theme in force, as [red, green, blue]. */
function colourOf(name) {
  const probe = el("span", { style: { color: `var(--${name})` } });
  document.body.append(probe);
  const parts = getComputedStyle(probe)
    .color.match(/[\d.]+/g)
    .slice(0, 3)
    .map(Number);
  probe.remove();
  return parts;
}

let palette;
const readPalette = () => {
  palette = Object.fromEntries(["paper", "ink", "accent"].map((name) => [name, colourOf(name)]));
};

/* From the paper at 0 to the accent at 1; values below 0 go from the paper to the ink. */
function shade(x) {
  const t = Math.min(Math.abs(x), 1);
  const end = x < 0 ? palette.ink : palette.accent;
  return palette.paper.map((from, i) => Math.round(from + (end[i] - from) * t * (x < 0 ? 0.75 : 1)));
}

const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

function luminance(colour) {
  const [r, g, b] = colour.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

const readableOn = (colour) => (luminance(colour) > 0.179 ? "#000" : "#fff"); // at least 4.5 to 1 on any colour

/* One pixel for each value, stretched by the style sheet. */
function pixels(name, values, { largest = 1, hidden, height, decorative } = {}) {
  const canvas = el("canvas", {
    width: values[0].length,
    height: values.length,
    style: height && { height },
    ...(decorative ? { "aria-hidden": "true" } : { role: "img", "aria-label": name }),
  });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  values.flat().forEach((x, i) => {
    const masked = hidden?.[Math.floor(i / canvas.width)][i % canvas.width];
    image.data.set(masked ? [0, 0, 0, 0] : [...shade(x / largest), 255], 4 * i); // the hatching shows through
  });
  context.putImageData(image, 0, 0);
  return canvas;
}

const largestOf = (values) =>
  values.reduce((most, row) => row.reduce((m, x) => Math.max(m, Math.abs(x)), most), 0) || 1;

/* A matrix as a picture with its table. Positive values are coloured, negative ones grey. */
function picture(name, rows, columns, values, { shape, positive, height, hidden } = {}) {
  const largest = largestOf(values);
  return el(
    "figure",
    {},
    el(
      "figcaption",
      {},
      el("span", {}, name),
      el("span", { class: "shape" }, shape ?? shapeText([values.length, values[0].length])),
    ),
    pixels(
      `${name}: ${values.length} rows, ${values[0].length} columns, ` +
        `${positive ? "0" : number(-largest, 3)} to ${number(largest, 3)}`,
      values,
      { largest, hidden, height: height ?? `${Math.min(11 * values.length, 280)}px` },
    ),
    valuesTable(name, rows, columns, values, { hidden }),
  );
}

const SIGNS = "Colour is positive, grey negative, each picture in full strength at its largest value.";
const legend = (...sentences) => el("p", { class: "legend" }, sentences.filter(Boolean).join(" "));

/* A matrix with its numbers in the cells, rows of queries and columns of keys. */
function heatTable(
  name,
  rowTokens,
  columnTokens,
  values,
  { hidden, largest = 1, text = share, selected, onSelect, keep } = {},
) {
  const cell = (x, i, j) => {
    const masked = hidden?.[i][j];
    const colour = shade(x / largest);
    const chosen = selected && selected[0] === i && selected[1] === j;
    return el(
      "td",
      {
        class: masked && "masked",
        style: masked ? {} : { background: css(colour), color: readableOn(colour) },
        ...(onSelect && {
          role: "gridcell",
          tabindex: chosen ? 0 : -1,
          "aria-selected": chosen ? "true" : "false",
          "data-key": `${keep} ${i} ${j}`,
          onclick: () => onSelect(i, j, true),
        }),
      },
      masked ? el("span", { class: "hidden-text" }, "masked") : text(x),
    );
  };
  function onkeydown(event) {
    const [i, j] = selected;
    const to = {
      ArrowUp: [i - 1, j],
      ArrowDown: [i + 1, j],
      ArrowLeft: [i, j - 1],
      ArrowRight: [i, j + 1],
      Home: [i, 0],
      End: [i, columnTokens.length - 1],
    }[event.key];
    if (!to || event.target.tagName !== "TD") return;
    event.preventDefault();
    onSelect(
      Math.min(Math.max(to[0], 0), rowTokens.length - 1),
      Math.min(Math.max(to[1], 0), columnTokens.length - 1),
      true,
    );
  }
  const roles = onSelect ? { role: "grid", onkeydown } : {};
  const heading = (token, scope) =>
    el(
      "th",
      {
        scope,
        class: isSpecial(token) && "special",
        role: onSelect && (scope === "col" ? "columnheader" : "rowheader"),
      },
      labelOf(token),
    );
  const row = onSelect ? { role: "row" } : {};
  const group = onSelect ? { role: "rowgroup" } : {};
  return el(
    "table",
    { class: "heat", "aria-label": name, ...roles },
    el(
      "thead",
      group,
      el(
        "tr",
        row,
        el("th", { scope: "col", role: onSelect && "columnheader" }, el("span", { class: "hidden-text" }, "row")),
        columnTokens.map((token) => heading(token, "col")),
      ),
    ),
    el(
      "tbody",
      group,
      values.map((line, i) =>
        el(
          "tr",
          { ...row, class: selected && selected[0] === i && "chosen" },
          heading(rowTokens[i], "row"),
          line.map((x, j) => cell(x, i, j)),
        ),
      ),
    ),
  );
}

/* Probabilities or sizes as a table whose last column is a bar. */
function bars(name, heads, lines) {
  return el(
    "table",
    { class: "bars" },
    el("caption", {}, name),
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        heads.map((head) => el("th", { scope: "col" }, head)),
        el("td", {}, el("span", { class: "hidden-text" }, "bar")),
      ),
    ),
    el(
      "tbody",
      {},
      lines.map(({ label, cells, length, chosen }) =>
        el(
          "tr",
          { class: chosen && "chosen" },
          el("th", { scope: "row" }, label),
          cells.map((text) => el("td", {}, text)),
          el("td", { class: "bar-cell" }, el("span", { class: "bar", style: { width: `${100 * length}%` } })),
        ),
      ),
    ),
  );
}

// ----------------------------------------------------------------------------------------------------- controls

function slider(label, field, low, high, step = 1) {
  const shown = el("output");
  const input = el("input", {
    type: "range",
    id: `control-${field}`,
    min: low,
    max: high,
    step,
    "data-key": `slider ${field}`,
    oninput: () => set({ [field]: Number(input.value) }),
  });
  const control = el("div", { class: "control range" }, el("label", { for: input.id }, label, " ", shown), input);
  control.update = (max = high) => {
    input.max = max;
    input.value = state[field];
    shown.textContent = input.value;
  };
  return control;
}

function seedControl(label, field) {
  const input = el("input", {
    type: "number",
    id: `control-${field}`,
    min: 0,
    max: 999999,
    step: 1,
    oninput: () => {
      if (input.value !== "" && input.validity.valid) set({ [field]: Number(input.value) });
    },
  });
  const control = el("div", { class: "control" }, el("label", { for: input.id }, label), input);
  control.update = () => {
    if (document.activeElement !== input) input.value = state[field];
  };
  return control;
}

function segments(field, choices, onchange) {
  const inputs = choices.map(([value, text]) => {
    const input = el("input", { type: "radio", name: `choice-${field}`, value, onchange: () => onchange(value) });
    return { value, input, label: el("label", {}, input, text) };
  });
  const group = el(
    "div",
    { class: "segments" },
    inputs.map(({ label }) => label),
  );
  group.update = () =>
    inputs.forEach(({ value, input }) => {
      input.checked = state[field] === value;
    });
  return group;
}

/* All heads at once, each a button with its picture; `summary` lists the columns of their table, a heading and a
 * function of the rows of what the mask leaves. */
function headThumbs(title, arrays, { largest, masks, onSelect, summary }) {
  const lines = Object.keys(KINDS).flatMap((kind) =>
    range(LAYERS).map((layer) => [
      el("span", { class: "caption" }, SHORT[kind], el("br"), `layer ${layer + 1}`),
      range(HEADS).map((head) => {
        const pressed = state.kind === kind && state.layer === layer && state.head === head;
        return el(
          "button",
          {
            type: "button",
            "aria-pressed": String(pressed),
            "data-key": `thumb ${kind}.${layer}.${head}`,
            "aria-label": `${KINDS[kind]}, layer ${layer + 1}, head ${head + 1}`,
            onclick: () => onSelect({ kind, layer, head }),
          },
          pixels("", arrays[kind][layer][head], { largest, hidden: masks[kind], decorative: true }),
        );
      }),
    ]),
  );
  const everyHead = Object.keys(KINDS).flatMap((kind) =>
    range(LAYERS).flatMap((layer) =>
      range(HEADS).map((head) => {
        const rows = arrays[kind][layer][head].map((row, i) => row.filter((_, j) => !masks[kind][i][j]));
        return {
          name: `${SHORT[kind]}, layer ${layer + 1}, head ${head + 1}`,
          values: summary.map(([, of]) => of(rows)),
        };
      }),
    ),
  );
  return el(
    "div",
    {},
    el(
      "div",
      { class: "thumbs", role: "group", "aria-label": `${title}; choose one`, style: { "--heads": HEADS } },
      el("span"),
      range(HEADS).map((head) => el("span", { class: "caption top" }, `head ${head + 1}`)),
      lines,
    ),
    valuesTable(
      title,
      everyHead.map(({ name }) => name),
      summary.map(([heading]) => heading),
      everyHead.map(({ values }) => values),
      { corner: "head" },
    ),
  );
}

const queriesOf = (result, kind) => (kind === "encoderSelfAttention" ? result.source : result.target);
const keysOf = (result, kind) => (kind === "decoderSelfAttention" ? result.target : result.source);
const headName = () => `${KINDS[state.kind]}, layer ${state.layer + 1}, head ${state.head + 1}`;
