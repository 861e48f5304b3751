/* watch.js: the live page. The whole status comes once as an event, then what changes in it; the past comes once from the
 * history and grows by what the events say. Nothing is asked of another host. */
"use strict";
const P = Plots, $ = id => document.getElementById(id);
let S = null;                 /* the status */
let facts = {}, events = [], nextEvent = 0;
const past = new Map();       /* site -> value -> {x: unix seconds, y} */
const cuts = new Map();       /* line or site -> {from, to, words} that is open */
let shade = [];               /* times in which a line was down */
let lastRender = 0, wanted = false, range = 0, healthBefore = "";

/* ---- the theme ---- */
function setTheme(name) { document.documentElement.dataset.theme = name; }
const asked = new URLSearchParams(location.search).get("theme");
let saved = null;
try { saved = localStorage.getItem("theme"); } catch { /* no storage: the system decides */ }
const system = matchMedia("(prefers-color-scheme: dark)");
setTheme(asked || saved || (system.matches ? "dark" : "light"));
system.addEventListener("change", () => { if (!saved) setTheme(system.matches ? "dark" : "light"); });
$("theme").onclick = () => {
  saved = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  setTheme(saved);
  try { localStorage.setItem("theme", saved); } catch { /* it holds until the page is closed */ }
};

/* ---- the past ---- */
const NAMES = { loss: "loss", tokens: "trained_tokens", rate: "tokens_per_second", "wan/goodput_out": "link_out", "wan/goodput_in": "link_in", "wan/records": "record", "wan/interval": "interval", "time/compute": "compute_s", "time/encode": "merge_s", "time/wait": "wait_s", "time/recover": "recover_s" };
function series(site, name) {
  if (!past.has(site)) past.set(site, new Map());
  const m = past.get(site);
  if (!m.has(name)) m.set(name, { x: [], y: [] });
  return m.get(name);
}
async function load(url) {
  const r = await fetch(url, { credentials: "same-origin" });
  if (!r.ok) throw new Error(`${url}: ${r.status}`);
  return r.json();
}
/* Counters of the status begin anew with a process; those of the database go on. The status is shifted to meet them. */
const offsets = new Map();
async function loadHistory() {
  const points = S && S.sites.length > 16 ? 120 : 400;
  const h = await load(`/api/v1/history?points=${points}`);
  for (const site in h.sites)
    for (const name in h.sites[site]) past.has(site) && past.get(site).delete(name), Object.assign(series(site, name), { x: h.sites[site][name].t, y: h.sites[site][name].v });
  offsets.clear();
  want();
}
let loading = false;
async function loadEvents() {
  if (loading) return;
  loading = true;
  const l = await load(`/api/v1/log?after=${nextEvent}`).finally(() => { loading = false; });
  nextEvent = l.next;
  events = events.concat(l.events).sort((a, b) => a.time - b.time).slice(-2000);
  findShades();
  renderLog();
  want();
}
function sample(now) {
  for (const s of S.sites) {
    if (s.health === "unknown" || s.health === "late" || s.health === "gone" || s.health === "halted" || s.health === "done") continue;
    for (const name in NAMES) {
      let v = s[NAMES[name]];
      if (name === "loss" && !(v > 0)) continue;
      const p = series(s.name, name), key = s.name + "/" + name;
      if (name.startsWith("time/")) {
        if (!offsets.has(key)) offsets.set(key, p.y.length ? Math.max(0, p.y[p.y.length - 1] - v) : 0);
        v += offsets.get(key);
      }
      const t = now - Math.min(s.silent, 5);
      if (p.x.length && t - p.x[p.x.length - 1] < 0.8) continue;
      p.x.push(t); p.y.push(v);
      if (p.x.length > 6000) { p.x = p.x.filter((_, i) => i % 2 || i > 5000); p.y = p.y.filter((_, i) => i % 2 || i > 5000); }
    }
  }
}

/* Cuts of the past are in the log: from a lost link to the next that came up. */
function findShades() {
  const open = new Map();
  shade = [];
  for (const e of events) {
    if ((e.kind === "link down" || e.kind === "late") && !open.has(e.site)) open.set(e.site, e.kind === "late" ? e.time - 2 : e.time);
    if ((e.kind === "link up" || e.kind === "answers") && open.has(e.site)) {
      shade.push({ from: open.get(e.site), to: e.time, words: `${e.site}: a line was down for ${P.seconds(e.time - open.get(e.site))}` });
      open.delete(e.site);
    }
  }
}
/* Both ends of a line tell of the same cut: times that overlap are one. */
function shades() {
  const all = shade.concat([...cuts.values()]).sort((a, b) => a.from - b.from), out = [];
  for (const s of all) {
    const last = out[out.length - 1];
    if (!last || (last.to && s.from > last.to + 1)) { out.push({ ...s }); continue; }
    last.to = last.to && s.to ? Math.max(last.to, s.to) : 0;
    if (!last.words.includes(s.words) && last.words.length < 160) last.words += "; " + s.words;
  }
  return out;
}

