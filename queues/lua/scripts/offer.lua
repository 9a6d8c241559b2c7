-- offer: report that a replica is alive, and the models that its workers serve
-- args      replica; hold_ms: how long this report is valid; grace_ms: how long a withdrawn model still counts as offered; models; withdrawn: models
--           withdrawn since the last call; upstreams: model -> names of its upstreams here, if one has a name
-- returns   {refused}: number of rejected models: a pool has MAX_OFFERED at most; those not offered for a minute are removed
local MAX_OFFERED = 20000
local REMEMBERED = 600000 -- ms

script('offer', 'allow-oom', function(ask)
  local replica, hold, refused = ask.replica, ask.hold_ms, 0
  local full = call('ZCARD', keys.offered()) + #ask.models > MAX_OFFERED
  call('ZADD', keys.replicas(), whole(NOW + hold), replica)

  local function hold_offer(model, ms)
    if full and not call('ZSCORE', keys.offered(), model) and call('ZCARD', keys.offered()) >= MAX_OFFERED then
      refused = refused + 1
      return
    end
    local offers = keys.offers(model)
    call('ZADD', offers, whole(NOW + ms), replica)
    call('ZREMRANGEBYSCORE', offers, '-inf', whole(NOW - REMEMBERED))
    call('PEXPIRE', offers, whole(ms + REMEMBERED))
    call('ZADD', keys.offered(), 'GT', whole(NOW + ms), model)
  end

  -- Workers without an upstream are listed only if other workers name one.
  local function serve(model, upstreams)
    local serving = keys.serving(model)
    if not ask.upstreams[model] and call('EXISTS', serving) == 0 then return end
    for _, member in ipairs(call('ZRANGE', serving, '0', '999')) do
      if string.match(member, '\n(.*)$') == replica then call('ZREM', serving, member) end
    end
    for _, upstream in ipairs(upstreams) do call('ZADD', serving, whole(NOW + hold), upstream .. '\n' .. replica) end
    call('ZREMRANGEBYSCORE', serving, '-inf', whole(NOW - REMEMBERED))
    call('PEXPIRE', serving, whole(hold + REMEMBERED))
  end

  for _, model in ipairs(ask.models) do
    hold_offer(model, hold)
    serve(model, ask.upstreams[model] or { '' })
    call('PEXPIRE', keys.idle(model), whole(REMEMBERED))
  end
  for _, model in ipairs(ask.withdrawn) do
    call('ZREM', keys.idle(model), replica)
    serve(model, {})
    if ask.grace_ms > 0 then hold_offer(model, ask.grace_ms) else call('ZREM', keys.offers(model), replica) end
    local last = call('ZRANGE', keys.offers(model), '0', '0', 'REV', 'WITHSCORES')[2]
    call('ZADD', keys.offered(), 'XX', whole(math.max(num(last), NOW)), model)
  end
  return { refused = refused }
end)
