// Values as a shell, Python and JavaScript write them. The key itself is never written out.

export const shell = text => `'${text.replaceAll("'", "'\\''")}'`;

/** A JSON value as Python writes it. */
export function python(value, indent = "") {
  const more = indent + "    ";
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "string") return text(value);
  if (typeof value !== "object") return String(value);
  const entries = Array.isArray(value)
    ? value.map(item => python(item, more))
    : Object.entries(value).map(([name, item]) => `${text(name)}: ${python(item, more)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = open + entries.join(", ") + close;
  if (line.length + indent.length < 72 && !line.includes("\n")) return line;
  return `${open}\n${entries.map(entry => more + entry + ",\n").join("")}${indent}${close}`;
}

/** A string in JSON is one in Python too, but for characters beyond the basic plane, which Python wants whole. */
export const text = value => JSON.stringify(value.toWellFormed()).replaceAll("\u007f", "\\u007f");

/** httpx takes names in other scripts as bytes only. */
const headerText = value => text(value) + (/[^\x20-\x7e]/.test(value) ? ".encode()" : "");

export function curlHeaders(headers, key, json) {
  const all = [
    ...(json ? ["'Content-Type: application/json'"] : []),
    ...(key ? ['"Authorization: Bearer $FAIRLANE_KEY"'] : []),
    ...Object.entries(headers).map(([name, value]) => shell(`${name}: ${value}`)),
  ];
  return all.map(header => ` -H ${header}`).join("");
}

/** Headers as JavaScript gives them to an SDK: fetch takes names in other scripts as bytes only, one a character. */
export function nodeHeaders(headers) {
  const bytes = value => String.fromCharCode(...new TextEncoder().encode(value));
  return JSON.stringify(Object.fromEntries(Object.entries(headers).map(([name, value]) => [name, bytes(value)])));
}

export function pythonHeaders(headers, key) {
  const entries = [
    ...(key ? [`"Authorization": "Bearer " + os.environ["FAIRLANE_KEY"]`] : []),
    ...Object.entries(headers).map(([name, value]) => `${text(name)}: ${headerText(value)}`),
  ];
  return `{${entries.join(", ")}}`;
}
