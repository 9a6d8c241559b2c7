-- list_users: who has tasks of one model: in one of its lines, or in its slots; changes nothing
-- KEYS[1]  prefix of the pool
-- ARGV[1]  model
-- ARGV[2]  queue whose line is looked at | '' its slots
-- ARGV[3]  of a line: users of its two parts, in line and parked, to pass over in each
-- ARGV[4]  users of each part, or slots, to look at, at most
-- returns  {user, waiting or running tasks, …}
script('list_users', 'no-writes', function(ARGV)
  local model, queue, from, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
  local reply = {}

  if queue == '' then
    local running = {}
    for _, id in ipairs(call('ZRANGE', keys.slots(model), '0', whole(most - 1))) do
      local u = call('HGET', keys.task(id), 'user')
      if u then running[u] = (running[u] or 0) + 1 end
    end
    for u, count in pairs(running) do
      reply[#reply + 1] = u
      reply[#reply + 1] = count
    end
    return reply
  end

  for _, line in ipairs({ keys.flows(queue, model), keys.parked(queue, model) }) do
    for _, u in ipairs(call('ZRANGE', line, whole(from), whole(from + most - 1))) do
      reply[#reply + 1] = u
      reply[#reply + 1] = call('ZCARD', keys.flow(queue, model, u))
    end
  end
  return reply
end)
