"use strict";
/* The data of a schedule in columns, and the story of each transfer in words. */

const KINDS = [
  "the link",
  "its data",
  "a limit",
  "a GPU that still reduces",
  "buffer space",
  "the order of a reduction",
]; // as explain.KINDS in Python

function us(t) {
  if (t >= 1e6) return (t / 1e6).toPrecision(4) + " s";
  return t >= 1e3 ? (t / 1e3).toPrecision(5) + " ms" : Number(t.toPrecision(5)) + " us";
}

function bytes(n) {
  for (const [unit, name] of [[1e9, "GB"], [1e6, "MB"], [1e3, "KB"]])
    if (n >= unit) return (n / unit).toPrecision(4) + " " + name;
  return n + " B";
}

/** The first index in [low, high) with a value above `value`, in a sorted part of a column. */
function firstAfter(column, low, high, value) {
  while (low < high) {
    const mid = (low + high) >> 1;
    if (column[mid] > value) high = mid;
    else low = mid + 1;
  }
  return low;
}

/** The columns of a schedule. Hops (transfers on links) are sorted by link and start. */
class Transfers {
  constructor(facts, models) {
    const columns = (source, names) => Object.fromEntries(names.map((name) => [name, models[source].get_column(name)]));
    this.facts = facts;
    this.hops = columns("hops", ["link", "start", "end", "transfer"]);
    this.transfers = columns("transfers", facts.transfer_columns);
    this.arrivals = columns("arrivals", ["gpu", "time", "part"]);
    this.range = new Map(); // link: first hop, and the hop after its last one
    const link = this.hops.link;
    for (let k = 0; k < link.length;) {
      let end = k;
      while (end < link.length && link[end] === link[k]) end++;
      this.range.set(link[k], [k, end]);
      k = end;
    }
    this.reach = new Float64Array(link.length); // the latest end so far on the link, for lookups
    for (const [a, b] of this.range.values()) {
      let last = -1;
      for (let k = a; k < b; k++) this.reach[k] = last = Math.max(last, this.hops.end[k]);
    }
  }

  /** What a link does at a time: the story of a transfer, or why the link is idle; null outside the schedule. */
  story(link, time) {
    const found = this.range.get(link);
    if (!found || time < 0 || time > this.facts.finish_us) return null;
    const name = this.facts.link_names[link];
    const k = firstAfter(this.hops.start, found[0], found[1], time) - 1;
    if (k >= found[0] && this.hops.end[k] >= time) return name + ": " + this.transfer(this.hops.transfer[k]);
    if (k + 1 >= found[1]) return name + ": not needed any more after " + us(this.hops.end[found[1] - 1]) + ".";
    return name + ": idle until " + us(this.hops.start[k + 1]) + "; " + this.reason(this.hops.transfer[k + 1]) + ".";
  }

  /** Why a link is idle before a transfer. */
  reason(next) {
    const cause = this.transfers.cause[next];
    const before = this.transfers.before[next];
    if (before < 0) return "the next transfer could have started earlier";
    const what = cause === 0 ? "another link of its route, busy" : KINDS[cause] + ", which comes";
    return "the next transfer waits for " + what + " with transfer " + before;
  }

  /** Chunk, bytes, way, start, arrival and wait of a transfer. */
  transfer(k) {
    const t = this.transfers;
    const node = (n, count) => this.facts.nodes[n] + (count > 1 ? " and " + (count - 1) + " more" : "");
    const several = t.chunks[k] > 1 ? "message of " + t.chunks[k] + " chunks from " : "";
    const origin = t.source[k] < 0 ? "reduced from several GPUs" : "source " + node(t.source[k]);
    const waited = t.before[k] < 0 ? "nothing" : KINDS[t.cause[k]] + " (transfer " + t.before[k] + ")";
    return [
      "transfer " + t.number[k] + ", " + several + "chunk " + t.chunk[k] + " (" + bytes(t.bytes[k]) + ", " + origin + ")",
      " from " + node(t.src[k], t.roots[k]) + " to " + node(t.dst[k], t.ends[k]),
      t.reduce[k] ? ", reduced there" : "",
      "; starts at " + us(t.start[k]) + ", arrives at " + us(t.arrival[k]),
      "; waited for " + waited,
      t.idle[k] > 0 ? ", starts " + us(t.idle[k]) + " later than it could" : "",
      t.critical[k] ? "; on the critical path." : "; slack " + us(t.slack[k]) + ".",
    ].join("");
  }
}
