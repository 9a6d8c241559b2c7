-- offer_models: say which models a replica's workers serve, and that it lives
-- KEYS[1]  prefix of the pool
-- ARGV[1]  replica
-- ARGV[2]  how long this holds, ms
-- ARGV[3]  how long a withdrawn model still counts as offered, ms
-- ARGV[4]  number of upstreams by which they are offered; then model and upstream of each: given for a model if one has a name
-- ARGV[…]  number of models offered; then they; then the models withdrawn since the last call
-- returns  how many models were refused: the pool knows as many as it may, until it forgets those not offered for a minute
script('offer_models', 'allow-oom', function(ARGV)
  local replica, hold, grace = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
  local through, refused = tonumber(ARGV[4]), 0
  local first = 6 + 2 * through -- model
  local offered = tonumber(ARGV[first - 1])
  local full = call('ZCARD', keys.offered()) + offered > 20000
  call('ZADD', keys.replicas(), NOW + hold, replica)

  local function hold_offer(model, ms)
    if full and not call('ZSCORE', keys.offered(), model) and call('ZCARD', keys.offered()) >= 20000 then
      refused = refused + 1
      return
    end
    local offers = keys.offers(model)
    call('ZADD', offers, NOW + ms, replica)
    call('ZREMRANGEBYSCORE', offers, '-inf', NOW - 600000)
    call('PEXPIRE', offers, ms + 600000)
    call('ZADD', keys.offered(), 'GT', NOW + ms, model)
  end

  -- By which upstreams this replica's workers offer a model: these from now on. Workers without one count where others name one.
  local named = {}
  for i = 5, first - 2, 2 do
    named[ARGV[i]] = named[ARGV[i]] or {}
    named[ARGV[i]][ARGV[i + 1]] = true
  end

  local function serve(model, upstreams)
    local serving = keys.serving(model)
    if not named[model] and call('EXISTS', serving) == 0 then return end
    for _, member in ipairs(call('ZRANGE', serving, '0', '999')) do
      local upstream, whose = string.match(member, '^(.*)\n(.*)$')
      if whose == replica and not upstreams[upstream] then call('ZREM', serving, member) end
    end
    for upstream in pairs(upstreams) do call('ZADD', serving, NOW + hold, upstream .. '\n' .. replica) end
    call('ZREMRANGEBYSCORE', serving, '-inf', NOW - 600000)
    call('PEXPIRE', serving, hold + 600000)
  end

  for i = first, #ARGV do
    local model = ARGV[i]
    if i < first + offered then
      hold_offer(model, hold)
      serve(model, named[model] or { [''] = true })
      call('PEXPIRE', keys.idle(model), 600000)
    else
      call('ZREM', keys.idle(model), replica)
      serve(model, {})
      if grace > 0 then
        hold_offer(model, grace)
      else
        call('ZREM', keys.offers(model), replica)
      end
      local last = call('ZRANGE', keys.offers(model), '0', '0', 'REV', 'WITHSCORES')[2]
      call('ZADD', keys.offered(), 'XX', whole(math.max(num(last), NOW)), model)
    end
  end
  return refused
end)
