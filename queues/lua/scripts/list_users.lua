-- list_users: list the users with waiting tasks in a lane of a model, or with running tasks of the model; changes nothing
-- args      model; queue: of the lane, '' = running tasks; from: users to skip, both of those in line and of the parked ones; most: users of
--           each of the two, or running tasks, to check
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
