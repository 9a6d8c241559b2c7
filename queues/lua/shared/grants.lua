local describe, expected_output, output_due, token_cost, begin, count_of_user, wake_or_note, idle_for, take, repeat_grants, take_once
do
-- The reply that describes a grant: its fields, as tasks.py (Grant) names them, in MessagePack: a reply of twenty strings takes
-- Redis longer. `start_seq`, `start`: number and data of its start event. `t.windows`, no field of the record: 1 = its model's windows
-- wait for its request to leave.
function describe(id, t, start_seq, start)
  local left = num(t.attempt_deadline)
  if left > 0 then left = math.max(left - NOW, 1) end
  return cmsgpack.pack({
    id, t.attempt, t.epoch, t.grant_token, t.model, t.queue, t.type or '', t.user, t.key_id or '', t.stream or '0', left,
      t.tries or '0', t.enqueued_at, start_seq,
    t.waiting or '0', t.readers or '', t.granted_at, start, t.traceparent or '', t.requested_model or t.model,
    t.request_id or '', t.model_omitted or '0',
    t.fallbacks and '1' or '0', t.schema or '', t.repair or '', t.windows or '0', t.max_tries or '0', t.stage or '',
    t.last_lost, -- (nil, as with most, ends the array)
  })
end

-- The user's running mean of output, in tokens; 0: none is known.
local function mean_of(t)
  if not t.mean then t.mean = num(call('GET', keys.mean_output(t.model, t.user))) end
  return t.mean
end

-- Tokens that a task is expected to write: by the user's running mean, else the model's, else what the request allows (4,096
-- at most, as nothing is known yet). Models are paced by it; what is charged is `output_due`.
function expected_output(t, model_mean)
  local asked = num(t.max_output)
  local output = mean_of(t)
  if output == 0 then output = num(model_mean) end
  if output == 0 then output = asked > 0 and math.min(asked, 4096) or 256 end
  if asked > 0 then output = math.min(output, asked) end
  return output
end

-- Tokens of output that a task should have paid for when it has written `output`: those, and what the model writes in 15 s by
-- its mean `pace` (tokens a second; 256 tokens while it is unknown), but no more than is likely to come by the user's running
-- mean and the request. Tasks pay before they write, so a user who is behind does not get all free slots at the same time; and for
-- seconds, not to the end, so it matters little how wrong the mean is. One that has outrun it pays half as far ahead.
function output_due(t, output, pace)
  local ahead, asked, likely = num(pace) * 15, num(t.max_output), mean_of(t)
  if ahead == 0 then ahead = 256 end
  if asked > 0 and (likely == 0 or asked < likely) then likely = asked end
  if likely == 0 then return output + ahead end
  if output > likely then return output + ahead / 2 end
  return math.min(output + ahead, likely)
end

-- Cost of a task in tokens, a whole number: input + 2 x output.
function token_cost(input, output)
  return math.max(math.floor(math.min(num(input), 16777216) + 2 * math.min(output, 4194304) + 0.5), 1)
end

-- How long a task is expected to hold its slot, ms: by the user's running mean, else the model's, else 50 tokens a second.
local function expected_ms(t, model_ms)
  local ms = num(call('GET', keys.mean_ms(t.model, t.user)))
  if ms == 0 then ms = num(model_ms) end
  if ms == 0 then ms = expected_output(t) * 20 end
  return ms
end

-- What a task is charged at its grant, a whole number in its model's unit: tokens = input + 2 x the output due, requests = 1,
-- slot_seconds = the ms that it is expected to run.
local function first_charge(t, lane)
  if lane.unit == 'requests' then return 1 end
  if lane.unit == 'slot_seconds' then return math.max(math.floor(expected_ms(t, lane.mean_ms) + 0.5), 1) end
  return token_cost(t.input_tokens, output_due(t, 0, lane.pace))
end

