// Shows a text that a model writes: as plain text while it grows, as Markdown once it is complete.
//
// The text is not trusted. marked's lexer (vendor/marked) reads it into tokens, and the tokens become DOM nodes here: no HTML is
// ever made, so tags, scripts and comments are shown as they were written. Only absolute http, https and mailto links become links;
// images become links too, because loading one would show its server the reader. Control characters are made visible. A long text
// and deep nesting stay plain, so that a text cannot stop the page.

import { Lexer } from "../vendor/marked/marked.js";
import { h } from "./dom.js";

const MAX_MARKED = 50_000; // characters
const PART = 8000; // characters that are laid out together
const MAX_PART = 10 * PART; // of a text without line ends
const MAX_DEPTH = 16;
const NAMED = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", hellip: "…", mdash: "—", ndash: "–", copy: "©" };

/** A text with its control characters made visible (␛ for escape); tabs and line ends stay. */
export const visible = text =>
  text
    .replace(/\r\n?/g, "\n")
    .replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g, c => (c === "\u007f" ? "␡" : String.fromCharCode(0x2400 + c.charCodeAt(0))));

/** The address of a link that may be followed, or null. */
export function safeLink(address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null; // relative: it would lead into the gateway
  }
  return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
}

/** A growing text in an element. `mode`: "markdown" or "plain". */
export class TextView {
  constructor(element, mode = "markdown") {
    this.element = element;
    this._text = "";
    this._complete = false;
    this.setMode(mode);
  }

  setMode(mode) {
    this._mode = mode;
    this.element.classList.toggle("plain", mode === "plain");
    this.element.classList.toggle("markdown", mode !== "plain");
    this._draw();
  }

  /** Show a text. If it begins with the one shown before, only the rest is added. `complete`: nothing follows. */
  show(text, complete = false) {
    const grown = text.startsWith(this._text) && complete === this._complete;
    this._text = text;
    this._complete = complete;
    if (grown) this._drawRest();
    else this._draw();
  }

  _draw() {
    const nodes = this._complete && this._mode === "markdown" ? markdown(this._text) : null;
    this.element.replaceChildren(...(nodes ?? []));
    this._shown = nodes ? this._text.length : 0;
    this._part = null;
    this._drawRest();
  }

  /** Add what is not shown yet as plain text, in parts: a browser lays out the last one only. */
  _drawRest() {
    while (this._shown < this._text.length) {
      if (this._part === null) {
        this._part = document.createTextNode("");
        this.element.append(h("div", { class: "plain-part", dir: "auto" }, this._part));
      }
      const from = this._shown;
      const line = this._text.indexOf("\n", from + Math.max(PART - this._part.length, 0)) + 1;
      const full = from + MAX_PART - this._part.length;
      this._shown = Math.min(line || this._text.length, full, this._text.length);
      this._part.appendData(visible(this._text.slice(from, this._shown)));
      if (this._shown === line || this._shown === full) this._part = null;
    }
  }
}

/** The nodes of a complete text; null for one that stays plain. */
function markdown(text) {
  if (text.length > MAX_MARKED) return null;
  try {
    return blocks(new Lexer({ gfm: true }).lex(text), 0);
  } catch {
    return null; // nested too deeply for the lexer
  }
}

const plainPart = text => h("div", { class: "plain-part", dir: "auto" }, visible(text));

function codeBlock(text, info) {
  const name = info.split(/\s/)[0];
  return h("pre", { class: "code", tabindex: 0, dataset: name ? { language: name } : {} }, h("code", {}, visible(text)));
}

const SIMPLE = { paragraph: "p", blockquote: "blockquote", strong: "strong", em: "em", del: "del", br: "br", hr: "hr" };
const plainNode = text => document.createTextNode(visible(text));

/** The nodes of tokens; what is nested too deeply, or of an unknown type, is shown as it was written. */
function blocks(tokens, depth, plain = plainPart) {
  if (depth > MAX_DEPTH) return [plain(tokens.map(token => token.raw).join(""))];
  return tokens.flatMap(token => block(token, depth, plain));
}

const inlines = (tokens, depth) => blocks(tokens ?? [], depth + 1, plainNode);

function block(token, depth, plain) {
  const within = () => (token.type === "blockquote" ? blocks(token.tokens, depth + 1) : inlines(token.tokens, depth));
  if (token.type in SIMPLE) return [h(SIMPLE[token.type], { dir: token.type === "paragraph" ? "auto" : null }, within())];
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "heading":
      return [h(`h${Math.min(token.depth + 2, 6)}`, { dir: "auto" }, within())]; // below the page's own
    case "text":
      return token.tokens ? within() : [plainNode(entities(token.text))];
    case "escape":
      return [plainNode(token.text)];
    case "codespan":
      return [h("code", {}, visible(token.text))];
    case "list":
      return [list(token, depth)];
    case "code":
      return [codeBlock(token.text + "\n", token.lang ?? "")];
    case "checkbox":
      return [h("span", { class: "checkbox" }, token.checked ? "☑ " : "☐ ")];
    case "table":
      return [table(token, depth)];
    case "link":
    case "image":
      return [link(token, depth)];
    default: // html, and whatever a later lexer may know
      return [plain(token.raw)];
  }
}

function list(token, depth) {
  const items = token.items.map(item => h("li", { dir: "auto" }, blocks(item.tokens, depth + 1)));
  const start = token.ordered && Number(token.start) !== 1 ? token.start : null;
  return h(token.ordered ? "ol" : "ul", { start }, items);
}

function table(token, depth) {
  const row = (name, parts) => h("tr", {}, parts.map((part, index) => h(name, { class: token.align[index], dir: "auto" }, inlines(part.tokens, depth))));
  return h("div", { class: "table-wrap", tabindex: 0 }, h("table", {}, h("thead", {}, row("th", token.header)), h("tbody", {}, token.rows.map(parts => row("td", parts)))));
}

function link(token, depth) {
  const address = safeLink(token.href);
  if (address === null) return plainNode(token.raw);
  const text = token.type === "image" ? [visible(token.text || token.href)] : inlines(token.tokens, depth);
  return h("a", { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" }, text);
}

const entities = text =>
  text.replace(/&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-z]{2,6}));/g, (whole, decimal, hex, name) => {
    if (name) return NAMED[name] ?? whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
