// A stream as it came over the wire, in a box of text: the last of many events, each cut where it is long.

import { setText } from "../common/dom.js";
import { number } from "../common/format.js";
import { t } from "../common/i18n.js";

const MAX_FRAMES = 400;
const MAX_CHARACTERS = 4000; // of one
const DRAW_MS = 50;

export class Frames {
  constructor() {
    this._frames = [];
    this._dropped = 0;
    this._box = null;
    this._timer = 0;
  }

  /** Draw into this element from now on. */
  moveTo(box) {
    this._box = box;
    this._draw();
  }

  /** Another event: `data` is text. */
  add({ id, event, data }) {
    const shown = data.length > MAX_CHARACTERS ? `${data.slice(0, MAX_CHARACTERS)} …` : data;
    const named = event && event !== "message" ? `event: ${event}\n` : "";
    this._frames.push(`${id ? `id: ${id}\n` : ""}${named}data: ${shown}\n\n`);
    while (this._frames.length > MAX_FRAMES) {
      this._frames.shift();
      this._dropped += 1;
    }
    this._timer ||= setTimeout(() => this._draw(), DRAW_MS);
  }

  _draw() {
    clearTimeout(this._timer);
    this._timer = 0;
    const box = this._box;
    if (box === null) return;
    const atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 40;
    const dropped = this._dropped ? `${t("readings.dropped", { n: number(this._dropped) })}\n\n` : "";
    setText(box, dropped + this._frames.join("").trimEnd());
    if (atEnd) box.scrollTop = box.scrollHeight;
  }
}
