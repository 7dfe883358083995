// A chart of lines over steps: zoom by dragging or with + and -, a crosshair by pointer or arrow keys, a legend that
// switches lines on and off, a logarithmic scale.

/// About `count` round numbers from `low` to `high`.
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(raw || 1));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw) || power;
  const all = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) all.push(Number((i * step).toPrecision(12)));
  return all;
}

function decades(low, high) {
  const all = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); ++e)
    for (const m of high / low > 1000 ? [1] : [1, 2, 5]) {
      const value = m * 10 ** e;
      if (value >= low * 0.999 && value <= high * 1.001) all.push(Number(value.toPrecision(6)));
    }
  return all;
}

/// The index of the point that is nearest to x in ascending xs.
function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle; else high = middle;
  }
  return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
}

class Chart {
  /// series: {name, steps, values, color, dots, dashed, from}; values may be "nan" or "inf". how: a key of `say`.
  /// marks: {step, text}, drawn as vertical lines.
  constructor({title, series, how, log, x = "step", height = 230, zero = false, marks = []}) {
    Object.assign(this, {title, series, how, log: log || false, x, height, zero, marks});
    this.hidden = new Set();
    this.zoom = null;
    this.cursor = null;
    this.place = el("div", {class: "chart card"});
    this.live = el("div", {class: "hidden", "aria-live": "polite"});
    this.body = el("div", {style: "position: relative"});
    this.tip = el("div", {class: "tip", hidden: ""});
    this.place.append(this.head(), this.body, this.legend(), this.live);
    onWidth(this.body, (width) => this.draw(width));
  }

  head() {
    const canLog = this.series.every((s) => s.values.every((v) => typeof v !== "number" || v > 0));
    this.reset = el("button", {hidden: "", onclick: () => this.setZoom(null)}, "whole run");
    const log = el("button", {"aria-pressed": String(this.log), onclick: () => {
      this.log = !this.log;
      log.setAttribute("aria-pressed", String(this.log));
      this.draw();
    }}, "log");
    return el("div", {class: "chart-head"}, el("h3", {}, this.title), this.reset, canLog ? log : null);
  }

  legend() {
    if (this.series.length < 2) return "";
    return el("div", {class: "legend", role: "group", "aria-label": `lines of ${this.title}`}, this.series.map((s) => {
      const button = el("button", {"aria-pressed": "true", onclick: () => {
        if (!this.hidden.delete(s)) this.hidden.add(s);
        button.setAttribute("aria-pressed", String(!this.hidden.has(s)));
        this.draw();
      }}, el("i", {style: `background: ${s.color}`}), s.name);
      return button;
    }));
  }

  shown() { return this.series.filter((s) => !this.hidden.has(s)); }

