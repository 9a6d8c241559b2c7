-- Chains: several stages under one task id (chains.py). The record of the chain's task has its current stage (`stage`: its number, the part
-- or -, its name). In a stage with several parts, that task is in no line, and `parts` is their number. Each part is a task of its own, whose
-- field `chain` is the chain's id. Data of the whole chain are in a hash (keys.py, CHAIN); its `stored_bytes` count as stored payload
-- until the chain ends.
local chains = {}
local KEPT = 60000 -- ms; how long an ended part is kept, for operators and repeated calls
-- Fields of a record that belong to a stage, and to its attempts: the next stage has its own.
local OF_STAGE = { 'type', 'route', 'template', 'input_tokens', 'max_input', 'max_output', 'answers', 'run_limit', 'stream', 'model_omitted', 'schema',
  'repair', 'price', 'fallbacks', 'fallback_after', 'parts', 'part_inputs' }
local OF_ATTEMPTS = { 'requested_model', 'fallback_history', 'tries', 'first_output_at', 'history', 'throttled', 'last_lost', 'stranded_until', 'used',
  'used_before', 'cost_before', 'redone', 'progress', 'begun', 'worker', 'granted_at', 'upstream', 'probe', 'wait_deadline', 'max_cost', 'account',
  'cost', 'report_sent' }
-- Fields that a part gets from its chain.
local OF_PART = { 'queue', 'model', 'requested_model', 'user', 'key_id', 'priority', 'weight', 'waiting', 'request_id', 'traceparent', 'type', 'route',
  'template', 'max_output', 'answers', 'run_limit', 'stream', 'model_omitted', 'schema', 'repair', 'price', 'fallbacks', 'fallback_after', 'limits' }

-- Return the task id of a part; as in chains.py.
local function part_id(id, number, part) return string.format('%s.%s.%02d', id, number, part) end

-- Return number, part (or -) and name of a field `stage`.
local function stage_of(stage) return string.match(stage, '^(%d+) (%S+) (.*)$') end

-- Set the stage that a task is in: its events name it.
local function set_stage(task, stage)
  local number, _, name = stage_of(stage)
  task.stage = stage
  task.event_fields = ',"stage":' .. cjson.encode(name) .. ',"index":' .. whole(number + 1) -- from 1, as in events `stage`
  task.failure_fields = ',"failedStage":' .. cjson.encode(name)
end

-- Queue the parts of a stage. `payloads_at`: of the first one's payload in `args`.
local function queue_parts(task, args, payloads_at, wait_deadline)
  local number, _, name = stage_of(task.stage)
  call('HSET', keys.chain(task.id), 'todo', whole(task.parts), 'live', whole(task.parts + 1), 'begun', '0') -- live: plus the chain itself
  limits.count_waiting(task, 1)
  for i = 1, task.parts do
    local id, spec = part_id(task.id, number, i - 1), {}
    for _, field in ipairs(OF_PART) do spec[field] = task[field] or nil end
    spec.id, spec.chain, spec.ttl, spec.part_limits, spec.extras = id, task.id, KEPT, task.limits or nil, true
    spec.input_tokens, spec.max_input = unpack(task.part_inputs[i])
    local part, payload = records.new(id, cmsgpack.pack(spec)), args[payloads_at + i - 1]
    part.state, part.enqueued_at, part.order, part.deadline, part.wait_deadline = 'queued', NOW, task.order, task.deadline, wait_deadline
    part.fallback_history, part.max_cost = task.fallback_history, task.part_costs and task.part_costs[i]
    set_stage(part, number .. ' ' .. whole(i - 1) .. ' ' .. name)
    records.create(part)
    payloads.store(part, payload)
    call('ZADD', keys.due(), retrying.wait_instant(part), id)
    lanes.enqueue(part)
  end
end

