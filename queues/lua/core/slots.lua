-- Slots of models: leases of running tasks by their end. A script counts the slots of a model once.
local slots = {}
local counted = table_of_script()

local function change(name, by)
  if counted[name] then counted[name] = counted[name] + by end
end

-- Return how many slots of a model are taken.
function slots.taken(name)
  counted[name] = counted[name] or call('ZCARD', keys.slots(name))
  return counted[name]
end

-- Take a slot of a model for a task, or change the end of its lease.
function slots.take(name, id, lease) change(name, call('ZADD', keys.slots(name), whole(lease), id)) end

-- Free the slot of a task. Return whether it had one.
function slots.free(name, id)
  local freed = call('ZREM', keys.slots(name), id)
  change(name, 0 - freed)
  return freed == 1
end

return slots
