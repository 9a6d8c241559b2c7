// The surfaces through which a conversation may be asked. Each: { name, path, lacks, body(conversation, options), headers?, Reader, onward?, sdk }.
// One that is `whole` answers at once, to inputs in place of a conversation, and has no Reader.

import { embeddings } from "./embeddings.js";
import { messages } from "./messages.js";
import { native } from "./native.js";
import { chat, completions } from "./openai.js";
import { responses } from "./responses.js";

export const SURFACES = [native, chat, completions, messages, responses, embeddings];

export const surfaceOf = name => SURFACES.find(surface => surface.name === name);
