-- The reply that describes a grant; its fields are named in tasks.py, Grant.
local function describe(id, t, event_id, start)
  local left = num(t.xd)
  if left > 0 then left = max(left - NOW, 1) end
  return {
    id, t.at, t.gt, t.m, t.q, t.ty or '', t.u, t.k or '', t.sf or '0', left, t.tr or '0', t.en,
    event_id, t.md or '', t.wt or '0', t.rd or '', t.ga, start,
  }
end

-- Expected cost of a task: input + 2 x output, the output by the user's running mean, else the model's, else what the
-- request allows (4,096 at most, as nothing is known yet); 1 where the model counts requests.
local function expected_cost(t, unit, model_mean)
  if unit == 'requests' then return 1 end
  local asked = num(t.mo)
  local output = num(call('GET', key_mean(t.m, t.u)))
  if output == 0 then output = num(model_mean) end
  if output == 0 then output = asked > 0 and min(asked, 4096) or 256 end
  if asked > 0 then output = min(output, asked) end
  return max(min(num(t.ei), 16777216) + 2 * output, 1)
end

-- Begin an attempt of a task that waits in no lane: a slot is occupied, the lease starts, the log says so. `t` gets the fields
-- that the caller then stores. Returns the data of the start event.
local function begin_attempt(id, t, replica, worker, token, grant_ms)
  local attempt, seq = num(t.at) + 1, num(t.sq) + 1
  local deadline, run = num(t.dl), num(t.rl)
  if run > 0 then deadline = deadline > 0 and min(deadline, NOW + run) or NOW + run end
  t.st, t.at, t.sq, t.gt, t.ow, t.wk = 'executing', attempt, seq, token, replica, worker
  t.ga, t.xd = NOW, deadline
  local lease_end = NOW + grant_ms
  call('ZADD', key_slots(t.m), lease_end, id)
  call('SADD', key_busy(t.q, t.m, t.u), id)
  call('ZADD', key_look(), run_instant(t, lease_end), id)
  local rest = '"attempt":' .. attempt .. ',"model":' .. cjson.encode(t.m) .. ',"queue":"' .. t.q .. '"'
  local event_id = attempt .. '-' .. seq
  local data = event_data(id, rest)
  call('XADD', key_log(id), event_id, 'type', 'start', 'data', data)
  publish_event(t.rd, id, event_id, 'start', data, replica)
  return data
end

-- Hand out the next task of `model`: it leaves its lane and an attempt begins, or nothing changes. One whose time to wait is
-- over, or whose record is lost, only leaves its lane: the sweep is due for it.
-- Returns its id, record and start event's data, or nil.
local function grant_next(model, replica, worker, token, grant_ms)
  local lanes, hash = key_lanes(model), key_model(model)
  for _ = 1, 1000 do
    local lane = call('ZRANGE', lanes, 0, 0, 'WITHSCORES')
    local q = lane[1]
    if not q then return nil end
    local s = call('HMGET', hash, 'limit', 'cost', 'out', 'V', 'v:' .. q, 'L:' .. q)
    local limit = num(s[1])
    if limit > 0 and call('ZCARD', key_slots(model)) >= limit then return nil end
    local flow = call('ZRANGE', key_flows(q, model), 0, 0, 'WITHSCORES')
    local u = flow[1]
    local id = call('ZRANGE', key_flow(q, model, u), 0, 0)[1]
    local t = load(id)
    if not t or passed(t.wd) or passed(t.dl) then -- (not `lv`: a reader may still move it)
      dequeue(id, t or { q = q, m = model, u = u })
    else
      local cost = expected_cost(t, s[2], s[3])
      local lane_start, flow_start = tonumber(lane[2]), tonumber(flow[2])
      local weight = lane_weight(call('HGET', key_queue(q), 'weight'))
      dequeue(id, t, flow_start + tag_step(cost, flow_weight(t)), lane_start + tag_step(cost, weight))
      call('HSET', hash, 'V', max(num(s[4]), lane_start), 'v:' .. q, max(num(s[5]), flow_start), 'used', US)
      call('ZADD', key_backlog(), 'XX', US, model)
      t.ac = open_account(cost, weight, num(s[6]), num(call('ZSCORE', key_lifts(q, model), u)))
      local start = begin_attempt(id, t, replica, worker, token, grant_ms)
      call('HSET', key_task(id), 'st', t.st, 'at', t.at, 'sq', t.sq, 'gt', token, 'ow', replica, 'wk', worker,
        'ga', t.ga, 'xd', t.xd, 'ac', t.ac)
      return id, t, start
    end
  end
