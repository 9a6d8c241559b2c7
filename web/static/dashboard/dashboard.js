// The dashboard: who may see it, which view is shown, and the one live feed that all views are drawn from.

import { getKey } from "../common/api.js";
import { byId, h, replace, setText } from "../common/dom.js";
import { clock, duration } from "../common/format.js";
import { onLanguage, t, translate } from "../common/i18n.js";
import { startPage } from "../common/page.js";
import { listen } from "../common/sse.js";
import { Audit } from "./audit.js";
import { Overview } from "./overview.js";
import strings from "./strings.js";
import { Task } from "./task.js";
import { Tasks } from "./tasks.js";

const IDLE_MS = 10_000;
const HIDDEN_MS = 5_000;

const page = startPage({ name: "dashboard", strings });
const state = { picture: null, feed: null, connection: "", view: null, shown: "", allowed: false, hiding: 0 };

// ---- who may see it ----------

page.onMe((me, problem) => {
  state.allowed = Boolean(me?.admin);
  stopFeed();
  leave();
  if (me === undefined && problem) {
    refuse(t("feed.lost", { at: clock(Date.now()) }), null);
    setTimeout(page.refresh, 3000);
  } else if (me === null) refuse(t("key.needed"), true);
  else if (!me.admin) refuse(t("key.not.admin", { key: me.key ?? me.user }), true);
  else {
    replace(byId("problem"));
    startFeed();
    route();
  }
});

function refuse(text, asks) {
  const ask = () => page.askForKey(t("key.needed"));
  replace(
    byId("problem"),
    h(
      "div",
      { class: "notice warn" },
      text,
      asks ? h("div", { class: "actions" }, h("button", { type: "button", class: "primary", id: "enter-key", on: { click: ask } }, t("key.enter"))) : null,
    ),
  );
  if (asks && !getKey() && !document.querySelector("dialog")) ask();
}

// ---- the feed ----------

/** One connection as long as the page is seen: a browser has few of them for one gateway, and hidden tabs must not hold them. */
function startFeed() {
  if (state.feed !== null || document.hidden || !state.allowed) return;
  const feed = new AbortController();
  state.feed = feed;
  listen("/api/admin/feed", {
    signal: feed.signal,
    idleMs: IDLE_MS,
    onEvent: event => {
      if (event.event !== "state" || feed !== state.feed) return;
      state.picture = JSON.parse(event.data);
      draw();
    },
    onState: name => {
      if (feed !== state.feed) return;
      state.connection = name;
      draw();
    },
  }).catch(() => {
    if (feed === state.feed) page.refresh(); // refused: the key is an admin's no more
  });
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

/** A new picture comes each second by itself: what was done is seen then. */
const refresh = () => {};

// ---- drawing ----------

function draw() {
  if (!state.allowed) return;
  const { picture, connection } = state;
  const lost = connection === "lost";
  const live = byId("live");
  const away = connection === "open" && picture && !picture.store.up;
  live.dataset.state = lost || away ? "lost" : connection === "open" && picture ? "live" : "connecting";
  if (lost) setText(live, t("live.lost"));
  else if (state.feed === null) setText(live, t("live.paused"));
  else if (away) setText(live, t("live.store", { time: duration(picture.now - (picture.store.since ?? picture.now)) }));
  else if (picture && connection === "open") setText(live, t("live.live", { replica: picture.gateway.replica, time: clock(picture.now) }));
  else setText(live, t("live.connecting"));
  if (!picture) return;
  drawProblems(picture, lost);
  state.view?.show(picture);
}

function drawProblems(picture, lost) {
  const notices = [];
  const known = () => (picture.asOf === null ? t("store.unknown") : t("store.known", { at: clock(picture.asOf) }));
  if (lost) notices.push(["bad", t("feed.lost", { at: clock(picture.now) })]);
  else if (!picture.store.up) {
    const since = picture.store.since ?? picture.now;
    notices.push(["bad", `${t("store.down", { at: clock(since) })} ${known()}`]);
  } else if (picture.gateway.draining) notices.push(["warn", t("draining")]);
  const box = byId("problem");
  const kinds = notices.map(([kind]) => kind).join();
  if (box.dataset.kinds !== kinds || box.children.length !== notices.length) {
    box.dataset.kinds = kinds;
    replace(box, notices.map(([kind]) => h("p", { class: `notice ${kind}` })));
  }
  for (const [index, [, text]] of notices.entries()) setText(box.children[index], text);
}

// ---- views ----------

const names = () => ({
  queues: (state.picture?.queues ?? []).map(row => row.queue),
  models: (state.picture?.models ?? []).map(row => row.model),
});

function leave() {
  state.view?.close();
  state.view = null;
  state.shown = "";
  replace(byId("view"));
}

/** Show the view that the address names: #/, #/tasks?…, #/tasks/<id>, #/audit. */
function route() {
  if (!state.allowed) return;
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [name, id] = path.split("/");
  if (state.shown === location.hash && state.view) return;
  leave();
  state.shown = location.hash;
  if (name === "tasks" && id) state.view = new Task(decodeURIComponent(id));
  else if (name === "tasks") state.view = new Tasks(new URLSearchParams(query ?? ""), { names });
  else if (name === "audit") state.view = new Audit();
  else state.view = new Overview({ refresh });
  const view = ["tasks", "audit"].includes(name) ? name : "overview";
  for (const link of document.querySelectorAll(".views a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  replace(byId("view"), state.view.element);
  translate(byId("view"));
  draw();
}

addEventListener("hashchange", () => {
  route();
  scrollTo(0, 0);
});
onLanguage(draw);
