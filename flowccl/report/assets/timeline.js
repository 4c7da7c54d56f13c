"use strict";
/* The timeline: a row per link, drawn as bars, or as an image where the bars in view are too many. */

const MOST_BARS = 5000; // bars drawn one by one
const EDGED_BARS = 1500; // with fewer bars, each has a thin edge
const FEWEST_ROWS = 6; // so that a single link is not drawn as a wall
const NO_BARS = { left: [], right: [], bottom: [], top: [] };

class Timeline {
  constructor(data, models) {
    this.data = data;
    this.models = models;
    this.colouring = null;
    this.outlined = true; // the critical path
    this.imageShown = false;
    this.rows = [];
  }

  /** Show these links, one per row. */
  show(links) {
    this.rows = links;
    this.rowOf = new Map(links.map((link, row) => [link, row]));
    const range = this.models.timeline.y_range;
    const low = -Math.max(links.length, FEWEST_ROWS) + 0.5;
    range.bounds = [low, 0.5];
    range.setv({ start: low, end: 0.5 });
    range.reset_start = low;
    range.reset_end = 0.5;
    const names = links.map((link, row) => [-row, this.data.facts.link_names[link]]);
    this.models.timeline.left[0].major_label_overrides = new Map(names);
    this.draw();
  }

  /** The link of the row at a height, or undefined. */
  linkAt(y) {
    return this.rows[Math.round(-y)];
  }

  /** Rows in view, each with its first hop in view and the hop after the last one. */
  visible(x0, x1, y0, y1) {
    const { range, reach, hops } = this.data;
    const low = Math.max(0, Math.ceil(-y1 - 0.5));
    const high = Math.min(this.rows.length - 1, Math.ceil(-y0 - 0.5));
    const found = [];
    for (let row = low; row <= high; row++) {
      const [first, end] = range.get(this.rows[row]) ?? [0, 0];
      const a = firstAfter(reach, first, end, x0);
      found.push([row, a, Math.max(a, firstAfter(hops.start, first, end, x1))]);
    }
    return found;
  }

  draw() {
    const started = performance.now();
    const { x_range: x, y_range: y } = this.models.timeline;
    const visible = this.visible(x.start, x.end, y.start, y.end);
    const total = visible.reduce((sum, [, a, b]) => sum + b - a, 0);
    const detail = total <= MOST_BARS;
    if (detail) {
      this.drawBars(visible);
      this.clearImage();
    } else {
      this.drawImage(visible, x.start, x.end, y.start, y.end);
      this.models.bars.data = { ...NO_BARS, colour: [] };
    }
    this.drawPath(visible);
    this.drawn = { hops: total, detail, ms: performance.now() - started };
  }

  drawBars(visible) {
    const data = { left: [], right: [], bottom: [], top: [], colour: [] };
    for (const [row, a, b] of visible)
      for (let k = a; k < b; k++) {
        this.push(data, row, k, 0.4);
        data.colour.push(this.colouring.of(this.data.hops.transfer[k]));
      }
    this.models.bar.line_alpha = data.left.length <= EDGED_BARS ? 1 : 0;
    this.models.bars.data = data;
  }

  drawPath(visible) {
    const data = { left: [], right: [], bottom: [], top: [] };
    const critical = this.data.transfers.critical;
    if (this.outlined)
      for (const [row, a, b] of visible)
        for (let k = a; k < b && data.left.length < MOST_BARS; k++)
          if (critical[this.data.hops.transfer[k]]) this.push(data, row, k, 0.44);
    this.models.path.data = data;
  }

  push(data, row, hop, half) {
    data.left.push(this.data.hops.start[hop]);
    data.right.push(this.data.hops.end[hop]);
    data.bottom.push(-row - half);
    data.top.push(-row + half);
  }

  clearImage() {
    if (!this.imageShown) return;
    this.models.image.get_column("image")[0].fill(0);
    this.models.image.change.emit();
    this.imageShown = false;
  }

  /** Every pixel gets the mean colour of its busy time, and the part of its time that is busy as opacity. */
  drawImage(visible, x0, x1, y0, y1) {
    const source = this.models.image;
    const image = source.get_column("image")[0];
    const [height, width] = this.data.facts.image;
    const per = height / (y1 - y0);
    const shared = visible.length > height; // then a row of pixels shows several links
    const sums = new Float32Array(4 * width);
    image.fill(0);
    for (let first = 0; first < visible.length;) {
      const pixel = Math.trunc((-visible[first][0] - y0) * per);
      sums.fill(0);
      let end = first;
      do {
        this.collect(visible[end], x0, width / (x1 - x0), width, sums);
        end++;
      } while (shared && end < visible.length && Math.trunc((-visible[end][0] - y0) * per) === pixel);
      const row = visible[first][0];
      let bottom = Math.round((-row - 0.4 - y0) * per);
      let top = Math.round((-row + 0.4 - y0) * per);
      if (shared || top <= bottom) [bottom, top] = [pixel, pixel + 1];
      paint(image, width, Math.max(0, bottom), Math.min(height, top), sums, end - first);
      first = end;
    }
    for (const [name, value] of [["x", x0], ["y", y0], ["dw", x1 - x0], ["dh", y1 - y0]])
      source.get_column(name)[0] = value;
    source.change.emit();
    this.imageShown = true;
  }

  /** Add the busy time of a row to each column of pixels, and the colours weighted with it. */
  collect([, a, b], x0, scale, width, sums) {
    const { start, end, transfer } = this.data.hops;
    const { category, rgb } = this.colouring;
    for (let k = a; k < b; k++) {
      const from = Math.max(0, (start[k] - x0) * scale);
      const to = Math.min(width, (end[k] - x0) * scale);
      const c = rgb[category[transfer[k]]];
      for (let p = Math.trunc(from); p < to; p++) {
        const part = Math.min(to, p + 1) - Math.max(from, p);
        for (let i = 0; i < 3; i++) sums[4 * p + i] += part * c[i];
        sums[4 * p + 3] += part;
      }
    }
  }
}

/** Fill rows of pixels with the colours that `collect` added up over some links. */
function paint(image, width, bottom, top, sums, links) {
  for (let p = 0; p < width; p++) {
    const busy = sums[4 * p + 3];
    if (busy <= 0) continue;
    const mean = (i) => Math.round(sums[4 * p + i] / busy);
    const alpha = Math.round(255 * Math.min(1, 0.25 + (0.75 * busy) / links));
    const colour = ((alpha << 24) | (mean(2) << 16) | (mean(1) << 8) | mean(0)) >>> 0;
    for (let q = bottom; q < top; q++) image[q * width + p] = colour;
  }
}
