-- requeue: give a granted task back to its old place, because its worker is gone or declines it
-- uses: waking lanes ending retrying
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  attempt
-- ARGV[3]  grant token
-- ARGV[4]  replica
-- ARGV[5]  why, for the record
-- ARGV[6]  lost: the worker is gone | failed: it failed, a retry may help (both count a try if it had begun) | declined
-- ARGV[7]  1: the worker had begun
-- ARGV[8…] rest fragment and code of the ends it may come to: worker lost, no worker left, out of time
-- returns  {'queued'} | {'ended', event id, type, data} | {'stale', state}
local id = ARGV[1]
local t = load(id)
if not t or t.at ~= ARGV[2] or t.gt ~= ARGV[3] then return { 'stale', t and t.st or 'unknown' } end
if t.st ~= 'executing' then
  if release(id, t) then wake(t.m) end
  return { 'stale', t.st }
end
if ARGV[7] == '1' and not t.bg then
  t.bg = '1'
  t.tr = tostring(num(t.tr) + 1)
  call('HSET', key_task(id), 'tr', t.tr)
end
local failures = {
  lost = { rest = ARGV[8], code = ARGV[9] },
  no_worker = { rest = ARGV[10], code = ARGV[11] },
  timeout = { rest = ARGV[12], code = ARGV[13] },
}
local outcome, event_id, kind, data = put_back(id, t, ARGV[5], ARGV[6], failures, ARGV[4])
wake(t.m)
return { outcome, event_id, kind, data }
