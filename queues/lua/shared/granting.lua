-- The reply that describes a grant; the fields are named in scripts.py.
local function describe(id, t, start)
  local left = num(t.xd)
  if left > 0 then left = max(left - NOW, 0) end
  return {
    id, t.at, t.gt, t.m, t.q, t.ty or '', t.u, t.k or '', t.sf or '0', int(left), t.tr or '0', t.en,
    t.at .. '-' .. t.sq, t.md or '', t.wt or '0', t.rd or '', t.ga, start,
  }
end

-- Expected cost of a task: input + 2 x output, the output by the user's running mean, else the model's, else what the
-- request allows; 1 where the model counts requests.
local function expected_cost(t, unit, model_mean)
  if unit == 'requests' then return 1 end
  local asked = num(t.mo)
  local output = num(call('GET', key_mean(t.m, t.u)))
  if output == 0 then output = num(model_mean) end
  if output == 0 then output = asked > 0 and asked or 256 end
  if asked > 0 then output = min(output, asked) end
  return max(num(t.ei) + 2 * output, 1)
end

-- Hand out the next task of `model`: it leaves its lane, a slot is occupied and the lease starts, or nothing changes.
-- Returns its id, record and start event's data, or nil and why: 'limit' or 'empty'.
local function grant_next(model, replica, worker, token, grant_ms)
  local state = call('HMGET', key_model(model), 'limit', 'cost', 'V', 'out')
  local limit = num(state[1])
  local slots = key_slots(model)
  if limit > 0 and call('ZCARD', slots) >= limit then return nil, 'limit' end
  local lane = call('ZRANGE', key_lanes(model), 0, 0, 'WITHSCORES')
  if not lane[1] then return nil, 'empty' end
  local q = lane[1]
  local flow = call('ZRANGE', key_flows(q, model), 0, 0, 'WITHSCORES')
  local u = flow[1]
  local id = call('ZRANGE', key_flow(q, model, u), 0, 0)[1]
  local t = load(id)
  local cost = expected_cost(t, state[2], state[4])
  local lane_start, flow_start = tonumber(lane[2]), tonumber(flow[2])
  local weight = num(call('HGET', key_queue(q), 'weight'))
  if weight <= 0 then weight = 1 end
  dequeue(id, t, flow_start + cost / num(t.w or 1), lane_start + cost / weight)
  call('HSET', key_model(model), 'V', max(num(state[3]), lane_start), 'v:' .. q, flow_start, 'used', US)
  call('ZADD', key_backlog(), 'XX', US, model)

  local attempt, seq = num(t.at) + 1, num(t.sq) + 1
  t.st, t.at, t.gt, t.ow, t.sq = 'executing', tostring(attempt), token, replica, tostring(seq)
  t.ga, t.ch = int(NOW), tostring(cost)
  local deadline = num(t.dl)
  local run = num(t.rl)
  if run > 0 then deadline = deadline > 0 and min(deadline, NOW + run) or NOW + run end
  t.xd = int(deadline)
  local lease_end = NOW + grant_ms
  call('HSET', key_task(id), 'st', t.st, 'at', t.at, 'gt', token, 'ow', replica, 'sq', t.sq, 'ga', t.ga, 'wk', worker, 'ch', t.ch, 'xd', t.xd)
  call('ZADD', slots, lease_end, id)
  call('SADD', key_busy(q, model, u), id)
  call('ZADD', key_look(), run_instant(t, lease_end), id)
  local rest = '"attempt":' .. attempt .. ',"model":' .. cjson.encode(model) .. ',"queue":"' .. q .. '"'
  local event_id = attempt .. '-' .. seq
  local data = event_data(id, rest)
  call('XADD', key_log(id), event_id, 'type', 'start', 'data', data)
  publish_event(t.rd, id, event_id, 'start', data, replica)
  return id, t, data
end

-- Take up to `want` tasks for a worker that serves `models` ({'*'}: every model), least recently served model first.
-- What stays unfilled is recorded, so that the next eligible task wakes this replica; what others could still start wakes
-- them. Returns the grants and their ids.
local function take(models, want, replica, worker, nonce, grant_ms)
  local grants, ids, touched = {}, {}, {}
  local exhausted = {}
  for i = 1, want do
    local id, t, start
    if #models == 1 and models[1] ~= '*' then
      id, t, start = grant_next(models[1], replica, worker, nonce .. ':' .. i, grant_ms)
      touched[models[1]] = true
    else
      local order = {}
      if models[1] == '*' then
        order = call('ZRANGE', key_backlog(), 0, 63)
      else
        for _, model in ipairs(models) do
          local served = call('ZSCORE', key_backlog(), model)
          if served then order[#order + 1] = { model, tonumber(served) } end
        end
        table.sort(order, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1]) end)
        for k, pair in ipairs(order) do order[k] = pair[1] end
      end
      for _, model in ipairs(order) do
        if not exhausted[model] then
          id, t, start = grant_next(model, replica, worker, nonce .. ':' .. i, grant_ms)
          if id then
            touched[model] = true
            break
          end
          exhausted[model] = true
        end
      end
    end
    if not id then break end
    grants[i] = describe(id, t, start)
    ids[i] = id
  end
  if #grants < want then
    for _, model in ipairs(models) do call('ZADD', key_idle(model), US, replica) end
  else
    for model in pairs(touched) do wake(model) end
  end
  return grants, ids
end

-- The grants that an earlier call with the same nonce made and that still hold: its reply was lost.
local function repeat_grants(list, nonce)
  local grants = {}
  for id in string.gmatch(list or '', '[^,]+') do
    local t = load(id)
    if t and t.st == 'executing' and string.find(t.gt, nonce .. ':', 1, true) == 1 then
      local event_id = t.at .. '-' .. t.sq
      local entry = call('XRANGE', key_log(id), event_id, event_id)[1]
      grants[#grants + 1] = describe(id, t, entry and entry[2][4] or '')
    end
  end
  return grants
end
