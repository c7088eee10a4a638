"use strict";
// The timeline of a run on a canvas: what waited, at which gate, and when it ran. The server bins what is too much.
(() => {
  const host = document.getElementById("timeline");
  if (!host) return;
  const said = document.getElementById("timeline-said");
  const legend = document.getElementById("timeline-legend");
  const tableBox = document.getElementById("timeline-table");
  const FAMILY = JSON.parse(host.dataset.families), GATES = JSON.parse(host.dataset.gates);
  const AXIS = 24, LANE = 13, ROW = 22, FOLD = 96, MIN_US = 50;
  const canvas = document.createElement("canvas");
  const space = document.createElement("div");
  const tip = document.createElement("div");
  const context = canvas.getContext("2d");
  let data = null, rows = [], view = { from: 0, until: 1 }, touched = false, chosen = -1, pinned = false;
  let colours = {}, patterns = [], width = 0, height = 0, gutter = 190, asked = 0, timer = 0, frame = 0;

  const make = (tag, text, className) => {
    const made = document.createElement(tag);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const link = (href, text) => Object.assign(make("a", text), { href });
  const familyOf = (gate) => {
    const kind = gate.split(/[: ]/)[0];
    return FAMILY[kind] || FAMILY[kind.split("-")[0]] || "other";
  };
  // As the server's `gate_text` says it.
  const gateText = (gate) => {
    const at = gate.indexOf(":"), kind = at < 0 ? gate : gate.slice(0, at), name = at < 0 ? "" : gate.slice(at + 1);
    return Object.hasOwn(GATES, kind) ? GATES[kind].replace("{}", () => name.replaceAll("=*", "=")).trim() : gate;
  };
  const time = (us) => {
    if (us < 1) return "0s";
    if (us < 1000) return `${Math.round(us)}µs`;
    if (us < 1e6) return `${+(us / 1000).toPrecision(3)}ms`;
    if (us < 6e7) return `${+(us / 1e6).toPrecision(3)}s`;
    return locktender.spoken(us / 1e6);
  };
  // Of the bins, which are averages: what runs and what waits apart, for only what runs is bounded by limits.
  const peaks = (row) => `up to ${Math.ceil(row.run - 1e-6).toLocaleString("en")} run, ${Math.ceil(row.wait - 1e-6).toLocaleString("en")} wait`;
  // As the server's `step_name` says it.
  const nameOf = (row) => row.task === 0 ? "the run" : row.index !== undefined ? `${row.name}[${row.index}]`
    : row.name === "locktender:trace" ? "trace the flow" : row.name;

  // -- colours and patterns ---------------------------------------------------------------------
  const PATTERNS = {
    runs: (pen, n) => { pen.moveTo(0, n); pen.lineTo(n, 0); },
    tag: (pen, n) => { pen.moveTo(0, 0); pen.lineTo(n, n); },
    pool: (pen, n) => { pen.arc(n / 2, n / 2, n / 6, 0, 7); },
    rate: (pen, n) => { pen.moveTo(n / 2, 0); pen.lineTo(n / 2, n); },
    worker: (pen, n) => { pen.moveTo(0, n); pen.lineTo(n, 0); pen.moveTo(0, 0); pen.lineTo(n, n); },
    window: (pen, n) => { pen.moveTo(0, n / 2); pen.lineTo(n, n / 2); },
    time: (pen, n) => { pen.moveTo(0, n); pen.lineTo(n / 2, n / 2); },
    event: (pen, n) => { pen.moveTo(0, n / 2); pen.lineTo(n, n / 2); pen.moveTo(n / 2, 0); pen.lineTo(n / 2, n); },
    key: (pen, n) => { pen.moveTo(0, n / 4); pen.lineTo(n, n / 4); },
    paused: (pen, n) => { pen.moveTo(n / 3, 0); pen.lineTo(n / 3, n); pen.moveTo(n * 0.66, 0); pen.lineTo(n * 0.66, n); },
  };
  const readColours = () => {
    const style = getComputedStyle(document.documentElement);
    const of = (name) => style.getPropertyValue(name).trim();
    colours = { text: of("--text"), muted: of("--muted"), line: of("--line"), surface: of("--surface"), sunk: of("--sunk"),
      run: of("--run"), bad: of("--bad"), accent: of("--accent"), soft: of("--accent-soft") };
    const probe = make("i");
    document.body.append(probe);
    const seen = {};
    patterns = (data?.whats || []).map((what) => {
      const family = what.kind === "back-off" ? "time" : familyOf(what.name);
      if (what.kind === "work") return { colour: colours.run, solid: true };
      if (what.kind === "hand-off") return { colour: colours.muted, thin: true };
      const base = what.kind === "lost" ? colours.bad : of(`--gate-${family}`);
      const key = `${what.kind === "wait" ? "" : what.kind}${family}`;
      const nth = seen[key] = (seen[key] || 0) + 1;
      probe.style.color = nth === 1 ? base : `color-mix(in srgb, ${base}, ${colours.text} ${Math.min(75, 28 * (nth - 1))}%)`;
      const colour = getComputedStyle(probe).color;
      return { colour, family, thin: what.kind === "sleep" || what.kind === "back-off", fill: pattern(colour, family, nth) };
    });
    probe.remove();
  };
  const pattern = (colour, family, nth) => {
    const scale = devicePixelRatio || 1, n = 4 + nth;
    const tile = new OffscreenCanvas(Math.round(n * scale), Math.round(n * scale));
    const pen = tile.getContext("2d");
    pen.scale(tile.width / n, tile.height / n);
    pen.globalAlpha = 0.32;
    pen.fillStyle = colour;
    pen.fillRect(0, 0, n, n);
    pen.globalAlpha = 1;
    pen.strokeStyle = colour;
    pen.lineWidth = 1.1;
    pen.beginPath();
    (PATTERNS[family] || PATTERNS.tag)(pen, n);
    if (family === "pool") pen.fill(); else pen.stroke();
    const found = context.createPattern(tile, "repeat");
    found.setTransform(new DOMMatrix().scale(1 / scale));
    return found;
  };

  // -- what is drawn where ----------------------------------------------------------------------
  const arrange = () => {
    const order = (each) => [each.node, each.series ? -2 : each.index ?? -1];
    rows = [...data.rows, ...data.folds].sort((a, b) => {
      const [one, first] = order(a), [other, second] = order(b);
      return one - other || first - second;
    });
    let top = AXIS + 4;
    for (const row of rows) {
      row.top = top;
      if (row.series) {
        row.most = row.run = row.wait = 0;
        for (let bin = 0; bin < data.bins; bin += 1) {
          let run = 0, wait = 0;
          for (const [what, values] of Object.entries(row.series)) if (data.whats[what].kind === "work") run += values[bin]; else wait += values[bin];
          row.most = Math.max(row.most, run + wait);
          row.run = Math.max(row.run, run);
          row.wait = Math.max(row.wait, wait);
        }
        row.height = FOLD;
      } else {
        row.lanes = 1 + row.spans.reduce((most, span) => Math.max(most, span[3]), 0);
        row.height = row.lanes === 1 ? ROW : Math.min(6, row.lanes) * LANE + 8;
      }
      top += row.height + (row.series ? 10 : 2);
    }
    space.style.height = `${top + 6}px`;
    host.classList.toggle("tall", top > 560);
  };
  const resize = () => {
    const scale = devicePixelRatio || 1;
    width = host.clientWidth;
    height = Math.min(parseFloat(space.style.height) || 120, 560);
    gutter = width < 560 ? 104 : 190;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    draw();
  };
  const x = (us) => gutter + (us - view.from) / (view.until - view.from) * (width - gutter - 8);
  const usAt = (px) => view.from + (px - gutter) / (width - gutter - 8) * (view.until - view.from);

  const draw = () => {
    if (frame) return;
    frame = requestAnimationFrame(() => { frame = 0; paint(); });
  };
  const paint = () => {
    if (!data || !width) return;
    const scale = devicePixelRatio || 1, offset = host.scrollTop;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.clearRect(0, 0, width, height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    const step = axis();
    for (let at = Math.ceil(view.from / step) * step; at <= view.until; at += step) {
      const px = Math.round(x(at)) + 0.5;
      context.strokeStyle = colours.line;
      context.beginPath();
      context.moveTo(px, AXIS);
      context.lineTo(px, height);
      context.stroke();
    }
    rows.forEach((row, number) => {
      const top = row.top - offset;
      if (top > height || top + row.height < AXIS) return;
      if (number === chosen) {
        context.fillStyle = colours.soft;
        context.fillRect(0, top - 1, width, row.height + 2);
      }
      if (row.series) paintFold(row, top); else paintRow(row, top);
      context.fillStyle = number === chosen ? colours.soft : colours.surface;
      context.fillRect(0, top - 1, gutter - 6, row.height + 2);
      paintName(row, top);
    });
    context.fillStyle = colours.surface;
    context.fillRect(0, 0, width, AXIS);
    context.fillStyle = colours.muted;
    for (let at = Math.ceil(view.from / step) * step; at <= view.until; at += step) {
      const px = x(at), text = at === 0 ? "0" : time(at);
      if (px + context.measureText(text).width < width) context.fillText(text, px + 3, AXIS / 2);
    }
    context.strokeStyle = colours.line;
    context.strokeRect(gutter - 5.5, AXIS - 0.5, width, 0);
  };
  const axis = () => {
    const wanted = (view.until - view.from) / Math.max(2, (width - gutter) / 110);
    const power = 10 ** Math.floor(Math.log10(wanted));
    for (const unit of [2e7, 3e7, 6e7, 12e7, 3e8, 6e8, 18e8, 36e8, 216e8, 864e8]) if (wanted > 1e7 && unit >= wanted) return unit;
    return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= wanted) || wanted;
  };
  const paintName = (row, top) => {
    const most = gutter - 18 - (row.critical ? 8 : 0);
    let name = row.series ? `${row.name}` : nameOf(row);
    context.font = `${row.critical ? "600 " : ""}12px system-ui, sans-serif`;
    for (let left = name.length - 1; left > 4 && context.measureText(name).width > most; left -= 1) {
      const whole = row.series ? row.name : nameOf(row), half = Math.ceil(left * 0.55);
      name = `${whole.slice(0, half)}…${whole.slice(whole.length - (left - half))}`;  // ends tell names apart
    }
    context.fillStyle = row.task === 0 ? colours.muted : colours.text;
    context.fillText(name, 12, top + (row.series ? 12 : row.height / 2));
    if (row.critical) {
      context.fillStyle = colours.accent;
      context.fillRect(2, top + 3, 3, row.height - 6);
    }
    if (row.series) {
      context.font = "11px system-ui, sans-serif";
      context.fillStyle = colours.muted;
      context.fillText(`${row.tasks.toLocaleString("en")} items`, 12, top + 30);
      context.fillText(peaks(row), 12, top + 46);
    }
    context.font = "12px system-ui, sans-serif";
  };
  const bar = (number, left, top, wide, tall, failed) => {
    const what = patterns[number];
    if (what.thin) { top += tall * 0.3; tall *= 0.4; }
    if (what.solid) {
      context.fillStyle = failed ? colours.bad : what.colour;
      context.fillRect(left, top, wide, tall);
      return;
    }
    context.fillStyle = what.fill || what.colour;
    context.globalAlpha = what.fill ? 1 : 0.55;
    context.fillRect(left, top, wide, tall);
    context.globalAlpha = 1;
    if (what.fill && wide > 2) { context.fillStyle = what.colour; context.fillRect(left, top + tall - 1.5, wide, 1.5); }
  };
  const paintRow = (row, top) => {
    const lanes = Math.min(6, row.lanes), tall = lanes === 1 ? row.height - 8 : LANE - 2;
    const last = row.spans.findLastIndex((span) => data.whats[span[2]].kind === "work");
    row.spans.forEach((span, number) => {
      const left = Math.max(gutter - 6, x(span[0])), right = Math.min(width, x(span[1]));
      if (right < gutter - 6 || left > width) return;
      const lane = Math.min(lanes - 1, span[3]);
      const retried = data.whats[span[2]].kind === "work" && (span[3] < row.lanes - 1);
      const failed = retried || (number === last && ["failed", "timed_out"].includes(row.state));
      bar(span[2], left, top + 4 + lane * (lanes === 1 ? 0 : LANE), Math.max(1.5, right - left), tall, failed);
    });
  };
  const paintFold = (row, top) => {
    const bins = data.bins, floor = top + row.height - 4, room = row.height - 10;
    const base = new Float64Array(bins);
    const by = (data.until_us - data.from_us) / bins;
    const order = Object.keys(row.series).map(Number).sort((a, b) => (patterns[b].solid ? 1 : 0) - (patterns[a].solid ? 1 : 0));
    for (const number of order) {
      const what = patterns[number], values = row.series[number];
      context.beginPath();
      context.fillStyle = what.solid ? what.colour : what.fill || what.colour;
      context.globalAlpha = what.thin && !what.fill ? 0.55 : 1;
      for (let bin = 0; bin < bins; bin += 1) {
        if (!values[bin]) continue;
        const left = x(data.from_us + bin * by), right = x(data.from_us + (bin + 1) * by);
        if (right < gutter || left > width) continue;
        const tall = Math.max(what.solid ? 2 : 0, values[bin] / row.most * room);
        context.rect(left, floor - base[bin] - tall, right - left + 0.3, tall);
        base[bin] += tall;
      }
      context.fill();
      context.globalAlpha = 1;
    }
    context.fillStyle = colours.line;
    context.fillRect(gutter - 6, floor, width, 1);
  };

  // -- what is under the pointer ----------------------------------------------------------------
  const find = (px, py) => {
    const at = py + host.scrollTop;
    const number = rows.findIndex((row) => at >= row.top - 1 && at <= row.top + row.height + 1);
    if (number < 0 || py < AXIS) return null;
    const row = rows[number];
    if (px < gutter - 6) return { number, row };
    const us = usAt(px), slack = 3 * (view.until - view.from) / Math.max(1, width - gutter);
    if (row.series) {
      const bin = Math.floor((us - data.from_us) / (data.until_us - data.from_us) * data.bins);
      return { number, row, bin: bin >= 0 && bin < data.bins ? bin : undefined };
    }
    const lanes = Math.min(6, row.lanes);
    const lane = lanes === 1 ? 0 : Math.floor((at - row.top - 4) / LANE);
    const hits = row.spans.filter((span) => span[0] - slack <= us && us <= span[1] + slack);
    const span = hits.find((each) => Math.min(lanes - 1, each[3]) === lane) || hits[0];
    return { number, row, span };
  };
  const tell = (hit, px, py) => {
    tip.replaceChildren();
    const { row, span, bin } = hit;
    const head = make("p", undefined, "tip-head");
    const where = row.series ? `/runs/${data.run}?tab=tasks&step=${encodeURIComponent(row.name)}`
      : row.task ? `/runs/${data.run}/tasks/${row.task}` : "";
    head.append(where ? link(where, row.series ? row.name : nameOf(row)) : make("b", "the run"));
    head.append(make("span", row.series ? `${row.tasks.toLocaleString("en")} items` : (row.state || "").replace("_", " ")));
    tip.append(head);
    if (span) {
      const what = data.whats[span[2]];
      const line = make("p");
      line.append(make("b", time(span[1] - span[0])), ` ${words(what)}`);
      if (row.lanes > 1) line.append(`, attempt ${span[3] + 1}`);
      tip.append(line, make("p", `from ${time(span[0])} to ${time(span[1])} after submission`, "muted"));
      if (span[4] >= 0) {
        const holder = data.holders[span[4]], by = make("p", "held by ");
        by.append(holder === data.run ? "this run itself" : holder.startsWith("#") ? holder : link(`/runs/${holder}`, holder.slice(0, 12)));
        tip.append(by);
      }
    } else if (bin !== undefined) {
      for (const [number, values] of Object.entries(row.series)) {
        if (!values[bin]) continue;
        const line = make("p");
        line.append(make("b", locktender.brief(values[bin])), ` ${words(data.whats[number])}`);
        tip.append(line);
      }
      tip.append(make("p", `${time(data.from_us + bin * (data.until_us - data.from_us) / data.bins)} after submission`, "muted"));
    } else if (row.critical) tip.append(make("p", "on the critical path", "muted"));
    tip.hidden = false;
    const box = canvas.getBoundingClientRect(), most = document.documentElement.clientWidth - tip.offsetWidth - 6;
    const left = Math.max(4, Math.min(box.left + px + 14, most)), under = box.top + py + 18;
    const top = under + tip.offsetHeight < innerHeight - 4 ? under : Math.max(4, under - tip.offsetHeight - 30);
    tip.style.transform = `translate(${left}px, ${top}px)`;
  };
  const words = (what) => what.kind === "work" ? "running" : what.kind === "hand-off" ? "hand-off between leader and worker"
    : what.kind === "back-off" ? "back-off before the next try" : what.kind === "lost" ? "an attempt that was lost with its worker"
      : what.kind === "sleep" ? (what.name === "time" ? "asleep" : `waiting for ${gateText(what.name)}`) : `waiting for ${gateText(what.name)}`;

  // -- moving -----------------------------------------------------------------------------------
  const clamp = () => {
    const whole = Math.max(1, data.wall_us);
    const span = Math.min(whole, Math.max(MIN_US, view.until - view.from));
    view.from = Math.max(0, Math.min(view.from, whole - span));
    view.until = view.from + span;
    touched = span < whole * 0.999;
    draw();
    clearTimeout(timer);
    if (data.folds.length) timer = setTimeout(() => load(true), 350);
  };
  const zoom = (by, at = (view.from + view.until) / 2) => {
    const span = (view.until - view.from) * by;
    view.from = at - (at - view.from) * by;
    view.until = view.from + span;
    clamp();
  };
  const pan = (share) => {
    const by = (view.until - view.from) * share;
    view.from += by;
    view.until += by;
    clamp();
  };
  const whole = () => { view = { from: 0, until: data.wall_us }; clamp(); };
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) zoom(event.deltaY > 0 ? 1.25 : 0.8, usAt(event.offsetX));
    else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan((event.deltaX || event.deltaY) / width);
    else return;
    event.preventDefault();
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { at: event.clientX, from: view.from, until: view.until, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (drag) {
      const by = (drag.at - event.clientX) / (width - gutter) * (drag.until - drag.from);
      if (Math.abs(drag.at - event.clientX) > 4) drag.moved = true;
      if (drag.moved) { view = { from: drag.from + by, until: drag.until + by }; tip.hidden = true; clamp(); }
      return;
    }
    if (pinned) return;
    const hit = find(event.offsetX, event.offsetY);
    canvas.style.cursor = hit ? "pointer" : "grab";
    if (hit) tell(hit, event.offsetX, event.offsetY); else tip.hidden = true;
  });
  canvas.addEventListener("pointerup", (event) => {
    const still = drag && !drag.moved;
    drag = null;
    if (!still) return;
    const hit = find(event.offsetX, event.offsetY);
    pinned = Boolean(hit);
    if (hit) { chosen = hit.number; tell(hit, event.offsetX, event.offsetY); } else tip.hidden = true;
    draw();
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { if (!pinned) tip.hidden = true; });
  canvas.addEventListener("dblclick", (event) => zoom(0.4, usAt(event.offsetX)));
  canvas.addEventListener("blur", () => { if (!tip.matches(":focus-within, :hover")) { pinned = false; tip.hidden = true; } });
  const choose = (by) => {
    chosen = Math.max(0, Math.min(rows.length - 1, chosen + by));
    const row = rows[chosen];
    if (row.top < host.scrollTop + AXIS) host.scrollTop = row.top - AXIS - 4;
    if (row.top + row.height > host.scrollTop + height) host.scrollTop = row.top + row.height - height + 8;
    const longest = row.spans?.reduce((most, span) => span[1] - span[0] > most[1] - most[0] ? span : most, [0, 0, 0, 0, -1]);
    pinned = true;
    tell({ row, span: longest?.[1] ? longest : undefined }, gutter, row.top - host.scrollTop + row.height - 16);
    said.textContent = summary(row);
    draw();
  };
  canvas.addEventListener("keydown", (event) => {
    if (!data || event.ctrlKey || event.metaKey) return;
    const keys = {
      ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15), "+": () => zoom(0.7), "=": () => zoom(0.7), "-": () => zoom(1.4),
      0: whole, ArrowDown: () => choose(1), ArrowUp: () => choose(-1), Escape: hide,
      Enter: () => { const first = tip.querySelector("a"); if (!tip.hidden && first) location.href = first.href; },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    keys[event.key]();
  });
  const hide = () => { pinned = false; tip.hidden = true; };
  host.addEventListener("scroll", draw, { passive: true });
  addEventListener("scroll", hide, { passive: true });
  for (const button of document.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => { if (data) ({ in: () => zoom(0.6), out: () => zoom(1.7), all: whole })[button.dataset.zoom](); });
  }

  // -- the same as text -------------------------------------------------------------------------
  const spent = (row) => {
    const sums = new Map();
    for (const span of row.spans || []) sums.set(span[2], (sums.get(span[2]) || 0) + span[1] - span[0]);
    return [...sums].sort((a, b) => b[1] - a[1]).map(([what, us]) => `${words(data.whats[what])} ${time(us)}`);
  };
  const summary = (row) => row.series ? `${row.name}: ${row.tasks} items, ${peaks(row)}`
    : `${nameOf(row)}: ${spent(row).join(", ")}`;
  const fillTable = () => {
    const table = make("table"), head = make("tr");
    for (const each of ["Step", "State", "Begins", "Took", "What its time went into"]) head.append(Object.assign(make("th", each), { scope: "col" }));
    const body = make("tbody");
    for (const row of rows) {
      const line = make("tr"), name = make("td", undefined, "name");
      if (row.series) {
        name.append(link(`/runs/${data.run}?tab=tasks&step=${encodeURIComponent(row.name)}`, row.name));
        const states = Object.entries(row.states).map(([state, count]) => `${count.toLocaleString("en")} ${state}`).join(", ");
        line.append(name, make("td", states), make("td"), make("td"), make("td", `${row.tasks.toLocaleString("en")} items, ${peaks(row)}`));
      } else {
        name.append(row.task ? link(`/runs/${data.run}/tasks/${row.task}`, nameOf(row)) : "the run");
        const first = row.spans[0]?.[0] ?? 0, last = row.spans.at(-1)?.[1] ?? 0;
        line.append(name, make("td", (row.state || "").replace("_", " ") + (row.critical && row.task ? " · critical path" : "")),
          make("td", time(first), "nowrap"), make("td", time(last - first), "nowrap"), make("td", spent(row).join(", ")));
      }
      body.append(line);
    }
    const top = make("thead");
    top.append(head);
    table.append(top, body);
    tableBox.replaceChildren(table);
  };
  const fillLegend = () => {
    const parts = data.whats.map((what, number) => ({ what, number })).sort((a, b) => b.what.us - a.what.us).map(({ what, number }) => {
      const item = make("span"), swatch = make("i", undefined, patterns[number].solid ? "swatch solid" : patterns[number].family ? `swatch g-${patterns[number].family}` : "swatch hand");
      swatch.style.setProperty("--g", patterns[number].colour);
      item.append(swatch, `${what.kind === "work" ? "running" : gateText(what.name)} `, make("b", time(what.us)));
      return item;
    });
    if (rows.some((row) => row.critical)) {
      const item = make("span");
      item.append(make("i", undefined, "critical-mark"), "critical path");
      parts.push(item);
    }
    legend.replaceChildren(...parts);
  };

  // -- reading ----------------------------------------------------------------------------------
  const load = async (part) => {
    const mine = asked += 1, first = !data;
    const query = part && touched ? `?from_us=${Math.floor(view.from)}&until_us=${Math.ceil(view.until)}` : "";
    let found;
    try {
      const answer = await fetch(host.dataset.src + query, { headers: { accept: "application/json" } });
      if (!answer.ok) throw new Error((await answer.json()).message);
      found = await answer.json();
    } catch (error) {
      if (first) host.querySelector(".loading").textContent = `The timeline cannot be shown: ${error.message}`;
      return;
    }
    if (mine !== asked) return;
    const kept = rows[chosen] && nameOf(rows[chosen]);
    data = { bins: 0, ...found };
    data.rows ??= []; data.folds ??= []; data.whats ??= []; data.holders ??= [];
    data.wall_us = Math.max(1, data.wall_us);
    for (const row of data.rows) for (const span of row.spans) if (span.length < 5) span.push(-1);
    if (first) {
      host.replaceChildren(canvas, space, tip);
      new ResizeObserver(resize).observe(host);
    }
    if (!touched) view = { from: 0, until: data.wall_us };
    readColours();
    arrange();
    chosen = kept ? rows.findIndex((row) => nameOf(row) === kept) : -1;
    resize();
    fillLegend();
    fillTable();
    canvas.setAttribute("aria-label", `Timeline of ${data.tasks || rows.length} tasks over ${time(data.wall_us)}. Arrow keys move, plus and minus zoom; the table below says the same.`);
    if (first) said.textContent = matchMedia("(pointer: coarse)").matches ? "" : "drag to move · Ctrl + wheel zooms · ↑ ↓ choose a row";
    host.dataset.ready = String(asked);
    last = performance.now();
    if (!data.rows.length && !data.folds.length) { said.textContent = "No task has been asked for yet."; }
  };
  let last = 0, later = 0;
  document.addEventListener("htmx:afterSettle", (event) => {
    if (event.detail.target?.id !== "live" || !data || pinned || drag) return;
    clearTimeout(later);
    later = setTimeout(() => load(true), Math.max(0, last + 2000 - performance.now()));
  });
  const themed = () => { if (data) { readColours(); draw(); fillLegend(); } };
  document.addEventListener("themed", themed);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "img");
  tip.className = "tip";
  tip.hidden = true;
  space.className = "space";
  load(false);
})();
