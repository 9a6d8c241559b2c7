// The page in the reader's language. Strings are functions of nothing but their key and values: `t(key, { n: 3 })`.
//
// A string may hold `{name}` for values; an object { one, other } chooses by the value `n` (English needs it, Chinese does not).

import { remember } from "./dom.js";

const strings = {}; // [English, Chinese]
const listeners = new Set();

export const LANGUAGES = { en: "English", zh: "中文" };

/** The language in use: "en" or "zh". Set on <html lang> by early.js before anything is painted. */
export const language = () => (document.documentElement.lang === "zh" ? "zh" : "en");

/** Add strings: { key: [English, Chinese] }. */
export const define = more => Object.assign(strings, more);

/** Whether there is a string of this name. */
export const has = key => key in strings;

/** The text for a key. A key without a string is a mistake and shows itself as the key. */
export function t(key, values = {}) {
  let text = strings[key]?.[language() === "zh" ? 1 : 0] ?? key;
  if (typeof text === "object") {
    const form = new Intl.PluralRules(language()).select(Number(values.n));
    text = text[form] ?? text.other;
  }
  return text.replace(/\{(\w+)\}/g, (whole, name) => (name in values ? String(values[name]) : whole));
}

const ATTRIBUTES = { t: null, tLabel: "aria-label", tPlaceholder: "placeholder" };

/** Translate the elements that name their string: data-t (text), data-t-label, data-t-placeholder. */
export function translate() {
  for (const [name, attribute] of Object.entries(ATTRIBUTES)) {
    const selector = `[data-${name.replace(/[A-Z]/g, letter => "-" + letter.toLowerCase())}]`;
    for (const element of document.querySelectorAll(selector)) {
      const text = t(element.dataset[name]);
      if (attribute) element.setAttribute(attribute, text);
      else if (element.textContent !== text) element.textContent = text;
    }
  }
}

/** Call `work` when the language changes, after the elements that name their string have been translated. */
export function onLanguage(work) {
  listeners.add(work);
  return () => listeners.delete(work);
}

/** Change the language, for this page and the next ones. */
export function setLanguage(code) {
  document.documentElement.lang = code === "zh" ? "zh" : "en";
  remember("fairlane.language", language());
  translate();
  for (const work of listeners) work();
}
