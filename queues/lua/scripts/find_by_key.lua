-- find_by_key: find waiting and running tasks of API keys, in a part of all tasks per call; changes nothing
-- args      cursor: where to continue, '0' = at the beginning; look_at: about how many tasks to check; keys: ids of keys
-- returns   {cursor: '0' at the end, ids}; a task that waits or runs during all calls is found, perhaps twice
script('find_by_key', 'no-writes', function(ask)
  local wanted, found = {}, {}
  for _, id in ipairs(ask.keys) do wanted[id] = true end
  local part = call('ZSCAN', keys.due(), ask.cursor, 'COUNT', whole(ask.look_at))
  for i = 1, #part[2], 2 do
    local task = records.load(part[2][i])
    if task and wanted[task.key_id or ''] then found[#found + 1] = task.id end
  end
  return { cursor = part[1], ids = found }
end)
