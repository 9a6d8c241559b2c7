-- Where a queued task stands: its position in its lane (from 1) and how long it may wait: about, at least and at most, in ms.
-- All are estimates: a fair queue lets latecomers of other users pass. With r tasks of its own user ahead, A users waiting and
-- its user at rank k, about r * A + k tasks go first; they leave at the lane's measured pace. Departures come irregularly, about
-- as a Poisson process, and others may come or go: the bounds are two spreads of n departures away, and one spread is half of the
-- wait and 1.3 sqrt(n) intervals.
local interval_of, is_learned, blocked_by, NOWHERE, place
do
-- Mean ms between two departures of a lane: as measured until the last one, as one long task is no slower pace, or `until_now`; and as
-- long as these are few, one more as it should be by how long tasks of the model run and the lane's share of its slots. Returns it, and
-- of how many departures it is the mean.
function interval_of(q, m, drain, mean_ms, until_now)
  local count, time = (until_now and drain_until_now or read_drain)(drain)
  if count >= 20 then return time / count, count end
  local mean = num(mean_ms)
  if mean == 0 then mean = 1000 end
  local total, own = 0, lane_weight(call('HGET', keys.queue(q), 'weight'))
  for _, other in ipairs(call('ZRANGE', keys.lanes(m), '0', '-1')) do
    if other ~= q then total = total + lane_weight(call('HGET', keys.queue(other), 'weight')) end
  end
  local expected = mean * (total + own) / own / math.max(call('ZCARD', keys.slots(m)), 1)
  return (time + expected) / (count + 1), count + 1
end

-- Whether enough is known of a lane to estimate how long its tasks wait: some task of the model has completed, or a few have left the
-- lane while others waited. Where tokens are paced, how many a task takes must be known; a pace of requests, and windows, say it by
-- themselves.
function is_learned(drain, mean_ms, rpm, tpm, mean_output, in_windows)
  if tpm > 0 then return num(mean_output) > 0 end
  return rpm > 0 or in_windows or num(mean_ms) > 0 or read_drain(drain) >= 3
end

-- Why no task of a lane can start, whatever ends before: 'model_paused' | 'queue_paused' | 'no_worker' no worker offers the model, and
-- nothing runs | 'breaker_open' of all its upstreams; nil: one can. `paused`, `ups`: of the model, as stored.
function blocked_by(q, m, paused, ups)
  if paused == '1' then return 'model_paused' end
  if call('HGET', keys.queue(q), 'paused') == '1' then return 'queue_paused' end
  if call('EXISTS', keys.slots(m)) == 0 and not is_offered(m) and not permits.is_next(m, q) then return 'no_worker' end
  if ups == '2' then
    local at, why = upstreams.blocked_until(m)
    if at > 0 and why ~= 'cooldown' then return 'breaker_open' end
  end
  return nil
end

-- The place of a task that does not wait.
NOWHERE = { 0, 0, 0, 0 }

-- A wait in ms as it is shown: two digits of it, by `round`.
local function in_two_digits(ms, round)
  local unit = 1
  while ms >= 100 * unit do unit = unit * 10 end
  return math.max(round(ms / unit) * unit, 0)
end

local function nearest(value) return math.floor(value + 0.5) end

-- {position, wait, at least, at most} of the n-th to go. UNKNOWN: too little has been learned yet, or none can start.
local UNKNOWN = -1
local SPREADS = 2
local function place_of(n, interval, delay)
  local wait, spread = n * interval, (0.5 * n + 1.3 * math.sqrt(n)) * interval
  local least, most = delay + math.max(wait - SPREADS * spread, 0), delay + wait + SPREADS * spread
  return { n, in_two_digits(delay + wait, nearest), in_two_digits(least, math.floor), in_two_digits(most, math.ceil) }
end

-- The place of a task.
function place(id, t)
  if t.parts then -- of a chain: that of the first of its parts that waits
    local number = chains.stage_of(t.stage)
    for i = 0, t.parts - 1 do
      local part = chains.part_id(id, number, i)
      local st, q, m, an, ei = unpack(call('HMGET', keys.task(part), 'state', 'queue', 'model', 'requested_model', 'input_tokens'))
      if st == 'queued' then return place(part, { queue = q, model = m, user = t.user, requested_model = an, input_tokens = ei }) end
    end
    return NOWHERE
  end
  local q, m = t.queue, t.model
  local rank = call('ZRANK', keys.flow(q, m, t.user), id)
  if not rank then
    local back = call('ZSCORE', keys.aside(), id)
    if not back then return NOWHERE end
    local s = call('HMGET', keys.model(m), 'paused', 'upstream_state')
    if blocked_by(q, m, s[1], s[2]) then return { 1, UNKNOWN, UNKNOWN, UNKNOWN } end
    local wait = math.max(tonumber(back) - NOW, 0)
    return { 1, wait, wait, 2 * wait }
  end
  local flows = keys.flows(q, m)
  local in_line = call('ZCARD', flows)
  local users = math.max(in_line, 1)
  local k = call('ZRANK', flows, t.user) or users
  local s = call('HMGET', keys.model(m), 'waiting:' .. q, 'drain:' .. q, 'mean_ms', 'cooldown_until', 'requests_per_minute', 'requests_at',
    'tokens_per_minute', 'tokens_at', 'mean_output', 'paused', 'concurrency', 'upstream_state', 'windows')
  local n = math.min(math.max(num(s[1]), 1), rank * users + k + 1)
  local held = num(s[4]) > NOW -- that long at least
  if blocked_by(q, m, s[10], s[12]) then return { n, UNKNOWN, UNKNOWN, UNKNOWN } end
  if not held and not is_learned(s[2], s[3], num(s[5]), num(s[7]), s[9], s[13]) then return { n, UNKNOWN, UNKNOWN, UNKNOWN } end
  local interval, departures = interval_of(q, m, s[2], s[3])
  local _, _, last = read_drain(s[2])
  local passed_ms = in_line > 0 and NOW - last or 0
  -- what has passed of the first interval is over; more slows the pace, up to how long a task runs: one may run longer
  local delay = math.max(num(s[4]) - NOW, 0 - math.min(passed_ms, interval))
  interval = interval + math.max(math.min(passed_ms, num(s[3])) - interval, 0) / departures
  if num(s[5]) > 0 then -- no faster than the model's pace, whose next instant is known
    interval = math.max(interval, 60000 / num(s[5]))
    delay = math.max(num(s[4]) - NOW, num(s[6]) / 1000 - NOW - interval, 0 - interval)
  end
  if num(s[7]) > 0 then -- nor than its pace by tokens, by the mean of a task
    interval = math.max(interval, 60000 * (num(t.input_tokens) + num(s[9])) / num(s[7]))
    delay = math.max(delay, num(s[8]) / 1000 - NOW - interval)
  end
  if s[13] then -- nor before its windows have room for all that go first
    local at = windows.free_at(m, s[13], n)
    delay = math.max(delay, at > US and (at - US) / 1000 - n * interval or 0)
  end
  return place_of(n, interval, delay)
end
end
