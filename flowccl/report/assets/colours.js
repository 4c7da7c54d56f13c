"use strict";
/* Colours: of categories, of the use of links, and of the light or dark theme. */

const PALETTE = [
  "#4c78a8", "#f58518", "#54a24b", "#b5498f", "#7a5fd0", "#3fa7a0", "#c8553d", "#9a8a2f", "#6b7f94", "#d07fb0",
];

/** The colour of a category; many categories are a ramp of hues. */
function categoryColour(index, count) {
  if (count <= PALETTE.length) return PALETTE[index];
  const hue = (index / count) * 320;
  return "hsl(" + hue.toFixed(0) + ",62%," + (index % 2 ? 42 : 56) + "%)";
}

/** Red, green and blue of a colour that `categoryColour` returns. */
function rgb(text) {
  if (text[0] === "#") return [1, 3, 5].map((k) => parseInt(text.slice(k, k + 2), 16));
  const [h, s, l] = text.match(/[\d.]+/g).map(Number);
  const part = (n) => {
    const k = (n + h / 30) % 12;
    const a = (s / 100) * Math.min(l / 100, 1 - l / 100);
    return Math.round(255 * (l / 100 - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4)];
}

/** The colour of a link: grey if it is unused, then from blue to red. */
function useColour(use) {
  const dark = document.documentElement.dataset.theme === "dark";
  if (!use) return dark ? "#46505c" : "#c4ccd6";
  return "hsl(" + (215 - 205 * Math.min(1, use)).toFixed(0) + ",70%," + (dark ? 60 : 42) + "%)";
}

/** A colour of the style sheet. */
function themeColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Give a figure the colours of the theme. */
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

/** How transfers are coloured: a category for each transfer, and the colours and names of the categories. */
class Colouring {
  constructor(choice, transfers, facts) {
    const column = transfers[choice.column];
    const values = [...new Set(column)].sort((a, b) => a - b);
    const place = new Map(values.map((value, k) => [value, k]));
    this.what = choice.what;
    this.category = Int32Array.from(column, (value) => place.get(value));
    this.colours = values.map((_, k) => categoryColour(k, values.length));
    this.rgb = this.colours.map(rgb);
    this.names = values.map((value) => {
      if (choice.names === "nodes") return value < 0 ? "several GPUs" : facts.nodes[value];
      return choice.names === "chunks" ? "chunk " + value : choice.names[value];
    });
  }

  of(transfer) {
    return this.colours[this.category[transfer]];
  }

  legend() {
    const step = Math.max(1, Math.ceil(this.colours.length / 16));
    const words = document.createElement("span");
    words.textContent = "colour: " + this.what + (step > 1 ? ", one in " + step + " listed" : "");
    const parts = [words];
    for (let k = 0; k < this.colours.length; k += step) {
      const part = document.createElement("span");
      const mark = document.createElement("i");
      mark.style.background = this.colours[k];
      part.append(mark, this.names[k]);
      parts.push(part);
    }
    return parts;
  }
}
