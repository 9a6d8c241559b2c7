-- sweep: end tasks whose time is over, put back tasks whose lease is over, repeat wake-ups that may have been lost, remove what has expired
-- args      lease_ms, grace_ms of a stopping task; ends: rest and code of the possible ends; max_kept_bytes: limit for ended tasks
-- returns   {next_ms: when to sweep again, looked_at: tasks that were checked, accounts of those that ended or returned, dropped: ended tasks that
--           were removed early, outbox: number of entries, moved: reply of the hook, overrides: their version}
script('sweep', 'allow-oom', function(ask)
  local more = gaps.look(ask.lease_ms, math.max(ask.lease_ms, ask.grace_ms))
  local looked_at, accounts = expiry.sweep(ask, 100)
  more = expiry.return_aside(100) or more
  if NOW - num(call('HGET', keys.pool(), 'woke')) >= 900 then
    call('HSET', keys.pool(), 'woke', NOW_TEXT)
    tidying.wake_all()
    tidying.forget_replicas()
    tidying.move_stranded()
    tidying.forget_models()
    more = hooks.sweep('sweep', ask) or more
  end
  more = hooks.sweep('sweep_often', ask) or more
  local dropped, beyond = retention.sweep(ask.max_kept_bytes, 500)
  local next_at = (more or beyond) and NOW or NOW + 1000
  for _, line in ipairs({ keys.due(), keys.aside() }) do
    local first = tonumber(call('ZRANGE', line, '0', '0', 'WITHSCORES')[2])
    if first then next_at = math.max(math.min(next_at, first), NOW) end
  end
  for _, account in ipairs(ending.related()) do accounts[#accounts + 1] = account end
  return { next_ms = next_at - NOW, looked_at = looked_at, accounts = accounts, dropped = dropped, outbox = call('XLEN', keys.outbox()),
    moved = hooks.sweep_reply('moved'), overrides = call('HGET', keys.pool(), 'overrides') or '' }
end)
