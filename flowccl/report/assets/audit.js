"use strict";
// The page of an audit: a table with filters and sorting, dots over size, and the timeline of a step.
(() => {
  const facts = JSON.parse(document.getElementById("facts").textContent);
  const rows = facts.rows, byId = (id) => document.getElementById(id);
  const columns = [ // key, heading, is a number
    ["collective", "collective", false], ["bytes", "size", true], ["group", "group", false], ["calls", "calls", true],
    ["share", "share", true], ["wait", "wait us", true], ["measured", "measured us", true],
    ["library", "NCCL's model us", true], ["plan", "best plan us", true], ["bound", "lower bound us", true],
    ["ratio", "measured / bound", true], ["saved", "saved us per step", true], ["bottleneck", "bottleneck", false]];
  const series = [ // key, colour, name
    ["measured", "#c0392b", "measured"], ["library", "#d9822b", "NCCL's model"], ["plan", "#1f77b4", "best plan"],
    ["bound", "#2e9b5f", "lower bound"]];
  const PAGE = 200;
  let sortKey = null, descending = true, visible = rows.map((_, at) => at), limit = PAGE, selected = -1;

  const cell = (row, key) => {
    const value = row[key];
    if (value === null || value === undefined) return "";
    if (key === "bytes") return row.size;
    if (key === "share") return (100 * value).toFixed(1) + " %";
    return typeof value === "number" ? String(Number(value.toPrecision(4))) : value;
  };

  const text = rows.map((row) => columns.map(([key]) => cell(row, key)).join(" ").toLowerCase());

  function refresh() {
    const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    const collective = byId("collective").value, least = Number(byId("least").value) || 0;
    visible = [];
    rows.forEach((row, at) => {
      if (collective && row.collective !== collective) return;
      if (least && !(row.ratio >= least)) return;
      if (words.every((word) => text[at].includes(word))) visible.push(at);
    });
    if (sortKey) {
      const sign = descending ? -1 : 1;
      visible.sort((a, b) => {
        const x = rows[a][sortKey], y = rows[b][sortKey];
        if (x === null || y === null) return (x === null) - (y === null) || a - b;
        return (typeof x === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0) * sign || a - b;
      });
    }
    limit = PAGE;
    fill();
    drawSizes();
    drawTimeline();
  }

  function fill() {
    const body = byId("rows").tBodies[0], parts = [];
    for (const at of visible.slice(0, limit)) {
      const row = rows[at];
      parts.push(`<tr data-row="${at}"${at === selected ? ' aria-selected="true"' : ""} tabindex="0">`);
      for (const [key, , number] of columns) parts.push(`<td${number ? ' class="n"' : ""}>${escaped(cell(row, key))}</td>`);
      parts.push("</tr>");
    }
    body.innerHTML = parts.join("");
    byId("shown").textContent = `${visible.length} of ${rows.length} rows`;
    byId("more").hidden = visible.length <= limit;
  }

  const escaped = (value) => value.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" }[c]));

  function select(at) {
    selected = at;
    byId("story").textContent = rows[at].story;
    for (const line of byId("rows").tBodies[0].rows) line.setAttribute("aria-selected", String(Number(line.dataset.row) === at));
    drawSizes();
    drawTimeline();
  }

  // -- pictures: a canvas in device pixels, and what is where on it -------------------------------------------------

  function prepared(id, height) {
    const canvas = byId(id), scale = window.devicePixelRatio || 1;
    Object.assign(canvas.style, { display: "block", width: "100%", padding: "0", boxSizing: "border-box" });
    const width = canvas.clientWidth || 900;
    canvas.style.height = `${height}px`;
    canvas.width = width * scale;
    canvas.height = height * scale;
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    pen.clearRect(0, 0, width, height);
    pen.font = "12px sans-serif";
    pen.fillStyle = getComputedStyle(document.body).color;
    return { canvas, pen, width, height };
  }

  let dots = [], bars = [];

  function drawSizes() {
    const { pen, width, height } = prepared("sizes", 380), left = 70, bottom = height - 40;
    const chosen = byId("shownkind").value, shown = series.filter(([key]) => !chosen || key === chosen);
    const points = [];
    for (const at of visible) for (const [key, colour] of shown) {
      if (rows[at][key] > 0 && rows[at].bytes > 0) points.push([rows[at].bytes, rows[at][key], colour, at]);
    }
    dots = [];
    if (!points.length) { pen.fillText("no times", left, 40); return; }
    let [x0, x1, y0, y1] = [Infinity, 0, Infinity, 0];
    for (const [x, y] of points) { x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, y); y1 = Math.max(y1, y); }
    const lx0 = Math.log10(x0) - 0.1, lx1 = Math.log10(x1) + 0.1, ly0 = Math.log10(y0) - 0.1, ly1 = Math.log10(y1) + 0.1;
    const px = (x) => left + (Math.log10(x) - lx0) / (lx1 - lx0) * (width - left - 20);
    const py = (y) => bottom - (Math.log10(y) - ly0) / (ly1 - ly0) * (bottom - 15);
    axes(pen, px, py, [lx0, lx1, ly0, ly1], left, bottom, width);
    for (const [x, y, colour, at] of points) {
      const dot = [px(x), py(y), at];
      pen.globalAlpha = selected < 0 || selected === at ? 0.85 : 0.25;
      pen.fillStyle = colour;
      if (points.length > 4000 && selected !== at) pen.fillRect(dot[0] - 2, dot[1] - 2, 4, 4); // many times faster
      else {
        pen.beginPath();
        pen.arc(dot[0], dot[1], selected === at ? 7 : 4, 0, 7);
        pen.fill();
      }
      dots.push(dot);
    }
    pen.globalAlpha = 1;
  }

  function axes(pen, px, py, [lx0, lx1, ly0, ly1], left, bottom, width) {
    const sizeName = (p) => ["1 B", "10 B", "100 B", "1 KB", "10 KB", "100 KB", "1 MB", "10 MB", "100 MB", "1 GB", "10 GB", "100 GB"][p] || `1e${p} B`;
    pen.strokeStyle = "rgba(128,128,128,0.35)";
    for (let p = Math.ceil(lx0); p <= lx1; p++) { line(pen, px(10 ** p), 10, px(10 ** p), bottom); pen.fillText(sizeName(p), px(10 ** p) - 15, bottom + 16); }
    for (let p = Math.ceil(ly0); p <= ly1; p++) { line(pen, left, py(10 ** p), width - 20, py(10 ** p)); pen.fillText(time(10 ** p), 8, py(10 ** p) + 4); }
    pen.fillText("size of the call", width / 2 - 40, bottom + 34);
  }

  const time = (us) => us >= 1e6 ? `${Number((us / 1e6).toPrecision(3))} s` : us >= 1e3 ? `${Number((us / 1e3).toPrecision(3))} ms` : `${Number(us.toPrecision(3))} us`;

  function line(pen, a, b, c, d) { pen.beginPath(); pen.moveTo(a, b); pen.lineTo(c, d); pen.stroke(); }

  const heat = (ratio) => {
    if (ratio === null) return "#8090a0";
    const part = Math.min(Math.max(Math.log10(Math.max(ratio, 1)), 0), 1);
    return `hsl(${Math.round(130 * (1 - part))}, 65%, 45%)`;
  };

  function drawTimeline() {
    const ranks = facts.timeline.reduce((most, bar) => Math.max(most, bar[3] + 1), 1);
    const high = Math.max(3, Math.min(16, Math.floor(480 / ranks)));
    const { pen, width, height } = prepared("timeline", Math.min(ranks * high + 40, 560)), left = 70;
    const end = facts.timeline.reduce((most, bar) => Math.max(most, bar[0] + bar[1]), 0);
    const keep = new Set(visible);
    bars = [];
    if (!end) { pen.fillText("no starts in the logs", left, 20); return; }
    const tall = (height - 40) / ranks, px = (us) => left + us / end * (width - left - 20);
    for (const [start, duration, low, top, at] of facts.timeline) {
      if (!keep.has(at)) continue;
      const box = [px(start), 5 + low * tall, Math.max(px(start + duration) - px(start), 1), (top - low + 1) * tall - 1, at];
      pen.globalAlpha = selected < 0 || selected === at ? 1 : 0.3;
      pen.fillStyle = heat(rows[at].ratio);
      pen.fillRect(box[0], box[1], box[2], Math.max(box[3], 1));
      bars.push(box);
    }
    pen.globalAlpha = 1;
    pen.fillStyle = getComputedStyle(document.body).color;
    pen.fillText("rank 0", 8, 16);
    pen.fillText(`rank ${ranks - 1}`, 8, height - 38);
    for (let k = 0; k <= 4; k++) pen.fillText(time(end * k / 4), px(end * k / 4) - (k ? 40 : 0), height - 12);
  }

  const at = (event) => { const box = event.target.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };

  function start() {
    byId("rows").tHead.rows[0].innerHTML = columns.map(([key, name, number]) => `<th${number ? ' class="n"' : ""} data-key="${key}" role="button" tabindex="0">${name}</th>`).join("");
    byId("rows").tHead.addEventListener("click", (event) => {
      const key = event.target.dataset.key;
      if (!key) return;
      descending = sortKey === key ? !descending : columns.find((column) => column[0] === key)[2];
      sortKey = key;
      refresh();
    });
    byId("rows").tBodies[0].addEventListener("click", (event) => {
      const found = event.target.closest("tr");
      if (found) select(Number(found.dataset.row));
    });
    byId("sizes").addEventListener("click", (event) => {
      const [x, y] = at(event);
      const near = dots.map(([a, b, row]) => [(a - x) ** 2 + (b - y) ** 2, row]).sort((a, b) => a[0] - b[0])[0];
      if (near && near[0] < 150) select(near[1]);
    });
    byId("timeline").addEventListener("click", (event) => {
      const [x, y] = at(event);
      const hit = bars.find(([a, b, w, h]) => x >= a - 2 && x <= a + w + 2 && y >= b && y <= b + h);
      if (hit) select(hit[4]);
    });
    for (const name of [...new Set(rows.map((row) => row.collective))].sort()) byId("collective").add(new Option(name, name));
    byId("shownkind").add(new Option("all", ""));
    for (const [key, , name] of series) byId("shownkind").add(new Option(name, key));
    byId("legend").innerHTML = series.map(([, colour, name]) => `<span><i style="background:${colour}"></i>${name}</span>`).join("");
    for (const id of ["filter", "least"]) byId(id).addEventListener("input", refresh);
    for (const id of ["collective", "shownkind"]) byId(id).addEventListener("change", refresh);
    byId("more").addEventListener("click", () => { limit += 1000; fill(); });
    byId("theme").addEventListener("click", () => {
      const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = (root.dataset.theme || (dark ? "dark" : "light")) === "dark" ? "light" : "dark";
      drawSizes();
      drawTimeline();
    });
    window.addEventListener("resize", () => { drawSizes(); drawTimeline(); });
    refresh();
    document.documentElement.dataset.ready = "yes";
    document.documentElement.dataset.drawn = String(Math.round(performance.now()));
  }
  start();
})();
