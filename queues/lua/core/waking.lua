-- Wake-ups: messages to replicas with free slots that a task can start.
local waking = {}
local offers, idle = table_of_script(), table_of_script() -- of names, as this script has read them; names for which it has remembered the replica

-- Return how many replicas have workers that offer a model by this name.
local function number_of_offers(name)
  offers[name] = offers[name] or call('ZCOUNT', keys.offers(name), '(' .. NOW_TEXT, '+inf')
  return offers[name]
end

-- Return the model as which a task that requests `name` is scheduled; nil: no worker serves it. Names that no worker offers and that are not
-- configured share the line '*', which workers of every model serve, because clients could invent any number of names. `named`: the
-- submitting replica has a free slot of a worker that offers the name.
function waking.scheduled_as(name, named)
  if named or number_of_offers(name) > 0 then return name end
  if is_reserved(name) or number_of_offers('*') == 0 then return nil end
  return models.get(name).fixed and name or '*'
end

-- Return whether workers offer a model. (A name that shares the line '*' is not a model here.)
function waking.is_offered(model)
  for _, offered in ipairs(offered_as(model)) do
    if number_of_offers(offered) > 0 then return true end
  end
  return false
end

-- Remember that a replica has a free slot for these models, so that the next task wakes it.
function waking.idle(names, replica)
  for _, name in ipairs(names) do
    if idle[name] ~= replica then
      if call('ZADD', keys.idle(name), 'NX', US_TEXT, replica) == 1 then call('PEXPIRE', keys.idle(name), '600000') end
      idle[name] = replica
    end
  end
end

-- Wake one idle replica for a model that can start a task. It takes tasks for all its free slots and then wakes the next replica. If a
-- replica no longer exists, no subscriber gets the message, and the next one is tried.
local function wake_one(model)
  for _, offered in ipairs(offered_as(model)) do
    for _ = 1, 64 do
      local popped = call('ZPOPMIN', keys.idle(offered))
      idle[offered] = nil
      if not popped[1] then break end
      if publish(popped[1], 'wake\n' .. model) > 0 then return end
    end
  end
end

-- Wake one replica if a task can start. If only time is missing, add the ms until then to `later` (if given).
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

-- Add to `later` that a model can start its next task at an instant. `of_upstream`: this holds for the upstream of the asking worker only.
function waking.note_later(later, model, at, of_upstream)
  if at >= FOREVER then at = NOW + 60000 end
  later[#later + 1] = { model = model, ms = math.max(at - NOW, 1), upstream = of_upstream or nil }
end

-- A slot of a task's queue is free: wake the other models with waiting tasks of this queue, since `max_running` counts over all models.
function waking.wake_elsewhere(task)
  if not models.queue(task.queue).max_running then return end
  for _, name in ipairs(call('ZRANGE', keys.backlog(), '0', '999')) do
    local lane = name ~= task.model and models.lane(models.get(name), task.queue)
    if lane and lane.users > 0 then waking.wake(name) end
  end
end

return waking
