-- change: set something of a queue or a model while running, and write down who did
-- KEYS[1]  prefix of the pool
-- ARGV[1]  queue | model
-- ARGV[2]  its name
-- ARGV[3]  who changes it
-- ARGV[4]  from which address
-- ARGV[5]  8 characters that tell the audit entry from others of this instant
-- ARGV[6…] setting, value, …; value '' = back to what is configured
--          Who changed a setting stands beside its value for as long as the change holds.
-- returns  {'ok', id of the audit entry, before, after} JSON objects of what held and holds for these settings | {'unknown'} queue
script('change', nil, function(ARGV)
  local kind, name = string.sub(ARGV[1], 1, 1), ARGV[2]
  if kind == 'q' and call('SISMEMBER', keys.queues(), name) == 0 then return { 'unknown' } end
  local hash = hash_of(kind, name)
  local before, after = {}, {}
  for i = 6, #ARGV, 2 do
    local setting, value = ARGV[i], ARGV[i + 1]
    local field = kind .. ':' .. name .. ':' .. setting
    before[setting] = call('HGET', hash, setting) or cjson.null
    if value == '' then
      call('HDEL', keys.overrides(), field)
      value = call('HGET', keys.configured(), field) or nil
    else
      call('HSET', keys.overrides(), field, value)
    end
    set(kind, name, setting, value)
    after[setting] = value or cjson.null
    if kind == 'm' and setting == 'paused' and value ~= '1' then call('HDEL', hash, 'held') end
  end
  if kind == 'm' then
    call('HDEL', hash, 'fixed')
    for _, settings in ipairs({ keys.configured(), keys.overrides() }) do
      for _, field in ipairs(call('HKEYS', settings)) do
        local of, whose = split(field)
        if of == 'm' and whose == name then call('HSET', hash, 'fixed', '1') end
      end
    end
    call('ZADD', keys.models(), 'GT', NOW_TEXT, name)
  end
  rules_changed(kind == 'm' and { name } or {}, kind == 'q')
  local was, is = cjson.encode(before), cjson.encode(after)
  local entry = record_act(US_TEXT .. '-' .. ARGV[5], ARGV[3], ARGV[4], 'set', ARGV[1] .. ' ' .. name, was, is)
  for i = 6, #ARGV, 2 do
    local field = kind .. ':' .. name .. ':' .. ARGV[i]
    if ARGV[i + 1] == '' then
      call('HDEL', keys.changed(), field)
    else
      call('HSET', keys.changed(), field, entry .. ' ' .. ARGV[3] .. ' ' .. ARGV[i + 1])
    end
  end
  return { 'ok', entry, was, is }
end)
