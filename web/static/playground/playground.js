// The playground: sends tasks, shows them, and opens the links of tasks that were sent before.
//
// The page's fragment is the task's link: #task=<id>&token=<ticket>[&user=<name>]. The ticket lets its holder read this one task, no
// more; a fragment is never sent to a server. #response=<id>[&user=<name>] is a kept response, for those alone who may read it.

import { Problem, call, explain } from "../common/api.js";
import { byId, h, replace, setText } from "../common/dom.js";
import { onLanguage, t } from "../common/i18n.js";
import { startPage } from "../common/page.js";
import { BatchesView } from "./batches/batches.js";
import { Burst } from "./burst.js";
import { CodePanel } from "./code/panel.js";
import { ConversationForm } from "./conversation.js";
import strings from "./strings.js";
import { unsaid } from "./surfaces/conversation.js";
import { inputsOf } from "./surfaces/embeddings.js";
import { taskOf } from "./surfaces/responses.js";
import { surfaceOf } from "./surfaces/surfaces.js";
import { TaskPanel } from "./task.js";
import { TemplateForm } from "./templates.js";
import { VectorsPanel } from "./vectors.js";
import { WebhooksView } from "./webhooks/webhooks.js";

const MODELS_SOON_MS = 3000;
const MODELS_AGAIN_MS = 20_000;
const KEPT = ["prompt", "user", "tier", "mode", "model", "system", "max-tokens"]; // in this tab, through a reload
const OTHER = "\u0000other";

const page = startPage({ name: "playground", strings });
const said = text => setText(byId("said"), text);
const code = new CodePanel(byId("code"), "code-title");
const story = more => ({ base: location.origin, key: Boolean(page.me && !page.me.open), ...more });
const task = new TaskPanel(byId("task"), { onStory: told => code.show(story(told)), said, onAnswer: goOn });
const vectors = new VectorsPanel(byId("vectors"), { said });
const conversation = new ConversationForm();
const burst = new Burst({ form: byId("burst"), chart: byId("burst-chart"), code: byId("burst-code"), page, story, said, headersFor });
const who = () => headersFor(byId("user").value.trim(), byId("tier").value);
const batches = new BatchesView({ page, story, said, model, who });
const webhooks = new WebhooksView({ story, who });
const TABS = ["ask", "burst", "batches", "webhooks"];
let asked = null; // the conversation whose answer is shown
const templates = new TemplateForm(drawTemplate);
let models = null; // names; null = not known yet
let modelsTimer = 0;

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
  const box = byId("page-problem");
  box.hidden = me !== undefined && me !== null;
  if (me === undefined) setText(box, explain(problem));
  else if (me === null) {
    replace(
      box,
      h("span", {}, t("ask.needsKey")),
      " ",
      h("button", { type: "button", class: "small", on: { click: () => page.askForKey() } }, t("ask.enterKey")),
    );
  }
  drawWho();
  burst.setMe(me);
  batches.setMe(me);
  webhooks.setMe(me);
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
      burst.setModels(models);
      batches.setModels(models);
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

/** A template takes the prompt's place, and a route the model's; OpenAI's and Anthropic's calls know no templates. */
function drawTemplate(template) {
  byId("prompt-field").hidden = Boolean(template);
  byId("model-field").hidden = Boolean(template?.route);
  for (const input of document.querySelectorAll("input[name=surface]")) {
    input.disabled = Boolean(template) && input.value !== "native";
    if (template) input.checked = input.value === "native";
  }
  drawSurface();
}

function model() {
  return byId("model").value === OTHER ? byId("model-other").value.trim() : byId("model").value;
}

byId("model").addEventListener("change", () => {
  byId("model-other").hidden = byId("model").value !== OTHER;
  if (!byId("model-other").hidden) byId("model-other").focus();
});

// ---- asking ----------

const surface = () => surfaceOf(document.querySelector("input[name=surface]:checked").value);

