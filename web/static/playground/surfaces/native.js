// The native surface: a task is submitted, and its event log followed (common/sse.js), as often as one likes.

import { chatMessages, chatWishes } from "./conversation.js";

export const native = {
  name: "native",
  path: "/api/openai",
  lacks: [],
  body: conversation => ({ model: conversation.model, messages: chatMessages(conversation), ...chatWishes(conversation), stream: true, async: true }),
};
