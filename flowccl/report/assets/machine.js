"use strict";
/* The picture of the machine: links by use, transfers on links and data of GPUs at a moment, the nearest thing. */

const MOST_DOTS = 2000; // transfers drawn at a moment

class Machine {
  constructor(data, models) {
    this.data = data;
    this.models = models;
    this.places = new Map(Array.from(models.links.get_column("link"), (link, k) => [link, k]));
    this.fit();
  }

  /** The same scale in both directions. */
  fit() {
    const { x_range: x, y_range: y, inner_width: width, inner_height: height } = this.models.machine;
    const scale = Math.max((x.end - x.start) / width, (y.end - y.start) / height);
    for (const [range, pixels] of [[x, width], [y, height]]) {
      const middle = (range.start + range.end) / 2;
      const half = (scale * pixels) / 2;
      if (!(half > 0)) continue;
      range.setv({ start: middle - half, end: middle + half });
      range.reset_start = middle - half;
      range.reset_end = middle + half;
    }
  }

  theme() {
    const link = this.models.links.get_column("link");
    const fill = this.models.links.get_column("colour");
    for (let k = 0; k < link.length; k++) fill[k] = useColour(this.data.facts.use[link[k]]);
    this.models.links.change.emit();
  }

  /** Fade all links but those that are selected. */
  select(isSelected) {
    const link = this.models.links.get_column("link");
    const alpha = this.models.links.get_column("alpha");
    for (let k = 0; k < link.length; k++) alpha[k] = isSelected(link[k]) ? 1 : 0.12;
    this.models.links.change.emit();
  }

  /** The transfers on links, and what each GPU has, at a time. Returns both in words. */
  moment(time, colouring) {
    const have = this.showData(time);
    const dots = { x: [], y: [], colour: [] };
    const [x0, y0, x1, y1] = ["x0", "y0", "x1", "y1"].map((name) => this.models.links.get_column(name));
    const { link, start, end, transfer } = this.data.hops;
    let count = 0;
    for (let k = 0; k < link.length; k++) {
      if (start[k] > time || end[k] <= time) continue;
      count++;
      const at = this.places.get(link[k]);
      if (at === undefined || dots.x.length >= MOST_DOTS) continue;
      const part = (time - start[k]) / (end[k] - start[k]);
      dots.x.push(x0[at] + part * (x1[at] - x0[at]));
      dots.y.push(y0[at] + part * (y1[at] - y0[at]));
      dots.colour.push(colouring.of(transfer[k]));
    }
    this.models.dots.data = dots;
    const busy = count === 1 ? "1 transfer is on a link" : count + " transfers are on links";
    return us(time) + ": " + busy + ", GPUs have " + have + " of their data";
  }

  /** Colour the GPUs by the part of their data that they have. */
  showData(time) {
    const { facts, arrivals } = this.data;
    const part = new Float32Array(facts.nodes.length);
    for (let k = 0; k < arrivals.gpu.length; k++) if (arrivals.time[k] <= time) part[arrivals.gpu[k]] = arrivals.part[k];
    const fill = this.models.nodes.get_column("colour");
    const text = this.models.nodes.get_column("text");
    let mean = 0;
    for (let n = 0; n < facts.gpus; n++) {
      const p = facts.receives[n] ? part[n] : 1;
      mean += p / facts.gpus;
      fill[n] = "hsl(" + (215 - 75 * p).toFixed(0) + ",45%," + (68 - 40 * p).toFixed(0) + "%)";
      text[n] = p > 0.5 ? "#ffffff" : "#101418";
    }
    this.models.nodes.change.emit();
    return (100 * mean).toFixed(1) + " %";
  }

  /** The node or link at a point, or null. */
  nearest(x, y) {
    const { start, end } = this.models.machine.x_range;
    const near = 0.012 * (end - start);
    return this.nearestNode(x, y, Math.max(0.3, near)) ?? this.nearestLink(x, y, Math.max(0.2, near));
  }

  nearestNode(x, y, least) {
    const [nx, ny] = ["x", "y"].map((name) => this.models.nodes.get_column(name));
    let best = null;
    for (let n = 0; n < nx.length; n++) {
      const away = Math.hypot(nx[n] - x, ny[n] - y);
      if (away < least) [least, best] = [away, { node: n }];
    }
    return best;
  }

  nearestLink(x, y, least) {
    const [x0, y0, x1, y1, link] = ["x0", "y0", "x1", "y1", "link"].map((name) => this.models.links.get_column(name));
    let best = null;
    for (let k = 0; k < link.length; k++) {
      const dx = x1[k] - x0[k];
      const dy = y1[k] - y0[k];
      const along = ((x - x0[k]) * dx + (y - y0[k]) * dy) / (dx * dx + dy * dy || 1);
      const t = Math.max(0, Math.min(1, along));
      const away = Math.hypot(x0[k] + t * dx - x, y0[k] + t * dy - y);
      if (away < least) [least, best] = [away, { link: link[k] }];
    }
    return best;
  }
}
