// The dashboard: who may see it, which view is shown, and the one live feed that all views are drawn from.

import { enabled, explain, getKey } from "../common/api.js";
import { byId, h, replace, setText } from "../common/dom.js";
import { clock, duration, number } from "../common/format.js";
import { onLanguage, t } from "../common/i18n.js";
import { startPage } from "../common/page.js";
import { events } from "../common/sse.js";
import { Overview } from "./overview.js";
import { key, keys } from "./resources/keys.js";
import { overrides } from "./resources/overrides.js";
import { audit, batches, settings, usage, webhooks } from "./resources/resources.js";
import { task } from "./resources/task.js";
import { tasks } from "./resources/tasks.js";
import strings from "./strings.js";
import { ResourceView } from "./view.js";

const IDLE_MS = 10_000;
const HIDDEN_MS = 2_000;
const AGAIN_MS = 3_000;

const page = startPage({ name: "dashboard", strings });
const state = { picture: null, feed: null, connection: "", view: null, shown: "", allowed: false, denied: null, hiding: 0, again: 0 };

// ---- who may see it ----------

page.onMe((me, problem) => {
  clearTimeout(state.again);
  stopFeed();
  if (me === undefined) {
    // the gateway does not answer: what was shown stays, marked as lost
    state.again = setTimeout(page.refresh, AGAIN_MS);
    if (state.allowed) state.connection = "lost";
    else state.denied = { text: () => explain(problem), asks: false };
    draw();
    return;
  }
  state.allowed = Boolean(me?.admin || me?.scopes?.includes("viewer"));
  if (state.allowed) {
    state.denied = null;
    document.body.classList.toggle("viewer", !me.scopes.includes("admin"));
    drawViews(addressed().name);
    startFeed();
    route();
    draw();
    return;
  }
  leave();
  state.denied = { text: () => (me === null ? t("key.needed") : t("key.not.admin", { key: me.key ?? me.user })), asks: true };
  draw();
  if (!getKey() && !document.querySelector("dialog")) askForKey();
});

const askForKey = () => page.askForKey(t("key.needed"));

// ---- the feed ----------

/** One connection as long as the page is seen: a browser has few of them for one gateway, and hidden tabs must not hold them. */
async function startFeed() {
  if (state.feed !== null || document.hidden || !state.allowed) return;
  const feed = (state.feed = new AbortController());
  const show = change => {
    if (feed !== state.feed) return;
    Object.assign(state, change);
    drawSafely();
  };
  const options = { signal: feed.signal, silenceMs: IDLE_MS, maxRetries: Infinity, onConnection: connection => show({ connection }) };
  try {
    for await (const { event, data } of events("/api/admin/events", options)) if (event === "overview") show({ picture: data });
  } catch {
    // rejected: the key may be an admin's no more, or something between does not know the feed
    show({ connection: "lost" });
    if (feed === state.feed) state.again = setTimeout(page.refresh, AGAIN_MS);
  }
}

function stopFeed() {
  state.feed?.abort();
  state.feed = null;
  state.connection = "";
}

document.addEventListener("visibilitychange", () => {
  clearTimeout(state.hiding);
  if (document.hidden) {
    state.hiding = setTimeout(() => {
      stopFeed();
      draw();
    }, HIDDEN_MS);
  } else startFeed();
});

// ---- drawing ----------

/** A picture that cannot be drawn is our mistake, and not the connection's. */
function drawSafely() {
  try {
    draw();
  } catch (error) {
    console.error(error);
  }
}

function draw() {
  const { allowed, denied, picture, connection, view } = state;
  const [name, text] = allowed ? connectionText() : ["", ""];
  byId("live").dataset.state = name;
  setText(byId("live"), text);
  const shown = allowed ? notices() : denied ? [["warn", denied.text()]] : [];
  const box = byId("problem");
  const kinds = shown.map(([kind]) => kind).join();
  if (box.dataset.kinds !== kinds) {
    box.dataset.kinds = kinds;
    replace(box, shown.map(([kind]) => h("p", { class: `notice ${kind}` })));
  }
  for (const [index, [, sentence]] of shown.entries()) setText(box.children[index], sentence);
  if (!allowed) {
    if (denied?.asks) box.append(h("div", { class: "actions" }, h("button", { type: "button", class: "primary", id: "enter-key", on: { click: askForKey } }, t("key.enter"))));
    delete box.dataset.kinds;
  } else if (picture) {
    byId("view").classList.toggle("stale", connection === "lost" || !picture.store.up);
    view?.show(picture);
  }
}

