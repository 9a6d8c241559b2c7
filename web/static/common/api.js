// Calls the gateway. The key is kept for this tab alone and travels in a header; it never stands in a URL.

import { FairlaneError, request } from "../client/fairlane.js";
import { recall, remember } from "./dom.js";
import { has, t } from "./i18n.js";
import { duration } from "./format.js";

const STORE = "fairlane.key";
let key = recall(STORE, "sessionStorage") ?? "";

/** The key in use, "" for none. */
export const getKey = () => key;

/** The header that shows a key, by default the one in use; {} for none. */
export const authorization = (as = key) => (as ? { Authorization: `Bearer ${as}` } : {});

/** Use this key from now on, "" for none. The page's `refresh` then finds out whose it is. */
export function setKey(value) {
  key = value.trim();
  remember(STORE, key, "sessionStorage");
}

/** An error code and the gateway's message, for the reader. Unknown codes keep the gateway's message. */
export function explainCode(code, message) {
  return code && has(`error.${code}`) ? t(`error.${code}`) : message || code || "";
}

/** An error in a sentence or two, in the reader's language. */
export function explain(error) {
  if (!(error instanceof FairlaneError)) return String(error?.message ?? error);
  const text = explainCode(error.code, error.message);
  return error.retryAfterMs ? `${text} ${t("error.retry", { wait: duration(error.retryAfterMs) })}` : text;
}

/** The client's `request` with the page's key, or the key `as`. Throws FairlaneError. */
export const call = (path, { as = key, headers, ...options } = {}) => request(path, { ...options, headers: { ...headers, ...authorization(as) } });

let disabled = [];

/** Whether the gateway has this feature, or list of the dashboard, enabled. */
export const enabled = name => !disabled.includes(name);

/**
 * The client that the page is for the gateway: { user, tier, key, open, delegating, admin, tiers, modes, version }; null when a key is needed and
 * there is none, or a wrong one. Throws FairlaneError for anything else.
 */
export async function whoAmI(options = {}) {
  try {
    const me = await call("/api/me", options);
    disabled = me.disabledFeatures;
    return me;
  } catch (error) {
    if (error.status === 401) return null;
    throw error;
  }
}
