// The page of an archive. It requests everything from its own server, and inserts texts as text,
// never as markup. Only the pictures of chunks are markup, which the library has escaped.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function createElement(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function createSvgElement(tag, attributes = {}, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function createFacts(pairs) {
  const cells = pairs.flatMap(([name, text]) => [createElement("dt", { textContent: name }), createElement("dd", { textContent: text })]);
  return createElement("dl", { className: "facts" }, ...cells);
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const withUnits = (text, units) => (text === "missing" || !units ? text : `${text} ${units}`);
const formatOrdinal = (n) => `${n}${n % 100 > 10 && n % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][n % 10] || "th"}`;
const formatCount = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// ------------------------------------------------------------------ state

let contents = null; // groups and variables of the archive
let dimensions = null; // dimensions of the current variable
let currentSlice = null; // description of the current picture, from slice.json
let playingDim = null; // dimension of the animation
const state = { variable: "", y: "", x: "", at: {}, parts: {}, map: "", low: "", high: "", pin: null, along: "" };

function readLink() {
  const query = new URLSearchParams(location.hash.slice(1));
  Object.assign(state, { at: {}, parts: {}, pin: null });
  for (const key of ["variable", "y", "x", "map", "low", "high", "along"]) state[key] = query.get(key) || "";
  for (const [key, text] of query) {
    const dim = key.slice(key.indexOf(".") + 1);
    if (key.startsWith("at.") && /^\d+$/.test(text)) state.at[dim] = Number(text);
    if (key.startsWith("part.") && /^\d+:\d+$/.test(text)) state.parts[dim] = text.split(":").map(Number);
    if (key.startsWith("pin.") && /^\d+$/.test(text)) (state.pin ??= {})[dim] = Number(text);
  }
}

// Only a change of the variable adds an entry to the history of the browser.
function writeLink(isStep = false) {
  const query = new URLSearchParams();
  for (const key of ["variable", "y", "x", "map", "low", "high", "along"]) if (state[key] !== "") query.set(key, state[key]);
  for (const [dim, index] of Object.entries(state.at)) query.set(`at.${dim}`, index);
  for (const [dim, part] of Object.entries(state.parts)) query.set(`part.${dim}`, part.join(":"));
  for (const [dim, index] of Object.entries(state.pin || {})) query.set(`pin.${dim}`, index);
  const link = `#${query}`;
  if (isStep && location.hash.length > 1 && link !== location.hash) history.pushState(null, "", link);
  else history.replaceState(null, "", link);
}

const getSize = (dim) => dimensions.dims.find((item) => item.dim === dim).size;

// ------------------------------------------------------------------ requests

