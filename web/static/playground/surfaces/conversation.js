// What is asked, in nobody's dialect. Each surface says it in its own words; what it has no word for, it names in `lacks`.
//
// { model, system, turns, tools, effort, maxTokens }: `turns` are { role: "user", text }, { role: "assistant", text, calls } and
// { role: "tool", id, text }; a call is { id, name, arguments } with its arguments as text; a tool { name, description, parameters }.
// `system` and `effort` may be "", `maxTokens` 0, `tools` empty: then they are not said. Thoughts of earlier turns are not sent.

/** The conversation as messages of a chat. */
export function chatMessages({ system, turns }) {
  const messages = turns.map(turn => {
    if (turn.role === "tool") return { role: "tool", tool_call_id: turn.id, content: turn.text };
    if (turn.role !== "assistant" || !turn.calls.length) return { role: turn.role, content: turn.text };
    const calls = turn.calls.map(call => ({ id: call.id, type: "function", function: { name: call.name, arguments: call.arguments } }));
    return { role: "assistant", content: turn.text || null, tool_calls: calls };
  });
  return system ? [{ role: "system", content: system }, ...messages] : messages;
}

/** What a chat request says beside its messages. */
export function chatWishes({ tools, effort, maxTokens }) {
  return {
    ...(maxTokens ? { max_tokens: maxTokens } : {}),
    ...(effort ? { reasoning_effort: effort } : {}),
    ...(tools.length ? { tools: tools.map(tool => ({ type: "function", function: tool })) } : {}),
  };
}

/** Which of a conversation's parts a surface that lacks `names` cannot say: a list of those that are there. */
export function unsaid(conversation, names) {
  const there = { tools: conversation.tools.length > 0, effort: Boolean(conversation.effort), turns: conversation.turns.length > 1 || Boolean(conversation.system) };
  return names.filter(name => there[name]);
}
