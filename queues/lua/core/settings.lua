-- Settings of queues ('q') and models ('m'): those of the configuration (`configured`, a hash of kind:name -> values), and on top of them
-- the layers of features (overrides). The result is stored in the hash of the queue or model (models.lua).
local settings = {}
local layers = {}
local CORE = { concurrency = true, cost = true, paused = true } -- settings of a model that no feature reads

-- Add a layer: a function of kind and name. The values that it returns replace those of lower layers.
function settings.add_layer(layer) layers[#layers + 1] = layer end

-- Reset tags and charges after a change of the unit of cost, because tags in the old unit have no meaning in the new one. Virtual time restarts
-- for all lanes and flows of the model, parked flows return to their lines, and running tasks are charged in the new unit when they end.
local function reset_charges(name, model)
  local function level(line) call('ZUNIONSTORE', line, '1', line, 'WEIGHTS', '0') end
  model.virtual_time = 0
  lanes.users_in(name, call('HGETALL', keys.model(name)), function(user)
    user.tag, user.lifts = 0, 0
    lanes.save_user(user)
  end)
  for queue in pairs(models.lanes(model)) do
    local lane = models.lane(model, queue)
    level(keys.flows(queue, name))
    level(keys.parked(queue, name))
    lane.tag, lane.v, lane.lifts = 0, 0, 0
    for _, user in ipairs(call('ZRANGE', keys.parked(queue, name), '0', '-1')) do lanes.unpark(queue, name, user) end
  end
  for _, id in ipairs(call('ZRANGE', keys.slots(name), '0', '-1')) do
    local task = records.load(id)
    if task and task.account then
      local lane = models.lane(model, task.queue)
      lane.charged = lane.charged - task.account.cost
      task.account.cost, task.account.lane_lifts, task.account.flow_lifts = 0, 0, 0
      records.save(task)
    end
  end
  models.save(name)
end

-- Count the running tasks of a queue that had no limit of them until now.
local function count_running(queue)
  for _, name in ipairs(call('ZREVRANGE', keys.models(), '0', '999')) do
    local lane = models.lane(models.get(name), queue)
    for _, id in ipairs(lane and lane.running > 0 and call('ZRANGE', keys.slots(name), '0', '-1') or {}) do
      local task = records.load(id)
      if task and task.queue == queue and not task.counted then
        task.counted = true
        call('SADD', keys.load(queue), id)
        records.save(task)
      end
    end
  end
end

-- Return the configured settings of a queue or model.
function settings.configured(kind, name)
  local packed = call('HGET', keys.configured(), kind .. ':' .. name)
  return packed and cmsgpack.unpack(packed) or {}
end

-- Compute and store the settings in effect of a queue or model. Return the values before and now.
function settings.apply(kind, name)
  local key = kind == 'm' and keys.model(name) or keys.queue(name)
  local packed = call('HGET', key, 'settings')
  local before, now = packed and cmsgpack.unpack(packed) or {}, settings.configured(kind, name)
  for _, layer in ipairs(layers) do
    for setting, value in pairs(layer(kind, name)) do now[setting] = value end
  end
  local was, is = models.in_effect(before), models.in_effect(now)
  if kind == 'm' then
    local model = models.get(name)
    now.extras = nil
    for setting in pairs(is) do
      if not CORE[setting] then now.extras = true end
    end
    now.paced = (is.windows or is.requests_per_minute or is.tokens_per_minute) and true or nil
    if next(now) or call('HEXISTS', keys.configured(), 'm:' .. name) == 1 then now.fixed = 1 end
    if (before.cost or 'tokens') ~= (now.cost or 'tokens') then reset_charges(name, model) end
    models.write_settings('m', name, now)
    hooks.settings('configured', is, name, was)
    hooks.settings('unset', was, name, is)
    call('ZADD', keys.models(), 'GT', NOW_TEXT, name)
  else
    models.write_settings('q', name, now)
    if is.max_running and not was.max_running then count_running(name) end
  end
  return before, now
end

return settings
