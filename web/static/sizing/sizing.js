// The calculator of waits. What is given stands in the address, so that it can be sent to somebody.

import { byId, h, replace } from "../common/dom.js";
import { duration, number, percent } from "../common/format.js";
import { onLanguage, t } from "../common/i18n.js";
import { startPage } from "../common/page.js";
import { size } from "./closed.js";
import strings from "./strings.js";

const GIVEN = ["slots", "seconds", "users", "perHour"];
const WHOLE = ["slots", "users"];
const MOST = 100_000;

startPage({ name: "sizing", strings });
const asked = new URLSearchParams(location.search);
for (const name of GIVEN) if (asked.has(name)) byId(name).value = asked.get(name);
byId("given").addEventListener("input", draw);
onLanguage(draw);
draw();

function draw() {
  const given = Object.fromEntries(GIVEN.map(name => [name, byId(name).valueAsNumber]));
  const fine = GIVEN.every(name => given[name] > 0 && given[name] <= MOST && (!WHOLE.includes(name) || Number.isInteger(given[name])));
  byId("problem").hidden = fine;
  if (!fine) {
    replace(byId("found"));
    return;
  }
  history.replaceState(null, "", `?${new URLSearchParams(given)}`);
  const found = size(given);
  const rows = [
    [t("sizing.wait"), duration(1000 * found.wait)],
    [t("sizing.waits"), percent(found.waits)],
    [t("sizing.use"), percent(found.use)],
    [t("sizing.perMinute"), number(60 * found.perSecond, 1)],
    [t("sizing.asked"), number(found.asked, 1)],
    [t("sizing.burst"), duration(1000 * Math.max(given.users / given.slots - 1, 0) * given.seconds)],
  ];
  replace(byId("found"), ...rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", { class: "num" }, value))));
}
