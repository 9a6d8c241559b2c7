-- mark_read: its caller has read the end of a task, which is kept for a short time only from now on
-- args      id
-- returns   {changed}: false: it asks for no such thing, or was read before
script('mark_read', 'allow-oom', function(ask)
  local task = records.load(ask.id)
  local keep = task and task.ended_at and task.keep_after_read
  if not keep then return { changed = false } end
  task.keep_after_read = false
  task.ttl = math.min(task.ttl, NOW + keep - task.ended_at) -- while the archive does not have it, or it holds a slot: for then
  records.save(task)
  if not task.archive then retention.shorten(task, keep) end
  return { changed = true }
end)
