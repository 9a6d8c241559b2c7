-- offer: say which models a replica's workers serve, and that it lives
-- uses: waking
-- KEYS[1]  prefix of the pool
-- ARGV[1]  replica
-- ARGV[2]  how long this holds, ms
-- ARGV[3]  how long a withdrawn model still counts as offered, ms
-- ARGV[4]  JSON of the replica's workers, kept as long
-- ARGV[5]  number of models offered; then they; then the models withdrawn since the last call
-- returns  1
local replica, hold, grace = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local offered = tonumber(ARGV[5])
call('ZADD', key_replicas(), NOW + hold, replica)
call('SET', key_presence(replica), ARGV[4], 'PX', int(hold))
for i = 6, #ARGV do
  local model = ARGV[i]
  if i < 6 + offered then
    call('ZADD', key_offers(model), NOW + hold, replica)
    call('ZADD', key_offered(), 'GT', NOW + hold, model)
  elseif grace > 0 then
    call('ZADD', key_offers(model), NOW + grace, replica)
  else
    call('ZREM', key_offers(model), replica)
    call('ZREM', key_idle(model), replica)
    if call('ZCOUNT', key_offers(model), '(' .. int(NOW), '+inf') == 0 then call('ZREM', key_offered(), model) end
  end
end
return 1
