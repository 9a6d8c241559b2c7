-- requeue: give a granted task back to its old place, because its worker is gone or declines it
-- KEYS[1]  prefix of the pool
-- ARGV[1]  task id
-- ARGV[2]  attempt
-- ARGV[3]  grant token
-- ARGV[4]  why, for the record
-- ARGV[5]  lost: the worker is gone | failed: it failed, a retry may help (both count a try if it had begun) | declined
-- ARGV[6]  1: the worker had begun
-- ARGV[7]  who was lost, the same over all connections of a worker
-- ARGV[8…] rest fragment and code of the ends it may come to: worker lost, no worker left, out of time
-- returns  {'queued'} | {'ended', event id, type, data} | {'stale', state}. Repeated, it says 'ended' again or is 'stale'.
local id, token = ARGV[1], ARGV[3]
local t = load(id)
if not t or t.at ~= ARGV[2] or t.gt ~= token then return { 'stale', t and t.st or 'unknown' } end
if t.st ~= 'executing' then
  if release(id, t) then
    settle(t, -1, -1, false)
    wake(t.m)
  end
  if t.fn ~= token then return { 'stale', t.st } end
  local event_id = t.at .. '-' .. t.sq
  local entry = call('XRANGE', key_log(id), event_id, event_id)[1]
  return entry and { 'ended', event_id, entry[2][2], entry[2][4] } or { 'stale', t.st }
end
local failures = {
  lost = { rest = ARGV[8], code = ARGV[9] },
  no_worker = { rest = ARGV[10], code = ARGV[11] },
  timeout = { rest = ARGV[12], code = ARGV[13] },
}
local outcome, event_id, kind, data = put_back(id, t, ARGV[4], ARGV[5], ARGV[6] == '1', failures, token, ARGV[7])
wake(t.m)
return { outcome, event_id, kind, data }
