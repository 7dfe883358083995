"use strict";
// DOM elements, number formats, and figures: every number on the page records the value that it shows.

/// el("p", {class: "note"}, "text", child …)
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return node;
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
  node.append(...children.flat());
  return node;
}

const say = {
  exact: (n) => Number.isInteger(n) ? n.toLocaleString("en-US") : String(n),
  /// 61,706 -> "61.7 K"
  count(n) {
    if (Math.abs(n) < 10000) return say.exact(Math.abs(n) < 100 ? Math.round(n * 100) / 100 : Math.round(n));
    for (const [unit, size] of [["E", 1e18], ["P", 1e15], ["T", 1e12], ["G", 1e9], ["M", 1e6], ["K", 1e3]])
      if (Math.abs(n) >= size) return `${say.digits(n / size)} ${unit}`;
  },
  digits: (x) => Math.abs(x) >= 100 ? x.toFixed(0) : Math.abs(x) >= 10 ? x.toFixed(1) : x.toFixed(2),
  bytes(n) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = 0;
    while (Math.abs(n) >= 1024 && unit < units.length - 1) { n /= 1024; ++unit; }
    return unit === 0 ? `${say.exact(n)} B` : `${n.toFixed(1)} ${units[unit]}`;
  },
  /// 0.0123 -> "12.3 ms"; from a minute on "1m03s"
  seconds(s) {
    if (s === 0) return "0 s";
    if (s < 1e-3) return `${say.digits(s * 1e6)} µs`;
    if (s < 1) return `${say.digits(s * 1e3)} ms`;
    if (s < 60) return `${say.digits(s)} s`;
    const all = Math.round(s), two = (n) => String(n).padStart(2, "0");
    const h = Math.floor(all / 3600), m = Math.floor(all / 60) % 60;
    return h > 0 ? `${h}h${two(m)}m` : `${m}m${two(all % 60)}s`;
  },
  percent: (part) => `${(100 * part).toFixed(1)}%`,
  /// Four significant digits, as losses are read.
  value(x) {
    if (typeof x === "string") return x;  // nan, inf
    if (x === 0) return "0";
    const size = Math.abs(x);
    if (size >= 1e5 || size < 1e-4) return x.toExponential(3);
    return size >= 1000 ? x.toFixed(1) : String(Number(x.toPrecision(4)));
  },
  time: (s) => new Date(s * 1000).toLocaleString(),
  text: (t) => String(t),
};

/// Ranges as the plan writes them, "0:4,6:12:2", with their ends: "0-3, 6, 8, 10".
function ranksText(ranges) {
  return ranges.split(",").map((range) => {
    const [first, end, step = 1] = range.split(":").map(Number);
    if (end === undefined) return String(first);
    if (step === 1) return end - first > 1 ? `${first}-${end - 1}` : String(first);
    const all = Array.from({length: Math.ceil((end - first) / step)}, (_, i) => first + i * step);
    return all.length > 4 ? `${all[0]}, ${all[1]} … ${all[all.length - 1]}` : all.join(", ");
  }).join(", ");
}

/// The value at "runs.0.plan.parameters"; undefined if there is none.
function at(path) {
  let value = page;
  for (const word of path.split(".")) {
    if (value === undefined || value === null) return undefined;
    value = value[word];
  }
  return value;
}

/// A number of the data, formatted by say[how]. Its title is the exact value; data-from is its path in the data.
function figure(path, how, tag = "span") {
  const value = at(path);
  return el(tag, {"data-from": path, "data-how": how, title: typeof value === "number" ? say.exact(value) : undefined},
            say[how](value));
}

const color = (i) => `var(--c${i % 8})`;

function table(headers, rows, caption) {
  const cell = (tag, header, content) => el(tag, {class: header.startsWith(">") ? "num" : undefined, scope: tag === "th" ? "col" : undefined}, content);
  return el("div", {class: "scroll", tabindex: "0", role: "region", "aria-label": caption || "table"}, el("table", {},
      caption ? el("caption", {}, caption) : null,
      el("thead", {}, el("tr", {}, headers.map((h) => cell("th", h, h.replace(">", ""))))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((c, i) => cell("td", headers[i], c === null || c === undefined ? "" : c)))))));
}

function section(id, title, note, ...content) {
  return el("section", {id, "aria-labelledby": `${id}-title`}, el("h2", {id: `${id}-title`}, title),
            note ? el("p", {class: "note"}, note) : null, content);
}

function card(...content) { return el("div", {class: "card"}, content); }

function wideCard(...content) { return el("div", {class: "card wide"}, content); }

/// Shows one of several contents, chosen by buttons. `make(i)` creates a content when it is shown.
function tabs(labels, make, label) {
  const place = el("div", {}), buttons = labels.map((text, i) => el("button", {role: "tab", onclick: () => show(i)}, text));
  const show = (chosen) => {
    buttons.forEach((b, i) => b.setAttribute("aria-selected", String(i === chosen)));
    place.replaceChildren(make(chosen));
  };
  const bar = el("div", {class: "tabs", role: "tablist", "aria-label": label}, buttons);
  bar.addEventListener("keydown", (event) => {
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    const next = (buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length;
    buttons[next].focus();
    show(next);
  });
  show(0);
  return el("div", {}, labels.length > 1 ? bar : null, place);
}

/// Calls draw(width) now and whenever the width of `place` changes.
function onWidth(place, draw) {
  let last = 0;
  new ResizeObserver(() => {
    const width = Math.floor(place.clientWidth);
    if (width <= 0 || width === last) return;
    last = width;
    requestAnimationFrame(() => draw(width));  // drawing here would resize what is being observed
  }).observe(place);
}
