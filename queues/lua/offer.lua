-- offer: say which models a replica's workers serve, and that it lives
-- KEYS[1]  prefix of the pool
-- ARGV[1]  replica
-- ARGV[2]  how long this holds, ms
-- ARGV[3]  how long a withdrawn model still counts as offered, ms
-- ARGV[4]  number of models offered; then they; then the models withdrawn since the last call
-- returns  how many models were refused: the pool knows as many as it may, until it forgets those not offered for a minute
local replica, hold, grace = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local offered, refused = tonumber(ARGV[4]), 0
local full = call('ZCARD', key_offered()) + offered > 20000
even_if_full()
call('ZADD', key_replicas(), NOW + hold, replica)

local function hold_offer(model, ms)
  if full and not call('ZSCORE', key_offered(), model) and call('ZCARD', key_offered()) >= 20000 then
    refused = refused + 1
    return
  end
  local offers = key_offers(model)
  call('ZADD', offers, NOW + ms, replica)
  call('ZREMRANGEBYSCORE', offers, '-inf', NOW - 600000)
  call('PEXPIRE', offers, ms + 600000)
  call('ZADD', key_offered(), 'GT', NOW + ms, model)
end

for i = 5, #ARGV do
  local model = ARGV[i]
  if i < 5 + offered then
    hold_offer(model, hold)
    call('PEXPIRE', key_idle(model), 600000)
  else
    call('ZREM', key_idle(model), replica)
    if grace > 0 then
      hold_offer(model, grace)
    else
      call('ZREM', key_offers(model), replica)
    end
    local last = call('ZRANGE', key_offers(model), '0', '0', 'REV', 'WITHSCORES')[2]
    call('ZADD', key_offered(), 'XX', whole(math.max(num(last), NOW)), model)
  end
end
return refused