  /// [first step, last step, least value, greatest value] of what is shown.
  domain() {
    let [x0, x1, y0, y1] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const s of this.shown()) for (const step of s.steps) { x0 = Math.min(x0, step); x1 = Math.max(x1, step); }
    if (this.zoom) [x0, x1] = this.zoom;
    for (const s of this.shown()) s.steps.forEach((step, i) => {
      const v = s.values[i];
      if (typeof v !== "number" || step < x0 || step > x1) return;
      y0 = Math.min(y0, v); y1 = Math.max(y1, v);
    });
    if (!isFinite(x0)) [x0, x1] = [0, 1];
    if (!isFinite(y0)) [y0, y1] = [0, 1];
    if (this.zero && !this.log) y0 = Math.min(0, y0);
    if (x0 === x1) { x0 -= 1; x1 += 1; }
    if (y0 === y1) { const by = Math.abs(y0) * 0.1 || 1; if (y0 > 0) y0 = Math.max(y0 - by, y0 / 2); else y0 -= by; y1 += by; }
    return [x0, x1, y0, y1];
  }

  draw(width = this.width) {
    if (!width) return;
    this.width = width;
    const height = this.height, [x0, x1, y0, y1] = this.domain();
    const yTicks = this.log ? decades(y0, y1) : ticks(y0, y1, 5);
    const labels = yTicks.map((t) => say[this.how](t));
    const left = Math.min(90, 12 + 6.6 * Math.max(...labels.map((l) => l.length), 2)), right = width - 10, top = 8, bottom = height - 24;
    const scale = this.log ? Math.log : (v) => v;
    this.toX = (x) => left + (x - x0) / (x1 - x0) * (right - left);
    this.toStep = (px) => x0 + (px - left) / (right - left) * (x1 - x0);
    this.toY = (y) => bottom - (scale(y) - scale(y0)) / (scale(y1) - scale(y0)) * (bottom - top);
    this.box = {left, right, top, bottom};
    const root = svg("svg", {viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": this.words(),
                             "data-domain": JSON.stringify([x0, x1, y0, y1]), "data-box": JSON.stringify([left, right, top, bottom])});
    yTicks.forEach((t, i) => root.append(
        svg("line", {class: "grid-line", x1: left, x2: right, y1: this.toY(t), y2: this.toY(t)}),
        svg("text", {x: left - 6, y: this.toY(t) + 4, "text-anchor": "end"}, labels[i])));
    for (const t of ticks(x0, x1, Math.max(2, Math.floor(width / 110))))
      root.append(svg("text", {x: this.toX(t), y: height - 8, "text-anchor": this.toX(t) > right - 24 ? "end" : "middle"}, say.exact(t)));
    root.append(svg("line", {class: "axis", x1: left, x2: right, y1: bottom, y2: bottom}));
    for (const s of this.shown()) root.append(...this.line(s, x0, x1));
    for (const mark of this.marks) {
      if (mark.step < x0 || mark.step > x1) continue;
      const x = this.toX(mark.step), isRight = x > (left + right) / 2;
      root.append(svg("g", {class: "mark"}, svg("title", {}, `${this.x} ${say.exact(mark.step)}: ${mark.text}`), svg("line", {x1: x, x2: x, y1: top, y2: bottom}),
                      svg("text", {x: x + (isRight ? -4 : 4), y: top + 10, "text-anchor": isRight ? "end" : "start"}, mark.name)));
    }
    this.cross = svg("g", {});
    this.band = svg("rect", {class: "brush", y: top, height: bottom - top, width: 0});
    root.append(this.cross, this.band);
    this.listen(root);
    this.body.replaceChildren(root, this.tip);
    this.tip.hidden = true;
  }

  /// A line has a gap, and a mark at the bottom, where a value is not finite.
  line(s, x0, x1) {
    let path = "", pen = "M", marks = [];
    const inside = (i) => i >= 0 && i < s.steps.length && s.steps[i] >= x0 && s.steps[i] <= x1;
    s.steps.forEach((step, i) => {
      if (!inside(i) && !inside(i - 1) && !inside(i + 1)) return;
      const v = s.values[i];
      if (typeof v !== "number") {
        pen = "M";
        if (inside(i)) marks.push(svg("text", {class: "on", x: this.toX(step), y: this.box.bottom - 4, "text-anchor": "middle"}, v));
        return;
      }
      const x = Math.min(Math.max(this.toX(step), this.box.left), this.box.right);
      const y = Math.min(Math.max(this.toY(v), this.box.top), this.box.bottom);
      path += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
      pen = "L";
      if (s.dots && inside(i)) marks.push(svg("circle", {cx: x, cy: y, r: s.steps.length > 60 ? 1.6 : 3, fill: s.color}));
    });
    const curve = svg("path", {class: "curve", d: path, style: `stroke: ${s.color}`, "data-from": s.from || "", "data-name": s.name});
    if (s.dashed) curve.setAttribute("stroke-dasharray", "5 4");
    return [curve, ...marks];
  }

  words() {
    const parts = this.series.filter((s) => s.values.length).map((s) => {
      const first = s.values[0], last = s.values[s.values.length - 1];
      return `${s.name} from ${say[this.how](first)} at ${this.x} ${say.exact(s.steps[0])} to ${say[this.how](last)} at ${this.x} ${say.exact(s.steps[s.steps.length - 1])}`;
    });
    return `${this.title}: ${parts.join("; ")}. Use the arrow keys to read values, plus and minus to zoom.`;
  }

  listen(root) {
    let from = null;
    const step = (event) => this.toStep((event.clientX - root.getBoundingClientRect().left) * this.width / root.clientWidth);
    const clamp = (x) => { const [x0, x1] = this.domain(); return Math.min(Math.max(x, x0), x1); };
    root.addEventListener("pointerdown", (event) => { if (event.pointerType !== "touch") { from = clamp(step(event)); root.setPointerCapture(event.pointerId); } });
    root.addEventListener("pointermove", (event) => {
      this.point(step(event));
      if (from === null) return;
      const [a, b] = [this.toX(from), this.toX(clamp(step(event)))];
      this.band.setAttribute("x", Math.min(a, b));
      this.band.setAttribute("width", Math.abs(a - b));
    });
    root.addEventListener("pointerup", (event) => {
      const to = clamp(step(event)), wide = from !== null && Math.abs(this.toX(to) - this.toX(from)) > 6;
      if (wide) this.setZoom([Math.min(from, to), Math.max(from, to)]);
      from = null;
    });
    root.addEventListener("pointerleave", () => this.point(null));
    root.addEventListener("dblclick", () => this.setZoom(null));
    root.addEventListener("keydown", (event) => this.key(event));
  }

  key(event) {
    const [x0, x1] = this.domain(), longest = this.shown().reduce((a, s) => s.steps.length > a.length ? s.steps : a, []);
    const middle = this.cursor ?? (x0 + x1) / 2, half = (x1 - x0) / 2;
    const actions = {
      ArrowRight: () => this.point(longest[Math.min(nearest(longest, middle) + 1, longest.length - 1)], true),
      ArrowLeft: () => this.point(longest[Math.max(nearest(longest, middle) - 1, 0)], true),
      "+": () => this.setZoom([middle - half / 2, middle + half / 2]),
      "-": () => this.setZoom(this.zoom && [middle - half * 2, middle + half * 2]),
      "0": () => this.setZoom(null), Escape: () => this.setZoom(null),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  setZoom(range) {
    this.zoom = null;
    const [x0, x1] = this.domain();
    const inner = range && [Math.max(range[0], x0), Math.min(range[1], x1)];
    this.zoom = inner && (inner[0] > x0 || inner[1] < x1) && inner[1] > inner[0] ? inner : null;
    this.reset.hidden = !this.zoom;
    const focused = this.body.contains(document.activeElement);
    this.draw();
    if (focused) this.body.querySelector("svg").focus();
  }

  /// The crosshair and the values at a step; null: none.
  point(step, aloud) {
    this.cross.replaceChildren();
    this.tip.hidden = step === null || !this.shown().length;
    if (this.tip.hidden) return;
    const rows = this.shown().filter((s) => s.steps.length).map((s) => ({s, i: nearest(s.steps, step)}));
    if (!rows.length) { this.tip.hidden = true; return; }
    const main = rows.reduce((a, b) => Math.abs(b.s.steps[b.i] - step) < Math.abs(a.s.steps[a.i] - step) ? b : a);
    this.cursor = main.s.steps[main.i];
    const x = this.toX(this.cursor);
    this.cross.append(svg("line", {class: "cross", x1: x, x2: x, y1: this.box.top, y2: this.box.bottom}));
    for (const {s, i} of rows)
      if (typeof s.values[i] === "number" && s.steps[i] >= this.domain()[0] && s.steps[i] <= this.domain()[1])
        this.cross.append(svg("circle", {cx: this.toX(s.steps[i]), cy: this.toY(s.values[i]), r: 3.5, fill: s.color}));
    const lines = rows.map(({s, i}) => `${s.name} ${say[this.how](s.values[i])}` + (s.steps[i] === this.cursor ? "" : ` (${this.x} ${say.exact(s.steps[i])})`));
    this.tip.replaceChildren(el("div", {}, `${this.x} ${say.exact(this.cursor)}`),
                             ...rows.map(({s}, n) => el("div", {}, el("i", {style: `background: ${s.color}`}), lines[n])));
    const flip = x > this.width * 0.6;
    this.tip.style.left = flip ? "" : `${x + 12}px`;
    this.tip.style.right = flip ? `${this.width - x + 12}px` : "";
    this.tip.style.top = "10px";
    if (aloud) this.live.textContent = `${this.x} ${say.exact(this.cursor)}: ${lines.join(", ")}`;
  }
}
