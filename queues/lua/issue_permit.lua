-- issue_permit: give out the permit that a task was granted: its event is logged, and from now on the store holds it
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  epoch of the grant
-- ARGV[3]  grant token
-- ARGV[4]  how long it may be used, ms; its task's deadline may come before
-- ARGV[5]  how long a used one holds its slot, ms, unless its end is reported
-- ARGV[6]  fields of the event, without braces; when the permit ends is put behind them
-- ARGV[7]  replica (it delivers to its own readers itself)
-- returns  {'ok', event id, data} | {'stale'} the grant is over: no permit was issued. Repeating it returns the same.
-- Who has a permit need not be there any more: it does not end as its readers leave.
script('issue_permit', nil, function(ARGV)
  local id, epoch, rest, replica = ARGV[1], ARGV[2], ARGV[6], ARGV[7]
  local unused_ms, used_ms = tonumber(ARGV[4]), tonumber(ARGV[5])
  local t = load(id)
  if not t or t.epoch ~= epoch then return { 'stale' } end
  if t.state ~= 'executing' then
    if t.grant_token == ARGV[3] and permits.give_back(id, t, false, false) then
      wake(t.model)
      wake_elsewhere(t)
    end
    return { 'stale' }
  end
  if t.permit then
    local entry = call('XRANGE', keys.log(id), epoch .. '-' .. t.top_seq, epoch .. '-' .. t.top_seq)[1]
    return entry and { 'ok', entry[1], entry[2][4] } or { 'stale' }
  end
  if t.grant_token ~= ARGV[3] then return { 'stale' } end
  local till = earlier(NOW + unused_ms, t.deadline)
  local seq = whole(num(t.top_seq) + 1)
  local event_id, data = epoch .. '-' .. seq, event_data(id, rest .. ',"expiresAt":' .. whole(till))
  call('XADD', keys.log(id), event_id, 'type', 'permit', 'data', data)
  call('HSET', keys.task(id), 'top_seq', seq, 'grant_token', '', 'owner', '', 'attempt_deadline', '0', 'permit',
    permits.text({ till = till, unused_ms = unused_ms, used_ms = used_ms, used_at = '0', nonce = '' }))
  call('HDEL', keys.task(id), 'linger_at', 'linger')
  permits.keep(id, t.model, till)
  publish_event(t.readers, id, event_id, 'permit', data, replica)
  return { 'ok', event_id, data }
end)