hooks.attach('admit', 'chain_start', function(task, ask)
  local sizes = { #ask.args[4] + #ask.args[5] + #ask.args[6] }
  for i = 7, #ask.args do sizes[#sizes + 1] = #ask.args[i] end
  ask.sizes = sizes
end)

hooks.attach('accept', 'chain_start', function(task, ask)
  local start, plan, head, request = task.chain_start, unpack(ask.args, 4, 6)
  local key, bytes = keys.chain(task.id), #plan + #head + #request
  call('HSET', key, 'stages', whole(start.of), 'plan', plan, 'head', head, 'grace', whole(start.grace_ms), 'stored_bytes', whole(bytes))
  if request ~= '' then
    call('SET', keys.request(task.id), request)
    call('HSET', key, 'request_bytes', whole(#request))
  end
  set_stage(task, task.stage)
  if task.quota and not task.parts then task.max_cost = credits.most_cost(task) end
end)

hooks.attach('enqueue', 'parts', function(task, ask)
  payloads.drop(task)
  queue_parts(task, ask.args, 7, task.wait_deadline)
  task.wait_deadline = nil
  return true
end)

hooks.attach('place', 'parts', function(task)
  local number = stage_of(task.stage)
  for i = 0, task.parts - 1 do
    local part = records.load(part_id(task.id, number, i))
    if part and part.state == 'queued' then return placing.place(part) end
  end
end)

hooks.attach('granted', 'chain', function(task)
  if task.attempt > 1 then return end
  call('HINCRBY', keys.chain(task.chain), 'begun', '1')
  local chain = records.load(task.chain)
  if chain and chain.charge then -- it has done work
    chain.tokens_used = chain.tokens_used or 0
    records.save(chain)
  end
end)

-- Charge the use of a part to the limits of its chain.
hooks.attach('settled', 'chain', function(task, used)
  local chain = records.load(task.chain)
  if not chain or not chain.charge then return end
  if used and used.input and used.output then limits.add(chain, used.input + used.output) end
end)

local function stored_bytes(id) return num(call('HGET', keys.chain(id), 'stored_bytes')) end

-- End the parts of a chain that has ended. Return whether a part still holds a slot: then the chain is closed when that slot is free.
local function end_parts(task)
  local number, key = stage_of(task.stage), keys.chain(task.id)
  local stop_until = NOW + num(call('HGET', key, 'grace'))
  limits.count_waiting(task, -1)
  for i = 0, task.parts - 1 do
    local part = records.load(part_id(task.id, number, i))
    if part and (part.state == 'queued' or part.state == 'executing') then
      local finish = { state = 'cancelled', kind = 'cancelled', data = event_data(part.id, '"by":"chain"'), code = 'CANCELLED' }
      if part.state == 'queued' then
        ending.finish_waiting(part, finish)
      else
        ending.finish(part, finish, { stop_until = stop_until })
        ending.request_stop(part, 'client')
      end
      ending.add_related(part)
    end
  end
  return call('HINCRBY', key, 'live', '-1') > 0
end

-- A part failed or was cancelled: end its chain in the same way.
local function fail_with(part, finish)
  local task = records.load(part.chain)
  if not task or task.state ~= 'queued' or not task.parts then return end
  local rest = string.match(finish.data, '^{"taskId":"[^"]*","ts":%d+,(.*)}$') or '"error":"A part failed","code":' .. cjson.encode(finish.code)
  ending.finish_waiting(task, { state = finish.state, kind = finish.kind, code = finish.code, data = event_data(task.id, rest) })
  ending.add_related(task)
end

hooks.attach('finishes', 'chain', function(_, ask)
  if ask.state == 'completed' then error('a part of a chain completes by advance') end
end)

hooks.attach('ended', 'stage', function(task, finish)
  if task.chain then
    if finish.state ~= 'completed' then fail_with(task, finish) end
    return
  end
  payloads.change(task.user, stored_bytes(task.id), 0)
  call('HDEL', keys.chain(task.id), 'plan', 'stored_bytes')
  if task.parts then task.parts_run = end_parts(task) end
end)

-- Add to the cost of a chain. Return the sum.
local function spend(id, cost)
  if cost == 0 then return num(call('HGET', keys.chain(id), 'spent')) end
  return call('HINCRBY', keys.chain(id), 'spent', whole(cost))
end

hooks.attach('closed', 'stage', function(task)
  if task.chain then
    if task.cost then spend(task.chain, task.cost) end
    if call('HINCRBY', keys.chain(task.chain), 'live', '-1') == 0 then
      local chain = records.load(task.chain)
      if chain then ending.close(chain) end
    end
    return
  end
  local spent = spend(task.id, not task.parts and task.cost or 0)
  if task.reserved then task.paid = credits.settle(task.user, task.reserved, spent) end
  if task.parts then -- each part has its own usage record
    task.record_as = ((task.paid or '') ~= '' or task.webhooks) and 'charge' or 'nothing'
  end
  task.more_bytes = (task.more_bytes or 0) + num(call('HSTRLEN', keys.chain(task.id), 'head'))
end)

-- Record a stage that has completed, while its chain continues.
local function record_stage(task)
  local run = {}
  for field, value in pairs(task) do run[field] = value end
  run.ended_at, run.state, run.code, run.unannounced, run.cost, run.paid = NOW, 'completed', '', true, task.cost, nil
  outbox.record(task, run)
end

-- Remove the fields of a stage from a record.
local function leave_stage(task)
  payloads.drop(task)
  if task.parts then limits.count_waiting(task, -1) end
  for _, field in ipairs(OF_ATTEMPTS) do task[field] = nil end
  for _, field in ipairs(OF_STAGE) do task[field] = false end
  task.stage_entered_at, task.attempts_before = NOW, task.attempt or 0
end

-- Move a chain that is in no line and holds no slot to its next stage. It keeps its order.
local function enter(task, entry, args, at)
  leave_stage(task)
  for field, value in pairs(entry.fields) do task[field] = value end
  task.wait_ms = entry.fields.wait_ms or nil
  set_stage(task, entry.stage)
  local asked = task.model
  local name = waking.scheduled_as(asked)
  if name and name ~= asked then task.model, task.requested_model = name, asked end
  local move = hooks.first('route', task, {})
  if move then move() end
  local longest = models.queue(task.queue).max_wait_ms or 0
  local wait_ms = task.wait_ms or 0
  if longest > 0 then wait_ms = wait_ms > 0 and math.min(wait_ms, longest) or longest end
  local wait_deadline = wait_ms > 0 and NOW + wait_ms or nil
  task.state, task.token, task.owner, task.attempt_deadline = 'queued', '', nil, nil
  models.touch(task.model, models.get(task.model))
  if task.parts then
    for i = 0, task.parts - 1 do payloads.change(task.user, 0, #args[at + i]) end
    queue_parts(task, args, at, wait_deadline)
  else
    task.wait_deadline = wait_deadline
    payloads.change(task.user, 0, #args[at])
    payloads.store(task, args[at])
    lanes.enqueue(task)
  end
  call('ZADD', keys.due(), retrying.wait_instant(task), task.id)
  records.save(task)
  return task.requested_model or task.model
end

-- Return why a chain cannot enter its next stage, as in the reply of `advance`; then nothing has changed. Otherwise increase its reservation
-- as needed.
local function admit(task, entry, spent)
  local one = setmetatable({ model = entry.fields.model, user = task.user, extras = true }, { __index = entry.fields })
  local name = waking.scheduled_as(one.model)
  local move = one.fallbacks and hooks.first('route', one, {})
  if not name and not move and task.waiting then return { outcome = 'no_worker' } end
  if not entry.quota then return nil end
  one.model = name or one.model
  local most = credits.most_cost(one) or 0
  entry.fields.max_cost, entry.fields.part_costs = not one.parts and most or nil, one.part_costs
  local why = credits.reserve_more(task, entry.quota, spent + most + entry.reserve)
  if not why then return nil end
  why.outcome, why.rejected = why.rejected, nil
  return why
end

-- Return the usage of a stage as stored: of both answers, if one was repaired.
local function used_in_all(task, used)
  local all = {}
  for _, one in ipairs({ used, task.used_before or {} }) do
    for name, value in pairs(one) do
      all[name] = value == true or type(value) == 'number' and value + (all[name] or 0) or value
    end
  end
  return all
end

-- advance: complete a stage of a chain, or a part of one, begin what follows, and take tasks for the freed slot
-- args      id, epoch and token of the grant; seq: number of the first event (0: the caller is not the log's writer); used: tokens, as far as they
--           are known; max_bytes: limit of the chain's plan, head and results; kinds: types of the attempt's last events; chain_kinds: types of
--           the events that follow in the chain's log, if the chain continues; arguments of granting.take; and the next step: none | entry: the
--           next stage {stage, fields of the record, quota, reserve} | finish: state, code, kind of the terminal event, and stage, model and
--           queue of a stage that could not begin
-- strings   the result of the stage or part; the data of these events; the payload of the next stage, or of each of its parts, or the data of the
--           terminal event
-- returns   {outcome, event_id: the first that it wrote to the chain's log, top, later, model that the stage waits for, …, ended}, and grants;
--           outcomes: see chains.py (Advanced). A repeated call returns the same, until the chain has advanced further.
script('advance', 'allow-oom', function(ask, args)
  local task, grants, later = records.load(ask.id), {}, {}
  local function take(freed)
    if ask.want > 0 then
      grants, later = granting.take_once(ask, freed)
    elseif freed then
      waking.wake(freed, later)
    end
  end
  local current = task and task.epoch == ask.epoch and task.token == ask.token
  if not current or task.state ~= 'executing' then
    local freed = current and ending.release(task) and task.model or nil
    if freed then
      ending.settle(task, ask.used, false)
      if task.ended_at then
        task.used = ask.used
        ending.close(task)
      end
    end
    take(freed)
    if freed then waking.wake_elsewhere(task) end
    local before = task and task.advanced
    if before and before.nonce == ask.nonce then
      before.later, before.nonce = later, nil
      return before, unpack(grants)
    end
    return { outcome = current and 'late' or 'stale', later = later }, unpack(grants)
  end

  local top = log.close(task)
  if ask.seq > top + 1 then return { outcome = 'hole', top = top } end
  local chain = task.chain and records.load(task.chain) or task
  local key, part = keys.chain(chain.id), task.chain ~= nil
  local bytes, todo, spent, of_request = unpack(call('HMGET', key, 'stored_bytes', 'todo', 'spent', 'request_bytes'))
  local last = not part or num(todo) <= 1
  if last and not ask.entry and not ask.finish then return { outcome = 'next' } end
  if num(bytes) - num(of_request) + #args[2] > ask.max_bytes then return { outcome = 'too_large' } end
  task.used = ask.used
  if last and ask.entry then
    local state = task.state
    task.state = 'completed'
    local cost = credits.cost(task)
    task.state = state
    local why = admit(chain, ask.entry, num(spent) + cost)
    if why then return why end
  end

  local freed, queue = task.model, task.queue
  ending.release(task)
  local own = ending.log_last(task, ask.seq, ask.kinds, args, ask.replica, 2)
  ending.settle(task, ask.used, true)
  hooks.each('attempted', task, nil)
  local number, at = stage_of(task.stage)
  local place = part and number .. '.' .. select(2, stage_of(task.stage)) or number
  call('HSET', key, 'result:' .. place, args[2], 'usage:' .. place, cmsgpack.pack(used_in_all(task, ask.used)), 'stored_bytes',
    whole(num(bytes) + #args[2]))
  payloads.change(task.user, num(bytes), num(bytes) + #args[2])

  local reply = { outcome = 'waits' }
  at = 3 + #ask.kinds
  if part then
    call('HINCRBY', key, 'todo', '-1')
    local finish = { state = 'completed', kind = 'done', data = event_data(task.id, '"result":null'), nonce = ask.nonce }
    ending.finish(task, finish, { epoch = own, used = ask.used })
    own = nil
  end
  if last then
    local epoch, event_id = own or granting.new_epoch(chain), nil
    for i, kind in ipairs(ask.chain_kinds) do
      event_id = event_id or log.add(chain, epoch, kind, args[at + i - 1], ask.replica)
      if i > 1 then log.add(chain, epoch, kind, args[at + i - 1], ask.replica) end
    end
    chain.epoch = epoch
    at = at + #ask.chain_kinds
    local function complete_stage()
      if part then return end
      task.state = 'completed'
      task.cost = task.price and credits.cost(task) or nil
      record_stage(task)
      if task.cost then spend(task.id, task.cost) end
    end
    if ask.entry then
      complete_stage()
      reply = { outcome = 'moved', event_id = event_id, model = enter(chain, ask.entry, args, at) }
    else
      local finish = ask.finish
      finish.data, finish.nonce = args[at], ask.nonce
      if part then call('ZREM', keys.due(), chain.id) end
      if finish.stage then
        complete_stage()
        leave_stage(chain)
        set_stage(chain, finish.stage)
        chain.model, chain.queue = finish.model or chain.model, finish.queue or chain.queue
      end
      local ended = ending.finish(chain, finish, { epoch = epoch, except = ask.replica, used = not finish.stage and not part and ask.used or nil })
      if part then ending.add_related(chain) end
      reply = { outcome = 'ended', event_id = event_id or ended }
    end
    records.save(chain)
  end
  task.advanced = { nonce = ask.nonce, outcome = reply.outcome, event_id = reply.event_id, model = reply.model }
  records.save(task)

  take(freed)
  if reply.outcome == 'moved' and chain.model ~= freed then waking.wake(chain.model) end
  waking.wake_elsewhere({ queue = queue, model = freed })
  reply.later, reply.ended = later, ending.related()
  return reply, unpack(grants)
end)

-- read_chain: return a snapshot of a chain
-- args      id; contents: with its plan and the results
-- returns   {known, state, stage, of: number of stages, parts of this stage (0: it has none), begun: parts that were granted, done: completed
--           parts, used: stage or part -> tokens; results: stages and parts with a result}, and its plan, its head, and these results
script('read_chain', 'no-writes', function(ask)
  local task = records.load(ask.id)
  if not task or not task.stage or task.chain then return { known = false } end
  local flat, fields = call('HGETALL', keys.chain(ask.id)), {}
  local used, results, found = {}, {}, {}
  for i = 1, #flat, 2 do
    local kind, place = string.match(flat[i], '^(%a+):(.*)$')
    if kind == 'usage' then
      used[place] = cmsgpack.unpack(flat[i + 1])
    elseif kind == 'result' then
      results[#results + 1] = place
      found[#found + 1] = ask.contents and flat[i + 1] or ''
    else
      fields[flat[i]] = flat[i + 1]
    end
  end
  local parts = task.parts or 0
  return {
    known = true, state = task.state, stage = task.stage, of = num(fields.stages), parts = parts, begun = parts > 0 and num(fields.begun) or 0,
    done = parts > 0 and parts - num(fields.todo) or 0, used = used, results = results,
  }, ask.contents and fields.plan or '', fields.head or '', unpack(found)
end)

return chains
