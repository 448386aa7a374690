/* The page as a whole: the input at the top, the way between the views, and drawing anew when something changes. */

// ------------------------------------------------------------------------------------------ the page as a whole

state = stateFromAddress();
const views = { machine, sequence, attention, switches, explorers, backward };
const taskControl = segments(
  "task",
  TASKS.map((task) => [task, task[0].toUpperCase() + task.slice(1)]),
  (task) => set({ task }),
);

function go(view) {
  set({ view }, { newPlace: true });
  $(`title-${view}`).focus();
}

function showInput() {
  const { error } = parseTokens(state.tokens);
  $("tokens-error").textContent = error ?? "";
  $("tokens").setAttribute("aria-invalid", error ? "true" : "false");
  if ($("tokens").value !== state.tokens) $("tokens").value = state.tokens;
  taskControl.update();
  $("written").replaceChildren(...current().output.map(tokenText));
  const { parameters, steps } = models[state.task].facts;
  $("weight-count").textContent = parameters.toLocaleString("en");
  $("step-count").textContent = steps.toLocaleString("en");
  $("tokens-hint").textContent = `1 to ${SEQ_LEN} numbers from ${Model.FIRST_DATA} to ${VOCABULARY - 1}`;
}

function refresh() {
  const focused = document.activeElement?.dataset?.key;
  const root = document.documentElement;
  if (state.theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = state.theme;
  $("theme").textContent = `Theme: ${state.theme === "auto" ? "as the system" : state.theme}`;
  readPalette();
  showInput();
  for (const [name] of VIEWS) {
    $(`view-${name}`).hidden = name !== state.view;
    const link = $(`link-${name}`);
    link.href = addressOf({ ...state, view: name });
    if (name === state.view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  measuring += 1;
  views[state.view].update();
  if (focused && document.activeElement?.dataset?.key !== focused) {
    document.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }
}

$("tasks").append(taskControl);
$("tokens").addEventListener("input", () => set({ tokens: $("tokens").value, step: 0, gradientToken: -1 }));
$("entry").addEventListener("submit", (event) => event.preventDefault());
const another = Model.generator(1706);
$("another").addEventListener("click", () =>
  set({
    gradientToken: -1,
    tokens: range(another.integer(3, SEQ_LEN + 1))
      .map(() => another.integer(Model.FIRST_DATA, VOCABULARY))
      .join(" "),
  }),
);
$("theme").addEventListener("click", () => set({ theme: { auto: "light", light: "dark", dark: "auto" }[state.theme] }));
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("main").focus();
});
$("views").append(
  ...VIEWS.map(([name, title], i) =>
    el(
      "li",
      {},
      el(
        "a",
        {
          id: `link-${name}`,
          onclick: (event) => {
            if (event.ctrlKey || event.metaKey || event.shiftKey) return;
            event.preventDefault();
            go(name);
          },
        },
        el("span", { class: "number", "aria-hidden": "true" }, String(i + 1)),
        title,
      ),
    ),
  ),
);
addEventListener("hashchange", () => {
  state = stateFromAddress();
  refresh();
});
addEventListener("popstate", () => {
  state = stateFromAddress();
  refresh();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", refresh);
Object.values(views).forEach((view) => view.mount());
refresh();
