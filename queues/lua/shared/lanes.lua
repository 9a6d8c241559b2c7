-- Lanes and flows: start-time fair queueing at two levels. A lane (a queue of one model) and a flow (one user in a lane) each
-- have a start tag; the smallest is served, then its tag advances by cost / weight. One that returns from idle is lifted to
-- the virtual time: the start tag last served. (Goyal, Vin, Cheng: Start-time Fair Queuing, 1996.)

-- Put a task into its flow, and wake up flow and lane if they were idle.
local function enqueue(id, t)
  local q, m, u = t.q, t.m, t.u
  local model = key_model(m)
  local flow = key_flow(q, m, u)
  call('ZADD', flow, t['or'], id)
  if call('ZCARD', flow) == 1 then
    local flows = key_flows(q, m)
    local debts = key_debts(q, m)
    local tags = call('HMGET', model, 'v:' .. q, 'V', 'S:' .. q)
    local start = num(tags[1])
    local debt = call('ZSCORE', debts, u)
    if debt then
      call('ZREM', debts, u)
      start = max(start, tonumber(debt))
    end
    call('ZADD', flows, start, u)
    if call('ZCARD', flows) == 1 then
      call('ZADD', key_lanes(m), max(num(tags[2]), num(tags[3])), q)
      call('ZADD', key_backlog(), 'NX', num(call('HGET', model, 'used')), m)
    end
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
  if call('ZREM', flow, id) == 0 then return false end
  call('HINCRBY', model, 'n:' .. q, -1)
  call('HINCRBY', key_queue(q), 'n', -1)
  if call('EXISTS', flow) == 1 then
    if flow_tag then call('ZADD', flows, flow_tag, u) end
    if lane_tag then call('ZADD', lanes, lane_tag, q) end
    return true
  end
  flow_tag = flow_tag or call('ZSCORE', flows, u)
  call('ZREM', flows, u)
  call('ZADD', key_debts(q, m), flow_tag, u)
  if call('EXISTS', flows) == 1 then
    if lane_tag then call('ZADD', lanes, lane_tag, q) end
    return true
  end
  lane_tag = lane_tag or call('ZSCORE', lanes, q)
  call('ZREM', lanes, q)
  call('HSET', model, 'S:' .. q, lane_tag)
  if call('EXISTS', lanes) == 0 then call('ZREM', key_backlog(), m) end
  return true
end

-- Charge (or refund) `delta` to a task's flow and lane, idle ones too.
local function charge(t, delta)
  local q, m, u = t.q, t.m, t.u
  local model = key_model(m)
  if delta ~= 0 then
    local weight = num(call('HGET', key_queue(q), 'weight'))
    if weight <= 0 then weight = 1 end
    local lanes = key_lanes(m)
    if call('ZSCORE', lanes, q) then
      call('ZINCRBY', lanes, delta / weight, q)
    else
      call('HSET', model, 'S:' .. q, num(call('HGET', model, 'S:' .. q)) + delta / weight)
    end
    local share = delta / num(t.w or 1)
    local flows, debts = key_flows(q, m), key_debts(q, m)
    if call('ZSCORE', flows, u) then
      call('ZINCRBY', flows, share, u)
    elseif call('ZSCORE', debts, u) then
      call('ZINCRBY', debts, share, u)
    elseif share > 0 then
      call('ZADD', debts, num(call('HGET', model, 'v:' .. q)) + share, u)
    end
  end
end

-- Forget idle flows that owe nothing and have nothing running: they would be lifted to the virtual time anyway.
local function forget_idle_flows(q, m)
  local debts = key_debts(q, m)
  local due = call('ZRANGEBYSCORE', debts, '-inf', num(call('HGET', key_model(m), 'v:' .. q)), 'LIMIT', 0, 4)
  for _, u in ipairs(due) do
    if call('EXISTS', key_busy(q, m, u)) == 0 then call('ZREM', debts, u) end
  end
end