async function fetchView(name, query = {}, signal = undefined) {
  const url = `view/${name}?${new URLSearchParams(query)}`;
  let response;
  try {
    response = await fetch(url, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer; is it still running?");
  }
  if (!response.ok) throw new Error((await response.text()).trim() || `status ${response.status}`);
  const version = response.headers.get("x-version");
  if (contents && version && version !== contents.version) reloadContents();
  return response.json();
}

let isReloading = false;
async function reloadContents() {
  if (isReloading) return;
  isReloading = true;
  try {
    contents = await fetchView("contents.json");
    showContents();
    showNotice("The archive has changed. This is its new version.");
    await selectVariable(state.variable, true);
  } finally {
    isReloading = false;
  }
}

setInterval(async () => {
  if (document.hidden || !contents) return;
  const data = await fetch("health").then((response) => response.json()).catch(() => null);
  if (data && data.version && data.version !== contents.number) reloadContents();
}, 15000);

function showNotice(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

// A new request aborts the previous one of its kind.
const requests = {};
function startRequest(kind) {
  requests[kind]?.abort();
  return (requests[kind] = new AbortController()).signal;
}

function showError(error) {
  if (error.name === "AbortError") return;
  stopPlaying();
  clearPicture();
  $("problem").textContent = error.message;
  $("problem").hidden = false;
}

// Show no picture rather than that of another slice.
function clearPicture() {
  currentSlice = null;
  hideTip();
  for (const id of ["picture", "yticks", "xticks", "bar-ticks", "ytitle", "xtitle"]) $(id).replaceChildren();
  for (const id of ["cross-y", "cross-x", "chunk"]) $(id).hidden = true;
  $("note").textContent = "";
}

// ------------------------------------------------------------------ list of variables

function showContents() {
  document.title = contents.name;
  $("name").textContent = contents.name;
  const all = contents.groups.flatMap((group) => group.variables);
  const data = all.filter((item) => !item.coordinate).length;
  const groups = contents.groups.length > 1 ? `, ${formatCount(contents.groups.length, "group")}` : "";
  const title = contents.groups[0]?.attrs.find(([name]) => name.toLowerCase() === "title");
  $("summary").textContent = [title && title[1], formatCount(data, "variable") + groups].filter(Boolean).join(" · ");
  const tree = $("tree");
  tree.replaceChildren();
  for (const group of contents.groups) {
    if (!group.variables.length) continue;
    const list = createElement("div", { className: "list" });
    if (contents.groups.length > 1) list.append(createElement("p", { className: "group", textContent: group.path }));
    for (const item of group.variables) list.append(createEntry(item));
    tree.append(list);
  }
  if (contents.more) tree.append(createElement("p", { className: "group", textContent: `and ${formatCount(contents.more, "more variable")}` }));
  filterVariables();
}

function createEntry(item) {
  const dims = item.dims.map((dim, n) => `${dim}\u00a0${item.shape[n].toLocaleString("en")}`).join(" ×\u00a0");
  const facts = [item.title, [dims || "one value", item.units].filter(Boolean).join(" · ")].filter(Boolean);
  const entry = createElement(
    "button",
    { type: "button", className: `variable${item.coordinate ? " coordinate" : ""}`, title: item.dtype },
    createElement("b", { textContent: item.name }),
    ...facts.map((textContent) => createElement("span", { textContent, title: textContent })),
  );
  entry.dataset.path = item.path;
  entry.dataset.words = [item.path, ...facts].join(" ").toLowerCase();
  entry.addEventListener("click", () => selectVariable(item.path));
  return entry;
}

function filterVariables() {
  const words = $("filter").value.toLowerCase().split(/\s+/);
  for (const entry of document.querySelectorAll(".variable")) {
    entry.hidden = !words.every((word) => entry.dataset.words.includes(word));
  }
  for (const list of document.querySelectorAll(".list")) list.hidden = !list.querySelector(".variable:not([hidden])");
}

function findVariable(path) {
  for (const group of contents.groups) {
    const match = group.variables.find((item) => item.path === path);
    if (match) return { ...match, group };
  }
  return null;
}

// ------------------------------------------------------------------ current variable

let variable = null;

async function selectVariable(path, keep = false) {
  variable = findVariable(path) || findVariable(contents.first);
  if (!variable) return showNotice("There is no variable here.");
  if (path && variable.path !== path) showNotice(`There is no ${path} here; this is ${variable.path}.`);
  stopPlaying();
  const previousAt = dimensions && state.at;
  if (!keep) {
    const at = Object.fromEntries(Object.entries(previousAt || {}).filter(([dim]) => variable.dims.includes(dim)));
    Object.assign(state, { y: "", x: "", at, parts: {}, low: "", high: "", pin: null });
    const isNarrow = matchMedia("(max-width: 820px)").matches;
    if (isNarrow && previousAt) $("view").scrollIntoView();
  }
  state.variable = variable.path;
  for (const entry of document.querySelectorAll(".variable")) {
    entry.setAttribute("aria-current", entry.dataset.path === variable.path);
  }
  $("title").textContent = variable.title || variable.name;
  $("subtitle").textContent = [variable.title && variable.name, variable.units, variable.dtype].filter(Boolean).join(" · ");
  for (const id of ["stage", "tools", "line", "values", "series", "point", "whole"]) $(id).hidden = true;
  $("sliders").replaceChildren();
  $("problem").hidden = true;
  startRequest("slice");
  clearPicture();
  const signal = startRequest("dimensions");
  try {
    const data = await fetchView("dimensions.json", { variable: variable.path }, signal);
    if (signal.aborted) return;
    dimensions = data;
  } catch (error) {
    return showError(error);
  }
  for (const dim of Object.keys(state.at)) {
    const match = dimensions.dims.find((item) => item.dim === dim);
    if (!match) delete state.at[dim];
    else state.at[dim] = Math.min(state.at[dim], match.size - 1);
  }
  // a link may have been edited, and the archive may have become smaller
  const sizes = new Map(dimensions.dims.map((item) => [item.dim, item.size]));
  for (const [dim, [start, stop]] of Object.entries(state.parts)) {
    if (!(start < stop && stop <= (sizes.get(dim) ?? 0))) delete state.parts[dim];
  }
  if (state.pin && Object.entries(state.pin).some(([dim, index]) => !(index < (sizes.get(dim) ?? 0)))) state.pin = null;
  writeLink(!keep);
  try {
    if (!variable.drawn || !dimensions.dims.length) await showValues();
    else if (dimensions.dims.length === 1) await showSeriesView();
    else await showSliceView();
  } catch (error) {
    showError(error);
  }
  showStructure();
}

async function showValues() {
  const data = await fetchView("values.json", { variable: variable.path }, startRequest("slice"));
  $("values").replaceChildren(...data.values.map((textContent) => createElement("code", { textContent })));
  $("values").hidden = false;
  const more = data.total - data.values.length;
  $("note").textContent = more > 0 ? `the first ${data.values.length} of ${data.total.toLocaleString("en")} values` : "";
}

async function showSeriesView() {
  const [{ dim }] = dimensions.dims;
  $("line").hidden = false;
  const move = (index) => pinElement({ [dim]: index });
  await drawSeries($("line"), $("note"), { along: dim }, { height: 320, move, here: () => state.pin?.[dim] });
  if (state.pin) await showPoint();
}

async function showSliceView() {
  const names = dimensions.dims.map((item) => item.dim);
  if (!names.includes(state.y) || !names.includes(state.x) || state.y === state.x) [state.y, state.x] = dimensions.plane;
  if (state.pin) {
    // move the sliders to the pinned element
    for (const dim of names) if (dim !== state.y && dim !== state.x && dim in state.pin) state.at[dim] = state.pin[dim];
  }
  for (const id of ["y", "x"]) {
    $(id).replaceChildren(...names.map((dim) => new Option(dim, dim, false, dim === state[id])));
  }
  $("stage").hidden = $("tools").hidden = false;
  showSliders();
  showColormaps();
  await showSlice();
  if (state.pin) await showPinnedElement();
}

// ------------------------------------------------------------------ sliders

function showSliders() {
  const rows = dimensions.dims.filter(({ dim }) => dim !== state.y && dim !== state.x).map((item) => {
    const { dim, size, title } = item;
    const index = (state.at[dim] ??= 0);
    const name = title && title !== dim ? `${title} (${dim})` : dim;
    const output = createElement("output", { id: `label.${dim}` });
    const range = createElement("input", { type: "range", min: 0, max: size - 1, value: index, id: `at.${dim}`, disabled: size < 2 });
    range.setAttribute("aria-label", name);
    range.addEventListener("input", () => moveTo(dim, Number(range.value)));
    const step = (by, text, label) => {
      const button = createElement("button", { type: "button", textContent: text, title: label, disabled: size < 2 });
      button.setAttribute("aria-label", `${label} along ${dim}`);
      button.addEventListener("click", () => moveTo(dim, (state.at[dim] + by + size) % size));
      return button;
    };
    const play = createElement("button", { type: "button", textContent: "▶", id: `play.${dim}`, title: "Play", disabled: size < 2 });
    play.setAttribute("aria-label", `Play along ${dim}`);
    play.addEventListener("click", () => (playingDim === dim ? stopPlaying() : startPlaying(dim)));
    const row = createElement("div", { className: "slider" }, createElement("label", { htmlFor: range.id, textContent: dim, title: name }), play, step(-1, "‹", "Back"), range, step(1, "›", "Forward"), output);
    row.dataset.dim = dim;
    return row;
  });
  $("sliders").replaceChildren(...rows);
}

async function moveTo(dim, index) {
  const size = getSize(dim);
  state.at[dim] = clamp(index, 0, size - 1);
  const range = $(`at.${dim}`);
  if (range && Number(range.value) !== state.at[dim]) range.value = state.at[dim];
  if (state.pin) state.pin[dim] = state.at[dim];
  await showSlice();
}

function startPlaying(dim) {
  stopPlaying();
  playingDim = dim;
  $(`play.${dim}`).textContent = "⏸";
  (async () => {
    while (playingDim === dim) {
      const startTime = performance.now();
      const size = getSize(dim);
      await moveTo(dim, (state.at[dim] + 1) % size);
      await new Promise((done) => setTimeout(done, Math.max(120 - (performance.now() - startTime), 20)));
    }
  })();
}

function stopPlaying() {
  if (playingDim && $(`play.${playingDim}`)) $(`play.${playingDim}`).textContent = "▶";
  playingDim = null;
}

// ------------------------------------------------------------------ colours

function makeGradient(name, side) {
  return `linear-gradient(to ${side}, ${contents.maps[name].join(",")})`;
}

function showColormaps() {
  const box = $("maps").querySelector("div");
  box.replaceChildren(
    ...Object.keys(contents.maps).map((name) => {
      const swatch = createElement("span", { className: "swatch" });
      swatch.style.background = makeGradient(name, "right");
      const radio = createElement("input", { type: "radio", name: "map", value: name });
      radio.addEventListener("change", () => { state.map = name; showSlice(); });
      return createElement("label", {}, radio, swatch, name);
    }),
  );
}

// ------------------------------------------------------------------ slices

function makeSliceQuery(at = state.at) {
  const query = { variable: state.variable, y: state.y, x: state.x };
  for (const { dim } of dimensions.dims) {
    if (dim === state.y || dim === state.x) {
      if (state.parts[dim]) query[`part.${dim}`] = state.parts[dim].join(":");
    } else query[`at.${dim}`] = at[dim] ?? 0;
  }
  // round sizes, so that caches have the pictures of similar windows
  const pixels = (length) => clamp(Math.ceil((length * devicePixelRatio) / 128) * 128, 256, 2048);
  const space = findAvailableSize();
  Object.assign(query, { width: pixels(space.width), height: pixels(space.height) });
  query.columns = clamp(Math.floor(space.width / 90), 2, 14);
  query.rows = clamp(Math.floor(space.height / 45), 2, 14);
  for (const key of ["map", "low", "high"]) if (state[key] !== "") query[key] = state[key];
  return query;
}

function findAvailableSize() {
  const margin = innerWidth > 820 ? 190 : 112;
  const width = Math.max($("view").clientWidth - margin, 200);
  return { width, height: clamp(innerHeight * 0.62, 240, 640) };
}

// Request one picture at a time, and then the newest state, so that dragging a slider does not
// request every position. A new state aborts requests that take long.
let drawing = null;
let startTime = 0;
let isOutdated = false;
function showSlice() {
  isOutdated = true;
  if (drawing && performance.now() - startTime > 400) requests.slice?.abort();
  drawing ??= (async () => {
    try {
      while (isOutdated) {
        isOutdated = false;
        startTime = performance.now();
        await drawSlice();
      }
    } finally {
      drawing = null;
    }
  })();
  return drawing;
}

async function drawSlice(isRetry = false) {
  const signal = startRequest("slice");
  const at = { ...state.at };
  const timer = setTimeout(() => ($("waiting").hidden = false), 250);
  $("chunk").hidden = true;
  $("whole").hidden = !Object.keys(state.parts).length;
  try {
    const query = makeSliceQuery();
    const data = await fetchView("slice.json", query, signal);
    if (signal.aborted) return;
    // the browser caches pictures by url, so the url has the version
    Object.assign(query, { map: data.map, low: data.low, high: data.high, version: data.version });
    delete query.rows;
    delete query.columns;
    const image = new Image();
    image.alt = "";
    image.src = `view/picture.png?${new URLSearchParams(query)}`;
    try {
      await image.decode();
    } catch {
      if (signal.aborted) return;
      if (!isRetry) return drawSlice(true);
      throw new Error("the picture cannot be read; try again");
    }
    if (signal.aborted) return;
    currentSlice = { ...data, positions: at };
    $("problem").hidden = true;
    showPicture(data, image);
    writeLink();
    if (state.pin) showPinnedElement();
    preload(signal);
  } catch (error) {
    showError(error);
  } finally {
    clearTimeout(timer);
    if (requests.slice?.signal === signal) $("waiting").hidden = true;
  }
}

// Let the server cache the next slice in the direction in which a slider was moved.
let previousAt = {};
function preload(signal) {
  for (const { dim, size } of dimensions.dims) {
    const by = Math.sign((state.at[dim] ?? 0) - (previousAt[dim] ?? 0));
    if (!by) continue;
    const next = clamp(state.at[dim] + by, 0, size - 1);
    const query = { ...makeSliceQuery({ ...state.at, [dim]: next }), map: currentSlice.map, low: currentSlice.low, high: currentSlice.high };
    fetch(`view/slice.json?${new URLSearchParams(query)}`, { signal, priority: "low" }).catch(() => null);
  }
  previousAt = { ...state.at };
}

function showPicture(data, image) {
  hideTip();
  // keep the colours when a slider moves, so that pictures can be compared
  if (data.least !== null) Object.assign(state, { low: data.low, high: data.high });
  const space = findAvailableSize();
  const aspect = data.aspect && data.aspect > 0.2 && data.aspect < 6 ? data.aspect : 1.7;
  const width = Math.min(space.width, space.height * aspect);
  const frame = $("frame");
  frame.style.width = `${Math.round(width)}px`;
  frame.style.height = `${Math.round(Math.max(width / aspect, 60))}px`;
  image.className = image.naturalWidth * 1.5 < width * devicePixelRatio ? "enlarged" : "";
  $("picture").replaceChildren(image);
  frame.setAttribute("aria-label", describeSlice(data));
  for (const id of ["y", "x"]) {
    const line = data[id];
    $(`${id}title`).textContent = line.units ? `${line.title} (${line.units})` : line.title;
    const [side, length] = id === "y" ? ["top", frame.clientHeight] : ["left", frame.clientWidth];
    $(`${id}ticks`).replaceChildren(
      ...selectTicks(line.ticks, length, id === "x").map(([at, textContent]) => {
        const tick = createElement("span", { textContent });
        tick.style[side] = `${at * 100}%`;
        return tick;
      }),
    );
  }
  $("yticks").style.width = `${Math.max(...data.y.ticks.map(([, label]) => label.length), 1) * 0.52}rem`;
  $("bar").style.background = makeGradient(data.map, "top");
  $("bar").style.setProperty("--lowest", contents.maps[data.map][0]);
  $("bar").style.setProperty("--highest", contents.maps[data.map].at(-1));
  $("bar").className = ["low", "high"].filter((item, n) => data.cut[n]).join(" ");
  $("bar").title = data.cut.some(Boolean) ? "Values beyond an end have its colour" : "";
  $("bar-ticks").replaceChildren(
    ...data.scale.map(([at, textContent]) => {
      const tick = createElement("span", { textContent });
      tick.style.top = `${(1 - at) * 100}%`;
      return tick;
    }),
  );
  $("map").style.background = makeGradient(data.map, "right");
  for (const radio of document.querySelectorAll("#maps input")) radio.checked = radio.value === data.map;
  for (const id of ["low", "high"]) if (document.activeElement !== $(id)) $(id).value = Number(data[id].toPrecision(6));
  for (const [dim, label] of Object.entries(data.at)) {
    const size = getSize(dim);
    const positionText = `${((state.at[dim] ?? 0) + 1).toLocaleString("en")} of ${size.toLocaleString("en")}`;
    $(`label.${dim}`)?.replaceChildren(label, " ", createElement("small", { textContent: positionText }));
    $(`at.${dim}`)?.setAttribute("aria-valuetext", label);
  }
  $("note").textContent = describeNote(data);
}

// Return every n-th tick, so that labels do not overlap.
function selectTicks(ticks, length, isHorizontal) {
  const space = isHorizontal ? Math.max(...ticks.map(([, label]) => label.length), 1) * 6.5 + 10 : 19;
  const gap = ticks.length > 1 ? (Math.abs(ticks.at(-1)[0] - ticks[0][0]) * length) / (ticks.length - 1) : length;
  const every = Math.max(Math.ceil(space / gap), 1);
  return ticks.filter((item, n) => n % every === 0);
}

function describeSlice(data) {
  const at = Object.entries(data.at).map(([dim, label]) => `${dim} ${label}`);
  const range = data.least === null ? "no value" : `values from ${data.least} to ${data.greatest} ${variable.units}`;
  return [`${variable.title || variable.name}: ${data.y.dim} by ${data.x.dim}`, ...at, range].join(", ");
}

function describeNote(data) {
  const parts = [];
  if (data.least === null) parts.push("all values are missing here");
  else parts.push(`${data.least} to ${data.greatest}${variable.units ? ` ${variable.units}` : ""}`);
  if (data.missing > 0 && data.least !== null) parts.push(`${formatShare(data.missing)} missing`);
  const steps = [data.y, data.x].filter((line) => line.step > 1).map((line) => `every ${formatOrdinal(line.step)} along ${line.dim}`);
  if (steps.length) parts.push(`shows ${steps.join(", ")}; drag to enlarge`);
  return parts.join(" · ");
}

const formatShare = (share) => (share < 0.001 ? "< 0.1 %" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`);

// ------------------------------------------------------------------ pointer

// Return the middle of the pixel of an element, as a fraction of the width or height.
function getPosition(line, index) {
  const n = Math.round((index - line.start) / line.step);
  if (n < 0 || n >= line.count) return null;
  return ((line.reversed ? line.count - 1 - n : n) + 0.5) / line.count;
}

function getIndex(line, part) {
  const n = clamp(Math.floor(part * line.count), 0, line.count - 1);
  return { index: line.start + line.step * (line.reversed ? line.count - 1 - n : n), label: line.labels[n] };
}

function getPointerPosition(event) {
  const box = $("frame").getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  return { x: clamp(x, 0, 1), y: clamp(y, 0, 1) };
}

function makePointQuery(at, positions = state.at) {
  const query = { variable: state.variable };
  for (const { dim } of dimensions.dims) query[`at.${dim}`] = at[dim] ?? positions[dim] ?? 0;
  return query;
}

let tipTimer = 0;
function showTip(event) {
  if (!currentSlice) return;
  const part = getPointerPosition(event);
  const [y, x] = [getIndex(currentSlice.y, part.y), getIndex(currentSlice.x, part.x)];
  const tip = $("tip");
  const value = tip.querySelector("b") || createElement("b");
  tip.replaceChildren(value, `${currentSlice.y.dim} ${y.label}, ${currentSlice.x.dim} ${x.label}`);
  tip.hidden = false;
  const [width, height] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${clamp(event.clientX + 16, 4, innerWidth - width - 4)}px`;
  tip.style.top = `${event.clientY + height + 28 > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  clearTimeout(tipTimer);
  tipTimer = setTimeout(async () => {
    if (!currentSlice) return;
    const at = { [currentSlice.y.dim]: y.index, [currentSlice.x.dim]: x.index };
    try {
      const signal = startRequest("tip");
      const data = await fetchView("value.json", makePointQuery(at, currentSlice.positions), signal);
      if (!signal.aborted) value.textContent = withUnits(data.short, data.units);
    } catch (error) {
      if (error.name !== "AbortError") value.textContent = "";
    }
  }, 40);
}

function hideTip() {
  clearTimeout(tipTimer);
  requests.tip?.abort();
  $("tip").hidden = true;
}

let drag = null;
function addFrameListeners() {
  const frame = $("frame");
  frame.addEventListener("pointerdown", (event) => {
    if (event.button || !currentSlice) return;
    drag = { from: getPointerPosition(event), type: event.pointerType, moved: false };
    if (event.pointerType === "mouse") frame.setPointerCapture(event.pointerId);
  });
  frame.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" || drag) showTip(event);
    if (!drag || drag.type !== "mouse") return;
    drag.to = getPointerPosition(event);
    const box = frame.getBoundingClientRect();
    drag.moved ||= Math.hypot((drag.to.x - drag.from.x) * box.width, (drag.to.y - drag.from.y) * box.height) > 6;
    if (drag.moved) placeBox($("rubber"), drag.from, drag.to);
  });
  frame.addEventListener("pointerup", (event) => {
    const done = drag;
    drag = null;
    $("rubber").hidden = true;
    if (!done) return;
    if (done.moved && done.to) return zoomTo(done.from, done.to);
    const part = getPointerPosition(event);
    if (done.type !== "mouse") hideTip();
    pinElement({ [currentSlice.y.dim]: getIndex(currentSlice.y, part.y).index, [currentSlice.x.dim]: getIndex(currentSlice.x, part.x).index });
  });
  frame.addEventListener("pointercancel", () => { drag = null; $("rubber").hidden = true; });
  frame.addEventListener("pointerleave", hideTip);
  frame.addEventListener("dblclick", resetZoom);
  frame.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: ["x", -1], ArrowRight: ["x", 1], ArrowUp: ["y", -1], ArrowDown: ["y", 1] };
    if (event.key in moves && currentSlice) {
      event.preventDefault();
      const [id, by] = moves[event.key];
      moveCross(id, by * (event.shiftKey ? 10 : 1));
    } else if (event.key === "Enter" && currentSlice) pinElement(state.pin || getCentre());
    else if (event.key === "Escape") resetZoom();
    else if ((event.key === "+" || event.key === "-") && currentSlice) zoomBy(event.key === "+" ? 0.5 : 2);
  });
}

function getCentre() {
  return { [currentSlice.y.dim]: getIndex(currentSlice.y, 0.5).index, [currentSlice.x.dim]: getIndex(currentSlice.x, 0.5).index };
}

function moveCross(id, pixels) {
  const at = state.pin ? { ...state.pin } : getCentre();
  const line = currentSlice[id];
  const now = getPosition(line, at[line.dim]) ?? 0.5;
  at[line.dim] = getIndex(line, clamp(now + pixels / line.count, 0, 1)).index;
  pinElement(at);
}

function placeBox(box, from, to) {
  box.hidden = false;
  box.style.left = `${Math.min(from.x, to.x) * 100}%`;
  box.style.top = `${Math.min(from.y, to.y) * 100}%`;
  box.style.width = `${Math.abs(to.x - from.x) * 100}%`;
  box.style.height = `${Math.abs(to.y - from.y) * 100}%`;
}

function zoomTo(from, to) {
  for (const id of ["y", "x"]) {
    const line = currentSlice[id];
    const ends = [getIndex(line, from[id]).index, getIndex(line, to[id]).index].sort((a, b) => a - b);
    const size = getSize(line.dim);
    state.parts[line.dim] = [ends[0], Math.min(ends[1] + line.step, size)];
  }
  showSlice();
}

function zoomBy(factor) {
  const middle = state.pin || getCentre();
  for (const id of ["y", "x"]) {
    const { dim } = currentSlice[id];
    const size = getSize(dim);
    const [start, stop] = state.parts[dim] || [0, size];
    const length = clamp(Math.round((stop - start) * factor), 2, size);
    const first = clamp(Math.round(middle[dim] - length / 2), 0, size - length);
    if (length >= size) delete state.parts[dim];
    else state.parts[dim] = [first, first + length];
  }
  showSlice();
}

function resetZoom() {
  if (!Object.keys(state.parts).length) return;
  state.parts = {};
  showSlice();
}

// ------------------------------------------------------------------ values and series

function pinElement(at) {
  state.pin = { ...Object.fromEntries(dimensions.dims.map(({ dim }) => [dim, state.at[dim] ?? 0])), ...at };
  writeLink();
  if (dimensions.dims.length > 1) showPinnedElement();
  else {
    redraw();
    showPoint();
  }
}

let seriesKey = "";
async function showPinnedElement() {
  if (!currentSlice) return;
  const [y, x] = [getPosition(currentSlice.y, state.pin[currentSlice.y.dim]), getPosition(currentSlice.x, state.pin[currentSlice.x.dim])];
  $("cross-y").hidden = y === null;
  $("cross-x").hidden = x === null;
  if (y !== null) $("cross-y").style.top = `${y * 100}%`;
  if (x !== null) $("cross-x").style.left = `${x * 100}%`;
  showPoint();
  const names = dimensions.dims.map((item) => item.dim);
  if (!names.includes(state.along)) state.along = names.find((dim) => dim !== state.y && dim !== state.x) || state.x;
  $("along").replaceChildren(...names.map((dim) => new Option(dim, dim, false, dim === state.along)));
  $("series").hidden = false;
  const others = names.filter((dim) => dim !== state.along).map((dim) => `${dim}=${state.pin[dim]}`);
  const key = [contents.version, state.variable, state.along, ...others].join("&");
  if (key === seriesKey) return redraw();
  seriesKey = key;
  const dim = state.along;
  const move = (index) => (dim === state.y || dim === state.x ? pinElement({ ...state.pin, [dim]: index }) : moveTo(dim, index));
  const query = { along: dim };
  for (const other of names) if (other !== dim) query[`at.${other}`] = state.pin[other];
  try {
    await drawSeries($("series-line"), $("series-note"), query, { height: 210, move, here: () => state.pin?.[dim] });
  } catch (error) {
    if (error.name !== "AbortError") $("series-note").textContent = error.message;
  }
}

async function showPoint() {
  $("point").hidden = false;
  let data;
  try {
    data = await fetchView("point.json", makePointQuery(state.pin), startRequest("point"));
  } catch (error) {
    if (error.name !== "AbortError") $("origin").replaceChildren(createElement("p", { textContent: error.message }));
    return;
  }
  const { origin } = data;
  const facts = [...data.coordinates];
  if (origin.file) {
    facts.push(["file", origin.file]);
    facts.push(["bytes", `${origin.offset.toLocaleString("en")} to ${(origin.offset + origin.length).toLocaleString("en")} (${origin.length.toLocaleString("en")})`]);
    facts.push(["encoding", origin.encoding]);
  } else facts.push(["file", origin.reason]);
  if (origin.chunk?.length) facts.push(["chunk", `(${origin.chunk.join(", ")}) of shape ${origin.chunk_shape.join(" × ")}`], ["in the chunk", `(${origin.position.join(", ")})`]);
  const value = createElement("p", { id: "value", textContent: data.value }, " ", createElement("small", { textContent: data.value === "missing" ? "" : data.units }));
  $("origin").replaceChildren(value, createFacts(facts));
  showChunk(data.at, origin);
}

function showChunk(at, origin) {
  $("chunk").hidden = true;
  if (!origin.chunk?.length || !currentSlice || dimensions.dims.length < 2) return;
  const bounds = {};
  for (const id of ["y", "x"]) {
    const line = currentSlice[id];
    const axis = dimensions.dims.findIndex((item) => item.dim === line.dim);
    const first = at[line.dim] - origin.position[axis];
    const edges = [first, first + origin.chunk_shape[axis]].map((edge) => (edge - line.start) / line.step / line.count);
    const [low, high] = (line.reversed ? edges.map((item) => 1 - item).reverse() : edges).map((item) => clamp(item, 0, 1));
    bounds[id] = [low, high];
  }
  if ([bounds.x, bounds.y].every(([low, high]) => low === 0 && high === 1)) return;
  placeBox($("chunk"), { x: bounds.x[0], y: bounds.y[0] }, { x: bounds.x[1], y: bounds.y[1] });
}

// Draws the current series again after a change of the width or the marker.
let redraw = () => null;

// Draw a series with few points first, then with more.
async function drawSeries(box, note, query, { height, move, here }) {
  const signal = startRequest("series");
  let data = null;
  redraw = () => data && drawSeriesLine(box, data, height, move, here);
  const columns = clamp(Math.floor((box.clientWidth || 500) / 110), 2, 12);
  for (const points of [100, 500, 2000]) {
    data = await fetchView("series.json", { variable: state.variable, points, columns, ...query }, signal);
    redraw();
    const every = data.x.step > 1 ? `every ${formatOrdinal(data.x.step)} of ${getSize(query.along).toLocaleString("en")} values` : "";
    const at = Object.entries(data.at).map(([dim, label]) => `${dim} ${label}`);
    note.textContent = [every, at.length ? `at ${at.join(", ")}` : ""].filter(Boolean).join(" · ");
    if (data.x.step === 1 || data.limited) break;
  }
}

function drawSeriesLine(box, data, height, move, here) {
  const width = Math.max(box.clientWidth, 240);
  const labels = data.scale.map(([, label]) => label.length);
  const left = Math.max(...labels, 2) * 7 + 12;
  const [right, top, bottom] = [12, 8, 26];
  const values = data.values.filter((item) => item !== null);
  const [low, high] = data.ends || [0, 1];
  const total = data.values.length;
  // by coordinate, so that missing dates are a gap, else by position
  const placeOf = (n) => (data.places ? data.places[n] : (n + 0.5) / total);
  const gaps = new Set(data.gaps);
  const sx = (part) => left + part * (width - left - right);
  // halves, since the difference of two numbers may overflow
  const sy = (value) => top + (1 - (low < high ? (value / 2 - low / 2) / (high / 2 - low / 2) : 0.5)) * (height - top - bottom);
  const svg = createSvgElement("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0 });
  svg.setAttribute("aria-label", values.length ? `Series along ${data.x.dim}, ${formatCount(total, "value")}` : "no value");
  for (const [part, label] of data.scale) {
    const y = top + (1 - part) * (height - top - bottom);
    svg.append(createSvgElement("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }));
    svg.append(createSvgElement("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, label));
  }
  for (const [part, label] of data.x.ticks) {
    const anchor = part < 0.06 ? "start" : part > 0.94 ? "end" : "middle";
    svg.append(createSvgElement("text", { x: sx(part), y: height - 6, "text-anchor": anchor }, label));
    svg.append(createSvgElement("line", { class: "grid", x1: sx(part), x2: sx(part), y1: height - bottom, y2: height - bottom + 5 }));
  }
  let path = "";
  const joins = (n) => n > 0 && n < total && (data.values[n - 1] ?? null) !== null && (data.values[n] ?? null) !== null && !gaps.has(n - 1);
  data.values.forEach((value, n) => {
    if (value === null) return;
    const [x, y] = [sx(placeOf(n)), sy(value)];
    if (total < 40 || !(joins(n) || joins(n + 1))) svg.append(createSvgElement("circle", { cx: x, cy: y, r: 2.4 }));
    path += `${joins(n) ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  if (!values.length) svg.append(createSvgElement("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "all values are missing here"));
  svg.append(createSvgElement("path", { class: "values", d: path }));
  const marker = createSvgElement("line", { class: "here", y1: top, y2: height - bottom });
  const index = here();
  const nearest = index === undefined ? -1 : Math.round((index - data.x.start) / data.x.step);
  if (nearest >= 0 && nearest < total) {
    const part = placeOf(nearest);
    marker.setAttribute("x1", sx(part));
    marker.setAttribute("x2", sx(part));
    svg.append(marker);
  }
  const find = (event) => {
    const frame = svg.getBoundingClientRect();
    const x = ((event.clientX - frame.left) / frame.width) * width;
    const part = (x - left) / (width - left - right);
    if (!data.places) return clamp(Math.floor(part * total), 0, total - 1);
    const next = data.places.findIndex((item) => item >= part);
    if (next <= 0) return next < 0 ? total - 1 : 0;
    return part - data.places[next - 1] < data.places[next] - part ? next - 1 : next;
  };
  svg.addEventListener("pointermove", (event) => {
    const n = find(event);
    const tip = $("tip");
    tip.replaceChildren(createElement("b", { textContent: withUnits(data.shown[n], variable.units) }), data.x.labels[n]);
    tip.hidden = false;
    tip.style.left = `${clamp(event.clientX + 14, 4, innerWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${event.clientY - tip.offsetHeight - 12}px`;
  });
  svg.addEventListener("pointerleave", hideTip);
  svg.addEventListener("click", (event) => move(data.x.start + data.x.step * find(event)));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const size = getSize(data.x.dim);
    move(clamp((here() ?? data.x.start) + by * data.x.step, 0, size - 1));
    box.querySelector("svg")?.focus();
  });
  const focused = box.contains(document.activeElement);
  box.replaceChildren(svg);
  if (focused) svg.focus();
}

// ------------------------------------------------------------------ files, attributes, readers

async function showStructure() {
  $("chunks").replaceChildren();
  $("attrs").replaceChildren();
  if ($("structure").open || $("attributes").open) loadStructure();
}

async function loadStructure() {
  try {
    const data = await fetchView("variable.json", { variable: state.variable }, startRequest("structure"));
    // the library has escaped this markup
    $("chunks").innerHTML = data.strips.join("") + data.chunks;
    if (!data.chunks) $("chunks").textContent = "Its values are in memory.";
    $("attrs").replaceChildren(createFacts(data.attrs), createElement("h3", { textContent: `Group ${variable.group.path}` }), createFacts(data.group));
  } catch (error) {
    if (error.name !== "AbortError") $("chunks").textContent = error.message;
  }
}

function showReaders() {
  const base = location.href.replace(/#.*/, "").replace(/[^/]*$/, "");
  const lines = contents.zarr
    ? [
        ["xarray", `xr.open_zarr("${base}zarr")`],
        ["zarr-python", `zarr.open_group("${base}zarr", mode="r")`],
        ["JavaScript (zarrita)", `zarr.open(new zarr.FetchStore("${base}zarr"))`],
        ["GDAL", `gdalmdiminfo 'ZARR:"/vsicurl/${base}zarr"'`],
        ["readers of Zarr v2", `${base}zarr2`],
      ]
    : contents.code ? [["xarray, with virtualds", contents.code]] : [];
  $("readers").hidden = !lines.length;
  $("lines").replaceChildren(...lines.flatMap(([name, textContent]) => [createElement("div", { textContent: name }), createElement("pre", { textContent })]));
}

// ------------------------------------------------------------------ page

function addToolListeners() {
  for (const id of ["y", "x"]) {
    $(id).addEventListener("change", () => {
      const other = id === "y" ? "x" : "y";
      if ($(id).value === state[other]) state[other] = state[id];
      state[id] = $(id).value;
      // ranges of values and of positions are those of the previous slice
      Object.assign(state, { parts: {}, low: "", high: "" });
      showSliceView();
    });
  }
  $("swap").addEventListener("click", () => {
    [state.y, state.x] = [state.x, state.y];
    showSliceView();
  });
  for (const id of ["low", "high"]) {
    $(id).addEventListener("change", () => {
      if ($(id).value.trim() === "" || !Number.isFinite(Number($(id).value))) $(id).value = state[id];
      state[id] = Number($(id).value);
      showSlice();
    });
  }
  $("fit").addEventListener("click", () => {
    Object.assign(state, { low: "", high: "" });
    showSlice();
  });
  $("whole").addEventListener("click", resetZoom);
  $("along").addEventListener("change", () => {
    state.along = $("along").value;
    writeLink();
    showPinnedElement();
  });
  $("filter").addEventListener("input", filterVariables);
  $("filter").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const visible = [...document.querySelectorAll(".variable:not([hidden])")];
    const named = visible.find((item) => item.querySelector("b").textContent.toLowerCase().startsWith($("filter").value.toLowerCase()));
    (named || visible[0])?.click();
  });
  for (const id of ["structure", "attributes"]) {
    $(id).addEventListener("toggle", () => { if ($(id).open && !$("attrs").childElementCount) loadStructure(); });
  }
  $("copy").addEventListener("click", async () => {
    writeLink();
    await navigator.clipboard?.writeText(location.href).catch(() => null);
    $("copy").textContent = "Copied";
    setTimeout(() => ($("copy").textContent = "Copy link"), 1500);
  });
  $("theme").addEventListener("click", () => {
    const isDark = getComputedStyle(document.documentElement).colorScheme === "dark" || (!document.documentElement.dataset.theme && matchMedia("(prefers-color-scheme: dark)").matches);
    setTheme(isDark ? "light" : "dark");
  });
  $("help").addEventListener("click", () => {
    $("keys").hidden = !$("keys").hidden;
    $("help").setAttribute("aria-expanded", !$("keys").hidden);
  });
  document.addEventListener("click", (event) => {
    if (!$("maps").contains(event.target)) $("maps").open = false;
  });
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input:not([type=range]), select, textarea") || event.ctrlKey || event.metaKey || event.altKey) return;
    const first = document.querySelector(".slider")?.dataset.dim;
    if (event.key === "/") {
      event.preventDefault();
      $("filter").focus();
    } else if (event.key === "?") $("help").click();
    else if (first && (event.key === "." || event.key === ",")) moveTo(first, state.at[first] + (event.key === "." ? 1 : -1));
    else if (first && event.key === " " && !event.target.matches("button, summary, [role=img]")) {
      event.preventDefault();
      $(`play.${first}`).click();
    } else if (event.key === "Escape") $("maps").open = false;
  });
  addEventListener("hashchange", () => {
    readLink();
    selectVariable(state.variable, true);
  });
  let space = innerWidth;
  new ResizeObserver(() => {
    if (Math.abs(innerWidth - space) < 8 || !dimensions) return;
    space = innerWidth;
    if (dimensions.dims.length > 1 && currentSlice) showSlice();
    redraw();
  }).observe(document.body);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("theme", name);
  } catch {
    // storage may be disabled
  }
}

async function start() {
  try {
    const savedTheme = localStorage.getItem("theme");
    if (savedTheme === "light" || savedTheme === "dark") document.documentElement.dataset.theme = savedTheme;
  } catch {
    // storage may be disabled
  }
  addFrameListeners();
  addToolListeners();
  readLink();
  try {
    contents = await fetchView("contents.json");
  } catch (error) {
    $("title").textContent = "It cannot be opened";
    return showError(error);
  }
  showContents();
  showReaders();
  await selectVariable(state.variable, true);
  document.body.dataset.ready = "yes";
}

start();
