import { watch } from "./fairlane.js";

const [form, status, output] = ["form", "#status", "#output"].map(name => document.querySelector(name));
let stop = () => {};

form.addEventListener("submit", async event => {
  event.preventDefault();
  stop(); // stop reading the previous task; it continues
  const answer = await fetch("/ask", { method: "POST", body: form.elements.question.value });
  const { streamUrl, error } = await answer.json();
  if (error) {
    status.textContent = error;
    return;
  }
  stop = watch(streamUrl, task => {
    output.textContent = task.text;
    status.textContent = said(task);
  });
});

function said(task) {
  if (task.error) return task.error.message;
  if (task.connection === "lost") return "Connection lost, coming back";
  return task.position ? `${task.position} in the queue` : task.status;
}
