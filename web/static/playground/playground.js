// The playground: sends tasks, shows them, and opens the links of tasks that were sent before.
//
// The page's fragment is the task's link: #task=<id>&token=<ticket>[&user=<name>]. The ticket lets its holder read this one task and
// nothing else; a browser does not send a fragment to a server.

import { call, enabled, explain } from "../common/api.js";
import { byId, h, radios, recall, remember, replace, setText } from "../common/dom.js";
import { onLanguage, t } from "../common/i18n.js";
import { startPage } from "../common/page.js";
import { APIS } from "./apis.js";
import { Burst } from "./burst.js";
import { CodePanel } from "./code.js";
import strings from "./strings.js";
import { TaskPanel } from "./task.js";
import { TemplateForm } from "./templates.js";

const MODELS_SOON_MS = 3000;
const MODELS_AGAIN_MS = 20_000;
const KEPT = new Set(["prompt", "model", "model-other", "tier", "api"]); // fields that this tab keeps through a reload
const OTHER = "\u0000other";

const page = startPage({ name: "playground", strings });
const said = text => setText(byId("said"), text);
const code = new CodePanel(byId("code"), "code-title");
const story = more => ({ base: location.origin, key: Boolean(page.me && !page.me.open), ...more });
const task = new TaskPanel(byId("task"), { onStory: done => code.show(story(done)), said });
const burst = new Burst({ form: byId("burst"), chart: byId("burst-chart"), code: byId("burst-code"), page, story, said, headersFor });
const TABS = ["ask", "burst"];
const templates = new TemplateForm(drawTemplate);
let models = null; // names; null = not known yet
let modelsTimer = 0;

const kept = id => recall(`fairlane.playground.${id}`, "sessionStorage");
byId("ask").addEventListener("input", ({ target }) => {
  if (KEPT.has(target.id)) remember(`fairlane.playground.${target.id}`, target.value, "sessionStorage");
});

// ---- who asks ----------

const latin = text => String.fromCharCode(...new TextEncoder().encode(text)); // a header holds bytes

/** The headers of a caller: as they travel (`wire`), and as a person would type them (`named`). */
function headersFor(user, tier) {
  const named = {};
  if (page.me?.delegating) {
    if (user) named["X-Fairlane-User"] = user;
    if (tier && tier !== page.me.tier) named["X-Fairlane-Tier"] = tier;
  }
  return { named, wire: Object.fromEntries(Object.entries(named).map(([name, value]) => [name, latin(value)])) };
}

page.onMe((me, problem) => {
  byId("ask-problem").hidden = true;
  drawApis();
  const box = byId("page-problem");
  box.hidden = me !== undefined && me !== null;
  if (me === undefined) setText(box, explain(problem));
  else if (me === null) {
    replace(
      box,
      h("span", {}, t("ask.needsKey")),
      " ",
      h("button", { type: "button", class: "small", on: { click: () => page.askForKey() } }, t("key.enter")),
    );
  }
  drawWho();
  burst.setMe(me);
  loadModels();
});

function drawWho() {
  const me = page.me;
  for (const field of document.querySelectorAll("[data-who]")) field.hidden = !me?.delegating;
  if (!me) return;
  const choose = (id, names, otherwise, label = name => name) => {
    const select = byId(id);
    const before = select.value || kept(id);
    replace(select, names.map(name => h("option", { value: name }, label(name))));
    select.value = names.includes(before) ? before : otherwise;
  };
  choose("tier", me.tiers, me.tier);
  choose("mode", ["", ...me.modes], "", name => name || t("ask.mode.default"));
}

// ---- models ----------

async function loadModels() {
  clearTimeout(modelsTimer);
  if (page.me === null) return; // the next key asks again
  let again = MODELS_SOON_MS;
  try {
    const headers = headersFor(byId("user").value.trim(), byId("tier").value).wire;
    const [names] = await Promise.all([
      call("/v1/models", { headers }).then(({ data }) => data.map(model => model.id)),
      templates.load(headers).catch(() => {}), // another release may not know the call
    ]);
    if (names.length) again = MODELS_AGAIN_MS;
    if (JSON.stringify(names) !== JSON.stringify(models)) {
      models = names;
      drawModels();
      // for an admin, the model with the fewest slots comes first: a burst on free slots shows no fairness
      const rows = page.me?.admin ? await call("/api/admin/overview").then(answer => answer.models, () => []) : [];
      const slots = new Map(rows.filter(row => row.slots).map(row => [row.model, row.slots]));
      burst.setModels(names.toSorted((a, b) => (slots.get(a) ?? Infinity) - (slots.get(b) ?? Infinity)));
    }
  } catch {
    // the page says elsewhere what is wrong
  }
  modelsTimer = setTimeout(loadModels, again);
}

function drawModels() {
  if (models === null) return;
  const select = byId("model");
  const before = select.value || kept("model");
  const names = models.length ? models : ["default"];
  replace(
    select,
    names.map(name => h("option", { value: name }, name)),
    h("option", { value: OTHER }, t("ask.model.other")),
  );
  select.value = before === OTHER || names.includes(before) ? before : names[0];
  byId("model-other").hidden = select.value !== OTHER;
  const hint = byId("model-hint");
  hint.hidden = models.length > 0;
  setText(hint, t("ask.model.none"));
}

