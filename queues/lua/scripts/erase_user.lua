-- erase_user: remove the ended tasks of a user, a part of a line per call
-- args      line: number of a line of ended tasks (retention.lua) | 'due': count ended tasks that still hold a slot, which cannot be removed yet;
--           cursor: where to continue, '0' = at the beginning; look_at: about how many tasks to check; user; until_ms: only tasks that
--           were submitted until then
-- returns   {lines: number of lines, cursor: '0' at the end, removed: number of tasks, stopping: number of tasks that hold a slot}
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
