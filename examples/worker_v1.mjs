// A version 1 worker, which runs one task at a time: answers in capitals. Copy it into a folder of its own, and run there:
//   npm install ws
//   node worker_v1.mjs
import WebSocket from "ws";

const gateway = process.env.FAIRLANE_GATEWAY ?? "http://127.0.0.1:8080";
const url = gateway.replace(/^http/, "ws").replace(/(\/ws)?\/?$/, "/ws");
const token = process.env.FAIRLANE_WORKER_TOKEN;
const FATAL = [4400, 4401, 4426]; // close codes after which a retry does not help

/** Return the text of the last message, or the `prompt`. */
function question({ messages, prompt }) {
  const content = messages ? messages.at(-1).content : prompt;
  return typeof content === "string" ? content : content.map(part => part.text ?? "").join(" ");
}

function work() {
  const socket = new WebSocket(url, { headers: token ? { Authorization: `Bearer ${token}` } : {} });
  socket.on("open", () => console.log(`connected to ${url}`));
  socket.on("message", data => {
    const { taskId, payload } = JSON.parse(data);
    let error = null;
    try {
      for (const word of question(payload).split(/\s+/).filter(Boolean)) {
        socket.send(JSON.stringify({ type: "taskChunk", taskId, delta: word.toUpperCase() + " " }));
      }
    } catch (problem) {
      error = `I do not understand this request: ${problem.message}`; // an invalid request must not end the worker
    }
    socket.send(JSON.stringify({ type: "taskResult", taskId, result: null, error }));
  });
  socket.on("unexpected-response", (_, { statusCode }) => {
    console.error(`The gateway answers ${statusCode}.`);
    if (statusCode === 401) process.exit(1); // a wrong token stays wrong
    socket.terminate();
  });
  socket.on("error", problem => console.error(problem.message || problem.code));
  socket.on("close", (code, reason) => {
    console.error(`connection closed: ${code} ${reason}`);
    if (FATAL.includes(code)) process.exit(1);
    setTimeout(work, 2000);
  });
}
work();
