// The page of an archive. Everything it shows is asked from the server that sent it; texts are set
// as text, never as markup. Only the pictures of chunks arrive as markup, which the library escapes.
"use strict";

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, properties = {}, ...children) {
  const found = Object.assign(document.createElement(tag), properties);
  found.append(...children.filter((one) => one !== null && one !== undefined));
  return found;
}

function draw(tag, attributes = {}, text) {
  const found = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  if (text !== undefined) found.textContent = text;
  return found;
}

function makeFacts(pairs) {
  const cells = pairs.flatMap(([name, text]) => [make("dt", { textContent: name }), make("dd", { textContent: text })]);
  return make("dl", { className: "facts" }, ...cells);
}

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const withUnits = (text, units) => (text === "missing" || !units ? text : `${text} ${units}`);
const nth = (n) => `${n}${n % 100 > 10 && n % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][n % 10] || "th"}`;
const count = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

// ------------------------------------------------------------------ state

let contents = null; // the groups and variables of the archive
let shape = null; // the dimensions of the variable that is shown
let shown = null; // what the server said about the picture that is shown
let playing = null; // the dimension whose slider moves by itself
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

// Another variable is a step back in the browser; a slider is none.
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

const sizeOf = (dim) => shape.dims.find((one) => one.dim === dim).size;

// ------------------------------------------------------------------ asking

