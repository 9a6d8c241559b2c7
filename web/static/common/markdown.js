// Shows a text that a model writes, as it comes: Markdown as elements, everything else as the text it is.
//
// The text is a stranger's. It is read by marked's lexer (vendor/marked) into tokens, and the tokens become DOM nodes here: no HTML is
// ever made, so tags, scripts and comments are shown as they were written. Only absolute http, https and mailto links become links;
// images become links too, because loading one would tell its server who reads. Control characters are made visible.
//
// Nor can it stop the page: what is settled is not read again, a frame's work is bounded, long lines and deep nesting stay plain text,
// and a text that is slow to read stays plain to its end.

import { Lexer } from "../vendor/marked/marked.js";
import { h } from "./dom.js";

const WINDOW = 8000; // characters read at a time
const FRAME_MS = 12;
const SLOW_MS = 80; // a lexer that takes so long for one window fights with the text; a usual one takes 2
const MOST_FIGHTS = 3;
const REST = 8; // the lexer may take one part in so many of the time
const PIECE = 4000; // characters of code that are laid out together
const DEEPEST = 16;
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
    this.text = ""; // its lines end with \n alone, as the lexer counts them
    this._carry = "";
    this._finished = false;
    this._timer = 0;
    this.setMode(mode);
  }

  /** Show what there is in another way. */
  setMode(mode) {
    this.mode = mode;
    this.element.classList.toggle("plain", mode === "plain");
    this.element.classList.toggle("markdown", mode !== "plain");
    this._begin();
  }

  /** More of the text. */
  append(text) {
    const whole = this._carry + text;
    this._carry = whole.endsWith("\r") ? "\r" : ""; // the rest of this line break may be yet to come
    this.text += linesOf(whole.slice(0, whole.length - this._carry.length));
    this._later();
  }

  /** Another text; "" clears. */
  set(text) {
    this.text = linesOf(text);
    this._carry = "";
    this._finished = false;
    this._begin();
  }

  /** Nothing follows: the last block is settled too. */
  finish() {
    this.text += linesOf(this._carry);
    this._carry = "";
    this._finished = true;
    this._later();
  }

  _begin() {
    this._offset = 0; // up to here the text is settled
    this._fights = 0;
    this._notBefore = 0; // when the lexer may work again, ms
    this._live = []; // nodes of what is not
    this._code = null; // the open code block among them
    this.element.replaceChildren();
    this._later();
  }

  _later() {
    if (this._timer) return;
    const run = () => {
      clearTimeout(this._timer);
      if (!this._timer) return;
      this._timer = 0;
      this._draw();
    };
    const wait = this._notBefore - performance.now();
    this._timer = setTimeout(run, wait > 20 ? wait : 200); // a hidden page has no frames
    if (wait <= 20) requestAnimationFrame(run);
  }

  _draw() {
    const until = performance.now() + FRAME_MS;
    while (this._offset < this.text.length) {
      if (performance.now() > until) {
        this._later();
        return;
      }
      if (!this._step()) return;
    }
    if (this._finished) this._dropLive();
  }

  /** Settle a part of the text, or show its unsettled end. Whether there is more to do now. */
  _step() {
    const rest = this.text.length - this._offset;
    if (this.mode === "plain" || this._fights >= MOST_FIGHTS) {
      this._settle([plainPart(this.text.slice(this._offset, this._offset + WINDOW))], Math.min(rest, WINDOW));
      return true;
    }
    const window = this.text.slice(this._offset, this._offset + WINDOW);
    const fence = /^\n*( {0,3})(`{3,}|~{3,})([^\n`]*)\n/.exec(window);
    if (fence) return this._stepCode(fence);
    const cut = rest > WINDOW ? cutOf(window) : rest;
    const part = window.slice(0, cut);
    const tokens = this._lex(part);
    if (tokens === null) {
      this._settle([plainPart(part)], cut);
      return true;
    }
    const whole = cut === rest && this._finished;
    let settled = tokens.length;
    if (!whole) {
      while (settled > 0 && tokens[settled - 1].type === "space") settled -= 1;
      settled -= 1; // the last block may still grow
    }
    if (settled > 0 || whole) {
      const done = tokens.slice(0, settled);
      this._settle(blocks(done, 0), whole ? cut : done.reduce((sum, token) => sum + token.raw.length, 0));
      return true;
    }
    if (cut < rest) {
      this._settle(part.endsWith("\n") ? blocks(tokens, 0) : [plainPart(part)], cut); // one block, longer than a window
      return true;
    }
    this._show(blocks(tokens, 0));
    return false;
  }

  /** A fenced code block: found without the lexer, because it may be long, and grows in place. */
  _stepCode(fence) {
    const begin = this._offset + fence[0].length;
    this._code ??= this._beginCode(fence[3].trim());
    const from = begin + this._code.length;
    const rest = this.text.slice(from);
    const end = new RegExp(`^ {0,3}${fence[2][0]}{${fence[2].length},}[ \\t]*$`, "m").exec(rest);
    this._code.grow(end ? rest.slice(0, end.index) : rest);
    if (!end && !this._finished) return false;
    const to = end ? from + end.index + end[0].length : this.text.length;
    this._live = []; // it stays
    this._settle([], to - this._offset);
    return true;
  }

  _beginCode(info) {
    const code = new CodeBlock(info);
    this._show([code.element]);
    return code;
  }

  _lex(text) {
    const began = performance.now();
    try {
      return new Lexer({ gfm: true }).lex(text);
    } catch {
      this._fights = MOST_FIGHTS; // nested too deeply for it
      return null;
    } finally {
      const took = performance.now() - began;
      this._notBefore = began + REST * took;
      if (took > SLOW_MS) this._fights += 1;
    }
  }

  _settle(nodes, length) {
    this._dropLive();
    this.element.append(...nodes);
    this._offset += length;
  }

  _show(nodes) {
    this._dropLive();
    this.element.append(...nodes);
    this._live = nodes;
  }

  _dropLive() {
    for (const node of this._live) node.remove();
    this._live = [];
    this._code = null;
  }
}

