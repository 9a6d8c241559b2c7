-- Wake one idle replica for `model`, which can start something. It takes for all its free slots and wakes the next. A
-- replica that is gone receives nothing: the next is tried. `q`: the lane that starts a task next, if not the first.
local function wake_one(model, q)
  if permits.is_next(model, q) then return permits.wake(model) end
  for _, offered in ipairs(offered_as(model)) do
    local idle = keys.idle(offered)
    for _ = 1, 64 do
      local popped = call('ZPOPMIN', idle)
      if not popped[1] then break end
      if publish(popped[1], 'wake\n' .. model) > 0 then return end
    end
  end
end

-- The same, if something can start; else the instant (ms) from which it can, if time alone is in the way.
local function wake(model)
  local lane, at = eligible(model)
  if lane and not at then wake_one(model, lane.q) end
  return at ~= FOREVER and at or nil
end

-- The same for the other models on which the queue of a task waits whose slot is free now: its `max_running` is over all models.
local function wake_elsewhere(t)
  if string.sub(t.account or '', -1) ~= '1' or num(call('HGET', keys.queue(t.queue), 'max_running')) == 0 then return end
  for _, model in ipairs(call('ZRANGE', keys.backlog(), '0', '999')) do
    if model ~= t.model and call('ZSCORE', keys.lanes(model), t.queue) then wake(model) end
  end
end

-- The model as which a task is scheduled that asks for `name`; nil: there is no worker for it. A name that no worker offers and
-- that is not configured shares the line of '*', which workers of every model serve: names cost nothing to invent. `named`: the
-- task comes with the slot of a worker that offers it.
local function scheduled_as(name, named)
  local now = '(' .. NOW_TEXT
  if named or call('ZCOUNT', keys.offers(name), now, '+inf') > 0 then return name end
  if is_reserved(name) or call('ZCOUNT', keys.offers('*'), now, '+inf') == 0 then return nil end
  return call('HEXISTS', keys.model(name), 'fixed') == 1 and name or '*'
end

-- Does anybody have workers for the model? (A name that shares the line of '*' is none.)
local function is_offered(model)
  local now = '(' .. NOW_TEXT
  for _, offered in ipairs(offered_as(model)) do
    if call('ZCOUNT', keys.offers(offered), now, '+inf') > 0 then return true end
  end
  return false
end

-- Put a task of the line of '*', that stands in no flow now, into the line of the model that it asked for.
local function enqueue_by_name(id, t)
  t.model, t.requested_model = t.requested_model, nil
  call('HSET', keys.task(id), 'model', t.model)
  call('HDEL', keys.task(id), 'requested_model')
  call('ZADD', keys.models(), NOW_TEXT, t.model)
  call('HSET', keys.model(t.model), 'wide', WIDE)
  enqueue(id, t)
  wake(t.model)
end