/** How the page is connected: a state and a text. */
function connectionText() {
  const { picture, connection, feed } = state;
  if (connection === "lost") return ["lost", t("live.lost")];
  if (feed === null) return ["connecting", t("live.paused")];
  if (connection !== "open" || !picture) return ["connecting", t("live.connecting")];
  const { now, store, gateway } = picture;
  if (!store.up) return ["lost", t("live.store", { time: duration(now - (store.since ?? now)) })];
  if (store.rejectsWrites) return ["lost", t("live.rejectsWrites")];
  return ["live", t("live.live", { replica: gateway.replica, time: clock(now) })];
}

/** What the reader must know: [kind, sentence] of each. */
function notices() {
  const { picture, connection } = state;
  if (connection === "lost") return [["bad", picture ? t("feed.lost", { at: clock(picture.now) }) : t("error.NETWORK")]];
  if (!picture) return [];
  const { now, asOf, store, gateway, database, counts } = picture;
  const found = [];
  const known = () => (asOf === null ? t("store.unknown") : t("store.known", { at: clock(asOf) }));
  if (!store.up) found.push(["bad", `${t("store.down", { at: clock(store.since ?? now) })} ${known()}`]);
  else if (store.rejectsWrites) found.push(["bad", t("store.rejectsWrites", { address: store.address, at: clock(store.since), reason: store.reason })]);
  for (const pool of picture.pools ?? []) {
    if (store.up && !pool.up) found.push(["bad", t("store.poolDown", { pool: pool.pool, address: pool.address, at: clock(pool.since ?? now) })]);
  }
  if (store.up && !store.rejectsWrites && gateway.draining) found.push(["warn", t("draining")]);
  const away = database && !database.up ? { at: clock(database.since), reason: database.reason } : null;
  const { recordsWaiting, recordsMax } = counts ?? {};
  if (recordsWaiting >= recordsMax) {
    const full = t("database.full", { n: number(recordsWaiting), most: number(recordsMax) });
    found.push(["bad", `${full} ${away ? t("database.full.away", away) : t("database.full.up")}`]);
  } else if (away) found.push(["bad", t("database.away", away)]);
  return found;
}

// ---- views ----------

/** What views get: the tiers, queues, models and workers that are known. */
const context = {
  tiers: () => [...new Set((state.picture?.queues ?? []).map(row => row.tier))],
  names: () => ({
    queues: (state.picture?.queues ?? []).map(row => [row.queue, ""]),
    models: (state.picture?.models ?? []).map(row => [row.model, ""]),
    workers: (state.picture?.workers ?? []).map(row => [row.workerId, row.name]),
  }),
  refresh: page.refresh,
};

const LISTS = { tasks, batches, webhooks, usage, keys, overrides, settings, audit };
const RECORDS = { tasks: task, keys: key };

function leave() {
  state.view?.close();
  state.view = null;
  state.shown = "";
  replace(byId("view"));
}

/** What the address names: #/, #/LIST?filters or, of LISTS that have RECORDS, #/LIST/id?filters. */
function addressed() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [name, id] = path.split("/");
  return { name: name in LISTS && enabled(name) ? name : "overview", id: name in RECORDS && id ? id : undefined, wanted: new URLSearchParams(query ?? "") };
}

function route() {
  if (!state.allowed || (state.shown === location.hash && state.view)) return;
  const { name, id, wanted } = addressed();
  const same = state.view instanceof ResourceView && state.view.name === name && state.view.id === id;
  if (same) state.view.use(wanted);
  else {
    leave();
    state.view = name in LISTS ? new ResourceView(id ? RECORDS[name] : LISTS[name], id, wanted, context) : new Overview(context);
    replace(byId("view"), state.view.element);
    drawViews(name);
    document.title = `${id ?? t(`${name}.title`)} · ${t("nav.dashboard")} · Fairlane`; // names the entries of the browser's history
  }
  state.shown = location.hash;
  draw();
}

function drawViews(current) {
  const link = name => h("a", { href: `#/${name in LISTS ? name : ""}`, dataset: { view: name }, "aria-current": name === current ? "page" : null }, t(`${name}.title`));
  replace(byId("views"), ["overview", ...Object.keys(LISTS).filter(enabled)].map(link));
}

addEventListener("hashchange", () => {
  const before = state.view;
  route();
  if (state.view === before) return;
  scrollTo(0, 0);
  if (document.activeElement === document.body) byId("main").focus({ preventScroll: true }); // the link that led here is gone
});
onLanguage(() => {
  drawViews(addressed().name);
  leave();
  route();
  draw();
});
drawViews(addressed().name);
