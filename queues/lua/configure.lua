-- configure: set what the operator's file says of queues and models; it holds from the next decision on, on every replica
-- KEYS[1]  prefix of the pool
-- ARGV[1]  replica
-- ARGV[2]  when its file was modified, ms
-- ARGV[3]  when it read it, ms
-- ARGV[4]  hash of what it says
-- ARGV[5…] q:{queue}:{setting} or m:{model}:{setting}, value; …  Settings that are not named are no longer set.
-- returns  {outcome, version in effect, born, both as in keys.py, POOL}; outcome: 'set' | 'same' nothing to do | 'older' what holds
--          is newer, and stays while another replica lives that runs it (then the replica in the version is such a one). Of
--          files of the same time the one read later counts.
script('configure', nil, function(ARGV)
  local mine = ARGV[2] .. ' ' .. ARGV[3] .. ' ' .. ARGV[4]
  call('ZADD', keys.replicas(), 'GT', NOW + 15000, ARGV[1])
  call('HSET', keys.versions(), ARGV[1], mine)
  call('HSETNX', keys.pool(), 'born', US_TEXT)
  local born = call('HGET', keys.pool(), 'born')
  local modified, read = tonumber(ARGV[2]), tonumber(ARGV[3])
  local version, known = mine .. ' ' .. ARGV[1], call('HGET', keys.pool(), 'version')
  if known then
    local its_modified, its_read, its_hash = string.match(known, '^(%S+) (%S+) (%S+)')
    its_modified, its_read = tonumber(its_modified), tonumber(its_read)
    local older = modified < its_modified or (modified == its_modified and read < its_read)
    if its_hash == ARGV[4] then
      if not older then call('HSET', keys.pool(), 'version', version) end
      return { 'same', older and known or version, born }
    end
    local versions = older and call('HGETALL', keys.versions()) or {}
    for i = 1, #versions, 2 do
      local other, hash = versions[i], string.match(versions[i + 1], '(%S+)$')
      if other ~= ARGV[1] and hash == its_hash and num(call('ZSCORE', keys.replicas(), other)) > NOW then
        return { 'older', string.match(known, '^%S+ %S+ %S+') .. ' ' .. other, born }
      end
    end
  end

  local before, after = {}, {}
  local flat = call('HGETALL', keys.configured())
  for i = 1, #flat, 2 do before[flat[i]] = flat[i + 1] end
  call('DEL', keys.configured())
  for i = 5, #ARGV, 2 do
    after[ARGV[i]] = ARGV[i + 1]
    call('HSET', keys.configured(), ARGV[i], ARGV[i + 1])
  end
  flat = call('HGETALL', keys.overridden())
  for i = 1, #flat, 2 do after[flat[i]] = flat[i + 1] end
  local concerned, models = {}, {}
  local function concern(model)
    if not concerned[model] then models[#models + 1] = model end
    concerned[model] = true
  end
  for field in pairs(before) do
    if not after[field] then
      local kind, name, setting = split(field)
      set(kind, name, setting, nil)
      if kind == 'm' then
        call('HDEL', keys.model(name), 'fixed')
        concern(name)
      end
    end
  end
  for field, value in pairs(after) do
    local kind, name, setting = split(field)
    set(kind, name, setting, value)
    if kind == 'q' then
      call('SADD', keys.queues(), name)
    else
      call('HSET', keys.model(name), 'fixed', '1')
      call('ZADD', keys.models(), 'GT', NOW_TEXT, name)
      concern(name)
    end
  end
  rules_changed(models, true)
  call('HSET', keys.pool(), 'version', version)
  return { 'set', version, born }
end)