-- Begin an attempt of a task that stands in no flow now: its flow and lane are charged and move on, a slot is occupied, the lease
-- starts, the log says so. `lane`: as `eligible` gives it; `start`: start tag of the flow. `flow_stays`: more tasks wait in the flow;
-- `lane_stays`: in the lane. `grant`: the receiver: `replica`, `worker`, `nonce` of the call and `number` in it, `ms` until its first
-- renewal, the `upstream` of the worker, and whether it is a `probe` of that. `more`, `record`: further fields of the model and of the
-- record, to be stored. Returns the data of the start event.
function begin(id, t, lane, start, flow_stays, lane_stays, grant, more, record)
  local q, m, u = lane.q, t.model, t.user
  local cost, tokens, counted = first_charge(t, lane), 0, '0'
  if t.fallbacks then call('ZREM', keys.fallbacks(m), id) end
  if lane.rules then
    counted = '1'
    tokens = num(lane.rules[6]) > 0 and math.floor(num(t.input_tokens) + expected_output(t, lane.mean_output) + 0.5) or 0
    spend(m, lane.rules, tokens)
    call('SADD', keys.running(q, m), id)
    call('SADD', keys.load(q), id)
  end
  if t.limits then
    for _, of in ipairs(running_limits(t)) do call('SADD', keys.runs(of[1]), id) end
  end
  local lane_tag = whole(lane.tag + tag_step(cost, lane_weight(lane.weight)))
  call('ZADD', flow_stays and keys.flows(q, m) or keys.debts(q, m), whole(start + tag_step(cost, flow_weight(t))), u)
  if lane_stays then
    call('ZADD', keys.lanes(m), lane_tag, q)
  else
    more[#more + 1] = 'lane_tag:' .. q
    more[#more + 1] = lane_tag
  end
  call('HSET', keys.model(m), 'virtual_time', whole(math.max(lane.V, lane.moves_to)), 'lane_vtime:' .. q, whole(math.max(lane.v, start)),
    'lane_lifts:' .. q, whole(lane.lifts), 'charged:' .. q, whole(lane.charged + cost), 'used', US_TEXT,
    unpack(more))
  t.account = open_account(cost, lane.weight or '1', lane.lifts, num(lifts_of(q, m, u)), tokens, counted)

  if t.chain and not t.attempt then call('HINCRBY', keys.chain(t.chain), 'begun', '1') end
  local deadline, run = num(t.deadline), num(t.run_limit)
  if run > 0 then deadline = deadline > 0 and math.min(deadline, NOW + run) or NOW + run end
  t.state, t.attempt, t.top_seq = 'executing', whole(num(t.attempt) + 1), whole(num(t.top_seq) + 1)
  t.grant_token, t.owner, t.worker = grant.nonce .. ':' .. grant.number, grant.replica, grant.worker
  t.epoch, t.granted_at, t.attempt_deadline = new_epoch(t), NOW_TEXT, whole(deadline)
  if lane.rules and lane.rules[10] then
    windows.begin(m, lane.rules[10], id, t.epoch)
    t.windows = '1'
  end
  if grant.upstream ~= '' then
    t.upstream = grant.upstream
    record[#record + 1], record[#record + 2] = 'upstream', t.upstream
  end
  if grant.probe then
    t.probe = '1'
    record[#record + 1], record[#record + 2] = 'probe', '1'
    upstreams.begin_probe(id, t)
  end
  local lease_end = NOW + grant.ms
  call('ZADD', keys.slots(m), whole(lease_end), id)
  call('SADD', keys.busy(q, m, u), id)
  call('ZADD', keys.due(), run_instant(t, lease_end), id)
  local event_id = t.epoch .. '-' .. t.top_seq
  local repair = t.repair and t.repair ~= '1' and ',"repair":true' or ''
  local stage = t.stage and chains.in_event(t.stage) or ''
  local data =
    event_data(id, '"attempt":' .. t.attempt .. ',"model":' .. cjson.encode(t.requested_model or m) .. ',"queue":"' .. q .. '"' .. stage .. repair)
  call('XADD', keys.log(id), event_id, 'type', 'start', 'data', data)
  publish_event(t.readers, id, event_id, 'start', data, t.owner)
  call('HSET', keys.task(id), 'state', t.state, 'attempt', t.attempt, 'epoch', t.epoch, 'top_seq', t.top_seq, 'grant_token',
    t.grant_token, 'owner', t.owner, 'worker', t.worker,
    'granted_at', t.granted_at, 'attempt_deadline', t.attempt_deadline, 'account', t.account, unpack(record))
  return data
end

-- How many tasks of a user run on a model, over all queues; with `waiting` how many wait.
function count_of_user(m, u, waiting)
  local total = 0
  for _, q in ipairs(call('SMEMBERS', keys.queues())) do
    if waiting then
      total = total + call('ZCARD', keys.flow(q, m, u))
      if m == '*' then total = total + num(call('HGET', keys.aside_of(q), u)) end
    else
      total = total + call('SCARD', keys.busy(q, m, u))
    end
  end
  return total
end

-- Take a lane's turn that `eligible` found by rules, and mark those `skipped`.
local function take_turn(model, lane, skipped)
  local hash = keys.model(model)
  for _, other in ipairs(skipped or {}) do call('HSET', hash, 'lane_skipped:' .. other, '1') end
  if not lane or not lane.rules then return end
  if call('HDEL', hash, 'lane_skipped:' .. lane.q) == 1 then -- it had to stand back: lifted like one that was idle
    lane.tag, lane.lifts = lift_lane(lane.q, model)
    lane.moves_to = math.max(lane.moves_to, lane.tag)
  end
  local ahead = lane.tag - math.max(lane.moves_to, lane.V)
  if ahead > 0 then -- its reserve brought it here, out of turn: it owes for this turn alone
    lane.tag, lane.lifts = lane.tag - ahead, lane.lifts - ahead
  end
end

-- Write down a model's place in the line of models.
local function stand(model, place)
  place = whole(place)
  call('HSET', keys.model(model), 'turn', place)
  call('ZADD', keys.backlog(), 'XX', place, model)
end

-- Hand out the next task of `model`: it leaves its lane and an attempt begins, or nothing changes. One whose time to wait is
-- over, or whose record is lost, only leaves its lane: the sweep is due for it; one whose name is held stands aside; a user who
-- runs as many as he may, or whose key does, is parked. `grant`: as in `begin`, and how many `looks` at tasks there may be yet, counted down.
-- Returns its id, record, start event's data, how far the model moves in the line of models, and whether its slots are all in use
-- now; or nil, the instant (ms) from which one can start if time is in the way, and whether it is for this upstream alone, or, of a
-- task that is for a holder of permits and this is none, or the other way round, `OTHERS`.
local OTHERS = 'others'
local function grant_next(model, grant)
  while grant.looks > 0 do
    grant.looks = grant.looks - 1
    local lane, held, skipped = eligible(model)
    take_turn(model, lane, skipped)
    if not lane then return nil, held end
    grant.probe = nil
    if lane.has_breaker then
      local at, why = upstreams.state_of(model, grant.upstream)
      if at > 0 then return nil, at, true end
      grant.probe = why == 'probe'
    end
    local q = lane.q
    local flows = keys.flows(q, model)
    local u, tag, next_user = unpack(call('ZRANGE', flows, '0', '1', 'WITHSCORES'))
    local flow = keys.flow(q, model, u)
    local id, next_id = unpack(call('ZRANGE', flow, '0', '1'))
    local t = load(id)
    local cap = lane.rules and num(call('HGET', keys.model(model), 'max_running_per_user')) or 0
    local full = t and t.limits and subject_at_limit(running_limits(t))
    if not t or passed(t.wait_deadline) or passed(t.deadline) then -- (not `linger_at`: a reader may still move it)
      dequeue(id, t or { queue = q, model = model, user = u })
    elseif t.requested_model and name_cooldown_until(t) then
      dequeue(id, t)
      set_aside(id, t, name_cooldown_until(t))
    elseif cap > 0 and count_of_user(model, u) >= cap then
      park(q, model, u, tag)
    elseif full then
      park_at_limit(q, model, u, tag, full)
    elseif permits.is(model, t.type) ~= (grant.worker == permits.HOLDER) then
      return nil, nil, OTHERS
    else
      if lane.rules and num(lane.rules[6]) > 0 then
        local at = paced_ms(model, lane.rules, math.floor(num(t.input_tokens) + expected_output(t, lane.mean_output) + 0.5))
        held = at > 0 and at or nil
      end
      if held then return nil, held < FOREVER and held or nil end
      local flow_stays, lane_stays = next_id ~= nil, next_id ~= nil or next_user ~= nil
      local more = { 'waiting:' .. q, whole(lane.waiting - 1), 'drain:' .. q, drain_after_grant(lane.drain) }
      call('ZREM', flow, id)
      call('HINCRBY', keys.queue(q), 'waiting', '-1')
      count_waiting(t, '-1')
      if not flow_stays then
        call('ZREM', flows, u)
        more[5], more[6] = 'users', whole(lane.users - 1)
      end
      if not lane_stays then
        call('ZREM', keys.lanes(model), q)
        if lane.users == 1 then call('ZREM', keys.backlog(), model) end
      end
      local data = begin(id, t, lane, tag + 0, flow_stays, lane_stays, grant, more, {})
      unpark_for(t, model)
      return id, t, data, model_step(lane.mean_ms, lane.users), lane.last
    end
    if t then unpark_for(t, model) end
  end
end

-- The models of `models` ('*' alone: every model) with waiting tasks, in the order of their line, as {model, place}; and where
-- workers are shared among them, the key of the place that these served last. A model stands there at least (who was idle, or
-- could not start, saves no turns), and LEAD behind it at most (what other workers gave it is not held against it for ever).
local LEAD = 600000 * 4096 -- ten minutes of a worker
local function line_of(models)
  if #models == 1 and models[1] ~= '*' then return { { models[1], 0 } } end
  local line, last = {}, 0
  if models[1] == '*' then
    local flat = call('ZRANGE', keys.backlog(), '0', '999', 'WITHSCORES')
    for i = 1, #flat, 2 do
      if not is_reserved(flat[i]) then line[#line + 1] = { flat[i], tonumber(flat[i + 1]) } end
    end
  else
    for _, model in ipairs(models) do
      local place = call('ZSCORE', keys.backlog(), model)
      if place then line[#line + 1] = { model, tonumber(place) } end
    end
  end
  local among = redis.sha1hex(table.concat(models, '\n'))
  local shared = keys.line(among)
  for _, entry in ipairs(line) do last = math.max(last, entry[2]) end
  last = tonumber(call('GET', shared) or last)
  for _, entry in ipairs(line) do
    entry[3], entry[2] = entry[2], math.min(math.max(entry[2], last), last + LEAD)
    if entry[2] < entry[3] then stand(entry[1], entry[2]) end
  end
  table.sort(line, function(a, b)
    if a[2] ~= b[2] then return a[2] < b[2] end
    if a[3] ~= b[3] then return a[3] < b[3] end
    return a[1] < b[1]
  end)
  return line, shared
end

-- Note in `later` that a model may start its next task at an instant (ms), where time alone is in the way: {model, in how many ms,
-- 1: through the upstream of the worker that asked, it may through others; …}.
local function note_later(later, model, at, of_upstream)
  if at >= FOREVER then at = NOW + 60000 end
  later[#later + 1] = model
  later[#later + 1] = math.max(at - NOW, 1)
  later[#later + 1] = of_upstream and 1 or 0
end

-- Wake a replica for a model that can start something, or note in `later` when it can. Returns `later`.
function wake_or_note(model, later)
  local at = wake(model)
  if at then note_later(later, model, at) end
  return later
end

-- A replica has a free slot for these models: the next eligible task wakes it.
function idle_for(models, replica)
  for _, model in ipairs(models) do
    if call('ZADD', keys.idle(model), US_TEXT, replica) == 1 then call('PEXPIRE', keys.idle(model), '600000') end
  end
end

-- Take up to `want` tasks for a worker that serves `models` ({'*'}: every model), in the order of the models' line.
-- What stays unfilled is recorded, so that the next eligible task wakes this replica; what others could still start, of these
-- models or of `freed` (a model that has a slot free since this script began), wakes them. Returns the grants, their ids, and
-- `later`.
local MAX_TAKEN = 64 -- in one call: it takes time, and no other call is served meanwhile
local MAX_LOOKED_AT = 1000 -- for the same reason: tasks that may not start are looked at, too
function take(models, want, replica, worker, upstream, nonce, grant_ms, freed)
  local grants, ids, later, left = {}, {}, {}, {}
  want = math.min(want, MAX_TAKEN)
  local grant = { replica = replica, worker = worker, upstream = upstream, nonce = nonce, ms = grant_ms, looks = MAX_LOOKED_AT }
  local waiting, shared = line_of(models)
  while #ids < want and waiting[1] do
    local entry = table.remove(waiting, 1)
    local model = entry[1]
    grant.number = #ids + 1
    local id, t, start, step, full = grant_next(model, grant)
    if id then
      ids[#ids + 1] = id
      grants[#ids] = describe(id, t, t.top_seq, start)
      if shared then
        call('SET', shared, whole(entry[2]), 'EX', '3600')
        entry[2] = entry[2] + step
        stand(model, entry[2])
      end
      if full then
        if model == freed then freed = nil end
      else
        local at = #waiting + 1 -- back into the line
        while at > 1 and waiting[at - 1][2] > entry[2] do at = at - 1 end
        table.insert(waiting, at, entry)
      end
    else
      if model == freed and not start then freed = nil end
      if t then note_later(later, model, t, start) end
      if start == OTHERS then left[#left + 1] = model end
    end
  end
  if #ids < want then
    if worker ~= permits.HOLDER then idle_for(models, replica) end
  else
    for i = 1, math.min(#waiting, 16) do
      local model = waiting[i][1]
      if model == freed then freed = nil end
      wake_or_note(model, later)
    end
  end
  for _, model in ipairs(left) do
    if model == freed then freed = nil end
    wake_or_note(model, later)
  end
  if freed then wake(freed) end
  return grants, ids, later
end

-- The grants among `ids` that a call made under this nonce and that still hold: its reply was lost.
function repeat_grants(ids, nonce)
  local grants = {}
  for id in string.gmatch(ids or '', '[^,]+') do
    local t = load(id)
    if t and t.state == 'executing' and string.find(t.grant_token, nonce .. ':', 1, true) == 1 then
      if windows.waits_for(t.model, id, t.epoch) then t.windows = '1' end
      local entry = call('XRANGE', keys.log(id), t.epoch, '+', 'COUNT', 1)[1] or { t.epoch .. '-' .. t.top_seq, { '', '', '', '' } }
      grants[#grants + 1] = describe(id, t, string.match(entry[1], '%d+$'), entry[2][4])
    end
  end
  return grants
end

-- The same as `take`, for calls that have no record in which to note what they granted. The note outlives the grants, since a sweep
-- may prolong them.
function take_once(models, want, replica, worker, upstream, nonce, grant_ms, freed)
  local before = call('GET', keys.taken(nonce))
  if before then return repeat_grants(before, nonce), {} end
  local grants, ids, later = take(models, want, replica, worker, upstream, nonce, grant_ms, freed)
  if #ids > 0 then call('SET', keys.taken(nonce), table.concat(ids, ','), 'PX', whole(5 * grant_ms)) end
  return grants, later
end
end
