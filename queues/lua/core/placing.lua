-- The place of a queued task: its position in its lane (from 1), and its wait in ms: expected, at least, at most. All are estimates, since
-- in a fair queue later tasks of other users can pass. With r tasks of the same user ahead, A waiting users and the user at rank k, about
-- r * A + k tasks start first; they leave at the lane's measured pace. Departures are irregular, about a Poisson process, and users
-- join and leave. So the bounds are two spreads of n departures away; one spread is half of the wait plus 1.3 sqrt(n) intervals.
local placing = {}
local UNKNOWN = -1 -- there are too few departures yet, or no task can start
local SPREADS = 2

-- Return the mean ms between two departures of a lane, and the number of departures in it. It is measured until the last departure, since
-- one long task does not mean a slower pace, or `until_now`. While there are fewer than 20, one departure is added that is computed
-- from the mean duration of the model's tasks and the lane's share of the slots.
function placing.interval(name, queue, until_now)
  local model = models.get(name)
  local gone, ms = lanes.departures(models.lane(model, queue), until_now)
  if gone >= 20 then return ms / gone, gone end
  local own = (models.queue(queue).weight or 1)
  local total = own
  for other, lane in pairs(models.lanes(model)) do
    if lane.users > 0 and other ~= queue then total = total + (models.queue(other).weight or 1) end
  end
  local mean = (model.mean_ms or 0) > 0 and model.mean_ms or 1000
  return (ms + mean * total / own / math.max(slots.taken(name), 1)) / (gone + 1), gone + 1
end

-- Return whether the wait of a lane can be estimated: a task of the model has completed, or a few have left the lane while others waited. With
-- a limit of tokens per minute, the mean output must be known. A limit of requests per minute, or windows, is itself a pace.
function placing.is_learned(model, lane)
  if model.tokens_per_minute then return (model.mean_output or 0) > 0 end
  return model.requests_per_minute ~= nil or model.windows ~= nil or (model.mean_ms or 0) > 0 or (lanes.departures(lane)) >= 3
end

-- Return why no task of a lane can start, even if running tasks end: 'model_paused' | 'queue_paused' | 'no_worker': no worker offers the
-- model, and no task runs | 'breaker_open': the breakers of all upstreams are open; nil: tasks can start.
function placing.blocked_by(name, queue)
  local model = models.get(name)
  if model.paused then return 'model_paused' end
  if models.queue(queue).paused then return 'queue_paused' end
  if slots.taken(name) == 0 and not waking.is_offered(name) and not hooks.first('serves', model, name, queue) then
    return 'no_worker'
  end
  local _, why = hooks.first('opens', model, name)
  return why == 'open' and 'breaker_open' or nil
end

-- Return a wait in ms, rounded to two digits by `round`.
local function in_two_digits(ms, round)
  local unit = 1
  while ms >= 100 * unit do unit = unit * 10 end
  return math.max(round(ms / unit) * unit, 0)
end

local function nearest(value) return math.floor(value + 0.5) end

local function place_of(n, interval, delay)
  local wait, spread = n * interval, (0.5 * n + 1.3 * math.sqrt(n)) * interval
  local least, most = delay + math.max(wait - SPREADS * spread, 0), delay + wait + SPREADS * spread
  return { n, in_two_digits(delay + wait, nearest), in_two_digits(least, math.floor), in_two_digits(most, math.ceil) }
end

-- Return the place of a queued task: {position, wait, at least, at most}; nil: it is in no line.
function placing.place(task)
  local name, queue = task.model, task.queue
  local rank = call('ZRANK', keys.flow(queue, name, task.user), task.id)
  if not rank then
    local back = call('ZSCORE', keys.aside(), task.id)
    if not back then return hooks.first('place', task) end
    if placing.blocked_by(name, queue) then return { 1, UNKNOWN, UNKNOWN, UNKNOWN } end
    local wait = math.max(tonumber(back) - NOW, 0)
    return { 1, wait, wait, 2 * wait }
  end
  local model = models.get(name)
  local lane = models.lane(model, queue)
  local users = math.max(lane.users, 1)
  local k = call('ZRANK', keys.flows(queue, name), task.user) or users
  local n = math.min(math.max(lane.waiting, 1), rank * users + k + 1)
  if placing.blocked_by(name, queue) then return { n, UNKNOWN, UNKNOWN, UNKNOWN } end
  local held_ms = math.max((model.cooldown_until or 0) - NOW, 0)
  if held_ms == 0 and not placing.is_learned(model, lane) then return { n, UNKNOWN, UNKNOWN, UNKNOWN } end
  local interval, gone = placing.interval(name, queue)
  -- subtract the elapsed part of the first interval. If more time has passed, the pace is slower, up to the mean duration of a task
  local passed_ms = lane.users > 0 and NOW - lane.gone[3] or 0
  local delay = held_ms > 0 and held_ms or 0 - math.min(passed_ms, interval)
  interval = interval + math.max(math.min(passed_ms, model.mean_ms or 0) - interval, 0) / gone
  local slower, until_first = hooks.first('expects', model, name, task, n, interval)
  if slower then interval, delay = slower, math.max(delay, until_first) end
  return place_of(n, interval, delay)
end

return placing
