// What each limit is for. The gateway says it in English, from the settings' own texts; here it stands in Chinese.

import { language } from "../common/i18n.js";

export const CHINESE = {
  weight: "争用模型时的份额，相对于其他有等待任务的队列。",
  max_length: "此处最多可等待的任务数，所有模型合计；未设置时采用 max_queue_length。",
  max_wait: "任务在此最多等待的时间，例如 30s。",
  max_running: "此队列可同时运行的任务数，所有模型与副本合计；即使有空闲槽位，超出的任务也会等待。",
  reserved: "在每个设有 concurrency 的模型上为此队列预留的槽位：未用满时其任务优先，未借出的保持空闲。",
  admission: "何时立即拒绝任务而不排队。",
  concurrency: "此模型可同时运行的任务数，所有副本合计。",
  cost: "公平性按什么计量。",
  requests_per_minute: "任意一分钟内可开始的此模型任务数，所有副本合计：即上游允许的数量。",
  tokens_per_minute: "任意一分钟内此模型的任务可用的词元数，输入与输出合计：开始时估算，结束时更正。",
  windows: "模型的目标在任意一段时间内可收到的请求数，无论从何时算起，所有副本与工作进程合计：50/1s，或至多三个窗口，50/1s, 1000/1m（ms、s、m 或 h）。",
  max_running_per_user: "一个用户在此模型上可同时运行的任务数；其余任务等待，队列中后面的任务先行。",
  max_waiting_per_user: "一个用户可为此模型等待的任务数，所有队列合计；超出的以 429 拒绝。",
  breaker_failures: "一分钟内上游（工作进程背后的服务器）失败多少次，且占已结束任务的一半时，为此模型打开其熔断器；0 表示不用熔断器。",
  breaker_open: "熔断器首次打开的时长，例如 5s；之后放行少量任务试探，每次试探失败则时长加倍，最多一分钟。",
};

/** What a setting is for, in the reader's language. */
export const helpText = (setting, english) => (language() === "zh" && CHINESE[setting]) || english;
