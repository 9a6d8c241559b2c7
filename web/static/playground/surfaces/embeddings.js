// OpenAI's embeddings: a vector for each input. The answer comes whole, so nothing of it is a stream.

/** What is asked for; each line is an input, empty ones are none. */
export const inputsOf = text =>
  text
    .split("\n")
    .map(line => line.trim())
    .filter(Boolean);

/** The vectors of an answer, in the order of the inputs; null for one that holds none. */
export function vectorsOf(answer) {
  const told = Array.isArray(answer?.data) ? answer.data : [];
  const vectors = told.map(() => null);
  for (const one of told) {
    if (vectors[one?.index] !== null || !Array.isArray(one.embedding)) return null; // no such place, or one that is taken
    vectors[one.index] = one.embedding;
  }
  return vectors.length ? vectors : null;
}

/** How alike two vectors are: the cosine of the angle between them, 1 for the same direction; null where one has none. */
export function similarity(one, other) {
  if (one.length !== other.length) return null;
  const dot = (a, b) => a.reduce((sum, value, index) => sum + value * b[index], 0);
  const lengths = Math.sqrt(dot(one, one) * dot(other, other));
  return lengths > 0 ? dot(one, other) / lengths : null;
}

export const embeddings = {
  name: "embeddings",
  path: "/v1/embeddings",
  lacks: [],
  whole: true,
  body: ({ model, inputs }) => ({ model, input: inputs }),
  sdk: {
    name: "openai",
    call: "embeddings.create",
    python: "for each in answer.data:\n    print(each.index, len(each.embedding), each.embedding[:4])",
    node: "for (const { index, embedding } of answer.data) console.log(index, embedding.length, embedding.slice(0, 4));",
  },
};
