-- update_presence: store the workers of a replica
-- KEYS[1]  prefix of the pool
-- ARGV[1]  replica
-- ARGV[2]  how long this holds, ms
-- ARGV[3]  1: what was stored before is removed first | 0
-- ARGV[4]  number of workers that are gone; then their ids; then pairs of field and value (see the map)
-- returns  how many fields are known now
script('update_presence', 'allow-oom', function(ARGV)
  local hold, gone = tonumber(ARGV[2]), tonumber(ARGV[4])
  local presence = keys.presence(ARGV[1])
  if ARGV[3] == '1' then
    call('DEL', presence)
  end
  if gone > 0 then
    call('HDEL', presence, unpack(ARGV, 5, 4 + gone))
  end
  if #ARGV > 4 + gone then
    call('HSET', presence, unpack(ARGV, 5 + gone))
  end
  call('PEXPIRE', presence, hold)
  return call('HLEN', presence)
end)
