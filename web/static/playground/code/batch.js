// A batch for a terminal: its file, the batch, how it stands, its results.
//
// { do: "batch", name, lines (null where they are not shown), fileId, endpoint, window, batchId, outputId (null: not yet) }

import { curlHeaders, python, pythonHeaders, shell, text } from "./quoting.js";
import { pythonClient } from "./sdk.js";

export function batchCurl({ base, key, headers, steps }, say) {
  const { name, lines, fileId, endpoint, window, batchId, outputId } = steps[0];
  const who = curlHeaders(headers, key, false);
  const made = JSON.stringify({ input_file_id: fileId, endpoint, completion_window: window });
  const parts = [
    lines ? [say("batch.lines"), `cat > ${shell(name)} <<'END'\n${lines.join("\n")}\nEND`] : null,
    [say("batch.upload"), `curl -s ${base}/v1/files${who} -F purpose=batch -F ${shell(`file=@${name}`)}`],
    [say("batch.make"), `curl -s ${base}/v1/batches${curlHeaders(headers, key, true)} \\\n  -d ${shell(made)}`],
    [say("batch.look"), `curl -s ${base}/v1/batches/${batchId}${who}`],
    outputId ? [say("batch.results"), `curl -s ${base}/v1/files/${outputId}/content${who}`] : null,
  ];
  return parts
    .filter(Boolean)
    .map(([comment, line]) => `# ${comment}\n${line}\n`)
    .join("\n");
}

export function batchPython({ base, key, headers, steps }, say) {
  const { name, lines, endpoint, window } = steps[0];
  const file = lines ? `(${text(name)}, "\\n".join(json.dumps(line) for line in lines).encode())` : `open(${text(name)}, "rb")`;
  const { own, text: made } = pythonClient("openai", { base, key, headers });
  const named = Object.keys(headers).length && !own ? `\nclient = client.with_options(default_headers=${pythonHeaders(headers, false)})` : "";
  return `${lines ? "import json\n" : ""}${key ? "import os\n" : ""}import time

${made}${named}
${lines ? `\n# ${say("batch.lines")}\nlines = ${python(lines.map(line => JSON.parse(line)))}\n` : ""}
# ${say("batch.upload")}
file = client.files.create(file=${file}, purpose="batch")

# ${say("batch.make")}
batch = client.batches.create(input_file_id=file.id, endpoint="${endpoint}", completion_window="${window}")

# ${say("batch.look")}
while batch.status in ("validating", "in_progress", "finalizing"):
    time.sleep(1)
    batch = client.batches.retrieve(batch.id)
    print(batch.status, batch.request_counts)

# ${say("batch.results")}
for file_id in filter(None, (batch.output_file_id, batch.error_file_id)):
    print(client.files.content(file_id).text)
`;
}
