"use strict";
(() => {
  const root = document.documentElement;
  const $ = (selector, from = document) => from.querySelector(selector);
  const $$ = (selector, from = document) => [...from.querySelectorAll(selector)];

  // -- times ------------------------------------------------------------------------------------
  const UNITS = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  const spoken = (seconds) => {
    const whole = Math.floor(Math.abs(seconds));
    if (whole < 1) return "0s";
    const first = UNITS.findIndex(([size]) => whole >= size);
    const [size, unit] = UNITS[first];
    const rest = UNITS[first + 1];
    const more = rest ? Math.floor((whole % size) / rest[0]) : 0;
    return Math.floor(whole / size) + unit + (more ? ` ${more}${rest[1]}` : "");
  };
  let skew = 0;
  const setSkew = () => {
    const at = $("[data-now]")?.dataset.now;
    if (at) skew = Date.parse(at) - Date.now();
  };
  const tick = () => {
    const now = Date.now() + skew;
    for (const each of $$("time[data-ago], time[data-since]")) {
      const passed = (now - Date.parse(each.dateTime)) / 1000;
      const text = "since" in each.dataset ? spoken(passed)
        : Math.abs(passed) < 1 ? "just now" : passed < 0 ? `in ${spoken(passed)}` : `${spoken(passed)} ago`;
      if (each.textContent !== text) each.textContent = text;
      const lease = each.closest("[data-lease]");
      lease?.classList.toggle("lease-over", passed >= 0);
      lease?.classList.toggle("lease-near", passed < 0 && passed > -5);
    }
  };

  // -- live: one stream tells that something changed; what is visible asks for itself again -----
  const pulse = $("#pulse");
  const show = (state, text) => {
    if (pulse) { pulse.dataset.state = state; pulse.lastElementChild.textContent = text; }
  };
  let dirty = false, busy = 0, last = 0, pause = 1000, timer = 0;
  const held = () => busy > 0 || $("dialog[open]") || String(getSelection()).length > 1;
  const refresh = () => {
    timer = 0;
    if (!dirty || document.hidden) return;
    const wait = last + pause - performance.now();
    if (held() || wait > 0) { timer = setTimeout(refresh, Math.max(250, wait)); return; }
    dirty = false;
    last = performance.now();
    for (const each of $$("[data-live]")) htmx.trigger(each, "live");
  };
  const changed = () => { dirty = true; if (!timer) refresh(); };
  const beat = () => {
    tick();
    const seconds = Math.min(...$$("[data-every]").map((each) => Number(each.dataset.every)));
    if (performance.now() - last > 1000 * seconds - 200) changed();
  };

  // A browser has six connections to a server for all of its pages. So only one page follows the stream, the one
  // that has the lock, and tells the others. A hidden page gives the lock up: the browser may freeze it.
  let pages = null, source = null, again = 0, said = "", before = false, leave = null;
  const hear = (text) => {
    const [what, number] = text.split(" ");
    if (what === "lost") { show("lost", "reconnecting"); return; }
    show("live", "live");
    // "ready": the stream is new, and a page that was here before it may have missed a change. So may a new page
    // that was made at another number.
    if (what === "changed" || (before ? what === "ready" : number !== $("#main").dataset.seen)) changed();
    before = true;
  };
  const tell = (text) => {
    said = text.replace(/ready|changed/, "live");
    hear(text);
    pages?.postMessage(text);
  };
  const open = () => {
    source = new EventSource("/ui/live");
    for (const what of ["ready", "changed"]) {
      source.addEventListener(what, ({ data }) => tell(`${what} ${data}`));
    }
    source.onerror = (event) => {
      tell("lost");
      // The server refuses the stream: the browser does not try again, and the page may have to log in.
      if (event.target.readyState === EventSource.CLOSED) { changed(); again = setTimeout(open, 5000); }
    };
  };
  const close = () => { clearTimeout(again); source?.close(); source = null; said = ""; };
  const alone = () => { leave = close; open(); };
  const join = () => {
    if (leave || document.hidden) return;
    if (!pages) { alone(); return; }
    const waiting = new AbortController();
    leave = () => waiting.abort();
    pages.postMessage("ask");
    navigator.locks.request("locktender-live", { signal: waiting.signal }, () => new Promise((done) => {
      leave = () => { close(); done(); };
      open();
    })).catch((error) => { if (error.name !== "AbortError") alone(); });
  };
  const part = () => { leave?.(); leave = null; };
  const follow = () => {
    if (!$("[data-live]")) { pulse?.remove(); return; }
    if (navigator.locks && globalThis.BroadcastChannel) {
      pages = new BroadcastChannel("locktender-live");
      pages.onmessage = ({ data }) => { if (data !== "ask") hear(data); else if (said) pages.postMessage(said); };
    }
    document.addEventListener("visibilitychange", () => { if (document.hidden) part(); else { join(); refresh(); } });
    addEventListener("pagehide", part);
    join();
  };
  document.addEventListener("htmx:beforeRequest", (event) => {
    busy += 1;
    event.detail.xhr.began = performance.now();
  });
  document.addEventListener("htmx:afterRequest", (event) => {
    busy = Math.max(0, busy - 1);
    // A slow page is asked for less often: it takes a twentieth of the server's time, but is never older than 15 s.
    const took = performance.now() - (event.detail.xhr.began || performance.now());
    if (event.detail.elt.matches?.("[data-live]")) pause = Math.min(15000, Math.max(1000, 20 * took));
  });

  // -- morphing keeps what the reader has opened, typed and chosen ------------------------------
  const keeps = (attribute, node) => {
    if (attribute === "open" && (node.tagName === "DETAILS" || node.tagName === "DIALOG")) return false;
    if (attribute === "aria-selected" || attribute === "data-current") return false;
    if ((attribute === "value" || attribute === "checked") && node === document.activeElement) return false;
    return attribute !== "value" || node.value === (node.defaultValue ?? node.value);
  };
  const morphs = (old, fresh) => {
    if (old.dataset?.chart === undefined) return true;
    if (fresh.dataset.chart !== old.dataset.chart) {
      old.dataset.chart = fresh.dataset.chart;
      draw(old);
    }
    return false;
  };
  if (globalThis.Idiomorph) {
    Object.assign(Idiomorph.defaults.callbacks, { beforeAttributeUpdated: keeps, beforeNodeMorphed: morphs });
  }

  // -- charts -----------------------------------------------------------------------------------
  const brief = (value) => value == null ? "–"
    : value >= 1e6 ? `${+(value / 1e6).toPrecision(3)}M` : value >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k`
      : String(+value.toPrecision(3));
  const clock = (at, exact) => new Date(1000 * at).toTimeString().slice(0, exact ? 8 : 5);
  const dots = (plot) => {
    // uPlot draws lines between values; one that has none beside it is a dot.
    const area = plot.ctx, radius = 2 * devicePixelRatio;
    plot.data.slice(1).forEach((values, at) => values.forEach((value, place) => {
      if (value == null || values[place - 1] != null || values[place + 1] != null) return;
      area.beginPath();
      area.arc(plot.valToPos(plot.data[0][place], "x", true), plot.valToPos(value, "y", true), radius, 0, 2 * Math.PI);
      area.fillStyle = plot.series[at + 1].stroke();
      area.fill();
    }));
  };
  const plots = new Map();
  const draw = (box) => {
    if (!globalThis.uPlot) return;
    const given = JSON.parse(box.dataset.chart);
    const data = [given.times, ...given.series.map((each) => each.values)];
    const old = plots.get(box);
    if (old && old.series.length === data.length) { old.setData(data); return; }
    old?.destroy();
    const style = getComputedStyle(root);
    const colour = (name) => style.getPropertyValue(name).trim();
    const muted = colour("--muted"), line = colour("--line");
    const axis = { stroke: muted, grid: { stroke: line, width: 1 }, ticks: { show: false }, font: "11px system-ui", size: 22 };
    const plot = new uPlot({
      width: Math.max(200, box.clientWidth), height: 120, legend: { show: false }, cursor: { y: false, points: { size: 6 } },
      padding: [8, 16, 0, 0], scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, space: 70, values: (_, ticks) => ticks.map((each) => clock(each, false)) }, { ...axis, size: 44, space: 30, values: (_, ticks) => ticks.map((each) => `${brief(each)}${given.unit}`) }],
      series: [{}, ...given.series.map((each) => ({
        label: each.label, stroke: colour(each.colour), fill: each.fill ? `${colour(each.colour)}22` : undefined,
        width: 1.5, dash: each.dash, points: { show: false },
      }))],
      hooks: {
        draw: [dots],
        setCursor: [(self) => {
          const at = self.cursor.idx, said = $(".said", box.parentElement);
          if (!said) return;
          said.textContent = at == null ? "" : `${clock(data[0][at], true)} · `
            + given.series.map((each) => `${each.label} ${brief(each.values[at])}${given.unit}`).join(", ");
        }],
      },
    }, data, box);
    plots.set(box, plot);
  };
  const drawAll = () => {
    for (const [box, plot] of plots) if (!box.isConnected) { plot.destroy(); plots.delete(box); }
    for (const box of $$("[data-chart]")) if (!plots.has(box)) draw(box);
  };
  const redraw = () => { for (const [box, plot] of plots) { plot.destroy(); plots.delete(box); } drawAll(); };
  addEventListener("resize", () => {
    for (const [box, plot] of plots) plot.setSize({ width: Math.max(200, box.clientWidth), height: 120 });
  });

  // -- theme, copying, dialogs, notes -----------------------------------------------------------
  const isDark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const toggleTheme = () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch (error) {  }
    redraw();
    document.dispatchEvent(new CustomEvent("themed"));
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  const copy = async (button) => {
    const text = button.dataset.copy;
    try {
      await navigator.clipboard.writeText(text);
    } catch (error) {
      const area = Object.assign(document.createElement("textarea"), { value: text });
      (button.closest("dialog") || document.body).append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1200);
  };
  document.addEventListener("click", (event) => {
    const on = (selector) => event.target.closest?.(selector);
    const copied = on("[data-copy]");
    if (copied) { event.preventDefault(); copy(copied); return; }
    if (on("[data-theme-toggle]")) toggleTheme();
    else if (on("[data-keys]")) $("#keys").showModal();
    else if (on("[data-close]")) on("dialog").close();
    else if (on("[data-dismiss]")) on("[data-toast]").remove();
    else if (event.target instanceof HTMLDialogElement) event.target.close();
  });
  document.addEventListener("change", (event) => {
    if (event.target.matches?.("[data-submit]")) event.target.form.requestSubmit();
  });
  document.addEventListener("submit", (event) => {
    // What is empty does not stand in the address.
    if (event.target.method === "get") for (const each of event.target.elements) if (each.name && !each.value) each.disabled = true;
  });
  document.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target.id === "dialog" && !event.detail.target.open) {
      event.detail.target.showModal();
      $("input:not([type=hidden]), textarea, select", event.detail.target)?.focus();
    }
    if (event.detail.target.id === "toasts") place(event.detail.target.lastElementChild);
  });
  const place = (toast) => {
    const form = $("#dialog[open] form");
    if (toast?.classList.contains("bad") && form) {
      $(".toast", form)?.remove();
      $(".buttons", form).before(toast);
    } else if (toast) setTimeout(() => toast.remove(), 12000);
  };
  const unanswered = (event) => {
    if (event.detail.elt.matches?.("[data-live]")) return;
    const toast = document.createElement("div");
    toast.className = "toast bad";
    toast.textContent = "The server does not answer. " + (event.detail.requestConfig.verb === "get" ? "Try again in a moment."
      : "It is not known whether the change was made.");
    $("#toasts").replaceChildren(toast);
    place(toast);
  };
  document.addEventListener("htmx:sendError", unanswered);
  document.addEventListener("htmx:timeout", unanswered);
  // An error that is not ours, of a proxy, does not take the place of what the page shows.
  document.addEventListener("htmx:beforeSwap", (event) => {
    const { xhr } = event.detail;
    if (xhr.status < 400 || xhr.status === 422 || xhr.getResponseHeader("HX-Retarget")) return;
    event.detail.shouldSwap = false;
    unanswered(event);
  });
  document.addEventListener("stale", changed);
  document.addEventListener("acted", () => { $("#dialog")?.close(); last = 0; changed(); setTimeout(changed, 700); });
  document.addEventListener("htmx:afterSettle", () => { tick(); drawAll(); mark(); });

  // -- keyboard ---------------------------------------------------------------------------------
  // The row is remembered by what it shows: others may come before it.
  let row = -1, chosen = "", go = 0;
  const rows = () => $$("[data-row]");
  const nameOf = (each) => each.id || $$("a", each).slice(0, 2).map((link) => link.href).join(" ")
    || $("time", each)?.dateTime || each.firstElementChild.textContent;
  const mark = () => {
    const all = rows(), seen = new Set();
    const names = all.map((each) => {
      let name = nameOf(each);
      while (seen.has(name)) name += "+";
      seen.add(name);
      return name;
    });
    const at = names.indexOf(chosen);
    if (at >= 0) row = at;
    all.forEach((each, place) => each.toggleAttribute("data-current", place === at));
    return { all, names, at };
  };
  const move = (by) => {
    const { all, names, at } = mark();
    if (!all.length) return;
    // Where the row has gone, the next one stands in its place already.
    row = Math.max(0, Math.min(all.length - 1, row + (chosen && at < 0 && by > 0 ? 0 : by)));
    chosen = names[row];
    mark();
    all[row].scrollIntoView({ block: "nearest" });
  };
  const enter = () => { const { all, at } = mark(); if (at >= 0) $("a", all[at])?.click(); };
  const PLACES = { o: "/", r: "/runs", q: "/queue", p: "/pools", l: "/limits", w: "/workers", s: "/schedules", i: "/inbox" };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const inside = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (inside) { if (event.key === "Escape") inside.blur(); return; }
    if ($("dialog[open]")) return;
    const fast = performance.now() - go < 1200;
    if (fast && PLACES[event.key]) { location.href = PLACES[event.key]; return; }
    go = 0;
    switch (event.key) {
      case "/": event.preventDefault(); $("#search")?.focus(); break;
      case "j": move(1); break;
      case "k": move(-1); break;
      case "g": go = performance.now(); break;
      case "t": toggleTheme(); break;
      case "?": $("#keys").showModal(); break;
      case "Enter": if (event.target === document.body || event.target.id === "main") enter(); break;
    }
  });

  setSkew();
  if ($("[data-live]")) addEventListener("pageshow", (event) => { if (event.persisted) location.reload(); });
  const start = () => {
    tick();
    setInterval(beat, 1000);
    drawAll();
    // On a phone the tab or page that is shown may lie beyond the edge of its row.
    for (const each of $$(".tabs [aria-current], .side nav [aria-current]")) {
      const row = each.parentElement, box = each.getBoundingClientRect(), edge = row.getBoundingClientRect();
      if (box.right > edge.right) row.scrollLeft += box.right - edge.right + 24;
    }
    follow();
  };
  // The page is painted first. Before this event htmx hears no "live".
  addEventListener("DOMContentLoaded", () => document.hidden ? start() : requestAnimationFrame(() => setTimeout(start)));
  globalThis.locktender = { tick, spoken, brief };
})();
