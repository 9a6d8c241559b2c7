-- list_due_balances: whose balances are to be compared with SQL now, and how they stand
-- KEYS[1]  prefix of the pool
-- ARGV[1]  how many; how long until they are due again, ms; 1: all are due now
-- returns  {id of the newest entry of the outbox, or '', {subject, {fields of its balance, …}, ms since when nothing has happened}, …}
script('list_due_balances', 'allow-oom', function(ARGV)
  local most, pause, all = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
  local line, newest = keys.balances(), call('XREVRANGE', keys.outbox(), '+', '-', 'COUNT', '1')[1]
  if all then call('ZUNIONSTORE', line, '1', line, 'WEIGHTS', '0') end
  local due = call('ZRANGEBYSCORE', line, '-inf', NOW_TEXT, 'LIMIT', '0', most)
  local found = { newest and newest[1] or '' }
  for _, subject in ipairs(due) do
    local balance = keys.balance(subject)
    local fields, s, held = call('HGETALL', balance), {}, 0
    for i = 1, #fields, 2 do
      s[fields[i]] = fields[i + 1]
      if string.sub(fields[i], 1, 8) == 'reserved' then held = held + fields[i + 1] end
    end
    if s.balance then
      if held > 0 or s.reconciled ~= s.settled or not s.idle_since then
        s.idle_since = NOW_TEXT
        call('HSET', balance, 'reconciled', s.settled, 'idle_since', NOW_TEXT)
      end
      call('ZADD', line, whole(NOW + pause), subject)
      found[#found + 1] = { subject, fields, NOW - s.idle_since }
    else
      call('ZREM', line, subject)
    end
  end
  return found
end)
