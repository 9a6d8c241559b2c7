-- The archive of results in SQL. An ended task with `archive` (the longest time, ms, that it waits for the archive) is kept until the archive
-- has it, and so is its request, if that is to be archived too.
local archive = {}

hooks.attach('closed', 'archive', function(task)
  task.keep_ms = math.max(task.keep_ms, task.archive)
  task.more_bytes = (task.more_bytes or 0) + (task.keep_request and call('STRLEN', keys.request(task.id)) or 0)
  call('XADD', keys.archive(), '*', 'task', task.id)
end)

-- confirm_archived: the archive has these tasks, or will never have them, so they expire like other tasks
-- args      group: consumer group of the stream; entries: for each the entry's id and the task's id
-- returns   {gone}: how many entries were deleted
script('confirm_archived', 'allow-oom', function(ask)
  local gone = 0
  for _, entry in ipairs(ask.entries) do
    call('XACK', keys.archive(), ask.group, entry[1])
    gone = gone + call('XDEL', keys.archive(), entry[1])
    local task = records.load(entry[2])
    if task and task.kept_bytes and task.archive then
      task.archive = false
      call('UNLINK', keys.request(task.id))
      retention.shorten(task, task.ended_at + task.ttl - NOW)
    end
  end
  return { gone = gone }
end)

return archive
