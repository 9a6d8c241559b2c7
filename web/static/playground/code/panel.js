// The panel that shows the same calls for a terminal.

import { h, replace } from "../../common/dom.js";
import { t } from "../../common/i18n.js";
import { copyButton } from "../../common/page.js";
import { snippets } from "./snippets.js";

const LANGUAGES = { curl: "curl", python: "Python", node: "JavaScript" };

/** Draws a story (snippets.js) into `element`, whose heading gets `titleId`; hidden as long as there is none. */
export class CodePanel {
  constructor(element, titleId) {
    this._element = element;
    this._titleId = titleId;
    this._language = "curl";
    this._story = null;
  }

  show(story) {
    this._story = story;
    this.draw();
  }

  draw() {
    this._element.hidden = this._story === null;
    if (this._story === null) return;
    const say = (step, after) => t(`code.${step}`, { after });
    const scripts = snippets(this._story, say);
    const shown = this._language in scripts ? this._language : "curl";
    const choices = Object.keys(scripts).map(name => this._choice(name, LANGUAGES[name], shown));
    replace(
      this._element,
      h(
        "div",
        { class: "panel-head" },
        h("h2", { id: this._titleId }, t("code.title")),
        h(
          "div",
          { class: "end" },
          copyButton(() => scripts[shown]),
          h("div", { class: "segmented compact", role: "group", "aria-labelledby": this._titleId }, choices),
        ),
      ),
      this._story.key ? h("p", { class: "hint" }, t("code.key")) : null,
      h("pre", { class: "code", tabindex: 0, "aria-label": LANGUAGES[shown] }, h("code", {}, scripts[shown])),
    );
  }

  _choice(name, label, shown) {
    const change = () => {
      this._language = name;
      this.draw();
      this._element.querySelector(`input[value="${name}"]`).focus();
    };
    const input = h("input", {
      type: "radio",
      name: this._titleId,
      value: name,
      checked: name === shown,
      on: { change },
    });
    return h("label", {}, input, h("span", {}, label));
  }
}