/** A template replaces the prompt, and a route the model; only the Fairlane API has templates. */
function drawTemplate(template) {
  byId("prompt-field").hidden = Boolean(template);
  byId("model-field").hidden = Boolean(template?.route);
  byId("api").disabled = Boolean(template);
  if (template) byId("api").value = "fairlane";
  drawApi();
}

function model() {
  return byId("model").value === OTHER ? byId("model-other").value.trim() : byId("model").value;
}

byId("model").addEventListener("change", () => {
  byId("model-other").hidden = byId("model").value !== OTHER;
  if (!byId("model-other").hidden) byId("model-other").focus();
});

// ---- asking ----------

function drawApis() {
  const before = byId("api").value || kept("api") || "fairlane";
  replace(byId("api"), Object.entries(APIS).filter(([name]) => enabled(name)).map(([name, { path }]) => h("option", { value: name }, `${name[0].toUpperCase()}${name.slice(1)} – ${path}`)));
  byId("api").value = enabled(before) ? before : "fairlane";
  drawApi();
}

function drawApi() {
  byId("more").hidden = Boolean(templates.chosen);
  byId("readings-field").hidden = byId("api").value !== "fairlane";
}
byId("api").addEventListener("change", drawApi);

byId("ask").addEventListener("submit", event => {
  event.preventDefault();
  send();
});
byId("prompt").addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    send();
  }
});

async function send() {
  const button = byId("send");
  if (button.disabled) return;
  if (page.me === null) {
    await page.askForKey(t("ask.needsKey"));
    if (!page.me) return;
  }
  button.disabled = true;
  byId("ask-problem").hidden = true;
  try {
    await (byId("api").value === "fairlane" ? submit(byId("side-by-side").checked) : ask(APIS[byId("api").value]));
    if (matchMedia("(max-width: 60rem)").matches) byId("result").scrollIntoView({ behavior: "smooth" });
  } catch (problem) {
    if (problem?.name !== "AbortError") showProblem(problem);
  } finally {
    button.disabled = false;
  }
}

function showProblem(problem) {
  const box = byId("ask-problem");
  box.hidden = false;
  const codeOf = problem.status ? ` [${problem.status} ${problem.code}]` : "";
  setText(box, explain(problem) + codeOf);
}

const asked = () => ({ model: model(), system: byId("system").value.trim(), prompt: byId("prompt").value, maxTokens: Number(byId("max-tokens").value) || 0 });

/** Submit a task through the Fairlane API and follow its event log. */
async function submit(readings) {
  const user = byId("user").value.trim();
  const headers = headersFor(user, byId("tier").value);
  const mode = byId("mode").value;
  const template = templates.chosen;
  const path = template ? "/api/tasks" : APIS.fairlane.path;
  const said = template ? { ...templates.body, ...(template.route ? {} : { model: model() }), stream: true, async: true } : APIS.fairlane.body(asked());
  const body = { ...said, ...(mode && !template?.chain ? { mode } : {}) };
  const accepted = await call(path, { body, headers: headers.wire });
  const steps = [{ do: "submit", path, body }, { do: "read" }, ...(readings ? [{ do: "poll" }] : [])];
  task.follow(accepted, { headers, steps, readings });
  const token = new URL(accepted.streamUrl, location.origin).searchParams.get("token");
  const link = new URLSearchParams({ task: accepted.taskId, token, ...(headers.named["X-Fairlane-User"] ? { user } : {}) });
  history.pushState(null, "", `#${link}`);
}

/** Ask through one of the other APIs. */
async function ask(api) {
  const headers = headersFor(byId("user").value.trim(), byId("tier").value);
  const mode = byId("mode").value;
  const own = mode ? { "X-Fairlane-Mode": mode } : {};
  const body = api.body(asked());
  history.pushState(null, "", location.pathname);
  await task.ask(api, body, { headers, own, steps: [{ do: "ask", path: api.path, body, headers: { ...own, ...api.headers } }] });
}

// ---- links ----------

function openLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  const [taskId, token, user] = ["task", "token", "user"].map(name => link.get(name) ?? "");
  for (const name of TABS) if (location.hash === `#${name}`) showTab(name);
  if (!taskId || taskId === task.taskId) return;
  showTab("ask");
  const streamUrl = `/api/task/${encodeURIComponent(taskId)}/events?token=${encodeURIComponent(token)}`;
  // once it is known who the reader is: that decides whether the task's user may be named; a link works without
  page.known.then(() => task.follow({ taskId, streamUrl }, { headers: headersFor(user, ""), steps: [{ do: "link", url: streamUrl }] }));
}

addEventListener("hashchange", openLink);
addEventListener("popstate", openLink);

// ---- tabs ----------

function drawTabs() {
  const shown = TABS.find(name => !byId(`view-${name}`).hidden);
  replace(byId("tabs"), radios("tab", TABS.map(name => [name, h("span", {}, t(`tabs.${name}`))]), shown, showTab));
}

function showTab(name) {
  for (const other of TABS) byId(`view-${other}`).hidden = other !== name;
  byId("tabs").querySelector(`[value="${name}"]`).checked = true;
}

// ---- begin ----------

byId("prompt").value = kept("prompt") ?? t("ask.prompt.example");
byId("model-other").value = kept("model-other") ?? "";
drawTabs();
drawApis();
onLanguage(() => {
  drawTabs();
  drawApis();
  drawWho();
  drawModels();
  templates.draw();
  task.draw();
  code.draw();
  burst.draw();
  document.title = `${t("playground.title")} · Fairlane`;
});
document.title = `${t("playground.title")} · Fairlane`;
openLink();
