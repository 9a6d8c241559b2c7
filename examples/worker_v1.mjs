// A worker in fifteen lines: version 1 of the protocol, one task at a time. Needs `npm install ws`.
import WebSocket from "ws";

const gateway = process.env.FAIRLANE_GATEWAY ?? "http://127.0.0.1:8080";
const url = gateway.replace(/^http/, "ws").replace(/(\/ws)?\/?$/, "/ws");
const token = process.env.FAIRLANE_WORKER_TOKEN;
const socket = new WebSocket(url, { headers: token ? { Authorization: `Bearer ${token}` } : {} });

socket.on("message", (data) => {
  const { taskId, payload } = JSON.parse(data);
  const question = payload.messages?.at(-1)?.content ?? "";
  for (const word of question.split(/\s+/).filter(Boolean)) {
    socket.send(JSON.stringify({ type: "taskChunk", taskId, delta: word.toUpperCase() + " " }));
  }
  socket.send(JSON.stringify({ type: "taskResult", taskId, result: null, error: null }));
});
socket.on("error", (error) => console.error(error.message));
socket.on("close", (code) => process.exit(code === 1000 ? 0 : 1));
