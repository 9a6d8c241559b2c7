local blocked_until, cooldown_of, blocked_by_code, next_open_fallback, next_offered_fallback, costs_of, choose_fallback, fields_after_fallback,
  move_to_fallback, note_moved_to_fallback, sweep_fallbacks, fallbacks_exhausted
do
-- Tasks that may fall back to another model do so in the order of their field `fallbacks`, before any output was seen: when an attempt
-- failed, and while their own model starts nothing: no worker offers it, it is paused, the breakers of its upstreams are open, or for
-- longer than they wait for it (`fallback_after`) it is held or paced. What they were charged is closed before; they keep their age,
-- their limits and what they are held of a quota, which is the
-- most that any of the models may cost. A model that failed a task is not asked again; one that only did not start it, last.
local parse_fallbacks = memoize(function(text)
  local list = {}
  for line in string.gmatch(text, '[^\n]+') do
    local name, price = string.match(line, '^([^\t]*)\t(.*)$')
    list[#list + 1] = { name, price }
  end
  return list
end)

-- The instant (ms) until which no task starts that asks for this model, whatever ends before; 0: one may; FOREVER: no worker offers it, it
-- is paused, or its breakers are open.
function blocked_until(name)
  local m = scheduled_as(name)
  if not m then return FOREVER end
  local rules = call('HMGET', keys.model(m), unpack(ALL_RULES))
  local at = paced_until(m, rules, 1)
  if at < FOREVER then at = math.ceil(at / 1000) end
  if rules[9] == '2' then
    local from, why = upstreams.blocked_until(m)
    if from > 0 then at = why == 'cooldown' and math.max(at, from) or FOREVER end
  end
  if m ~= name then at = math.max(at, name_cooldown_until({ requested_model = name }) or 0) end
  return at
end

-- The instant (ms) until which the providers of a model take no task that asks for it; 0: they do, or it is not known.
function cooldown_of(name)
  local m = scheduled_as(name)
  if not m then return 0 end
  local s = call('HMGET', keys.model(m), 'cooldown_until', 'upstream_state')
  local at = num(s[1])
  if s[2] == '2' then
    local from, why = upstreams.blocked_until(m)
    if why == 'cooldown' then at = math.max(at, from) end
  end
  if m ~= name then at = math.max(at, name_cooldown_until({ requested_model = name }) or 0) end
  return at > NOW and at or 0
end

local UNAVAILABLE = { no_worker = true, model_paused = true, breaker_open = true, cooldown = true }

-- Why nothing starts that asks for this model: 'no_worker', 'model_paused', 'breaker_open' or 'cooldown' (or a rate limit).
function blocked_by_code(name)
  local m = scheduled_as(name)
  if not m then return 'no_worker' end
  local s = call('HMGET', keys.model(m), 'paused', 'upstream_state')
  if s[1] == '1' then return 'model_paused' end
  if s[2] == '2' then
    local from, why = upstreams.blocked_until(m)
    if from > 0 and why ~= 'cooldown' then return 'breaker_open' end
  end
  return 'cooldown'
end

-- The models that a task left with this one behind them, the last ten.
local function moves(t, why)
  local all = {}
  for line in string.gmatch(t.fallback_history or '', '[^\n]+') do all[#all + 1] = line end
  all[#all + 1] = (t.requested_model or t.model) .. '\t' .. NOW_TEXT .. '\t' .. string.gsub(why, '%c', ' ')
  return table.concat(all, '\n', math.max(#all - 9, 1))
end

-- Which of the fallback models of a task starts it in time: the number in its list; nil: none. `until_of`: `blocked_until`, or
-- one that looks at each model once.
function next_open_fallback(t, until_of)
  for i, one in ipairs(parse_fallbacks(t.fallbacks)) do
    if (until_of or blocked_until)(one[1]) <= NOW + num(t.fallback_after) then return i end
  end
end

-- The first of them that a worker offers, for a task whose own model no worker offers.
function next_offered_fallback(t)
  for i, one in ipairs(parse_fallbacks(t.fallbacks)) do
    if scheduled_as(one[1]) then return i end
  end
end

-- What a task costs, on its own model and on its fallback models: those prices that are set.
function costs_of(t)
  local costs = {}
  if t.price then costs[1] = t.price end
  for _, one in ipairs(t.fallbacks and parse_fallbacks(t.fallbacks) or {}) do
    if one[2] ~= '' then costs[#costs + 1] = one[2] end
  end
  return costs
end

-- Let a task, which stands in no line, be one of the i-th model of its list. `again`: the one that it comes from goes to the end of
-- the list, else it is struck off. `why`: the failure code of its attempt, or what `blocked_by_code` says.
function choose_fallback(t, i, again, why)
  t.fallback_history = moves(t, why)
  local list, rest = parse_fallbacks(t.fallbacks), {}
  local function add(one) rest[#rest + 1] = one[1] .. '\t' .. one[2] end
  for j = i + 1, #list do add(list[j]) end
  for j = 1, i - 1 do add(list[j]) end
  if again then add({ t.requested_model or t.model, t.price or '' }) end
  local name = list[i][1]
  t.model = scheduled_as(name) or name
  t.requested_model = t.model ~= name and name or nil
  t.price = list[i][2] ~= '' and list[i][2] or nil
  t.fallbacks = #rest > 0 and table.concat(rest, '\n') or nil
  t.mean = nil
end

-- The fields of a record that a task was submitted with, from `first` on; `before`: its `fallbacks` then, as it may have fallen back immediately.
function fields_after_fallback(args, first, t, before)
  if t.fallbacks == before then return unpack(args, first) end
  local fields = {}
  for i = first, #args, 2 do
    if args[i] ~= 'fallbacks' and args[i] ~= 'price' then fields[#fields + 1], fields[#fields + 2] = args[i], args[i + 1] end
  end
  for _, name in ipairs({ 'fallbacks', 'price', 'fallback_history' }) do
    if t[name] then fields[#fields + 1], fields[#fields + 2] = name, t[name] end
  end
  return unpack(fields)
end

-- The same of a task that has a record.
function move_to_fallback(id, t, i, again, why)
  choose_fallback(t, i, again, why)
  local key = keys.task(id)
  call('HSET', key, 'model', t.model)
  for _, field in ipairs({ 'requested_model', 'price', 'fallbacks', 'fallback_history' }) do
    if t[field] then call('HSET', key, field, t[field]) else call('HDEL', key, field) end
  end
  call('ZADD', keys.models(), NOW_TEXT, t.model)
  call('HSET', keys.model(t.model), 'wide', WIDE)
end

-- Count a task that fell back, by both models and the reason.
function note_moved_to_fallback(told, from, t)
  local is_unavailable = UNAVAILABLE[string.match(t.fallback_history, '([^\t]*)$')]
  local pair = from .. '\n' .. (t.requested_model or t.model) .. '\n' .. (is_unavailable and 'unavailable' or 'failed')
  told[pair] = (told[pair] or 0) + 1
end

-- Move tasks that wait for a model that starts nothing: of some models, and `most` tasks at most, in the order in which they
-- came. `told`: what fell back elsewhere. Returns whether to sweep again immediately, as some moved and not all were looked at; and of
-- each pair of models {from, to and why, number, …}.
function sweep_fallbacks(most, told)
  local moved, more, woken, known = 0, false, {}, {}
  local function until_of(name)
    if not known[name] then known[name] = blocked_until(name) end
    return known[name]
  end
  for _, m in ipairs(call('SRANDMEMBER', keys.fallback_models(), '16') or {}) do
    local line = keys.fallbacks(m)
    local cursor = call('HGET', keys.model(m), 'fallback_cursor') or '-inf'
    local ids, room, before = {}, most - moved, moved
    if call('EXISTS', line) == 0 then
      call('SREM', keys.fallback_models(), m)
    elseif m == '*' or until_of(m) > NOW then
      ids = call('ZRANGEBYSCORE', line, cursor, '+inf', 'WITHSCORES', 'LIMIT', '0', whole(room))
    end
    local last = cursor
    for i = 1, #ids, 2 do
      local id, t = ids[i], load(ids[i])
      last = '(' .. ids[i + 1]
      if not t or t.state ~= 'queued' or not t.fallbacks then
        call('ZREM', line, id)
      elseif until_of(t.requested_model or t.model) > NOW + num(t.fallback_after) then
        local at = next_open_fallback(t, until_of)
        if at then
          local from = t.requested_model or t.model
          dequeue(id, t)
          move_to_fallback(id, t, at, true, blocked_by_code(from))
          enqueue(id, t)
          moved, woken[t.model] = moved + 1, true
          note_moved_to_fallback(told, from, t)
        end
      end
    end
    -- what was looked at and stays is passed over until the others were looked at, too
    local full = #ids == 2 * room
    more = more or full and moved > before
    if not full then last = '-inf' end
    if last ~= '-inf' then call('HSET', keys.model(m), 'fallback_cursor', last) else call('HDEL', keys.model(m), 'fallback_cursor') end
    if moved >= most then break end
  end
  for m in pairs(woken) do wake(m) end
  local pairs_moved = {}
  for pair, number in pairs(told) do
    pairs_moved[#pairs_moved + 1] = pair
    pairs_moved[#pairs_moved + 1] = number
  end
  return more, pairs_moved
end

-- Whether no fallback model of a task starts anything, whatever ends before.
function fallbacks_exhausted(t)
  for _, one in ipairs(t.fallbacks and parse_fallbacks(t.fallbacks) or {}) do
    if blocked_until(one[1]) < FOREVER then return false end
  end
  return true
end
end
