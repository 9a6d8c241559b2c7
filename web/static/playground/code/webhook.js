// A webhook for a terminal: made, tested, looked at, given another secret, deleted.
//
// { do: "webhook", body, id }

import { curlHeaders, python, pythonHeaders, shell, text } from "./quoting.js";

export function webhookCurl({ base, key, headers, steps }, say) {
  const { body, id } = steps[0];
  const who = curlHeaders(headers, key, false);
  const posting = curlHeaders(headers, key, true);
  const one = `${base}/api/webhooks/${id}`;
  const parts = [
    [say("webhook.make"), `curl -s ${base}/api/webhooks${posting} \\\n  -d ${shell(JSON.stringify(body))}`],
    [say("webhook.test"), `curl -s -X POST ${one}/test${who}`],
    [say("webhook.deliveries"), `curl -s ${one}/deliveries${who}`],
    [say("webhook.rotate"), `curl -s ${one}/rotate${posting} -d '{}'`],
    [say("webhook.delete"), `curl -s -X DELETE ${one}${who}`],
  ];
  return parts.map(([comment, line]) => `# ${comment}\n${line}\n`).join("\n");
}

export function webhookPython({ base, key, headers, steps }, say) {
  const { body } = steps[0];
  return `${key ? "import os\n" : ""}import time

import httpx

gateway = httpx.Client(base_url=${text(base)}, headers=${pythonHeaders(headers, key)})

# ${say("webhook.make")}
webhook = gateway.post("/api/webhooks", json=${python(body)}).json()
print(webhook["secret"])

# ${say("webhook.test")}
gateway.post(f"/api/webhooks/{webhook['id']}/test").raise_for_status()

# ${say("webhook.deliveries")}
time.sleep(3)
for delivery in gateway.get(f"/api/webhooks/{webhook['id']}/deliveries").json()["deliveries"]:
    print(delivery["event"], delivery["state"], delivery["error"])
`;
}