function drawSurface() {
  const { name, lacks, whole = false } = surface();
  const alone = whole || Boolean(templates.chosen); // no conversation
  byId("more").hidden = alone;
  byId("turns").hidden = alone || !byId("turns").querySelector("li");
  byId("prompt-label").dataset.t = whole ? "ask.inputs" : "ask.prompt";
  setText(byId("prompt-label"), t(byId("prompt-label").dataset.t));
  byId("readings-field").hidden = name !== "native";
  byId("background-field").hidden = name !== "responses";
  const background = name === "responses" && byId("background").checked;
  setText(byId("surface-hint"), t(name === "native" && byId("side-by-side").checked ? "ask.sideBySide.hint" : `surface.${name}${background ? ".background" : ""}.hint`));
  let left = [];
  try {
    left = unsaid(conversation.asked(model(), ""), lacks);
  } catch {
    // the tools are being written
  }
  byId("unsaid").hidden = left.length === 0;
  setText(byId("unsaid"), left.map(part => t(`unsaid.${part}`)).join(" "));
}
byId("ask").addEventListener("change", drawSurface);

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
  keep();
  try {
    const { name, whole } = surface();
    await (name === "native" ? sendNative(byId("side-by-side").checked) : whole ? sendWhole(surface()) : sendThrough(surface()));
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
  const codeOf = problem instanceof Problem && problem.status ? ` [${problem.status} ${problem.code}]` : "";
  setText(box, explain(problem) + codeOf);
}

/** The conversation as the form says it. Who gives tools' results back need not say more. */
function ask() {
  const question = byId("prompt").value;
  asked = conversation.asked(model(), conversation.answers && !question ? null : question);
  return asked;
}

/** The reader goes on from an answer: it is a turn of the conversation now. With results of tools there is nothing more to be said. */
function goOn(answer, results) {
  conversation.goOn(asked, answer, results);
  byId("prompt").value = "";
  drawSurface();
  if (answer.calls.length) send();
  else byId("prompt").focus();
}

async function sendNative(readings) {
  const user = byId("user").value.trim();
  const headers = headersFor(user, byId("tier").value);
  const mode = byId("mode").value;
  const template = templates.chosen;
  const { path, body: bodyOf } = surfaceOf("native");
  const [at, said] = template ? ["/api/tasks", { ...templates.body, ...(template.route ? {} : { model: model() }), stream: true, async: true }] : [path, bodyOf(ask())];
  if (template) asked = null;
  const body = { ...said, ...(mode && !template?.chain ? { mode } : {}) };
  const accepted = await call(at, { body, headers: headers.wire });
  showResult("task");
  const steps = [{ do: "submit", path: at, body }, { do: "read" }, ...(readings ? [{ do: "poll" }] : [])];
  task.follow(accepted, { headers, steps, readings, user: headers.named["X-Fairlane-User"], goesOn: !template });
  const token = new URL(accepted.streamUrl, location.origin).searchParams.get("token");
  const link = new URLSearchParams({ task: accepted.taskId, token, ...(headers.named["X-Fairlane-User"] ? { user } : {}) });
  history.pushState(null, "", `#${link}`);
}

async function sendThrough(surface) {
  const user = byId("user").value.trim();
  const headers = headersFor(user, byId("tier").value);
  const mode = byId("mode").value;
  const own = mode ? { "X-Fairlane-Mode": mode } : {};
  const body = surface.body(ask(), { background: byId("background").checked });
  history.pushState(null, "", location.pathname);
  showResult("task");
  await task.ask(surface, body, { headers, own, steps: [{ do: "ask", surface, body, headers: own }] });
  if (!body.background) return;
  const link = new URLSearchParams({ response: `resp_${task.taskId}`, ...(headers.named["X-Fairlane-User"] ? { user } : {}) });
  history.replaceState(null, "", `#${link}`);
}

/** To a surface that answers at once: each line is an input. */
async function sendWhole(surface) {
  const inputs = inputsOf(byId("prompt").value);
  if (!inputs.length) throw new Error(t("vectors.noInputs"));
  const headers = headersFor(byId("user").value.trim(), byId("tier").value);
  const mode = byId("mode").value;
  const own = mode ? { "X-Fairlane-Mode": mode } : {};
  const body = surface.body({ model: model(), inputs });
  history.pushState(null, "", location.pathname);
  task.close();
  task.draw();
  showResult("vectors");
  code.show(story({ headers: headers.named, taskId: null, steps: [{ do: "ask", surface, body, headers: own }] }));
  await vectors.ask(surface.path, body, { headers: { ...headers.wire, ...own } });
}

