// The part of the request that fills in a template or a chain: which one, in which language, and a value for each of its variables.

import { call } from "../common/api.js";
import { byId, h, labelled, replace } from "../common/dom.js";
import { t } from "../common/i18n.js";

/** A variable as it was typed: JSON where it is a list or an object, else a text. */
function valueOf(text) {
  if (/^\s*[[{]/.test(text)) {
    try {
      return JSON.parse(text);
    } catch {
      // a text that begins so
    }
  }
  return text;
}

/** What may be named as `chain`, and as `template`: routes that have one, and templates that are no route. `value` is unique. */
function namesOf({ routes, templates, chains = [] }) {
  const byName = new Map(templates.map(template => [template.name, template]));
  const named = routes.filter(route => byName.has(route.template)).map(route => ({ ...byName.get(route.template), name: route.name, route: true }));
  const taken = new Set(named.map(one => one.name));
  const filled = [...named, ...templates.filter(template => !taken.has(template.name))].map(one => ({ ...one, value: one.name }));
  return [...chains.map(chain => ({ ...chain, value: `chain ${chain.name}`, chain: true, route: true, locales: [] })), ...filled];
}

export class TemplateForm {
  #known = [];
  #kept = new Map();
  #changed;

  /** `changed` is called when another template was chosen, or none. */
  constructor(changed) {
    this.#changed = changed;
    byId("template").addEventListener("change", () => this.draw());
  }

  /** The template that is chosen; undefined: none, the prompt is written by hand. */
  get chosen() {
    return this.#known.find(template => template.value === byId("template").value);
  }

  /** Ask which there are, for this caller. Without any the page is as it was. */
  async load(headers) {
    const known = namesOf(await call("/api/routes", { headers }));
    if (JSON.stringify(known) === JSON.stringify(this.#known)) return;
    this.#known = known;
    this.draw();
  }

  draw() {
    const select = byId("template");
    const before = select.value;
    byId("template-field").hidden = this.#known.length === 0;
    replace(
      select,
      h("option", { value: "" }, t("ask.template.none")),
      this.#known.map(({ name, value, chain }) => h("option", { value }, chain ? t("ask.template.chain", { name }) : name)),
    );
    select.value = this.#known.some(({ value }) => value === before) ? before : "";
    this.#drawVariables();
    this.#changed(this.chosen);
  }

  #drawVariables() {
    const box = byId("variables");
    for (const input of box.querySelectorAll("textarea")) this.#kept.set(input.name, input.value);
    const locale = byId("locale")?.value ?? "";
    const template = this.chosen;
    box.hidden = !template;
    if (!template) {
      replace(box);
      return;
    }
    const optionalLast = (a, b) => template.optional.includes(a) - template.optional.includes(b);
    const fields = template.variables.toSorted(optionalLast).map((name, index) => {
      const optional = template.optional.includes(name);
      const input = h("textarea", { id: `variable-${index}`, name, rows: 2, spellcheck: "false", required: !optional });
      input.value = this.#kept.get(name) ?? "";
      return labelled(optional ? t("ask.variable.optional", { name }) : name, input);
    });
    const languages = template.locales.length
      ? labelled(t("ask.locale"), h("select", { id: "locale" }, ["", ...template.locales].map(name => h("option", { value: name }, name || t("ask.mode.default")))))
      : null;
    const about = template.chain
      ? t("ask.chain.stages", { names: template.stages.map(({ name }) => name).join(" → ") })
      : t("ask.template.version", { version: template.version });
    const version = h("div", { class: "field" }, h("p", { class: "hint" }, about));
    replace(box, ...fields, ...(languages ? [languages] : []), version);
    if (languages && template.locales.includes(locale)) byId("locale").value = locale;
  }

  /** The members of a request that say it. What is left empty is not sent. */
  get body() {
    const variables = {};
    for (const input of byId("variables").querySelectorAll("textarea")) {
      if (input.value) variables[input.name] = valueOf(input.value);
    }
    const locale = byId("locale")?.value;
    const { name, chain } = this.chosen;
    return { [chain ? "chain" : "template"]: name, variables, ...(locale ? { locale } : {}) };
  }
}