/* ---- events ---- */
function merge(into, change) {
  for (const k in change) {
    const v = change[k];
    if (v && typeof v === "object" && !Array.isArray(v) && into[k] && typeof into[k] === "object") merge(into[k], v);
    else into[k] = v;
  }
}
function news() {
  const now = Date.now() / 1000;
  sample(now);
  for (const l of S.lines || []) {
    const key = [l.from, l.to].sort().join(" – "), other = S.sites.find(s => s.name === l.to), me = S.sites.find(s => s.name === l.from);
    const dead = [other, me].some(s => !s || s.health === "done" || s.health === "unknown");
    if (!l.up && !dead && !cuts.has(key)) cuts.set(key, { from: now - 1, to: 0, words: `${key}: the line is down` });
    if (l.up && cuts.has(key) && (S.lines.find(k => k.from === l.to && k.to === l.from) || l).up) {
      const c = cuts.get(key);
      c.to = now;
      c.words = `${key}: the line was down for ${P.seconds(now - c.from)}`;
      shade.push(c);
      cuts.delete(key);
    }
  }
  if (S.events !== nextEvent) loadEvents().catch(() => {});
  const health = S.sites.map(s => s.name + s.health).join() + (S.lines || []).map(l => l.up).join();
  if (health !== healthBefore) lastRender = 0; /* bad news at once */
  healthBefore = health;
  want();
}
function connect() {
  const source = new EventSource("/api/v1/events");
  source.addEventListener("status", e => {
    const first = !S;
    S = JSON.parse(e.data);
    live("live", "good");
    if (first) Promise.all([loadHistory(), loadEvents(), loadFacts()]).catch(e2 => live(String(e2.message), "bad"));
    news();
  });
  source.addEventListener("change", e => { if (S) { merge(S, JSON.parse(e.data)); live("live", "good"); news(); } });
  source.onerror = () => {
    live("reconnecting", "late");
    /* A server that was started again wants the token once more. */
    if (source.readyState === EventSource.CLOSED) fetch("/api/v1/facts").then(r => { if (r.status === 401) location.reload(); else setTimeout(connect, 3000); }).catch(() => setTimeout(connect, 3000));
  };
  source.onopen = () => live("live", "good");
}
function live(text, kind) {
  const e = $("live");
  if (e.textContent !== text) e.textContent = text;
  e.className = "pill " + kind;
}
/* Notes of the run change now and then: sample outputs with every evaluation. */
const loadFacts = () => load("/api/v1/facts").then(f => { facts = f; renderFacts(); });
setInterval(() => { if (!document.hidden && S) loadFacts().catch(() => {}); }, 30000);
document.addEventListener("visibilitychange", () => { if (!document.hidden && S) { loadHistory().catch(() => {}); } });
setInterval(() => { if (!document.hidden && S) loadHistory().catch(() => {}); }, 120000);

/* ---- drawing ---- */
function want() {
  if (wanted) return;
  wanted = true;
  const wait = Math.max(0, 900 - (performance.now() - lastRender));
  setTimeout(() => { wanted = false; lastRender = performance.now(); if (S && !document.hidden) render(); }, lastRender ? wait : 0);
}
const site = name => S.sites.findIndex(s => s.name === name);
const word = { good: "✓", waiting: "…", late: "?", gone: "✕", halted: "!", done: "■", unknown: "·" };

