"use strict";
/* The script of a report: level of detail of the timeline, one selection for all pictures, the time slider.
   Bokeh draws; `flowccl.start(view, models)` is called for each schedule when its models are there. */
const flowccl = (() => {
  const PALETTE = [
    "#4c78a8",
    "#f58518",
    "#54a24b",
    "#b5498f",
    "#7a5fd0",
    "#3fa7a0",
    "#c8553d",
    "#9a8a2f",
    "#6b7f94",
    "#d07fb0",
  ];
  const KINDS = [
    "the link",
    "its data",
    "a limit",
    "a GPU that still reduces",
    "buffer space",
    "the order of a reduction",
  ];
  const MOST_BARS = 5000; // bars drawn one by one; more become pixels of an image
  const FEWEST_ROWS = 6; // of the timeline, so that a single link is not drawn as a wall
  const EDGED_BARS = 1500; // with fewer bars, each has a thin edge
  const views = [];
  const plain = []; // figures without a view, as in the report of a catalog
  let facts = null;

  const us = (t) =>
    t >= 1e6
      ? (t / 1e6).toPrecision(4) + " s"
      : t >= 1e3
        ? (t / 1e3).toPrecision(5) + " ms"
        : Number(t.toPrecision(5)) + " us";
  const bytes = (n) =>
    n >= 1e9
      ? (n / 1e9).toPrecision(4) + " GB"
      : n >= 1e6
        ? (n / 1e6).toPrecision(4) + " MB"
        : n >= 1e3
          ? (n / 1e3).toPrecision(4) + " KB"
          : n + " B";
  const element = (view, what) => document.getElementById(what + "-" + view);

  function colour(index, count) {
    // of a category; many categories are a ramp of hues
    if (count <= PALETTE.length) return PALETTE[index % PALETTE.length];
    const hue = (index / count) * 320,
      light = index % 2 ? 42 : 56;
    return "hsl(" + hue.toFixed(0) + ",62%," + light + "%)";
  }
  function rgb(text) {
    if (text[0] === "#") return [1, 3, 5].map((k) => parseInt(text.slice(k, k + 2), 16));
    const [h, s, l] = text.match(/[\d.]+/g).map(Number);
    const f = (n) => {
      const k = (n + h / 30) % 12,
        a = (s / 100) * Math.min(l / 100, 1 - l / 100);
      return Math.round(255 * (l / 100 - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
    };
    return [f(0), f(8), f(4)];
  }
  function firstAfter(column, low, high, value) {
    // first index in [low, high) with column > value
    while (low < high) {
      const mid = (low + high) >> 1;
      if (column[mid] > value) high = mid;
      else low = mid + 1;
    }
    return low;
  }

  class View {
    constructor(number, models) {
      this.number = number;
      this.models = models;
      this.facts = facts.schedules[number];
      const column = (source, name) => models[source].get_column(name);
      this.hops = Object.fromEntries(["link", "start", "end", "transfer"].map((name) => [name, column("hops", name)]));
      this.transfers = Object.fromEntries(this.facts.transfer_columns.map((name) => [name, column("transfers", name)]));
      this.arrivals = Object.fromEntries(["gpu", "time", "part"].map((name) => [name, column("arrivals", name)]));
      this.place = new Map(Array.from(this.transfers.number, (n, k) => [n, k]));
      this.range = new Map(); // link: first and last hop
      for (let k = 0; k < this.hops.link.length;) {
        let end = k;
        while (end < this.hops.link.length && this.hops.link[end] === this.hops.link[k]) end++;
        this.range.set(this.hops.link[k], [k, end]);
        k = end;
      }
      this.reach = new Float64Array(this.hops.end.length); // the latest end so far on the link, for lookups
      for (const [a, b] of this.range.values()) {
        let last = -1;
        for (let k = a; k < b; k++) this.reach[k] = last = Math.max(last, this.hops.end[k]);
      }
      this.selected = null;
      this.time = 0;
      this.playing = false;
      this.frame = 0;
      this.rows = this.facts.links;
      this.colourBy("source");
      this.controls();
      this.fit();
      this.theme();
      this.show(this.rows);
      this.moment(0);
    }

    controls() {
      const on = (what, event, action) => {
        const target = element(this.number, what);
        if (target) target.addEventListener(event, action);
      };
      on("colour", "change", (event) => {
        this.colourBy(event.target.value);
        this.draw();
        this.moment(this.time);
      });
      on("clear", "click", () => this.select(null));
      on("slider", "input", (event) => this.moment((event.target.value / 1000) * this.facts.finish_us));
      on("play", "click", () => this.play(!this.playing));
      const table = element(this.number, "links");
      const pick = (event) => {
        const row = event.target.closest("tr[data-link]");
        if (row) this.select({ link: Number(row.dataset.link) });
      };
      table.addEventListener("click", pick);
      table.addEventListener("keydown", (event) => {
        if (event.key === "Enter") pick(event);
      });
    }

    colourBy(key) {
      const t = this.transfers,
        count = { source: this.facts.gpus, phase: 2, chunk: this.facts.chunks }[key];
      const value = { source: (k) => t.source[k], phase: (k) => t.reduce[k], chunk: (k) => t.chunk[k] }[key];
      this.shade = new Int32Array(t.number.length);
      for (let k = 0; k < this.shade.length; k++) this.shade[k] = value(k);
      this.colours = Array.from({ length: count }, (_, k) => colour(k, count));
      this.rgb = this.colours.map(rgb);
      const names = {
        source: (k) => this.facts.nodes[k],
        phase: (k) => ["copy", "reduce"][k],
        chunk: (k) => "chunk " + k,
      }[key];
      const what = { source: "source of the chunk", phase: "stored or reduced at the destination", chunk: "chunk" }[
        key
      ];
      const step = Math.max(1, Math.ceil(count / 16));
      let html = "<span>colour: " + what + (step > 1 ? ", listed in steps of " + step : "") + "</span>";
      for (let k = 0; k < count; k += step)
        html += '<span><i style="background:' + this.colours[k] + '"></i>' + names(k) + "</span>";
      element(this.number, "legend").innerHTML = html;
    }

    show(links) {
      // the rows of the timeline
      this.rows = links;
      this.rowOf = new Map(links.map((link, row) => [link, row]));
      const names = links.map((link) => this.facts.link_names[link]),
        n = links.length;
      const range = this.models.timeline.y_range,
        low = -Math.max(n, FEWEST_ROWS) + 0.5;
      range.bounds = [low, 0.5];
      range.setv({ start: low, end: 0.5 });
      range.reset_start = low;
      range.reset_end = 0.5;
      this.models.timeline.left[0].major_label_overrides = new Map(names.map((name, row) => [-row, name]));
      this.draw();
    }

    draw() {
      // the visible part of the timeline: bars, or an image where they are too many
      const started = performance.now();
      const { x_range: x, y_range: y } = this.models.timeline;
      const x0 = Math.max(x.start, -1e300),
        x1 = x.end,
        low = Math.max(0, Math.ceil(-y.end - 0.5)),
        high = Math.min(this.rows.length - 1, Math.ceil(-y.start - 0.5));
      const visible = [];
      let total = 0;
      for (let row = low; row <= high; row++) {
        const found = this.range.get(this.rows[row]);
        if (!found) continue;
        const a = firstAfter(this.reach, found[0], found[1], x0),
          b = firstAfter(this.hops.start, found[0], found[1], x1);
        visible.push([row, a, b]);
        total += Math.max(0, b - a);
      }
      if (total <= MOST_BARS) {
        this.drawBars(visible);
        this.clearImage();
      } else {
        this.drawImage(visible, x0, x1, y.start, y.end);
        this.models.bars.data = { left: [], right: [], bottom: [], top: [], colour: [] };
      }
      this.drawPath(visible);
      this.drawn = { hops: total, detail: total <= MOST_BARS, ms: performance.now() - started };
    }

    drawBars(visible) {
      const left = [],
        right = [],
        bottom = [],
        top = [],
        fill = [];
      for (const [row, a, b] of visible)
        for (let k = a; k < b; k++) {
          left.push(this.hops.start[k]);
          right.push(this.hops.end[k]);
          bottom.push(-row - 0.4);
          top.push(-row + 0.4);
          fill.push(this.colours[this.shade[this.hops.transfer[k]]]);
        }
      this.models.bar.line_alpha = left.length <= EDGED_BARS ? 1 : 0;
      this.models.bars.data = { left, right, bottom, top, colour: fill };
    }

    clearImage() {
      const source = this.models.image;
      if (this.imageShown) {
        source.get_column("image")[0].fill(0);
        source.change.emit();
        this.imageShown = false;
      }
    }

    drawImage(visible, x0, x1, y0, y1) {
      // every pixel has the mean colour of its busy time, and its part as opacity
      const source = this.models.image,
        image = source.get_column("image")[0],
        [height, width] = this.facts.image;
      const scale = width / (x1 - x0),
        per = height / (y1 - y0),
        sums = new Float32Array(4 * width);
      const many = visible.length > height; // then a row of pixels shows the first of its links
      image.fill(0);
      let shown = -1;
      for (const [row, a, b] of visible) {
        const pixel = Math.trunc((-row - y0) * per);
        if (many && pixel === shown) continue;
        shown = pixel;
        sums.fill(0);
        for (let k = a; k < b; k++) {
          const from = Math.max(0, (this.hops.start[k] - x0) * scale),
            to = Math.min(width, (this.hops.end[k] - x0) * scale),
            c = this.rgb[this.shade[this.hops.transfer[k]]];
          for (let p = Math.trunc(from); p < to; p++) {
            const w = Math.min(to, p + 1) - Math.max(from, p);
            sums[4 * p] += w * c[0];
            sums[4 * p + 1] += w * c[1];
            sums[4 * p + 2] += w * c[2];
            sums[4 * p + 3] += w;
          }
        }
        let bottom = Math.round((-row - 0.4 - y0) * per),
          top = Math.round((-row + 0.4 - y0) * per);
        if (many || top <= bottom) {
          bottom = pixel;
          top = bottom + 1;
        }
        bottom = Math.max(0, bottom);
        top = Math.min(height, top);
        for (let p = 0; p < width; p++) {
          const w = sums[4 * p + 3];
          if (w <= 0) continue;
          const alpha = Math.round(255 * Math.min(1, 0.25 + 0.75 * w));
          const colour =
            ((alpha << 24) |
              (Math.round(sums[4 * p + 2] / w) << 16) |
              (Math.round(sums[4 * p + 1] / w) << 8) |
              Math.round(sums[4 * p] / w)) >>>
            0;
          for (let q = bottom; q < top; q++) image[q * width + p] = colour;
        }
      }
      const set = (name, value) => {
        source.get_column(name)[0] = value;
      };
      set("x", x0);
      set("y", y0);
      set("dw", x1 - x0);
      set("dh", y1 - y0);
      source.change.emit();
      this.imageShown = true;
    }

    drawPath(visible) {
      const left = [],
        right = [],
        bottom = [],
        top = [];
      if (element(this.number, "critical").checked)
        for (const [row, a, b] of visible)
          for (let k = a; k < b && left.length < MOST_BARS; k++)
            if (this.transfers.critical[this.hops.transfer[k]]) {
              left.push(this.hops.start[k]);
              right.push(this.hops.end[k]);
              bottom.push(-row - 0.44);
              top.push(-row + 0.44);
            }
      this.models.path.data = { left, right, bottom, top };
    }

    select(what) {
      // a link, a node, or null for everything
      this.selected = what;
      const ends = this.facts.link_ends,
        of = (link) =>
          !what ||
          what.link === link ||
          (what.node !== undefined && (ends[link][0] === what.node || ends[link][1] === what.node));
      const links = this.facts.links.filter(of);
      this.show(links);
      const name = !what
        ? "all links"
        : what.link !== undefined
          ? this.facts.link_names[what.link]
          : this.facts.nodes[what.node];
      element(this.number, "selected").textContent =
        "shown: " +
        name +
        (links.length ? ", " + links.length + (links.length === 1 ? " link" : " links") : ": not used");
      for (const row of element(this.number, "links").querySelectorAll("tr[data-link]"))
        row.setAttribute("aria-selected", String(Boolean(what) && of(Number(row.dataset.link))));
      const source = this.models.links,
        link = source.get_column("link"),
        alpha = source.get_column("alpha");
      for (let k = 0; k < link.length; k++) alpha[k] = of(link[k]) ? 1 : 0.12;
      source.change.emit();
    }

    story(x, y) {
      // the transfer, or the idle time, under the pointer
      const row = Math.round(-y),
        link = this.rows[row],
        found = this.range.get(link);
      if (!found || Math.abs(-y - row) > 0.5) return null;
      const name = this.facts.link_names[link],
        k = firstAfter(this.hops.start, found[0], found[1], x) - 1;
      if (x < 0 || x > this.facts.finish_us) return null;
      if (k >= found[0] && this.hops.end[k] >= x) return name + ": " + this.transfer(this.hops.transfer[k]);
      if (k + 1 >= found[1]) return name + ": not needed any more after " + us(this.hops.end[found[1] - 1]) + ".";
      const next = this.hops.transfer[k + 1],
        cause = this.transfers.cause[next],
        before = this.transfers.before[next];
      const why =
        before < 0
          ? "the next transfer could have started earlier"
          : "the next transfer waits for " +
            (cause === 0 ? "another link of its route, busy" : KINDS[cause] + ", which comes") +
            " with transfer " +
            before;
      return name + ": idle until " + us(this.hops.start[k + 1]) + "; " + why + ".";
    }

    transfer(k) {
      const t = this.transfers,
        node = (n) => this.facts.nodes[n];
      const what =
        t.chunks[k] > 1 ? "message of " + t.chunks[k] + " chunks from chunk " + t.chunk[k] : "chunk " + t.chunk[k];
      const from = node(t.src[k]) + (t.roots[k] > 1 ? " and " + (t.roots[k] - 1) + " more" : ""),
        to = node(t.dst[k]) + (t.ends[k] > 1 ? " and " + (t.ends[k] - 1) + " more" : "");
      let text =
        "transfer " +
        t.number[k] +
        ", " +
        what +
        " (" +
        bytes(t.bytes[k]) +
        ", source " +
        node(t.source[k]) +
        ") from " +
        from +
        " to " +
        to +
        (t.reduce[k] ? ", reduced there" : "") +
        "; starts at " +
        us(t.start[k]) +
        ", arrives at " +
        us(t.arrival[k]) +
        "; ";
      text +=
        t.before[k] < 0 ? "waited for nothing" : "waited for " + KINDS[t.cause[k]] + " (transfer " + t.before[k] + ")";
      if (t.idle[k] > 0) text += ", starts " + us(t.idle[k]) + " later than it could";
      return text + (t.critical[k] ? "; on the critical path." : "; slack " + us(t.slack[k]) + ".");
    }

    hover(x, y) {
      const text = this.story(x, y);
      if (text) element(this.number, "story").textContent = text;
    }

    tapTimeline(x, y) {
      const link = this.rows[Math.round(-y)];
      if (link !== undefined) this.select(this.selected ? null : { link });
      this.hover(x, y);
    }

    tapMachine(x, y) {
      // the nearest node or link
      const nodes = this.models.nodes,
        nx = nodes.get_column("x"),
        ny = nodes.get_column("y");
      const range = this.models.machine.x_range,
        near = 0.012 * (range.end - range.start);
      let best = null,
        least = Math.max(0.3, near);
      for (let n = 0; n < nx.length; n++) {
        const d = Math.hypot(nx[n] - x, ny[n] - y);
        if (d < least) {
          least = d;
          best = { node: n };
        }
      }
      if (!best) {
        least = Math.max(0.2, near);
        const source = this.models.links,
          [x0, y0, x1, y1, link] = ["x0", "y0", "x1", "y1", "link"].map((name) => source.get_column(name));
        for (let k = 0; k < link.length; k++) {
          const dx = x1[k] - x0[k],
            dy = y1[k] - y0[k],
            t = Math.max(0, Math.min(1, ((x - x0[k]) * dx + (y - y0[k]) * dy) / (dx * dx + dy * dy || 1)));
          const d = Math.hypot(x0[k] + t * dx - x, y0[k] + t * dy - y);
          if (d < least) {
            least = d;
            best = { link: link[k] };
          }
        }
      }
      this.select(best);
    }

    moment(time) {
      // chunks on links, and what each GPU has, at a time
      this.time = time;
      this.models.cursor.location = time;
      element(this.number, "slider").value = String(Math.round((1000 * time) / this.facts.finish_us));
      const parts = new Float32Array(this.facts.nodes.length),
        a = this.arrivals;
      for (let k = 0; k < a.gpu.length; k++) if (a.time[k] <= time) parts[a.gpu[k]] = a.part[k];
      const source = this.models.nodes,
        fill = source.get_column("colour"),
        text = source.get_column("text");
      let mean = 0;
      for (let n = 0; n < this.facts.gpus; n++) {
        const p = this.facts.receives[n] ? parts[n] : 1;
        mean += p / this.facts.gpus;
        fill[n] = "hsl(" + (215 - 75 * p).toFixed(0) + ",45%," + (62 - 32 * p).toFixed(0) + "%)";
        text[n] = p > 0.35 ? "#ffffff" : "#101418";
      }
      source.change.emit();
      const x = [],
        y = [],
        dot = [],
        ends = this.position();
      const place = this.linkPlace();
      for (let k = 0; k < this.hops.link.length && x.length < 2000; k++)
        if (this.hops.start[k] <= time && this.hops.end[k] > time) {
          const at = place.get(this.hops.link[k]);
          if (at === undefined) continue;
          const f = (time - this.hops.start[k]) / (this.hops.end[k] - this.hops.start[k]);
          x.push(ends[0][at] + f * (ends[2][at] - ends[0][at]));
          y.push(ends[1][at] + f * (ends[3][at] - ends[1][at]));
          dot.push(this.colours[this.shade[this.hops.transfer[k]]]);
        }
      this.models.dots.data = { x, y, colour: dot };
      element(this.number, "moment").textContent =
        us(time) + ": " + x.length + " transfers on links, GPUs have " + (100 * mean).toFixed(1) + " % of their data";
    }
    position() {
      return ["x0", "y0", "x1", "y1"].map((name) => this.models.links.get_column(name));
    }
    linkPlace() {
      return (this.places ??= new Map(Array.from(this.models.links.get_column("link"), (link, k) => [link, k])));
    }

    play(on) {
      this.playing = on;
      element(this.number, "play").textContent = on ? "Pause" : "Play";
      if (!on) return cancelAnimationFrame(this.frame);
      if (this.time >= this.facts.finish_us) this.time = 0;
      let last = performance.now();
      const step = (now) => {
        const next = this.time + ((now - last) / 8000) * this.facts.finish_us;
        last = now; // the whole schedule in 8 s
        this.moment(Math.min(next, this.facts.finish_us));
        if (next >= this.facts.finish_us) return this.play(false);
        if (this.playing) this.frame = requestAnimationFrame(step);
      };
      this.frame = requestAnimationFrame(step);
    }

    fit() {
      // the same scale in both directions of the machine
      const { x_range: x, y_range: y, inner_width: width, inner_height: height } = this.models.machine;
      const scale = Math.max((x.end - x.start) / width, (y.end - y.start) / height);
      for (const [range, pixels] of [
        [x, width],
        [y, height],
      ]) {
        const middle = (range.start + range.end) / 2,
          half = (scale * pixels) / 2;
        if (!(half > 0)) continue;
        range.setv({ start: middle - half, end: middle + half });
        range.reset_start = middle - half;
        range.reset_end = middle + half;
      }
    }

    theme() {
      for (const figure of [this.models.timeline, this.models.machine, this.models.flight]) themeFigure(figure);
      const get = themeColour,
        ink = get("--ink");
      this.models.bar.line_color = get("--page");
      this.models.outline.line_color = ink;
      this.models.cursor.line_color = get("--accent");
      this.models.finish.line_color = ink;
      this.models.finish.location = this.facts.finish_us;
      this.models.bound.line_color = get("--good");
      this.models.bound.location = this.facts.bound_us;
      const source = this.models.links,
        link = source.get_column("link"),
        fill = source.get_column("colour");
      const dark = document.documentElement.dataset.theme === "dark";
      for (const mark of document.querySelectorAll("i[data-use]"))
        mark.style.background = useColour(Number(mark.dataset.use), dark);
      for (let k = 0; k < link.length; k++) fill[k] = useColour(this.facts.use[link[k]], dark);
      source.change.emit();
    }
  }

  function themeColour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function themeFigure(figure) {
    const [ink, soft, line] = ["--ink", "--soft", "--line"].map(themeColour);
    figure.outline_line_color = line;
    for (const axis of [...figure.below, ...figure.left])
      if (axis.axis_label !== undefined)
        Object.assign(axis, {
          axis_label_text_color: ink,
          major_label_text_color: ink,
          axis_line_color: soft,
          major_tick_line_color: soft,
          minor_tick_line_color: null,
        });
    for (const part of figure.center) {
      if ("grid_line_color" in part) part.grid_line_color = line;
      if ("label_text_color" in part) part.label_text_color = ink;
    }
    for (const renderer of figure.renderers) if (renderer.name === "label") renderer.glyph.text_color = soft;
  }

  function useColour(use, dark) {
    // grey for unused, then from blue to red
    if (!use) return dark ? "#46505c" : "#c4ccd6";
    return "hsl(" + (215 - 205 * Math.min(1, use)).toFixed(0) + ",70%," + (dark ? 60 : 42) + "%)";
  }

  function setTheme(name) {
    document.documentElement.dataset.theme = name;
    for (const view of views) view.theme();
    plain.forEach(themeFigure);
  }

  return {
    views,
    useColour,
    setTheme,
    start(number, models) {
      facts ??= JSON.parse(document.getElementById("facts").textContent);
      views[number] = new View(number, models);
      if (views.filter(Boolean).length === facts.schedules.length) document.documentElement.dataset.ready = "yes";
    },
    plain(figure) {
      plain.push(figure);
      themeFigure(figure);
      document.documentElement.dataset.ready = "yes";
    },
    ranged(number) {
      const view = views[number];
      if (!view || view.pending) return;
      view.pending = requestAnimationFrame(() => {
        view.pending = 0;
        view.draw();
      });
    },
  };
})();

(() => {
  // light or dark as the system says, until the button says otherwise
  const media = matchMedia("(prefers-color-scheme: dark)");
  const now = () => (media.matches ? "dark" : "light");
  document.documentElement.dataset.theme = now();
  media.addEventListener("change", () => flowccl.setTheme(now()));
  let before = "light";
  addEventListener("beforeprint", () => {
    before = document.documentElement.dataset.theme;
    flowccl.setTheme("light");
  });
  addEventListener("afterprint", () => flowccl.setTheme(before));
  addEventListener("DOMContentLoaded", () =>
    document
      .getElementById("theme")
      .addEventListener("click", () =>
        flowccl.setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
      ),
  );
})();
