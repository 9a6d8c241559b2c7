-- delete: delete a task's record and log: immediately if it has ended and holds no slot, otherwise as soon as that is so. Its idempotency key is
-- released
-- args      id
-- returns   {known, gone}; gone = false: it is deleted when it has ended and its slot is free
script('delete', 'allow-oom', function(ask)
  local task = records.load(ask.id)
  if not task then return { known = false, gone = true } end
  hooks.each('deleted', task)
  if task.kept_bytes then
    retention.remove(task)
    return { known = true, gone = true }
  end
  task.archive, task.idempotency, task.ttl = false, false, 1000
  records.save(task)
  return { known = true, gone = false }
end)