end

-- The models of `models` ('*' alone: every model) with waiting tasks, the least recently served first.
local function waiting_models(models)
  if models[1] == '*' then return call('ZRANGE', key_backlog(), 0, 999) end
  if #models == 1 then return { models[1] } end
  local served = {}
  for _, model in ipairs(models) do
    local at = call('ZSCORE', key_backlog(), model)
    if at then served[#served + 1] = { model, tonumber(at) } end
  end
  table.sort(served, function(a, b) return a[2] < b[2] or (a[2] == b[2] and a[1] < b[1]) end)
  for i, pair in ipairs(served) do served[i] = pair[1] end
  return served
end

-- A replica has a free slot for these models: the next eligible task wakes it.
local function idle_for(models, replica)
  for _, model in ipairs(models) do
    if call('ZADD', key_idle(model), US, replica) == 1 then call('PEXPIRE', key_idle(model), 600000) end
  end
end

-- Take up to `want` tasks for a worker that serves `models` ({'*'}: every model), least recently served model first.
-- What stays unfilled is recorded, so that the next eligible task wakes this replica; what others could still start, of these
-- models or of `freed` (a model that has a slot free since this script began), wakes them. Returns the grants and their ids.
local function take(models, want, replica, worker, nonce, grant_ms, freed)
  local grants, ids = {}, {}
  local waiting = waiting_models(models)
  while #ids < want and waiting[1] do
    local model = table.remove(waiting, 1)
    local id, t, start = grant_next(model, replica, worker, nonce .. ':' .. (#ids + 1), grant_ms)
    if id then
      ids[#ids + 1] = id
      grants[#ids] = describe(id, t, t.at .. '-' .. t.sq, start)
      waiting[#waiting + 1] = model
    elseif model == freed then
      freed = nil
    end
  end
  if #ids < want then
    if #ids == 0 then even_if_full() end
    idle_for(models, replica)
  else
    for i = 1, min(#waiting, 16) do
      if waiting[i] == freed then freed = nil end
      wake(waiting[i])
    end
  end
  if freed then wake(freed) end
  return grants, ids
end

-- The grants among `ids` that a call made under this nonce and that still hold: its reply was lost.
local function repeat_grants(ids, nonce)
  local grants = {}
  for id in string.gmatch(ids or '', '[^,]+') do
    local t = load(id)
    if t and t.st == 'executing' and string.find(t.gt, nonce .. ':', 1, true) == 1 then
      local entry = call('XRANGE', key_log(id), t.at, '+', 'COUNT', 1)[1] or { t.at .. '-' .. t.sq, { '', '', '', '' } }
      grants[#grants + 1] = describe(id, t, entry[1], entry[2][4])
    end
  end
  return grants
end

-- The same as `take`, for calls that have no record in which to note what they granted.
local function take_once(models, want, replica, worker, nonce, grant_ms, freed)
  local before = call('GET', key_taken(nonce))
  if before then return repeat_grants(before, nonce) end
  local grants, ids = take(models, want, replica, worker, nonce, grant_ms, freed)
  if #ids > 0 then call('SET', key_taken(nonce), table.concat(ids, ','), 'PX', grant_ms) end
  return grants
end
