-- configure: set what the operator's file says of queues and models; it holds from the next decision on, on every replica
-- KEYS[1]  prefix of the pool
-- ARGV     q:{queue}:{setting} or m:{model}:{setting}, value; …  Settings that are not named are no longer set.
-- returns  1
local before, after = {}, {}
local flat = call('HGETALL', key_configured())
for i = 1, #flat, 2 do before[flat[i]] = flat[i + 1] end
call('DEL', key_configured())
for i = 1, #ARGV, 2 do
  after[ARGV[i]] = ARGV[i + 1]
  call('HSET', key_configured(), ARGV[i], ARGV[i + 1])
end
flat = call('HGETALL', key_overrides())
for i = 1, #flat, 2 do after[flat[i]] = flat[i + 1] end
for field in pairs(before) do
  if not after[field] then
    local kind, name, setting = split(field)
    set(kind, name, setting, nil)
    call('HDEL', hash_of(kind, name), 'fixed')
  end
end
for field, value in pairs(after) do
  local kind, name, setting = split(field)
  set(kind, name, setting, value)
  if kind == 'q' then
    call('SADD', key_queues(), name)
  else
    call('HSET', key_model(name), 'fixed', '1')
    call('ZADD', key_models(), 'GT', NOW_TEXT, name)
  end
end
rules_changed()
return 1
