"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const COLOURS = 8;

  const make = (name, parent, attributes = {}, text = "") => {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text) node.textContent = text;
    parent.append(node);
    return node;
  };
  const draw = (name, parent, attributes) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    parent.append(node);
    return node;
  };
  // As many digits as tell a part in a hundred of the number's range: what is 3e-17 in one of 0.1 reads as 0.
  const shown = (value, span) => {
    if (value === null) return "NaN";
    if (Number.isInteger(value)) return String(value).replace("-", "\u2212");
    const digits = Math.min(8, Math.max(0, 3 - Math.ceil(Math.log10(span || 1))));
    const text = Math.abs(value) >= 1e6 || digits > 6 ? value.toExponential(1) : value.toFixed(digits);
    return (Number(text) === 0 ? "0" : text).replace("-", "\u2212");
  };
  const lastAt = (list, step, of) => { let k = 0; while (k + 1 < list.length && of(list[k + 1]) <= step) k++; return k; };

  const traces = (box, data) => {
    const numbers = data.numbers.slice(0, COLOURS);
    if (!numbers.length || data.steps.length < 2) { box.remove(); return () => {}; }
    const width = data.steps.length - 1, svg = draw("svg", box, { viewBox: `0 0 ${width} 100`, preserveAspectRatio: "none", "aria-hidden": "true" });
    numbers.forEach((number, k) => {
      const span = number.high - number.low, runs = [[]];
      number.values.forEach((value, x) => value === null ? runs.push([]) : runs[runs.length - 1].push(`${x},${(96 - 92 * (value - number.low) / span).toFixed(1)}`));
      for (const run of runs) if (run.length) draw("polyline", svg, { points: run.join(" "), style: `stroke:var(--c${k})` });
    });
    const line = draw("line", svg, { y1: 0, y2: 100 });
    return (place) => { line.setAttribute("x1", place); line.setAttribute("x2", place); };
  };

  const values = (list, data) => {
    const rows = data.numbers.map((number, k) => {
      const row = make("div", list), name = make("dt", row);
      make("i", name, k < COLOURS ? { style: `background:var(--c${k})` } : {});
      make("span", name, { title: number.name }, number.name);
      const gauge = make("div", row, { class: "gauge", "aria-hidden": "true" }), bar = make("b", gauge);
      return { number, bar, value: make("dd", row) };
    });
    let reward = null;
    if (data.reward) {
      const row = make("div", list), name = make("dt", row);
      make("i", name); make("span", name, {}, "reward"); make("span", row); reward = make("dd", row);
    }
    return (place) => {
      for (const { number, bar, value } of rows) {
        const now = number.values[place], span = number.high - number.low;
        const from = Math.min(Math.max(0, number.low), number.high), known = now === null ? from : now;
        bar.style.left = `${100 * (Math.min(from, known) - number.low) / span}%`;
        bar.style.width = `${Math.max(100 * Math.abs(known - from) / span, 2)}%`;
        value.textContent = shown(now, span);
      }
      if (reward) reward.textContent = shown(data.reward[place], Math.abs(data.reward[place]) || 1);
    };
  };

  const player = (card) => {
    const data = JSON.parse(card.querySelector("script").textContent);
    const slider = card.querySelector("input[type=range]"), output = card.querySelector("output"), button = card.querySelector(".play");
    const frames = [...card.querySelectorAll(".views .frame")], told = [...card.querySelectorAll(".told")];
    const mark = traces(card.querySelector(".traces"), data), list = values(card.querySelector(".values"), data);
    const show = () => {
      const place = Number(slider.value), step = data.steps[place];
      output.textContent = `step ${step}`;
      slider.setAttribute("aria-valuetext", `step ${step} of ${data.length}`);
      frames.forEach((frame, k) => {
        const view = data.views[k], at = lastAt(view.steps, step, (s) => s), [x, y] = view.places[at];
        frame.style.backgroundPosition = `${x}% ${y}%`;
        frame.dataset.frame = at;
      });
      data.texts.forEach((texts, k) => {
        const text = texts[lastAt(texts, place, (t) => t[0])][1];
        told[k].textContent = text || "no instruction";
        told[k].classList.toggle("empty", !text);
      });
      mark(place); list(place);
    };
    let timer = 0;
    const stop = () => { clearInterval(timer); timer = 0; button.setAttribute("aria-pressed", "false"); };
    const go = (place) => { slider.value = place; show(); };
    button.addEventListener("click", () => {
      if (timer) { stop(); return; }
      if (Number(slider.value) >= Number(slider.max)) go(0);
      button.setAttribute("aria-pressed", "true");
      timer = setInterval(() => { if (Number(slider.value) >= Number(slider.max)) stop(); else go(Number(slider.value) + 1); }, 1000 / data.rate);
    });
    slider.addEventListener("input", () => { stop(); show(); });
    card.querySelectorAll(".film .frame").forEach((frame) => frame.addEventListener("click", () => {
      stop(); go(lastAt(data.steps, Number(frame.dataset.step), (s) => s));
    }));
    const svg = card.querySelector(".traces svg");
    if (svg) svg.addEventListener("pointerdown", (event) => {
      const box = svg.getBoundingClientRect();
      stop(); go(Math.round((event.clientX - box.left) / box.width * Number(slider.max)));
    });
    show();
  };

  document.querySelectorAll(".player").forEach(player);

  document.querySelectorAll(".search").forEach((field) => {
    const lines = [...field.closest(".card").querySelectorAll(".texts li")], count = field.closest(".card").querySelector(".matches");
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
      let found = 0;
      for (const line of lines) {
        const text = line.textContent.toLowerCase(), good = words.every((word) => text.includes(word));
        line.hidden = !good; found += good;
      }
      const more = field.closest(".card").querySelector("details");
      if (more && words.length) more.open = true;
      count.textContent = words.length ? `${found} found` : "";
    });
  });

  addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((details) => { details.open = true; }));
})();
