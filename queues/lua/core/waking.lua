-- Wake-ups: a replica with free slots hears when a task can start.
local waking = {}

-- Return how many replicas have workers that offer a model by this name.
local function offers(name) return call('ZCOUNT', keys.offers(name), '(' .. NOW_TEXT, '+inf') end

-- Return the model as which a task is scheduled that asks for `name`; nil: there is no worker for it. A name that no worker offers and
-- that is not configured shares the line of '*', which workers of every model serve: names cost nothing to invent. `named`: the task
-- comes with the slot of a worker that offers it.
function waking.scheduled_as(name, named)
  if named or offers(name) > 0 then return name end
  if is_reserved(name) or offers('*') == 0 then return nil end
  return models.get(name).fixed and name or '*'
end

-- Return whether workers offer a model. (A name that shares the line of '*' is none.)
function waking.is_offered(model)
  for _, offered in ipairs(offered_as(model)) do
    if offers(offered) > 0 then return true end
  end
  return false
end

-- A replica has a free slot for these models: the next task wakes it.
function waking.idle(names, replica)
  for _, name in ipairs(names) do
    if call('ZADD', keys.idle(name), US_TEXT, replica) == 1 then call('PEXPIRE', keys.idle(name), '600000') end
  end
end

-- Wake one idle replica for a model that can start something. It takes for all its free slots and wakes the next. A replica that is gone
-- receives nothing: the next is tried.
local function wake_one(model)
  for _, offered in ipairs(offered_as(model)) do
    for _ = 1, 64 do
      local popped = call('ZPOPMIN', keys.idle(offered))
      if not popped[1] then break end
      if publish(popped[1], 'wake\n' .. model) > 0 then return end
    end
  end
end

-- Wake one if something can start; else note in `later` (if given) in how many ms, if time alone is in the way.
function waking.wake(model, later)
  if hooks.first('starts', models.get(model), model) and later then waking.note_later(later, model, NOW) end
  local turn, at = eligible.turn(model)
  if turn then
    wake_one(model)
  elseif at and at < FOREVER and later then
    waking.note_later(later, model, at)
  end
  return later
end

-- Note in `later` that a model may start its next task at an instant. `of_upstream`: through the upstream of the worker that asked; it
-- may through others.
function waking.note_later(later, model, at, of_upstream)
  if at >= FOREVER then at = NOW + 60000 end
  later[#later + 1] = { model = model, ms = math.max(at - NOW, 1), upstream = of_upstream or nil }
end

-- Wake the other models on which the queue of a task waits whose slot is free now: its `max_running` is over all models.
function waking.wake_elsewhere(task)
  if not models.queue(task.queue).max_running then return end
  for _, name in ipairs(call('ZRANGE', keys.backlog(), '0', '999')) do
    local lane = name ~= task.model and models.lane(models.get(name), task.queue)
    if lane and lane.users > 0 then waking.wake(name) end
  end
end

return waking