const linesOf = text => text.replace(/\r\n?/g, "\n");

const plainPart = text => h("div", { class: "plain-part", dir: "auto" }, visible(text));

/** Where to cut a text that is longer than a window: before a line that begins a block, else before any line, else anywhere. */
function cutOf(window) {
  const line = window.lastIndexOf("\n") + 1;
  for (let at = line; at > WINDOW / 2; at = window.lastIndexOf("\n", at - 2) + 1) {
    if (/\S/.test(window[at] ?? "x")) return at;
  }
  return line || WINDOW;
}

/** A code block that grows: in pieces, so that a long one is not laid out anew with every line. */
class CodeBlock {
  constructor(info) {
    const name = info.split(/\s/)[0];
    this.element = h("pre", { class: "code", tabindex: 0, dataset: name ? { language: name } : {} });
    this.length = 0; // characters in finished pieces
    this._open = null;
  }

  /** What follows the finished pieces. */
  grow(text) {
    let rest = text;
    let begun = 0;
    do {
      this._open ??= this._piece();
      const cut = rest.length > PIECE ? rest.lastIndexOf("\n", PIECE) + 1 || rest.indexOf("\n") + 1 : 0;
      this._open.data = visible(cut ? rest.slice(0, cut) : rest);
      if (!cut) break;
      this._open = null;
      begun += cut;
      rest = rest.slice(cut);
    } while (rest);
    this.length += begun;
  }

  _piece() {
    const text = document.createTextNode("");
    this.element.append(h("code", {}, text));
    return text;
  }
}

function codeBlock(text, info) {
  const code = new CodeBlock(info);
  code.grow(text);
  return code.element;
}

function blocks(tokens, depth) {
  if (depth > DEEPEST) return [plainPart(tokens.map(token => token.raw).join(""))];
  return tokens.flatMap(token => block(token, depth));
}

function block(token, depth) {
  switch (token.type) {
    case "space":
    case "def":
      return [];
    case "heading":
      return [h(`h${Math.min(token.depth + 2, 6)}`, { dir: "auto" }, inlines(token.tokens, depth))]; // below the page's own
    case "paragraph":
      return [h("p", { dir: "auto" }, inlines(token.tokens, depth))];
    case "text": // in a tight list
      return token.tokens ? inlines(token.tokens, depth) : [visible(token.text)].map(text => document.createTextNode(text));
    case "blockquote":
      return [h("blockquote", {}, blocks(token.tokens, depth + 1))];
    case "list":
      return [list(token, depth)];
    case "code":
      return [codeBlock(token.text + "\n", token.lang ?? "")];
    case "checkbox":
      return [inline(token, depth)];
    case "hr":
      return [h("hr")];
    case "table":
      return [table(token, depth)];
    default: // html, and whatever a later lexer may know
      return [plainPart(token.raw)];
  }
}

function list(token, depth) {
  const items = token.items.map(item => h("li", { dir: "auto" }, blocks(item.tokens, depth + 1)));
  const start = token.ordered && Number(token.start) !== 1 ? token.start : null;
  return h(token.ordered ? "ol" : "ul", { start }, items);
}

function table(token, depth) {
  const cell = (name, part, index) =>
    h(name, { class: token.align[index], dir: "auto" }, inlines(part.tokens, depth));
  const head = h("tr", {}, token.header.map((part, index) => cell("th", part, index)));
  const rows = token.rows.map(row => h("tr", {}, row.map((part, index) => cell("td", part, index))));
  return h("div", { class: "table-wrap", tabindex: 0 }, h("table", {}, h("thead", {}, head), h("tbody", {}, rows)));
}

function inlines(tokens, depth) {
  if (depth > DEEPEST) return tokens.map(token => document.createTextNode(visible(token.raw)));
  return (tokens ?? []).map(token => inline(token, depth + 1));
}

function inline(token, depth) {
  switch (token.type) {
    case "strong":
    case "em":
    case "del":
      return h(token.type, {}, inlines(token.tokens, depth));
    case "codespan":
      return h("code", {}, visible(token.text));
    case "br":
      return h("br");
    case "link":
    case "image":
      return link(token, depth);
    case "checkbox":
      return h("span", { class: "checkbox" }, token.checked ? "☑ " : "☐ ");
    case "text":
      return token.tokens ? h("span", {}, inlines(token.tokens, depth)) : document.createTextNode(visible(entities(token.text)));
    case "escape":
      return document.createTextNode(visible(token.text));
    default:
      return document.createTextNode(visible(token.raw));
  }
}

function link(token, depth) {
  const address = safeLink(token.href);
  if (address === null) return document.createTextNode(visible(token.raw));
  const text = token.type === "image" ? [visible(token.text || token.href)] : inlines(token.tokens, depth);
  return h("a", { href: address, title: address, target: "_blank", rel: "noopener noreferrer nofollow" }, text);
}

const entities = text =>
  text.replace(/&(?:#(\d{1,7})|#[xX]([\da-fA-F]{1,6})|([a-z]{2,6}));/g, (whole, decimal, hex, name) => {
    if (name) return NAMED[name] ?? whole;
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : whole;
  });
