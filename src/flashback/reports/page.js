"use strict";
// Everything is drawn from the data of this page. Text from files only ever becomes text nodes.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const ARMS = Object.keys(data.arms);
  const NAMESPACE = document.getElementById("drawing").namespaceURI; // so that the page names no address at all
  const tip = document.getElementById("tip");
  const state = { setting: document.querySelector("[role=tab]").dataset.setting, pairing: 0 };
  document.body.dataset.setting = state.setting; // without a script all settings are shown, each with its heading
  const $$ = (selector, root = document) => [...root.querySelectorAll(selector)];
  const $ = (selector, root = document) => root.querySelector(selector);
  const pairing = () => data.pairings[state.pairing];
  const view = () => pairing().views[state.setting];
  const known = (value) => value !== null && value !== undefined;
  const fixed = (value, digits = 2) => (known(value) ? value.toFixed(digits) : "–");
  const signed = (value) => (value >= 0 ? "+" : "") + fixed(value);
  const short = (value) => (known(value) ? String(Number(value.toPrecision(3))) : "–");

  // ---------------------------------------------------------------- elements

  function html(name, text, attributes = {}) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    if (text !== undefined) node.textContent = text;
    return node;
  }

  function svg(name, attributes = {}, ...children) {
    const node = document.createElementNS(NAMESPACE, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    for (const child of children) node.append(child);
    return node;
  }

  const text = (content, x, y, kind = "") => svg("text", { x, y, class: kind }, content);
  const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });

  // Arms differ in shape and dash, not in colour alone: the host is a hollow circle, flashback a full square.
  function marker(arm, x, y, size = 4) {
    return arm === "host"
      ? svg("circle", { cx: x, cy: y, r: size, class: "mark" })
      : svg("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size, class: "mark" });
  }

  function legend(entries) {
    const box = html("div", undefined, { class: "legend" });
    for (const [label, kind, draw] of entries) {
      const entry = html("span");
      const swatch = svg("svg", { viewBox: "0 0 34 14", "aria-hidden": "true" });
      swatch.append(svg("g", { class: kind }, ...draw()));
      entry.append(swatch, label);
      box.append(entry);
    }
    return box;
  }

  const armLegend = (arms) =>
    legend(arms.map((arm) => [data.arms[arm], arm, () => [svg("path", { d: "M0 7H34", class: "line" }), marker(arm, 17, 7)]]));

  // ---------------------------------------------------------------- scales

  function ticks(low, high, count = 6) {
    const rough = (high - low || 1) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
    const values = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) values.push(Number((k * step).toPrecision(12)));
    return values;
  }

  // Exponents of round numbers: 1, 10, 100, with 2 and 5 between them where there is room.
  function powers(low, high) {
    const factors = high - low < 2 ? [1, 2, 5] : [1], values = [];
    for (let power = Math.floor(low); power <= high; power++) values.push(...factors.map((factor) => power + Math.log10(factor)));
    return values.filter((value) => value >= low && value <= high);
  }

  function range(values, padding = 0.08, least = 1) {
    const finite = values.filter(Number.isFinite);
    let low = Math.min(...finite), high = Math.max(...finite);
    const gap = Math.max((high - low) * padding, (least - (high - low)) / 2, 0);
    return [low - gap, high + gap];
  }

  const scale = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);

  // ---------------------------------------------------------------- pointing at charts: mouse, touch and keys

  let shown = null;

  function hide() {
    tip.hidden = true;
    if (shown) shown.remove();
    shown = null;
  }

  function show(canvas, stop) {
    if (shown) shown.remove();
    shown = svg("g");
    if (stop.cursor) shown.append(line(stop.x, stop.cursor[0], stop.x, stop.cursor[1], "cursor"));
    else if (stop.box) shown.append(svg("rect", { ...stop.box, class: "here" }));
    else shown.append(svg("circle", { cx: stop.x, cy: stop.y, r: 8, class: "here" }));
    canvas.append(shown);
    tip.textContent = stop.lines.join("\n");
    tip.hidden = false;
    const frame = canvas.getBoundingClientRect(), size = tip.getBoundingClientRect();
    const left = Math.min(Math.max(frame.left + stop.x + 14, 6), innerWidth - size.width - 6);
    const above = frame.top + stop.y - size.height - 14;
    tip.style.left = left + "px";
    tip.style.top = (above > 6 ? above : Math.min(frame.top + stop.y + 18, innerHeight - size.height - 6)) + "px";
  }

  // `above` finds the stop one row up (-1) or down (+1); without rows that is the stop before or after.
  function point(canvas, stops, above = (at, step) => at + step) {
    if (!stops.length) return;
    let at = stops.length - 1;
    const go = (index) => show(canvas, stops[(at = Math.max(0, Math.min(stops.length - 1, index)))]);
    const follow = (event) => {
      const frame = canvas.getBoundingClientRect();
      const x = event.clientX - frame.left, y = event.clientY - frame.top;
      const far = (stop) => (stop.cursor ? Math.abs(stop.x - x) : Math.hypot(stop.x - x, stop.y - y));
      let best = 0;
      stops.forEach((stop, index) => { if (far(stop) < far(stops[best])) best = index; });
      go(best);
    };
    const keys = { ArrowRight: () => at + 1, ArrowLeft: () => at - 1, ArrowDown: () => above(at, 1), ArrowUp: () => above(at, -1), Home: () => 0, End: () => stops.length - 1 };
    canvas.addEventListener("pointermove", follow);
    canvas.addEventListener("pointerdown", follow);
    canvas.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hide(); });
    canvas.addEventListener("focus", () => { if (canvas.matches(":focus-visible")) go(at); });
    canvas.addEventListener("blur", hide);
    canvas.addEventListener("keydown", (event) => {
      if (!keys[event.key]) return;
      event.preventDefault();
      go(keys[event.key]());
    });
  }

  document.addEventListener("pointerdown", (event) => { if (!event.target.closest(".plot")) hide(); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  addEventListener("scroll", () => { if (!tip.hidden && !document.activeElement.closest(".plot")) hide(); }, { passive: true });

  function canvas(box, height, label) {
    const width = Math.max(240, Math.floor(box.clientWidth));
    const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, tabindex: 0, role: "img", "aria-label": label });
    box.append(node);
    return [node, width];
  }

  // ---------------------------------------------------------------- axes and curves

  function frame(node, width, height, x, y, names) {
    const inner = { left: 54, right: width - 10, top: 16, bottom: height - 38 };
    const sx = scale(...x.range, inner.left, inner.right), sy = scale(...y.range, inner.bottom, inner.top);
    for (const value of y.ticks) {
      node.append(line(inner.left, sy(value), inner.right, sy(value), "grid-line"));
      node.append(text(y.label ? y.label(value) : String(value), inner.left - 6, sy(value) + 4, "end"));
    }
    for (const value of x.ticks) node.append(text(String(value), sx(value), inner.bottom + 17, "middle"));
    node.append(line(inner.left, inner.bottom, inner.right, inner.bottom, "axis"));
    node.append(text(names[0], (inner.left + inner.right) / 2, height - 4, "middle"));
    if (names[1]) node.append(svg("text", { transform: `translate(12 ${(inner.top + inner.bottom) / 2}) rotate(-90)`, class: "middle" }, names[1]));
    return { ...inner, x: sx, y: sy };
  }

  // A gap where a value is missing, and at the given starts.
  function path(points, breaks = () => false) {
    let drawing = false, out = "";
    points.forEach(([x, y], index) => {
      if (!Number.isFinite(y)) return void (drawing = false);
      out += (drawing && !breaks(index) ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1);
      drawing = true;
    });
    return out;
  }

  function drawCurve(box) {
    const { curve, steps, difference } = view(), arms = Object.keys(curve);
    const [node, width] = canvas(box, 300, "Average accuracy after each task. Arrow keys move from task to task.");
    const [low, high] = range(arms.flatMap((arm) => [...curve[arm].low, ...curve[arm].high]), 0.1, 4);
    const reach = [Math.max(0, low), Math.min(100, high)];
    const whole = ticks(0.5, steps[steps.length - 1] + 0.5, Math.min(steps.length, Math.floor(width / 45))).filter((value) => Number.isInteger(value) && value > 0);
    const area = frame(node, width, 300, { range: [0.7, steps[steps.length - 1] + 0.3], ticks: whole }, { range: reach, ticks: ticks(...reach) }, ["tasks learned", "average accuracy, %"]);
    for (const arm of arms) {
      const { mean, low: bottom, high: top } = curve[arm];
      const at = (values) => values.map((value, k) => [area.x(steps[k]), area.y(value)]);
      const ring = [...at(top), ...at(bottom).reverse()];
      const group = svg("g", { class: arm }, svg("path", { d: path(ring) + "Z", class: "band" }), svg("path", { d: path(at(mean)), class: "line" }));
      if (steps.length <= 40) for (const [x, y] of at(mean)) group.append(marker(arm, x, y));
      node.append(group);
    }
    point(node, steps.map((step, k) => ({
      x: area.x(step), y: area.y(Math.max(...arms.map((arm) => curve[arm].mean[k]))), cursor: [area.top, area.bottom],
      lines: [`after task ${step}`, ...arms.map((arm) => `${data.arms[arm]} ${fixed(curve[arm].mean[k])} (${fixed(curve[arm].low[k])} to ${fixed(curve[arm].high[k])})`),
        ...(difference ? [`difference ${signed(difference.curve[k])}`] : [])],
    })));
    box.append(armLegend(arms));
  }

  function drawBalance(box) {
    const { balance } = view(), arms = Object.keys(balance);
    const all = arms.flatMap((arm) => balance[arm]);
    if (!all.length) return void box.append(html("p", "A single task cannot be forgotten.", { class: "soft" }));
    const [node, width] = canvas(box, 300, "Forgetting against new-task accuracy, one point per task and arm. Arrow keys move from point to point.");
    const xs = range(all.map((p) => p[0]), 0.1, 4), ys = range(all.map((p) => p[1]), 0.12, 4);
    const area = frame(node, width, 300, { range: xs, ticks: ticks(...xs, Math.floor(width / 80)) }, { range: ys, ticks: ticks(...ys) }, ["accuracy when new, % (plasticity)", "forgetting, %"]);
    if (arms.length > 1) balance.host.forEach((p, k) => {
      const q = balance.flashback[k];
      node.append(line(area.x(p[0]), area.y(p[1]), area.x(q[0]), area.y(q[1]), "link"));
    });
    const stops = [];
    for (const arm of arms) {
      const group = svg("g", { class: arm });
      balance[arm].forEach(([x, y], k) => {
        group.append(marker(arm, area.x(x), area.y(y), 5));
        const last = arm === arms[arms.length - 1];
        if (last && balance[arm].length <= 12) node.append(text(String(k + 1), area.x(x) + 9, area.y(y) + 4));
        stops.push({ x: area.x(x), y: area.y(y), task: k, lines: [`task ${k + 1}, ${data.arms[arm]}`, `accuracy when new ${fixed(x)}`, `forgetting ${fixed(y)}`] });
      });
      node.append(group);
    }
    stops.sort((a, b) => a.task - b.task);
    point(node, stops, (at, step) => at + step * arms.length);
    box.append(armLegend(arms));
  }

  // ---------------------------------------------------------------- heat maps

  // Cividis: even in lightness, and the same to people who do not tell red from green.
  const CIVIDIS = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
  const mix = (a, b, share) => a.map((value, k) => Math.round(value + (b[k] - value) * share));
  const css = (colour) => `rgb(${colour.join(",")})`;
  const readable = ([r, g, b]) => (0.299 * r + 0.587 * g + 0.114 * b > 140 ? "#111" : "#fff");

  function variable(name) {
    const digits = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((k) => parseInt(digits.slice(k, k + 2), 16));
  }

  function sequential(share) {
    const at = Math.max(0, Math.min(0.9999, share)) * (CIVIDIS.length - 1);
    return mix(CIVIDIS[Math.floor(at)], CIVIDIS[Math.floor(at) + 1], at % 1);
  }

  const diverging = (share) => mix(variable("--neutral"), variable(share > 0 ? "--flashback" : "--host"), Math.min(1, Math.abs(share)));

  // `words` names the cells: the label of the chart, of a row, of a column, and the line below.
  const OF_TASKS = ["accuracy on each task after each task", "after task", "on task", "accuracy on task …, after task … (downwards)"];

  function heatMap(box, title, matrix, labels, colour, format, words = OF_TASKS) {
    const panel = html("div");
    box.append(panel);
    panel.append(html("h4", title));
    const plot = html("div", undefined, { class: "plot" });
    panel.append(plot);
    const count = matrix.length, width = Math.max(200, plot.clientWidth);
    const letters = Math.max(...labels.map((label) => String(label).length)), left = Math.min(width / 3, Math.max(30, 8 * letters + 8));
    const size = Math.min((width - left) / count, 64), height = Math.ceil(size * count + 34);
    const fits = (label, space) => (String(label).length * 7 <= space ? String(label) : String(label).slice(0, Math.max(1, Math.floor(space / 7) - 1)) + "…");
    const [node] = canvas(plot, height, `${title}: ${words[0]}. Arrow keys move from cell to cell.`);
    const every = Math.ceil(26 / size), stops = [];
    matrix.forEach((row, k) => {
      if (k % Math.ceil(14 / size) === 0) node.append(text(fits(labels[k], left - 6), left - 6, size * (k + 0.5) + 4, "end"));
      if (k % every === 0) node.append(text(fits(labels[k], size * every - 4), left + size * (k + 0.5), size * count + 15, "middle"));
      row.forEach((value, j) => {
        const x = left + size * j, y = size * k, fill = colour(value);
        node.append(svg("rect", { x: x + 0.5, y: y + 0.5, width: Math.max(1, size - 1), height: Math.max(1, size - 1), fill: css(fill) }));
        if (size >= 30) {
          const label = text(format(value, size >= 38 ? 1 : 0), x + size / 2, y + size / 2 + 4, "cell-text");
          label.style.fill = readable(fill);
          node.append(label);
        }
        stops.push({ x: x + size / 2, y: y + size / 2, box: { x, y, width: size, height: size }, row: k, column: j, lines: [`${title}, ${words[1]} ${labels[k]}`, `${words[2]} ${labels[j]}: ${format(value, 2)}`] });
      });
    });
    node.append(text(words[3], left, height - 3));
    point(node, stops, (at, step) => {
      const next = stops.findIndex((stop) => stop.row === stops[at].row + step && stop.column === stops[at].column);
      return next < 0 ? at : next;
    });
  }

  function drawMatrices(box) {
    const { matrix, kept, difference } = view(), arms = Object.keys(matrix);
    const panels = html("div", undefined, { class: "panels" });
    box.append(panels);
    for (const arm of arms) heatMap(panels, data.arms[arm], matrix[arm], kept, (value) => sequential(value / 100), fixed);
    if (!difference) return;
    const most = Math.max(1, ...difference.matrix.flat().map(Math.abs));
    heatMap(panels, "difference, flashback − host", difference.matrix, kept, (value) => diverging(value / most), (value, digits) => (value >= 0 ? "+" : "") + value.toFixed(digits));
  }

  const OF_CLASSES = ["share of each predicted class among the images of each true class", "true class", "predicted", "predicted class …, true class … (downwards)"];

  function drawConfusion(box) {
    const confusion = pairing().confusion, arms = Object.keys(confusion);
    if (!arms.length) return void box.append(html("p", "These records have no confusion matrix, or it is too large for the page.", { class: "soft" }));
    const panels = html("div", undefined, { class: "panels two" });
    box.append(panels);
    for (const arm of arms) heatMap(panels, data.arms[arm], confusion[arm].matrix, confusion[arm].classes, (value) => sequential((value || 0) / 100), fixed, OF_CLASSES);
  }

  // ---------------------------------------------------------------- losses

  const DASHES = ["", "7 4", "2 3", "9 3 2 3", "4 2", "1 4"];

  function drawLosses(box) {
    const losses = pairing().losses, arms = Object.keys(losses);
    if (!arms.length) return void box.append(html("p", "The logs of these runs hold no losses.", { class: "soft" }));
    const names = [...new Set(arms.flatMap((arm) => Object.keys(losses[arm].terms)))];
    const values = arms.flatMap((arm) => Object.values(losses[arm].terms).flat()).filter(known);
    const positive = values.filter((value) => value > 0);
    const logarithmic = positive.length > 0 && Math.min(...values) >= 0;
    const height = logarithmic ? Math.log10 : (value) => value;
    const reach = range((logarithmic ? positive : values).map(height), 0.06, logarithmic ? 0.5 : 0);
    const yTicks = logarithmic ? powers(...reach) : ticks(...reach);
    const panels = html("div", undefined, { class: "panels two" });
    box.append(panels);
    for (const arm of arms) {
      const { segments, x, terms } = losses[arm];
      const panel = html("div"), plot = html("div", undefined, { class: "plot" });
      panels.append(panel);
      panel.append(html("h4", data.arms[arm]), plot);
      const [node, width] = canvas(plot, 270, `Loss terms over epochs, ${data.arms[arm]}. Arrow keys move through the run.`);
      const end = segments[segments.length - 1][3];
      const area = frame(node, width, 270, { range: [0, end], ticks: ticks(0, end, Math.floor(width / 70)).filter(Number.isInteger) }, { range: reach, ticks: yTicks, label: (value) => short(logarithmic ? 10 ** value : value) }, ["epochs of the whole run", logarithmic ? "loss (log scale)" : "loss"]);
      segments.forEach(([task, stage, start, stop], k) => {
        const same = k > 0 && segments[k - 1][0] === task;
        if (stage === data.phases[0]) node.append(svg("rect", { x: area.x(start), y: area.top, width: area.x(stop) - area.x(start), height: area.bottom - area.top, class: "phase" }));
        const ends = segments.filter((segment) => segment[0] === task).map((segment) => segment[3]), middle = (start + Math.max(...ends)) / 2;
        if (!same && area.x(Math.max(...ends)) - area.x(start) > 46) node.append(text(`task ${task + 1}`, area.x(middle), area.top - 2, "middle"));
        if (k > 0) node.append(line(area.x(start), area.top, area.x(start), area.bottom, same ? "switch" : "edge"));
      });
      const startOf = (value) => segments.findIndex((segment) => value <= segment[3]);
      names.forEach((name, n) => {
        if (!terms[name]) return;
        const points = terms[name].map((value, k) => [area.x(x[k]), known(value) && !(logarithmic && value <= 0) ? area.y(height(value)) : NaN]);
        const shape = svg("path", { d: path(points, (k) => startOf(x[k]) !== startOf(x[k - 1])), class: "line" });
        shape.style.strokeDasharray = DASHES[n % DASHES.length];
        const group = svg("g", { class: `t${n % 6}` }, shape);
        if (points.length <= 60) for (const [px, py] of points) if (Number.isFinite(py)) group.append(svg("circle", { cx: px, cy: py, r: 2, class: "bar-fill" }));
        node.append(group);
      });
      point(node, x.map((value, k) => {
        const [task, stage, start, stop] = segments[startOf(value)];
        return { x: area.x(value), y: area.top + 20, cursor: [area.top, area.bottom],
          lines: [`task ${task + 1}, ${stage}, epoch ${short(value - start)} of ${stop - start}`, ...Object.keys(terms).filter((name) => known(terms[name][k])).map((name) => `${name} ${short(terms[name][k])}`)] };
      }));
    }
    box.append(legend(names.map((name, n) => [name, `t${n % 6}`, () => {
      const sample = svg("path", { d: "M0 7H34", class: "line" });
      sample.style.strokeDasharray = DASHES[n % DASHES.length];
      return [sample];
    }])));
  }

  // ---------------------------------------------------------------- similarity of representations

  function drawSimilarity(box, similarity) {
    const panels = html("div", undefined, { class: "panels two" });
    box.append(panels);
    for (const [images, title] of [["old", "images of old tasks"], ["new", "images of the last task"]]) {
      const arms = ARMS.filter((arm) => similarity.values[images][arm]);
      const panel = html("div"), plot = html("div", undefined, { class: "plot" });
      panels.append(panel);
      panel.append(html("h4", title), plot);
      const [node, width] = canvas(plot, 240, `Similarity with the reference by layer, ${title}. Arrow keys move from bar to bar.`);
      const count = similarity.layers.length;
      const area = frame(node, width, 240, { range: [0, count], ticks: [] }, { range: [0, 1], ticks: [0, 0.25, 0.5, 0.75, 1] }, ["layer", "linear CKA"]);
      const slot = area.x(1) - area.x(0), bar = Math.min(30, (slot * 0.7) / Math.max(1, arms.length)), stops = [];
      similarity.layers.forEach((layer, k) => {
        const room = Math.max(3, Math.floor(slot / 7));
        node.append(text(layer.length > room ? "…" + layer.slice(1 - room) : layer, area.x(k + 0.5), area.bottom + 17, "middle"));
        arms.forEach((arm, n) => {
          const value = similarity.values[images][arm][k], x = area.x(k + 0.5) + (n - arms.length / 2) * bar + 2;
          node.append(svg("g", { class: arm }, svg("rect", { x, y: area.y(value), width: bar - 4, height: area.bottom - area.y(value), class: "bar-fill" })));
          stops.push({ x: x + bar / 2, y: area.y(value), lines: [layer, `${data.arms[arm]} ${fixed(value, 3)}`] });
        });
      });
      point(node, stops, (at, step) => at + step * arms.length);
    }
    box.append(armLegend(ARMS));
  }

  // ---------------------------------------------------------------- frontiers

  function drawFrontier(box, frontier) {
    const curves = Object.entries(frontier[state.setting]).map(([name, one]) => [name, one.points.filter((p) => known(p.new[0])), one.outline]);
    const all = curves.flatMap(([, points]) => points);
    if (!all.length) return void box.append(html("p", "No point has all its runs.", { class: "soft" }));
    const ends = (axis) => all.flatMap((p) => [-1, 1].map((side) => p[axis][0] + side * (p[axis][1] ?? 0)));
    const xs = range(ends("new"), 0.06, 2), ys = range(ends("old"), 0.06, 2), stops = [];
    const [node, width] = canvas(box, 400, "Accuracy on old tasks against accuracy on new ones, one point per curve and weight. Arrow keys move from point to point.");
    const area = frame(node, width, 400, { range: xs, ticks: ticks(...xs, Math.floor(width / 80)) }, { range: ys, ticks: ticks(...ys) }, ["accuracy on the new task, % (plasticity)", "accuracy on old tasks, % (stability)"]);
    const look = (n) => (n ? `t${n % 6}` : "host"), sign = (n, x, y) => (n ? marker("flashback", x, y) : svg("circle", { cx: x, cy: y, r: 4, class: "mark full" }));
    curves.forEach(([name, points, outline], n) => {
      const at = points.map((p) => [area.x(p.new[0]), area.y(p.old[0])]);
      const group = svg("g", { class: look(n) }, svg("path", { d: path(at), class: "thread" }), svg("path", { d: path(outline.map(([x, y]) => [area.x(x), area.y(y)])), class: "line" }));
      points.forEach((p, k) => {
        const [x, y] = at[k], [right, up] = [area.x(p.new[0] + (p.new[1] ?? 0)), area.y(p.old[0] + (p.old[1] ?? 0))];
        group.append(line(2 * x - right, y, right, y, "spread"), line(x, 2 * y - up, x, up, "spread"));
        const mark = sign(n, x, y);
        if (p.dominated) mark.setAttribute("class", "mark hollow");
        group.append(mark);
        if (!n) node.append(text(String(p.weight), x - 8, y + 16, "end"));
        stops.push({ x, y, lines: [`${name}, weight ${p.weight}${p.dominated ? " (dominated)" : ""}`, `new task ${fixed(p.new[0])} ± ${fixed(p.new[1])}`, `old tasks ${fixed(p.old[0])} ± ${fixed(p.old[1])}`] });
      });
      node.append(group);
    });
    point(node, stops);
    box.append(legend(curves.map(([name], n) => [name, look(n), () => [svg("path", { d: "M0 7H34", class: "line" }), sign(n, 17, 7)]])));
  }

  // ---------------------------------------------------------------- the answers: difference and interval

  function drawStrips() {
    const answers = data.pairings.map((one) => one.answer[state.setting]);
    const complete = answers.filter(Boolean).map((one) => one.values), strips = $$("[data-strip]");
    if (!strips.length) return;
    const differences = complete.map(([d]) => Math.abs(d));
    const ends = complete.flatMap(([, low, high]) => (known(low) ? [Math.abs(low), Math.abs(high)] : []));
    // One scale for all; an interval from very few seeds may leave it, rather than press all others together.
    const widest = Math.max(1, ...differences);
    const reach = 1.1 * Math.max(widest, Math.min(4 * widest, Math.max(0, ...ends)));
    const width = Math.max(200, strips[0].clientWidth), x = scale(-reach, reach, 6, width - 6);
    for (const box of strips) {
      box.replaceChildren();
      const answer = answers[Number(box.dataset.strip)];
      if (!answer) continue;
      const [d, low, high] = answer.values;
      const node = svg("svg", { viewBox: `0 0 ${width} 52`, height: 52, role: "img", "aria-label": answer.label });
      box.append(node);
      node.append(line(6, 26, width - 6, 26, "axis"), line(x(0), 18, x(0), 34, "axis"), text("0", x(0), 48, "middle"), text("host better", 6, 48), text("flashback better", width - 6, 48, "end"));
      const group = svg("g", { class: d < 0 ? "toward-host" : "flashback" });
      if (known(low)) {
        const [from, to] = [Math.max(low, -reach), Math.min(high, reach)].map(x);
        // An interval that leaves the frame ends in an arrow instead of a cap.
        const caps = (low >= -reach ? `M${from} 21V31` : `M${from + 7} 20L${from} 26L${from + 7} 32`) + (high <= reach ? `M${to} 21V31` : `M${to - 7} 20L${to} 26L${to - 7} 32`);
        group.append(svg("path", { d: `M${from} 26H${to}${caps}`, class: "line" }));
      }
      group.append(marker("flashback", x(d), 26, 5));
      node.append(group, text(answer.difference, Math.max(24, Math.min(width - 24, x(d))), 13, "middle strong"));
    }
  }

  // ---------------------------------------------------------------- settings

  function drawConfig(box) {
    const arms = Object.keys(pairing().seeds);
    const table = html("table"), head = html("tr");
    head.append(html("th", "setting"), ...arms.map((arm) => html("th", data.arms[arm])));
    table.append(html("thead"), html("tbody"));
    table.tHead.append(head);
    const only = $("#differences").checked && arms.length > 1;
    for (const [key, ...values] of pairing().config) {
      const differs = values.length > 1;
      if (only && !differs) continue;
      const row = html("tr");
      row.append(html("th", key, { scope: "row" }), ...arms.map((arm, k) => html("td", values[differs ? k : 0], differs ? { class: "differs" } : {})));
      table.tBodies[0].append(row);
    }
    box.append(table);
  }

  const DRAWINGS = { curve: drawCurve, balance: drawBalance, matrices: drawMatrices, confusion: drawConfusion, losses: drawLosses, config: drawConfig };

  function draw() {
    hide();
    drawStrips();
    for (const box of $$("[data-draw]")) {
      box.replaceChildren();
      const [kind, index] = box.dataset.draw.split(" ");
      if (kind === "frontier") drawFrontier(box, data.frontiers[Number(index)]);
      else if (kind === "similarity") drawSimilarity(box, data.similarities[Number(index)]);
      else DRAWINGS[kind](box);
    }
  }

  // ---------------------------------------------------------------- tabs, tables, choices

  const tabs = $$("[role=tab]");

  function choose(tab) {
    state.setting = document.body.dataset.setting = tab.dataset.setting;
    for (const one of tabs) {
      one.setAttribute("aria-selected", String(one === tab));
      one.tabIndex = one === tab ? 0 : -1;
    }
    draw();
  }

  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => choose(tab));
    tab.addEventListener("keydown", (event) => {
      const next = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: tabs.length - 1 }[event.key];
      if (next === undefined) return;
      event.preventDefault();
      const other = tabs[(next + tabs.length) % tabs.length];
      other.focus();
      choose(other);
    });
  });

  // Numbers by value, words by the alphabet, missing values last.
  function sort(table, column, numeric, ascending) {
    const content = (row) => row.cells[column].textContent;
    const value = (row) => parseFloat(content(row).replace(/[<,+\s]/g, ""));
    for (const body of table.tBodies) {
      const rows = [...body.rows].sort((a, b) => {
        if (!numeric) return content(a).localeCompare(content(b), "en", { numeric: true }) * (ascending ? 1 : -1);
        const [x, y] = [value(a), value(b)];
        if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
        return (x - y) * (ascending ? 1 : -1);
      });
      body.append(...rows);
    }
  }

  for (const table of $$("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = html("button", head.textContent, { type: "button" });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const numeric = head.classList.contains("n");
        const before = head.getAttribute("aria-sort");
        const ascending = before ? before === "descending" : !numeric;
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
        sort(table, column, numeric, ascending);
      });
    });
  }

  const metric = $("#metric"); // which only comparisons have
  function filter() {
    const heading = metric.selectedOptions[0].dataset.heading;
    for (const row of $$("#results-table tbody:not(.setting-head) tr")) row.hidden = metric.value !== "" && row.cells[1].textContent !== heading;
  }
  if (metric) {
    metric.addEventListener("change", filter);
    if (data.pairings.length > 4) metric.value = [...metric.options].some((one) => one.value === "average_accuracy") ? "average_accuracy" : metric.options[1].value;
    filter();
  }

  const chooser = $("#pairing");
  chooser.addEventListener("change", () => { state.pairing = Number(chooser.value); draw(); });
  $$("[data-pairing]").forEach((button) => button.addEventListener("click", () => {
    chooser.value = button.dataset.pairing;
    state.pairing = Number(button.dataset.pairing);
    draw();
    $("#details").scrollIntoView({ behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    chooser.focus({ preventScroll: true });
  }));
  $("#differences").addEventListener("change", draw);
  for (const fold of $$("details")) fold.addEventListener("toggle", draw);

  let width = innerWidth;
  addEventListener("resize", () => { if (innerWidth !== width) { width = innerWidth; draw(); } });
  addEventListener("beforeprint", () => { for (const fold of $$("#answers details")) fold.open = true; }); // paper has no folds
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  draw();
})();
