-- inspect_model: what an operator sees of one model; looks at a bounded number of tasks and users
-- KEYS[1]  prefix of the pool
-- ARGV[1]  model
-- ARGV[2]  running tasks to look at, at most, for their queues
-- ARGV[3]  users of a lane whose oldest task is looked at, at most, from either end of its line
-- returns  {fields of the model's hash as field, value, …; running tasks; how many of them were looked at; {queue, how many of
--          these, …}; next start; lanes}. Next start: the instant (ms) until which its pace lets nothing start; 0 = it does.
--          Lanes: {queue, users in line, users parked, enqueued (ms) of the oldest task seen or 0, blocked by} of each with
--          waiting tasks; `blocked by` as blocked_by, '' where one can start.
script('inspect_model', 'no-writes', function(ARGV)
  local model, most_tasks, most_users = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
  local fields = call('HGETALL', keys.model(model))
  if #fields == 0 and call('EXISTS', keys.slots(model)) == 0 then return {} end

  local held = call('ZRANGE', keys.slots(model), '0', whole(most_tasks - 1))
  local by_queue, counts = {}, {}
  for _, id in ipairs(held) do
    local q = call('HGET', keys.task(id), 'queue')
    if q then by_queue[q] = (by_queue[q] or 0) + 1 end
  end
  for q, count in pairs(by_queue) do
    counts[#counts + 1] = q
    counts[#counts + 1] = count
  end

  local s = call('HMGET', keys.model(model), unpack(ALL_RULES))
  local paused = s[3]
  s[3], s[4] = false, false -- paused and held are separate reasons
  local at = s[2] == '1' and paced_until(model, s, 1) or 0

  -- When the task at the head of a user's line was enqueued.
  local function oldest_of(q, u)
    local id = call('ZRANGE', keys.flow(q, model, u), '0', '0')[1]
    return id and num(call('HGET', keys.task(id), 'enqueued_at')) or 0
  end

  local function oldest_in(q, line)
    local oldest, users = 0, call('ZRANGE', line, '0', whole(most_users - 1))
    if #users == most_users then
      for _, u in ipairs(call('ZREVRANGE', line, '0', whole(most_users - 1))) do users[#users + 1] = u end
    end
    for _, u in ipairs(users) do
      local enqueued = oldest_of(q, u)
      if enqueued > 0 and (oldest == 0 or enqueued < oldest) then oldest = enqueued end
    end
    return oldest
  end

  local lanes = {}
  for i = 1, #fields, 2 do
    local q = string.match(fields[i], '^waiting:(.*)$')
    if q and num(fields[i + 1]) > 0 then
      local flows, parked = keys.flows(q, model), keys.parked(q, model)
      local a, b = oldest_in(q, flows), oldest_in(q, parked)
      local oldest = (a == 0 or (b > 0 and b < a)) and b or a
      local blocked = blocked_by(q, model, paused, s[9]) or ''
      lanes[#lanes + 1] = { q, call('ZCARD', flows), call('ZCARD', parked), oldest, blocked }
    end
  end
  return { fields, call('ZCARD', keys.slots(model)), #held, counts, math.ceil(at / 1000), lanes }
end)
