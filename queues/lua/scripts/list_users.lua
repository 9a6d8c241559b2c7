-- list_users: who has tasks of one model: in one of its lines, or in its slots; changes nothing
-- args      model; queue whose line is looked at, '' = its slots; from: of a line: users of its two parts, in line and parked, to pass over in
--           each; most: users of each part, or slots, to look at
-- returns   {users}: user -> waiting or running tasks
script('list_users', 'no-writes', function(ask)
  local users = {}
  if ask.queue == '' then
    for _, id in ipairs(call('ZRANGE', keys.slots(ask.model), '0', whole(ask.most - 1))) do
      local task = records.load(id)
      if task then users[task.user] = (users[task.user] or 0) + 1 end
    end
    return { users = users }
  end
  for _, line in ipairs({ keys.flows(ask.queue, ask.model), keys.parked(ask.queue, ask.model) }) do
    for _, name in ipairs(call('ZRANGE', line, whole(ask.from), whole(ask.from + ask.most - 1))) do
      users[name] = lanes.user(ask.queue, ask.model, name).waiting
    end
  end
  return { users = users }
end)
