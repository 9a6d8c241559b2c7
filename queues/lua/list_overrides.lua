-- list_overrides: all overrides
-- KEYS[1]  prefix of the pool
-- returns  {version, now (ms), id, the override, packed, …}: its fields as in keys.py, OVERRIDE
script('list_overrides', 'no-writes', function()
  return { overrides.version(), NOW, unpack(call('HGETALL', keys.overrides())) }
end)
