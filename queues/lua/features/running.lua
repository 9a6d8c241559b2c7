-- Limits of running tasks: of a key or a user over all models, and of a user in one model (setting `max_running_per_user`). And the limit of
-- a user's waiting tasks in one model (`max_waiting_per_user`).
--
-- At the limit of running tasks, a user is not rejected: each of its flows is parked when its turn comes, in a list per lane and subject
-- (key, user, or user of a model). When a task of the subject ends, the first flow of each list returns to its line, unless the flow that
-- returned before is still in line with a smaller tag. So the tags of lanes and flows decide as usual which flow continues, and the
-- others are parked again when it is their turn. A subject at its limit has running tasks, so one of them will end; the sweep checks anyway.
local running = {}
local MAX_LANES = 64 -- in one call; the sweep does the rest

local function of_model(name, user) return 'm:' .. #name .. ':' .. name .. ':' .. user end

-- Return the subjects for which a task counts while it runs: {{subject, limit}, …}.
local function subjects(task)
  local found, texts = {}, task.limits or task.part_limits
  if texts then
    local key, user = limits.subjects(task.user)
    local of_key, of_user = texts[1] ~= '' and limits.parse(texts[1]).running or 0, texts[2] ~= '' and limits.parse(texts[2]).running or 0
    if of_user > 0 then found[1] = { user, of_user } end
    if of_key > 0 then found[#found + 1] = { key, of_key } end
  end
  local cap = models.get(task.model).max_running_per_user
  if cap then found[#found + 1] = { of_model(task.model, task.user), cap } end
  return found
end

-- Park a flow until a task of the subject ends.
local function park_for(subject, limit)
  return function(queue, name, user, tag)
    call('ZADD', keys.at_limit_flows(queue, name, subject), whole(tag), user)
    call('HSETNX', keys.at_limit_lanes(subject), queue .. ':' .. name, '')
    call('ZADD', keys.at_limit(), whole(limit), subject)
  end
end

local function may_start(task)
  for _, of in ipairs(subjects(task)) do
    if call('SCARD', keys.runs(of[1])) >= of[2] then return { park = park_for(of[1], of[2]) } end
  end
end

hooks.attach('may_start', 'limits', may_start)
hooks.attach('may_start', 'part_limits', may_start)
hooks.attach('may_start', 'max_running_per_user', may_start, true)

local function count(task, of)
  task.runs, task.extras = task.runs or {}, true
  task.runs[#task.runs + 1] = of
  call('SADD', keys.runs(of), task.id)
end

local function granted(task)
  if task.runs then return end -- counted through another field
  task.runs = {}
  for _, of in ipairs(subjects(task)) do count(task, of[1]) end
end

hooks.attach('granted', 'limits', granted)
hooks.attach('granted', 'part_limits', granted)
hooks.attach('granted', 'max_running_per_user', granted, true)

hooks.attach('released', 'runs', function(task)
  for _, subject in ipairs(task.runs) do call('SREM', keys.runs(subject), task.id) end
end)

-- Return the first parked flow of a lane to its line, unless another one is due before it. `before`: the one that returned last.
local function unpark_first(subject, lane, before)
  local queue, name = string.match(lane, '^([^:]*):(.*)$')
  local flows = keys.at_limit_flows(queue, name, subject)
  while true do
    local user, tag = unpack(call('ZRANGE', flows, '0', '0', 'WITHSCORES'))
    if not user then
      call('HDEL', keys.at_limit_lanes(subject), lane)
      return nil
    end
    local its_tag = before ~= '' and call('ZSCORE', keys.flows(queue, name), before)
    if its_tag and tonumber(tag) > tonumber(its_tag) then return nil end
    call('ZREM', flows, user)
    if call('EXISTS', flows) == 0 then
      call('HDEL', keys.at_limit_lanes(subject), lane)
    else
      call('HSET', keys.at_limit_lanes(subject), lane, user)
    end
    if lanes.unpark(queue, name, user) then return name end -- else its tasks have ended
  end
end

-- If one more task of a subject can run, return the first parked flow of each lane. `here`: a model that the caller wakes.
local function unpark_next(subject, here)
  local limit = call('ZSCORE', keys.at_limit(), subject)
  if not limit or call('SCARD', keys.runs(subject)) >= tonumber(limit) then return end
  local held = call('HRANDFIELD', keys.at_limit_lanes(subject), whole(MAX_LANES), 'WITHVALUES')
  for i = 1, #held, 2 do
    local name = unpark_first(subject, held[i], held[i + 1])
    if name and name ~= here then waking.wake(name) end
  end
  if call('EXISTS', keys.at_limit_lanes(subject)) == 0 then call('ZREM', keys.at_limit(), subject) end
end

-- Not before an attempt is settled: only then its flow has its final tag.
hooks.attach('settled', 'runs', function(task)
  local subjects = task.runs
  task.runs = nil
  for _, subject in ipairs(subjects) do unpark_next(subject, task.model) end
end)

hooks.attach('queued', 'limits', function(task, by)
  if by > 0 then return end
  for _, of in ipairs(subjects(task)) do unpark_next(of[1], task.model) end
end)

hooks.attach('sweep', nil, function()
  for _, subject in ipairs(call('ZRANDMEMBER', keys.at_limit(), '100')) do unpark_next(subject) end
end)

hooks.attach('admit', 'max_waiting_per_user', function(task, ask)
  local model = models.get(task.model)
  local most, waiting = model.max_waiting_per_user, 0
  if not ask.waits then return nil end
  for queue in pairs(models.lanes(model)) do
    local user = lanes.user(queue, task.model, task.user)
    waiting = waiting + user.waiting + user.aside
  end
  if waiting < most then return nil end
  local lane = models.lane(model, task.queue)
  local each = placing.interval(task.model, task.queue) * math.max(lane.users, 1)
  return { rejected = 'user_full', waiting = waiting, limit = most, retry_ms = math.max(math.ceil(each * (waiting - most + 1)), 1) }
end, true)

-- The limit of a model has changed: count its running tasks, and return flows that were parked.
local function changed(one, name, other)
  local cap = one.max_running_per_user
  if one.max_running_per_user == other.max_running_per_user then return end
  for _, subject in ipairs(call('ZRANGE', keys.at_limit(), '0', '-1')) do
    if string.find(subject, 'm:' .. #name .. ':' .. name .. ':', 1, true) == 1 then
      call('ZADD', keys.at_limit(), whole(cap or 2147483647), subject)
      unpark_next(subject)
    end
  end
  for _, id in ipairs(cap and not other.max_running_per_user and call('ZRANGE', keys.slots(name), '0', '-1') or {}) do
    local task = records.load(id)
    if task then
      count(task, of_model(name, task.user))
      records.save(task)
    end
  end
end

hooks.attach('configured', 'max_running_per_user', changed)

hooks.attach('unset', 'max_running_per_user', function(before, name, now)
  if not now.max_running_per_user then changed(now, name, before) end
end)

return running