function untilEnd(r) {
  if (r.ended) return "ended";
  return r.seconds_left >= 0 ? P.seconds(r.seconds_left) : "–";
}
function rootWords(r) {
  if (!r.roots_agree) return "state roots differ!";
  return r.roots > 1 ? "state roots agree" : "";
}
function numbers() {
  const r = S.run, list = [
    ["loss", r.loss > 0 ? r.loss.toFixed(4) : "–", S.self ? `of ${S.self}` : "mean of the sites"],
    ["tokens of all sites", P.count(r.tokens), r.target ? `of ${P.count(r.target)}` : ""],
    ["tokens a second", P.count(r.tokens_per_second), ""],
    ["record", r.record, rootWords(r)],
    ["until the end", untilEnd(r), !r.ended && r.seconds_left > 0 ? "about " + P.moment(Date.now() / 1000 + r.seconds_left) : ""],
    ["sites", `${S.sites.filter(s => s.health === "good" || s.health === "waiting" || s.health === "done").length} of ${S.sites.length}`, "well"],
  ];
  const box = $("numbers");
  if (box.children.length !== list.length) { box.replaceChildren(); for (const _ of list) { const d = P.html("div", "num", box); P.html("span", "", d); P.html("b", "", d); P.html("small", "", d); } }
  list.forEach(([name, value, more], i) => { const [a, b, c] = box.children[i].children; a.textContent = name; b.textContent = value; c.textContent = more; });
  const done = Math.max(0, r.progress) * 100;
  $("progress").setAttribute("aria-valuenow", done.toFixed(0));
  $("progress").firstElementChild.style.width = done + "%";
  $("job").textContent = S.job || "run";
  $("about").textContent = `${S.sites.length} site${S.sites.length === 1 ? "" : "s"}, strategy ${S.strategy || "alone"}${S.self ? ", seen from " + S.self : ""}`;
  document.title = `${S.job || "run"}${r.progress > 0 ? " " + done.toFixed(0) + " %" : ""}`;
}
function trouble() {
  const list = [];
  for (const s of S.sites) {
    if (s.health === "gone") list.push(["gone", `${s.name} is gone: its process has ended, or nobody reaches it`]);
    if (s.health === "halted") list.push(["halted", `${s.name} has halted: ${s.note}`]);
    if (s.health === "late") list.push(["late", `${s.name}: ${s.shown}`]);
    if (s.nonfinite > 0) list.push(["gone", `${s.name}: the loss of ${s.nonfinite} steps was not finite`]);
    if (s.disk_full) list.push(["gone", `${s.name}: the disk is full; commits wait for room`]);
  }
  for (const s of S.sites) {
    if (s.root_differs) list.push(["gone", `${s.name} ${s.here ? "has" : "says"} another state root after record ${s.root_record}`]);
    if (s.privacy && s.privacy.epsilon_limit > 0 && s.privacy.epsilon_spent >= 0.9 * s.privacy.epsilon_limit) list.push(["late", `${s.name} has spent epsilon ${s.privacy.epsilon_spent} of its privacy budget ${s.privacy.epsilon_limit}`]);
  }
  const text = JSON.stringify(list), box = $("trouble");
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  box.replaceChildren();
  for (const [kind, t] of list.slice(0, 6)) P.html("p", kind, box, t);
}
function table() {
  const body = $("table").tBodies[0];
  while (body.rows.length > S.sites.length) body.deleteRow(-1);
  S.sites.forEach((s, i) => {
    let tr = body.rows[i];
    if (!tr) {
      tr = body.insertRow();
      const th = P.html("th", "", tr);
      th.scope = "row";
      P.html("i", "", th); P.html("span", "", th);
      ["state", "on", "step", "loss", "tokens/s", "sends", "record"].forEach(n => { P.html("td", "", tr).dataset.name = n; });
      P.html("span", "pill", tr.cells[1]);
    }
    const c = tr.cells, pill = c[1].firstElementChild;
    c[0].firstElementChild.style.background = P.color(i);
    c[0].lastElementChild.textContent = s.name + (s.leader ? " ★" : "");
    c[0].title = s.leader ? "leads the rounds" : "";
    pill.className = "pill " + s.health; pill.textContent = `${word[s.health]} ${s.shown}`;
    const put = (k, t) => { if (c[k].textContent !== t) c[k].textContent = t; };
    put(2, (s.hardware || s.role || "–") + (s.ranks > 1 ? ` × ${s.ranks}` : ""));
    put(3, s.step ? String(s.step) : "–");
    put(4, s.loss > 0 ? s.loss.toFixed(4) : "–");
    put(5, P.count(s.tokens_per_second));
    put(6, P.bits(s.link_out));
    put(7, String(s.record || "–"));
  });
  const w = $("waits"), list = S.sites.filter(s => s.waiting_s > 0 && s.note && s.health !== "done");
  w.replaceChildren();
  for (const s of list) P.html("li", "", w, `${s.name}, for ${P.seconds(s.waiting_s)}: ${s.note}`);
}

