-- erase_user: remove what is kept of a user's tasks that have ended: a part of a line at a time
-- args      line: number of a line of ended tasks (retention.lua) | 'due': those whose workers have not let go of them yet, which stay there to be found again; cursor: where to
--           continue, '0' = at the beginning; look_at: how many to look at, about; user; until_ms: of tasks that were submitted until then
-- returns   {lines: how many there are, cursor: '0' at the end, removed: how many, stopping: how many stay}
script('erase_user', 'allow-oom', function(ask)
  local part, removed, stopping = call('ZSCAN', ask.line == 'due' and keys.due() or keys.expiries(ask.line), ask.cursor, 'COUNT', whole(ask.look_at)), 0, 0
  for i = 1, #part[2], 2 do
    local task = records.load(string.match(part[2][i], '^%S+'))
    if task and task.user == ask.user and task.ended_at and task.enqueued_at <= ask.until_ms then
      if ask.line == 'due' then
        stopping = stopping + 1
      else
        hooks.each('deleted', task)
        retention.remove(task)
        removed = removed + 1
      end
    end
  end
  return { lines = #retention.lines(), cursor = part[1], removed = removed, stopping = stopping }
end)
