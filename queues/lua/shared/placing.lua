-- Where a queued task stands: its position in its lane (from 1) and how long it may wait: about, at least and at most, in ms.
-- All are estimates: a fair queue lets latecomers of other users pass. With r tasks of its own user ahead, A users waiting and
-- its user at rank k, about r * A + k tasks go first; they leave at the lane's measured pace. Departures come irregularly, about
-- as a Poisson process, so that n of them take n intervals +- 1.3 sqrt(n) four times out of five; and others may come or go.

-- Mean ms between two departures of a lane: as measured; and as long as these are few, one more as it should be by how long tasks
-- of the model run and the lane's share of its slots. `waits`: somebody does, as far as the caller knows; where nobody waits
-- nobody leaves.
local function interval_of(q, m, drain, mean_ms, waits)
  local count, time
  if waits == nil then waits = call('EXISTS', keys.flows(q, m)) == 1 end
  if waits then count, time = drain_until_now(drain) else count, time = read_drain(drain) end
  if count >= 20 then return time / count end
  local mean = num(mean_ms)
  if mean == 0 then mean = 1000 end
  local total, own = 0, lane_weight(call('HGET', keys.queue(q), 'weight'))
  for _, other in ipairs(call('ZRANGE', keys.lanes(m), '0', '-1')) do
    if other ~= q then total = total + lane_weight(call('HGET', keys.queue(other), 'weight')) end
  end
  local expected = mean * (total + own) / own / math.max(call('ZCARD', keys.slots(m)), 1)
  return (time + expected) / (count + 1)
end

-- Whether enough is known of a lane to tell how long its tasks wait: some task of the model has completed, or a few have left the
-- lane while others waited. Where tokens are paced, how many a task takes must be known; a pace of requests says it by itself.
local function learnt(drain, mean_ms, rpm, tpm, mean_output)
  if tpm > 0 then return num(mean_output) > 0 end
  return rpm > 0 or num(mean_ms) > 0 or read_drain(drain) >= 3
end

-- The place of a task that does not wait.
local NOWHERE = { 0, 0, 0, 0 }

-- {position, wait, at least, at most} of the n-th to go. UNKNOWN: nothing has been learnt yet that tells how long.
local UNKNOWN = -1
local function place_of(n, interval, delay)
  local wait, spread = n * interval, 1.3 * math.sqrt(n) * interval
  local least = math.max(math.floor(delay + math.max(0.6 * wait - spread, 0)), 0)
  return { n, math.floor(delay + wait), least, math.ceil(delay + 1.6 * wait + spread) }
end

local function place(id, t)
  local q, m = t.q, t.m
  local rank = call('ZRANK', keys.flow(q, m, t.u), id)
  if not rank then
    local back = call('ZSCORE', keys.aside(), id)
    if not back then return NOWHERE end
    local wait = math.max(tonumber(back) - NOW, 0)
    return { 1, wait, wait, 2 * wait }
  end
  local flows = keys.flows(q, m)
  local in_line = call('ZCARD', flows)
  local users = math.max(in_line, 1)
  local k = call('ZRANK', flows, t.u) or users
  local s = call('HMGET', keys.model(m), 'n:' .. q, 'D:' .. q, 'ms', 'held', 'requests_per_minute', 'tat',
    'tokens_per_minute', 'ttat', 'out')
  local n = math.min(math.max(num(s[1]), 1), rank * users + k + 1)
  local held = num(s[4]) > NOW -- that long at least
  if not held and not learnt(s[2], s[3], num(s[5]), num(s[7]), s[9]) then return { n, UNKNOWN, UNKNOWN, UNKNOWN } end
  local interval, delay = interval_of(q, m, s[2], s[3], in_line > 0), math.max(num(s[4]) - NOW, 0)
  if num(s[5]) > 0 then -- no faster than the model's pace, of which the next instant is known
    interval = math.max(interval, 60000 / num(s[5]))
    delay = math.max(num(s[4]) - NOW, num(s[6]) / 1000 - NOW - interval, 0 - interval)
  end
  if num(s[7]) > 0 then -- nor than its pace by tokens, of which a task takes about so many
    interval = math.max(interval, 60000 * (num(t.ei) + num(s[9])) / num(s[7]))
    delay = math.max(delay, num(s[8]) / 1000 - NOW - interval)
  end
  return place_of(n, interval, delay)
end
