// What every page has around its content: the header with its links and switches, the key, short notices, questions.

import { FairlaneError } from "../client/fairlane.js";
import { explain, getKey, setKey, whoAmI } from "./api.js";
import { h, labelled, remember, replace, setText, svg } from "./dom.js";
import { LANGUAGES, define, language, onLanguage, setLanguage, t, translate } from "./i18n.js";
import common from "./strings.js";

const PAGES = [
  { name: "playground", path: "/" },
  { name: "dashboard", path: "/dashboard" },
  { name: "docs", path: "/docs" },
];
const SAVED_MS = 60_000; // the browser has begun to save by then
const THEMES = ["auto", "light", "dark"];

/**
 * Put the header into <header id="header">, translate the page, and find out who its reader is. `name`: playground, dashboard or docs.
 *
 * Returns { me, onMe(work), known, askForKey(reason), refresh() }: `me` is what `whoAmI` says (null: a key is needed), `work(me)` is
 * called when it becomes known and whenever the key changes; a failure is `work(undefined, problem)`. `known` resolves when it is known for the first time.
 */
export function startPage({ name, strings }) {
  define(common);
  define(strings);
  const page = { me: undefined, _listeners: new Set() };
  const header = document.getElementById("header");
  const draw = () => replace(header, ...headerParts(page, name));

  page.onMe = work => {
    page._listeners.add(work);
    if (page.me !== undefined) work(page.me);
  };
  page.askForKey = reason => askForKey(page, reason);
  page.refresh = async () => {
    let me;
    let problem = null;
    try {
      me = await whoAmI();
    } catch (error) {
      problem = error;
    }
    page.me = me;
    const seen = JSON.stringify([me, getKey()]);
    if (seen !== page._seen) draw(); // else what has the focus keeps it
    page._seen = seen;
    for (const work of page._listeners) work(me, problem);
    return me;
  };

  const skip = event => {
    event.preventDefault(); // the address may name a view
    document.getElementById("main").focus();
  };
  document.body.prepend(h("a", { class: "skip", href: "#main", dataset: { t: "nav.skip" }, on: { click: skip } }));
  document.body.append(h("div", { id: "toasts", role: "status", "aria-live": "polite" }));
  draw();
  translate();
  onLanguage(draw);
  page.known = page.refresh();
  return page;
}

function headerParts(page, name) {
  const links = PAGES.map(({ name: other, path }) =>
    h("a", { href: path, "aria-current": other === name ? "page" : null }, t(`nav.${other}`)),
  );
  return [
    h("a", { class: "brand", href: "/" }, logo(), h("span", {}, "Fairlane")),
    h("nav", { "aria-label": t("nav.label") }, links),
    h("div", { class: "header-end" }, keyPart(page), languagePart(), themePart()),
  ];
}

function logo() {
  const bars = [20, 13, 7].map((width, index) =>
    svg("rect", { x: 6, y: 8 + 6 * index, width, height: 4, rx: 2, class: `logo-bar-${index}` }),
  );
  const ground = svg("rect", { width: 32, height: 32, rx: 7, class: "logo-ground" });
  return svg("svg", { viewBox: "0 0 32 32", width: 26, height: 26, "aria-hidden": "true" }, ground, bars);
}

function keyPart(page) {
  if (page.me?.open) return h("span", { class: "tag", title: t("key.open.long") }, t("key.open"));
  if (page.me === undefined && !getKey()) return null;
  const label = getKey() ? t("key.set") : t("key.button");
  const who = page.me && getKey() ? ` · ${page.me.user}` : "";
  return h("button", { type: "button", class: "quiet", id: "key-button", on: { click: () => page.askForKey() } }, label + who);
}

function languagePart() {
  const options = Object.entries(LANGUAGES).map(([code, text]) =>
    h("option", { value: code, lang: code, selected: code === language() }, text),
  );
  const change = event => {
    setLanguage(event.target.value);
    document.getElementById("language").focus(); // the header has been drawn again
  };
  return h("select", { id: "language", "aria-label": t("language.label"), on: { change } }, options);
}

