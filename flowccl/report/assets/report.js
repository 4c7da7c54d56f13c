"use strict";
/* One view per schedule: its timeline, its machine, one selection for both, and the controls.
   Bokeh draws; the page calls `flowccl.start(number, models)` for each schedule when its models are there. */

const PLAY_MS = 8000; // the whole schedule

class View {
  constructor(number, models, facts) {
    this.number = number;
    this.models = models;
    this.facts = facts;
    this.data = new Transfers(facts, models);
    this.timeline = new Timeline(this.data, models);
    this.machine = new Machine(this.data, models);
    this.selected = null;
    this.time = 0;
    this.playing = false;
    this.frame = 0;
    this.models.finish.location = facts.finish_us;
    this.models.bound.location = facts.bound_us;
    this.colourBy(facts.colourings[0].key);
    this.controls();
    this.theme();
    this.timeline.show(facts.links);
    this.moment(0);
  }

  element(what) {
    return document.getElementById(what + "-" + this.number);
  }

  controls() {
    const on = (what, event, action) => this.element(what).addEventListener(event, action);
    on("colour", "change", (event) => {
      this.colourBy(event.target.value);
      this.timeline.draw();
      this.moment(this.time);
    });
    on("critical", "change", (event) => {
      this.timeline.outlined = event.target.checked;
      this.timeline.draw();
    });
    on("clear", "click", () => this.select(null));
    on("slider", "input", (event) => this.moment((event.target.value / 1000) * this.facts.finish_us));
    on("play", "click", () => this.play(!this.playing));
    const pick = (event) => {
      const row = event.target.closest("tr[data-link]");
      if (row) this.select({ link: Number(row.dataset.link) });
    };
    on("links", "click", pick);
    on("links", "keydown", (event) => {
      if (event.key === "Enter") pick(event);
    });
  }

  colourBy(key) {
    const choice = this.facts.colourings.find((one) => one.key === key);
    this.timeline.colouring = new Colouring(choice, this.data.transfers, this.facts);
    this.element("legend").replaceChildren(...this.timeline.colouring.legend());
  }

  /** Select a link, a node, or null for everything: in the timeline, the machine and the table. */
  select(what) {
    this.selected = what;
    const isSelected = (link) => !what || what.link === link || this.facts.link_ends[link].includes(what.node);
    const links = this.facts.links.filter(isSelected);
    this.timeline.show(links);
    this.machine.select(isSelected);
    this.element("selected").textContent = "shown: " + this.selectedName(links.length);
    for (const row of this.element("links").querySelectorAll("tr[data-link]"))
      row.setAttribute("aria-selected", String(Boolean(what) && isSelected(Number(row.dataset.link))));
  }

  selectedName(count) {
    if (!this.selected) return "all links";
    const { link, node } = this.selected;
    const name = link !== undefined ? this.facts.link_names[link] : this.facts.nodes[node];
    return name + (count ? ", " + count + (count === 1 ? " link" : " links") : ": not used");
  }

  hover(x, y) {
    const text = this.data.story(this.timeline.linkAt(y), x);
    if (text) this.element("story").textContent = text;
  }

  tapTimeline(x, y) {
    const link = this.timeline.linkAt(y);
    if (link !== undefined) this.select(this.selected ? null : { link });
    this.hover(x, y);
  }

  tapMachine(x, y) {
    this.select(this.machine.nearest(x, y));
  }

  moment(time) {
    this.time = time;
    this.models.cursor.location = time;
    const words = this.machine.moment(time, this.timeline.colouring);
    const slider = this.element("slider");
    slider.value = String(Math.round((1000 * time) / this.facts.finish_us));
    slider.setAttribute("aria-valuetext", words);
    this.element("moment").textContent = words;
  }

  play(on) {
    this.playing = on;
    this.element("play").textContent = on ? "Pause" : "Play";
    cancelAnimationFrame(this.frame);
    if (!on) return;
    if (this.time >= this.facts.finish_us) this.time = 0;
    let last = performance.now();
    const step = (now) => {
      const next = Math.min(this.time + ((now - last) / PLAY_MS) * this.facts.finish_us, this.facts.finish_us);
      last = now;
      this.moment(next);
      if (next >= this.facts.finish_us) this.play(false);
      else if (this.playing) this.frame = requestAnimationFrame(step);
    };
    this.frame = requestAnimationFrame(step);
  }

  /** Draw the timeline again in the next frame. */
  redraw() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = null;
      this.timeline.draw();
    });
  }

  theme() {
    const { bar, outline, cursor, finish, bound } = this.models;
    bar.line_color = themeColour("--page");
    outline.line_color = themeColour("--ink");
    cursor.line_color = themeColour("--accent");
    finish.line_color = themeColour("--ink");
    bound.line_color = themeColour("--good");
    this.machine.theme();
  }
}

const flowccl = {
  views: [],
  plainFigures: [], // figures without a view, as in the report of a catalog

  start(number, models) {
    this.facts ??= JSON.parse(document.getElementById("facts").textContent);
    this.views[number] = new View(number, models, this.facts.schedules[number]);
    const { machine, timeline, flight } = models;
    [machine, timeline, flight].forEach(themeFigure);
    if (this.views.filter(Boolean).length === this.facts.schedules.length) this.ready();
  },

  plain(figure) {
    this.plainFigures.push(figure);
    themeFigure(figure);
    this.ready();
  },

  ranged(number) {
    this.views[number]?.redraw();
  },

  ready() {
    this.markUse();
    document.documentElement.dataset.ready = "yes";
  },

  figures() {
    return [...this.plainFigures, ...this.views.flatMap(({ models: m }) => [m.machine, m.timeline, m.flight])];
  },

  markUse() {
    for (const mark of document.querySelectorAll("i[data-use]"))
      mark.style.background = useColour(Number(mark.dataset.use));
  },

  setTheme(name) {
    document.documentElement.dataset.theme = name;
    this.views.forEach((view) => view.theme());
    this.figures().forEach(themeFigure);
    this.markUse();
  },
};

/** Put a picture of each figure beside it for printing: canvases keep the width and the colours of the screen. */
function showPaper() {
  for (const figure of flowccl.figures()) {
    const view = Bokeh.index.get_one(figure);
    for (const part of view.children()) part.set_visuals?.(); // else new colours come after printing
    const picture = document.createElement("img");
    picture.className = "paper";
    picture.src = view.export("png").canvas.toDataURL();
    view.el.closest(".picture").append(picture);
  }
}

{
  // light or dark as the system says, until the button says otherwise; paper is light
  const root = document.documentElement;
  const media = matchMedia("(prefers-color-scheme: dark)");
  const ofSystem = () => (media.matches ? "dark" : "light");
  let onScreen = "light";
  root.dataset.theme = ofSystem();
  media.addEventListener("change", () => flowccl.setTheme(ofSystem()));
  addEventListener("beforeprint", () => {
    onScreen = root.dataset.theme;
    flowccl.setTheme("light");
    showPaper();
  });
  addEventListener("afterprint", () => {
    document.querySelectorAll("img.paper").forEach((picture) => picture.remove());
    flowccl.setTheme(onScreen);
  });
  addEventListener("DOMContentLoaded", () =>
    document.getElementById("theme").addEventListener("click", () =>
      flowccl.setTheme(root.dataset.theme === "dark" ? "light" : "dark"),
    ),
  );
}
