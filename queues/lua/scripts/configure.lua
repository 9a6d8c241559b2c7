-- configure: set the configuration of queues and models, for all replicas, from the next decision on
-- args      replica; modified_ms of its file, read_ms: when it read the file, hash of the settings; settings: 'q:name' or 'm:name' -> values.
--           Queues and models that are not listed have no settings afterwards
-- returns   {outcome, version in effect, born, both as in keys.py, POOL}; outcome: 'set' | 'same': nothing to do | 'older': the version in effect
--           is newer, and stays while another replica that uses it is alive (the version names that replica). Of two files with the
--           same time, the one that was read later counts.
script('configure', nil, function(ask)
  local pool = keys.pool()
  models.forget_settings()
  local mine = whole(ask.modified_ms) .. ' ' .. whole(ask.read_ms) .. ' ' .. ask.hash
  call('ZADD', keys.replicas(), 'GT', whole(NOW + 15000), ask.replica)
  call('HSET', keys.versions(), ask.replica, mine)
  call('HSETNX', pool, 'born', US_TEXT)
  local born, known = unpack(call('HMGET', pool, 'born', 'version'))
  local version = mine .. ' ' .. ask.replica
  if known then
    local modified, read, hash = string.match(known, '^(%S+) (%S+) (%S+)')
    modified, read = tonumber(modified), tonumber(read)
    local older = ask.modified_ms < modified or (ask.modified_ms == modified and ask.read_ms < read)
    if hash == ask.hash then
      if not older then call('HSET', pool, 'version', version) end
      return { outcome = 'same', version = older and known or version, born = born }
    end
    local versions = older and call('HGETALL', keys.versions()) or {}
    for i = 1, #versions, 2 do
      local other = versions[i]
      local runs = string.match(versions[i + 1], '(%S+)$') == hash and num(call('ZSCORE', keys.replicas(), other)) > NOW
      if other ~= ask.replica and runs then
        return { outcome = 'older', version = string.match(known, '^%S+ %S+ %S+') .. ' ' .. other, born = born }
      end
    end
  end

  local concerned = {}
  for _, field in ipairs(call('HKEYS', keys.configured())) do concerned[field] = true end
  call('DEL', keys.configured())
  for field, values in pairs(ask.settings) do
    call('HSET', keys.configured(), field, cmsgpack.pack(values))
    concerned[field] = true
    if string.sub(field, 1, 1) == 'q' then call('SADD', keys.queues(), string.sub(field, 3)) end
  end
  for field in pairs(concerned) do settings.apply(string.sub(field, 1, 1), string.sub(field, 3)) end
  call('HSET', pool, 'version', version)
  for _, name in ipairs(call('ZRANGE', keys.backlog(), '0', '999')) do waking.wake(name) end
  return { outcome = 'set', version = version, born = born }
end)
