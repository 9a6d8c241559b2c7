-- changes: all changes of settings that are known, the newest first
-- KEYS[1]  prefix of the pool
-- returns  {version, now (ms), {id, field, value, …}, …}: their fields as in keys.py, CHANGE
script('changes', 'no-writes', function()
  local reply = { changing.version(), NOW }
  for _, id in ipairs(call('ZREVRANGE', keys.changes(), '0', '-1')) do
    reply[#reply + 1] = { id, unpack(call('HGETALL', keys.change(id))) }
  end
  return reply
end)
