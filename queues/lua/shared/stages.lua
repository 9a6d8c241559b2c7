-- Stages of chains begin and end (chains.lua): a chain's task, which stands in no line then and holds no slot, enters the line of its
-- next stage's model, or its parts do; with a chain its parts end, and with a part that comes to nothing its chain.
do
-- Fields of a record that say what a stage is, and those of its attempts: another stage has its own.
local OF_STAGE = { 'type', 'route', 'template', 'input_tokens', 'max_input', 'max_output', 'answers', 'run_limit', 'stream',
  'model_omitted', 'schema', 'repair', 'price', 'fallbacks', 'fallback_after' }
local OF_ATTEMPTS = { 'requested_model', 'fallback_history', 'tries', 'first_output_at', 'history', 'throttled', 'last_lost', 'stranded_until',
  'usage', 'progress', 'begun', 'worker', 'granted_at', 'upstream', 'probe', 'wait_deadline', 'max_cost', 'parts', 'payload_bytes' }
-- Fields that a part has from its chain.
local OF_PART = { 'queue', 'model', 'requested_model', 'user', 'key_id', 'order', 'priority', 'weight', 'deadline', 'waiting',
  'request_id', 'traceparent', 'fallback_history', 'type', 'route', 'template', 'max_output', 'answers', 'run_limit', 'stream',
  'model_omitted', 'schema', 'repair',
  'price', 'fallbacks', 'fallback_after' }
local KEPT = '60000' -- of a part, behind its end, ms: for operators, and for who repeats a call

