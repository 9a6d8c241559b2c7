-- Fallbacks. A task can fall back to other models, in the order of its field `fallbacks` ({model, price} of each), before any output: when an
-- attempt failed, or while its model starts nothing (no worker offers it, it is paused, the breakers of its upstreams are open, or a cooldown
-- or its pace lasts longer than `fallback_after`). The account of its attempt is closed before. The task keeps its age, its limits and its
-- reservation of a quota, which covers the most expensive of the models. A model that failed the task is not tried again; a model that only
-- did not start it is tried last.
local fallback = {}
local MAX_MOVES = 10 -- in the history of a task
local moved = table_of_script() -- pairs of models, and how many tasks, in this call

-- Return the instant (ms) until which no task that requests this model starts, and why. 0: one can; FOREVER: no worker offers it, it is paused,
-- or its breakers are open.
local function blocked_until(name)
  local scheduled = waking.scheduled_as(name)
  if not scheduled then return FOREVER, 'no_worker' end
  local model = models.get(scheduled)
  if model.paused then return FOREVER, 'model_paused' end
  local at, why = hooks.first('opens', model, scheduled)
  if why == 'open' or why == 'probing' then return FOREVER, 'breaker_open' end
  if scheduled ~= name then at = math.max(at or 0, num(call('GET', keys.name_cooldown(name)))) end
  return at and at > NOW and at or 0, 'cooldown'
end

-- Return the index of the first fallback model that starts a task in time; nil: none.
local function next_open(task)
  for i, one in ipairs(task.fallbacks) do
    if blocked_until(one[1]) <= NOW + (task.fallback_after or 0) then return i end
  end
end

local function next_offered(task)
  for i, one in ipairs(task.fallbacks) do
    if waking.scheduled_as(one[1]) then return i end
  end
end

-- Move a task that is in no line to the i-th model of its list. `again`: its old model is added to the end of the list. `why`: the failure
-- code of its attempt, or why its model starts nothing.
local function move(task, i, again, why)
  local from, list, rest = task.requested_model or task.model, task.fallbacks, {}
  local history = task.fallback_history or {}
  history[#history + 1] = { model = from, at = NOW, why = why }
  if #history > MAX_MOVES then table.remove(history, 1) end
  task.fallback_history = history
  for j = i + 1, #list do rest[#rest + 1] = list[j] end
  for j = 1, i - 1 do rest[#rest + 1] = list[j] end
  if again then rest[#rest + 1] = { from, task.price or '' } end
  local name, price = list[i][1], list[i][2]
  local scheduled = waking.scheduled_as(name) or name
  task.model, task.requested_model = scheduled, scheduled ~= name and name or nil
  task.price, task.fallbacks = price ~= '' and price, rest[1] ~= nil and rest
  return from
end

local UNAVAILABLE = { no_worker = true, model_paused = true, breaker_open = true, cooldown = true }

-- Count a task that fell back without an operator, by both models and the reason.
local function note(task, from)
  local history = task.fallback_history
  local why = UNAVAILABLE[history[#history].why] and 'unavailable' or 'failed'
  local pair = from .. '\n' .. (task.requested_model or task.model) .. '\n' .. why
  moved[pair] = (moved[pair] or 0) + 1
end

-- Return the tasks that fell back in this call: {model, to, why, number} of each.
hooks.attach('moved', nil, function()
  local found = {}
  for pair, number in pairs(moved) do
    local from, to, why = string.match(pair, '^(.*)\n(.*)\n(.*)$')
    found[#found + 1] = { model = from, to = to, why = why, number = number }
  end
  return found
end)

hooks.attach('route', 'fallbacks', function(task, back)
  local asked = task.requested_model or task.model
  local at, why = blocked_until(asked)
  if not back.cause then -- it is submitted
    if at <= NOW + (task.fallback_after or 0) then return nil end
    local i = next_open(task) or (why == 'no_worker' and next_offered(task)) or nil
    return i and function() move(task, i, true, why) end
  end
  local failed = back.cause == 'falls' or (back.cause == 'failed' and task.begun)
  if not failed and at <= NOW + (task.fallback_after or 0) then return nil end
  local i = next_open(task)
  if not i then return nil end
  local again = not task.begun or back.cause == 'declined' or back.cause == 'lost' or back.cause == 'redo'
  return function()
    local from = move(task, i, again, failed and back.why or why)
    if failed and task.redone then task.used_before, task.cost_before = nil, nil end -- only the other model's answer is paid
    if back.counts then note(task, from) end
  end
end)

hooks.attach('queued', 'fallbacks', function(task, by)
  if by < 0 then
    call('ZREM', keys.fallbacks(task.model), task.id)
  else
    call('ZADD', keys.fallbacks(task.model), whole(task.order), task.id)
    call('SADD', keys.fallback_models(), task.model)
  end
end)

hooks.attach('falls', 'fallbacks', function(task)
  for _, one in ipairs(task.fallbacks) do
    if blocked_until(one[1]) < FOREVER then return true end
  end
end)

-- Move up to `most` tasks that wait for a model that starts nothing, in the order in which they came.
local function move_waiting(name, most)
  local line, model = keys.fallbacks(name), models.get(name)
  if call('EXISTS', line) == 0 then
    call('SREM', keys.fallback_models(), name)
    return 0, false
  end
  if name ~= '*' and blocked_until(name) == 0 then return 0, false end
  local cursor, done = model.fallback_cursor or '-inf', 0
  local ids = call('ZRANGEBYSCORE', line, cursor, '+inf', 'WITHSCORES', 'LIMIT', '0', whole(most))
  for i = 1, #ids, 2 do
    local task = records.load(ids[i])
    cursor = '(' .. ids[i + 1]
    if not task or task.state ~= 'queued' or not task.fallbacks then
      call('ZREM', line, ids[i])
    else
      local at, why = blocked_until(task.requested_model or task.model)
      local to = at > NOW + (task.fallback_after or 0) and next_open(task)
      if to then
        lanes.dequeue(task)
        note(task, move(task, to, true, why))
        models.touch(task.model, models.get(task.model))
        lanes.enqueue(task)
        records.save(task)
        waking.wake(task.model)
        done = done + 1
      end
    end
  end
  -- tasks that were checked and stay are skipped until the others were checked
  local full = #ids == 2 * most
  model.fallback_cursor = full and cursor or nil
  models.save(name)
  return done, full and done > 0
end

hooks.attach('sweep_often', nil, function()
  local done, more = 0, false
  for _, name in ipairs(call('SRANDMEMBER', keys.fallback_models(), '16') or {}) do
    if done >= 100 then break end
    local number, again = move_waiting(name, 100 - done)
    done, more = done + number, more or again
  end
  return more
end)

return fallback
