"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const data = JSON.parse(byId("data").textContent);
  const { tasks, columns, plots } = data;
  const ROWS = 50, MOST_COLUMNS = 40, MOST_MARKED = 300, REACH = 28;
  const PRINTED = 7; // columns: the style hides the others on paper

  // Text as a reader sees it. The download has the text itself.

  const short = (text, limit = 44) => {
    const letters = text.length > 4 * limit ? [...text.slice(0, 2 * limit), ...text.slice(-2 * limit)] : [...text];
    let cut = text;
    if (letters.length > limit) {
      const tail = Math.floor(limit / 3);
      cut = letters.slice(0, limit - tail - 1).join("") + "…" + letters.slice(-tail).join("");
    }
    cut = cut.replace(/[\u202a-\u202e\u2066-\u2069]/g, "").replace(/\r\n|[\n\r\u2028\u2029]/g, "↵");
    return cut.replace(/\t/g, "⇥").replace(/[\u0000-\u001f\u007f-\u009f]/g, "\ufffd") || "(empty)";
  };
  const format = (value) => {
    if (Number.isNaN(value)) return "";
    if (value === 0 || Number.isInteger(value) && Math.abs(value) < 1e6) return value.toLocaleString("en").replace("-", "−");
    const size = Math.abs(value);
    if (size >= 1e4 && size < 1e6) return Math.round(value).toLocaleString("en").replace("-", "−");
    return (size >= 1e-4 && size < 1e4 ? value.toPrecision(4) : value.toExponential(3)).replace(/-/g, "−");
  };
  const named = (text, limit) => {
    const element = document.createElement("bdi");
    element.textContent = short(text, limit);
    if (element.textContent !== text) element.title = text;
    return element;
  };

  // Columns are decoded when they are first needed.

  const values = (column) => {
    if (!column.values) {
      const bytes = Uint8Array.from(atob(column.data), (c) => c.charCodeAt(0));
      column.values = data.itemsize === 8 ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
    }
    return column.values;
  };
  const cell = (column, i) => column.text ? column.text[i] || "" : format(values(column)[i]);

  // The table

  const state = { order: null, sort: null, down: false, page: 0 };
  const every = Array.from(tasks, (_, i) => i);
  let lower = null;
  const head = byId("coefficients").tHead.rows[0], body = byId("coefficients").tBodies[0];
  const taskName = head.cells[0].textContent;

  const arrange = () => {
    const wanted = byId("filter").value.toLowerCase();
    if (wanted && !lower) lower = tasks.map((label) => label.toLowerCase());
    const order = wanted ? every.filter((i) => lower[i].includes(wanted)) : every.slice();
    if (state.sort !== null && state.sort >= 0) {
      const column = columns[state.sort], sign = state.down ? -1 : 1;
      if (column.text) {
        order.sort((a, b) => sign * (column.text[a] || "").localeCompare(column.text[b] || "") || a - b);
      } else {
        const v = values(column); // missing numbers stay at the end
        order.sort((a, b) => (Number.isNaN(v[a]) - Number.isNaN(v[b])) || sign * (v[a] - v[b]) || a - b);
      }
    } else if (state.down) order.reverse();
    state.order = order;
    state.page = 0;
    ring(wanted && order.length <= MOST_MARKED ? order : []);
  };

  const shownColumns = () => {
    const wanted = byId("columns").value.toLowerCase();
    const all = columns.map((_, j) => j);
    return wanted ? all.filter((j) => columns[j].name.toLowerCase().includes(wanted)) : all;
  };

  const header = (j, name) => {
    const th = document.createElement("th"), button = document.createElement("button");
    th.scope = "col";
    if (j >= 0 && columns[j].text) th.className = "words";
    button.type = "button";
    button.append(named(name, 28));
    const mine = state.sort === j || (j === -1 && state.sort === null);
    if (mine) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    button.addEventListener("click", () => {
      // The first click sorts numbers with the largest first, and names in their order.
      state.down = mine ? !state.down : j >= 0;
      state.sort = j;
      arrange();
      show();
      head.cells[[...head.cells].findIndex((c) => c.hasAttribute("aria-sort"))].firstChild.focus();
    });
    th.append(button);
    return th;
  };

  const show = () => {
    const chosen = shownColumns(), visible = chosen.slice(0, MOST_COLUMNS), { order } = state;
    const pages = Math.max(Math.ceil(order.length / ROWS), 1), from = state.page * ROWS;
    head.replaceChildren(header(-1, taskName), ...visible.map((j) => header(j, columns[j].name)));
    body.replaceChildren(...order.slice(from, from + ROWS).map((i) => {
      const row = document.createElement("tr"), th = document.createElement("th");
      th.scope = "row";
      th.append(named(tasks[i]));
      row.append(th);
      for (const j of visible) {
        const td = row.insertCell();
        td.textContent = cell(columns[j], i);
        if (columns[j].text) td.className = "words";
      }
      return row;
    }));
    const some = order.length < tasks.length;
    let said = some ? `${order.length.toLocaleString("en")} of ${tasks.length.toLocaleString("en")} tasks` : `All ${tasks.length.toLocaleString("en")} tasks`;
    if (visible.length < columns.length) said += `, ${visible.length} of ${columns.length} columns`;
    if (visible.length < chosen.length) said += ": filter the columns to see others";
    byId("shown").textContent = `${said}.`;
    const rows = Math.min(order.length - from, ROWS), printed = Math.min(visible.length, PRINTED);
    const cut = [[rows, tasks.length, "tasks"], [printed, columns.length, "columns"]].filter(([a, b]) => a < b);
    const parts = cut.map(([a, b, what]) => `${a.toLocaleString("en")} of ${b.toLocaleString("en")} ${what}`);
    byId("printed").textContent = cut.length ? `On paper: ${parts.join(" and ")}. The page on a screen has all of them.` : `${said}.`;
    byId("download").textContent = some ? `Download these ${order.length.toLocaleString("en")} as CSV` : "Download all as CSV";
    byId("page").textContent = `Page ${state.page + 1} of ${pages}`;
    byId("previous").disabled = state.page === 0;
    byId("next").disabled = state.page + 1 >= pages;
    byId("pager").hidden = pages === 1;
  };

  // RFC 4180: fields with quotes, commas or line ends in quotes, quotes doubled, CRLF.
  const field = (text) => /[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  const digits = (v) => Number.isNaN(v) ? "" : String(data.itemsize === 8 ? v : Number(v.toPrecision(9)));
  const csv = () => {
    const lines = [[data.task_name, ...columns.map((c) => c.name)].map(field).join(",")];
    for (const i of state.order) {
      lines.push([field(tasks[i]), ...columns.map((c) => c.text ? field(c.text[i] || "") : digits(values(c)[i]))].join(","));
    }
    return lines.join("\r\n") + "\r\n";
  };
  const download = () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv()], { type: "text/csv;charset=utf-8" }));
    link.download = "coefficients.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };

  // Tasks in plots: the points are read from the drawing when it is first pointed at.

  const SVG = "http://www.w3.org/2000/svg";
  const tip = byId("tip");
  const drawn = new Map();
  const seenPlot = (box) => {
    if (!drawn.has(box)) {
      const svg = box.querySelector("svg"), at = [];
      for (const path of svg.querySelectorAll("path.points")) {
        for (const step of path.getAttribute("d").split("M").slice(1)) {
          const [x, y] = step.split(" ");
          at.push([parseFloat(x), parseFloat(y)]);
        }
      }
      const plot = plots[box.dataset.plot], order = plot.tasks || every;
      drawn.set(box, { svg, at, order, columns: plot.columns, width: svg.viewBox.baseVal.width, current: null, by: null });
    }
    return drawn.get(box);
  };
  const circle = (seen, k, style, radius) => {
    const ring = document.createElementNS(SVG, "circle");
    ring.setAttribute("class", style);
    ring.setAttribute("cx", seen.at[k][0]);
    ring.setAttribute("cy", seen.at[k][1]);
    ring.setAttribute("r", radius);
    seen.svg.append(ring);
    return ring;
  };
  const tell = (box, k) => {
    const seen = seenPlot(box), i = seen.order[k];
    seen.current?.remove();
    seen.current = circle(seen, k, "current", 5);
    seen.now = k;
    const facts = seen.columns.map((j) => `${columns[j].name}: ${cell(columns[j], i)}`);
    tip.replaceChildren(named(tasks[i], 80), facts.join("\n"));
    tip.hidden = false;
    const area = seen.svg.getBoundingClientRect(), scale = area.width / seen.width;
    const x = area.left + seen.at[k][0] * scale, y = area.top + seen.at[k][1] * scale;
    const widest = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(x + 12, widest)) + window.scrollX}px`;
    tip.style.top = `${(y + 16 + tip.offsetHeight > window.innerHeight ? y - tip.offsetHeight - 12 : y + 16) + window.scrollY}px`;
  };
  const hush = (box) => {
    const seen = seenPlot(box);
    seen.current?.remove();
    seen.current = null;
    tip.hidden = true;
  };
  const nearest = (box, event) => {
    const seen = seenPlot(box), area = seen.svg.getBoundingClientRect(), scale = seen.width / area.width;
    const x = (event.clientX - area.left) * scale, y = (event.clientY - area.top) * scale;
    let best = -1, least = (REACH * Math.max(scale, 1)) ** 2;
    seen.at.forEach(([a, b], k) => {
      const far = (a - x) ** 2 + (b - y) ** 2;
      if (far < least) [best, least] = [k, far];
    });
    if (best < 0) hush(box); else tell(box, best);
  };
  const walk = (box, event) => {
    const seen = seenPlot(box);
    if (event.key === "Escape") return hush(box);
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, Home: -Infinity, End: Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    seen.by ??= seen.at.map((_, k) => k).sort((a, b) => seen.at[a][0] - seen.at[b][0]);
    const last = seen.by.length - 1, from = seen.now === undefined ? -1 : seen.by.indexOf(seen.now);
    tell(box, seen.by[Math.max(0, Math.min(last, from + steps[event.key]))]);
  };
  const ring = (matching) => {
    for (const old of document.querySelectorAll("svg .matching")) old.remove();
    if (!matching.length) return;
    const wanted = new Set(matching);
    for (const box of document.querySelectorAll(".hover")) {
      const seen = seenPlot(box);
      seen.at.forEach((_, k) => { if (wanted.has(seen.order[k])) circle(seen, k, "matching", 6); });
    }
  };
  for (const box of document.querySelectorAll(".hover")) {
    box.addEventListener("pointermove", (event) => nearest(box, event));
    box.addEventListener("pointerdown", (event) => nearest(box, event));
    box.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") hush(box); });
    box.addEventListener("keydown", (event) => walk(box, event));
    box.addEventListener("blur", () => hush(box));
  }

  const maps = document.querySelectorAll(".map");
  byId("pair")?.addEventListener("change", (event) => {
    tip.hidden = true;
    maps.forEach((map, k) => { map.hidden = k !== Number(event.target.value); });
  });
  byId("filter").addEventListener("input", () => { arrange(); show(); });
  byId("columns").addEventListener("input", show);
  byId("download").addEventListener("click", download);
  byId("previous").addEventListener("click", () => { state.page -= 1; show(); });
  byId("next").addEventListener("click", () => { state.page += 1; show(); });

  // On paper everything that unfolds is open.
  let folded = [];
  window.addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const one of folded) one.open = true;
  });
  window.addEventListener("afterprint", () => { for (const one of folded) one.open = false; });

  byId("controls").hidden = false;
  for (const one of document.querySelectorAll(".scripted")) one.hidden = false;
  arrange();
  show();
})();