/** Of the two panels that show what came of it, this one. */
function showResult(name) {
  if (name === "task") vectors.close();
  for (const id of ["task", "vectors"]) byId(id).hidden = id !== name;
}

// ---- links ----------

function openLink() {
  const link = new URLSearchParams(location.hash.slice(1));
  const [taskId, token, response, user] = ["task", "token", "response", "user"].map(name => link.get(name) ?? "");
  for (const name of TABS) if (location.hash === `#${name}`) showTab(name);
  if (/^resp_[0-9a-f-]{36}$/.test(response)) {
    if (taskOf(response) === task.taskId) return;
    showTab("ask");
    askInBackground();
    showResult("task");
    const follow = () => task.followResponse(response, { headers: headersFor(user, "") }).catch(showProblem);
    whenKnown(() => (page.me === null ? page.askForKey(t("ask.needsKey")).then(follow) : follow()));
    return;
  }
  if (!taskId || taskId === task.taskId) return;
  showTab("ask");
  if (!token || !/^[0-9a-f-]{36}$/.test(taskId)) {
    showProblem(new Problem(0, "LINK_INVALID", "")); // a part of it is missing
    return;
  }
  showResult("task");
  const streamUrl = `/api/task/${taskId}/events?token=${encodeURIComponent(token)}`;
  whenKnown(() => task.followLink({ taskId, streamUrl, headers: headersFor(user, ""), user }));
}

/** The form as it was sent for a link's response: what is asked next goes the same way. */
function askInBackground() {
  document.querySelector("input[name=surface][value=responses]").checked = true;
  byId("background").checked = true;
  drawSurface();
}

/** Do it once it is known who the reader is: that decides whether the task's user may be named. A link works without. */
function whenKnown(open) {
  if (page.me !== undefined) {
    open();
    return;
  }
  let opened = false;
  page.onMe(() => {
    if (!opened) open();
    opened = true;
  });
}
addEventListener("hashchange", openLink);
addEventListener("popstate", openLink);

// ---- tabs ----------


function showTab(name) {
  for (const other of TABS) {
    const tab = byId(`tab-${other}`);
    tab.setAttribute("aria-selected", String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
    byId(`view-${other}`).hidden = other !== name;
  }
  batches.shown = name === "batches";
  webhooks.shown = name === "webhooks";
}
for (const [index, name] of TABS.entries()) {
  const tab = byId(`tab-${name}`);
  tab.addEventListener("click", () => showTab(name));
  tab.addEventListener("keydown", event => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const step = event.key === "ArrowRight" ? 1 : TABS.length - 1;
    const next = TABS[(index + step) % TABS.length];
    showTab(next);
    byId(`tab-${next}`).focus();
  });
}

// ---- what stays in this tab ----------

function kept(id) {
  try {
    return JSON.parse(sessionStorage.getItem("fairlane.ask") ?? "{}")[id] ?? "";
  } catch {
    return "";
  }
}

function keep() {
  try {
    sessionStorage.setItem("fairlane.ask", JSON.stringify(Object.fromEntries(KEPT.map(id => [id, byId(id).value]))));
  } catch {
    // storage is switched off
  }
}

// ---- begin ----------

byId("prompt").value = kept("prompt") || t("ask.prompt.example");
for (const id of ["user", "system", "max-tokens"]) byId(id).value = kept(id);
drawSurface();
onLanguage(() => {
  conversation.draw();
  drawSurface();
  drawWho();
  drawModels();
  templates.draw();
  task.draw();
  vectors.draw();
  code.draw();
  burst.draw();
  batches.draw();
  webhooks.draw();
  document.title = t("playground.pageTitle");
});
document.title = t("playground.pageTitle");
openLink();