/* One entry a pair of sites, from what either end has measured. */
function pairs() {
  const all = new Map();
  for (const l of S.lines || []) {
    const a = site(l.from), b = site(l.to);
    if (a < 0 || b < 0) continue;
    const key = Math.min(a, b) + " " + Math.max(a, b), p = all.get(key) || { a: Math.min(a, b), b: Math.max(a, b), up: true, relayed: false, rtt: 0, cap: [0, 0], rate: [-1, -1], loss: 0, silent: 0 };
    const way = a < b ? 0 : 1;
    p.up = p.up && l.up;
    p.relayed = p.relayed || l.relayed;
    p.rtt = l.rtt_ms || p.rtt;
    p.loss = Math.max(p.loss, l.loss);
    p.silent = Math.max(p.silent, l.silent_s);
    p.cap[way] = l.goodput_bps || p.cap[way];
    if (!p.cap[1 - way]) p.cap[1 - way] = l.goodput_in_bps;
    if (l.out_bps >= 0) p.rate[way] = l.out_bps;
    if (p.rate[1 - way] < 0) p.rate[1 - way] = l.in_bps;
    all.set(key, p);
  }
  return [...all.values()];
}
function lineWords(p) {
  const a = S.sites[p.a].name, b = S.sites[p.b].name, way = (from, to, k) => `${from} → ${to} ${P.bits(Math.max(0, p.rate[k]))}${p.cap[k] > 0 ? " of " + P.bits(p.cap[k]) : ""}`;
  if (!p.up) return `${a} – ${b}: the line is down`;
  return `${way(a, b, 0)}, ${way(b, a, 1)}; round trip ${p.rtt.toFixed(0)} ms, loss ${(100 * p.loss).toFixed(2)} %${p.relayed ? "; through a relay host" : ""}${p.silent > 2 ? `; no answer for ${p.silent.toFixed(0)} s` : ""}`;
}
/* One of four values, by the number of sites: up to 2, 8, 24, more. */
const size = (n, ...values) => values[[2, 8, 24].filter(k => n > k).length];
function edgeState(p, ended) {
  if (!p.up) return ended ? "" : "down";
  return p.silent > 2 ? "silent" : "";
}
function edgeTag(p, ended) {
  if (!p.up) return ended ? "ended" : "cut";
  return `${P.bits(Math.max(0, p.rate[0]) + Math.max(0, p.rate[1]))}${p.cap[0] > 0 ? " of " + P.bits(p.cap[0]) : ""}${p.relayed ? ", relayed" : ""}`;
}
/* Every line in words, while the table is open. */
function lines() {
  const body = $("lines").querySelector("tbody");
  if (!$("lines").open) return;
  body.replaceChildren();
  for (const l of S.lines || []) {
    const tr = body.insertRow(), th = P.html("th", "", tr, `${l.from} → ${l.to}`);
    th.scope = "row";
    for (const t of [l.up ? (l.relayed ? "up, through a relay host" : "up") : "down", P.bits(Math.max(0, l.out_bps)), l.goodput_bps > 0 ? P.bits(l.goodput_bps) : "not measured", `${l.rtt_ms.toFixed(0)} ms`, `${(100 * l.loss).toFixed(2)} %`]) P.html("td", "", tr, t);
  }
}
function map() {
  const n = S.sites.length, big = n <= 8, w = Math.max(300, $("map").clientWidth), h = size(n, 230, 400, 400, 520), r = size(n, 25, 25, 15, 9);
  const box = $("map"), svg = P.el("svg", { viewBox: `0 0 ${w} ${h}`, role: "img" });
  const at = i => {
    if (n === 1) return [w / 2, h / 2];
    if (n === 2) return [i ? w - w / 5 : w / 5, h / 2 - 14];
    const a = -Math.PI / 2 + 2 * Math.PI * i / n;
    return [w / 2 + (w / 2 - (big ? Math.min(90, w / 5) : Math.min(62, w / 8))) * Math.cos(a), h / 2 + (h / 2 - (big ? 72 : 40)) * Math.sin(a)];
  };
  let list = pairs();
  if (n > 12) list = list.filter(p => !p.up || p.silent > 2 || S.sites[p.a].leader || S.sites[p.b].leader || [p.a, p.b].includes(site(S.self)));
  for (const p of list) {
    const [x1, y1] = at(p.a), [x2, y2] = at(p.b), dx = x2 - x1, dy = y2 - y1, d = Math.hypot(dx, dy) || 1, ux = dx / d, uy = dy / d;
    const g = P.el("g", { class: "pair" }, svg), gone = [p.a, p.b].some(i => ["gone", "unknown"].includes(S.sites[i].health));
    const ended = [p.a, p.b].some(i => S.sites[i].health === "done");
    const state = edgeState(p, ended);
    const base = P.el("path", { class: `edge ${state}`, d: `M${x1 + ux * r} ${y1 + uy * r}L${x2 - ux * r} ${y2 - uy * r}`, "stroke-width": state === "down" ? 2.5 : 1.2 }, g);
    P.el("title", {}, base, lineWords(p));
    if (p.up && !gone)
      for (const k of [0, 1]) {
        if (!(p.rate[k] > 2000)) continue;
        const side = k ? -1 : 1, ox = -uy * 4.5 * side, oy = ux * 4.5 * side, from = k ? [x2 - ux * r, y2 - uy * r] : [x1 + ux * r, y1 + uy * r], to = k ? [x1 + ux * (r + 3), y1 + uy * (r + 3)] : [x2 - ux * (r + 3), y2 - uy * (r + 3)];
        const use = p.cap[k] > 0 ? Math.min(1, p.rate[k] / p.cap[k]) : 0.2;
        P.el("path", { class: "flow", "stroke-width": (big ? 2 : 1.2) + 4 * use, d: `M${from[0] + ox} ${from[1] + oy}L${to[0] + ox} ${to[1] + oy}` }, g);
      }
    if (n <= 5) {
      const t = n > 3 && (p.a + p.b) % 2 === 0 ? 0.36 : 0.5, mx = x1 + dx * t, my = y1 + dy * t, text = P.el("text", { class: "tag", x: mx, y: my - 2 }, g);
      P.el("tspan", { x: mx, dy: -3 }, text, edgeTag(p, ended));
      if (p.up) P.el("tspan", { x: mx, dy: 14 }, text, `${p.rtt.toFixed(0)} ms${p.loss > 0.0005 ? ", loss " + (100 * p.loss).toFixed(1) + " %" : ""}`);
    }
  }
  S.sites.forEach((s, i) => {
    const [x, y] = at(i), g = P.el("g", { class: `node ${s.health}`, "data-site": s.name }, svg);
    P.el("title", {}, P.el("circle", { class: "ring", cx: x, cy: y, r }, g), `${s.name}: ${s.shown}${s.waiting_for ? ", waits for " + s.waiting_for : ""}`);
    if (n <= 24) P.el("text", { class: "sign", x, y: y + 6 }, g, word[s.health]);
    const above = n > 2 && y < h / 2 - 60, first = above ? y - r - (big ? 22 : 7) : y + r + 15;
    if (n <= 36) P.el("text", { class: "name", x, y: first }, g, s.name);
    if (big) {
      P.el("text", { x, y: first + 14 }, g, s.health === "good" ? `${P.count(s.tokens_per_second)} tok/s` : s.shown);
      if (s.waiting_for) P.el("text", { x, y: above ? first - 15 : first + 28 }, g, `waits for ${s.waiting_for}`.slice(0, 40));
    }
  });
  svg.setAttribute("aria-label", `Map: ${S.sites.map(s => `${s.name} ${s.shown}`).slice(0, 16).join(", ")}. ` + list.slice(0, 6).map(lineWords).join(". "));
  box.replaceChildren(svg);
  const down = list.filter(p => !p.up), shown = n <= 2 ? list : down.slice(0, 4);
  $("line-words").textContent = shown.map(lineWords).join(" · ");
}

