-- find_by_key: which tasks of some keys wait or run, among a part of all that do; changes nothing
-- KEYS[1]  prefix of the pool
-- ARGV[1]  where to continue; '0' = at the beginning
-- ARGV[2]  tasks to look at, about
-- ARGV[3…] ids of keys
-- returns  {where to continue | '0' at the end, task, …}; a task that waits or runs all the while is found, maybe twice
script('find_by_key', 'no-writes', function(ARGV)
  local wanted = {}
  for i = 3, #ARGV do wanted[ARGV[i]] = true end
  local part = call('ZSCAN', keys.due(), ARGV[1], 'COUNT', ARGV[2])
  local reply = { part[1] }
  for i = 1, #part[2], 2 do
    local id = part[2][i]
    if wanted[call('HGET', keys.task(id), 'key_id') or ''] then reply[#reply + 1] = id end
  end
  return reply
end)
