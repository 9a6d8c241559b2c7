-- inspect_model: return the status of a model for operators; checks a bounded number of users
-- args      model; most_users: users whose oldest task is checked, at most, from each end of a lane's line
-- returns   {known; running: tasks with a slot; mean_ms; cooldown_until, cooldown_by; next_start: instant (ms) before which its pace lets nothing
--           start; ended: state -> number of tasks; lanes: queue -> {waiting, running, charged, users: in line, parked, oldest: when the oldest checked task was enqueued (ms),
--           blocked: why no task can start (placing.blocked_by)}; fields of features (hook `inspected`)}, and its settings, packed ('' = none)

-- Return when the task at the head of a user's line was enqueued; nil: there is none.
local function oldest_of(queue, model, user)
  local id = call('ZRANGE', keys.flow(queue, model, user), '0', '0')[1]
  local task = id and records.load(id)
  return task and task.enqueued_at
end

local function oldest_in(queue, model, line, most)
  local users, oldest = call('ZRANGE', line, '0', whole(most - 1)), FOREVER
  if #users == most then
    for _, user in ipairs(call('ZREVRANGE', line, '0', whole(most - 1))) do users[#users + 1] = user end
  end
  for _, user in ipairs(users) do oldest = earlier(oldest, oldest_of(queue, model, user)) end
  return oldest
end

local function lane_of(name, queue, lane, most)
  local seen = { waiting = lane.waiting, running = lane.running, charged = lane.charged, users = lane.users }
  if lane.waiting > 0 then
    local flows, parked = keys.flows(queue, name), keys.parked(queue, name)
    local oldest = math.min(oldest_in(queue, name, flows, most), oldest_in(queue, name, parked, most))
    seen.parked, seen.oldest = call('ZCARD', parked), oldest < FOREVER and oldest or nil
    seen.blocked = placing.blocked_by(name, queue)
  end
  return seen
end

script('inspect_model', 'no-writes', function(ask)
  local name, key = ask.model, keys.model(ask.model)
  if call('EXISTS', key) == 0 then return { known = false }, '' end
  local model, lanes_of = models.get(name), {}
  for queue, lane in pairs(models.lanes(model)) do lanes_of[queue] = lane_of(name, queue, lane, ask.most_users) end
  local paced = setmetatable({ cooldown_until = false, barred = false }, { __index = model }) -- its pace alone
  local at = hooks.first('opens', paced, name)
  local seen = { known = true, running = slots.taken(name), mean_ms = model.mean_ms, cooldown_until = model.cooldown_until,
    cooldown_by = model.cooldown_by, next_start = at and at < FOREVER and at or nil, lanes = lanes_of,
    ended = { completed = model.completed or 0, failed = model.failed or 0, cancelled = model.cancelled or 0 } }
  hooks.each('inspected', model, name, seen)
  return seen, call('HGET', key, 'settings') or ''
end)
