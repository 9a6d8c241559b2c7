// npm install && npm run build; then open http://127.0.0.1:8000/react/ of ../backend.py.

import { INITIAL, watch } from "fairlane-client";
import { useEffect, useState } from "react";
import { createRoot } from "react-dom/client";

/** All that is known of the task that this link reads, at every change. */
function useTask(streamUrl) {
  const [task, setTask] = useState(INITIAL);
  useEffect(() => (streamUrl ? watch(streamUrl, setTask) : undefined), [streamUrl]);
  return task;
}

function Answer({ streamUrl }) {
  const task = useTask(streamUrl);
  return (
    <>
      <p role="status">{task.error?.message ?? (task.position ? `${task.position} in the queue` : task.status)}</p>
      <p style={{ whiteSpace: "pre-wrap" }}>{task.text}</p>
    </>
  );
}

function App() {
  const [asked, setAsked] = useState(null);
  const ask = async form => {
    const answer = await fetch("/ask", { method: "POST", body: form.get("question") });
    setAsked(await answer.json());
  };
  return (
    <>
      <form action={ask}>
        <label>
          Ask <input name="question" defaultValue="Hello" required />
        </label>
        <button>Send</button>
      </form>
      {asked?.error && <p role="status">{asked.error}</p>}
      {asked?.streamUrl && <Answer streamUrl={asked.streamUrl} />}
    </>
  );
}

createRoot(document.getElementById("root")).render(<App />);
