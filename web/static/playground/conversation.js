// The part of the request that says what went before the question, and what is wished of the answer: turns, system prompt, tools, effort.

import { byId, h, replace, setText } from "../common/dom.js";
import { t } from "../common/i18n.js";

const EFFORTS = ["", "low", "medium", "high"];
const EXAMPLE = [
  {
    name: "get_weather",
    description: "The weather in a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];

/** What is wrong with a text of tools; null when it is a list of them. */
export function toolsProblem(text) {
  try {
    const tools = JSON.parse(text);
    const whole = Array.isArray(tools) && tools.every(tool => tool && typeof tool.name === "string" && typeof tool.parameters === "object");
    return whole ? null : t("more.tools.shape");
  } catch (error) {
    return t("more.tools.json", { why: error.message });
  }
}

export class ConversationForm {
  #turns = [];

  constructor() {
    byId("tools-text").value = JSON.stringify(EXAMPLE, null, 2);
    byId("tools-on").addEventListener("change", () => this.#drawTools());
    byId("tools-text").addEventListener("input", () => this.#drawTools());
    this.draw();
  }

  /** The conversation with this question as its last turn, as surfaces take it. Throws what is wrong with the tools, in words. */
  asked(model, question) {
    const text = byId("tools-text").value;
    const on = byId("tools-on").checked;
    const problem = on ? toolsProblem(text) : null;
    if (problem) throw new Error(problem);
    const turns = question === null ? this.#turns : [...this.#turns, { role: "user", text: question }];
    return {
      model,
      system: byId("system").value.trim(),
      turns,
      tools: on ? JSON.parse(text) : [],
      effort: byId("effort").value,
      maxTokens: Number(byId("max-tokens").value) || 0,
    };
  }

  /** Whether what was said so far ends with results of tools, so that no question is needed. */
  get answers() {
    return this.#turns.at(-1)?.role === "tool";
  }

  /** What `asked` was, and what was answered to it, are the turns so far from now on. `results`: what became of the calls. */
  goOn(asked, { text, calls }, results) {
    const named = calls.map((call, index) => ({ ...call, id: call.id || `call_${index}` }));
    this.#turns = [...asked.turns, { role: "assistant", text, calls: named }, ...named.map((call, index) => ({ role: "tool", id: call.id, text: results[index] ?? "" }))];
    this.draw();
  }

  /** Begin anew. */
  clear() {
    this.#turns = [];
    this.draw();
  }

  draw() {
    const box = byId("turns");
    box.hidden = this.#turns.length === 0;
    const called = turn => turn.calls?.map(({ name, arguments: text }, index) => [index || turn.text ? "\n" : "", h("code", {}, `${name}(${text})`)]) ?? [];
    const items = this.#turns.map(turn => h("li", { class: `turn ${turn.role}` }, h("b", {}, t(`turn.${turn.role}`)), h("span", {}, turn.text, called(turn))));
    const clear = () => {
      this.clear();
      byId("prompt").focus();
    };
    replace(
      box,
      h("div", { class: "turns-head" }, h("h3", { id: "turns-title" }, t("turns.title")), h("button", { type: "button", class: "quiet small", id: "turns-clear", on: { click: clear } }, t("turns.clear"))),
      h("ol", { "aria-labelledby": "turns-title", tabindex: 0 }, items),
    );
    const effort = byId("effort");
    const before = effort.value;
    replace(effort, EFFORTS.map(name => h("option", { value: name }, t(`effort.${name || "default"}`))));
    effort.value = before;
    this.#drawTools();
  }

  #drawTools() {
    const on = byId("tools-on").checked;
    byId("tools-field").hidden = !on;
    const problem = on ? toolsProblem(byId("tools-text").value) : null;
    const box = byId("tools-problem");
    box.hidden = problem === null;
    setText(box, problem);
  }
}
