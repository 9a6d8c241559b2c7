-- Lanes and flows: start-time fair queueing at two levels. A lane (a queue of one model) and a flow (one user in a lane) each
-- have a start tag; the smallest is served, then its tag advances by cost / weight. One that returns from idle is lifted to
-- the virtual time: the largest start tag served so far. (Goyal, Vin, Cheng: Start-time Fair Queuing, 1996.)
--
-- An idle flow keeps its tag in `debts` while it is ahead of the virtual time or has tasks running. A lift forgives what the
-- flow (or lane) owes less than others: what is settled later, of an attempt that began before the lift, counts only beyond
-- it. So each lift is added up (`lifts`, field L:queue), and an attempt remembers the sum at its beginning.
--
-- Tags count in 4,096ths of cost / weight, whole numbers, which are exact and quick to write.

local function tag_step(cost, weight) return floor(cost * 4096 / weight + 0.5) end

local function flow_weight(t)
  local weight = num(t.w)
  return weight > 0 and weight or 1
end

-- The weight of a queue, as stored.
local function lane_weight(stored)
  local weight = num(stored)
  return weight > 0 and weight or 1
end

-- The virtual time that the next flow to return will find: flows that return at the same time stand in line, so that no name
-- sorts before another for ever.
local function just_after(v) return v + 1 end

-- Lift an idle flow to the virtual time, and remember by how much as long as something of it runs.
local function note_lift(q, m, u, amount)
  if call('EXISTS', key_busy(q, m, u)) == 1 then call('ZINCRBY', key_lifts(q, m), amount, u) end
end

-- The start tag of a flow that returns from idle at virtual time `v`; the virtual time behind it; its debt, if it has one.
local function flow_returns(q, m, u, v)
  local debt = call('ZSCORE', key_debts(q, m), u)
  local owed = tonumber(debt or v)
  if owed > v then return owed, v, debt end
  if owed < v then note_lift(q, m, u, v - owed) end
  return v, just_after(v), debt
end

-- Put a task into its flow, and wake up flow and lane if they were idle.
local function enqueue(id, t)
  local q, m, u = t.q, t.m, t.u
  local model, flow, flows = key_model(m), key_flow(q, m, u), key_flows(q, m)
  call('ZADD', flow, t['or'], id)
  if call('ZCARD', flow) == 1 then
    local s = call('HMGET', model, 'v:' .. q, 'V', 'S:' .. q, 'L:' .. q, 'used')
    local V, lane_tag, lane_lifts = num(s[2]), num(s[3]), num(s[4])
    local start, v, debt = flow_returns(q, m, u, num(s[1]))
    if debt then call('ZREM', key_debts(q, m), u) end
    call('ZADD', flows, start, u)
    if call('ZCARD', flows) == 1 then
      call('ZADD', key_lanes(m), max(V, lane_tag), q)
      call('ZADD', key_backlog(), 'NX', num(s[5]), m)
      lane_lifts = lane_lifts + max(V - lane_tag, 0)
    end
    call('HSET', model, 'v:' .. q, v, 'L:' .. q, lane_lifts)
  end
  call('HINCRBY', model, 'n:' .. q, 1)
  call('HINCRBY', key_queue(q), 'n', 1)
end

-- Take a task out of its flow; idle flows and lanes keep their tags. `flow_tag` and `lane_tag`, when given, are the tags
-- advanced by a dispatch.
local function dequeue(id, t, flow_tag, lane_tag)
  local q, m, u = t.q, t.m, t.u
  local model = key_model(m)
  local flow, flows, lanes = key_flow(q, m, u), key_flows(q, m), key_lanes(m)
  if call('ZREM', flow, id) == 0 then return end
  call('HINCRBY', model, 'n:' .. q, -1)
  call('HINCRBY', key_queue(q), 'n', -1)
  local lane_waits = true
  if call('EXISTS', flow) == 1 then
    if flow_tag then call('ZADD', flows, flow_tag, u) end
  else
    flow_tag = flow_tag or call('ZSCORE', flows, u)
    call('ZREM', flows, u)
    call('ZADD', key_debts(q, m), flow_tag, u)
    lane_waits = call('EXISTS', flows) == 1
  end
  if lane_waits then
    if lane_tag then call('ZADD', lanes, lane_tag, q) end
  else
    lane_tag = lane_tag or call('ZSCORE', lanes, q)
    call('ZREM', lanes, q)
    call('HSET', model, 'S:' .. q, lane_tag)
    if call('EXISTS', lanes) == 0 then call('ZREM', key_backlog(), m) end
  end
end

-- The account of an attempt, one field of its record: cost charged, lane's weight, lifts of lane and flow so far.
local function open_account(cost, weight, lane_lifts, flow_lifts)
  return string.format('%.3f %.17g %.0f %.0f', cost, weight, lane_lifts, flow_lifts)
end

-- What counts of a later charge (or refund), after lifts of `lifted` since the first one.
local function beyond(step, lifted)
  if lifted <= 0 then return step end
  return max(step - lifted, 0)
end

-- Close an attempt's account: charge (or refund) the difference between `used` and the estimate to its flow and lane, idle
-- ones too; `used` nil: the estimate stands.
local function close_account(t, used)
  local q, m, u = t.q, t.m, t.u
  local lifts = key_lifts(q, m)
  local flow_lifts = call('ZSCORE', lifts, u)
  local charged, weight, lane_lifts, own_lifts = string.match(t.ac, '(%S+) (%S+) (%S+) (%S+)')
  local more = used and used - tonumber(charged) or 0
  if more ~= 0 then
    local lanes, flows, model = key_lanes(m), key_flows(q, m), key_model(m)
    local s = call('HMGET', model, 'S:' .. q, 'L:' .. q)
    local lane_step = beyond(tag_step(more, tonumber(weight)), num(s[2]) - tonumber(lane_lifts))
    local flow_step = beyond(tag_step(more, flow_weight(t)), num(flow_lifts) - tonumber(own_lifts))
    local lane_waits = call('ZSCORE', lanes, q)
    if lane_waits then
      call('ZINCRBY', lanes, lane_step, q)
    else
      call('HSET', model, 'S:' .. q, num(s[1]) + lane_step)
    end
    call('ZINCRBY', lane_waits and call('ZSCORE', flows, u) and flows or key_debts(q, m), flow_step, u)
  end
  if flow_lifts and call('EXISTS', key_busy(q, m, u)) == 0 then call('ZREM', lifts, u) end
end

-- Forget a few idle flows that the virtual time `v` has passed: they would be lifted to it anyway. Of those that still have
-- tasks running only the lift is remembered.
local function forget_idle_flows(q, m, v)
  local debts = key_debts(q, m)
  for _ = 1, 4 do
    local least = call('ZRANGE', debts, 0, 0, 'WITHSCORES')
    local u = least[1]
    if not u or tonumber(least[2]) >= v then return end
    if call('EXISTS', key_busy(q, m, u)) == 0 then
      call('ZREM', debts, u)
    else
      call('ZINCRBY', key_lifts(q, m), v - tonumber(least[2]), u)
      call('ZADD', debts, v, u)
    end
  end
end

-- Of more than 1,000 idle flows of a lane those that owe least are forgotten: where most users come once, the virtual time
-- passes nobody.
local function forget_excess(q, m)
  local debts = key_debts(q, m)
  local excess = call('ZCARD', debts) - 1000
  if excess <= 0 then return end
  for _, u in ipairs(call('ZRANGE', debts, 0, min(excess, 2000) - 1)) do
    if call('EXISTS', key_busy(q, m, u)) == 0 then call('ZREM', debts, u) end
  end
end
