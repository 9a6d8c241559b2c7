-- present: store the workers of a replica
-- args      replica; hold_ms: how long this is valid; reset: remove everything stored before; gone: fields to remove; fields: field -> value
--           (keys.py, PRESENCE)
-- returns   {known}: how many fields are stored now
script('present', 'allow-oom', function(ask)
  local presence = keys.presence(ask.replica)
  if ask.reset then call('DEL', presence) end
  if ask.gone[1] then call('HDEL', presence, unpack(ask.gone)) end
  for field, value in pairs(ask.fields) do call('HSET', presence, field, value) end
  call('PEXPIRE', presence, whole(ask.hold_ms))
  return { known = call('HLEN', presence) }
end)