async function ask(name, query = {}, signal = undefined) {
  const url = `view/${name}?${new URLSearchParams(query)}`;
  let answer;
  try {
    answer = await fetch(url, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer; is it still running?");
  }
  if (!answer.ok) throw new Error((await answer.text()).trim() || `status ${answer.status}`);
  const version = answer.headers.get("x-version");
  if (contents && version && version !== contents.version) followChange();
  return answer.json();
}

let following = false;
async function followChange() {
  if (following) return;
  following = true;
  try {
    contents = await ask("contents.json");
    showContents();
    tell("The archive has changed. This is its new version.");
    await choose(state.variable, true);
  } finally {
    following = false;
  }
}

setInterval(async () => {
  if (document.hidden || !contents) return;
  const told = await fetch("health").then((answer) => answer.json()).catch(() => null);
  if (told && told.version && told.version !== contents.number) followChange();
}, 15000);

function tell(text) {
  $("notice").textContent = text;
  $("notice").hidden = !text;
}

// The newest request of a kind is the only one that counts.
const newest = {};
function begin(kind) {
  newest[kind]?.abort();
  return (newest[kind] = new AbortController()).signal;
}

function fail(error) {
  if (error.name === "AbortError") return;
  stopPlaying();
  clearPicture();
  $("problem").textContent = error.message;
  $("problem").hidden = false;
}

// No picture is better than that of something else.
function clearPicture() {
  shown = null;
  hideTip();
  for (const id of ["picture", "yticks", "xticks", "bar-ticks", "ytitle", "xtitle"]) $(id).replaceChildren();
  for (const id of ["cross-y", "cross-x", "chunk"]) $(id).hidden = true;
  $("note").textContent = "";
}

// ------------------------------------------------------------------ the list of variables

function showContents() {
  document.title = contents.name;
  $("name").textContent = contents.name;
  const all = contents.groups.flatMap((group) => group.variables);
  const data = all.filter((one) => !one.coordinate).length;
  const groups = contents.groups.length > 1 ? `, ${count(contents.groups.length, "group")}` : "";
  const title = contents.groups[0]?.attrs.find(([name]) => name.toLowerCase() === "title");
  $("summary").textContent = [title && title[1], count(data, "variable") + groups].filter(Boolean).join(" · ");
  const tree = $("tree");
  tree.replaceChildren();
  for (const group of contents.groups) {
    if (!group.variables.length) continue;
    const list = make("div", { className: "list" });
    if (contents.groups.length > 1) list.append(make("p", { className: "group", textContent: group.path }));
    for (const one of group.variables) list.append(makeEntry(one));
    tree.append(list);
  }
  if (contents.more) tree.append(make("p", { className: "group", textContent: `and ${count(contents.more, "more variable")}` }));
  filter();
}

function makeEntry(one) {
  const dims = one.dims.map((dim, n) => `${dim}\u00a0${one.shape[n].toLocaleString("en")}`).join(" ×\u00a0");
  const facts = [one.title, [dims || "one value", one.units].filter(Boolean).join(" · ")].filter(Boolean);
  const entry = make(
    "button",
    { type: "button", className: `variable${one.coordinate ? " coordinate" : ""}`, title: one.dtype },
    make("b", { textContent: one.name }),
    ...facts.map((textContent) => make("span", { textContent, title: textContent })),
  );
  entry.dataset.path = one.path;
  entry.dataset.words = [one.path, ...facts].join(" ").toLowerCase();
  entry.addEventListener("click", () => choose(one.path));
  return entry;
}

function filter() {
  const words = $("filter").value.toLowerCase().split(/\s+/);
  for (const entry of document.querySelectorAll(".variable")) {
    entry.hidden = !words.every((word) => entry.dataset.words.includes(word));
  }
  for (const list of document.querySelectorAll(".list")) list.hidden = !list.querySelector(".variable:not([hidden])");
}

function findVariable(path) {
  for (const group of contents.groups) {
    const found = group.variables.find((one) => one.path === path);
    if (found) return { ...found, group };
  }
  return null;
}

// ------------------------------------------------------------------ a variable

let variable = null;

async function choose(path, keep = false) {
  variable = findVariable(path) || findVariable(contents.first);
  if (!variable) return tell("There is no variable here.");
  if (path && variable.path !== path) tell(`There is no ${path} here; this is ${variable.path}.`);
  stopPlaying();
  const before = shape && state.at;
  if (!keep) {
    const at = Object.fromEntries(Object.entries(before || {}).filter(([dim]) => variable.dims.includes(dim)));
    Object.assign(state, { y: "", x: "", at, parts: {}, low: "", high: "", pin: null });
    const ready = matchMedia("(max-width: 820px)").matches;
    if (ready && before) $("view").scrollIntoView();
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
  begin("slice");
  clearPicture();
  const signal = begin("dimensions");
  try {
    const told = await ask("dimensions.json", { variable: variable.path }, signal);
    if (signal.aborted) return;
    shape = told;
  } catch (error) {
    return fail(error);
  }
  for (const dim of Object.keys(state.at)) {
    const found = shape.dims.find((one) => one.dim === dim);
    if (!found) delete state.at[dim];
    else state.at[dim] = Math.min(state.at[dim], found.size - 1);
  }
  // of a link by hand, or of an archive that has become smaller
  const sizes = new Map(shape.dims.map((one) => [one.dim, one.size]));
  for (const [dim, [start, stop]] of Object.entries(state.parts)) {
    if (!(start < stop && stop <= (sizes.get(dim) ?? 0))) delete state.parts[dim];
  }
  if (state.pin && Object.entries(state.pin).some(([dim, index]) => !(index < (sizes.get(dim) ?? 0)))) state.pin = null;
  writeLink(!keep);
  try {
    if (!variable.drawn || !shape.dims.length) await showValues();
    else if (shape.dims.length === 1) await showLine();
    else await showPlane();
  } catch (error) {
    fail(error);
  }
  showStructure();
}

async function showValues() {
  const told = await ask("values.json", { variable: variable.path }, begin("slice"));
  $("values").replaceChildren(...told.values.map((textContent) => make("code", { textContent })));
  $("values").hidden = false;
  const more = told.total - told.values.length;
  $("note").textContent = more > 0 ? `the first ${told.values.length} of ${told.total.toLocaleString("en")} values` : "";
}

async function showLine() {
  const [{ dim }] = shape.dims;
  $("line").hidden = false;
  const move = (index) => pin({ [dim]: index });
  await drawSeries($("line"), $("note"), { along: dim }, { height: 320, move, here: () => state.pin?.[dim] });
  if (state.pin) await showPoint();
}

async function showPlane() {
  const names = shape.dims.map((one) => one.dim);
  if (!names.includes(state.y) || !names.includes(state.x) || state.y === state.x) [state.y, state.x] = shape.plane;
  if (state.pin) {
    // sliders stand where the value is
    for (const dim of names) if (dim !== state.y && dim !== state.x && dim in state.pin) state.at[dim] = state.pin[dim];
  }
  for (const id of ["y", "x"]) {
    $(id).replaceChildren(...names.map((dim) => new Option(dim, dim, false, dim === state[id])));
  }
  $("stage").hidden = $("tools").hidden = false;
  showSliders();
  showMaps();
  await showSlice();
  if (state.pin) await showPin();
}

// ------------------------------------------------------------------ sliders

function showSliders() {
  const rows = shape.dims.filter(({ dim }) => dim !== state.y && dim !== state.x).map((one) => {
    const { dim, size, title } = one;
    const index = (state.at[dim] ??= 0);
    const name = title && title !== dim ? `${title} (${dim})` : dim;
    const output = make("output", { id: `label.${dim}` });
    const range = make("input", { type: "range", min: 0, max: size - 1, value: index, id: `at.${dim}`, disabled: size < 2 });
    range.setAttribute("aria-label", name);
    range.addEventListener("input", () => moveTo(dim, Number(range.value)));
    const step = (by, text, label) => {
      const button = make("button", { type: "button", textContent: text, title: label, disabled: size < 2 });
      button.setAttribute("aria-label", `${label} along ${dim}`);
      button.addEventListener("click", () => moveTo(dim, (state.at[dim] + by + size) % size));
      return button;
    };
    const play = make("button", { type: "button", textContent: "▶", id: `play.${dim}`, title: "Play", disabled: size < 2 });
    play.setAttribute("aria-label", `Play along ${dim}`);
    play.addEventListener("click", () => (playing === dim ? stopPlaying() : startPlaying(dim)));
    const row = make("div", { className: "slider" }, make("label", { htmlFor: range.id, textContent: dim, title: name }), play, step(-1, "‹", "Back"), range, step(1, "›", "Forward"), output);
    row.dataset.dim = dim;
    return row;
  });
  $("sliders").replaceChildren(...rows);
}

async function moveTo(dim, index) {
  const size = sizeOf(dim);
  state.at[dim] = clamp(index, 0, size - 1);
  const range = $(`at.${dim}`);
  if (range && Number(range.value) !== state.at[dim]) range.value = state.at[dim];
  if (state.pin) state.pin[dim] = state.at[dim];
  await showSlice();
}

function startPlaying(dim) {
  stopPlaying();
  playing = dim;
  $(`play.${dim}`).textContent = "⏸";
  (async () => {
    while (playing === dim) {
      const begun = performance.now();
      const size = sizeOf(dim);
      await moveTo(dim, (state.at[dim] + 1) % size);
      await new Promise((done) => setTimeout(done, Math.max(120 - (performance.now() - begun), 20)));
    }
  })();
}

function stopPlaying() {
  if (playing && $(`play.${playing}`)) $(`play.${playing}`).textContent = "▶";
  playing = null;
}

// ------------------------------------------------------------------ colours

function gradient(name, side) {
  return `linear-gradient(to ${side}, ${contents.maps[name].join(",")})`;
}

function showMaps() {
  const box = $("maps").querySelector("div");
  box.replaceChildren(
    ...Object.keys(contents.maps).map((name) => {
      const swatch = make("span", { className: "swatch" });
      swatch.style.background = gradient(name, "right");
      const radio = make("input", { type: "radio", name: "map", value: name });
      radio.addEventListener("change", () => { state.map = name; showSlice(); });
      return make("label", {}, radio, swatch, name);
    }),
  );
}

// ------------------------------------------------------------------ a slice

function sliceQuery(at = state.at) {
  const query = { variable: state.variable, y: state.y, x: state.x };
  for (const { dim } of shape.dims) {
    if (dim === state.y || dim === state.x) {
      if (state.parts[dim]) query[`part.${dim}`] = state.parts[dim].join(":");
    } else query[`at.${dim}`] = at[dim] ?? 0;
  }
  // few different sizes, so that pictures can be kept
  const pixels = (length) => clamp(Math.ceil((length * devicePixelRatio) / 128) * 128, 256, 2048);
  const room = findRoom();
  Object.assign(query, { width: pixels(room.width), height: pixels(room.height) });
  query.columns = clamp(Math.floor(room.width / 90), 2, 14);
  query.rows = clamp(Math.floor(room.height / 45), 2, 14);
  for (const key of ["map", "low", "high"]) if (state[key] !== "") query[key] = state[key];
  return query;
}

function findRoom() {
  const beside = innerWidth > 820 ? 190 : 112;
  const width = Math.max($("view").clientWidth - beside, 200);
  return { width, height: clamp(innerHeight * 0.62, 240, 640) };
}

// One picture is asked for at a time, then the newest that is wanted: a slider that is dragged over
// a thousand positions asks for those that can be shown. What takes long is given up.
let busy = null;
let begun = 0;
let isWanted = false;
function showSlice() {
  isWanted = true;
  if (busy && performance.now() - begun > 400) newest.slice?.abort();
  busy ??= (async () => {
    try {
      while (isWanted) {
        isWanted = false;
        begun = performance.now();
        await drawSlice();
      }
    } finally {
      busy = null;
    }
  })();
  return busy;
}

async function drawSlice(isSecond = false) {
  const signal = begin("slice");
  const at = { ...state.at };
  const late = setTimeout(() => ($("waiting").hidden = false), 250);
  $("chunk").hidden = true;
  $("whole").hidden = !Object.keys(state.parts).length;
  try {
    const query = sliceQuery();
    const told = await ask("slice.json", query, signal);
    if (signal.aborted) return;
    // a picture of this version only: a browser keeps pictures by their addresses
    Object.assign(query, { map: told.map, low: told.low, high: told.high, version: told.version });
    delete query.rows;
    delete query.columns;
    const image = new Image();
    image.alt = "";
    image.src = `view/picture.png?${new URLSearchParams(query)}`;
    try {
      await image.decode();
    } catch {
      if (signal.aborted) return;
      if (!isSecond) return drawSlice(true);
      throw new Error("the picture cannot be read; try again");
    }
    if (signal.aborted) return;
    shown = { ...told, positions: at };
    $("problem").hidden = true;
    place(told, image);
    writeLink();
    if (state.pin) showPin();
    preload(signal);
  } catch (error) {
    fail(error);
  } finally {
    clearTimeout(late);
    if (newest.slice?.signal === signal) $("waiting").hidden = true;
  }
}

// The next picture of the slider that moved last is made while this one is looked at.
let before = {};
function preload(signal) {
  for (const { dim, size } of shape.dims) {
    const by = Math.sign((state.at[dim] ?? 0) - (before[dim] ?? 0));
    if (!by) continue;
    const next = clamp(state.at[dim] + by, 0, size - 1);
    const query = { ...sliceQuery({ ...state.at, [dim]: next }), map: shown.map, low: shown.low, high: shown.high };
    fetch(`view/slice.json?${new URLSearchParams(query)}`, { signal, priority: "low" }).catch(() => null);
  }
  before = { ...state.at };
}

function place(told, image) {
  hideTip();
  // the colours stay when a slider moves, so that pictures can be compared
  if (told.least !== null) Object.assign(state, { low: told.low, high: told.high });
  const room = findRoom();
  const aspect = told.aspect && told.aspect > 0.2 && told.aspect < 6 ? told.aspect : 1.7;
  const width = Math.min(room.width, room.height * aspect);
  const frame = $("frame");
  frame.style.width = `${Math.round(width)}px`;
  frame.style.height = `${Math.round(Math.max(width / aspect, 60))}px`;
  image.className = image.naturalWidth * 1.5 < width * devicePixelRatio ? "enlarged" : "";
  $("picture").replaceChildren(image);
  frame.setAttribute("aria-label", describeSlice(told));
  for (const id of ["y", "x"]) {
    const line = told[id];
    $(`${id}title`).textContent = line.units ? `${line.title} (${line.units})` : line.title;
    const [side, length] = id === "y" ? ["top", frame.clientHeight] : ["left", frame.clientWidth];
    $(`${id}ticks`).replaceChildren(
      ...thin(line.ticks, length, id === "x").map(([at, textContent]) => {
        const tick = make("span", { textContent });
        tick.style[side] = `${at * 100}%`;
        return tick;
      }),
    );
  }
  $("yticks").style.width = `${Math.max(...told.y.ticks.map(([, label]) => label.length), 1) * 0.52}rem`;
  $("bar").style.background = gradient(told.map, "top");
  $("bar").style.setProperty("--lowest", contents.maps[told.map][0]);
  $("bar").style.setProperty("--highest", contents.maps[told.map].at(-1));
  $("bar").className = ["low", "high"].filter((one, n) => told.cut[n]).join(" ");
  $("bar").title = told.cut.some(Boolean) ? "Values beyond an end have its colour" : "";
  $("bar-ticks").replaceChildren(
    ...told.scale.map(([at, textContent]) => {
      const tick = make("span", { textContent });
      tick.style.top = `${(1 - at) * 100}%`;
      return tick;
    }),
  );
  $("map").style.background = gradient(told.map, "right");
  for (const radio of document.querySelectorAll("#maps input")) radio.checked = radio.value === told.map;
  for (const id of ["low", "high"]) if (document.activeElement !== $(id)) $(id).value = Number(told[id].toPrecision(6));
  for (const [dim, label] of Object.entries(told.at)) {
    const size = sizeOf(dim);
    const place = `${((state.at[dim] ?? 0) + 1).toLocaleString("en")} of ${size.toLocaleString("en")}`;
    $(`label.${dim}`)?.replaceChildren(label, " ", make("small", { textContent: place }));
    $(`at.${dim}`)?.setAttribute("aria-valuetext", label);
  }
  $("note").textContent = describeNote(told);
}

// Ticks whose labels have room beside each other.
function thin(ticks, length, isHorizontal) {
  const room = isHorizontal ? Math.max(...ticks.map(([, label]) => label.length), 1) * 6.5 + 10 : 19;
  const gap = ticks.length > 1 ? (Math.abs(ticks.at(-1)[0] - ticks[0][0]) * length) / (ticks.length - 1) : length;
  const every = Math.max(Math.ceil(room / gap), 1);
  return ticks.filter((one, n) => n % every === 0);
}

function describeSlice(told) {
  const at = Object.entries(told.at).map(([dim, label]) => `${dim} ${label}`);
  const range = told.least === null ? "no value" : `values from ${told.least} to ${told.greatest} ${variable.units}`;
  return [`${variable.title || variable.name}: ${told.y.dim} by ${told.x.dim}`, ...at, range].join(", ");
}

function describeNote(told) {
  const parts = [];
  if (told.least === null) parts.push("all values are missing here");
  else parts.push(`${told.least} to ${told.greatest}${variable.units ? ` ${variable.units}` : ""}`);
  if (told.missing > 0 && told.least !== null) parts.push(`${formatShare(told.missing)} missing`);
  const steps = [told.y, told.x].filter((line) => line.step > 1).map((line) => `every ${nth(line.step)} along ${line.dim}`);
  if (steps.length) parts.push(`shows ${steps.join(", ")}; drag to enlarge`);
  return parts.join(" · ");
}

const formatShare = (share) => (share < 0.001 ? "< 0.1 %" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`);

// ------------------------------------------------------------------ the pointer on the picture

// Where an element is: a part of the width or height, at the middle of its pixel.
function partOf(line, index) {
  const n = Math.round((index - line.start) / line.step);
  if (n < 0 || n >= line.count) return null;
  return ((line.reversed ? line.count - 1 - n : n) + 0.5) / line.count;
}

function indexAt(line, part) {
  const n = clamp(Math.floor(part * line.count), 0, line.count - 1);
  return { index: line.start + line.step * (line.reversed ? line.count - 1 - n : n), label: line.labels[n] };
}

function locate(event) {
  const box = $("frame").getBoundingClientRect();
  const [x, y] = [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  return { x: clamp(x, 0, 1), y: clamp(y, 0, 1) };
}

function pointQuery(at, positions = state.at) {
  const query = { variable: state.variable };
  for (const { dim } of shape.dims) query[`at.${dim}`] = at[dim] ?? positions[dim] ?? 0;
  return query;
}

let tipTimer = 0;
function showTip(event) {
  if (!shown) return;
  const part = locate(event);
  const [y, x] = [indexAt(shown.y, part.y), indexAt(shown.x, part.x)];
  const tip = $("tip");
  const value = tip.querySelector("b") || make("b");
  tip.replaceChildren(value, `${shown.y.dim} ${y.label}, ${shown.x.dim} ${x.label}`);
  tip.hidden = false;
  const [wide, high] = [tip.offsetWidth, tip.offsetHeight];
  tip.style.left = `${clamp(event.clientX + 16, 4, innerWidth - wide - 4)}px`;
  tip.style.top = `${event.clientY + high + 28 > innerHeight ? event.clientY - high - 10 : event.clientY + 18}px`;
  clearTimeout(tipTimer);
  tipTimer = setTimeout(async () => {
    if (!shown) return;
    const at = { [shown.y.dim]: y.index, [shown.x.dim]: x.index };
    try {
      const signal = begin("tip");
      const told = await ask("value.json", pointQuery(at, shown.positions), signal);
      if (!signal.aborted) value.textContent = withUnits(told.short, told.units);
    } catch (error) {
      if (error.name !== "AbortError") value.textContent = "";
    }
  }, 40);
}

function hideTip() {
  clearTimeout(tipTimer);
  newest.tip?.abort();
  $("tip").hidden = true;
}

let drag = null;
function watchFrame() {
  const frame = $("frame");
  frame.addEventListener("pointerdown", (event) => {
    if (event.button || !shown) return;
    drag = { from: locate(event), type: event.pointerType, moved: false };
    if (event.pointerType === "mouse") frame.setPointerCapture(event.pointerId);
  });
  frame.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" || drag) showTip(event);
    if (!drag || drag.type !== "mouse") return;
    drag.to = locate(event);
    const box = frame.getBoundingClientRect();
    drag.moved ||= Math.hypot((drag.to.x - drag.from.x) * box.width, (drag.to.y - drag.from.y) * box.height) > 6;
    if (drag.moved) placeBox($("rubber"), drag.from, drag.to);
  });
  frame.addEventListener("pointerup", (event) => {
    const done = drag;
    drag = null;
    $("rubber").hidden = true;
    if (!done) return;
    if (done.moved && done.to) return enlarge(done.from, done.to);
    const part = locate(event);
    if (done.type !== "mouse") hideTip();
    pin({ [shown.y.dim]: indexAt(shown.y, part.y).index, [shown.x.dim]: indexAt(shown.x, part.x).index });
  });
  frame.addEventListener("pointercancel", () => { drag = null; $("rubber").hidden = true; });
  frame.addEventListener("pointerleave", hideTip);
  frame.addEventListener("dblclick", showWhole);
  frame.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: ["x", -1], ArrowRight: ["x", 1], ArrowUp: ["y", -1], ArrowDown: ["y", 1] };
    if (event.key in moves && shown) {
      event.preventDefault();
      const [id, by] = moves[event.key];
      moveCross(id, by * (event.shiftKey ? 10 : 1));
    } else if (event.key === "Enter" && shown) pin(state.pin || centre());
    else if (event.key === "Escape") showWhole();
    else if ((event.key === "+" || event.key === "-") && shown) scaleBy(event.key === "+" ? 0.5 : 2);
  });
}

function centre() {
  return { [shown.y.dim]: indexAt(shown.y, 0.5).index, [shown.x.dim]: indexAt(shown.x, 0.5).index };
}

function moveCross(id, pixels) {
  const at = state.pin ? { ...state.pin } : centre();
  const line = shown[id];
  const now = partOf(line, at[line.dim]) ?? 0.5;
  at[line.dim] = indexAt(line, clamp(now + pixels / line.count, 0, 1)).index;
  pin(at);
}

function placeBox(box, from, to) {
  box.hidden = false;
  box.style.left = `${Math.min(from.x, to.x) * 100}%`;
  box.style.top = `${Math.min(from.y, to.y) * 100}%`;
  box.style.width = `${Math.abs(to.x - from.x) * 100}%`;
  box.style.height = `${Math.abs(to.y - from.y) * 100}%`;
}

function enlarge(from, to) {
  for (const id of ["y", "x"]) {
    const line = shown[id];
    const ends = [indexAt(line, from[id]).index, indexAt(line, to[id]).index].sort((a, b) => a - b);
    const size = sizeOf(line.dim);
    state.parts[line.dim] = [ends[0], Math.min(ends[1] + line.step, size)];
  }
  showSlice();
}

function scaleBy(factor) {
  const middle = state.pin || centre();
  for (const id of ["y", "x"]) {
    const { dim } = shown[id];
    const size = sizeOf(dim);
    const [start, stop] = state.parts[dim] || [0, size];
    const length = clamp(Math.round((stop - start) * factor), 2, size);
    const first = clamp(Math.round(middle[dim] - length / 2), 0, size - length);
    if (length >= size) delete state.parts[dim];
    else state.parts[dim] = [first, first + length];
  }
  showSlice();
}

function showWhole() {
  if (!Object.keys(state.parts).length) return;
  state.parts = {};
  showSlice();
}

// ------------------------------------------------------------------ one value, and its series

function pin(at) {
  state.pin = { ...Object.fromEntries(shape.dims.map(({ dim }) => [dim, state.at[dim] ?? 0])), ...at };
  writeLink();
  if (shape.dims.length > 1) showPin();
  else {
    redraw();
    showPoint();
  }
}

let seriesKey = "";
async function showPin() {
  if (!shown) return;
  const [y, x] = [partOf(shown.y, state.pin[shown.y.dim]), partOf(shown.x, state.pin[shown.x.dim])];
  $("cross-y").hidden = y === null;
  $("cross-x").hidden = x === null;
  if (y !== null) $("cross-y").style.top = `${y * 100}%`;
  if (x !== null) $("cross-x").style.left = `${x * 100}%`;
  showPoint();
  const names = shape.dims.map((one) => one.dim);
  if (!names.includes(state.along)) state.along = names.find((dim) => dim !== state.y && dim !== state.x) || state.x;
  $("along").replaceChildren(...names.map((dim) => new Option(dim, dim, false, dim === state.along)));
  $("series").hidden = false;
  const others = names.filter((dim) => dim !== state.along).map((dim) => `${dim}=${state.pin[dim]}`);
  const key = [contents.version, state.variable, state.along, ...others].join("&");
  if (key === seriesKey) return redraw();
  seriesKey = key;
  const dim = state.along;
  const move = (index) => (dim === state.y || dim === state.x ? pin({ ...state.pin, [dim]: index }) : moveTo(dim, index));
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
  let told;
  try {
    told = await ask("point.json", pointQuery(state.pin), begin("point"));
  } catch (error) {
    if (error.name !== "AbortError") $("origin").replaceChildren(make("p", { textContent: error.message }));
    return;
  }
  const { origin } = told;
  const facts = [...told.coordinates];
  if (origin.file) {
    facts.push(["file", origin.file]);
    facts.push(["bytes", `${origin.offset.toLocaleString("en")} to ${(origin.offset + origin.length).toLocaleString("en")} (${origin.length.toLocaleString("en")})`]);
    facts.push(["encoding", origin.encoding]);
  } else facts.push(["file", origin.reason]);
  if (origin.chunk?.length) facts.push(["chunk", `(${origin.chunk.join(", ")}) of shape ${origin.chunk_shape.join(" × ")}`], ["in the chunk", `(${origin.position.join(", ")})`]);
  const value = make("p", { id: "value", textContent: told.value }, " ", make("small", { textContent: told.value === "missing" ? "" : told.units }));
  $("origin").replaceChildren(value, makeFacts(facts));
  showChunk(told.at, origin);
}

function showChunk(at, origin) {
  $("chunk").hidden = true;
  if (!origin.chunk?.length || !shown || shape.dims.length < 2) return;
  const corners = {};
  for (const id of ["y", "x"]) {
    const line = shown[id];
    const axis = shape.dims.findIndex((one) => one.dim === line.dim);
    const first = at[line.dim] - origin.position[axis];
    const edges = [first, first + origin.chunk_shape[axis]].map((edge) => (edge - line.start) / line.step / line.count);
    const [low, high] = (line.reversed ? edges.map((one) => 1 - one).reverse() : edges).map((one) => clamp(one, 0, 1));
    corners[id] = [low, high];
  }
  if ([corners.x, corners.y].every(([low, high]) => low === 0 && high === 1)) return;
  placeBox($("chunk"), { x: corners.x[0], y: corners.y[0] }, { x: corners.x[1], y: corners.y[1] });
}

// Draws the series that is shown again, at another width or with another mark.
let redraw = () => null;

// A series is drawn at once with few points, then with more.
async function drawSeries(box, note, query, { height, move, here }) {
  const signal = begin("series");
  let told = null;
  redraw = () => told && drawLine(box, told, height, move, here);
  const columns = clamp(Math.floor((box.clientWidth || 500) / 110), 2, 12);
  for (const points of [100, 500, 2000]) {
    told = await ask("series.json", { variable: state.variable, points, columns, ...query }, signal);
    redraw();
    const every = told.x.step > 1 ? `every ${nth(told.x.step)} of ${sizeOf(query.along).toLocaleString("en")} values` : "";
    const at = Object.entries(told.at).map(([dim, label]) => `${dim} ${label}`);
    note.textContent = [every, at.length ? `at ${at.join(", ")}` : ""].filter(Boolean).join(" · ");
    if (told.x.step === 1 || told.limited) break;
  }
}

function drawLine(box, told, height, move, here) {
  const width = Math.max(box.clientWidth, 240);
  const labels = told.scale.map(([, label]) => label.length);
  const left = Math.max(...labels, 2) * 7 + 12;
  const [right, top, bottom] = [12, 8, 26];
  const values = told.values.filter((one) => one !== null);
  const [low, high] = told.ends || [0, 1];
  const total = told.values.length;
  // along the coordinate, so that missing dates are a gap; else by position
  const placeOf = (n) => (told.places ? told.places[n] : (n + 0.5) / total);
  const gaps = new Set(told.gaps);
  const sx = (part) => left + part * (width - left - right);
  // halves, since the distance of two numbers may be more than a number holds
  const sy = (value) => top + (1 - (low < high ? (value / 2 - low / 2) / (high / 2 - low / 2) : 0.5)) * (height - top - bottom);
  const svg = draw("svg", { class: "line", viewBox: `0 0 ${width} ${height}`, role: "img", tabindex: 0 });
  svg.setAttribute("aria-label", values.length ? `Series along ${told.x.dim}, ${count(total, "value")}` : "no value");
  for (const [part, label] of told.scale) {
    const y = top + (1 - part) * (height - top - bottom);
    svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y, y2: y }));
    svg.append(draw("text", { x: left - 6, y: y + 4, "text-anchor": "end" }, label));
  }
  for (const [part, label] of told.x.ticks) {
    const anchor = part < 0.06 ? "start" : part > 0.94 ? "end" : "middle";
    svg.append(draw("text", { x: sx(part), y: height - 6, "text-anchor": anchor }, label));
    svg.append(draw("line", { class: "grid", x1: sx(part), x2: sx(part), y1: height - bottom, y2: height - bottom + 5 }));
  }
  let path = "";
  const joins = (n) => n > 0 && n < total && (told.values[n - 1] ?? null) !== null && (told.values[n] ?? null) !== null && !gaps.has(n - 1);
  told.values.forEach((value, n) => {
    if (value === null) return;
    const [x, y] = [sx(placeOf(n)), sy(value)];
    if (total < 40 || !(joins(n) || joins(n + 1))) svg.append(draw("circle", { cx: x, cy: y, r: 2.4 }));
    path += `${joins(n) ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
  });
  if (!values.length) svg.append(draw("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "all values are missing here"));
  svg.append(draw("path", { class: "values", d: path }));
  const marker = draw("line", { class: "here", y1: top, y2: height - bottom });
  const index = here();
  const nearest = index === undefined ? -1 : Math.round((index - told.x.start) / told.x.step);
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
    if (!told.places) return clamp(Math.floor(part * total), 0, total - 1);
    const next = told.places.findIndex((one) => one >= part);
    if (next <= 0) return next < 0 ? total - 1 : 0;
    return part - told.places[next - 1] < told.places[next] - part ? next - 1 : next;
  };
  svg.addEventListener("pointermove", (event) => {
    const n = find(event);
    const tip = $("tip");
    tip.replaceChildren(make("b", { textContent: withUnits(told.shown[n], variable.units) }), told.x.labels[n]);
    tip.hidden = false;
    tip.style.left = `${clamp(event.clientX + 14, 4, innerWidth - tip.offsetWidth - 4)}px`;
    tip.style.top = `${event.clientY - tip.offsetHeight - 12}px`;
  });
  svg.addEventListener("pointerleave", hideTip);
  svg.addEventListener("click", (event) => move(told.x.start + told.x.step * find(event)));
  svg.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const size = sizeOf(told.x.dim);
    move(clamp((here() ?? told.x.start) + by * told.x.step, 0, size - 1));
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
  if ($("structure").open || $("attributes").open) fillStructure();
}

async function fillStructure() {
  try {
    const told = await ask("variable.json", { variable: state.variable }, begin("structure"));
    // the library has escaped all texts in these
    $("chunks").innerHTML = told.strips.join("") + told.chunks;
    if (!told.chunks) $("chunks").textContent = "Its values are in memory.";
    $("attrs").replaceChildren(makeFacts(told.attrs), make("h3", { textContent: `Group ${variable.group.path}` }), makeFacts(told.group));
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
  $("lines").replaceChildren(...lines.flatMap(([name, textContent]) => [make("div", { textContent: name }), make("pre", { textContent })]));
}

// ------------------------------------------------------------------ the whole page

function watchTools() {
  for (const id of ["y", "x"]) {
    $(id).addEventListener("change", () => {
      const other = id === "y" ? "x" : "y";
      if ($(id).value === state[other]) state[other] = state[id];
      state[id] = $(id).value;
      // other slices have other ranges
      Object.assign(state, { parts: {}, low: "", high: "" });
      showPlane();
    });
  }
  $("swap").addEventListener("click", () => {
    [state.y, state.x] = [state.x, state.y];
    showPlane();
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
  $("whole").addEventListener("click", showWhole);
  $("along").addEventListener("change", () => {
    state.along = $("along").value;
    writeLink();
    showPin();
  });
  $("filter").addEventListener("input", filter);
  $("filter").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    const visible = [...document.querySelectorAll(".variable:not([hidden])")];
    const named = visible.find((one) => one.querySelector("b").textContent.toLowerCase().startsWith($("filter").value.toLowerCase()));
    (named || visible[0])?.click();
  });
  for (const id of ["structure", "attributes"]) {
    $(id).addEventListener("toggle", () => { if ($(id).open && !$("attrs").childElementCount) fillStructure(); });
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
    choose(state.variable, true);
  });
  let room = innerWidth;
  new ResizeObserver(() => {
    if (Math.abs(innerWidth - room) < 8 || !shape) return;
    room = innerWidth;
    if (shape.dims.length > 1 && shown) showSlice();
    redraw();
  }).observe(document.body);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  try {
    localStorage.setItem("theme", name);
  } catch {
    // a browser may keep nothing
  }
}

async function start() {
  try {
    const kept = localStorage.getItem("theme");
    if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
  } catch {
    // a browser may keep nothing
  }
  watchFrame();
  watchTools();
  readLink();
  try {
    contents = await ask("contents.json");
  } catch (error) {
    $("title").textContent = "It cannot be opened";
    return fail(error);
  }
  showContents();
  showReaders();
  await choose(state.variable, true);
  document.body.dataset.ready = "yes";
}

start();
