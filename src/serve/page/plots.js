/* plots.js: plots as SVG. A plot reads its values under the pointer and by the arrow keys, zooms by dragging or by + and -,
 * and describes itself in words for those who cannot see it. Plots over time share one range, so zooming one zooms all. */
"use strict";
const Plots = (() => {
  const NS = "http://www.w3.org/2000/svg", H = 250, L = 58, R = 14, T = 14, B = 34;
  let W = 640; /* of the plot that is drawn: as wide as its card, so that type keeps its size */
  const tip = () => document.getElementById("tip");
  const zoom = { time: null, tokens: null, changed: () => {} };

  function el(name, attrs, parent, text) {
    const e = document.createElementNS(NS, name);
    for (const k in attrs) e.setAttribute(k, attrs[k]);
    if (text !== undefined) e.textContent = text;
    if (parent) parent.appendChild(e);
    return e;
  }
  function html(name, cls, parent, text) {
    const e = document.createElement(name);
    if (cls) e.className = cls;
    if (text !== undefined) e.textContent = text;
    if (parent) parent.appendChild(e);
    return e;
  }
  const color = i => `var(--c${i % 8})`;
  const DASHES = ["none", "7 3", "2 3", "9 3 2 3"], dash = i => DASHES[Math.min(3, i >> 3)];

  function count(x) {
    const u = ["", "k", "M", "G", "T"];
    let k = 0;
    while (Math.abs(x) >= 9999.5 && k < 4) x /= 1000, k++;
    return (k && Math.abs(x) < 99.95 ? x.toFixed(1) : Math.round(x).toString()) + (k ? " " + u[k] : "");
  }
  function bytes(x) {
    const u = ["B", "kB", "MB", "GB", "TB", "PB"];
    let k = 0;
    while (Math.abs(x) >= 999.5 && k < 5) x /= 1000, k++;
    return (k && x < 99.95 ? x.toFixed(1) : x.toFixed(0)) + " " + u[k];
  }
  function bits(x) {
    if (x >= 1e9) return (x / 1e9).toFixed(2) + " Gbit/s";
    if (x >= 1e5) return (x / 1e6).toFixed(x < 1e7 ? 1 : 0) + " Mbit/s";
    return (x / 1e3).toFixed(0) + " kbit/s";
  }
  function seconds(s) {
    if (s < 100) return s.toFixed(s < 10 ? 1 : 0) + " s";
    if (s < 6000) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`;
    if (s < 2 * 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s / 60) % 60} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor(s / 3600) % 24} h`;
  }
  const clock = t => new Date(t * 1000).toLocaleTimeString([], { hour12: false });
  function moment(t) {
    const d = new Date(t * 1000), old = Date.now() / 1000 - t > 80000;
    return (old ? d.toLocaleDateString([], { month: "short", day: "numeric" }) + " " : "") + clock(t);
  }
  function step(span, n) {
    const raw = span / n, p = Math.pow(10, Math.floor(Math.log10(raw))), m = raw / p;
    return p * ([1, 2, 5].find(k => m <= k) || 10);
  }
  function timeStep(span, n) {
    for (const s of [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800])
      if (span / s <= n) return s;
    return 604800;
  }
  function fixed(v, s) {
    if (Math.abs(v) < s * 1e-6) v = 0;
    return Math.abs(v) >= 1e4 ? count(v) : v.toFixed(Math.max(0, Math.min(3, -Math.floor(Math.log10(s) + 1e-9))));
  }
  /* The place of the last x that is not above t. */
  function find(xs, t) {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const mid = (low + high + 1) >> 1;
      if (xs[mid] <= t) low = mid; else high = mid - 1;
    }
    return low;
  }
  function at(xs, ys, t) {
    if (!xs.length) return NaN;
    const i = find(xs, t);
    if (i + 1 >= xs.length || xs[i] >= t) return ys[i];
    const w = (t - xs[i]) / (xs[i + 1] - xs[i] || 1);
    return ys[i] + w * (ys[i + 1] - ys[i]);
  }
  /* A silence longer than usual is a gap, not a line. */
  function usualGap(xs) {
    if (xs.length < 4) return Infinity;
    const d = [];
    for (let i = 1; i < xs.length; i += Math.ceil(xs.length / 200)) d.push(xs[i] - xs[i - 1]);
    d.sort((a, b) => a - b);
    return Math.max(12, 8 * d[d.length >> 1]);
  }

  function range(p) {
    let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
    for (const s of p.series) if (s.x.length) { x0 = Math.min(x0, s.x[0]); x1 = Math.max(x1, s.x[s.x.length - 1]); }
    if (p.kind === "time" && p.until) x1 = Math.max(x1, p.until);
    const z = zoom[p.kind];
    if (z) [x0, x1] = z; else if (p.kind === "time" && p.last && x1 - p.last > x0) x0 = x1 - p.last;
    for (const s of p.series)
      for (let i = 0; i < s.x.length; i++) {
        if (s.x[i] < x0 || s.x[i] > x1) continue;
        y0 = Math.min(y0, s.y[i]); y1 = Math.max(y1, s.y[i]);
      }
    if (p.ceiling) for (const c of p.ceiling) y1 = Math.max(y1, c.y <= 4 * y1 ? c.y : y1);
    if (!isFinite(x0)) return null;
    if (!isFinite(y0)) { y0 = 0; y1 = 1; }
    if (x1 <= x0) x1 = x0 + 1;
    if (p.zero) y0 = Math.min(0, y0);
    const room = 0.07 * (y1 - y0 || 1);
    return { x0, x1, y0: p.zero ? y0 : y0 - room, y1: y1 + room };
  }

  function path(s, f, px, py) {
    const gap = f.kind === "time" ? usualGap(s.x) : Infinity;
    let d = "", last = -Infinity, pen = false, column = -1, sum = 0, n = 0, sx = 0;
    const put = () => { if (n) { d += (pen ? "L" : "M") + (sx / n).toFixed(1) + " " + (sum / n).toFixed(1); pen = true; } n = sum = sx = 0; };
    for (let i = Math.max(0, find(s.x, f.x0) - 1); i < s.x.length; i++) {
      if (s.x[i] > f.x1 && i && s.x[i - 1] > f.x1) break;
      if (!isFinite(s.y[i])) continue;
      const x = px(s.x[i]), y = py(s.y[i]);
      if (s.x[i] - last > gap) { put(); pen = false; }
      if (s.steps && pen) { put(); d += "H" + x.toFixed(1); }
      if (Math.floor(x) !== column) { put(); column = Math.floor(x); }
      sx += x; sum += y; n++;
      last = s.x[i];
    }
    put();
    return d;
  }

  function axes(svg, f, px, py, p) {
    const sy = step(f.y1 - f.y0, 5), time = p.kind === "time";
    for (let v = Math.ceil(f.y0 / sy) * sy; v <= f.y1; v += sy) {
      el("line", { class: "grid", x1: L, x2: W - R, y1: py(v), y2: py(v) }, svg);
      el("text", { x: L - 7, y: py(v) + 4, "text-anchor": "end" }, svg, p.tick ? p.tick(v) : fixed(v, sy));
    }
    const sx = time ? timeStep(f.x1 - f.x0, W / 105) : step(f.x1 - f.x0, W / 105);
    const off = time ? new Date().getTimezoneOffset() * 60 : 0;
    for (let v = Math.ceil((f.x0 - off) / sx) * sx + off; v <= f.x1; v += sx)
      el("text", { x: px(v), y: H - B + 16, "text-anchor": "middle" }, svg, time ? tickClock(v, sx) : count(v));
    el("line", { class: "axis", x1: L, x2: W - R, y1: H - B, y2: H - B }, svg);
    el("text", { x: W - R, y: H - 3, "text-anchor": "end" }, svg, p.xname);
  }
  function tickClock(v, s) {
    const d = new Date(v * 1000);
    if (s >= 86400) return d.toLocaleDateString([], { month: "short", day: "numeric" });
    return d.toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit", second: s < 60 ? "2-digit" : undefined });
  }

  function shades(svg, list, f, px, top, bottom) {
    for (const g of list || []) {
      const a = Math.max(g.from, f.x0), b = Math.min(g.to || f.x1, f.x1);
      if (b <= a) continue;
      const r = el("rect", { class: "shade", x: px(a), y: top, width: Math.max(1.5, px(b) - px(a)), height: bottom - top }, svg);
      el("title", {}, r, g.words);
    }
  }

  function showTip(e, title, rows) {
    const t = tip();
    t.replaceChildren();
    html("b", "", t, title);
    for (const [name, value] of rows.slice(0, 14)) {
      const s = html("span", "", t);
      html("span", "", s, name);
      html("span", "", s, value);
    }
    if (rows.length > 14) html("span", "", t, `and ${rows.length - 14} more`);
    t.hidden = false;
    const box = t.getBoundingClientRect();
    t.style.left = Math.max(4, Math.min(innerWidth - box.width - 8, e.x + 16)) + "px";
    t.style.top = Math.max(4, Math.min(innerHeight - box.height - 8, e.y + 14)) + "px";
  }
  const hideTip = () => { tip().hidden = true; };

  /* Reading and zooming, of any plot with an x axis. values(x): rows for the tip. */
  function control(svg, p, f, px, values) {
    const W = +svg.getAttribute("data-width");
    const back = x => f.x0 + (x - L) / (W - L - R) * (f.x1 - f.x0);
    const unit = e => (e.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width * W;
    const bottom = +svg.getAttribute("data-bottom");
    const cursor = el("line", { class: "cursor", y1: T, y2: bottom, x1: -9, x2: -9 }, svg);
    let drag = null, box = null;
    function read(x, where) {
      p.state.x = x;
      cursor.setAttribute("x1", px(x)); cursor.setAttribute("x2", px(x));
      showTip(where, p.kind === "time" ? moment(x) : count(x) + " tokens", values(x));
    }
    svg.onpointermove = e => {
      const u = unit(e);
      if (drag !== null) {
        if (!box) box = el("rect", { class: "zoom", y: T, height: bottom - T }, svg);
        box.setAttribute("x", Math.min(drag, u)); box.setAttribute("width", Math.abs(u - drag));
      }
      if (u < L || u > W - R) return hideTip();
      read(back(u), { x: e.clientX, y: e.clientY });
    };
    svg.onpointerleave = () => { hideTip(); cursor.setAttribute("x1", -9); cursor.setAttribute("x2", -9); p.state.x = null; };
    svg.onpointerdown = e => { if (e.pointerType !== "touch") { drag = unit(e); svg.setPointerCapture(e.pointerId); } };
    svg.onpointerup = e => {
      const u = unit(e);
      if (drag !== null && Math.abs(u - drag) > 8) set(p.kind, back(Math.max(L, Math.min(drag, u))), back(Math.min(W - R, Math.max(drag, u))));
      if (box) box.remove();
      drag = box = null;
    };
    svg.ondblclick = () => set(p.kind, null);
    svg.onkeydown = e => {
      const span = f.x1 - f.x0, x = p.state.x ?? f.x1;
      const move = k => { p.state.x = Math.max(f.x0, Math.min(f.x1, x + k * span / 60)); p.state.keys = true; again(); };
      if (e.key === "ArrowLeft") move(-1);
      else if (e.key === "ArrowRight") move(1);
      else if (e.key === "+" || e.key === "=") set(p.kind, Math.max(f.x0, x - span / 4), Math.min(f.x1, x + span / 4));
      else if (e.key === "-") set(p.kind, f.x0 - span / 2, f.x1 + span / 2);
      else if (e.key === "0" || e.key === "Escape") { p.state.keys = false; hideTip(); set(p.kind, null); }
      else return;
      e.preventDefault();
    };
    svg.onblur = () => { p.state.keys = false; hideTip(); };
    /* What the keys have chosen is read again after the plot was drawn anew. */
    function again() {
      const places = svg.getBoundingClientRect();
      read(p.state.x, { x: places.left + places.width / 2, y: places.bottom - 40 });
    }
    p.state.again = again;
    if (p.state.x != null && !tip().hidden && svg.matches(":hover")) { cursor.setAttribute("x1", px(p.state.x)); cursor.setAttribute("x2", px(p.state.x)); }
  }
  function set(kind, from, to) {
    zoom[kind] = from === null || from === undefined ? null : [from, to];
    document.getElementById("reset").hidden = !zoom.time && !zoom.tokens;
    zoom.changed(kind);
  }

  const states = new WeakMap();
  function frame(box, p, height) {
    if (!states.has(box)) states.set(box, { x: null });
    p.state = states.get(box);
    const focused = box.contains(document.activeElement) && document.activeElement.tagName.toLowerCase() === "svg";
    const style = getComputedStyle(box), old = box.querySelector("svg");
    if (old) old.onblur = null; /* it goes, the focus stays */
    W = Math.max(280, Math.round(box.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)));
    box.replaceChildren();
    html("h2", "", box, p.title);
    html("p", "says", box, p.says);
    const svg = el("svg", { viewBox: `0 0 ${W} ${height}`, role: "img", tabindex: 0, "data-width": W });
    return { svg, focused };
  }
  function refocus(svg, p, focused) {
    if (!focused) return;
    svg.focus({ preventScroll: true });
    if (p.state.keys && p.state.x != null) p.state.again();
  }
  function legend(box, list) {
    if (list.length < 2) return;
    const d = html("div", "legend", box);
    for (const s of list) {
      const e = html("span", "", d);
      html("i", "", e).style.background = s.color;
      e.append(s.name);
    }
  }

  function lines(box, p) {
    const f = range(p), { svg, focused } = frame(box, p, H);
    if (!f) { html("p", "none", box, p.none || "nothing measured yet"); return; }
    f.kind = p.kind;
    const W = +svg.getAttribute("data-width");
    const px = x => L + (x - f.x0) / (f.x1 - f.x0) * (W - L - R), py = y => H - B - (y - f.y0) / (f.y1 - f.y0) * (H - T - B);
    legend(box, p.series.filter(s => s.name));
    svg.setAttribute("data-bottom", H - B);
    shades(svg, p.shade, f, px, T, H - B);
    axes(svg, f, px, py, p);
    let lastMark = -9;
    for (const m of p.marks || []) {
      if (m < f.x0 || m > f.x1 || px(m) - lastMark < 3) continue;
      lastMark = px(m);
      el("line", { class: "mark", x1: lastMark, x2: lastMark, y1: H - B, y2: H - B - 6 }, svg);
    }
    const id = "clip" + Math.random().toString(36).slice(2), clip = el("clipPath", { id }, svg);
    el("rect", { x: L, y: T - 8, width: W - L - R, height: H - T - B + 8 }, clip);
    const g = el("g", { "clip-path": `url(#${id})` }, svg);
    for (const c of p.ceiling || []) {
      if (c.y > f.y1) continue;
      el("title", {}, el("line", { class: "faint", stroke: c.color, x1: L, x2: W - R, y1: py(c.y), y2: py(c.y) }, g), c.words);
    }
    for (const s of p.series)
      el("path", { class: "line", stroke: s.color, "stroke-dasharray": s.dash || "none", d: path(s, f, px, py) }, g);
    for (const s of p.series)
      for (let i = 0; s.dots && i < s.dots.x.length; i++)
        if (s.dots.x[i] >= f.x0 && s.dots.x[i] <= f.x1)
          el("circle", { class: "dot", r: 3.6, cx: px(s.dots.x[i]), cy: py(s.dots.y[i]), fill: s.color }, g);
    const say = p.value || (v => v.toPrecision(4));
    const values = x => p.series.filter(s => s.x.length && x >= s.x[0] - 1 && x <= s.x[s.x.length - 1] + usualGap(s.x))
      .map(s => [s.name, say(at(s.x, s.y, x))]).concat((p.shade || []).filter(g0 => g0.from <= x && x <= (g0.to || Infinity)).map(g0 => [g0.words, ""]));
    const words = p.series.slice(0, 8).filter(s => s.y.length).map(s => `${s.name} ${say(s.y[s.y.length - 1])}`).join(", ");
    svg.setAttribute("aria-label", `${p.title}. Now: ${words}. Arrow keys read values, plus and minus zoom.`);
    box.appendChild(svg);
    control(svg, p, f, px, values);
    refocus(svg, p, focused);
  }

  /* Rows over time: fn(group, row, y, px, f) draws each. */
  function rows(box, p) {
    const f = range(p), rh = p.rowHeight, height = p.rows.length * rh + T + B, { svg, focused } = frame(box, p, height);
    if (!f) { html("p", "none", box, "nothing measured yet"); return; }
    const W = +svg.getAttribute("data-width");
    const px = x => L + 42 + (x - f.x0) / (f.x1 - f.x0) * (W - L - 42 - R);
    if (p.legend) legend(box, p.legend);
    svg.setAttribute("data-bottom", height - B);
    p.rows.forEach((r, i) => {
      const y = T + i * rh;
      el("text", { class: "name", x: L + 34, y: y + rh / 2 + 4, "text-anchor": "end" }, svg, r.name.length > 12 ? r.name.slice(0, 11) + "…" : r.name);
      p.draw(svg, r, y, px, f);
    });
    shades(svg, p.shade, f, px, T, height - B);
    const sx = timeStep(f.x1 - f.x0, W / 105), off = new Date().getTimezoneOffset() * 60;
    for (let v = Math.ceil((f.x0 - off) / sx) * sx + off; v <= f.x1; v += sx)
      el("text", { x: px(v), y: height - B + 17, "text-anchor": "middle" }, svg, tickClock(v, sx));
    svg.setAttribute("aria-label", p.words());
    box.appendChild(svg);
    const inner = x => f.x0 + (x - L - 42) / (W - L - 42 - R) * (f.x1 - f.x0);
    svg.onpointermove = e => {
      const b = svg.getBoundingClientRect(), u = (e.clientX - b.left) / b.width * W, v = (e.clientY - b.top) / b.height * height;
      const r = p.rows[Math.floor((v - T) / rh)];
      if (!r || u < L + 42) return hideTip();
      const list = p.read(r, inner(u), 6 / (W - L - 42 - R) * (f.x1 - f.x0));
      if (list.length) showTip({ x: e.clientX, y: e.clientY }, `${r.name}, ${moment(inner(u))}`, list); else hideTip();
    };
    svg.onpointerleave = hideTip;
    const st = p.state, span = f.x1 - f.x0;
    svg.onblur = () => { st.keys = false; hideTip(); };
    st.again = () => {
      const places = svg.getBoundingClientRect(), r = p.rows[Math.min(st.row || 0, p.rows.length - 1)], list = p.read(r, st.x, span / 60);
      showTip({ x: places.left + places.width / 2, y: places.top + (T + ((st.row || 0) + 1) * rh) / height * places.height }, `${r.name}, ${moment(st.x)}`, list.length ? list : [["nothing", ""]]);
    };
    svg.onkeydown = e => {
      const x = st.x ?? f.x1;
      const read = (x1, row) => {
        st.x = Math.max(f.x0, Math.min(f.x1, x1)); st.row = Math.max(0, Math.min(p.rows.length - 1, row));
        st.keys = true;
        st.again();
      };
      if (e.key === "ArrowLeft") read(x - span / 60, st.row || 0);
      else if (e.key === "ArrowRight") read(x + span / 60, st.row || 0);
      else if (e.key === "ArrowUp") read(x, (st.row || 0) - 1);
      else if (e.key === "ArrowDown") read(x, st.row === undefined ? 0 : st.row + 1);
      else if (e.key === "+" || e.key === "=") set(p.kind, Math.max(f.x0, x - span / 4), Math.min(f.x1, x + span / 4));
      else if (e.key === "-") set(p.kind, f.x0 - span / 2, f.x1 + span / 2);
      else if (e.key === "0" || e.key === "Escape") { p.state.keys = false; hideTip(); set(p.kind, null); }
      else return;
      e.preventDefault();
    };
    refocus(svg, p, focused);
  }

  return { el, html, color, dash, count, bytes, bits, seconds, clock, moment, find, at, lines, rows, zoom, set, showTip, hideTip };
})();