-- Parts as arguments: of each its payload, its input as estimated, and the most that may be.
local function read_parts(args, first, last)
  local parts = {}
  for i = first, last, 3 do
    local mi = num(args[i + 2]) > num(args[i + 1]) and args[i + 2] or nil
    parts[#parts + 1] = { payload = args[i], input_tokens = args[i + 1], max_input = mi }
  end
  return parts
end

-- The arguments of submit for a chain: which stage is the first (its number and name), of how many, the plan, what is needed for reading, the
-- request as it came ('': as its payload is), what the later stages may cost, how long a part's slot may stay `stopping`, and
-- the parts.
function chains.read_start(args, first, last)
  local number, name, of, plan, head, request, reserve, grace = unpack(args, first, first + 7)
  return {
    stage = number .. ' - ' .. name, stages = of, plan = plan, head = head, request = request, reserve = num(reserve), grace = grace,
    bytes = #plan + #head + #request, parts = read_parts(args, first + 8, last),
  }
end

-- The bytes of what a stage is given: of all, and of the large ones among them.
local function sizes_of(payload, parts, more)
  local sizes, all, large = { #payload, more }, 0, 0
  if parts[1] then sizes[1] = 0 end
  for _, part in ipairs(parts) do sizes[#sizes + 1] = #part.payload end
  for _, size in ipairs(sizes) do
    all = all + size
    if size >= LARGE_BODY then large = large + size end
  end
  return all, large
end

function chains.bytes_at_start(start, payload) return sizes_of(payload, start.parts, start.bytes) end

-- The most that a stage may cost, by the prices of its task and of its fallback models; of each part by itself (`max_cost`).
function chains.most_cost(t, parts, top, costs)
  local function most(one)
    local price = 0
    for _, pc in ipairs(costs) do price = math.max(price, most_cost_of(one, top, pc)) end
    return price
  end
  if not parts[1] then return most(t) end
  local sum = 0
  for _, part in ipairs(parts) do
    part.max_cost = most({ input_tokens = part.input_tokens, max_input = part.max_input, max_output = t.max_output,
      answers = t.answers, repair = t.repair })
    sum = sum + part.max_cost
  end
  return sum
end

-- The tokens that the first stage is expected to use, its input included.
function chains.expected_tokens(t, parts, mean_output)
  if not parts[1] then return num(t.input_tokens) + expected_output(t, mean_output) end
  local sum = #parts * expected_output(t, mean_output)
  for _, part in ipairs(parts) do sum = sum + num(part.input_tokens) end
  return sum
end

-- Write down what belongs to a chain as a whole.
function chains.begin(id, start)
  call('HSET', keys.chain(id), 'stages', start.stages, 'plan', start.plan, 'head', start.head, 'grace', start.grace, 'stored_bytes', whole(start.bytes))
  if start.request ~= '' then
    call('SET', keys.request(id), start.request)
    call('HSET', keys.chain(id), 'request_bytes', whole(#start.request))
  end
end

-- Queue the parts of a stage. `t`: the record of the chain, with what is said of the stage; `wd`: when their wait is over.
function chains.queue_parts(id, t, parts, wd)
  local number, _, name = chains.stage_of(t.stage)
  local of_key, of_user = string.match(t.limits or '', '^r(%d+) (%d+)')
  local lm = of_key and 'r' .. of_key .. ' ' .. of_user .. ' 0 0' or nil
  call('HSET', keys.chain(id), 'todo', whole(#parts), 'live', whole(#parts + 1), 'begun', '0') -- live: and the chain itself
  count_waiting(t, '1')
  for i, told in ipairs(parts) do
    local part, fields = {}, {}
    local part_id = chains.part_id(id, number, i - 1)
    for _, field in ipairs(OF_PART) do part[field] = t[field] end
    part.state, part.enqueued_at, part.ttl, part.chain, part.limits, part.wait_deadline = 'queued', NOW_TEXT, KEPT, id, lm, wd
    part.stage, part.payload_bytes, part.input_tokens = number .. ' ' .. whole(i - 1) .. ' ' .. name, whole(#told.payload),
      told.input_tokens
    part.max_input, part.max_cost = told.max_input, told.max_cost and whole(told.max_cost) or nil
    for field, value in pairs(part) do fields[#fields + 1], fields[#fields + 2] = field, value end
    call('SET', keys.payload(part_id), told.payload)
    call('HSET', keys.task(part_id), unpack(fields))
    call('ZADD', keys.recent(), NOW_TEXT, part_id)
    call('ZADD', keys.due(), wait_instant(part), part_id)
    enqueue(part_id, part)
  end
end

-- Forget of a record what its stage was.
local function leave_stage(id, t)
  drop_payload(id, t.payload_bytes, nil, t.user)
  if t.parts then count_waiting(t, '-1') end
  local gone = {}
  for _, names in ipairs({ OF_STAGE, OF_ATTEMPTS }) do
    for _, name in ipairs(names) do
      if t[name] then gone[#gone + 1] = name end
      t[name] = nil
    end
  end
  if gone[1] then call('HDEL', keys.task(id), unpack(gone)) end
  t.stage_entered_at, t.attempts_before, t.mean = NOW_TEXT, t.attempt or '0', nil
end

-- The arguments of `advance_chain` for the next stage, behind 'entry' in its arguments.
function chains.read_entry(args, at)
  local number, name, model, queue, payload, wait_ms, quota, reserve, count = unpack(args, at, at + 8)
  local first_field = at + 9 + 3 * count
  local entry = {
    stage = number .. ' - ' .. name, model = model, queue = queue, payload = payload, wait_ms = num(wait_ms), quota = quota,
    reserve = num(reserve), parts = read_parts(args, at + 9, first_field - 1), fields = {},
  }
  local wanted = {}
  for _, field in ipairs(OF_STAGE) do wanted[field] = true end
  for i = first_field, #args, 2 do
    if wanted[args[i]] then entry.fields[args[i]] = args[i + 1] end
  end
  return entry
end

-- What entering a stage would be: its fields, and those of its model, or of a fallback if its own starts nothing. nil: no worker
-- offers any. Changes nothing.
local function plan_entry(entry)
  local asked, s = entry.model, {}
  for field, value in pairs(entry.fields) do s[field] = value end
  local m = scheduled_as(asked)
  s.model, s.requested_model = m or asked, m and m ~= asked and asked or nil
  local offered = m ~= nil
  if s.fallbacks and (not m or blocked_until(asked) > NOW + num(s.fallback_after)) then
    local i = next_open_fallback(s) or not m and next_offered_fallback(s)
    if i then
      choose_fallback(s, i, true, blocked_by_code(asked))
      offered = true
    end
  end
  return s, offered
end

-- Whether a chain may enter a stage; then what is held for it grows as it must, where it has a quota, and is returned as the field
-- `reserved_credits`.
-- `spent`: what its stages cost until then. Else why not, as `advance` replies it; nothing has changed then.
function chains.admit(t, entry, spent)
  local s, offered = plan_entry(entry)
  if not offered and t.waiting == '1' then return nil, { 'no_worker' } end
  if entry.quota == '' then return t.reserved_credits end
  local most = chains.most_cost(s, entry.parts, num(call('HGET', keys.model(s.model), 'longest_output')), costs_of(entry.fields))
  entry.max_cost = most
  local needed = spent + most + entry.reserve
  if needed <= (reserved_by(t.reserved_credits) or 0) then return t.reserved_credits end
  return reserve_more(t.user, t.reserved_credits, entry.quota, needed)
end

-- Let a chain enter a stage: it stands in no line, and holds no slot. It keeps its order. Returns the model that it waits for now.
function chains.enter(id, t, entry, qt)
  leave_stage(id, t)
  local key, parts = keys.task(id), entry.parts
  local s = plan_entry(entry)
  local longest = num(call('HGET', keys.queue(entry.queue), 'max_wait_ms'))
  local wait_ms = entry.wait_ms
  if longest > 0 then wait_ms = wait_ms > 0 and math.min(wait_ms, longest) or longest end
  local wd = wait_ms > 0 and whole(NOW + wait_ms) or nil
  s.state, s.queue, s.stage, s.reserved_credits, s.stage_entered_at, s.attempts_before, s.grant_token, s.owner,
    s.attempt_deadline = 'queued', entry.queue, entry.stage, qt, t.stage_entered_at, t.attempts_before, '', '', '0'
  if parts[1] then
    s.parts = whole(#parts)
  else
    s.wait_deadline, s.payload_bytes = wd, whole(#entry.payload)
    s.max_cost = entry.max_cost and whole(entry.max_cost) or nil
  end
  local fields = {}
  for field, value in pairs(s) do
    t[field] = value
    fields[#fields + 1], fields[#fields + 2] = field, value
  end
  call('HSET', key, unpack(fields))
  call('ZADD', keys.models(), NOW_TEXT, t.model)
  call('HSET', keys.model(t.model), 'wide', WIDE)
  call('ZADD', keys.due(), wait_instant(t), id)
  if parts[1] then
    for _, part in ipairs(parts) do chains.count_bytes(t.user, 0, #part.payload) end
    chains.queue_parts(id, t, parts, wd)
  else
    chains.count_bytes(t.user, 0, #entry.payload)
    call('SET', keys.payload(id), entry.payload)
    enqueue(id, t)
  end
  return t.requested_model or t.model
end

-- A stage could not begin: the chain, which stands in no line and holds no slot, is in it for its end.
function chains.fail_stage(id, t, number, name, model, queue)
  leave_stage(id, t)
  t.stage = number .. ' - ' .. name
  if model ~= '' then t.model = model end
  if queue ~= '' then t.queue = queue end
  call('HSET', keys.task(id), 'stage', t.stage, 'model', t.model, 'queue', t.queue, 'stage_entered_at', t.stage_entered_at,
    'attempts_before', t.attempts_before)
end

-- What an attempt costs that has answered, with the answer before, if that was repaired.
function chains.cost_of_attempt(t, used)
  local input, output, more = unpack(repairs.used_at_last(used, t.usage))
  local _, before = repairs.used_in_all(t.repair, used)
  if not t.price then return before end
  local cached, reasoning = string.match(more, '^(%S+) (%S+)')
  return cost_of(t.price, input, output, cached, reasoning) + before
end

-- Keep what a stage or part came to, and what it used. `by`: the bytes that its chain takes until now.
function chains.keep_result(id, t, result, used, by)
  local number, part = chains.stage_of(t.stage)
  local place = part == '-' and number or number .. '.' .. part
  local all = repairs.used_in_all(t.repair, used)
  call('HSET', keys.chain(id), 'result:' .. place, result, 'usage:' .. place, table.concat(all, ' '),
    'stored_bytes', whole(by + #result))
  chains.count_bytes(t.user, by, by + #result)
end

-- Accounts of tasks that ended with another one, in this call, for those who count.
local related = {}

function chains.add_related_end(id, t) related[#related + 1] = account_of_end(t, id) end

function chains.related_ends()
  local told = related
  related = {}
  return told
end

-- A chain has ended: what was needed to continue is removed.
function chains.forget_plan(id, t)
  local key = keys.chain(id)
  local by = num(call('HGET', key, 'stored_bytes'))
  call('HDEL', key, 'plan', 'stored_bytes')
  chains.count_bytes(t.user, by, 0)
end

-- It ends while parts of its stage may be under way: these end, too. Returns whether one of them holds a slot still: then the chain is
-- closed when that is free (endings.lua).
function chains.end_parts(id, t)
  local number, key = chains.stage_of(t.stage), keys.chain(id)
  local stop_until = NOW + num(call('HGET', key, 'grace'))
  count_waiting(t, '-1')
  for i = 0, t.parts - 1 do
    local part_id = chains.part_id(id, number, i)
    local part = load(part_id)
    if part and (part.state == 'queued' or part.state == 'executing') then
      local data = event_data(part_id, '"by":"chain"')
      if part.state == 'queued' then
        end_waiting(part_id, part, 'cancelled', 'cancelled', data, 'CANCELLED')
      else
        end_task(part_id, part, 'cancelled', 'cancelled', data, 'CANCELLED', '', nil, stop_until)
        request_stop(part_id, part, 'client')
      end
      chains.add_related_end(part_id, part)
    end
  end
  return call('HINCRBY', key, 'live', '-1') > 0
end

-- A part has ended and comes to nothing: so does its chain, with the same end.
function chains.fail_with(part, state, kind, data, code)
  local id = part.chain
  local t = load(id)
  if not t or t.state ~= 'queued' or not t.parts then return end
  local rest = string.match(data, '^{"taskId":"[^"]*","ts":%d+,(.*)}$') or '"error":"A part failed","code":' .. cjson.encode(code)
  end_waiting(id, t, state, kind, chains.end_data(id, t, state, rest), code)
  chains.add_related_end(id, t)
end
end