const one = s => past.get(s.name) || new Map();
const empty = { x: [], y: [] };
function smooth(p) {
  const keep = Math.max(1, p.y.length / 60), y = [];
  let m = 0;
  p.y.forEach((v, i) => { m = i ? m + Math.max(1 / keep, 1 / (i + 1)) * (v - m) : v; y.push(m); });
  return { x: p.x, y };
}
function toTokens(p, tokens) { return { x: p.x.map(t => P.at(tokens.x, tokens.y, t)), y: p.y }; }
function plots() {
  const until = S.run.ended ? 0 : Date.now() / 1000, base = { kind: "time", xname: "time", until, last: range, shade: shades() };
  const of = (name, f) => S.sites.map((s, i) => ({ name: s.name, color: P.color(i), dash: P.dash(i), ...(f || (x => x))(one(s).get(name) || empty, s) })).filter(s => s.x.length);
  const records = one(S.sites.find(s => one(s).has("wan/records")) || S.sites[0]).get("wan/records") || empty;
  const marks = records.x.filter((_, i) => i && records.y[i] > records.y[i - 1]);
  const loss = of("loss", (p, s) => ({ ...smooth(p), dots: one(s).get("valid/loss") }));
  const tok = s => one(s).get("tokens") || empty;
  P.lines($("loss-tokens"), { kind: "tokens", title: "Loss over tokens", says: "each site's own batches, smoothed; dots: held-out text; ticks below: records", xname: "tokens of the site", none: "no loss measured yet",
    marks: tok(S.sites[0]).x.length ? marks.map(t => P.at(tok(S.sites[0]).x, tok(S.sites[0]).y, t)) : [],
    series: S.sites.map((s, i) => { const p = one(s).get("loss") || empty, v = one(s).get("valid/loss"); return tok(s).x.length ? { name: s.name, color: P.color(i), dash: P.dash(i), ...toTokens(smooth(p), tok(s)), dots: v && toTokens(v, tok(s)) } : { name: s.name, x: [], y: [] }; }).filter(s => s.x.length) });
  P.lines($("loss-time"), { ...base, title: "Loss over time", says: "the same over the clock; shaded: a line was down", series: loss, marks, none: "no loss measured yet" });
  P.lines($("speed"), { ...base, title: "Speed", says: "tokens a second of each site", zero: true, series: of("rate"), value: v => P.count(v) + " tokens/s", tick: P.count });
  const ceiling = [];
  S.sites.forEach((s, i) => {
    const out = (S.lines || []).filter(l => l.from === s.name && l.up && l.goodput_bps > 0).map(l => l.goodput_bps);
    if (out.length && S.sites.length <= 8) ceiling.push({ y: Math.min(...out), color: P.color(i), words: `${s.name}: its slowest line gives ${P.bits(Math.min(...out))}` });
  });
  P.lines($("link"), { ...base, title: "Link use", says: "bits that each site sends; dashed: what its slowest line gives", zero: true, series: of("wan/goodput_out"), ceiling, value: P.bits, tick: v => P.bits(v).replace("/s", "") });
  ribbon(base);
  timeline(base);
}
const USES = ["compute", "encode", "wait", "recover"];
function shareAt(s, a, b) {
  const d = USES.map(u => { const p = one(s).get("time/" + u); return p && p.x.length && p.x[0] <= b && p.x[p.x.length - 1] >= a ? Math.max(0, P.at(p.x, p.y, b) - P.at(p.x, p.y, a)) : 0; });
  const sum = d.reduce((x, y) => x + y, 0);
  return sum > 0.05 * (b - a) ? d.map(x => x / sum) : null;
}
function ribbon(base) {
  P.rows($("ribbon"), { ...base, title: "Where every second goes", says: "of each site's training loop; encoding and decoding run beside it", rowHeight: S.sites.length > 16 ? 15 : 28,
    legend: USES.map((u, k) => ({ name: u === "encode" ? "encode and merge" : u, color: `var(--t${k})` })), rows: S.sites, series: S.sites.map(s => one(s).get("time/compute") || empty),
    draw: (svg, s, y, px, f) => {
      const bins = 140, h = S.sites.length > 16 ? 11 : 20, d = ["", "", "", ""];
      for (let k = 0; k < bins; k++) {
        const a = f.x0 + (f.x1 - f.x0) * k / bins, b = f.x0 + (f.x1 - f.x0) * (k + 1) / bins, v = shareAt(s, a, b);
        if (!v) continue;
        let top = y + 4;
        v.forEach((share, j) => { if (share > 0.004) { d[j] += `M${px(a).toFixed(1)} ${top.toFixed(1)}H${(px(b) + .3).toFixed(1)}v${(share * h).toFixed(1)}H${px(a).toFixed(1)}Z`; top += share * h; } });
      }
      d.forEach((p, j) => { if (p) P.el("path", { class: "k" + j, d: p }, svg); });
    },
    read: (s, x, w) => { const v = shareAt(s, x - Math.max(w, 2), x + Math.max(w, 2)); return v ? v.map((share, j) => [USES[j], (100 * share).toFixed(1) + " %"]) : []; },
    words: () => "Time use. " + S.sites.slice(0, 16).map(s => `${s.name}: compute ${s.share_compute.toFixed(0)} %, encode ${s.share_encode.toFixed(0)} %, wait ${s.share_wait.toFixed(0)} %, recover ${s.share_recover.toFixed(0)} %`).join("; ") });
}
function timeline(base) {
  const rows = S.sites.map(s => ({ name: s.name, s, list: events.filter(e => e.site === s.name) })).filter(r => r.list.length || S.sites.length <= 8);
  P.rows($("timeline"), { ...base, title: "Timeline", says: "green: began, came back, admitted; red: lost, halted, left out, named, removed; amber: waited, late, missed a round, scaled; grey: leader, codec and other changes", rowHeight: 26, rows, series: S.sites.map(s => one(s).get("time/compute") || empty),
    draw: (svg, r, y, px, f) => {
      const x = (one(r.s).get("time/compute") || empty).x, mid = y + 13;
      let from = null;
      for (let i = 0; i < x.length; i++) {
        if (x[i] < f.x0 || x[i] > f.x1) continue;
        if (from === null) from = x[i];
        if (i + 1 === x.length || x[i + 1] - x[i] > Math.max(15, (f.x1 - f.x0) / 60) || x[i + 1] > f.x1) { P.el("line", { class: "rail", x1: px(from), x2: Math.max(px(from) + 1, px(x[i])), y1: mid, y2: mid }, svg); from = null; }
      }
      for (const e of r.list) if (e.time >= f.x0 && e.time <= f.x1) P.el("title", {}, P.el(e.mood === "bad" ? "rect" : "circle", e.mood === "bad" ? { class: "ev bad", x: px(e.time) - 4.5, y: mid - 4.5, width: 9, height: 9 } : { class: "ev " + e.mood, cx: px(e.time), cy: mid, r: 5 }, svg), `${e.kind}: ${e.text}`);
    },
    read: (r, x, w) => r.list.filter(e => Math.abs(e.time - x) <= w).slice(-6).map(e => [e.kind + ": " + e.text, ""]),
    words: () => `Timeline of ${events.length} events; the list below has them as text.` });
}
function details() {
  const pace = $("pace"), seen = new Set();
  pace.replaceChildren();
  for (const s of S.sites) {
    if (!s.pace && !s.reason) continue;
    P.html("dt", "", pace, `${s.name}: ${s.pace || s.rung}`);
    P.html("dd", "", pace, seen.has(s.reason) ? "for the same reason" : s.reason || "as the job says");
    seen.add(s.reason);
  }
  if (!pace.children.length) P.html("dd", "", pace, "nothing is sent to other sites");
  const b = $("bytes"), r = S.run, rows = [["sent by all sites", P.bytes(r.sent)]];
  if (r.fp32 > 0) rows.push(["fp32 gradients at every step would be", P.bytes(r.fp32)]);
  if (r.fp32 > 0 && r.sent > 0) rows.push(["less by a factor of", P.count(r.fp32 / r.sent)]);
  if (facts.egress > 0) rows.push([`egress at ${facts.egress} a GB`, (r.sent / 1e9 * facts.egress).toFixed(2)]);
  if (facts.egress > 0 && r.fp32 > 0) rows.push(["the same for fp32 gradients", P.count(r.fp32 / 1e9 * facts.egress)]);
  b.replaceChildren();
  for (const [k, v] of rows) { P.html("dt", "", b, k); P.html("dd", "", b, v); }
  const roots = $("roots"), newest = S.sites.reduce((m, s) => s.root_record > m.root_record ? s : m, S.sites[0]);
  roots.replaceChildren();
  if (r.roots || !r.roots_agree) {
    P.html("span", "pill " + (r.roots_agree ? "good" : "bad"), roots, r.roots_agree ? `✓ state roots of ${r.roots} sites agree` : "✕ state roots differ");
    P.html("p", "says", roots, `after record ${newest.root_record}: `).append(P.html("code", "", null, newest.root.slice(0, 16) + "…"));
  }
  for (const s of S.sites) if (s.root_differs && !s.here) P.html("p", "says", roots, `${s.name} says another root: ${s.root.slice(0, 16)}… (its word alone)`);
  const pr = $("privacy");
  pr.replaceChildren();
  for (const s of S.sites) {
    if (!s.privacy) continue;
    P.html("dt", "", pr, `privacy of ${s.name}`);
    P.html("dd", "", pr, `epsilon ${s.privacy.epsilon_spent.toPrecision(3)}${s.privacy.epsilon_limit > 0 ? ` of ${s.privacy.epsilon_limit.toPrecision(3)}` : ""}, delta ${s.privacy.delta.toExponential(1)}`);
  }
}

