-- mark_read: the client has read the end of a task; if the task asks for it, it expires soon
-- args      id
-- returns   {changed}: false: the task does not ask for it, has not ended, or was read before
script('mark_read', 'allow-oom', function(ask)
  local task = records.load(ask.id)
  local keep = task and task.ended_at and task.keep_after_read
  if not keep then return { changed = false } end
  task.keep_after_read = false
  task.ttl = math.min(task.ttl, NOW + keep - task.ended_at) -- counts later, if the archive does not have it yet, or it holds a slot
  records.save(task)
  if not task.archive then retention.shorten(task, keep) end
  return { changed = true }
end)
