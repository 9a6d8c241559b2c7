-- delete: delete what is kept of a task: immediately if it has ended and holds no slot, of another one as soon as it does. What its
-- idempotency key names goes with it
-- args      id
-- returns   {known, gone}: not gone: it goes when its slot is free, or when it ends
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