/* ---- orders: only where the server takes them ---- */
let asked_order = null;
function orderText() {
  const name = $("order-name").value, value = $("order-value").value.trim();
  return name === "end" ? "End the run now, for all sites?" : `Order: ${name} ${value}?`;
}
function renderOrders(list) {
  const box = $("order-list");
  box.replaceChildren();
  for (const o of list.slice().reverse()) P.html("li", "", box, `${P.moment(o.time)} ${o.order} ${o.word}: ${o.state}${o.note ? " (" + o.note + ")" : ""}`);
}
const loadOrders = () => load("/api/v1/orders").then(o => renderOrders(o.orders));
async function giveOrder() {
  const r = await fetch("/api/v1/orders", { method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json", Authorization: "Bearer " + $("order-word").value }, body: JSON.stringify(asked_order) });
  $("order-said").textContent = (await r.text()).trim();
  loadOrders().catch(() => {});
}
function sure(on) {
  $("order-sure").hidden = !on;
  $("order-ask").hidden = on;
  if (on) $("order-yes").focus(); else $("order-ask").focus();
}
$("order-name").onchange = () => { $("order-what").hidden = $("order-name").value === "end"; sure(false); };
$("order-form").onsubmit = e => {
  const name = $("order-name").value, value = $("order-value").value.trim();
  e.preventDefault();
  $("order-said").textContent = "";
  if (name !== "end" && !value) { $("order-said").textContent = "this order needs a value"; return; }
  asked_order = name === "end" ? { order: name } : { order: name, word: value };
  $("order-text").textContent = orderText();
  sure(true);
};
$("order-no").onclick = () => sure(false);
$("order-yes").onclick = () => { sure(false); giveOrder().catch(e => { $("order-said").textContent = String(e.message); }); };
setInterval(() => { if (facts.orders && !document.hidden) loadOrders().catch(() => {}); }, 2000);

function renderLog() {
  const q = $("filter").value.toLowerCase(), box = $("log");
  box.replaceChildren();
  for (const e of events.filter(x => !q || `${x.site} ${x.kind} ${x.text}`.toLowerCase().includes(q)).slice(-300).reverse()) {
    const li = P.html("li", e.mood, box);
    P.html("time", "", li, P.moment(e.time)).dateTime = new Date(e.time * 1000).toISOString();
    P.html("span", "", li, e.site); P.html("span", "kind", li, e.kind); P.html("span", "", li, e.text);
  }
  if (!box.children.length) P.html("li", "plain", box, "nothing yet");
}
function renderFacts() {
  $("version").textContent = facts.version || "";
  $("orders").hidden = !facts.orders;
  $("readonly").textContent = facts.orders ? "orders are taken" : "reads only, changes nothing";
  if (facts.orders) $("order-sites").replaceChildren(...S.sites.map(s => { const o = document.createElement("option"); o.value = s.name; return o; }));
  for (const [id, text] of [["jobtext", facts.job], ["samples", facts.samples]]) {
    $(id).hidden = !text;
    $(id).querySelector("pre").textContent = text || "";
  }
}
function render() {
  if (!S.sites.length) return;
  numbers(); trouble(); table(); map(); lines(); plots(); details();
  document.body.dataset.ready = "yes";
}
$("range").onchange = e => { range = +e.target.value; P.set("time", null); };
$("reset").onclick = () => { P.set("tokens", null); P.set("time", null); };
addEventListener("resize", () => { lastRender = 0; want(); });
$("filter").oninput = renderLog;
$("lines").ontoggle = () => { if (S) lines(); };

/* A zoom into a long run is read again, more finely. */
P.zoom.changed = kind => {
  const z = P.zoom.time;
  if (kind === "time" && z && z[1] - z[0] < 6 * 3600) load(`/api/v1/history?points=800&from=${z[0].toFixed(0)}&to=${Math.ceil(z[1])}`).then(h => {
    for (const s in h.sites)
      for (const name in h.sites[s]) {
        const p = series(s, name), n = h.sites[s][name];
        if (!n.t.length) continue;
        const a = p.x.findIndex(t => t >= n.t[0]), last = n.t[n.t.length - 1], b = p.x.findIndex(t => t > last);
        const head = a < 0 ? p.x.length : a, tail = b < 0 ? p.x.length : b;
        if (tail - head >= n.t.length) continue;
        p.x = p.x.slice(0, head).concat(n.t, p.x.slice(tail)); p.y = p.y.slice(0, head).concat(n.v, p.y.slice(tail));
      }
    lastRender = 0; want();
  }).catch(() => {});
  lastRender = 0;
  want();
};
renderLog();
connect();