function themePart() {
  const now = document.documentElement.dataset.theme ?? "auto";
  const options = THEMES.map(theme => h("option", { value: theme, selected: theme === now }, t(`theme.${theme}`)));
  return h("select", { id: "theme", "aria-label": t("theme.label"), on: { change: event => setTheme(event.target.value) } }, options);
}

function setTheme(theme) {
  const root = document.documentElement;
  if (theme === "auto") delete root.dataset.theme;
  else root.dataset.theme = theme;
  remember("fairlane.theme", theme === "auto" ? "" : theme);
}

function askForKey(page, reason) {
  return new Promise(resolve => {
    const input = h("input", { id: "key-input", type: "password", autocomplete: "off", spellcheck: "false", "aria-describedby": "key-hint", value: getKey() });
    const use = async () => {
      if (!(await whoAmI({ as: input.value.trim() }))) throw new FairlaneError("refused", "KEY_REJECTED", "");
      setKey(input.value);
      await page.refresh();
    };
    const forget = async () => {
      setKey("");
      await page.refresh();
      dialog.close();
    };
    const dialog = openForm({
      title: t("key.title"),
      content: [reason ? h("p", {}, reason) : null, labelled(t("key.button"), input), h("p", { class: "hint", id: "key-hint" }, t("key.hint"))],
      action: t("key.use"),
      buttons: getKey() ? h("button", { type: "button", on: { click: forget } }, t("key.forget")) : null,
      work: use,
      onClose: () => resolve(page.me),
    });
    input.focus();
  });
}

/**
 * Ask with a form in a dialog, which stays, with what was typed, until `work()` is done or the reader closes it. `complain(problem)` shows a
 * problem at the fields and returns whether all of it is there. What `work` returns is called when the dialog is closed.
 */
export function openForm({ title, content, action, danger = false, buttons = null, complain = () => false, work, onClose }) {
  const notice = h("p", { class: "notice bad", role: "alert", hidden: true });
  let busy = false;
  const submit = async event => {
    event.preventDefault();
    if (busy) return;
    busy = true;
    try {
      const after = await work();
      dialog.close();
      after?.();
    } catch (problem) {
      notice.hidden = complain(problem);
      setText(notice, explain(problem));
    } finally {
      busy = false;
    }
  };
  const send = h("button", { type: "submit", class: danger ? "danger" : "primary" }, action);
  const close = h("button", { type: "button", class: "quiet", autofocus: true, on: { click: () => dialog.close() } }, t("close"));
  const dialog = openDialog(title, h("form", { on: { submit } }, content, notice, h("div", { class: "actions" }, send, buttons, close)), onClose);
  return dialog;
}

/** A modal dialog with a title; it is removed when it closes, and `onClose()` is called. */
export function openDialog(title, content, onClose = () => {}) {
  const heading = h("h2", { id: "dialog-title" }, title);
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, heading, content);
  dialog.addEventListener("close", () => {
    dialog.remove();
    onClose();
  });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** A short notice in the corner, read out by screen readers. `kind`: "", good or bad. */
export function toast(text, kind = "") {
  const box = document.getElementById("toasts");
  const note = h("p", { class: `toast ${kind}` }, text);
  box.append(note);
  while (box.children.length > 4) box.firstChild.remove();
  setTimeout(() => note.remove(), 6000);
}

/** A button that copies what `content()` returns, with a text on it and a notice. `what`: its name for screen readers, where the word on it does not say enough. */
export function copyButton(content, what = null, { text = t("copy"), copied = t("copied") } = {}) {
  const copyIt = async () => {
    try {
      await navigator.clipboard.writeText(content());
      toast(copied, "good");
    } catch {
      toast(t("copy.failed"), "bad"); // or there is no clipboard without HTTPS
    }
  };
  return h("button", { type: "button", class: "quiet small", "aria-label": what, on: { click: copyIt } }, text);
}

/** Let the reader keep a blob as a file. */
export function saveFile(blob, name) {
  const url = URL.createObjectURL(blob);
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), SAVED_MS);
}
